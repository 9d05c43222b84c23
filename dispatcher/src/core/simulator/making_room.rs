//! Which backend leaves for another pool if there are many, and if the server has no more
//! connections.

use super::many::ask;
use super::random::Random;
use super::shares::{busy, limits, quiet, Crowd, Steady};
use crate::core::{Limits, Words};
use crate::protocol::opening::Failure;
use crate::protocol::Report;

#[test]
fn what_is_too_much_goes() {
    let crowds: Vec<Crowd> = (0..5).map(|pool| busy(pool, 10)).collect();
    let mut steady = Steady::new(&crowds, limits(40));
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

/// Of 300 backends of one pool the last two are at work for a moment each time, and the others for
/// long. One pool has no backend. A ticket is offered to 256 backends.
#[test]
fn of_very_many_that_may_go_others_are_told_the_next_time() {
    let crowds = [busy(0, 400), quiet(1)];
    let mut steady = Steady::new(&crowds, limits(300));
    steady.members[400].asks_at_us = u64::MAX;
    steady.go_on(2_000_000, false);
    let slots = steady.shell.core.pool_backends(0).to_vec();
    assert_eq!(slots.len(), 300);
    for slot in &slots[..298] {
        let words = &steady.shell.world;
        let id = words.backend_session(*slot);
        let client = steady.shell.world.client(id).expect("each has one");
        client.transaction_us = 60_000_000;
    }
    steady.go_on(100_000, false);
    let id = steady.members[400].id;
    ask(&mut steady, id);
    steady.go_on(500_000, false);
    let client = steady.shell.world.client(id).expect("it is there");
    assert!(client.answered > 0, "nobody goes for it");
}

/// A 64th of 1,100 backends is offered a ticket at a time.
#[test]
fn of_very_many_turns_many_end_in_a_moment() {
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
    // In 300 rounds.
    assert!(passed_on > 200, "{passed_on}");
}

/// The server has no more connections than these: it refuses every further backend.
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

/// All pools have a free backend, and a session asks in another database.
#[test]
fn full_server_has_room_after_a_free_backend_has_gone() {
    let role = 25;
    let crowds: Vec<Crowd> = (0..40)
        .map(|pool| Crowd {
            think_us: 1_000_000_000,
            ..quiet(pool)
        })
        .collect();
    let mut steady = Steady::new(&crowds, limits(64));
    steady.shell.random = Random::new(1);
    for at in 0..40 {
        let id = steady.members[at].id;
        steady.members[at].asks_at_us = u64::MAX;
        ask(&mut steady, id);
    }
    steady.go_on(1_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), 40);

    let other = steady.log_in_to(role, 2);
    ask(&mut steady, other);
    let mut refused = 0;
    for _ in 0..1_000 {
        steady.go_on(200, false);
        refused += refuse(&mut steady, 40);
    }
    let client = steady.shell.world.client(other).expect("it is there");
    assert_eq!(client.answered, 1, "refused {refused} times");
    assert_eq!(refused, 1);
    let reasons = &steady.shell.told.reasons;
    assert_eq!(reasons["room within a connection limit"], 1);
    // No other pool has lost its backend.
    assert_eq!(steady.shell.core.backend_count(), 40);
}
