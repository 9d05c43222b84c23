//! Connections by which backends are opened.
//!
//! The dispatcher connects to the server as any client would, and is done with
//! that connection once the server says ReadyForQuery: by then the backend
//! connects to the control socket by itself and shows the token of its slot
//! (scheduler/attach.rs). From there on the control connection is the backend: its
//! end is the backend's.

use super::origin::{send_client, suffix, PROTOCOL_OPTION, TRUSTED_OPTION};
use crate::core::{Origin, PoolKey, SessionId};
use crate::dispatcher::jobs::{Job, JobsIn};
use crate::dispatcher::sys::epoll::{self, Epoll};
use crate::dispatcher::sys::socket;
use crate::dispatcher::tls::facts::Names;
use crate::dispatcher::tokens::{token, Source};
use crate::protocol::auth::client::{BackendLogin, Credentials, Failure, LoginAction};
use crate::protocol::auth::keys::Keys;
use crate::protocol::messages::MOST_STARTUP_BYTES;
use crate::protocol::Report;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use zeroize::Zeroizing;

/// The connection by which a backend is opened.
struct Opening {
    serial: u64,
    socket: OwnedFd,
    login: BackendLogin,
    origin: Option<Origin>,
    /// The server is reached over a Unix socket.
    over_unix: bool,
    /// Not sent yet; the startup packet while it connects.
    unsent: Vec<u8>,
}

/// A backend to be opened.
pub struct NewBackend<'a> {
    pub slot: u32,
    pub key: &'a PoolKey,
    /// Shown by who attaches in that slot.
    pub secret: u64,
    /// On whose behalf; None: on nobody's.
    pub origin: Option<Origin>,
    /// Of his certificate.
    pub names: Option<&'a Names>,
    /// The server makes a role's name of the client's and the database's.
    pub db_user_namespace: bool,
    /// The server has let its role's clients in by itself.
    pub is_vouched_for: bool,
    pub credentials: Credentials,
    pub over_unix: bool,
}

/// Why a backend could not be opened; and how the server was reached, if it was.
pub type OpenFailed = (Failure, Option<bool>);

pub fn failed(text: impl Into<String>) -> OpenFailed {
    (Failure::Protocol(text.into()), None)
}

impl NewBackend<'_> {
    /// The login, and the startup packet that it begins with.
    fn start(self) -> Result<(BackendLogin, Vec<u8>), OpenFailed> {
        let suffix = self
            .origin
            .map(|origin| suffix(origin.from, self.names))
            .unwrap_or_default();
        let (slot, secret, key) = (self.slot, self.secret, self.key);
        let mut options = format!("-c pg_baton.attach={slot}:{secret:x}{suffix}").into_bytes();
        for (name, value) in &key.options {
            options.extend_from_slice(b" -c ");
            escape_option(&mut options, name);
            options.push(b'=');
            escape_option(&mut options, value);
        }
        let mut packet_options: Vec<(&[u8], &[u8])> = vec![(b"options", &options)];
        if self.origin.is_some() {
            packet_options.push(PROTOCOL_OPTION);
        }
        if self.is_vouched_for {
            packet_options.push(TRUSTED_OPTION);
        }
        // What ends so is a role's own name, whatever the database.
        let global: &[u8] = if self.db_user_namespace { b"@" } else { b"" };
        let user = [&key.user, global].concat();
        let (login, packet) =
            BackendLogin::start(&user, &key.database, &packet_options, self.credentials);
        if packet.len() > MOST_STARTUP_BYTES {
            let report = Report::fatal(b"54000", "startup options are too long for the pool")
                .with_detail(
                "Blanks and backslashes in options that only a starting backend takes count twice.",
            );
            return Err((Failure::ServerError(report), None));
        }
        Ok((login, packet))
    }
}

/// All of them, by backend slot.
pub struct Openings {
    epoll: Arc<Epoll>,
    jobs: JobsIn,
    openings: Vec<Option<Opening>>,
    /// Backends begun since the start; tells users of a slot apart, too.
    begun: u64,
}

impl Openings {
    pub fn new(slots: usize, epoll: Arc<Epoll>, jobs: JobsIn) -> Openings {
        Openings {
            epoll,
            jobs,
            openings: (0..slots).map(|_| None).collect(),
            begun: 0,
        }
    }

    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Begins to open a backend by this connection to the server; `ready` is called
    /// when nothing but the server can be in its way.
    pub fn begin(
        &mut self,
        new: NewBackend<'_>,
        socket: OwnedFd,
        ready: impl FnOnce(),
    ) -> Result<(), OpenFailed> {
        let (slot, origin, over_unix) = (new.slot, new.origin, new.over_unix);
        let (login, unsent) = new.start()?;
        ready();
        let fd = socket.as_raw_fd();
        self.begun += 1;
        self.openings[slot as usize] = Some(Opening {
            serial: self.begun,
            socket,
            login,
            origin,
            over_unix,
            unsent,
        });
        let data = token(Source::Opening, slot);
        if (self.epoll.add(fd, epoll::IN | epoll::OUT, data)).is_err() {
            let text = "could not wait for the server";
            return Err((Failure::Protocol(text.into()), Some(over_unix)));
        }
        Ok(())
    }

