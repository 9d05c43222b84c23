//! The scheduler around the core (`crate::core`): it tells the core what has happened, and
//! carries out the core's actions with the sessions and backends of this process.
//!
//! The scheduler decides nothing. It does not know of clients that have not logged in, of the
//! readers of views, or of the event loop. It owns everything that serves sessions; other
//! modules reach that through the functions here.
//!
//! | module | what it does |
//! |---|---|
//! | `carry_out` | each action of the core; reports to sessions; the scheduling log |
//! | `new_session` | from a client that may come in to a session, and its greeting |
//! | `attach` | backends are opened, attach, send messages, change contexts, and end |
//! | `views` | rows about sessions, backends and pools |
//! | `console_rows` | the same for the console, in PgBouncer's terms |
//!
//! This file has the scheduler itself, and takes over settings that change elsewhere.

pub mod adopt;
mod attach;
mod carry_out;
mod console_rows;
mod new_session;
mod views;

pub use attach::{Hello, Refusal};
pub use console_rows::{ConsoleFacts, Listing, Outside};
pub use new_session::{NewClient, TurnedAway};
pub use views::{Rows, View};

use super::backends::links::{Links, Queues};
use super::backends::opening::Openings;
use super::link::layout::settings_mark;
use super::link::memory::arena::Arena;
use super::link::memory::context::Contexts;
use super::link::memory::control::Control;
use super::parameters::Parameters;
use super::sessions::begun::{Begun, Heard, Skippers};
use super::sessions::greetings::Greetings;
use super::sessions::sockets::{Origin, Sockets};
use super::statistics::Statistics;
use super::sys::epoll::{self, ClientNumber, Epoll};
use super::sys::keeper::Ledger;
use super::sys::memory;
use crate::console::averages::Averages;
use crate::core::{
    index_of, Core, Ending, Event, GroupKey, Now, PauseState, PauseTerms, PoolLimits, PoolSettings,
    Roles, Scope, SessionId, Tally, TenantKey,
};
use anyhow::{Context as _, Result};
use attach::Pending;
use carry_out::scope_in_log;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;
use tracing::info;

/// A ready queue with fewer sessions is soon empty: the kernel calls it writable at ten.
const QUEUED_MIN: usize = 16;
/// An upper limit for what a new session needs beside the entries that it shares with others.
const CONTEXT_BYTES: usize = 4096;

/// The core, and all that its actions need.
pub struct Scheduler {
    /// Makes all decisions; the other fields serve to carry them out.
    core: Core,
    now: Now,
    parameters: Arc<Parameters>,
    control: Control,
    contexts: Contexts,
    arena_fd: OwnedFd,
    arena_size: u64,
    /// `settings_generation` of CONTROL at the last look.
    settings_generation: u64,
    settings_marks: Vec<u32>,
    /// How often the settings that only a starting backend takes have changed.
    starts: u32,

    sockets: Sockets,
    begun: Begun,
    skippers: Skippers,
    greetings: Greetings,

    links: Links,
    queues: Queues,
    openings: Openings,
    statistics: Statistics,
    averages: Averages,

    /// Questions for the launcher.
    asks: Vec<AskLimits>,
    /// Answers for the holders of databases.
    found: Vec<Found>,
    /// Answers for statements that pause, by the numbers of their connections.
    paused: Vec<(u32, PauseState)>,
    /// Messages of backends whose processing takes several rounds, by backend slot.
    pending: HashMap<u32, Pending>,
    /// Slots of backends whose message has been processed since the last call of
    /// `take_heard_again`.
    heard_again: Vec<u32>,
    is_stopping: bool,
    /// This process ends, and the sessions that outlive it do not.
    hands_back: bool,
    /// Actions carried out since the last call of `take_work`.
    actions: usize,
    /// Connections of the server that are not the pool's: backends of an earlier dispatcher,
    /// and native sessions.
    orphans: usize,
    natives: usize,
    /// Sessions begun since the start.
    begun_sessions: u64,
    /// Sessions ended since the start because they kept backends idle.
    idle_ended: u64,
}

/// Counts since the start of the dispatcher.
pub struct Counts {
    pub sessions: u64,
    pub assigned: u64,
    pub queued: u64,
    pub backends_started: u64,
}

