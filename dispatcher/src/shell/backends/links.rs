//! How backends are reached: the control connection of each attached backend, which gives it
//! work, wakes it, and tells it to go; what each backend has said of its session and not
//! completed; and the ready queue of each pool.
//!
//! This file decides nothing. If a link's socket takes no more messages, the link is noted as
//! failed, and the owner of the connections closes it (`take_failed`).

use crate::core::{index_of, Event, SessionId, Word};
use crate::shell::events::{token, Source};
use crate::shell::link::layout::shared::*;
use crate::shell::link::memory::context::Staged;
use crate::shell::link::memory::control::Control;
use crate::shell::link::{handshake, wire};
use crate::shell::sys::epoll::{self, Epoll};
use crate::shell::sys::{process, socket};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;
use tracing::debug;

struct Link {
    /// The number of its control connection. None: an adopted backend has not connected yet.
    connection: Option<u32>,
    /// None: the connection has ended, and the slot is not free yet; or there has been none.
    socket: Option<Arc<OwnedFd>>,
    /// The process ID that the kernel has reported, not the word in shared memory, which any
    /// process of the server could have written. 0: there is none any more.
    process: u32,
    /// The pidfd of that process, for signals. None: there is none any more.
    pidfd: Option<OwnedFd>,
    staged: Staged,
}

/// The result of a claim.
#[derive(Debug)]
pub enum Claim {
    /// The backend has the session; or the backend is dead, which is handled when it is reaped.
    Made,
    /// The backend's state word has changed meanwhile.
    Lost,
    /// The kernel does not send descriptors now. The backend is free again.
    NotSent(io::Error),
}

/// The links of all backends, by slot.
pub struct Links {
    control: Control,
    links: Vec<Option<Link>>,
    /// Adopted backends that have not connected yet, each with its sessions.
    awaited: Vec<(u32, Vec<SessionId>)>,
    /// Numbers of connections that are to be closed.
    failed: Vec<u32>,
    /// Sessions assigned directly to a backend since the start, not through a queue.
    assigned: u64,
}

impl Links {
    pub fn new(control: Control) -> Links {
        Links {
            control,
            links: (0..control.backends.len()).map(|_| None).collect(),
            awaited: Vec::new(),
            failed: Vec::new(),
            assigned: 0,
        }
    }

    pub fn assigned(&self) -> u64 {
        self.assigned
    }

    // ---- coming and going --------------------------------------------------

    pub fn attach(
        &mut self,
        slot: u32,
        connection: u32,
        socket: Arc<OwnedFd>,
        (process, pidfd): (u32, OwnedFd),
    ) {
        self.links[slot as usize] = Some(Link {
            connection: Some(connection),
            socket: Some(socket),
            process,
            pidfd: Some(pidfd),
            staged: Staged::default(),
        });
    }

    /// A backend that an earlier dispatcher has started goes on with these sessions. It will
    /// connect.
    pub fn adopt(&mut self, slot: u32, (process, pidfd): (u32, OwnedFd), sessions: Vec<SessionId>) {
        self.links[slot as usize] = Some(Link {
            connection: None,
            socket: None,
            process,
            pidfd: Some(pidfd),
            staged: Staged::default(),
        });
        self.awaited.push((slot, sessions));
    }

    /// An adopted backend has connected. Returns the sessions with which it was adopted; None if
    /// none is awaited in that slot.
    pub fn comes_again(
        &mut self,
        slot: u32,
        connection: u32,
        socket: Arc<OwnedFd>,
    ) -> Option<Vec<SessionId>> {
        let at = self.awaited.iter().position(|(other, _)| *other == slot)?;
        let (_, sessions) = self.awaited.swap_remove(at);
        if let Some(link) = self.links[slot as usize].as_mut() {
            link.connection = Some(connection);
            link.socket = Some(socket);
        }
        Some(sessions)
    }

