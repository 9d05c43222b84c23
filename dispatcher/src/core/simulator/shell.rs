//! The dispatcher without system calls, on the simulated world: it tells the core the events, and
//! carry_out.rs carries out the actions.

use super::event_times::EventTimes;
use super::pauses::Pauses;
use super::process::{FromBackend, Process};
use super::random::Random;
use super::served::Served;
use super::settings::mark_of;
use super::told::Told;
use super::turns::Turns;
use super::world::{Armed, World, QUEUE_HOLDS};
use crate::core::{Attach, Core, Ending, Event, Identity, Leaving, Limits, SessionId};
use std::collections::{BTreeSet, VecDeque};

/// Reading a word takes some nanoseconds, an action takes some microseconds.
const WORDS_A_TURN: u64 = 20_000;
const WORDS_AN_EVENT: u64 = 2_048;
const ACTIONS_A_TURN: u64 = 600;
const ACTIONS_AN_EVENT: u64 = 8;

/// A backend that is being opened: when it attaches, or fails.
pub struct Opening {
    pub slot: u32,
    pub pool: u32,
    pub at_us: u64,
    /// It was opened after this change (settings.rs).
    pub change: u64,
}

pub struct Shell {
    pub core: Core,
    pub world: World,
    pub processes: Vec<Option<Process>>,
    pub openings: Vec<Opening>,
    /// Questions to the launcher.
    pub asked_limits: Vec<(u32, u32)>,
    pub random: Random,
    /// Sessions whose request is skipped.
    pub skipping: Vec<SessionId>,
    /// Pools whose queue was full: an event reports when it is not.
    pub full: Vec<u32>,
    /// Sometimes no descriptor can be sent; and how many were sent.
    pub is_short: bool,
    pub sent: u64,
    /// Starts take up to this time.
    pub start_us: u64,
    /// The longest wait when the last tick came.
    pub waited_us: u64,
    /// Backends that were to be opened.
    pub opened: u64,
    /// Backends that ended as a session needed a later one.
    pub outdated: u64,
    /// Ended clients that kept a backend idle.
    pub idle_ended: u64,
    /// Waits that have ended because they reached their limit.
    pub waits_ended: u64,
    pub claims_lost: u64,
    pub queue_was_full: u64,
    pub told: Told,
    pub woken_for_memory: u64,
    /// For the log of a failed seed.
    pub log: VecDeque<String>,
    pub logs: bool,
    /// The most looks at pools' words for one event.
    pub most_looks: u64,
    /// Sometimes a backend does not start at all; and how often that was.
    pub are_some_lost: bool,
    pub given_up: u64,
    /// Holds whose holders wait to be told which sessions are there.
    pub unanswered: BTreeSet<u32>,
    /// Sessions that they have been told of.
    pub found: u32,
    pub costs: EventTimes,
    pub turns: Turns,
    pub served: Served,
    pub pauses: Pauses,
}

impl Shell {
    /// `sizes`: sessions, pools, backends.
    pub fn new(seed: u64, limits: Limits, sizes: (usize, usize, usize), random: Random) -> Shell {
        let (sessions, pools, backends) = sizes;
        let mut world = World::new(sessions, pools, backends);
        world.force_migration = limits.force_migration;
        Shell {
            core: Core::new(
                limits,
                sessions as u32,
                pools,
                backends,
                seed as u32,
                mark_of,
                &world,
            ),
            world,
            processes: (0..backends).map(|_| None).collect(),
            openings: Vec::new(),
            asked_limits: Vec::new(),
            random,
            skipping: Vec::new(),
            full: Vec::new(),
            is_short: false,
            sent: 0,
            start_us: 4_000,
            waited_us: 0,
            opened: 0,
            outdated: 0,
            idle_ended: 0,
            waits_ended: 0,
            claims_lost: 0,
            queue_was_full: 0,
            told: Told::default(),
            woken_for_memory: 0,
            log: VecDeque::new(),
            logs: false,
            most_looks: 0,
            are_some_lost: false,
            given_up: 0,
            unanswered: BTreeSet::new(),
            found: 0,
            costs: EventTimes::default(),
            turns: Turns::default(),
            served: Served::default(),
            pauses: Pauses::default(),
        }
    }

    pub fn tell(&mut self, event: Event) {
        if !matches!(event, Event::RoundEnds | Event::MakeRoom | Event::Tick) {
            self.note(|| format!("{event:?}"));
        }
        let before = self.world.looks.get();
        self.costs.handle(&mut self.core, event, &self.world);
        self.carry_out();
        if event == Event::MakeRoom {
            self.turn_ends();
        }
        let looks = self.world.looks.get() - before;
        self.most_looks = self.most_looks.max(looks);
    }

    /// However many sessions, pools and backends exist, a turn does only the work of its events,
    /// and a slice of each running job.
    fn turn_ends(&mut self) {
        let (events, words, actions) = self.costs.turn_ends();
        // Forced migration compares a session with each backend; it is for tests only.
        if self.core.is_migration_forced() {
            return;
        }
        assert!(
            words <= WORDS_A_TURN + WORDS_AN_EVENT * events,
            "{words} words were read in a turn of {events} events"
        );
        assert!(
            actions <= ACTIONS_A_TURN + ACTIONS_AN_EVENT * events,
            "{actions} actions in a turn of {events} events"
        );
    }

    pub fn note(&mut self, text: impl Fn() -> String) {
        if self.logs {
            if self.log.len() == 400 {
                self.log.pop_front();
            }
            self.log.push_back(text());
        }
    }

