//! Backends that transactions hold without doing anything, while others wait.
//!
//! What that means is stall.rs's to say, and places.rs's how many may be added
//! for them. How much processor time a backend has used the shell tells
//! (`Action::Measure`).

use super::stall::Seen;
use super::{Action, Core, Word, Words};

impl Core {
    /// In each tick.
    pub(super) fn look_for_held(&mut self, words: &impl Words) {
        self.stall.steps = 0;
        let longest_us = self.longest_seen_us();
        let held = self.backends.held();
        if longest_us.is_none() && held == 0 {
            return;
        }
        let pools = self.pools.with_backends().iter();
        let completed = pools.fold(0, |sum: u64, pool| sum.wrapping_add(words.completed(pool)));
        let timeout_us = self.limits.session_wait_timeout_us;
        let is_stalled = self
            .stall
            .is_there(self.now.us, completed, longest_us, timeout_us);
        if is_stalled && self.places(0).room() == 0 && self.limits.max_extra != Some(0) {
            self.stall.allow_steps(self.now.us, held);
        } else if held == 0 {
            return;
        }
        for (slot, backend) in self.backends.iter() {
            let may_be_held = self.backends.may_be_held(slot) && words.backend(slot) == Word::Busy;
            if backend.is_to_be_seen(may_be_held, self.now.us) {
                self.actions.push_back(Action::Measure(slot));
            }
        }
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
                Some(true) if !was_held && self.stall.steps == 0 => return,
                Some(is_held) => is_held,
            },
            _ => false,
        };
        let seen = is_busy.then_some(now);
        self.backends.is_seen(slot, seen, is_held);
        if is_held && !was_held {
            self.stall.steps -= 1;
            self.mark_waiting();
        } else if was_held && !is_held {
            self.room.look_for_surplus();
        }
    }
}
