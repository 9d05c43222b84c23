//! Which session gets which backend, and how many backends are started.
//!
//! When a round ends, the pools with events are served one after the other. First the waiting
//! sessions are handed out, one at a time, because only the outcome of the last hand-over decides
//! the next. Then backends are started for the sessions that are left. A session goes either to one
//! backend, which is claimed, or through the ready queue to the first backend that takes it.

use super::dedicated::TENANTS_LOOKED_AT;
use super::lifecycle::Reason;
use super::pools::counter_is_wrong;
use super::scan::Cursor;
use super::sessions::Whereabouts;
use super::sizing::{Growth, Search};
use super::tenants::Tenant;
use super::{index_of, Action, Core, SessionId, Word, Words};

/// With forced migration, a session whose last backend is the only free one gets that backend after
/// this wait. The other backends may be held by transactions that wait for this very session.
const FORCED_PATIENCE_US: u64 = 300_000;
/// The most backends that are started in a round: each start takes some ten microseconds.
const STARTED_AT_ONCE: usize = 64;

/// The pools that are being served.
#[derive(Default)]
pub struct Round {
    /// The last pool in the list is served first.
    pools: Vec<u32>,
    /// Sessions sent into the pool's queue since its turn began.
    queued: usize,
    /// The search for a free backend.
    search: Search,
    /// The last session of the pool's FIFO that was passed over (forced migration only).
    passed: Option<SessionId>,
    /// Pools that get the places that have become free, one each.
    meant_for: Vec<u32>,
    /// Pools whose queues are taken back amid a round, or just before it: a session handed out now would overtake the
    /// sessions that went into the queue first.
    interrupted: Vec<u32>,
    /// How many backends have been started.
    started: usize,
}

impl Core {
    /// The pool is served when the round ends.
    pub(super) fn mark_dirty(&mut self, number: u32) {
        if self.pools.get(number).is_some() {
            self.dirty.insert(number);
        }
    }

    /// Serves every pool that has an event, and gives the places that have become free to the pools
    /// that they are due to (place_key, reclaim.rs).
    pub(super) fn serve(&mut self, words: &impl Words) {
        ensure!(self.round.pools.is_empty(), "a round within a round");
        self.round.started = 0;
        self.look_for_places();
        if self.dirty.is_empty() {
            return;
        }
        let mut pools = std::mem::take(&mut self.round.pools);
        self.dirty.some_from(0, usize::MAX, &mut pools);
        if pools.len() > 1 {
            pools.sort_by_cached_key(|number| std::cmp::Reverse(self.place_key(*number, words)));
        }
        self.round.meant_for = self.room.take_meant_for();
        self.round.pools = pools;
        self.begin_turn();
        self.go_on(words);
    }

    fn begin_turn(&mut self) {
        self.round.queued = 0;
        self.round.search = Search::default();
        self.round.passed = None;
        if let Some(number) = self.round.pools.last().copied() {
            self.dirty.remove(number);
            self.look_for_room(number);
        }
    }

    /// Hands out the next session, or goes on to the next pool.
    pub(super) fn go_on(&mut self, words: &impl Words) {
        while let Some(number) = self.round.pools.last().copied() {
            if self.hand_out(number, words) {
                return;
            }
            self.wake_for_queue(number, words);
            self.grow(number, words);
            // The pool was marked when its queue was taken back, before its turn.
            if self.round.interrupted.contains(&number) {
                self.mark_dirty(number);
            }
            self.round.pools.pop();
            self.begin_turn();
        }
        self.round.interrupted.clear();
    }

    /// A free backend for a session, and the state it was seen in: the backend that served the
    /// session last, if it is free, or else the first free one. With `force`, any but the last.
    fn find_backend(
        &mut self,
        number: u32,
        last: Option<u32>,
        force: bool,
        words: &impl Words,
    ) -> Option<(u32, Word)> {
        if let Some(slot) = last.filter(|_| !force) {
            // A backend may have written anything as the session's last slot.
            let of_pool = self.backends.get(slot).map(|backend| backend.pool()) == Some(number);
            if of_pool && self.backends.is_shared(slot) {
                let word = words.backend(slot);
                if word.is_free() {
                    return Some((slot, word));
                }
            }
        }
        let (backends, pool) = (&self.backends, self.pools.get(number)?);
        let state = |slot: u32| backends.is_shared(slot).then(|| words.backend(slot));
        let slots = pool.shared();
        if self.limits.force_migration {
            let but_the_last = |slot| state(slot).filter(|_| !force || last != Some(slot));
            return Search::default().find(slots, but_the_last);
        }
        self.round.search.find(slots, state)
    }

