//! One thread's sessions and its epoll loop.
//!
//! The loop is closed: the end of an answer sends the transaction's next batch, or the next
//! transaction, at once or after a pause. With reconnects a session leaves in that pause, and
//! its next transaction begins with a login.

use super::histogram::Histogram;
use super::random::Random;
use super::script::{Client, Script};
use super::span::Span;
use super::system::Epoll;
use super::wire::{self, Reader, Seen};
use super::Arguments;
use anyhow::{bail, Context, Result};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Logins in progress at a time; a listen queue would drop more.
const LOGINS_AT_ONCE: usize = 64;
const WAIT_MS: i32 = 100;
const READ_BYTES: usize = 16384;

/// What a thread has measured.
#[derive(Default)]
pub struct Outcome {
    /// One sample for each transaction that ended successfully within the time.
    pub latency: Histogram,
    /// Transactions that failed, warm-up included.
    pub errors: u64,
    /// The text of the first error.
    pub first_error: Option<String>,
    /// Transactions of the session that had the fewest, warm-up included.
    pub least_served: u64,
    /// Does `least_served` have a value yet?
    any: bool,
    /// Transactions of each user within the time, where there are several users.
    pub by_user: Vec<u64>,
}

impl Outcome {
    /// Adds the outcome of another thread.
    pub fn add(&mut self, other: Outcome) {
        self.latency.add(&other.latency);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        let users = self.by_user.len().max(other.by_user.len());
        self.by_user.resize(users, 0);
        for (mine, theirs) in self.by_user.iter_mut().zip(&other.by_user) {
            *mine += theirs;
        }
        if other.any {
            let least = if self.any {
                self.least_served
            } else {
                u64::MAX
            };
            self.least_served = least.min(other.least_served);
            self.any = true;
        }
    }
}

struct Session {
    /// None: the session has left, and will reconnect.
    socket: Option<TcpStream>,
    reader: Reader,
    client: Client,
    /// When the present transaction began, its login included.
    sent_at: Instant,
    /// Has something in the present transaction failed?
    failed: bool,
    /// The session is logging in, and sends its first batch when that is done.
    logs_in: bool,
    transactions: u64,
    user: usize,
}

impl Session {
    fn socket(&mut self) -> Result<&mut TcpStream> {
        self.socket.as_mut().context("a session has left")
    }
}

/// One thread's sessions.
pub struct Driver {
    address: SocketAddr,
    /// Startup packets by user.
    startups: Vec<Vec<u8>>,
    sessions: Vec<Session>,
    /// The number of sessions that work; the others stay idle.
    working: usize,
    /// The mean pause between two transactions; zero: no pause.
    think: Duration,
    reconnects: bool,
    /// The time begins without waiting until all sessions have had an answer.
    is_partial: bool,
    /// When pauses end, and the number of the session.
    pauses: BinaryHeap<Reverse<(Instant, usize)>>,
    random: Random,
    epoll: Epoll,
    script: Script,
    buffer: Vec<u8>,
    out: Vec<u8>,
}

impl Driver {
    fn new(arguments: &Arguments, address: SocketAddr, thread: u32, share: u32) -> Result<Self> {
        let startups = (0..arguments.users.max(1))
            .map(|user| wire::startup(&arguments.user_name(user), &arguments.database))
            .collect();
        Ok(Driver {
            address,
            startups,
            sessions: Vec::with_capacity(share as usize),
            working: arguments.working_of(thread, share) as usize,
            think: Duration::from_secs_f64(arguments.think / 1000.0),
            reconnects: arguments.reconnect,
            is_partial: arguments.partial,
            pauses: BinaryHeap::new(),
            random: Random::new(arguments.seed, u64::from(u32::MAX - thread)),
            epoll: Epoll::new()?,
            script: arguments.script(),
            buffer: vec![0; READ_BYTES],
            out: Vec::new(),
        })
    }

    /// Opens and logs in all of a thread's sessions. Blocks.
    pub fn connect(
        arguments: &Arguments,
        address: SocketAddr,
        thread: u32,
        share: u32,
    ) -> Result<Self> {
        let mut driver = Driver::new(arguments, address, thread, share)?;
        let limit = Duration::from_secs(arguments.login_limit);
        let deadline = Instant::now() + limit;
        let mut ready = 0;
        while ready < share as usize {
            while driver.sessions.len() < share as usize
                && driver.sessions.len() - ready < LOGINS_AT_ONCE
            {
                driver.add(arguments, thread)?;
            }
            ready += driver.log_in()?;
            if Instant::now() > deadline {
                bail!("{ready} of {share} sessions were ready within {limit:?}");
            }
        }
        Ok(driver)
    }

