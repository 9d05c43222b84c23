//! Control connections: from backends, from the launcher, and from views.
//!
//! Each is a packet socket. Its first frame must say, within a time limit, what the connection
//! is for. This file transports frames; other files interpret them. A connection that sends a
//! malformed or impossible frame is closed, which for a backend means its end. The bytes that
//! are read from one connection in a row are bounded, and so is what is kept of an incomplete
//! payload.

use super::layout::shared::*;
use super::wire::{Frame, Malformed, Writer};
use crate::core::SessionId;
use crate::shell::events::{token, Slab, Source};
use crate::shell::sys::epoll::{self, Epoll};
use crate::shell::sys::{process, socket};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use tracing::{debug, warn};

/// Packets read from one connection before the next connection's turn.
pub const PACKETS_A_ROUND: usize = 64;
/// Open control connections beyond those of backends.
const SPARE_CONNECTIONS: usize = 200;
/// Time in which a new connection must say what it is for.
const HELLO_LIMIT_US: u64 = 5_000_000;

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Offence {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("it is not its turn to say that")]
    OutOfOrder,
    #[error("it spoke of session {0:x}, which it does not hold")]
    Foreign(SessionId),
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Unknown,
    Backend(u32),
    Launcher,
    /// The process that writes lines to the server's log.
    LogWriter,
    Query,
    /// The monitor, which may only read views.
    Monitor,
    /// A process whose statement holds a database (core/database_lock.rs).
    Holder,
    /// A process whose statement pauses sessions (core/pause.rs).
    Pauser,
    /// A native session's backend.
    Native,
    /// A backend that authenticates the client of this login.
    Authenticator(u32, u64),
    /// A backend that begins GSSAPI encryption with the client of this login.
    Encrypting(u32, u64),
}

/// A connection that has not yet said what it is for.
#[derive(Clone, Copy, Debug)]
struct Silent {
    number: u32,
    serial: u64,
    since_us: u64,
}

/// The part received so far of a payload that comes in several frames.
struct Partial {
    kind: u32,
    session: SessionId,
    bytes: Vec<u8>,
    /// The payload exceeds the limit and is not kept.
    is_too_long: bool,
}

/// What follows when all frames have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Wait,
    Close,
    /// There is more to send; an event reports when the socket has room.
    More,
}

/// One control connection.
struct Connection {
    socket: Arc<OwnedFd>,
    /// Tells this connection from an earlier one with its number.
    serial: u64,
    peer: Peer,
    partial: Option<Partial>,
    /// Frames not sent yet. Only views and the launcher have any.
    unsent: VecDeque<Vec<u8>>,
    then: Then,
    dead: bool,
}

/// What a received packet amounts to.
pub enum Received<'a> {
    /// A complete payload.
    Whole(Frame<'a>),
    Part,
    /// The kind and session of a complete payload that exceeded the limit.
    TooLong(u32, SessionId),
}

/// All control connections.
pub struct Connections {
    epoll: Arc<Epoll>,
    listener: OwnedFd,
    connections: Slab<Connection>,
    dead: Vec<u32>,
    /// In the order of arrival.
    unidentified: VecDeque<Silent>,
    next_serial: u64,
}

/// Is another frame unlikely to follow at once? If one does, epoll reports it.
pub fn is_last_word(packet: &[u8]) -> bool {
    Frame::parse(packet).is_ok_and(|frame| {
        matches!(
            frame.kind,
            MSG_END | MSG_RELEASE | MSG_GREETED | MSG_LOGIN_ANSWER
        )
    })
}

impl Connections {
    pub fn new(epoll: Arc<Epoll>, listener: OwnedFd, backends: usize) -> Connections {
        Connections {
            epoll,
            listener,
            // The backend of a native session has one, too.
            connections: Slab::new(2 * backends + SPARE_CONNECTIONS),
            dead: Vec::new(),
            unidentified: VecDeque::new(),
            next_serial: 0,
        }
    }

    // ---- accepting ---------------------------------------------------------

