//! Backends are opened, attach, send messages that change contexts, and end.

use super::Scheduler;
use crate::core::{
    index_of, Attach, Ending, Event, Identity, Leaving, Ownership, SessionId, Tells,
};
use crate::protocol::opening::Failure;
use crate::protocol::Report;
use crate::shell::backends::opening::{self, NewBackend};
use crate::shell::events::work;
use crate::shell::link::connections::Offence;
use crate::shell::link::layout::shared::*;
use crate::shell::link::memory::arena::{Content, Full};
use crate::shell::link::memory::context::{Contexts, Staged};
use crate::shell::link::memory::work::Finished;
use crate::shell::link::wire::{BackendSays, Counters, Frame, Malformed, Writer};
use crate::shell::sys::{process, socket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use tracing::{debug, warn};

/// The ready queue, the ARENA, and one epoll for each thread.
const WELCOME_DESCRIPTORS: usize = 2 + SESSION_THREADS_MAX as usize;
const _: () = assert!(WELCOME_DESCRIPTORS <= socket::MAX_DESCRIPTORS);

/// The first message of a process that wants to be a backend of a pool.
pub struct Hello {
    pub slot: u32,
    pub secret: u64,
    pub pid: u32,
    pub identity: Identity,
}

/// Why a process may not be a backend of the pool.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Told(&'static str),
    /// The process cannot be reached, so it is not told the reason.
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
        let socket = opening::connect(&self.parameters)
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

    /// The connection of an opening backend is readable or writable.
    pub fn opening_event(&mut self, slot: u32) {
        let Err(failure) = self.openings.event(slot) else {
            return;
        };
        if self.links.is_attached(slot) {
            // From here on the control connection represents the backend.
            return self.openings.close(slot);
        }
        self.core.open_failed(slot, failure, &self.control);
        self.carry_out();
    }

    // ---- attaching ---------------------------------------------------------

    /// A process of the server says that it is the backend that was opened in a slot.
    /// `is_process`: its process ID is the one that it names.
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
        // If the process has ended, its connection has ended too, and the event loop soon
        // notices.
        let pidfd = process::pidfd(pid).map_err(|error| {
            warn!("could not get hold of backend {slot} (process ID {pid}): {error}");
            Refusal::Unreachable
        })?;
        let welcome = Welcome {
            layout_version: LAYOUT_VERSION,
            client_fd_number: self.sockets.number() as u32,
            arena_size: self.arena_size,
        };
        let frame = welcome.write(Writer::new(MSG_WELCOME, 0)).finish();
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

    /// A backend that an earlier dispatcher has started, and this one has adopted, has connected.
    /// `has`: the sessions that it holds, or has given back. `is_process`: it has this process ID.
    pub fn hello_again(
        &mut self,
        slot: u32,
        has: &[SessionId],
        connection: u32,
        socket: Arc<OwnedFd>,
        is_process: impl Fn(u32) -> bool,
    ) -> Result<(), Refusal> {
        let process = self.links.process_of(slot);
        if process == 0 || !is_process(process) {
            return Err(Refusal::Told("no backend of that process is expected"));
        }
        let Some(sessions) = self.links.comes_again(slot, connection, socket) else {
            return Err(Refusal::Told("no backend is expected in this slot"));
        };
        for id in sessions {
            if !has.contains(&id) {
                // It has ended when nobody heard of that.
                self.tell(Event::Ended(id, Ending::Cut));
            }
        }
        debug!("backend {slot} has come again, process ID {process}");
        Ok(())
    }

    /// Looks for adopted backends that have ended before they came again. Their sessions end, also
    /// those that they had given back: the changes that they had to tell of are lost.
    pub fn look_at_adopted(&mut self) {
        for (slot, sessions) in self.links.take_ended() {
            for id in sessions {
                self.tell(Event::Ended(id, Ending::Cut));
            }
            self.backend_gone(slot);
        }
    }

    // ---- the end -----------------------------------------------------------

    /// Ends the process of a backend that has sent a message that is not allowed. Returns its
    /// process ID (0: there is none).
    pub fn end_backend(&self, slot: u32) -> u32 {
        self.links.end(slot);
        self.links.process_of(slot)
    }

    /// Connections to which no more messages can be sent, and which are to be closed.
    pub fn take_failed_connections(&mut self) -> Vec<u32> {
        self.links.take_failed()
    }

    /// A backend's connection has ended.
    pub fn backend_gone(&mut self, slot: u32) {
        let mut staged = self.links.lost(slot);
        let changed = self.apply_no_more(slot).unwrap_or(staged.session);
        self.contexts.discard(&mut staged);
        // Changes have come, but not the RELEASE that returns the session. The session ends, as
        // it must not continue with its earlier context.
        let ownership = (self.core).ownership(slot, changed, Tells::InPlace, &self.control);
        if ownership == Ownership::Own {
            self.tell(Event::Ended(changed, Ending::Cut));
        }
        self.tell(Event::BackendGone(slot));
    }

    /// A backend of an earlier dispatcher has ended, and its slot is free.
    pub fn slot_freed(&mut self, slot: u32) {
        self.core.handle(Event::SlotFreed(slot), &self.control);
    }

    /// Is a session of this dispatcher in this slot?
    pub fn has_session_in(&self, index: u32) -> bool {
        self.core.sessions().in_slot(index).is_some()
    }
}

