//! Clients' cancel requests: whom each hits, and who answers it.
//!
//! Only who has a session may answer it. On a backend: that backend, which is
//! named the session and signalled. In the FIFO: we, at once, as stock would
//! answer; the request is never executed. In the ready queue: we, if it can be
//! taken back. In between, a flag in the session's slot tells whoever has it
//! next: the backend that takes it, or us when it comes back and asks to wait.

use super::sessions::{Location, Need, Of, Whereabouts};
use super::{Action, Core, Look, SessionId, Skipped, Then, Why, Words};

impl Core {
    /// Cancels what this session runs, and nothing else.
    pub(super) fn cancel(&mut self, id: SessionId, words: &impl Words) {
        let pool = self.sessions.get(id).map(|session| session.pool());
        match (self.locate(id, words), pool) {
            (Some(Location::OnItsWay(Whereabouts::Queue(_))), Some(pool)) => {
                self.act(Action::TakeBack(pool));
                self.then(Then::Cancel(id));
            }
            _ => self.cancel_located(id, words),
        }
    }

    pub(super) fn cancel_located(&mut self, id: SessionId, words: &impl Words) {
        match self.locate(id, words) {
            Some(Location::Held(_)) => self.act(Action::CancelOnBackend(id)),
            // A login has no statement.
            Some(Location::Here(Whereabouts::Waiting(Need::Greeting))) => {}
            // It is answered with an error already.
            Some(Location::Here(Whereabouts::Skipping(_))) | None => {}
            Some(Location::OnItsWay(_)) => self.act(Action::MarkCancel(id)),
            // What it has asked is in its socket. We may not have come to that yet, or
            // it is part of a message, which nobody has looked at: that is not hit.
            Some(Location::Here(_) | Location::GivenBack { .. }) => {
                let look = Look::Cancel;
                self.act(Action::Look { id, look });
            }
        }
    }

    /// A whole request of it is there.
    pub(super) fn cancel_what_is_asked(&mut self, id: SessionId, words: &impl Words) {
        match self.locate(id, words) {
            Some(Location::Here(Whereabouts::Waiting(Need::Answer))) => self.cancel_waiting(id),
            _ => self.act(Action::MarkCancel(id)),
        }
    }

    /// Ends this session as pg_terminate_backend() does. A backend that comes to
    /// have it sees to it by itself.
    pub(super) fn terminate(&mut self, id: SessionId, words: &impl Words) {
        let pool = self.sessions.get(id).map(|session| session.pool());
        match (self.locate(id, words), pool) {
            (Some(Location::OnItsWay(Whereabouts::Queue(_))), Some(pool)) => {
                self.act(Action::TakeBack(pool));
                self.then(Then::Terminate(id));
            }
            _ => self.terminate_located(id, words),
        }
    }

    pub(super) fn terminate_located(&mut self, id: SessionId, words: &impl Words) {
        match self.locate(id, words) {
            Some(Location::Held(_)) => self.act(Action::TerminateOnBackend(id)),
            Some(Location::Here(_) | Location::GivenBack { .. }) => {
                self.end(id, Why::Administrator);
            }
            Some(Location::OnItsWay(_)) | None => {}
        }
    }

    /// Its request is to be passed over. That begins with the next event on its
    /// socket.
    pub(super) fn cancel_waiting(&mut self, id: SessionId) {
        self.act(Action::ClearCancel(id));
        // One that comes to ask has not begun to wait.
        if !matches!(
            self.sessions.get(id).map(|session| session.whereabouts()),
            Some(Whereabouts::Waiting(_))
        ) {
            self.sessions.wait(id, Of::Quiet, self.now.us);
        }
        self.skip(id, Skipped::Cancelled, true);
    }
}
