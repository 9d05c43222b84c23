//! The pool's ports: opening and closing them, accepting connections, and pausing a port while
//! no connection can be accepted.
//!
//! Without a free descriptor, in this process (EMFILE) or in the whole system (ENFILE),
//! accept() fails, and epoll would report the waiting connection again and again: the loop
//! would spin. Such a listener is left out of the epoll for a moment and then tried again. Its
//! clients wait in the kernel's backlog meanwhile.

use crate::protocol::Report;
use crate::shell::backends::opening::{directories, socket_path};
use crate::shell::events::{token, Source};
use crate::shell::parameters::Parameters;
use crate::shell::sys::epoll::{self, Epoll};
use crate::shell::sys::socket::{self, Address, Kind};
use crate::shell::sys::{memory, process};
use anyhow::{anyhow, Result};
use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use tracing::{info, warn};

const REST_US: u64 = 100_000;

/// A listener that is paused.
#[derive(Clone, Copy, Debug)]
struct Resting {
    source: Source,
    index: u32,
    until_us: u64,
}

/// The result of accepting a connection.
pub enum Came {
    Client {
        socket: OwnedFd,
        address: Address,
        /// The address that the client connected to, if known without a system call.
        local: Option<Address>,
    },
    /// A client that has been told that there is no room.
    TurnedAway,
    /// The client is gone already, or the network has an error.
    Gone(io::Error),
    Nobody,
}

/// The ports.
pub struct Ports {
    epoll: Arc<Epoll>,
    listeners: Vec<Listener>,
    resting: Vec<Resting>,
    /// Closed to accept and refuse a client when no other descriptor is free.
    reserve: Option<OwnedFd>,
    told_no_descriptors: bool,
    /// Clients with a descriptor up to this one are refused by the protocol, after their
    /// startup packet. Clients with a higher one get the error without having asked.
    highest_heard: RawFd,
}

impl Ports {
    pub fn new(
        epoll: Arc<Epoll>,
        listeners: Vec<Listener>,
        highest_heard: RawFd,
    ) -> io::Result<Ports> {
        for (index, listener) in listeners.iter().enumerate() {
            let data = token(Source::Listener, index as u32);
            epoll.add(listener.socket.as_raw_fd(), epoll::IN, data)?;
        }
        Ok(Ports {
            epoll,
            listeners,
            resting: Vec::new(),
            reserve: Some(memory::placeholder()?),
            told_no_descriptors: false,
            highest_heard,
        })
    }

    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.listeners.iter().map(|one| one.socket.as_raw_fd())
    }

    /// Closes all ports.
    pub fn close(&mut self) {
        for listener in &self.listeners {
            let _ = self.epoll.delete(listener.socket.as_raw_fd());
        }
        close(&mut self.listeners);
    }

    // ---- accepting ---------------------------------------------------------

    /// Accepts the next connection of a listener.
    pub fn accept(&mut self, index: u32, now_us: u64) -> Came {
        let Some(listener) = self.listeners.get(index as usize) else {
            return Came::Nobody;
        };
        let (fd, local) = (listener.socket.as_raw_fd(), listener.local);
        let error = match socket::accept(fd) {
            // The kernel gives the lowest free number. A high one means that few are left, and
            // those are for backends.
            Ok((client, _)) if client.as_raw_fd() > self.highest_heard => {
                self.turn_away_unread(&client);
                return Came::TurnedAway;
            }
            Ok((socket, address)) => {
                return Came::Client {
                    socket,
                    address,
                    local,
                };
            }
            Err(error) => error,
        };
        if error.kind() == io::ErrorKind::WouldBlock {
            return Came::Nobody;
        }
        if !socket::is_out_of_descriptors(&error) {
            // The client is gone already, or the network has an error: go on with the next.
            return Came::Gone(error);
        }
        match self.accept_without_descriptors(fd) {
            Ok(()) => Came::TurnedAway,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    self.let_rest(Source::Listener, index, &error, now_us);
                    self.listen(index, false);
                }
                Came::Nobody
            }
        }
    }

    /// No descriptor is free: gives up the reserve descriptor to tell the client so, rather
    /// than leave it waiting. This does not help if the whole system is out of descriptors.
    fn accept_without_descriptors(&mut self, listener: RawFd) -> io::Result<()> {
        self.reserve = None;
        let accepted = socket::accept(listener);
        if let Ok((client, _)) = &accepted {
            self.turn_away_unread(client);
        }
        let result = accepted.map(drop);
        self.reserve = memory::placeholder().ok();
        result
    }

    fn turn_away_unread(&mut self, client: &OwnedFd) {
        let fd = client.as_raw_fd();
        let _ = socket::send(fd, &self.no_descriptors().to_bytes());
        socket::discard_input(fd);
    }

    /// The error for a client that finds no free descriptor. Also logs the shortage once.
    pub fn no_descriptors(&mut self) -> Report {
        if !self.told_no_descriptors {
            self.told_no_descriptors = true;
            warn!("out of file descriptors: clients are turned away");
        }
        Report::fatal(b"53300", "sorry, too many clients already")
            .with_detail("pg_baton's dispatcher has no free file descriptor.")
            .with_hint("Raise the limit of open files of the server's service.")
    }

    /// Descriptors are free again, so the next shortage is logged.
    pub fn descriptors_are_free(&mut self) {
        self.told_no_descriptors = false;
    }

    // ---- pausing -----------------------------------------------------------

    /// Pauses a listener that the caller has taken out of the epoll.
    pub fn let_rest(&mut self, source: Source, index: u32, why: &io::Error, now_us: u64) {
        if !self.told_no_descriptors {
            self.told_no_descriptors = true;
            warn!(
                "could not accept new connections: {why}; it is tried again every {} ms",
                REST_US / 1000
            );
        }
        self.resting.push(Resting {
            source,
            index,
            until_us: now_us + REST_US,
        });
    }

    pub fn have_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// In each tick: resumes the listeners whose pause is over. Returns the sources that are
    /// not ports, for the caller to resume.
    pub fn wake(&mut self, now_us: u64) -> Vec<Source> {
        let (rested, resting) =
            (std::mem::take(&mut self.resting).into_iter()).partition(|one| now_us >= one.until_us);
        self.resting = resting;
        let rested: Vec<Resting> = rested;
        let mut others = Vec::new();
        for one in rested {
            match one.source {
                Source::Listener => self.listen(one.index, true),
                other => others.push(other),
            }
        }
        others
    }

    /// Accepts no client any more. The ports stay open: clients wait for who follows.
    pub fn rest(&mut self) {
        self.resting.clear();
        for index in 0..self.listeners.len() as u32 {
            self.listen(index, false);
        }
    }

    fn listen(&self, index: u32, listens: bool) {
        // None: the port has been closed since.
        if let Some(listener) = self.listeners.get(index as usize) {
            let events = if listens { epoll::IN } else { 0 };
            let data = token(Source::Listener, index);
            let _ = (self.epoll).modify(listener.socket.as_raw_fd(), events, data);
        }
    }
}

