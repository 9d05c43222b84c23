//! The ARENA: the records of sessions, and a heap of entries and item arrays.
//!
//! Access: only the dispatcher writes it. Backends map it read-only, and read a session's
//! record and items only while they own that session.
//!
//! Entries: an entry is immutable from its creation until its last reference is gone. Equal
//! content (kind, key, value) is one entry, however many sessions refer to it. The account, the
//! reference count and the link of the hash chain lie before each entry, so a session context
//! uses no memory outside the arena.
//!
//! Long values: a value longer than [`SHARED_MOST`] is never shared, because comparing or
//! hashing it would take too long. When its last reference is gone, it is overwritten in pieces
//! ([`Arena::overwrite`]), in the time that
//! [`Contexts::go_on`](super::context::Contexts::go_on) has for it.
//!
//! Blocks: the heap consists of blocks of size classes, eight to a power of two, so at most an
//! eighth is wasted. A free block goes to the list of its class. Blocks are never joined:
//! contexts are small and of few sizes. If a class has no free block and the end of the heap is
//! reached, a block of a larger class serves.
//!
//! Limits: `used` counts the blocks in use; `limit` is what the user allows. The heap is larger
//! than the limit, so that changes under way when the limit is reached still fit (`heap_limit`
//! in the header).
//!
//! Accounts: each role has an account of the blocks that its sessions have caused. No role may
//! take more than what is left for all others; backends keep sessions whose changes would
//! exceed that (baton_arena_has_room, arena.c). So a single role stops at half of the limit,
//! and a second one finds a quarter.

use crate::shell::link::layout::shared::*;
use crate::shell::link::layout::{ArenaHeader, Item, SessionRecord};
use crate::shell::sys::memory::{bytes_of, value_of};
use crate::shell::sys::socket::Address;
use std::hash::{BuildHasher, RandomState};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::compiler_fence;
use std::sync::atomic::Ordering::SeqCst;

/// Heap offsets count units of this many bytes.
const UNIT: usize = 8;
/// Bytes before an entry: account, a gap, references and hash link.
const PREFIX: usize = 16;
/// Bytes of references and hash link. Backends read the references, too (arena.c).
const LINKS: usize = ENTRY_REFERENCES_BEFORE as usize;
/// Bytes before an array of items: the account.
const ITEMS_PREFIX: usize = 8;
const HEADER: usize = size_of::<Entry>();
const CLASSES: usize = 8 * 32;
/// The longest value, in bytes, that is looked up and shared. Hashing one takes about 150
/// microseconds.
pub const SHARED_MOST: usize = 256 << 10;

/// The heap has no room.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Full;

/// Kind, key and value of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content<'a> {
    pub kind: u16,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// The arena; `memory` is the mapping.
pub struct Arena {
    memory: &'static mut [u8],
    heap_offset: usize,
    heap_next: usize,
    free: Vec<Vec<u32>>,
    buckets: Buckets,
    entries: usize,
    /// Long values without a reference, and the number of bytes of each that must be
    /// overwritten before its block is free.
    ending: Vec<(u32, usize)>,
    next_serial: u64,
    hasher: RandomState,
    used: usize,
    limit: usize,
}

/// The first entry of each hash chain. Linear hashing: a new entry splits at most one bucket,
/// so no entry waits for a rehash of the whole table.
struct Buckets {
    heads: Vec<u32>,
    /// The power of two that `heads` has reached.
    base: usize,
}

impl Buckets {
    fn new() -> Buckets {
        Buckets {
            heads: vec![0; 1024],
            base: 1024,
        }
    }

    fn of(&self, hash: u64) -> usize {
        let wide = hash as usize & (2 * self.base - 1);
        if wide < self.heads.len() {
            wide
        } else {
            wide & (self.base - 1)
        }
    }

    /// Adds a bucket. Returns the first entry of the chain that is split for it.
    fn grow(&mut self) -> u32 {
        let split = self.heads.len() - self.base;
        self.heads.push(0);
        if self.heads.len() == 2 * self.base {
            self.base *= 2;
        }
        std::mem::take(&mut self.heads[split])
    }
}

