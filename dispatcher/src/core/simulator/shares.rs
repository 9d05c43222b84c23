//! The shares of tenants and pools: the real core beside crowds that behave evenly, without any
//! failure. These tests check what the rules achieve over seconds; the other seeds check what must
//! hold at each step.

use super::random::Random;
use super::shell::Shell;
use super::world::{Armed, Client, Idles};
use crate::core::{Event, Limits, Now, PoolLimits, SessionId, Shown, TenantKey};

const STEP_US: u64 = 200;
const TICK_US: u64 = 20_000;
const SWEEP_US: u64 = 1_000_000;

/// Clients of one pool that behave alike.
#[derive(Clone, Copy)]
pub(super) struct Crowd {
    pub pool: usize,
    pub clients: usize,
    pub transaction_us: u64,
    /// Between an answer and the next request, on average.
    pub think_us: u64,
    pub weight: i32,
    pub reserve: i32,
    /// Each request comes from a new session.
    pub is_new_each_time: bool,
    /// Of role 0, as others are: their pools differ by startup options alone.
    pub is_of_role_0: bool,
    /// Its role has no pool of its own: it uses the database's.
    pub is_in_one_pool: bool,
    /// pg_baton.pool_max_backends; 0: none.
    pub most: i32,
    pub is_superuser: bool,
}

/// Clients that ask again at once.
pub(super) fn busy(pool: usize, clients: usize) -> Crowd {
    Crowd {
        pool,
        clients,
        transaction_us: 2_000,
        think_us: 0,
        weight: 0,
        reserve: 0,
        is_new_each_time: false,
        is_of_role_0: false,
        is_in_one_pool: false,
        most: 0,
        is_superuser: false,
    }
}

/// A client that seldom asks.
pub(super) fn quiet(pool: usize) -> Crowd {
    Crowd {
        think_us: 100_000,
        ..busy(pool, 1)
    }
}

/// What a crowd got.
#[derive(Debug, Default, Clone)]
pub(super) struct Served {
    pub answers: u64,
    /// From request to answer, sorted.
    pub times_us: Vec<u64>,
    /// Most and fewest backends that its pool had, after the first second.
    backends: (usize, usize),
}

impl Served {
    fn p99_us(&self) -> u64 {
        self.times_us[self.times_us.len() * 99 / 100]
    }
}

pub(super) struct Member {
    crowd: usize,
    pub id: SessionId,
    answered: u32,
    /// u64::MAX: not before it is told to.
    pub asks_at_us: u64,
}

pub(super) struct Steady<'a> {
    pub shell: Shell,
    last_tick_us: u64,
    last_sweep_us: u64,
    crowds: &'a [Crowd],
    pub members: Vec<Member>,
    served: Vec<Served>,
    /// The time from a process's report that it exits until its end.
    exit_us: u64,
    /// Since when the process in each slot exits.
    exits_since_us: Vec<Option<u64>>,
}

pub(super) fn limits(backends: usize) -> Limits {
    Limits {
        max_backends: backends,
        max_extra: Some(0),
        ceiling: backends,
        session_wait_timeout_us: 60_000_000,
        ..Limits::default()
    }
}

