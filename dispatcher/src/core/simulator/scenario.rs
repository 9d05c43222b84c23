//! One seed's story: how many of everything there are, what happens, and that
//! at the end all have been served.

use super::coming_in::ComingIn;
use super::random::Random;
use super::rules::TooOld;
use super::shell::Shell;
use super::summary::Summary;
use crate::core::sessions::Whereabouts;
use crate::core::{Event, Limits, Now, PoolLimits};
use crate::protocol::auth::client::Failure;
use crate::protocol::Report;
use std::collections::VecDeque;

const TICK_US: u64 = 20_000;
const SWEEP_US: u64 = 1_000_000;
/// When all obstacles have gone, so long without an answer is for ever: four times as
/// long as makes a wait urgent where there is no limit.
const NOTHING_HAPPENS_US: u64 = 120_000_000;
/// Where there is very much all tables are checked in one round of so many.
const CHECKED_EACH: usize = 16;

pub struct Scenario {
    pub shell: Shell,
    pub(super) summary: Summary,
    pub(super) limits: Limits,
    pub(super) pools: u32,
    pub(super) most_sessions: usize,
    steps: u64,
    /// So many times as much happens in one step as where there are few.
    pub(super) at_once: usize,
    rounds: usize,
    last_tick_us: u64,
    /// Those before it, the last one first.
    ticks_us: VecDeque<u64>,
    last_sweep_us: u64,
    /// When this sweep began.
    too_old: TooOld,
    /// Since limits were changed in flight.
    pub(super) ticks_since_change: u32,
    /// Something happens that is nobody's fault: deaths, refusals, ...
    pub(super) is_troubled: bool,
    /// Backends of these say what is not so, and end with whom they have in hand.
    pub(super) has_liars: bool,
    pub(super) may_log_in: bool,
    pub(super) holds: Vec<u32>,
    pub(super) has_crashed: bool,
    /// Who may come in, in the seeds that know limits of that.
    pub(super) coming_in: Option<ComingIn>,
}

impl Scenario {
    pub fn new(seed: u64, logs: bool) -> Scenario {
        let mut random = Random::new(seed);
        let mut slots = random.between(1, 24) as usize;
        let has_many = random.once_in(4);
        let mut pools = random.between(1, if has_many { 40 } else { 6 }) as u32;
        let is_large = random.once_in(10);
        let mut most_sessions = random.between(1, if is_large { 3000 } else { 120 }) as usize;
        // Nor by chance, and none that was kept before there was this.
        let is_huge = seed % 20 == 12;
        if is_huge {
            slots = random.between(200, 1_000) as usize;
            pools = random.between(1, if has_many { 300 } else { 6 }) as u32;
            most_sessions = random.between(3_000, 10_000) as usize;
        }
        let max_backends = random.between(1, slots as u64) as usize;
        let max_dedicated = random.once_in(2).then(|| random.below(5));
        let limits = Limits {
            max_backends,
            min_backends: random.below(2) * random.below(3),
            max_dedicated,
            sharing_threshold: random.below(2) * random.below(12),
            max_extra: random.once_in(3).then(|| random.below(5)),
            ceiling: slots,
            session_wait_timeout_us: if random.once_in(3) {
                random.between(50_000, 3_000_000)
            } else {
                0
            },
            backend_idle_timeout_us: if random.once_in(3) {
                random.between(10_000, 2_000_000) as i64
            } else {
                0
            },
            backend_lifetime_us: random.below(2) as u64 * random.between(1_000_000, 20_000_000),
            force_migration: random.once_in(6),
            native_when_waiting: 0,
            // Nor by chance, and none that was kept before there was this.
            backends_for_takings: if seed % 16 == 9 { 6 } else { 0 },
        };
        // Drawn for nothing any more: the seeds that are kept shall mean what they did.
        let _ = random.between(1, 8);
        let start_us = if random.once_in(4) { 400_000 } else { 4_000 };
        let is_troubled = !random.once_in(4);
        let sizes = (most_sessions + 8, pools as usize + 2, slots);
        let mut shell = Shell::new(seed, limits, sizes, random);
        shell.core.look_at_few();
        if matches!(seed % 16, 1 | 3 | 6 | 9 | 14) {
            // Nor by chance, and none that was kept before there was this.
            shell.core.holdings.look_at_few(3);
            shell.core.memory_laps.look_at_few(1);
            shell.core.groups.follow_few(1);
        }
        shell.start_us = start_us;
        // Not by chance: the seeds that are kept shall mean what they did.
        shell.is_short = seed % 11 == 3;
        shell.are_some_lost = is_troubled && seed % 7 == 6;
        shell.logs = logs;
        let coming_in = ComingIn::of(seed);
        Scenario {
            shell,
            summary: Summary::default(),
            limits,
            pools,
            most_sessions,
            steps: match (is_huge, is_large) {
                (true, _) => 400,
                (_, true) => 3_000,
                _ => 1_500,
            },
            at_once: if is_huge { slots / 4 } else { 1 },
            rounds: 0,
            last_tick_us: 0,
            ticks_us: VecDeque::new(),
            last_sweep_us: 0,
            too_old: TooOld::default(),
            ticks_since_change: 0,
            is_troubled,
            // Nor by chance, and none that was kept before there was this.
            has_liars: matches!(seed % 16, 3 | 14) || is_huge,
            may_log_in: true,
            holds: Vec::new(),
            has_crashed: false,
            coming_in,
        }
    }

