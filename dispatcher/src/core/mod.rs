//! The scheduler: it decides which session is served by which backend, and how many backends each
//! pool has. docs/design/scheduler.md has its states, promises and bounds.
//!
//! The core is free of I/O: it has no descriptor, no atomic, no system call, no clock and no
//! randomness of its own. Its driver is the dispatcher's shell or the simulator. The driver tells
//! the core what has happened ([`Core::handle`]) and shows it the words that backends write
//! ([`Words`]). It carries out every action ([`Core::next_action`]) before it tells the next event.
//! A race that is lost outside comes back as an event.
//!
//! | module | what it owns and decides |
//! |---|---|
//! | `event`, `words` | events and actions; the words that backends write |
//! | `sessions` | where a session is; in which order sessions wait; whose turn it is |
//! | `requests` | what becomes of a session; new sessions; which backend may speak of a session |
//! | `backends` | what a backend is; how many there are |
//! | `lifecycle` | a backend attaches, fails to start, leaves; what the log says of it |
//! | `pools` | which pools there are; a pool's ready queue, starts and steals |
//! | `tenants` | a role's sessions in a pool; how many a role has |
//! | `limits` | limits and memory of a role in a database |
//! | `pause` | sessions of a database or a role that get no backend for a time |
//! | `served` | how many of a role's sessions are being served, where that is limited |
//! | `dispatch` | which session gets which backend; which pools want a backend |
//! | `sizing` | how many backends there may be, and how many a pool starts now |
//! | `reclaim` | which backend makes room for another pool |
//! | `stall` | backends without progress, for which others start; clients that keep one idle |
//! | `dedicated` | sessions that keep their backends |
//! | `database_lock` | databases that a statement wants for itself |
//! | `reap` | what a backend that ended had; what is checked once a second |
//! | `shutdown` | the end of all sessions, or of those of one database |
//! | `scan` | long scans that are cut into slices, and the jobs of a round's end |
//! | `tables` | tables of things with a number and a key; sets of numbers |

/// Asserts an invariant: in the simulator, in tests and in debug builds.
macro_rules! ensure {
    ($($condition:tt)*) => {
        if cfg!(any(test, debug_assertions)) {
            assert!($($condition)*);
        }
    };
}

mod backends;
mod database_lock;
mod dedicated;
mod dispatch;
mod event;
mod lifecycle;
mod limits;
mod pause;
mod pools;
mod reap;
mod reclaim;
mod requests;
mod scan;
mod served;
mod sessions;
mod shutdown;
#[cfg(test)]
mod simulator;
mod sizing;
mod stall;
mod tables;
mod tenants;
mod words;

pub use backends::Backend;
use backends::Backends;
use database_lock::Hold;
pub use database_lock::Roles;
use dedicated::{Evicted, Waking};
use dispatch::{Round, Wants};
pub use event::GroupKey;
pub use event::{
    index_of, Action, Ending, Event, Leaving, Look, Says, SessionId, Skipped, Then, Why,
};
#[cfg(test)]
pub use lifecycle::Reason;
use lifecycle::Ungreeted;
pub use lifecycle::{Attach, Identity, PoolChange};
use limits::Groups;
pub use limits::{MarkOf, PoolLimits, PoolMode, PoolSettings};
use pause::Pauses;
pub use pause::{PauseState, PauseTerms, Scope, ShownPause};
pub use pools::PoolKey;
use pools::Pools;
use reap::{Burials, Sweep};
use reclaim::{ReplacementCost, Room};
use requests::Crowd;
pub use requests::{NoSession, Ownership, Tells};
pub use sessions::Need;
use sessions::Sessions;
use shutdown::Endings;
pub use sizing::may_take;
use sizing::Places;
pub use stall::ClientOwes;
use stall::Stall;
use std::collections::{BTreeMap, VecDeque};
use tables::{PoolSet, Table};
use tenants::Tenant;
pub use tenants::{StartsAs, Tally, TenantKey};
pub use words::{Shown, Word, Words};

/// A moment, read once for all events of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Microseconds of the monotonic clock.
    pub us: u64,
    /// As TimestampTz; the administrator may set this clock back or forward.
    pub timestamp: i64,
    /// Microseconds of the monotonic clock as the server's processes read it.
    pub shared_us: i64,
}

impl Now {
    /// Microseconds since a moment that a process of the server has written. That process may have
    /// written any value.
    pub fn passed_us(self, since: i64) -> i64 {
        self.shared_us.saturating_sub(since)
    }

    /// Such a moment as TimestampTz.
    pub fn timestamp_of(self, since: i64) -> i64 {
        self.timestamp.saturating_sub(self.passed_us(since))
    }
}

