//! A seeded simulator: the real core, a world of words, backends and clients around it, and every
//! possible event, in an order that the seed decides.
//!
//! `make simulate` runs it for a time (`BATON_SIMULATE_SECONDS`), for a number of seeds
//! (`BATON_SIMULATE_SEEDS`), or for one seed (`BATON_SIMULATE_SEED`). A seed that has found a bug
//! is kept in [`FOUND`].
//!
//! These are as in reality. Backends write the shared words in the same order, and anything may
//! come in between that may in reality (process.rs). Frames of one connection come in order, those
//! of several in any order. Events of sockets come late and in any order, but only while there is
//! something to report. A kernel queue may be full. Processes die at any step, and the dispatcher,
//! too: the next one adopts what it has left (successor.rs).

mod carry_out;
mod checks;
mod coming_in;
mod costs;
mod event_times;
mod evictions;
mod happenings;
mod held_databases;
mod item_costs;
mod known_limits;
mod looked_at;
mod making_room;
mod many;
mod memory;
mod newcomers;
mod pauses;
mod process;
mod random;
mod rules;
mod scenario;
mod served;
mod settings;
mod settings_change;
mod shares;
mod shell;
mod stalls;
mod successor;
mod summary;
mod sweeps;
mod the_end;
mod told;
mod turns;
mod unserved_sessions;
mod world;

use scenario::Scenario;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};
use summary::Summary;

/// Seeds that have found a bug, and the bug.
const FOUND: [(u64, &str); 23] = [
    (
        3754,
        "a pool that was first for the one place made for it took all that had become free: a pool without a backend waited on",
    ),
    (
        3567,
        "a tenant that may not take the last free backend held the pool's clock back: one of the others was served six times, and another not at all",
    ),
    (
        2732,
        "a queue was taken back before its pool's turn in the same round: the pool was not served in the next",
    ),
    (
        197,
        "a place in a stall that a role may not take counted as the one it gets: no room was made",
    ),
    (
        314,
        "places for a stall were taken by pools that keep min_backends, and nobody who waited got one",
    ),
    (
        7232,
        "a queue taken back amid a round, as its counter was wrong: its first one was overtaken",
    ),
    (
        11,
        "an event of a socket that was armed for its end only: handed on twice",
    ),
    (
        23,
        "a cancel on the way to a backend that could not greet it: never greeted",
    ),
    (
        316,
        "a counter set right while a backend took that was dedicated until a moment ago",
    ),
    (
        47,
        "a shutdown with more slots of sessions than a round looks at: looked at for ever",
    ),
    (
        39,
        "in hand of one that crashed, while another of its pool exits in order",
    ),
    (
        40,
        "all who wait are in the ready queue, and its only taker is dedicated",
    ),
    (
        58,
        "ended for want of places though it came within the bound: all that came later were at work",
    ),
    (
        349,
        "a start that took too long was told of when its pool was no more: nobody knew whose",
    ),
    (
        560,
        "after a failed start a free backend counted as one that starts: none more for its least",
    ),
    (
        571,
        "one that is held and told to go gave its extra place away before it went",
    ),
    (
        1464,
        "told to keep its session while it showed itself free: claimed, and not dedicated any more",
    ),
    (
        1975,
        "dedicated until its session ended, and asleep before that was heard: not poked for the queue",
    ),
    (
        2165,
        "dedicated no longer and asleep before that was heard: not poked for the queue",
    ),
    (
        92,
        "given back by one that has ended: counted as served, beside reserves, for ever",
    ),
    (
        310,
        "for a superuser in need one more was started in each round, until there was no place",
    ),
    (
        2000515,
        "one that starts amid a look was looked at in place of one that slept: not poked",
    ),
    (
        4712,
        "all of max_backends were started in one turn of the loop",
    ),
];

/// The number of seeds that run by default: the same each time.
const SEEDS: u64 = 30;

/// Lives through a seed; reports a failure, with a log.
fn live<T>(seed: u64, life: impl Fn(&mut Scenario) -> T) -> T {
    let attempt = |logs| {
        let mut scenario = Scenario::new(seed, logs);
        let result = catch_unwind(AssertUnwindSafe(|| life(&mut scenario)));
        (result, scenario)
    };
    (attempt(false).0).unwrap_or_else(|_| attempt(true).1.fails(seed))
}

fn run(seed: u64) -> Summary {
    live(seed, Scenario::run)
}

/// A number that the environment has.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_dispatcher_that_ends_ends_sessions_that_no_backend_has() {
    for seed in 1..=40 {
        live(seed, |it| it.hand_back_midway(100 + 10 * seed as usize));
    }
}

#[test]
fn a_server_that_stops_leaves_sessions_that_no_backend_has() {
    for seed in 1..=40 {
        live(seed, |it| it.hold_midway(100 + 10 * seed as usize));
    }
}

#[test]
fn the_next_dispatcher_goes_on_with_what_a_dead_one_has_left() {
    let only = number("BATON_SIMULATE_SEED");
    let last = number("BATON_SIMULATE_SEEDS").unwrap_or(20);
    let mut total = successor::Adopted::default();
    for seed in only.map_or(1..=last, |seed| seed..=seed) {
        let steps = 100 + 10 * (seed as usize % 40);
        total.add(&live(seed, |it| it.die_midway(steps)));
    }
    eprintln!("{total:?}");
    assert!(only.is_some() || total.all_have_happened());
}

#[test]
fn seeds_that_have_found_something_find_nothing_more() {
    for (seed, _) in FOUND {
        run(seed);
    }
}

/// Runs a number of seeds, or seeds for a time, or one seed; from the first on, or from
/// `BATON_SIMULATE_FROM`.
#[test]
fn every_waiting_session_is_served_and_no_resource_is_lost() {
    let only = number("BATON_SIMULATE_SEED");
    let seconds = number("BATON_SIMULATE_SECONDS");
    let all = seconds.map_or(SEEDS, |_| u64::MAX);
    let seeds = number("BATON_SIMULATE_SEEDS").unwrap_or(all);
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(3600));
    let mut total = Summary::default();
    let mut seed = only.or(number("BATON_SIMULATE_FROM")).unwrap_or(1);
    let mut runs = 0;
    while runs == 0 || (only.is_none() && runs < seeds && Instant::now() < end) {
        total.add(&run(seed));
        seed += 1;
        runs += 1;
    }
    eprintln!("{runs} seeds: {total:?}");
    if only.is_none() && runs >= 20 {
        total.assert_all_has_happened();
    }
}
