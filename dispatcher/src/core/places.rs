//! How many backends there may be, and of which kind.
//!
//! A backend is *shared*, or *apart*: its session is dedicated, so
//! that it serves nobody else. `max_backends` bounds the shared ones alone;
//! those apart have bounds of their own, in what the server's connections
//! leave. So sessions that keep their backends cost the others memory, and no
//! backend. In a stall, those that are *held* (stall.rs) are replaced as well.
//! docs/design/pools.md has the reasons.

/// What there is, and what there may be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    /// Backends of all pools, starting ones included.
    pub total: usize,
    /// Of these, dedicated.
    pub dedicated: usize,
    /// Of the others, held by transactions that do nothing.
    pub held: usize,
    /// pg_baton.max_extra_backends; None: what is left.
    pub max_extra: Option<usize>,
    /// pg_baton.max_backends
    pub max_backends: usize,
    /// pg_baton.max_dedicated; None: what is left.
    pub max_dedicated: Option<usize>,
    /// Connections of the server that the pool may have.
    pub ceiling: usize,
}

impl Places {
    fn most_shared(&self) -> usize {
        self.max_backends.min(self.ceiling)
    }

    /// What is apart never takes what the shared ones may have.
    pub fn most_dedicated(&self) -> usize {
        let left = self.ceiling - self.most_shared();
        self.max_dedicated.map_or(left, |most| most.min(left))
    }

    /// Dedicated backends beyond their bound hold places of the shared ones,
    /// for they cannot be moved; others do not.
    fn apart(&self) -> usize {
        self.dedicated.min(self.most_dedicated())
    }

    /// Places that the dedicated ones leave the shared ones.
    fn left_for_shared(&self) -> usize {
        (self.most_shared() + self.apart()).saturating_sub(self.dedicated)
    }

    /// Of them so many at least: a quarter.
    fn kept_for_shared(&self) -> usize {
        (self.most_shared() / 4).max(1)
    }

    /// Places beyond max_backends for those that are held.
    fn extra(&self) -> usize {
        self.max_extra.map_or(self.held, |most| most.min(self.held))
    }

    /// As many as there may be now.
    fn most(&self) -> usize {
        (self.most_shared() + self.apart() + self.extra()).min(self.ceiling)
    }

    /// Is the nth that is added, counted from 0, there for one that is held?
    pub fn is_extra(&self, nth: usize) -> bool {
        self.total + nth >= self.most_shared() + self.apart()
    }

    /// How many may be added.
    pub fn room(&self) -> usize {
        self.most().saturating_sub(self.total)
    }

    /// More than there may be, however they came to be so many.
    #[cfg(test)]
    pub fn is_overdrawn(&self) -> bool {
        self.total > self.most()
    }

    /// More shared ones than there may be: sessions are not dedicated any more,
    /// or max_backends was lowered.
    pub fn has_surplus(&self) -> bool {
        let shared = self.total.saturating_sub(self.dedicated);
        shared > self.left_for_shared().max(self.kept_for_shared()) + self.extra()
    }

    /// Dedicated sessions have taken so much that one has to end, if others
    /// wait in vain.
    pub fn has_excess(&self) -> bool {
        self.left_for_shared() < self.kept_for_shared()
    }
}

/// Dedicated sessions that are looked at for one that may end, in one go.
const LOOKED_AT_ONCE: usize = if cfg!(test) { 2 } else { 256 };

/// Which dedicated session ends: who came last of those that are idle between two
/// transactions. Whoever has got a place within the bound keeps it, though all that came
/// later are at work.
#[derive(Debug, Default)]
pub struct Excess {
    /// So many that came last were at work when they were looked at.
    at_work: usize,
}