impl Scheduler {
    /// `orphans`: the number of backends that serve sessions of an earlier dispatcher.
    pub fn new(
        parameters: Arc<Parameters>,
        control: Control,
        orphans: usize,
        number: Arc<ClientNumber>,
        epolls: &[Arc<Epoll>],
        ledger: Option<Ledger>,
    ) -> Result<Scheduler> {
        let session_slots = control.sessions.len() as u32;
        let limit = parameters.session_memory();
        let arena_size = Arena::total_size(session_slots, limit);
        let (arena_fd, arena_memory) =
            memory::create(arena_size).context("could not create the session memory")?;
        if let Some(ledger) = ledger {
            ledger.set_arena(arena_fd.as_raw_fd());
        }
        // Serials and versions of an earlier dispatcher are below these.
        let base = control.header.dispatcher_epoch.load(SeqCst) << 40;
        let arena = Arena::new(arena_memory, session_slots, limit, base);
        let core = Core::new(
            parameters.limits(control.backends.len(), orphans),
            session_slots,
            control.pools.len(),
            control.backends.len(),
            rand::random(),
            settings_mark,
            &control,
        );
        // Read before the marks, since a writer raises the marks first.
        let settings_generation = control.header.settings_generation.load(SeqCst);
        let main = Arc::clone(&epolls[0]);
        Ok(Scheduler {
            core,
            now: Now::default(),
            parameters,
            control,
            contexts: Contexts::new(arena, control, base),
            arena_fd,
            arena_size: arena_size as u64,
            settings_generation,
            starts: 0,
            settings_marks: control.header.read_settings_marks(),
            sockets: Sockets::new(number, epolls.to_vec(), ledger),
            begun: Begun::new(control),
            skippers: Skippers::default(),
            greetings: Greetings::default(),
            links: Links::new(control),
            queues: Queues::new(control, Arc::clone(&main)),
            openings: Openings::new(control.backends.len(), main),
            statistics: Statistics::new(),
            averages: Averages::default(),
            asks: Vec::new(),
            found: Vec::new(),
            paused: Vec::new(),
            pending: HashMap::new(),
            heard_again: Vec::new(),
            is_stopping: false,
            hands_back: false,
            actions: 0,
            orphans,
            natives: 0,
            begun_sessions: 0,
            idle_ended: 0,
        })
    }

    // ---- events ------------------------------------------------------------

    /// Sets the time of the round that begins.
    pub fn set_clock(&mut self, now: Now) {
        self.now = now;
        self.core.set_clock(now);
    }

    /// Tells the core what has happened, and carries out the actions that follow.
    pub fn tell(&mut self, event: Event) {
        self.core.handle(event, &self.control);
        self.carry_out();
    }

    /// Handles an event on a session's socket.
    pub fn session_event(&mut self, id: SessionId, events: u32) {
        let heard = if self.is_stopping {
            Heard::Speaks
        } else {
            let (core, control) = (&self.core, &self.control);
            let spares = |id| core.has_backend_to_spare(id, control);
            (self.begun).heard(id, events, self.now.us, &self.sockets, spares)
        };
        match heard {
            Heard::Begins => {}
            Heard::Broken => self.tell(Event::Ended(id, Ending::Cut)),
            Heard::Speaks => {
                let hup = events & (epoll::RDHUP | epoll::HUP | epoll::ERR) != 0;
                self.tell(Event::Spoke { id, hup });
            }
        }
    }

    /// A turn begins. Continues with the sessions for which the last turn had no bytes left.
    pub fn turn_begins(&mut self) {
        self.begun.turn_begins();
        while let Some((id, events)) = self.begun.take_later(&self.sockets) {
            self.session_event(id, events);
        }
        self.skippers.turn_begins();
        while let Some(id) = self.skippers.take_later() {
            self.skip_on(id);
        }
        self.carry_out();
    }

    /// Called in each tick.
    pub fn tick(&mut self) {
        for pool in self.queues.take_unsendable() {
            self.tell(Event::QueueHasRoom(pool));
        }
        for id in self.begun.tick(self.now.us, &self.sockets) {
            self.tell(Event::Ended(id, Ending::Cut));
        }
        self.tell(Event::Tick);
    }