/// The limits of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub max_backends: usize,
    pub min_backends: usize,
    /// A pool below this number of backends gets one more if its sessions often take each other's.
    pub backends_for_steals: usize,
    /// None: what the other limits leave.
    pub max_dedicated: Option<usize>,
    /// In a stall, beyond max_backends. None: what the other limits leave.
    pub max_extra: Option<usize>,
    /// 0: no timeout.
    pub extra_idle_timeout_us: u64,
    /// Up to this number of sessions, each session keeps a backend of its own.
    pub sharing_threshold: usize,
    /// Beyond the ceiling, for pools of superusers that have next to no backend.
    pub for_superusers: usize,
    /// The most backends that the server's connections leave room for. Orphaned backends count too,
    /// but they must not keep a new dispatcher from serving its clients.
    pub ceiling: usize,
    /// 0: no timeout.
    pub session_wait_timeout_us: u64,
    /// 0: no timeout.
    pub backend_idle_timeout_us: i64,
    /// 0: no limit.
    pub backend_lifetime_us: u64,
    /// If this number of sessions wait, new sessions are native. 0: never.
    pub native_when_waiting: usize,
    pub force_migration: bool,
}

pub struct Core {
    now: Now,
    limits: Limits,
    sessions: Sessions,
    backends: Backends,
    pools: Pools,
    tenants: Table<Tenant>,
    /// Tenants that have no session.
    unused_tenants: PoolSet,
    /// Which unused tenant is dropped next when the table is full.
    unused_tenants_from: u32,
    /// Pools that have neither a tenant nor a backend.
    unused: PoolSet,
    /// Which unused pool is dropped next when the table is full.
    unused_from: u32,
    /// Limits of a role in a database.
    groups: Groups,
    /// Groups that have more memory left than before: backends that want memory are woken.
    memory_to_wake: BTreeMap<GroupKey, u8>,
    session_tally: Tally,
    /// Pools in which a session may wait.
    in_want: PoolSet,
    /// Pools to serve when the round ends.
    dirty: PoolSet,
    round: Round,
    room: Room,
    replacing: ReplacementCost,
    stall: Stall,
    /// Sessions that waited and have got a backend, so far.
    handed_out: u64,
    /// The first backend to be measured in the next tick.
    next_measured: u32,
    evicted: Option<Evicted>,
    /// Databases that statements want for themselves.
    holds: Vec<Hold>,
    pauses: Pauses,
    /// There are so few sessions that all of them keep their backends.
    are_few: bool,
    waking: Waking,
    crowd: Crowd,
    stopping: bool,
    /// While stopping: sessions are held for the next server.
    leaves_sessions: bool,
    wants: Wants,
    /// Pools in which sessions have waited too long.
    expiring: PoolSet,
    /// Sessions whose clients no backend will greet.
    ungreeted: VecDeque<Ungreeted>,
    sweeping: Sweep,
    burials: Burials,
    endings: Endings,
    actions: VecDeque<Action>,
}

impl Core {
    /// `first_generation`: any number that differs between dispatchers. `mark_of`: which mark
    /// announces a change of settings.
    pub fn new(
        limits: Limits,
        session_slots: u32,
        pools: usize,
        backend_slots: usize,
        first_generation: u32,
        mark_of: MarkOf,
        words: &impl Words,
    ) -> Core {
        Core {
            now: Now::default(),
            limits,
            sessions: Sessions::new(session_slots, pools, first_generation),
            backends: Backends::new(backend_slots, |slot| words.slot_is_free(slot)),
            pools: Pools::new(pools),
            tenants: Table::new(pools),
            unused_tenants: PoolSet::new(pools),
            unused_tenants_from: 0,
            unused: PoolSet::new(pools),
            unused_from: 0,
            groups: Groups::new(pools, mark_of),
            memory_to_wake: BTreeMap::new(),
            session_tally: Tally::default(),
            in_want: PoolSet::new(pools),
            dirty: PoolSet::new(pools),
            round: Round::default(),
            room: Room::default(),
            replacing: ReplacementCost::default(),
            stall: Stall::default(),
            handed_out: 0,
            next_measured: 0,
            evicted: None,
            holds: Vec::new(),
            pauses: Pauses::default(),
            are_few: false,
            waking: Waking::new(pools),
            crowd: Crowd::default(),
            stopping: false,
            leaves_sessions: false,
            wants: Wants::default(),
            expiring: PoolSet::new(pools),
            ungreeted: VecDeque::new(),
            sweeping: Sweep::default(),
            burials: Burials::default(),
            endings: Endings::default(),
            actions: VecDeque::new(),
        }
    }

    /// Begins a round.
    pub fn set_clock(&mut self, now: Now) {
        self.now = now;
    }

