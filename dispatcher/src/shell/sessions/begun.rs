//! Sessions whose client has sent only part of a message; and, at the end of the file, requests
//! that are skipped.
//!
//! A backend that finds no complete message returns the session and says so
//! (BATON_SESSION_BEGUN). From then on the dispatcher looks at the input each time something
//! arrives, and no more often: the socket is armed edge-triggered, so input that stays unread
//! makes no event. Meanwhile the session counts as idle, for idle_session_timeout and for the
//! scheduler, as its client has not spoken. When there is enough input (message_start.rs), the
//! session waits for a backend, which is told not to return it again for this reason
//! (BATON_SESSION_LOOKED_AT).
//!
//! The kernel may hold less than a backend needs. A Unix socket takes a limited number of
//! unread writes, however short: by default 278, or 70 from a sender that polls first
//! (unix_writable, net/unix/af_unix.c). A client that writes byte by byte would wait for the
//! dispatcher as the dispatcher waits for the client, and nothing distinguishes it from a
//! client that has stopped. On TCP a packet that was read in part holds the memory of the whole
//! packet, which may close the window (__tcp_select_window, net/ipv4/tcp_output.c). So of the
//! sessions that make no progress, one at a time may begin.
//!
//! A batch whose messages are complete, but of which none is answered before its Sync, runs as
//! on a direct connection if its pool has a free backend for it and another one for the other
//! sessions. The batches for which the pool had none are inspected once a second, and one may
//! begin. When the session's statement_timeout has expired, the session waits for a backend as
//! any other does. The backend then raises the error where the server would: as it reads the
//! next message (statement_timed_out, held_client.c).

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

/// With fewer bytes than this, a Unix socket holds fewer writes than its limit. With more, the
/// client has stopped, or cannot continue.
const STUCK_BYTES: usize = 64;
/// A statement_timeout that expires within this time counts as expired: the backend needs the
/// time to run what has arrived.
const SOON_US: u64 = 10_000;
/// Sessions inspected in one sweep or one tick.
const SWEPT_AT_ONCE: usize = 512;

/// Bytes inspected in one turn; the remaining sessions wait for the next turn.
const BYTES_A_TURN: usize = 8_192;
/// Bytes in a piece of work (events.rs), as one byte in a packet of its own takes half a piece.
const BYTES_A_PIECE: usize = 2;

/// A session whose client has sent part of a message.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Bytes that must be there before the next look is useful.
    needed: usize,
    /// Bytes that were there a second ago.
    seen: usize,
    /// All messages are complete, and the session waits for their Sync.
    pauses: bool,
    /// The number of complete messages.
    messages: u32,
    /// When statement_timeout expires for them.
    due_us: Option<u64>,
}

/// What an event on a session's socket means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The client has spoken: the ordinary meaning of an event.
    Speaks,
    /// Only part of a message has arrived, or another event will follow. The scheduler need not
    /// know.
    Begins,
    /// The connection is of no more use.
    Broken,
}

/// All sessions whose client has sent part of a message.
pub struct Begun {
    control: Control,
    parts: BTreeMap<SessionId, Part>,
    /// The sessions that have a `due_us`, ordered by it.
    due: BTreeSet<(u64, SessionId)>,
    /// Sessions that are inspected in a later turn, with their events.
    later: BTreeMap<SessionId, u32>,
    /// The order of `later`; some of the sessions may have left it.
    order: VecDeque<SessionId>,
    /// Bytes that may still be inspected in this turn.
    bytes_left: usize,
    /// Work done since the last call of `take_work`, in pieces.
    work: usize,
    /// The last session that a sweep inspected.
    swept: SessionId,
    /// The session that may begin though it makes no progress, and the number of its
    /// transactions at that time.
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
            // If a backend has the session meanwhile, or will have it, the event is obsolete.
            if let Some(events) = events.filter(|_| self.is_begun(id, sockets)) {
                return Some((id, events));
            }
        }
        None
    }

    pub fn has_later(&self) -> bool {
        !self.order.is_empty()
    }

    /// Work done since the last call, in pieces.
    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// Has its backend returned the session with part of a message?
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

    /// Handles an event on a session's socket. `spares`: may this session have a backend, while
    /// its pool has another free one?
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
            // The rest of the message will never come.
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
                // The first look arms the socket edge-triggered; that makes an event at once,
                // as there is input.
                if known.is_none() && sockets.watch_edges(id).is_err() {
                    return Heard::Broken;
                }
                Heard::Begins
            }
        }
    }

    /// Is the input only part of a message? Does not depend on an earlier look.
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
            // The rest of the timeout, rounded down.
            Some(due_us) => (0, ((due_us - now_us) / 1000) as u32),
        });
        (slot.flags).fetch_and(!(SESSION_BEGUN | SESSION_LATE | SESSION_PAUSE), SeqCst);
        let looked_at = SESSION_LOOKED_AT | late | pause << SESSION_PAUSE_SHIFT;
        slot.flags.fetch_or(looked_at, SeqCst);
        if part.is_none() {
            return Heard::Speaks;
        }
        // The socket is armed for one event again: otherwise each further packet would make
        // one, whichever process owns the session. Arming makes that event at once.
        match sockets.arm(id) {
            Ok(()) => Heard::Begins,
            Err(_) => Heard::Broken,
        }
    }

    pub fn needs_ticks(&self) -> bool {
        !self.due.is_empty()
    }

    /// Lets the sessions begin whose statement_timeout has expired; called in each tick.
    /// Returns the sessions whose connection is of no more use.
    pub fn tick(&mut self, now_us: u64, sockets: &Sockets) -> Vec<SessionId> {
        let over = self.due.range(..=(now_us, SessionId::MAX));
        let over: Vec<SessionId> = over.map(|(_, id)| *id).take(SWEPT_AT_ONCE).collect();
        let mut broken = over;
        broken.retain(|id| self.is_ready(*id, now_us, sockets) == Heard::Broken);
        broken
    }

    /// Called once a second. Lets one session begin that may be unable to continue, and one
    /// that pauses, if its pool has a backend to spare. Returns a session whose connection is
    /// of no more use.
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
        // A limited number of sessions, as each takes a few system calls.
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
        // Both begin. If both are broken, the second is found again by its next event.
        begin.fold(None, |broken, id| {
            let is_broken = self.is_ready(id, now_us, sockets) == Heard::Broken;
            broken.or(is_broken.then_some(id))
        })
    }

    /// Has a session been allowed to begin that has had no answer yet?
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

