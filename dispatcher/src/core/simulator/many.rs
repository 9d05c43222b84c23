//! A pool with very many backends.

use super::shares::{busy, limits, quiet, Crowd, Steady};
use crate::core::dedicated::WOKEN_AT_ONCE;
use crate::core::pools::PoolKey;
use crate::core::{index_of, Action, Core, Event, Limits, SessionId, Words};

const BACKENDS: usize = 300;

/// A quiet session of a crowd asks now.
pub(super) fn ask(steady: &mut Steady<'_>, id: SessionId) {
    let now_us = steady.shell.world.now_us;
    let client = steady.shell.world.client(id).expect("it is there");
    client.asked = 1;
    client.asks_since_us = now_us;
}

/// The last backend is free, and sleeps; all others are busy for long.
#[test]
fn session_behind_many_busy_backends_does_not_wait_for_a_tick() {
    let crowds = [Crowd {
        clients: BACKENDS,
        // As long as it takes to start them all.
        transaction_us: 100_000,
        think_us: 1_000_000_000,
        ..quiet(0)
    }];
    let mut steady = Steady::new(&crowds, limits(BACKENDS));
    let ids: Vec<SessionId> = steady.members.iter().map(|member| member.id).collect();
    for (at, id) in ids.iter().enumerate() {
        steady.members[at].asks_at_us = u64::MAX;
        ask(&mut steady, *id);
    }
    steady.go_on(1_000_000, false);
    let number = steady.shell.core.pools().next().expect("there is one");
    let slots = steady.shell.core.pool_backends(number).to_vec();
    assert_eq!(slots.len(), BACKENDS);
    let last = slots[BACKENDS - 1];
    let words = &steady.shell.world;
    let others = (ids.into_iter()).filter(|id| words.last_backend(index_of(*id)) != Some(last));
    let others: Vec<SessionId> = others.take(BACKENDS - 1).collect();
    for id in others {
        let client = steady.shell.world.client(id).expect("it is there");
        client.transaction_us = 60_000_000;
        ask(&mut steady, id);
    }
    steady.go_on(1_000_000, false);
    let is_free = |slot: &&u32| steady.shell.world.backend(**slot).is_free();
    assert_eq!(slots.iter().filter(is_free).collect::<Vec<_>>(), [&last]);

    let new = steady.log_in(0);
    let client = steady.shell.world.client(new).expect("it is there");
    client.transaction_us = 1_000;
    ask(&mut steady, new);
    steady.go_on(5_000, false);
    let client = steady.shell.world.client(new).expect("it is there");
    assert_eq!(client.answered, 1, "a backend sleeps beside who waits");
}

#[test]
fn backends_that_lose_dedicated_sessions_are_woken_in_rounds() {
    let crowds = [Crowd {
        clients: BACKENDS,
        ..quiet(0)
    }];
    let few = Limits {
        max_backends: BACKENDS,
        sharing_threshold: BACKENDS,
        ..limits(2 * BACKENDS)
    };
    let mut steady = Steady::new(&crowds, few);
    steady.go_on(1_000_000, false);
    assert_eq!(steady.shell.core.dedicated_count(), BACKENDS);
    for member in &mut steady.members {
        member.asks_at_us = u64::MAX;
    }
    // All of them sleep.
    steady.go_on(100_000, false);
    let in_vain = |steady: &Steady<'_>| {
        let processes = steady.shell.processes.iter().flatten();
        let in_vain = processes.filter(|process| process.keeps_in_vain(&steady.shell.world));
        in_vain.count()
    };
    steady.log_in(0);
    steady
        .shell
        .core
        .handle(Event::RoundEnds, &steady.shell.world);
    let actions = steady.shell.core.actions.iter();
    let woken = actions.filter(|action| matches!(action, Action::Poke(_)));
    assert_eq!(woken.count(), WOKEN_AT_ONCE, "woken in one round");
    steady.shell.carry_out();
    assert_eq!(in_vain(&steady), BACKENDS - WOKEN_AT_ONCE);
    for _ in 0..BACKENDS / WOKEN_AT_ONCE {
        let core = &steady.shell.core;
        assert!(!core.waking.has_more() || core.has_more(), "it sleeps");
        steady.go_on(200, false);
    }
    assert_eq!(in_vain(&steady), 0);
    steady.go_on(100_000, false);
    assert_eq!(steady.shell.core.dedicated_count(), 0);
}

/// Two sessions alternate, each `pause_us` after the other has been answered. Returns how many
/// backends they have then.
fn in_turns(backends_for_steals: usize, pause_us: u64) -> usize {
    let crowds = [Crowd {
        clients: 2,
        transaction_us: 20,
        think_us: 1_000_000_000,
        ..quiet(0)
    }];
    let limits = Limits {
        backends_for_steals,
        ..limits(4)
    };
    let mut steady = Steady::new(&crowds, limits);
    let ids: Vec<SessionId> = steady.members.iter().map(|member| member.id).collect();
    for member in &mut steady.members {
        member.asks_at_us = u64::MAX;
    }
    for nth in 0..400 {
        let id = ids[nth % 2];
        let client = steady.shell.world.client(id).expect("it is there");
        client.answered = 0;
        ask(&mut steady, id);
        // The first session waits until there is a backend at all.
        let pause_us = if nth < 2 { 50_000 } else { pause_us };
        steady.go_on(pause_us, false);
    }
    steady.shell.core.backend_count()
}

#[test]
fn session_that_often_steals_gets_its_own_backend_up_to_a_bound() {
    assert_eq!(in_turns(4, 400), 2);
    assert_eq!(in_turns(1, 400), 1);
    assert_eq!(in_turns(4, 2_000), 1, "who comes back later");
}

/// There are as many pools as sessions and backends, and some of them are unused.
#[test]
fn new_pool_gets_the_place_of_an_unused_pool() {
    const USED: usize = 300;
    let crowds: Vec<Crowd> = (0..700)
        .map(|pool| busy(pool, usize::from(pool < USED)))
        .collect();
    let mut steady = Steady::new(&crowds, limits(4));
    let core = &mut steady.shell.core;
    let mut key = (**core.tenant_key(0).expect("it is there")).clone();
    let mut create = |core: &mut Core, nth: usize| {
        key.options = vec![(b"number".to_vec(), nth.to_string().into_bytes())];
        core.create_tenant(key.clone()).expect("there is room")
    };
    let mut made = 0;
    while !core.pools.is_full() {
        made += 1;
        create(core, made);
    }
    // Pools with an event stay, wherever they are.
    let unused: Vec<u32> = core.unused_tenants.iter().step_by(7).collect();
    let pools = unused
        .iter()
        .filter_map(|tenant| core.pool_of_tenant(*tenant));
    let changed: Vec<u32> = pools.collect();
    changed.iter().for_each(|number| core.mark_dirty(*number));
    let keys = |core: &Core| -> Vec<Option<PoolKey>> {
        let keys = changed.iter().map(|number| core.pool_key(*number));
        keys.map(|key| key.map(|key| PoolKey::clone(key))).collect()
    };
    let before = keys(core);
    for nth in 0..3 * made {
        create(core, made + 1 + nth);
        assert!(core.pools.is_full(), "more than one has gone");
    }
    assert_eq!(keys(core), before);
    let members = |number| core.sessions().members(number);
    assert_eq!(core.pools().map(members).sum::<usize>(), USED);
}