    /// Logs all sessions in at once; each runs one transaction. Times count from `start`, since
    /// all sessions want to be in from then on.
    pub fn storm(
        arguments: &Arguments,
        address: SocketAddr,
        thread: u32,
        share: u32,
        start: Instant,
    ) -> Result<Outcome> {
        let mut driver = Driver::new(arguments, address, thread, share)?;
        let mut outcome = Outcome::default();
        let deadline = start + Duration::from_secs(arguments.login_limit);
        let mut done = 0;
        while done < share as usize {
            for _ in 0..LOGINS_AT_ONCE {
                if driver.sessions.len() == share as usize {
                    break;
                }
                driver.add(arguments, thread)?;
                let last = driver.sessions.len() - 1;
                driver.sessions[last].logs_in = true;
                driver.sessions[last].sent_at = start;
            }
            let wait_ms = i32::from(driver.sessions.len() == share as usize) * WAIT_MS;
            for number in driver.ready_sockets(wait_ms)? {
                done += usize::from(driver.goes_on(number, None, &mut outcome)?);
            }
            if Instant::now() > deadline {
                let late = share as usize - done;
                outcome.errors += late as u64;
                let text = format!("{late} were not served in time");
                outcome.first_error.get_or_insert(text);
                break;
            }
        }
        driver.finish();
        Ok(outcome)
    }

    fn add(&mut self, arguments: &Arguments, thread: u32) -> Result<()> {
        let number = self.sessions.len() as u32 * arguments.threads + thread;
        let client = self.script.client(arguments.seed, number);
        self.sessions.push(Session {
            socket: None,
            reader: Reader::default(),
            client,
            sent_at: Instant::now(),
            failed: false,
            logs_in: false,
            transactions: 0,
            user: number as usize % self.startups.len(),
        });
        self.open(self.sessions.len() - 1)
    }

