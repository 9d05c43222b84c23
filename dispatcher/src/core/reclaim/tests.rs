//! Tests of the rules one by one, and a simulation of their effect.

use super::*;
use std::collections::{BTreeSet, VecDeque};

const NOW_US: u64 = 100_000_000;
/// On a machine with idle CPUs.
const PASSING_US: u64 = 6_000;

fn rules() -> Rules {
    Rules::new(NOW_US, 10_000_000, 4, 1, PASSING_US)
}

fn claim(backends: usize, waited_us: u64) -> Claim {
    Claim {
        pool: 9,
        backends,
        since_us: NOW_US - waited_us,
        same_first_for_us: 0,
        without_since_us: NOW_US - waited_us,
        weight: DEFAULT_WEIGHT,
        is_lacking: false,
        is_owed: false,
        is_role_without: false,
        has_its_share: false,
    }
}

/// A busy backend, which its pool has had for long; no session waits in the pool.
fn held(slot: u32, pool: u32, backends: usize) -> Holding {
    Holding {
        slot,
        pool,
        backends,
        waits_since_us: None,
        has_sessions: true,
        since_us: 0,
        has_served: true,
        free_for_us: None,
        weight: DEFAULT_WEIGHT,
        is_reserved: false,
    }
}

fn free(slot: u32, pool: u32, free_for_us: u64) -> Holding {
    Holding {
        free_for_us: Some(free_for_us),
        ..held(slot, pool, 1)
    }
}

#[test]
fn longest_wait_comes_first_if_pool_has_no_backend_or_is_late() {
    let of = |pool, backends, waited_us| Claim {
        pool,
        ..claim(backends, waited_us)
    };
    let mut claims = [
        of(0, 1, 900_000),
        of(1, 0, 100_000),
        of(2, 0, 300_000),
        of(3, 2, 1_200_000),
    ];
    rules().sort(&mut claims);
    assert_eq!(claims.map(|claim| claim.pool), [3, 2, 1, 0]);
}

#[test]
fn the_largest_pools_give_up_first_and_what_is_free_before_that() {
    let all = [held(1, 1, 1), held(2, 2, 2), held(3, 2, 2), held(4, 3, 1)];
    assert_eq!(
        rules().choose(&claim(0, 0), &all),
        Choice::First(vec![2, 3])
    );
    let all = [held(2, 2, 2), free(5, 5, 30_000), free(6, 6, 40_000)];
    assert_eq!(rules().choose(&claim(0, 0), &all), Choice::Free(6));
}

#[test]
fn larger_pool_in_a_new_turn_keeps_no_other_turn_from_ending() {
    let new = |slot| Holding {
        since_us: NOW_US,
        ..held(slot, 2, 2)
    };
    let all = [held(1, 1, 1), new(2), new(3)];
    assert_eq!(rules().choose(&claim(0, 0), &all), Choice::First(vec![1]));
}

