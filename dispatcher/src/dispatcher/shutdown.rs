//! The end: of the server, or of this dispatcher.
//!
//! On the first sign the ports close. Sessions that no backend holds end at
//! once with 57P01, as do the others when their backend gives them back; the
//! server itself ends backends, or lets them finish, by the kind of shutdown
//! it was asked for. The dispatcher ends when no backend is left, or with the
//! postmaster.

use super::event_loop::Dispatcher;
use super::login::listeners;
use super::sys::process;
use crate::core::Event;
use crate::protocol::Report;
use std::sync::atomic::Ordering::SeqCst;
use tracing::{info, warn};

/// A shutdown that is under way.
pub struct Stopping {
    since_us: u64,
}

/// With SIGTERM only this process ends, and does not wait for ever.
const PATIENCE_US: u64 = 30_000_000;

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
        self.tell(Event::Abandon);
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
        self.tell(Event::Stop);
    }

    /// Goes on with stopping; called at each tick.
    pub fn stop_tick(&mut self) {
        let Some(stopping) = &self.stopping else {
            return;
        };
        let patience_over = self.now_us > stopping.since_us + PATIENCE_US;
        if self.core.backend_count() == 0 {
            info!("shut down");
            self.finished = true;
        } else if patience_over && process::exists(self.control.header.postmaster_pid.load(SeqCst))
        {
            // The server may take hours for a smart shutdown; only say so once.
            if let Some(stopping) = self.stopping.as_mut() {
                stopping.since_us = u64::MAX - PATIENCE_US;
            }
            let left = self.core.backend_count();
            warn!("{left} backends still serve their sessions");
        }
    }
}