    pub fn run(mut self) -> Summary {
        self.run_on();
        self.summary
    }

    pub fn run_on(&mut self) {
        for _ in 0..self.steps {
            self.something_happens();
            self.backends_go_on();
            self.round();
            self.summary.steps += 1;
        }
        self.come_to_rest();
        self.stop();
        let shell = &self.shell;
        self.summary.claims_lost = shell.claims_lost;
        self.summary.queue_was_full = shell.queue_was_full;
        self.summary.waits_ended = shell.waits_ended;
        self.summary.reasons = shell.told.reasons.clone();
        self.summary.woken_for_memory = shell.woken_for_memory;
        self.summary.given_up = shell.given_up;
        self.summary.most_served_before = shell.turns.most_served_before;
        self.summary.most_places_before = shell.turns.most_places_before;
    }

    pub(super) fn random(&mut self) -> &mut Random {
        &mut self.shell.random
    }

    // ---- backends ----------------------------------------------------------

    fn backends_go_on(&mut self) {
        let most = 4 * self.shell.processes.len();
        let steps = self.random().below(most + 1);
        self.shell.step_backends(steps);
        self.openings_go_on();
        if self.random().once_in(3) {
            self.answer_question();
        }
    }

    fn answer_question(&mut self) {
        if let Some((role, database)) = self.shell.asked_limits.pop() {
            let mut limit = |most: u64| match self.random().below(3) {
                0 => self.random().between(1, most) as i32,
                _ => -1,
            };
            let (backends, least, _) = (limit(4), limit(2), limit(50));
            let mode = i32::from(self.is_troubled && self.random().once_in(6));
            self.summary.kept += mode as u64;
            let weight = self.random().below(3) as i32 * 100;
            let reserve = self.random().below(2) as i32;
            // Not by chance: the seeds that are kept shall mean what they did.
            let memory = (self.shell.world.now_us % 30) as i32 - 1;
            let group = (role, database);
            let sessions = self.coming_in.as_ref().map_or(-1, |it| it.set_for(group));
            let limits = [backends, least, sessions, mode, weight, reserve, memory];
            let limits = PoolLimits::of(limits);
            self.shell.core.set_pool_limits(group, limits);
            self.shell.carry_out();
            if let Some(coming_in) = &mut self.coming_in {
                coming_in.is_told(group, limits, &self.shell);
            }
        }
        let Some((pool, serial, from)) = self.shell.questions.pop_front() else {
            return;
        };
        let may = (self.may_log_in && !self.random().once_in(4)).then_some(i64::MAX);
        let generation = self.shell.world.login_generation;
        let shell = &mut self.shell;
        shell
            .core
            .pool_answered(pool, serial, from, generation, may, &shell.world);
        shell.carry_out();
    }

    fn openings_go_on(&mut self) {
        // The postmaster waits for all to have ended before it starts anew.
        let mut processes = self.shell.processes.iter().flatten();
        self.has_crashed &= processes.any(|process| process.has_ended);
        if self.has_crashed {
            return;
        }
        let now_us = self.shell.world.now_us;
        let due: Vec<(u32, u32)> = (self.shell.openings.iter())
            .filter(|opening| opening.at_us <= now_us)
            .map(|opening| (opening.slot, opening.pool))
            .collect();
        for (slot, pool) in due {
            if !self
                .shell
                .openings
                .iter()
                .any(|opening| opening.slot == slot)
            {
                continue;
            }
            let refused = self.is_troubled && (!self.may_log_in || self.random().once_in(30));
            if refused {
                self.summary.refused += 1;
                let state = match self.random().below(4) {
                    0 => b"28000",
                    1 => b"53300",
                    2 => b"57P03",
                    _ => b"08006",
                };
                let failure = Failure::ServerError(Report::fatal(state, "no"));
                self.fail(slot, failure, Some(true));
                continue;
            }
            self.shell.attach(slot, pool);
        }
    }