    fn open(&mut self, number: usize) -> Result<()> {
        let address = self.address;
        let mut socket = TcpStream::connect(address)
            .with_context(|| format!("session {number} cannot connect to {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        self.epoll.watch(&socket, number as u64)?;
        let session = &mut self.sessions[number];
        send(&mut socket, &self.startups[session.user])?;
        session.socket = Some(socket);
        session.reader = Reader::default();
        Ok(())
    }

    fn ready_sockets(&mut self, wait_ms: i32) -> Result<Vec<usize>> {
        let numbers = self.epoll.wait(wait_ms)?;
        Ok(numbers.map(|number| number as usize).collect())
    }

    /// Handles one wait's worth of logins; returns how many sessions became ready.
    fn log_in(&mut self) -> Result<usize> {
        let mut ready = 0;
        for number in self.ready_sockets(WAIT_MS)? {
            let session = &mut self.sessions[number];
            let seen = read(session, &mut self.buffer)?;
            if let Some(error) = seen.error.or(seen.unexpected) {
                bail!("a login failed: {error}");
            }
            if !seen.ready {
                continue;
            }
            if self.script.opening(&mut session.client, &mut self.out) {
                send(session.socket()?, &self.out)?;
            } else {
                ready += 1;
            }
        }
        Ok(ready)
    }

    /// Keeps the working sessions busy until the measured span is over, or another thread has
    /// failed. Blocks.
    pub fn work(&mut self, span: &Span) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut unserved = if self.is_partial { 0 } else { self.working };
        if unserved == 0 {
            span.is_served();
        }
        for number in 0..self.working {
            if self.think.is_zero() {
                self.begin(number)?;
            } else {
                self.pause(number, Instant::now());
            }
        }
        loop {
            let wait_ms = self.end_pauses()?;
            let numbers = self.ready_sockets(wait_ms)?;
            let measured = span.measured();
            let over = measured.is_some_and(|(_, end)| Instant::now() >= end);
            if over || span.has_failed() {
                break;
            }
            for number in numbers {
                let was_served = self.sessions[number].transactions > 0;
                let ended = self.goes_on(number, Some(measured), &mut outcome)?;
                if ended && !was_served && unserved > 0 {
                    unserved -= 1;
                    if unserved == 0 {
                        span.is_served();
                    }
                }
                if ended && self.reconnects {
                    self.leave(number);
                }
                if ended && !self.think.is_zero() {
                    self.pause(number, Instant::now());
                } else if ended {
                    self.begin(number)?;
                }
            }
        }
        let working = &self.sessions[..self.working];
        let counts = working.iter().map(|session| session.transactions);
        outcome.least_served = counts.min().unwrap_or(0);
        outcome.any = self.working > 0;
        Ok(outcome)
    }

    /// Reads a session's answer and continues its transaction. True if the transaction has
    /// ended. It counts if it ended within `measured`; None: it counts in any case.
    fn goes_on(
        &mut self,
        number: usize,
        measured: Option<Option<(Instant, Instant)>>,
        outcome: &mut Outcome,
    ) -> Result<bool> {
        let session = &mut self.sessions[number];
        if session.socket.is_none() {
            return Ok(false);
        }
        let seen = read(session, &mut self.buffer)?;
        if let Some(error) = seen.unexpected {
            bail!("an answer is not understood: {error}");
        }
        if let Some(error) = seen.error {
            if session.logs_in {
                bail!("a login failed: {error}");
            }
            session.failed = true;
            outcome.first_error.get_or_insert(error);
        }
        if !seen.ready {
            return Ok(false);
        }
        if session.logs_in || session.client.in_transaction() {
            session.logs_in = false;
            self.send_next(number)?;
            return Ok(false);
        }
        let now = Instant::now();
        session.transactions += 1;
        let counts = measured
            .is_none_or(|measured| measured.is_some_and(|(from, end)| now >= from && now < end));
        if session.failed {
            outcome.errors += 1;
        } else if counts {
            let microseconds = now.duration_since(session.sent_at).as_micros() as u64;
            outcome.latency.record(microseconds);
            outcome.by_user.resize(self.startups.len(), 0);
            outcome.by_user[session.user] += 1;
        }
        Ok(true)
    }

    /// Begins the next transaction, with a new connection if the session has left.
    fn begin(&mut self, number: usize) -> Result<()> {
        let session = &mut self.sessions[number];
        session.sent_at = Instant::now();
        session.failed = false;
        if session.socket.is_some() {
            return self.send_next(number);
        }
        session.logs_in = true;
        self.open(number)
    }

    fn send_next(&mut self, number: usize) -> Result<()> {
        let session = &mut self.sessions[number];
        self.script.next(&mut session.client, &mut self.out);
        send(session.socket()?, &self.out)
    }

    fn leave(&mut self, number: usize) {
        if let Some(mut socket) = self.sessions[number].socket.take() {
            // A peer that has gone already need not be told.
            let _ = socket.write(wire::FAREWELL);
        }
    }

    /// A pause of half to one and a half times the mean.
    fn pause(&mut self, number: usize, now: Instant) {
        let share = 0.5 + f64::from(self.random.below(1000)) / 1000.0;
        let until = now + self.think.mul_f64(share);
        self.pauses.push(Reverse((until, number)));
    }

    /// Begins the transactions that are due. Returns how long to wait for the next one, in
    /// milliseconds.
    fn end_pauses(&mut self) -> Result<i32> {
        while let Some(Reverse((until, number))) = self.pauses.peek().copied() {
            let left = until.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return Ok(WAIT_MS.min(left.as_millis() as i32 + 1));
            }
            self.pauses.pop();
            self.begin(number)?;
        }
        Ok(WAIT_MS)
    }

    /// Sends Terminate on every session.
    pub fn finish(&mut self) {
        for number in 0..self.sessions.len() {
            self.leave(number);
        }
    }
}

/// Reads what is available.
fn read(session: &mut Session, buffer: &mut [u8]) -> Result<Seen> {
    match session.socket()?.read(buffer) {
        Ok(0) => bail!("the server closed a session"),
        Ok(count) => Ok(session.reader.take(&buffer[..count])),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(Seen::default())
        }
        Err(error) => Err(error).context("cannot read from a session"),
    }
}

/// A batch is far smaller than a socket's buffer, which is empty when the batch is sent.
fn send(socket: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    socket.write_all(bytes).context("cannot write to a session")
}
