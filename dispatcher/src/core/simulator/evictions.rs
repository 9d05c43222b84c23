//! Which session is ended for want of places: dedicated sessions hold all places for good, and
//! another session waits.

use super::shares::{limits, quiet, Crowd, Steady};
use crate::core::{Limits, SessionId};

/// Clients of two roles that become dedicated one after the other, and a client of a third role: a
/// role that has its share would leave the last backend to others.
const DEDICATED: usize = 6;

fn crowds() -> [Crowd; 3] {
    let dedicated = |pool| Crowd {
        clients: DEDICATED / 2,
        ..quiet(pool)
    };
    [dedicated(0), dedicated(1), quiet(2)]
}

fn may_be_dedicated(most: usize, max_backends: usize, ceiling: usize) -> Limits {
    Limits {
        max_dedicated: Some(most),
        ceiling,
        session_wait_timeout_us: 0,
        ..limits(max_backends)
    }
}

fn ask(steady: &mut Steady<'_>, at: usize, taints: u32) {
    let now_us = steady.shell.world.now_us;
    let id = steady.members[at].id;
    let client = steady.shell.world.client(id).expect("it is there");
    (client.asked, client.asks_since_us, client.taints) = (1, now_us, taints);
}

/// All sessions of the two roles are dedicated, in their order.
fn begin(crowds: &[Crowd; 3], limits: Limits) -> Steady<'_> {
    let mut steady = Steady::new(crowds, limits);
    for member in &mut steady.members {
        member.asks_at_us = u64::MAX;
    }
    for at in 0..DEDICATED {
        ask(&mut steady, at, 1);
        steady.go_on(100_000, false);
    }
    let dedicated: usize = steady
        .shell
        .core
        .pools()
        .fold(0, |sum, pool| sum + steady.shell.core.pool_dedicated(pool));
    assert_eq!(dedicated, DEDICATED);
    steady
}

/// After how long the client of pool 2 is answered; None: not within some seconds.
fn waits_us(steady: &mut Steady<'_>) -> Option<u64> {
    ask(steady, DEDICATED, 0);
    let begin_us = steady.shell.world.now_us;
    let id = steady.members[DEDICATED].id as u32 as usize;
    loop {
        let client = steady.shell.world.clients[id].as_ref();
        let waited_us = steady.shell.world.now_us - begin_us;
        if client.is_some_and(|client| client.answered > 0) {
            return Some(waited_us);
        }
        if waited_us > 5_000_000 {
            return None;
        }
        steady.go_on(10_000, false);
    }
}

fn left(steady: &Steady<'_>) -> Vec<usize> {
    let is_there = |id: SessionId| steady.shell.core.sessions().get(id).is_some();
    let members = steady.members.iter().enumerate();
    let left = members.filter(|(_, member)| is_there(member.id));
    left.map(|(at, _)| at).collect()
}

#[test]
fn session_that_waits_one_second_replaces_newest_dedicated_one() {
    let crowds = crowds();
    let mut steady = begin(&crowds, may_be_dedicated(2, 4, 6));
    let waited_us = waits_us(&mut steady).expect("it is served");
    assert!((1_000_000..1_200_000).contains(&waited_us), "{waited_us}");
    // And no second one ends, as no session waits.
    steady.go_on(5_000_000, false);
    assert_eq!(left(&steady), [0, 1, 2, 3, 4, DEDICATED]);
}

#[test]
fn short_wait_timeout_ends_dedicated_session_after_a_quarter() {
    let crowds = crowds();
    let limits = Limits {
        session_wait_timeout_us: 2_000_000,
        ..may_be_dedicated(2, 4, 6)
    };
    let waited_us = waits_us(&mut begin(&crowds, limits)).expect("it is served");
    assert!((500_000..700_000).contains(&waited_us), "{waited_us}");
}

#[test]
fn dedicated_session_stays_while_no_session_waits() {
    let crowds = crowds();
    let mut steady = begin(&crowds, may_be_dedicated(2, 4, 6));
    steady.go_on(5_000_000, false);
    assert_eq!(left(&steady).len(), DEDICATED + 1);
}

#[test]
fn dedicated_session_within_the_bound_delays_no_other_session() {
    let crowds = crowds();
    let mut steady = begin(&crowds, may_be_dedicated(6, 1, 7));
    let waited_us = waits_us(&mut steady).expect("it is served");
    assert!(waited_us < 50_000, "{waited_us}");
    steady.go_on(3_000_000, false);
    assert_eq!(left(&steady).len(), DEDICATED + 1);
}
