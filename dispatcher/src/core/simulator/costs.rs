//! What one event costs the core if there is much of everything. The figures are for
//! docs/design/scheduler.md, and are no promises. Run it by hand, in release mode:
//!
//! `cargo test --release -p baton-dispatcher costs -- --ignored --nocapture`.

use super::settings::mark_of;
use super::shares::{busy, limits, quiet, Crowd, Steady};
use super::shell::Shell;
use crate::core::reclaim::{Claim, Holding, Rules};
use crate::core::sessions::DEFAULT_WEIGHT;
use crate::core::{Core, Event, Limits, PoolLimits};
use std::hint::black_box;
use std::time::Instant;

fn say(title: &str, began: Instant) {
    eprintln!("{title}: {} us", began.elapsed().as_micros());
}

fn say_times(title: &str, times: u64) {
    eprintln!("{title}: {times}");
}

fn steadily(title: &str, crowds: &[Crowd], limits: Limits) {
    let mut steady = Steady::new(crowds, limits);
    steady.go_on(300_000, false);
    steady.shell.costs.are_kept = true;
    steady.go_on(1_400_000, false);
    steady.shell.costs.say(title);
}

#[test]
#[ignore = "figures only"]
fn costs_where_10_000_pools_want_100_backends() {
    let crowds: Vec<Crowd> = (0..10_000).map(|pool| busy(pool, 1)).collect();
    steadily("10,000 pools, 100 backends", &crowds, limits(100));
}

#[test]
#[ignore = "figures only"]
fn costs_where_10_000_pools_want_1_000_backends() {
    let crowds: Vec<Crowd> = (0..10_000).map(|pool| busy(pool, 1)).collect();
    steadily("10,000 pools, 1,000 backends", &crowds, limits(1000));
}

/// Twice as many pools of one session as there are backends. If all transactions take the same
/// time, those that began together end together, round after round: the backends that are offered a
/// ticket all come to a boundary in one round, and none does in the next ten.
#[test]
#[ignore = "figures only"]
fn costs_of_making_room_among_very_many_backends() {
    for backends in [1_000, 2_000, 4_000] {
        for (transactions, spread_us) in [("2 ms", 1), ("1 to 3 ms", 2_000)] {
            let of = |pool: usize| Crowd {
                transaction_us: 2_000 - spread_us / 2 + pool as u64 * 7919 % spread_us,
                ..busy(pool, 1)
            };
            let crowds: Vec<Crowd> = (0..2 * backends).map(of).collect();
            let mut steady = Steady::new(&crowds, limits(backends));
            steady.go_on(200_000, false);
            steady.shell.costs.are_kept = true;
            let opened = steady.shell.opened;
            steady.go_on(200_000, false);
            let pools = 2 * backends;
            let title = format!("{pools} pools, {backends} backends, {transactions}");
            steady.shell.costs.say(&title);
            say_times("  passed on", steady.shell.opened - opened);
        }
    }
}

/// The choice of the backend that leaves, of all backends.
#[test]
#[ignore = "figures only"]
fn costs_of_one_choice() {
    let now_us = 100_000_000;
    let claim = Claim {
        pool: u32::MAX,
        backends: 0,
        since_us: now_us - 100_000,
        same_first_for_us: 0,
        without_since_us: now_us - 100_000,
        weight: DEFAULT_WEIGHT,
        is_lacking: false,
        is_owed: false,
        is_role_without: false,
        has_its_share: false,
    };
    for backends in [1_000, 4_000, 10_000] {
        let held = |slot: u32| Holding {
            slot,
            pool: slot,
            backends: 1,
            waits_since_us: None,
            has_sessions: true,
            since_us: u64::from(slot) * 7919 % now_us,
            has_served: true,
            free_for_us: None,
            weight: DEFAULT_WEIGHT,
            is_reserved: false,
        };
        let all: Vec<Holding> = (0..backends as u32).map(held).collect();
        let rules = Rules::new(now_us, 60_000_000, backends, backends, 6_000);
        let began = Instant::now();
        for _ in 0..1_000 {
            black_box(rules.choose(black_box(&claim), black_box(&all)));
        }
        let us = began.elapsed().as_micros() as f64 / 1_000.0;
        eprintln!("{backends} backends: {us:.1} us");
    }
}

#[test]
#[ignore = "figures only"]
fn costs_where_one_pool_has_300_backends() {
    for clients in [250, 600] {
        let title = format!("one pool, 300 backends, {clients} clients");
        steadily(&title, &[busy(0, clients)], limits(300));
    }
}

