//! Which backends may go for another pool, seen some at a time.
//!
//! What room.rs weighs is in words that backends write themselves, and in what is known
//! of their pools: who wants to know reads each of them. There may be very many, and
//! everybody waits while one event is handled. So a look goes round all of them, so many
//! in a round of the event loop, and it is decided when all have been seen.
//!
//! Up to so many are one look, made anew for each decision. Where there are more, what was
//! seen serves all decisions for a tick; and who is chosen by it is looked at once more
//! before he is told (`holding_now`): he may serve somebody by now, or have gone, and
//! another be in his slot. Who is free for less than that, as each is between two
//! requests, is taken to be at work: else he would be chosen first, and most of the time
//! in vain.

use super::candidates::Candidates;
use super::room::Holding;
use super::{Core, Words};

/// Backends that are looked at in one go: some 100 microseconds.
const LOOKED_AT_ONCE: usize = 1024;
/// Beyond so many, a ticket is offered to so many of those that may take it: each is
/// looked at once more.
const OFFERED_AT_ONCE: usize = LOOKED_AT_ONCE / 4;
/// What very many looked like is used for so long: a tick.
const USED_FOR_US: u64 = 20_000;
/// A look that has rested for so long begins anew: the machine was asleep.
const RESTS_FOR_US: u64 = 100_000;

/// A way through the shared backends of all pools: the pools by number, and each one's in
/// the order in which they came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    /// The next pool, or one behind it,
    pool: u32,
    /// and the next of its backends. Where some leave meanwhile, others may be passed.
    at: usize,
}

impl Walk {
    /// To the next pool that has backends.
    pub fn pool(&mut self, core: &Core) -> Option<u32> {
        let number = core.pools.with_backends().first_from(self.pool)?;
        if number != self.pool {
            *self = Walk {
                pool: number,
                at: 0,
            };
        }
        Some(number)
    }

    pub fn pass_pool(&mut self) {
        self.pool += 1;
        self.at = 0;
    }

    /// So many of those that this pool has left, at most; and past it if these are all.
    pub fn slots<'a>(&mut self, core: &'a Core, most: usize) -> &'a [u32] {
        let slots = core.pool_backends(self.pool);
        let end = slots.len().min(self.at + most);
        let some = slots.get(self.at..end).unwrap_or_default();
        self.at = end;
        if end == slots.len() {
            self.pass_pool();
        }
        some
    }
}

/// What is known of a pool, read once for all its backends.
#[derive(Clone, Copy, Debug)]
struct OfPool {
    number: u32,
    serial: u64,
    backends: usize,
    weight: u64,
    is_reserved: bool,
    waits_since_us: Option<u64>,
    has_sessions: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Unknown,
    /// Some have been seen.
    Begun,
    /// All have.
    Known,
}

/// What has been seen.
#[derive(Debug)]
pub struct Holdings {
    at_once: usize,
    offered_at_once: usize,
    stage: Stage,
    all: Candidates,
    walk: Walk,
    /// Of the pool amid which it goes on.
    of_pool: Option<OfPool>,
    /// As many as may be reserved beyond those of the pools that were seen.
    reserves_left: usize,
    /// When some were looked at last.
    looked_us: u64,
}

impl Default for Holdings {
    fn default() -> Holdings {
        Holdings {
            at_once: LOOKED_AT_ONCE,
            offered_at_once: OFFERED_AT_ONCE,
            stage: Stage::default(),
            all: Candidates::default(),
            walk: Walk::default(),
            of_pool: None,
            reserves_left: 0,
            looked_us: 0,
        }
    }
}

impl Holdings {
    /// What comes in between comes in between.
    #[cfg(test)]
    pub fn look_at_few(&mut self, at_once: usize) {
        self.at_once = at_once;
        self.offered_at_once = 2;
        self.all.compare_few(at_once);
    }

    /// Backends that are looked at in one go.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    /// Of very many those to whom a ticket is offered, at most.
    pub fn offered_at_once(&self) -> usize {
        self.offered_at_once
    }

    pub fn is_begun(&self) -> bool {
        self.stage == Stage::Begun
    }

    /// All have been seen, a moment ago.
    pub fn are_known(&self, now_us: u64) -> bool {
        self.stage == Stage::Known && now_us < self.looked_us + USED_FOR_US
    }

    pub fn forget(&mut self) {
        self.stage = Stage::Unknown;
        self.all.begin(false);
    }

