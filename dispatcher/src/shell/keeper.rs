//! What an earlier dispatcher has left behind: sockets, which its keeper holds (`sys/keeper.rs`),
//! and the contexts of its sessions.
//!
//! The next dispatcher adopts them (`scheduler/adopt.rs`) before it does anything else. If it ends
//! before it has adopted all, the keeper still has everything, and another one begins anew.

use super::link::memory::control::Control;
use super::link::memory::remains::Contexts;
use super::sys::keeper::{self, Ledger, Questions, LEDGER, REFUSED, SERVER_WORDS, TAKEN};
use super::sys::memory::Remains;
use super::sys::process;
use super::sys::socket::{self, Kind, MAX_KEPT};
use std::fs::File;
use std::io::{self, Read};
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
        let server = || DatabaseSystem::this().ok().map(DatabaseSystem::words);
        let questions = Questions {
            is_free: &is_free,
            server: &server,
        };
        keeper::start(
            ledger,
            control.header.postmaster_pid.load(SeqCst),
            &questions,
        )
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
/// The bytes of its fields up to the timeline.
const FIRST_FIELDS: usize = 52;
/// DB_SHUTDOWNED_IN_RECOVERY and DB_IN_ARCHIVE_RECOVERY (pg_control.h): the states of a standby.
const STANDBY_STATES: [u32; 2] = [2, 5];

/// What tells this server from another that may come in its place. From pg_control, whose first
/// fields are the same in all majors (ControlFileData, pg_control.h of 15 to 18).
#[derive(Clone, Copy, PartialEq)]
pub struct DatabaseSystem {
    identifier: u64,
    /// The last checkpoint: its position, and its timeline.
    checkpoint: u64,
    timeline: u32,
    is_standby: bool,
}

impl DatabaseSystem {
    /// The one in whose data directory this process is. Allocates no memory: the keeper calls it.
    fn this() -> io::Result<DatabaseSystem> {
        let mut bytes = [0; FIRST_FIELDS];
        File::open(CONTROL_FILE)?.read_exact(&mut bytes)?;
        Ok(DatabaseSystem::of_bytes(&bytes))
    }

    fn of_bytes(bytes: &[u8; FIRST_FIELDS]) -> DatabaseSystem {
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        DatabaseSystem {
            identifier: long(0),
            checkpoint: long(32),
            timeline: word(48),
            is_standby: STANDBY_STATES.contains(&word(16)),
        }
    }

    fn words(self) -> [u32; SERVER_WORDS] {
        let (identifier, checkpoint) = (self.identifier, self.checkpoint);
        [
            (identifier >> 32) as u32,
            identifier as u32,
            (checkpoint >> 32) as u32,
            checkpoint as u32,
            self.timeline,
            u32::from(self.is_standby),
        ]
    }

    fn of_words([a, b, c, d, timeline, is_standby]: [u32; SERVER_WORDS]) -> DatabaseSystem {
        let long = |high, low| u64::from(high) << 32 | u64::from(low);
        DatabaseSystem {
            identifier: long(a, b),
            checkpoint: long(c, d),
            timeline,
            is_standby: is_standby != 0,
        }
    }

    /// May sessions of this server go on at the next one? A standby's may go on at a primary, which
    /// it has become. Those of a primary would meet with errors at a standby, and their clients
    /// would stay. If the server has been copied back to an earlier state, the OID of a role or
    /// database may be another one's now.
    fn may_go_on_at(self, next: DatabaseSystem, may_be_demoted: bool) -> Result<(), &'static str> {
        let is_same_timeline = self.timeline == next.timeline;
        if self.identifier != next.identifier {
            Err("it is another database system")
        } else if !self.is_standby && next.is_standby && !may_be_demoted {
            Err("the server has become a standby")
        } else if !self.is_standby && !next.is_standby && !is_same_timeline {
            Err("the server has another timeline")
        } else if next.checkpoint < self.checkpoint {
            Err("the server has been restored to an earlier state")
        } else {
            Ok(())
        }
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
    pub fn find(control: &OwnedFd, may_be_demoted: bool) -> Option<Left> {
        let keeper = socket::connect_unix(Path::new(SOCKET), Kind::Packets).ok()?;
        Left::ask(&keeper, control, may_be_demoted)
            .inspect_err(|error| {
                tracing::warn!("sessions of an earlier dispatcher are lost: {error}");
                let _ = socket::send(keeper.as_raw_fd(), &[REFUSED]);
            })
            .ok()
    }

    fn ask(keeper: &OwnedFd, control: &OwnedFd, may_be_demoted: bool) -> io::Result<Left> {
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
            let before = DatabaseSystem::of_words(ledger.server());
            (before.may_go_on_at(DatabaseSystem::this()?, may_be_demoted))
                .map_err(io::Error::other)?;
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
        let primary = DatabaseSystem {
            identifier: 1 << 40 | 1,
            checkpoint: 5 << 32 | 7,
            timeline: 3,
            is_standby: false,
        };
        let standby = DatabaseSystem {
            is_standby: true,
            ..primary
        };
        assert!(DatabaseSystem::of_words(primary.words()) == primary);
        let may = |before: DatabaseSystem, now| before.may_go_on_at(now, false).is_ok();
        let other_timeline = DatabaseSystem {
            timeline: 4,
            checkpoint: 6 << 32,
            ..primary
        };
        assert!(may(primary, primary) && may(standby, standby));
        // A standby that has been promoted has another timeline.
        assert!(may(standby, other_timeline));
        assert!(!may(primary, standby));
        assert!(primary.may_go_on_at(standby, true).is_ok());
        // Restored from a backup, up to a point in the past.
        assert!(!may(primary, other_timeline));
        let copied_back = DatabaseSystem {
            checkpoint: 5 << 32 | 6,
            ..primary
        };
        assert!(!may(primary, copied_back) && may(copied_back, primary));
        let other_system = DatabaseSystem {
            identifier: 1,
            ..primary
        };
        assert!(!may(primary, other_system));
    }
}
