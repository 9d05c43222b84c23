//! Backends of the pools: opening them, telling them, burying them.
//!
//! The dispatcher allots a slot, connects to the server as any client would,
//! and is done with that connection once the server says ReadyForQuery: by
//! then the backend connects to the control socket by itself and shows the
//! token of its slot (control.rs). From there on the control connection is the
//! backend, as far as the dispatcher is concerned: its end is the backend's.

use super::origin::{self, Origin, Provenance};
use crate::dispatcher::event_loop::{token, Dispatcher, Source};
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::wire;
use crate::dispatcher::login::jobs::Job;
use crate::dispatcher::login::listeners::{directories, socket_path};
use crate::dispatcher::sessions::{index_of, Place, SessionId};
use crate::dispatcher::sys::epoll;
use crate::dispatcher::sys::socket::{self, Kind};
use crate::protocol::auth::client::{BackendLogin, Failure, LoginAction};
use crate::protocol::Report;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use tracing::debug;

/// A backend that takes longer to start is given up.
pub const START_LIMIT_US: u64 = 60_000_000;

/// MAX_STARTUP_PACKET_LENGTH (libpq/pqcomm.h): the server reads no longer one.
const MOST_STARTUP_BYTES: usize = 10_000;

/// The connection by which a backend is opened.
pub struct Opening {
    socket: OwnedFd,
    login: BackendLogin,
    origin: Option<Origin>,
    /// The server is reached over a Unix socket.
    over_unix: bool,
    /// Not sent yet; the startup packet while it connects.
    unsent: Vec<u8>,
}

/// What the dispatcher knows of one backend.
pub struct Backend {
    pub pool: u32,
    pub serial: u64,
    pub opening: Option<Opening>,
    /// Its control connection, once it has attached.
    pub connection: Option<u32>,
    /// Gets nothing more.
    pub retiring: bool,
    /// Since when its session is dedicated.
    pub dedicated_since_us: Option<u64>,
    /// Its session was told to end, for want of places.
    pub evicted_us: u64,
    /// What it reads when it starts has changed meanwhile: it is not let in.
    pub stale: bool,
    /// It goes so that this pool may have its place.
    pub makes_room_for: Option<u32>,
    pub started_us: u64,
    pub attached_us: u64,
    /// control's login_generation before it started.
    pub login_generation: u64,
}

impl Backend {
    pub fn may_serve(&self) -> bool {
        self.connection.is_some() && !self.retiring
    }

    /// On whose behalf it is opened.
    pub fn origin(&self) -> Option<&Origin> {
        self.opening.as_ref()?.origin.as_ref()
    }

    /// A client from there has come in by what counts now.
    pub fn has_let_in(&mut self, from: Provenance) {
        let opening = self.opening.as_mut();
        if let Some(origin) = opening.and_then(|opening| opening.origin.as_mut()) {
            origin.is_past |= origin.from == from;
        }
    }

    pub fn is_dedicated(&self) -> bool {
        self.dedicated_since_us.is_some()
    }

    pub fn is_starting(&self) -> bool {
        self.connection.is_none()
    }
}