    fn get(&mut self, slot: u32) -> Option<&mut Opening> {
        self.openings.get_mut(slot as usize)?.as_mut()
    }

    /// Something is to be read or written on an opening backend's connection. `client`
    /// has the socket of a session.
    pub fn event(
        &mut self,
        slot: u32,
        client: impl Fn(SessionId) -> RawFd,
    ) -> Result<(), OpenFailed> {
        let epoll = Arc::clone(&self.epoll);
        let Some(opening) = self.get(slot) else {
            return Ok(());
        };
        let fd = opening.socket.as_raw_fd();
        // What the server has said before it closed the connection comes first.
        let mut lost = None;
        if !opening.unsent.is_empty() {
            match socket::send(fd, &opening.unsent) {
                Ok(length) => {
                    opening.unsent.drain(..length);
                    if opening.unsent.is_empty() {
                        let _ = epoll.modify(fd, epoll::IN, token(Source::Opening, slot));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => lost = Some(format!("could not connect to the server: {error}")),
            }
        }
        let mut bytes = [0; 8192];
        let heard = socket::receive(fd, &mut bytes);
        let action = match heard {
            Ok(length) if length > 0 => match (opening.login.feed(&bytes[..length]), lost) {
                (LoginAction::NeedMore, Some(why)) => LoginAction::Failed(Failure::Protocol(why)),
                (action, _) => action,
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && lost.is_none() => {
                return Ok(())
            }
            // The backend closes it when it has attached; the connection is then no longer
            // here. Else it has died.
            heard => LoginAction::Failed(Failure::Protocol(lost.unwrap_or_else(|| match heard {
                Err(error) => error.to_string(),
                Ok(_) => "the server closed the connection while a backend was starting".into(),
            }))),
        };
        self.go_on(slot, action, client)
    }

    fn go_on(
        &mut self,
        slot: u32,
        mut action: LoginAction,
        client: impl Fn(SessionId) -> RawFd,
    ) -> Result<(), OpenFailed> {
        let Some(opening) = self.openings.get_mut(slot as usize) else {
            return Ok(());
        };
        let Some(opening) = opening.as_mut() else {
            return Ok(());
        };
        let fd = opening.socket.as_raw_fd();
        loop {
            match action {
                // Ready: what follows happens on the control socket.
                LoginAction::NeedMore | LoginAction::Ready(_) => return Ok(()),
                LoginAction::Send(bytes) => {
                    // May be a password.
                    let bytes = Zeroizing::new(bytes);
                    // A few hundred bytes into an empty socket.
                    if socket::send(fd, &bytes).ok() != Some(bytes.len()) {
                        let text = "could not send to the server";
                        return Err(opening.failed(Failure::Protocol(text.into())));
                    }
                    action = opening.login.next_action();
                }
                LoginAction::Negotiated => {
                    if let Some(origin) = opening.origin.filter(|it| it.from.is_local()) {
                        send_client(fd, client(origin.session));
                    }
                    action = opening.login.next_action();
                }
                LoginAction::Derive(job) => {
                    self.jobs.give(Job::Derive {
                        backend: slot,
                        serial: opening.serial,
                        job,
                    });
                    return Ok(());
                }
                LoginAction::Failed(failure) => return Err(opening.failed(failure)),
            }
        }
    }

    /// The keys that were asked for.
    pub fn derived(
        &mut self,
        slot: u32,
        serial: u64,
        keys: &Keys,
        client: impl Fn(SessionId) -> RawFd,
    ) -> Result<(), OpenFailed> {
        let opening = self.get(slot);
        let Some(opening) = opening.filter(|opening| opening.serial == serial) else {
            return Ok(());
        };
        let action = opening.login.derived(keys);
        self.go_on(slot, action, client)
    }

    /// The opening connection has done its work.
    pub fn close(&mut self, slot: u32) {
        let opening = self.openings.get_mut(slot as usize);
        if let Some(opening) = opening.and_then(Option::take) {
            let _ = self.epoll.delete(opening.socket.as_raw_fd());
        }
    }
}

impl Opening {
    fn failed(&self, failure: Failure) -> OpenFailed {
        (failure, Some(self.over_unix))
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