    /// They are the caller's, until he puts them back.
    pub fn take(&mut self) -> Candidates {
        std::mem::take(&mut self.all)
    }

    pub fn put_back(&mut self, all: Candidates) {
        self.all = all;
    }
}

impl Core {
    /// So few that each decision looks at all of them.
    pub(super) fn are_few_backends(&self) -> bool {
        self.backends.total() <= self.holdings.at_once
    }

    /// Looks at the next ones, of all that serve sessions of pools and may be asked to go.
    /// True: all have been seen.
    pub(super) fn look_at_holdings(&mut self, words: &impl Words) -> bool {
        let mut look = std::mem::take(&mut self.holdings);
        let rests = self.now.us > look.looked_us + RESTS_FOR_US;
        let are_few = self.backends.total() <= look.at_once;
        if look.stage != Stage::Begun || rests {
            look.all.begin(!are_few);
            look.stage = Stage::Begun;
            (look.walk, look.of_pool) = (Walk::default(), None);
            look.reserves_left = self.most_reserved();
        }
        look.looked_us = self.now.us;
        let least_free_us = if are_few { 0 } else { USED_FOR_US };
        let mut left = look.at_once;
        while left > 0 {
            let Some(number) = look.walk.pool(self) else {
                break;
            };
            let serial = self.pool_serial(number);
            let is_known = |it: &OfPool| it.number == number && Some(it.serial) == serial;
            let known = look.of_pool.filter(is_known);
            let known = known.or_else(|| self.of_pool(number, &mut look.reserves_left, words));
            look.of_pool = known;
            let Some(of_pool) = known else {
                look.walk.pass_pool();
                left -= 1;
                continue;
            };
            let slots = look.walk.slots(self, left);
            left -= slots.len().max(1);
            for slot in slots {
                let held = self.holding(*slot, &of_pool, words);
                if let Some(held) = held {
                    look.all.push(Holding {
                        free_for_us: held.free_for_us.filter(|free_us| *free_us >= least_free_us),
                        ..held
                    });
                }
            }
        }
        if look.walk.pool(self).is_none() {
            look.stage = Stage::Known;
        }
        self.holdings = look;
        self.holdings.stage == Stage::Known
    }

    /// None if it has none that its sessions can count on.
    fn of_pool(
        &self,
        number: u32,
        reserves_left: &mut usize,
        words: &impl Words,
    ) -> Option<OfPool> {
        let backends = self.serving_backends(number);
        let pool = self.pool(number).filter(|_| backends > 0)?;
        let is_reserved = backends <= self.reserved(number) && backends <= *reserves_left;
        *reserves_left -= if is_reserved { backends } else { 0 };
        let waits_since_us = (self.waiting_in(number, words) > 0)
            .then(|| self.oldest_wait_us(number, words))
            .flatten()
            .map(|waited_us| self.now.us.saturating_sub(waited_us));
        Some(OfPool {
            number,
            serial: pool.serial(),
            backends,
            weight: self.weight(number),
            is_reserved,
            waits_since_us,
            has_sessions: self.sessions.members(number) > 0,
        })
    }

    /// None if it serves no sessions of its pool.
    fn holding(&self, slot: u32, of_pool: &OfPool, words: &impl Words) -> Option<Holding> {
        let backend = self.backends.get(slot)?;
        if !self.backends.is_shared(slot) || backend.pool() != of_pool.number {
            return None;
        }
        let free_for_us = self.now.passed_us(words.backend_since_us(slot));
        Some(Holding {
            slot,
            pool: of_pool.number,
            backends: of_pool.backends,
            waits_since_us: of_pool.waits_since_us,
            has_sessions: of_pool.has_sessions,
            since_us: backend.attached_us(),
            has_served: words.backend_has_served(slot),
            free_for_us: (words.backend(slot).is_free())
                .then(|| u64::try_from(free_for_us).unwrap_or(0)),
            weight: of_pool.weight,
            is_reserved: of_pool.is_reserved,
        })
    }

    /// As it is now; None if it serves no sessions of a pool any more. Where more are
    /// reserved than can be, which pools' are is said by the look alone.
    pub(super) fn holding_now(&self, slot: u32, words: &impl Words) -> Option<Holding> {
        let number = self.backends.get(slot)?.pool();
        let all_fit = self.backends.reserved() <= self.most_reserved();
        let mut reserves_left = if all_fit { usize::MAX } else { 0 };
        let of_pool = self.of_pool(number, &mut reserves_left, words)?;
        self.holding(slot, &of_pool, words)
    }
}