    /// Adopted backends that have not connected yet.
    pub fn awaited(&self) -> impl Iterator<Item = u32> + '_ {
        self.awaited.iter().map(|(slot, _)| *slot)
    }

    /// Adopted backends that have not connected yet, and whose processes have ended; each with the
    /// sessions with which it was adopted.
    pub fn take_ended(&mut self) -> Vec<(u32, Vec<SessionId>)> {
        let awaited = std::mem::take(&mut self.awaited);
        let has_ended = |slot: u32| self.pidfd(slot).is_none_or(process::has_ended);
        let (ended, awaited) = awaited.into_iter().partition(|(slot, _)| has_ended(*slot));
        self.awaited = awaited;
        ended
    }

    /// Makes a backend look at its slot.
    pub fn wake(&self, slot: u32) {
        if let Some(Err(error)) = self.pidfd(slot).map(process::hurry) {
            debug!("could not signal backend {slot}: {error}");
        }
    }

    /// Has a backend attached in this slot since the slot was last free?
    pub fn is_attached(&self, slot: u32) -> bool {
        self.links[slot as usize].is_some()
    }

    /// The backend's connection has ended. The caller discards the staged changes that are
    /// returned.
    pub fn lost(&mut self, slot: u32) -> Staged {
        let Some(link) = self.links[slot as usize].as_mut() else {
            return Staged::default();
        };
        link.socket = None;
        link.process = 0;
        link.pidfd = None;
        std::mem::take(&mut link.staged)
    }

    /// The slot is free.
    pub fn forget(&mut self, slot: u32) {
        self.links[slot as usize] = None;
    }

    pub fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    pub fn take_failed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.failed)
    }

    fn link(&self, slot: u32) -> Option<&Link> {
        self.links.get(slot as usize)?.as_ref()
    }

    /// The number of the backend's control connection.
    pub fn connection_of(&self, slot: u32) -> Option<u32> {
        self.link(slot)?.connection
    }

    fn fd(&self, slot: u32) -> Option<RawFd> {
        let socket = self.link(slot)?.socket.as_ref()?;
        Some(socket.as_raw_fd())
    }

    /// The backend's process ID; 0: there is none.
    pub fn process_of(&self, slot: u32) -> u32 {
        self.link(slot).map_or(0, |link| link.process)
    }

    fn pidfd(&self, slot: u32) -> Option<&OwnedFd> {
        self.link(slot)?.pidfd.as_ref()
    }

    /// Ends the backend's process.
    pub fn end(&self, slot: u32) {
        let ended = self.pidfd(slot).map(process::end);
        if let Some(Err(error)) = ended {
            debug!("could not end backend {slot}: {error}");
        }
    }

    // ---- what it has said and not finished ---------------------------------

    pub fn take_staged(&mut self, slot: u32) -> Staged {
        let link = self.links.get_mut(slot as usize).and_then(Option::as_mut);
        link.map(|link| std::mem::take(&mut link.staged))
            .unwrap_or_default()
    }

    /// Stores the staged changes. Returns them if the slot has no backend any more.
    pub fn put_staged(&mut self, slot: u32, staged: Staged) -> Result<(), Staged> {
        match self.links.get_mut(slot as usize).and_then(Option::as_mut) {
            Some(link) => {
                link.staged = staged;
                Ok(())
            }
            None => Err(staged),
        }
    }

    // ---- work --------------------------------------------------------------

    /// Claims a backend in the state in which it was seen, and sends it a session.
    pub fn claim(
        &mut self,
        slot: u32,
        seen: Word,
        id: SessionId,
        client: RawFd,
        shared_us: i64,
    ) -> Claim {
        let seen = match seen {
            Word::Linger => BACKEND_LINGER,
            _ => BACKEND_IDLE,
        };
        let state = &self.control.backends[slot as usize].state;
        if !handshake::claim(state, seen) {
            return Claim::Lost;
        }
        self.assigned += 1;
        let Some(fd) = self.fd(slot) else {
            return Claim::Made;
        };
        match socket::send_with_descriptors(fd, &wire::assign(id, shared_us), &[client]) {
            Ok(()) => Claim::Made,
            Err(error) if socket::is_passing(&error) => {
                handshake::unclaim(state, seen);
                // The backend may have seen the claim, and would wait for a session.
                self.send(slot, &wire::bare(MSG_POKE, 0));
                Claim::NotSent(error)
            }
            Err(error) => {
                debug!("could not assign a session to backend {slot}: {error}");
                // If the connection has ended, its remaining messages are still read.
                if !socket::has_hung_up(fd) {
                    self.fail(slot);
                }
                Claim::Made
            }
        }
    }

    /// The backend takes no more messages: it is dead, or cannot be used.
    fn fail(&mut self, slot: u32) {
        if let Some(connection) = self.connection_of(slot) {
            self.failed.push(connection);
        }
    }

    /// Sends a small frame; false if the socket did not take it.
    pub fn send(&self, slot: u32, frame: &[u8]) -> bool {
        let Some(fd) = self.fd(slot) else {
            return false;
        };
        match socket::send(fd, frame) {
            Ok(_) => true,
            Err(error) => {
                debug!("could not send to backend {slot}: {error}");
                false
            }
        }
    }

    /// A backend that has been poked is not poked again before it has read the poke.
    pub fn poke(&self, slot: u32) {
        let poked = &self.control.backends[slot as usize].poked;
        if handshake::poke(poked) && !self.send(slot, &wire::bare(MSG_POKE, 0)) {
            handshake::not_poked(poked);
        }
    }

    /// A sleeping backend does not see that another process has overwritten its state word, and
    /// would go on sleeping. The poke makes it look and repair the word (idle.c).
    pub fn poke_damaged(&self) {
        for (slot, link) in (0..).zip(&self.links) {
            let state = self.control.backends[slot as usize].state.load(SeqCst);
            let is_alive = matches!(link, Some(link) if link.socket.is_some());
            if is_alive && !(BACKEND_IDLE..=BACKEND_BUSY).contains(&state) {
                self.poke(slot);
            }
        }
    }

    pub fn retire(&self, slot: u32) {
        let retire = &self.control.backends[slot as usize].retire;
        retire.store(RETIRE_NOW, SeqCst);
        // A backend that never sleeps, because its queue is never empty, sees the word.
        self.send(slot, &wire::bare(MSG_RETIRE, 0));
    }

    /// `id` 0: any session that the backend has.
    pub fn recall(&self, slot: u32, id: SessionId) {
        let held = match id {
            0 => self.control.backends[slot as usize].session.load(SeqCst),
            id => id,
        };
        if held != 0 {
            self.send(slot, &wire::bare(MSG_RECALL, held));
        }
    }

    pub fn evict(&self, slot: u32, id: SessionId) {
        self.send(slot, &wire::bare(MSG_EVICT, id));
    }

    pub fn end_idle(&self, slot: u32, id: SessionId, since: i64) {
        let frame = wire::Writer::new(MSG_END_IDLE, id).u64(since as u64);
        self.send(slot, &frame.finish());
    }

    pub fn offer(&self, ticket: u32, slots: &[u32]) {
        let backends = self.control.backends;
        let retire = slots.iter().map(|slot| &backends[*slot as usize].retire);
        handshake::offer(retire, &self.control.header.room_ticket, ticket);
        for slot in slots {
            // A backend that goes to sleep just now is found in the next tick.
            let state = backends[*slot as usize].state.load(SeqCst);
            if state == BACKEND_IDLE || state == BACKEND_LINGER {
                self.send(*slot, &wire::bare(MSG_RETIRE, 0));
            }
        }
    }

    pub fn take_ticket_back(&self, ticket: u32) -> Event {
        let word = &self.control.header.room_ticket;
        Event::TicketBack(handshake::take_ticket_back(word, ticket))
    }

    pub fn clear_ticket(&self, slot: u32, ticket: u32) {
        let retire = &self.control.backends[slot as usize].retire;
        let _ = retire.compare_exchange(ticket, RETIRE_NOT, SeqCst, SeqCst);
    }

    pub fn measure(&self, slot: u32, is_unread: bool) -> Event {
        let backend = &self.control.backends[slot as usize];
        Event::Measured {
            slot,
            transactions: backend.transactions.load(Relaxed),
            cpu_us: process::cpu_time_of(self.process_of(slot)).unwrap_or(0),
            is_unread,
        }
    }

    // ---- cancel ------------------------------------------------------------

    /// Asks the session's next owner to cancel. If a backend has taken the session meanwhile,
    /// the mark may come too late and must not hit the next transaction; the backend is told
    /// directly.
    pub fn mark_cancel(&self, id: SessionId) {
        let slot = &self.control.sessions[index_of(id) as usize];
        if handshake::mark_cancel(&slot.flags, &slot.owner) {
            self.hurry(id, true);
        }
    }

    /// Tells the backend that has the session. That may change meanwhile, but then the session
    /// is not running what was to be cancelled. A request to terminate already stands in the
    /// session's identity.
    pub fn hurry(&self, id: SessionId, cancel: bool) {
        let slot = &self.control.sessions[index_of(id) as usize];
        let Some(holder) = slot.owner.load(SeqCst).checked_sub(1) else {
            return;
        };
        let Some(backend) = self.control.backends.get(holder as usize) else {
            return;
        };
        let is_there = if cancel {
            handshake::name_cancelled(&backend.session, &backend.cancel, id)
        } else {
            backend.session.load(SeqCst) == id
        };
        if is_there {
            self.wake(holder);
        }
    }
}

