//! What an earlier dispatcher has left behind: sockets, which its keeper holds (`sys/keeper.rs`),
//! and the contexts of its sessions.
//!
//! The next dispatcher adopts them (`scheduler/adopt.rs`) before it does anything else. If it ends
//! before it has adopted all, the keeper still has everything, and another one begins anew.

use super::link::memory::remains::Contexts;
use super::sys::keeper::{self, Ledger, LEDGER};
use super::sys::memory::Remains;
use super::sys::process;
use super::sys::socket::{self, Kind, MAX_KEPT};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

/// The keeper's socket, in the data directory.
const SOCKET: &str = "pg_stat_tmp/pg_baton.keep";
/// The same, before it takes the place of an earlier keeper's.
const NEW_SOCKET: &str = "pg_stat_tmp/pg_baton.keep.new";
/// How long the keeper may take for an answer.
const ANSWER_MS: i32 = 5_000;

/// This process's own keeper.
pub struct Keeper {
    pub ledger: Ledger,
    /// Its pidfd.
    process: OwnedFd,
    postmaster: u32,
}

impl Keeper {
    /// Starts it; it holds nothing yet. None, with a line in the log, if that fails: nothing
    /// outlives this process then.
    pub fn start(sessions: usize, postmaster: u32) -> Option<Keeper> {
        let start = || {
            let ledger = Ledger::create(sessions)?;
            Ok(Keeper {
                ledger,
                process: keeper::start(ledger, postmaster)?,
                postmaster,
            })
        };
        start()
            .inspect_err(|error: &io::Error| {
                tracing::warn!("could not start a keeper, sessions end with this process: {error}");
            })
            .ok()
    }

    /// If it has been killed, another one takes its place, and its socket. That one has a copy of
    /// what this process's memory holds by now, which no other process can read either.
    pub fn look(&mut self) {
        if !process::has_ended(&self.process) {
            return;
        }
        match keeper::start(self.ledger, self.postmaster) {
            Ok(process) => {
                tracing::warn!("the keeper has ended, another one has been started");
                self.process = process;
            }
            Err(error) => {
                tracing::warn!("the keeper has ended, and none could be started: {error}")
            }
        }
    }
}

/// Opens the socket of this process's keeper, which from here on hands over what it has, in place of
/// an earlier keeper's. At no time is there none.
pub fn listen(ledger: Ledger) -> io::Result<()> {
    let new = Path::new(NEW_SOCKET);
    match std::fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = socket::listen_unix(new, Kind::Packets, 0o700, None)?;
    ledger.set_listener(listener.as_raw_fd());
    // It is the keeper's.
    std::mem::forget(listener);
    ledger.follows(true);
    std::fs::rename(new, SOCKET)
}

/// What an earlier dispatcher has left behind.
pub struct Left {
    keeper: OwnedFd,
    pub ledger: Ledger,
    arena: Remains,
    /// Its listening sockets.
    pub ports: Vec<OwnedFd>,
}

impl Left {
    /// Asks the keeper of an earlier dispatcher. None: there is none, or it has nothing.
    pub fn find() -> Option<Left> {
        let keeper = socket::connect_unix(Path::new(SOCKET), Kind::Packets).ok()?;
        Left::ask(keeper)
            .inspect_err(|error| {
                tracing::warn!("sessions of an earlier dispatcher are lost: {error}")
            })
            .ok()
    }

    fn ask(keeper: OwnedFd) -> io::Result<Left> {
        let nothing = || io::Error::other("its keeper does not answer as expected");
        let one = |number| {
            let kept = receive(&keeper, &[number])?;
            kept.into_iter().next().ok_or_else(nothing)
        };
        let ledger = Ledger::map(&one(LEDGER)?)?;
        let arena = ledger.arena().ok_or_else(nothing)?;
        let arena = Remains::open(one(arena.unsigned_abs())?.as_raw_fd())?;
        let ports: Vec<RawFd> = ledger.ports().collect();
        let ports = receive(&keeper, &numbers(&ports))?;
        Ok(Left {
            keeper,
            ledger,
            arena,
            ports,
        })
    }

    /// The contexts of its sessions; None if the memory is damaged.
    pub fn contexts(&self) -> Option<Contexts<'_>> {
        Contexts::of(self.arena.bytes())
    }

    /// The sockets of these sessions, by their slots.
    pub fn sockets(&self, slots: &[u32]) -> io::Result<Vec<(u32, OwnedFd)>> {
        let mut all = Vec::with_capacity(slots.len());
        for some in slots.chunks(MAX_KEPT) {
            let fds: Option<Vec<RawFd>> = some.iter().map(|it| self.ledger.session(*it)).collect();
            let sockets = receive(&self.keeper, &numbers(&fds.unwrap_or_default()))?;
            if sockets.len() == some.len() {
                all.extend(some.iter().copied().zip(sockets));
            }
        }
        Ok(all)
    }

    /// All that is wanted has been taken: the keeper ends.
    pub fn end(self) {
        let _ = socket::send(self.keeper.as_raw_fd(), b"e");
    }
}

fn numbers(fds: &[RawFd]) -> Vec<u32> {
    fds.iter().map(|fd| fd.unsigned_abs()).collect()
}

/// Asks for descriptors. Blocks.
fn receive(keeper: &OwnedFd, numbers: &[u32]) -> io::Result<Vec<OwnedFd>> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let asked: Vec<u8> = numbers.iter().flat_map(|it| it.to_ne_bytes()).collect();
    socket::send(keeper.as_raw_fd(), &asked)?;
    socket::wait_to_read(keeper.as_raw_fd(), ANSWER_MS)?;
    socket::receive_kept(keeper.as_raw_fd())
}
