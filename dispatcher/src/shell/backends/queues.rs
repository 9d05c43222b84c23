//! The pools' ready queues: kernel sockets from which backends help themselves.
//! A pool has one while it has backends, so that pools as many as sessions take
//! no descriptors.

use crate::core::{Event, SessionId};
use crate::shell::link::layout::shared::*;
use crate::shell::link::memory::control::Control;
use crate::shell::link::{handshake, wire};
use crate::shell::sys::epoll::{self, Epoll};
use crate::shell::sys::socket;
use crate::shell::tokens::{token, Source};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use tracing::debug;

/// Both ends of a pool's queue.
struct Queue {
    write: OwnedFd,
    read: OwnedFd,
    /// One of the backends has shut it, and it is of no more use to any of them.
    is_shut: bool,
}

/// All of them, by pool slot.
pub struct Queues {
    control: Control,
    epoll: Arc<Epoll>,
    queues: Vec<Option<Queue>>,
    /// Pools to whose backends the kernel sends no descriptors for the moment.
    unsendable: Vec<u32>,
    /// Sessions that went in since the start.
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

    /// A pool is about to have a backend.
    pub fn open(&mut self, number: u32) -> io::Result<()> {
        if self.queues[number as usize].is_some() {
            return Ok(());
        }
        let (write, read) = socket::short_queue()?;
        // Not armed: only a full queue is waited for.
        let data = token(Source::Queue, number);
        self.epoll.add(write.as_raw_fd(), epoll::ONESHOT, data)?;
        self.queues[number as usize] = Some(Queue {
            write,
            read,
            is_shut: false,
        });
        Ok(())
    }

    /// It has no backend any more; what was in the queue has been taken back.
    pub fn close(&mut self, number: u32) {
        if let Some(queue) = self.queues[number as usize].take() {
            let _ = self.epoll.delete(queue.write.as_raw_fd());
        }
        self.control.pools[number as usize].queued.store(0, SeqCst);
    }

    fn get(&self, number: u32) -> Option<&Queue> {
        self.queues.get(number as usize)?.as_ref()
    }

    /// What is written to.
    pub fn entry(&self, number: u32) -> RawFd {
        self.get(number).map_or(-1, |queue| queue.write.as_raw_fd())
    }

    /// What a backend gets.
    pub fn end(&self, number: u32) -> RawFd {
        self.get(number).map_or(-1, |queue| queue.read.as_raw_fd())
    }

    pub fn is_empty(&self, number: u32) -> bool {
        socket::unread(self.end(number)) == 0
    }

    /// From the send on a backend may own the session. What came of it.
    pub fn put(&mut self, pool: u32, id: SessionId, client: RawFd) -> Event {
        let full = Event::QueueFull { pool, id };
        let queue = self.queues.get_mut(pool as usize).and_then(Option::as_mut);
        let Some(queue) = queue else {
            return full;
        };
        let queued = &self.control.pools[pool as usize].queued;
        handshake::announce(queued);
        let frame = wire::bare(MSG_ASSIGN, id);
        let write = queue.write.as_raw_fd();
        if let Err(error) = socket::send_with_descriptors(write, &frame, &[client]) {
            handshake::withdraw(queued);
            if socket::is_passing(&error) {
                return self.not_sent(pool, id, true, &error);
            }
            if socket::is_shut(&error) {
                // It would be ready at once, and never have room.
                queue.is_shut = true;
                return full;
            }
            let data = token(Source::Queue, pool);
            let _ = self.epoll.modify(write, epoll::OUT | epoll::ONESHOT, data);
            return full;
        }
        self.queued += 1;
        // The core looks for backends to poke now.
        handshake::announced(queued);
        Event::Queued
    }

    /// Then its backends have to go; the next ones get another.
    pub fn is_shut(&self, number: u32) -> bool {
        self.get(number).is_some_and(|queue| queue.is_shut)
    }

    /// The kernel bounds how many descriptors of a user are under way at a time
    /// (too_many_unix_fds, net/core/scm.c): that is nobody's fault, and passes.
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

    /// Pools to be tried again.
    pub fn take_unsendable(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.unsendable)
    }

    /// One that is in a pool's queue, out of it.
    pub fn take_back(&self, number: u32) -> Option<SessionId> {
        let queue = self.get(number)?;
        let queued = &self.control.pools[number as usize].queued;
        let mut packet = [0; FRAME_HEADER_SIZE as usize];
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

    /// Nobody takes from the queue any more, and it is empty.
    pub fn reset_counter(&self, number: u32) {
        let queued = self.control.pools[number as usize].queued.swap(0, SeqCst);
        if queued != 0 {
            debug!("the counter of pool {number}'s ready queue is set right: {queued}");
        }
    }
}
