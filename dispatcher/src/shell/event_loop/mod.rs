//! The event loop hands each event to the part that it concerns, and carries the requests of
//! one part to another.
//!
//! One thread at a time has the [`Dispatcher`] (`threads`). Its parts know only the parts below
//! them: the launcher's questions travel over the control connections, and the scheduler's
//! sessions decide whether a client may come in.
//!
//! A round handles events in the order in which they came. It collects what they cause and does
//! that once, at its end: first backends that died, since an event of the same round may still
//! name their sessions; then pools that have to be inspected.
//!
//! | module | what it does |
//! |---|---|
//! | `clients` | clients connect, log in, and become sessions; questions to the launcher |
//! | `consoles` | the console's commands |
//! | `connections` | frames of backends, launchers and views; rows of views |
//! | `shutdown` | the end of the server, of this dispatcher, and of an earlier one's backends |
//!
//! This file has the round itself, the timers, and the naps of a saturated pool.

mod clients;
mod connections;
mod consoles;
pub mod shutdown;

use super::batch_scheduling;
use super::console::Consoles;
use super::events::{source_of, token, Source, TurnClock, Turns};
use super::jobs::Jobs;
use super::keeper::{self, Keeper, Left};
use super::link::connections::{Connections, Peer};
use super::link::layout::shared::*;
use super::link::memory::control::Control;
use super::log::lines;
use super::login::launcher::Launcher;
use super::login::native::Natives;
use super::login::ports::Ports;
use super::login::{Entering, Logins};
use super::parameters::Parameters;
use super::scheduler::adopt::Adoptable;
use super::scheduler::Scheduler;
use super::sys::epoll::{self, Epoll, Event, IN};
use super::sys::keeper::Ledger;
use super::sys::process;
use crate::core::{Event as Happened, Now};
use clients::LongPackets;
use connections::Readers;
use shutdown::{Orphans, Server};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tracing::{info, warn};

/// Microseconds from 1970 to 2000, the epoch of TimestampTz.
const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// The whole state of the dispatcher.
pub struct Dispatcher {
    control: Control,
    parameters: Arc<Parameters>,
    /// The start, in microseconds of the monotonic clock.
    began_us: i64,
    started_at: i64,
    now: Now,
    /// Events in this round.
    round_events: usize,
    /// Connections that this round may still accept, and rows of views that it may still send.
    accepts_left: usize,
    rows_left: usize,
    /// Likewise, rows that consoles may still get.
    console_rows_left: usize,
    finished: bool,
    /// Another dispatcher follows, and waits for the end of this one.
    is_replaced: bool,

    scheduler: Scheduler,
    logins: Logins,
    long_packets: LongPackets<Box<Entering>>,
    ports: Ports,
    natives: Natives,
    consoles: Consoles,
    /// A database has the console's name.
    is_console_hidden: bool,
    jobs: Jobs,
    launcher: Launcher,
    connections: Connections,
    /// Holds a packet while it is read; empty in between.
    buffer: Vec<u8>,
    control_path: PathBuf,
    readers: Readers,
    orphans: Orphans,
    server: Server,
    timers: Timers,
    turns: Turns,
    /// An eventfd that wakes the main thread.
    wake: OwnedFd,
    /// Cancel requests that named a session of the pool.
    cancels: u64,
    /// The scheduler's count of closed sockets at the last inspection.
    closed_sockets: u64,
    /// Threads that wait for events of sessions.
    threads: usize,
    /// None: there is none.
    keeper: Option<Keeper>,
}

/// What a dispatcher is built from.
pub struct Parts {
    pub control: Control,
    pub parameters: Arc<Parameters>,
    pub epoll: Arc<Epoll>,
    pub scheduler: Scheduler,
    pub logins: Logins,
    pub ports: Ports,
    pub consoles: Consoles,
    pub jobs: Jobs,
    pub connections: Connections,
    pub control_path: PathBuf,
    /// The channel to the launcher.
    pub channel: OwnedFd,
    pub postmaster: OwnedFd,
    pub signals: OwnedFd,
    /// Backend slots of live backends of an earlier dispatcher.
    pub orphans: Vec<(u32, OwnedFd)>,
    /// Threads that wait for events of sessions.
    pub threads: usize,
    pub keeper: Option<Keeper>,
}

