//! The memory of TLS sessions: OpenSSL's allocator, the blocks of a session that are put
//! away while the session has nothing to do, the session itself, and prefetching.

use super::check;
use foreign_types::ForeignTypeRef;
use openssl::error::ErrorStack;
use openssl::ssl::{Ssl, SslStream};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock, PoisonError};
use zeroize::Zeroizing;

// ---- OpenSSL allocates by these functions ---------------------------------
//
// OpenSSL's memory: the large structures of a session lie apart,
// and what has been decrypted is overwritten when the buffer that it is in is freed.
//
// OpenSSL decrypts a record where it has read it to (tls13_enc and tls1_enc of 1.1.1
// and 3.0, tls13_cipher and tls1_cipher from 3.2 on: input and output are one), copies
// it to who has asked, and frees the buffer once all has been taken
// (SSL_MODE_RELEASE_BUFFERS). Told to (SSL_OP_CLEANSE_PLAINTEXT) it overwrites that
// before: all of its 17 kB, for a record of a hundred bytes. So it is not told to, and
// we overwrite what was written to.
//
// Whose bytes those are, and whose the slot is for large structures, is the thread's to
// know while it works for a session ([`working_for`]); in between the session does.

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
    set_apart();
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
        if file.is_some_and(|file| is_of_a_session(length, file)) {
            if let Some(block) = allocate_block(slot, length) {
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
    let Some(old_length) = length_of_block(block) else {
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
    let of_a_slot = length_of_block(block);
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
        free_block(block);
    } else {
        // SAFETY: as above.
        unsafe { libc::free(block) };
    }
}

// ---- Blocks of a session --------------------------------------------------
//
// Where the large structures of TLS sessions lie, so that those of an idle one take
// next to no memory.
//
// Of a session OpenSSL keeps 8 kB (3.0) or 14 kB (from 3.2 on) in one structure or three
// (the session itself; from 3.2 on also a layer of records for each direction, each with
// room for 32 of which one is used). All but some hundred bytes of them are zero. They
// lie in a slot of pages that are that session's alone. At rest its pages are the
// kernel's again, and what was not zero is kept on the heap ([`put_away`]); before
// anything of it is used it is where it was ([`SessionBlocks::wake`]).
//
// - Only what nobody but its session's owner reaches may lie here: what an address in a
//   slot is read by while the session rests finds zeros. So blocks are told by who in
//   OpenSSL asks for them ([`is_of_a_session`]); a name that is not known, or no room, and
//   the C library has the block as ever.
// - The owner wakes it before each use ([`TlsSession`]).
// - A slot is another's only when every block in it has been freed.

/// Six pages: while keys change there are three layers of records, of 4.4 kB, beside a
/// session of 5.5 kB, wherever in its slot the first of them begins.
const SLOT_BYTES: usize = 6 * PAGE_BYTES;
const PAGE_BYTES: usize = 4096;
/// What is given within a slot; a bit of a u64 says whose it is.
const UNIT_BYTES: usize = 512;
const UNITS: usize = SLOT_BYTES / UNIT_BYTES;
/// Before each block: how many bytes were asked for. Of what malloc aligns to.
const HEADER_BYTES: usize = 16;
/// Addresses that are set apart: 1.6 GB, and no memory. Sessions beyond have no slot.
const MOST_SLOTS: u32 = 65_536;
/// Slots that become memory at a time.
const SLOTS_AT_A_TIME: u32 = 64;
/// Given back and not taken again, that keep their pages: who comes next is faster.
const WARM_SLOTS: usize = 64;
/// Smaller blocks are left to the C library; larger ones are buffers, which are freed
/// when a session has nothing to do.
const BLOCK_BYTES: Range<usize> = 4096..8193;

const WORD_BYTES: usize = size_of::<u64>();
const WORDS_A_UNIT: usize = UNIT_BYTES / WORD_BYTES;
// A mask of a unit's words is a word.
const _: () = assert!(WORDS_A_UNIT == 64 && UNITS <= 64);

static SLOTS: OnceLock<Option<Slots>> = OnceLock::new();

struct Slots {
    /// Address of the first.
    base: usize,
    /// Of each, the units that are in use.
    used: Box<[AtomicU64]>,
    free: Mutex<FreeSlots>,
}

#[derive(Default)]
struct FreeSlots {
    given_back: Vec<u32>,
    /// None from here on has been given yet.
    next: u32,
    /// Before this they are memory.
    opened: u32,
}

/// To be called before the first session; what fails is that none has a slot.
pub fn set_apart() {
    let _ = SLOTS.get_or_init(|| Slots::set_apart().ok());
}

/// Does OpenSSL ask for a block that is a session's alone? `file` and `line` of its
/// sources are what it gives (openssl/crypto.h); paths differ from build to build.
///
/// - ssl/ssl_lib.c: SSL_new (1.1.1, 3.0), ossl_ssl_connection_new_int (from 3.2 on). The
///   contexts that are made there as well have less than 2 kB.
/// - ssl/record/methods/tls_common.c, from 3.2 on: tls_int_new_record_layer, and a layer's
///   own buffers, if they are small.
pub fn is_of_a_session(length: usize, file: &CStr) -> bool {
    const FILES: [&[u8]; 2] = [b"ssl/ssl_lib.c", b"ssl/record/methods/tls_common.c"];
    BLOCK_BYTES.contains(&length) && FILES.iter().any(|known| file.to_bytes().ends_with(known))
}

/// A block in the slot of this number, if there is room.
pub fn allocate_block(slot: u32, length: usize) -> Option<*mut c_void> {
    SLOTS.get()?.as_ref()?.allocate(slot, length)
}

/// The bytes of a block, if it lies in a slot.
pub fn length_of_block(block: *const c_void) -> Option<usize> {
    let slots = SLOTS.get()?.as_ref()?;
    // SAFETY: in a slot, so allocate_block() has given it, and written its length before it.
    (slots.slot_of(block)).map(|_| unsafe { block.byte_sub(HEADER_BYTES).cast::<usize>().read() })
}

/// Frees a block that lies in a slot. Its owner is awake.
pub fn free_block(block: *mut c_void) {
    let slots = SLOTS.get().and_then(Option::as_ref);
    if let (Some(slots), Some(length)) = (slots, length_of_block(block)) {
        slots.free(block, length);
    }
}

impl Slots {
    fn set_apart() -> io::Result<Slots> {
        // SAFETY: no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if usize::try_from(page) != Ok(PAGE_BYTES) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let length = SLOT_BYTES * MOST_SLOTS as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new, at an address that the kernel chooses, and never unmapped.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Or pages of 2 MB could take the place of what went back. A kernel without them
        // refuses.
        // SAFETY: of the mapping just made.
        unsafe { libc::madvise(base, length, libc::MADV_NOHUGEPAGE) };
        Ok(Slots {
            base: base.expose_provenance(),
            used: (0..MOST_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            free: Mutex::default(),
        })
    }

    fn take(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = free.given_back.pop() {
            return Some(slot);
        }
        if free.next == free.opened {
            if free.opened == MOST_SLOTS {
                return None;
            }
            let length = SLOT_BYTES * SLOTS_AT_A_TIME as usize;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: within the mapping, where nobody has been given anything yet.
            check(unsafe { libc::mprotect(self.start_of(free.opened), length, access) }).ok()?;
            free.opened += SLOTS_AT_A_TIME;
        }
        free.next += 1;
        Some(free.next - 1)
    }

    /// What is still used in it keeps it for good: it would not be its next owner's.
    fn give_back(&self, slot: u32) {
        if self.used_of(slot) != 0 {
            return;
        }
        let is_warm = {
            let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.given_back.len() < WARM_SLOTS
        };
        if !is_warm {
            // Of no consequence: it is memory that is used again.
            let _ = self.forget_pages(slot);
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.given_back.push(slot);
    }

    /// All bytes of a slot are zero from here on. Fails where memory is locked.
    fn forget_pages(&self, slot: u32) -> io::Result<()> {
        // SAFETY: all of a slot, whose owner asks for it. Pages of private memory are zero
        // when they are next touched (madvise(2)).
        check(unsafe { libc::madvise(self.start_of(slot), SLOT_BYTES, libc::MADV_DONTNEED) })?;
        Ok(())
    }

    fn used_of(&self, slot: u32) -> u64 {
        self.used[slot as usize].load(Relaxed)
    }

    fn start_of(&self, slot: u32) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.base + SLOT_BYTES * slot as usize)
    }

    fn slot_of(&self, block: *const c_void) -> Option<u32> {
        let slot = block.addr().checked_sub(self.base)? / SLOT_BYTES;
        u32::try_from(slot).ok().filter(|slot| *slot < MOST_SLOTS)
    }

    fn allocate(&self, slot: u32, length: usize) -> Option<*mut c_void> {
        let used = self.used_of(slot);
        let units = (HEADER_BYTES + length).div_ceil(UNIT_BYTES);
        let bits = room_for(units, used, first_unit(slot))?;
        self.used[slot as usize].store(used | bits, Relaxed);
        let at = UNIT_BYTES * bits.trailing_zeros() as usize;
        // SAFETY: units within a slot that is memory, as it has been taken, and that
        // nobody else uses.
        unsafe {
            let start = self.start_of(slot).byte_add(at);
            start.cast::<usize>().write(length);
            Some(start.byte_add(HEADER_BYTES))
        }
    }

    fn free(&self, block: *const c_void, length: usize) {
        let Some(slot) = self.slot_of(block) else {
            return;
        };
        let at = (block.addr() - self.base) % SLOT_BYTES / UNIT_BYTES;
        let units = (HEADER_BYTES + length).div_ceil(UNIT_BYTES);
        self.used[slot as usize].fetch_and(!(ones(units) << at), Relaxed);
    }

    /// Words of a unit.
    fn unit(&self, slot: u32, unit: usize) -> *mut [u64; WORDS_A_UNIT] {
        self.start_of(slot)
            .wrapping_byte_add(UNIT_BYTES * unit)
            .cast()
    }
}

/// Where in a slot the first block goes. All would otherwise begin at the same place of a
/// page, and many of a processor's cache lines would be no one's.
fn first_unit(slot: u32) -> usize {
    slot as usize % (PAGE_BYTES / UNIT_BYTES)
}

fn ones(count: usize) -> u64 {
    u64::MAX >> (u64::BITS as usize - count)
}

/// The first units in a row, from this one on or else from any, that are not used.
fn room_for(units: usize, used: u64, from: usize) -> Option<u64> {
    (from..UNITS)
        .chain(0..from)
        .filter(|at| at + units <= UNITS)
        .map(|at| ones(units) << at)
        .find(|bits| bits & used == 0)
}

fn units_in(used: u64) -> impl Iterator<Item = usize> + Clone {
    (0..UNITS).filter(move |unit| used >> unit & 1 == 1)
}

/// Of each unit: a word that says which of its words are not zero, and these.
type PutAway = Zeroizing<Vec<u64>>;

fn mask_of(unit: &[u64; WORDS_A_UNIT]) -> u64 {
    let bits = unit.iter().enumerate();
    bits.fold(0, |mask, (at, word)| mask | u64::from(*word != 0) << at)
}

/// Keys are among it: counted first, as a vector that grows leaves copies behind.
fn put_away<'a>(units: impl Iterator<Item = &'a [u64; WORDS_A_UNIT]> + Clone) -> PutAway {
    let length = units
        .clone()
        .map(|unit| 1 + mask_of(unit).count_ones() as usize)
        .sum();
    let mut kept = Zeroizing::new(Vec::with_capacity(length));
    for unit in units {
        kept.push(mask_of(unit));
        kept.extend(unit.iter().filter(|word| **word != 0));
    }
    kept
}

