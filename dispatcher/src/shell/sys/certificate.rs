//! Names in certificates, as text, and the hash in their signature, by OpenSSL's own
//! functions: the crate has none of them.

use foreign_types::ForeignTypeRef;
use openssl::asn1::Asn1StringRef;
use openssl::nid::Nid;
use openssl::x509::{X509NameRef, X509Ref};
use openssl_sys as ffi;
use std::ffi::{c_char, c_int, c_ulong};

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

/// What `print` writes; None if it fails.
fn printed(print: impl FnOnce(*mut ffi::BIO) -> bool) -> Option<Vec<u8>> {
    // SAFETY: a memory BIO that is ours until it is freed below; what
    // BIO_get_mem_data points to is copied before that.
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

/// As RFC 2253 has it; be_tls_open_server's peer_dn.
pub fn name_rfc2253(name: &X509NameRef) -> Option<Vec<u8>> {
    // SAFETY: both live through the call, which only reads the name.
    printed(|bio| unsafe { X509_NAME_print_ex(bio, name.as_ptr(), 0, XN_FLAG_RFC2253) } != -1)
}

/// A part of a name as X509_NAME_to_cstring (be-secure-openssl.c) writes it, in
/// UTF-8.
pub fn string_text(string: &Asn1StringRef) -> Option<Vec<u8>> {
    let flags = (STRFLGS_RFC2253 & !ESC_MSB) | UTF8_CONVERT;
    // SAFETY: as above.
    printed(|bio| unsafe { ASN1_STRING_print_ex(bio, string.as_ptr(), flags) } != -1)
}

/// With which hash it is signed: where that is a parameter of the signature (RSA-PSS),
/// too. None if it is signed without one.
pub fn signature_digest(certificate: &X509Ref) -> Option<Nid> {
    let mut digest: c_int = 0;
    let none = std::ptr::null_mut();
    // SAFETY: the certificate and the number live through the call; nulls are what is
    // not asked for.
    let found = unsafe {
        X509_get_signature_info(certificate.as_ptr(), &mut digest, none, none, none.cast())
    };
    let digest = Nid::from_raw(digest);
    (found == 1 && digest != Nid::UNDEF).then_some(digest)
}
