//! What this program gives up for good, by Landlock (Linux 5.13 and later).
//!
//! It parses what strangers send, and runs as the server's user, to whom all data
//! files belong. Once its sockets are open it needs to write no file and to start
//! no program, so it cannot any more, whoever has come to control it: the kernel
//! refuses. That costs nothing but where a file is opened. What is left to it is in
//! docs/design/boundary.md.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// linux/landlock.h
const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const REMOVE_DIRECTORY: u64 = 1 << 4;
const MAKE_CHARACTER_DEVICE: u64 = 1 << 6;
const MAKE_DIRECTORY: u64 = 1 << 7;
const MAKE_REGULAR: u64 = 1 << 8;
const MAKE_FIFO: u64 = 1 << 10;
const MAKE_BLOCK_DEVICE: u64 = 1 << 11;
const MAKE_SYMLINK: u64 = 1 << 12;
/// Of the third version on (Linux 6.2).
const TRUNCATE: u64 = 1 << 14;
const CREATE_RULESET_VERSION: u32 = 1;

/// Of Landlock. An error: the kernel has none.
fn version() -> io::Result<libc::c_int> {
    // SAFETY: no memory is passed.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u64>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    check(version as libc::c_int)
}

/// From here on this thread, and those that it starts, write no file and start no
/// program. An error: the kernel has no Landlock, and all is as it was.
pub fn files() -> io::Result<()> {
    let version = version()?;
    let mut denied = EXECUTE
        | WRITE_FILE
        | REMOVE_DIRECTORY
        | MAKE_CHARACTER_DEVICE
        | MAKE_DIRECTORY
        | MAKE_REGULAR
        | MAKE_FIFO
        | MAKE_BLOCK_DEVICE
        | MAKE_SYMLINK;
    if version >= 3 {
        denied |= TRUNCATE;
    }
    // The first field of landlock_ruleset_attr, which may be all of it: what is
    // handled and allowed by no rule is denied.
    // SAFETY: `denied` lives through the call, which reads as many bytes as are named.
    let ruleset = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(&denied),
            size_of_val(&denied),
            0u32,
        )
    };
    let ruleset = check(ruleset as libc::c_int)?;
    // SAFETY: new, and owned by nobody else.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
    // SAFETY: numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: numbers only.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) };
    check(result as libc::c_int)?;
    Ok(())
}

#[cfg(test)]
#[path = "confine_tests.rs"]
mod tests;
