//! Who gets which backend, and how many are started.
//!
//! When a round ends the pools that something has happened to are served, one
//! after the other: what waits is handed out, one session at a time, because
//! only the next look says what became of the last; then backends are started
//! for whoever is left. A session goes either to one backend, which is claimed,
//! or through the ready queue to whichever is first.

use super::dedicated::TENANTS_LOOKED_AT;
use super::growth::{Growth, Search};
use super::pool_changes::Reason;
use super::pools::{counter_is_wrong, Pool};
use super::sessions::Whereabouts;
use super::{index_of, Action, Core, SessionId, Word, Words};

/// With forced migration, a session whose last backend is the only free one
/// gets it after all when it has waited so long: the others may be held by
/// transactions that wait for this very session.
const FORCED_PATIENCE_US: u64 = 300_000;
/// Backends of one pool that are looked at in a round, and pools where it counts how all
/// of them are: some 10 microseconds.
const LOOKED_AT_ONCE: usize = 256;
/// Backends of a pool that are looked at for two free ones.
const SPARE_LOOKS: usize = 256;

/// Backends that are started in a round: each takes some ten microseconds.
const STARTED_AT_ONCE: usize = 64;

/// Pools that are being served.
pub struct Round {
    /// So many backends of one are looked at in a round.
    at_once: usize,
    /// The first is at its turn, the last in the list.
    pools: Vec<u32>,
    /// Sent into its queue since its turn began.
    queued: usize,
    /// One may be served that is not sent there, and none of those looked at was free.
    holds_back: bool,
    /// For a backend that is free.
    search: Search,
    /// The last of its FIFO that was passed over (forced migration only).
    passed: Option<SessionId>,
    /// Pools that get the places that have become free, one each.
    meant_for: Vec<u32>,
    /// What is in their queues is being taken back, amid a round: whoever went there first
    /// would be overtaken by who is handed out now.
    interrupted: Vec<u32>,
    /// So many backends have been started.
    started: usize,
    spare: Vec<u32>,
}

impl Default for Round {
    fn default() -> Round {
        Round {
            at_once: LOOKED_AT_ONCE,
            pools: Vec::new(),
            queued: 0,
            holds_back: false,
            search: Search::default(),
            passed: None,
            meant_for: Vec::new(),
            interrupted: Vec::new(),
            started: 0,
            spare: Vec::new(),
        }
    }
}

impl Round {
    /// Backends of one pool that are looked at in a round.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    /// What comes in between comes in between.
    #[cfg(test)]
    pub fn look_at_few(&mut self) {
        self.at_once = 4;
    }
}

impl Core {
    pub(super) fn mark_dirty(&mut self, number: u32) {
        if let Some(pool) = self.pool_mut(number) {
            if pool.becomes_dirty() {
                self.dirty.push(number);
            }
        }
    }

    /// Serves every pool that something has happened to, and gives places that
    /// have become free to whom they are due (place_key, room.rs).
    pub(super) fn round_ends(&mut self, words: &impl Words) {
        self.round.interrupted.clear();
        self.round.started = 0;
        self.look_for_places();
        if self.dirty.is_empty() {
            return;
        }
        let spare = std::mem::take(&mut self.round.spare);
        let mut pools = std::mem::replace(&mut self.dirty, spare);
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
        self.round.holds_back = false;
        self.round.search = Search::default();
        self.round.passed = None;
        if let Some(number) = self.round.pools.last().copied() {
            let at_once = self.round.at_once;
            self.look_for_room(number);
            if let Some(pool) = self.pools.get_mut(number) {
                pool.is_looked_at();
                let first = pool.look.search_from(pool.shared().len(), at_once);
                self.round.search = Search::from(first);
            }
        }
    }

    /// Hands out the next, or goes on to the next pool.
    pub(super) fn go_on(&mut self, words: &impl Words) {
        while let Some(number) = self.round.pools.last().copied() {
            if self.hand_out(number, words) {
                return;
            }
            if self.look_on(number, words) {
                self.grow(number, words);
            } else if self.round.meant_for.contains(&number) {
                self.room.is_still_meant_for(number);
            }
            self.round.pools.pop();
            self.begin_turn();
        }
        // Keeps its room.
        if self.round.spare.capacity() == 0 {
            self.round.spare = std::mem::take(&mut self.round.pools);
        }
    }

