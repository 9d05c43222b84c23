//! Sessions whose client has sent only part of a message; and, at the end, requests that
//! are skipped.
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
//!
//! A batch whose messages are whole, but none of which is answered before its Sync,
//! is run as on a direct connection if its pool has a backend free for it and another
//! one for the others. Those for which it had none are looked at once a second, and one
//! may begin. When the session's statement_timeout is over it waits for a backend as
//! any other does, which raises the error where the server would: as it reads the next
//! message (statement_timed_out, held_client.c).

use super::sockets::Sockets;
use crate::core::{index_of, SessionId, Skipped};
use crate::protocol::frontend::{RequestEnd, RequestSkipper, SkipError};
use crate::protocol::message_start::{look, Start};
use crate::protocol::{messages, Report};
use crate::shell::link::layout::shared::*;
use crate::shell::link::layout::SessionSlot;
use crate::shell::link::memory::control::Control;
use crate::shell::sys::memory::overwrite;
use crate::shell::sys::{epoll, socket};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A client has stopped, or cannot go on: fewer bytes are fewer writes than a
/// socket holds.
const STUCK_BYTES: usize = 64;
/// A statement_timeout that ends so soon is over: what has come shall have been run by then.
const SOON_US: u64 = 10_000;
/// Looked at once a second, or in a tick.
const SWEPT_AT_ONCE: usize = 512;

/// After looks at so many bytes the others wait for the next turn.
const BYTES_A_TURN: usize = 8_192;
/// A byte in a packet of its own takes half a piece of work (events.rs).
const BYTES_A_PIECE: usize = 2;

