//! Where the large structures of TLS sessions lie, so that those of an idle one take
//! next to no memory.
//!
//! Of a session OpenSSL keeps 8 kB (3.0) or 14 kB (from 3.2 on) in one structure or three
//! (the session itself; from 3.2 on also a layer of records for each direction, each with
//! room for 32 of which one is used). All but some hundred bytes of them are zero. They
//! lie in a slot of pages that are that session's alone. At rest its pages are the
//! kernel's again, and what was not zero is kept on the heap ([`put_away`]); before
//! anything of it is used it is where it was ([`SessionBlocks::wake`]).
//!
//! - Only what nobody but its session's owner reaches may lie here: what an address in a
//!   slot is read by while the session rests finds zeros. So blocks are told by who in
//!   OpenSSL asks for them ([`is_of_a_session`]); a name that is not known, or no room, and
//!   the C library has the block as ever.
//! - The owner wakes it before each use (`tls_session.rs`).
//! - A slot is another's only when every block in it has been freed.

use super::check;
use std::ffi::{c_void, CStr};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use zeroize::Zeroizing;

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
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
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
pub fn allocate(slot: u32, length: usize) -> Option<*mut c_void> {
    SLOTS.get()?.as_ref()?.allocate(slot, length)
}

/// The bytes of a block, if it lies in a slot.
pub fn length_of(block: *const c_void) -> Option<usize> {
    let slots = SLOTS.get()?.as_ref()?;
    // SAFETY: in a slot, so allocate() has given it, and written its length before it.
    (slots.slot_of(block)).map(|_| unsafe { block.byte_sub(HEADER_BYTES).cast::<usize>().read() })
}

/// Frees a block that lies in a slot. Its owner is awake.
pub fn free(block: *mut c_void) {
    let slots = SLOTS.get().and_then(Option::as_ref);
    if let (Some(slots), Some(length)) = (slots, length_of(block)) {
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

#[cfg(test)]
#[path = "session_blocks_tests.rs"]
mod tests;
