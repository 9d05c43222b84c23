//! Settings that concern more pools, or pools with more backends, than a round looks at. A change
//! of them costs the existing sessions nothing.

use super::many::ask;
use super::settings::mark_of;
use super::shares::{limits, Crowd, Steady};
use super::sweeps::{crowd, only_pool, with_all_backends};
use crate::core::dedicated::WOKEN_AT_ONCE;
use crate::core::limits::ASKED_AT_ONCE;
use crate::core::{Event, PoolLimits, SessionId};

const POOLS: usize = 2 * ASKED_AT_ONCE + 20;
const BACKENDS: usize = 2 * WOKEN_AT_ONCE + 18;

fn each_with_one() -> Vec<Crowd> {
    (0..POOLS).map(|pool| crowd(pool, 1)).collect()
}

/// Each pool has a session and a backend.
fn tenants(crowds: &[Crowd]) -> Steady<'_> {
    with_all_backends(crowds, limits(2 * POOLS))
}

/// The event loop does not sleep before all is done.
fn round_ends(steady: &mut Steady<'_>) {
    assert!(steady.shell.core.has_more(), "it sleeps");
    steady.shell.tell(Event::RoundEnds);
}

fn is_answered(steady: &mut Steady<'_>, id: SessionId) -> bool {
    let before = steady.shell.world.client(id).map(|client| client.answered);
    ask(steady, id);
    steady.go_on(300_000, false);
    let now = steady.shell.world.client(id).map(|client| client.answered);
    now == before.map(|before| before + 1)
}

#[test]
fn the_launcher_is_asked_about_all_limits_some_in_a_round() {
    let crowds = each_with_one();
    for mark in [0, mark_of(1, 0)] {
        let mut steady = tenants(&crowds);
        steady.shell.asked_limits.clear();
        steady.shell.settings_change(mark);
        assert!(steady.shell.asked_limits.is_empty(), "in the event");
        for round in 1..=POOLS.div_ceil(ASKED_AT_ONCE) {
            round_ends(&mut steady);
            assert_eq!(
                steady.shell.asked_limits.len(),
                POOLS.min(ASKED_AT_ONCE * round)
            );
        }
        steady.shell.asked_limits.sort_unstable();
        let all: Vec<(u32, u32)> = (0..POOLS as u32).map(|role| (role, 1)).collect();
        assert_eq!(steady.shell.asked_limits, all);
    }
}

#[test]
fn launcher_is_asked_only_about_roles_with_changed_settings() {
    let crowds = each_with_one();
    let mut steady = tenants(&crowds);
    steady.shell.asked_limits.clear();
    steady.shell.settings_change(mark_of(0, 4));
    let is_concerned = |role: &u32| steady.shell.world.settings.needed_by((*role, 1)).change > 0;
    let concerned: Vec<u32> = (0..POOLS as u32).filter(is_concerned).collect();
    assert!(!concerned.is_empty() && concerned.len() < POOLS);
    round_ends(&mut steady);
    let asked = steady.shell.asked_limits.iter().map(|(role, _)| *role);
    let mut asked: Vec<u32> = asked.collect();
    asked.sort_unstable();
    assert_eq!(asked, concerned);
    assert!(!steady.shell.core.has_more());
}

/// The settings of the first pools change in each round.
#[test]
fn and_about_the_last_ones_however_often_the_first_ones_change() {
    let crowds = each_with_one();
    let mut steady = tenants(&crowds);
    steady.shell.asked_limits.clear();
    for _ in 1..=POOLS.div_ceil(ASKED_AT_ONCE) {
        steady.shell.settings_change(mark_of(1, 0));
        round_ends(&mut steady);
    }
    let asked = &steady.shell.asked_limits;
    let is_asked = |role: &u32| asked.contains(&(*role, 1));
    assert!((0..POOLS as u32).all(|role| is_asked(&role)), "{asked:?}");
}

#[test]
fn no_change_costs_a_session_that_was_there_its_backend() {
    let crowds = [crowd(0, 2)];
    let mut steady = with_all_backends(&crowds, limits(4));
    let opened = steady.shell.opened;
    for _ in 0..3 {
        steady.shell.settings_change(0);
        steady.shell.starts_change();
        for member in 0..2 {
            let id = steady.members[member].id;
            assert!(is_answered(&mut steady, id));
        }
    }
    assert_eq!((steady.shell.opened, steady.shell.outdated), (opened, 0));
}

