//! A stall: transactions that wait for a session without a backend hold all backends. These tests
//! check what is added, when, and that nothing is added without a stall.

use super::shares::{limits, quiet, Crowd, Steady};
use super::world::Idles;
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

/// There are as many backends as permitted without a stall.
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

/// All backends wait for a lock; its holder asks, and so do the others. After how long is the
/// holder answered? None: not within some seconds.
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
    // Then all go on, and the added backends leave.
    steady.go_on(3_000_000, false);
    assert!((1..=BACKENDS).all(|at| answered(&steady, at) >= 2));
    assert_eq!(steady.shell.core.backend_count(), BACKENDS);
    Some(waited_us)
}

#[test]
fn holder_that_all_wait_for_gets_a_backend_after_200_ms() {
    let waited_us = holder_waits_us(None, 60_000_000).expect("it is served");
    assert!((200_000..300_000).contains(&waited_us), "{waited_us}");
}

#[test]
fn short_wait_timeout_makes_a_quarter_of_it_a_stall() {
    let waited_us = holder_waits_us(None, 400_000).expect("it is served");
    assert!((100_000..200_000).contains(&waited_us), "{waited_us}");
}

#[test]
fn where_none_may_be_added_none_is() {
    assert_eq!(holder_waits_us(Some(0), 60_000_000), None);
}

#[test]
fn no_more_are_added_than_may_be() {
    let crowds = crowd(BACKENDS + 8, 2_000);
    let mut steady = begin(&crowds, may_add(Some(2), 60_000_000));
    // The holder is not about to release it.
    steady.shell.world.lock = Some(steady.members[0].id);
    for at in 1..BACKENDS + 8 {
        ask(&mut steady, at, true);
    }
    steady.go_on(5_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), BACKENDS + 2);
}

#[test]
fn where_all_compute_waiting_are_served_and_added_backends_go() {
    let crowds = crowd(BACKENDS + 3, 6_000_000);
    let mut steady = begin(&crowds, may_add(None, 60_000_000));
    for at in 0..steady.members.len() {
        ask(&mut steady, at, false);
    }
    steady.go_on(300_000, false);
    assert_eq!(steady.shell.core.backend_count(), BACKENDS + 3);
    steady.go_on(10_000_000, false);
    assert_eq!(steady.shell.core.backend_count(), BACKENDS);
}

/// A crowd of one role computes in all backends, and waits for more; then a client of another role
/// comes, and one of a third.
#[test]
fn whatever_one_role_does_others_are_served() {
    others_are_served(false);
}

/// The backends started for the other roles serve the crowd as soon as those roles are silent, and
/// are not there the next time.
#[test]
#[ignore = "not so yet"]
fn whatever_one_role_does_others_of_its_pool_are_served() {
    others_are_served(true);
}

fn others_are_served(is_in_one_pool: bool) {
    let of = |pool, clients, transaction_us| Crowd {
        pool,
        is_in_one_pool,
        ..crowd(clients, transaction_us)[0]
    };
    let crowds = [
        of(0, 4 * BACKENDS + 30, 60_000_000),
        of(1, 1, 2_000),
        of(2, 1, 2_000),
    ];
    let limits = Limits {
        ceiling: 4 * BACKENDS,
        ..may_add(None, 60_000_000)
    };
    let mut steady = Steady::new(&crowds, limits);
    for at in 0..steady.members.len() {
        steady.members[at].asks_at_us = u64::MAX;
    }
    let all = steady.members.len();
    (0..all - 2).for_each(|at| ask(&mut steady, at, false));
    steady.go_on(3_000_000, false);
    // A quarter of what the shared backends leave is left.
    assert_eq!(steady.shell.core.backend_count(), 4 * BACKENDS - 3);
    for _ in 0..20 {
        for at in [all - 2, all - 1] {
            let before = answered(&steady, at);
            ask(&mut steady, at, false);
            steady.go_on(500_000, false);
            assert_eq!(answered(&steady, at), before + 1);
        }
    }
}

/// Two backends: one waits for a lock whose holder waits for a backend, the other is reserved for a
/// pool without a request.
#[test]
fn holder_that_others_wait_for_is_served_from_the_reserve() {
    for is_in_one_pool in [false, true] {
        holder_is_served_from_what_is_reserved(is_in_one_pool);
    }
}

fn holder_is_served_from_what_is_reserved(is_in_one_pool: bool) {
    let of = |pool, clients, reserve| Crowd {
        pool,
        reserve,
        is_in_one_pool,
        ..crowd(clients, 2_000)[0]
    };
    let crowds = [of(0, 3, 0), of(1, 1, 1)];
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
    // The pool gets its reserved backend again when it asks.
    ask(&mut steady, 3, false);
    steady.go_on(1_000_000, false);
    assert_eq!(answered(&steady, 3), 2);
}

/// All permitted backends compute for others, in the same pool.
#[test]
fn a_superuser_s_first_session_gets_one_beyond_the_ceiling() {
    let of = |pool, clients, is_superuser| Crowd {
        pool,
        is_superuser,
        is_in_one_pool: true,
        ..crowd(clients, 60_000_000)[0]
    };
    for is_superuser in [true, false] {
        let crowds = [of(0, BACKENDS + 20, false), of(1, 1, is_superuser)];
        let limits = Limits {
            ceiling: BACKENDS,
            for_superusers: 3,
            ..may_add(Some(0), 120_000_000)
        };
        let mut steady = Steady::new(&crowds, limits);
        for member in &mut steady.members {
            member.asks_at_us = u64::MAX;
        }
        let last = BACKENDS + 20;
        (0..last).for_each(|at| ask(&mut steady, at, false));
        steady.go_on(1_000_000, false);
        let id = steady.members[last].id;
        let client = steady.shell.world.client(id).expect("it is there");
        client.transaction_us = 2_000;
        ask(&mut steady, last, false);
        steady.go_on(500_000, false);
        assert_eq!(answered(&steady, last), u32::from(is_superuser));
    }
}