/// Into units that are zero.
fn take_out<'a>(kept: &PutAway, units: impl Iterator<Item = &'a mut [u64; WORDS_A_UNIT]>) {
    let mut kept = kept.iter();
    for unit in units {
        let mut mask = *kept.next().expect("a mask for each unit");
        while mask != 0 {
            let at = mask.trailing_zeros() as usize;
            unit[at] = *kept.next().expect("a word for each bit");
            mask &= mask - 1;
        }
    }
}

/// A session's slot, if it has one.
pub struct SessionBlocks {
    slot: Option<u32>,
    at_rest: Option<PutAway>,
}

impl SessionBlocks {
    pub fn new() -> SessionBlocks {
        let slots = SLOTS.get().and_then(Option::as_ref);
        SessionBlocks {
            slot: slots.and_then(Slots::take),
            at_rest: None,
        }
    }

    /// For [`allocate`].
    pub fn slot(&self) -> Option<u32> {
        self.slot
    }

    pub fn is_at_rest(&self) -> bool {
        self.at_rest.is_some()
    }

    fn slots(&self) -> Option<(&'static Slots, u32)> {
        Some((SLOTS.get()?.as_ref()?, self.slot?))
    }

    /// Nothing in it is used before it is woken.
    pub fn rest(&mut self) {
        let Some((slots, slot)) = self.slots() else {
            return;
        };
        let used = slots.used_of(slot);
        if self.is_at_rest() || used == 0 {
            return;
        }
        // SAFETY: units of a slot that is memory; as its owner is here, nobody writes to it.
        let units = units_in(used).map(|unit| unsafe { &*slots.unit(slot, unit) });
        let kept = put_away(units);
        if slots.forget_pages(slot).is_ok() {
            self.at_rest = Some(kept);
        }
    }

