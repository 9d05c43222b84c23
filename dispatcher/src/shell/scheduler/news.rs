//! What backends have said of sessions becomes their contexts, at once or, if it is
//! much, by and by.
//!
//! While the latter goes on the backend is not heard: what it says later comes later,
//! and so does its end. To the core that is a message that takes long.

use super::Scheduler;
use crate::core::{index_of, Event, SessionId};
use crate::protocol::Report;
use crate::shell::link::memory::arena::Full;
use crate::shell::link::memory::work::Finished;
use crate::shell::link::wire::Counters;
use crate::shell::work;
use tracing::warn;

/// What a greeting was.
pub struct Greeted {
    pub lasts: u32,
    pub start_settings: u64,
    pub notices: Vec<u8>,
    pub reported: Vec<u8>,
}

/// What is to be done when it is.
pub enum Then {
    Released,
    Greeted(Greeted),
    /// The value of a PUT.
    Stored {
        counters: Option<Counters>,
        aux: i64,
    },
}

/// What a backend has said and is not done.
pub(super) struct Pending {
    id: SessionId,
    then: Then,
}

impl Scheduler {
    /// RELEASE or GREETED: what was staged becomes the session's context.
    pub(super) fn apply_staged(&mut self, slot: u32, id: SessionId, then: Then) {
        let greeted = matches!(then, Then::Greeted(_));
        let is_live = self.core.sessions().get(id).is_some();
        let mut staged = self.take_staged(slot);
        if !is_live || staged.session != id {
            let of_other = staged.session != 0 && staged.session != id;
            self.contexts.discard(&mut staged);
            if of_other {
                warn!("changes of another session than the one given back were dropped");
            }
            if is_live && !greeted {
                self.take_given_back(id);
            }
            return;
        }
        match (self.contexts).apply(index_of(id), &mut staged, greeted, slot) {
            Some(result) => self.applied(id, &then, result),
            None => self.takes_long(slot, id, then),
        }
    }

    fn applied(&mut self, id: SessionId, then: &Then, result: Result<i64, Full>) {
        let Ok(grown) = result else {
            let report = Report::fatal(b"53200", "out of memory")
                .with_detail("The session's context does not fit into pg_baton's session memory.")
                .with_hint("Raise pg_baton.session_memory.");
            return self.end_with(id, &report);
        };
        self.tell(Event::Stored { id, grown });
        match then {
            Then::Greeted(greeted) => self.greeting_applied(id, greeted),
            Then::Released => self.take_given_back(id),
            Then::Stored { .. } => {}
        }
    }

    fn take_given_back(&mut self, id: SessionId) {
        let event = match self.shall_end(id) {
            true => Event::Terminate(id),
            false => Event::GivenBack(id),
        };
        self.tell(event);
    }

    // ---- by and by ---------------------------------------------------------

    pub(super) fn takes_long(&mut self, slot: u32, id: SessionId, then: Then) {
        self.pending.insert(slot, Pending { id, then });
    }

    /// Is it to be heard no further now?
    pub fn is_busy_with(&self, slot: u32) -> bool {
        self.pending.contains_key(&slot)
    }

    /// At the end of each round: a slice of what is not done.
    pub fn go_on_with_contexts(&mut self) {
        let Some((slot, finished)) = self.contexts.go_on() else {
            return;
        };
        let Some(Pending { id, then }) = self.pending.remove(&slot) else {
            return;
        };
        self.heard_again.push(slot);
        match (finished, then) {
            (Finished::Applied(result), then) => self.applied(id, &then, result),
            (Finished::Stored(entry), Then::Stored { counters, aux }) => {
                let mut staged = self.staged_of(slot, id);
                (self.contexts).stage_stored(&mut staged, entry, counters, aux);
                self.put_staged(slot, staged);
            }
            (Finished::Stored(entry), _) => self.contexts.arena.release(entry),
        }
    }

    /// How much has been done since the last time (work.rs).
    pub fn take_work(&mut self) -> usize {
        self.contexts.take_work()
            + self.begun.take_work()
            + std::mem::take(&mut self.actions) * work::ACTION
    }

    /// The connections of backends that are to be heard again.
    pub fn take_heard_again(&mut self) -> Vec<u32> {
        let slots = std::mem::take(&mut self.heard_again);
        let connections = slots.iter().map(|slot| self.links.connection_of(*slot));
        connections.flatten().collect()
    }

    /// The backend has gone: which session it was about.
    pub(super) fn apply_no_more(&mut self, slot: u32) -> Option<SessionId> {
        let pending = self.pending.remove(&slot)?;
        self.contexts.cancel_task(slot);
        Some(pending.id)
    }

    /// The session has ended.
    pub(super) fn nothing_is_applied(&mut self, id: SessionId) {
        let mut pending = self.pending.iter();
        let slot = pending.find(|(_, pending)| pending.id == id);
        if let Some(slot) = slot.map(|(slot, _)| *slot) {
            self.apply_no_more(slot);
            self.heard_again.push(slot);
        }
    }
}