/// The smallest class whose blocks hold `bytes`, and their size in bytes.
fn class_of(bytes: usize) -> (usize, usize) {
    let units = bytes.div_ceil(UNIT).max(1);
    if units <= 8 {
        return (units - 1, units * UNIT);
    }
    // Eight classes from each power of two (exclusive) to the next.
    let power = (units - 1).ilog2();
    let step = 1usize << (power - 3);
    let rounded = units.div_ceil(step) * step;
    let class = (power as usize - 2) * 8 + (rounded - (1 << power)) / step - 1;
    (class, rounded * UNIT)
}

/// Bytes of an array of `count` items: two sizes from each power of two to the next. With more
/// sizes, thousands of sessions whose arrays grow item by item would leave free blocks of every
/// size behind, thirty times what they use in the end, in pages that the kernel had to provide.
fn items_room(count: usize) -> usize {
    let rounded = match count {
        0..=2 => count,
        _ => count.next_multiple_of(1 << ((count - 1).ilog2() - 1)),
    };
    rounded * size_of::<Item>()
}

impl Arena {
    /// Lays out `memory`, which must be zeroed, for `sessions` sessions. `serial_base` must
    /// exceed every serial given by an earlier arena.
    pub fn new(memory: &'static mut [u8], sessions: u32, limit: usize, serial_base: u64) -> Arena {
        let heap_offset = record_at(sessions);
        assert!(heap_offset <= memory.len() && memory.len() / UNIT <= u32::MAX as usize);
        let mut arena = Arena {
            heap_offset,
            heap_next: heap_offset,
            free: vec![Vec::new(); CLASSES],
            buckets: Buckets::new(),
            entries: 0,
            ending: Vec::new(),
            next_serial: serial_base,
            hasher: RandomState::new(),
            used: 0,
            limit,
            memory,
        };
        let header = ArenaHeader {
            magic: MAGIC,
            layout_version: LAYOUT_VERSION,
            session_slots: sessions,
            total_size: arena.memory.len() as u64,
            session_offset: u64::from(ARENA_HEADER_SIZE),
            heap_offset: heap_offset as u64,
            heap_used: 0,
            heap_limit: limit as u64,
        };
        arena.put(0, &header);
        arena
    }

    /// The size in bytes of a memory that allows `limit` bytes of contexts.
    pub fn total_size(sessions: u32, limit: usize) -> usize {
        const HEADROOM: usize = 64 << 20;
        let fixed = record_at(sessions);
        let most = u32::MAX as usize * UNIT;
        (fixed + 2 * limit + HEADROOM)
            .min(most)
            .next_multiple_of(4096)
    }

    pub fn used(&self) -> usize {
        self.used
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The size of the heap in bytes; it exceeds the limit by what may be under way.
    pub fn capacity(&self) -> usize {
        self.memory.len() - self.heap_offset
    }

    #[cfg(test)]
    pub fn entries(&self) -> usize {
        self.entries
    }

    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.publish();
    }

    // ---- accounts --------------------------------------------------------

    /// The account of a role.
    pub fn account_of_role(&self, role: u32) -> u32 {
        (self.hasher.hash_one(role) % u64::from(ARENA_ACCOUNTS)) as u32
    }

    /// The account of session `index`, taken from its record.
    pub fn account(&self, index: u32) -> u32 {
        self.record(index).account % ARENA_ACCOUNTS
    }

    fn account_at(account: u32) -> usize {
        ARENA_ACCOUNTS_OFFSET as usize + account as usize * 8
    }

    fn taken_by(&self, account: u32) -> usize {
        self.get::<u64>(Self::account_at(account)) as usize
    }

    /// May that account take `bytes` more bytes? The rule of baton_arena_has_room.
    #[cfg(test)]
    fn has_room_for(&self, account: u32, bytes: usize) -> bool {
        let left = self.limit.saturating_sub(self.used);
        self.taken_by(account) + 2 * bytes <= left
    }

    fn publish(&mut self) {
        let (used, limit) = (self.used as u64, self.limit as u64);
        self.put(offset_of!(ArenaHeader, heap_used), &used);
        self.put(offset_of!(ArenaHeader, heap_limit), &limit);
    }

    fn put<T: Copy>(&mut self, at: usize, value: &T) {
        self.memory[at..at + size_of::<T>()].copy_from_slice(bytes_of(value));
    }

    fn get<T: Copy>(&self, at: usize) -> T {
        value_of(&self.memory[at..at + size_of::<T>()])
    }

