//! The scheduler (`crate::core`) at work: it is told what has happened, and what it
//! wants is done, by what sessions and backends have here.
//!
//! Nothing is decided here, and nothing is known of clients that have not logged
//! in, of who asks, or of the event loop. What it takes to serve sessions is owned
//! here; others have what is in this interface.
//!
//! | module | what it does |
//! |---|---|
//! | `carry_out` | each action of the core; reports to sessions; the scheduling log |
//! | `new_session` | from a client that may come in to a session, and its greeting |
//! | `attach` | backends are opened, attach, send messages, change contexts, and end |
//! | `views` | rows about sessions, backends and pools |
//!
//! This file has the scheduler itself, and takes over settings that have changed outside.

mod attach;
mod carry_out;
mod new_session;
mod views;

pub use attach::{Hello, Refusal};
pub use new_session::NewClient;
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
use super::sys::epoll::{self, ClientNumber, Epoll};
use super::sys::memory;
use crate::core::{
    index_of, Core, Ending, Event, Now, PoolLimits, PoolSettings, Roles, SessionId, Tally,
};
use anyhow::{Context as _, Result};
use attach::Pending;
use std::collections::HashMap;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

/// Fewer in a ready queue are soon taken: the kernel calls it writable at ten.
const QUEUED_MIN: usize = 16;
/// A new session begins with less than this, beside what it shares with others.
const CONTEXT_BYTES: usize = 4096;

/// The core, and what it takes to do what it wants.
pub struct Scheduler {
    /// Decides; all else here does.
    core: Core,
    now: Now,
    parameters: Arc<Parameters>,
    control: Control,
    contexts: Contexts,
    arena_fd: OwnedFd,
    arena_size: u64,
    /// control's, as of the last look.
    settings_generation: u64,
    settings_marks: Vec<u32>,
    /// So often what the configuration says to starting backends has changed.
    starts: u32,

    sockets: Sockets,
    begun: Begun,
    skippers: Skippers,
    greetings: Greetings,

    links: Links,
    queues: Queues,
    openings: Openings,

    /// What the launcher is to be asked.
    asks: Vec<AskLimits>,
    /// What those who hold databases are to be told.
    found: Vec<Found>,
    /// What backends have said that takes long, by slot.
    pending: HashMap<u32, Pending>,
    /// Backends, by slot, whose is done.
    heard_again: Vec<u32>,
    is_stopping: bool,
    /// Carried out since somebody asked.
    actions: usize,
    /// Backends of an earlier dispatcher, and native sessions.
    orphans: usize,
    natives: usize,
    /// Sessions begun since the start.
    begun_sessions: u64,
    /// Of these, ended because they kept backends idle.
    idle_ended: u64,
}

/// Counts since the start.
pub struct Counts {
    pub sessions: u64,
    pub assigned: u64,
    pub queued: u64,
    pub backends_started: u64,
}

