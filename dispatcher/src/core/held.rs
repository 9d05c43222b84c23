//! Backends that transactions hold for long, while others wait.
//!
//! What that means is stall.rs's to say, and places.rs's how many may be added
//! for them. How much processor time a backend has used the shell tells
//! (`Action::Measure`).

use super::backends::Life;
use super::stall::{Seen, Since, Waiting, SLOW_START_US};
use super::{Action, Core, Word, Words};

/// Backends that are measured in a tick, a few system calls each: as there are ten ticks from
/// one look at a backend to the next, of ten times as many each is measured in time.
const MEASURED_AT_ONCE: usize = 256;

impl Core {
    /// Is it one whose transactions count as held, or that a dedicated session has?
    fn may_be_idle(&self, slot: u32) -> bool {
        self.backends.may_be_held(slot) || self.backends.life(slot) == Some(Life::Dedicated)
    }

    /// In each tick.
    pub(super) fn look_for_held(&mut self, words: &impl Words) {
        let held = self.backends.held();
        let waiting = Waiting {
            sessions: self.waiting(words),
            longest_us: self.longest_seen_us(),
            without_us: self.longest_without_us(),
        };
        let (boost, timeout_us) = (self.stall.boost(), self.limits.session_wait_timeout_us);
        let handed_out = self.handed_out;
        (self.stall).look(self.now.us, handed_out, waiting, timeout_us, held);
        if waiting.longest_us.is_none() && held == 0 {
            return;
        }
        if self.stall.boost() > boost {
            self.mark_waiting();
        }
        let are_more = self.places(0).has_more_than_held();
        if held == 0 && !are_more && !self.stall.allows_one() {
            return;
        }
        let (first, end) = (self.next_measured, self.backends.end());
        let mut measured = 0;
        for slot in (first.min(end)..end).chain(0..first.min(end)) {
            let Some(backend) = self.backends.get(slot) else {
                continue;
            };
            if backend.life() == Life::Starting {
                let is_slow = self.now.us >= backend.started_us() + SLOW_START_US;
                let was_held = backend.is_held();
                let is_held = is_slow && (was_held || self.places(0).has_more_than_held());
                self.backends.is_seen(slot, None, is_held);
                continue;
            }
            let is_at_work = self.may_be_idle(slot) && words.backend(slot) == Word::Busy;
            if backend.is_to_be_seen(is_at_work, self.now.us) {
                self.actions.push_back(Action::Measure(slot));
                measured += 1;
                if measured == MEASURED_AT_ONCE {
                    self.next_measured = slot + 1;
                    return;
                }
            }
        }
    }

    /// What a backend has done so far.
    pub(super) fn measured(
        &mut self,
        slot: u32,
        transactions: u64,
        cpu_us: u64,
        is_unread: bool,
        words: &impl Words,
    ) {
        let may_be_held = self.backends.may_be_held(slot);
        let is_busy = self.may_be_idle(slot) && words.backend(slot) == Word::Busy;
        let now = Seen {
            at_us: self.now.us,
            transactions,
            cpu_us,
        };
        self.look_at_client(slot, is_unread, now, words);
        let Some(backend) = self.backends.get(slot) else {
            return;
        };
        let was_held = backend.is_held();
        let since = match backend.seen() {
            Some(before) if is_busy => match now.since(&before) {
                None => return,
                Some(since) => since,
            },
            _ => Since::Moved,
        };
        let is_held = since != Since::Moved
            && may_be_held
            && (was_held
                || self.places(0).has_more_than_held()
                || since == Since::Idled && self.stall.allows_one());
        if since == Since::Idled && may_be_held && !is_held {
            // Its turn comes: it is measured again in the next tick.
            return;
        }
        self.backends.is_seen(slot, is_busy.then_some(now), is_held);
        if is_held && !was_held {
            self.stall.step();
            self.mark_waiting();
        } else if was_held && !is_held {
            self.room.look_for_surplus();
        }
    }

    /// In each tick in which a session waits: whose sessions backends have at the moment.
    /// Which role has how many counts for those that wait.
    pub(super) fn note_roles(&mut self, words: &impl Words) {
        if self.in_want.is_empty() {
            return;
        }
        for slot in 0..self.backends.end() {
            self.note_role(slot, words);
        }
    }

    /// One that lingers is anybody's; whose one is that has not taken its session yet was
    /// noted when that was sent there.
    pub(super) fn note_role(&mut self, slot: u32, words: &impl Words) {
        let session = match words.backend(slot) {
            Word::Assigned => return,
            Word::Linger => 0,
            _ => words.backend_session(slot),
        };
        let role = self.key_of(session).map(|key| key.role_oid);
        self.backends.is_of_role(slot, role);
    }
}
