//! Once a second all pools and all sessions are looked at, some of them in each round:
//! everybody else is served in between.

use super::cursor::Cursor;
use super::{Action, Core, Words};

/// In one go: some 100 microseconds each. Where the simulator runs so few that what comes
/// in between comes in between.
const POOLS_AT_ONCE: usize = if cfg!(test) { 32 } else { 256 };
const SESSIONS_AT_ONCE: u32 = if cfg!(test) { 64 } else { 1024 };

/// What is still to be looked at in this sweep.
#[derive(Debug, Default)]
pub struct Sweeping {
    pools: usize,
    next_pool: u32,
    sessions: Cursor,
}

impl Sweeping {
    pub fn has_more(&self) -> bool {
        self.pools > 0 || self.sessions.has_more()
    }
}

impl Core {
    pub(super) fn sweep(&mut self, words: &impl Words) {
        self.room.look_for_surplus();
        self.wake_for_memory();
        self.sweeping.pools = self.pools.existing().len();
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
        self.sweeping.pools -= most;
        self.sweeping.next_pool = pools.last().map_or(0, |last| last + 1);
        for number in pools {
            if self.pools.with_backends().contains(number) {
                self.act(Action::CheckQueue(number));
                self.shrink(number, words);
                self.shrink_to_limit(number, words);
                self.retire_old(number, words);
                self.leave_outdated(number);
            }
            self.drop_if_unused(number);
            if self.lacks_backends(number) {
                self.mark_dirty(number);
            }
        }
    }

    /// Fewer than it is to keep.
    fn lacks_backends(&self, number: u32) -> bool {
        let least = self.min_backends(number);
        least > 0 && self.pool_backends(number).len() < least
    }
}
