//! The memory of TLS sessions: OpenSSL's allocator, the session itself, and prefetching.

use foreign_types::ForeignTypeRef;
use openssl::error::ErrorStack;
use openssl::ssl::{Ssl, SslStream};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Write};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

// ---- OpenSSL allocates by these functions ---------------------------------
//
// OpenSSL's memory: what has been decrypted is overwritten when the buffer that it is in
// is freed.
//
// OpenSSL decrypts a record where it has read it to (tls13_enc and tls1_enc of 1.1.1
// and 3.0, tls13_cipher and tls1_cipher from 3.2 on: input and output are one), copies
// it to who has asked, and frees the buffer once all has been taken
// (SSL_MODE_RELEASE_BUFFERS). Told to (SSL_OP_CLEANSE_PLAINTEXT) it overwrites that
// before: all of its 17 kB, for a record of a hundred bytes. So it is not told to, and
// we overwrite what was written to.
//
// The thread knows which bytes those are while it works for a session ([`working_for`]);
// in between the session keeps their addresses.

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
    // SAFETY: each does what the C library's function does whose place it takes.
    let done = unsafe { CRYPTO_set_mem_functions(Some(allocate), Some(reallocate), Some(free)) };
    IS_OURS.store(done == 1, Relaxed);
}

/// Has it been?
pub fn is_taken_over() -> bool {
    IS_OURS.load(Relaxed)
}

/// This thread lets OpenSSL work for the session that `written` belongs to.
pub fn working_for<R>(written: &mut WrittenTo, work: impl FnOnce() -> R) -> R {
    WRITTEN_TO.set(written.0);
    let result = work();
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

unsafe extern "C" fn allocate(length: usize, _file: *const c_char, _line: c_int) -> *mut c_void {
    // SAFETY: no pointers.
    unsafe { libc::malloc(length) }
}

unsafe extern "C" fn reallocate(
    block: *mut c_void,
    length: usize,
    _file: *const c_char,
    _line: c_int,
) -> *mut c_void {
    // SAFETY: the C library's, as `allocate` gives no others.
    unsafe { libc::realloc(block, length) }
}

unsafe extern "C" fn free(block: *mut c_void, _file: *const c_char, _line: c_int) {
    let written = WRITTEN_TO.get();
    let start = block.addr();
    if written != NOTHING && start < written.1 && !block.is_null() {
        // SAFETY: the C library's, as `allocate` gives no others.
        let length = unsafe { libc::malloc_usable_size(block) };
        let range = within(written, start..start + length);
        if !range.is_empty() {
            // SAFETY: within the block, which nothing uses after it is freed.
            unsafe {
                let from = block.cast::<u8>().add(range.start - start);
                from.write_bytes(0, range.len());
            }
            // As if somebody looked: a write before the end could be left out.
            std::hint::black_box(block);
            WRITTEN_TO.set(NOTHING);
        }
    }
    // SAFETY: as above.
    unsafe { libc::free(block) };
}

// ---- A TLS session --------------------------------------------------------
//
// A TLS session of OpenSSL's, with the addresses of what it has decrypted. Work that
// decrypts goes through [`TlsSession::work`]. A thread uses one at a time.

pub struct TlsSession<S> {
    stream: SslStream<S>,
    /// What has been decrypted in there.
    written_to: WrittenTo,
    places: SessionPlaces,
}

impl<S: Read + Write> TlsSession<S> {
    /// `open` has OpenSSL make it, which reads and writes the wire.
    pub fn new(
        open: impl FnOnce() -> Result<Ssl, ErrorStack>,
        wire: S,
    ) -> Result<TlsSession<S>, ErrorStack> {
        let mut written_to = WrittenTo::default();
        let stream = working_for(&mut written_to, || {
            open().and_then(|ssl| SslStream::new(ssl, wire))
        })?;
        Ok(TlsSession {
            places: SessionPlaces::of(&stream),
            stream,
            written_to,
        })
    }

    /// For what neither decrypts nor changes keys.
    pub fn stream(&mut self) -> &mut SslStream<S> {
        &mut self.stream
    }

    pub fn work<R>(&mut self, work: impl FnOnce(&mut SslStream<S>) -> R) -> R {
        let stream = &mut self.stream;
        working_for(&mut self.written_to, || work(stream))
    }

    /// It is soon to be worked with.
    pub fn prefetch(&self) {
        self.places.prefetch();
    }
}

impl<S> Drop for TlsSession<S> {
    fn drop(&mut self) {
        about_to_free(self.written_to);
    }
}

// ---- Prefetch -------------------------------------------------------------
//
// Has the processor fetch memory that is needed soon, while there is something else
// to do. A hint: nothing comes of it where the processor has no such instruction, or
// where nothing is at an address any more.

const CACHE_LINE_BYTES: usize = 64;

/// All of it.
pub fn prefetch<T>(what: &T) {
    let start = std::ptr::from_ref(what).addr();
    for at in (0..size_of::<T>()).step_by(CACHE_LINE_BYTES) {
        prefetch_line(start + at);
    }
}

/// Where the parts of a TLS session are that a turn begins with, each of which says
/// where the next one is: the session, its BIO, and what that reads and writes. They
/// stay where they are as long as the session is there.
pub struct SessionPlaces([usize; 3]);

/// Of each part, what is used of it in any case.
const PART_BYTES: usize = 2 * CACHE_LINE_BYTES;

impl SessionPlaces {
    pub fn of<S>(stream: &SslStream<S>) -> SessionPlaces {
        let session = stream.ssl().as_ptr();
        // SAFETY: the session lives through the call, which counts no reference.
        let bio = unsafe { openssl_sys::SSL_get_rbio(session) };
        let wire = std::ptr::from_ref(stream.get_ref());
        SessionPlaces([session.addr(), bio.addr(), wire.addr()])
    }

    pub fn prefetch(&self) {
        for start in self.0 {
            for at in (0..PART_BYTES).step_by(CACHE_LINE_BYTES) {
                prefetch_line(start + at);
            }
        }
    }
}

/// The line that an address is in.
fn prefetch_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: it reads nothing that a program sees, and no address makes it fail.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
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
        working_for(&mut one, || given(&buffer[8..13]));
        working_for(&mut other, || ());
        assert_eq!(other, WrittenTo::default(), "another's is another's");
        working_for(&mut one, || given(&buffer[13..40]));
        let start = buffer.as_ptr().addr();
        assert_eq!(one, WrittenTo((start + 8, start + 40)));
        working_for(&mut one, || {
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
