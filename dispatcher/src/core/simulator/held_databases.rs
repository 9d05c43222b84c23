//! A statement wants a database with more sessions than end in a round.

use super::shares::{limits, quiet, Crowd, Steady};
use crate::core::{Event, Reason};

const POOLS: usize = 40;
const A_POOL: usize = 20;

fn crowds() -> Vec<Crowd> {
    let crowd = |pool| Crowd {
        clients: A_POOL,
        ..quiet(pool)
    };
    (0..POOLS).map(crowd).collect()
}

fn hold(steady: &mut Steady<'_>, forced: bool) {
    let shell = &mut steady.shell;
    shell.unanswered.insert(1);
    (shell.core).hold(1, 1, forced, 0, &shell.world);
    shell.carry_out();
}

/// Runs rounds until nothing is left to do; returns their number.
fn end_rounds(steady: &mut Steady<'_>) -> usize {
    for round in 0..200 {
        let core = &steady.shell.core;
        if !core.is_ending() {
            return round;
        }
        steady.shell.tell(Event::RoundEnds);
    }
    panic!("it never comes to an end");
}

#[test]
fn all_sessions_of_a_held_database_are_told_at_once() {
    let crowds = crowds();
    let mut steady = Steady::new(&crowds, limits(8));
    steady.go_on(200_000, false);
    hold(&mut steady, false);
    assert!(steady.shell.unanswered.is_empty());
    assert_eq!(steady.shell.found as usize, POOLS * A_POOL);
    // Backends leave only if there is no session.
    let reasons = &steady.shell.told.reasons;
    assert!(!reasons.contains_key(Reason::Hold.text()), "{reasons:?}");
}

#[test]
fn backends_of_database_without_sessions_go_when_statement_asks() {
    let crowds = [quiet(0)];
    let mut steady = Steady::new(&crowds, limits(2));
    steady.go_on(200_000, false);
    let id = steady.members[0].id;
    steady.members[0].asks_at_us = u64::MAX;
    steady.shell.world.client(id).expect("it is there").has_gone = true;
    steady.go_on(400_000, false);
    assert_eq!(steady.shell.core.sessions().live(), 0);
    assert_eq!(steady.shell.core.backend_count(), 1);
    hold(&mut steady, false);
    steady.go_on(100_000, false);
    assert_eq!(steady.shell.core.backend_count(), 0);
    assert_eq!(steady.shell.told.reasons[Reason::Hold.text()], 1);
}

/// The hold ends before all sessions have been looked at, and a client logs in.
#[test]
fn a_hold_that_ends_sessions_lasts_until_the_last_has_ended() {
    let crowds = crowds();
    let mut steady = Steady::new(&crowds, limits(8));
    steady.go_on(200_000, false);
    hold(&mut steady, true);
    steady.shell.unanswered.clear();
    steady.shell.tell(Event::HoldEnded(1));
    let core = &steady.shell.core;
    let pool = core.pools().next().expect("there is one");
    assert!(core.is_held(pool) && core.sessions().live() > 0);
    assert!(end_rounds(&mut steady) > 3);
    let core = &steady.shell.core;
    assert!(core.pools().all(|pool| !core.is_held(pool)));
    // Backends have the other sessions, which end with them.
    let at_work = steady.shell.processes.iter().flatten();
    assert!(core.sessions().live() <= at_work.count());
}