    pub(super) fn queued(&self, number: u32, words: &impl Words) -> usize {
        usize::try_from(words.queued(number)).unwrap_or(0)
    }

    /// The sessions in a pool's ready queue.
    pub fn in_ready_queue(&self, number: u32, words: &impl Words) -> Vec<SessionId> {
        let many = self.queued(number, words);
        let pool = self.pool(number);
        pool.map_or_else(Vec::new, |pool| pool.queue.last(many).collect())
    }

    /// Waiting sessions of all pools. If very many pools want backends, the number in the ready
    /// queues is extrapolated from some of them.
    pub fn waiting(&self, words: &impl Words) -> usize {
        let compared = self.compared_in_want();
        let queued = compared.iter().map(|pool| self.queued(*pool, words)).sum();
        self.sessions.all_waiting() + self.in_all(queued)
    }

    /// Sessions of a pool in its FIFO and its ready queue.
    pub fn waiting_in(&self, number: u32, words: &impl Words) -> usize {
        if self.pool(number).is_none() {
            return 0;
        }
        self.sessions.waiting(number) + self.queued(number, words)
    }

    /// Could this session keep a backend of its pool, and one backend, existing or to be started,
    /// would be left for the others?
    pub fn has_backend_to_spare(&self, id: SessionId, words: &impl Words) -> bool {
        let Some(number) = self.sessions.get(id).map(|session| session.pool()) else {
            return false;
        };
        if self.waiting_in(number, words) > 0 {
            return false;
        }
        let slots = self.pool_backends(number).iter().copied();
        let free = count_free(slots, words, |_| true);
        let room = || self.growth(number, words).map_or(0, |growth| growth.room());
        free == 2 || free + room() >= 2
    }

    /// Hands out one waiting session of a pool's FIFO; false if none can be handed out. The
    /// sessions in the ready queue came before. As long as the queue holds one, the next session
    /// goes there too, even if a backend shows itself idle: a backend that has just given a session
    /// back does so briefly.
    fn hand_out(&mut self, number: u32, words: &impl Words) -> bool {
        // Sessions that are held get no backend: the server ends them all.
        if self.stopping {
            return false;
        }
        let rests = self.pool(number).is_none_or(|pool| pool.queue.rests())
            || self.round.interrupted.contains(&number);
        if rests || self.is_forced(number) {
            return false;
        }
        let forced = self.limits.force_migration;
        let mut next = match self.round.passed {
            Some(passed) => self.sessions.waiting_behind(passed),
            // The whole FIFO is gone through.
            None if forced => self.sessions.fifo(number).next(),
            None => match self.first_exempt(number) {
                Some(id) => Some(id),
                None => self.next_with_room(number, words),
            },
        };
        while let Some(id) = next {
            if forced && !self.may_be_served(id) {
                self.round.passed = Some(id);
                next = self.sessions.waiting_behind(id);
                continue;
            }
            let patient = self
                .sessions
                .get(id)
                .is_some_and(|session| self.now.us < session.waits_since_us() + FORCED_PATIENCE_US);
            let would_overtake = !forced && self.queued(number, words) > 0;
            let last = words.last_backend(index_of(id));
            let found = if would_overtake {
                None
            } else {
                self.find_backend(number, last, forced && patient, words)
            };
            if let Some((slot, seen)) = found {
                let serial = self
                    .backends
                    .get(slot)
                    .map_or(0, |backend| backend.serial());
                ensure!(seen.is_free() && self.backends.is_shared(slot));
                ensure!(self.backends.get(slot).map(|it| it.pool()) == Some(number));
                if !forced {
                    self.takes(number, id, (slot, seen), words);
                }
                self.sessions.send_to(id, slot, serial);
                self.is_handed_out(id, true);
                if self.are_few(number) {
                    // Other sessions of the same role are handed out before the next tick.
                    let role = self.key_of(id).map(|key| key.role_oid);
                    self.backends.is_of_role(slot, role);
                }
                self.act(Action::Claim { slot, seen, id });
                return true;
            }
            if forced {
                self.round.passed = Some(id);
                next = self.sessions.waiting_behind(id);
                continue;
            }
            return self.send_to_queue(number, id, words);
        }
        false
    }

