//! Sessions that keep their backends because that is what is wanted: of pools
//! whose mode says so, and all of them while they are few.
//!
//! The backends are told (`Action::Keep`), and look at each boundary. So a
//! session that has been served becomes dedicated at the end of its next
//! transaction, as if something of it lived in its backend, and what counts for
//! dedicated sessions counts for it. When it is over those that sleep are woken,
//! to see that their sessions are shared again.

use super::pool_limits::PoolMode;
use super::{Action, Core};

impl Core {
    /// The mode of a pool's group has become known, or may have changed.
    pub(super) fn mode_may_differ(&mut self, number: u32) {
        let Some(pool) = self.pool_mut(number) else {
            return;
        };
        let mode = pool.limits.map_or(PoolMode::Shared, |limits| limits.mode);
        // Who came before it was known that he should be native is served as
        // close to that as can be.
        let keeps = mode != PoolMode::Shared;
        if pool.keeps_sessions == keeps {
            return;
        }
        pool.keeps_sessions = keeps;
        let woken = pool.all_backends().collect();
        self.keep(Some(number), keeps, woken);
    }

    /// A session has come or gone, or limits have changed. Never more are kept
    /// than may be dedicated; and where it was over it begins anew with an
    /// eighth less, or one who comes and goes would change it each time.
    pub(super) fn look_at_threshold(&mut self) {
        let most = (self.limits.sharing_threshold).min(self.places(0).most_dedicated());
        let live = self.sessions.live();
        let are_few = most > 0 && live <= if self.are_few { most } else { most - most / 8 };
        if are_few == self.are_few {
            return;
        }
        self.are_few = are_few;
        let woken = self.backends.iter().map(|(slot, _)| slot).collect();
        self.keep(None, are_few, woken);
    }

    /// When it is over all are woken, for one that has just become dedicated by
    /// it may not have told so yet.
    fn keep(&mut self, pool: Option<u32>, keeps: bool, backends: Vec<u32>) {
        self.act(Action::Keep { pool, keeps });
        let has_come = |slot: &u32| {
            let life = self.backends.life(*slot);
            life.is_some_and(|life| !life.is_starting())
        };
        for slot in backends.into_iter().filter(|slot| !keeps && has_come(slot)) {
            self.actions.push_back(Action::Poke(slot));
        }
    }
}