// ---- Ready queues ---------------------------------------------------------
//
// The pools' ready queues: kernel sockets from which backends take sessions themselves. A pool
// has a queue only while it has backends. So descriptors are not used up by pools, of which
// there may be as many as sessions.

/// Both ends of a pool's queue.
struct Queue {
    write: OwnedFd,
    read: OwnedFd,
    /// A backend has shut the queue, so no backend can use it any more.
    is_shut: bool,
}

/// All queues, by pool slot.
pub struct Queues {
    control: Control,
    epoll: Arc<Epoll>,
    queues: Vec<Option<Queue>>,
    /// Pools to whose backends the kernel sends no descriptors at the moment.
    unsendable: Vec<u32>,
    /// Sessions put into a queue since the start.
    queued: u64,
}

impl Queues {
    pub fn new(control: Control, epoll: Arc<Epoll>) -> Queues {
        Queues {
            control,
            epoll,
            queues: (0..control.pools.len()).map(|_| None).collect(),
            unsendable: Vec::new(),
            queued: 0,
        }
    }

    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Opens the pool's queue, as the pool is about to have a backend.
    pub fn open(&mut self, number: u32) -> io::Result<()> {
        if self.queues[number as usize].is_some() {
            return Ok(());
        }
        let (write, read) = socket::short_queue()?;
        // Not armed: the dispatcher waits only when the queue is full.
        let data = token(Source::Queue, number);
        self.epoll.add(write.as_raw_fd(), epoll::ONESHOT, data)?;
        self.queues[number as usize] = Some(Queue {
            write,
            read,
            is_shut: false,
        });
        Ok(())
    }

