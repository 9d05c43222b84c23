//! Which backends may go for another pool: all of them, as they are at one moment.
//!
//! What room.rs weighs is in words that backends write themselves, and in what is known
//! of their pools. A look reads each of them. Of 4,000 backends that takes 0.3 ms, with all
//! that is decided by it (`simulator/costs.rs`): so it is not made in slices.

use super::room::Holding;
use super::{Core, Words};

/// What is known of a pool, read once for all its backends.
#[derive(Clone, Copy, Debug)]
struct OfPool {
    number: u32,
    backends: usize,
    weight: u64,
    is_reserved: bool,
    waits_since_us: Option<u64>,
    has_sessions: bool,
}

impl Core {
    /// All backends that serve sessions of pools and may be asked to go.
    pub(super) fn holdings(&self, words: &impl Words) -> Vec<Holding> {
        let mut all = Vec::with_capacity(self.backends.total());
        // As many as may be reserved beyond those of the pools that were seen.
        let mut reserves_left = self.most_reserved();
        for number in self.pools.with_backends().iter() {
            let Some(of_pool) = self.of_pool(number, &mut reserves_left, words) else {
                continue;
            };
            let slots = self.pool_backends(number).iter();
            all.extend(slots.filter_map(|slot| self.holding(*slot, &of_pool, words)));
        }
        all
    }

    /// None if it has none that its sessions can count on.
    fn of_pool(
        &self,
        number: u32,
        reserves_left: &mut usize,
        words: &impl Words,
    ) -> Option<OfPool> {
        let backends = self.serving_backends(number);
        if backends == 0 {
            return None;
        }
        let is_reserved = backends <= self.reserved(number) && backends <= *reserves_left;
        *reserves_left -= if is_reserved { backends } else { 0 };
        let waits_since_us = (self.waiting_in(number, words) > 0)
            .then(|| self.oldest_wait_us(number, words))
            .flatten()
            .map(|waited_us| self.now.us.saturating_sub(waited_us));
        Some(OfPool {
            number,
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
        if !self.backends.is_shared(slot) {
            return None;
        }
        Some(Holding {
            slot,
            pool: of_pool.number,
            backends: of_pool.backends,
            waits_since_us: of_pool.waits_since_us,
            has_sessions: of_pool.has_sessions,
            since_us: backend.attached_us(),
            has_served: words.backend_has_served(slot),
            free_for_us: self.free_for_us(slot, words),
            weight: of_pool.weight,
            is_reserved: of_pool.is_reserved,
        })
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
