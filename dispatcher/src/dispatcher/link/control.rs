//! Control connections: from backends, from the launcher, from views.
//!
//! Each is a packet socket; its first frame says what it is. A connection
//! whose frames make no sense is closed, which for a backend means its end.
//! What is read from one connection in one go is bounded, and so is what a
//! backend may stage.

use super::layout::shared::*;
use super::memory::arena::Content;
use super::memory::context::Staged;
use super::memory::control::Counters;
use super::wire::{Frame, Malformed, Reader, Writer};
use crate::core::{Attach, Ending, Event, Identity, SessionId};
use crate::dispatcher::event_loop::{token, Dispatcher, Source};
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

/// One control connection.
pub struct Connection {
    socket: OwnedFd,
    pub peer: Peer,
    /// A backend's process, as the kernel told it; 0 if it is none's.
    pub process: u32,
    staged: Staged,
    /// A payload that came in several frames, so far.
    partial: Vec<u8>,
    /// Not sent yet; only views and the launcher have some.
    pub unsent: VecDeque<Vec<u8>>,
    close_when_sent: bool,
    pub dead: bool,
}

impl Connection {
    pub fn new(socket: OwnedFd, peer: Peer) -> Connection {
        Connection {
            socket,
            peer,
            process: 0,
            staged: Staged::default(),
            partial: Vec::new(),
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
                Err(error) => {
                    warn!("could not accept a control connection: {error}");
                    return;
                }
            };
            match socket::peer(socket.as_raw_fd()) {
                Ok((_, uid)) if uid == process::own_uid() || uid == 0 => {}
                _ => {
                    warn!("a process of another user tried to use the control socket");
                    continue;
                }
            }
            self.add_connection(Connection::new(socket, Peer::Unknown));
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
                    if self.packet(number, &buffer[..length]).is_err() {
                        warn!("a control connection sent what is not understood; closed");
                        self.connection_dead(number);
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
                    if self.core.sessions().get(changed).is_some() {
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

    fn packet(&mut self, number: u32, packet: &[u8]) -> Result<(), Malformed> {
        let frame = Frame::parse(packet)?;
        let Some(connection) = self.connections.get_mut(number) else {
            return Ok(());
        };
        if frame.more || !connection.partial.is_empty() {
            if connection.partial.len() + frame.payload.len() > LONGEST_VALUE {
                return Err(Malformed);
            }
            connection.partial.extend_from_slice(frame.payload);
            if frame.more {
                return Ok(());
            }
            let whole = std::mem::take(&mut connection.partial);
            return self.frame(
                number,
                Frame {
                    payload: &whole,
                    ..frame
                },
            );
        }
        self.frame(number, frame)
    }

    fn frame(&mut self, number: u32, frame: Frame<'_>) -> Result<(), Malformed> {
        let Some(connection) = self.connections.get(number) else {
            return Ok(());
        };
        match connection.peer {
            Peer::Unknown => self.hello(number, frame),
            Peer::Holder if frame.kind == MSG_HELLO_QUERY => self.hello(number, frame),
            Peer::Backend(slot) => self.backend_frame(number, slot, frame),
            Peer::Launcher => self.launcher_frame(frame),
            Peer::Authenticator(login, serial) if frame.kind == MSG_AUTHENTICATED => {
                self.set_peer(number, Peer::Query);
                self.authenticated_by_server(login, serial);
                Ok(())
            }
            Peer::Query | Peer::Holder | Peer::Native | Peer::Authenticator(..) => Err(Malformed),
        }
    }

    fn hello(&mut self, number: u32, frame: Frame<'_>) -> Result<(), Malformed> {
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
            return self.hello_backend(number, slot, secret, pid, identity);
        }
        if frame.kind == MSG_HELLO_TICKET {
            let (ticket, pid) = (reader.u64()?, reader.u32()?);
            if !self.hello_ticket(number, ticket, pid) {
                self.refuse(number, "the ticket is not good");
            }
            return Ok(());
        }
        if reader.u64()? != self.control.header.secret.load(SeqCst) {
            self.refuse(number, "the secret is wrong");
            return Ok(());
        }
        let what = reader.u32()?;
        match frame.kind {
            MSG_HELLO_LAUNCHER => {
                info!("a new launcher (process ID {what}) has connected");
                self.set_peer(number, Peer::Launcher);
                self.launcher_connected(number);
                Ok(())
            }
            MSG_HELLO_QUERY if what == QUERY_LEAVE_DATABASE => {
                self.hold_database(number, frame.session, &mut reader)
            }
            MSG_HELLO_QUERY => {
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
            _ => Err(Malformed),
        }
    }

    /// Takes or confirms a hold on a database (holds.rs), and answers who is
    /// there: a row a user.
    fn hold_database(
        &mut self,
        number: u32,
        own: SessionId,
        reader: &mut Reader<'_>,
    ) -> Result<(), Malformed> {
        let forced = reader.u8()? != 0;
        let database = reader.string()?;
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
        let descriptors = [
            self.epoll.as_raw_fd(),
            self.queue_end(pool),
            self.arena_fd.as_raw_fd(),
        ];
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

    fn backend_frame(&mut self, number: u32, slot: u32, frame: Frame<'_>) -> Result<(), Malformed> {
        let id = frame.session;
        let mut reader = Reader(frame.payload);
        match frame.kind {
            MSG_PUT | MSG_DELETE => {
                let kind = reader.u16()?;
                let key_length = reader.u16()?;
                let key = reader.bytes(usize::from(key_length))?;
                let mut staged = self.take_staged(number);
                if staged.session != id {
                    self.contexts.discard(&mut staged);
                    staged.session = id;
                }
                if frame.kind == MSG_PUT {
                    let counted = reader.u32()? == 1;
                    let aux = reader.i64()?;
                    let mut counters = None;
                    if counted {
                        counters = Some(Counters {
                            costs: [reader.u64()?, reader.u64()?],
                            plans: [reader.i64()?, reader.i64()?],
                        });
                    }
                    let content = Content {
                        kind,
                        key,
                        value: reader.0,
                    };
                    self.contexts.stage_put(&mut staged, content, counters, aux);
                } else {
                    self.contexts.stage_delete(&mut staged, kind, key);
                }
                self.put_staged(number, staged);
            }
            MSG_RELEASE => {
                self.tell(Event::MayBeFree(slot));
                if id == 0 {
                    return Ok(());
                }
                let mut staged = self.take_staged(number);
                let fits = self.apply_staged(id, &mut staged, false);
                self.put_staged(number, staged);
                if fits && self.shall_end(id) {
                    self.tell(Event::Terminate(id));
                } else if fits {
                    self.tell(Event::GivenBack(id));
                }
            }
            MSG_GREETED => {
                let mut reader = Reader(frame.payload);
                let for_others = reader.u32()? != 0;
                let length = reader.u32()? as usize;
                let Some((notices, reported)) = reader.0.split_at_checked(length) else {
                    return Err(Malformed);
                };
                let mut staged = self.take_staged(number);
                if !for_others {
                    self.greetings.forget_session(id);
                }
                self.greeted(slot, id, &mut staged, notices, reported);
                self.put_staged(number, staged);
            }
            MSG_END => {
                let mut staged = self.take_staged(number);
                self.contexts.discard(&mut staged);
                self.put_staged(number, staged);
                let ending = match reader.u32()? {
                    END_CLIENT_CLOSED | END_CLIENT_TERMINATED => Ending::Left,
                    _ => Ending::Cut,
                };
                self.tell(Event::Ended(id, ending));
                self.tell(Event::MayBeFree(slot));
            }
            MSG_DEDICATED => {
                let cause = reader.u32()?;
                self.tell(Event::Dedicated(slot, cause != CAUSE_NONE));
            }
            MSG_RETIRING => {
                let why = reader.string()?;
                debug!("backend {slot} retires: {}", String::from_utf8_lossy(why));
                self.tell(Event::Leaves(slot));
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }

    fn take_staged(&mut self, number: u32) -> Staged {
        self.connections
            .get_mut(number)
            .map(|connection| std::mem::take(&mut connection.staged))
            .unwrap_or_default()
    }

    fn put_staged(&mut self, number: u32, mut staged: Staged) {
        match self.connections.get_mut(number) {
            Some(connection) => connection.staged = staged,
            None => self.contexts.discard(&mut staged),
        }
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
