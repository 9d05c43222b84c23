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

// ---- OpenSSL's allocator --------------------------------------------------
//
// OpenSSL's memory: decrypted data is overwritten when its buffer is freed.
//
// OpenSSL decrypts a record in the buffer that it was read into: input and output are the same
// (tls13_enc and tls1_enc of 1.1.1 and 3.0, tls13_cipher and tls1_cipher from 3.2 on). It
// copies the data to the caller and frees the buffer once all has been taken
// (SSL_MODE_RELEASE_BUFFERS). With SSL_OP_CLEANSE_PLAINTEXT it would overwrite the buffer
// before that: all of its 17 kB, for a record of a hundred bytes. So that option is off, and
// these functions overwrite only the bytes that were written to.
//
// While a thread works for a session ([`working_for`]), it knows the addresses of these bytes.
// In between, the session keeps them.

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
    /// Addresses, from the first one to the one after the last.
    static WRITTEN_TO: Cell<(usize, usize)> = const { Cell::new(NOTHING) };
}

const NOTHING: (usize, usize) = (0, 0);

/// The addresses of what OpenSSL has read for a session and not freed. They are only compared,
/// because the buffer may be gone already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrittenTo((usize, usize));

impl Default for WrittenTo {
    fn default() -> WrittenTo {
        WrittenTo(NOTHING)
    }
}

/// Makes OpenSSL allocate through these functions. Must be called before OpenSSL is used: after
/// its first allocation it refuses, and then nothing changes.
pub fn take_over() {
    // SAFETY: each function does what the function of the C library does whose place it takes.
    let done = unsafe { CRYPTO_set_mem_functions(Some(allocate), Some(reallocate), Some(free)) };
    IS_OURS.store(done == 1, Relaxed);
}

/// Has [`take_over`] succeeded?
pub fn is_taken_over() -> bool {
    IS_OURS.load(Relaxed)
}

/// Lets OpenSSL work, on this thread, for the session that `written` belongs to.
pub fn working_for<R>(written: &mut WrittenTo, work: impl FnOnce() -> R) -> R {
    WRITTEN_TO.set(written.0);
    let result = work();
    written.0 = WRITTEN_TO.replace(NOTHING);
    result
}

/// OpenSSL is about to free the session's buffers.
pub fn about_to_free(written: WrittenTo) {
    WRITTEN_TO.set(written.0);
}

/// OpenSSL has received bytes of the wire in this buffer of its own.
pub fn given(bytes: &[u8]) {
    let Range { start, end } = bytes.as_ptr_range();
    let (from, to) = WRITTEN_TO.get();
    WRITTEN_TO.set(match (from, to) {
        NOTHING => (start.addr(), end.addr()),
        _ => (from.min(start.addr()), to.max(end.addr())),
    });
}

/// The part of a block that must be overwritten when the block is freed.
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
    // SAFETY: a block of the C library, as `allocate` returns no others.
    unsafe { libc::realloc(block, length) }
}

unsafe extern "C" fn free(block: *mut c_void, _file: *const c_char, _line: c_int) {
    let written = WRITTEN_TO.get();
    let start = block.addr();
    if written != NOTHING && start < written.1 && !block.is_null() {
        // SAFETY: a block of the C library, as `allocate` returns no others.
        let length = unsafe { libc::malloc_usable_size(block) };
        let range = within(written, start..start + length);
        if !range.is_empty() {
            // SAFETY: within the block, which nothing uses after it is freed.
            unsafe {
                let from = block.cast::<u8>().add(range.start - start);
                from.write_bytes(0, range.len());
            }
            // Keeps the compiler from removing the write, which is otherwise unused.
            std::hint::black_box(block);
            WRITTEN_TO.set(NOTHING);
        }
    }
    // SAFETY: as above.
    unsafe { libc::free(block) };
}

// ---- A TLS session --------------------------------------------------------
//
// A TLS session of OpenSSL, with the addresses of what it has decrypted. Work that decrypts
// goes through [`TlsSession::work`]. Only one thread at a time uses a session.

pub struct TlsSession<S> {
    stream: SslStream<S>,
    /// The addresses of decrypted data in it.
    written_to: WrittenTo,
    places: SessionPlaces,
}

impl<S: Read + Write> TlsSession<S> {
    /// `open` makes OpenSSL's session, which reads and writes `wire`.
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

    /// For calls that neither decrypt nor change keys.
    pub fn stream(&mut self) -> &mut SslStream<S> {
        &mut self.stream
    }

    pub fn work<R>(&mut self, work: impl FnOnce(&mut SslStream<S>) -> R) -> R {
        let stream = &mut self.stream;
        working_for(&mut self.written_to, || work(stream))
    }

    /// Prefetches what the session's next turn begins with.
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
// Prefetches memory that is needed soon, while there is other work to do. This is a hint: it
// has no effect if the processor has no such instruction, or if the address is no longer
// mapped.

const CACHE_LINE_BYTES: usize = 64;

/// Prefetches a whole value.
pub fn prefetch<T>(what: &T) {
    let start = std::ptr::from_ref(what).addr();
    for at in (0..size_of::<T>()).step_by(CACHE_LINE_BYTES) {
        prefetch_line(start + at);
    }
}

/// The addresses of the parts of a TLS session that a turn begins with, each of which refers to
/// the next: the session, its BIO, and what the BIO reads and writes. They do not change during
/// the life of the session.
pub struct SessionPlaces([usize; 3]);

/// The bytes of each part that every turn uses.
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

/// Prefetches the cache line of an address.
fn prefetch_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: it reads nothing that the program sees, and no address makes it fail.
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
    fn a_session_keeps_its_written_range_until_the_block_is_freed() {
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
            // SAFETY: a block of 64 bytes of the C library, which nothing else uses any more.
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
