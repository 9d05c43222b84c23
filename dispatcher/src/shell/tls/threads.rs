//! The threads that run relays, and the sockets of a relay.
//!
//! Each thread has an epoll of its own, and owns its relays from their first byte to their
//! last. The dispatcher gives the thread two descriptors (process.rs), and hears from it once, when
//! the handshake is over. After that the dispatcher ends a relay by closing the far end, which the
//! relay notices.
//!
//! A handshake takes up to a millisecond of CPU (a signature with RSA), a turn of a relay some
//! microseconds. So a round advances only a few of its handshakes by a step; the others come up
//! again in the next round.

use super::context::ServerContext;
use super::relay::{Buffers, Ends, Relay, Secure, Turn, Wants};
use super::{ClientEnd, Facts};
use crate::shell::batch_scheduling::{self, client_has_computed, BatchScheduling};
use crate::shell::sys::epoll::{self, Epoll};
use crate::shell::sys::openssl_memory::prefetch;
use crate::shell::sys::{process, socket};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, info};

/// More threads gain nothing: a relay costs less than its session costs a backend.
const MOST_THREADS: usize = 8;
const EVENTS_A_ROUND: usize = 128;
/// Steps of handshakes in a round: with relays to serve beside them, and without.
const HANDSHAKES_BESIDE: usize = 1;
const HANDSHAKES_ALONE: usize = 4;
/// How long a client may take none of its last bytes.
const LAST_BYTES_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the clients that are to receive their last bytes are inspected, in milliseconds.
const LOOK_MS: i32 = 1000;
/// Event data of the eventfd.
const WAKE: u64 = u64::MAX;

/// A client that wants TLS.
pub struct NewRelay {
    pub client: ClientEnd,
    /// The relay's end of the socketpair.
    pub near: OwnedFd,
    /// The first bytes of a client that has begun with TLS at once.
    pub direct: Option<Vec<u8>>,
    /// Bytes that the handshake may take; 0: no limit.
    pub most_bytes: u64,
    /// The login that waits for the result of the handshake.
    pub login: u32,
    pub serial: u64,
}

/// The result of a handshake.
pub struct Handshake {
    pub login: u32,
    pub serial: u64,
    /// The error is for the log; None if there is nothing to log.
    pub result: Result<Arc<Facts>, Option<String>>,
}

/// What a thread tells the dispatcher.
pub enum Told {
    Handshake(Handshake),
    /// Until when threads interrupt no others (`batch_scheduling::untold`).
    Batch(u64),
}

enum Command {
    New(Box<(NewRelay, Arc<ServerContext>)>),
    /// The thread is to end with its last relay.
    Finish,
}

/// The threads, as the process's main thread sees them.
pub struct Threads {
    threads: Vec<Thread>,
    next: usize,
}

struct Thread {
    commands: mpsc::Sender<Command>,
    wake: Arc<OwnedFd>,
    /// Each thread closes its sender when it ends.
    ended: mpsc::Receiver<()>,
}

impl Threads {
    /// `tell` brings the dispatcher what a thread tells it; false if the dispatcher has gone.
    pub fn start<T>(tell: T) -> io::Result<Threads>
    where
        T: Fn(Told) -> bool + Clone + Send + 'static,
    {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut threads = Vec::new();
        for number in 0..cores.min(MOST_THREADS) {
            let (commands, here) = mpsc::channel();
            let (ended_here, ended) = mpsc::channel();
            let wake = Arc::new(process::eventfd()?);
            let mut runner = Runner::new(here, Arc::clone(&wake), tell.clone())?;
            std::thread::Builder::new()
                .name(format!("tls-{number}"))
                .spawn(move || {
                    if let Err(error) = runner.run() {
                        tracing::error!("a thread of TLS relays has failed: {error}");
                    }
                    drop(ended_here);
                })?;
            threads.push(Thread {
                commands,
                wake,
                ended,
            });
        }
        Ok(Threads { threads, next: 0 })
    }

    /// Gives a client to the threads in turn.
    pub fn give(&mut self, relay: NewRelay, context: Arc<ServerContext>) {
        self.next = (self.next + 1) % self.threads.len();
        let thread = &self.threads[self.next];
        // A thread that has failed drops what it is given, which closes the client's end.
        let _ = thread
            .commands
            .send(Command::New(Box::new((relay, context))));
        process::signal_event(&thread.wake);
    }

