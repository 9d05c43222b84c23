//! Whose is the session that a backend speaks of?
//!
//! A backend's message is believed as far as it can be true. What the scheduler
//! has done with a session comes first: it went to this backend, or into the
//! ready queue of this backend's pool. Who of a pool took it from the queue only
//! backends know, so there, and only there, the words of its slot decide. They
//! are no proof, as each process of the server could write them; who lies by
//! them can harm sessions of its own database.

use super::sessions::{Location, Whereabouts};
use super::{index_of, Core, SessionId, Shown, Words};

/// What a message says of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// What happens to a session in place: it changes, is greeted, ends.
    InPlace,
    /// It comes back. It may never have been in place: the backend could not
    /// take it.
    Back,
}

/// Can it be so?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The backend's.
    Theirs,
    /// Nobody's any more: it has ended while the message was under way.
    Past,
    /// Somebody else's, or there never was one.
    NotTheirs,
}

impl Core {
    /// Whose is the session of which the backend in this slot says that?
    pub fn whose(&self, slot: u32, id: SessionId, tells: Tells, words: &impl Words) -> Whose {
        if self.sessions.get(id).is_none() {
            return match self.sessions.was_there(id) {
                true => Whose::Past,
                false => Whose::NotTheirs,
            };
        }
        let is_theirs = self.may_have(slot, id) && !self.pool_mate_has(slot, id, tells, words);
        match is_theirs || self.comes_from(slot, id, words) {
            true => Whose::Theirs,
            false => Whose::NotTheirs,
        }
    }

    /// It waits already, and this backend of its pool had it last: an event of its
    /// socket too many (one that was armed twice, burial.rs) may be heard before the
    /// message by which it was given back.
    fn comes_from(&self, slot: u32, id: SessionId, words: &impl Words) -> bool {
        let (Some(session), Some(backend)) = (self.sessions.get(id), self.backends.get(slot))
        else {
            return false;
        };
        let index = index_of(id);
        matches!(session.whereabouts(), Whereabouts::Waiting(_))
            && session.pool() == backend.pool()
            && words.holder(index).is_none()
            && words.last_backend(index) == Some(slot)
    }

    /// Did this session go where this backend could get it, and has it not come
    /// back since, as far as we know?
    pub(super) fn may_have(&self, slot: u32, id: SessionId) -> bool {
        let (Some(session), Some(backend)) = (self.sessions.get(id), self.backends.get(slot))
        else {
            return false;
        };
        match session.whereabouts() {
            Whereabouts::Sent(to, _) => to == slot && session.sent_to() == backend.serial(),
            Whereabouts::Queue(_) => session.queue() == backend.pool(),
            Whereabouts::Idle | Whereabouts::Waiting(_) | Whereabouts::Skipping(_) => false,
        }
    }

    /// Where a session is. A holder who cannot have it is none.
    pub(super) fn locate(&self, id: SessionId, words: &impl Words) -> Option<Location> {
        let is_possible = |slot: u32| self.may_have(slot, id);
        self.sessions.locate(id, words, is_possible)
    }

    /// It went into the pool's queue: has another backend of the pool got it?
    fn pool_mate_has(&self, slot: u32, id: SessionId, tells: Tells, words: &impl Words) -> bool {
        let index = index_of(id);
        let whereabouts = self.sessions.get(id).map(|session| session.whereabouts());
        if !matches!(whereabouts, Some(Whereabouts::Queue(_))) {
            return false;
        }
        match words.holder(index) {
            Some(holder) => holder != slot && self.may_have(holder, id),
            // Given back by whoever had it last; or never in place.
            None => {
                let was_last = words.last_backend(index) == Some(slot);
                !was_last && (tells == Tells::InPlace || words.shown(index) != Shown::Waiting)
            }
        }
    }
}
