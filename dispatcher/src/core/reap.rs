//! A backend's process has ended: whom may it have had?
//!
//! It may have had any of its pool's: in place, sent to it, taken from the ready queue,
//! or given back without a word to us, as backends do. So which ones that are is seen
//! from the words of each session of the pool. A backend that says that it exits has
//! none of them; but anybody could say so, and what it had would be nobody's for ever.
//!
//! These may be very many, and everybody else is to be served meanwhile. So the one
//! that the backend says it holds ends at once, and the others are looked at some at a
//! time. Until then its slot is nobody else's (`Life::Gone`), by which alone they
//! can be told from those of who has it next. A session that has been looked at goes
//! to the end of its pool's list, behind those that have come meanwhile: so the list
//! needs no place of its own to go on from, whoever comes or ends. One burial
//! goes on at a time; backends of its pool that ended before it began are buried
//! together, as they do when the server crashes.
//!
//! Who took what from the ready queue only backends know. A session that went into it
//! before the death, is not in it any more, and is in no place was in the dead one's
//! hand, or is in that of another that lives ([`Missing`]): each of these is looked at
//! until it is seen to have nothing in hand from before. If the session is in no place
//! then, nobody else has it.

use super::backends::Life;
use super::lifecycle::Reason;
use super::scan::Cursor;
use super::sessions::{Location, Whereabouts};
use super::{index_of, Action, Core, Ending, Look, SessionId, Shown, Then, Why, Word, Words};
use std::cmp::Reverse;

/// Sessions looked at for each death, and in each round: 5 microseconds if all are
/// here, and where their words have to be read a miss of the cache for each.
const LOOKED_AT_ONCE: usize = 512;

/// One backend that has ended.
#[derive(Clone, Copy, Debug)]
struct Dead {
    slot: u32,
    pool: u32,
    /// Whoever went into the queue before this may have been in its hand.
    before: u64,
    /// Of its pool none was left: he was in the hand of one that is dead.
    is_last: bool,
}

/// Sessions of one ready queue that the dead, or who else takes from it, had in hand.
#[derive(Debug)]
struct Missing {
    pool: u32,
    /// And as which they went into the queue.
    sessions: Vec<(SessionId, u64)>,
    /// Backends, and their serials, that may have any of them in hand; None: some may be
    /// in the queue.
    may_have: Option<Vec<(u32, u64)>>,
}

/// Those that are looked for at a time: all of one pool.
#[derive(Debug, Default)]
struct Burial {
    dead: Vec<Dead>,
    /// Whose sessions are looked at.
    pool: u32,
    /// Still to be looked at there.
    left: usize,
    /// Were in the queue, or in somebody's hand.
    missing: Vec<(SessionId, u64)>,
}

/// All that have ended and are not forgotten yet.
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

    /// Is it not known of some whether anybody has them?
    pub fn are_some_missing(&self) -> bool {
        !self.missing.is_empty()
    }
}

