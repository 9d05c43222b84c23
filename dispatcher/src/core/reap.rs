//! Which sessions an ended backend may have had.
//!
//! It may have had any session of its pool: in place, sent to it, taken from the ready queue, or
//! given back without a message to the dispatcher, as backends do. So the words of each session of
//! the pool decide which ones it had. A backend that says that it exits has none of them; but any
//! process could say so, and a session that it had would have no owner for ever.
//!
//! There may be very many such sessions, and all others must be served meanwhile. So the session
//! that the backend says it holds ends at once, and the others are looked at in slices. Until then
//! the slot is not reused (`Life::Gone`): only by the slot can these sessions be told from those of
//! its next backend. A session that has been looked at goes to the end of its pool's list, behind
//! those that have come meanwhile. So the scan needs no position of its own, whichever sessions
//! come or end. One burial goes on at a time. Backends of its pool that ended before it began are
//! buried together, as happens when the server crashes.
//!
//! Only backends know which of them took a session from the ready queue. Some sessions went into
//! the queue before the death, are not in it any more, and are in no place ([`Missing`]). The dead
//! backend had such a session *in hand* (received, and not in place yet), or a living backend has
//! it in hand. Each living backend is checked until it is seen to have nothing in hand from before.
//! If the session is in no place then, no other backend has it.

use super::backends::Life;
use super::lifecycle::Reason;
use super::scan::Cursor;
use super::sessions::{Location, Whereabouts};
use super::{index_of, Action, Core, Ending, Look, SessionId, Shown, Then, Why, Word, Words};
use std::cmp::Reverse;

/// Sessions looked at for each death, and in each round: 5 microseconds if the dispatcher owns all
/// of them. If their words have to be read, each costs a cache miss.
const LOOKED_AT_ONCE: usize = 512;

/// One backend that has ended.
#[derive(Clone, Copy, Debug)]
struct Dead {
    slot: u32,
    pool: u32,
    /// Sessions that went into the queue before this number may have been in its hand.
    before: u64,
    /// No backend of its pool was left: such a session was in the hand of a dead one.
    is_last: bool,
}

/// Sessions of one ready queue that the dead backends, or others that take from it, had in hand.
#[derive(Debug)]
struct Missing {
    pool: u32,
    /// The sessions, and the numbers with which they went into the queue.
    sessions: Vec<(SessionId, u64)>,
    /// Backends, and their serials, that may have any of these sessions in hand; None: some of the
    /// sessions may be in the queue.
    may_have: Option<Vec<(u32, u64)>>,
}

/// The dead backends that are buried at a time: all of one pool.
#[derive(Debug, Default)]
struct Burial {
    dead: Vec<Dead>,
    /// The pool whose sessions are looked at.
    pool: u32,
    /// How many of them are still to be looked at.
    left: usize,
    /// Sessions that were in the queue, or that a backend had in hand.
    missing: Vec<(SessionId, u64)>,
}

/// All backends that have ended and are not forgotten yet.
#[derive(Debug, Default)]
pub struct Burials {
    now: Option<Burial>,
    /// In the order in which they ended; bounded by the slots of backends.
    next: Vec<Dead>,
    /// Bounded by what a ready queue holds, for each death.
    missing: Vec<Missing>,
}

impl Burials {
    pub fn is_empty(&self) -> bool {
        self.now.is_none() && self.next.is_empty()
    }

    /// Are there sessions of which it is unknown whether a backend has them?
    pub fn are_some_missing(&self) -> bool {
        !self.missing.is_empty()
    }
}

impl Core {
    /// The control connection of a backend has ended: so has the session that it held. A session
    /// that was sent to it but never taken lives on.
    ///
    /// This event comes at the end of a round: the event by which the backend gave a session back
    /// has been handled by then, and re-arming a socket twice does no harm.
    pub(super) fn backend_gone(&mut self, slot: u32) {
        let Some(backend) = self.backends.get(slot) else {
            return;
        };
        let (number, exits_since_us) = (backend.pool(), backend.life().exits_since_us());
        let why = self.why_lost(slot);
        if !self.backends.is_gone(slot) {
            return;
        }
        if let Some(since_us) = exits_since_us {
            (self.replacing).has_ended(self.now.us.saturating_sub(since_us));
        }
        if let Some(why) = why {
            self.tell_loss(slot, why);
        }
        // It serves no session any more, so it is not dedicated either.
        if (self.pool(number)).is_some_and(|pool| pool.dedicated().contains(&slot)) {
            self.pools.set_dedicated(number, slot, false);
        }
        let is_last = self.backends.lives(number).attached() == 0;
        if is_last {
            self.act(Action::TakeBack(number));
            self.act(Action::ResetCounter(number));
        }
        self.then(Then::Bury { slot, is_last });
    }