/// May the kernel have stopped to take more of the message?
fn may_be_full(fd: RawFd, available: usize) -> bool {
    match socket::local_address(fd) {
        Ok(address) if address.is_local() => available >= STUCK_BYTES,
        // Each short message takes a few hundred bytes of kernel memory.
        _ => socket::receive_memory(fd).is_some_and(|(held, most)| held >= most / 4),
    }
}

/// The start of the unread input of a socket, which has at least `available` bytes.
fn start_of(fd: RawFd, available: usize) -> Start {
    let mut buffer = vec![0; available.clamp(1, MESSAGE_MAY_BEGIN as usize)];
    let start = match socket::peek_bytes(fd, &mut buffer) {
        // Input that has arrived meanwhile makes an event of its own.
        Ok(length) if length > 0 && buffer[0] != b'X' => look(
            &buffer[..length],
            available.max(length),
            MESSAGE_MAY_BEGIN as usize,
        ),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Start::Needs(1),
        // A Terminate, the end of the connection, or an error: the client leaves.
        _ => Start::Ready,
    };
    overwrite(&mut buffer);
    start
}

// ---- Skipped requests -----------------------------------------------------
//
// Requests that are skipped because their session has waited too long for a backend, or was
// cancelled while it waited.
//
// The request is read to its end and an error answers it; then the session is ready for the
// next request.

/// Bytes skipped for one session before others get their turn.
const BYTES_A_ROUND: usize = 256 << 10;
/// Bytes skipped in one turn, for all sessions; the remaining sessions wait for the next turn.
const SKIPPED_A_TURN: usize = 1 << 20;
/// Bytes for which a session counts in a turn that has sent fewer.
const SKIPPED_AT_LEAST: usize = 4 << 10;
/// Bytes skipped in a piece of work (events.rs).
const SKIPPED_A_PIECE: usize = 512;

/// A session whose request is being skipped.
struct Skipping {
    why: Skipped,
    skipper: RequestSkipper,
}

/// The progress of a skipped request.
#[derive(Debug)]
pub enum Progress {
    /// More input is needed: call again at the next event of the socket.
    Waits,
    /// No bytes of this turn are left: `take_later` returns the session in a later turn.
    Later,
    /// All that the client has sent was skipped, and no part of it still needs an answer.
    Over {
        /// The request would have dropped the unnamed statement before it failed.
        drops_unnamed: bool,
    },
    /// The connection is of no more use.
    Cut,
    /// The connection is of no more use after this error has been sent.
    Refused(Report),
    /// No request of this session is being skipped.
    None,
}

/// All sessions whose requests are being skipped.
#[derive(Default)]
pub struct Skippers {
    requests: HashMap<SessionId, Skipping>,
    /// Sessions whose requests are read in a later turn. Some of them may have ended.
    later: VecDeque<SessionId>,
    /// Bytes that may still be skipped in this turn.
    bytes_left: usize,
    /// Work done since the last call of `take_work`, in pieces.
    work: usize,
}

impl Skippers {
    /// A turn of the loop begins.
    pub fn turn_begins(&mut self) {
        self.bytes_left = SKIPPED_A_TURN;
    }