/// 10,000 pools of one session, or one pool of 10,000, or 10,000 of one group.
#[test]
#[ignore = "figures only"]
fn costs_of_what_concerns_many_at_once() {
    let tenants: Vec<Crowd> = (0..10_000).map(|pool| busy(pool, 1)).collect();
    for (title, crowds) in [
        ("10,000 pools", tenants),
        ("one pool of 10,000", vec![busy(0, 10_000)]),
    ] {
        eprintln!("{title}");
        let mut steady = Steady::new(&crowds, limits(1000));
        steady.go_on(300_000, false);
        let shell = &mut steady.shell;

        let began = Instant::now();
        shell.core.settings_changed(&[mark_of(0, 0)]);
        say("  settings of one role", began);
        shell.carry_out();
        shell.costs.are_kept = true;
        hold(shell, false);
        let began = Instant::now();
        (shell.costs).handle(&mut shell.core, Event::HoldEnded(1), &shell.world);
        say("  a hold ends", began);
        shell.carry_out();
        shell.tell(Event::RoundEnds);
        shell.costs.say("  and the rounds that follow");
        let began = Instant::now();
        shell.core.ask_limits_again();
        shell.tell(Event::RoundEnds);
        say("  limits of all", began);
        shell.carry_out();
        let began = Instant::now();
        shell
            .core
            .handle(Event::Stop { holds: false }, &shell.world);
        say("  stop", began);
        shell.tell(Event::RoundEnds);
        shell.costs.say("  stopping");
    }
}

/// A statement wants a database.
fn hold(shell: &mut Shell, forced: bool) {
    shell.unanswered.insert(1);
    shell.found = 0;
    let began = Instant::now();
    (shell.core).hold(1, 1, forced, 0, &shell.world);
    say("  a hold begins", began);
    shell.carry_out();
    while shell.core.is_ending() {
        shell.tell(Event::RoundEnds);
    }
    assert!(shell.unanswered.is_empty());
    let title = format!("  {} are in it", shell.found);
    shell.costs.say(&title);
}

#[test]
#[ignore = "figures only"]
fn costs_of_a_database_that_is_dropped_by_force() {
    let crowds: Vec<Crowd> = (0..10_000).map(|pool| busy(pool, 1)).collect();
    let mut steady = Steady::new(&crowds, limits(1000));
    steady.go_on(300_000, false);
    let shell = &mut steady.shell;
    shell.costs.are_kept = true;
    hold(shell, true);
    shell.tell(Event::HoldEnded(1));
    while shell.core.is_ending() {
        shell.tell(Event::RoundEnds);
    }
    shell.costs.say("  it ends");
}

/// 10,000 pools of one role in a database, which startup options split.
#[test]
#[ignore = "figures only"]
fn costs_of_memory_that_very_many_pools_share() {
    let of = |pool| Crowd {
        think_us: 1_000_000_000,
        is_of_role_0: true,
        ..quiet(pool)
    };
    let crowds: Vec<Crowd> = (0..10_000).map(of).collect();
    let mut steady = Steady::new(&crowds, limits(100));
    steady.go_on(20_000, false);
    for memory in [-1, 1_000_000] {
        let shell = &mut steady.shell;
        let most = PoolLimits::of([-1, -1, -1, 0, 0, 0, memory]);
        let began = Instant::now();
        shell.core.set_pool_limits((0, 1), most);
        say("limits of their role are known", began);
        shell.carry_out();
        shell.costs.are_kept = true;
        for _ in 0..50 {
            shell.tell(Event::RoundEnds);
        }
        shell.costs.say("  and then");
        for member in steady.members.iter().take(1_000) {
            let (id, grown) = (member.id, 1_000);
            shell.tell(Event::Stored { id, grown });
            shell.tell(Event::RoundEnds);
        }
        shell.costs.are_kept = false;
        shell
            .costs
            .say(&format!("contexts grow, limit {memory} kB"));
    }
}

/// Settings of 10,000 pools change; and pool_mode of one pool with 1,000 backends.
#[test]
#[ignore = "figures only"]
fn costs_of_settings_that_change() {
    let tenants: Vec<Crowd> = (0..10_000).map(|pool| busy(pool, 1)).collect();
    type Change = fn(&mut Core);
    let settings: [(&str, Change); 2] = [
        ("what all roles have", |core| {
            core.settings_changed(&[0]);
        }),
        ("what one database has", |core| {
            core.settings_changed(&[mark_of(1, 0)]);
        }),
    ];
    for (title, change) in settings {
        let mut steady = Steady::new(&tenants, limits(1000));
        steady.go_on(300_000, false);
        let shell = &mut steady.shell;
        let began = Instant::now();
        change(&mut shell.core);
        say(title, began);
        shell.carry_out();
        rounds(shell, "  and then");
    }
    let crowd = [busy(0, 10_000)];
    let mut steady = Steady::new(&crowd, limits(1000));
    steady.go_on(300_000, false);
    for (title, mode) in [("dedicated", 1), ("shared", 0)] {
        let shell = &mut steady.shell;
        let set = PoolLimits::of([-1, -1, -1, mode, 0, 0, -1]);
        let began = Instant::now();
        shell.core.set_pool_limits((0, 1), set);
        say(title, began);
        shell.carry_out();
        rounds(shell, "  and then");
        steady.go_on(100_000, false);
    }
}

/// Runs rounds until nothing is left to do.
fn rounds(shell: &mut Shell, title: &str) {
    shell.costs.are_kept = true;
    for _ in 0..200 {
        shell.tell(Event::RoundEnds);
    }
    shell.costs.are_kept = false;
    shell.costs.say(title);
}
