//! Control connections: from backends, from the launcher, from views.
//!
//! Each is a packet socket; its first frame says what it is, within a time. A
//! connection whose frames make no sense, or say what cannot be
//! (backend_frames.rs), is closed, which for a backend means its end.
//! What is read from one connection in one go is bounded, and so is what a
//! backend may stage.

use super::layout::shared::*;
use super::memory::context::Staged;
use super::wire::{Frame, Malformed, Reader, Writer};
use crate::core::{Attach, Ending, Event, Identity, SessionId, Tells, Whose};
use crate::dispatcher::event_loop::{token, Dispatcher, Source};
use crate::dispatcher::login::listeners::is_out_of_descriptors;
use crate::dispatcher::sys::{epoll, process, socket};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use tracing::{debug, info, warn};

/// Packets taken from one connection before others get their turn.
const PACKETS_A_ROUND: usize = 64;
/// Open control connections beyond one a backend.
pub const SPARE_CONNECTIONS: usize = 200;
/// Longest value that a backend may send in pieces.
const LONGEST_VALUE: usize = 1 << 30;

/// Who has connected says what he is within this.
const HELLO_LIMIT_US: u64 = 5_000_000;

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Offence {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("it is not its turn to say that")]
    OutOfOrder,
    #[error("it spoke of session {0:x}, which it does not hold")]
    NotTheirs(SessionId),
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Unknown,
    Backend(u32),
    Launcher,
    Query,
    /// Holds a database (holds.rs).
    Holder,
    /// A native session's backend.
    Native,
    /// A backend that authenticates the client of this login.
    Authenticator(u32, u64),
}

/// A connection that has not said what it is.
#[derive(Clone, Copy, Debug)]
pub struct Silent {
    number: u32,
    serial: u64,
    since_us: u64,
}

/// One control connection.
pub struct Connection {
    socket: OwnedFd,
    /// Tells it from an earlier one of its number; 0: it was never unknown.
    serial: u64,
    pub peer: Peer,
    /// A backend's process, as the kernel told it; 0 if it is none's.
    pub process: u32,
    pub(super) staged: Staged,
    /// A payload that comes in several frames, so far, and of what they are.
    partial: Option<(u32, SessionId, Vec<u8>)>,
    /// Not sent yet; only views and the launcher have some.
    pub unsent: VecDeque<Vec<u8>>,
    close_when_sent: bool,
    pub dead: bool,
}