    /// The next session that had to wait for this turn.
    pub fn take_later(&mut self) -> Option<SessionId> {
        if self.bytes_left == 0 {
            return None;
        }
        self.later.pop_front()
    }

    pub fn has_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// Work done since the last call, in pieces.
    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// The caller then calls `read_on`, or waits for the next event of the socket.
    pub fn begin(&mut self, id: SessionId, why: Skipped) {
        let skipper = RequestSkipper::new();
        self.requests.insert(id, Skipping { why, skipper });
    }

    pub fn forget(&mut self, id: SessionId) {
        self.requests.remove(&id);
    }

    /// Reads on in a skipped request. `error` makes the error that answers the request.
    pub fn read_on(
        &mut self,
        id: SessionId,
        sockets: &Sockets,
        mut error: impl FnMut(Skipped) -> Report,
    ) -> Progress {
        let Some(Skipping { why, skipper }) = self.requests.get_mut(&id) else {
            return Progress::None;
        };
        if self.bytes_left == 0 {
            self.later.push_back(id);
            return Progress::Later;
        }
        let mut left = BYTES_A_ROUND.min(self.bytes_left);
        self.bytes_left = self.bytes_left.saturating_sub(SKIPPED_AT_LEAST);
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
                        Progress::Over {
                            drops_unnamed: false,
                        }
                    };
                }
                Err(_) => return Progress::Cut,
            };
            left = left.saturating_sub(length);
            self.bytes_left = self.bytes_left.saturating_sub(length);
            self.work += length / SKIPPED_A_PIECE;
            let passed = skipper.feed(&buffer[..length]);
            overwrite(&mut buffer[..length]);
            match passed {
                Ok((_, None)) => {
                    if skipper.error_is_due() && !sockets.send(id, &error(*why).to_bytes()) {
                        // The client does not read, so it cannot be told anything more.
                        return Progress::Cut;
                    }
                }
                Ok((_, Some(RequestEnd::Terminate))) | Err(SkipError::BadLength) => {
                    return Progress::Cut;
                }
                // Sends ReadyForQuery, so that the next request may come, after the error if
                // that has not been sent yet.
                Ok((_, Some(_))) => {
                    let mut out = Vec::new();
                    if !skipper.told() {
                        error(*why).encode(&mut out);
                    }
                    messages::ready_for_query(&mut out, b'I');
                    if !sockets.send(id, &out) {
                        return Progress::Cut;
                    }
                    let drops_unnamed = skipper.drops_unnamed();
                    self.requests.remove(&id);
                    return Progress::Over { drops_unnamed };
                }
                Err(SkipError::Unknown(report)) => return Progress::Refused(report),
            }
        }
        Progress::Waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::SessionId;
    use crate::shell::sys::epoll::ClientNumber;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    /// No other descriptor of the tests has this number.
    const FREE_NUMBER: RawFd = 900;
    const LONG_QUERY: [u8; 5] = [b'Q', 0, 100, 0, 0];
    const SENT: usize = 100_000;

    #[test]
    fn all_requests_that_are_skipped_share_the_bytes_of_a_turn() {
        let number = Arc::new(ClientNumber::reserve(FREE_NUMBER).unwrap());
        let mut sockets = Sockets::new(number, Vec::new(), None);
        let mut skippers = Skippers::default();
        let mut clients = Vec::new();
        for index in 0..50 {
            let id = 1 << 32 | index as SessionId;
            let (near, far) = socket::pair().unwrap();
            let request = [&LONG_QUERY[..], &vec![b'x'; SENT - LONG_QUERY.len()]].concat();
            assert_eq!(socket::send(far.as_raw_fd(), &request).unwrap(), SENT);
            sockets.insert(id, near, None);
            skippers.begin(id, Skipped::Cancelled);
            clients.push((id, far));
        }
        let unread = |sockets: &Sockets| -> usize {
            let all = clients
                .iter()
                .map(|(id, _)| socket::unread(sockets.fd(*id)));
            all.sum()
        };
        let no_error = |_| unreachable!("no request is read to its end");
        let mut left = unread(&sockets);
        assert_eq!(left, 50 * SENT);
        skippers.turn_begins();
        for (id, _) in &clients {
            skippers.read_on(*id, &sockets, no_error);
        }
        let mut turns = 1;
        while skippers.has_later() {
            let now = unread(&sockets);
            assert!(now < left && left - now <= SKIPPED_A_TURN);
            assert!(skippers.take_work() > 0);
            left = now;
            skippers.turn_begins();
            while let Some(id) = skippers.take_later() {
                skippers.read_on(id, &sockets, no_error);
            }
            turns += 1;
        }
        assert_eq!(turns, (50 * SENT).div_ceil(SKIPPED_A_TURN));
        // The client's next event continues with what no bytes were left for.
        assert!(unread(&sockets) < 50 * SENT - (turns - 1) * SKIPPED_A_TURN);
    }
}