    // ---- blocks ----------------------------------------------------------

    /// Allocates a block, which begins with its account.
    fn allocate(&mut self, account: u32, bytes: usize) -> Result<usize, Full> {
        let (class, size) = class_of(bytes);
        let at = if let Some(unit) = self.free[class].pop() {
            unit as usize * UNIT
        } else if self.memory.len() - self.heap_next >= size {
            let at = self.heap_next;
            self.heap_next += size;
            at
        } else {
            // The rest of the larger block is returned under its own class.
            let larger = (class + 1..CLASSES)
                .find(|class| !self.free[*class].is_empty())
                .ok_or(Full)?;
            let unit = self.free[larger].pop().ok_or(Full)?;
            let at = unit as usize * UNIT;
            self.return_rest(at + size, class_size(larger) - size);
            at
        };
        self.used += size;
        self.put(at, &account);
        let taken = self.taken_by(account) + size;
        self.put(Self::account_at(account), &(taken as u64));
        self.publish();
        Ok(at)
    }

    /// Cuts a free piece into blocks of exact classes.
    fn return_rest(&mut self, mut at: usize, mut bytes: usize) {
        while bytes >= UNIT {
            let (mut class, mut size) = class_of(bytes);
            if size > bytes {
                class -= 1;
                size = class_size(class);
            }
            self.free[class].push((at / UNIT) as u32);
            at += size;
            bytes -= size;
        }
    }

    fn release_block(&mut self, at: usize, bytes: usize) {
        let (class, size) = class_of(bytes);
        self.free[class].push((at / UNIT) as u32);
        let account = self.get::<u32>(at);
        let taken = self.taken_by(account) - size;
        self.put(Self::account_at(account), &(taken as u64));
        self.used -= size;
        self.publish();
    }

    // ---- entries ---------------------------------------------------------