    // ---- the dispatcher's loop ----------------------------------------------

    pub(super) fn set_clock(&mut self) {
        let shell = &mut self.shell;
        shell.core.set_clock(Now {
            us: shell.world.now_us,
            timestamp: shell.world.timestamp,
        });
    }

    fn round(&mut self) {
        self.set_clock();
        self.shell.deliver(8 * self.at_once);
        if self.random().once_in(2) {
            self.shell.queues_with_room();
        }
        self.shell.bury_dead();
        let now_us = self.shell.world.now_us;
        if now_us >= self.last_tick_us + TICK_US {
            self.ticks_us
                .push_front(std::mem::replace(&mut self.last_tick_us, now_us));
            self.shell.waited_us = self.shell.core.longest_of_all_us(&self.shell.world);
            self.shell.tell(Event::Tick);
            let limit_us = self.limits.session_wait_timeout_us;
            let waited_us = self.shell.core.longest_wait_us();
            // Where there are many pools each has its turn in some ticks.
            let turn = self.shell.core.ticks_for_all_pools();
            // Of very many: who moves to another pool may miss its turn.
            let turn = if turn > 2 { 2 * turn } else { turn };
            self.ticks_us.truncate(turn);
            let late_us = match turn {
                1 => 0,
                _ => now_us - self.ticks_us.get(turn - 2).copied().unwrap_or(0),
            };
            self.ticks_since_change += 1;
            assert!(
                limit_us == 0
                    || waited_us < limit_us + late_us
                    || late_us > 0 && (self.ticks_since_change as usize) < turn,
                "{waited_us} us waited"
            );
        }
        if now_us >= self.last_sweep_us + SWEEP_US {
            self.last_sweep_us = now_us;
            if !self.shell.core.sweeping.has_pools() {
                self.too_old = self.shell.core.too_old();
            }
            self.shell.tell(Event::Sweep);
        }
        self.shell.tell(Event::RoundEnds);
        // A sweep of very many is not through when the next one begins (sweeps.rs has them).
        if self.at_once == 1 {
            self.shell.core.check_lifetime(&mut self.too_old);
        }
        self.shell.tell(Event::MakeRoom);
        self.rounds += 1;
        if self.at_once == 1 || self.rounds % CHECKED_EACH == 0 {
            self.check();
        }
    }

    fn check(&mut self) {
        self.shell.core.check_tables();
        self.shell.core.check_waiting(&self.shell.world);
        self.shell.check_world();
        self.shell.check_modes();
        self.shell.check_told();
        self.shell.check_turns();
        if let Some(coming_in) = &mut self.coming_in {
            coming_in.check(&self.shell);
        }
        let shell = &self.shell;
        assert!(
            shell.unanswered.is_empty() || shell.core.has_more(),
            "nobody says who is in a database"
        );
        if !shell.core.has_dirty() {
            shell.core.check_served(&shell.world);
            let is_empty = |number: u32| shell.world.pools[number as usize].queue.is_empty();
            shell.core.check_asked(&shell.world, is_empty, |slot| {
                let process = shell.processes[slot as usize].as_ref();
                process.is_some_and(|process| process.sleeps())
            });
        }
        let waited_us = shell.core.longest_wait_us();
        self.summary.longest_wait_us = self.summary.longest_wait_us.max(waited_us);
    }

    // ---- the end -------------------------------------------------------------