    /// Closes the queue of a pool without backends. Its sessions have been taken back before.
    pub fn close(&mut self, number: u32) {
        if let Some(queue) = self.queues[number as usize].take() {
            let _ = self.epoll.delete(queue.write.as_raw_fd());
        }
        self.control.pools[number as usize].queued.store(0, SeqCst);
    }

    fn get(&self, number: u32) -> Option<&Queue> {
        self.queues.get(number as usize)?.as_ref()
    }

    /// The end to which the dispatcher writes.
    pub fn entry(&self, number: u32) -> RawFd {
        self.get(number).map_or(-1, |queue| queue.write.as_raw_fd())
    }

    /// The end that each backend receives.
    pub fn end(&self, number: u32) -> RawFd {
        self.get(number).map_or(-1, |queue| queue.read.as_raw_fd())
    }

    pub fn is_empty(&self, number: u32) -> bool {
        socket::unread(self.end(number)) == 0
    }

    /// Puts a session into the queue. From the send on, a backend may own the session. Returns
    /// the result.
    pub fn put(&mut self, pool: u32, id: SessionId, client: RawFd, shared_us: i64) -> Event {
        let full = Event::QueueFull { pool, id };
        let queue = self.queues.get_mut(pool as usize).and_then(Option::as_mut);
        let Some(queue) = queue else {
            return full;
        };
        let queued = &self.control.pools[pool as usize].queued;
        handshake::announce(queued);
        let frame = wire::assign(id, shared_us);
        let write = queue.write.as_raw_fd();
        if let Err(error) = socket::send_with_descriptors(write, &frame, &[client]) {
            handshake::withdraw(queued);
            if socket::is_passing(&error) {
                return self.not_sent(pool, id, true, &error);
            }
            if socket::is_shut(&error) {
                // The socket would be writable at once, and never have room.
                queue.is_shut = true;
                return full;
            }
            let data = token(Source::Queue, pool);
            let _ = self.epoll.modify(write, epoll::OUT | epoll::ONESHOT, data);
            return full;
        }
        self.queued += 1;
        // The core now looks for backends to poke.
        handshake::announced(queued);
        Event::Queued
    }

    /// Has a backend shut the queue? Then the pool's backends must go; the next ones get
    /// another queue.
    pub fn is_shut(&self, number: u32) -> bool {
        self.get(number).is_some_and(|queue| queue.is_shut)
    }

    /// The kernel limits the descriptors of a user that are in transit at a time
    /// (too_many_unix_fds, net/core/scm.c). That is no fault of the backend, and passes.
    pub fn not_sent(
        &mut self,
        pool: u32,
        id: SessionId,
        to_queue: bool,
        error: &io::Error,
    ) -> Event {
        debug!("a session of pool {pool} could not be sent, it waits a moment: {error}");
        if !self.unsendable.contains(&pool) {
            self.unsendable.push(pool);
        }
        Event::NotSent { pool, id, to_queue }
    }

    pub fn has_unsendable(&self) -> bool {
        !self.unsendable.is_empty()
    }

    /// Pools for which sending is to be tried again.
    pub fn take_unsendable(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.unsendable)
    }

    /// Takes one session out of the pool's queue.
    pub fn take_back(&self, number: u32) -> Option<SessionId> {
        let queue = self.get(number)?;
        let queued = &self.control.pools[number as usize].queued;
        let mut packet = [0; wire::ASSIGN];
        let read = queue.read.as_raw_fd();
        loop {
            let (length, descriptor) = socket::receive_with_descriptor(read, &mut packet).ok()?;
            if length == 0 {
                return None;
            }
            drop(descriptor);
            handshake::withdraw(queued);
            if let Ok(frame) = wire::Frame::parse(&packet[..length]) {
                return Some(frame.session);
            }
        }
    }

    pub fn is_open(&self, number: u32) -> bool {
        self.get(number).is_some()
    }

    /// Resets the counter of a queue that is empty and from which no backend takes any more.
    pub fn reset_counter(&self, number: u32) {
        let queued = self.control.pools[number as usize].queued.swap(0, SeqCst);
        if queued != 0 {
            debug!("the counter of pool {number}'s ready queue is set right: {queued}");
        }
    }
}