/// A session that has sent part of a message.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// How many bytes must be there before it is worth a look.
    needed: usize,
    /// How many there were a second ago.
    seen: usize,
    /// Its messages are whole, and what is awaited is their Sync.
    pauses: bool,
    /// So many whole messages,
    messages: u32,
    /// which statement_timeout ends at this time.
    due_us: Option<u64>,
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
    /// Those that have one, by `due_us`.
    due: BTreeSet<(u64, SessionId)>,
    /// Those that are looked at in a later turn, and the events that they had.
    later: BTreeMap<SessionId, u32>,
    /// In their order; some may be gone.
    order: VecDeque<SessionId>,
    /// Of this turn: bytes that may still be looked at.
    bytes_left: usize,
    /// What has been looked at, in pieces of work.
    work: usize,
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
            due: BTreeSet::new(),
            later: BTreeMap::new(),
            order: VecDeque::new(),
            bytes_left: BYTES_A_TURN,
            work: 0,
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
        self.remove(id);
        self.later.remove(&id);
    }

    fn remove(&mut self, id: SessionId) -> Option<Part> {
        let part = self.parts.remove(&id)?;
        if let Some(due_us) = part.due_us {
            self.due.remove(&(due_us, id));
        }
        Some(part)
    }

    /// A turn of the loop begins.
    pub fn turn_begins(&mut self) {
        self.bytes_left = BYTES_A_TURN;
    }

    /// The next session that had to wait for this turn, and its events.
    pub fn take_later(&mut self, sockets: &Sockets) -> Option<(SessionId, u32)> {
        while self.bytes_left > 0 {
            let id = self.order.pop_front()?;
            let events = self.later.remove(&id);
            // If a backend has it meanwhile, or will have, that event is over.
            if let Some(events) = events.filter(|_| self.is_begun(id, sockets)) {
                return Some((id, events));
            }
        }
        None
    }

    pub fn has_later(&self) -> bool {
        !self.order.is_empty()
    }

    /// How much has been done since the last time.
    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// Has its backend given it back with part of a message?
    fn is_begun(&self, id: SessionId, sockets: &Sockets) -> bool {
        let slot = self.slot(id);
        sockets.fd(id) >= 0
            && slot.flags.load(Relaxed) & SESSION_BEGUN != 0
            && slot.owner.load(SeqCst) == 0
    }

    fn look_later(&mut self, id: SessionId, events: u32) {
        match self.later.get_mut(&id) {
            Some(before) => *before |= events,
            None => {
                self.later.insert(id, events);
                self.order.push_back(id);
            }
        }
    }

    /// An event on a session's socket.
    /// `spares`: could this session hold a backend, and its pool has another one?
    pub fn heard(
        &mut self,
        id: SessionId,
        events: u32,
        now_us: u64,
        sockets: &Sockets,
        spares: impl Fn(SessionId) -> bool,
    ) -> Heard {
        if !self.is_begun(id, sockets) {
            return Heard::Speaks;
        }
        let fd = sockets.fd(id);
        let flags = self.slot(id).flags.load(Relaxed);
        let is_last = events & (epoll::RDHUP | epoll::HUP | epoll::ERR) != 0;
        let available = socket::unread(fd);
        let known = self.parts.get(&id).copied();
        if known.is_some_and(|part| available < part.needed) && !is_last {
            return Heard::Begins;
        }
        if self.bytes_left == 0 {
            self.look_later(id, events);
            return Heard::Begins;
        }
        let looked_at = available.min(MESSAGE_MAY_BEGIN as usize);
        self.bytes_left = self.bytes_left.saturating_sub(looked_at);
        self.work += looked_at / BYTES_A_PIECE;
        let start = start_of(fd, available);
        match start {
            Start::Ready => self.is_ready(id, now_us, sockets),
            // The rest will never come.
            _ if is_last => Heard::Broken,
            _ if is_over(known.and_then(|part| part.due_us), now_us) => {
                self.is_ready(id, now_us, sockets)
            }
            Start::Pauses { .. } if spares(id) => self.is_ready(id, now_us, sockets),
            Start::Needs(needed) | Start::Pauses { needed, .. } => {
                let part = self.parts.entry(id).or_default();
                part.needed = needed;
                part.pauses = false;
                if let Start::Pauses { messages, .. } = start {
                    part.pauses = true;
                    part.messages = messages;
                    let timeout_ms = flags >> SESSION_PAUSE_SHIFT;
                    if part.due_us.is_none() && timeout_ms > 0 {
                        let due_us = now_us + u64::from(timeout_ms) * 1000;
                        part.due_us = Some(due_us);
                        self.due.insert((due_us, id));
                    }
                }
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
        self.has(id) || fd >= 0 && start_of(fd, socket::unread(fd)) != Start::Ready
    }

    fn is_ready(&mut self, id: SessionId, now_us: u64, sockets: &Sockets) -> Heard {
        let slot = self.slot(id);
        let part = self.remove(id);
        let (late, pause) = part.map_or((0, 0), |part| match part.due_us {
            None => (0, 0),
            Some(due_us) if due_us <= now_us + SOON_US => (SESSION_LATE, part.messages),
            // No longer than it was.
            Some(due_us) => (0, ((due_us - now_us) / 1000) as u32),
        });
        (slot.flags).fetch_and(!(SESSION_BEGUN | SESSION_LATE | SESSION_PAUSE), SeqCst);
        let looked_at = SESSION_LOOKED_AT | late | pause << SESSION_PAUSE_SHIFT;
        slot.flags.fetch_or(looked_at, SeqCst);
        if part.is_none() {
            return Heard::Speaks;
        }
        // Back to one event; or each further packet would make one, whoever
        // owns the session. It makes that at once.
        match sockets.arm(id) {
            Ok(()) => Heard::Begins,
            Err(_) => Heard::Broken,
        }
    }

    pub fn needs_ticks(&self) -> bool {
        !self.due.is_empty()
    }

    /// In each tick: those that pause for as long as statement_timeout begin. Those whose
    /// connection is of no more use come back.
    pub fn tick(&mut self, now_us: u64, sockets: &Sockets) -> Vec<SessionId> {
        let over = self.due.range(..=(now_us, SessionId::MAX));
        let over: Vec<SessionId> = over.map(|(_, id)| *id).take(SWEPT_AT_ONCE).collect();
        let mut broken = over;
        broken.retain(|id| self.is_ready(*id, now_us, sockets) == Heard::Broken);
        broken
    }

    /// Once a second: lets one of those begin that may be unable to go on, and one
    /// that pauses, if its pool has a backend to spare for it. One whose connection
    /// is of no more use comes back.
    pub fn sweep(
        &mut self,
        now_us: u64,
        sockets: &Sockets,
        spares: impl Fn(SessionId) -> bool,
    ) -> Option<SessionId> {
        if self.parts.is_empty() {
            return None;
        }
        let may_grant = !self.is_granted(sockets);
        let mut stuck = None;
        let mut paused = None;
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
            if part.pauses {
                if paused.is_none() && spares(id) {
                    paused = Some(id);
                }
            } else if may_grant && is_still && may_be_full(fd, available) {
                stuck = Some(id);
            }
        }
        if let Some(id) = stuck {
            self.granted = Some((id, self.slot(id).transactions.load(Relaxed)));
        }
        let begin = [stuck, paused].into_iter().flatten();
        // Both are let begin: a broken one is met again by its next event.
        begin.fold(None, |broken, id| {
            let is_broken = self.is_ready(id, now_us, sockets) == Heard::Broken;
            broken.or(is_broken.then_some(id))
        })
    }

    /// Has one been let that has not been answered yet?
    fn is_granted(&self, sockets: &Sockets) -> bool {
        let Some((id, transactions)) = self.granted else {
            return false;
        };
        sockets.fd(id) >= 0 && self.slot(id).transactions.load(Relaxed) == transactions
    }
}