    /// The content of an entry. `entry` must come from `intern`.
    pub fn content(&self, entry: u32) -> Content<'_> {
        let at = entry as usize * UNIT;
        let header: Entry = self.get(at);
        let key = at + HEADER;
        let value = key + usize::from(header.key_length);
        Content {
            kind: header.kind,
            key: &self.memory[key..value],
            value: &self.memory[value..value + header.value_length as usize],
        }
    }

    fn bucket_of(&self, content: Content<'_>) -> usize {
        let hash = self
            .hasher
            .hash_one((content.kind, content.key, content.value));
        self.buckets.of(hash)
    }

    fn next_in_chain(&self, entry: u32) -> u32 {
        self.get::<u32>(entry as usize * UNIT - 4)
    }

    /// Puts an entry before the others of its chain.
    fn link(&mut self, entry: u32, bucket: usize) {
        let first = std::mem::replace(&mut self.buckets.heads[bucket], entry);
        self.put(entry as usize * UNIT - 4, &first);
    }

    fn unlink(&mut self, entry: u32) {
        let bucket = self.bucket_of(self.content(entry));
        let next = self.next_in_chain(entry);
        let mut link = self.buckets.heads[bucket];
        if link == entry {
            self.buckets.heads[bucket] = next;
            return;
        }
        loop {
            assert!(link != 0, "an entry that is in no chain");
            let following = self.next_in_chain(link);
            if following == entry {
                return self.put(link as usize * UNIT - 4, &next);
            }
            link = following;
        }
    }

    /// Returns the entry with this content, with one more reference. A new entry goes to that
    /// account.
    pub fn intern(&mut self, account: u32, content: Content<'_>) -> Result<u32, Full> {
        if content.value.len() > SHARED_MOST {
            let length = content.value.len();
            let entry = self.begin_long(account, content.kind, content.key, length)?;
            self.write_value(entry, 0, content.value);
            return Ok(entry);
        }
        let bucket = self.bucket_of(content);
        let mut entry = self.buckets.heads[bucket];
        while entry != 0 {
            if self.content(entry) == content {
                self.retain(entry);
                return Ok(entry);
            }
            entry = self.next_in_chain(entry);
        }
        let length = content.value.len();
        let entry = self.make_entry(account, content.kind, content.key, length)?;
        self.write_value(entry, 0, content.value);
        self.link(entry, bucket);
        if self.entries > self.buckets.heads.len() {
            let mut split = self.buckets.grow();
            while split != 0 {
                let next = self.next_in_chain(split);
                let bucket = self.bucket_of(self.content(split));
                self.link(split, bucket);
                split = next;
            }
        }
        Ok(entry)
    }

    /// Creates an entry for a value longer than SHARED_MOST. `write_value` writes the value.
    pub fn begin_long(
        &mut self,
        account: u32,
        kind: u16,
        key: &[u8],
        length: usize,
    ) -> Result<u32, Full> {
        assert!(length > SHARED_MOST);
        self.make_entry(account, kind, key, length)
    }

    /// Creates an entry with one reference, in no chain. Its value is still to be written.
    fn make_entry(
        &mut self,
        account: u32,
        kind: u16,
        key: &[u8],
        length: usize,
    ) -> Result<u32, Full> {
        let (Ok(key_length), Ok(value_length)) = (u16::try_from(key.len()), u32::try_from(length))
        else {
            return Err(Full);
        };
        let block = self.allocate(account, PREFIX + HEADER + key.len() + length)?;
        let at = block + PREFIX;
        self.put(at - LINKS, &1u32);
        self.put(at - LINKS + 4, &0u32);
        let header = Entry {
            serial: self.next_serial,
            kind,
            key_length,
            value_length,
        };
        self.next_serial += 1;
        self.put(at, &header);
        let key_at = at + HEADER;
        self.memory[key_at..key_at + key.len()].copy_from_slice(key);
        self.entries += 1;
        Ok((at / UNIT) as u32)
    }

    /// Writes a piece of an entry's value, before any backend reads it.
    pub fn write_value(&mut self, entry: u32, from: usize, piece: &[u8]) {
        let content = self.content(entry);
        assert!(from + piece.len() <= content.value.len());
        let at = entry as usize * UNIT + HEADER + content.key.len() + from;
        self.memory[at..at + piece.len()].copy_from_slice(piece);
    }

    pub fn retain(&mut self, entry: u32) {
        let at = entry as usize * UNIT - LINKS;
        let references = self.get::<u32>(at);
        assert!(references > 0, "a reference to an entry that is gone");
        self.put(at, &(references + 1));
    }

    pub fn release(&mut self, entry: u32) {
        let at = entry as usize * UNIT - LINKS;
        let references = self.get::<u32>(at);
        assert!(references > 0, "an entry released too often");
        self.put(at, &(references - 1));
        if references > 1 {
            return;
        }
        let content = self.content(entry);
        let is_long = content.value.len() > SHARED_MOST;
        let length = PREFIX + HEADER + content.key.len() + content.value.len();
        self.entries -= 1;
        if is_long {
            return self.ending.push((entry, length));
        }
        self.unlink(entry);
        // The content belonged to a session, and every backend could read it.
        let block = entry as usize * UNIT - PREFIX;
        self.memory[block + PREFIX + HEADER..block + length].fill(0);
        self.release_block(block, length);
    }

    /// Are there long values to be overwritten?
    pub fn is_overwriting(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Overwrites at most `most` bytes of long values without a reference, from their ends.
    /// Returns how many bytes it has overwritten.
    pub fn overwrite(&mut self, most: usize) -> usize {
        let Some((entry, left)) = self.ending.last_mut() else {
            return 0;
        };
        let at = *entry as usize * UNIT - PREFIX;
        let from = left.saturating_sub(most).max(PREFIX + HEADER);
        let done = *left - from;
        self.memory[at + from..at + *left].fill(0);
        *left = from;
        if from == PREFIX + HEADER {
            let entry = *entry;
            self.ending.pop();
            // The lengths are still there.
            let content = self.content(entry);
            let length = PREFIX + HEADER + content.key.len() + content.value.len();
            self.release_block(at, length);
        }
        done
    }

    // ---- item arrays and records -----------------------------------------

    /// Allocates an array of `count` items and returns its place. An empty array takes no room
    /// (0).
    pub fn allocate_items(&mut self, account: u32, count: usize) -> Result<u32, Full> {
        match count {
            0 => Ok(0),
            _ => {
                let block = self.allocate(account, ITEMS_PREFIX + items_room(count))?;
                Ok(((block + ITEMS_PREFIX) / UNIT) as u32)
            }
        }
    }

    /// Writes a part of an array, from item `at` on.
    pub fn write_items(&mut self, place: u32, at: usize, items: &[Item]) {
        for (index, item) in items.iter().enumerate() {
            self.put(item_at(place, at + index), item);
        }
    }

    pub fn release_items(&mut self, place: u32, count: usize) {
        if count > 0 {
            let block = place as usize * UNIT - ITEMS_PREFIX;
            self.release_block(block, ITEMS_PREFIX + items_room(count));
        }
    }

    /// Item `index` of an array.
    pub fn item(&self, place: u32, index: usize) -> Item {
        self.get(item_at(place, index))
    }

    pub fn put_record(&mut self, index: u32, record: &SessionRecord) {
        assert!(record_at(index + 1) <= self.heap_offset);
        self.put(record_at(index), record);
    }

    /// The port and the address at which the client has come in; zeros if it is local.
    pub fn record_local(&self, index: u32) -> (u16, [u8; 16]) {
        let record = self.record(index);
        (record.local_port, record.local_address)
    }

    fn record(&self, index: u32) -> SessionRecord {
        self.get(record_at(index))
    }

    fn change_record(&mut self, index: u32, change: impl FnOnce(&mut SessionRecord)) {
        let mut record = self.record(index);
        change(&mut record);
        self.put_record(index, &record);
    }

    /// Changes the part of a record that belongs to the context: version, items, which of them
    /// are statements, and flags.
    pub fn put_record_context(
        &mut self,
        index: u32,
        version: u64,
        (place, count): (u32, u32),
        statements: Range<usize>,
        flags: u32,
    ) {
        // If this process dies on the way, the next one sees that the record is half written.
        self.change_record(index, |record| record.context_version = 0);
        compiler_fence(SeqCst);
        self.change_record(index, |record| {
            record.items = place;
            record.item_count = count;
            record.record_flags = flags;
            record.first_statement = statements.start as u32;
            record.statement_count = statements.len() as u32;
        });
        compiler_fence(SeqCst);
        self.change_record(index, |record| record.context_version = version);
    }

    /// Place and number of a session's items, from its record.
    pub fn record_items(&self, index: u32) -> (u32, u32) {
        let record = self.record(index);
        (record.items, record.item_count)
    }

    /// The range of a session's items that are statements.
    pub fn record_statements(&self, index: u32) -> Range<usize> {
        let record = self.record(index);
        let from = record.first_statement as usize;
        from..from + record.statement_count as usize
    }

    /// Sets the entry that says how the session's client was authenticated; 0 for none. The
    /// session owns its reference. Returns the previous entry.
    pub fn replace_authenticated(&mut self, index: u32, entry: u32) -> u32 {
        let before = self.record(index).authenticated;
        self.change_record(index, |record| record.authenticated = entry);
        before
    }

    /// Likewise, the entry that says which tenant the session is of.
    pub fn replace_tenant(&mut self, index: u32, entry: u32) -> u32 {
        let before = self.record(index).tenant_entry;
        self.change_record(index, |record| record.tenant_entry = entry);
        before
    }

    /// Sets the hash of the settings that a backend reads only when it starts, as the backend
    /// that has greeted the session has them.
    pub fn put_record_start_settings(&mut self, index: u32, start_settings: u64) {
        self.change_record(index, |record| record.start_settings = start_settings);
    }

    /// Process ID and key, as in BackendKeyData.
    pub fn record_cancel(&self, index: u32) -> (i32, &[u8]) {
        let record = self.record(index);
        let from = record_at(index) + offset_of!(SessionRecord, cancel_key);
        let length = (record.cancel_key_length as usize).min(record.cancel_key.len());
        (record.cancel_pid, &self.memory[from..from + length])
    }

    /// The login time of a record, and the address of its client.
    pub fn record_identity(&self, index: u32) -> (i64, Address) {
        let record = self.record(index);
        let address = Address {
            family: record.peer_family,
            port: record.peer_port,
            scope: record.peer_scope,
            bytes: record.peer_address,
        };
        (record.login_time_us, address)
    }

    /// Whether the client has come by TLS.
    pub fn record_is_relayed(&self, index: u32) -> bool {
        self.record(index).is_relayed != 0
    }
}

