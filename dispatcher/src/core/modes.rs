//! Sessions that keep their backends because that is what is wanted: of tenants
//! whose mode says so, and all of them while they are few.
//!
//! The backends are told (`Action::Keep`), and look at each boundary. So a
//! session that has been served becomes dedicated at the end of its next
//! transaction, as if something of it lived in its backend, and what counts for
//! dedicated sessions counts for it. When it is over those that sleep are woken,
//! to see that their sessions are shared again.

use super::pool_limits::PoolMode;
use super::pools::Pool;
use super::{Action, Core};

/// Backends that are woken in a round, where those of all pools are.
pub(super) const WOKEN_AT_ONCE: usize = if cfg!(test) { 4 } else { 256 };

impl Core {
    /// The mode of a tenant's group has become known, or may have changed.
    pub(super) fn mode_may_differ(&mut self, number: u32) {
        let mode = self.limits_of(number).map(|limits| limits.mode);
        // Who came before it was known that he should be native is served as
        // close to that as can be.
        let keeps = mode.unwrap_or_default() != PoolMode::Shared;
        let Some(tenant) = self.tenant_mut(number) else {
            return;
        };
        if tenant.keeps_sessions == keeps {
            return;
        }
        tenant.keeps_sessions = keeps;
        self.act(Action::Keep {
            tenant: Some(number),
            keeps,
        });
        if !keeps {
            // Those that sleep with a session of it.
            self.wake_pool_of(number);
        }
    }

    /// All backends of a tenant's pool look again at what they are told of it.
    pub(super) fn wake_pool_of(&mut self, tenant: u32) {
        let Some(number) = self.pool_of_tenant(tenant) else {
            return;
        };
        if let Some(pool) = self.pool_mut(number) {
            pool.begin_to_wake();
            self.waking.insert(number);
        }
    }

    /// In each round: the next ones of pools that have a tenant which keeps them no longer.
    pub(super) fn wake_pools_on(&mut self) {
        let mut left = self.round.at_once();
        let next = |_, pool: &mut Pool| pool.next_to_wake();
        while let Some(slot) = (self.pools).next_of(&mut self.waking, &mut left, next) {
            self.wake(slot);
        }
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
        self.act(Action::Keep {
            tenant: None,
            keeps: are_few,
        });
        self.to_wake.begin(match are_few {
            true => 0,
            false => self.backends.end(),
        });
        self.wake_on();
    }

    /// In each round as well: the next ones.
    pub(super) fn wake_on(&mut self) {
        for _ in 0..WOKEN_AT_ONCE {
            let Some(slot) = self.to_wake.next(self.backends.end()) else {
                return;
            };
            self.wake(slot);
        }
    }

    /// When it is over all are woken, for one that has just become dedicated by
    /// it may not have told so yet.
    fn wake(&mut self, slot: u32) {
        let life = self.backends.life(slot);
        if life.is_some_and(|life| !life.is_starting()) {
            self.act(Action::Poke(slot));
        }
    }
}
