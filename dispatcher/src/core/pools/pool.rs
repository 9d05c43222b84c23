//! One pool: who its backends are, and what is known of it.
//!
//! A pool is a database, and the startup options that only a starting backend can take.
//! Its backends serve any of its sessions, whatever their roles (tenants.rs). Sessions that
//! need a backend wait in lists, whose length the number of sessions bounds
//! ([`Sessions`](crate::core::sessions) has them).
//!
//! What the table of pools finds it by, its key and its backends, only the table changes.

use super::look::Look;
use super::ready_queue::ReadyQueue;
use super::starts::Starts;
use super::takings::Takings;
use super::walk::Walk;
use crate::core::keyed::Keyed;
use crate::core::lap::Lap;
use crate::core::room::Lack;
use crate::core::tenants::Together;
use crate::core::SessionId;
use std::cmp::Reverse;
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

/// One that has come before others; of those that came at once the last slot's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Oldest {
    pub attached_us: Reverse<u64>,
    pub slot: u32,
    /// Tells it from others that have had its slot.
    pub serial: u64,
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
    /// So many of the first that are not dedicated have been looked at in this sweep.
    swept: usize,
    /// The one of these that came first.
    oldest: Option<Oldest>,
    /// Of all of its backends, that are woken.
    waking: Walk,
    /// When the last backend left that serves its sessions in turn; 0: it has not had
    /// any.
    without_since_us: u64,

    /// Each has rules of its own.
    pub starts: Starts,
    pub queue: ReadyQueue,
    pub takings: Takings,
    /// For those of its backends that have nothing to do.
    pub look: Look,
    /// Its tenants.
    pub together: Together,
    /// Those that have no room (served.rs).
    pub without_room: BTreeSet<u32>,
    /// Of these some are looked at, and the next ones the next time.
    looks_without_room: Lap,
    /// Sessions are taken over often: one more backend would end that.
    is_short_of_one: bool,
    /// Does it want one more all the time?
    lack: Lack,
    /// In the list of pools to look at.
    is_dirty: bool,
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
            swept: 0,
            oldest: None,
            waking: Walk::default(),
            without_since_us: 0,
            starts: Starts::default(),
            queue: ReadyQueue::default(),
            takings: Takings::default(),
            is_short_of_one: false,
            look: Look::default(),
            together: Together::default(),
            without_room: BTreeSet::new(),
            looks_without_room: Lap::default(),
            lack: Lack::default(),
            is_dirty: false,
        }
    }

    pub fn key(&self) -> &Arc<PoolKey> {
        &self.key
    }

    /// So many of the tenants without room at most, the next ones each time.
    pub fn next_without_room(&mut self, most: usize) -> Vec<u32> {
        let mut some = Vec::new();
        self.looks_without_room.begin(self.without_room.len());
        (self.looks_without_room).next(&self.without_room, most, &mut some);
        some
    }

    // ---- what it wants -------------------------------------------------------

    /// It is to be looked at. True if that is news.
    pub fn becomes_dirty(&mut self) -> bool {
        !std::mem::replace(&mut self.is_dirty, true)
    }

    pub fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    pub fn is_looked_at(&mut self) {
        self.is_dirty = false;
    }

    /// A session of it gets a backend that lingered for another.
    pub fn is_taken_by(&mut self, id: SessionId, now_us: u64) {
        self.is_short_of_one |= self.takings.are_often(id, now_us);
    }

    pub fn is_short_of_one(&self) -> bool {
        self.is_short_of_one
    }

    /// It has been looked whether it may have one more.
    pub fn has_asked_for_one(&mut self) {
        self.is_short_of_one = false;
    }

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
        self.look_anew();
    }

    pub(super) fn set_dedicated(&mut self, slot: u32, dedicated: bool) {
        self.take_out(slot);
        match dedicated {
            true => self.dedicated.push(slot),
            false => self.shared.push(slot),
        }
        self.look_anew();
    }

    pub(super) fn forget_backend(&mut self, slot: u32, now_us: u64) {
        self.take_out(slot);
        self.look_anew();
        if self.shared.is_empty() {
            self.without_since_us = now_us;
        }
        if !self.has_backends() {
            self.queue.has_room();
        }
    }

    fn take_out(&mut self, slot: u32) {
        if let Some(at) = self.shared.iter().position(|other| *other == slot) {
            self.shared.remove(at);
            // The others have moved up.
            self.swept -= usize::from(at < self.swept);
            self.is_taken_out(at, false);
        }
        if let Some(at) = self.dedicated.iter().position(|other| *other == slot) {
            self.dedicated.remove(at);
            self.is_taken_out(at, true);
        }
    }

    fn is_taken_out(&mut self, at: usize, of_dedicated: bool) {
        self.waking.is_taken_out(at, of_dedicated);
    }

    // ---- what concerns all of them, some in each round ----------------------

    pub fn begin_to_wake(&mut self) {
        self.waking = Walk::default();
    }

    pub fn next_to_wake(&mut self) -> Option<u32> {
        self.waking.next(&self.shared, &self.dedicated)
    }

    // ---- the sweep ---------------------------------------------------------

    /// So many more of those that are not dedicated, or the rest.
    pub fn sweep_on(&mut self, most: usize) -> Vec<u32> {
        if self.swept == 0 {
            self.oldest = None;
        }
        let some = self.shared.iter().skip(self.swept).take(most).copied();
        let some: Vec<u32> = some.collect();
        self.swept += some.len();
        some
    }

    /// None of them has been looked at yet.
    pub fn is_unswept(&self) -> bool {
        self.swept == 0
    }

    /// All of them have been.
    pub fn is_swept(&self) -> bool {
        self.swept >= self.shared.len()
    }

    pub fn has_seen(&mut self, old: Option<Oldest>) {
        self.oldest = self.oldest.max(old);
    }

    /// The next time it begins anew. The oldest one that was seen.
    pub fn ends_sweep(&mut self) -> Option<Oldest> {
        self.swept = 0;
        self.oldest.take()
    }

    // ---- who is free -------------------------------------------------------

    /// All that are not dedicated are looked at from now on (look.rs).
    pub fn begin_look(&mut self, first: usize) {
        self.look.begin(self.shared.len(), first);
    }

    /// The places are others, and one may have been passed.
    fn look_anew(&mut self) {
        if self.look.is_on() {
            self.begin_look(0);
        }
    }

    /// The next one that is to be looked at, and its place.
    pub fn next_to_look_at(&mut self) -> Option<(usize, u32)> {
        let at = self.look.step(self.shared.len())?;
        Some((at, *self.shared.get(at)?))
    }

    /// One more is told of, or one less; how many that are.
    pub fn count_staying(&mut self, change: i32) -> u32 {
        self.staying = self.staying.saturating_add_signed(change);
        self.staying
    }
}
