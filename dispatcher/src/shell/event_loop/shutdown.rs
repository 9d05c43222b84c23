//! The end of the server, of this dispatcher, and of backends that an earlier dispatcher has
//! left behind.
//!
//! At the first sign of the server's end the ports close. Sessions that no backend holds end at once
//! with 57P01; the others end the same way when their backend releases them. The server itself
//! ends its backends or lets them finish, as the kind of shutdown demands. The dispatcher ends
//! when no backend is left, or with the postmaster. Native sessions with TLS count as backends
//! here: the server lets WAL senders run until the standbys have everything, and a smart
//! shutdown waits for transactions.
//!
//! If sessions are to be held for the next server (pg_baton.hold_sessions), the ports stay open, no
//! session ends that no backend holds, and the keeper has these sessions when the dispatcher ends.
//!
//! If this dispatcher alone is to end, by a signal or because the launcher replaces it, another
//! follows at once. The keeper has the sessions, as after a SIGKILL. A backend that holds a session
//! keeps it, and nothing waits for it.

use super::Dispatcher;
use crate::core::Event;
use crate::protocol::Report;
use crate::shell::events::{token, Source};
use crate::shell::link::layout::shared::*;
use crate::shell::link::memory::control::Control;
use crate::shell::scheduler::Scheduler;
use crate::shell::sys::epoll::{self, Epoll};
use crate::shell::sys::process;
use std::collections::{HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use tracing::{info, warn};

/// The time from a signal to this dispatcher's end. A service manager may signal all processes of
/// a server that it stops, and the postmaster says a moment later that the server stops.
const GRACE_US: u64 = 200_000;
/// How long the shutdown may take before the log says which backends still serve sessions.
const PATIENCE_US: u64 = 30_000_000;

/// The descriptors that report the end, and whether the shutdown has begun.
pub struct Server {
    epoll: Arc<Epoll>,
    postmaster: OwnedFd,
    pid_file: Option<OwnedFd>,
    signals: OwnedFd,
    /// When the shutdown began; None: no shutdown is under way.
    stopping_since_us: Option<u64>,
    /// When this process ends, as a signal has asked it to, unless the server stops.
    ends_at_us: Option<u64>,
    /// While it stops: sessions are held for the next server.
    holds: bool,
}

impl Server {
    pub fn new(epoll: &Arc<Epoll>, postmaster: OwnedFd, signals: OwnedFd) -> io::Result<Server> {
        let pid_file = match process::watch_file(Path::new("postmaster.pid")) {
            Ok(file) => Some(file),
            Err(error) => {
                warn!("could not watch postmaster.pid: {error}");
                None
            }
        };
        let watch = |fd: &OwnedFd, source| epoll.add(fd.as_raw_fd(), epoll::IN, token(source, 0));
        watch(&postmaster, Source::Postmaster)?;
        watch(&signals, Source::Signals)?;
        if let Some(file) = &pid_file {
            watch(file, Source::PidFile)?;
        }
        Ok(Server {
            epoll: Arc::clone(epoll),
            postmaster,
            pid_file,
            signals,
            stopping_since_us: None,
            ends_at_us: None,
            holds: false,
        })
    }

    pub fn postmaster(&self) -> &OwnedFd {
        &self.postmaster
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping_since_us.is_some()
    }

    /// Has a signal asked this process to end?
    pub fn is_asked_to_end(&self) -> bool {
        self.ends_at_us.is_some()
    }

    /// Reads the server's status from the eighth line of postmaster.pid
    /// (LOCK_FILE_LINE_PM_STATUS, miscadmin.h).
    fn says_that_it_stops(&self, data_directory: &str) -> bool {
        if let Some(file) = &self.pid_file {
            process::drain(file);
        }
        let path = Path::new(data_directory).join("postmaster.pid");
        let status = std::fs::read_to_string(path);
        status.is_ok_and(|text| {
            (text.lines().nth(7)).is_some_and(|status| status.trim() == "stopping")
        })
    }

    /// Has the shutdown taken longer than PATIENCE_US? True only once.
    fn is_patience_over(&mut self, now_us: u64) -> bool {
        let since = self.stopping_since_us.as_mut();
        since.is_some_and(|since| {
            let is_over = now_us > *since + PATIENCE_US;
            if is_over {
                *since = u64::MAX - PATIENCE_US;
            }
            is_over
        })
    }
}

impl Dispatcher {
    pub(super) fn signalled(&mut self) {
        process::drain(&self.server.signals);
        self.pid_file_changed();
        if !self.server.is_stopping() && !self.server.is_asked_to_end() {
            self.server.ends_at_us = Some(self.now.us + GRACE_US);
        }
    }

    /// Ends this dispatcher, which another one follows.
    pub(super) fn hand_back(&mut self, why: &str) {
        if self.server.is_stopping() || self.finished {
            return;
        }
        info!("ends, and leaves sessions to the next dispatcher: {why}");
        self.logins.stop(&Report::terminated());
        self.logins_want();
        self.consoles.end_all(&Report::terminated());
        self.scheduler.hand_back();
        self.is_replaced = true;
        self.finished = true;
    }

    pub(super) fn postmaster_gone(&mut self) {
        let _ = (self.server.epoll).delete(self.server.postmaster.as_raw_fd());
        self.stop("the postmaster has gone");
        if !self.server.holds {
            self.scheduler.tell(Event::Abandon);
        }
        self.leave_to_keeper();
    }

    pub(super) fn pid_file_changed(&mut self) {
        let directory = &self.parameters.data_directory;
        if self.server.says_that_it_stops(directory) {
            self.server_stops();
        }
    }

    pub(super) fn server_stops(&mut self) {
        self.stop("the server is stopping");
    }

    pub(super) fn stop(&mut self, why: &str) {
        if self.server.is_stopping() {
            return;
        }
        info!("shutting down: {why}");
        let holds = self.begin_to_hold();
        self.server.stopping_since_us = Some(self.now.us);
        match holds {
            true => self.ports.rest(),
            false => self.ports.close(),
        }
        self.logins.stop(&Report::shutting_down());
        self.logins_want();
        self.consoles.end_all(&Report::terminated());
        self.scheduler.stop(holds);
    }

    /// Are sessions to be held for the next server? The keeper is told.
    fn begin_to_hold(&mut self) -> bool {
        let Some(ledger) = self.ledger() else {
            return false;
        };
        let holds = self.parameters.hold_sessions_ms > 0;
        ledger.follows(holds);
        self.server.holds = holds;
        holds
    }

    /// No backend is left, or the server has died: the keeper has the sessions from here on.
    fn leave_to_keeper(&mut self) {
        if self.server.holds {
            info!("sessions are held for the next server");
            self.scheduler.hand_back();
            self.is_replaced = true;
        }
        self.finished = true;
    }

    /// Continues the shutdown; called in each tick.
    pub(super) fn stop_tick(&mut self) {
        if !self.server.is_stopping() {
            let now_us = self.now.us;
            if self.server.ends_at_us.is_some_and(|at_us| now_us >= at_us) {
                self.hand_back("asked by a signal");
            }
            return;
        }
        let left = self.scheduler.backend_count() + self.natives.relayed();
        if left == 0 && !self.scheduler.is_ending() {
            info!("shut down");
            self.leave_to_keeper();
        } else if left > 0
            && self.server.is_patience_over(self.now.us)
            && !process::has_ended(&self.server.postmaster)
        {
            // A smart shutdown may take hours. The warning appears only once.
            warn!("{left} backends still serve their sessions");
        }
    }
}

// ---- Backends of an earlier dispatcher ------------------------------------
//
// These backends serve the sessions of the earlier dispatcher until those end.
//
// CONTROL names their processes, but its word is not trusted: a process that is no child of the
// postmaster is no backend (`is_backend`). From then on a pidfd represents the process and
// reports its end.
//
// Only the session slots tell which sessions an orphaned backend had, and there may be very
// many. Each tick inspects some of them. The backend's own slot is freed after all session
// slots have been inspected since the backend ended: until then no new backend may get the
// number, which still stands in the slots of its sessions.

/// For this long after the start, orphaned backends are inspected in each tick: most have no
/// session and end as soon as they notice.
const END_US: u64 = 5_000_000;
/// Session slots inspected in one slice, which takes some 25 microseconds.
const SESSIONS_AT_ONCE: usize = 4096;
/// Processes inspected in one slice, with one system call each.
const PROCESSES_AT_ONCE: usize = 256;

/// The orphaned backends, by slot.
pub struct Orphans {
    control: Control,
    alive: VecDeque<(u32, OwnedFd)>,
    /// How many backends at the front of `alive` are still to be inspected in this pass.
    to_look_at: usize,
    lap: Lap,
}

/// Returns the pidfd of a live backend of the server; None if the process ID belongs to none.
pub fn is_backend(pid: u32, postmaster: u32) -> Option<OwnedFd> {
    let pidfd = process::pidfd(pid).ok()?;
    process::is_child(pid, &pidfd, postmaster).then_some(pidfd)
}

impl Orphans {
    pub fn new(control: Control, slots: Vec<(u32, OwnedFd)>) -> Orphans {
        Orphans {
            control,
            alive: slots.into(),
            to_look_at: 0,
            lap: Lap::default(),
        }
    }

    /// The backend is no orphan: this dispatcher adopts it.
    pub fn take(&mut self, slot: u32) -> Option<OwnedFd> {
        let at = self.alive.iter().position(|(other, _)| *other == slot)?;
        self.alive.remove(at).map(|(_, process)| process)
    }

    /// Backends whose slots are not free yet.
    pub fn count(&self) -> usize {
        self.alive.len() + self.lap.dead()
    }

    /// Are orphaned backends to be inspected in the next tick?
    pub fn want_ticks(&self, now_us: u64) -> bool {
        let are_expected_to_end = !self.alive.is_empty() && now_us < END_US;
        are_expected_to_end || self.goes_on()
    }

    fn goes_on(&self) -> bool {
        self.to_look_at > 0 || self.lap.is_on() || self.lap.dead() > 0
    }

    /// Inspects the next slice; called in each tick. `begins`: inspect all again, as is done
    /// anyway soon after the start. True if slots have become free.
    pub fn look(&mut self, begins: bool, now_us: u64, scheduler: &mut Scheduler) -> bool {
        let begins = begins || now_us < END_US;
        if self.count() == 0 || !(begins || self.goes_on()) {
            return false;
        }
        if begins && self.to_look_at == 0 {
            self.to_look_at = self.alive.len();
        }
        self.look_at_processes();
        if !self.lap.is_on() && (begins || self.lap.dead() > 0) {
            self.lap.begin();
        }
        self.look_at_sessions(scheduler);
        let buried = self.lap.take_buried();
        for slot in &buried {
            self.control.free_backend(*slot);
            scheduler.slot_freed(*slot);
        }
        !buried.is_empty()
    }

    fn look_at_processes(&mut self) {
        for _ in 0..self.to_look_at.min(PROCESSES_AT_ONCE) {
            self.to_look_at -= 1;
            let Some((slot, process)) = self.alive.pop_front() else {
                return;
            };
            match process::has_ended(&process) {
                true => self.lap.has_ended(slot),
                false => self.alive.push_back((slot, process)),
            }
        }
    }

    /// Clears the slots of sessions whose backend has ended, and of sessions that their backend
    /// has ended.
    fn look_at_sessions(&mut self, scheduler: &Scheduler) {
        let sessions = self.control.sessions;
        for index in self.lap.next(sessions.len()) {
            let slot = &sessions[index];
            let is_left = match slot.owner.load(SeqCst).checked_sub(1) {
                Some(holder) => self.lap.is_dead(holder),
                None => {
                    slot.state.load(SeqCst) != STATE_FREE && !scheduler.has_session_in(index as u32)
                }
            };
            if is_left {
                self.control.clear_session(index as u32);
            }
        }
    }
}

/// A pass over all session slots, and the ended backends whose sessions it looks for.
#[derive(Default)]
struct Lap {
    /// The next slot to inspect; None: no pass is under way.
    next: Option<usize>,
    /// Slots of backends that had ended before the pass began.
    dead: HashSet<u32>,
    /// Slots of backends that have ended since; the next pass is theirs.
    dead_since: HashSet<u32>,
}

impl Lap {
    fn dead(&self) -> usize {
        self.dead.len() + self.dead_since.len()
    }

    fn is_dead(&self, slot: u32) -> bool {
        self.dead.contains(&slot) || self.dead_since.contains(&slot)
    }

    fn is_on(&self) -> bool {
        self.next.is_some()
    }

    fn has_ended(&mut self, slot: u32) {
        self.dead_since.insert(slot);
    }

    fn begin(&mut self) {
        self.next = Some(0);
        self.dead = std::mem::take(&mut self.dead_since);
    }

    /// The next slice of the `all` session slots.
    fn next(&mut self, all: usize) -> Range<usize> {
        let from = self.next.unwrap_or(all).min(all);
        let end = all.min(from + SESSIONS_AT_ONCE);
        self.next = Some(end).filter(|end| *end < all);
        from..end
    }

    /// The ended backends of which no session is left; empty unless the pass is complete.
    fn take_buried(&mut self) -> HashSet<u32> {
        match self.is_on() {
            true => HashSet::new(),
            false => std::mem::take(&mut self.dead),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_of_dead_backend_is_free_after_a_look_at_all_sessions() {
        const ALL: usize = 2 * SESSIONS_AT_ONCE + 10;
        let mut lap = Lap::default();
        let go_on = |lap: &mut Lap| {
            let range = lap.next(ALL);
            assert!(range.len() <= SESSIONS_AT_ONCE);
            (range, lap.take_buried())
        };
        lap.has_ended(1);
        lap.begin();
        assert_eq!(go_on(&mut lap), (0..SESSIONS_AT_ONCE, HashSet::new()));
        // Backend 2 ends during the pass: the next pass finds those of its sessions that this
        // one has already gone by.
        lap.has_ended(2);
        assert!(lap.is_dead(1) && lap.is_dead(2) && !lap.is_dead(3));
        go_on(&mut lap);
        let (range, buried) = go_on(&mut lap);
        assert_eq!((range, buried), (ALL - 10..ALL, HashSet::from([1])));
        assert!(!lap.is_on() && lap.dead() == 1);
        lap.begin();
        for _ in 0..2 {
            assert!(go_on(&mut lap).1.is_empty() && lap.is_on());
        }
        assert_eq!(go_on(&mut lap).1, HashSet::from([2]));
        assert!(!lap.is_on() && lap.dead() == 0);
        // A server without any session slots.
        lap.has_ended(3);
        lap.begin();
        assert_eq!(lap.next(0), 0..0);
        assert_eq!(lap.take_buried(), HashSet::from([3]));
    }
}
