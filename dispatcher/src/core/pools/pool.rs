//! One pool: who its backends are, and what is known of it.
//!
//! A pool is a database, and the startup options that only a starting backend can take.
//! Its backends serve any of its sessions, whatever their roles (tenants.rs). Sessions that
//! need a backend wait in lists, whose length the number of sessions bounds
//! ([`Sessions`](crate::core::sessions) has them).
//!
//! What the table of pools finds it by, its key and its backends, only the table changes.

use super::ready_queue::ReadyQueue;
use super::starts::Starts;
use super::steals::StealRate;
use crate::core::keyed::Keyed;
use crate::core::room::Lack;
use crate::core::scan::Cursor;
use crate::core::tenants::Together;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What makes a pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// As of the first login: the name may be another's by now.
    pub database: Vec<u8>,
    pub database_oid: u32,
    /// Options that only a starting backend can take, sorted by name.
    pub options: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its backends serve this role alone (`TenantKey::is_apart`).
    pub role_oid: Option<u32>,
}

/// One pool.
pub struct Pool {
    key: Arc<PoolKey>,
    /// Slots of its backends that are not dedicated. What is done for each
    /// session that speaks goes through these only.
    shared: Vec<u32>,
    /// Slots of those that are.
    dedicated: Vec<u32>,
    /// All of them that are not told of as lost (pool_changes.rs).
    staying: u32,
    /// When the last backend left that serves its sessions in turn; 0: it has not had
    /// any.
    without_since_us: u64,

    /// Each has rules of its own.
    pub starts: Starts,
    pub queue: ReadyQueue,
    pub steals: StealRate,
    /// Its tenants.
    pub together: Together,
    /// Those that have no room (served.rs).
    pub without_room: BTreeSet<u32>,
    /// Of these some are looked at, and the next ones the next time.
    looks_without_room: Cursor,
    /// Does it want one more all the time?
    lack: Lack,
}

impl Keyed for Pool {
    type Key = PoolKey;

    fn key(&self) -> &Arc<PoolKey> {
        &self.key
    }

    fn database_of(key: &PoolKey) -> u32 {
        key.database_oid
    }
}

impl Pool {
    pub(super) fn new(key: Arc<PoolKey>) -> Pool {
        Pool {
            key,
            shared: Vec::new(),
            dedicated: Vec::new(),
            staying: 0,
            without_since_us: 0,
            starts: Starts::default(),
            queue: ReadyQueue::default(),
            steals: StealRate::default(),
            together: Together::default(),
            without_room: BTreeSet::new(),
            looks_without_room: Cursor::default(),
            lack: Lack::default(),
        }
    }

    pub fn key(&self) -> &Arc<PoolKey> {
        &self.key
    }

    /// So many of the tenants without room at most, the next ones each time.
    pub fn next_without_room(&mut self, most: usize) -> Vec<u32> {
        let all = &self.without_room;
        self.looks_without_room.begin();
        (self.looks_without_room).take(most, |from| all.range(from..).next().copied())
    }

    // ---- what it wants -------------------------------------------------------

    pub fn lacks(&mut self, wants: bool, now_us: u64) {
        self.lack.look(wants, now_us);
    }

    pub fn is_lacking(&self) -> bool {
        self.lack.is_lasting()
    }

    /// A backend of it is started; whether that is enough is to be seen.
    pub fn starts_one(&mut self, together: bool) {
        self.starts.begin(together);
        self.lack = Lack::default();
    }

    // ---- backends ----------------------------------------------------------

    /// Slots of those that are not dedicated.
    pub fn shared(&self) -> &[u32] {
        &self.shared
    }

    pub fn dedicated(&self) -> &[u32] {
        &self.dedicated
    }

    /// The slots of all its backends.
    pub fn all_backends(&self) -> impl Iterator<Item = u32> + '_ {
        self.shared.iter().chain(&self.dedicated).copied()
    }

    pub fn has_backends(&self) -> bool {
        self.all_backends().next().is_some()
    }

    pub fn without_since_us(&self) -> u64 {
        self.without_since_us
    }

    pub(super) fn add_backend(&mut self, slot: u32) {
        self.shared.push(slot);
    }

    pub(super) fn set_dedicated(&mut self, slot: u32, dedicated: bool) {
        self.take_out(slot);
        match dedicated {
            true => self.dedicated.push(slot),
            false => self.shared.push(slot),
        }
    }

    pub(super) fn forget_backend(&mut self, slot: u32, now_us: u64) {
        self.take_out(slot);
        if self.shared.is_empty() {
            self.without_since_us = now_us;
        }
        if !self.has_backends() {
            self.queue.has_room();
        }
    }

    fn take_out(&mut self, slot: u32) {
        self.shared.retain(|other| *other != slot);
        self.dedicated.retain(|other| *other != slot);
    }

    /// One more is told of, or one less; how many that are.
    pub fn count_staying(&mut self, change: i32) -> u32 {
        self.staying = self.staying.saturating_add_signed(change);
        self.staying
    }
}