    /// Waits until all far ends have been closed and the last bytes have been sent, for at most
    /// `limit`. Blocks. No client may be given afterwards.
    pub fn finish(&mut self, limit: Option<Duration>) {
        for thread in &self.threads {
            let _ = thread.commands.send(Command::Finish);
            process::signal_event(&thread.wake);
        }
        let end = limit.map(|limit| Instant::now() + limit);
        for thread in &self.threads {
            let Some(end) = end else {
                let _ = thread.ended.recv();
                continue;
            };
            let left = end.saturating_duration_since(Instant::now());
            if thread.ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }
}

/// One relay, with what it takes to run it.
struct Running {
    relay: Relay,
    sockets: Sockets,
    /// The events with which the socket stands in the epoll.
    client_events: u32,
    backend_events: u32,
    /// The far end has gone, and the socket has been taken out of the epoll. Otherwise it would
    /// make an event in each round until the client has taken the remaining bytes.
    is_backend_out: bool,
    /// The login that waits for the handshake.
    waiting: Option<(u32, u64)>,
    /// Kept as long as a login waits.
    context: Option<Arc<ServerContext>>,
    /// When the relay began to close, or the client last took bytes after that.
    closing_since: Option<Instant>,
}

struct Runner<T> {
    epoll: Epoll,
    commands: mpsc::Receiver<Command>,
    wake: Arc<OwnedFd>,
    tell: T,
    relays: Vec<Option<Box<Running>>>,
    free: Vec<usize>,
    buffers: Buffers,
    closing: Closing,
    is_finishing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Backend,
}

fn token(number: usize, side: Side) -> u64 {
    (number as u64) << 1 | u64::from(side == Side::Backend)
}

/// Does the event of a relay in its handshake make it compute? The far end makes one only when its
/// login has gone. If such relays waited for their turn, a crowd whose logins give way to others
/// would have more relays than there may be logins.
fn is_step(data: u64) -> bool {
    data & 1 == token(0, Side::Client)
}

impl<T: Fn(Told) -> bool> Runner<T> {
    fn new(
        commands: mpsc::Receiver<Command>,
        wake: Arc<OwnedFd>,
        tell: T,
    ) -> io::Result<Runner<T>> {
        let epoll = Epoll::new()?;
        epoll.add(wake.as_raw_fd(), epoll::IN, WAKE)?;
        Ok(Runner {
            epoll,
            commands,
            wake,
            tell,
            relays: Vec::new(),
            free: Vec::new(),
            buffers: Buffers::new(),
            closing: Closing::default(),
            is_finishing: false,
        })
    }

    /// Runs until it is told to finish, or the sender of commands has gone.
    fn run(&mut self) -> io::Result<()> {
        let mut events = [epoll::no_event(); EVENTS_A_ROUND];
        let mut scheduling = BatchScheduling::of_this_thread();
        while !(self.is_finishing && self.free.len() == self.relays.len()) {
            let timeout_ms = if self.closing.is_empty() { -1 } else { LOOK_MS };
            let count = self.epoll.wait(&mut events, timeout_ms)?;
            scheduling.woken();
            if let Some(until_us) = batch_scheduling::untold() {
                (self.tell)(Told::Batch(until_us));
            }
            self.round(&events[..count]);
            self.end_stuck_relays();
        }
        Ok(())
    }

    fn round(&mut self, events: &[epoll::Event]) {
        let mut was_woken = false;
        let mut relayed = 0;
        for (place, event) in events.iter().enumerate() {
            self.prefetch(&events[place + 1..]);
            let (data, happened) = (event.u64, event.events);
            if data == WAKE {
                was_woken = true;
            } else if !self.is_in_handshake(data) {
                relayed += 1;
                self.happened(data, happened);
            } else if !is_step(data) {
                self.happened(data, happened);
            }
        }
        let mut most = if relayed > 0 {
            HANDSHAKES_BESIDE
        } else {
            HANDSHAKES_ALONE
        };
        for event in events {
            let (data, happened) = (event.u64, event.events);
            if most > 0 && data != WAKE && is_step(data) && self.is_in_handshake(data) {
                most -= 1;
                self.happened(data, happened);
            }
        }
        // Last, since an event of this round may still name a number that is free now.
        if was_woken {
            process::drain(&self.wake);
            self.obey();
        }
    }

    /// Prefetches what the next events need. With some thousand relays none of it is in a
    /// cache, and one part holds the address of the next: so each load has the time of one
    /// event.
    fn prefetch(&self, next: &[epoll::Event]) {
        let relay_of = |place: usize| next.get(place).and_then(|event| self.running(event.u64));
        if let Some(running) = relay_of(1) {
            prefetch(running);
        }
        if let Some(running) = relay_of(0) {
            running.relay.prefetch();
        }
    }