/// The present time, as a TimestampTz in microseconds.
fn timestamp() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    since.as_micros() as i64 - POSTGRES_EPOCH_US
}

impl Dispatcher {
    pub fn new(parts: Parts) -> io::Result<Dispatcher> {
        let Parts {
            control,
            parameters,
            epoll,
            jobs,
            ..
        } = parts;
        let wake = process::eventfd()?;
        epoll.add(wake.as_raw_fd(), IN, token(Source::Wake, 0))?;
        epoll.add(jobs.fd(), IN, token(Source::Jobs, 0))?;
        let server = Server::new(&epoll, parts.postmaster, parts.signals)?;
        let mut dispatcher = Dispatcher {
            control,
            parameters,
            began_us: process::monotonic_us(),
            started_at: timestamp(),
            now: Now::default(),
            round_events: 0,
            accepts_left: 0,
            rows_left: 0,
            console_rows_left: 0,
            finished: false,
            is_replaced: false,
            scheduler: parts.scheduler,
            logins: parts.logins,
            long_packets: LongPackets::new(),
            ports: parts.ports,
            natives: Natives::default(),
            consoles: parts.consoles,
            is_console_hidden: false,
            jobs,
            launcher: Launcher::new(control),
            connections: parts.connections,
            buffer: vec![0; FRAME_MAX as usize],
            control_path: parts.control_path,
            readers: Readers::default(),
            orphans: Orphans::new(control, parts.orphans),
            server,
            timers: Timers::default(),
            turns: Turns::default(),
            wake,
            cancels: 0,
            closed_sockets: 0,
            threads: parts.threads,
            keeper: parts.keeper,
        };
        dispatcher.beat();
        dispatcher.show_parameters();
        let started_at = dispatcher.started_at;
        dispatcher.scheduler.reset_statistics(started_at);
        if let Some(number) = dispatcher.connections.add(parts.channel, Peer::Launcher) {
            dispatcher.launcher_connected(number);
        }
        dispatcher.pid_file_changed();
        Ok(dispatcher)
    }

    /// Sessions of an earlier dispatcher go on here. From here on another dispatcher may adopt
    /// this one's.
    pub fn adopt(&mut self, left: Option<Left>, found: &Adoptable, are_sure: bool) {
        self.read_clock();
        if let Some(left) = &left {
            let mut process_of = |slot| self.orphans.take(slot);
            let adopted = (self.scheduler).adopt(left, found, are_sure, &mut process_of);
            self.look_at_others();
            info!("{adopted} sessions of an earlier dispatcher go on");
        }
        if let Some(ledger) = self.ledger() {
            ledger.set_ports(self.ports.descriptors());
            if let Err(error) = keeper::listen(ledger) {
                warn!("sessions end with this process, its keeper has no socket: {error}");
            }
        }
        if let Some(left) = left {
            left.end(|index| self.scheduler.has_session_in(index));
        }
        self.scheduler.call_adopted();
    }

    /// Do sockets of this process outlive it, so that it must not close them?
    pub fn is_outlived(&self) -> bool {
        self.is_replaced && self.ledger().is_some_and(|ledger| ledger.is_followed())
    }

    /// What the keeper is told.
    pub(super) fn ledger(&self) -> Option<Ledger> {
        self.keeper.as_ref().map(|keeper| keeper.ledger)
    }

    /// Microseconds from the start of the dispatcher to this time.
    fn passed_us(&self, shared_us: i64) -> u64 {
        (shared_us - self.began_us) as u64
    }

    fn read_clock(&mut self) {
        let shared_us = process::monotonic_us();
        self.now = Now {
            us: self.passed_us(shared_us),
            timestamp: timestamp(),
            shared_us,
        };
        self.scheduler.set_clock(self.now);
        self.logins.set_clock(self.now);
    }

    /// Tells the backends whether to use SCHED_BATCH.
    pub fn publish_batch_scheduling(&self) {
        batch_scheduling::publish(&self.control.header.batch_until_us);
    }

