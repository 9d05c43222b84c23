//! A sweep: backends that are idle for long, and old ones.

use super::shares::{limits, quiet, Crowd, Steady};
use crate::core::{Limits, SessionId};

const BACKENDS: usize = 40;
const SWEEP_US: u64 = 1_000_000;

pub(super) fn crowd(pool: usize, clients: usize) -> Crowd {
    Crowd {
        clients,
        // As long as it takes to start a backend for each.
        transaction_us: 100_000,
        think_us: 1_000_000_000,
        ..quiet(pool)
    }
}

/// All sessions have asked once, each pool's in two halves, and each has got a backend.
pub(super) fn with_all_backends<'a>(crowds: &'a [Crowd], limits: Limits) -> Steady<'a> {
    let mut steady = Steady::new(crowds, limits);
    let ids: Vec<SessionId> = steady.members.iter().map(|member| member.id).collect();
    for member in &mut steady.members {
        member.asks_at_us = u64::MAX;
    }
    // The second half while the transactions of the first last.
    for half in 0..2 {
        for id in ids.iter().skip(half).step_by(2) {
            let now_us = steady.shell.world.now_us;
            let client = steady.shell.world.client(*id).expect("it is there");
            client.asked = 1;
            client.asks_since_us = now_us;
        }
        steady.go_on(50_000, false);
    }
    steady.go_on(200_000, false);
    assert_eq!(steady.shell.core.backend_count(), ids.len());
    steady
}

pub(super) fn only_pool(steady: &Steady<'_>) -> u32 {
    steady.shell.core.pools().next().expect("there is one")
}

#[test]
fn idle_backends_go_and_the_newest_stay() {
    let crowds = [crowd(0, BACKENDS)];
    let idle = Limits {
        min_backends: 3,
        backend_idle_timeout_us: 2_000_000,
        ..limits(BACKENDS)
    };
    let mut steady = with_all_backends(&crowds, idle);
    let number = only_pool(&steady);
    let slots = steady.shell.core.pool_backends(number).to_vec();
    // One of these sweeps finds them idle for long enough.
    steady.go_on(3 * SWEEP_US, false);
    let left = steady.shell.core.pool_backends(number);
    assert_eq!(left, &slots[BACKENDS - 3..]);
}

#[test]
fn of_very_many_backends_the_oldest_goes_and_one_in_each_sweep() {
    let crowds = [crowd(0, BACKENDS)];
    let old = Limits {
        backend_lifetime_us: 2_000_000,
        ..limits(BACKENDS)
    };
    let mut steady = with_all_backends(&crowds, old);
    let number = only_pool(&steady);
    while steady.shell.core.pool_backends(number).len() == BACKENDS {
        steady.go_on(200, false);
    }
    steady.go_on(SWEEP_US / 2, false);
    for gone in 1..6 {
        let mut before = steady.shell.core.too_old();
        assert_eq!(before.backends.len(), 1);
        let left = steady.shell.core.pool_backends(number).len();
        assert_eq!(left, BACKENDS - gone, "one in each sweep");
        steady.go_on(SWEEP_US, false);
        steady.shell.core.check_lifetime(&mut before);
    }
}

#[test]
fn after_a_reconnect_all_backends_are_new_ones() {
    let crowds = [crowd(0, BACKENDS)];
    let mut steady = with_all_backends(&crowds, limits(BACKENDS));
    let number = only_pool(&steady);
    let serials = |steady: &Steady| {
        let core = &steady.shell.core;
        let slots = core.all_pool_backends(number).into_iter();
        let serials = slots.filter_map(|slot| Some(core.backend(slot)?.serial()));
        serials.collect::<Vec<u64>>()
    };
    let before = serials(&steady);
    steady.shell.core.reconnect(Some(u32::MAX));
    steady.go_on(3 * SWEEP_US, true);
    assert_eq!(serials(&steady), before, "that is another database");
    steady.shell.core.reconnect(None);
    steady.go_on(6 * SWEEP_US, true);
    let after = serials(&steady);
    assert!(after.iter().all(|serial| !before.contains(serial)));
    steady.go_on(3 * SWEEP_US, true);
    assert_eq!(serials(&steady), after, "once is enough");
}

#[test]
fn a_ready_queue_s_counter_that_is_wrong_is_set_right() {
    let crowds = [crowd(0, 2)];
    let mut steady = with_all_backends(&crowds, limits(2));
    let number = only_pool(&steady) as usize;
    for wrong in [1, -1] {
        steady.shell.world.pools[number].queued = wrong;
        steady.go_on(SWEEP_US, false);
        assert_eq!(steady.shell.world.pools[number].queued, 0);
    }
}
