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

use super::sockets::Sockets;
use crate::core::{index_of, SessionId};
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::layout::SessionSlot;
use crate::dispatcher::link::memory::control::Control;
use crate::dispatcher::plaintext::overwrite;
use crate::dispatcher::sys::{epoll, socket};
use crate::protocol::message_start::{look, Start};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A client has stopped, or cannot go on: fewer bytes are fewer writes than a
/// socket holds.
const STUCK_BYTES: usize = 64;
/// Looked at once a second.
const SWEPT_AT_ONCE: usize = 512;

/// A session that has sent part of a message.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// How many bytes must be there before it is worth a look.
    needed: usize,
    /// How many there were a second ago.
    seen: usize,
}

/// What an event on a session's socket means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// What an event means of itself.
    Speaks,
    /// All that has come is part of a message, or another event will come: the
    /// scheduler need not know.
    Begins,
    /// Its connection is of no more use.
    Broken,
}

/// All of them.
pub struct Begun {
    control: Control,
    parts: BTreeMap<SessionId, Part>,
    /// Looked at last in a sweep.
    swept: SessionId,
    /// Who may begin though he makes no headway, and how many transactions he had.
    granted: Option<(SessionId, u64)>,
}

impl Begun {
    pub fn new(control: Control) -> Begun {
        Begun {
            control,
            parts: BTreeMap::new(),
            swept: 0,
            granted: None,
        }
    }

    fn slot(&self, id: SessionId) -> &'static SessionSlot {
        &self.control.sessions[index_of(id) as usize]
    }

    pub fn has(&self, id: SessionId) -> bool {
        self.parts.contains_key(&id)
    }

    pub fn forget(&mut self, id: SessionId) {
        self.parts.remove(&id);
    }

    /// An event on a session's socket.
    pub fn heard(&mut self, id: SessionId, events: u32, sockets: &Sockets) -> Heard {
        let fd = sockets.fd(id);
        if fd < 0 {
            return Heard::Speaks;
        }
        let slot = self.slot(id);
        let has_begun = slot.flags.load(Relaxed) & SESSION_BEGUN != 0;
        if !has_begun || slot.owner.load(SeqCst) != 0 {
            return Heard::Speaks;
        }
        let is_last = events & (epoll::RDHUP | epoll::HUP | epoll::ERR) != 0;
        let available = socket::unread(fd);
        let known = self.parts.get(&id).copied();
        if known.is_some_and(|part| available < part.needed) && !is_last {
            return Heard::Begins;
        }
        match start_of(fd, available) {
            Start::Ready => self.is_ready(id, sockets),
            // The rest will never come.
            Start::Needs(_) if is_last => Heard::Broken,
            Start::Needs(needed) => {
                self.parts.entry(id).or_default().needed = needed;
                // The first time; it makes an event at once, as something is there.
                if known.is_none() && sockets.watch_edges(id).is_err() {
                    return Heard::Broken;
                }
                Heard::Begins
            }
        }
    }

    /// Is what has come part of a message, and no more? Nobody may have looked yet.
    pub fn is_part(&self, id: SessionId, sockets: &Sockets) -> bool {
        let fd = sockets.fd(id);
        self.has(id) || fd >= 0 && matches!(start_of(fd, socket::unread(fd)), Start::Needs(_))
    }

    fn is_ready(&mut self, id: SessionId, sockets: &Sockets) -> Heard {
        let slot = self.slot(id);
        slot.flags.fetch_and(!SESSION_BEGUN, SeqCst);
        slot.flags.fetch_or(SESSION_LOOKED_AT, SeqCst);
        if self.parts.remove(&id).is_none() {
            return Heard::Speaks;
        }
        // Back to one event; or each further packet would make one, whoever
        // owns the session. It makes that at once.
        match sockets.arm(id) {
            Ok(()) => Heard::Begins,
            Err(_) => Heard::Broken,
        }
    }

    /// Once a second: lets one of those begin that may be unable to go on. One
    /// whose connection is of no more use comes back.
    pub fn sweep(&mut self, sockets: &Sockets) -> Option<SessionId> {
        if self.parts.is_empty() || self.is_granted(sockets) {
            return None;
        }
        let mut stuck = None;
        // A part of them: a few system calls for each.
        let mut some: Vec<SessionId> = (self.parts.range(self.swept + 1..))
            .map(|(id, _)| *id)
            .take(SWEPT_AT_ONCE)
            .collect();
        let left = SWEPT_AT_ONCE - some.len();
        let first = self.parts.range(..=self.swept).map(|(id, _)| *id);
        some.extend(first.take(left));
        self.swept = some.last().copied().unwrap_or_default();
        for id in some {
            let Some(part) = self.parts.get_mut(&id) else {
                continue;
            };
            let fd = sockets.fd(id);
            let available = socket::unread(fd);
            let is_still = available > 0 && available == part.seen;
            part.seen = available;
            if is_still && may_be_full(fd, available) {
                stuck = Some(id);
            }
        }
        let id = stuck?;
        self.granted = Some((id, self.slot(id).transactions.load(Relaxed)));
        (self.is_ready(id, sockets) == Heard::Broken).then_some(id)
    }

    /// Has one been let that has not been answered yet?
    fn is_granted(&self, sockets: &Sockets) -> bool {
        let Some((id, transactions)) = self.granted else {
            return false;
        };
        sockets.fd(id) >= 0 && self.slot(id).transactions.load(Relaxed) == transactions
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

/// What lies unread in a socket, of which so many bytes are known to be there.
fn start_of(fd: RawFd, available: usize) -> Start {
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
    overwrite(&mut buffer);
    start
}