    /// Counts a steal: a session gets a backend that may linger with another session.
    fn takes(&mut self, number: u32, id: SessionId, (slot, seen): (u32, Word), words: &impl Words) {
        let (most, now_us) = (self.limits.backends_for_steals, self.now.us);
        let members = self.sessions.members(number);
        let is_starting = self.backends.lives(number).starting() > 0;
        let Some(pool) = self.pools.get_mut(number) else {
            return;
        };
        if is_starting || pool.shared().len() >= most.min(members) {
            return;
        }
        pool.steals.gets_backend(id, now_us);
        if seen == Word::Linger {
            (pool.steals).loses_backend(words.backend_session(slot), now_us);
        }
    }

    /// The session whose turn it is, among tenants whose limits allow one more served session.
    fn next_with_room(&mut self, number: u32, words: &impl Words) -> Option<SessionId> {
        for _ in 0..TENANTS_LOOKED_AT {
            let Some(tenant) = self.next_tenant(number, words) else {
                if self.keeps_one_free(number) && self.sessions.servable(number) > 0 {
                    // The next backend that becomes free says so.
                    self.act(Action::HoldBack(number));
                }
                return None;
            };
            if self.has_room(tenant) {
                if !self.is_kept(number) {
                    self.sessions.pass_over_earlier(tenant);
                }
                return self.sessions.first_of_tenant(tenant);
            }
        }
        self.mark_dirty(number);
        None
    }

    fn may_be_served(&mut self, id: SessionId) -> bool {
        let tenant = self.sessions.get(id).map(|session| session.tenant());
        tenant.is_some_and(|tenant| self.has_room(tenant)) || self.is_exempt(id)
    }

    /// The session's hand-over failed.
    fn waits_on(&mut self, id: SessionId) {
        self.sessions.wait_on(id);
        self.is_back(id);
    }

    /// The backend's state has changed meanwhile: looks again.
    pub(super) fn claim_lost(&mut self, id: SessionId, words: &impl Words) {
        self.waits_on(id);
        self.go_on(words);
    }

    /// Sends the FIFO's head into the ready queue; false if it has to stay.
    fn send_to_queue(&mut self, number: u32, id: SessionId, words: &impl Words) -> bool {
        let shared = self.backends.lives(number).shared();
        let queued = self.queued(number, words);
        let (are_few, takes_turns) = (self.are_few(number), self.takes_turns(number));
        let Some(pool) = self.pools.get_mut(number) else {
            return false;
        };
        if are_few {
            self.act(Action::HoldBack(number));
            return false;
        }
        if pool.queue.is_full() || shared == 0 {
            return false;
        }
        // The queue is first come, first served. If tenants take turns, the queue is therefore kept
        // short, and the other sessions wait for their turns.
        if takes_turns && queued >= shared.max(pool.queue.worth()) {
            self.act(Action::HoldBack(number));
            return false;
        }
        // From the send on, a backend may own the session.
        pool.queue.send(id, self.now.us);
        self.sessions.enqueue(id);
        self.is_handed_out(id, false);
        self.round.queued += 1;
        self.act(Action::Enqueue { pool: number, id });
        true
    }

    pub(super) fn queue_full(&mut self, number: u32, id: SessionId, words: &impl Words) {
        self.waits_on(id);
        self.round.queued = self.round.queued.saturating_sub(1);
        if let Some(pool) = self.pool_mut(number) {
            pool.queue.was_full();
        }
        self.go_on(words);
    }