// ---- Messages of backends -------------------------------------------------
//
// The messages that backends send on their control connections.
//
// A backend runs users' code, in C too, so it is not trusted. Each message is parsed to its
// exact end, must be of a kind that backends send, and must name a session that this very
// backend can have (`Core::whose`). Otherwise the backend loses its connection and its process
// is ended; the session that it named is not affected. A message that came too late, because
// its session has ended meanwhile, is dropped.

impl Scheduler {
    pub fn backend_frame(&mut self, slot: u32, frame: Frame<'_>) -> Result<(), Offence> {
        let id = frame.session;
        match BackendSays::parse(&frame)?.ok_or(Offence::OutOfOrder)? {
            BackendSays::Put {
                kind,
                key,
                aux,
                counters,
                value,
            } => self.changed(slot, id, |contexts, staged| {
                contexts.stage_put(staged, Content { kind, key, value }, counters, aux);
            }),
            BackendSays::Delete { kind, key } => self.changed(slot, id, |contexts, staged| {
                contexts.stage_delete(staged, kind, key);
            }),
            BackendSays::Release => self.released(slot, id),
            BackendSays::Greeted {
                lasts,
                start_settings,
                notices,
                reported,
            } => {
                let is_due = self.owns(slot, id, Tells::InPlace)?;
                if !is_due {
                    self.drop_staged(slot);
                    return Ok(());
                }
                let session = self.core.sessions().get(id);
                if !session.is_some_and(|session| session.is_ungreeted()) {
                    return Err(Offence::OutOfOrder);
                }
                let greeted = Greeted {
                    lasts,
                    start_settings,
                    notices: notices.to_vec(),
                    reported: reported.to_vec(),
                };
                self.greeted(slot, id, greeted);
                Ok(())
            }
            BackendSays::Ended { is_cut } => {
                let is_due = self.owns(slot, id, Tells::InPlace)?;
                self.drop_staged(slot);
                if is_due {
                    let ending = if is_cut { Ending::Cut } else { Ending::Left };
                    self.tell(Event::Ended(id, ending));
                }
                self.tell(Event::MayBeFree(slot));
                Ok(())
            }
            // This message concerns only the backend itself; it may have released the session
            // meanwhile.
            BackendSays::Dedicated { has_cause } => {
                if !self.core.sessions().was_there(id) {
                    return Err(Offence::Foreign(id));
                }
                self.tell(Event::Dedicated(slot, has_cause));
                Ok(())
            }
            BackendSays::Retiring { cause, why } => {
                let why = String::from_utf8_lossy(why);
                let cause = match cause {
                    RETIRES_ASKED => Leaving::Asked,
                    RETIRES_SETTINGS => Leaving::Outdated,
                    _ => Leaving::Unclean,
                };
                debug!("backend {slot} retires: {cause:?} {why}");
                self.tell(Event::Leaves { slot, cause });
                Ok(())
            }
        }
    }

    /// Does the session belong to this backend? False: the session has ended meanwhile.
    fn owns(&self, slot: u32, id: SessionId, tells: Tells) -> Result<bool, Offence> {
        match self.core.ownership(slot, id, tells, &self.control) {
            Ownership::Own => Ok(true),
            Ownership::Past => Ok(false),
            Ownership::Foreign => Err(Offence::Foreign(id)),
        }
    }

    /// PUT and DELETE: stages the change until the session is released.
    fn changed(
        &mut self,
        slot: u32,
        id: SessionId,
        stage: impl FnOnce(&mut Contexts, &mut Staged),
    ) -> Result<(), Offence> {
        if !self.owns(slot, id, Tells::InPlace)? {
            self.drop_staged(slot);
            return Ok(());
        }
        let mut staged = self.staged_of(slot, id);
        stage(&mut self.contexts, &mut staged);
        self.put_staged(slot, staged);
        Ok(())
    }

    /// The longest payload of a message that can be used, in bytes.
    pub fn longest_value(&self) -> usize {
        self.contexts.longest_value()
    }

    /// A backend has sent a message for this session that is longer than `longest_value`.
    pub fn too_long(&mut self, slot: u32, kind: u32, id: SessionId) -> Result<(), Offence> {
        if kind != MSG_PUT {
            return Err(Malformed.into());
        }
        self.changed(slot, id, Contexts::stage_too_much)
    }

