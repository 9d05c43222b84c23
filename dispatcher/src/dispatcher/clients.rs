//! The sockets of sessions, by the index of each; and how many there are from
//! where.

use super::login::limits::Origin;
use crate::core::{index_of, SessionId};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

struct Client {
    id: SessionId,
    socket: OwnedFd,
    origin: Option<Origin>,
}

/// All sockets. A name that is past has none.
#[derive(Default)]
pub struct Clients {
    table: Vec<Option<Client>>,
    origins: HashMap<Origin, usize>,
}

impl Clients {
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

    fn gone(&mut self, origin: Option<Origin>) {
        let Some(Entry::Occupied(mut count)) = origin.map(|origin| self.origins.entry(origin))
        else {
            return;
        };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }

    /// Sessions from there.
    pub fn from(&self, origin: &Origin) -> usize {
        self.origins.get(origin).copied().unwrap_or(0)
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
        let client = client.take_if(|client| client.id == id)?;
        self.gone(client.origin);
        Some(client.socket)
    }
}