    /// All is as before it rested.
    pub fn wake(&mut self) {
        let Some(kept) = self.at_rest.take() else {
            return;
        };
        if let Some((slots, slot)) = self.slots() {
            // SAFETY: as in rest(); units do not overlap, and each is taken once.
            let units =
                units_in(slots.used_of(slot)).map(|unit| unsafe { &mut *slots.unit(slot, unit) });
            take_out(&kept, units);
        }
    }
}

impl Drop for SessionBlocks {
    fn drop(&mut self) {
        if let Some((slots, slot)) = self.slots() {
            slots.give_back(slot);
        }
    }
}

// ---- A TLS session --------------------------------------------------------
//
// A TLS session of OpenSSL's, whose large structures are put away while it has nothing to
// do ([`SessionBlocks`]).
//
// The only owner of its address: whoever uses it goes through [`TlsSession::stream`] or
// [`TlsSession::work`], and so wakes it. A thread uses one at a time.

/// Fields are dropped in this order: blocks are free by then.
pub struct TlsSession<S> {
    stream: SslStream<S>,
    blocks: SessionBlocks,
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
        let blocks = SessionBlocks::new();
        let mut written_to = WrittenTo::default();
        let stream = working_for(&mut written_to, blocks.slot(), || {
            open().and_then(|ssl| SslStream::new(ssl, wire))
        })?;
        Ok(TlsSession {
            places: SessionPlaces::of(&stream),
            stream,
            blocks,
            written_to,
        })
    }

    /// For what neither decrypts nor changes keys.
    pub fn stream(&mut self) -> &mut SslStream<S> {
        self.blocks.wake();
        &mut self.stream
    }

    pub fn work<R>(&mut self, work: impl FnOnce(&mut SslStream<S>) -> R) -> R {
        self.blocks.wake();
        let stream = &mut self.stream;
        working_for(&mut self.written_to, self.blocks.slot(), || work(stream))
    }

    /// It has nothing to do for a while. Next to nothing if it rests already.
    pub fn rest(&mut self) {
        self.blocks.rest();
    }

    #[allow(dead_code, reason = "for tests and the fuzzer")]
    pub fn is_at_rest(&self) -> bool {
        self.blocks.is_at_rest()
    }

    /// It is soon to be worked with.
    pub fn prefetch(&self) {
        self.places.prefetch();
    }
}

