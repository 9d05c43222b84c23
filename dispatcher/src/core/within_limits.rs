//! Room within the server's limit: it has refused a backend, for it has too many
//! connections.
//!
//! A free backend of another pool goes: the one that has been free for longest. Where there are very many backends they are
//! looked at some at a time, in each round (holdings.rs), for one pool after the other;
//! who waits there goes on waiting until all have been.

use super::holdings::Walk;
use super::pool_changes::Reason;
use super::{Core, Words};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// Of very many those that are kept, which have been free for longest.
const MOST_KEPT: usize = 16;

/// For a pool whose backend was refused.
#[derive(Debug)]
struct LimitLook {
    pool: u32,
    serial: u64,
    walk: Walk,
    /// Those that have been seen and may go: for how long they have been free, and their
    /// slots.
    free: Vec<(u64, u32)>,
}

/// In the order in which they began; of each pool one.
#[derive(Debug, Default)]
pub struct LimitLooks {
    all: VecDeque<LimitLook>,
}

impl LimitLooks {
    pub fn has_more(&self) -> bool {
        !self.all.is_empty()
    }
}

impl Core {
    /// The server has refused a backend of this pool. If nobody can go, nor is going, who
    /// waits there to be greeted is told why not.
    pub(super) fn make_room_within_limit(&mut self, number: u32, words: &impl Words) {
        let Some(serial) = self.pool_serial(number) else {
            return;
        };
        let mut all = self.limit_looks.all.iter();
        if self.backends.somebody_goes_for(number) || all.any(|look| look.pool == number) {
            return;
        }
        let mut look = LimitLook {
            pool: number,
            serial,
            walk: Walk::default(),
            free: Vec::new(),
        };
        if self.are_few_backends() {
            self.look_for_free(&mut look, usize::MAX, words);
            return self.end_look(look, words);
        }
        self.limit_looks.all.push_back(look);
    }

    /// In each round.
    pub(super) fn look_within_limits_on(&mut self, words: &impl Words) {
        if self.stopping {
            self.limit_looks.all.clear();
        }
        let Some(mut look) = self.limit_looks.all.pop_front() else {
            return;
        };
        if self.pool_serial(look.pool) != Some(look.serial) {
            return;
        }
        let is_going = self.backends.somebody_goes_for(look.pool);
        if !is_going && !self.look_for_free(&mut look, MOST_KEPT, words) {
            return self.limit_looks.all.push_front(look);
        }
        if !is_going {
            self.end_look(look, words);
        }
    }

    /// Looks at the next ones. True: all have been seen.
    fn look_for_free(&self, look: &mut LimitLook, most: usize, words: &impl Words) -> bool {
        let mut left = self.holdings.at_once();
        while left > 0 {
            let Some(number) = look.walk.pool(self) else {
                break;
            };
            if number == look.pool {
                look.walk.pass_pool();
                left -= 1;
                continue;
            }
            let slots = look.walk.slots(self, left);
            left -= slots.len().max(1);
            let free = |slot: &u32| Some((self.free_for_us(*slot, words)?, *slot));
            look.free.extend(slots.iter().filter_map(free));
        }
        look.free
            .sort_by_key(|(free_for_us, _)| Reverse(*free_for_us));
        look.free.truncate(most);
        look.walk.pool(self).is_none()
    }

    /// If it may be asked to go, and is.
    fn free_for_us(&self, slot: u32, words: &impl Words) -> Option<u64> {
        let is_free = self.backends.is_shared(slot) && words.backend(slot).is_free();
        let free_for_us = self.now.passed_us(words.backend_since_us(slot));
        is_free.then(|| u64::try_from(free_for_us).unwrap_or(0))
    }

    /// All have been seen.
    fn end_look(&mut self, look: LimitLook, words: &impl Words) {
        let number = look.pool;
        for (_, slot) in &look.free {
            // It may be another by now, or at work.
            let other = self.backends.get(*slot).map(|backend| backend.pool());
            let is_other = other.is_some_and(|other| other != number);
            if is_other && self.free_for_us(*slot, words).is_some() {
                let why = Reason::RoomWithinConnectionLimit(number);
                return self.retire_for(*slot, number, why);
            }
        }
        self.begin_to_end_ungreeted(number);
    }
}
