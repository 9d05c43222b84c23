//! The two sockets of a relay: the client's, and the near end of the socketpair whose far
//! end is handed to backends; and what each is waited for with.

use super::relay::Ends;
use super::ClientEnd;
use crate::shell::sys::{epoll, socket};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

pub struct Sockets {
    pub client: OwnedFd,
    pub backend: OwnedFd,
    /// The client has taken something.
    pub has_written: bool,
    /// There may be more to be read of which no event will tell.
    pub client_has_more: bool,
    pub backend_has_more: bool,
}

impl Sockets {
    /// Both are this relay's alone.
    pub fn new(client: ClientEnd, backend: OwnedFd) -> Sockets {
        Sockets {
            client: client.0,
            backend,
            has_written: false,
            client_has_more: false,
            backend_has_more: false,
        }
    }
}

/// Reads, and says whether all has been read: less than there is room for.
fn read(end: &OwnedFd, has_more: &mut bool, into: &mut [u8]) -> io::Result<usize> {
    let length = socket::receive(end.as_raw_fd(), into);
    *has_more = length.as_ref().is_ok_and(|length| *length == into.len());
    length
}

impl Ends for Sockets {
    fn read_client(&mut self, into: &mut [u8]) -> io::Result<usize> {
        read(&self.client, &mut self.client_has_more, into)
    }

    fn write_client(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = socket::send(self.client.as_raw_fd(), bytes);
        self.has_written |= sent.as_ref().is_ok_and(|length| *length > 0);
        sent
    }

    fn read_backend(&mut self, into: &mut [u8]) -> io::Result<usize> {
        read(&self.backend, &mut self.backend_has_more, into)
    }

    fn write_backend(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket::send(self.backend.as_raw_fd(), bytes)
    }

    fn end_backend(&mut self) {
        socket::shutdown_write(self.backend.as_raw_fd());
    }
}

/// What an end is waited for with.
///
/// A relay that has nothing to write reads all that has come, so it is told of
/// news alone (EPOLLET): otherwise the kernel looks at each socket that was told of
/// once more, in the next wait. Whoever leaves something there, or may have left
/// an end behind it, has the kernel look again (EPOLL_CTL_MOD does, epoll(7)).
pub fn events(input: bool, output: bool, is_open: bool) -> u32 {
    let edges = epoll::IN | epoll::RDHUP | epoll::EDGES;
    match (input, output) {
        (true, false) if is_open => edges,
        (true, false) => epoll::IN,
        (true, true) => epoll::IN | epoll::OUT,
        (false, true) => epoll::OUT,
        (false, false) => 0,
    }
}

pub fn is_edge(events: u32) -> bool {
    events & epoll::EDGES != 0
}