impl Steady<'_> {
    pub fn new(crowds: &[Crowd], limits: Limits) -> Steady<'_> {
        let sessions: usize = crowds.iter().map(|crowd| crowd.clients).sum();
        let pools = crowds.iter().map(|crowd| crowd.pool + 1).max().unwrap_or(1);
        let slots = limits.ceiling + limits.for_superusers;
        let sizes = (sessions + 8, pools + 2, slots);
        let mut shell = Shell::new(1, limits, sizes, Random::new(1));
        shell.start_us = 6_000;
        shell.world.is_plain = true;
        let begin_us = shell.world.now_us;
        let mut steady = Steady {
            shell,
            last_tick_us: begin_us,
            last_sweep_us: begin_us,
            crowds,
            members: Vec::new(),
            served: vec![Served::default(); crowds.len()],
            exit_us: 0,
            exits_since_us: vec![None; slots],
        };
        for served in &mut steady.served {
            served.backends = (0, usize::MAX);
        }
        for (crowd, of) in crowds.iter().enumerate() {
            for _ in 0..of.clients {
                let id = steady.log_in(of.pool);
                let asks_at_us = steady.shell.world.now_us + steady.pause_us(of);
                steady.members.push(Member {
                    crowd,
                    id,
                    answered: 0,
                    asks_at_us,
                });
            }
        }
        // The work of the logins belongs to no turn.
        steady.shell.costs.turn_ends();
        steady
    }

    fn pause_us(&mut self, crowd: &Crowd) -> u64 {
        match crowd.think_us {
            0 => 0,
            think_us => self.shell.random.between(think_us / 2, think_us * 3 / 2),
        }
    }

    pub fn log_in(&mut self, pool: usize) -> SessionId {
        self.log_in_to(pool, 1)
    }

    pub fn log_in_to(&mut self, pool: usize, database_oid: u32) -> SessionId {
        let crowd = self.crowds.iter().find(|crowd| crowd.pool == pool);
        let options = match crowd.is_some_and(|crowd| crowd.is_of_role_0) {
            true => vec![(b"number".to_vec(), pool.to_string().into_bytes())],
            false => Vec::new(),
        };
        let role = if options.is_empty() { pool } else { 0 };
        let key = TenantKey {
            user: format!("user {role}").into_bytes(),
            database: b"database".to_vec(),
            role_oid: role as u32,
            database_oid,
            superuser: crowd.is_some_and(|crowd| crowd.is_superuser),
            options,
            is_apart: !crowd.is_some_and(|crowd| crowd.is_in_one_pool),
        };
        let shell = &mut self.shell;
        let found = shell.core.find_tenant(&key);
        let tenant = found.or_else(|| shell.core.create_tenant(key));
        shell.carry_out();
        let tenant = tenant.expect("there is room");
        let id = shell.core.begin_session(tenant, &shell.world);
        let id = id.expect("there is room");
        let group = (role as u32, database_oid);
        let now = shell.world.now_us as i64;
        let words = shell.world.session(id);
        words.is_free = false;
        words.shown = Shown::Idle;
        words.since_us = now;
        self.shell.world.clients[id as u32 as usize] = Some(Client {
            id,
            group,
            tenant,
            needs: self.shell.world.settings.needed_by(group),
            context_bytes: 0,
            asked: 0,
            answered: 0,
            has_gone: false,
            armed: Armed::Fully,
            greeted: true,
            closed: false,
            asks_since_us: 0,
            taints: 0,
            transaction_us: crowd.map_or(1, |crowd| crowd.transaction_us),
            wants_lock: false,
            idles: Idles::Not,
        });
        id
    }

    /// Runs for this number of seconds; only answers after the first second count.
    pub fn run(mut self, seconds: u64) -> (Vec<Served>, u64) {
        self.go_on(1_000_000, false);
        self.go_on(seconds * 1_000_000, true);
        for served in &mut self.served {
            served.times_us.sort_unstable();
        }
        (self.served, self.shell.opened)
    }

    /// Runs for this time.
    pub fn go_on(&mut self, for_us: u64, counts: bool) {
        let begin_us = self.shell.world.now_us;
        let opened = self.shell.opened;
        while self.shell.world.now_us < begin_us + for_us {
            self.shell.world.now_us += STEP_US;
            self.shell.world.timestamp += STEP_US as i64;
            let now_us = self.shell.world.now_us;
            self.clients_go_on(counts);
            let slots = self.shell.processes.len();
            self.shell.step_backends(30 * slots);
            self.openings_go_on();
            self.answer_questions();
            self.shell.core.set_clock(Now {
                us: now_us,
                timestamp: self.shell.world.timestamp,
                shared_us: now_us as i64,
            });
            self.shell.deliver(1000);
            self.shell.queues_with_room();
            self.bury_dead();
            if now_us >= self.last_tick_us + TICK_US {
                self.last_tick_us = now_us;
                self.shell.waited_us = self.shell.core.longest_of_all_us(&self.shell.world);
                self.shell.tell(Event::Tick);
            }
            if now_us >= self.last_sweep_us + SWEEP_US {
                self.last_sweep_us = now_us;
                self.shell.tell(Event::Sweep);
            }
            self.shell.tell(Event::RoundEnds);
            self.shell.tell(Event::MakeRoom);
            if counts {
                self.count_backends();
            }
            // Whatever the turns are, passing a backend on costs more than a transaction.
            let seconds = (now_us - begin_us) / 1_000_000 + 1;
            assert!(
                self.shell.opened - opened <= seconds * 20 * slots as u64,
                "backends come and go without end"
            );
        }
    }

    fn clients_go_on(&mut self, counts: bool) {
        let now_us = self.shell.world.now_us;
        for at in 0..self.members.len() {
            let member = &self.members[at];
            let (crowd, id) = (member.crowd, member.id);
            let of = self.crowds[crowd];
            let Some(client) = self.shell.world.client(id) else {
                continue;
            };
            if client.answered > member.answered {
                let took_us = now_us - client.asks_since_us;
                self.members[at].answered += 1;
                if counts {
                    self.served[crowd].answers += 1;
                    self.served[crowd].times_us.push(took_us);
                }
                if of.is_new_each_time {
                    client.has_gone = true;
                    self.members[at].id = self.log_in(of.pool);
                    self.members[at].answered = 0;
                }
                self.members[at].asks_at_us = now_us + self.pause_us(&of);
            }
            let member = &self.members[at];
            let (is_due, answered) = (now_us >= member.asks_at_us, member.answered);
            let id = member.id;
            if let Some(client) = self.shell.world.client(id).filter(|_| is_due) {
                if client.asked == 0 && client.answered == answered {
                    let asks_at_us = &mut self.members[at].asks_at_us;
                    if *asks_at_us != u64::MAX {
                        *asks_at_us = u64::MAX;
                        client.asked = 1;
                        client.asks_since_us = now_us;
                    }
                }
            }
        }
    }

    fn openings_go_on(&mut self) {
        let now_us = self.shell.world.now_us;
        let openings = self.shell.openings.iter();
        let due: Vec<(u32, u32)> = openings
            .filter(|opening| opening.at_us <= now_us)
            .map(|opening| (opening.slot, opening.pool))
            .collect();
        for (slot, pool) in due {
            self.shell.attach(slot, pool);
        }
    }

    fn bury_dead(&mut self) {
        let now_us = self.shell.world.now_us;
        for (slot, since_us) in self.exits_since_us.iter_mut().enumerate() {
            let process = self.shell.processes[slot].as_ref();
            let exits = process.filter(|process| process.has_ended);
            let since = exits.map(|_| since_us.unwrap_or(now_us));
            *since_us = since;
            let is_over = since.is_some_and(|since_us| now_us >= since_us + self.exit_us);
            if is_over && exits.is_some_and(|process| process.outbox.len() == 1) {
                *since_us = None;
                self.shell.tell(Event::BackendGone(slot as u32));
            }
        }
    }

    fn answer_questions(&mut self) {
        while let Some((role, database)) = self.shell.asked_limits.pop() {
            let of = self.crowds.iter().find(|crowd| crowd.pool == role as usize);
            let (weight, reserve) = of.map_or((0, 0), |crowd| (crowd.weight, crowd.reserve));
            let most = of.map_or(0, |crowd| crowd.most);
            let most = if most == 0 { -1 } else { most };
            let limits = PoolLimits::of([most, -1, -1, 0, weight, reserve, -1]);
            self.shell.costs.is_answered();
            self.shell.core.set_pool_limits((role, database), limits);
            self.shell.carry_out();
        }
    }

    /// Backends of each crowd's pool.
    pub fn shares(&self) -> Vec<usize> {
        let of = |crowd: &Crowd| {
            let processes = self.shell.processes.iter().flatten();
            let is_own = |number| {
                let key = self.shell.core.pool_key(number);
                key.is_some_and(|key| key.role_oid == Some(crowd.pool as u32))
            };
            processes
                .filter(|process| !process.has_ended && is_own(process.pool))
                .count()
        };
        self.crowds.iter().map(of).collect()
    }

    fn count_backends(&mut self) {
        for (crowd, count) in self.shares().into_iter().enumerate() {
            let (most, fewest) = self.served[crowd].backends;
            self.served[crowd].backends = (most.max(count), fewest.min(count));
        }
    }
}