    /// The next action to carry out.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn then(&mut self, then: Then) {
        self.act(Action::Then(then));
    }

    /// Takes one event.
    pub fn handle(&mut self, event: Event, words: &impl Words) {
        match event {
            Event::Spoke { id, hup } => self.spoke(id, hup, words),
            Event::Said { id, look, says } => self.said(id, look, says, words),
            Event::ToGreet(id) => self.wait_for_greeting(id, words),
            Event::Greeted(id) => self.greeted(id),
            Event::GivenBack(id) => self.given_back(id, words),
            Event::Stored { id, grown } => self.stored(id, grown),
            Event::Ended(id, ending) => self.end(id, Why::Ended(ending)),
            Event::Skipped(id) => self.skipped(id),
            Event::Cancel(id) => self.cancel(id, words),
            Event::Terminate(id) => self.terminate(id, words),

            Event::Claimed => {
                self.handed_out += 1;
                self.go_on(words);
            }
            Event::Queued => self.go_on(words),
            Event::ClaimLost(id) => self.claim_lost(id, words),
            Event::NotSent { pool, id, to_queue } => self.not_sent(pool, id, to_queue, words),
            Event::QueueFull { pool, id } => self.queue_full(pool, id, words),
            Event::QueueHasRoom(pool) => self.queue_has_room(pool),
            Event::QueueIsLow(pool) => self.mark_dirty(pool),
            Event::TakenBack(id) => self.taken_back(id),
            Event::QueueDrained(pool) => self.queue_drained(pool),

            Event::Attached(slot) => self.attached(slot),
            Event::BackendGone(slot) => self.backend_gone(slot),
            Event::Dedicated(slot, dedicated) => self.told_dedicated(slot, dedicated, words),
            Event::MayBeFree(slot) => self.may_be_free(slot, words),
            Event::Leaves { slot, cause } => self.leaves(slot, cause, words),
            Event::SlotFreed(slot) => self.backends.release(slot),
            Event::TicketBack(is_ours) => self.ticket_back(is_ours, words),
            Event::Measured {
                slot,
                transactions,
                cpu_us,
                is_unread,
            } => self.measured(slot, transactions, cpu_us, is_unread, words),

            Event::HoldEnded(number) => self.hold_ended(number, words),
            Event::PauseAskerGone(number) => self.asker_gone(number),

            Event::Tick => self.tick(words),
            Event::Sweep => self.sweep(words),
            Event::RoundEnds => self.round_ends(words),
            Event::MakeRoom => self.make_room(words),
            Event::Stop { holds } => self.stop(holds),
            Event::Abandon => self.abandon(words),
            Event::HandBack => self.hand_back(),
            Event::Then(then) => self.go_on_with(then, words),
        }
    }

    fn go_on_with(&mut self, then: Then, words: &impl Words) {
        match then {
            Then::Cancel(id) => self.cancel_located(id, words),
            Then::Terminate(id) => self.terminate_located(id, words),
            Then::EndUngreeted(pool) => self.end_ungreeted(pool),
            Then::Expire(pool) => self.expiring.insert(pool),
            Then::LeaveUngreeted(id) => self.leave_ungreeted(id),
            Then::Bury { slot, is_last } => self.bury(slot, is_last, words),
            Then::EndSessions => self.end_sessions(words),
            Then::EndHeldHere => self.end_held_here(words),
        }
    }

    fn tick(&mut self, words: &impl Words) {
        self.end_forgotten_pauses();
        self.note_roles(words);
        self.look_at_waiting(words);
        self.look_for_held(words);
        self.look_for_missing_again(words);
        self.evict_excess(words);
        self.end_idle_client(words);
        self.room.look_again();
        if self.ends_sessions() {
            self.end_given_back(words);
        }
    }

    // ---- questions from outside -------------------------------------------

    /// Is there work whose time limit is in milliseconds?
    pub fn needs_ticks(&self) -> bool {
        self.stopping
            || self.room.is_offered()
            || !self.in_want.is_empty()
            || self.backends.held() > 0
            || self.burials.are_some_missing()
            || self.pauses.need_ticks()
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub fn backend(&self, slot: u32) -> Option<&Backend> {
        self.backends.get(slot)
    }

    /// Of all pools, starting backends included.
    pub fn backend_count(&self) -> usize {
        self.backends.total()
    }

    /// How many native sessions there may be if only they and the pool used these connections.
    pub fn most_native(&self, ceiling: usize) -> usize {
        let places = self.places(0);
        Places { ceiling, ..places }.most_native()
    }

    /// The configuration has been loaded anew.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.mark_waiting_in_any_case();
        self.look_at_threshold();
    }
}