    /// Microseconds of the monotonic clock at the beginning of the round.
    pub fn now_us(&self) -> u64 {
        self.now.us
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Does every transaction change its way (pg_baton.force_migration)?
    pub fn is_tested(&self) -> bool {
        self.parameters.force_migration
    }

    /// Makes the main thread return from its wait.
    pub fn wake_main_thread(&self) {
        process::signal_event(&self.wake);
    }

    /// Publishes the parameters that the server's processes read in CONTROL.
    fn show_parameters(&self) {
        let forces = u32::from(self.parameters.force_migration);
        self.control.header.force_migration.store(forces, SeqCst);
    }

    /// Handles the events that have come, then what is due by time.
    pub fn round(&mut self, events: &[Event], clock: &mut TurnClock) {
        self.read_clock();
        clock.begins(self.now.us);
        self.turns.begins(self.now.us, events.len());
        self.look_at_settings();
        self.round_events = events.len();
        self.accepts_left = clients::ACCEPTS_A_ROUND;
        self.rows_left = connections::ROWS_A_ROUND;
        self.scheduler.turn_begins();
        self.long_packets_go_on();
        self.consoles_go_on();
        for event in events {
            self.event(*event);
        }
        self.bury_dead();
        self.tick();
        self.end_some_logins();
        self.go_on_with_contexts();
        self.scheduler.tell(Happened::RoundEnds);
        self.scheduler.tell(Happened::MakeRoom);
        self.ask_what_pools_want();
        self.tell_holders();
        self.tell_pausers();
        self.count_refused();
        self.turns.work += self.scheduler.take_work() + self.logins.take_work();
        let now_us = self.passed_us(process::monotonic_us());
        self.turns.ends(clock, now_us);
    }

    fn event(&mut self, event: Event) {
        let (data, events) = (event.u64, event.events);
        if data >> 32 != 0 {
            return self.scheduler.session_event(data, events);
        }
        let Some((source, number)) = source_of(data) else {
            return;
        };
        match source {
            Source::Listener => self.accept_clients(number),
            Source::ControlListener => self.accept_connections(),
            Source::Control => self.connection_event(number, events),
            Source::Login => {
                self.logins.event(number);
                self.logins_want();
            }
            Source::Console => self.console_event(number, events),
            Source::Opening => self.scheduler.opening_event(number),
            Source::Queue => self.scheduler.tell(Happened::QueueHasRoom(number)),
            Source::Postmaster => self.postmaster_gone(),
            Source::PidFile => self.pid_file_changed(),
            Source::Signals => self.signalled(),
            Source::Jobs => self.jobs_done(),
            Source::Relays => self.relays_event(),
            Source::Errand => {
                self.logins.errand_event(number);
                self.logins_want();
            }
            Source::Wake => process::drain(&self.wake),
            // The events of that epoll are part of this round (threads.rs).
            Source::Sessions => {}
        }
    }

    /// Takes over changed settings of roles and databases.
    fn look_at_settings(&mut self) {
        if let Some(changed) = self.scheduler.look_at_settings() {
            // The cached answers say which sessions are native.
            let concerned = |role, database| changed.concerns(role, database);
            self.logins.forget_answers(concerned);
        }
    }

    /// Closes everything before the process ends.
    pub fn leave(&mut self) {
        if !self.is_replaced {
            self.ports.close();
        }
        let _ = std::fs::remove_file(&self.control_path);
        self.logins.close_all();
        if !self.is_outlived() {
            self.scheduler.close_all();
        }
        if !self.is_replaced {
            self.logins.finish_relays();
        }
        // Clients cannot connect from here until the next dispatcher listens.
        if !self.is_outlived() {
            self.ports.close();
        }
        let own_pid = std::process::id();
        let word = &self.control.header.dispatcher_pid;
        let _ = word.compare_exchange(own_pid, 0, SeqCst, SeqCst);
    }
}

// ---- Timers ---------------------------------------------------------------
//
// What happens by time alone.
//
// A *tick* handles limits in milliseconds; it runs only while such a limit exists. A *sweep*
// once a second handles the rest. An idle dispatcher does nothing but one sweep a second.

const TICK_US: u64 = 20_000;
const SWEEP_US: u64 = 1_000_000;

/// When each timer last ran.
#[derive(Default)]
pub struct Timers {
    last_tick_us: u64,
    last_sweep_us: u64,
}

impl Timers {
    fn is_tick_due(&mut self, now_us: u64) -> bool {
        let is_due = now_us >= self.last_tick_us + TICK_US;
        if is_due {
            self.last_tick_us = now_us;
        }
        is_due
    }

