//! OpenSSL functions that the `openssl` crate does not offer: a certificate's names and
//! signature, the certificates that a client has sent, Diffie-Hellman parameters, the keys of a
//! key exchange, and changes of keys.

use foreign_types::ForeignTypeRef;
use openssl::asn1::Asn1StringRef;
use openssl::dh::DhRef;
use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::pkey::Params;
use openssl::ssl::SslRef;
use openssl::x509::{X509NameRef, X509Ref};
use openssl_sys as ffi;
use std::ffi::{c_char, c_int, c_long, c_ulong};
use std::ptr::NonNull;

// ---- Names and signature of a certificate ---------------------------------
//
// The names in a certificate as text, and the hash of its signature, by OpenSSL functions that
// the crate does not offer.

extern "C" {
    fn X509_NAME_print_ex(
        out: *mut ffi::BIO,
        name: *const ffi::X509_NAME,
        indent: c_int,
        flags: c_ulong,
    ) -> c_int;
    fn ASN1_STRING_print_ex(
        out: *mut ffi::BIO,
        string: *const ffi::ASN1_STRING,
        flags: c_ulong,
    ) -> c_int;
    fn X509_get_signature_info(
        certificate: *mut ffi::X509,
        digest: *mut c_int,
        key: *mut c_int,
        security_bits: *mut c_int,
        flags: *mut u32,
    ) -> c_int;
}

// openssl/asn1.h and x509.h, of 1.1.1 and 3.
const ESC_2253: c_ulong = 1;
const ESC_CTRL: c_ulong = 2;
const ESC_MSB: c_ulong = 4;
const UTF8_CONVERT: c_ulong = 0x10;
const DUMP_UNKNOWN: c_ulong = 0x100;
const DUMP_DER: c_ulong = 0x200;
const STRFLGS_RFC2253: c_ulong =
    ESC_2253 | ESC_CTRL | ESC_MSB | UTF8_CONVERT | DUMP_UNKNOWN | DUMP_DER;
const SEP_COMMA_PLUS: c_ulong = 1 << 16;
const DN_REV: c_ulong = 1 << 20;
const FN_SN: c_ulong = 0;
const DUMP_UNKNOWN_FIELDS: c_ulong = 1 << 24;
const XN_FLAG_RFC2253: c_ulong =
    STRFLGS_RFC2253 | SEP_COMMA_PLUS | DN_REV | FN_SN | DUMP_UNKNOWN_FIELDS;

/// The text that `print` writes; None if it fails.
fn printed(print: impl FnOnce(*mut ffi::BIO) -> bool) -> Option<Vec<u8>> {
    // SAFETY: the memory BIO is ours until it is freed below; what BIO_get_mem_data points to
    // is copied before that.
    unsafe {
        let bio = ffi::BIO_new(ffi::BIO_s_mem());
        if bio.is_null() {
            return None;
        }
        let text = print(bio).then(|| {
            let mut start: *mut c_char = std::ptr::null_mut();
            let length = ffi::BIO_get_mem_data(bio, &mut start);
            match usize::try_from(length) {
                Ok(length) if length > 0 => {
                    std::slice::from_raw_parts(start.cast::<u8>(), length).to_vec()
                }
                _ => Vec::new(),
            }
        });
        ffi::BIO_free_all(bio);
        text
    }
}

/// A name in the form of RFC 2253, as be_tls_open_server fills peer_dn.
pub fn name_rfc2253(name: &X509NameRef) -> Option<Vec<u8>> {
    // SAFETY: both live through the call, which only reads the name.
    printed(|bio| unsafe { X509_NAME_print_ex(bio, name.as_ptr(), 0, XN_FLAG_RFC2253) } != -1)
}

/// A part of a name in UTF-8, as X509_NAME_to_cstring (be-secure-openssl.c) writes it.
pub fn string_text(string: &Asn1StringRef) -> Option<Vec<u8>> {
    let flags = (STRFLGS_RFC2253 & !ESC_MSB) | UTF8_CONVERT;
    // SAFETY: as above.
    printed(|bio| unsafe { ASN1_STRING_print_ex(bio, string.as_ptr(), flags) } != -1)
}

/// The hash of a certificate's signature, also if it is a parameter of the signature (RSA-PSS).
/// None if the signature uses no hash.
pub fn signature_digest(certificate: &X509Ref) -> Option<Nid> {
    let mut digest: c_int = 0;
    let none = std::ptr::null_mut();
    // SAFETY: the certificate and the number live through the call; a null stands for a result
    // that is not requested.
    let found = unsafe {
        X509_get_signature_info(certificate.as_ptr(), &mut digest, none, none, none.cast())
    };
    let digest = Nid::from_raw(digest);
    (found == 1 && digest != Nid::UNDEF).then_some(digest)
}

// ---- The client's certificates --------------------------------------------
//
// The certificates that a client has sent. OpenSSL keeps them for the life of the session, and
// nothing uses them after the handshake.

extern "C" {
    fn EVP_PKEY_set_type(key: *mut ffi::EVP_PKEY, kind: c_int) -> c_int;
    fn OPENSSL_sk_num(stack: *const ffi::stack_st_X509) -> c_int;
    fn OPENSSL_sk_value(stack: *const ffi::stack_st_X509, at: c_int) -> *mut ffi::X509;
}

/// NID_X25519. Any kind serves: it replaces the content.
const KIND: c_int = 1034;

