//! OpenSSL's memory: the large structures of a session lie apart (`session_blocks.rs`),
//! and what has been decrypted is overwritten when the buffer that it is in is freed.
//!
//! OpenSSL decrypts a record where it has read it to (tls13_enc and tls1_enc of 1.1.1
//! and 3.0, tls13_cipher and tls1_cipher from 3.2 on: input and output are one), copies
//! it to who has asked, and frees the buffer once all has been taken
//! (SSL_MODE_RELEASE_BUFFERS). Told to (SSL_OP_CLEANSE_PLAINTEXT) it overwrites that
//! before: all of its 17 kB, for a record of a hundred bytes. So it is not told to, and
//! we overwrite what was written to.
//!
//! Whose bytes those are, and whose the slot is for large structures, is the thread's to
//! know while it works for a session ([`working_for`]); in between the session does.

use super::session_blocks;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

type Allocate = unsafe extern "C" fn(usize, *const c_char, c_int) -> *mut c_void;
type Reallocate = unsafe extern "C" fn(*mut c_void, usize, *const c_char, c_int) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, *const c_char, c_int);

extern "C" {
    fn CRYPTO_set_mem_functions(
        allocate: Option<Allocate>,
        reallocate: Option<Reallocate>,
        free: Option<Free>,
    ) -> c_int;
}

static IS_OURS: AtomicBool = AtomicBool::new(false);

thread_local! {
    static SLOT: Cell<Option<u32>> = const { Cell::new(None) };
    /// Addresses, from the first to behind the last.
    static WRITTEN_TO: Cell<(usize, usize)> = const { Cell::new(NOTHING) };
}

const NOTHING: (usize, usize) = (0, 0);

/// Where OpenSSL has what it has read for a session, and has not freed. Only compared
/// with addresses: it may be of a buffer that is there no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrittenTo((usize, usize));

impl Default for WrittenTo {
    fn default() -> WrittenTo {
        WrittenTo(NOTHING)
    }
}

/// From here on OpenSSL has its memory from here; to be called before it is used. It
/// refuses that once it has allocated anything, and all is as if this was not called.
pub fn take_over() {
    session_blocks::set_apart();
    // SAFETY: each does what the C library's function does whose place it takes, and
    // knows the blocks of the others.
    let done = unsafe { CRYPTO_set_mem_functions(Some(allocate), Some(reallocate), Some(free)) };
    IS_OURS.store(done == 1, Relaxed);
}

/// Has it been?
pub fn is_taken_over() -> bool {
    IS_OURS.load(Relaxed)
}

/// This thread lets OpenSSL work for the session that `written` and `slot` are of.
pub fn working_for<R>(written: &mut WrittenTo, slot: Option<u32>, work: impl FnOnce() -> R) -> R {
    WRITTEN_TO.set(written.0);
    SLOT.set(slot);
    let result = work();
    SLOT.set(None);
    written.0 = WRITTEN_TO.replace(NOTHING);
    result
}

/// It frees all that it has of it, next.
pub fn about_to_free(written: WrittenTo) {
    WRITTEN_TO.set(written.0);
}

/// OpenSSL has been given bytes of the wire here, in a buffer of its own.
pub fn given(bytes: &[u8]) {
    let Range { start, end } = bytes.as_ptr_range();
    let (from, to) = WRITTEN_TO.get();
    WRITTEN_TO.set(match (from, to) {
        NOTHING => (start.addr(), end.addr()),
        _ => (from.min(start.addr()), to.max(end.addr())),
    });
}

/// What is to be overwritten of a block that is freed.
fn within(written: (usize, usize), block: Range<usize>) -> Range<usize> {
    written.0.max(block.start)..written.1.min(block.end)
}

unsafe extern "C" fn allocate(length: usize, file: *const c_char, _line: c_int) -> *mut c_void {
    if let Some(slot) = SLOT.get() {
        // SAFETY: a string of OpenSSL's program, or none.
        let file = (!file.is_null()).then(|| unsafe { CStr::from_ptr(file) });
        if file.is_some_and(|file| session_blocks::is_of_a_session(length, file)) {
            if let Some(block) = session_blocks::allocate(slot, length) {
                return block;
            }
        }
    }
    // SAFETY: no pointers.
    unsafe { libc::malloc(length) }
}

unsafe extern "C" fn reallocate(
    block: *mut c_void,
    length: usize,
    file: *const c_char,
    line: c_int,
) -> *mut c_void {
    let Some(old_length) = session_blocks::length_of(block) else {
        // SAFETY: of the C library's, as it lies in no slot.
        return unsafe { libc::realloc(block, length) };
    };
    // SAFETY: both are at least so long, and apart.
    unsafe {
        let new = libc::malloc(length);
        if !new.is_null() {
            let both = length.min(old_length);
            new.cast::<u8>()
                .copy_from_nonoverlapping(block.cast(), both);
            free(block, file, line);
        }
        new
    }
}

unsafe extern "C" fn free(block: *mut c_void, _file: *const c_char, _line: c_int) {
    let of_a_slot = session_blocks::length_of(block);
    let written = WRITTEN_TO.get();
    let start = block.addr();
    if written != NOTHING && start < written.1 && !block.is_null() {
        let length = of_a_slot.unwrap_or_else(|| {
            // SAFETY: of the C library's, as it lies in no slot.
            unsafe { libc::malloc_usable_size(block) }
        });
        let range = within(written, start..start + length);
        if !range.is_empty() {
            // SAFETY: within the block, which whoever frees it is the last to use.
            unsafe {
                let from = block.cast::<u8>().add(range.start - start);
                from.write_bytes(0, range.len());
            }
            // As if somebody looked: a write before the end could be left out.
            std::hint::black_box(block);
            WRITTEN_TO.set(NOTHING);
        }
    }
    if of_a_slot.is_some() {
        session_blocks::free(block);
    } else {
        // SAFETY: as above.
        unsafe { libc::free(block) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_within_its_block_and_no_other() {
        assert_eq!(within((100, 120), 90..200), 100..120);
        assert_eq!(within((100, 120), 110..200), 110..120);
        assert_eq!(within((100, 120), 90..110), 100..110);
        assert!(within((100, 120), 120..200).is_empty());
        assert!(within((100, 120), 10..100).is_empty());
    }

    #[test]
    fn a_session_keeps_what_was_written_until_it_is_freed() {
        let buffer = vec![1; 64].into_boxed_slice();
        let buffer = std::mem::ManuallyDrop::new(buffer);
        let (mut one, mut other) = (WrittenTo::default(), WrittenTo::default());
        working_for(&mut one, None, || given(&buffer[8..13]));
        working_for(&mut other, None, || ());
        assert_eq!(other, WrittenTo::default(), "another's is another's");
        working_for(&mut one, None, || given(&buffer[13..40]));
        let start = buffer.as_ptr().addr();
        assert_eq!(one, WrittenTo((start + 8, start + 40)));
        working_for(&mut one, None, || {
            // SAFETY: the C library's, of 64 bytes; nobody has them any more.
            unsafe {
                let another = libc::malloc(64);
                free(another, std::ptr::null(), 0);
                assert_ne!(WRITTEN_TO.get(), NOTHING, "of another block");
                free(buffer.as_ptr().cast_mut().cast(), std::ptr::null(), 0);
            }
        });
        assert_eq!(one, WrittenTo::default());
    }
}