    /// Buries an ended backend. If it was the last of its pool, the sessions of the queue are back.
    pub(super) fn bury(&mut self, slot: u32, is_last: bool, words: &impl Words) {
        let Some(pool) = self.backends.get(slot).map(|backend| backend.pool()) else {
            return;
        };
        ensure!(self.backends.life(slot).is_some_and(Life::is_gone));
        let held = words.backend_session(slot);
        if self.may_have(slot, held) && words.holder(index_of(held)) == Some(slot) {
            self.end(held, Why::Ended(Ending::Cut));
        }
        // It may not have reported its exit before.
        self.backend_retires(slot, words);
        self.burials.next.push(Dead {
            slot,
            pool,
            before: self.sessions.next_queued(),
            is_last,
        });
        if self.burials.now.is_none() {
            self.bury_on(words);
        }
        if !self.burials.is_empty() {
            // Others take from the ready queue what it was to take.
            self.mark_dirty(pool);
        }
    }

    /// Looks at the next slice, in each round as well.
    pub(super) fn bury_on(&mut self, words: &impl Words) {
        let mut budget = LOOKED_AT_ONCE;
        while budget > 0 {
            let Some(mut burial) = self.burials.now.take().or_else(|| self.next_burial()) else {
                return;
            };
            while burial.left > 0 && budget > 0 {
                budget -= 1;
                burial.left -= 1;
                match self.sessions.rotate(burial.pool) {
                    Some(id) => self.look_for(id, &mut burial, words),
                    None => burial.left = 0,
                }
            }
            if burial.left == 0 {
                // To go on, or to begin another burial, also has a cost.
                budget = budget.saturating_sub(1);
                self.look_for_missing(burial.pool, burial.missing);
                for dead in burial.dead {
                    self.buried(dead.slot, dead.pool);
                }
                continue;
            }
            self.burials.now = Some(burial);
        }
    }

    /// The next burial: of all ended backends of the pool whose turn it is.
    fn next_burial(&mut self) -> Option<Burial> {
        let pool = self.burials.next.first()?.pool;
        let (dead, others) = (std::mem::take(&mut self.burials.next).into_iter())
            .partition(|dead| dead.pool == pool);
        self.burials.next = others;
        Some(Burial {
            dead,
            pool,
            left: self.sessions.members(pool),
            missing: Vec::new(),
        })
    }

    /// Did one of the dead backends have this session: in its slot, sent to it, taken from the
    /// queue, or given back and not armed yet?
    fn look_for(&mut self, id: SessionId, burial: &mut Burial, words: &impl Words) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let dead = &burial.dead;
        let (queue, queued) = (session.queue(), session.queued());
        let is_dead = |slot: u32| dead.iter().any(|dead| dead.slot == slot);
        let may_have_taken = |dead: &&Dead| queue == dead.pool && queued < dead.before;
        match self.sessions.locate(id, words, |_| true) {
            Some(Location::Held(holder)) => {
                // Or the session's word names a backend that cannot have it, or that says it has
                // another: no process would end the session.
                let is_its = self.may_have(holder, id) && says_it_holds(holder, id, words);
                if is_dead(holder) || !is_its {
                    self.end(id, Why::Ended(Ending::Cut));
                }
            }
            Some(Location::OnItsWay(Whereabouts::Sent(to, _))) if is_dead(to) => {
                self.hear_again(id, words);
            }
            Some(Location::OnItsWay(Whereabouts::Queue(_))) => {
                if dead.iter().filter(may_have_taken).any(|dead| dead.is_last) {
                    self.hear_again(id, words);
                } else if dead.iter().any(|dead| may_have_taken(&dead)) {
                    burial.missing.push((id, queued));
                }
            }
            Some(Location::GivenBack { .. }) => {
                if words.last_backend(index_of(id)).is_some_and(is_dead) {
                    match session.is_ungreeted() {
                        true => self.make_wait_ungreeted(id, words),
                        false => self.arm(id),
                    }
                }
            }
            Some(Location::OnItsWay(_) | Location::Here(_)) | None => {}
        }
    }

    /// The session went away and was never in place. Its request is in its socket, unless the
    /// backend that had the session in hand has read it.
    fn hear_again(&mut self, id: SessionId, words: &impl Words) {
        let session = self.sessions.get(id);
        if session.is_some_and(|session| session.is_ungreeted()) {
            self.make_wait_ungreeted(id, words);
        } else {
            let look = Look::Lost;
            self.act(Action::Look { id, look });
        }
    }

    /// These sessions are in the queue, or in a backend's hand.
    fn look_for_missing(&mut self, pool: u32, sessions: Vec<(SessionId, u64)>) {
        if !sessions.is_empty() {
            self.burials.missing.push(Missing {
                pool,
                sessions,
                may_have: None,
            });
        }
    }

    /// Runs in each tick, as nothing is handed out during one. In the first tick the sessions in
    /// the queue are taken back, and keep their turns. In later ticks: is a backend left that may
    /// have the others in hand?
    pub(super) fn look_for_missing_again(&mut self, words: &impl Words) {
        let all = std::mem::take(&mut self.burials.missing);
        for mut missing in all {
            let Some(mut may_have) = missing.may_have.take() else {
                self.act(Action::TakeBack(missing.pool));
                missing.may_have = Some(self.takers(missing.pool));
                self.burials.missing.push(missing);
                continue;
            };
            may_have.retain(|(slot, serial)| {
                let backend = self.backends.get(*slot);
                let known = backend.filter(|it| it.serial() == *serial);
                known.is_some_and(|it| !it.life().is_gone()) && may_have_in_hand(*slot, words)
            });
            if may_have.is_empty() {
                for (id, queued) in missing.sessions {
                    self.is_missed(id, queued, words);
                }
            } else {
                missing.may_have = Some(may_have);
                self.burials.missing.push(missing);
            }
        }
    }

    /// Backends that may have taken from a pool's queue, leaving ones included; and their serials.
    fn takers(&self, pool: u32) -> Vec<(u32, u64)> {
        let slots = self.all_pool_backends(pool).into_iter();
        let takers = slots.filter_map(|slot| {
            let backend = self.backends.get(slot)?;
            let life = backend.life();
            let is_there = !life.is_starting() && !life.is_gone();
            is_there.then(|| (slot, backend.serial()))
        });
        takers.collect()
    }

    /// If the session is in no place now, it was in the dead backend's hand.
    fn is_missed(&mut self, id: SessionId, queued: u64, words: &impl Words) {
        let session = self.sessions.get(id);
        let is_on_its_way = matches!(
            self.locate(id, words),
            Some(Location::OnItsWay(Whereabouts::Queue(_)))
        );
        if is_on_its_way && session.is_some_and(|session| session.queued() == queued) {
            self.hear_again(id, words);
        }
    }

    /// No session is left that the backend may have had.
    fn buried(&mut self, slot: u32, number: u32) {
        self.forget_backend(slot);
        // It may have been the backend that was to take from the ready queue.
        self.mark_dirty(number);
    }
}