/// And sessions from before the change are served by these backends as well.
#[test]
fn session_after_a_reload_is_served_by_backends_from_after_it() {
    let crowds = [crowd(0, 18)];
    let mut steady = with_all_backends(&crowds, limits(18));
    let number = only_pool(&steady);
    steady.shell.starts_change();
    let new = steady.log_in(0);
    // Only the backends that the session is handed to end; the one that serves it is from after the
    // change.
    for _ in 0..3 {
        assert!(is_answered(&mut steady, new));
    }
    assert!(steady.shell.outdated > 0);
    let old = steady.members[0].id;
    assert!(is_answered(&mut steady, old));
    let session = steady.shell.core.sessions().get(new);
    assert_eq!(session.map(|session| session.pool()), Some(number));
}

#[test]
fn backend_that_starts_during_change_serves_earlier_session() {
    let crowds = [crowd(0, 0)];
    let mut steady = Steady::new(&crowds, limits(8));
    let old = steady.log_in(0);
    ask(&mut steady, old);
    steady.go_on(400, false);
    steady.shell.starts_change();
    steady.go_on(200_000, false);
    let client = steady.shell.world.client(old).expect("it is there");
    assert_eq!(client.answered, 1);
    assert_eq!((steady.shell.opened, steady.shell.outdated), (1, 0));
    // A session that comes after the change has a backend of its own.
    let new = steady.log_in(0);
    assert!(is_answered(&mut steady, new));
    assert_eq!((steady.shell.opened, steady.shell.outdated), (2, 1));
}

/// The settings change again before each session comes: each has the backend that was started for
/// it.
#[test]
fn session_is_served_while_settings_change_all_the_time() {
    let crowds = [crowd(0, 0)];
    let mut steady = Steady::new(&crowds, limits(2));
    for _ in 0..5 {
        let id = steady.log_in(0);
        ask(&mut steady, id);
        for _ in 0..300 {
            steady.go_on(1_000, false);
            steady.shell.starts_change();
        }
        let client = steady.shell.world.client(id).expect("it is there");
        assert_eq!(client.answered, 1);
    }
    assert!(steady.shell.opened <= 5);
}

/// Their pool_mode is no longer dedicated.
#[test]
fn many_backends_no_longer_dedicated_are_woken_some_in_a_round() {
    let crowds = [crowd(0, BACKENDS)];
    let mut steady = with_all_backends(&crowds, limits(BACKENDS));
    let set = |steady: &mut Steady<'_>, mode| {
        let set = PoolLimits::of([-1, -1, -1, mode, 0, 0, -1]);
        steady.shell.core.set_pool_limits((0, 1), set);
        steady.shell.carry_out();
    };
    let ids: Vec<SessionId> = steady.members.iter().map(|member| member.id).collect();
    let in_vain = |steady: &Steady<'_>| {
        let world = &steady.shell.world;
        let processes = steady.shell.processes.iter().flatten();
        processes.filter(|it| it.keeps_in_vain(world)).count()
    };
    for _ in 0..2 {
        set(&mut steady, 1);
        for id in &ids {
            ask(&mut steady, *id);
        }
        steady.go_on(1_000_000, false);
        assert_eq!(steady.shell.core.dedicated_count(), BACKENDS);
        set(&mut steady, 0);
        for round in 1..=BACKENDS.div_ceil(WOKEN_AT_ONCE) {
            round_ends(&mut steady);
            let woken = round * WOKEN_AT_ONCE;
            assert_eq!(in_vain(&steady), BACKENDS.saturating_sub(woken));
        }
        steady.go_on(100_000, false);
        assert_eq!(steady.shell.core.dedicated_count(), 0);
    }
}

/// Another pool gets its number.
#[test]
fn nothing_is_to_be_done_to_a_pool_that_is_no_more() {
    let crowds = each_with_one();
    let steady = &mut tenants(&crowds);
    let core = &mut steady.shell.core;
    let mut key = (**core.pool_key(0).expect("it is there")).clone();
    key.options = vec![(b"a".to_vec(), b"b".to_vec())];
    let number = core.create_pool(key).expect("there is room");
    core.waking.begin(number);
    core.drop_if_unused(number);
    assert!(core.pool(number).is_none() && !core.waking.concerns(number));
}
