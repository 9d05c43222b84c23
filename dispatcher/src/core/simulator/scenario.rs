//! One seed's run: the sizes, and the events. the_end.rs checks that at the end all sessions have
//! been served.

use super::coming_in::ComingIn;
use super::process::FromBackend;
use super::random::Random;
use super::rules::TooOld;
use super::shell::Shell;
use super::summary::Summary;
use crate::core::{Event, Limits, Now, PoolLimits};
use crate::protocol::opening::Failure;
use crate::protocol::Report;
use std::collections::VecDeque;

const TICK_US: u64 = 20_000;
pub(super) const SWEEP_US: u64 = 1_000_000;
/// If there is very much, all tables are checked in one of this number of rounds.
const CHECKED_EACH: usize = 16;

pub struct Scenario {
    pub shell: Shell,
    pub(super) summary: Summary,
    pub(super) limits: Limits,
    pub(super) pools: u32,
    pub(super) most_sessions: usize,
    steps: u64,
    /// The factor by which more happens in one step than where there are few.
    pub(super) at_once: usize,
    rounds: usize,
    last_tick_us: u64,
    /// The ticks before it, the last one first.
    ticks_us: VecDeque<u64>,
    last_sweep_us: u64,
    /// The backends that were too old when this sweep began.
    too_old: TooOld,
    /// Since limits were changed in flight.
    pub(super) ticks_since_change: u32,
    /// Failures occur that no process causes by lying: deaths, refusals, ...
    pub(super) is_troubled: bool,
    /// Backends make false statements, and end with the session that they have in hand.
    pub(super) has_liars: bool,
    pub(super) may_start: bool,
    pub(super) holds: Vec<u32>,
    pub(super) has_crashed: bool,
    /// Backends of some roles serve no other role.
    pub(super) are_some_apart: bool,
    /// Limits on new sessions, in the seeds that have them.
    pub(super) coming_in: Option<ComingIn>,
    /// Pauses begin and end.
    pub(super) has_pauses: bool,
}