    /// Called once a second.
    pub fn sweep(&mut self) {
        let (core, control) = (&self.core, &self.control);
        let spares = |id| core.has_backend_to_spare(id, control);
        if let Some(id) = self.begun.sweep(self.now.us, &self.sockets, spares) {
            self.tell(Event::Ended(id, Ending::Cut));
        }
        self.links.poke_damaged();
        // Any process of the server may have written these, and a backend would hold requests.
        for (tenant, is_paused) in self.core.paused_tenants() {
            let word = &self.control.tenants[tenant as usize].is_paused;
            if word.load(Relaxed) != u32::from(is_paused) {
                word.store(u32::from(is_paused), SeqCst);
            }
        }
        self.statistics.sweep(&self.control, self.now.us);
        self.mark_averages();
        self.tell(Event::Sweep);
    }

    pub fn needs_ticks(&self) -> bool {
        self.queues.has_unsendable() || self.begun.needs_ticks() || self.core.needs_ticks()
    }

    /// Is there work left that needs no event?
    pub fn has_more(&self) -> bool {
        self.core.has_more()
            || self.links.has_failed()
            || self.contexts.has_work()
            || self.begun.has_later()
            || self.skippers.has_later()
    }

    /// The server stops: sessions that no backend serves end at once, or are held for the next
    /// server.
    pub fn stop(&mut self, holds: bool) {
        self.is_stopping = true;
        self.tell(Event::Stop { holds });
    }

    /// This dispatcher ends, and another one follows. Sessions that no backend holds end if they
    /// cannot outlive this process; the keeper has the others.
    pub fn hand_back(&mut self) {
        self.hands_back = true;
        self.tell(Event::HandBack);
    }

    /// Closes all sockets of sessions before the process ends.
    pub fn close_all(&mut self) {
        self.sockets.close_all();
    }

    // ---- questions ---------------------------------------------------------

    pub fn has_session(&self, id: SessionId) -> bool {
        self.core.sessions().get(id).is_some()
    }

    /// The most native sessions that there may be. Where sessions share backends, that is all
    /// connections that the pool does not need.
    pub fn most_native(&self) -> usize {
        match self.parameters.enabled && self.live_sessions() > 0 {
            true => {
                let slots = self.control.backends.len();
                let ceiling = self.parameters.backend_ceiling(slots, self.orphans);
                self.core.most_native(ceiling)
            }
            false => usize::MAX,
        }
    }

    pub fn live_sessions(&self) -> usize {
        self.core.sessions().live()
    }

    /// The server's connections that the pool may still take.
    pub fn connections_left(&self) -> usize {
        let slots = self.control.backends.len();
        let ceiling = (self.parameters).backend_ceiling(slots, self.orphans + self.natives);
        ceiling.saturating_sub(self.core.backend_count())
    }

    pub fn backend_count(&self) -> usize {
        self.core.backend_count()
    }

    /// Is the dispatcher ending sessions, some in each round?
    pub fn is_ending(&self) -> bool {
        self.core.is_ending()
    }

    /// The numbers of sessions by role and by database.
    pub fn session_tally(&self) -> &Tally {
        self.core.session_tally()
    }

    pub fn sessions_from(&self, origin: &Origin) -> usize {
        self.sockets.from(origin)
    }

    /// The number of waiting sessions of all pools; an estimate where there are very many.
    pub fn waiting(&self) -> usize {
        self.core.waiting(&self.control)
    }

    /// Must a new session be native because too many wait?
    pub fn too_many_wait(&mut self) -> bool {
        self.core.too_many_wait(&self.control)
    }

    /// Could the ARENA lack room for a new session's context?
    pub fn is_memory_full(&self) -> bool {
        let arena = &self.contexts.arena;
        arena.used() + CONTEXT_BYTES > arena.limit()
    }

    /// Could the memory limit of this role in this database leave no room for a new session's
    /// context?
    pub fn is_pool_memory_full(&self, group: (u32, u32)) -> bool {
        self.core.has_no_memory_for(group, CONTEXT_BYTES)
    }

    /// Bytes in use, and their limit.
    pub fn memory(&self) -> (usize, usize) {
        (self.contexts.arena.used(), self.contexts.arena.limit())
    }

    /// The session whose BackendKeyData has this process ID and key.
    pub fn session_of_key(&self, pid: i32, key: &[u8]) -> Option<SessionId> {
        let index = self.control.slot_of_pid(pid)?;
        let id = self.core.sessions().in_slot(index)?;
        let (its_pid, its_key) = self.contexts.arena.record_cancel(index);
        let is_its =
            its_pid == pid && its_key.len() == key.len() && openssl::memcmp::eq(its_key, key);
        is_its.then_some(id)
    }

