//! Connections by which backends are opened, and the addresses at which the server is reached.
//!
//! The dispatcher connects to the server as any client would, and drops that connection when
//! the server says ReadyForQuery. By then the backend has connected to the control socket by
//! itself and has shown the token of its slot (scheduler/attach.rs). From there on the control
//! connection represents the backend: it ends when the backend ends. The token lets the backend
//! in, whatever pg_hba.conf says (the extension's attach.c).

use crate::core::{PoolKey, StartsAs};
use crate::protocol::messages::MOST_STARTUP_BYTES;
use crate::protocol::opening::{BackendStart, Failure, Start};
use crate::protocol::Report;
use crate::shell::events::{token, Source};
use crate::shell::parameters::Parameters;
use crate::shell::sys::epoll::{self, Epoll};
use crate::shell::sys::socket::{self, Kind};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The protocol option that makes the server's backend call the extension before it
/// authenticates. Its value does not matter.
const PROTOCOL_OPTION: (&[u8], &[u8]) = (b"_pq_.pg_baton", b"");

/// The connection by which a backend is opened.
struct Opening {
    socket: OwnedFd,
    start: BackendStart,
    /// Bytes that have not been sent; the startup packet while it connects.
    unsent: Vec<u8>,
}

/// A backend to be opened.
pub struct NewBackend<'a> {
    pub slot: u32,
    pub key: &'a PoolKey,
    /// The role as which it starts, if that role may log in. The backend then serves any role
    /// of its database.
    pub role: &'a StartsAs,
    /// The token that the backend shows when it attaches in its slot.
    pub secret: u64,
    /// The server combines the client's user and database into the role name.
    pub db_user_namespace: bool,
}

impl NewBackend<'_> {
    /// The startup packet, and the reader of the answers.
    fn start(self) -> Result<(BackendStart, Vec<u8>), Failure> {
        let (slot, secret, key) = (self.slot, self.secret, self.key);
        let StartsAs { user, role_oid } = self.role;
        let is_apart = u8::from(key.role_oid.is_some());
        let attach = format!("-c pg_baton.attach={slot}:{secret:x}:{role_oid}:{is_apart}");
        let mut options = attach.into_bytes();
        for (name, value) in &key.options {
            options.extend_from_slice(b" -c ");
            escape_option(&mut options, name);
            options.push(b'=');
            escape_option(&mut options, value);
        }
        // A name with this ending is the role's own name, whatever the database.
        let global: &[u8] = if self.db_user_namespace { b"@" } else { b"" };
        let user = [user, global].concat();
        let parameters = [(b"options".as_slice(), options.as_slice()), PROTOCOL_OPTION];
        let (start, packet) = BackendStart::begin(&user, &key.database, &parameters);
        if packet.len() > MOST_STARTUP_BYTES {
            let report = Report::fatal(b"54000", "startup options are too long for the pool")
                .with_detail(
                "Blanks and backslashes in options that only a starting backend takes count twice.",
            );
            return Err(Failure::ServerError(report));
        }
        Ok((start, packet))
    }
}

/// The connections of all opening backends, by slot.
pub struct Openings {
    epoll: Arc<Epoll>,
    openings: Vec<Option<Opening>>,
    /// Backends begun since the start.
    begun: u64,
}

impl Openings {
    pub fn new(slots: usize, epoll: Arc<Epoll>) -> Openings {
        Openings {
            epoll,
            openings: (0..slots).map(|_| None).collect(),
            begun: 0,
        }
    }

    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Begins to open a backend over this connection to the server. `ready` is called when only
    /// the server can still prevent it.
    pub fn begin(
        &mut self,
        new: NewBackend<'_>,
        socket: OwnedFd,
        ready: impl FnOnce(),
    ) -> Result<(), Failure> {
        let slot = new.slot;
        let (start, unsent) = new.start()?;
        ready();
        let fd = socket.as_raw_fd();
        self.begun += 1;
        self.openings[slot as usize] = Some(Opening {
            socket,
            start,
            unsent,
        });
        let data = token(Source::Opening, slot);
        (self.epoll.add(fd, epoll::IN | epoll::OUT, data))
            .map_err(|error| Failure::Protocol(format!("could not wait for the server: {error}")))
    }

