//! The sockets of sessions, by the index of each.

use crate::core::{index_of, SessionId};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

struct Client {
    id: SessionId,
    socket: OwnedFd,
}

/// All sockets. A name that is past has none.
#[derive(Default)]
pub struct Clients {
    table: Vec<Option<Client>>,
}

impl Clients {
    pub fn insert(&mut self, id: SessionId, socket: OwnedFd) {
        let index = index_of(id) as usize;
        if self.table.len() <= index {
            self.table.resize_with(index + 1, || None);
        }
        self.table[index] = Some(Client { id, socket });
    }

    /// -1 if there is no such session.
    pub fn fd(&self, id: SessionId) -> RawFd {
        let client = self.table.get(index_of(id) as usize);
        let client = client.and_then(Option::as_ref);
        client
            .filter(|client| client.id == id)
            .map_or(-1, |client| client.socket.as_raw_fd())
    }

    pub fn remove(&mut self, id: SessionId) -> Option<OwnedFd> {
        let client = self.table.get_mut(index_of(id) as usize)?;
        client
            .take_if(|client| client.id == id)
            .map(|client| client.socket)
    }
}