    /// Has a session this process ID?
    pub fn has_pid(&self, pid: i32) -> bool {
        self.session_of_pid(pid).is_some()
    }

    /// Sockets of sessions closed since the start.
    pub fn closed_sockets(&self) -> u64 {
        self.sockets.closed()
    }

    /// A client wants the session's query cancelled.
    pub fn count_cancel(&mut self, id: SessionId) {
        self.count(id, |own| own.cancels += 1);
    }

    /// A login was refused; None: its role or database does not exist, or is not known.
    pub fn login_refused(&mut self, group: Option<GroupKey>, sqlstate: &[u8]) {
        self.statistics.refused(group, sqlstate);
    }

    /// All counts begin anew at this time.
    pub fn reset_statistics(&mut self, timestamp: i64) {
        self.statistics.reset(&self.control, timestamp);
    }

    pub fn counts(&self) -> Counts {
        Counts {
            sessions: self.begun_sessions,
            assigned: self.links.assigned(),
            queued: self.queues.queued(),
            backends_started: self.openings.begun(),
        }
    }

    /// The write ends of the ready queues, if every pool that could serve a session now has
    /// enough sessions in its queue (event_loop/mod.rs).
    pub fn saturated_queues(&self) -> Option<Vec<RawFd>> {
        let pools = self.core.saturated_pools(QUEUED_MIN, &self.control)?;
        Some(pools.iter().map(|pool| self.queues.entry(*pool)).collect())
    }
}

// ---- Settings -------------------------------------------------------------
//
// Takes over what has changed elsewhere: parameters, settings of roles and databases, limits.

/// A question for the launcher: the limits of this role in this database.
pub struct AskLimits {
    pub role: u32,
    pub database: u32,
}

/// The sessions found in a held database.
pub struct Found {
    /// The number of the hold.
    pub number: u32,
    pub roles: Roles,
}

/// The roles and databases whose settings have changed. Marks are shared, so it may name some
/// others, too.
pub struct Changed {
    before: Vec<u32>,
    now: Vec<u32>,
}

impl Changed {
    fn marks(&self) -> Vec<usize> {
        let marks = self.before.iter().zip(&self.now).enumerate();
        let changed = marks.filter(|(_, (before, now))| before != now);
        changed.map(|(mark, _)| mark).collect()
    }

    /// Settings for all roles or all databases are under 0, InvalidOid.
    pub fn concerns(&self, role: u32, database: u32) -> bool {
        [0, database].iter().any(|database| {
            [0, role].iter().any(|role| {
                let mark = settings_mark(*database, *role);
                self.now[mark] != self.before[mark]
            })
        })
    }
}

impl Scheduler {
    /// Have the settings of a role or a database changed? Takes the changes over.
    pub fn look_at_settings(&mut self) -> Option<Changed> {
        let generation = self.control.header.settings_generation.load(SeqCst);
        if generation == self.settings_generation {
            return None;
        }
        self.settings_generation = generation;
        let now = self.control.header.read_settings_marks();
        let before = std::mem::replace(&mut self.settings_marks, now.clone());
        let changed = Changed { before, now };
        self.core.settings_changed(&changed.marks());
        Some(changed)
    }

    pub fn settings_generation(&self) -> u64 {
        self.settings_generation
    }

    /// Takes over a newly loaded configuration.
    pub fn reconfigure(&mut self, parameters: Arc<Parameters>) {
        let before = std::mem::replace(&mut self.parameters, parameters);
        let now = Arc::clone(&self.parameters);
        if now.configuration_generation != before.configuration_generation {
            self.greetings.configuration_changed(self.now.us);
        }
        self.contexts.arena.set_limit(now.session_memory());
        if now.backend_start_settings != before.backend_start_settings {
            // Sessions that begin from now on are served by backends that start from now on.
            self.starts = self.starts.wrapping_add(1);
            self.greetings.forget_all();
        }
        self.follow_limits();
        // Settings that apply to all roles and databases may have changed.
        self.ask_limits_again();
    }

    /// The numbers of other connections of the server, including those that will exist in a
    /// moment.
    pub fn others_are(&mut self, orphans: usize, natives: usize) {
        if (self.orphans, self.natives) != (orphans, natives) {
            (self.orphans, self.natives) = (orphans, natives);
            self.follow_limits();
        }
    }

