//! The sockets of sessions, by session index; the epolls in which they stand; and the origins
//! of clients, as limits count them.
//!
//! The session's index determines its thread for life, and with that the epoll in which its
//! socket stands (threads.rs). Backends arm the socket in the same epoll.

use crate::core::{index_of, Ending, Says, SessionId};
use crate::protocol::Report;
use crate::shell::sys::epoll::{ClientNumber, Epoll};
use crate::shell::sys::keeper::Ledger;
use crate::shell::sys::socket::{self, Address};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

struct Client {
    id: SessionId,
    socket: OwnedFd,
    origin: Option<Origin>,
}

/// The sockets of all sessions. The id of a session that has ended leads to none.
pub struct Sockets {
    number: Arc<ClientNumber>,
    /// One for each thread. The first is also the epoll of everything else.
    epolls: Vec<Arc<Epoll>>,
    table: Vec<Option<Client>>,
    origins: HashMap<Origin, usize>,
    /// Sockets closed since the start.
    closed: u64,
    /// Where the sockets of sessions are written down that outlive this process.
    ledger: Option<Ledger>,
}

impl Sockets {
    pub fn new(
        number: Arc<ClientNumber>,
        epolls: Vec<Arc<Epoll>>,
        ledger: Option<Ledger>,
    ) -> Sockets {
        Sockets {
            number,
            epolls,
            ledger,
            table: Vec::new(),
            origins: HashMap::new(),
            closed: 0,
        }
    }

    pub fn insert(&mut self, id: SessionId, socket: OwnedFd, origin: Option<Origin>) {
        let index = index_of(id) as usize;
        if self.table.len() <= index {
            self.table.resize_with(index + 1, || None);
        }
        if let Some(origin) = origin {
            *self.origins.entry(origin).or_default() += 1;
        }
        let before = self.table[index].replace(Client { id, socket, origin });
        if let Some(before) = before {
            self.gone(before.origin);
        }
    }

    // ---- what outlives this process ----------------------------------------

    /// From here on the session outlives this process: all of it is in shared memory.
    pub fn keep(&self, id: SessionId) {
        let fd = self.fd(id);
        if let Some(ledger) = self.ledger.filter(|_| fd >= 0) {
            ledger.keep(index_of(id), fd);
        }
    }

    /// From here on it does not.
    pub fn keep_no_more(&self, id: SessionId) {
        if let Some(ledger) = self.ledger {
            ledger.keep_no_more(index_of(id));
        }
    }

    pub fn is_kept(&self, id: SessionId) -> bool {
        let fd = self.fd(id);
        fd >= 0 && (self.ledger).is_some_and(|it| it.session(index_of(id)) == Some(fd))
    }

    fn gone(&mut self, origin: Option<Origin>) {
        self.closed += 1;
        let Some(Entry::Occupied(mut count)) = origin.map(|origin| self.origins.entry(origin))
        else {
            return;
        };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }

    /// The number of sessions from this origin.
    pub fn from(&self, origin: &Origin) -> usize {
        self.origins.get(origin).copied().unwrap_or(0)
    }

    /// Sockets closed since the start. A change means that descriptors are free again.
    pub fn closed(&self) -> u64 {
        self.closed
    }

    /// The session's descriptor; -1 if there is no such session.
    pub fn fd(&self, id: SessionId) -> RawFd {
        let client = self.table.get(index_of(id) as usize);
        let client = client.and_then(Option::as_ref);
        client
            .filter(|client| client.id == id)
            .map_or(-1, |client| client.socket.as_raw_fd())
    }

    // ---- in the epoll ------------------------------------------------------

    /// The descriptor number that all client sockets have in the epolls.
    pub fn number(&self) -> RawFd {
        self.number.number()
    }

    pub fn epolls(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.epolls.iter().map(|epoll| epoll.as_raw_fd())
    }

    /// The epoll in which the session's socket stands.
    fn epoll(&self, id: SessionId) -> &Epoll {
        &self.epolls[index_of(id) as usize % self.epolls.len()]
    }

    /// Moves a session that the main thread has logged in to the epoll of its thread.
    /// `watched`: its socket stands in the main thread's epoll. True if the socket already
    /// stands in the epoll of the session's thread.
    fn moves_to_its_thread(&self, id: SessionId, watched: bool) -> bool {
        let is_the_same = std::ptr::eq(self.epoll(id), &*self.epolls[0]);
        if watched && !is_the_same {
            let _ = self.number.remove(&self.epolls[0], self.fd(id));
        }
        watched && is_the_same
    }

    /// Adds and arms the socket of a new session. `watched`: it stands in the main thread's
    /// epoll.
    pub fn add(&self, id: SessionId, watched: bool) -> io::Result<()> {
        let known = self.moves_to_its_thread(id, watched);
        (self.number).add(self.epoll(id), self.fd(id), known, id)
    }