    /// Accepts connections. Fails if no descriptor is free.
    pub fn accept(&mut self, now_us: u64) -> io::Result<()> {
        for _ in 0..PACKETS_A_ROUND {
            let socket = match socket::accept(self.listener.as_raw_fd()) {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if socket::is_out_of_descriptors(&error) => return Err(error),
                // The peer is gone already: go on with the next.
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
            self.add_unknown(socket, now_us);
        }
        Ok(())
    }

    /// Turns the events of the listener on or off.
    pub fn listen(&self, listens: bool) {
        let events = if listens { epoll::IN } else { 0 };
        let data = token(Source::ControlListener, 0);
        let _ = self.epoll.modify(self.listener.as_raw_fd(), events, data);
    }

    /// Adds a connection that has not said what it is for. If there is no room, the one that
    /// has been silent longest is closed: a process that attaches sends its first frame at
    /// once.
    fn add_unknown(&mut self, socket: OwnedFd, now_us: u64) {
        if !self.connections.has_room() {
            while let Some(silent) = self.unidentified.pop_front() {
                if self.is_still_silent(silent) {
                    let connection = self.connections.remove(silent.number);
                    connection.inspect(|it| drop(self.epoll.delete(it.socket.as_raw_fd())));
                    break;
                }
            }
        }
        if let Some(number) = self.add(socket, Peer::Unknown) {
            self.unidentified.push_back(Silent {
                number,
                serial: self.next_serial,
                since_us: now_us,
            });
        }
    }

    fn is_still_silent(&self, silent: Silent) -> bool {
        self.connections.get(silent.number).is_some_and(|found| {
            found.serial == silent.serial && found.peer == Peer::Unknown && !found.dead
        })
    }

    /// Once a second: closes the connections that have not said in time what they are for.
    pub fn expire_silent(&mut self, now_us: u64) {
        while let Some(silent) = self.unidentified.front().copied() {
            if now_us < silent.since_us + HELLO_LIMIT_US {
                return;
            }
            self.unidentified.pop_front();
            if self.is_still_silent(silent) {
                warn!("a control connection is closed: it has not said what it is");
                self.close(silent.number);
            }
        }
    }

    pub fn add(&mut self, socket: OwnedFd, peer: Peer) -> Option<u32> {
        self.next_serial += 1;
        let fd = socket.as_raw_fd();
        let number = self.connections.insert(Connection {
            socket: Arc::new(socket),
            serial: self.next_serial,
            peer,
            partial: None,
            unsent: VecDeque::new(),
            then: Then::Wait,
            dead: false,
        })?;
        let data = token(Source::Control, number);
        if self.epoll.add(fd, epoll::IN, data).is_err() {
            self.connections.remove(number);
            return None;
        }
        Some(number)
    }

    /// Turns the events of a connection on or off.
    pub fn hear(&self, number: u32, hears: bool) {
        if let Some(connection) = self.connections.get(number).filter(|it| !it.dead) {
            let events = if hears { epoll::IN } else { 0 };
            let data = token(Source::Control, number);
            let fd = connection.socket.as_raw_fd();
            let _ = self.epoll.modify(fd, events, data);
        }
    }

    // ---- what they are for -------------------------------------------------

    pub fn peer(&self, number: u32) -> Option<Peer> {
        self.connections.get(number).map(|found| found.peer)
    }

    pub fn set_peer(&mut self, number: u32, peer: Peer) {
        if let Some(connection) = self.connections.get_mut(number) {
            connection.peer = peer;
        }
    }

    pub fn socket(&self, number: u32) -> Option<Arc<OwnedFd>> {
        self.connections.get(number).map(|it| it.socket.clone())
    }

    /// Does the process at the other end have this process ID?
    pub fn is_process(&self, number: u32, pid: u32) -> bool {
        self.connections.get(number).is_some_and(|found| {
            socket::peer(found.socket.as_raw_fd()).is_ok_and(|(peer, _)| peer == pid)
        })
    }

    /// The descriptors of all connections, and of the listener.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        (self.connections.iter())
            .map(|(_, connection)| connection.socket.as_raw_fd())
            .chain([self.listener.as_raw_fd()])
    }

    /// Closes all connections of this kind.
    pub fn close_all(&mut self, peer: Peer) {
        let all = self.connections.iter();
        let all = all.filter(|(_, connection)| connection.peer == peer);
        let numbers: Vec<u32> = all.map(|(number, _)| number).collect();
        for number in numbers {
            self.close(number);
        }
    }

    // ---- reading -----------------------------------------------------------