    /// A backend for a session, and the state it was seen in: the one that served it
    /// last, if that is free; or else the first that is, of the first ones where there are
    /// very many (who is not found so goes into the ready queue, and the others are woken
    /// for him: look_on). With `force` any but the last, of all.
    fn find_backend(
        &mut self,
        number: u32,
        last: Option<u32>,
        force: bool,
        words: &impl Words,
    ) -> Option<(u32, Word)> {
        if let Some(slot) = last.filter(|_| !force) {
            // The slot is what somebody has written there.
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
            return Search::default().find(slots, slots.len(), but_the_last);
        }
        self.round.search.find(slots, self.round.at_once, state)
    }

    pub(super) fn queued(&self, number: u32, words: &impl Words) -> usize {
        usize::try_from(words.queued(number)).unwrap_or(0)
    }

    /// Sessions that wait, of all pools. Where very many pools want backends it is told
    /// from some of them how many are in the ready queues of all.
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

    /// Could a session hold a backend of its pool, and one would be left for the others,
    /// there or to be started? Of very many backends some are looked at.
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

    /// Hands out one that waits in a pool's FIFO; false if that is all. Who is
    /// in the ready queue came before: as long as it holds somebody, the next
    /// goes there too, even if a backend shows itself idle, as each does for a
    /// moment that has just given a session back.
    fn hand_out(&mut self, number: u32, words: &impl Words) -> bool {
        let rests = self.pool(number).is_none_or(|pool| pool.queue.rests())
            || self.round.interrupted.contains(&number);
        if rests || self.is_forced(number) {
            return false;
        }
        let forced = self.limits.force_migration;
        let mut next = match self.round.passed {
            Some(passed) => self.sessions.waiting_behind(passed),
            // All are gone through.
            None if forced => self.sessions.fifo(number).next(),
            None => self.next_with_room(number, words),
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
                if !forced {
                    self.takes(number, id, (slot, seen), words);
                }
                self.sessions.send_to(id, slot, serial);
                self.is_handed_out(id, true);
                if self.are_few(number) {
                    // Before the next tick others are handed out, of the same role.
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

    /// A session gets a backend that may linger with another.
    fn takes(&mut self, number: u32, id: SessionId, (slot, seen): (u32, Word), words: &impl Words) {
        let (most, now_us) = (self.limits.backends_for_takings, self.now.us);
        let members = self.sessions.members(number);
        let is_starting = self.backends.lives(number).starting() > 0;
        let Some(pool) = self.pools.get_mut(number) else {
            return;
        };
        if is_starting || pool.shared().len() >= most.min(members) {
            return;
        }
        pool.is_taken_by(id, now_us);
        if seen == Word::Linger {
            (pool.takings).taken_from(words.backend_session(slot), now_us);
        }
    }

    /// Whose turn it is, of those whose limits allow that one more is served.
    fn next_with_room(&mut self, number: u32, words: &impl Words) -> Option<SessionId> {
        for _ in 0..TENANTS_LOOKED_AT {
            let Some(tenant) = self.next_tenant(number, words) else {
                if self.keeps_one_free(number) && self.sessions.servable(number) > 0 {
                    // The next one that is free says so.
                    self.act(Action::HoldBack(number));
                }
                return None;
            };
            if self.has_room(tenant) {
                return self.sessions.first_of_tenant(tenant);
            }
        }
        self.mark_dirty(number);
        None
    }

    fn may_be_served(&mut self, id: SessionId) -> bool {
        let tenant = self.sessions.get(id).map(|session| session.tenant());
        tenant.is_some_and(|tenant| self.has_room(tenant))
    }

    /// It did not get away.
    fn waits_on(&mut self, id: SessionId) {
        self.sessions.wait_on(id);
        self.is_back(id);
    }

    /// Its state has changed meanwhile: looks again.
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
            self.round.holds_back = true;
            self.act(Action::HoldBack(number));
            return false;
        }
        if pool.queue.is_full() || shared == 0 {
            return false;
        }
        // Sessions in the queue are served in the order in which they came. So where tenants take
        // turns the queue is short, and the other sessions wait for their turns.
        if takes_turns && queued >= shared.max(pool.queue.worth()) {
            self.act(Action::HoldBack(number));
            return false;
        }
        // From the send on a backend may own it.
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

    pub(super) fn queue_drained(&mut self, number: u32) {
        if let Some(pool) = self.pool_mut(number) {
            pool.queue.is_drained();
        }
        self.in_want.insert(number);
        self.mark_dirty(number);
    }

    /// A backend that died between taking a message and lowering the counter
    /// leaves the counter wrong for ever; it is set right when nobody can be
    /// between the two. `is_empty`: the queue was, before this was asked: who
    /// took something before is still busy.
    pub fn check_queue(&mut self, number: u32, is_empty: bool, words: &impl Words) {
        let Some(pool) = self.pool(number) else {
            return;
        };
        // As a rule it is right, whoever may be taking: there may be very many.
        if !counter_is_wrong(is_empty, false, words.queued(number)) {
            return;
        }
        // Whoever has told that he is dedicated no longer may not be heard yet.
        let may_take = |slot| words.backend(slot) == Word::Busy && !words.backend_keeps(slot);
        let may_be_taking = pool.all_backends().any(may_take);
        if counter_is_wrong(is_empty, may_be_taking, words.queued(number)) {
            self.act(Action::TakeBack(number));
            self.act(Action::ResetCounter(number));
            self.round.interrupted.push(number);
            self.mark_dirty(number);
        }
    }

    /// One that sleeps may be needed for who is in the ready queue.
    pub(super) fn look_for_sleepers(&mut self, number: u32) {
        if let Some(pool) = self.pools.get_mut(number) {
            pool.begin_look(0);
        }
        self.mark_dirty(number);
    }

    /// A backend may have become idle after it saw the queue empty and before
    /// it could see what was sent: wake as many as there are messages, those
    /// of before too, whose backends may have been poked and not woken yet. Where there
    /// are very many it goes on in the next round. True: it is known how many are free.
    fn look_on(&mut self, number: u32, words: &impl Words) -> bool {
        let sent = self.round.queued;
        let mut pokes = self.queued(number, words).max(sent);
        let waiting = self.sessions.waiting(number) + pokes;
        let Some(pool) = self.pools.get_mut(number) else {
            return true;
        };
        let mut free_at = self.round.search.found();
        if let Some(free_at) = free_at {
            pool.look.is_free_at(free_at);
        }
        if waiting == 0 {
            pool.look.end();
            return true;
        }
        if sent > 0 || !pool.look.is_on() {
            pool.begin_look(self.round.search.next(pool.shared().len()));
        }
        let (mut is_known, forced) = (false, self.limits.force_migration);
        for _ in 0..self.round.at_once {
            let Some((at, slot)) = pool.next_to_look_at() else {
                break;
            };
            let is_shared = self.backends.is_shared(slot);
            let word = is_shared.then(|| words.backend(slot));
            let is_free = word.is_some_and(Word::is_free);
            if is_free && free_at.is_none() {
                free_at = Some(at);
                pool.look.is_free_at(at);
            }
            if is_free && pokes > 0 {
                pokes -= 1;
                self.actions.push_back(Action::Poke(slot));
            }
            let will_serve = is_shared && is_about_to_serve(slot, forced, words);
            let backends = pool.shared().len();
            is_known |= pool.look.saw(will_serve, backends, waiting);
        }
        let goes_on = pool.look.is_on();
        // The next round looks there first.
        if goes_on || self.round.holds_back && free_at.is_some() {
            self.mark_dirty(number);
        }
        is_known || !goes_on
    }

    /// All pools that share backends, if all of these are at work and each pool
    /// has sessions enough in its ready queue to go on with: who speaks now
    /// only gets a place behind them. Nobody asks where there are very many pools; and of
    /// a pool with very many backends some are looked at: one that has nothing to do looks
    /// at the queue before it sleeps.
    pub fn saturated_pools(&self, queued: usize, words: &impl Words) -> Option<Vec<u32>> {
        if self.pools.existing().len() > LOOKED_AT_ONCE {
            return None;
        }
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
            let mut some = pool.shared().iter().take(LOOKED_AT_ONCE);
            if self.queued(number, words) < queued || !some.all(is_busy) {
                return None;
            }
            pools.push(number);
        }
        (!pools.is_empty()).then_some(pools)
    }

    // ---- growth ------------------------------------------------------------

    /// What a pool could start now; None if it shall not try.
    pub(super) fn growth(&self, number: u32, words: &impl Words) -> Option<Growth> {
        let pool = self.pool(number)?;
        let may_not_yet = !pool.starts.may_be_tried(self.now.us) || self.is_held(number);
        if self.stopping || may_not_yet {
            return None;
        }
        // Before those that wait are counted: who has been taken between the two
        // is missed, and looked for again in the next round. The other way round he
        // would get a second backend.
        let about_to_serve = self.about_to_serve(number, words);
        let is_left = self.keeps_one_free(number) && self.next_tenant(number, words).is_none();
        let kept = self.kept(number) + usize::from(is_left);
        let starting = self.backends.lives(number).starting() + about_to_serve.saturating_sub(kept);
        let places = self.places_for(number, words);
        Some(Growth {
            waiting: self.sessions.servable(number) + self.queued(number, words),
            starting,
            backends: pool.shared().len(),
            sessions: self.sessions.members(number),
            min_backends: self.min_backends(number),
            force_migration: self.limits.force_migration,
            is_short_of_one: pool.is_short_of_one()
                && pool.shared().len() < self.limits.backends_for_takings
                && !places.is_extra(0),
            places,
        })
    }

    /// Those that are free are about to take from the ready queue what still counts as
    /// waiting. So is one that is busy and holds nobody: it says that it is busy before it
    /// takes. Not under forced migration: there is no queue then, and who waits while one
    /// is free waits for another than that one.
    fn about_to_serve(&self, number: u32, words: &impl Words) -> usize {
        let Some(pool) = self.pool(number) else {
            return 0;
        };
        let forced = self.limits.force_migration;
        if pool.shared().len() > self.round.at_once && !forced {
            return pool.look.of_all();
        }
        let shared = pool.shared().iter().copied();
        let shared = shared.filter(|slot| self.backends.is_shared(*slot));
        shared
            .filter(|slot| is_about_to_serve(*slot, forced, words))
            .count()
    }

    /// Nobody waits, and it has its least: there is nothing to count. Nor is there where it
    /// has no session, whatever still counts as waiting.
    fn has_enough(&self, number: u32, words: &impl Words) -> bool {
        let is_short_of_one = (self.pool(number)).is_some_and(Pool::is_short_of_one);
        self.sessions.members(number) == 0
            || self.waiting_in(number, words) == 0
                && !is_short_of_one
                && self.pool_backends(number).len() >= self.min_backends(number)
    }

    /// Starts backends for those that wait, as far as the limits allow.
    fn grow(&mut self, number: u32, words: &impl Words) {
        let meant_for = &mut self.round.meant_for;
        meant_for.retain(|other| *other != number);
        // A place that was made for another pool, and there is one, is its.
        let left = meant_for.len();
        if self.has_enough(number, words) {
            return;
        }
        let (Some(growth), Some(pool)) = (self.growth(number, words), self.pool(number)) else {
            return;
        };
        // After a failure one at a time, until one succeeds.
        let most = if pool.starts.are_one_at_a_time() {
            usize::from(self.backends.lives(number).starting() == 0)
        } else {
            growth.places.room().saturating_sub(left)
        };
        if let Some(pool) = self.pool_mut(number) {
            pool.has_asked_for_one();
        }
        let starts = growth.starts().min(most);
        let started = starts.min(STARTED_AT_ONCE - self.round.started);
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
            // Who is in the queue went there before others came whose turn it is first now.
            self.act(Action::TakeBack(number));
            self.round.interrupted.push(number);
        }
        if growth.wants_room() {
            self.wants_room(number, growth.backends == 0);
        }
    }

