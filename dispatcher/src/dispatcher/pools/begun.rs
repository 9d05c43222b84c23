//! Sessions whose client has sent part of a message, and no more.
//!
//! A backend that finds nothing it could read gives the session back and says
//! so (BATON_SESSION_BEGUN). From then on we look, whenever something has come:
//! no oftener, as the socket is armed edge-triggered, so that what lies there
//! unread makes no event. Meanwhile the session is idle, also for
//! idle_session_timeout, and for the scheduler: it has not spoken. When
//! there is enough (message_start.rs) it waits for a backend, which is told not
//! to ask again (BATON_SESSION_LOOKED_AT).
//!
//! The kernel may hold less than we wait for. A Unix socket takes only so many
//! writes unread, however short: by default 278, or 70 for a sender who polls
//! first (unix_writable, net/unix/af_unix.c). Who writes byte by byte would wait
//! for us as we for him; nothing tells him from one who has stopped. On TCP a
//! packet that was read in part holds the memory of all of it, which may close
//! the window (__tcp_select_window, net/ipv4/tcp_output.c). So of those that
//! make no headway one at a time may begin.

use crate::core::{index_of, Ending, Event, SessionId};
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::sys::{epoll, socket};
use crate::protocol::message_start::{look, Start};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A client has stopped, or cannot go on: fewer bytes are fewer writes than a
/// socket holds.
const STUCK_BYTES: usize = 64;

/// A session that has sent part of a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begun {
    /// How many bytes must be there before it is worth a look.
    needed: usize,
    /// How many there were a second ago.
    seen: usize,
}

/// Who may begin though he makes no headway, and how many transactions he had.
pub type Granted = Option<(SessionId, u64)>;

impl Dispatcher {
    /// An event on a session's socket: true if all that has come is part of a
    /// message, so that the scheduler need not know.
    pub fn only_begins(&mut self, id: SessionId, events: u32) -> bool {
        let slot = &self.control.sessions[index_of(id) as usize];
        let has_begun = slot.flags.load(Relaxed) & SESSION_BEGUN != 0;
        let fd = self.clients.fd(id);
        if !has_begun || slot.owner.load(SeqCst) != 0 || fd < 0 || self.stopping.is_some() {
            return false;
        }
        let is_last = events & (epoll::RDHUP | epoll::HUP | epoll::ERR) != 0;
        let available = socket::unread(fd);
        let known = self.begun.get(&id).copied();
        if known.is_some_and(|begun| available < begun.needed) && !is_last {
            return true;
        }
        let mut buffer = vec![0; MESSAGE_MAY_BEGIN as usize];
        let start = match socket::peek_bytes(fd, &mut buffer) {
            // What has come meanwhile makes an event of its own.
            Ok(length) if length > 0 && buffer[0] != b'X' => look(
                &buffer[..length],
                available.max(length),
                MESSAGE_MAY_BEGIN as usize,
            ),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Start::Needs(1),
            // It leaves.
            _ => Start::Ready,
        };
        match start {
            Start::Ready => self.begun_is_ready(id),
            // The rest will never come.
            Start::Needs(_) if is_last => {
                self.tell(Event::Ended(id, Ending::Cut));
                true
            }
            Start::Needs(needed) => {
                self.begun.entry(id).or_default().needed = needed;
                // The first time; it makes an event at once, as something is there.
                if known.is_none()
                    && (self.client_number)
                        .watch_edges(self.session_epoll(id), fd, id)
                        .is_err()
                {
                    self.tell(Event::Ended(id, Ending::Cut));
                }
                true
            }
        }
    }

    /// True if another event will come for it.
    fn begun_is_ready(&mut self, id: SessionId) -> bool {
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.flags.fetch_and(!SESSION_BEGUN, SeqCst);
        slot.flags.fetch_or(SESSION_LOOKED_AT, SeqCst);
        if self.begun.remove(&id).is_none() {
            return false;
        }
        // Back to one event; or each further packet would make one, whoever
        // owns the session. It makes that at once.
        let fd = self.clients.fd(id);
        if (self.client_number)
            .arm(self.session_epoll(id), fd, id)
            .is_err()
        {
            self.tell(Event::Ended(id, Ending::Cut));
        }
        true
    }

    /// Once a second: lets one of those begin that may be unable to go on.
    pub fn sweep_begun(&mut self) {
        if self.begun.is_empty() || self.is_granted() {
            return;
        }
        let mut stuck = None;
        for (id, begun) in &mut self.begun {
            let fd = self.clients.fd(*id);
            let available = socket::unread(fd);
            let is_still = available > 0 && available == begun.seen;
            begun.seen = available;
            if is_still && may_be_full(fd, available) {
                stuck = Some(*id);
            }
        }
        if let Some(id) = stuck {
            let slot = &self.control.sessions[index_of(id) as usize];
            self.begun_granted = Some((id, slot.transactions.load(Relaxed)));
            self.begun_is_ready(id);
        }
    }

    /// Has one been let that has not been answered yet?
    fn is_granted(&self) -> bool {
        let Some((id, transactions)) = self.begun_granted else {
            return false;
        };
        let slot = &self.control.sessions[index_of(id) as usize];
        self.clients.fd(id) >= 0 && slot.transactions.load(Relaxed) == transactions
    }
}

/// Is it that the kernel takes no more of what a client has begun to send?
fn may_be_full(fd: RawFd, available: usize) -> bool {
    match socket::local_address(fd) {
        Ok(address) if address.is_local() => available >= STUCK_BYTES,
        // Short messages take a few hundred bytes each.
        _ => socket::receive_memory(fd).is_some_and(|(held, most)| held >= most / 4),
    }
}