impl<S> Drop for TlsSession<S> {
    fn drop(&mut self) {
        self.blocks.wake();
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

    // What was put away is what is taken out, and who has a slot has it alone.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn what_was_put_away_is_taken_out() {
        let mut state = 1;
        for zeros_of_eight in 0..=8 {
            let units: Vec<[u64; WORDS_A_UNIT]> = (0..7)
                .map(|_| {
                    std::array::from_fn(|_| match random(&mut state) % 8 < zeros_of_eight {
                        true => 0,
                        false => random(&mut state),
                    })
                })
                .collect();
            let kept = put_away(units.iter());
            assert_eq!(kept.len(), kept.capacity(), "no copy was left behind");
            let mut taken = vec![[0; WORDS_A_UNIT]; units.len()];
            take_out(&kept, taken.iter_mut());
            assert_eq!(taken, units);
        }
        let nothing = put_away([[0; WORDS_A_UNIT]; 3].iter());
        assert_eq!(*nothing, [0; 3], "zeros are a mask");
    }

    #[test]
    fn blocks_lie_apart_from_wherever_the_first_one_begins() {
        // of OpenSSL 3.5: a session, and layers of records while keys change
        for slot in 0..8 {
            let from = first_unit(slot);
            let mut used = 0;
            for length in [5_584, 4_432, 4_432, 4_432] {
                let units = (HEADER_BYTES + length).div_ceil(UNIT_BYTES);
                let bits = room_for(units, used, from).expect("room");
                assert_eq!(bits & used, 0);
                assert_eq!(bits.count_ones() as usize, units);
                assert!(bits < 1 << UNITS);
                used |= bits;
            }
            let rest = UNITS - used.count_ones() as usize;
            assert!(room_for(rest + 1, used, from).is_none());
        }
    }

