//! What a role's memory has left: who is woken when there is some again, and a role with
//! more pools in a database than are shown it in a round.

use super::many::ask;
use super::shares::{limits, quiet, Crowd, Steady};
use super::shell::Shell;
use crate::core::{Action, Event, PoolLimits, SessionId};
use std::collections::VecDeque;

const POOLS: usize = 20;
const AT_ONCE: usize = 4;
/// To go round all of them.
const ROUNDS: usize = POOLS / AT_ONCE;
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
    steady.shell.core.memory_laps.look_at_few(AT_ONCE);
    for member in &mut steady.members {
        member.asks_at_us = u64::MAX;
    }
    let ids = steady.members.iter().map(|member| member.id).collect();
    steady.go_on(10_000, false);
    let shell = &mut steady.shell;
    let most = PoolLimits::of([-1, -1, -1, 0, 0, 0, 1_000]);
    shell.core.set_pool_limits(GROUP, most);
    shell.carry_out();
    for _ in 0..ROUNDS {
        shell.tell(Event::RoundEnds);
    }
    assert!(!shell.core.memory_laps.has_more());
    (steady, ids)
}

fn shown(shell: &Shell) -> Vec<i64> {
    let tenants = shell.core.tenants.existing().iter();
    let left = tenants.map(|number| shell.world.tenants[number as usize].memory_left);
    left.collect()
}

/// An event, and how many pools are shown something by it.
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
fn no_round_shows_what_is_left_to_more_pools_of_a_role_and_none_sees_what_is_long_past() {
    let crowds = crowds();
    let (mut steady, ids) = of_one_role(&crowds);
    let shell = &mut steady.shell;
    let mut left = VecDeque::from([1_000 * 1024]);
    for nth in 0..5 * ROUNDS {
        let mut in_round = shows(shell, Event::RoundEnds);
        for nth in nth..nth + 3 {
            let (id, grown) = (ids[nth % POOLS], 1_000 + nth as i64);
            left.push_front(left[0] - grown);
            in_round += shows(shell, Event::Stored { id, grown });
        }
        assert!(in_round <= AT_ONCE, "{in_round} in a round");
        left.truncate(3 * (ROUNDS + 1));
        let shown = shown(shell);
        assert!(
            nth < ROUNDS || shown.iter().all(|shown| left.contains(shown)),
            "{shown:?} of {left:?}"
        );
    }
    for _ in 0..ROUNDS {
        assert!(shell.core.has_more(), "it sleeps");
        shell.tell(Event::RoundEnds);
    }
    assert!(!shell.core.memory_laps.has_more(), "it has no end");
    assert_eq!(shown(shell), [left[0]; POOLS]);
}

#[test]
fn a_new_pool_of_a_role_is_shown_at_once_what_is_left() {
    let crowds = crowds();
    let (mut steady, ids) = of_one_role(&crowds);
    let (id, grown) = (ids[0], 1_000);
    steady.shell.tell(Event::Stored { id, grown });
    assert!(steady.shell.core.memory_laps.has_more());
    let new = steady.log_in(POOLS);
    let shell = &steady.shell;
    let session = shell.core.sessions().get(new).expect("it is there");
    let left = shell.world.tenants[session.tenant() as usize].memory_left;
    assert_eq!(left, 1_000 * 1024 - grown);
    shell.core.check_memory();
}

#[test]
fn so_many_pools_of_a_role_are_woken_in_a_round_when_there_is_memory_again() {
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
        for _ in 0..ROUNDS {
            shell.tell(Event::RoundEnds);
        }
    }
    let before = shell.woken_for_memory;
    for times in 1..3 {
        shell.tell(Event::Sweep);
        for nth in 1..=ROUNDS {
            let woken = shell.woken_for_memory - before;
            let round = (times - 1) * ROUNDS + nth;
            assert_eq!(woken as usize, round * AT_ONCE);
            assert!(nth == ROUNDS || shell.core.has_more(), "it sleeps");
            shell.tell(Event::RoundEnds);
        }
    }
    shell.tell(Event::Sweep);
    let woken = (shell.woken_for_memory - before) as usize;
    assert_eq!(woken, 2 * POOLS, "and then for ever");
}

/// No session has anything to say meanwhile.
#[test]
fn who_is_kept_for_want_of_memory_is_woken_when_others_give_some_back() {
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
