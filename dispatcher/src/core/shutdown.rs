//! The end of the server, of this dispatcher, or of a database's sessions.
//!
//! Sessions that no backend holds end at once, or are held for the next server, and do nothing. The
//! others end, or are held, when their backend gives them back; the server itself ends backends, or
//! lets them finish, by the kind of shutdown it was asked for.
//!
//! To end a session costs some system calls, and there may be very many. So all sessions are looked
//! at in slices, in each round, and a session that speaks meanwhile ends as well.

use super::lifecycle::Reason;
use super::scan::Cursor;
use super::sessions::Location;
use super::{index_of, Action, Core, SessionId, Then, Why, Words};

/// In a round: some 100 microseconds to look, and a millisecond to end.
const LOOKED_AT_ONCE: u32 = 4096;
const ENDED_AT_ONCE: u32 = 128;

/// Slots of sessions still to be looked at.
#[derive(Debug, Default)]
pub struct Endings {
    slots: Cursor,
    /// At a shutdown: this scan began after the last backend had gone.
    is_last: bool,
}

impl Core {
    /// Does the shutdown end sessions?
    pub(super) fn ends_sessions(&self) -> bool {
        self.stopping && !self.leaves_sessions
    }

    pub(super) fn stop(&mut self, holds: bool) {
        if self.stopping {
            return;
        }
        self.stopping = true;
        self.leaves_sessions = holds;
        self.end_all_pauses();
        for number in self.pools.with_backends().iter() {
            self.act(Action::TakeBack(number));
        }
        if !holds {
            self.then(Then::EndSessions);
        }
        let slots: Vec<u32> = self.backends.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.act(Action::Recall { slot, id: 0 });
            self.retire(slot, Reason::Stops);
        }
    }

    /// Are sessions being ended?
    pub fn is_ending(&self) -> bool {
        self.endings.slots.is_running()
    }

    /// Runs in each tick of a shutdown. Ends sessions that backends have given back; once more when
    /// no backend is left, and then no more.
    pub(super) fn end_given_back(&mut self, words: &impl Words) {
        let is_last = self.backends.total() == 0;
        if self.is_ending() || is_last && self.endings.is_last {
            return;
        }
        self.endings.is_last = is_last;
        self.begin_to_end(words);
    }

    /// Begins to look at all sessions: which of those that no backend holds are to end?
    pub(super) fn begin_to_end(&mut self, words: &impl Words) {
        self.endings.slots.begin();
        self.end_on(words);
    }

    /// Looks at the next sessions in each round.
    pub(super) fn end_on(&mut self, words: &impl Words) {
        let mut may_end = ENDED_AT_ONCE;
        for _ in 0..LOOKED_AT_ONCE {
            let Some(ends) = self.end_next(words) else {
                return self.release_holds();
            };
            may_end -= u32::from(ends);
            if may_end == 0 {
                return;
            }
        }
    }

    /// Has the next session ended? None: all have been looked at.
    fn end_next(&mut self, words: &impl Words) -> Option<bool> {
        let index = self.endings.slots.next_below(self.sessions.slots_used())?;
        let Some(id) = self.sessions.in_slot(index) else {
            return Some(false);
        };
        let shall_end = self.ends_sessions() || self.is_forced_out(id, words);
        let ends = shall_end && self.is_ours(id, words);
        if ends {
            self.end(id, Why::Administrator);
        }
        Some(ends)
    }

    /// The server is gone: ends all sessions that no backend says it holds.
    pub(super) fn abandon(&mut self, words: &impl Words) {
        let ids: Vec<SessionId> = self.sessions.ids().collect();
        for id in ids {
            if words.holder(index_of(id)).is_none() {
                self.end(id, Why::Administrator);
            }
        }
    }

    /// Another dispatcher follows this one: gives up the sessions that no backend holds or is about
    /// to get; the shell knows which of them the keeper has. Backends are told nothing, so that each
    /// keeps the session that it holds. All at once, since new clients wait meanwhile.
    pub(super) fn hand_back(&mut self) {
        for number in self.pools.with_backends().iter() {
            self.act(Action::TakeBack(number));
        }
        self.then(Then::EndHeldHere);
    }

    pub(super) fn end_held_here(&mut self, words: &impl Words) {
        let ids: Vec<SessionId> = self.sessions.ids().collect();
        for id in ids {
            if self.is_ours(id, words) {
                self.end(id, Why::Administrator);
            }
        }
    }

    /// Does the dispatcher own this session: no backend holds it, and it is not on its way to one?
    pub(super) fn is_ours(&self, id: SessionId, words: &impl Words) -> bool {
        matches!(
            self.locate(id, words),
            Some(Location::Here(_) | Location::GivenBack { .. })
        )
    }
}