/// A backend that owns a session says so in its slot, from before it owns it until after.
fn says_it_holds(slot: u32, id: SessionId, words: &impl Words) -> bool {
    words.backend_session(slot) == id || words.holder(index_of(id)) != Some(slot)
}

/// May the backend have in hand what it took from the queue? It is busy from before it takes until
/// the session is in place. A backend whose session is dedicated, or in a transaction, takes
/// nothing.
fn may_have_in_hand(slot: u32, words: &impl Words) -> bool {
    if words.backend(slot) != Word::Busy || words.backend_keeps(slot) {
        return false;
    }
    let index = index_of(words.backend_session(slot));
    words.holder(index) != Some(slot)
        || !matches!(words.shown(index), Shown::Other | Shown::InTransaction)
}

// ----------------------------------------------------------------------------
// Once a second: long idle and old backends are told to leave, unused pools and tenants are
// dropped, and all sessions are looked at.

/// Pools with backends that are looked at in a round: a system call each.
const POOLS_AT_ONCE: usize = 256;
/// Sessions that are looked at in a round: some 100 microseconds.
const SESSIONS_AT_ONCE: usize = 1024;
/// Idle backends that are told to leave in a round: a system call each.
const RETIRED_AT_ONCE: usize = 128;
/// Tenants, and pools, that are dropped in a sweep.
const DROPPED_AT_ONCE: usize = 1024;

/// What is still to be looked at in this sweep.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Pools with backends.
    pools: Cursor,
    sessions: Cursor,
}

impl Sweep {
    pub fn is_running(&self) -> bool {
        self.has_pools() || self.sessions.is_running()
    }

    pub fn has_pools(&self) -> bool {
        self.pools.is_running()
    }
}

impl Core {
    /// Runs once a second.
    pub(super) fn sweep(&mut self, words: &impl Words) {
        self.room.look_for_surplus();
        self.wake_for_memory();
        for tenant in self.unused_tenants.iter().take(DROPPED_AT_ONCE) {
            self.drop_tenant_if_unused(tenant);
        }
        for number in self.unused.iter().take(DROPPED_AT_ONCE) {
            self.drop_if_unused(number);
        }
        for number in self.pools.existing().iter() {
            if self.lacks_backends(number) {
                self.mark_dirty(number);
            }
        }
        self.sweeping.pools.begin();
        self.sweeping.sessions.begin();
        // Last, because the report names the pool, which may be unused afterwards.
        self.give_up_starting(words);
    }