    /// Lets random backends go on a little.
    pub fn step_backends(&mut self, steps: usize) {
        for _ in 0..steps {
            let slot = self.random.below(self.processes.len());
            if let Some(process) = self.processes[slot].as_mut() {
                process.step(&mut self.world, &mut self.random);
            }
        }
    }

    /// Queues that were full and have room again by the kernel's definition.
    pub fn queues_with_room(&mut self) {
        for at in (0..self.full.len()).rev() {
            let pool = self.full[at];
            if self.world.pools[pool as usize].queue.len() <= QUEUE_HOLDS / 4 {
                self.full.swap_remove(at);
                self.tell(Event::QueueHasRoom(pool));
            }
        }
    }

    /// Reads what a backend has sent; its end is told when the round ends.
    pub fn read_backend(&mut self, slot: u32, most: usize) {
        for _ in 0..most {
            let Some(process) = self.processes[slot as usize].as_mut() else {
                return;
            };
            let Some(message) = process.outbox.front().copied() else {
                return;
            };
            if message == FromBackend::Closed {
                return;
            }
            process.outbox.pop_front();
            self.note(|| format!("  {slot} says {message:?}"));
            self.check_is_believed(slot, message);
            match message {
                FromBackend::Release(id) => {
                    self.tell(Event::MayBeFree(slot));
                    if id != 0 {
                        self.store(id);
                        self.tell(Event::GivenBack(id));
                    }
                }
                FromBackend::Greeted(id) => {
                    self.store(id);
                    self.tell(Event::Greeted(id));
                }
                FromBackend::End(id, left) => {
                    let ending = if left { Ending::Left } else { Ending::Cut };
                    self.tell(Event::Ended(id, ending));
                    self.tell(Event::MayBeFree(slot));
                }
                FromBackend::Dedicated(dedicated) => self.tell(Event::Dedicated(slot, dedicated)),
                FromBackend::Retiring => {
                    let before = self.core.makes_room(slot);
                    let cause = Leaving::Asked;
                    self.tell(Event::Leaves { slot, cause });
                    let makes_room = self.core.makes_room(slot).filter(|_| before.is_none());
                    if let Some(pool) = makes_room {
                        self.turns.is_made_for(&self.core, pool, &self.world);
                    }
                    let process = self.processes[slot as usize].as_ref();
                    assert!(
                        self.core.makes_room(slot) == before
                            || process.is_some_and(Process::has_ticket),
                        "backend {slot} goes for a pool, and has taken no ticket"
                    );
                }
                FromBackend::Outdated => {
                    let cause = Leaving::Outdated;
                    self.outdated += 1;
                    self.tell(Event::Leaves { slot, cause });
                }
                FromBackend::Closed => {}
            }
        }
    }

    /// The session's context has changed.
    fn store(&mut self, id: SessionId) {
        let stored = self.core.sessions().get(id);
        let stored = stored.map_or(0, |session| session.context_bytes());
        let bytes = (self.world.now_us.wrapping_mul(0x9E37_79B1) >> 8) % 4000;
        let grown = bytes as i64 - stored;
        if let Some(client) = self.world.client(id) {
            client.context_bytes = bytes as i64;
        }
        self.tell(Event::Stored { id, grown });
    }

    /// A backend has logged in.
    pub fn attach(&mut self, slot: u32, pool: u32) {
        let of_slot = self.openings.iter().find(|opening| opening.slot == slot);
        let change = of_slot.map_or(0, |opening| opening.change);
        self.openings.retain(|opening| opening.slot != slot);
        let key = self
            .core
            .pool_key(pool)
            .expect("a pool with a backend is there");
        let identity = Identity {
            role_oid: key.role_oid.unwrap_or(0),
            database_oid: key.database_oid,
        };
        let verdict = self.core.may_attach(slot, identity, &self.world);
        assert_eq!(verdict, Attach::Welcome(pool));
        self.processes[slot as usize] = Some(Process::new(slot, pool, change, &mut self.world));
        self.tell(Event::Attached(slot));
    }

    /// Delivers some events of sockets and frames of backends, in any order.
    pub fn deliver(&mut self, most: usize) {
        let mut sources: Vec<usize> = Vec::new();
        let clients = self.world.clients.len();
        sources.extend((0..clients).filter(|at| self.world.event_of(*at).is_some()));
        let frames = |process: &Option<Process>| {
            let front = process.as_ref().and_then(|process| process.outbox.front());
            front.is_some_and(|frame| *frame != FromBackend::Closed)
                && !process.as_ref().is_some_and(Process::is_alone)
        };
        let slots = 0..self.processes.len();
        sources.extend(
            slots
                .filter(|slot| frames(&self.processes[*slot]))
                .map(|slot| clients + slot),
        );
        for _ in 0..most.min(sources.len()) {
            let at = self.random.below(sources.len());
            let source = sources.swap_remove(at);
            if source >= clients {
                let count = self.random.below(4) + 1;
                self.read_backend((source - clients) as u32, count);
            } else if let Some((id, hup)) = self.world.event_of(source) {
                if let Some(client) = self.world.client(id) {
                    client.armed = Armed::Not;
                }
                self.tell(Event::Spoke { id, hup });
            }
        }
    }

    /// Tells the end of control connections that have been read completely.
    pub fn bury_dead(&mut self) {
        for slot in 0..self.processes.len() as u32 {
            let is_over = self.processes[slot as usize]
                .as_ref()
                .is_some_and(|process| process.has_ended && process.outbox.len() == 1);
            if is_over {
                let process = self.processes[slot as usize].as_ref();
                if process.is_some_and(Process::is_alone) {
                    self.end_all_but(slot, &[]);
                }
                self.tell(Event::BackendGone(slot));
            }
        }
    }
}
