//! The pool's own sockets: opening, closing, and accepting from them.

use crate::dispatcher::event_loop::{token, Dispatcher, Source};
use crate::dispatcher::parameters::Parameters;
use crate::dispatcher::sys::epoll;
use crate::dispatcher::sys::process;
use crate::dispatcher::sys::socket::{self, Address, Kind};
use crate::protocol::Report;
use anyhow::{anyhow, Result};
use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use tracing::{info, warn};

/// Exit code when a port or socket is another's: trying again may help.
pub const EXIT_PORT_TAKEN: u8 = 75;

/// Somebody else listens there.
#[derive(Debug, thiserror::Error)]
#[error("could not listen on {0}: the address is in use; {1}")]
pub struct Taken(String, &'static str);

/// By whom, as far as can be said.
fn taken(address: String, parameters: &Parameters) -> Taken {
    let by_whom = if parameters.port == parameters.server_port {
        "the server itself listens there: change \"port\" or \"pg_baton.port\" in postgresql.conf"
    } else {
        "is another server or dispatcher running there?"
    };
    Taken(address, by_whom)
}

/// One listening socket.
pub struct Listener {
    pub socket: OwnedFd,
    /// The file of a Unix socket, to be removed at the end.
    pub path: Option<PathBuf>,
    /// The address that all its clients have called, if it is but one.
    pub local: Option<Address>,
}

/// Connections taken from one listener before others get their turn.
const ACCEPTS_A_ROUND: usize = 64;
/// Who can only be told that there is no room has so long to ask.
const IN_VAIN_US: u64 = 5_000_000;

/// The names of a list as in postgresql.conf: one in quotes may have commas and
/// blanks, and "" for a quote (SplitDirectoriesString, varlena.c).
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
            // Around a name; those within stay.
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

fn tcp_addresses(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match name {
        "*" => Ok(vec![
            SocketAddr::from(([0, 0, 0, 0], port)),
            SocketAddr::from(([0u16; 8], port)),
        ]),
        // Blocks in the name service; done once, before anything is served.
        _ => Ok((name, port).to_socket_addrs()?.collect()),
    }
}

/// Opens all that the parameters name. As in stock, an address that cannot be
/// bound is a warning, none at all is an error.
pub fn open(parameters: &Parameters) -> Result<Vec<Listener>> {
    let mut found = Vec::new();
    let mut wanted = 0;
    let mut taken = None;
    let mut tried = HashSet::new();
    for name in directories(&parameters.listen_addresses) {
        let addresses = match tcp_addresses(&name, parameters.port) {
            Ok(addresses) => addresses,
            Err(error) => {
                warn!("could not translate host name \"{name}\" to address: {error}");
                wanted += 1;
                continue;
            }
        };
        for address in addresses {
            wanted += 1;
            // Ours already: two names may stand for one address.
            if !tried.insert(address) {
                continue;
            }
            match socket::listen_tcp(&address) {
                Ok(socket) => {
                    info!("listening on {address}");
                    let is_one = !address.ip().is_unspecified();
                    found.push(Listener {
                        local: socket::local_address(socket.as_raw_fd())
                            .ok()
                            .filter(|_| is_one),
                        socket,
                        path: None,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    warn!("could not listen on {address}: {error}");
                    taken = Some(self::taken(address.to_string(), parameters));
                }
                Err(error) => {
                    warn!("could not listen on {address}: {error}");
                }
            }
        }
    }
    if let Some(taken) = taken.filter(|_| found.is_empty()) {
        return Err(taken.into());
    }
    let group = match parameters.unix_socket_group.as_str() {
        "" => None,
        name => Some(
            process::group_id(name).ok_or_else(|| anyhow!("group \"{name}\" does not exist"))?,
        ),
    };
    for directory in directories(&parameters.unix_socket_directories) {
        wanted += 1;
        let path = socket_path(&directory, parameters.port);
        let mode = parameters.unix_socket_permissions;
        match socket::listen_unix(&path, Kind::Stream, mode, group) {
            Ok(socket) => {
                info!("listening on Unix socket \"{}\"", path.display());
                found.push(Listener {
                    socket,
                    path: (!socket::is_abstract(&path)).then_some(path),
                    local: None,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                close(&mut found);
                return Err(self::taken(path.display().to_string(), parameters).into());
            }
            Err(error) => warn!(
                "could not create Unix socket \"{}\": {error}",
                path.display()
            ),
        }
    }
    if found.is_empty() && wanted > 0 {
        return Err(anyhow!("could not create any socket to listen on"));
    }
    Ok(found)
}

/// Closes all and removes their files.
pub fn close(listeners: &mut Vec<Listener>) {
    for listener in listeners.drain(..) {
        if let Some(path) = &listener.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Dispatcher {
    pub fn add_listeners(&mut self, listeners: Vec<Listener>) -> io::Result<()> {
        for (index, listener) in listeners.iter().enumerate() {
            let data = token(Source::Listener, index as u32);
            self.epoll
                .add(listener.socket.as_raw_fd(), epoll::IN, data)?;
        }
        self.listeners = listeners;
        Ok(())
    }

    pub fn accept_clients(&mut self, index: u32) {
        // In proportion to how many others are to be served: a single knock
        // needs no second look, and a crowd is let in fast enough.
        let most = (self.round_events / 4).clamp(1, ACCEPTS_A_ROUND);
        for _ in 0..most {
            let Some(listener) = self.listeners.get(index as usize) else {
                return;
            };
            let (fd, local) = (listener.socket.as_raw_fd(), listener.local);
            match socket::accept(fd) {
                // Numbers are given lowest first, so a high one means that
                // few are left: those are for backends.
                Ok((client, _)) if client.as_raw_fd() > self.highest_heard => {
                    self.turn_away_unread(&client);
                }
                Ok((client, address)) => self.begin_login(client, address, local),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_out_of_descriptors(&error) => {
                    match self.accept_without_descriptors(fd) {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                        Err(error) => return self.let_rest(Source::Listener, index, &error),
                    }
                }
                // The client is gone already, or the network is unwell: next.
                Err(error) => info!("could not accept new connection: {error}"),
            }
        }
    }

    /// There is no free descriptor: one is kept in reserve to tell clients so,
    /// rather than to leave them waiting. It does not help where the whole system
    /// has none.
    fn accept_without_descriptors(&mut self, listener: i32) -> io::Result<()> {
        self.reserve = None;
        let accepted = socket::accept(listener);
        if let Ok((client, _)) = &accepted {
            self.turn_away_unread(client);
        }
        let result = accepted.map(drop);
        self.reserve = crate::dispatcher::sys::memory::placeholder().ok();
        result
    }

    fn turn_away_unread(&mut self, client: &OwnedFd) {
        self.statistics.accepted += 1;
        self.statistics.logins_failed += 1;
        let fd = client.as_raw_fd();
        let _ = socket::send(fd, &self.no_descriptors().to_bytes());
        socket::discard_input(fd);
    }

    /// May this client not come in, since its descriptor is one of those that
    /// are kept for backends? It is told so when it has asked to, not before:
    /// libpq from 17 on shows no error that comes in place of an answer to its
    /// SSLRequest (PQconnectPoll, fe-connect.c).
    pub fn is_in_vain(&self, number: u32) -> bool {
        let login = self.logins.get(number);
        login.is_some_and(|login| login.fd() > self.highest_client)
    }

    pub fn turn_away_heard(&mut self, number: u32) {
        let report = self.no_descriptors();
        self.fail_login(number, &report);
    }

    pub fn login_limit_us(&self, fd: RawFd) -> u64 {
        let limit_us = self.parameters.authentication_timeout_ms * 1000;
        if fd > self.highest_client {
            limit_us.min(IN_VAIN_US)
        } else {
            limit_us
        }
    }

    /// What a client is told that cannot come in, and once the log.
    fn no_descriptors(&mut self) -> Report {
        if !self.told_no_descriptors {
            self.told_no_descriptors = true;
            warn!("out of file descriptors: clients are turned away");
        }
        Report::fatal(b"53300", "sorry, too many clients already")
            .with_detail("pg_baton's dispatcher has no free file descriptor.")
            .with_hint("Raise the limit of open files of the server's service.")
    }
}

pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_split_as_the_server_does() {
        let found = directories(r#" /tmp , "/a, b/c" ,@name,"with ""quotes""",, /two words"#);
        let names = ["/tmp", "/a, b/c", "@name", "with \"quotes\"", "/two words"];
        assert_eq!(found, names);
    }
}
