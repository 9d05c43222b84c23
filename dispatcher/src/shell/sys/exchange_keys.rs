//! The keys of a TLS handshake's key exchange, of which OpenSSL keeps both until the
//! connection ends and the crate knows neither.

use foreign_types::ForeignTypeRef;
use openssl::ssl::SslRef;
use openssl_sys as ffi;
use std::ffi::{c_int, c_long};

extern "C" {
    fn EVP_PKEY_set_type(key: *mut ffi::EVP_PKEY, kind: c_int) -> c_int;
}

// openssl/ssl.h, of 1.1.1 and 3: SSL_get_peer_tmp_key and SSL_get_tmp_key.
const CTRL_GET_PEER_TMP_KEY: c_int = 109;
const CTRL_GET_TMP_KEY: c_int = 133;
/// NID_X25519: any kind does, it takes the content's place.
const KIND: c_int = 1034;

/// Frees what is in them, after the handshake. They are of no use then: traffic keys
/// have been derived, there is no renegotiation, and KeyUpdate derives from those
/// (RFC 8446, 7.2). Two keys on P-256 are some 4 kB of an idle session; and a secret
/// that is gone cannot be stolen.
///
/// EVP_PKEY_set_type frees the content before all else (pkey_set_type in p_lib.c); the
/// empty key is freed with its session (ssl3_free).
pub fn forget(ssl: &SslRef) {
    for what in [CTRL_GET_PEER_TMP_KEY, CTRL_GET_TMP_KEY] {
        let mut key: *mut ffi::EVP_PKEY = std::ptr::null_mut();
        // SAFETY: the session lives through the call, which gives a reference to a key
        // of its own alone, counted; nobody else uses it at this time.
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
    // Nothing that could have gone wrong matters to the session's own errors.
    let _ = openssl::error::ErrorStack::get();
}
