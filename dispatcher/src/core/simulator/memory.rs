//! What is left of a role's memory, shown to all its pools in a database; and which backends are
//! woken when memory is freed.

use super::many::ask;
use super::shares::{limits, quiet, Crowd, Steady};
use super::shell::Shell;
use crate::core::{Action, Event, PoolLimits, SessionId};

const POOLS: usize = 20;
const GROUP: (u32, u32) = (0, 1);

/// A session in each pool, and one pool without.
fn crowds() -> Vec<Crowd> {
    let of = |pool| Crowd {
        clients: usize::from(pool < POOLS),
        think_us: 1_000_000_000,
        is_of_role_0: true,
        ..quiet(pool)
    };
    (0..=POOLS).map(of).collect()
}

fn of_one_role(crowds: &[Crowd]) -> (Steady<'_>, Vec<SessionId>) {
    let mut steady = Steady::new(crowds, limits(POOLS));
    for member in &mut steady.members {
        member.asks_at_us = u64::MAX;
    }
    let ids = steady.members.iter().map(|member| member.id).collect();
    steady.go_on(10_000, false);
    let shell = &mut steady.shell;
    let most = PoolLimits::of([-1, -1, -1, 0, 0, 0, 1_000]);
    shell.core.set_pool_limits(GROUP, most);
    shell.carry_out();
    shell.tell(Event::RoundEnds);
    assert!(!shell.core.has_more());
    (steady, ids)
}

fn shown(shell: &Shell) -> Vec<i64> {
    let tenants = shell.core.tenants.existing().iter();
    let left = tenants.map(|number| shell.world.tenants[number as usize].memory_left);
    left.collect()
}

/// Tells an event; returns how many times it shows a tenant the memory left.
fn shows(shell: &mut Shell, event: Event) -> usize {
    shell.core.handle(event, &shell.world);
    let actions = shell.core.actions.iter();
    let shown = actions.filter(|action| matches!(action, Action::ShowMemoryLeft { .. }));
    let shown = shown.count();
    shell.carry_out();
    shell.core.check_memory();
    shown
}

#[test]
fn what_is_left_is_shown_to_all_pools_of_a_role_once_a_round() {
    let crowds = crowds();
    let (mut steady, ids) = of_one_role(&crowds);
    let shell = &mut steady.shell;
    let mut left = 1_000 * 1024;
    for nth in 0..5 {
        for nth in nth..nth + 3 {
            let (id, grown) = (ids[nth % POOLS], 1_000 + nth as i64);
            left -= grown;
            assert_eq!(shows(shell, Event::Stored { id, grown }), 0);
        }
        assert!(shell.core.has_more(), "it sleeps");
        assert_eq!(shows(shell, Event::RoundEnds), POOLS);
        assert_eq!(shown(shell), [left; POOLS]);
    }
    assert!(!shell.core.has_more(), "it has no end");
}

#[test]
fn a_new_pool_of_a_role_is_shown_at_once_what_is_left() {
    let crowds = crowds();
    let (mut steady, ids) = of_one_role(&crowds);
    let (id, grown) = (ids[0], 1_000);
    steady.shell.tell(Event::Stored { id, grown });
    let new = steady.log_in(POOLS);
    let shell = &steady.shell;
    let session = shell.core.sessions().get(new).expect("it is there");
    let left = shell.world.tenants[session.tenant() as usize].memory_left;
    assert_eq!(left, 1_000 * 1024 - grown);
    shell.core.check_memory();
}

#[test]
fn all_pools_of_a_role_are_woken_when_there_is_memory_again() {
    let crowds = crowds();
    let (mut steady, ids) = of_one_role(&crowds);
    for id in &ids {
        let client = steady.shell.world.client(*id).expect("it is there");
        client.taints = 1;
        ask(&mut steady, *id);
    }
    steady.go_on(100_000, false);
    assert_eq!(steady.shell.core.dedicated_count(), POOLS);
    let shell = &mut steady.shell;
    for grown in [1_000, -500] {
        shell.tell(Event::Stored { id: ids[0], grown });
        shell.tell(Event::RoundEnds);
    }
    let before = shell.woken_for_memory;
    for times in 1..3 {
        shell.tell(Event::Sweep);
        let woken = (shell.woken_for_memory - before) as usize;
        assert_eq!(woken, times * POOLS);
    }
    shell.tell(Event::Sweep);
    let woken = (shell.woken_for_memory - before) as usize;
    assert_eq!(woken, 2 * POOLS, "and then for ever");
}

/// No session speaks meanwhile.
#[test]
fn session_kept_for_want_of_memory_wakes_when_others_free_some() {
    let crowds = [Crowd {
        clients: 2,
        think_us: 1_000_000_000,
        ..quiet(0)
    }];
    let mut steady = Steady::new(&crowds, limits(4));
    let [kept, other] = [0, 1].map(|at| steady.members[at].id);
    steady.members[1].asks_at_us = u64::MAX;
    steady.go_on(1_000, false);
    let client = steady.shell.world.client(kept).expect("it is there");
    client.taints = 1;
    steady.members[0].asks_at_us = 0;
    steady.go_on(50_000, false);
    assert_eq!(steady.shell.core.pool_dedicated(0), 1);
    steady.shell.tell(Event::Stored {
        id: other,
        grown: 1_000,
    });
    let most = PoolLimits::of([-1, -1, -1, 0, 0, 0, 1]);
    steady.shell.core.set_pool_limits((0, 1), most);
    steady.shell.carry_out();
    steady.go_on(3_000_000, false);
    assert_eq!(steady.shell.woken_for_memory, 0, "nothing was given back");
    steady.shell.tell(Event::Stored {
        id: other,
        grown: -500,
    });
    steady.go_on(1_100_000, false);
    assert!(steady.shell.woken_for_memory > 0);
    steady.go_on(3_000_000, false);
    assert_eq!(steady.shell.woken_for_memory, 2, "and then for ever");
}
