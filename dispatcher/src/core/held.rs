//! Backends that transactions hold without doing anything, while others wait.
//!
//! What that means is stall.rs's to say, and places.rs's how many may be added
//! for them. How much processor time a backend has used the shell tells
//! (`Action::Measure`).

use super::cursor::Cursor;
use super::stall::Seen;
use super::{Action, Core, Word, Words};

/// Backends, and pools, that are looked at in a tick: as there are ten ticks from one look
/// at a backend to the next, of ten times as many each is looked at in time.
const LOOKED_AT_ONCE: usize = if cfg!(test) { 4 } else { 256 };

/// Where it goes on.
#[derive(Debug, Default)]
pub struct LookForHeld {
    backends: Cursor,
    next_pool: u32,
    pools: Vec<u32>,
    /// So often transactions were seen to have completed.
    completed: u64,
}

impl Core {
    /// In each tick.
    pub(super) fn look_for_held(&mut self, words: &impl Words) {
        self.stall.allow_none();
        let longest_us = self.longest_seen_us();
        let held = self.backends.held();
        if longest_us.is_none() && held == 0 {
            return;
        }
        self.look_whether_any_complete(words);
        let completed = self.held.completed;
        let timeout_us = self.limits.session_wait_timeout_us;
        let is_stalled = self
            .stall
            .is_there(self.now.us, completed, longest_us, timeout_us);
        if is_stalled && self.places(0).room() == 0 && self.limits.max_extra != Some(0) {
            self.stall.allow_steps(self.now.us, held);
        } else if held == 0 {
            return;
        }
        for _ in 0..LOOKED_AT_ONCE.min(self.backends.end() as usize) {
            let slot = self.held.backends.step(self.backends.end());
            let found = slot.and_then(|slot| Some((slot, self.backends.get(slot)?)));
            let Some((slot, backend)) = found else {
                continue;
            };
            let may_be_held = self.backends.may_be_held(slot) && words.backend(slot) == Word::Busy;
            if backend.is_to_be_seen(may_be_held, self.now.us) {
                self.actions.push_back(Action::Measure(slot));
            }
        }
    }

    /// Has any pool completed transactions since it was looked at?
    fn look_whether_any_complete(&mut self, words: &impl Words) {
        let mut some = std::mem::take(&mut self.held.pools);
        let pools = self.pools.with_backends();
        pools.some_from(self.held.next_pool, LOOKED_AT_ONCE, &mut some);
        self.held.next_pool = some.last().map_or(0, |last| last + 1);
        for number in &some {
            let completed = words.completed(*number);
            if let Some(pool) = self.pools.get_mut(*number) {
                self.held.completed += u64::from(pool.has_completed(completed));
            }
        }
        self.held.pools = some;
    }

    /// What a backend has done so far.
    pub(super) fn measured(
        &mut self,
        slot: u32,
        transactions: u64,
        cpu_us: u64,
        words: &impl Words,
    ) {
        let is_busy = self.backends.may_be_held(slot) && words.backend(slot) == Word::Busy;
        let now = Seen {
            at_us: self.now.us,
            transactions,
            cpu_us,
        };
        let Some(backend) = self.backends.get(slot) else {
            return;
        };
        let was_held = backend.is_held();
        let is_held = match backend.seen() {
            Some(before) if is_busy => match now.is_held_since(&before) {
                None => return,
                // Its turn comes.
                Some(true) if !was_held && !self.stall.allows_one() => return,
                Some(is_held) => is_held,
            },
            _ => false,
        };
        let seen = is_busy.then_some(now);
        self.backends.is_seen(slot, seen, is_held);
        if is_held && !was_held {
            self.stall.step();
            self.mark_waiting();
        } else if was_held && !is_held {
            self.room.look_for_surplus();
        }
    }
}
