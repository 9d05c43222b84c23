//! Settings that concern more pools, or pools with more backends, than a round looks at.

use super::many::ask;
use super::settings::mark_of;
use super::shares::{limits, Crowd, Steady};
use super::sweeps::{crowd, only_pool, with_all_backends};
use crate::core::backends::Life;
use crate::core::{Event, PoolLimits, SessionId};

/// Pools of a round; backends of a round (`look_at_few`).
const AT_ONCE: usize = 3;
const BACKENDS_AT_ONCE: usize = 4;
const POOLS: usize = 10;
/// More rounds than are before its turn.
const LAST: usize = POOLS - 1;
const BACKENDS: usize = 18;

fn each_with_one() -> Vec<Crowd> {
    (0..POOLS).map(|pool| crowd(pool, 1)).collect()
}

/// Each pool has a session and a backend.
fn tenants(crowds: &[Crowd]) -> Steady<'_> {
    let mut steady = with_all_backends(crowds, limits(2 * POOLS));
    steady.shell.core.settling.settle_few(AT_ONCE);
    steady
}

fn pool_of(steady: &Steady<'_>, id: SessionId) -> u32 {
    let session = steady.shell.core.sessions().get(id);
    session.expect("it is there").pool()
}

fn is_outdated(steady: &Steady<'_>, number: u32) -> bool {
    let pool = steady.shell.core.pool(number);
    pool.expect("it is there").is_outdated()
}

fn outdated(steady: &Steady<'_>) -> Vec<u32> {
    let pools = steady.shell.core.pools();
    pools
        .filter(|number| is_outdated(steady, *number))
        .collect()
}

/// Nobody sleeps before it is over.
fn round_ends(steady: &mut Steady<'_>) {
    assert!(steady.shell.core.has_more(), "it sleeps");
    steady.shell.tell(Event::RoundEnds);
}

fn hang_up(steady: &mut Steady<'_>) {
    for client in steady.shell.world.clients.iter_mut().flatten() {
        client.has_gone = true;
    }
    steady.go_on(100_000, false);
    assert_eq!(steady.shell.core.sessions().live(), 0);
}

#[test]
fn where_all_pools_are_outdated_so_many_are_in_a_round() {
    for what_all_read in [true, false] {
        let crowds = each_with_one();
        let mut steady = tenants(&crowds);
        match what_all_read {
            true => steady.shell.starts_change(),
            false => steady.shell.settings_change(0),
        }
        assert!(outdated(&steady).is_empty(), "in the event");
        for round in 1..=POOLS.div_ceil(AT_ONCE) {
            round_ends(&mut steady);
            assert_eq!(outdated(&steady).len(), POOLS.min(AT_ONCE * round));
        }
        let mut asked = steady.shell.asked_limits.clone();
        asked.sort_unstable();
        let all: Vec<(u32, u32)> = (0..POOLS as u32).map(|role| (role, 1)).collect();
        assert_eq!(asked, if what_all_read { vec![] } else { all });
    }
}

#[test]
fn settings_of_a_role_outdate_its_pools_and_no_others() {
    let crowds = each_with_one();
    let mut steady = tenants(&crowds);
    steady.shell.settings_change(mark_of(0, 4));
    let concerned: Vec<u32> = (steady.members.iter().zip(0..))
        .filter(|(_, role)| steady.shell.world.settings.needed_by((*role, 1)) > 0)
        .map(|(member, _)| pool_of(&steady, member.id))
        .collect();
    assert!(!concerned.is_empty() && concerned.len() < POOLS);
    steady.go_on(10_000, false);
    assert_eq!(outdated(&steady), concerned);
    assert!(!steady.shell.core.has_more());
}

#[test]
fn who_comes_before_his_pool_s_turn_gets_one_with_what_is_set_now() {
    let crowds = each_with_one();
    let mut steady = tenants(&crowds);
    let old = steady.members[LAST].id;
    let before = pool_of(&steady, old);
    steady.shell.settings_change(0);
    let new = steady.log_in(LAST);
    assert_eq!(outdated(&steady), [before], "and nobody else's");
    assert_eq!(steady.shell.asked_limits, [(LAST as u32, 1)]);
    let now = pool_of(&steady, new);
    assert_ne!(now, before);
    // And all move to it when it has a backend.
    ask(&mut steady, new);
    steady.go_on(200_000, false);
    assert_eq!(pool_of(&steady, old), now);
    let client = steady.shell.world.client(new).expect("it is there");
    assert_eq!(client.answered, 1);
}

