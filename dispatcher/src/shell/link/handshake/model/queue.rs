//! Two backends at one queue: whom a POKE reaches may find that the other has taken
//! what it was for.

use super::super::super::handshake;
use super::*;

/// Both asleep, or about to be; or one.
const STATES: [[u32; 2]; 3] = [
    [BACKEND_IDLE, BACKEND_IDLE],
    [BACKEND_BUSY, BACKEND_BUSY],
    [BACKEND_IDLE, BACKEND_BUSY],
];

/// put (queues.rs), then the core's look: as many are poked as there are messages
/// (look_on, serve.rs).
fn enqueue(backends: &[Arc<Backend>; 2], id: u64, left_out: LeftOut) {
    backends[0].put(id);
    let mut pokes = match left_out {
        LeftOut::SecondPoke => 1,
        _ => backends[0].pool.queued.load(SeqCst),
    };
    for backend in backends {
        if pokes > 0 && backend.is_free() {
            pokes -= 1;
            if handshake::poke(&backend.poked) {
                backend.send(Frame::Poke);
            }
        }
    }
}

/// Two come: each is served once, and nobody sleeps while somebody is in the queue.
/// `serve`: what each backend does.
fn two_at_one_queue(states: [u32; 2], serve: fn(&Backend) -> Vec<u64>, left_out: LeftOut) {
    check_within(2, move || {
        let pool = Arc::new(Pool::new());
        let backends = states.map(|state| Arc::new(Backend::of(pool.clone(), state, left_out)));
        let dispatcher = {
            let backends = backends.clone();
            thread::spawn(move || {
                enqueue(&backends, 1, left_out);
                enqueue(&backends, 2, left_out);
                backends.iter().for_each(|backend| backend.no_more());
            })
        };
        let other = {
            let backend = backends[1].clone();
            thread::spawn(move || serve(&backend))
        };
        let mut served = serve(&backends[0]);
        served.extend(other.join().unwrap());
        dispatcher.join().unwrap();
        served.sort_unstable();
        assert_eq!(served, [1, 2]);
        assert_eq!(pool.queued.load(Relaxed), 0);
    });
}

/// Whom it gets first keeps it at work.
fn serve_one(backend: &Backend) -> Vec<u64> {
    let mut served = Vec::new();
    while served.is_empty() {
        if !backend.pass_baton(&mut served) && !backend.sleep_idle(&mut served) {
            break;
        }
    }
    served
}

#[test]
fn of_two_at_one_queue_nobody_sleeps_while_somebody_is_there() {
    for states in STATES {
        two_at_one_queue(states, Backend::serve, LeftOut::Nothing);
    }
}

#[test]
#[should_panic]
fn the_model_sees_a_barrier_left_out_by_one_of_two_backends() {
    two_at_one_queue(STATES[1], Backend::serve, LeftOut::BackendsBarrier);
}

#[test]
fn of_two_at_one_queue_who_is_free_serves_while_the_other_is_at_work() {
    for states in STATES {
        two_at_one_queue(states, serve_one, LeftOut::Nothing);
    }
}

#[test]
#[should_panic]
fn the_model_sees_that_as_many_must_be_poked_as_are_in_the_queue() {
    two_at_one_queue(STATES[0], serve_one, LeftOut::SecondPoke);
}