    #[test]
    fn who_asks_says_whose_a_block_is() {
        assert!(is_of_a_session(7_616, c"../ssl/ssl_lib.c"));
        assert!(is_of_a_session(
            4_432,
            c"/usr/src/openssl/ssl/record/methods/tls_common.c"
        ));
        assert!(!is_of_a_session(1_040, c"../ssl/ssl_lib.c"), "a context");
        assert!(
            !is_of_a_session(16_736, c"../ssl/record/methods/tls_common.c"),
            "a buffer"
        );
        assert!(
            !is_of_a_session(5_000, c"../crypto/lhash/lhash.c"),
            "all sessions'"
        );
        assert!(!is_of_a_session(5_000, c""));
    }

    #[test]
    fn a_session_at_rest_takes_no_pages_and_wakes_as_it_was() {
        set_apart();
        let mut one = SessionBlocks::new();
        let mut other = SessionBlocks::new();
        let (Some(slot), Some(another)) = (one.slot(), other.slot()) else {
            return; // pages of another size
        };
        assert_ne!(slot, another);
        let block = allocate_block(slot, 5_000)
            .expect("room")
            .cast::<[u8; 5_000]>();
        let beside = allocate_block(another, 5_000)
            .expect("room")
            .cast::<[u8; 5_000]>();
        assert_eq!(length_of_block(block.cast()), Some(5_000));
        // SAFETY: blocks of that size, of this test alone.
        unsafe {
            block.write(std::array::from_fn(|at| (at % 1_000 == 7).into()));
            beside.write([9; 5_000]);
            let was = block.read();
            one.rest();
            assert!(one.is_at_rest());
            assert_eq!(block.read(), [0; 5_000], "gone");
            assert_eq!(beside.read(), [9; 5_000], "another's is another's");
            one.wake();
            assert_eq!(block.read(), was);
            assert_eq!(length_of_block(block.cast()), Some(5_000));
        }
        free_block(block.cast());
        one.rest();
        assert!(!one.is_at_rest(), "there is nothing to put away");
        drop(one);
        // a block that outlives its session keeps its slot
        drop(other);
        let next: Vec<SessionBlocks> = (0..100).map(|_| SessionBlocks::new()).collect();
        assert!(next.iter().all(|one| one.slot() != Some(another)));
        other = SessionBlocks::new();
        other.rest();
        assert!(!other.is_at_rest());
        assert_eq!(length_of_block(std::ptr::null()), None);
    }
}
