//! What the shell does, on the simulated world: `carry_out.rs` without system
//! calls. Between two actions backends may go on.

use super::event_times::EventTimes;
use super::process::{FromBackend, Process, ToBackend};
use super::random::Random;
use super::settings::mark_of;
use super::told::Told;
use super::turns::Turns;
use super::world::{Armed, World, FREE, NO_SESSION, QUEUE_HOLDS};
use crate::core::{
    index_of, Action, Attach, Core, Ending, Event, Identity, Limits, Says, SessionId, Shown, Then,
    Why, Word, Words,
};
use std::collections::{BTreeSet, VecDeque};

/// What follows from one event has an end: a claim may be lost again and again, but
/// not so often.
const MOST_ACTIONS: usize = 100_000;

/// A backend that is being opened: when it comes, or fails.
pub struct Opening {
    pub slot: u32,
    pub pool: u32,
    pub at_us: u64,
    /// It reads what is set up to this change (settings.rs).
    pub change: u64,
}

pub struct Shell {
    pub core: Core,
    pub world: World,
    pub processes: Vec<Option<Process>>,
    pub openings: Vec<Opening>,
    /// Questions to the launcher.
    pub questions: VecDeque<(u32, u64, crate::core::Provenance)>,
    pub asked_limits: Vec<(u32, u32)>,
    pub random: Random,
    /// Sessions whose request is passed over.
    pub skipping: Vec<SessionId>,
    /// Pools whose queue was full: an event tells when it is not.
    pub full: Vec<u32>,
    /// Now and then no descriptor can be sent; and how many were.
    pub is_short: bool,
    pub sent: u64,
    /// Starts take up to so long.
    pub start_us: u64,
    /// The longest wait when the last tick came.
    pub waited_us: u64,
    /// Backends that were to be opened.
    pub opened: u64,
    /// Backends have died of what makes all of them end.
    pub waits_ended: u64,
    pub claims_lost: u64,
    pub queue_was_full: u64,
    pub told: Told,
    pub woken_for_memory: u64,
    /// For the log of a seed that has found something.
    pub log: VecDeque<String>,
    pub logs: bool,
    /// At pools' words, for one event.
    pub most_looks: u64,
    /// Backends of which it was asked since when they are what they are, for one event.
    pub most_backends_seen: u64,
    /// Now and then a backend does not come at all; and how often that was.
    pub are_some_lost: bool,
    pub given_up: u64,
    /// Holds whose holders wait to be told who is there.
    pub unanswered: BTreeSet<u32>,
    /// Sessions that they have been told of.
    pub found: u32,
    pub costs: EventTimes,
    pub turns: Turns,
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
            questions: VecDeque::new(),
            asked_limits: Vec::new(),
            random,
            skipping: Vec::new(),
            full: Vec::new(),
            is_short: false,
            sent: 0,
            start_us: 4_000,
            waited_us: 0,
            opened: 0,
            waits_ended: 0,
            claims_lost: 0,
            queue_was_full: 0,
            told: Told::default(),
            woken_for_memory: 0,
            log: VecDeque::new(),
            logs: false,
            most_looks: 0,
            most_backends_seen: 0,
            are_some_lost: false,
            given_up: 0,
            unanswered: BTreeSet::new(),
            found: 0,
            costs: EventTimes::default(),
            turns: Turns::default(),
        }
    }

    pub fn tell(&mut self, event: Event) {
        if !matches!(event, Event::RoundEnds | Event::MakeRoom | Event::Tick) {
            self.note(|| format!("{event:?}"));
        }
        let before = self.world.looks.get();
        let seen = self.world.backends_seen.get();
        self.costs.handle(&mut self.core, event, &self.world);
        self.carry_out();
        let looks = self.world.looks.get() - before;
        self.most_looks = self.most_looks.max(looks);
        let seen = self.world.backends_seen.get() - seen;
        self.most_backends_seen = self.most_backends_seen.max(seen);
    }

    pub fn note(&mut self, text: impl Fn() -> String) {
        if self.logs {
            if self.log.len() == 400 {
                self.log.pop_front();
            }
            self.log.push_back(text());
        }
    }

    pub fn carry_out(&mut self) {
        let mut done = 0;
        while let Some(action) = self.core.next_action() {
            done += 1;
            assert!(done < MOST_ACTIONS, "it never comes to an end: {action:?}");
            self.note(|| format!("    {action:?}"));
            if self.is_only_looked_at(&action) {
                continue;
            }
            self.act(action);
            if self.random.once_in(4) {
                self.step_backends(2);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        self.note(|| format!("    -> {event:?}"));
        self.costs.handle(&mut self.core, event, &self.world);
    }

    /// Lets any backends go on a little.
    pub fn step_backends(&mut self, steps: usize) {
        for _ in 0..steps {
            let slot = self.random.below(self.processes.len());
            if let Some(process) = self.processes[slot].as_mut() {
                process.step(&mut self.world, &mut self.random);
            }
        }
    }

    /// Lets one backend go on, now and then so far that it has nothing to do.
    fn step_one(&mut self, slot: u32) {
        let steps = match self.random.below(4) {
            0 => 12,
            1 => self.random.below(6),
            _ => 0,
        };
        for _ in 0..steps {
            if let Some(process) = self.processes[slot as usize].as_mut() {
                process.step(&mut self.world, &mut self.random);
            }
        }
    }

    fn any_of(&mut self, pool: u32) -> Option<u32> {
        let slots = self.core.pool_backends(pool);
        let at = slots.len().checked_sub(1)?;
        let at = self.random.below(at + 1);
        self.core.pool_backends(pool).get(at).copied()
    }

    /// Queues that were full and have room again: what the kernel calls so.
    pub fn queues_with_room(&mut self) {
        for at in (0..self.full.len()).rev() {
            let pool = self.full[at];
            if self.world.pools[pool as usize].queue.len() <= QUEUE_HOLDS / 4 {
                self.full.swap_remove(at);
                self.tell(Event::QueueHasRoom(pool));
            }
        }
    }

    fn send(&mut self, slot: u32, message: ToBackend) {
        if let Some(process) = self.processes[slot as usize].as_mut() {
            if !process.has_ended {
                process.inbox.push_back(message);
            }
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.world.timestamp;
        match action {
            Action::Claim { slot, seen, id } => {
                let pool = self.core.sessions().get(id).map(|session| session.pool());
                let queue = &self.world.pools[pool.expect("it is there") as usize].queue;
                assert!(
                    queue.is_empty() || self.world.force_migration,
                    "{id:x} overtakes who is in the ready queue"
                );
                self.core.check_turn(id);
                self.step_one(slot);
                if self.world.backend(slot) != seen {
                    self.claims_lost += 1;
                    return self.handle(Event::ClaimLost(id));
                }
                let pool = pool.expect("it is there");
                if self.cannot_send() {
                    self.full.push(pool);
                    let to_queue = false;
                    return self.handle(Event::NotSent { pool, id, to_queue });
                }
                self.world.set_word(slot, Word::Assigned);
                self.send(slot, ToBackend::Assign(id));
                self.turns.handed_out(&self.core, id);
                self.handle(Event::Claimed);
            }
            Action::Enqueue { pool, id } => {
                self.core.check_turn(id);
                let words = &mut self.world.pools[pool as usize];
                words.queued += 1;
                if let Some(slot) = self.any_of(pool) {
                    self.step_one(slot);
                }
                if self.cannot_send() {
                    self.world.pools[pool as usize].queued -= 1;
                    self.full.push(pool);
                    let to_queue = true;
                    return self.handle(Event::NotSent { pool, id, to_queue });
                }
                let words = &mut self.world.pools[pool as usize];
                if words.queue.len() >= QUEUE_HOLDS {
                    words.queued -= 1;
                    self.queue_was_full += 1;
                    self.full.push(pool);
                    return self.handle(Event::QueueFull { pool, id });
                }
                words.queue.push_back(id);
                self.turns.handed_out(&self.core, id);
                self.handle(Event::Queued);
            }
            Action::Poke(slot) => {
                let words = &mut self.world.backends[slot as usize];
                if !std::mem::replace(&mut words.poked, true) {
                    self.send(slot, ToBackend::Poke);
                }
            }
            Action::TakeBack(pool) => {
                while let Some(id) = self.world.pools[pool as usize].queue.pop_front() {
                    self.world.pools[pool as usize].queued -= 1;
                    self.turns.taken_back(&self.core, id);
                    self.handle(Event::TakenBack(id));
                }
                self.handle(Event::QueueDrained(pool));
            }
            Action::CloseQueue(pool) => {
                let slots = self.processes.iter().flatten();
                let mut of_pool = slots.filter(|process| process.pool == pool);
                assert!(
                    of_pool.next().is_none(),
                    "a queue closed that one takes from"
                );
                let words = &mut self.world.pools[pool as usize];
                assert!(words.queue.is_empty(), "a queue closed with somebody in it");
                words.queued = 0;
                self.full.retain(|other| *other != pool);
            }
            Action::ResetCounter(pool) => self.world.pools[pool as usize].queued = 0,
            Action::ShowWaiting(id) => {
                let words = self.world.session(id);
                words.shown = Shown::Waiting;
                words.since_us = now;
            }
            Action::Arm(id) => {
                let words = self.world.session(id);
                words.owner = 0;
                words.shown = Shown::Idle;
                words.since_us = now;
                self.arm(id, Armed::Fully);
            }
            Action::ArmForEnd(id) => self.arm(id, Armed::ForEnd),
            Action::Look { id, look } => {
                let says = self.look(id);
                self.handle(Event::Said { id, look, says });
            }
            Action::Skip { id, later, .. } => {
                self.skipping.push(id);
                self.waits_ended += 1;
                if later {
                    self.arm(id, Armed::Fully);
                } else {
                    self.skip_on(id);
                }
            }
            Action::SkipOn(id) => self.skip_on(id),
            Action::End { id, why, .. } => {
                if why == Why::WaitedTooLong {
                    self.waits_ended += 1;
                }
                let client = self.world.clients[index_of(id) as usize].take();
                assert!(
                    client.is_some_and(|client| client.id == id),
                    "a session ended that was not there: {id:x}"
                );
                *self.world.session(id) = NO_SESSION;
                self.skipping.retain(|other| *other != id);
            }
            Action::CancelOnBackend(_) | Action::TerminateOnBackend(_) => {}
            Action::MarkCancel(id) => self.world.session(id).cancelled = true,
            Action::ClearCancel(id) => self.world.session(id).cancelled = false,
            Action::Open { slot, pool } => {
                self.core.check_opened(pool);
                self.turns.opened(&self.core, pool, &self.world);
                assert_eq!(self.world.backend(slot), Word::Free);
                self.opened += 1;
                self.world.set_word(slot, Word::Starting);
                let generation = self.world.login_generation;
                self.core.origin_for(slot, true, generation);
                let mut at_us = self.world.now_us + self.random.between(1, self.start_us);
                if self.are_some_lost && self.opened % 16 == 5 {
                    at_us = u64::MAX;
                }
                self.openings.push(Opening {
                    slot,
                    pool,
                    at_us,
                    change: self.world.settings.changes,
                });
            }
            Action::Retire(slot) => {
                self.world.backends[slot as usize].retire = 1;
                self.send(slot, ToBackend::Retire);
            }
            Action::Recall { slot, id } => {
                let held = match id {
                    0 => self.world.backend_session(slot),
                    id => id,
                };
                self.send(slot, ToBackend::Recall(held));
            }
            Action::Evict { slot, id } => {
                self.core.check_evicted(slot);
                self.send(slot, ToBackend::Evict(id));
            }
            Action::Keep { pool, keeps } => match pool {
                Some(pool) => self.world.pools[pool as usize].keeps = keeps,
                None => self.world.keeps = keeps,
            },
            Action::ShowMemoryLeft { pool, left } => {
                self.world.pools[pool as usize].memory_left = left;
            }
            Action::WakeForMemory(pool) => {
                assert!(
                    self.core.pool_dedicated(pool) > 0,
                    "there is nobody to wake"
                );
                self.woken_for_memory += 1;
            }
            Action::FreeSlot(slot) => {
                let openings = self.openings.iter();
                let mut lost = openings.filter(|it| it.slot == slot && it.at_us == u64::MAX);
                self.given_up += u64::from(lost.next().is_some());
                self.openings.retain(|opening| opening.slot != slot);
                self.processes[slot as usize] = None;
                self.world.backends[slot as usize] = FREE;
            }
            Action::Offer { ticket, slots } => {
                self.core.check_offer(&slots, &self.world);
                for slot in &slots {
                    self.world.backends[*slot as usize].retire = ticket;
                }
                self.world.ticket = ticket;
                for slot in slots {
                    if self.world.backend(slot).is_free() {
                        self.send(slot, ToBackend::Retire);
                    }
                }
            }
            Action::TakeTicketBack(ticket) => {
                let is_ours = self.world.ticket == ticket;
                if is_ours {
                    self.world.ticket = 0;
                }
                self.handle(Event::TicketBack(is_ours));
            }
            Action::Measure(slot) => {
                let process = self.processes[slot as usize].as_ref();
                let held = self.core.held_count();
                let event = Event::Measured {
                    slot,
                    transactions: self.world.backends[slot as usize].served,
                    cpu_us: process.map_or(0, |process| process.cpu_us(self.world.now_us)),
                };
                self.handle(event);
                self.core.check_held(held, self.waited_us);
            }
            Action::ClearTicket { slot, ticket } => {
                let retire = &mut self.world.backends[slot as usize].retire;
                if *retire == ticket {
                    *retire = 0;
                }
            }
            Action::AskLimits { role, database } => self.asked_limits.push((role, database)),
            Action::AskLauncher { pool, serial, from } => {
                self.questions.push_back((pool, serial, from));
            }
            Action::FindPool { old, .. } => self.handle(Event::Replaced { old, new: None }),
            Action::PoolDropped { pool, .. } => {
                assert!(self.world.pools[pool as usize].queue.is_empty());
                self.full.retain(|other| *other != pool);
                self.world.pools[pool as usize].queued = 0;
                self.world.pools[pool as usize].keeps = false;
            }
            Action::TellWhoIsIn { .. }
            | Action::TellPool(_)
            | Action::CheckQueue(_)
            | Action::TellFailure(_)
            | Action::ForgetGreeting(_)
            | Action::ForgetAllGreetings => {}
            Action::Then(then) => {
                if let Then::Move { new, .. } = then {
                    self.turns.moves_into(new);
                }
                self.handle(Event::Then(then));
            }
        }
    }

    /// ETOOMANYREFS: by count, so that seeds that know none of it stay what they are.
    fn cannot_send(&mut self) -> bool {
        self.sent += 1;
        self.is_short && self.sent % 13 < 2
    }

    fn arm(&mut self, id: SessionId, armed: Armed) {
        if let Some(client) = self.world.client(id) {
            client.armed = armed;
        }
    }

    fn look(&mut self, id: SessionId) -> Says {
        match self.world.client(id) {
            Some(client) if client.asked > 0 => Says::Something,
            Some(client) if client.has_gone => Says::Leaves,
            Some(_) => Says::Nothing,
            None => Says::Broken,
        }
    }

    fn skip_on(&mut self, id: SessionId) {
        let Some(client) = self.world.client(id) else {
            return self.handle(Event::Ended(id, Ending::Cut));
        };
        if client.has_gone {
            return self.handle(Event::Ended(id, Ending::Cut));
        }
        if client.asked > 0 {
            client.asked -= 1;
            client.answered += 1;
        }
        self.skipping.retain(|other| *other != id);
        self.handle(Event::Skipped(id));
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
                    let was_asked = true;
                    self.tell(Event::Leaves { slot, was_asked });
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
                FromBackend::Closed => {}
            }
        }
    }

    /// Its context is another now.
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
            role_oid: key.role_oid,
            database_oid: key.database_oid,
            superuser: key.superuser,
        };
        let verdict = self.core.may_attach(slot, identity, &self.world);
        if verdict == Attach::Welcome(pool) {
            self.processes[slot as usize] = Some(Process::new(slot, pool, change, &mut self.world));
            self.tell(Event::Attached(slot));
        } else {
            assert_eq!(verdict, Attach::Stale);
            self.carry_out();
        }
    }

    /// Sockets' events and backends' frames, some of them, in any order.
    pub fn deliver(&mut self, most: usize) {
        let mut sources: Vec<usize> = Vec::new();
        let clients = self.world.clients.len();
        sources.extend((0..clients).filter(|at| self.world.event_of(*at).is_some()));
        let frames = |process: &Option<Process>| {
            let front = process.as_ref().and_then(|process| process.outbox.front());
            front.is_some_and(|frame| *frame != FromBackend::Closed)
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

    /// Control connections that have ended, and of which all was read.
    pub fn bury_dead(&mut self) {
        for slot in 0..self.processes.len() as u32 {
            let is_over = self.processes[slot as usize]
                .as_ref()
                .is_some_and(|process| process.has_ended && process.outbox.len() == 1);
            if is_over {
                self.tell(Event::BackendGone(slot));
            }
        }
    }
}
