//! More backends than are looked at for room in a round.

use super::many::ask;
use super::random::Random;
use super::shares::{busy, come_to_equal_shares, limits, quiet, Crowd, Steady};
use crate::core::{Limits, Words};
use crate::protocol::opening::Failure;
use crate::protocol::Report;

const AT_ONCE: usize = 8;
/// Looked at once more before they are told.
const OFFERED: u64 = 2;

#[test]
fn however_many_backends_there_are_no_event_looks_at_all_of_them_for_room() {
    let crowds: Vec<Crowd> = (0..100).map(|pool| busy(pool, 2)).collect();
    let mut steady = Steady::new(&crowds, limits(40));
    steady.shell.core.holdings.look_at_few(AT_ONCE);
    steady.go_on(1_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), 40);
    steady.shell.most_backends_seen = 0;
    for _ in 0..5_000 {
        steady.go_on(200, false);
        let core = &steady.shell.core;
        assert!(!core.holdings.is_begun() || core.has_more(), "it sleeps");
    }
    let seen = steady.shell.most_backends_seen;
    assert!(seen <= AT_ONCE as u64 + OFFERED, "{seen}");
    // And all come to their turns.
    let (served, _) = steady.run(8);
    let mut answers: Vec<u64> = served.iter().map(|one| one.answers).collect();
    answers.sort_unstable();
    assert!(answers[0] * 10 > answers[50] * 7, "{answers:?}");
    let longest_us = served.iter().filter_map(|one| one.times_us.last()).max();
    assert!(longest_us < Some(&2_500_000), "{longest_us:?}");
}

/// The same as `equal_busy_pools_come_to_equal_shares_and_stay`.
#[test]
fn equal_busy_pools_come_to_equal_shares_however_few_backends_are_looked_at() {
    let crowds = [busy(0, 24), busy(1, 24)];
    let mut steady = Steady::new(&crowds, limits(8));
    steady.shell.core.holdings.look_at_few(3);
    come_to_equal_shares(&mut steady);
}

#[test]
fn what_is_too_much_goes_however_few_backends_are_looked_at() {
    let crowds: Vec<Crowd> = (0..5).map(|pool| busy(pool, 10)).collect();
    let mut steady = Steady::new(&crowds, limits(40));
    steady.shell.core.holdings.look_at_few(AT_ONCE);
    steady.go_on(1_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), 40);
    let fewer = Limits {
        max_backends: 10,
        ..limits(40)
    };
    steady.shell.core.set_limits(fewer);
    steady.go_on(3_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), 10);
}

/// Of 12 backends of one pool the last two are at work for a moment each time, the others
/// for long; and there is one who has none.
#[test]
fn of_very_many_that_may_go_others_are_told_the_next_time() {
    let crowds = [busy(0, 12), quiet(1)];
    let mut steady = Steady::new(&crowds, limits(12));
    steady.shell.core.holdings.look_at_few(AT_ONCE);
    steady.members[12].asks_at_us = u64::MAX;
    steady.go_on(500_000, false);
    let slots = steady.shell.core.pool_backends(0).to_vec();
    assert_eq!(slots.len(), 12);
    for slot in &slots[..10] {
        let words = &steady.shell.world;
        let id = words.backend_session(*slot);
        let client = steady.shell.world.client(id).expect("each has one");
        client.transaction_us = 60_000_000;
    }
    steady.go_on(100_000, false);
    let id = steady.members[12].id;
    ask(&mut steady, id);
    steady.go_on(500_000, false);
    let client = steady.shell.world.client(id).expect("it is there");
    assert!(client.answered > 0, "nobody goes for it");
}

/// Of 40 backends those of the first 30 pools are reserved, and so many are compared for one
/// choice that it takes four.
#[test]
fn of_very_many_the_only_ones_that_may_go_are_found_in_the_next_rounds() {
    let of = |pool: usize| Crowd {
        reserve: i32::from(pool < 30),
        ..busy(pool, 1)
    };
    let mut crowds: Vec<Crowd> = (0..40).map(of).collect();
    crowds.push(quiet(40));
    let mut steady = Steady::new(&crowds, limits(40));
    steady.shell.core.holdings.look_at_few(AT_ONCE);
    steady.members[40].asks_at_us = u64::MAX;
    steady.go_on(1_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), 40);
    let id = steady.members[40].id;
    ask(&mut steady, id);
    // Not in as many ticks.
    steady.go_on(35_000, false);
    let client = steady.shell.world.client(id).expect("it is there");
    assert_eq!(client.answered, 1);
}

/// What was seen of very many serves for a tick, in which many go, one after the other. Of
/// 1,100 a 64th is offered a ticket at a time.
#[test]
fn of_very_many_those_that_have_gone_are_not_chosen_again() {
    let of = |pool: usize| Crowd {
        transaction_us: 1_000 + pool as u64 * 7919 % 2_000,
        ..busy(pool, 1)
    };
    let crowds: Vec<Crowd> = (0..2_200).map(of).collect();
    let mut steady = Steady::new(&crowds, limits(1_100));
    steady.go_on(200_000, false);
    let before = steady.shell.opened;
    steady.go_on(60_000, false);
    let passed_on = steady.shell.opened - before;
    // In 300 rounds, of which looks take a few.
    assert!(passed_on > 200, "{passed_on}");
}

/// The server has no more connections than these: whoever wants another one is refused.
fn refuse(steady: &mut Steady<'_>, most: usize) -> usize {
    let shell = &mut steady.shell;
    if shell.processes.iter().flatten().count() < most {
        return 0;
    }
    let slots: Vec<u32> = shell.openings.iter().map(|it| it.slot).collect();
    for slot in &slots {
        let report = Report::fatal(b"53300", "sorry, too many clients already");
        shell.openings.retain(|opening| opening.slot != *slot);
        let failure = Failure::ServerError(report);
        (shell.core).open_failed(*slot, failure, &shell.world);
        shell.carry_out();
    }
    slots.len()
}

/// All have a backend that is free, and somebody asks in another database.
#[test]
fn a_server_that_is_full_has_room_when_one_that_is_free_has_gone() {
    let role = 25;
    let crowds: Vec<Crowd> = (0..40)
        .map(|pool| Crowd {
            think_us: 1_000_000_000,
            ..quiet(pool)
        })
        .collect();
    let mut steady = Steady::new(&crowds, limits(64));
    steady.shell.random = Random::new(1);
    steady.shell.core.holdings.look_at_few(AT_ONCE);
    for at in 0..40 {
        let id = steady.members[at].id;
        steady.members[at].asks_at_us = u64::MAX;
        ask(&mut steady, id);
    }
    steady.go_on(1_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), 40);

    let other = steady.log_in_to(role, 2);
    ask(&mut steady, other);
    let (mut refused, mut rounds) = (0, 0);
    steady.shell.most_backends_seen = 0;
    for _ in 0..1_000 {
        steady.go_on(200, false);
        refused += refuse(&mut steady, 40);
        rounds += u32::from(steady.shell.core.limit_looks.has_more());
    }
    let client = steady.shell.world.client(other).expect("it is there");
    assert_eq!(client.answered, 1, "refused {refused} times");
    assert_eq!(refused, 1);
    assert!(rounds >= 40 / AT_ONCE as u32, "{rounds}");
    assert!(steady.shell.most_backends_seen <= AT_ONCE as u64 + OFFERED);
    let reasons = &steady.shell.told.reasons;
    assert_eq!(reasons["room within a connection limit"], 1);
    // Nobody else has lost his.
    assert_eq!(steady.shell.core.backend_count(), 40);
}
