//! The limits of a role in a database become known, and the role has more pools there than follow
//! in a round.

use super::many::ask;
use super::shares::{limits, quiet, Crowd, Steady};
use super::shell::Shell;
use crate::core::limits::FOLLOWING_AT_ONCE;
use crate::core::{Event, PoolLimits, SessionId, TenantKey};

const POOLS: usize = 2 * FOLLOWING_AT_ONCE + 14;
/// Until all have followed.
const ROUNDS: usize = 3;
const GROUP: (u32, u32) = (0, 1);

/// A silent session in each pool.
fn crowds() -> Vec<Crowd> {
    let of = |pool| Crowd {
        think_us: 1_000_000_000,
        is_of_role_0: true,
        ..quiet(pool)
    };
    (0..POOLS).map(of).collect()
}

fn of_one_role(crowds: &[Crowd]) -> Steady<'_> {
    let mut steady = Steady::new(crowds, limits(POOLS));
    for member in &mut steady.members {
        member.asks_at_us = u64::MAX;
    }
    steady.go_on(10_000, false);
    steady
}

/// pool_max_backends, pool_mode, pool_reserve
fn known(shell: &mut Shell, most: i32, mode: i32, reserve: i32) {
    let limits = PoolLimits::of([most, -1, -1, mode, 0, reserve, -1]);
    shell.core.set_pool_limits(GROUP, limits);
}

fn keep(shell: &Shell) -> usize {
    let tenants = shell.core.tenants.existing().iter();
    tenants
        .filter(|number| shell.world.tenants[*number as usize].keeps)
        .count()
}

/// The session of the last tenant.
fn last(steady: &Steady<'_>) -> (SessionId, u32) {
    let tenant = |id| steady.shell.core.sessions().get(id).map(|it| it.tenant());
    let ids = steady.members.iter().map(|member| member.id);
    let of_tenants = ids.filter_map(|id| Some((id, tenant(id)?)));
    of_tenants
        .max_by_key(|(_, tenant)| *tenant)
        .expect("there is one")
}

#[test]
fn pools_of_a_role_follow_its_limits_so_many_in_a_round() {
    let crowds = crowds();
    let mut steady = of_one_role(&crowds);
    let shell = &mut steady.shell;
    for mode in [1, 0, 1] {
        known(shell, -1, mode, 0);
        for round in 1..=ROUNDS {
            assert!(shell.core.has_more(), "it sleeps");
            shell.tell(Event::RoundEnds);
            let keep = keep(shell);
            let so_many = POOLS.min(round * FOLLOWING_AT_ONCE);
            assert_eq!(if mode == 1 { keep } else { POOLS - keep }, so_many);
            shell.core.check_tables();
        }
        shell.tell(Event::RoundEnds);
        assert!(!shell.core.has_more(), "it has no end");
    }
}

/// The limits of other roles become known meanwhile, and each begins anew.
#[test]
fn two_roles_with_ever_changing_limits_follow_the_last_ones() {
    let crowds = crowds();
    let mut steady = of_one_role(&crowds);
    let shell = &mut steady.shell;
    let key = |nth: usize| TenantKey {
        role_oid: 1,
        ..(**shell.core.tenant_key(nth as u32).expect("it is there")).clone()
    };
    let keys: Vec<TenantKey> = (0..2).map(key).collect();
    let made: Vec<u32> = (keys.into_iter())
        .map(|key| shell.core.create_tenant(key).expect("there is room"))
        .collect();
    shell.carry_out();
    for nth in 0..7 {
        known(shell, -1, nth % 2, 0);
        let other = PoolLimits::of([-1, -1, -1, nth % 2, 0, 0, -1]);
        shell.core.set_pool_limits((1, 1), other);
        shell.carry_out();
        shell.tell(Event::RoundEnds);
        shell.core.check_tables();
        shell.check_modes();
    }
    // Amid it, one tenant is dropped and another one created.
    shell.core.drop_tenant_if_unused(made[1]);
    shell.carry_out();
    for _ in 0..ROUNDS + 2 {
        shell.tell(Event::RoundEnds);
    }
    assert!(!shell.core.has_more(), "it has no end");
    shell.core.check_tables();
    shell.check_modes();
    let tenants = shell.core.tenants.existing().len();
    assert_eq!((keep(shell), tenants), (0, POOLS + 1));
}

#[test]
fn tenant_that_is_made_meanwhile_takes_no_turn_of_another() {
    let crowds = crowds();
    let mut steady = of_one_role(&crowds);
    let shell = &mut steady.shell;
    let first = shell.core.tenant_key(0).expect("it is there").clone();
    let mut made = [1, 2, 1].map(|number| TenantKey {
        options: vec![(b"made".to_vec(), vec![number])],
        ..(*first).clone()
    });
    let mut create = |shell: &mut Shell, nth: usize| {
        let key = std::mem::replace(&mut made[nth], (*first).clone());
        let number = shell.core.create_tenant(key).expect("there is room");
        shell.carry_out();
        number
    };
    let number = create(shell, 0);
    create(shell, 1);
    shell.core.drop_tenant_if_unused(number);
    shell.carry_out();
    known(shell, -1, 1, 0);
    shell.carry_out();
    assert_eq!(create(shell, 2), number);
    while shell.core.has_more() {
        shell.tell(Event::RoundEnds);
        shell.check_modes();
    }
    assert_eq!(keep(shell), POOLS + 2);
}

#[test]
fn what_is_decided_for_a_tenant_goes_by_them_before_its_turn() {
    let crowds = crowds();
    let mut steady = of_one_role(&crowds);
    known(&mut steady.shell, 1, 0, 0);
    steady.shell.carry_out();
    steady.go_on(10_000, false);
    // The session of the first member is the only one that may be served.
    let first = steady.members[0].id;
    let client = steady.shell.world.client(first).expect("it is there");
    client.transaction_us = 60_000_000;
    ask(&mut steady, first);
    steady.go_on(50_000, false);
    let (id, tenant) = last(&steady);
    let pool = steady
        .shell
        .core
        .pool_of_tenant(tenant)
        .expect("it has one");
    ask(&mut steady, id);
    steady.go_on(50_000, false);
    assert!(steady.shell.core.pool_backends(pool).is_empty());
    for (most, has_room) in [(2, true), (1, false), (2, true)] {
        known(&mut steady.shell, most, 0, 0);
        let core = &mut steady.shell.core;
        assert_eq!(core.has_room(tenant), has_room);
    }
    steady.shell.carry_out();
    // Before the next tick.
    for _ in 0..ROUNDS {
        steady.shell.tell(Event::RoundEnds);
    }
    assert_eq!(steady.shell.core.pool_backends(pool).len(), 1);
}