#[test]
fn turn_that_is_over_for_longest_ends_first() {
    let since = |slot, over_us| Holding {
        since_us: NOW_US - TURN_US - over_us,
        ..held(slot, slot, 1)
    };
    let all = [since(1, 10_000), since(2, 30_000), since(3, 0)];
    assert_eq!(rules().choose(&claim(0, 0), &all), Choice::First(vec![2]));
    let many = Rules {
        ending_at_once: 2,
        ..rules()
    };
    let two = match many.choose(&claim(0, 0), &all) {
        Choice::First(slots) => slots.into_iter().collect::<BTreeSet<u32>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(two, [1, 2].into());
    // Unless that backend comes to no boundary.
    let any = rules().with_any_end(true);
    assert_eq!(any.choose(&claim(0, 0), &all), Choice::First(vec![1, 2, 3]));
}

#[test]
fn no_pool_gives_a_backend_to_itself() {
    let own = Holding {
        pool: 9,
        ..free(1, 9, 30_000)
    };
    assert_eq!(
        rules().choose(&claim(1, 9_000_000), &[own]),
        Choice::NoBackend
    );
}

#[test]
fn a_pool_keeps_for_a_turn_what_it_has_got() {
    let since = |since_us| Holding {
        since_us,
        ..held(1, 1, 1)
    };
    let choose = |held| rules().choose(&claim(0, 500_000), &[held]);
    assert_eq!(choose(since(NOW_US - TURN_US + 1)), Choice::NoBackend);
    assert_eq!(choose(since(NOW_US - TURN_US)), Choice::First(vec![1]));
    // Unless the pool has no use for it.
    let unused = Holding {
        has_sessions: false,
        ..since(NOW_US)
    };
    assert_eq!(choose(unused), Choice::First(vec![1]));
    let quiet = Holding {
        free_for_us: Some(QUIET_US),
        ..since(NOW_US - QUIET_US)
    };
    assert_eq!(choose(quiet), Choice::Free(1));
}

#[test]
fn a_round_of_turns_fits_into_the_wait_that_is_allowed() {
    let turn_us = |timeout_us, claims| Rules::new(0, timeout_us, 4, claims, PASSING_US).turn_us;
    assert_eq!(turn_us(0, 1000), TURN_US);
    assert_eq!(turn_us(60_000_000, 12), TURN_US);
    assert_eq!(turn_us(1_000_000, 100), 10_000);
    // But a backend that has not served yet does not leave.
    let new = Holding {
        since_us: NOW_US - 20_000,
        has_served: false,
        ..held(1, 1, 1)
    };
    let rules = Rules::new(NOW_US, 1_000_000, 4, 100, PASSING_US);
    assert_eq!(rules.choose(&claim(0, 500_000), &[new]), Choice::NoBackend);
    let served = Holding {
        has_served: true,
        ..new
    };
    assert_eq!(
        rules.choose(&claim(0, 500_000), &[served]),
        Choice::First(vec![1])
    );
}

#[test]
fn a_pool_that_has_some_takes_from_a_larger_one_only() {
    let choose = |backends, of| rules().choose(&claim(backends, 500_000), &[held(1, 1, of)]);
    assert_eq!(choose(1, 3), Choice::First(vec![1]));
    assert_eq!(choose(1, 2), Choice::NoBackend);
    assert_eq!(choose(1, 1), Choice::NoBackend);
    // And not before it has waited for a turn.
    let now = rules().choose(&claim(1, TURN_US - 1), &[held(1, 1, 3)]);
    assert_eq!(now, Choice::NoBackend);
    // Nor from a pool whose sessions wait longer.
    let waits = Holding {
        waits_since_us: Some(NOW_US - 600_000),
        ..held(1, 1, 3)
    };
    assert_eq!(
        rules().choose(&claim(1, 500_000), &[waits]),
        Choice::NoBackend
    );
}

#[test]
fn pool_that_lacks_a_backend_for_long_takes_it_on_short_waits() {
    let lacking = |backends| Claim {
        is_lacking: true,
        ..claim(backends, 1_000)
    };
    let choose = |backends, held| rules().choose(&lacking(backends), &[held]);
    assert_eq!(choose(1, held(1, 1, 3)), Choice::First(vec![1]));
    assert_eq!(choose(1, held(1, 1, 2)), Choice::NoBackend);
    // Not before the other pool's turn is over, nor from a pool that got the backend because it is
    // late.
    let new = Holding {
        since_us: NOW_US - 1,
        ..held(1, 1, 3)
    };
    assert_eq!(choose(1, new), Choice::NoBackend);
    let waits = |waited_us| Holding {
        waits_since_us: Some(NOW_US - waited_us),
        ..held(1, 1, 3)
    };
    assert_eq!(choose(1, waits(LATE_US - 1)), Choice::First(vec![1]));
    assert_eq!(choose(1, waits(LATE_US)), Choice::NoBackend);
}

#[test]
fn a_pool_lacks_a_backend_that_wants_one_most_of_the_time() {
    let look = |lack: &mut Lack, pattern: &[bool], times| {
        for at in 0..times {
            let now_us = lack.looked_us + 20_000;
            lack.look(pattern[at % pattern.len()], now_us);
        }
    };
    let mut lack = Lack {
        looked_us: NOW_US,
        ..Lack::default()
    };
    look(&mut lack, &[true], 24);
    assert!(!lack.is_lasting());
    look(&mut lack, &[true], 1);
    assert!(lack.is_lasting());
    look(&mut lack, &[false, true], 500);
    assert!(lack.is_lasting());
    look(&mut lack, &[false], 30);
    assert!(!lack.is_lasting());
    look(&mut lack, &[false, true], 500);
    assert!(!lack.is_lasting());
    look(&mut lack, &[true, true, false], 100);
    assert!(lack.is_lasting());
    // There was no look meanwhile.
    let mut lack = Lack::default();
    lack.look(true, NOW_US);
    assert!(!lack.is_lasting());
}

#[test]
fn what_a_pool_has_may_be_held_for_ever() {
    let all = [held(1, 1, 1), held(2, 2, 2)];
    let choose = |waited_us| rules().choose(&claim(1, waited_us), &all);
    assert_eq!(choose(LATE_US - 1), Choice::NoBackend);
    assert_eq!(choose(LATE_US), Choice::First(vec![2]));
    assert_eq!(choose(5_000_000), Choice::First(vec![1, 2]));
    // The backends of the larger pools may also be held for ever.
    let choose = |waited_us| rules().choose(&claim(0, waited_us), &all);
    assert_eq!(choose(0), Choice::First(vec![2]));
    assert_eq!(choose(LATE_US), Choice::First(vec![1, 2]));
}

#[test]
fn pool_that_asks_now_and_then_precedes_those_that_always_ask() {
    let without = |pool, without_us: u64, waited_us| Claim {
        pool,
        without_since_us: NOW_US - without_us,
        ..claim(0, waited_us)
    };
    let mut claims = [without(1, 500_000, 500_000), without(2, 9_000_000, 1_000)];
    rules().sort(&mut claims);
    assert_eq!(claims.map(|claim| claim.pool), [2, 1]);
    // But not before a late claim, which in turn comes after a pool that is owed a place.
    let owed = Claim {
        is_owed: true,
        is_role_without: false,
        has_its_share: false,
        ..without(3, 0, 0)
    };
    let mut claims = [
        without(2, 9_000_000, 1_000),
        without(1, 2_000_000, 2_000_000),
        owed,
    ];
    rules().sort(&mut claims);
    assert_eq!(claims.map(|claim| claim.pool), [3, 1, 2]);
}

#[test]
fn silent_pool_keeps_its_last_backend_from_pools_that_have_some() {
    let mut all: Vec<Holding> = (0..6).map(|slot| held(slot, 9, 6)).collect();
    all.extend([
        free(6, 6, 5_000_000),
        free(7, 7, 900_000),
        free(8, 8, 7_000_000),
    ]);
    // A quarter of nine, the ones used last.
    let choose = |backends| rules().choose(&claim(backends, 500_000), &all);
    assert_eq!(choose(6), Choice::Free(8));
    all.pop();
    let choose = |backends| rules().choose(&claim(backends, 500_000), &all);
    assert_eq!(choose(6), Choice::NoBackend);
    assert_eq!(choose(0), Choice::Free(6));
}

#[test]
fn pool_that_serves_none_gets_what_a_silent_pool_does_not_use() {
    let mut all: Vec<Holding> = (0..3).map(|slot| held(slot, 9, 3)).collect();
    all.push(free(3, 3, 5_000_000));
    let (late_us, urgent_us) = (rules().late_us, rules().urgent_us);
    let choose = |waited_us, same_first_for_us, all: &[Holding]| {
        let claim = Claim {
            same_first_for_us,
            ..claim(3, waited_us)
        };
        rules().choose(&claim, all)
    };
    // Sessions are served, only late.
    assert_eq!(choose(late_us, late_us - 1, &all), Choice::NoBackend);
    assert_eq!(choose(urgent_us, 0, &all), Choice::Free(3));
    assert_eq!(choose(late_us, late_us, &all), Choice::Free(3));
    all[3] = free(3, 3, late_us - 1);
    assert_eq!(choose(urgent_us, late_us, &all), Choice::NoBackend);
}

#[test]
fn the_first_session_of_a_pool_changes_as_sessions_are_served() {
    let mut first = First::default();
    assert_eq!(first.look(NOW_US - 5, NOW_US), 0);
    assert_eq!(first.look(NOW_US - 5, NOW_US + 20_000), 20_000);
    assert_eq!(first.look(NOW_US - 4, NOW_US + 40_000), 0);
}

#[test]
fn reserved_backend_goes_to_no_other_pool() {
    let reserved = Holding {
        is_reserved: true,
        ..held(1, 1, 2)
    };
    let choose = |waited_us| rules().choose(&claim(0, waited_us), &[reserved]);
    assert_eq!(choose(9_000_000), Choice::NoBackend);
    assert_eq!(choose_surplus(&[reserved]), Choice::First(vec![1]));
    // The pool with the reserve takes a backend at once, but not another pool's last one.
    let owed = Claim {
        is_owed: true,
        is_role_without: false,
        has_its_share: false,
        ..claim(1, 0)
    };
    let choose = |of| rules().choose(&owed, &[held(1, 1, of)]);
    assert_eq!(choose(2), Choice::First(vec![1]));
    assert_eq!(choose(1), Choice::NoBackend);
}

#[test]
fn shares_and_turns_go_by_weight() {
    let heavy = |backends| Holding {
        weight: 3 * DEFAULT_WEIGHT,
        ..held(1, 1, backends)
    };
    let choose = |of| rules().choose(&claim(1, 500_000), &[heavy(of)]);
    // Six to two is the intended share.
    assert_eq!(choose(6), Choice::NoBackend);
    assert_eq!(choose(7), Choice::First(vec![1]));
    let since = |since_us| Holding {
        since_us,
        ..heavy(1)
    };
    let choose = |held| rules().choose(&claim(0, 500_000), &[held]);
    assert_eq!(choose(since(NOW_US - 3 * TURN_US + 1)), Choice::NoBackend);
    assert_eq!(choose(since(NOW_US - 3 * TURN_US)), Choice::First(vec![1]));
}

#[test]
fn turns_are_longer_where_replacing_a_backend_takes_longer() {
    let turn_us = |replacing_us| Rules::new(0, 60_000_000, 8, 12, replacing_us).turn_us;
    assert_eq!(turn_us(0), TURN_US);
    assert_eq!(turn_us(5_000), TURN_US);
    assert_eq!(turn_us(10_000), TURN_COSTS * 10_000);
    assert_eq!(turn_us(50_000), TURN_COSTS * 50_000);
    // But no round takes longer than permitted.
    assert_eq!(turn_us(1_000_000), MOST_ROUND_US / 2);
}

#[test]
fn a_round_of_many_pools_takes_shorter_turns() {
    let turn_us = |claims| Rules::new(0, 60_000_000, 8, claims, 25_000).turn_us;
    assert_eq!(turn_us(8), TURN_COSTS * 25_000);
    assert_eq!(turn_us(50), TURN_COSTS * 25_000);
    assert_eq!(turn_us(100), MOST_ROUND_US / 13);
    // Never so short that they are wasted,
    assert_eq!(turn_us(1000), TURN_US);
    // unless waits would reach their limit.
    assert_eq!(turn_us(2000), 15_000_000 / 250);
}

#[test]
fn place_is_for_meant_pool_then_empty_pool_then_longest_wait() {
    let mut pools = [(1, 0, 30), (2, 1, 10), (3, 0, 20), (4, 1, 40), (5, 1, 5)];
    pools.sort_by_key(|(pool, backends, since)| {
        place_key(&[4], *pool, (*backends, *backends), *since)
    });
    assert_eq!(pools.map(|(pool, _, _)| pool), [4, 3, 1, 5, 2]);
}

#[test]
fn surplus_takes_free_backends_first_then_first_at_a_boundary() {
    let all = [held(1, 1, 1), held(2, 2, 2), held(3, 2, 2)];
    assert_eq!(choose_surplus(&all), Choice::First(vec![1, 2, 3]));
    let all = [held(2, 2, 2), free(4, 4, 10)];
    assert_eq!(choose_surplus(&all), Choice::Free(4));
    assert_eq!(choose_surplus(&[]), Choice::NoBackend);
}

/// Pools with `clients` each that ask without pause. An answer takes 10 ms, and the replacement of
/// a backend 5 ms. Returns the answers of each pool, the longest wait of all, and the number of
/// replacements.
fn simulate(clients: &[usize], backends: usize, timeout_us: u64) -> (Vec<u32>, u64, u32) {
    const ANSWER_US: u64 = 10_000;
    const REPLACE_US: u64 = 5_000;
    const STEP_US: u64 = 1_000;
    #[derive(Clone, Copy)]
    struct Backend {
        pool: usize,
        since_us: u64,
        busy_until_us: Option<u64>,
        served: u32,
    }
    let mut waiting: Vec<VecDeque<u64>> = clients
        .iter()
        .map(|count| VecDeque::from(vec![0; *count]))
        .collect();
    let mut running: Vec<Backend> = (0..backends)
        .map(|_| Backend {
            pool: 0,
            since_us: 0,
            busy_until_us: None,
            served: 0,
        })
        .collect();
    let mut answers = vec![0; clients.len()];
    let (mut longest_us, mut replaced) = (0, 0);
    for now_us in (0..20_000_000).step_by(STEP_US as usize) {
        let count = |running: &[Backend], pool| {
            running
                .iter()
                .filter(|backend| backend.pool == pool)
                .count()
        };
        let mut claims: Vec<Claim> = (0..clients.len())
            .filter_map(|pool| {
                Some(Claim {
                    pool: pool as u32,
                    backends: count(&running, pool),
                    since_us: *waiting[pool].front()?,
                    same_first_for_us: 0,
                    without_since_us: *waiting[pool].front()?,
                    weight: DEFAULT_WEIGHT,
                    is_lacking: false,
                    is_owed: false,
                    is_role_without: false,
                    has_its_share: false,
                })
            })
            .collect();
        let rules = Rules::new(now_us, timeout_us, backends, claims.len(), REPLACE_US);
        rules.sort(&mut claims);
        let all: Vec<Holding> = (running.iter().enumerate())
            .map(|(slot, backend)| Holding {
                slot: slot as u32,
                pool: backend.pool as u32,
                backends: count(&running, backend.pool),
                waits_since_us: waiting[backend.pool].front().copied(),
                has_sessions: true,
                since_us: backend.since_us,
                has_served: backend.served > 0,
                free_for_us: None,
                weight: DEFAULT_WEIGHT,
                is_reserved: false,
            })
            .collect();
        let offer = claims
            .iter()
            .find_map(|claim| match rules.choose(claim, &all) {
                Choice::First(slots) => Some((claim.pool as usize, slots)),
                _ => None,
            });
        let mut is_taken = false;
        for (slot, backend) in running.iter_mut().enumerate() {
            if backend
                .busy_until_us
                .is_some_and(|until_us| now_us < until_us)
                || now_us < backend.since_us
            {
                continue;
            }
            if backend.busy_until_us.take().is_some() {
                answers[backend.pool] += 1;
                backend.served += 1;
                waiting[backend.pool].push_back(now_us);
            }
            if let Some((pool, slots)) = &offer {
                if !is_taken && slots.contains(&(slot as u32)) {
                    is_taken = true;
                    replaced += 1;
                    *backend = Backend {
                        pool: *pool,
                        since_us: now_us + REPLACE_US,
                        busy_until_us: None,
                        served: 0,
                    };
                    continue;
                }
            }
            if let Some(since_us) = waiting[backend.pool].pop_front() {
                longest_us = longest_us.max(now_us - since_us);
                backend.busy_until_us = Some(now_us + ANSWER_US);
            }
        }
    }
    (answers, longest_us, replaced)
}

#[test]
fn more_pools_than_backends_are_served_alike() {
    let (answers, longest_us, replaced) = simulate(&[1; 16], 4, 10_000_000);
    let (least, most) = (answers.iter().min(), answers.iter().max());
    assert!(most.unwrap() < &(least.unwrap() * 3 / 2), "{answers:?}");
    assert!(longest_us < 1_000_000, "{longest_us}");
    // About once a turn.
    assert!(replaced < 20 * 4 * 10, "{replaced}");
}

#[test]
fn as_many_backends_as_pools_stay_where_they_are() {
    let (answers, _, replaced) = simulate(&[1, 1, 1, 1], 4, 10_000_000);
    assert!(answers.iter().all(|count| *count > 1500), "{answers:?}");
    assert!(replaced <= 4, "{replaced}");
    let (answers, _, replaced) = simulate(&[8, 2], 4, 10_000_000);
    assert!(answers.iter().all(|count| *count > 3000), "{answers:?}");
    assert!(replaced <= 4, "{replaced}");
    // A pool that is alone loses nothing.
    let (answers, _, replaced) = simulate(&[50], 4, 10_000_000);
    assert_eq!(replaced, 0);
    assert!(answers[0] > 7000, "{answers:?}");
}

#[test]
fn no_pool_waits_too_long_for_turns_with_short_waits_many_pools() {
    for (pools, timeout_us) in [(8, 500_000), (40, 1_000_000), (40, 0)] {
        let (answers, longest_us, _) = simulate(&vec![1; pools], 4, timeout_us);
        assert!(answers.iter().all(|count| *count > 0), "{answers:?}");
        assert!(
            timeout_us == 0 || longest_us < timeout_us,
            "{pools} {longest_us}"
        );
    }
    // Nor beside a crowd.
    let (answers, longest_us, _) = simulate(&[40, 1, 1, 1, 1, 1], 4, 2_000_000);
    assert!(answers.iter().all(|count| *count > 0), "{answers:?}");
    assert!(longest_us < 2_000_000, "{longest_us}");
}