    /// The connection of an opening backend is readable or writable. What follows after
    /// ReadyForQuery happens on the control socket.
    pub fn event(&mut self, slot: u32) -> Result<(), Failure> {
        let opening = self.openings.get_mut(slot as usize);
        let Some(opening) = opening.and_then(Option::as_mut) else {
            return Ok(());
        };
        let fd = opening.socket.as_raw_fd();
        // Messages that the server sent before it closed the connection are read first.
        let mut lost = None;
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
                Err(error) => lost = Some(format!("could not connect to the server: {error}")),
            }
        }
        let mut bytes = [0; 8192];
        let heard = socket::receive(fd, &mut bytes);
        match heard {
            Ok(length) if length > 0 => match (opening.start.feed(&bytes[..length]), lost) {
                (Start::Failed(failure), _) => Err(failure),
                (Start::NeedsMore, Some(why)) => Err(Failure::Protocol(why)),
                _ => Ok(()),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && lost.is_none() => Ok(()),
            // An attached backend closes this connection, which has been removed here by then.
            // So this backend has died.
            heard => Err(Failure::Protocol(lost.unwrap_or_else(|| match heard {
                Err(error) => error.to_string(),
                Ok(_) => "the server closed the connection while a backend was starting".into(),
            }))),
        }
    }

    /// The opening connection has done its work.
    pub fn close(&mut self, slot: u32) {
        let opening = self.openings.get_mut(slot as usize);
        if let Some(opening) = opening.and_then(Option::take) {
            let _ = self.epoll.delete(opening.socket.as_raw_fd());
        }
    }
}

/// Escapes blanks and backslashes; pg_split_opts (postinit.c) reverses that.
fn escape_option(out: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        if byte.is_ascii_whitespace() || *byte == b'\\' || *byte == 0x0b {
            out.push(b'\\');
        }
        out.push(*byte);
    }
}

// ---- The way to the server ------------------------------------------------
//
// Connections to the server, such as any client could make.

/// The names of a list as in postgresql.conf: a name in quotes may contain commas and blanks,
/// and "" stands for a quote (SplitDirectoriesString, varlena.c).
pub fn directories(list: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut letters = list.chars().peekable();
    let mut quoted = false;
    while let (Some(letter), Some(name)) = (letters.next(), names.last_mut()) {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                name.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => names.push(String::new()),
            // Blanks around a name are dropped; those inside stay.
            ' ' | '\t' | '\n' | '\r' if !quoted && name.is_empty() => {}
            _ => name.push(letter),
        }
    }
    for name in &mut names {
        name.truncate(name.trim_end().len());
    }
    names.retain(|name| !name.is_empty());
    names
}

pub fn socket_path(directory: impl AsRef<Path>, port: u16) -> PathBuf {
    directory.as_ref().join(format!(".s.PGSQL.{port}"))
}

/// Connects to the server. A server whose accept queue is full (EAGAIN) does exist, so the
/// dispatcher tries it again later. It does not turn to TCP, where other lines of pg_hba.conf
/// apply.
pub fn connect(parameters: &Parameters) -> io::Result<OwnedFd> {
    let port = parameters.server_port;
    let mut last = None;
    for directory in directories(&parameters.unix_socket_directories) {
        match socket::connect_unix(&socket_path(&directory, port), Kind::Stream) {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    for address in socket::loopback(port) {
        match socket::connect_tcp(&address) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = last.or(Some(error)),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound)))
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

    #[test]
    fn directories_are_split_as_the_server_does() {
        let found = directories(r#" /tmp , "/a, b/c" ,@name,"with ""quotes""",, /two words"#);
        let names = ["/tmp", "/a, b/c", "@name", "with \"quotes\"", "/two words"];
        assert_eq!(found, names);
    }
}
