//! The end: of the server, or of this dispatcher.
//!
//! Sessions that no backend holds end at once, as do the others when their
//! backend gives them back; the server itself ends backends, or lets them
//! finish, by the kind of shutdown it was asked for. What this takes is linear
//! in all there is, once.

use super::pool_changes::Reason;
use super::sessions::Location;
use super::{index_of, Action, Core, SessionId, Then, Why, Words};

impl Core {
    pub(super) fn stop(&mut self) {
        if self.stopping {
            return;
        }
        self.stopping = true;
        for number in self.existing.iter() {
            self.act(Action::TakeBack(number));
        }
        self.then(Then::StopSessions);
        let slots: Vec<u32> = self.backends.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.act(Action::Recall { slot, id: 0 });
            self.retire(slot, Reason::Stops);
        }
    }

    /// Ends the sessions that nobody holds; called until none is left.
    pub(super) fn stop_sessions(&mut self, words: &impl Words) {
        let ids: Vec<SessionId> = self.sessions.ids().collect();
        for id in ids {
            if self.is_ours(id, words) {
                self.end(id, Why::Administrator);
            }
        }
    }

    /// The server is no more: all that no backend says it holds.
    pub(super) fn abandon(&mut self, words: &impl Words) {
        let ids: Vec<SessionId> = self.sessions.ids().collect();
        for id in ids {
            if words.holder(index_of(id)).is_none() {
                self.end(id, Why::Administrator);
            }
        }
    }

    /// Does no backend hold this session, nor is it on its way to one?
    pub(super) fn is_ours(&self, id: SessionId, words: &impl Words) -> bool {
        matches!(
            self.locate(id, words),
            Some(Location::Here(_) | Location::GivenBack { .. })
        )
    }
}
