//! Backends: opened, attached, and gone.

use super::Scheduler;
use crate::core::{Attach, Ending, Event, Identity, Tells, Whose};
use crate::protocol::opening::Failure;
use crate::shell::backends::opening::NewBackend;
use crate::shell::backends::server;
use crate::shell::link::layout::shared::*;
use crate::shell::link::wire::{Malformed, Writer};
use crate::shell::sys::{process, socket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use tracing::{debug, warn};

/// The ready queue, the ARENA, and an epoll a thread.
const WELCOME_DESCRIPTORS: usize = 2 + SESSION_THREADS_MAX as usize;
const _: () = assert!(WELCOME_DESCRIPTORS <= socket::MAX_DESCRIPTORS);

/// What a process says that wants to be a backend of a pool.
pub struct Hello {
    pub slot: u32,
    pub secret: u64,
    pub pid: u32,
    pub identity: Identity,
}

/// Why it may not.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Told(&'static str),
    /// Nothing can be told it.
    #[error("could not welcome a backend")]
    Unreachable,
}

impl Scheduler {
    // ---- opening -----------------------------------------------------------

    /// Begins to open a backend for a pool.
    pub(super) fn open_backend(&mut self, slot: u32, pool: u32) {
        if let Err(failure) = self.try_to_open(slot, pool) {
            self.core.open_failed(slot, failure, &self.control);
        }
    }

    fn try_to_open(&mut self, slot: u32, pool: u32) -> Result<(), Failure> {
        let failed = |text| Failure::Protocol(text);
        let Some(key) = self.core.pool_key(pool).cloned() else {
            return Err(failed("its pool has gone".into()));
        };
        let Some(role) = self.core.starts_as(pool) else {
            return Err(failed("its pool has nobody left".into()));
        };
        (self.queues.open(pool))
            .map_err(|error| failed(format!("could not create a ready queue: {error}")))?;
        let socket = server::connect(&self.parameters)
            .map_err(|error| failed(format!("could not connect to the server: {error}")))?;
        let secret = loop {
            let secret: u64 = rand::random();
            if secret != 0 {
                break secret;
            }
        };
        let new = NewBackend {
            slot,
            key: &key,
            role: &role,
            secret,
            db_user_namespace: self.parameters.db_user_namespace,
        };
        let memory = &self.control.backends[slot as usize];
        let (now, starts) = (self.now.shared_us, self.starts);
        self.openings.begin(new, socket, || {
            memory.pool.store(pool, SeqCst);
            memory.starts.store(starts, SeqCst);
            memory.session.store(0, SeqCst);
            memory.cancel.store(0, SeqCst);
            memory.pid.store(0, SeqCst);
            memory.attach_token.store(secret, SeqCst);
            memory.state_since_us.store(now, SeqCst);
            memory.state.store(BACKEND_STARTING, SeqCst);
            debug!("starting backend {slot} for pool {pool}");
        })
    }

    /// Something is to be read or written on an opening backend's connection.
    pub fn opening_event(&mut self, slot: u32) {
        let Err(failure) = self.openings.event(slot) else {
            return;
        };
        if self.links.is_attached(slot) {
            // The control connection tells from here on.
            return self.openings.close(slot);
        }
        self.core.open_failed(slot, failure, &self.control);
        self.carry_out();
    }

    // ---- attaching ---------------------------------------------------------

    /// A process of the server says that it is the backend that was opened in a
    /// slot. `is_process`: it is the one that it says.
    pub fn hello_backend(
        &mut self,
        hello: &Hello,
        connection: u32,
        socket: Arc<OwnedFd>,
        is_process: bool,
    ) -> Result<(), Refusal> {
        let Hello { slot, pid, .. } = *hello;
        let Some(memory) = self.control.backends.get(slot as usize) else {
            return Err(Malformed.into());
        };
        if self.core.backend(slot).is_none() || self.links.is_attached(slot) {
            return Err(Refusal::Told("no backend is expected in this slot"));
        }
        if hello.secret == 0 || memory.attach_token.load(SeqCst) != hello.secret {
            return Err(Refusal::Told("the token is wrong"));
        }
        if !is_process {
            return Err(Refusal::Told("the process id is wrong"));
        }
        let verdict = (self.core).may_attach(slot, hello.identity, &self.control);
        let Attach::Welcome(pool) = verdict else {
            self.carry_out();
            return Err(Refusal::Told(match verdict {
                Attach::Stranger => "it is not who its pool is for",
                _ => "no backend is expected in this slot",
            }));
        };
        // Should it have ended, then so has its connection, which is seen soon.
        let pidfd = process::pidfd(pid).map_err(|error| {
            warn!("could not get hold of backend {slot} (process ID {pid}): {error}");
            Refusal::Unreachable
        })?;
        let frame = Writer::new(MSG_WELCOME, 0)
            .u32(LAYOUT_VERSION)
            .u32(self.sockets.number() as u32)
            .u64(self.arena_size)
            .finish();
        let mut carried = vec![self.queues.end(pool), self.arena_fd.as_raw_fd()];
        carried.extend(self.sockets.epolls());
        if let Err(error) = socket::send_with_descriptors(socket.as_raw_fd(), &frame, &carried) {
            warn!("could not welcome a backend: {error}");
            return Err(Refusal::Unreachable);
        }
        memory.attach_token.store(0, SeqCst);
        memory.pid.store(pid, SeqCst);
        self.openings.close(slot);
        self.links.attach(slot, connection, socket, (pid, pidfd));
        debug!("backend {slot} has attached, process ID {pid}");
        self.tell(Event::Attached(slot));
        Ok(())
    }

    // ---- the end -----------------------------------------------------------

    /// It has said what it may not: its process has to end. Which one that is (0:
    /// none).
    pub fn end_backend(&self, slot: u32) -> u32 {
        self.links.end(slot);
        self.links.process_of(slot)
    }

    /// Connections of backends that take no more.
    pub fn take_failed_connections(&mut self) -> Vec<u32> {
        self.links.take_failed()
    }

    /// A backend's connection has ended.
    pub fn backend_gone(&mut self, slot: u32) {
        let mut staged = self.links.lost(slot);
        let changed = self.apply_no_more(slot).unwrap_or(staged.session);
        self.contexts.discard(&mut staged);
        // Changes that came without the word that gives the session back: it must
        // not go on with what it had before.
        let whose = (self.core).whose(slot, changed, Tells::InPlace, &self.control);
        if whose == Whose::Theirs {
            self.tell(Event::Ended(changed, Ending::Cut));
        }
        self.tell(Event::BackendGone(slot));
    }

    /// The slot of an earlier dispatcher's backend, which has ended.
    pub fn slot_freed(&mut self, slot: u32) {
        self.core.handle(Event::SlotFreed(slot), &self.control);
    }

    /// Has a session of ours this slot?
    pub fn has_session_in(&self, index: u32) -> bool {
        self.core.sessions().in_slot(index).is_some()
    }
}