    fn is_sweep_due(&mut self, now_us: u64) -> bool {
        let is_due = now_us >= self.last_sweep_us + SWEEP_US;
        if is_due {
            self.last_sweep_us = now_us;
        }
        is_due
    }
}

impl Dispatcher {
    fn needs_ticks(&self) -> bool {
        self.logins.len() > 0
            || self.ports.have_resting()
            || self.orphans.want_ticks(self.now.us)
            || self.server.is_asked_to_end()
            || self.scheduler.needs_ticks()
            || lines::has_unsent()
    }

    /// Is there work that must not wait for an event?
    fn is_urgent(&self) -> bool {
        self.scheduler.has_more()
            || self.logins.has_more()
            || !self.long_packets.is_empty()
            || self.consoles.are_busy()
            || self.connections.has_dead()
    }

    /// How long the loop may sleep, in milliseconds.
    pub fn next_timeout_ms(&self) -> i32 {
        if self.is_urgent() {
            return 0;
        }
        let period = if self.needs_ticks() {
            TICK_US
        } else {
            SWEEP_US
        };
        period.div_ceil(1000) as i32
    }

    /// Shows the launcher that the event loop makes progress. Not in each round: backends read
    /// words beside this one.
    fn beat(&self) {
        let now_us = process::monotonic_us() as u64;
        self.control.header.beat_us.store(now_us, Relaxed);
    }

    /// Called in each round.
    fn tick(&mut self) {
        let now_us = self.now.us;
        if !self.timers.is_tick_due(now_us) {
            return;
        }
        self.beat();
        self.look_at_descriptors();
        self.look_at_others();
        self.logins.tick();
        self.logins_want();
        self.scheduler.tick();
        self.consoles_ask_again();
        self.stop_tick();
        self.look_at_orphans(false);
        lines::flush();
        if self.timers.is_sweep_due(now_us) {
            self.sweep();
        }
    }

    /// Called in each round.
    fn end_some_logins(&mut self) {
        if self.logins.has_more() {
            let report = self.not_now();
            self.logins.end_some(report.as_ref());
            self.logins_want();
        }
    }

    fn sweep(&mut self) {
        self.forget_questions();
        self.logins.log_left_out();
        self.connections.expire_silent(self.now.us);
        self.look_at_orphans(true);
        self.scheduler.sweep();
        if let Some(keeper) = &mut self.keeper {
            keeper.look();
        }
    }

    fn look_at_orphans(&mut self, begins: bool) {
        if self.finished {
            // The slots of sessions that the keeper has would seem to be left over.
            return;
        }
        let now_us = self.now.us;
        if begins {
            self.scheduler.look_at_adopted();
        }
        if (self.orphans).look(begins, now_us, &mut self.scheduler) {
            self.look_at_others();
        }
    }

    /// Counts the server's connections that are not backends of the pool.
    fn look_at_others(&mut self) {
        let others = self.natives.connections_in() + self.logins.connections();
        (self.scheduler).others_are(self.orphans.count(), others);
        let left = self.scheduler.connections_left();
        self.logins.connections_left(left);
    }

    /// Retries listeners that pause for want of descriptors. After a session has ended, another
    /// lack of descriptors is reported anew.
    fn look_at_descriptors(&mut self) {
        let closed = self.scheduler.closed_sockets();
        if std::mem::replace(&mut self.closed_sockets, closed) != closed {
            self.ports.descriptors_are_free();
        }
        for _ in self.ports.wake(self.now.us) {
            self.connections.listen(true);
        }
    }
}

// ---- Naps -----------------------------------------------------------------
//
// A nap keeps the dispatcher from waking up for each event of a session while no backend could
// serve that session.
//
// A saturated pool whose transactions take a millisecond has an event every fraction of a
// millisecond, and a wake-up costs ten times what an event costs. While the ready queue holds
// enough sessions for all backends of the pool, a new session would only be placed behind the
// others. So the dispatcher *naps*: it waits for everything except its sessions, until a batch
// of events will have gathered, or until the kernel calls the queue writable again (a quarter
// is left), which is when the backends need more. docs/design/performance.md has the figures.
//
// The order of sessions does not change: the epoll lists sockets in the order in which they
// became readable.

/// Events that a nap waits for.
const BATCH: u64 = 32;
/// The longest nap, in microseconds: sessions of other pools may speak meanwhile. Not longer
/// than a tick.
const NAP_MAX_US: u64 = 20_000;
/// Below this, events gather without a nap, and the queue could run dry before the dispatcher
/// is on a CPU again.
const NAP_MIN_US: u64 = 1_500;
/// A nap polls each descriptor; with more of them it would cost more than it saves.
const DESCRIPTORS_MAX: usize = 256;
/// A nap shorter than this was useless: events other than those of sessions keep the dispatcher
/// busy.
const NAP_CUT_SHORT_US: u64 = 300;
/// After a useless nap, this many rounds run without a nap.
const ROUNDS_AWAKE: u32 = 16;

/// The rate of events, and whether naps have been useful.
#[derive(Default)]
pub struct Arrivals {
    /// Smoothed time between two events.
    gap_us: u64,
    last_us: u64,
    /// Rounds still to come without a nap.
    awake: u32,
}

impl Arrivals {
    /// A round begins with `count` events.
    pub fn came(&mut self, count: usize, now_us: u64) {
        let gap_us = now_us.saturating_sub(self.last_us) / count.max(1) as u64;
        self.gap_us = (7 * self.gap_us + gap_us) / 8;
        self.last_us = now_us;
        self.awake = self.awake.saturating_sub(1);
    }