/// The offset of a session's record, in bytes.
fn record_at(index: u32) -> usize {
    ARENA_HEADER_SIZE as usize + index as usize * size_of::<SessionRecord>()
}

/// The offset of an item of an array, in bytes.
fn item_at(place: u32, index: usize) -> usize {
    place as usize * UNIT + index * size_of::<Item>()
}

/// The block size of a class, in bytes.
fn class_size(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * UNIT;
    }
    let power = class / 8 + 2;
    ((1usize << power) + (class % 8 + 1) * (1 << (power - 3))) * UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(bytes: usize) -> Arena {
        let all = bytes + (ARENA_HEADER_SIZE - ARENA_ACCOUNTS_OFFSET) as usize;
        Arena::new(Box::leak(vec![0; all].into_boxed_slice()), 4, bytes, 1)
    }

    fn content<'a>(key: &'a [u8], value: &'a [u8]) -> Content<'a> {
        Content {
            kind: 3,
            key,
            value,
        }
    }

    #[test]
    fn classes_hold_what_they_promise() {
        let mut last = 0;
        for bytes in 1..100_000 {
            let (class, size) = class_of(bytes);
            assert!(
                size >= bytes && size <= bytes + bytes / 8 + UNIT,
                "{bytes} in {size}"
            );
            assert_eq!(class_size(class), size, "{bytes}");
            assert!(class >= last);
            last = class;
        }
    }

    #[test]
    fn equal_content_is_one_entry_and_goes_with_its_last_reference() {
        let mut arena = arena(1 << 16);
        let one = arena.intern(1, content(b"a", b"1")).unwrap();
        let used = arena.used();
        assert_eq!(arena.intern(1, content(b"a", b"1")), Ok(one));
        assert_eq!(arena.used(), used);
        let other = arena.intern(1, content(b"a1", b"")).unwrap();
        assert_ne!(one, other);
        assert_eq!(arena.content(one), content(b"a", b"1"));
        arena.release(one);
        arena.release(other);
        assert_eq!(arena.content(one).value, b"1");
        arena.release(one);
        assert_eq!((arena.used(), arena.entries()), (0, 0));
    }

    #[test]
    fn many_entries_survive_rehashing_and_space_comes_back() {
        let mut arena = arena(1 << 22);
        for round in 0..3 {
            let entries: Vec<_> = (0..5000u32)
                .map(|i| {
                    arena
                        .intern(1, content(&i.to_ne_bytes(), &[7; 40]))
                        .unwrap()
                })
                .collect();
            for (i, entry) in entries.iter().enumerate() {
                assert_eq!(
                    arena.content(*entry).key,
                    (i as u32).to_ne_bytes(),
                    "{round}"
                );
            }
            let end = arena.heap_next;
            entries.into_iter().for_each(|entry| arena.release(entry));
            assert_eq!(arena.used(), 0);
            assert!(end < 1 << 20);
        }
    }

    #[test]
    fn a_full_heap_says_so_and_larger_free_blocks_serve() {
        let mut arena = arena(8192);
        let big = arena.intern(1, content(b"big", &[1; 2000])).unwrap();
        let mut small = Vec::new();
        while let Ok(entry) =
            arena.intern(1, content(&(small.len() as u32).to_ne_bytes(), &[2; 100]))
        {
            small.push(entry);
        }
        assert_eq!(arena.intern(1, content(b"x", &[3; 3000])), Err(Full));
        arena.release(big);
        for i in 0..10u32 {
            small.push(arena.intern(1, content(&[9, i as u8], &[2; 100])).unwrap());
        }
        small.into_iter().for_each(|entry| arena.release(entry));
        assert_eq!(arena.used(), 0);
    }

    #[test]
    fn long_value_is_shared_with_no_session_and_goes_in_pieces() {
        let mut arena = arena(8 << 20);
        let long = vec![7; SHARED_MOST + 1];
        let entries = [(); 2].map(|()| arena.intern(1, content(b"key", &long)).unwrap());
        assert_ne!(entries[0], entries[1]);
        arena.release(entries[0]);
        assert_eq!(arena.content(entries[1]).value, long);
        let at = entries[0] as usize * UNIT + HEADER;
        let mut pieces = 0;
        while arena.is_overwriting() {
            assert!(arena.overwrite(100_000) <= 100_000);
            pieces += 1;
        }
        assert_eq!(pieces, 3);
        assert!(arena.memory[at..at + long.len()]
            .iter()
            .all(|byte| *byte == 0));
        arena.release(entries[1]);
        while arena.overwrite(1 << 20) > 0 {}
        assert_eq!((arena.used(), arena.entries()), (0, 0));
    }

    #[test]
    fn a_new_entry_moves_those_of_one_bucket_and_no_others() {
        let mut arena = arena(1 << 22);
        let chains = |arena: &Arena| {
            let heads = arena.buckets.heads.iter();
            heads.filter(|head| **head != 0).count()
        };
        for number in 0..20_000_u32 {
            let (buckets, before) = (arena.buckets.heads.len(), chains(&arena));
            arena
                .intern(1, content(&number.to_ne_bytes(), b""))
                .unwrap();
            assert!(arena.buckets.heads.len() <= buckets + 1);
            assert!(chains(&arena).abs_diff(before) <= 2);
        }
        assert!(chains(&arena) > 10_000);
    }

    #[test]
    fn items_are_read_as_they_were_stored() {
        let mut arena = arena(1 << 16);
        let items = [
            Item {
                entry: 5,
                counter: 6,
                aux: -7,
            },
            Item {
                entry: 8,
                counter: 9,
                aux: 10,
            },
        ];
        let place = arena.allocate_items(1, 2).unwrap();
        arena.write_items(place, 0, &items);
        assert_eq!([arena.item(place, 0), arena.item(place, 1)], items);
        arena.write_items(place, 1, &items[..1]);
        assert_eq!(arena.item(place, 1), items[0]);
        arena.release_items(place, 2);
        assert_eq!(arena.used(), 0);
        assert_eq!(arena.allocate_items(1, 0), Ok(0));
    }

    #[test]
    fn an_account_takes_no_more_than_what_is_left() {
        let mut arena = arena(1 << 20);
        arena.set_limit(1 << 18);
        let fill = |arena: &mut Arena, account: u32| {
            let mut entries = Vec::new();
            while arena.has_room_for(account, 1000) {
                let number = entries.len() as u16;
                let key = [account as u8, number as u8, (number >> 8) as u8];
                entries.push(arena.intern(account, content(&key, &[1; 900])).unwrap());
            }
            entries
        };
        let first = fill(&mut arena, 1);
        let half = arena.taken_by(1);
        assert!(half.abs_diff(1 << 17) < 2000, "{half}");
        let second = fill(&mut arena, 2);
        let quarter = arena.taken_by(2);
        assert!(quarter.abs_diff(1 << 16) < 2000, "{quarter}");
        assert_eq!(arena.used(), half + quarter);
        // A further account that refers to the entry does not take it over.
        let shared = arena.intern(3, content(&[1, 0, 0], &[1; 900]));
        assert_eq!((shared, arena.taken_by(3)), (Ok(first[0]), 0));
        let array = arena.allocate_items(3, 9).unwrap();
        assert!(arena.taken_by(3) > 9 * 16);
        arena.release_items(array, 9);
        for entry in first.iter().chain(&second).chain(&first[..1]) {
            arena.release(*entry);
        }
        let taken = [1, 2, 3].map(|account| arena.taken_by(account));
        assert_eq!((taken, arena.used()), ([0; 3], 0));
    }

    #[test]
    fn arrays_that_grow_side_by_side_leave_little_behind() {
        let (sessions, most) = (100, 60);
        let mut arena = arena(1 << 20);
        let item = Item {
            entry: 5,
            counter: 6,
            aux: 7,
        };
        let mut places = vec![0; sessions];
        for count in 1..=most {
            for place in &mut places {
                if items_room(count) != items_room(count - 1) {
                    let larger = arena.allocate_items(1, count).unwrap();
                    arena.release_items(*place, count - 1);
                    *place = larger;
                }
                arena.write_items(*place, 0, &vec![item; count]);
            }
        }
        assert_eq!(arena.item(places[7], most - 1), item);
        let touched = arena.heap_next - arena.heap_offset;
        assert!(touched < 4 * arena.used(), "{touched} of {}", arena.used());
        for place in places {
            arena.release_items(place, most);
        }
        assert_eq!(arena.used(), 0);
    }
}