    /// The session keeps its turn, and the pool waits for `QueueHasRoom`.
    pub(super) fn not_sent(
        &mut self,
        number: u32,
        id: SessionId,
        queued: bool,
        words: &impl Words,
    ) {
        if let Some(pool) = self.pool_mut(number) {
            pool.queue.rest();
        }
        if queued {
            return self.queue_full(number, id, words);
        }
        self.waits_on(id);
        self.go_on(words);
    }

    pub(super) fn queue_has_room(&mut self, number: u32) {
        if let Some(pool) = self.pool_mut(number) {
            pool.queue.has_room();
        }
        self.mark_dirty(number);
    }

    pub(super) fn taken_back(&mut self, id: SessionId) {
        let number = self.sessions.get(id).map(|session| session.pool());
        if let Some(pool) = number.and_then(|number| self.pool_mut(number)) {
            pool.queue.is_taken_back();
        }
        self.waits_on(id);
    }

    /// The pool's queue is taken back before the sessions that wait are handed out.
    pub(super) fn take_back_in_round(&mut self, number: u32) {
        self.act(Action::TakeBack(number));
        self.round.interrupted.push(number);
        self.mark_dirty(number);
    }

    pub(super) fn queue_drained(&mut self, number: u32) {
        if let Some(pool) = self.pool_mut(number) {
            pool.queue.is_drained();
        }
        self.in_want.insert(number);
        self.mark_dirty(number);
    }

    /// A backend that dies between taking a message and lowering the counter leaves the counter
    /// wrong for ever. It is corrected when no backend can be between the two. `is_empty`: the
    /// queue was empty before this was asked; a backend that took a message before that is still
    /// busy.
    pub fn check_queue(&mut self, number: u32, is_empty: bool, words: &impl Words) {
        let Some(pool) = self.pool(number) else {
            return;
        };
        // Usually the counter is right, whichever backends may be taking: there may be very many.
        if !counter_is_wrong(is_empty, false, words.queued(number)) {
            return;
        }
        // A backend's report that it is no longer dedicated may not have arrived yet.
        let may_take = |slot| words.backend(slot) == Word::Busy && !words.backend_keeps(slot);
        let may_be_taking = pool.all_backends().any(may_take);
        if counter_is_wrong(is_empty, may_be_taking, words.queued(number)) {
            self.act(Action::TakeBack(number));
            self.act(Action::ResetCounter(number));
            self.round.interrupted.push(number);
            self.mark_dirty(number);
        }
    }

    /// Wakes a free backend for each session in the ready queue. A backend may have become idle
    /// after it saw the queue empty and before it could see what was sent. Sessions of earlier
    /// rounds count too, as their backends may have been poked and not woken yet.
    fn wake_for_queue(&mut self, number: u32, words: &impl Words) {
        let pokes = self.queued(number, words).max(self.round.queued);
        if pokes == 0 {
            return;
        }
        let Some(pool) = self.pools.get(number) else {
            return;
        };
        let slots = pool.shared().iter().copied();
        let free =
            slots.filter(|slot| self.backends.is_shared(*slot) && words.backend(*slot).is_free());
        self.actions.extend(free.take(pokes).map(Action::Poke));
    }

    /// All pools that share backends, if all these backends are at work and each pool has enough
    /// sessions in its ready queue: a session that speaks now only gets a place behind them.
    pub fn saturated_pools(&self, queued: usize, words: &impl Words) -> Option<Vec<u32>> {
        let mut pools = Vec::new();
        for number in self.pools.existing().iter() {
            let Some(pool) = self.pool(number) else {
                continue;
            };
            if self.sessions.members(number) <= pool.dedicated().len() {
                // Its sessions have their backends.
                continue;
            }
            let is_busy = |slot: &u32| words.backend(*slot) == Word::Busy;
            if self.queued(number, words) < queued || !pool.shared().iter().all(is_busy) {
                return None;
            }
            pools.push(number);
        }
        (!pools.is_empty()).then_some(pools)
    }

    // ---- growth ------------------------------------------------------------

