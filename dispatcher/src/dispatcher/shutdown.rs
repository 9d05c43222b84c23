//! The end: of the server, or of this dispatcher.
//!
//! On the first sign the ports close. Sessions that no backend holds end at
//! once with 57P01, as do the others when their backend gives them back; the
//! server itself ends backends, or lets them finish, by the kind of shutdown
//! it was asked for. The dispatcher ends when no backend is left, or with the
//! postmaster.

use super::event_loop::Dispatcher;
use super::link::layout::shared::*;
use super::login::listeners;
use super::sessions::{index_of, Place, SessionId};
use super::sys::process;
use crate::protocol::Report;
use std::sync::atomic::Ordering::SeqCst;
use tracing::{info, warn};

/// A shutdown that is under way.
pub struct Stopping {
    since_us: u64,
}

/// With SIGTERM only this process ends, and does not wait for ever.
const PATIENCE_US: u64 = 30_000_000;

fn by_administrator() -> Report {
    Report::fatal(
        b"57P01",
        "terminating connection due to administrator command",
    )
}

impl Dispatcher {
    pub fn signalled(&mut self) {
        process::drain(&self.signals);
        self.stop("asked by a signal");
    }

    pub fn postmaster_gone(&mut self) {
        let _ = self
            .epoll
            .delete(std::os::fd::AsRawFd::as_raw_fd(&self.postmaster));
        self.stop("the postmaster has gone");
        let ids: Vec<SessionId> = self.sessions.ids().collect();
        for id in ids {
            if self.control.sessions[index_of(id) as usize]
                .owner
                .load(SeqCst)
                == 0
            {
                self.end_by_administrator(id);
            }
        }
        self.finished = true;
    }

    /// postmaster.pid has changed: its eighth line is the server's status
    /// (LOCK_FILE_LINE_PM_STATUS, miscadmin.h).
    pub fn pid_file_changed(&mut self) {
        if let Some(file) = &self.pid_file {
            process::drain(file);
        }
        let path = std::path::Path::new(&self.parameters.data_directory).join("postmaster.pid");
        if let Ok(text) = std::fs::read_to_string(path) {
            if text
                .lines()
                .nth(7)
                .is_some_and(|status| status.trim() == "stopping")
            {
                self.stop("the server is stopping");
            }
        }
    }

    /// Begins to stop.
    pub fn stop(&mut self, why: &str) {
        if self.stopping.is_some() {
            return;
        }
        info!("shutting down: {why}");
        self.stopping = Some(Stopping {
            since_us: self.now_us,
        });
        for listener in &self.listeners {
            let _ = self
                .epoll
                .delete(std::os::fd::AsRawFd::as_raw_fd(&listener.socket));
        }
        listeners::close(&mut self.listeners);
        let logins: Vec<u32> = self.logins.iter().map(|(number, _)| number).collect();
        for number in logins {
            self.fail_login(
                number,
                &Report::fatal(b"57P03", "the database system is shutting down"),
            );
        }
        for number in 0..self.pools.len() as u32 {
            self.drain_queue(number);
        }
        self.stop_sessions();
        for slot in 0..self.backends.len() as u32 {
            let session = self.control.backends[slot as usize].session.load(SeqCst);
            if session != 0 {
                self.recall(slot, session);
            }
            self.retire_backend(slot);
        }
    }

    /// Without a line in the log: the server's end must not wait for thousands.
    pub fn end_by_administrator(&mut self, id: SessionId) {
        self.tell_and_end(id, &by_administrator());
    }

    /// Ends the sessions that nobody holds; called until none is left.
    fn stop_sessions(&mut self) {
        let ids: Vec<SessionId> = self.sessions.ids().collect();
        for id in ids {
            if self.is_ours(id) {
                self.end_by_administrator(id);
            }
        }
    }

    /// Does no backend hold this session?
    pub fn is_ours(&self, id: SessionId) -> bool {
        let slot = &self.control.sessions[index_of(id) as usize];
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        slot.owner.load(SeqCst) == 0
            && match session.place {
                Place::Idle | Place::Waiting | Place::Skipping(_) => true,
                // Given back by its backend, which says so in the state last.
                Place::Queue | Place::Backend(_) => slot.state.load(SeqCst) == STATE_IDLE,
            }
    }

    /// Goes on with stopping; called at each tick.
    pub fn stop_tick(&mut self) {
        let Some(stopping) = &self.stopping else {
            return;
        };
        let patience_over = self.now_us > stopping.since_us + PATIENCE_US;
        self.stop_sessions();
        if self.backend_count == 0 {
            info!("shut down");
            self.finished = true;
        } else if patience_over && process::exists(self.control.header.postmaster_pid.load(SeqCst))
        {
            // The server may take hours for a smart shutdown; only say so once.
            if let Some(stopping) = self.stopping.as_mut() {
                stopping.since_us = u64::MAX - PATIENCE_US;
            }
            warn!("{} backends still serve their sessions", self.backend_count);
        }
    }
}
