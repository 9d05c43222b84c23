//! System calls behind safe functions.
//!
//! All unsafe code of the dispatcher is in this folder. Every function takes and returns
//! ordinary Rust values; descriptors are `OwnedFd`, or raw numbers that the caller owns.
//! Sockets are non-blocking from their creation on, so no call on them blocks.

pub mod epoll;
pub mod keeper;
pub mod memory;
pub mod openssl_functions;
pub mod openssl_memory;
pub mod process;
pub mod socket;

use std::io;

/// The result of a system call as `io::Result`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Like [`check`], for calls that return a length. Interrupted calls are repeated.
fn check_length(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let result = call();
        if let Ok(length) = usize::try_from(result) {
            return Ok(length);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