    /// What a pool could start now; None if it must not try.
    pub(super) fn growth(&self, number: u32, words: &impl Words) -> Option<Growth> {
        let pool = self.pool(number)?;
        let may_not_yet = !pool.starts.may_be_tried(self.now.us) || self.is_held(number);
        if self.stopping || may_not_yet {
            return None;
        }
        // This is read before the waiting sessions are counted. A session taken between the two
        // reads is missed, and checked again in the next round. In the opposite order that session
        // would get a second backend.
        let about_to_serve = self.about_to_serve(number, words);
        let is_left = self.keeps_one_free(number) && self.next_tenant(number, words).is_none();
        let kept = self.kept(number) + usize::from(is_left);
        let starting = self.backends.lives(number).starting() + about_to_serve.saturating_sub(kept);
        let places = self.places_for(number, words);
        Some(Growth {
            waiting: self.sessions.servable(number)
                + self.exempt_in(number)
                + self.queued(number, words),
            starting,
            backends: pool.shared().len(),
            sessions: self.sessions.members(number),
            min_backends: self.min_backends(number),
            force_migration: self.limits.force_migration,
            is_short_of_one: pool.steals.are_often()
                && pool.shared().len() < self.limits.backends_for_steals
                && !places.is_extra(0),
            places,
        })
    }

    /// Counts the backends that are about to take from the ready queue what still counts as
    /// waiting. Free backends are. So is a busy backend that holds no session: it shows itself busy
    /// before it takes. Under forced migration there is no queue, and a session that waits while a
    /// backend is free waits for another backend than that one.
    fn about_to_serve(&self, number: u32, words: &impl Words) -> usize {
        let Some(pool) = self.pool(number) else {
            return 0;
        };
        let forced = self.limits.force_migration;
        let shared = pool.shared().iter().copied();
        let shared = shared.filter(|slot| self.backends.is_shared(*slot));
        shared
            .filter(|slot| is_about_to_serve(*slot, forced, words))
            .count()
    }

    /// No session waits and the pool has its minimum, or the pool has no session, whatever still
    /// counts as waiting: nothing needs to be counted.
    fn has_enough(&self, number: u32, words: &impl Words) -> bool {
        let is_short_of_one = (self.pool(number)).is_some_and(|pool| pool.steals.are_often());
        self.sessions.members(number) == 0
            || self.waiting_in(number, words) == 0
                && !is_short_of_one
                && self.pool_backends(number).len() >= self.min_backends(number)
    }

    /// Starts backends for the waiting sessions, as far as the limits allow.
    fn grow(&mut self, number: u32, words: &impl Words) {
        let meant_for = &mut self.round.meant_for;
        let all = meant_for.len();
        meant_for.retain(|other| *other != number);
        // A place that was made for another pool that still exists belongs to that pool.
        let left = meant_for.len();
        let own = all - left;
        if self.has_enough(number, words) {
            return;
        }
        let (Some(growth), Some(pool)) = (self.growth(number, words), self.pool(number)) else {
            return;
        };
        // After a failure one backend at a time, until one succeeds.
        let most = if pool.starts.are_one_at_a_time() {
            usize::from(self.backends.lives(number).starting() == 0)
        } else {
            growth.places.room().saturating_sub(left)
        };
        if let Some(pool) = self.pool_mut(number) {
            pool.steals.reset();
        }
        let starts = growth.starts().min(most);
        // For the places that were made for it, the pool is first; for others it has its usual turn.
        let in_turn = match own > 0 && self.round.pools.len() > 1 {
            true => own,
            false => STARTED_AT_ONCE,
        };
        let started = starts
            .min(in_turn)
            .min(STARTED_AT_ONCE - self.round.started);
        if started < starts {
            self.mark_dirty(number);
        }
        self.round.started += started;
        let mut for_stall = false;
        for nth in 0..started {
            let why = growth.why_start(nth);
            for_stall |= why == Reason::Stall;
            self.open(number, why);
            #[cfg(test)]
            self.check_share(number, words);
        }
        if for_stall && self.takes_turns(number) {
            // Sessions in the queue went there before sessions came whose turn is now first.
            self.act(Action::TakeBack(number));
            self.round.interrupted.push(number);
        }
        if growth.wants_room() {
            self.wants_room(number, growth.backends == 0);
        }
    }

