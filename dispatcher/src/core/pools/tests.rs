//! What goes through a pool's backends comes to each of them.

use super::*;

fn four() -> Pools {
    let mut pools = Pools::new(4);
    for name in [b"a", b"b", b"c", b"d"] {
        let key = PoolKey {
            database: name.to_vec(),
            database_oid: 2,
            options: Vec::new(),
            role_oid: None,
        };
        pools.add(key);
    }
    pools
}

#[test]
fn a_sweep_looks_at_each_backend_once_whoever_goes_or_comes_meanwhile() {
    let mut pools = four();
    for slot in 0..10 {
        pools.add_backend(0, slot);
    }
    let mut seen = Vec::new();
    let mut look = |pools: &mut Pools| {
        let pool = pools.get_mut(0).unwrap();
        let some = pool.sweep_on(4);
        seen.extend(some);
        pool.is_swept()
    };
    assert!(!look(&mut pools));
    // Two that were looked at, and one that was not.
    pools.forget_backend(0, 1, 5);
    pools.set_dedicated(0, 3, true);
    pools.forget_backend(0, 6, 5);
    pools.add_backend(0, 10);
    assert!(!look(&mut pools) && look(&mut pools));
    let pool = pools.get_mut(0).unwrap();
    assert!(pool.ends_sweep().is_none() && pool.is_unswept());
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]);
}

#[test]
fn all_of_a_pool_s_backends_are_woken_each_time() {
    let mut pools = four();
    (0..3).for_each(|slot| pools.add_backend(0, slot));
    let pool = pools.get_mut(0).unwrap();
    for _ in 0..2 {
        pool.begin_to_wake();
        let woken: Vec<u32> = std::iter::from_fn(|| pool.next_to_wake()).collect();
        assert_eq!(woken, [0, 1, 2]);
    }
}
