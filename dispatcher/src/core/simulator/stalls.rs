//! A stall: all backends are held by transactions that wait for somebody who waits for
//! a backend. What is added, when, and that nothing is where nothing stalls.

use super::shares::{limits, quiet, Crowd, Steady};
use crate::core::Limits;

const BACKENDS: usize = 4;

/// Clients that do nothing until they are told to.
fn crowd(clients: usize, transaction_us: u64) -> [Crowd; 1] {
    [Crowd {
        clients,
        transaction_us,
        think_us: 1_000_000_000,
        ..quiet(0)
    }]
}

/// There are as many backends as there may be without a stall.
fn begin(crowds: &[Crowd], limits: Limits) -> Steady<'_> {
    let mut steady = Steady::new(crowds, limits);
    for at in 0..steady.members.len() {
        steady.members[at].asks_at_us = u64::MAX;
        ask(&mut steady, at, false);
    }
    steady.go_on(crowds[0].transaction_us * 4 + 1_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), BACKENDS);
    steady
}

fn ask(steady: &mut Steady<'_>, at: usize, wants_lock: bool) {
    let now_us = steady.shell.world.now_us;
    let id = steady.members[at].id;
    let client = steady.shell.world.client(id).expect("it is there");
    client.asked = 1;
    client.asks_since_us = now_us;
    client.wants_lock = wants_lock;
}

fn answered(steady: &Steady<'_>, at: usize) -> u32 {
    let index = steady.members[at].id as u32 as usize;
    let client = steady.shell.world.clients[index].as_ref();
    client.map_or(0, |it| it.answered)
}

fn may_add(extra: Option<usize>, timeout_us: u64) -> Limits {
    Limits {
        ceiling: BACKENDS + 8,
        max_extra: extra,
        session_wait_timeout_us: timeout_us,
        ..limits(BACKENDS)
    }
}

/// All backends wait for a lock; its holder asks, and the others do. After how long is
/// the holder answered? None: it is not, within some seconds.
fn holder_waits_us(extra: Option<usize>, timeout_us: u64) -> Option<u64> {
    let crowds = crowd(BACKENDS + 3, 2_000);
    let mut steady = begin(&crowds, may_add(extra, timeout_us));
    steady.shell.world.lock = Some(steady.members[0].id);
    for at in 1..=BACKENDS {
        ask(&mut steady, at, true);
    }
    steady.go_on(100_000, false);
    let before = answered(&steady, 0);
    let begin_us = steady.shell.world.now_us;
    ask(&mut steady, 0, false);
    while answered(&steady, 0) == before {
        let waited_us = steady.shell.world.now_us - begin_us;
        if waited_us > 5_000_000 {
            return None;
        }
        steady.go_on(10_000, false);
    }
    let waited_us = steady.shell.world.now_us - begin_us;
    // And then all go on, and what was added goes.
    steady.go_on(3_000_000, false);
    assert!((1..=BACKENDS).all(|at| answered(&steady, at) >= 2));
    assert_eq!(steady.shell.core.backend_count(), BACKENDS);
    Some(waited_us)
}

#[test]
fn who_has_what_all_backends_wait_for_gets_one_more_after_half_a_second() {
    // Half a second without anything done, then a look that takes a fifth of one.
    let waited_us = holder_waits_us(None, 60_000_000).expect("it is served");
    assert!((700_000..1_000_000).contains(&waited_us), "{waited_us}");
}

#[test]
fn where_nobody_may_wait_for_long_a_quarter_of_that_is_a_stall() {
    let waited_us = holder_waits_us(None, 1_200_000).expect("it is served");
    assert!((500_000..700_000).contains(&waited_us), "{waited_us}");
}

#[test]
fn where_none_may_be_added_none_is() {
    assert_eq!(holder_waits_us(Some(0), 60_000_000), None);
}

#[test]
fn no_more_are_added_than_may_be() {
    let crowds = crowd(BACKENDS + 8, 2_000);
    let mut steady = begin(&crowds, may_add(Some(2), 60_000_000));
    // Nobody is about to let go of it.
    steady.shell.world.lock = Some(steady.members[0].id);
    for at in 1..BACKENDS + 8 {
        ask(&mut steady, at, true);
    }
    steady.go_on(5_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), BACKENDS + 2);
}

#[test]
fn who_computes_is_not_held_however_long_others_wait() {
    let crowds = crowd(BACKENDS + 3, 6_000_000);
    let mut steady = begin(&crowds, may_add(None, 60_000_000));
    for at in 0..steady.members.len() {
        ask(&mut steady, at, false);
    }
    for _ in 0..50 {
        steady.go_on(100_000, false);
        assert_eq!(steady.shell.core.backend_count(), BACKENDS);
    }
}

/// Two backends: one waits for a lock whose holder waits for a backend, the other is
/// reserved for a pool of which nobody asks.
#[test]
fn who_has_what_others_wait_for_is_served_from_what_is_reserved() {
    let reserving = Crowd {
        pool: 1,
        clients: 1,
        reserve: 1,
        ..crowd(3, 2_000)[0]
    };
    let crowds = [crowd(3, 2_000)[0], reserving];
    let limits = Limits {
        max_extra: None,
        ..limits(2)
    };
    let mut steady = Steady::new(&crowds, limits);
    for at in 0..steady.members.len() {
        steady.members[at].asks_at_us = u64::MAX;
        ask(&mut steady, at, false);
    }
    steady.go_on(3_000_000, false);
    assert!((0..4).all(|at| answered(&steady, at) == 1));
    steady.shell.world.lock = Some(steady.members[0].id);
    ask(&mut steady, 1, true);
    steady.go_on(100_000, false);
    ask(&mut steady, 0, false);
    steady.go_on(5_000_000, false);
    assert!((0..2).all(|at| answered(&steady, at) == 2));
    // What was taken from it is its own again when it asks.
    ask(&mut steady, 3, false);
    steady.go_on(1_000_000, false);
    assert_eq!(answered(&steady, 3), 2);
}