impl Scheduler {
    /// `orphans`: how many backends serve sessions of an earlier dispatcher.
    pub fn new(
        parameters: Arc<Parameters>,
        control: Control,
        orphans: usize,
        number: Arc<ClientNumber>,
        epolls: &[Arc<Epoll>],
    ) -> Result<Scheduler> {
        let session_slots = control.sessions.len() as u32;
        let limit = parameters.session_memory();
        let arena_size = Arena::total_size(session_slots, limit);
        let (arena_fd, arena_memory) =
            memory::create(arena_size).context("could not create the session memory")?;
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
        // Before the marks, which are raised before it.
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
            sockets: Sockets::new(number, epolls.to_vec()),
            begun: Begun::new(control),
            skippers: Skippers::default(),
            greetings: Greetings::default(),
            links: Links::new(control),
            queues: Queues::new(control, Arc::clone(&main)),
            openings: Openings::new(control.backends.len(), main),
            asks: Vec::new(),
            found: Vec::new(),
            pending: HashMap::new(),
            heard_again: Vec::new(),
            is_stopping: false,
            actions: 0,
            orphans,
            natives: 0,
            begun_sessions: 0,
            idle_ended: 0,
        })
    }

    // ---- events ------------------------------------------------------------

    /// A round begins.
    pub fn set_clock(&mut self, now: Now) {
        self.now = now;
        self.core.set_clock(now);
    }

    /// Tells the core what has happened, and does what it wants.
    pub fn tell(&mut self, event: Event) {
        self.core.handle(event, &self.control);
        self.carry_out();
    }

    /// An event on a session's socket.
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

    /// A turn begins: sessions whose clients' bytes could not all be looked at in the last one.
    pub fn turn_begins(&mut self) {
        self.begun.turn_begins();
        while let Some((id, events)) = self.begun.take_later(&self.sockets) {
            self.session_event(id, events);
        }
    }

    /// In each tick.
    pub fn tick(&mut self) {
        for pool in self.queues.take_unsendable() {
            self.tell(Event::QueueHasRoom(pool));
        }
        for id in self.begun.tick(self.now.us, &self.sockets) {
            self.tell(Event::Ended(id, Ending::Cut));
        }
        self.tell(Event::Tick);
    }

    /// Once a second.
    pub fn sweep(&mut self) {
        let (core, control) = (&self.core, &self.control);
        let spares = |id| core.has_backend_to_spare(id, control);
        if let Some(id) = self.begun.sweep(self.now.us, &self.sockets, spares) {
            self.tell(Event::Ended(id, Ending::Cut));
        }
        self.links.poke_damaged();
        self.tell(Event::Sweep);
    }

    pub fn needs_ticks(&self) -> bool {
        self.queues.has_unsendable() || self.begun.needs_ticks() || self.core.needs_ticks()
    }

    /// Is there something to be done without anything having happened?
    pub fn has_more(&self) -> bool {
        self.core.has_more()
            || self.links.has_failed()
            || self.contexts.has_work()
            || self.begun.has_later()
    }

    /// The server, or this dispatcher, ends: sessions that nobody serves do so at
    /// once.
    pub fn stop(&mut self) {
        self.is_stopping = true;
        self.tell(Event::Stop);
    }

    /// The last thing before the end of the program.
    pub fn close_all(&mut self) {
        self.sockets.close_all();
    }

    // ---- questions ---------------------------------------------------------

    pub fn has_session(&self, id: SessionId) -> bool {
        self.core.sessions().get(id).is_some()
    }

    /// Most native sessions that there may be: all connections that the pool does not need,
    /// where sessions share backends.
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

    /// Of the server's, that the pool may still have.
    pub fn connections_left(&self) -> usize {
        let slots = self.control.backends.len();
        let ceiling = (self.parameters).backend_ceiling(slots, self.orphans + self.natives);
        ceiling.saturating_sub(self.core.backend_count())
    }

    pub fn backend_count(&self) -> usize {
        self.core.backend_count()
    }

    /// Are sessions being ended, some in each round?
    pub fn is_ending(&self) -> bool {
        self.core.is_ending()
    }

    /// Sessions by role and by database.
    pub fn session_tally(&self) -> &Tally {
        self.core.session_tally()
    }

    pub fn sessions_from(&self, origin: &Origin) -> usize {
        self.sockets.from(origin)
    }

    /// Sessions that wait, of all pools; estimated where these are very many.
    pub fn waiting(&self) -> usize {
        self.core.waiting(&self.control)
    }

    /// Shall a new session be native, as too many wait?
    pub fn too_many_wait(&mut self) -> bool {
        self.core.too_many_wait(&self.control)
    }

    /// Could a new session's context find no room?
    pub fn is_memory_full(&self) -> bool {
        let arena = &self.contexts.arena;
        arena.used() + CONTEXT_BYTES > arena.limit()
    }

    /// Could it find none within what this role's may take in this database?
    pub fn is_pool_memory_full(&self, group: (u32, u32)) -> bool {
        self.core.has_no_memory_for(group, CONTEXT_BYTES)
    }

    /// Bytes used, and how many there may be.
    pub fn memory(&self) -> (usize, usize) {
        (self.contexts.arena.used(), self.contexts.arena.limit())
    }

    /// Whose BackendKeyData says this.
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
        let index = self.control.slot_of_pid(pid);
        let id = index.and_then(|index| self.core.sessions().in_slot(index));
        id.is_some_and(|id| self.contexts.arena.record_cancel(index_of(id)).0 == pid)
    }

    /// Sockets of sessions closed since the start.
    pub fn closed_sockets(&self) -> u64 {
        self.sockets.closed()
    }

    pub fn counts(&self) -> Counts {
        Counts {
            sessions: self.begun_sessions,
            assigned: self.links.assigned(),
            queued: self.queues.queued(),
            backends_started: self.openings.begun(),
        }
    }

    /// The entries of the ready queues, if all that could be served now have
    /// enough in theirs (event_loop/mod.rs).
    pub fn saturated_queues(&self) -> Option<Vec<RawFd>> {
        let pools = self.core.saturated_pools(QUEUED_MIN, &self.control)?;
        Some(pools.iter().map(|pool| self.queues.entry(*pool)).collect())
    }
}