// ---- Listeners ------------------------------------------------------------
//
// The pool's listening sockets: opening and closing them.

/// Exit code if another process uses a port or socket: trying again may help.
pub const EXIT_PORT_TAKEN: u8 = 75;

/// Another process listens on the address.
#[derive(Debug, thiserror::Error)]
#[error("could not listen on {0}: the address is in use; {1}")]
pub struct Taken(String, String);

/// Says, as far as is known, which process listens there.
fn taken(address: String, parameters: &Parameters) -> Taken {
    let hint = match parameters.port_collision.as_str() {
        "" => "is another server or dispatcher running there?".to_owned(),
        settings => format!("the server itself listens there: change {settings}"),
    };
    Taken(address, hint)
}

/// One listening socket.
pub struct Listener {
    pub socket: OwnedFd,
    /// The file of a Unix socket, to be removed at the end.
    pub path: Option<PathBuf>,
    /// The local address of all its clients, if it is a single address.
    pub local: Option<Address>,
}

fn take(left: &mut Vec<OwnedFd>, is_it: impl Fn(RawFd) -> bool) -> Option<OwnedFd> {
    let at = left.iter().position(|fd| is_it(fd.as_raw_fd()))?;
    Some(left.swap_remove(at))
}

fn tcp_addresses(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match name {
        "*" => Ok(vec![
            SocketAddr::from(([0, 0, 0, 0], port)),
            SocketAddr::from(([0u16; 8], port)),
        ]),
        // Blocks in the name service; happens once, before any client is served.
        _ => Ok((name, port).to_socket_addrs()?.collect()),
    }
}

/// Opens all listeners that the parameters name. As in stock, an address that cannot be bound
/// is a warning; if none can be, that is an error.
/// Sockets that an earlier dispatcher has left open go on, and the clients that wait in them.
pub fn open(parameters: &Parameters, mut left: Vec<OwnedFd>) -> Result<Vec<Listener>> {
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
            // Two names may stand for one address, which is open already.
            if !tried.insert(address) {
                continue;
            }
            let known = take(&mut left, |fd| {
                socket::bound_to(fd).is_ok_and(|bound| bound == address)
            });
            match known.map_or_else(|| socket::listen_tcp(&address), Ok) {
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
                    let is_taken = self::taken(address.to_string(), parameters);
                    warn!("{is_taken}");
                    taken = Some(is_taken);
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
        let known = take(&mut left, |fd| socket::path_of(fd).as_ref() == Some(&path));
        let known = known.filter(|_| path.exists());
        let listen = || socket::listen_unix(&path, Kind::Stream, mode, group);
        match known.map_or_else(listen, Ok) {
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

/// Closes all listeners and removes their socket files.
pub fn close(listeners: &mut Vec<Listener>) {
    for listener in listeners.drain(..) {
        if let Some(path) = &listener.path {
            let _ = std::fs::remove_file(path);
        }
    }
}