/// Frees most of the content of the certificates: key, names and extensions. That is half of
/// the 4 kB that each one takes of an idle session. Facts::of() has been called by then.
///
/// The certificates belong to the session alone. The client has sent them
/// (tls_process_client_certificate in statem_srvr.c); they are never objects of the context's
/// own store. There is no session cache, no ticket and no renegotiation through which they
/// could be requested again.
pub fn empty_shown_certificates(ssl: &SslRef) {
    // SAFETY: the session lives through the calls, and so does its chain, whose certificates
    // are those that the client has sent besides its own. No other thread uses them at this
    // time.
    unsafe {
        let Some(own) = NonNull::new(ffi::SSL_get1_peer_certificate(ssl.as_ptr())) else {
            return;
        };
        empty_one(own);
        ffi::X509_free(own.as_ptr());
        let chain = ffi::SSL_get_peer_cert_chain(ssl.as_ptr());
        // -1 if there is no chain.
        for at in 0..OPENSSL_sk_num(chain) {
            if let Some(certificate) = NonNull::new(OPENSSL_sk_value(chain, at)) {
                empty_one(certificate);
            }
        }
    }
    // Errors of these calls do not concern the session, so they are discarded.
    let _ = openssl::error::ErrorStack::get();
}

/// # Safety
/// The certificate lives through the call, and nothing else uses it.
unsafe fn empty_one(certificate: NonNull<ffi::X509>) {
    let certificate = certificate.as_ptr();
    // SAFETY: as the caller guarantees. What is removed is freed once, and names are copied.
    unsafe {
        let key = ffi::X509_get_pubkey(certificate);
        if !key.is_null() {
            // Frees the old content first (pkey_set_type in p_lib.c).
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

// ---- Parameters for Diffie-Hellman ----------------------------------------
//
// OpenSSL's check of Diffie-Hellman parameters. The crate's own check says whether they are
// good, but not what is wrong.

// openssl/dh.h, of 1.1.1 and 3.
const CHECK_P_NOT_PRIME: c_int = 1;
const CHECK_P_NOT_SAFE_PRIME: c_int = 2;
const NOT_SUITABLE_GENERATOR: c_int = 8;

/// The faults that the server checks for (load_dh_file, be-secure-openssl.c).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DhFaults {
    pub p_is_not_prime: bool,
    pub p_is_not_safe_prime: bool,
    pub generator_is_not_suitable: bool,
}

/// Checks the parameters. Computes for a while (two primality tests).
pub fn dh_faults(parameters: &DhRef<Params>) -> Result<DhFaults, ErrorStack> {
    let mut codes: c_int = 0;
    // SAFETY: both live through the call, which only reads the parameters.
    if unsafe { ffi::DH_check(parameters.as_ptr(), &mut codes) } != 1 {
        return Err(ErrorStack::get());
    }
    Ok(DhFaults {
        p_is_not_prime: codes & CHECK_P_NOT_PRIME != 0,
        p_is_not_safe_prime: codes & CHECK_P_NOT_SAFE_PRIME != 0,
        generator_is_not_suitable: codes & NOT_SUITABLE_GENERATOR != 0,
    })
}

// ---- Keys of the key exchange ---------------------------------------------
//
// The keys of a TLS handshake's key exchange. OpenSSL keeps both until the connection ends; the
// crate offers neither.

// openssl/ssl.h, of 1.1.1 and 3: SSL_get_peer_tmp_key and SSL_get_tmp_key.
const CTRL_GET_PEER_TMP_KEY: c_int = 109;
const CTRL_GET_TMP_KEY: c_int = 133;

/// Frees the content of the keys after the handshake. It is no longer needed: the traffic keys
/// have been derived, there is no renegotiation, and KeyUpdate derives from the traffic keys
/// (RFC 8446, 7.2). Two keys on P-256 take about 4 kB of an idle session, and a secret that is
/// gone cannot be stolen.
///
/// EVP_PKEY_set_type frees the old content first (pkey_set_type in p_lib.c). The empty key is
/// freed with its session (ssl3_free).
pub fn forget_exchange_keys(ssl: &SslRef) {
    for what in [CTRL_GET_PEER_TMP_KEY, CTRL_GET_TMP_KEY] {
        let mut key: *mut ffi::EVP_PKEY = std::ptr::null_mut();
        // SAFETY: the session lives through the call, which returns a counted reference to a
        // key that belongs to the session alone. Nothing else uses the key at this time.
        unsafe {
            let found = ffi::SSL_ctrl(
                ssl.as_ptr(),
                what,
                0 as c_long,
                std::ptr::from_mut(&mut key).cast(),
            );
            if found == 1 && !key.is_null() {
                let _ = EVP_PKEY_set_type(key, KIND);
                ffi::EVP_PKEY_free(key);
            }
        }
    }
    // Errors of these calls do not concern the session, so they are discarded.
    let _ = openssl::error::ErrorStack::get();
}

// ---- Changes of keys ------------------------------------------------------

// openssl/ssl.h, of 1.1.1 and 3: SSL_clear_mode.
const CTRL_CLEAR_MODE: c_int = 78;

/// Makes SSL_read return after the client has changed its keys, even if more input is there
/// (ssl3_read_bytes in rec_layer_s3.c). By default it would go on until it finds data.
pub fn return_after_key_change(ssl: &SslRef) {
    let mode = ffi::SSL_MODE_AUTO_RETRY;
    // SAFETY: the session lives through the call, which takes no pointer.
    unsafe { ffi::SSL_ctrl(ssl.as_ptr(), CTRL_CLEAR_MODE, mode, std::ptr::null_mut()) };
}

/// Changes the keys of this side. The message that announces it is sent with the next data.
#[cfg(test)]
pub fn change_keys(ssl: &SslRef) {
    extern "C" {
        fn SSL_key_update(ssl: *mut ffi::SSL, kind: c_int) -> c_int;
    }
    const NOT_REQUESTED: c_int = 0;
    // SAFETY: the session lives through the call.
    assert_eq!(unsafe { SSL_key_update(ssl.as_ptr(), NOT_REQUESTED) }, 1);
}
