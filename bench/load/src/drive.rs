//! One thread's sessions and its epoll loop.
//!
//! A session is in one of two states: it waits for an answer, or (before work
//! starts, and after its end) it is ready.  The loop is closed: an answer's
//! end sends the next transaction at once.

use super::histogram::Histogram;
use super::session::{self, Random, Reader};
use super::system::Epoll;
use super::{Arguments, Protocol};
use anyhow::{bail, Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Logins under way at once; more than a listen queue holds would be dropped.
const LOGINS_AT_ONCE: usize = 64;
const LOGIN_LIMIT: Duration = Duration::from_secs(120);
const WARMUP_LIMIT: Duration = Duration::from_secs(60);
const WAIT_MS: i32 = 100;
const READ_BYTES: usize = 16384;

/// What a thread measured.
#[derive(Default)]
pub struct Outcome {
    /// One sample a transaction that ended within the time.
    pub latency: Histogram,
    /// Transactions that failed.
    pub errors: u64,
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
    sent_at: Instant,
    transactions: u64,
    prepared: bool,
}

/// One thread's sessions.
pub struct Driver {
    sessions: Vec<Session>,
    epoll: Epoll,
    protocol: Protocol,
    scale: u32,
    random: Random,
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
            protocol: arguments.protocol,
            scale: arguments.scale,
            random: Random::new(u64::from(thread) + 1),
            buffer: vec![0; READ_BYTES],
            out: Vec::new(),
        };
        let startup = session::startup(&arguments.user, &arguments.database);
        let deadline = Instant::now() + LOGIN_LIMIT;
        let mut ready = 0;
        while ready < share as usize {
            while driver.sessions.len() < share as usize
                && driver.sessions.len() - ready < LOGINS_AT_ONCE
            {
                driver.open(address, &startup)?;
            }
            ready += driver.log_in()?;
            if Instant::now() > deadline {
                bail!("{ready} of {share} sessions were logged in within {LOGIN_LIMIT:?}");
            }
        }
        Ok(driver)
    }

    fn open(&mut self, address: SocketAddr, startup: &[u8]) -> Result<()> {
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
            sent_at: Instant::now(),
            transactions: 0,
            prepared: false,
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
            match session::preparation(self.protocol) {
                Some(messages) if !session.prepared => {
                    session.prepared = true;
                    send(&mut session.socket, &messages)?;
                }
                _ => ready += 1,
            }
        }
        Ok(ready)
    }

    /// Keeps every session busy (blocks): first until the warm-up is over and
    /// each session has had an answer, then for the span, which is measured.
    pub fn work(&mut self, warmup: Duration, span: Duration) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let start = Instant::now();
        let mut unserved = self.sessions.len();
        let mut measuring: Option<(Instant, Instant)> = None;
        for number in 0..self.sessions.len() {
            self.send_transaction(number, Instant::now())?;
        }
        loop {
            let numbers: Vec<u64> = self.epoll.wait(WAIT_MS)?.collect();
            let mut now = Instant::now();
            match measuring {
                Some((_, end)) if now >= end => break,
                Some(_) => {}
                None if unserved == 0 && now >= start + warmup => {
                    measuring = Some((now, now + span));
                }
                None if now >= start + WARMUP_LIMIT => {
                    bail!("{unserved} sessions had no answer within {WARMUP_LIMIT:?}");
                }
                None => {}
            }
            for number in numbers {
                let number = number as usize;
                let session = &mut self.sessions[number];
                let seen = read(session, &mut self.buffer)?;
                if let Some(error) = seen.unexpected {
                    bail!("an answer is not understood: {error}");
                }
                if let Some(error) = seen.error {
                    if outcome.errors == 0 {
                        eprintln!("baton-load: first error: {error}");
                    }
                    outcome.errors += 1;
                }
                if !seen.ready {
                    continue;
                }
                now = Instant::now();
                unserved -= usize::from(session.transactions == 0);
                session.transactions += 1;
                if measuring.is_some_and(|(from, end)| now >= from && now < end) {
                    let microseconds = now.duration_since(session.sent_at).as_micros() as u64;
                    outcome.latency.record(microseconds);
                }
                self.send_transaction(number, now)?;
            }
        }
        outcome.least_served = self
            .sessions
            .iter()
            .map(|session| session.transactions)
            .min()
            .unwrap_or(0);
        outcome.any = true;
        Ok(outcome)
    }

    fn send_transaction(&mut self, number: usize, now: Instant) -> Result<()> {
        session::transaction(&mut self.out, self.protocol, self.scale, &mut self.random);
        let session = &mut self.sessions[number];
        session.sent_at = now;
        send(&mut session.socket, &self.out)
    }

    /// Says goodbye on every session.
    pub fn finish(&mut self) {
        for session in &mut self.sessions {
            // Whoever is gone already need not be told.
            let _ = session.socket.write(session::FAREWELL);
        }
    }
}

/// Reads what is there.
fn read(session: &mut Session, buffer: &mut [u8]) -> Result<session::Seen> {
    match session.socket.read(buffer) {
        Ok(0) => bail!("the server closed a session"),
        Ok(count) => Ok(session.reader.take(&buffer[..count])),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(session::Seen::default())
        }
        Err(error) => Err(error).context("cannot read from a session"),
    }
}

/// A transaction is far smaller than a socket's buffer, which is empty when
/// one is sent.
fn send(socket: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    socket.write_all(bytes).context("cannot write to a session")
}