    fn open(&mut self, number: u32, why: Reason) {
        let before = self.backends.lives(number);
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

    /// Sessions of a pool that are in its ready queue, first come first.
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
        session
            .filter(|session| is_in(session.whereabouts()))
            .map(|session| self.now.us.saturating_sub(session.waits_since_us()))
    }

    /// The longest wait of a pool's waiting sessions.
    pub fn oldest_wait_us(&self, number: u32, words: &impl Words) -> Option<u64> {
        // Those in the queue came from two lines.
        self.in_queue(number, words)
            .chain(self.sessions.longest_waiting(number))
            .filter_map(|id| self.wait_us(id))
            .max()
    }

    /// The longest wait of a tenant's sessions, those in the ready queue left out.
    pub fn tenant_waits_us(&self, tenant: u32) -> Option<u64> {
        self.wait_us(self.sessions.longest_waiting_of(tenant)?)
    }

    /// About how long sessions wait there now.
    pub(super) fn usual_wait_us(&self, number: u32, words: &impl Words) -> u64 {
        let first = self.sessions.longest_waiting(number);
        let first = first.or_else(|| self.in_queue(number, words).next());
        first.and_then(|id| self.wait_us(id)).unwrap_or(0)
    }
}

/// How many of these are free, of those that count: two at most, and of very many backends some
/// are looked at.
pub(super) fn count_free(
    slots: impl Iterator<Item = u32>,
    words: &impl Words,
    counts: impl Fn(u32) -> bool,
) -> usize {
    let some = slots.take(SPARE_LOOKS);
    let free = some.filter(|slot| counts(*slot) && words.backend(*slot).is_free());
    free.take(2).count()
}

/// Will a shared backend serve who waits, as far as its words say it?
fn is_about_to_serve(slot: u32, forced: bool, words: &impl Words) -> bool {
    match words.backend(slot) {
        Word::Idle | Word::Linger => !forced,
        Word::Busy => !forced && words.backend_session(slot) == 0,
        word => word == Word::Starting,
    }
}