    fn open(&mut self, number: u32, why: Reason) {
        let before = self.backends.lives(number);
        ensure!(!self.stopping && !self.is_held(number));
        let Some(slot) = self.backends.start(number, self.now.us) else {
            return;
        };
        let together = before.starting() > 0;
        if let Some(pool) = self.pools.get_mut(number) {
            pool.starts_one(together);
        }
        self.pools.add_backend(number, slot);
        self.count_use(number);
        self.tell_growth(slot, number, why);
        self.act(Action::Open { slot, pool: number });
    }

    /// A backend of an earlier dispatcher, which has a session, exits when it has given that back:
    /// other sessions' contexts are not in the memory that it has. Returns its serial.
    pub(super) fn adopt_backend(&mut self, slot: u32, number: u32) -> u64 {
        let serial = self.backends.adopt(slot, number, self.now.us);
        self.pools.add_backend(number, slot);
        self.count_use(number);
        self.tell_growth(slot, number, Reason::Adopted);
        self.retire(slot, Reason::Replaced);
        serial
    }

    /// Sessions of a pool that are in its ready queue, in the order of arrival.
    pub(super) fn in_queue(
        &self,
        number: u32,
        words: &impl Words,
    ) -> impl Iterator<Item = SessionId> + '_ {
        let queue = self.pool(number).map(|pool| &pool.queue);
        let queued = self.queued(number, words);
        (queue.into_iter()).flat_map(move |queue| queue.last(queued))
    }

    pub(super) fn wait_us(&self, id: SessionId) -> Option<u64> {
        let is_in =
            |place: Whereabouts| matches!(place, Whereabouts::Waiting(_) | Whereabouts::Queue(_));
        let session = self.sessions.get(id);
        let session = session.filter(|session| is_in(session.whereabouts()))?;
        let since_us = self.counts_since_us(session.tenant(), session.waits_since_us())?;
        Some(self.now.us.saturating_sub(since_us))
    }

    /// The longest wait of a pool's waiting sessions, without paused ones.
    pub fn oldest_wait_us(&self, number: u32, words: &impl Words) -> Option<u64> {
        // The sessions in the queue came from two lines.
        self.in_queue(number, words)
            .chain(self.longest_waiting(number))
            .filter_map(|id| self.wait_us(id))
            .max()
    }

    /// The longest wait of a tenant's sessions, without those in the ready queue.
    pub fn tenant_waits_us(&self, tenant: u32) -> Option<u64> {
        self.wait_us(self.sessions.longest_waiting_of(tenant)?)
    }

    /// About how long sessions of the pool wait now.
    pub(super) fn usual_wait_us(&self, number: u32, words: &impl Words) -> u64 {
        let first = self.sessions.longest_waiting(number);
        let first = first.or_else(|| self.in_queue(number, words).next());
        first.and_then(|id| self.wait_us(id)).unwrap_or(0)
    }
}

/// How many of these slots are free and count: two at most.
pub(super) fn count_free(
    slots: impl Iterator<Item = u32>,
    words: &impl Words,
    counts: impl Fn(u32) -> bool,
) -> usize {
    let free = slots.filter(|slot| counts(*slot) && words.backend(*slot).is_free());
    free.take(2).count()
}

/// Will a shared backend serve a waiting session, as far as its words say?
fn is_about_to_serve(slot: u32, forced: bool, words: &impl Words) -> bool {
    match words.backend(slot) {
        Word::Idle | Word::Linger => !forced,
        Word::Busy => !forced && words.backend_session(slot) == 0,
        word => word == Word::Starting,
    }
}

// ----------------------------------------------------------------------------
// Pools that want a backend.
//
// There may be as many such pools as sessions. What concerns one pool (a session speaks, a backend
// is free) is done at once. What may concern any pool is done for a limited number of pools in each
// tick, and in each round as long as there are places for them; usually that is all of them. If
// more pools want backends, rules that compare pools (reclaim.rs) compare the pools of this tick,
// and those that have begun to wait since. The pool that has been without a backend for longest is
// served first, and each pool gets its turn.