fn is_over(due_us: Option<u64>, now_us: u64) -> bool {
    due_us.is_some_and(|due_us| now_us >= due_us)
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
    let mut buffer = vec![0; available.clamp(1, MESSAGE_MAY_BEGIN as usize)];
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

// ---- Skipped requests -----------------------------------------------------
//
// Requests that are passed over: their session has waited too long for a
// backend, or was cancelled while it waited.
//
// The request is read to its end, an error stands in for the answer, and the
// session is ready for the next.

/// Bytes passed over for one session before others get their turn.
const BYTES_A_ROUND: usize = 1 << 20;

/// One that is being passed over.
struct Skipping {
    why: Skipped,
    skipper: RequestSkipper,
}

/// How far it has come.
#[derive(Debug)]
pub enum Progress {
    /// There is more to come: to be called again at its socket's next event.
    Waits,
    /// All that it has said was passed over, and nothing of that is left to be
    /// answered.
    Over,
    /// Its connection is of no more use.
    Cut,
    /// As well, and this is to be its last word.
    Refused(Report),
    /// It is not being passed over.
    None,
}

/// All of them.
#[derive(Default)]
pub struct Skippers {
    requests: HashMap<SessionId, Skipping>,
}

impl Skippers {
    /// Whoever calls it reads on, or waits for the socket's next event.
    pub fn begin(&mut self, id: SessionId, why: Skipped) {
        let skipper = RequestSkipper::new();
        self.requests.insert(id, Skipping { why, skipper });
    }

    pub fn forget(&mut self, id: SessionId) {
        self.requests.remove(&id);
    }

    /// Reads on in a request that is passed over. `error` makes the error that it
    /// gets for an answer.
    pub fn read_on(
        &mut self,
        id: SessionId,
        sockets: &Sockets,
        error: impl Fn(Skipped) -> Report,
    ) -> Progress {
        let Some(Skipping { why, skipper }) = self.requests.get_mut(&id) else {
            return Progress::None;
        };
        let mut left = BYTES_A_ROUND;
        let mut buffer = [0; 16 * 1024];
        while left > 0 {
            let room = skipper.wanted().min(buffer.len());
            let length = match socket::receive(sockets.fd(id), &mut buffer[..room]) {
                Ok(0) => return Progress::Cut,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return if skipper.in_request() {
                        Progress::Waits
                    } else {
                        self.requests.remove(&id);
                        Progress::Over
                    };
                }
                Err(_) => return Progress::Cut,
            };
            left = left.saturating_sub(length);
            let passed = skipper.feed(&buffer[..length]);
            overwrite(&mut buffer[..length]);
            match passed {
                Ok((_, None)) => {
                    if skipper.error_is_due() && !sockets.send(id, &error(*why).to_bytes()) {
                        // It does not read: nothing more can be told it.
                        return Progress::Cut;
                    }
                }
                Ok((_, Some(RequestEnd::Terminate))) | Err(SkipError::BadLength) => {
                    return Progress::Cut;
                }
                // That the next may come; and the error, if it has not been sent yet.
                Ok((_, Some(_))) => {
                    let mut out = Vec::new();
                    if !skipper.told() {
                        error(*why).encode(&mut out);
                    }
                    messages::ready_for_query(&mut out, b'I');
                    if !sockets.send(id, &out) {
                        return Progress::Cut;
                    }
                    self.requests.remove(&id);
                    return Progress::Over;
                }
                Err(SkipError::Unknown(report)) => return Progress::Refused(report),
            }
        }
        Progress::Waits
    }
}
