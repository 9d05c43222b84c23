//! The table of sessions: who exists, and who owns each.
//!
//! Free of I/O. A session is named by generation and index; a name whose
//! generation is past finds nothing, so that a late event or message cannot
//! hit the session that has the slot now. The low half of the name is the
//! index of the session's slot in CONTROL and of its record in the ARENA.
//!
//! A session is in exactly one [`Place`]. Backends re-arm the sockets of
//! sessions by themselves, so `Queue` and `Backend` mean "was sent there";
//! the word `owner` in the session's slot tells whether it is there still, and
//! an event on its socket that it is not.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Generation in the upper half (never 0, and 31 bits, so that a bigint holds a
/// name), index in the lower.
pub type SessionId = u64;

pub fn index_of(session: SessionId) -> u32 {
    session as u32
}

fn name(generation: u32, index: u32) -> SessionId {
    (u64::from(generation) << 32) | u64::from(index)
}

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the epoll: the client is silent.
    Idle,
    /// In its pool's FIFO.
    Waiting,
    /// Sent into the pool's ready queue.
    Queue,
    /// Assigned to this backend slot.
    Backend(u32),
    /// Its request is being passed over.
    Skipping(Skipped),
}

/// Why a request is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    WaitedTooLong,
    Cancelled,
}

/// What the dispatcher alone knows of a session; the rest is in shared memory.
pub struct Session {
    socket: Option<OwnedFd>,
    generation: u32,
    pub pool: u32,
    pub place: Place,
    /// Not greeted yet: nothing has been sent since AuthenticationOk.
    pub greet: bool,
    /// When it began to wait, microseconds of the monotonic clock.
    pub waits_since_us: u64,
}

const _: () = assert!(std::mem::size_of::<Session>() <= 40);

impl Session {
    pub fn fd(&self) -> RawFd {
        self.socket.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}

/// All sessions. Bounded by the number of slots.
pub struct Sessions {
    table: Vec<Session>,
    free: Vec<u32>,
    slots: u32,
    live: usize,
}

impl Sessions {
    pub fn new(slots: u32) -> Sessions {
        Sessions {
            table: Vec::new(),
            free: Vec::new(),
            slots,
            live: 0,
        }
    }

    pub fn live(&self) -> usize {
        self.live
    }

    /// Makes a session; None if there is no slot. `usable` says whether a slot
    /// may be used (an orphaned backend may still hold one).
    pub fn create(
        &mut self,
        socket: OwnedFd,
        pool: u32,
        usable: impl Fn(u32) -> bool,
    ) -> Result<SessionId, OwnedFd> {
        let mut skipped = Vec::new();
        let mut found = None;
        while let Some(index) = self.next_slot() {
            if usable(index) {
                found = Some(index);
                break;
            }
            skipped.push(index);
        }
        self.free.extend(skipped);
        let Some(index) = found else {
            return Err(socket);
        };
        let session = &mut self.table[index as usize];
        // Starts anywhere, so that names of an earlier dispatcher are not met.
        session.generation = (session.generation.wrapping_add(1) & 0x7fff_ffff).max(1);
        session.socket = Some(socket);
        session.pool = pool;
        session.place = Place::Idle;
        session.greet = false;
        self.live += 1;
        Ok(name(session.generation, index))
    }

    fn next_slot(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        if self.table.len() as u64 >= u64::from(self.slots) {
            return None;
        }
        self.table.push(Session {
            socket: None,
            generation: rand::random(),
            pool: 0,
            place: Place::Idle,
            greet: false,
            waits_since_us: 0,
        });
        Some(self.table.len() as u32 - 1)
    }

    pub fn get(&self, session: SessionId) -> Option<&Session> {
        self.table
            .get(index_of(session) as usize)
            .filter(|found| found.socket.is_some() && u64::from(found.generation) == session >> 32)
    }

    pub fn get_mut(&mut self, session: SessionId) -> Option<&mut Session> {
        self.table
            .get_mut(index_of(session) as usize)
            .filter(|found| found.socket.is_some() && u64::from(found.generation) == session >> 32)
    }

    /// The name of the live session in a slot.
    pub fn in_slot(&self, index: u32) -> Option<SessionId> {
        let found = self.table.get(index as usize)?;
        found.socket.as_ref()?;
        Some(name(found.generation, index))
    }

    /// Takes a session out; its socket and its pool.
    pub fn remove(&mut self, session: SessionId) -> Option<(OwnedFd, u32)> {
        let found = self.get_mut(session)?;
        let (socket, pool) = (found.socket.take()?, found.pool);
        self.free.push(index_of(session));
        self.live -= 1;
        Some((socket, pool))
    }

    /// Names of all live sessions.
    pub fn ids(&self) -> impl Iterator<Item = SessionId> + '_ {
        (0..self.table.len() as u32).filter_map(|index| self.in_slot(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn an_old_name_does_not_find_the_slots_next_session() {
        let mut sessions = Sessions::new(1);
        let first = sessions.create(socket(), 3, |_| true).unwrap();
        assert!(sessions.create(socket(), 3, |_| true).is_err());
        assert_eq!(sessions.get(first).unwrap().pool, 3);
        assert!(sessions.remove(first).is_some());
        assert!(sessions.remove(first).is_none());
        let second = sessions.create(socket(), 4, |_| true).unwrap();
        assert_eq!(index_of(first), index_of(second));
        assert!(sessions.get(first).is_none() && sessions.get_mut(first).is_none());
        assert_eq!(sessions.ids().collect::<Vec<_>>(), [second]);
        assert_eq!(sessions.live(), 1);
    }

    #[test]
    fn a_slot_that_an_orphan_holds_is_left_alone() {
        let mut sessions = Sessions::new(3);
        let session = sessions.create(socket(), 0, |index| index == 2).unwrap();
        assert_eq!(index_of(session), 2);
        assert!(sessions.create(socket(), 0, |index| index == 2).is_err());
        assert!(sessions.create(socket(), 0, |_| true).is_ok());
        assert!(sessions.create(socket(), 0, |_| true).is_ok());
    }
}
