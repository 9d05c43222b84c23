//! What OpenSSL says of parameters for Diffie-Hellman; the crate's own check says
//! whether they are good, and not what is wrong.

use foreign_types::ForeignTypeRef;
use openssl::dh::DhRef;
use openssl::error::ErrorStack;
use openssl::pkey::Params;
use openssl_sys as ffi;
use std::ffi::c_int;

// openssl/dh.h, of 1.1.1 and 3.
const CHECK_P_NOT_PRIME: c_int = 1;
const CHECK_P_NOT_SAFE_PRIME: c_int = 2;
const NOT_SUITABLE_GENERATOR: c_int = 8;

/// Those that the server asks about (load_dh_file, be-secure-openssl.c).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    pub p_is_not_prime: bool,
    pub p_is_not_safe_prime: bool,
    pub generator_is_not_suitable: bool,
}

/// Computes for a while (two tests of a prime).
pub fn faults(parameters: &DhRef<Params>) -> Result<Faults, ErrorStack> {
    let mut codes: c_int = 0;
    // SAFETY: both live through the call, which only reads the parameters.
    if unsafe { ffi::DH_check(parameters.as_ptr(), &mut codes) } != 1 {
        return Err(ErrorStack::get());
    }
    Ok(Faults {
        p_is_not_prime: codes & CHECK_P_NOT_PRIME != 0,
        p_is_not_safe_prime: codes & CHECK_P_NOT_SAFE_PRIME != 0,
        generator_is_not_suitable: codes & NOT_SUITABLE_GENERATOR != 0,
    })
}