impl Dispatcher {
    /// The connection, and whether it is a Unix socket's.
    fn connect_to_server(&self) -> io::Result<(OwnedFd, bool)> {
        let port = self.parameters.server_port;
        let mut last = None;
        for directory in directories(&self.parameters.unix_socket_directories) {
            match socket::connect_unix(&socket_path(&directory, port), Kind::Stream) {
                Ok(socket) => return Ok((socket, true)),
                Err(error) => last = Some(error),
            }
        }
        for address in socket::loopback(port) {
            match socket::connect_tcp(&address) {
                Ok(socket) => return Ok((socket, false)),
                Err(error) => last = last.or(Some(error)),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound)))
    }

    /// Begins to open a backend for a pool.
    pub fn open_backend(&mut self, number: u32) {
        let free = (0..self.backends.len()).find(|slot| {
            self.backends[*slot].is_none()
                && self.control.backends[*slot].state.load(SeqCst) == BACKEND_FREE
        });
        let (Some(slot), Some(pool)) = (free, self.pools[number as usize].as_ref()) else {
            return;
        };
        let key = pool.key.clone();
        let login_generation = self.control.header.login_generation.load(SeqCst);
        let (socket, over_unix) = match self.connect_to_server() {
            Ok(connected) => connected,
            Err(error) => {
                let text = format!("could not connect to the server: {error}");
                return self.start_failed(number, Failure::Protocol(text));
            }
        };
        let secret = loop {
            let secret: u64 = rand::random();
            if secret != 0 {
                break secret;
            }
        };
        let origin = self.origin_for(number, over_unix);
        let suffix = origin.map(|origin| origin.suffix()).unwrap_or_default();
        let mut options = format!("-c pg_baton.attach={slot}:{secret:x}{suffix}").into_bytes();
        for (name, value) in &key.options {
            options.extend_from_slice(b" -c ");
            escape_option(&mut options, name);
            options.push(b'=');
            escape_option(&mut options, value);
        }
        let credentials = self.roles.credentials(key.role_oid);
        let mut packet_options: Vec<(&[u8], &[u8])> = vec![(b"options", &options)];
        if origin.is_some() {
            packet_options.push(origin::PROTOCOL_OPTION);
        }
        let (login, packet) =
            BackendLogin::start(&key.user, &key.database, &packet_options, credentials);
        if packet.len() > MOST_STARTUP_BYTES {
            let report = Report::fatal(b"54000", "startup options are too long for the pool")
                .with_detail(
                "Blanks and backslashes in options that only a starting backend takes count twice.",
            );
            return self.start_failed(number, Failure::ServerError(report));
        }
        let slot_memory = &self.control.backends[slot];
        slot_memory.pool.store(number, SeqCst);
        slot_memory.session.store(0, SeqCst);
        slot_memory.cancel.store(0, SeqCst);
        slot_memory.pid.store(0, SeqCst);
        slot_memory.attach_token.store(secret, SeqCst);
        slot_memory.state_since_us.store(self.now, SeqCst);
        slot_memory.state.store(BACKEND_STARTING, SeqCst);

        let slot = slot as u32;
        let fd = socket.as_raw_fd();
        let serial = self.serial();
        self.backends[slot as usize] = Some(Backend {
            pool: number,
            serial,
            opening: Some(Opening {
                socket,
                login,
                origin,
                over_unix,
                unsent: packet,
            }),
            connection: None,
            retiring: false,
            dedicated_since_us: None,
            evicted_us: 0,
            stale: false,
            makes_room_for: None,
            started_us: self.now_us,
            attached_us: self.now_us,
            login_generation,
        });
        self.backend_count += 1;
        self.statistics.backends_started += 1;
        if let Some(pool) = self.pools[number as usize].as_mut() {
            pool.backends.push(slot);
        }
        debug!("starting backend {slot} for pool {number}");
        let data = token(Source::Opening, slot);
        if self.epoll.add(fd, epoll::IN | epoll::OUT, data).is_err() {
            self.opening_failed(
                slot,
                Failure::Protocol("could not wait for the server".into()),
            );
        }
    }

    /// Something is to be read or written on an opening backend's connection.
    pub fn opening_event(&mut self, slot: u32) {
        let Some(opening) = self
            .backends
            .get_mut(slot as usize)
            .and_then(Option::as_mut)
            .and_then(|backend| backend.opening.as_mut())
        else {
            return;
        };
        let fd = opening.socket.as_raw_fd();
        if !opening.unsent.is_empty() {
            match socket::send(fd, &opening.unsent) {
                Ok(length) => {
                    opening.unsent.drain(..length);
                    if opening.unsent.is_empty() {
                        let data = token(Source::Opening, slot);
                        let _ = self.epoll.modify(fd, epoll::IN, data);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    let text = format!("could not connect to the server: {error}");
                    return self.opening_failed(slot, Failure::Protocol(text));
                }
            }
        }
        let mut bytes = [0; 8192];
        let action = match socket::receive(fd, &mut bytes) {
            Ok(0) => {
                // The backend closes it when it has attached; the connection
                // is then no longer here. Else it has died.
                let text = "the server closed the connection while a backend was starting";
                LoginAction::Failed(Failure::Protocol(text.into()))
            }
            Ok(length) => {
                let Some(opening) = self.opening(slot) else {
                    return;
                };
                opening.login.feed(&bytes[..length])
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => LoginAction::Failed(Failure::Protocol(error.to_string())),
        };
        self.opening_action(slot, action);
    }

    fn opening(&mut self, slot: u32) -> Option<&mut Opening> {
        self.backends
            .get_mut(slot as usize)?
            .as_mut()?
            .opening
            .as_mut()
    }

    pub fn opening_action(&mut self, slot: u32, mut action: LoginAction) {
        loop {
            match action {
                // Ready: what follows happens on the control socket.
                LoginAction::NeedMore | LoginAction::Ready(_) => return,
                LoginAction::Send(bytes) => {
                    let Some(opening) = self.opening(slot) else {
                        return;
                    };
                    // A few hundred bytes into an empty socket.
                    let fd = opening.socket.as_raw_fd();
                    if socket::send(fd, &bytes).ok() != Some(bytes.len()) {
                        let text = "could not send to the server";
                        return self.opening_failed(slot, Failure::Protocol(text.into()));
                    }
                    let Some(opening) = self.opening(slot) else {
                        return;
                    };
                    action = opening.login.next_action();
                }
                LoginAction::Negotiated => {
                    let Some(opening) = self.opening(slot) else {
                        return;
                    };
                    let (fd, origin) = (opening.socket.as_raw_fd(), opening.origin);
                    if let Some(origin) = origin {
                        self.send_origin(fd, &origin);
                    }
                    let Some(opening) = self.opening(slot) else {
                        return;
                    };
                    action = opening.login.next_action();
                }
                LoginAction::Derive(job) => {
                    if let Some(backend) = self.backends[slot as usize].as_ref() {
                        let serial = backend.serial;
                        self.jobs.give(Job::Derive {
                            backend: slot,
                            serial,
                            job,
                        });
                    }
                    return;
                }
                LoginAction::Failed(failure) => return self.opening_failed(slot, failure),
            }
        }
    }

    pub fn derived(&mut self, slot: u32, serial: u64, keys: &crate::protocol::auth::scram::Keys) {
        let backend = self
            .backends
            .get_mut(slot as usize)
            .and_then(Option::as_mut);
        let Some(opening) = backend
            .filter(|backend| backend.serial == serial)
            .and_then(|backend| backend.opening.as_mut())
        else {
            return;
        };
        let action = opening.login.derived(keys);
        self.opening_action(slot, action);
    }

    /// The opening connection has done its work.
    pub fn close_opening(&mut self, slot: u32) {
        let backend = self
            .backends
            .get_mut(slot as usize)
            .and_then(Option::as_mut);
        if let Some(opening) = backend.and_then(|backend| backend.opening.take()) {
            let _ = self.epoll.delete(opening.socket.as_raw_fd());
        }
    }

    pub fn opening_failed(&mut self, slot: u32, failure: Failure) {
        let Some(backend) = self.backends.get(slot as usize).and_then(Option::as_ref) else {
            return;
        };
        if backend.connection.is_some() {
            // It has attached; the control connection tells from here on.
            return self.close_opening(slot);
        }
        let number = backend.pool;
        let opening = backend.opening.as_ref();
        let tried = opening.map(|opening| (opening.origin, opening.over_unix));
        self.forget_backend(slot);
        match tried {
            Some((origin, over_unix)) if failure.is_login() => {
                self.login_failed(number, origin, over_unix, failure);
            }
            _ => self.start_failed(number, failure),
        }
    }

    /// Frees a slot.
    pub fn forget_backend(&mut self, slot: u32) {
        self.close_opening(slot);
        let Some(backend) = self.backends[slot as usize].take() else {
            return;
        };
        self.backend_count -= 1;
        if backend.is_dedicated() {
            self.dedicated_count -= 1;
        }
        self.control.free_backend(slot);
        if let Some(pool) = self.pools[backend.pool as usize].as_mut() {
            pool.backends.retain(|other| *other != slot);
            pool.dedicated.retain(|other| *other != slot);
        }
        // There is room now: for this pool or another.
        self.room_made(slot, backend.makes_room_for);
        self.mark_waiting();
    }

    // ---- attached backends -----------------------------------------------

    /// Sends a small frame; a backend that takes none is given up.
    pub fn send_to_backend(&self, slot: u32, frame: &[u8]) -> bool {
        let connection = self.backends[slot as usize]
            .as_ref()
            .and_then(|backend| backend.connection)
            .and_then(|number| self.connections.get(number));
        if let Some(connection) = connection {
            match socket::send(connection.fd(), frame) {
                Ok(_) => return true,
                Err(error) => debug!("could not send to backend {slot}: {error}"),
            }
        }
        false
    }

    /// Asks a backend to exit at its next boundary, and gives it no more. One
    /// that never sleeps, as others are always in its queue, sees the word.
    pub fn retire_backend(&mut self, slot: u32) {
        let Some(backend) = self.backends[slot as usize].as_mut() else {
            return;
        };
        if !backend.retiring {
            backend.retiring = true;
            self.control.backends[slot as usize]
                .retire
                .store(RETIRE_NOW, SeqCst);
            self.send_to_backend(slot, &wire::bare(MSG_RETIRE, 0));
        }
    }

    /// Asks a backend to give back a session that lingers on it.
    pub fn recall(&self, slot: u32, session: SessionId) {
        self.send_to_backend(slot, &wire::bare(MSG_RECALL, session));
    }

    /// The control connection of a backend has ended: so has the session that
    /// it held. One that it was sent but never took lives on.
    ///
    /// Called at the end of a round: an event by which it gave a session back
    /// has been handled then, and re-arming a socket twice does no harm.
    pub fn bury_backend(&mut self, slot: u32) {
        let Some(backend) = self.backends[slot as usize].as_ref() else {
            return;
        };
        let number = backend.pool;
        let last_one = !self.pools[number as usize].as_ref().is_some_and(|pool| {
            pool.all_backends().any(|other| {
                other != slot
                    && self.backends[other as usize]
                        .as_ref()
                        .is_some_and(|b| b.connection.is_some())
            })
        });
        if last_one {
            self.drain_queue(number);
            self.control.pools[number as usize].queued.store(0, SeqCst);
        }
        let ids: Vec<SessionId> = self.sessions.ids().collect();
        for id in ids {
            let Some(session) = self.sessions.get(id) else {
                continue;
            };
            let (place, greet, pool) = (session.place, session.greet, session.pool);
            let owner = self.control.sessions[index_of(id) as usize]
                .owner
                .load(SeqCst);
            if owner == slot + 1 {
                self.end_session(id);
            } else if owner == 0
                && (place == Place::Backend(slot)
                    || (last_one && pool == number && place == Place::Queue))
            {
                if greet {
                    self.make_wait_ungreeted(id);
                } else {
                    self.arm(id);
                }
            }
        }
        debug!("backend {slot} has ended");
        self.forget_backend(slot);
        self.mark_dirty(number);
    }
}

/// As pg_split_opts (postinit.c) undoes it.
fn escape_option(out: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        if byte.is_ascii_whitespace() || *byte == b'\\' || *byte == 0x0b {
            out.push(b'\\');
        }
        out.push(*byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_escaped_as_the_server_splits_them() {
        let mut out = Vec::new();
        escape_option(&mut out, b"a b\\c");
        assert_eq!(out, b"a\\ b\\\\c");
    }
}