#[test]
fn busy_pools_get_what_they_weigh() {
    for is_in_one_pool in [false, true] {
        for weights in [[100, 300], [300, 100], [100, 100]] {
            let crowds: Vec<Crowd> = (weights.iter().enumerate())
                .map(|(pool, weight)| Crowd {
                    weight: *weight,
                    is_in_one_pool,
                    ..busy(pool, 24)
                })
                .collect();
            let (served, _) = Steady::new(&crowds, limits(8)).run(6);
            let share = served[0].answers as f64 / (served[0].answers + served[1].answers) as f64;
            let due = f64::from(weights[0]) / f64::from(weights[0] + weights[1]);
            assert!((share - due).abs() < 0.06, "{weights:?}: {share}");
        }
    }
}

fn in_one_pool(crowd: Crowd) -> Crowd {
    Crowd {
        is_in_one_pool: true,
        ..crowd
    }
}

/// And does not wait for a tick each time.
#[test]
fn a_limited_tenant_of_a_pool_is_served_within_its_limit() {
    let limited = Crowd {
        most: 2,
        ..in_one_pool(busy(0, 30))
    };
    let crowds = [limited, in_one_pool(busy(1, 30))];
    let (served, _) = Steady::new(&crowds, limits(8)).run(4);
    let [limited, other] = [served[0].answers, served[1].answers];
    assert!(limited > 1_200 && other > 2 * limited, "{limited} {other}");
}

