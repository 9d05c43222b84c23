//! The pools' ready queues: kernel sockets from which backends help themselves.
//! A pool has one while it has backends, so that pools as many as sessions take
//! no descriptors.

use crate::core::{Event, PoolKey, SessionId};
use crate::dispatcher::event_loop::{token, Dispatcher, Source};
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::{handshake, wire};
use crate::dispatcher::sys::{epoll, socket};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use tracing::debug;

/// Both ends of a pool's queue.
pub struct Queue {
    write: OwnedFd,
    read: OwnedFd,
}

/// May it be sent a moment later?
pub fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ETOOMANYREFS | libc::ENOBUFS | libc::ENOMEM)
    )
}

impl Dispatcher {
    /// The pool of a key; None if there can be no more pools.
    pub fn pool_for(&mut self, key: PoolKey) -> Option<u32> {
        if let Some(number) = self.core.find_pool(&key) {
            return Some(number);
        }
        let number = self.core.create_pool(key)?;
        let slot = &self.control.pools[number as usize];
        slot.queued.store(0, SeqCst);
        slot.completed.store(0, SeqCst);
        slot.in_use.store(1, SeqCst);
        // What its mode is.
        self.carry_out();
        debug!("pool {number} created");
        Some(number)
    }

    /// A pool is about to have a backend.
    pub fn open_queue(&mut self, number: u32) -> std::io::Result<()> {
        if self.queues[number as usize].is_some() {
            return Ok(());
        }
        let (write, read) = socket::short_queue()?;
        // Not armed: only a full queue is waited for.
        let data = token(Source::Queue, number);
        self.epoll.add(write.as_raw_fd(), epoll::ONESHOT, data)?;
        self.queues[number as usize] = Some(Queue { write, read });
        Ok(())
    }

    /// It has none any more; what is in its queue all the same is not lost.
    pub fn close_queue(&mut self, number: u32) {
        self.take_back(number);
        if let Some(queue) = self.queues[number as usize].take() {
            let _ = self.epoll.delete(queue.write.as_raw_fd());
        }
        self.control.pools[number as usize].queued.store(0, SeqCst);
    }

    pub fn drop_pool(&mut self, number: u32) {
        self.close_queue(number);
        let slot = &self.control.pools[number as usize];
        slot.keeps_sessions.store(CAUSE_NONE, SeqCst);
        slot.in_use.store(0, SeqCst);
        debug!("pool {number} is dropped");
    }

    /// What is written to.
    pub fn queue_entry(&self, number: u32) -> RawFd {
        let queue = self.queues.get(number as usize).and_then(Option::as_ref);
        queue.map_or(-1, |queue| queue.write.as_raw_fd())
    }

    /// What a backend gets.
    pub fn queue_end(&self, number: u32) -> RawFd {
        let queue = self.queues.get(number as usize).and_then(Option::as_ref);
        queue.map_or(-1, |queue| queue.read.as_raw_fd())
    }

    /// From the send on a backend may own the session.
    pub fn enqueue(&mut self, number: u32, id: SessionId) {
        let Some(queue) = self.queues[number as usize].as_ref() else {
            let event = Event::QueueFull { pool: number, id };
            return self.core.handle(event, &self.control);
        };
        let queued = &self.control.pools[number as usize].queued;
        handshake::announce(queued);
        let frame = wire::bare(MSG_ASSIGN, id);
        let write = queue.write.as_raw_fd();
        if let Err(error) = socket::send_descriptors(write, &frame, &[self.clients.fd(id)]) {
            handshake::withdraw(queued);
            if is_passing(&error) {
                return self.not_sent(number, id, true, &error);
            }
            let data = token(Source::Queue, number);
            let _ = self.epoll.modify(write, epoll::OUT | epoll::ONESHOT, data);
            let event = Event::QueueFull { pool: number, id };
            return self.core.handle(event, &self.control);
        }
        self.statistics.queued += 1;
        // The core looks for backends to poke now.
        handshake::announced(queued);
        self.core.handle(Event::Queued, &self.control);
    }

    /// The kernel bounds how many descriptors of a user are under way at a time
    /// (too_many_unix_fds, net/core/scm.c): that is nobody's fault, and passes.
    pub fn not_sent(&mut self, pool: u32, id: SessionId, to_queue: bool, error: &io::Error) {
        debug!("a session of pool {pool} could not be sent, it waits a moment: {error}");
        if !self.unsendable.contains(&pool) {
            self.unsendable.push(pool);
        }
        let event = Event::NotSent { pool, id, to_queue };
        self.core.handle(event, &self.control);
    }

    /// In each tick.
    pub fn send_again(&mut self) {
        for pool in std::mem::take(&mut self.unsendable) {
            self.tell(Event::QueueHasRoom(pool));
        }
    }

    /// All that is in a pool's queue.
    pub fn take_back(&mut self, number: u32) {
        let Some(queue) = self.queues[number as usize].as_ref() else {
            return;
        };
        let queued = &self.control.pools[number as usize].queued;
        let mut packet = [0; FRAME_HEADER_SIZE as usize];
        let read = queue.read.as_raw_fd();
        while let Ok((length, descriptor)) = socket::receive_descriptor(read, &mut packet) {
            if length == 0 {
                break;
            }
            drop(descriptor);
            handshake::withdraw(queued);
            if let Ok(frame) = wire::Frame::parse(&packet[..length]) {
                let event = Event::TakenBack(frame.session);
                self.core.handle(event, &self.control);
            }
        }
        let event = Event::QueueDrained(number);
        self.core.handle(event, &self.control);
    }

    /// Once a second: is a queue's counter right?
    pub fn check_queues(&mut self) {
        for number in self.core.pools_with_backends() {
            let read = self.queue_end(number);
            let is_empty = socket::unread(read) == 0;
            self.core.check_queue(number, is_empty, &self.control);
            self.carry_out();
        }
    }
}