/// A pool behind all others, of which one waits.
fn with_one_that_starts(crowds: &[Crowd]) -> (Steady<'_>, SessionId) {
    let mut steady = tenants(crowds);
    let id = steady.log_in(POOLS);
    let pool = steady.shell.core.pool_mut(pool_of(&steady, id));
    assert!(pool.is_some_and(|pool| pool.shared().is_empty()));
    (steady, id)
}

#[test]
fn a_backend_that_started_before_the_change_is_not_let_in_before_its_pool_s_turn() {
    let crowds = each_with_one();
    let (mut steady, id) = with_one_that_starts(&crowds);
    let number = pool_of(&steady, id);
    ask(&mut steady, id);
    steady.go_on(400, false);
    let slot = steady.shell.core.pool_backends(number)[0];
    steady.shell.starts_change();
    steady.shell.attach(slot, number);
    assert!(steady.shell.core.backend(slot).is_none());
    // He gets another one, of the same pool: nobody has read anything in it.
    steady.go_on(200_000, false);
    assert_eq!(pool_of(&steady, id), number);
    let client = steady.shell.world.client(id).expect("it is there");
    assert_eq!(client.answered, 1);
    assert!(!is_outdated(&steady, number));
}

#[test]
fn one_that_starts_after_it_is_let_in() {
    let crowds = each_with_one();
    let (mut steady, id) = with_one_that_starts(&crowds);
    let number = pool_of(&steady, id);
    steady.shell.starts_change();
    ask(&mut steady, id);
    steady.shell.deliver(1000);
    round_ends(&mut steady);
    let slot = steady.shell.core.pool_backends(number)[0];
    let life = |steady: &Steady<'_>| steady.shell.core.backend(slot).map(|it| it.life());
    for _ in 0..POOLS {
        steady.shell.tell(Event::RoundEnds);
        assert_eq!(life(&steady), Some(Life::Starting));
    }
    steady.shell.attach(slot, number);
    assert_eq!(life(&steady), Some(Life::Shared));
}

#[test]
fn a_pool_whose_backend_ends_before_its_turn_had_it_when_the_change_came() {
    let crowds = each_with_one();
    let mut steady = tenants(&crowds);
    let number = pool_of(&steady, steady.members[LAST].id);
    let slot = steady.shell.core.pool_backends(number)[0];
    steady.shell.starts_change();
    let process = steady.shell.processes[slot as usize].as_mut();
    process.expect("it has come").die(true);
    steady.shell.bury_dead();
    while steady.shell.core.backend(slot).is_some() {
        assert!(!is_outdated(&steady, number), "its turn has come");
        round_ends(&mut steady);
    }
    assert!(is_outdated(&steady, number));
}

/// Else one of them counted for the limit of both.
#[test]
fn pools_of_one_role_and_database_are_outdated_together() {
    let crowds = each_with_one();
    let mut steady = tenants(&crowds);
    let number = pool_of(&steady, steady.members[LAST].id);
    let core = &mut steady.shell.core;
    let mut key = (**core.pool_key(number).expect("it is there")).clone();
    let own = key.clone();
    key.options = vec![(b"a".to_vec(), b"b".to_vec())];
    let other = core.create_pool(key).expect("there is room");
    core.outdate_pools();
    assert_eq!(core.find_pool(&own), None);
    let changed = core.pools.changed();
    assert!(!changed.contains(other) && changed.len() == POOLS - 1);
}

#[test]
fn very_many_backends_of_an_outdated_pool_without_a_session_go_some_in_a_round() {
    let crowds = [crowd(0, BACKENDS)];
    let mut steady = with_all_backends(&crowds, limits(BACKENDS));
    steady.shell.core.look_at_few();
    hang_up(&mut steady);
    steady.shell.starts_change();
    for round in 1..=BACKENDS.div_ceil(BACKENDS_AT_ONCE) {
        round_ends(&mut steady);
        let leaving = steady.shell.core.backends.leaving().len();
        assert_eq!(leaving, BACKENDS.min(round * BACKENDS_AT_ONCE));
    }
    steady.go_on(100_000, false);
    assert_eq!(steady.shell.core.backend_count(), 0);
}