    fn running(&self, data: u64) -> Option<&Running> {
        let running = self.relays.get((data >> 1) as usize);
        running.and_then(Option::as_deref)
    }

    fn is_in_handshake(&self, data: u64) -> bool {
        self.running(data)
            .is_some_and(|running| running.relay.is_in_handshake())
    }

    fn obey(&mut self) {
        loop {
            match self.commands.try_recv() {
                Ok(Command::New(new)) => self.begin(new.0, new.1),
                Ok(Command::Finish) | Err(TryRecvError::Disconnected) => {
                    self.is_finishing = true;
                    return;
                }
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    fn begin(&mut self, new: NewRelay, context: Arc<ServerContext>) {
        let NewRelay {
            client,
            near,
            direct,
            most_bytes,
            login,
            serial,
        } = new;
        let secure = match Secure::new(|| context.session()) {
            Ok(secure) => secure,
            Err(why) => {
                (self.tell)(Told::Handshake(Handshake {
                    login,
                    serial,
                    result: Err(Some(why)),
                }));
                return;
            }
        };
        let running = Box::new(Running {
            relay: Relay::new(secure, most_bytes),
            sockets: Sockets::new(client, near),
            client_events: epoll::IN,
            backend_events: 0,
            is_backend_out: false,
            waiting: Some((login, serial)),
            context: Some(context),
            closing_since: None,
        });
        let number = self.free.pop().unwrap_or_else(|| {
            self.relays.push(None);
            self.relays.len() - 1
        });
        let (client, backend) = (&running.sockets.client, &running.sockets.backend);
        let watched = (self.epoll)
            .add(client.as_raw_fd(), epoll::IN, token(number, Side::Client))
            .and_then(|()| {
                let data = token(number, Side::Backend);
                self.epoll.add(backend.as_raw_fd(), 0, data)
            });
        self.relays[number] = Some(running);
        if let Err(error) = watched {
            return self.end(
                number,
                Some(format!("could not wait for a client: {error}")),
            );
        }
        if let Some(bytes) = direct {
            if let Some(running) = self.relays[number].as_mut() {
                let turn =
                    (running.relay).begin_with(&bytes, &mut running.sockets, &mut self.buffers);
                self.after(number, turn);
            }
        }
    }

    fn happened(&mut self, data: u64, events: u32) {
        let number = (data >> 1) as usize;
        let Some(running) = self.relays.get_mut(number).and_then(Option::as_mut) else {
            return;
        };
        let (relay, sockets, buffers) =
            (&mut running.relay, &mut running.sockets, &mut self.buffers);
        let is_gone = events & (epoll::HUP | epoll::ERR) != 0;
        let mut turn = Turn::Going;
        if data == token(number, Side::Client) {
            // The client's connection is closed in both directions, or reset.
            if is_gone && events & epoll::IN == 0 {
                return self.end(number, None);
            }
            if events & (epoll::IN | epoll::OUT | epoll::HUP | epoll::ERR) != 0 {
                turn = relay.client_turn(sockets, buffers);
            }
            if turn == Turn::Going && events & epoll::OUT != 0 {
                turn = relay.backend_turn(sockets, buffers);
            }
            if turn == Turn::Going && is_gone {
                turn = Turn::Over(None);
            }
        } else if is_gone && relay.is_in_handshake() {
            // The login that waited for the handshake has gone: its time is over.
            return self.end(number, None);
        } else {
            if events & epoll::OUT != 0 {
                turn = relay.client_turn(sockets, buffers);
            }
            if turn == Turn::Going && events & (epoll::IN | epoll::HUP | epoll::ERR) != 0 {
                turn = relay.backend_turn(sockets, buffers);
            }
            // A closed far end makes an event in each wait, which is useless while the client
            // takes nothing.
            if is_gone && turn == Turn::Going && !relay.wants().backend_in {
                running.is_backend_out = true;
                let _ = self.epoll.delete(running.sockets.backend.as_raw_fd());
            }
        }
        // Edge-triggered, the end of an end, and bytes before it, are not reported again.
        if events & (epoll::RDHUP | epoll::HUP | epoll::ERR) != 0 {
            if data == token(number, Side::Client) {
                running.sockets.client_has_more = true;
            } else {
                running.sockets.backend_has_more = true;
            }
        }
        // No event will report that the closed far end has more to read.
        while running.is_backend_out && turn == Turn::Going && running.relay.wants().backend_in {
            turn = (running.relay).backend_turn(&mut running.sockets, &mut self.buffers);
        }
        self.after(number, turn);
    }

    /// Carries out the result of a turn, and waits for the events that the relay wants.
    fn after(&mut self, number: usize, turn: Turn) {
        let Some(running) = self.relays[number].as_mut() else {
            return;
        };
        match turn {
            Turn::Going => {}
            Turn::Secured(mut facts) => {
                client_has_computed();
                if let Some(context) = running.context.take() {
                    facts.add(&context);
                }
                if let Some((login, serial)) = running.waiting.take() {
                    let result = Ok(Arc::new(*facts));
                    (self.tell)(Told::Handshake(Handshake {
                        login,
                        serial,
                        result,
                    }));
                }
            }
            Turn::Over(why) => return self.end(number, why),
        }
        let wrote = std::mem::take(&mut running.sockets.has_written);
        // The relay notices that its far end has gone only when it reads from it, which it does
        // not while output waits to be sent. Here `is_backend_out` knows already.
        let is_ending = running.relay.is_closing() || running.is_backend_out;
        if is_ending && (wrote || running.closing_since.is_none()) {
            let now = Instant::now();
            let before = running.closing_since.replace(now);
            self.closing.set(number, before, Some(now));
        }
        if self.watch(number).is_err() {
            self.end(number, None);
        }
    }

    fn watch(&mut self, number: usize) -> io::Result<()> {
        let Some(running) = self.relays[number].as_mut() else {
            return Ok(());
        };
        let Wants {
            client_in,
            client_out,
            backend_in,
            backend_out,
        } = running.relay.wants();
        let is_open = !running.relay.is_in_handshake();
        let (client, backend) = (
            events(client_in, client_out, is_open),
            events(backend_in, backend_out, is_open),
        );
        let sockets = &mut running.sockets;
        let client_has_more = std::mem::take(&mut sockets.client_has_more);
        let backend_has_more = std::mem::take(&mut sockets.backend_has_more);
        if client != running.client_events || is_edge(client) && client_has_more {
            running.client_events = client;
            let fd = sockets.client.as_raw_fd();
            self.epoll.modify(fd, client, token(number, Side::Client))?;
        }
        if (backend != running.backend_events || is_edge(backend) && backend_has_more)
            && !running.is_backend_out
        {
            running.backend_events = backend;
            let fd = sockets.backend.as_raw_fd();
            self.epoll
                .modify(fd, backend, token(number, Side::Backend))?;
        }
        Ok(())
    }

    /// Closes both ends.
    fn end(&mut self, number: usize, why: Option<String>) {
        let Some(running) = self.relays[number].take() else {
            return;
        };
        self.free.push(number);
        self.closing.set(number, running.closing_since, None);
        match running.waiting {
            Some((login, serial)) => {
                let result = Err(why);
                (self.tell)(Told::Handshake(Handshake {
                    login,
                    serial,
                    result,
                }));
            }
            None => {
                if let Some(why) = why {
                    info!("{why}");
                }
            }
        }
        debug!("a TLS relay has ended");
        // Unread input would reset the connection, and the client would lose its last bytes.
        socket::shutdown_write(running.sockets.client.as_raw_fd());
        socket::discard_input(running.sockets.client.as_raw_fd());
    }

    fn end_stuck_relays(&mut self) {
        if self.closing.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(number) = self.closing.next_late(now) {
            self.end(number, None);
        }
    }
}

/// The relays whose clients are to receive their last bytes, ordered by when each last took some.
#[derive(Default)]
struct Closing {
    order: BTreeSet<(Instant, usize)>,
}

impl Closing {
    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The relay of this number counts from `now` on, and no longer from `before`.
    fn set(&mut self, number: usize, before: Option<Instant>, now: Option<Instant>) {
        if let Some(before) = before {
            self.order.remove(&(before, number));
        }
        if let Some(now) = now {
            self.order.insert((now, number));
        }
    }

    /// A relay whose client has taken nothing for too long.
    fn next_late(&self, now: Instant) -> Option<usize> {
        let (since, number) = *self.order.first()?;
        (now > since + LAST_BYTES_TIMEOUT).then_some(number)
    }
}

// ---- Sockets of a relay ---------------------------------------------------
//
// The two sockets of a relay: the client's, and the near end of the socketpair whose far end is
// handed to backends; and the events for which each is watched.

pub struct Sockets {
    pub client: OwnedFd,
    pub backend: OwnedFd,
    /// The client has taken some bytes.
    pub has_written: bool,
    /// There may be more to read of which no event will tell.
    pub client_has_more: bool,
    pub backend_has_more: bool,
}

impl Sockets {
    /// Only this relay has the two sockets.
    pub fn new(client: ClientEnd, backend: OwnedFd) -> Sockets {
        Sockets {
            client: client.0,
            backend,
            has_written: false,
            client_has_more: false,
            backend_has_more: false,
        }
    }
}

/// Reads, and notes whether all has been read: then the read returned less than there was room
/// for.
fn read(end: &OwnedFd, has_more: &mut bool, into: &mut [u8]) -> io::Result<usize> {
    let length = socket::receive(end.as_raw_fd(), into);
    *has_more = length.as_ref().is_ok_and(|length| *length == into.len());
    length
}

impl Ends for Sockets {
    fn read_client(&mut self, into: &mut [u8]) -> io::Result<usize> {
        read(&self.client, &mut self.client_has_more, into)
    }

    fn write_client(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = socket::send(self.client.as_raw_fd(), bytes);
        self.has_written |= sent.as_ref().is_ok_and(|length| *length > 0);
        sent
    }

    fn read_backend(&mut self, into: &mut [u8]) -> io::Result<usize> {
        read(&self.backend, &mut self.backend_has_more, into)
    }

    fn write_backend(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket::send(self.backend.as_raw_fd(), bytes)
    }

    fn end_backend(&mut self) {
        socket::shutdown_write(self.backend.as_raw_fd());
    }
}

/// The events for which an end is watched.
///
/// A relay that has nothing to write reads all input, so its ends are watched edge-triggered
/// (EPOLLET): otherwise the kernel inspects each reported socket once more in the next wait. If
/// the relay leaves input unread, or may have left an end behind it, it makes the kernel look
/// again (EPOLL_CTL_MOD does that, epoll(7)).
pub fn events(input: bool, output: bool, is_open: bool) -> u32 {
    let edges = epoll::IN | epoll::RDHUP | epoll::EDGES;
    match (input, output) {
        (true, false) if is_open => edges,
        (true, false) => epoll::IN,
        (true, true) => epoll::IN | epoll::OUT,
        (false, true) => epoll::OUT,
        (false, false) => 0,
    }
}

pub fn is_edge(events: u32) -> bool {
    events & epoll::EDGES != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_without_a_login_are_gone_after_one_round() {
        let (commands, here) = mpsc::channel();
        let wake = Arc::new(process::eventfd().unwrap());
        let mut runner = Runner::new(here, wake, |_| true).unwrap();
        let context = Arc::new(ServerContext::without_certificate());
        let mut clients = Vec::new();
        for login in 0..4 * HANDSHAKES_ALONE as u32 {
            let (client, peer) = socket::pair().unwrap();
            let (near, far) = socket::pair().unwrap();
            socket::send(peer.as_raw_fd(), b"\x16").unwrap();
            clients.push(peer);
            drop(far);
            let relay = NewRelay {
                client: ClientEnd(client),
                near,
                direct: None,
                most_bytes: 0,
                login,
                serial: 0,
            };
            let new = Command::New(Box::new((relay, Arc::clone(&context))));
            commands.send(new).unwrap();
        }
        runner.obey();
        let mut events = [epoll::no_event(); EVENTS_A_ROUND];
        let count = runner.epoll.wait(&mut events, 0).unwrap();
        runner.round(&events[..count]);
        assert_eq!(runner.free.len(), clients.len());
    }

    #[test]
    fn relay_that_closes_for_longest_is_found_without_a_scan() {
        let mut closing = Closing::default();
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        for number in 0..10 {
            closing.set(number, None, Some(after(number as u64)));
        }
        // Its client has taken some bytes.
        closing.set(0, Some(after(0)), Some(after(20)));
        assert_eq!(closing.next_late(after(1) + LAST_BYTES_TIMEOUT), None);
        assert_eq!(closing.next_late(after(2) + LAST_BYTES_TIMEOUT), Some(1));
        for number in 1..10 {
            closing.set(number, Some(after(number as u64)), None);
        }
        assert_eq!(closing.next_late(after(15) + LAST_BYTES_TIMEOUT), None);
        assert_eq!(closing.next_late(after(21) + LAST_BYTES_TIMEOUT), Some(0));
        closing.set(0, Some(after(20)), None);
        assert!(closing.is_empty());
    }
}