/// Pools looked at in a tick, or served for places in a round: half a millisecond.
const LOOKED_AT_ONCE: usize = 256;
/// The most pools that have begun to wait since the last tick and are compared with these.
const MOST_NEW: usize = 64;

/// The progress of the scans over pools that want a backend.
#[derive(Default)]
pub struct Wants {
    ticks: Cursor,
    /// Pools looked at in the last tick.
    turn: Vec<u32>,
    /// Since when the first session waits: of the pools looked at in this pass, and of all pools in
    /// the pass before.
    since_us: Option<u64>,
    all_since_us: Option<u64>,
    /// The longest wait, among the pools looked at last, of a role that has no backend for long.
    without_us: Option<u64>,
    /// The longest such wait of a pool that no backend may be started for; and that pool.
    in_vain: Option<(u64, u32)>,
    /// Pools without a backend whose sessions have begun to wait since the last tick.
    new: Vec<u32>,
    /// There may be places for the pools from here on.
    places: Cursor,
    /// Limits have changed: the scan goes on even if there is no place.
    in_any_case: bool,
}

fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

impl Wants {
    /// Is the scan to go on without a new event?
    pub fn has_more(&self) -> bool {
        self.places.is_running()
    }
}

impl Core {
    /// Runs in each tick. Ends waits that have reached their limit. A failed start may be
    /// repeatable by now, and forced migration has its patience. The pool is also served if all its
    /// waiting sessions are in the ready queue: the backends that were to take them may have become
    /// dedicated.
    pub(super) fn look_at_waiting(&mut self, words: &impl Words) {
        let turn = self.next_in_want();
        let (mut since_us, mut without_us, mut in_vain) = (None, None, None);
        for number in turn.iter().copied() {
            let waited_us = self.oldest_wait_us(number, words);
            let its_since_us = waited_us.map(|waited_us| self.now.us.saturating_sub(waited_us));
            since_us = earlier(since_us, its_since_us);
            self.count_handed_out(number, words);
            let is_over = self.expire_waits(number, waited_us);
            self.count_served_again(number, words);
            if let Some(waited_us) = self.waits_without_us(number, words) {
                without_us = without_us.max(Some(waited_us));
                let is_longest = in_vain.is_none_or(|(other_us, _)| waited_us > other_us);
                if !is_over && is_longest && self.wants_place(number, words) {
                    in_vain = Some((waited_us, number));
                }
            }
            if self.queued(number, words) > 0 && self.are_few(number) {
                self.act(Action::TakeBack(number));
            }
            if self.waiting_in(number, words) > 0 {
                self.mark_dirty(number);
            } else {
                self.look_whether_it_lacks(number, words);
                self.in_want.remove(number);
            }
        }
        let wants = &mut self.wants;
        wants.new.clear();
        wants.turn = turn;
        wants.without_us = without_us;
        wants.in_vain = in_vain;
        wants.since_us = earlier(wants.since_us, since_us);
        if !wants.ticks.is_running() {
            wants.all_since_us = wants.since_us.take();
        }
    }

    /// The next pools that want a backend; all of them if they are few.
    fn next_in_want(&mut self) -> Vec<u32> {
        let ticks = &mut self.wants.ticks;
        if self.in_want.len() <= LOOKED_AT_ONCE {
            ticks.stop();
            return self.in_want.iter().collect();
        }
        let first_from = |from| self.in_want.first_from(from);
        let turn = ticks.take(LOOKED_AT_ONCE, first_from);
        if !turn.is_empty() {
            return turn;
        }
        ticks.begin();
        ticks.take(LOOKED_AT_ONCE, first_from)
    }

    /// The longest wait of any pool, as the ticks have seen it.
    pub(super) fn longest_seen_us(&self) -> Option<u64> {
        let since_us = earlier(self.wants.since_us, self.wants.all_since_us);
        since_us.map(|since_us| self.now.us.saturating_sub(since_us))
    }

    pub(super) fn longest_without_us(&self) -> Option<u64> {
        self.wants.without_us
    }

    /// The longest wait without a backend that may be started, and its pool.
    pub(super) fn longest_in_vain(&self) -> Option<(u64, u32)> {
        self.wants.in_vain
    }