#[test]
fn a_limit_of_one_tenant_starts_no_backend_for_those_beyond() {
    let crowds = [Crowd {
        most: 2,
        ..in_one_pool(busy(0, 30))
    }];
    let mut steady = Steady::new(&crowds, limits(8));
    steady.go_on(3_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), 2);
}

#[test]
fn reserve_within_a_pool_is_there_whatever_other_roles_ask() {
    let reserving = Crowd {
        clients: 2,
        reserve: 2,
        transaction_us: 50_000,
        ..in_one_pool(quiet(0))
    };
    let other = |role| in_one_pool(busy(role, 20));
    let crowds = [reserving, other(1), other(2), other(3)];
    let (served, _) = Steady::new(&crowds, limits(6)).run(6);
    assert!(served[0].p99_us() < 54_000, "{}", served[0].p99_us());
    // The others share what is left.
    assert!(served[1..].iter().all(|one| one.answers > 2_000));
}

/// It waits for the sessions in the ready queue, and one of each other tenant's.
#[test]
fn a_quiet_tenant_of_a_pool_waits_for_no_crowd() {
    let crowds = [in_one_pool(busy(0, 300)), in_one_pool(quiet(1))];
    let (served, _) = Steady::new(&crowds, limits(8)).run(6);
    assert!(served[1].answers > 30, "{:?}", served[1]);
    assert!(served[1].p99_us() < 12_000, "{:?}", served[1]);
}

/// Of two crowds on 8 backends the second one comes a second later.
pub(super) fn come_to_equal_shares(steady: &mut Steady<'_>) {
    for member in steady.members.iter_mut().filter(|it| it.crowd == 1) {
        member.asks_at_us += 1_000_000;
    }
    steady.go_on(900_000, false);
    assert_eq!(steady.shares(), [8, 0]);
    steady.go_on(6_000_000, false);
    assert_eq!(steady.shares(), [4, 4]);
    let before = steady.shell.opened;
    steady.go_on(10_000_000, false);
    assert_eq!((steady.shares(), steady.shell.opened), (vec![4, 4], before));
}

/// However many backends each had when the other came, and however short its sessions wait; after
/// that none is passed on any more.
#[test]
fn equal_busy_pools_come_to_equal_shares_and_stay() {
    for exit_us in [0, 15_000] {
        let crowds = [busy(0, 24), busy(1, 24)];
        let mut steady = Steady::new(&crowds, limits(8));
        steady.exit_us = exit_us;
        come_to_equal_shares(&mut steady);
    }
}