    /// Gives the core its limits. They depend on the configuration and on the server's other
    /// connections.
    fn follow_limits(&mut self) {
        let others = self.orphans + self.natives;
        let limits = (self.parameters).limits(self.control.backends.len(), others);
        self.core.set_limits(limits);
    }

    // ---- the launcher ------------------------------------------------------

    /// The questions for the launcher since the last call.
    pub fn take_asks(&mut self) -> Vec<AskLimits> {
        std::mem::take(&mut self.asks)
    }

    /// The core asks for all limits again, as there is a new launcher or a new configuration.
    pub fn ask_limits_again(&mut self) {
        self.core.ask_limits_again();
    }

    pub fn set_pool_limits(&mut self, group: (u32, u32), settings: PoolSettings) {
        (self.core).set_pool_limits(group, PoolLimits::of(settings.values));
        self.core.keep_settings(group, settings);
        self.carry_out();
    }

    // ---- holds on databases ------------------------------------------------

    /// Takes or confirms a hold on a database (database_lock.rs). `take_found` returns the sessions
    /// that are in it.
    pub fn hold(&mut self, number: u32, database: u32, forced: bool, own: SessionId) {
        (self.core).hold(number, database, forced, own, &self.control);
        self.carry_out();
    }

    pub fn take_found(&mut self) -> Vec<Found> {
        std::mem::take(&mut self.found)
    }

    // ---- pauses ------------------------------------------------------------

    /// A statement pauses sessions (core/pause.rs). `take_paused` returns the answers.
    pub fn pause(&mut self, number: u32, terms: PauseTerms) {
        info!("a pause begins: {}", scope_in_log(terms.scope));
        self.core.pause(number, terms);
        self.carry_out();
    }

    /// The statement asks again what is in the way.
    pub fn ask_pause(&mut self, number: u32) {
        self.core.ask_pause(number);
        self.carry_out();
    }

    /// Ends the pauses of this scope; returns their number.
    pub fn resume(&mut self, scope: Scope) -> usize {
        info!("sessions are resumed: {}", scope_in_log(scope));
        let ended = self.core.resume(scope);
        self.carry_out();
        ended
    }

    /// The console's RECONNECT: of one database, or of all.
    pub fn reconnect(&mut self, database_oid: Option<u32>) {
        self.core.reconnect(database_oid);
    }

    /// Has a database (None: any) backends that are to leave?
    pub fn has_leaving_backends(&self, database_oid: Option<u32>) -> bool {
        let mut slots = 0..self.control.backends.len() as u32;
        let is_in = |slot: u32| {
            let backend = self.core.backend(slot);
            let key = backend.and_then(|backend| self.core.pool_key(backend.pool()));
            key.is_some_and(|key| database_oid.is_none_or(|oid| oid == key.database_oid))
        };
        slots.any(|slot| is_in(slot) && self.core.is_to_leave(slot))
    }

    /// Ends the sessions among the next `most` slots that are in this database; None: in any.
    /// Returns how many slots were looked at, 0 at the end.
    pub fn terminate_some(&mut self, database: Option<u32>, next: &mut u32, most: u32) -> u32 {
        let end = self.core.sessions().slots_used();
        let to = end.min(next.saturating_add(most));
        let slots = *next..to;
        *next = to;
        for index in slots.clone() {
            let id = self.core.sessions().in_slot(index);
            let key = id.and_then(|id| self.core.key_of(id));
            let is_in = |key: &TenantKey| database.is_none_or(|oid| oid == key.database_oid);
            if let Some(id) = id.filter(|_| key.is_some_and(|key| is_in(key))) {
                self.terminate(id);
            }
        }
        slots.len() as u32
    }

    /// Ends a session as pg_terminate_backend() does: a backend that has the session, or takes it
    /// later, looks at its identity.
    pub fn terminate(&mut self, id: SessionId) {
        let identity = &self.control.identities[index_of(id) as usize];
        identity.terminate.store(id, SeqCst);
        self.tell(Event::Terminate(id));
    }

    /// The session that shows this process ID.
    pub fn session_of_pid(&self, pid: i32) -> Option<SessionId> {
        let index = self.control.slot_of_pid(pid)?;
        let id = self.core.sessions().in_slot(index)?;
        (self.contexts.arena.record_cancel(index).0 == pid).then_some(id)
    }

    pub fn take_paused(&mut self) -> Vec<(u32, PauseState)> {
        std::mem::take(&mut self.paused)
    }
}