    /// The longest time, over the pool's tenants whose roles have no backend for long, for which
    /// one session has waited while no session of the tenant was handed out.
    fn waits_without_us(&self, number: u32, words: &impl Words) -> Option<u64> {
        let waiting_tenants = self.waiting_tenants(number, words).into_iter();
        let without = waiting_tenants.filter(|(tenant, _)| self.has_for_long(tenant) == 0);
        let waited_us = without.map(|(tenant, waited_us)| self.waits_in_vain_us(tenant, waited_us));
        waited_us.max()
    }

    /// A session of the tenant waits for `waited_us`: for how much of that was none handed out?
    pub(super) fn waits_in_vain_us(&self, tenant: &Tenant, waited_us: u64) -> u64 {
        waited_us.min(self.now.us.saturating_sub(tenant.handed_out_us))
    }

    fn count_handed_out(&mut self, number: u32, words: &impl Words) {
        let queued = self.queued(number, words);
        let Some(pool) = self.pools.get_mut(number) else {
            return;
        };
        self.handed_out += pool.queue.take_taken(queued);
        for id in pool.queue.forget_taken(queued) {
            let tenant = self.sessions.get(id).map(|session| session.tenant());
            if let Some(tenant) = tenant.and_then(|tenant| self.tenants.get_mut(tenant)) {
                tenant.handed_out_us = self.now.us;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn are_looked_at_in_turns(&self) -> bool {
        self.pools.existing().len() > LOOKED_AT_ONCE
    }

    /// Each pool has its turn within this number of ticks.
    #[cfg(test)]
    pub(super) fn ticks_for_all_pools(&self) -> usize {
        match self.are_looked_at_in_turns() {
            true => self.pools.existing().len() / LOOKED_AT_ONCE + 2,
            false => 1,
        }
    }

    /// There may be places for pools in which a session waits.
    pub(super) fn mark_waiting(&mut self) {
        if !self.in_want.is_empty() {
            self.wants.places.begin();
        }
    }

    /// Limits have changed.
    pub(super) fn mark_waiting_in_any_case(&mut self) {
        self.mark_waiting();
        self.wants.in_any_case = true;
    }

    /// Serves the next pools in each round; first the pools for which a place was made.
    pub(super) fn look_for_places(&mut self) {
        let wants = &mut self.wants;
        if !wants.places.is_running() {
            return;
        }
        let some = (wants.places).take(LOOKED_AT_ONCE, |from| self.in_want.first_from(from));
        let goes_on = wants.places.is_running() && some.len() == LOOKED_AT_ONCE;
        let in_any_case = wants.in_any_case;
        wants.in_any_case &= goes_on;
        if goes_on {
            for number in self.room.meant_for().to_vec() {
                self.mark_dirty(number);
            }
            if self.places(0).room() == 0 && !in_any_case {
                // Pools ask for room in their ticks.
                self.wants.places.stop();
                return;
            }
        }
        for number in some {
            self.mark_dirty(number);
        }
    }

    /// A pool wants room. If it `is_without` a backend, it wants room soon.
    pub(super) fn wants_room(&mut self, number: u32, is_without: bool) {
        self.room.want(is_without);
        let wants = &mut self.wants;
        if is_without && wants.new.len() < MOST_NEW && !wants.turn.contains(&number) {
            wants.new.push(number);
        }
    }

    /// Extrapolates a number found among the compared pools to all pools.
    pub(super) fn in_all(&self, found: usize) -> usize {
        let (all, compared) = (self.in_want.len(), self.wants.turn.len());
        match all > LOOKED_AT_ONCE {
            true => found.max(found * all / compared.max(1)),
            false => found,
        }
    }

    /// The pools that are compared with each other: all of them if they are few.
    pub(super) fn compared_in_want(&self) -> Vec<u32> {
        if self.in_want.len() <= LOOKED_AT_ONCE {
            return self.in_want.iter().collect();
        }
        let mut pools = [self.wants.turn.as_slice(), &self.wants.new].concat();
        pools.retain(|number| self.in_want.contains(*number));
        pools.sort_unstable();
        pools.dedup();
        pools
    }
}
