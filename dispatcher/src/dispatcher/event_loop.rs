//! The dispatcher's state, and a round of events.
//!
//! All state is in [`Dispatcher`], which one thread has at a time (`threads`). The
//! other modules of this folder add the methods that handle one kind of thing each.
//!
//! An event's data is either a session id (generation in the upper half, never
//! 0) or, with an empty upper half, a [`Source`] and a number.
//!
//! Within a round, events are handled as they came; what they cause is
//! gathered and done once at the end: backends that died (an event of the same
//! round may still name their sessions), then pools that have to be looked at.

use super::clients::Clients;
use super::link::control::{Connection, Silent};
use super::link::launcher::Link;
use super::link::memory::context::Contexts;
use super::link::memory::control::Control;
use super::login::clients::Login;
use super::login::errands::Errands;
use super::login::greeting::Greetings;
use super::login::jobs::Jobs;
use super::login::limits::Rates;
use super::login::listeners::Listener;
use super::login::login_cache::LoginCache;
use super::login::native::{Crowd, Native};
use super::login::roles::Roles;
use super::login::securing::TlsOffer;
use super::parameters::Parameters;
use super::pools::begun::{Begun, Granted};
use super::pools::opening::Opening;
use super::pools::queues::Queue;
use super::pools::skipping::Skipping;
use super::queries::Statistics;
use super::resting::Resting;
use super::shutdown::Stopping;
use super::slab::Slab;
use super::sys::epoll::{self, ClientNumber, Epoll, Event};
use super::threads::MainThread;
use super::tls::certificates::Certificates;
use super::tls::threads::Relays;
use crate::core::{Core, Event as Happened, Now, SessionId};
use crate::protocol::auth::verifier::MockSecret;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// What an event that is no session's is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Source {
    Listener = 1,
    ControlListener,
    Control,
    Login,
    Opening,
    Queue,
    Postmaster,
    PidFile,
    Signals,
    Jobs,
    Errand,
    Wake,
}

const SOURCES: [Source; 12] = [
    Source::Listener,
    Source::ControlListener,
    Source::Control,
    Source::Login,
    Source::Opening,
    Source::Queue,
    Source::Postmaster,
    Source::PidFile,
    Source::Signals,
    Source::Jobs,
    Source::Errand,
    Source::Wake,
];
const NUMBER_BITS: u32 = 24;

/// Event data of a source; numbers are below 2^24.
pub fn token(source: Source, number: u32) -> u64 {
    debug_assert!(number < 1 << NUMBER_BITS);
    u64::from(((source as u32) << NUMBER_BITS) | number)
}

fn source_of(data: u64) -> Option<(Source, u32)> {
    let word = u32::try_from(data).ok()?;
    let source = SOURCES.get((word >> NUMBER_BITS).checked_sub(1)? as usize)?;
    Some((*source, word & ((1 << NUMBER_BITS) - 1)))
}

/// Microseconds from 1970 to 2000, the epoch of TimestampTz.
const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// One dispatcher: its scheduler, and what that takes.
pub struct Dispatcher {
    /// Of all but sessions.
    pub epoll: Arc<Epoll>,
    /// Of sessions, one a thread, the first is that of all else.
    pub session_epolls: Vec<Arc<Epoll>>,
    /// The thread that has the timers, as long as it waits.
    pub main_thread: MainThread,
    pub client_number: ClientNumber,
    pub control: Control,
    pub contexts: Contexts,
    pub arena_fd: OwnedFd,
    pub arena_size: u64,
    pub parameters: Parameters,
    pub mock_secret: MockSecret,

    /// Decides; all else here does.
    pub core: Core,
    pub clients: Clients,
    /// Sessions whose request is being passed over.
    pub skippers: HashMap<SessionId, Skipping>,
    /// Sessions that have sent part of a message.
    pub begun: HashMap<SessionId, Begun>,
    pub begun_granted: Granted,
    /// By pool slot.
    pub queues: Vec<Option<Queue>>,
    /// Backends that are being opened, by backend slot.
    pub openings: Vec<Option<Opening>>,
    /// Control connections of those that have attached, by backend slot.
    pub attached: Vec<Option<u32>>,
    /// Backend slots of live backends of an earlier dispatcher.
    pub orphans: Vec<u32>,
    pub roles: Roles,
    pub greetings: Greetings,
    /// control's settings_marks as of the core's settings_generation.
    pub settings_marks: Vec<u32>,