    /// How long a batch takes to gather; None if that is not worth a nap.
    fn nap_us(&self) -> Option<u64> {
        let nap_us = (BATCH * self.gap_us).min(NAP_MAX_US);
        (nap_us >= NAP_MIN_US && self.awake == 0).then_some(nap_us)
    }

    fn was_cut_short(&mut self) {
        self.awake = ROUNDS_AWAKE;
    }
}

/// What a thread waits for instead of its sessions.
pub struct Nap {
    microseconds: u64,
    readable: Vec<RawFd>,
    writable: Vec<RawFd>,
}

impl Nap {
    /// Blocks, for NAP_MAX_US at most. If another thread has closed a descriptor, the nap may
    /// end early, or wait for the descriptor's new user; both are harmless.
    pub fn take(&self, arrivals: &mut Arrivals) {
        let began = Instant::now();
        epoll::wait_for_some(&self.readable, &self.writable, self.microseconds);
        if began.elapsed() < Duration::from_micros(NAP_CUT_SHORT_US) {
            arrivals.was_cut_short();
        }
    }
}

impl Dispatcher {
    /// Asked before a thread waits for events: a nap, if no other work would be delayed.
    /// `has_all`: the thread waits for all events, not only for those of sessions.
    pub fn nap(&self, arrivals: &Arrivals, has_all: bool) -> Option<Nap> {
        let microseconds = arrivals.nap_us()?;
        if self.is_urgent() || self.logins.len() > 0 || self.server.is_stopping() {
            return None;
        }
        let writable = self.scheduler.saturated_queues()?;
        let own = self
            .connections
            .descriptors()
            .chain(self.ports.descriptors());
        let readable: Vec<RawFd> = own.filter(|_| has_all).collect();
        (writable.len() + readable.len() <= DESCRIPTORS_MAX).then_some(Nap {
            microseconds,
            readable,
            writable,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(gap_us: u64, a_round: usize) -> Arrivals {
        let mut arrivals = Arrivals::default();
        for round in 1..100 {
            arrivals.came(a_round, round * gap_us * a_round as u64);
        }
        arrivals
    }

    #[test]
    fn it_naps_for_a_batch_however_many_come_a_round() {
        for a_round in [1, 4, 16] {
            let nap_us = arrivals(100, a_round).nap_us().expect("is worth a nap");
            assert!((2900..=3200).contains(&nap_us), "{a_round}: {nap_us}");
        }
    }

    #[test]
    fn it_never_naps_long_nor_for_what_gathers_by_itself() {
        assert_eq!(arrivals(100_000, 1).nap_us(), Some(NAP_MAX_US));
        assert_eq!(arrivals(15, 20).nap_us(), None);
        assert_eq!(Arrivals::default().nap_us(), None);
    }

    #[test]
    fn a_nap_that_was_of_no_use_is_not_tried_again_at_once() {
        let mut arrivals = arrivals(100, 1);
        arrivals.was_cut_short();
        let mut now_us = 10_000;
        for _ in 0..ROUNDS_AWAKE {
            assert_eq!(arrivals.nap_us(), None);
            now_us += 100;
            arrivals.came(1, now_us);
        }
        assert!(arrivals.nap_us().is_some());
    }
}