    /// Reads the next packet into `buffer`; None if there is none, or the connection has ended.
    pub fn receive(&mut self, number: u32, buffer: &mut [u8]) -> Option<usize> {
        let connection = self.connections.get(number).filter(|found| !found.dead)?;
        let fd = connection.socket.as_raw_fd();
        // A process that ends without having read all that was sent to it leaves an error
        // behind (unix_release_sock, net/unix/af_unix.c). The kernel reports it once, before
        // what the process has sent (__skb_try_recv_datagram, net/core/datagram.c).
        let received = match socket::receive(fd, buffer) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                socket::receive(fd, buffer)
            }
            received => received,
        };
        match received {
            Ok(length) if length > 0 => Some(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            _ => {
                self.close(number);
                None
            }
        }
    }

    /// Adds a packet to its payload. If that is complete, `whole` holds the payload of a
    /// message of several frames. At most `longest` bytes of a payload are kept.
    pub fn assemble<'a>(
        &mut self,
        number: u32,
        packet: &'a [u8],
        longest: usize,
        whole: &'a mut Vec<u8>,
    ) -> Result<Received<'a>, Offence> {
        let frame = Frame::parse(packet)?;
        let Some(connection) = self.connections.get_mut(number) else {
            return Ok(Received::Part);
        };
        if !frame.more && connection.partial.is_none() {
            return Ok(Received::Whole(frame));
        }
        // Nothing is kept for a connection that has not said what it is for.
        if !matches!(connection.peer, Peer::Backend(_) | Peer::Launcher) {
            return Err(Offence::OutOfOrder);
        }
        let partial = connection.partial.get_or_insert_with(|| Partial {
            kind: frame.kind,
            session: frame.session,
            bytes: Vec::new(),
            is_too_long: false,
        });
        if (partial.kind, partial.session) != (frame.kind, frame.session) {
            return Err(Offence::OutOfOrder);
        }
        if partial.is_too_long || partial.bytes.len() + frame.payload.len() > longest {
            partial.is_too_long = true;
            partial.bytes = Vec::new();
        } else {
            partial.bytes.extend_from_slice(frame.payload);
        }
        if frame.more {
            return Ok(Received::Part);
        }
        let is_too_long = partial.is_too_long;
        *whole = std::mem::take(&mut partial.bytes);
        connection.partial = None;
        if is_too_long {
            return Ok(Received::TooLong(frame.kind, frame.session));
        }
        Ok(Received::Whole(Frame {
            payload: whole,
            ..frame
        }))
    }

    // ---- sending -----------------------------------------------------------

    /// Sends a frame at once, or as soon as the socket has room.
    pub fn send(&mut self, number: u32, frame: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        let fd = connection.socket.as_raw_fd();
        let waits = !connection.unsent.is_empty();
        if !waits && socket::send(fd, &frame).is_ok() {
            return;
        }
        connection.unsent.push_back(frame);
        // If frames wait already, an event reports when the socket has room.
        if !waits {
            self.send_unsent(number);
        }
    }

    /// Sends these frames as fast as the socket has room.
    pub fn send_all(&mut self, number: u32, frames: Vec<Vec<u8>>, then: Then) {
        if let Some(connection) = self.connections.get_mut(number) {
            connection.unsent.extend(frames);
            connection.then = then;
            self.send_unsent(number);
        }
    }

    pub fn has_unsent(&self, number: u32) -> bool {
        (self.connections.get(number)).is_some_and(|it| !it.unsent.is_empty())
    }

    /// Sends the frames that the socket had no room for.
    pub fn send_unsent(&mut self, number: u32) {
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        let fd = connection.socket.as_raw_fd();
        let data = token(Source::Control, number);
        while let Some(frame) = connection.unsent.front() {
            match socket::send(fd, frame) {
                Ok(_) => {
                    connection.unsent.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = self.epoll.modify(fd, epoll::IN | epoll::OUT, data);
                    return;
                }
                Err(_) => return self.close(number),
            }
        }
        let events = match connection.then {
            Then::Close => return self.close(number),
            Then::Wait => epoll::IN,
            Then::More => epoll::IN | epoll::OUT,
        };
        let _ = self.epoll.modify(fd, events, data);
    }

    /// Refuses a connection and tells it why.
    pub fn refuse(&mut self, number: u32, why: &str) {
        warn!("a control connection was refused: {why}");
        if let Some(connection) = self.connections.get(number) {
            let frame = Writer::new(MSG_REFUSED, 0).string(why.as_bytes()).finish();
            let _ = socket::send(connection.socket.as_raw_fd(), &frame);
        }
        self.close(number);
    }

    // ---- closing -----------------------------------------------------------

    /// Shuts the connection down. It is removed at the end of the round.
    pub fn close(&mut self, number: u32) {
        if let Some(connection) = self.connections.get_mut(number) {
            if !connection.dead {
                connection.dead = true;
                let fd = connection.socket.as_raw_fd();
                let _ = self.epoll.delete(fd);
                socket::shutdown(fd);
                self.dead.push(number);
            }
        }
    }

    pub fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// Removes a closed connection. From here on its number may be reused.
    pub fn bury(&mut self) -> Option<(u32, Peer)> {
        loop {
            let number = self.dead.pop()?;
            if let Some(connection) = self.connections.remove(number) {
                return Some((number, connection.peer));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_an_ended_process_are_heard_despite_unread_input() {
        let epoll = Arc::new(Epoll::new().unwrap());
        let (listener, _) = socket::pair().unwrap();
        let mut connections = Connections::new(epoll, listener, 1);
        let (ours, theirs) = socket::pair_of_packets().unwrap();
        let fd = ours.as_raw_fd();
        let number = connections.add(ours, Peer::Backend(0)).unwrap();
        socket::send(fd, b"unread").unwrap();
        assert!(!socket::has_hung_up(fd));
        socket::send(theirs.as_raw_fd(), b"first").unwrap();
        drop(theirs);
        let mut buffer = [0; 16];
        assert!(socket::has_hung_up(fd));
        assert_eq!(connections.receive(number, &mut buffer), Some(5));
        assert_eq!(connections.receive(number, &mut buffer), None);
        assert!(connections.bury().is_some());
    }
}