// ---- Settings -------------------------------------------------------------
//
// What has changed outside: parameters, settings of roles and databases, limits.

/// The launcher is to be asked: which limits has this role in this database?
pub struct AskLimits {
    pub role: u32,
    pub database: u32,
}

/// The sessions in a database that is held.
pub struct Found {
    /// The hold's.
    pub number: u32,
    pub roles: Roles,
}

/// Whose settings have changed; perhaps of some others, too.
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

    /// Those for all roles or all databases are under 0, InvalidOid.
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
    /// Have a role's or a database's settings changed?
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

    /// The configuration has been loaded anew.
    pub fn reconfigure(&mut self, parameters: Arc<Parameters>) {
        let before = std::mem::replace(&mut self.parameters, parameters);
        let now = Arc::clone(&self.parameters);
        if now.configuration_generation != before.configuration_generation {
            self.greetings.configuration_changed(self.now.us);
        }
        self.contexts.arena.set_limit(now.session_memory());
        if now.backend_start_settings != before.backend_start_settings {
            // Who comes from now on is served by backends that are started from now on.
            self.starts = self.starts.wrapping_add(1);
            self.greetings.forget_all();
        }
        self.follow_limits();
        // What is set for nobody in particular may have changed.
        self.ask_limits_again();
    }

    /// So many other connections of the server are there, or will be in a moment.
    pub fn others_are(&mut self, orphans: usize, natives: usize) {
        if (self.orphans, self.natives) != (orphans, natives) {
            (self.orphans, self.natives) = (orphans, natives);
            self.follow_limits();
        }
    }

    /// What the core goes by follows the configuration, and who else has
    /// connections of the server.
    fn follow_limits(&mut self) {
        let others = self.orphans + self.natives;
        let limits = (self.parameters).limits(self.control.backends.len(), others);
        self.core.set_limits(limits);
    }

    // ---- the launcher ------------------------------------------------------

    /// What has to be asked since the last time.
    pub fn take_asks(&mut self) -> Vec<AskLimits> {
        std::mem::take(&mut self.asks)
    }

    /// A new launcher, or a new configuration, says anew.
    pub fn ask_limits_again(&mut self) {
        self.core.ask_limits_again();
    }

    pub fn set_pool_limits(&mut self, group: (u32, u32), settings: PoolSettings) {
        (self.core).set_pool_limits(group, PoolLimits::of(settings.values));
        self.core.keep_settings(group, settings);
        self.carry_out();
    }

    // ---- holds on databases ------------------------------------------------

    /// Takes or confirms a hold on a database (database_lock.rs); `take_found` says who is
    /// there.
    pub fn hold(&mut self, number: u32, database: u32, forced: bool, own: SessionId) {
        (self.core).hold(number, database, forced, own, &self.control);
        self.carry_out();
    }

    pub fn take_found(&mut self) -> Vec<Found> {
        std::mem::take(&mut self.found)
    }
}