    /// Nothing new happens, all obstacles go: then everybody is served.
    fn come_to_rest(&mut self) {
        self.is_troubled = false;
        self.may_log_in = true;
        self.shell.start_us = 4_000;
        self.shell.are_some_lost = false;
        let now_us = self.shell.world.now_us;
        for opening in &mut self.shell.openings {
            opening.at_us = opening.at_us.min(now_us + 4_000);
        }
        self.shell.unanswered.clear();
        for number in std::mem::take(&mut self.holds) {
            self.shell.tell(Event::HoldEnded(number));
        }
        self.shell.tell(Event::LauncherIs { up: true });
        self.limits.session_wait_timeout_us = 0;
        self.limits.sharing_threshold = 0;
        self.limits.backend_lifetime_us = 0;
        let limits = self.limits;
        self.shell.core.set_limits(limits);
        self.shell.core.ask_limits_again();
        self.shell.carry_out();
        for client in self.shell.world.clients.iter_mut().flatten() {
            client.taints = client.taints.min(1);
            client.transaction_us = client.transaction_us.min(2_000);
        }
        let sessions = self.shell.core.sessions().live() as u64;
        let (mut before, mut since_us) = (self.progress(), self.shell.world.now_us);
        for _ in 0..4_000 + 400 * sessions {
            if self.is_at_rest() {
                break;
            }
            let now_us = self.shell.world.now_us;
            let progress = self.progress();
            if progress != before {
                (before, since_us) = (progress, now_us);
            }
            assert!(
                now_us < since_us + NOTHING_HAPPENS_US,
                "nobody is served any more: {}",
                self.who_waits()
            );
            self.unlock_if_hopeless();
            // Who has the lock asks for something, after all.
            let lock = self.shell.world.lock;
            if let Some(client) = lock.and_then(|id| self.shell.world.client(id)) {
                client.asked = client.asked.max(1);
            }
            // Who is dedicated does not keep that for ever.
            for client in self.shell.world.clients.iter_mut().flatten() {
                client.taints = 0;
            }
            let slots = self.shell.processes.len();
            self.shell.step_backends(8 * slots);
            self.openings_go_on();
            self.answer_question();
            let mut pause_us = self.random().between(100, 20_000);
            if self.at_once > 1 && self.shell.core.has_more() {
                // The event loop does not sleep; a sweep of very many would never end.
                pause_us = 200;
            }
            self.time_passes(pause_us);
            self.round();
        }
        assert!(
            self.is_at_rest(),
            "somebody is not served: {}",
            self.who_waits()
        );
        self.rest();
        self.summary.transactions += (self.shell.world.sessions.iter())
            .map(|words| words.transactions)
            .sum::<u64>();
    }

    /// What goes up, or down, as long as anybody is served.
    fn progress(&self) -> (u64, usize) {
        let words = self.shell.world.sessions.iter();
        let transactions = words.map(|words| words.transactions).sum();
        (transactions, self.shell.core.sessions().live())
    }

    /// Idle backends go, up to those that are kept; then nothing happens.
    fn rest(&mut self) {
        let mut opened = 0;
        let idle_us = self.limits.backend_idle_timeout_us as u64;
        // What is too many goes one after the other.
        let rests_s = if self.at_once > 1 { 64 } else { 16 };
        for second in 0..rests_s {
            if second == 6 {
                // One that ends later by idle_session_timeout leaves its place to a pool
                // that lacks one.
                for words in &mut self.shell.world.sessions {
                    words.idle_timeout_us = 0;
                }
            }
            if second == rests_s - 4 {
                opened = self.shell.opened;
            }
            self.time_passes(SWEEP_US.max(idle_us));
            for _ in 0..4 {
                let slots = self.shell.processes.len();
                self.shell.step_backends(40 * slots);
                self.time_passes(5_000);
                self.openings_go_on();
                while !self.shell.questions.is_empty() {
                    self.answer_question();
                }
                self.round();
                // The event loop does not sleep before it is decided who goes.
                let is_huge = self.at_once > 1;
                while self.shell.core.room.has_more() || is_huge && self.shell.core.has_more() {
                    self.time_passes(if is_huge { 100 } else { 0 });
                    self.round();
                }
            }
        }
        self.shell.check_rest(opened);
    }

    /// As many as could be replaced, or it is not ours to end it.
    fn unlock_if_hopeless(&mut self) {
        let wanting = self.shell.world.clients.iter().flatten();
        let blocked = wanting.filter(|client| client.wants_lock).count()
            + (self.shell.processes.iter().flatten())
                .filter(|process| process.is_blocked())
                .count();
        let most = self.may_be_blocked();
        let core = &self.shell.core;
        if blocked + core.dedicated_count() > most || core.has_own_limits() {
            self.shell.world.lock = None;
        }
    }

    fn is_at_rest(&self) -> bool {
        let world = &self.shell.world;
        let clients = world.clients.iter().flatten();
        let mut unserved =
            clients.filter(|client| client.asked > 0 || !client.greeted || client.has_gone);
        let processes = self.shell.processes.iter().flatten();
        let mut busy =
            processes.filter(|process| !process.rests(world) || !process.outbox.is_empty());
        unserved.next().is_none()
            && busy.next().is_none()
            && self.shell.skipping.is_empty()
            && world
                .pools
                .iter()
                .all(|pool| pool.queue.is_empty() && pool.queued == 0)
            && self.shell.full.is_empty()
            && !self.shell.core.has_full_queue()
            && !self.shell.core.has_more()
            && self.shell.core.longest_wait_us() == 0
    }

