//! What the dispatcher could not send, and takes back.

use super::super::super::handshake;
use super::*;

impl Backend {
    /// claim (links.rs), where the kernel sends no descriptors now.
    fn assign_in_vain(&self) {
        let seen = self.state.load(Relaxed);
        let is_free = seen == BACKEND_IDLE || seen == BACKEND_LINGER;
        if is_free && handshake::claim(&self.state, seen) {
            if self.left_out != LeftOut::Unclaim {
                handshake::unclaim(&self.state, seen);
            }
            if self.left_out != LeftOut::UnclaimsPoke {
                self.send(Frame::Poke);
            }
        }
    }

    /// poke (links.rs), where the socket takes nothing.
    fn poke_in_vain(&self) {
        let is_to_be_sent = self.is_free() && handshake::poke(&self.poked);
        if is_to_be_sent && self.left_out != LeftOut::NotPoked {
            handshake::not_poked(&self.poked);
        }
    }

    /// The core's look in a later round (look_on, serve.rs).
    fn look_for_sleepers(&self) {
        if self.left_out != LeftOut::SecondLook
            && self.pool.queued.load(Relaxed) > 0
            && self.is_free()
            && handshake::poke(&self.poked)
        {
            self.send(Frame::Poke);
        }
    }

    /// put (queues.rs), where the kernel takes nothing.
    fn put_in_vain(&self) {
        handshake::announce(&self.pool.queued);
        self.withdraw();
    }

    /// take_back (queues.rs)
    fn take_back(&self) -> Option<u64> {
        let taken = self.pool.queue.lock().unwrap().pop_front();
        if taken.is_some() {
            self.withdraw();
        }
        taken
    }

    fn withdraw(&self) {
        if self.left_out != LeftOut::Withdraw {
            handshake::withdraw(&self.pool.queued);
        }
    }
}

// ---- a claim whose ASSIGN could not be sent ---------------------------------------

/// It is in the queue before the claim whom the backend is to serve; `comes` after.
fn unsent_assignments(comes: Option<u64>, left_out: LeftOut) {
    check(move || {
        let backend = Arc::new(Backend::new(BACKEND_BUSY, left_out));
        let dispatcher = dispatcher_of(&backend, move |backend| {
            // Seen busy, it looks itself before it sleeps, and is claimed meanwhile.
            backend.enqueue(1);
            backend.assign_in_vain();
            if let Some(id) = comes {
                backend.assign_or_enqueue(id);
            }
        });
        let mut served = backend.serve();
        dispatcher.join().unwrap();
        served.sort_unstable();
        let expected: Vec<u64> = [1].into_iter().chain(comes).collect();
        assert_eq!(served, expected);
        assert_ne!(backend.state.load(Relaxed), BACKEND_ASSIGNED);
    });
}

#[test]
fn a_backend_that_was_claimed_in_vain_serves_who_is_in_its_queue_and_who_comes_next() {
    unsent_assignments(None, LeftOut::Nothing);
    unsent_assignments(Some(2), LeftOut::Nothing);
}

#[test]
#[should_panic]
fn the_model_sees_a_claim_that_is_not_taken_back() {
    unsent_assignments(None, LeftOut::Unclaim);
}

#[test]
#[should_panic]
fn the_model_sees_that_who_was_claimed_in_vain_must_be_woken() {
    unsent_assignments(None, LeftOut::UnclaimsPoke);
}

// ---- a POKE that could not be sent ------------------------------------------------

fn unsent_pokes(left_out: LeftOut) {
    check(move || {
        let backend = Arc::new(Backend::new(BACKEND_BUSY, left_out));
        let dispatcher = dispatcher_of(&backend, move |backend| {
            backend.put(1);
            backend.poke_in_vain();
            backend.look_for_sleepers();
        });
        let served = backend.serve();
        dispatcher.join().unwrap();
        assert_eq!(served, [1]);
    });
}

#[test]
fn a_backend_that_could_not_be_poked_is_poked_at_the_next_look() {
    unsent_pokes(LeftOut::Nothing);
}

#[test]
#[should_panic]
fn the_model_sees_a_poke_that_counts_though_it_was_not_sent() {
    unsent_pokes(LeftOut::NotPoked);
}

#[test]
#[should_panic]
fn the_model_sees_that_there_must_be_a_next_look() {
    unsent_pokes(LeftOut::SecondLook);
}

// ---- who is not in the queue does not count -----------------------------------------

fn withdrawals(left_out: LeftOut) {
    check(move || {
        let backend = Arc::new(Backend::new(BACKEND_BUSY, left_out));
        let dispatcher = dispatcher_of(&backend, move |backend| {
            backend.enqueue(1);
            backend.put_in_vain();
            let taken_back = backend.take_back();
            backend.enqueue(2);
            taken_back
        });
        let served = backend.serve();
        let mut all = Vec::from_iter(dispatcher.join().unwrap());
        all.extend(served);
        assert_eq!(all, [1, 2]);
        assert_eq!(backend.pool.queued.load(Relaxed), 0);
    });
}

#[test]
fn who_could_not_be_sent_or_was_taken_back_does_not_count_in_the_queue() {
    withdrawals(LeftOut::Nothing);
}

#[test]
#[should_panic]
fn the_model_sees_a_withdrawal_that_is_left_out() {
    withdrawals(LeftOut::Withdraw);
}