impl Core {
    /// The control connection of a backend has ended: so has the session that
    /// it held. One that it was sent but never took lives on.
    ///
    /// Told at the end of a round: an event by which it gave a session back
    /// has been handled then, and re-arming a socket twice does no harm.
    pub(super) fn backend_gone(&mut self, slot: u32) {
        let Some(backend) = self.backends.get(slot) else {
            return;
        };
        let (number, exits_since_us) = (backend.pool(), backend.exits_since_us());
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
        // It serves nobody any more; dedicated it is not, either.
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

    /// Of the last one of a pool: whoever was in the queue is back.
    pub(super) fn bury(&mut self, slot: u32, is_last: bool, words: &impl Words) {
        let Some(pool) = self.backends.get(slot).map(|backend| backend.pool()) else {
            return;
        };
        ensure!(self.backends.life(slot) == Some(Life::Gone));
        let held = words.backend_session(slot);
        if self.may_have(slot, held) && words.holder(index_of(held)) == Some(slot) {
            self.end(held, Why::Ended(Ending::Cut));
        }
        // It may not have said so before.
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

    /// In each round as well: looks at some more.
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
                // To go on, or to begin another one, costs something, too.
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

    /// That of the pool whose turn it is, of all of its backends that have ended.
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

    /// Had one of these this session: in its slot, sent to it, taken from the queue, or
    /// given back and not armed yet?
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
                // Or its word names one that cannot have it, or says that it has another:
                // nobody would end it.
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

    /// It went away and was never in place. What it asks for is in its socket, unless
    /// who had it in hand has read that.
    fn hear_again(&mut self, id: SessionId, words: &impl Words) {
        let session = self.sessions.get(id);
        if session.is_some_and(|session| session.is_ungreeted()) {
            self.make_wait_ungreeted(id, words);
        } else {
            let look = Look::Lost;
            self.act(Action::Look { id, look });
        }
    }

    /// These are in the queue, or in somebody's hand.
    fn look_for_missing(&mut self, pool: u32, sessions: Vec<(SessionId, u64)>) {
        if !sessions.is_empty() {
            self.burials.missing.push(Missing {
                pool,
                sessions,
                may_have: None,
            });
        }
    }

    /// In each tick, as nothing is handed out in one: in the first they are taken back
    /// that are in the queue, and keep their turns. Is anybody left in a later one who may
    /// have the others in hand?
    pub(super) fn look_who_has_missing(&mut self, words: &impl Words) {
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
                known.is_some_and(|it| it.life() != Life::Gone) && may_have_in_hand(*slot, words)
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

    /// Backends that may have taken something from a pool's queue, whatever they are to
    /// do; and their serials.
    fn takers(&self, pool: u32) -> Vec<(u32, u64)> {
        let slots = self.all_pool_backends(pool).into_iter();
        let takers = slots.filter_map(|slot| {
            let backend = self.backends.get(slot)?;
            let life = backend.life();
            let is_there = !life.is_starting() && life != Life::Gone;
            is_there.then(|| (slot, backend.serial()))
        });
        takers.collect()
    }

    /// If it is in no place now it was in the dead one's hand.
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

    /// Nobody is left that it may have had.
    fn buried(&mut self, slot: u32, number: u32) {
        self.forget_backend(slot);
        // It may have been the one that was to take from the ready queue.
        self.mark_dirty(number);
    }
}

/// One that is a session's owner says so in its slot: before it is, and until it is not.
fn says_it_holds(slot: u32, id: SessionId, words: &impl Words) -> bool {
    words.backend_session(slot) == id || words.holder(index_of(id)) != Some(slot)
}

/// May it have in hand what it took from the queue? It is busy from before it takes until
/// that is in place; and whose session is dedicated, or in a transaction, takes nothing.
fn may_have_in_hand(slot: u32, words: &impl Words) -> bool {
    if words.backend(slot) != Word::Busy || words.backend_keeps(slot) {
        return false;
    }
    let index = index_of(words.backend_session(slot));
    words.holder(index) != Some(slot)
        || !matches!(words.shown(index), Shown::Other | Shown::InTransaction)
}

// ----------------------------------------------------------------------------
// Once a second: backends that have been idle for long and old ones go, as do pools and
// tenants that are not used, and all sessions are looked at.

/// Pools with backends that are looked at in a round: a system call each.
const POOLS_AT_ONCE: usize = 256;
/// Sessions that are looked at in a round: some 100 microseconds.
const SESSIONS_AT_ONCE: usize = 1024;
/// Idle backends that go in a round: a system call each.
const RETIRED_AT_ONCE: usize = 128;
/// Tenants, and pools, that go in a sweep.
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
    /// Once a second.
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
        // Last: what is told of it names its pool, which may then be used by nobody.
        self.give_up_starting(words);
    }

    /// In each round: the next pools and sessions.
    pub(super) fn sweep_on(&mut self, words: &impl Words) {
        let pools = &mut self.sweeping.pools;
        let with_backends = self.pools.with_backends();
        let mut may_retire = RETIRED_AT_ONCE;
        for number in pools.take(POOLS_AT_ONCE, |from| with_backends.first_from(from)) {
            self.act(Action::CheckQueue(number));
            may_retire -= self.retire_long_idle(number, may_retire, words);
            self.retire_oldest(number);
        }
        for _ in 0..SESSIONS_AT_ONCE {
            let sessions = &mut self.sweeping.sessions;
            let Some(index) = sessions.next_below(self.sessions.slots_used()) else {
                return;
            };
            self.sweep_session(index, words);
        }
    }

    /// Has the pool fewer backends than it is to keep?
    pub(super) fn lacks_backends(&self, number: u32) -> bool {
        let least = self.min_backends(number);
        least > 0 && self.pool_backends(number).len() < least
    }

    /// Those of a pool's backends that have been idle for long go, the newest last; so many at
    /// most. How many those are.
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

    /// Those of a pool's backends that have had nothing to do for so long.
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

    /// The oldest of a pool's backends goes if its time is over, one in each sweep,
    /// at the end of a transaction.
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

    /// Backends of a pool that its sessions can count on.
    pub(super) fn serving_backends(&self, number: u32) -> usize {
        self.backends.lives(number).shared()
    }
}