    fn who_waits(&self) -> String {
        let mut text = String::new();
        let mut listed = 0;
        let place = |id| {
            self.shell
                .core
                .sessions()
                .get(id)
                .map(|session| session.whereabouts())
        };
        let mut ids: Vec<_> = self.shell.core.sessions().ids().collect();
        ids.sort_by_key(|id| {
            let client = self.shell.world.clients[*id as u32 as usize].as_ref();
            let asks = client.is_some_and(|it| it.asked > 0 || !it.greeted || it.has_gone);
            (!asks, !matches!(place(*id), Some(Whereabouts::Waiting(_))))
        });
        for id in ids {
            let Some(session) = self.shell.core.sessions().get(id) else {
                continue;
            };
            let index = id as u32 as usize;
            let Some(client) = self.shell.world.clients[index].as_ref() else {
                continue;
            };
            let is_unserved = client.asked > 0
                || !client.greeted
                || client.has_gone
                || !matches!(session.whereabouts(), Whereabouts::Idle);
            if is_unserved && listed < 5 {
                listed += 1;
                text += &format!(
                    "\n{id:x} of pool {} is {:?}: asked {} greeted {} gone {} armed {:?} owner {} shown {:?}",
                    session.pool(),
                    session.whereabouts(),
                    client.asked,
                    client.greeted,
                    client.has_gone,
                    client.armed,
                    self.shell.world.sessions[index].owner,
                    self.shell.world.sessions[index].shown,
                );
            }
        }
        for (slot, process) in self.shell.processes.iter().enumerate() {
            let words = &self.shell.world.backends[slot];
            if let Some(process) = process {
                text += &format!(
                    "\nbackend {slot} of pool {}: {words:?} {process:?}",
                    process.pool
                );
            }
        }
        for (number, pool) in self.shell.world.pools.iter().enumerate() {
            if pool.queued != 0 || !pool.queue.is_empty() {
                text += &format!("\npool {number}: {pool:?}");
            }
        }
        let clients = self.shell.world.clients.iter().flatten();
        let unserved =
            clients.filter(|client| client.asked > 0 || !client.greeted || client.has_gone);
        let processes = self.shell.processes.iter().flatten();
        let busy = processes.filter(|it| !it.rests(&self.shell.world) || !it.outbox.is_empty());
        text += &format!("\n{} unserved, {} busy", unserved.count(), busy.count());
        text += &format!(
            "\nfull {:?}, a queue is full {}, there is more: {}; skipping {}, waits {} us",
            self.shell.full,
            self.shell.core.has_full_queue(),
            self.shell.core.what_is_more(),
            self.shell.skipping.len(),
            self.shell.core.longest_wait_us(),
        );
        text + &format!("\n{:?}", self.limits)
    }

    /// Everything ends, and nothing is left.
    fn stop(&mut self) {
        self.shell.tell(Event::Stop);
        for turn in 0..3_000 {
            // Dedicated sessions stay; the server ends them.
            for process in self.shell.processes.iter_mut().flatten() {
                if turn > 1_000 && !process.has_ended && process.may_end() {
                    process.die(true);
                }
            }
            let slots = self.shell.processes.len();
            self.shell.step_backends(8 * slots);
            self.openings_go_on();
            self.time_passes(5_000);
            self.round();
            if self.shell.core.backend_count() == 0 && !self.shell.core.is_ending() {
                break;
            }
        }
        for turn in 0..200 {
            self.time_passes(SWEEP_US);
            self.round();
            if turn > 1 && !self.shell.core.is_ending() {
                break;
            }
        }
        self.shell.tell(Event::Tick);
        assert!(!self.shell.core.is_ending(), "it never comes to an end");
        assert!(
            self.shell.core.sessions().live() == 0,
            "sessions are left: {} {:?}",
            self.who_waits(),
            self.shell
                .core
                .sessions()
                .ids()
                .map(|id| { self.shell.world.sessions[id as u32 as usize].clone() })
                .collect::<Vec<_>>(),
        );
        self.shell.core.check_is_empty();
        let free = crate::core::Word::Free;
        assert!(self
            .shell
            .world
            .backends
            .iter()
            .all(|words| words.word == free));
        assert!(self.shell.world.clients.iter().all(Option::is_none));
        assert!(self.shell.skipping.is_empty());
    }
}