#[test]
fn where_turns_are_taken_a_turn_is_longer_by_weight() {
    let crowds: Vec<Crowd> = (0..12)
        .map(|pool| Crowd {
            weight: if pool < 2 { 200 } else { 100 },
            ..busy(pool, 2)
        })
        .collect();
    let (served, _) = Steady::new(&crowds, limits(4)).run(12);
    let heavy = served[..2].iter().map(|one| one.answers).sum::<u64>() as f64 / 2.0;
    let others = served[2..].iter().map(|one| one.answers).sum::<u64>() as f64 / 10.0;
    assert!((1.5..2.5).contains(&(heavy / others)), "{heavy} {others}");
}

#[test]
fn fifty_busy_users_on_eight_backends_are_served_evenly_soon() {
    let crowds: Vec<Crowd> = (0..50).map(|pool| busy(pool, 2)).collect();
    let mut steady = Steady::new(&crowds, limits(8));
    // As on a busy machine.
    (steady.shell.start_us, steady.exit_us) = (20_000, 15_000);
    let (served, opened) = steady.run(10);
    let mut answers: Vec<u64> = served.iter().map(|one| one.answers).collect();
    answers.sort_unstable();
    assert!(answers[0] * 10 > answers[25] * 7, "{answers:?}");
    // One after the other, each with one backend: a round is 50 / 8 turns.
    let longest_us = served.iter().filter_map(|one| one.times_us.last()).max();
    assert!(longest_us < Some(&2_500_000), "{longest_us:?}");
    let most = served.iter().map(|one| one.backends.0).max();
    assert_eq!(most, Some(1));
    // And passing on stays cheap: each backend is passed on less than once in 250 ms.
    assert!(opened < 11 * 8 * 1000 / 250, "{opened}");
}

/// Other processes have the CPUs: the lost fraction does not grow with the cost, and no session
/// waits for longer than a round may take.
#[test]
fn turns_are_as_long_as_passing_backends_on_is_dear() {
    for (start_us, exit_us) in [(8_000, 2_000), (30_000, 20_000), (60_000, 30_000)] {
        let crowds: Vec<Crowd> = (0..50).map(|pool| busy(pool, 2)).collect();
        let mut steady = Steady::new(&crowds, limits(8));
        (steady.shell.start_us, steady.exit_us) = (start_us, exit_us);
        let (served, opened) = steady.run(20);
        // A start takes half of that on average.
        let lost_us = opened * (start_us / 2 + exit_us);
        let part = lost_us as f64 / (8 * 21_000_000) as f64;
        assert!(part < 0.15, "{part} for {start_us} and {exit_us}");
        let longest_us = served.iter().filter_map(|one| one.times_us.last()).max();
        assert!(longest_us < Some(&4_000_000), "{longest_us:?}");
    }
}

#[test]
fn reserve_of_a_pool_is_there_whatever_other_pools_ask() {
    let reserving = Crowd {
        clients: 2,
        reserve: 2,
        transaction_us: 50_000,
        ..quiet(0)
    };
    let crowds = [reserving, busy(1, 20), busy(2, 20), busy(3, 20)];
    let (served, _) = Steady::new(&crowds, limits(6)).run(6);
    assert_eq!(served[0].backends.1, 2, "{:?}", served[0].backends);
    assert!(served[0].p99_us() < 54_000, "{}", served[0].p99_us());
    // The others share what is left.
    assert!(served[1..].iter().all(|one| one.answers > 2_000));
}

#[test]
fn a_quiet_user_waits_for_no_crowd() {
    let crowds = [busy(0, 300), quiet(1)];
    let (served, _) = Steady::new(&crowds, limits(8)).run(6);
    assert!(served[1].answers > 30, "{:?}", served[1]);
    // Its backend is kept: the wait is a transaction, and a turn of the loop.
    assert!(served[1].p99_us() < 4_000, "{:?}", served[1]);
    assert!(served[0].answers > 20_000, "{}", served[0].answers);
}

