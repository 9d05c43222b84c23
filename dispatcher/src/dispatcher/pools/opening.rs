//! Connections by which backends are opened.
//!
//! The dispatcher connects to the server as any client would, and is done with
//! that connection once the server says ReadyForQuery: by then the backend
//! connects to the control socket by itself and shows the token of its slot
//! (control.rs). From there on the control connection is the backend: its end
//! is the backend's.

use super::origin::{suffix, PROTOCOL_OPTION, TRUSTED_OPTION};
use crate::core::Origin;
use crate::dispatcher::event_loop::{token, Dispatcher, Source};
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::login::jobs::Job;
use crate::dispatcher::login::listeners::{directories, socket_path};
use crate::dispatcher::sys::epoll;
use crate::dispatcher::sys::socket::{self, Kind};
use crate::protocol::auth::client::{BackendLogin, Failure, LoginAction};
use crate::protocol::messages::MOST_STARTUP_BYTES;
use crate::protocol::Report;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use tracing::debug;

/// The connection by which a backend is opened.
pub struct Opening {
    serial: u64,
    socket: OwnedFd,
    login: BackendLogin,
    origin: Option<Origin>,
    /// The server is reached over a Unix socket.
    over_unix: bool,
    /// Not sent yet; the startup packet while it connects.
    unsent: Vec<u8>,
}

impl Dispatcher {
    /// The connection, and whether it is a Unix socket's. A server that has too
    /// many who wait to be accepted (EAGAIN) is there: it is tried again later, and
    /// not by TCP, where other lines of pg_hba.conf count.
    pub fn connect_to_server(&self) -> io::Result<(OwnedFd, bool)> {
        let port = self.parameters.server_port;
        let mut last = None;
        for directory in directories(&self.parameters.unix_socket_directories) {
            match socket::connect_unix(&socket_path(&directory, port), Kind::Stream) {
                Ok(socket) => return Ok((socket, true)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
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
    pub fn open_backend(&mut self, slot: u32, pool: u32) {
        if let Err((failure, over_unix)) = self.try_to_open(slot, pool) {
            self.open_failed(slot, failure, over_unix);
        }
    }

    fn open_failed(&mut self, slot: u32, failure: Failure, over_unix: Option<bool>) {
        let control = self.control;
        self.core.open_failed(slot, failure, over_unix, &control);
    }

    fn try_to_open(&mut self, slot: u32, pool: u32) -> Result<(), (Failure, Option<bool>)> {
        let Some(key) = self.core.pool_key(pool).cloned() else {
            let text = "its pool has gone";
            return Err((Failure::Protocol(text.into()), None));
        };
        self.open_queue(pool).map_err(|error| {
            let text = format!("could not create a ready queue: {error}");
            (Failure::Protocol(text), None)
        })?;
        let (socket, over_unix) = self.connect_to_server().map_err(|error| {
            let text = format!("could not connect to the server: {error}");
            (Failure::Protocol(text), None)
        })?;
        let secret = loop {
            let secret: u64 = rand::random();
            if secret != 0 {
                break secret;
            }
        };
        let generation = self.control.header.login_generation.load(SeqCst);
        let vouches = self.roles.are_vouched_for(key.role_oid);
        // On nobody's behalf, then: there is none who could log in again.
        let origin = (!vouches)
            .then(|| self.core.origin_for(slot, over_unix, generation))
            .flatten();
        let suffix = origin
            .map(|origin| suffix(origin.from, self.certificates.names(origin.from.tls())))
            .unwrap_or_default();
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
            packet_options.push(PROTOCOL_OPTION);
        }
        if vouches {
            packet_options.push(TRUSTED_OPTION);
        }
        let (login, packet) =
            BackendLogin::start(&key.user, &key.database, &packet_options, credentials);
        if packet.len() > MOST_STARTUP_BYTES {
            let report = Report::fatal(b"54000", "startup options are too long for the pool")
                .with_detail(
                "Blanks and backslashes in options that only a starting backend takes count twice.",
            );
            return Err((Failure::ServerError(report), None));
        }
        let slot_memory = &self.control.backends[slot as usize];
        slot_memory.pool.store(pool, SeqCst);
        slot_memory.session.store(0, SeqCst);
        slot_memory.cancel.store(0, SeqCst);
        slot_memory.pid.store(0, SeqCst);
        slot_memory.attach_token.store(secret, SeqCst);
        slot_memory.state_since_us.store(self.now, SeqCst);
        slot_memory.state.store(BACKEND_STARTING, SeqCst);

        let fd = socket.as_raw_fd();
        let serial = self.serial();
        self.openings[slot as usize] = Some(Opening {
            serial,
            socket,
            login,
            origin,
            over_unix,
            unsent: packet,
        });
        self.statistics.backends_started += 1;
        debug!("starting backend {slot} for pool {pool}");
        let data = token(Source::Opening, slot);
        if (self.epoll.add(fd, epoll::IN | epoll::OUT, data)).is_err() {
            let text = "could not wait for the server";
            return Err((Failure::Protocol(text.into()), Some(over_unix)));
        }
        Ok(())
    }

    /// Something is to be read or written on an opening backend's connection.
    pub fn opening_event(&mut self, slot: u32) {
        let Some(opening) = self.opening(slot) else {
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
        self.openings.get_mut(slot as usize)?.as_mut()
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
                    if let Some(opening) = self.opening(slot) {
                        let serial = opening.serial;
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
        let opening = self.opening(slot);
        let Some(opening) = opening.filter(|opening| opening.serial == serial) else {
            return;
        };
        let action = opening.login.derived(keys);
        self.opening_action(slot, action);
    }

    /// The opening connection has done its work.
    pub fn close_opening(&mut self, slot: u32) {
        let opening = self.openings.get_mut(slot as usize);
        if let Some(opening) = opening.and_then(Option::take) {
            let _ = self.epoll.delete(opening.socket.as_raw_fd());
        }
    }

    fn opening_failed(&mut self, slot: u32, failure: Failure) {
        let over_unix = self.opening(slot).map(|opening| opening.over_unix);
        if self.attached[slot as usize].is_some() {
            // The control connection tells from here on.
            return self.close_opening(slot);
        }
        self.open_failed(slot, failure, over_unix);
        self.carry_out();
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
