//! Clients' cancel requests: whom each hits, and who answers it.
//!
//! Only who owns a session may answer it. On a backend: that backend, which is
//! named the session and signalled. In the FIFO: we, at once, as stock would
//! answer; the request is never executed. In the ready queue: we, if it can be
//! taken back. In between, a flag in the session's slot tells whoever has it
//! next: the backend that takes it, or us when it comes back and asks to wait.

use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::sessions::{index_of, Place, SessionId, Skipped};
use crate::dispatcher::sys::{process, socket};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use tracing::debug;

impl Dispatcher {
    /// Cancels what the session with this key runs, and nothing else.
    pub fn cancel(&mut self, id: SessionId) {
        let slot = &self.control.sessions[index_of(id) as usize];
        if slot.owner.load(SeqCst) == 0 {
            let Some((place, greet, number, fd)) = self
                .sessions
                .get(id)
                .map(|session| (session.place, session.greet, session.pool, session.fd()))
            else {
                return;
            };
            let is_sent = || slot.state.load(SeqCst) == STATE_WAITING;
            if place == Place::Queue && is_sent() {
                self.drain_queue(number);
            }
            let is_meant = match self.sessions.get(id).map(|session| session.place) {
                // A login has no statement.
                Some(Place::Waiting) if greet => false,
                Some(Place::Waiting) => return self.cancel_waiting(id),
                // It is answered with an error already.
                Some(Place::Skipping(_)) | None => false,
                Some(Place::Queue | Place::Backend(_)) if is_sent() => true,
                // What it has asked is in its socket, and we have not come to
                // that yet.
                Some(_) => matches!(socket::peek(fd), Ok(Some(_))),
            };
            if !is_meant {
                return;
            }
            slot.flags.fetch_or(SESSION_CANCEL, SeqCst);
            // Taken meanwhile, and the flag perhaps too late: it must not hit
            // the next transaction instead.
            if slot.owner.load(SeqCst) == 0
                || slot.flags.fetch_and(!SESSION_CANCEL, SeqCst) & SESSION_CANCEL == 0
            {
                return;
            }
        }
        self.cancel_on_backend(id);
    }

    /// Was this session cancelled before it asked to wait?
    pub fn is_cancelled(&self, id: SessionId) -> bool {
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.flags.load(Relaxed) & SESSION_CANCEL != 0
    }

    /// Out of the FIFO, its request to be passed over. That begins with the
    /// next event on its socket, since a caller may be using our buffer.
    pub fn cancel_waiting(&mut self, id: SessionId) {
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.flags.fetch_and(!SESSION_CANCEL, SeqCst);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let number = session.pool;
        if let Some(pool) = self.pools[number as usize].as_mut() {
            // Or it would wait there twice when it asks for something else.
            pool.fifo.retain(|other| *other != id);
        }
        self.begin_skipping(id, Skipped::Cancelled);
        self.await_rest(id);
    }

    /// Tells the backend that has the session; which one may change meanwhile,
    /// but then the session is not running what was to be cancelled.
    fn cancel_on_backend(&self, id: SessionId) {
        let owner = self.control.sessions[index_of(id) as usize]
            .owner
            .load(SeqCst);
        let Some(backend) = owner
            .checked_sub(1)
            .and_then(|holder| self.control.backends.get(holder as usize))
        else {
            return;
        };
        let pid = backend.pid.load(SeqCst);
        if backend.session.load(SeqCst) == id && pid != 0 {
            backend.cancel.store(id, SeqCst);
            if let Err(error) = process::interrupt(pid) {
                debug!("could not signal backend {pid}: {error}");
            }
        }
    }
}