    /// Looks at the next pools and sessions in each round.
    pub(super) fn sweep_on(&mut self, words: &impl Words) {
        let pools = &mut self.sweeping.pools;
        let with_backends = self.pools.with_backends();
        let mut may_retire = RETIRED_AT_ONCE;
        for number in pools.take(POOLS_AT_ONCE, |from| with_backends.first_from(from)) {
            self.act(Action::CheckQueue(number));
            may_retire -= self.retire_long_idle(number, may_retire, words);
            self.retire_oldest(number);
            may_retire -= self.retire_reconnected(number, may_retire);
        }
        for _ in 0..SESSIONS_AT_ONCE {
            let sessions = &mut self.sweeping.sessions;
            let Some(index) = sessions.next_below(self.sessions.slots_used()) else {
                return;
            };
            self.sweep_session(index, words);
        }
    }

    /// Has the pool fewer backends than it must keep?
    pub(super) fn lacks_backends(&self, number: u32) -> bool {
        let least = self.min_backends(number);
        least > 0 && self.pool_backends(number).len() < least
    }

    /// Retires at most `most` of a pool's backends that have been idle for long, the newest last.
    /// Returns how many.
    fn retire_long_idle(&mut self, number: u32, most: usize, words: &impl Words) -> usize {
        if self.limits.backend_idle_timeout_us == 0 {
            return 0;
        }
        let mut retire = self.long_idle(number, words);
        let serving = self.serving_backends(number);
        retire.truncate(serving.saturating_sub(self.min_backends(number)).min(most));
        for slot in &retire {
            self.retire(*slot, Reason::Idle);
        }
        retire.len()
    }

    /// The pool's backends that have been idle for longer than backend_idle_timeout.
    pub(super) fn long_idle(&self, number: u32, words: &impl Words) -> Vec<u32> {
        if self.waiting_in(number, words) > 0 {
            return Vec::new();
        }
        let limit_us = self.limits.backend_idle_timeout_us;
        let is_idle = |slot: &u32| {
            self.backends.is_shared(*slot)
                && words.backend(*slot).is_free()
                && self.now.passed_us(words.backend_since_us(*slot)) > limit_us
        };
        let slots = self.pool_backends(number).iter().copied();
        slots.filter(is_idle).collect()
    }

    /// Retires the oldest of a pool's backends if its lifetime is over: one in each sweep, at the
    /// end of a transaction.
    fn retire_oldest(&mut self, number: u32) {
        let limit_us = self.limits.backend_lifetime_us;
        if limit_us == 0 {
            return;
        }
        let slots = self.pool_backends(number).iter().copied();
        let shared = slots.filter(|slot| self.backends.is_shared(*slot));
        let with_age = shared.filter_map(|slot| {
            let backend = self.backends.get(slot)?;
            Some((Reverse(backend.attached_us()), slot))
        });
        let Some((Reverse(attached_us), slot)) = with_age.max() else {
            return;
        };
        if self.now.us.saturating_sub(attached_us) > limit_us {
            self.retire(slot, Reason::Old);
        }
    }

    /// Backends that have attached by now leave at the end of their transaction, those that are
    /// dedicated when they are no longer: of one database, or of all. The next sweep tells them.
    pub fn reconnect(&mut self, database_oid: Option<u32>) {
        let now_us = self.now.us;
        let numbers: Vec<u32> = match database_oid {
            Some(oid) => self.pools.in_database(oid, 0).collect(),
            None => self.pools.existing().iter().collect(),
        };
        for number in numbers {
            if let Some(pool) = self.pool_mut(number) {
                pool.reconnects(now_us);
            }
        }
    }

    /// Does the backend leave, or is it to as soon as it can?
    pub fn is_to_leave(&self, slot: u32) -> bool {
        self.backends.get(slot).is_some_and(|it| {
            let pool = self.pool(it.pool());
            let then_us = pool.map_or(0, |pool| pool.reconnected_us());
            it.life().is_leaving() || !it.life().is_starting() && it.attached_us() <= then_us
        })
    }

    /// Retires at most this number of the pool's backends, and returns how many.
    fn retire_reconnected(&mut self, number: u32, most: usize) -> usize {
        let then_us = self.pool(number).map_or(0, |pool| pool.reconnected_us());
        if then_us == 0 {
            return 0;
        }
        let is_old = |slot: &u32| self.backends.is_shared(*slot) && self.is_to_leave(*slot);
        let slots = self.pool_backends(number).iter().copied();
        let retire: Vec<u32> = slots.filter(is_old).take(most).collect();
        for slot in &retire {
            self.retire(*slot, Reason::Reconnect);
        }
        retire.len()
    }

    /// Backends of a pool that its sessions can count on.
    pub(super) fn serving_backends(&self, number: u32) -> usize {
        self.backends.lives(number).shared()
    }
}
