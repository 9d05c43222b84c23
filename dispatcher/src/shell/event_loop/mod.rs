//! The event loop: what has happened goes to whom it concerns, and what that one
//! wants of others goes to them.
//!
//! One thread has a [`Dispatcher`] at a time (`threads`). Its parts do not know of
//! each other, but downwards: the launcher's questions go by the control
//! connections, and who may come in is a matter of the scheduler's sessions.
//!
//! Within a round, events are handled as they came; what they cause is
//! gathered and done once at the end: backends that died (an event of the same
//! round may still name their sessions), then pools that have to be looked at.
//!
//! | module | what goes on there |
//! |---|---|
//! | `clients` | clients come, log in, and become sessions |
//! | `connections` | backends, launchers and views say who they are, and what |
//! | `launcher` | what the launcher is asked, and says |
//! | `queries` | views are answered |
//! | `orphans` | backends of an earlier dispatcher end |
//! | `timers`, `batching` | time; when a thread need not wake up for each session |
//! | `turns` | how long a round takes |
//! | `shutdown` | the end |

pub mod batching;
mod clients;
mod connections;
mod launcher;
pub mod orphans;
mod queries;
mod shutdown;
mod timers;
pub mod turns;

use super::jobs::Jobs;
use super::link::connections::{Connections, Peer};
use super::link::layout::shared::*;
use super::link::memory::control::Control;
use super::login::accepting::Ports;
use super::login::launcher::Launcher;
use super::login::native::Natives;
use super::login::Logins;
use super::parameters::Parameters;
use super::scheduler::Scheduler;
use super::sys::epoll::{Epoll, Event, IN};
use super::sys::process;
use super::tokens::{source_of, token, Source};
use crate::core::{Event as Happened, Now};
use orphans::Orphans;
use queries::Readers;
use shutdown::Server;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::SystemTime;
use timers::Timers;
use turns::{TurnClock, Turns};

/// Microseconds from 1970 to 2000, the epoch of TimestampTz.
const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// One dispatcher.
pub struct Dispatcher {
    control: Control,
    parameters: Arc<Parameters>,
    /// Of the monotonic clock.
    began_us: i64,
    started_at: i64,
    now: Now,
    /// Events of this round.
    round_events: usize,
    /// Clients that may still be let in in this round, and rows still be sent.
    accepts_left: usize,
    rows_left: usize,
    finished: bool,

    scheduler: Scheduler,
    logins: Logins,
    ports: Ports,
    natives: Natives,
    jobs: Jobs,
    launcher: Launcher,
    connections: Connections,
    /// For packets; empty while one is being read.
    buffer: Vec<u8>,
    control_path: PathBuf,
    readers: Readers,
    orphans: Orphans,
    server: Server,
    timers: Timers,
    turns: Turns,
    /// Wakes the main thread.
    wake: OwnedFd,
    /// Requests to cancel that were for a session of ours.
    cancels: u64,
    /// scheduler's count of closed sockets when it was last looked at.
    closed_sockets: u64,
    /// That wait for sessions.
    threads: usize,
}

/// What a dispatcher is made of.
pub struct Parts {
    pub control: Control,
    pub parameters: Arc<Parameters>,
    pub epoll: Arc<Epoll>,
    pub scheduler: Scheduler,
    pub logins: Logins,
    pub ports: Ports,
    pub jobs: Jobs,
    pub connections: Connections,
    pub control_path: PathBuf,
    /// The launcher's channel.
    pub channel: OwnedFd,
    pub postmaster: OwnedFd,
    pub signals: OwnedFd,
    /// Backend slots of live backends of an earlier dispatcher.
    pub orphans: Vec<(u32, OwnedFd)>,
    /// That wait for sessions.
    pub threads: usize,
}

/// Now, as TimestampTz counts.
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
            finished: false,
            scheduler: parts.scheduler,
            logins: parts.logins,
            ports: parts.ports,
            natives: Natives::default(),
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
        };
        dispatcher.show_parameters();
        if let Some(number) = dispatcher.connections.add(parts.channel, Peer::Launcher) {
            dispatcher.launcher_connected(number);
        }
        dispatcher.pid_file_changed();
        Ok(dispatcher)
    }

    /// Since the start.
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

    /// Microseconds of the monotonic clock at the round's begin.
    pub fn now_us(&self) -> u64 {
        self.now.us
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Every transaction is to go another way (pg_baton.force_migration).
    pub fn is_tested(&self) -> bool {
        self.parameters.force_migration
    }

    /// Has the main thread come out of its wait.
    pub fn wake_main_thread(&self) {
        process::signal_event(&self.wake);
    }

    /// What the server's processes see of the parameters.
    fn show_parameters(&self) {
        let forces = u32::from(self.parameters.force_migration);
        self.control.header.force_migration.store(forces, SeqCst);
    }

    /// What has come, and what time has brought.
    pub fn round(&mut self, events: &[Event], clock: &mut TurnClock) {
        self.read_clock();
        clock.begins(self.now.us);
        self.turns.begins(self.now.us, events.len());
        self.look_at_settings();
        self.round_events = events.len();
        self.accepts_left = clients::ACCEPTS_A_ROUND;
        self.rows_left = queries::ROWS_A_ROUND;
        self.scheduler.turn_begins();
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
            Source::Opening => self.scheduler.opening_event(number),
            Source::Queue => self.scheduler.tell(Happened::QueueHasRoom(number)),
            Source::Postmaster => self.postmaster_gone(),
            Source::PidFile => self.pid_file_changed(),
            Source::Signals => self.signalled(),
            Source::Jobs => self.jobs_done(),
            Source::Errand => {
                self.logins.errand_event(number);
                self.logins_want();
            }
            Source::Wake => process::drain(&self.wake),
            // Its events are in this round (threads.rs).
            Source::Sessions => {}
        }
    }

    /// A role's or a database's settings may have changed.
    fn look_at_settings(&mut self) {
        if let Some(changed) = self.scheduler.look_at_settings() {
            // Answers say whose sessions are native.
            let concerned = |role, database| changed.concerns(role, database);
            self.logins.forget_answers(concerned);
        }
    }

    /// The last things before the end.
    pub fn leave(&mut self) {
        self.ports.close();
        let _ = std::fs::remove_file(&self.control_path);
        self.logins.close_all();
        self.scheduler.close_all();
        self.logins.finish_relays();
        let own_pid = std::process::id();
        let word = &self.control.header.dispatcher_pid;
        let _ = word.compare_exchange(own_pid, 0, SeqCst, SeqCst);
    }
}
