//! The cost of one item of each scan, for the decision in docs/design/scheduler.md which scans are
//! sliced: `cargo test --release -p baton-dispatcher item_costs -- --ignored --nocapture`.

use super::shares::{busy, limits, Crowd, Steady};
use crate::core::{Event, Words};
use std::hint::black_box;
use std::time::Instant;

const TIMES: u32 = 100;

fn say(title: &str, items: usize, began: Instant) {
    let ns = began.elapsed().as_nanos() as f64 / f64::from(TIMES) / items as f64;
    eprintln!("{title}: {items} items, {ns:.0} ns each");
}

#[test]
#[ignore = "figures only"]
fn item_costs() {
    let crowds: Vec<Crowd> = (0..10_000).map(|pool| busy(pool, 1)).collect();
    let mut steady = Steady::new(&crowds, limits(1_000));
    steady.go_on(300_000, false);
    let shell = &mut steady.shell;
    let (core, world) = (&mut shell.core, &shell.world);
    let backends = core.backend_count();

    let began = Instant::now();
    for _ in 0..TIMES {
        let slots = core.backends.iter().map(|(slot, _)| slot);
        let free =
            slots.filter(|slot| core.backends.is_shared(*slot) && world.backend(*slot).is_free());
        black_box(free.count());
    }
    say("state of a backend", backends, began);

    let began = Instant::now();
    for _ in 0..TIMES {
        black_box(core.holdings(world));
    }
    say("a backend that may go for another pool", backends, began);

    let pools: Vec<u32> = core.in_want.iter().collect();
    let began = Instant::now();
    for _ in 0..TIMES {
        for number in &pools {
            black_box(core.oldest_wait_us(*number, world));
        }
    }
    say("longest wait of a pool", pools.len(), began);

    let began = Instant::now();
    for _ in 0..TIMES {
        for number in &pools {
            black_box(core.wants_place(*number, world));
        }
    }
    say("does a pool want a backend", pools.len(), began);

    let began = Instant::now();
    for _ in 0..TIMES {
        for number in &pools {
            black_box(core.place_key(*number, world));
        }
    }
    say("order of a pool", pools.len(), began);

    let began = Instant::now();
    for _ in 0..TIMES {
        core.look_at_waiting(world);
        core.dirty.clear();
        core.actions.clear();
    }
    say("a pool in a tick", 256, began);

    let began = Instant::now();
    for _ in 0..TIMES {
        for number in &pools {
            core.mark_dirty(*number);
        }
        core.handle(Event::RoundEnds, world);
        core.actions.clear();
    }
    say("a pool is served, and gets nothing", pools.len(), began);

    let sessions = core.sessions.slots_used();
    let began = Instant::now();
    for _ in 0..TIMES {
        for index in 0..sessions {
            core.sweep_session(index, world);
        }
    }
    say("a session in a sweep", sessions as usize, began);

    let began = Instant::now();
    for _ in 0..TIMES {
        for index in 0..sessions {
            let id = core.sessions.in_slot(index).expect("it is there");
            black_box(core.locate(id, world));
        }
    }
    say("where a session is", sessions as usize, began);

    let began = Instant::now();
    for _ in 0..TIMES {
        for number in core.tenants.existing().iter() {
            core.follow_limits(number);
        }
    }
    say(
        "a tenant follows limits",
        core.tenants.existing().len(),
        began,
    );
}
