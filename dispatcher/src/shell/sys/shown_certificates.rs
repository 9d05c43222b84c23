//! The certificates that a client has shown, which OpenSSL keeps with its session as long
//! as that lives, and of which nobody wants anything after the handshake.

use foreign_types::ForeignTypeRef;
use openssl::ssl::SslRef;
use openssl_sys as ffi;
use std::ffi::c_int;
use std::ptr::NonNull;

extern "C" {
    fn EVP_PKEY_set_type(key: *mut ffi::EVP_PKEY, kind: c_int) -> c_int;
    fn OPENSSL_sk_num(stack: *const ffi::stack_st_X509) -> c_int;
    fn OPENSSL_sk_value(stack: *const ffi::stack_st_X509, at: c_int) -> *mut ffi::X509;
}

/// NID_X25519: any kind does, it takes the content's place.
const KIND: c_int = 1034;

/// Frees most of what is in them: key, names and extensions, half of the 4 kB that each is of
/// an idle session. Facts::of() has been called by then.
///
/// They are the session's alone: what the client has sent (tls_process_client_certificate in
/// statem_srvr.c), never an object of the context's own store; there is no session cache, no
/// ticket and no renegotiation by which anybody could ask for them again.
pub fn empty(ssl: &SslRef) {
    // SAFETY: the session lives through the calls, and with it its chain, whose certificates
    // are those that the client has sent besides its own; nobody else uses it at this time.
    unsafe {
        let Some(own) = NonNull::new(ffi::SSL_get1_peer_certificate(ssl.as_ptr())) else {
            return;
        };
        empty_one(own);
        ffi::X509_free(own.as_ptr());
        let chain = ffi::SSL_get_peer_cert_chain(ssl.as_ptr());
        // -1 of none
        for at in 0..OPENSSL_sk_num(chain) {
            if let Some(certificate) = NonNull::new(OPENSSL_sk_value(chain, at)) {
                empty_one(certificate);
            }
        }
    }
    // Nothing that could have gone wrong matters to the session's own errors.
    let _ = openssl::error::ErrorStack::get();
}

/// # Safety
/// Nobody else uses the certificate, which lives through the call.
unsafe fn empty_one(certificate: NonNull<ffi::X509>) {
    let certificate = certificate.as_ptr();
    // SAFETY: as promised; what is taken out of it is freed once, and names are copied.
    unsafe {
        let key = ffi::X509_get_pubkey(certificate);
        if !key.is_null() {
            // It frees the content before all else (pkey_set_type in p_lib.c).
            let _ = EVP_PKEY_set_type(key, KIND);
            ffi::EVP_PKEY_free(key);
        }
        while ffi::X509_get_ext_count(certificate) > 0 {
            ffi::X509_EXTENSION_free(ffi::X509_delete_ext(certificate, 0));
        }
        let nobody = ffi::X509_NAME_new();
        if !nobody.is_null() {
            let _ = ffi::X509_set_subject_name(certificate, nobody);
            let _ = ffi::X509_set_issuer_name(certificate, nobody);
            ffi::X509_NAME_free(nobody);
        }
    }
}