impl Excess {
    /// `slots`: of all, in the order in which they came. Where very many are at work, not
    /// all of them are looked at in one go.
    pub fn choose(
        &mut self,
        slots: impl DoubleEndedIterator<Item = u32> + ExactSizeIterator,
        most_dedicated: usize,
        is_idle: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let beyond = slots.len().saturating_sub(most_dedicated);
        let before = std::mem::take(&mut self.at_work);
        let before = if before < beyond { before } else { 0 };
        let most = LOOKED_AT_ONCE.min(beyond - before);
        let found = slots
            .rev()
            .skip(before)
            .take(most)
            .find(|slot| is_idle(*slot));
        if found.is_none() {
            self.at_work = before + most;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places {
            max_backends: 8,
            ceiling: 97,
            ..Places::default()
        }
    }

    #[test]
    fn max_backends_bounds_those_that_are_shared() {
        let mut now = Places {
            total: 7,
            ..places()
        };
        assert_eq!(now.room(), 1);
        now.total = 8;
        assert_eq!(now.room(), 0);
    }

    #[test]
    fn a_dedicated_session_gives_its_place_back() {
        let mut now = Places {
            total: 8,
            ..places()
        };
        for dedicated in 1..=89 {
            now.dedicated = dedicated;
            assert_eq!(now.room(), 1, "{dedicated}");
            assert!(!now.has_surplus() && !now.has_excess());
            now.total += 1;
        }
        // Up to what the server leaves.
        assert_eq!((now.total, now.most_dedicated()), (97, 89));
    }

    #[test]
    fn who_becomes_shared_again_may_be_one_too_many() {
        let mut now = Places {
            total: 10,
            dedicated: 2,
            ..places()
        };
        assert!(!now.has_surplus());
        now.dedicated = 1;
        assert!(now.has_surplus());
        now.total = 9;
        assert!(!now.has_surplus());
        now.max_backends = 4;
        assert!(now.has_surplus());
    }

    #[test]
    fn beyond_their_bound_the_dedicated_take_from_the_shared_but_never_all() {
        let mut now = Places {
            total: 8,
            max_dedicated: Some(2),
            ..places()
        };
        let mut excess_at = None;
        for dedicated in 1..=10 {
            now.dedicated = dedicated;
            now.total += now.room();
            if now.has_excess() {
                excess_at.get_or_insert(dedicated);
            }
        }
        assert_eq!(now.total, 10);
        // Eight are shared as long as two are dedicated; two of them stay so.
        assert_eq!(excess_at, Some(9));
        // Whatever is dedicated, what is kept for the shared is no surplus.
        now.total = 12;
        assert!(!now.has_surplus());
    }

    #[test]
    fn what_is_held_is_replaced_as_far_as_the_server_has_room() {
        let mut now = Places {
            total: 8,
            max_extra: Some(3),
            ..places()
        };
        for held in 1..=5 {
            now.held = held;
            assert_eq!(now.room(), usize::from(held <= 3));
            now.total += now.room();
            assert!(!now.has_surplus());
        }
        now.held = 1;
        assert!(now.has_surplus());
        now.held = 90;
        now.max_extra = None;
        assert_eq!(now.room(), 97 - 11);
        // And not at the cost of a dedicated session's place.
        now.total = 97;
        now.dedicated = 80;
        assert_eq!(now.room(), 0);
        assert!(!now.has_surplus() && !now.has_excess());
    }

    #[test]
    fn shared_and_dedicated_fit_into_what_the_server_leaves() {
        let bounds = |max_backends, max_dedicated, ceiling| {
            let now = Places {
                max_backends,
                max_dedicated,
                ceiling,
                ..Places::default()
            };
            (now.most_shared(), now.most_dedicated())
        };
        assert_eq!(bounds(8, None, 1197), (8, 1189));
        assert_eq!(bounds(8, Some(500), 1197), (8, 500));
        assert_eq!(bounds(8, Some(500), 97), (8, 89));
        assert_eq!(bounds(8, Some(0), 97), (8, 0));
        assert_eq!(bounds(200, None, 97), (97, 0));
    }

    #[test]
    fn the_last_to_become_dedicated_ends_first_and_none_in_a_transaction() {
        let choose = |slots: &[u32], most_dedicated| {
            let mut excess = Excess::default();
            let is_idle = |slot| slot != 2;
            excess.choose(slots.iter().copied(), most_dedicated, is_idle)
        };
        assert_eq!(choose(&[1, 3, 2], 0), Some(3));
        assert_eq!(choose(&[2], 0), None);
        // Who came within the bound stays.
        assert_eq!(choose(&[1, 3, 2], 1), Some(3));
        assert_eq!(choose(&[1, 3, 2], 2), None);
        assert_eq!(choose(&[1], 2), None);
    }

    #[test]
    fn however_many_are_at_work_the_others_come_to_their_turn() {
        let mut excess = Excess::default();
        let all = 0..9;
        let looks = std::cell::Cell::new(0);
        let is_idle = |slot| {
            looks.set(looks.get() + 1);
            slot < 4
        };
        let found: Vec<Option<u32>> = (0..5)
            .map(|_| excess.choose(all.clone().collect::<Vec<u32>>().into_iter(), 3, is_idle))
            .collect();
        // Five of six are at work; and it begins anew with who came last.
        assert_eq!(found, [None, None, Some(3), None, None]);
        assert_eq!(looks.get(), 10);
    }
}