/// Many other sessions wait beside the superuser's, and there are connections for all.
#[test]
fn superuser_in_need_gets_one_backend_and_not_one_in_each_round() {
    let of = |pool, clients, is_superuser| Crowd {
        pool,
        is_superuser,
        is_in_one_pool: true,
        ..crowd(clients, 60_000_000)[0]
    };
    let limits = Limits {
        ceiling: 10 * BACKENDS,
        ..may_add(Some(0), 120_000_000)
    };
    let crowds = [of(0, BACKENDS + 20, false), of(1, 1, true)];
    let mut steady = Steady::new(&crowds, limits);
    for member in &mut steady.members {
        member.asks_at_us = u64::MAX;
    }
    (0..BACKENDS + 20).for_each(|at| ask(&mut steady, at, false));
    steady.go_on(500_000, false);
    ask(&mut steady, BACKENDS + 20, false);
    steady.go_on(500_000, false);
    // A second one may start before the first is seen to take a session. Another session's turn may
    // come first; and one more may start before the backend that attached is seen to serve a
    // session.
    assert!((1..=3).contains(&(steady.shell.opened - BACKENDS as u64)));
}

/// For each of these roles, this number of clients keeps a backend idle for long, one role after
/// another; then the client of a last role asks.
fn roles_that_idle(
    roles: &[(usize, Idles)],
    extra_idle_timeout_us: u64,
    then: impl FnOnce(&mut Steady<'_>, usize),
) {
    let of = |pool, clients| Crowd {
        pool,
        clients,
        ..crowd(1, 1_000_000_000)[0]
    };
    let mut crowds: Vec<Crowd> = roles
        .iter()
        .enumerate()
        .map(|(pool, (clients, _))| of(pool, *clients))
        .collect();
    crowds.push(Crowd {
        transaction_us: 2_000,
        ..of(roles.len(), 1)
    });
    let limits = Limits {
        ceiling: 12,
        extra_idle_timeout_us,
        ..may_add(None, 60_000_000)
    };
    let mut steady = Steady::new(&crowds, limits);
    for member in &mut steady.members {
        member.asks_at_us = u64::MAX;
    }
    let mut at = 0;
    for (clients, idles) in roles {
        for _ in 0..*clients {
            let id = steady.members[at].id;
            steady.shell.world.client(id).expect("it is there").idles = *idles;
            ask(&mut steady, at, false);
            at += 1;
        }
        steady.go_on(3_000_000, false);
    }
    // No place is left.
    assert_eq!(steady.shell.core.backend_count(), 12);
    then(&mut steady, at);
}

/// After how long the last client is answered; None: not within some seconds.
fn last_waits_us(steady: &mut Steady<'_>, at: usize) -> Option<u64> {
    let begin_us = steady.shell.world.now_us;
    ask(steady, at, false);
    while answered(steady, at) == 0 {
        if steady.shell.world.now_us > begin_us + 15_000_000 {
            return None;
        }
        steady.go_on(10_000, false);
    }
    Some(steady.shell.world.now_us - begin_us)
}

const TAKING_ALL: [(usize, Idles); 3] = [
    (20, Idles::InTransaction),
    (4, Idles::Unread),
    (4, Idles::InTransaction),
];

#[test]
fn role_without_backend_gets_one_from_a_largest_idle_role() {
    for idles in [Idles::InTransaction, Idles::Unread] {
        let mut roles = TAKING_ALL;
        roles[0].1 = idles;
        roles_that_idle(&roles, 5_000_000, |steady, at| {
            let largest = |steady: &Steady<'_>| {
                let ids = steady.members[..20].iter().map(|member| member.id);
                let client = |id: u64| steady.shell.world.clients[id as u32 as usize].as_ref();
                ids.filter(|id| client(*id).is_some_and(|it| it.id == *id && !it.has_gone))
                    .count()
            };
            let waited_us = last_waits_us(steady, at).expect("it is served");
            assert!((1_000_000..1_500_000).contains(&waited_us), "{waited_us}");
            assert_eq!((steady.shell.idle_ended, largest(steady)), (1, 19));
            // And no other client is ended, as no role without a backend waits.
            steady.go_on(5_000_000, false);
            assert_eq!((steady.shell.idle_ended, largest(steady)), (1, 19));
        });
    }
}

#[test]
fn before_the_limit_and_without_one_no_idle_client_ends() {
    for limit_us in [0, 60_000_000] {
        roles_that_idle(&TAKING_ALL, limit_us, |steady, at| {
            assert_eq!(last_waits_us(steady, at), None);
            assert_eq!(steady.shell.idle_ended, 0);
        });
    }
}

#[test]
fn while_no_role_without_a_backend_waits_no_idle_client_ends() {
    roles_that_idle(&TAKING_ALL, 1_000_000, |steady, _| {
        steady.go_on(20_000_000, false);
        assert_eq!(steady.shell.idle_ended, 0);
    });
}
