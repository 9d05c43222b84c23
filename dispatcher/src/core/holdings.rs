//! Which backends may go for another pool: all of them, as they are at one moment.
//!
//! What room.rs weighs is in words that backends write themselves, and in what is known
//! of their pools. A look reads each of them. Of 4,000 backends that takes 0.3 ms, with all
//! that is decided by it (`simulator/costs.rs`): so it is not made in slices.

use super::room::Holding;
use super::{Core, Words};

impl Core {
    /// All backends that serve sessions of pools and may be asked to go.
    pub(super) fn holdings(&self, words: &impl Words) -> Vec<Holding> {
        let mut all = Vec::with_capacity(self.backends.total());
        // As many as may be reserved beyond those of the pools that were seen.
        let mut reserves_left = self.most_reserved();
        for number in self.pools.with_backends().iter() {
            // Those that its sessions can count on.
            let backends = self.serving_backends(number);
            if backends == 0 {
                continue;
            }
            let is_reserved = backends <= self.reserved(number) && backends <= reserves_left;
            reserves_left -= if is_reserved { backends } else { 0 };
            let waited_us = (self.waiting_in(number, words) > 0)
                .then(|| self.oldest_wait_us(number, words))
                .flatten();
            // Of the pool, the same for all its backends.
            let weight = self.weight(number);
            let waits_since_us = waited_us.map(|waited_us| self.now.us.saturating_sub(waited_us));
            let has_sessions = self.sessions.members(number) > 0;
            let slots = self.pool_backends(number).iter().copied();
            let shared = slots.filter(|slot| self.backends.is_shared(*slot));
            all.extend(shared.filter_map(|slot| {
                Some(Holding {
                    slot,
                    pool: number,
                    backends,
                    waits_since_us,
                    has_sessions,
                    since_us: self.backends.get(slot)?.attached_us(),
                    has_served: words.backend_has_served(slot),
                    free_for_us: self.free_for_us(slot, words),
                    weight,
                    is_reserved,
                })
            }));
        }
        all
    }

    /// For how long it has been free, if it is.
    fn free_for_us(&self, slot: u32, words: &impl Words) -> Option<u64> {
        let is_free = words.backend(slot).is_free();
        let free_for_us = || self.now.passed_us(words.backend_since_us(slot));
        is_free.then(|| u64::try_from(free_for_us()).unwrap_or(0))
    }

    /// Of all pools but this one, the backend that has been free for longest.
    pub(super) fn longest_free(&self, but: u32, words: &impl Words) -> Option<u32> {
        let pools = self.pools.with_backends().iter();
        let others = pools.filter(|number| *number != but);
        let slots = others.flat_map(|number| self.pool_backends(number).iter().copied());
        let shared = slots.filter(|slot| self.backends.is_shared(*slot));
        let free = shared.filter_map(|slot| Some((self.free_for_us(slot, words)?, slot)));
        free.max_by_key(|(free_for_us, _)| *free_for_us)
            .map(|(_, slot)| slot)
    }
}