#[test]
fn so_do_those_of_one_whose_sessions_have_moved() {
    let crowds = [crowd(0, BACKENDS)];
    let mut steady = with_all_backends(&crowds, limits(2 * BACKENDS));
    let old = only_pool(&steady);
    steady.shell.core.look_at_few();
    steady.shell.starts_change();
    let new = steady.log_in(0);
    ask(&mut steady, new);
    let leaving = |steady: &Steady<'_>| steady.shell.core.backends.lives(old).may_serve();
    while leaving(&steady) == BACKENDS {
        steady.go_on(200, false);
    }
    assert_eq!(steady.shell.core.sessions().members(old), 0);
    assert_eq!(leaving(&steady), BACKENDS - BACKENDS_AT_ONCE);
    steady.go_on(100_000, false);
    assert!(steady.shell.core.all_pool_backends(old).is_empty());
}

/// A pool can be had again that was left for one of a superuser.
#[test]
fn who_comes_into_a_pool_whose_backends_go_has_those_that_are_left() {
    let crowds = [crowd(0, BACKENDS)];
    let mut steady = with_all_backends(&crowds, limits(BACKENDS));
    steady.shell.core.look_at_few();
    hang_up(&mut steady);
    let number = only_pool(&steady);
    steady.shell.core.retire_all(number);
    round_ends(&mut steady);
    let new = steady.log_in(0);
    ask(&mut steady, new);
    steady.go_on(200_000, false);
    let client = steady.shell.world.client(new).expect("it is there");
    assert_eq!(client.answered, 1);
    let left = steady.shell.core.pool_backends(number).len();
    assert_eq!(left, BACKENDS - BACKENDS_AT_ONCE);
}

/// Their pool_mode is not dedicated any more.
#[test]
fn very_many_backends_that_keep_their_sessions_no_longer_are_woken_some_in_a_round() {
    let crowds = [crowd(0, BACKENDS)];
    let mut steady = with_all_backends(&crowds, limits(BACKENDS));
    steady.shell.core.look_at_few();
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
        assert_eq!(in_vain(&steady), BACKENDS);
        for round in 1..=BACKENDS.div_ceil(BACKENDS_AT_ONCE) {
            round_ends(&mut steady);
            let woken = round * BACKENDS_AT_ONCE;
            assert_eq!(in_vain(&steady), BACKENDS.saturating_sub(woken));
        }
        steady.go_on(100_000, false);
        assert_eq!(steady.shell.core.dedicated_count(), 0);
    }
}

/// Another one gets its number.
#[test]
fn nothing_is_to_be_done_to_a_pool_that_is_no_more() {
    let crowds = each_with_one();
    let steady = &mut tenants(&crowds);
    let core = &mut steady.shell.core;
    let mut key = (**core.pool_key(0).expect("it is there")).clone();
    key.options = vec![(b"a".to_vec(), b"b".to_vec())];
    let number = core.create_pool(key).expect("there is room");
    core.outdate_pools();
    core.retiring.insert(number);
    core.waking.insert(number);
    core.drop_if_unused(number);
    assert!(core.pool(number).is_none() && !core.pools.changed().contains(number));
    assert!(!core.retiring.contains(number) && !core.waking.contains(number));
}

#[test]
fn none_of_those_that_started_before_a_change_is_let_in_and_all_that_start_after_it_are() {
    let crowds = [crowd(0, 0)];
    let mut steady = Steady::new(&crowds, limits(8));
    // None comes by itself.
    steady.shell.start_us = 100_000_000;
    let mut starting = Vec::new();
    for (so_many, changes) in [(5, true), (3, false)] {
        let ids: Vec<SessionId> = (0..so_many).map(|_| steady.log_in(0)).collect();
        // Until it is known how many there may be.
        steady.go_on(400, false);
        for id in ids {
            ask(&mut steady, id);
        }
        steady.go_on(30_000, false);
        if changes {
            steady.shell.starts_change();
            steady.shell.tell(Event::RoundEnds);
        }
        let number = only_pool(&steady);
        starting.push(steady.shell.core.pool_backends(number).to_vec());
    }
    let [before, all] = starting.try_into().expect("two");
    assert_eq!((before.len(), all.len()), (5, 8));
    let number = only_pool(&steady);
    for slot in all {
        steady.shell.attach(slot, number);
        let life = steady.shell.core.backend(slot).map(|it| it.life());
        let is_let_in = !before.contains(&slot);
        assert_eq!(life, is_let_in.then_some(Life::Shared), "{slot}");
    }
}
