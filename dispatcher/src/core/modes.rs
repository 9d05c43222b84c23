//! Sessions that keep their backends because that is what is wanted: of tenants
//! whose mode says so, and all of them while they are few.
//!
//! The backends are told (`Action::Keep`), and look at each boundary. So a
//! session that has been served becomes dedicated at the end of its next
//! transaction, as if something of it lived in its backend, and what counts for
//! dedicated sessions counts for it. When it is over those that sleep are woken,
//! to see that their sessions are shared again.

use super::pool_limits::PoolMode;
use super::pool_set::PoolSet;
use super::scan::Cursor;
use super::{Action, Core};

/// Backends that are woken in a round: a system call each.
pub(super) const WOKEN_AT_ONCE: usize = 256;

/// Backends that are woken to look again at what they are told of their sessions' tenants.
pub struct Waking {
    slots: Cursor,
    /// Those of all pools are.
    are_all: bool,
    /// Pools whose backends are.
    pools: PoolSet,
}

impl Waking {
    pub fn new(pools: usize) -> Waking {
        Waking {
            slots: Cursor::default(),
            are_all: false,
            pools: PoolSet::new(pools),
        }
    }

    pub fn has_more(&self) -> bool {
        self.slots.is_running()
    }

    /// Are this pool's backends still to be woken?
    pub fn concerns(&self, pool: u32) -> bool {
        self.are_all || self.pools.contains(pool)
    }

    /// Its number may be another pool's.
    pub fn forget_pool(&mut self, pool: u32) {
        self.pools.remove(pool);
    }

    fn begin_all(&mut self) {
        self.are_all = true;
        self.slots.begin();
    }

    pub fn begin(&mut self, pool: u32) {
        self.pools.insert(pool);
        self.slots.begin();
    }

    /// The next slot, of as many as there are. None: that is all.
    fn next(&mut self, end: u32) -> Option<u32> {
        let next = self.slots.next_below(end);
        if next.is_none() {
            self.are_all = false;
            self.pools.clear();
        }
        next
    }
}

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
        self.waking.begin(number);
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
        if !are_few {
            self.waking.begin_all();
        }
    }

    /// In each round: the next ones.
    pub(super) fn wake_on(&mut self) {
        let mut woken = 0;
        while woken < WOKEN_AT_ONCE && self.waking.has_more() {
            let Some(slot) = self.waking.next(self.backends.end()) else {
                return;
            };
            let backend = self.backends.get(slot);
            if backend.is_some_and(|backend| self.waking.concerns(backend.pool())) {
                self.wake(slot);
                woken += 1;
            }
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