impl Scenario {
    pub fn new(seed: u64, logs: bool) -> Scenario {
        let mut random = Random::new(seed);
        let mut slots = random.between(1, 24) as usize;
        let has_many = random.once_in(4);
        let mut pools = random.between(1, if has_many { 40 } else { 6 }) as u32;
        let is_large = random.once_in(10);
        let mut most_sessions = random.between(1, if is_large { 3000 } else { 120 }) as usize;
        // Not drawn at random, and not in seeds that were kept before this existed.
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
            // Not drawn at random, so that kept seeds keep their meaning.
            extra_idle_timeout_us: if seed % 8 == 5 { 300_000 } else { 0 },
            ceiling: slots,
            for_superusers: 0,
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
            // Not drawn at random, and not in seeds that were kept before this existed.
            backends_for_steals: if seed % 16 == 9 { 6 } else { 0 },
        };
        // Drawn but no longer used, so that kept seeds keep their meaning.
        let _ = random.between(1, 8);
        let start_us = if random.once_in(4) { 400_000 } else { 4_000 };
        let is_troubled = !random.once_in(4);
        let sizes = (most_sessions + 8, pools as usize + 2, slots);
        let mut shell = Shell::new(seed, limits, sizes, random);
        shell.start_us = start_us;
        // Not drawn at random, so that kept seeds keep their meaning.
        shell.is_short = seed % 11 == 3;
        shell.are_some_lost = is_troubled && seed % 7 == 6;
        shell.logs = logs;
        let coming_in = ComingIn::of(seed);
        // In no seed that was kept before this existed.
        let has_pauses = seed % 7 == 3 && coming_in.is_none();
        shell.world.has_pauses = has_pauses;
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
            // Not drawn at random, and not in seeds that were kept before this existed.
            has_liars: matches!(seed % 16, 3 | 14) || is_huge,
            may_start: true,
            holds: Vec::new(),
            has_crashed: false,
            are_some_apart: seed % 4 == 2,
            coming_in,
            has_pauses,
        }
    }

    pub fn run(&mut self) -> Summary {
        self.run_on();
        std::mem::take(&mut self.summary)
    }

    fn run_on(&mut self) {
        for _ in 0..self.steps {
            self.something_happens();
            if self.has_pauses {
                self.pause_or_resume();
            }
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
        self.summary.paused = shell.pauses.stood;
        self.summary.pauses_ended = shell.pauses.ended;
        self.summary.reasons = shell.told.reasons.clone();
        self.summary.woken_for_memory = shell.woken_for_memory;
        self.summary.given_up = shell.given_up;
        self.summary.idle_ended = shell.idle_ended;
        self.summary.most_served_before = shell.turns.most_served_before;
        self.summary.most_of_others = shell.turns.most_of_others;
        self.summary.most_within_limit = shell.served.most_within_limit;
        self.summary.most_places_before = shell.turns.most_places_before;
    }

    /// So many steps without pauses of sessions.
    pub(super) fn live_for(&mut self, steps: usize) {
        for _ in 0..steps {
            self.something_happens();
            self.backends_go_on();
            self.round();
        }
    }

    /// Shows the log of a seed that has failed.
    pub(super) fn fails(&self, seed: u64) -> ! {
        for line in &self.shell.log {
            eprintln!("{line}");
        }
        panic!("seed {seed} has found something");
    }

    pub(super) fn random(&mut self) -> &mut Random {
        &mut self.shell.random
    }

    // ---- backends ----------------------------------------------------------

    pub(super) fn backends_go_on(&mut self) {
        let most = 4 * self.shell.processes.len();
        let steps = self.random().below(most + 1);
        self.shell.step_backends(steps);
        self.openings_go_on();
        if self.random().once_in(3) {
            self.answer_question();
        }
    }

    pub(super) fn answer_question(&mut self) {
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
            // Not drawn at random, so that kept seeds keep their meaning.
            let memory = (self.shell.world.now_us % 30) as i32 - 1;
            let group = (role, database);
            let sessions = self.coming_in.as_ref().map_or(-1, |it| it.set_for(group));
            let limits = [backends, least, sessions, mode, weight, reserve, memory];
            let limits = PoolLimits::of(limits);
            self.shell.costs.is_answered();
            self.shell.core.set_pool_limits(group, limits);
            self.shell.carry_out();
            if let Some(coming_in) = &mut self.coming_in {
                coming_in.is_told(group, limits, &self.shell);
            }
        }
    }

    pub(super) fn openings_go_on(&mut self) {
        // The postmaster waits for all processes to end before it starts anew.
        let mut processes = self.shell.processes.iter().flatten();
        self.has_crashed &= processes.any(|process| process.has_ended);
        if self.has_crashed {
            return;
        }
        self.adopted_come_again();
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
            let refused = self.is_troubled && (!self.may_start || self.random().once_in(30));
            if refused {
                self.summary.refused += 1;
                let state = match self.random().below(4) {
                    0 => b"28000",
                    1 => b"53300",
                    2 => b"57P03",
                    _ => b"08006",
                };
                let failure = Failure::ServerError(Report::fatal(state, "no"));
                self.fail(slot, failure);
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
            shared_us: shell.world.now_us as i64,
        });
    }

    pub(super) fn round(&mut self) {
        self.set_clock();
        self.shell.deliver(8 * self.at_once);
        if self.random().once_in(2) {
            self.shell.queues_with_room();
        }
        self.shell.bury_dead();
        let now_us = self.shell.world.now_us;
        let is_tick = now_us >= self.last_tick_us + TICK_US;
        if is_tick {
            self.ticks_us
                .push_front(std::mem::replace(&mut self.last_tick_us, now_us));
            self.shell.waited_us = self.shell.core.longest_of_all_us(&self.shell.world);
            self.shell.tell(Event::Tick);
        }
        if now_us >= self.last_sweep_us + SWEEP_US {
            self.last_sweep_us = now_us;
            if !self.shell.core.sweeping.has_pools() {
                self.too_old = self.shell.core.too_old();
            }
            self.shell.tell(Event::Sweep);
        }
        self.shell.tell(Event::RoundEnds);
        // Of very many waits, some end in each round.
        if is_tick && self.shell.core.expiring.is_empty() {
            let limit_us = self.limits.session_wait_timeout_us;
            let waited_us = self.shell.core.longest_wait_us();
            // If there are many pools, each has its turn within some ticks.
            let turn = self.shell.core.ticks_for_all_pools();
            // A session that has waited elsewhere, and comes back, may miss its pool's turn.
            let turn = if turn > 1 { 2 * turn } else { turn };
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
        if !self.shell.core.sweeping.has_pools() {
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
        self.shell.check_pauses();
        self.shell.check_told();
        self.shell.turns.check(&self.shell.core, &self.shell.world);
        if let Some(coming_in) = &mut self.coming_in {
            coming_in.check(&self.shell);
        }
        let shell = &self.shell;
        assert!(
            shell.unanswered.is_empty() || shell.core.has_more(),
            "nobody says who is in a database"
        );
        if !shell.core.has_dirty() {
            let says = |number: u32| {
                let mut of_pool = shell.processes.iter().flatten();
                of_pool.any(|it| it.pool == number && it.outbox.contains(&FromBackend::Release(0)))
            };
            // The backend looks before it sleeps.
            let will_say = |slot: u32| {
                let process = shell.processes[slot as usize].as_ref();
                process.is_some_and(|it| {
                    shell.world.pools[it.pool as usize].is_held_back && !it.sleeps()
                })
            };
            shell.core.check_served(&shell.world, says, will_say);
            let is_empty = |number: u32| shell.world.pools[number as usize].queue.is_empty();
            shell.core.check_asked(&shell.world, is_empty, |slot| {
                let process = shell.processes[slot as usize].as_ref();
                process.is_some_and(|process| process.sleeps())
            });
        }
        let waited_us = shell.core.longest_wait_us();
        self.summary.longest_wait_us = self.summary.longest_wait_us.max(waited_us);
    }
}