    pub listeners: Vec<Listener>,
    pub control_listener: OwnedFd,
    pub control_path: std::path::PathBuf,
    pub connections: Slab<Connection>,
    pub dead_connections: Vec<u32>,
    /// Pools to whose backends the kernel sends no descriptors for the moment.
    pub unsendable: Vec<u32>,
    /// Control connections in the order in which they came.
    pub unidentified: VecDeque<Silent>,
    pub logins: Slab<Login>,
    pub errands: Errands,
    /// Native sessions, by the control connection of each backend.
    pub natives: HashMap<u32, Native>,
    pub crowd: Crowd,
    pub rates: Rates,
    pub link: Link,
    pub login_cache: LoginCache,
    pub jobs: Jobs,
    pub tls: TlsOffer,
    pub relays: Relays,
    pub certificates: Certificates,
    pub postmaster: OwnedFd,
    pub pid_file: Option<OwnedFd>,
    pub signals: OwnedFd,
    pub stopping: Option<Stopping>,
    pub finished: bool,

    /// Listeners that are left out for a moment.
    pub resting: Vec<Resting>,
    /// Kept for the case that there is no other descriptor.
    pub reserve: Option<OwnedFd>,
    pub told_no_descriptors: bool,
    /// Sessions get no higher number; above are those for backends.
    pub highest_client: RawFd,
    /// Up to here clients are turned away as the protocol has it, which takes
    /// a moment; above that with an error unasked.
    pub highest_heard: RawFd,
    pub buffer: Vec<u8>,
    pub next_serial: u64,
    pub started: Instant,
    pub started_at: i64,
    pub statistics: Statistics,
    /// Microseconds of the monotonic clock at the round's begin.
    pub now_us: u64,
    /// The same instant as TimestampTz.
    pub now: i64,
    /// Events of this round.
    pub round_events: usize,
    pub last_tick_us: u64,
    pub last_sweep_us: u64,
}

/// Now, as TimestampTz counts.
pub fn timestamp() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    since.as_micros() as i64 - POSTGRES_EPOCH_US
}

impl Dispatcher {
    /// A number never used before, to tell users of a table's entry apart.
    pub fn serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }

    fn read_clock(&mut self) {
        self.now_us = self.started.elapsed().as_micros() as u64;
        self.now = timestamp();
        self.core.set_clock(Now {
            us: self.now_us,
            timestamp: self.now,
        });
    }

    pub fn look_at_settings(&mut self) {
        let generation = self.control.header.settings_generation.load(SeqCst);
        if generation != self.core.settings_generation() {
            self.settings_changed(generation);
        }
    }

    /// What has come, and what time has brought.
    pub fn round(&mut self, events: &[Event]) {
        self.read_clock();
        self.look_at_settings();
        self.round_events = events.len();
        for event in events {
            self.event(*event);
        }
        self.bury_dead();
        self.tick();
        self.tell(Happened::RoundEnds);
        self.tell(Happened::MakeRoom);
    }

    fn event(&mut self, event: Event) {
        let (data, events) = (event.u64, event.events);
        if data >> 32 != 0 {
            if self.only_begins(data, events) {
                return;
            }
            let hup = events & (epoll::RDHUP | epoll::HUP | epoll::ERR) != 0;
            self.tell(Happened::Spoke { id: data, hup });
            return;
        }
        let Some((source, number)) = source_of(data) else {
            return;
        };
        match source {
            Source::Listener => self.accept_clients(number),
            Source::ControlListener => self.accept_connections(),
            Source::Control => self.connection_event(number, events),
            Source::Login => self.login_event(number),
            Source::Opening => self.opening_event(number),
            Source::Queue => self.tell(Happened::QueueHasRoom(number)),
            Source::Postmaster => self.postmaster_gone(),
            Source::PidFile => self.pid_file_changed(),
            Source::Signals => self.signalled(),
            Source::Jobs => self.jobs_done(),
            Source::Errand => self.errand_event(number),
            Source::Wake => self.main_thread.woken(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_never_taken_for_sessions() {
        for source in SOURCES {
            let data = token(source, 0xff_ffff);
            assert_eq!(data >> 32, 0);
            assert_eq!(source_of(data), Some((source, 0xff_ffff)));
        }
        assert_eq!(source_of(0), None);
        assert_eq!(source_of(u64::from(u32::MAX)), None);
    }
}
