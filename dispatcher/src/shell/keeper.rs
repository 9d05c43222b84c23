//! What an earlier dispatcher has left behind: sockets, which its keeper holds (`sys/keeper.rs`),
//! and the contexts of its sessions.
//!
//! The next dispatcher adopts them (`scheduler/adopt.rs`) before it does anything else. If it ends
//! before it has adopted all, the keeper still has everything, and another one begins anew.

use super::link::memory::control::Control;
use super::link::memory::remains::Contexts;
use super::sys::keeper::{self, Ledger, LEDGER, REFUSED, SERVER_WORDS, TAKEN};
use super::sys::memory::Remains;
use super::sys::process;
use super::sys::socket::{self, Kind, MAX_KEPT};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

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
    control: Control,
}

impl Keeper {
    /// Starts it; it holds nothing yet. None, with a line in the log, if that fails: nothing
    /// outlives this process then.
    pub fn start(control: Control) -> Option<Keeper> {
        let start = || {
            let ledger = Ledger::create(control.sessions.len())?;
            Ok(Keeper {
                ledger,
                process: Keeper::start_process(ledger, control)?,
                control,
            })
        };
        start()
            .inspect_err(|error: &io::Error| {
                tracing::warn!("could not start a keeper, sessions end with this process: {error}");
            })
            .ok()
    }

    fn start_process(ledger: Ledger, control: Control) -> io::Result<OwnedFd> {
        let is_free = |index| {
            let slot = control.sessions.get(index as usize);
            slot.is_some_and(|slot| slot.owner.load(SeqCst) == 0)
        };
        keeper::start(ledger, control.header.postmaster_pid.load(SeqCst), is_free)
    }

    /// If it has been killed, another one takes its place, and its socket. That one has a copy of
    /// what this process's memory holds by now, which no other process can read either.
    pub fn look(&mut self) {
        if !process::has_ended(&self.process) {
            return;
        }
        match Keeper::start_process(self.ledger, self.control) {
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

// ---- Which server ---------------------------------------------------------

/// The server's control file, in the data directory.
const CONTROL_FILE: &str = "global/pg_control";
/// DB_SHUTDOWNED_IN_RECOVERY and DB_IN_ARCHIVE_RECOVERY (pg_control.h): the states of a standby.
const STANDBY_STATES: [u32; 2] = [2, 5];

/// What tells this server from another that may come in its place: its system identifier, the
/// timeline of its last checkpoint, and whether it is a standby. From pg_control, whose first fields
/// are the same in all majors (ControlFileData, pg_control.h of 15 to 18).
pub fn this_server() -> io::Result<[u32; SERVER_WORDS]> {
    const STATE: usize = 16;
    const TIMELINE: usize = 48;
    let bytes = std::fs::read(CONTROL_FILE)?;
    let word = |at: usize| {
        let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        word.map(u32::from_ne_bytes)
            .ok_or_else(|| io::Error::other("pg_control is too short"))
    };
    let is_standby = u32::from(STANDBY_STATES.contains(&word(STATE)?));
    Ok([word(0)?, word(4)?, word(TIMELINE)?, is_standby])
}

/// May sessions of the one server go on at the other? A standby's may go on at a primary, which it
/// has become; those of a primary would meet with errors at a standby, and their clients would stay.
fn is_the_same_server(
    before: [u32; SERVER_WORDS],
    now: [u32; SERVER_WORDS],
) -> Result<(), &'static str> {
    match (before, now) {
        ([a, b, ..], [c, d, ..]) if (a, b) != (c, d) => Err("it is another database system"),
        ([.., 0], [.., 1]) => Err("the server has become a standby"),
        ([.., before, 0], [.., now, 0]) if before != now => Err("the server has another timeline"),
        _ => Ok(()),
    }
}

/// What an earlier dispatcher has left behind.
pub struct Left {
    keeper: OwnedFd,
    pub ledger: Ledger,
    /// That of its server, if that was not this one.
    pub earlier: Option<Control>,
    arena: Remains,
    /// Its listening sockets.
    pub ports: Vec<OwnedFd>,
}

impl Left {
    /// Asks the keeper of an earlier dispatcher. None: there is none, or it has nothing. `control`:
    /// the memory of this server.
    pub fn find(control: &OwnedFd) -> Option<Left> {
        let keeper = socket::connect_unix(Path::new(SOCKET), Kind::Packets).ok()?;
        Left::ask(&keeper, control)
            .inspect_err(|error| {
                tracing::warn!("sessions of an earlier dispatcher are lost: {error}");
                let _ = socket::send(keeper.as_raw_fd(), &[REFUSED]);
            })
            .ok()
    }

    fn ask(keeper: &OwnedFd, control: &OwnedFd) -> io::Result<Left> {
        let nothing = || io::Error::other("its keeper does not answer as expected");
        let one = |number| {
            let kept = receive(keeper, &[number])?;
            kept.into_iter().next().ok_or_else(nothing)
        };
        let ledger = Ledger::map(&one(LEDGER)?)?;
        if !ledger.is_known() {
            return Err(io::Error::other("they are another build's"));
        }
        let its_control = one(ledger.control().ok_or_else(nothing)?.unsigned_abs())?;
        let mut earlier = None;
        if !process::is_same_file(&its_control, control)? {
            is_the_same_server(ledger.server(), this_server()?).map_err(io::Error::other)?;
            earlier = Some(Control::open(its_control.as_raw_fd()).map_err(io::Error::other)?);
        }
        let arena = ledger.arena().ok_or_else(nothing)?;
        let arena = Remains::open(one(arena.unsigned_abs())?.as_raw_fd())?;
        let ports: Vec<RawFd> = ledger.ports().collect();
        let ports = receive(keeper, &numbers(&ports))?;
        Ok(Left {
            keeper: keeper.try_clone()?,
            ledger,
            earlier,
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

    /// All that is wanted has been taken: the keeper ends. If an earlier server's sessions were not
    /// adopted, the keeper tells them so; of this server's, backends may serve them.
    pub fn end(self, is_adopted: impl Fn(u32) -> bool) {
        let slots = 0..self.ledger.session_slots();
        let word = match self.earlier {
            None => TAKEN,
            Some(_) => {
                let adopted = slots.filter(|index| is_adopted(*index));
                adopted.for_each(|index| self.ledger.keep_no_more(index));
                REFUSED
            }
        };
        let _ = socket::send(self.keeper.as_raw_fd(), &[word]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_go_on_at_the_same_server_alone() {
        let (primary, standby) = ([1, 2, 3, 0], [1, 2, 3, 1]);
        let may = |before, now| is_the_same_server(before, now).is_ok();
        assert!(may(primary, primary) && may(standby, standby));
        // A standby that has been promoted has another timeline.
        assert!(may(standby, [1, 2, 4, 0]));
        assert!(!may(primary, standby));
        // Restored from a backup, up to a point in the past.
        assert!(!may(primary, [1, 2, 4, 0]));
        assert!(!may(primary, [9, 2, 3, 0]) && !may(standby, [1, 9, 3, 1]));
    }
}
