//! Once a second all pools and all sessions are looked at, some of them in each round:
//! everybody else is served in between.

use super::cursor::Cursor;
use super::{Action, Core, Words};

/// In one go: some 100 microseconds each. Where the simulator runs so few that what comes
/// in between comes in between.
const POOLS_AT_ONCE: usize = if cfg!(test) { 32 } else { 256 };
/// Of all pools together; one that has more is gone on with in the next round.
pub(super) const BACKENDS_AT_ONCE: usize = if cfg!(test) { 16 } else { 1024 };
const SESSIONS_AT_ONCE: u32 = if cfg!(test) { 64 } else { 1024 };

/// What is still to be looked at in this sweep.
#[derive(Debug, Default)]
pub struct Sweeping {
    pools: usize,
    next_pool: u32,
    /// Those without a session.
    tenants: usize,
    next_tenant: u32,
    sessions: Cursor,
}

impl Sweeping {
    pub fn has_more(&self) -> bool {
        self.pools > 0 || self.tenants > 0 || self.sessions.has_more()
    }

    #[cfg(test)]
    pub fn has_pools(&self) -> bool {
        self.pools > 0
    }
}

impl Core {
    pub(super) fn sweep(&mut self, words: &impl Words) {
        self.room.look_for_surplus();
        self.wake_for_memory();
        self.sweeping.pools = self.pools.existing().len();
        self.sweeping.tenants = self.unused_tenants.len();
        self.sweeping.sessions.begin(self.sessions.slots_used());
        self.sweep_on(words);
        // Last: what is told of it names its pool, which may then be used by nobody.
        self.give_up_starting(words);
    }

    /// In each round as well.
    pub(super) fn sweep_on(&mut self, words: &impl Words) {
        if self.sweeping.pools > 0 {
            self.sweep_pools(words);
        }
        if self.sweeping.tenants > 0 {
            self.sweep_tenants();
        }
        for _ in 0..SESSIONS_AT_ONCE {
            let Some(index) = self.sweeping.sessions.next(self.sessions.slots_used()) else {
                return;
            };
            self.sweep_session(index, words);
        }
    }

    fn sweep_pools(&mut self, words: &impl Words) {
        let most = self.sweeping.pools.min(POOLS_AT_ONCE);
        let mut pools = Vec::new();
        (self.pools.existing()).some_from(self.sweeping.next_pool, most, &mut pools);
        let mut left = BACKENDS_AT_ONCE;
        for (nth, number) in pools.iter().copied().enumerate() {
            if !self.sweep_backends(number, &mut left, words) {
                self.sweeping.pools -= nth;
                self.sweeping.next_pool = number;
                return;
            }
            self.drop_if_unused(number);
            if self.lacks_backends(number) {
                self.mark_dirty(number);
            }
        }
        self.sweeping.pools -= most;
        self.sweeping.next_pool = pools.last().map_or(0, |last| last + 1);
    }

    /// Those go that have no session.
    fn sweep_tenants(&mut self) {
        let most = self.sweeping.tenants.min(POOLS_AT_ONCE);
        let mut some = Vec::new();
        self.unused_tenants
            .some_from(self.sweeping.next_tenant, most, &mut some);
        self.sweeping.tenants -= most;
        self.sweeping.next_tenant = some.last().map_or(0, |last| last + 1);
        some.into_iter()
            .for_each(|tenant| self.drop_tenant_if_unused(tenant));
    }

    /// So many more of a pool's backends that are not dedicated. False: there are others.
    fn sweep_backends(&mut self, number: u32, left: &mut usize, words: &impl Words) -> bool {
        if !self.pools.with_backends().contains(number) {
            return true;
        }
        let Some(pool) = self.pool_mut(number) else {
            return true;
        };
        let begins = pool.is_unswept();
        let slots = pool.sweep_on(*left);
        let is_over = pool.is_swept();
        if slots.is_empty() && !is_over {
            return false;
        }
        *left -= slots.len();
        if begins {
            self.act(Action::CheckQueue(number));
        }
        self.shrink(number, &slots, words);
        self.look_for_old(number, &slots);
        if is_over {
            self.retire_old(number);
        }
        is_over
    }

    /// Fewer than it is to keep.
    fn lacks_backends(&self, number: u32) -> bool {
        let least = self.min_backends(number);
        least > 0 && self.pool_backends(number).len() < least
    }
}
