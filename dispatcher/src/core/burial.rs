//! A backend's process has ended: whom may it have had?
//!
//! Who says that it exits has no session, and has none in hand. One that has crashed
//! or was terminated may have had any of its pool's; and with the last backend of a
//! pool, whoever went into the queue and was taken by one that did not live to put it
//! in place. Backends give sessions back without a word to us, so which ones that are
//! is not known, but seen from the words of each session of the pool.
//!
//! These may be very many, and everybody else is to be served meanwhile. So the one
//! that the backend says it holds ends at once, and the others are looked at some at a
//! time. Until then its slot is nobody else's (`Life::Gone`), by which alone they
//! can be told from those of who has it next. A session that has been looked at goes
//! to the end of its pool's list, behind those that have come meanwhile: so the list
//! needs no place of its own to go on from, whoever comes, ends, or moves. One burial
//! goes on at a time; backends of its pool that ended before it began are buried
//! together, as they do when the server crashes.

use super::pools::Pool;
use super::sessions::{Location, Whereabouts};
use super::{index_of, Action, Core, Ending, SessionId, Then, Why, Words};

/// Sessions looked at for each death, and in each round: 5 microseconds if all are
/// here, and where their words have to be read a miss of the cache for each. Where the
/// simulator runs it is so few that what comes in between comes in between.
const LOOKED_AT_ONCE: usize = if cfg!(test) { 16 } else { 512 };

/// One backend that has ended.
#[derive(Clone, Copy, Debug)]
struct Dead {
    slot: u32,
    pool: u32,
    /// Of its pool none was left: whoever went into the queue before this was in the
    /// hand of one that is dead.
    taken_before: Option<u64>,
}

/// Those that are looked for at a time: all of one pool.
#[derive(Debug, Default)]
struct Burial {
    dead: Vec<Dead>,
    /// Whose sessions are looked at: those of the pool, or of where they have moved.
    pool: u32,
    /// Still to be looked at there.
    left: usize,
}

/// All that have ended and are not forgotten yet.
#[derive(Debug, Default)]
pub struct Burials {
    now: Option<Burial>,
    /// In the order in which they ended; bounded by the slots of backends.
    next: Vec<Dead>,
}

impl Burials {
    pub fn is_empty(&self) -> bool {
        self.now.is_none() && self.next.is_empty()
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
        let why = self.why_forgotten(slot);
        if !self.backends.is_gone(slot) {
            return;
        }
        if let Some(since_us) = exits_since_us {
            (self.passing).has_ended(self.now.us.saturating_sub(since_us));
        }
        self.tell_loss(slot, why);
        // It serves nobody any more; dedicated it is not, either.
        if (self.pool(number)).is_some_and(|pool| pool.dedicated().contains(&slot)) {
            self.pools.set_dedicated(number, slot, false);
        }
        let is_last = self.backends.lives(number).attached() == 0;
        if is_last {
            self.act(Action::TakeBack(number));
            self.act(Action::ResetCounter(number));
        }
        let has_lost = is_last || exits_since_us.is_none();
        self.then(Then::Bury {
            slot,
            is_last,
            has_lost,
        });
    }

    /// Whoever was in the queue is back.
    pub(super) fn bury(&mut self, slot: u32, is_last: bool, has_lost: bool, words: &impl Words) {
        let Some(pool) = self.backends.get(slot).map(|backend| backend.pool()) else {
            return;
        };
        let held = words.backend_session(slot);
        if self.may_have(slot, held) && words.holder(index_of(held)) == Some(slot) {
            self.end(held, Why::Ended(Ending::Cut));
        }
        // It may not have said so before.
        self.backend_retires(slot, words);
        if !has_lost {
            return self.buried(slot, pool);
        }
        self.burials.next.push(Dead {
            slot,
            pool,
            taken_before: is_last.then(|| self.sessions.next_queued()),
        });
        if self.burials.now.is_none() {
            self.bury_on(words);
        }
        if !self.burials.is_empty() {
            // Others take from the ready queue what it was to take.
            self.look_for_sleepers(pool);
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
                    Some(id) => self.look_for(id, &burial.dead, words),
                    None => burial.left = 0,
                }
            }
            if burial.left == 0 {
                // To go on, or to begin another one, costs something, too.
                budget = budget.saturating_sub(1);
                if !self.follow(&mut burial) {
                    for dead in burial.dead {
                        self.buried(dead.slot, dead.pool);
                    }
                    continue;
                }
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
        })
    }

    /// On to the pool where the sessions are that have moved, if they have. No way leads
    /// back (pools.rs).
    fn follow(&self, burial: &mut Burial) -> bool {
        let moved_to = self.pool(burial.pool).and_then(Pool::moved_to);
        let Some(next) = moved_to else {
            return false;
        };
        burial.pool = next;
        burial.left = self.sessions.members(next);
        true
    }

    /// A pool is no more: whoever was looked for there is further on.
    pub(super) fn burial_goes_on(&mut self, from: u32, to: Option<u32>) {
        let is_there = |burial: &&mut Burial| burial.pool == from;
        let Some(burial) = self.burials.now.as_mut().filter(is_there) else {
            return;
        };
        burial.left = 0;
        if let Some(to) = to {
            burial.pool = to;
            burial.left = self.sessions.members(to);
        }
    }

    /// Had one of these this session: in its slot, sent to it, or given back and not
    /// armed yet?
    fn look_for(&mut self, id: SessionId, dead: &[Dead], words: &impl Words) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let ungreeted = session.is_ungreeted();
        // One that has moved may be in the queue of either pool.
        let (queue, queued) = (session.queue(), session.queued());
        let is_dead = |slot: u32| dead.iter().any(|dead| dead.slot == slot);
        let was_taken = |dead: &Dead| {
            queue == dead.pool && dead.taken_before.is_some_and(|before| queued < before)
        };
        let was_here = match self.sessions.locate(id, words, |_| true) {
            Some(Location::Held(holder)) => {
                // Or its word names one that cannot have it: nobody would end it.
                if is_dead(holder) || !self.may_have(holder, id) {
                    self.end(id, Why::Ended(Ending::Cut));
                }
                false
            }
            Some(Location::OnItsWay(Whereabouts::Sent(to, _))) => is_dead(to),
            Some(Location::OnItsWay(_)) => dead.iter().any(was_taken),
            Some(Location::GivenBack { .. }) => {
                words.last_backend(index_of(id)).is_some_and(is_dead)
            }
            Some(Location::Here(_)) | None => false,
        };
        if was_here && ungreeted {
            self.make_wait_ungreeted(id, words);
        } else if was_here {
            self.arm(id);
        }
    }

    /// Nobody is left that it may have had.
    fn buried(&mut self, slot: u32, number: u32) {
        self.forget_backend(slot);
        // It may have been the one that was to take from the ready queue.
        self.look_for_sleepers(number);
    }
}
