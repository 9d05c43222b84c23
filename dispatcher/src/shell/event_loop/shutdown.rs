//! The end: of the server, or of this dispatcher.
//!
//! On the first sign the ports close. Sessions that no backend holds end at
//! once with 57P01, as do the others when their backend gives them back; the
//! server itself ends backends, or lets them finish, by the kind of shutdown
//! it was asked for. The dispatcher ends when no backend is left, or with the
//! postmaster. Native sessions by TLS are backends like others there: the server lets
//! WAL senders go on until standbys have all, and transactions at a smart stop.

use super::Dispatcher;
use crate::core::Event;
use crate::shell::sys::epoll::{self, Epoll};
use crate::shell::sys::process;
use crate::shell::tokens::{token, Source};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use tracing::{info, warn};

/// With SIGTERM only this process ends, and does not wait for ever.
const PATIENCE_US: u64 = 30_000_000;

/// What tells of the end, and whether it has begun.
pub struct Server {
    epoll: Arc<Epoll>,
    postmaster: OwnedFd,
    pid_file: Option<OwnedFd>,
    signals: OwnedFd,
    /// Since when; None: it goes on.
    stopping_since_us: Option<u64>,
    /// It is the server that stops, not this process alone.
    is_stopping_itself: bool,
}

impl Server {
    pub fn new(epoll: &Arc<Epoll>, postmaster: OwnedFd, signals: OwnedFd) -> io::Result<Server> {
        let pid_file = match process::watch_file(Path::new("postmaster.pid")) {
            Ok(file) => Some(file),
            Err(error) => {
                warn!("could not watch postmaster.pid: {error}");
                None
            }
        };
        let watch = |fd: &OwnedFd, source| epoll.add(fd.as_raw_fd(), epoll::IN, token(source, 0));
        watch(&postmaster, Source::Postmaster)?;
        watch(&signals, Source::Signals)?;
        if let Some(file) = &pid_file {
            watch(file, Source::PidFile)?;
        }
        Ok(Server {
            epoll: Arc::clone(epoll),
            postmaster,
            pid_file,
            signals,
            stopping_since_us: None,
            is_stopping_itself: false,
        })
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping_since_us.is_some()
    }

    /// postmaster.pid's eighth line is the server's status
    /// (LOCK_FILE_LINE_PM_STATUS, miscadmin.h).
    fn says_that_it_stops(&self, data_directory: &str) -> bool {
        if let Some(file) = &self.pid_file {
            process::drain(file);
        }
        let path = Path::new(data_directory).join("postmaster.pid");
        let status = std::fs::read_to_string(path);
        status.is_ok_and(|text| {
            (text.lines().nth(7)).is_some_and(|status| status.trim() == "stopping")
        })
    }

    /// Has it taken too long? Said once.
    fn is_patience_over(&mut self, now_us: u64) -> bool {
        let since = self.stopping_since_us.as_mut();
        since.is_some_and(|since| {
            let is_over = now_us > *since + PATIENCE_US;
            if is_over {
                *since = u64::MAX - PATIENCE_US;
            }
            is_over
        })
    }
}

impl Dispatcher {
    pub(super) fn signalled(&mut self) {
        process::drain(&self.server.signals);
        self.stop("asked by a signal");
    }

    pub(super) fn postmaster_gone(&mut self) {
        let _ = (self.server.epoll).delete(self.server.postmaster.as_raw_fd());
        self.stop("the postmaster has gone");
        self.scheduler.tell(Event::Abandon);
        self.finished = true;
    }

    /// postmaster.pid has changed.
    pub(super) fn pid_file_changed(&mut self) {
        let directory = &self.parameters.data_directory;
        if self.server.says_that_it_stops(directory) {
            self.server_stops();
        }
    }

    pub(super) fn server_stops(&mut self) {
        self.server.is_stopping_itself = true;
        self.stop("the server is stopping");
    }

    /// Begins to stop.
    pub(super) fn stop(&mut self, why: &str) {
        if self.server.is_stopping() {
            return;
        }
        info!("shutting down: {why}");
        self.server.stopping_since_us = Some(self.now.us);
        self.ports.close();
        self.logins.stop();
        self.logins_want();
        self.scheduler.stop();
    }

    /// Goes on with stopping; called at each tick.
    pub(super) fn stop_tick(&mut self) {
        if !self.server.is_stopping() {
            return;
        }
        // By a signal to this process alone it would be waited for as long as they last.
        let relayed = match self.server.is_stopping_itself {
            true => self.natives.relayed(),
            false => 0,
        };
        let left = self.scheduler.backend_count() + relayed;
        if left == 0 && !self.scheduler.is_ending() {
            info!("shut down");
            self.finished = true;
        } else if left > 0
            && self.server.is_patience_over(self.now.us)
            && !process::has_ended(&self.server.postmaster)
        {
            // The server may take hours for a smart shutdown; only say so once.
            warn!("{left} backends still serve their sessions");
        }
    }
}