impl Connection {
    pub fn new(socket: OwnedFd, peer: Peer) -> Connection {
        Connection {
            socket,
            serial: 0,
            peer,
            process: 0,
            staged: Staged::default(),
            partial: None,
            unsent: VecDeque::new(),
            close_when_sent: false,
            dead: false,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// After these nothing more is to be expected at once; if there is, the epoll
/// says so again.
fn is_last_word(packet: &[u8]) -> bool {
    Frame::parse(packet).is_ok_and(|frame| {
        matches!(
            frame.kind,
            MSG_END | MSG_RELEASE | MSG_GREETED | MSG_LOGIN_ANSWER
        )
    })
}

impl Dispatcher {
    pub fn accept_connections(&mut self) {
        for _ in 0..PACKETS_A_ROUND {
            let socket = match socket::accept(self.control_listener.as_raw_fd()) {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_out_of_descriptors(&error) => {
                    return self.let_rest(Source::ControlListener, 0, &error);
                }
                // It is gone already: next.
                Err(error) => {
                    debug!("could not accept a control connection: {error}");
                    continue;
                }
            };
            match socket::peer(socket.as_raw_fd()) {
                Ok((_, uid)) if uid == process::own_uid() || uid == 0 => {}
                _ => {
                    warn!("a process of another user tried to use the control socket");
                    continue;
                }
            }
            self.add_unknown(socket);
        }
    }

    /// As many as there is room for; beyond that, whoever has been silent longest
    /// makes room: who is about to attach speaks at once.
    fn add_unknown(&mut self, socket: OwnedFd) {
        if !self.connections.has_room() {
            while let Some(silent) = self.unidentified.pop_front() {
                if self.is_still_silent(silent) {
                    let connection = self.connections.remove(silent.number);
                    connection.inspect(|it| drop(self.epoll.delete(it.fd())));
                    break;
                }
            }
        }
        self.next_serial += 1;
        let serial = self.next_serial;
        let mut connection = Connection::new(socket, Peer::Unknown);
        connection.serial = serial;
        if let Some(number) = self.add_connection(connection) {
            self.unidentified.push_back(Silent {
                number,
                serial,
                since_us: self.now_us,
            });
        }
    }

    fn is_still_silent(&self, silent: Silent) -> bool {
        self.connections.get(silent.number).is_some_and(|found| {
            found.serial == silent.serial && found.peer == Peer::Unknown && !found.dead
        })
    }

    /// Once a second: who has not said what he is.
    pub fn expire_silent(&mut self) {
        while let Some(silent) = self.unidentified.front().copied() {
            if self.now_us < silent.since_us + HELLO_LIMIT_US {
                return;
            }
            self.unidentified.pop_front();
            if self.is_still_silent(silent) {
                warn!("a control connection is closed: it has not said what it is");
                self.connection_dead(silent.number);
            }
        }
    }

    pub fn add_connection(&mut self, connection: Connection) -> Option<u32> {
        let fd = connection.fd();
        let number = self.connections.insert(connection)?;
        if self
            .epoll
            .add(fd, epoll::IN, token(Source::Control, number))
            .is_err()
        {
            self.connections.remove(number);
            return None;
        }
        Some(number)
    }

    pub fn connection_event(&mut self, number: u32, events: u32) {
        if events & epoll::OUT != 0 {
            self.send_unsent(number);
        }
        if events & (epoll::IN | epoll::HUP | epoll::ERR) != 0 {
            self.read_connection(number, PACKETS_A_ROUND);
        }
    }

    fn read_connection(&mut self, number: u32, most: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        if buffer.is_empty() {
            // Another connection's is being read.
            buffer = vec![0; FRAME_MAX as usize];
        }
        for _ in 0..most {
            let Some(connection) = self.connections.get(number).filter(|found| !found.dead) else {
                break;
            };
            match socket::receive(connection.fd(), &mut buffer) {
                Ok(0) => {
                    self.connection_dead(number);
                    break;
                }
                Ok(length) => {
                    if let Err(offence) = self.packet(number, &buffer[..length]) {
                        self.expel(number, offence);
                        break;
                    }
                    if most == PACKETS_A_ROUND && is_last_word(&buffer[..length]) {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.connection_dead(number);
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    /// A connection that said what it may not. A backend's process has its slot
    /// no longer, and must not go on writing there: it is told to end.
    fn expel(&mut self, number: u32, offence: Offence) {
        let Some(connection) = self.connections.get(number) else {
            return;
        };
        let (peer, process) = (connection.peer, connection.process);
        match peer {
            Peer::Backend(slot) => {
                warn!("backend {slot} (process ID {process}) is ended: {offence}");
                if let Err(error) = process::end(process) {
                    debug!("could not signal process {process}: {error}");
                }
            }
            _ => warn!("a control connection ({peer:?}) is closed: {offence}"),
        }
        self.connection_dead(number);
    }

    /// It will be buried at the end of the round.
    pub fn connection_dead(&mut self, number: u32) {
        if let Some(connection) = self.connections.get_mut(number) {
            if !connection.dead {
                connection.dead = true;
                let fd = connection.fd();
                let _ = self.epoll.delete(fd);
                socket::shutdown(fd);
                self.dead_connections.push(number);
            }
        }
    }

    pub fn bury_dead(&mut self) {
        while let Some(number) = self.dead_connections.pop() {
            let Some(mut connection) = self.connections.remove(number) else {
                continue;
            };
            let changed = connection.staged.session;
            self.contexts.discard(&mut connection.staged);
            match connection.peer {
                Peer::Backend(slot) => {
                    // Changes that came without the word that gives the session
                    // back: it must not go on with what it had before.
                    let whose = self
                        .core
                        .whose(slot, changed, Tells::InPlace, &self.control);
                    if whose == Whose::Theirs {
                        self.tell(Event::Ended(changed, Ending::Cut));
                    }
                    self.tell(Event::BackendGone(slot));
                }
                Peer::Launcher => self.launcher_gone(number),
                Peer::Holder => self.tell(Event::HoldEnded(number)),
                Peer::Native => {
                    self.natives.remove(&number);
                }
                Peer::Authenticator(login, serial) => self.not_authenticated(login, serial),
                Peer::Query | Peer::Unknown => {}
            }
        }
    }

    fn packet(&mut self, number: u32, packet: &[u8]) -> Result<(), Offence> {
        let frame = Frame::parse(packet)?;
        let Some(connection) = self.connections.get_mut(number) else {
            return Ok(());
        };
        if !frame.more && connection.partial.is_none() {
            return self.frame(number, frame);
        }
        // Who has not said what he is must not have us keep anything.
        if !matches!(connection.peer, Peer::Backend(_) | Peer::Launcher) {
            return Err(Offence::OutOfOrder);
        }
        let (kind, session, bytes) =
            (connection.partial).get_or_insert_with(|| (frame.kind, frame.session, Vec::new()));
        if (*kind, *session) != (frame.kind, frame.session) {
            return Err(Offence::OutOfOrder);
        }
        if bytes.len() + frame.payload.len() > LONGEST_VALUE {
            return Err(Malformed.into());
        }
        bytes.extend_from_slice(frame.payload);
        if frame.more {
            return Ok(());
        }
        let (_, _, whole) = connection.partial.take().unwrap_or_default();
        self.frame(
            number,
            Frame {
                payload: &whole,
                ..frame
            },
        )
    }

    fn frame(&mut self, number: u32, frame: Frame<'_>) -> Result<(), Offence> {
        let Some(connection) = self.connections.get(number) else {
            return Ok(());
        };
        match connection.peer {
            Peer::Unknown => self.hello(number, frame),
            Peer::Holder if frame.kind == MSG_HELLO_QUERY => self.hello(number, frame),
            Peer::Backend(slot) => self.backend_frame(number, slot, frame),
            Peer::Launcher => Ok(self.launcher_frame(frame)?),
            Peer::Authenticator(login, serial) if frame.kind == MSG_AUTHENTICATED => {
                Reader(frame.payload).end()?;
                self.set_peer(number, Peer::Query);
                self.authenticated_by_server(login, serial);
                Ok(())
            }
            Peer::Native if frame.kind == MSG_NATIVE_IN => {
                let mut reader = Reader(frame.payload);
                let (role, superuser) = (reader.u32()?, reader.u8()? != 0);
                reader.end()?;
                let why = self.native_is_in(number, role, superuser).err();
                let why = why.map(|why| (why.message, why.detail.unwrap_or_default()));
                let (message, detail) = why.unwrap_or_default();
                let answer = Writer::new(MSG_NATIVE_ANSWER, 0);
                let answer = answer.string(&message).string(&detail);
                if let Some(connection) = self.connections.get_mut(number) {
                    connection.unsent.push_back(answer.finish());
                }
                self.send_unsent(number);
                Ok(())
            }
            Peer::Query | Peer::Holder | Peer::Native | Peer::Authenticator(..) => {
                Err(Offence::OutOfOrder)
            }
        }
    }

    fn hello(&mut self, number: u32, frame: Frame<'_>) -> Result<(), Offence> {
        let mut reader = Reader(frame.payload);
        let version = reader.u32()?;
        if version != LAYOUT_VERSION {
            self.refuse(
                number,
                &format!("layout version {version} is not {LAYOUT_VERSION}"),
            );
            return Ok(());
        }
        if frame.kind == MSG_HELLO_BACKEND {
            let (slot, secret, pid) = (reader.u32()?, reader.u64()?, reader.u32()?);
            let identity = Identity {
                role_oid: reader.u32()?,
                database_oid: reader.u32()?,
                superuser: reader.u8()? != 0,
            };
            reader.end()?;
            return Ok(self.hello_backend(number, slot, secret, pid, identity)?);
        }
        if frame.kind == MSG_HELLO_TICKET {
            let (ticket, pid) = (reader.u64()?, reader.u32()?);
            reader.end()?;
            if !self.hello_ticket(number, ticket, pid) {
                self.refuse(number, "the ticket is not good");
            }
            return Ok(());
        }
        if reader.u64()? != self.control.secret {
            self.refuse(number, "the secret is wrong");
            return Ok(());
        }
        let what = reader.u32()?;
        match frame.kind {
            MSG_HELLO_LAUNCHER => {
                reader.end()?;
                info!("a new launcher (process ID {what}) has connected");
                self.set_peer(number, Peer::Launcher);
                self.launcher_connected(number);
                Ok(())
            }
            MSG_HELLO_QUERY if what == QUERY_LEAVE_DATABASE => {
                Ok(self.hold_database(number, frame.session, reader)?)
            }
            MSG_HELLO_QUERY => {
                reader.end()?;
                self.set_peer(number, Peer::Query);
                match what {
                    _ if self.core.sessions().get(frame.session).is_none() => {}
                    QUERY_CANCEL => self.tell(Event::Cancel(frame.session)),
                    QUERY_TERMINATE => self.tell(Event::Terminate(frame.session)),
                    _ => {}
                }
                let mut rows = self.answer_query(what);
                rows.push(Writer::new(MSG_DONE, 0).finish());
                if let Some(connection) = self.connections.get_mut(number) {
                    connection.unsent = rows.into();
                    connection.close_when_sent = true;
                }
                self.send_unsent(number);
                Ok(())
            }
            _ => Err(Offence::OutOfOrder),
        }
    }

    /// Takes or confirms a hold on a database (holds.rs), and answers who is
    /// there: a row a user.
    fn hold_database(
        &mut self,
        number: u32,
        own: SessionId,
        mut reader: Reader<'_>,
    ) -> Result<(), Malformed> {
        let forced = reader.u8()? != 0;
        let database = reader.string()?;
        reader.end()?;
        self.core.hold(number, database, forced, own);
        self.carry_out();
        let users = self.core.who_is_in(number, &self.control);
        self.carry_out();
        if let Some(connection) = self.connections.get_mut(number) {
            connection.peer = Peer::Holder;
            for (user, count) in users {
                let row = Writer::new(MSG_ROW, 0).u32(2).string(&user);
                let row = row.string(count.to_string().as_bytes());
                connection.unsent.push_back(row.finish());
            }
            let done = Writer::new(MSG_DONE, 0).finish();
            connection.unsent.push_back(done);
        }
        self.send_unsent(number);
        Ok(())
    }

    fn set_peer(&mut self, number: u32, peer: Peer) {
        if let Some(connection) = self.connections.get_mut(number) {
            connection.peer = peer;
        }
    }

    fn refuse(&mut self, number: u32, why: &str) {
        warn!("a control connection was refused: {why}");
        if let Some(connection) = self.connections.get(number) {
            let frame = Writer::new(MSG_REFUSED, 0).string(why.as_bytes()).finish();
            let _ = socket::send(connection.fd(), &frame);
        }
        self.connection_dead(number);
    }

    fn hello_backend(
        &mut self,
        number: u32,
        slot: u32,
        secret: u64,
        pid: u32,
        identity: Identity,
    ) -> Result<(), Malformed> {
        let Some(memory) = self.control.backends.get(slot as usize) else {
            return Err(Malformed);
        };
        let is_expected =
            self.core.backend(slot).is_some() && self.attached[slot as usize].is_none();
        if !is_expected {
            self.refuse(number, "no backend is expected in this slot");
            return Ok(());
        }
        if secret == 0 || memory.attach_token.load(SeqCst) != secret {
            self.refuse(number, "the token is wrong");
            return Ok(());
        }
        let Some(connection) = self.connections.get(number) else {
            return Ok(());
        };
        let fd = connection.fd();
        if !socket::peer(fd).is_ok_and(|(peer, _)| peer == pid) {
            self.refuse(number, "the process id is wrong");
            return Ok(());
        }
        let verdict = self.core.may_attach(slot, identity, &self.control);
        let pool = match verdict {
            Attach::Welcome(pool) => pool,
            refused => {
                let why = match refused {
                    Attach::Stale => "settings that it has read when it started have changed",
                    Attach::Stranger => "it is not who its pool is for",
                    _ => "no backend is expected in this slot",
                };
                self.refuse(number, why);
                self.carry_out();
                return Ok(());
            }
        };
        let frame = Writer::new(MSG_WELCOME, 0)
            .u32(LAYOUT_VERSION)
            .u32(self.client_number.number() as u32)
            .u64(self.arena_size)
            .finish();
        let mut descriptors = vec![self.queue_end(pool), self.arena_fd.as_raw_fd()];
        descriptors.extend(self.session_epolls.iter().map(|epoll| epoll.as_raw_fd()));
        if let Err(error) = socket::send_descriptors(fd, &frame, &descriptors) {
            warn!("could not welcome a backend: {error}");
            self.connection_dead(number);
            return Ok(());
        }
        memory.attach_token.store(0, SeqCst);
        memory.pid.store(pid, SeqCst);
        self.close_opening(slot);
        self.attached[slot as usize] = Some(number);
        self.set_peer(number, Peer::Backend(slot));
        if let Some(connection) = self.connections.get_mut(number) {
            connection.process = pid;
        }
        debug!("backend {slot} has attached, process ID {pid}");
        self.tell(Event::Attached(slot));
        Ok(())
    }

    /// Sends what a connection has not taken yet.
    pub fn send_unsent(&mut self, number: u32) {
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        let fd = connection.fd();
        while let Some(frame) = connection.unsent.front() {
            match socket::send(fd, frame) {
                Ok(_) => {
                    connection.unsent.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let data = token(Source::Control, number);
                    let _ = self.epoll.modify(fd, epoll::IN | epoll::OUT, data);
                    return;
                }
                Err(_) => return self.connection_dead(number),
            }
        }
        if connection.close_when_sent {
            return self.connection_dead(number);
        }
        let _ = self
            .epoll
            .modify(fd, epoll::IN, token(Source::Control, number));
    }
}