#[test]
fn quiet_or_new_session_does_not_wait_behind_crowd_of_its_user() {
    let rare = Crowd {
        clients: 2,
        think_us: 300_000,
        ..quiet(0)
    };
    let newcomer = Crowd {
        is_new_each_time: true,
        ..rare
    };
    let crowds = [busy(0, 300), rare, newcomer];
    let (served, _) = Steady::new(&crowds, limits(8)).run(8);
    // All of them take 300 / 8 transactions of 2 ms. Before a session come those in the ready
    // queue, and every other one of the crowd.
    assert!(served[0].times_us[served[0].times_us.len() / 2] > 60_000);
    for one in &served[1..] {
        assert!(one.answers > 30, "{one:?}");
        assert!(one.p99_us() < 12_000, "{}", one.p99_us());
    }
}

#[test]
fn no_event_looks_at_all_of_many_pools_that_want_a_backend() {
    let crowds: Vec<Crowd> = (0..800).map(|pool| busy(pool, 1)).collect();
    let mut steady = Steady::new(&crowds, limits(16));
    // All have spoken.
    steady.go_on(100_000, false);
    steady.shell.most_looks = 0;
    steady.go_on(1_000_000, false);
    // At 256 pools a few times each, and at those that have backends.
    assert!(
        steady.shell.most_looks < 3000,
        "{}",
        steady.shell.most_looks
    );
    // And all have their turns: 160 a second.
    let (served, opened) = steady.run(8);
    let without = served.iter().filter(|one| one.answers == 0).count();
    assert_eq!(without, 0, "{opened} backends, and some were never served");
    let mut answers: Vec<u64> = served.iter().map(|one| one.answers).collect();
    answers.sort_unstable();
    assert!(answers[40] * 3 > answers[360], "{answers:?}");
}

#[test]
fn those_that_always_ask_keep_every_other_turn() {
    let new = |clients| Crowd {
        clients,
        think_us: 0,
        is_new_each_time: true,
        ..quiet(0)
    };
    let crowds = [busy(0, 100), new(100)];
    let (served, _) = Steady::new(&crowds, limits(4)).run(4);
    let (old, new) = (served[0].answers, served[1].answers);
    assert!(old * 10 > new * 8, "{old} {new}");
}

/// A backend dies without a message. While its possible sessions are looked for, another backend
/// starts.
#[test]
fn session_that_asks_as_a_backend_is_buried_is_answered_once() {
    let crowds = [Crowd {
        clients: 12_000,
        think_us: 1_000_000_000,
        ..quiet(0)
    }];
    let mut steady = Steady::new(&crowds, limits(2));
    steady.shell.start_us = 1_000;
    let ask = |steady: &mut Steady<'_>, at: usize| {
        let now_us = steady.shell.world.now_us;
        let id = steady.members[at].id;
        let client = steady.shell.world.client(id).expect("it is there");
        (client.asked, client.asks_since_us) = (1, now_us);
    };
    for member in &mut steady.members {
        member.asks_at_us = u64::MAX;
    }
    ask(&mut steady, 0);
    steady.go_on(50_000, false);
    assert_eq!(steady.shell.core.backend_count(), 1);
    let process = steady.shell.processes.iter_mut().flatten().next();
    process.expect("it has come").die(false);
    let asking = 11_940..12_000;
    for at in asking.clone() {
        ask(&mut steady, at);
    }
    let mut answered_meanwhile = 0;
    for _ in 0..600 {
        steady.go_on(STEP_US, false);
        if steady.shell.core.is_burying() {
            steady.shell.core.check_tables();
            steady.shell.check_world();
            answered_meanwhile = steady.members.iter().map(|it| it.answered).sum();
        }
    }
    assert!(answered_meanwhile > 1, "none came so soon");
    for at in asking {
        assert_eq!(steady.members[at].answered, 1, "{at}");
    }
    // It had given its first session back, which was new.
    assert_eq!(steady.shell.core.sessions().live(), 12_000);
}