    /// Adds the socket of a new session whose first owner is not the dispatcher.
    pub fn add_unarmed(&self, id: SessionId, watched: bool) -> io::Result<()> {
        let known = self.moves_to_its_thread(id, watched);
        (self.number).add_unarmed(self.epoll(id), self.fd(id), known, id)
    }

    /// Arms the socket: the next input makes one event.
    pub fn arm(&self, id: SessionId) -> io::Result<()> {
        self.number.arm(self.epoll(id), self.fd(id), id)
    }

    /// Only the end of the connection makes an event.
    pub fn arm_for_end(&self, id: SessionId) -> io::Result<()> {
        (self.number).add_unarmed(self.epoll(id), self.fd(id), true, id)
    }

    /// Each arrival of input makes an event.
    pub fn watch_edges(&self, id: SessionId) -> io::Result<()> {
        self.number.watch_edges(self.epoll(id), self.fd(id), id)
    }

    // ---- what is in them ---------------------------------------------------

    pub fn look(&self, id: SessionId) -> Says {
        match socket::peek(self.fd(id)) {
            Ok(Some(b'X') | None) => Says::Leaves,
            Ok(Some(_)) => Says::Something,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Says::Nothing,
            Err(_) => Says::Broken,
        }
    }

    /// False if the socket does not take all of the bytes.
    pub fn send(&self, id: SessionId, bytes: &[u8]) -> bool {
        socket::send(self.fd(id), bytes).ok() == Some(bytes.len())
    }

    pub fn say_last_word(&self, id: SessionId, report: &Report) {
        self.keep_no_more(id);
        let fd = self.fd(id);
        let _ = socket::send(fd, &report.to_bytes());
        socket::discard_input(fd);
    }

    // ---- the end -----------------------------------------------------------

    /// Closes the session's connection, even if another process still has the socket. False if
    /// there is no such session.
    pub fn close(&mut self, id: SessionId, how: Ending) -> bool {
        let Some(client) = self.table.get_mut(index_of(id) as usize) else {
            return false;
        };
        let Some(client) = client.take_if(|client| client.id == id) else {
            return false;
        };
        self.gone(client.origin);
        self.keep_no_more(id);
        let fd = client.socket.as_raw_fd();
        match how {
            Ending::Left => {
                // No backend has the socket, or a backend is about to close it. So it is enough
                // to close this descriptor; the epoll's entry goes with the file. The Terminate
                // has only been peeked at. It is read here, because unread input would make
                // close() reset the connection.
                let _ = socket::receive(fd, &mut [0; 64]);
                self.number.let_go(fd);
            }
            Ending::Cut => {
                let _ = self.number.remove(self.epoll(id), fd);
                self.number.let_go(fd);
                socket::shutdown(fd);
            }
        }
        true
    }

    /// Closes all sockets at the end of the program.
    pub fn close_all(&mut self) {
        self.number.let_go_of_all();
        self.table.clear();
        self.origins.clear();
    }
}

// ---- Origins --------------------------------------------------------------
//
// Where clients come from, as limits count them.

/// The origin of a client: its IPv4 address, or the IPv6 network that one customer has (64
/// bits). Clients on a Unix socket have no origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    family: u16,
    bytes: [u8; 16],
}

impl Origin {
    pub fn of(address: &Address) -> Option<Origin> {
        if address.is_local() {
            return None;
        }
        let mut bytes = address.bytes;
        if address.family == libc::AF_INET6 as u16 {
            bytes[8..].fill(0);
        }
        Some(Origin {
            family: address.family,
            bytes,
        })
    }
}

/// Origins for tests.
#[cfg(test)]
pub mod samples {
    use super::{Address, Origin};

    pub fn address(family: i32, bytes: &[u8]) -> Address {
        let mut address = Address {
            family: family as u16,
            ..Address::default()
        };
        address.bytes[..bytes.len()].copy_from_slice(bytes);
        address
    }

    pub fn v4(last: u32) -> Option<Origin> {
        Origin::of(&address(libc::AF_INET, &last.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::sessions::sockets::samples::{address, v4};

    #[test]
    fn a_network_of_ipv6_is_one_and_a_unix_socket_none() {
        let of = |last: u8, network: u8| {
            let mut bytes = [0x20; 16];
            (bytes[7], bytes[15]) = (network, last);
            Origin::of(&address(libc::AF_INET6, &bytes))
        };
        assert_eq!(of(1, 1), of(2, 1));
        assert_ne!(of(1, 1), of(1, 2));
        assert_ne!(v4(1), v4(2));
        assert_eq!(Origin::of(&Address::local()), None);
    }
}
