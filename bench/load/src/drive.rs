//! One thread's sessions and its epoll loop.
//!
//! A session is in one of two states: it waits for an answer, or (before work
//! starts, and after its end) it is ready.  The loop is closed: an answer's
//! end sends the transaction's next batch, or the next transaction, at once.

use super::histogram::Histogram;
use super::script::{Client, Script};
use super::span::Span;
use super::system::Epoll;
use super::wire::{self, Reader, Seen};
use super::Arguments;
use anyhow::{bail, Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Logins under way at once; more than a listen queue holds would be dropped.
const LOGINS_AT_ONCE: usize = 64;
/// With what is prepared at login.
const LOGIN_LIMIT: Duration = Duration::from_secs(150);
const WAIT_MS: i32 = 100;
const READ_BYTES: usize = 16384;

/// What a thread measured.
#[derive(Default)]
pub struct Outcome {
    /// One sample a transaction that ended well within the time.
    pub latency: Histogram,
    /// Transactions that failed, warm-up included.
    pub errors: u64,
    /// What the first one of them said.
    pub first_error: Option<String>,
    /// Transactions of the session that had the fewest, warm-up included.
    pub least_served: u64,
    /// Whether `least_served` says anything yet.
    any: bool,
}

impl Outcome {
    /// Adds another thread's.
    pub fn add(&mut self, other: Outcome) {
        self.latency.add(&other.latency);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
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
    socket: TcpStream,
    reader: Reader,
    client: Client,
    /// When the present transaction began.
    sent_at: Instant,
    /// Something in the present transaction failed.
    failed: bool,
    transactions: u64,
}

/// One thread's sessions.
pub struct Driver {
    sessions: Vec<Session>,
    epoll: Epoll,
    script: Script,
    buffer: Vec<u8>,
    out: Vec<u8>,
}

impl Driver {
    /// Opens and logs in (blocks) all of a thread's sessions.
    pub fn connect(
        arguments: &Arguments,
        address: SocketAddr,
        thread: u32,
        share: u32,
    ) -> Result<Self> {
        let mut driver = Driver {
            sessions: Vec::with_capacity(share as usize),
            epoll: Epoll::new()?,
            script: arguments.script(),
            buffer: vec![0; READ_BYTES],
            out: Vec::new(),
        };
        let startup = wire::startup(&arguments.user, &arguments.database);
        let deadline = Instant::now() + LOGIN_LIMIT;
        let mut ready = 0;
        while ready < share as usize {
            while driver.sessions.len() < share as usize
                && driver.sessions.len() - ready < LOGINS_AT_ONCE
            {
                let number = driver.sessions.len() as u32 * arguments.threads + thread;
                let client = driver.script.client(arguments.seed, number);
                driver.open(address, &startup, client)?;
            }
            ready += driver.log_in()?;
            if Instant::now() > deadline {
                bail!("{ready} of {share} sessions were ready within {LOGIN_LIMIT:?}");
            }
        }
        Ok(driver)
    }

    fn open(&mut self, address: SocketAddr, startup: &[u8], client: Client) -> Result<()> {
        let count = self.sessions.len();
        let mut socket = TcpStream::connect(address)
            .with_context(|| format!("cannot connect to {address} after {count} sessions"))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        self.epoll.watch(&socket, count as u64)?;
        send(&mut socket, startup)?;
        self.sessions.push(Session {
            socket,
            reader: Reader::default(),
            client,
            sent_at: Instant::now(),
            failed: false,
            transactions: 0,
        });
        Ok(())
    }

    /// One wait's worth of logins; how many became ready.
    fn log_in(&mut self) -> Result<usize> {
        let numbers: Vec<u64> = self.epoll.wait(WAIT_MS)?.collect();
        let mut ready = 0;
        for number in numbers {
            let session = &mut self.sessions[number as usize];
            let seen = read(session, &mut self.buffer)?;
            if let Some(error) = seen.error.or(seen.unexpected) {
                bail!("a login failed: {error}");
            }
            if !seen.ready {
                continue;
            }
            if self.script.opening(&mut session.client, &mut self.out) {
                send(&mut session.socket, &self.out)?;
            } else {
                ready += 1;
            }
        }
        Ok(ready)
    }

    /// Keeps every session busy (blocks) until the measured span is over, or
    /// another thread has failed.
    pub fn work(&mut self, span: &Span) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut unserved = self.sessions.len();
        if unserved == 0 {
            span.is_served();
        }
        for number in 0..self.sessions.len() {
            self.send_next(number, Instant::now())?;
        }
        loop {
            let numbers: Vec<u64> = self.epoll.wait(WAIT_MS)?.collect();
            let measured = span.measured();
            let over = measured.is_some_and(|(_, end)| Instant::now() >= end);
            if over || span.has_failed() {
                break;
            }
            for number in numbers {
                let number = number as usize;
                let session = &mut self.sessions[number];
                let seen = read(session, &mut self.buffer)?;
                if let Some(error) = seen.unexpected {
                    bail!("an answer is not understood: {error}");
                }
                if let Some(error) = seen.error {
                    session.failed = true;
                    outcome.first_error.get_or_insert(error);
                }
                if !seen.ready {
                    continue;
                }
                let now = Instant::now();
                if !session.client.in_transaction() {
                    if session.transactions == 0 {
                        unserved -= 1;
                        if unserved == 0 {
                            span.is_served();
                        }
                    }
                    session.transactions += 1;
                    if session.failed {
                        outcome.errors += 1;
                    } else if measured.is_some_and(|(from, end)| now >= from && now < end) {
                        let microseconds = now.duration_since(session.sent_at).as_micros() as u64;
                        outcome.latency.record(microseconds);
                    }
                }
                self.send_next(number, now)?;
            }
        }
        let counts = self.sessions.iter().map(|session| session.transactions);
        outcome.least_served = counts.min().unwrap_or(0);
        outcome.any = !self.sessions.is_empty();
        Ok(outcome)
    }

    fn send_next(&mut self, number: usize, now: Instant) -> Result<()> {
        let session = &mut self.sessions[number];
        if !session.client.in_transaction() {
            session.sent_at = now;
            session.failed = false;
        }
        self.script.next(&mut session.client, &mut self.out);
        send(&mut session.socket, &self.out)
    }

    /// Says goodbye on every session.
    pub fn finish(&mut self) {
        for session in &mut self.sessions {
            // Whoever is gone already need not be told.
            let _ = session.socket.write(wire::FAREWELL);
        }
    }
}

/// Reads what is there.
fn read(session: &mut Session, buffer: &mut [u8]) -> Result<Seen> {
    match session.socket.read(buffer) {
        Ok(0) => bail!("the server closed a session"),
        Ok(count) => Ok(session.reader.take(&buffer[..count])),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(Seen::default())
        }
        Err(error) => Err(error).context("cannot read from a session"),
    }
}

/// A batch is far smaller than a socket's buffer, which is empty when one is
/// sent.
fn send(socket: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    socket.write_all(bytes).context("cannot write to a session")
}