    /// The changes that the backend has staged for this session. Changes of another session are
    /// discarded.
    pub(super) fn staged_of(&mut self, slot: u32, id: SessionId) -> Staged {
        let mut staged = self.take_staged(slot);
        if staged.session != id {
            self.contexts.discard(&mut staged);
            staged.session = id;
        }
        staged
    }

    fn released(&mut self, slot: u32, id: SessionId) -> Result<(), Offence> {
        let is_due = id != 0 && self.owns(slot, id, Tells::Back)?;
        self.tell(Event::MayBeFree(slot));
        if !is_due {
            self.drop_staged(slot);
            return Ok(());
        }
        self.apply_staged(slot, id, Then::Released);
        Ok(())
    }

    /// A PUT of a long value; `payload` is the payload of the whole message.
    pub fn put_long(&mut self, slot: u32, id: SessionId, payload: Vec<u8>) -> Result<(), Offence> {
        let frame = Frame {
            kind: MSG_PUT,
            session: id,
            more: false,
            payload: &payload,
        };
        let Some(BackendSays::Put {
            kind,
            key,
            aux,
            counters,
            value,
        }) = BackendSays::parse(&frame)?
        else {
            return Err(Malformed.into());
        };
        if !self.owns(slot, id, Tells::InPlace)? {
            self.drop_staged(slot);
            return Ok(());
        }
        let (key, length) = (key.to_vec(), value.len());
        let mut staged = self.staged_of(slot, id);
        let item = (kind, key.as_slice());
        if (self.contexts).store(&mut staged, item, length, payload, slot) {
            self.takes_long(slot, id, Then::Stored { counters, aux });
        }
        self.put_staged(slot, staged);
        Ok(())
    }

    pub(super) fn take_staged(&mut self, slot: u32) -> Staged {
        self.links.take_staged(slot)
    }

    pub(super) fn put_staged(&mut self, slot: u32, staged: Staged) {
        if let Err(mut staged) = self.links.put_staged(slot, staged) {
            self.contexts.discard(&mut staged);
        }
    }

    fn drop_staged(&mut self, slot: u32) {
        let mut staged = self.links.take_staged(slot);
        self.contexts.discard(&mut staged);
    }
}

// ---- Changes of contexts --------------------------------------------------
//
// Changes that backends have sent become part of their sessions' contexts: at once, or, if
// there are many, over several rounds.
//
// Until that is complete the dispatcher reads nothing more from the backend: its later
// messages, and its end, are handled afterwards. To the core this is a message that takes long.

/// What a backend reports about its greeting of a session.
pub struct Greeted {
    pub lasts: u32,
    pub start_settings: u64,
    pub notices: Vec<u8>,
    pub reported: Vec<u8>,
}

/// What follows when the changes have been applied.
pub enum Then {
    Released,
    Greeted(Greeted),
    /// The value of a PUT has been stored.
    Stored {
        counters: Option<Counters>,
        aux: i64,
    },
}

/// A backend's message whose processing is not complete.
pub(super) struct Pending {
    id: SessionId,
    then: Then,
}

impl Scheduler {
    /// RELEASE or GREETED: the staged changes become part of the session's context.
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
        // The arena's own count has what the session's backend had claimed.
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.claimed.store(0, SeqCst);
        self.control.has_heard(index_of(id));
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

    /// Is a message of this backend still being processed? Nothing more is read from it
    /// meanwhile.
    pub fn is_busy_with(&self, slot: u32) -> bool {
        self.pending.contains_key(&slot)
    }

    /// Processes one slice of the pending changes; called at the end of each round.
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

    /// Work done since the last call, in pieces (events.rs).
    pub fn take_work(&mut self) -> usize {
        self.contexts.take_work()
            + self.begun.take_work()
            + self.skippers.take_work()
            + std::mem::take(&mut self.actions) * work::ACTION
    }

    /// The connections of backends from which the event loop reads again.
    pub fn take_heard_again(&mut self) -> Vec<u32> {
        let slots = std::mem::take(&mut self.heard_again);
        let connections = slots.iter().map(|slot| self.links.connection_of(*slot));
        connections.flatten().collect()
    }

    /// The backend has gone. Returns the session that its pending message was about.
    pub(super) fn apply_no_more(&mut self, slot: u32) -> Option<SessionId> {
        let pending = self.pending.remove(&slot)?;
        self.contexts.cancel_task(slot);
        Some(pending.id)
    }

    /// The session has ended: its pending changes are dropped.
    pub(super) fn nothing_is_applied(&mut self, id: SessionId) {
        let mut pending = self.pending.iter();
        let slot = pending.find(|(_, pending)| pending.id == id);
        if let Some(slot) = slot.map(|(slot, _)| *slot) {
            self.apply_no_more(slot);
            self.heard_again.push(slot);
        }
    }
}
