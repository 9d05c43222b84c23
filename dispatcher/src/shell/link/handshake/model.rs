//! Both sides of the handshake, in every order that the memory model allows.
//!
//! The dispatcher's steps are the real functions. The backends' steps are repeated here, each
//! under its name in C. pg_atomic_* operations are relaxed, except that read-modify-write
//! operations are full barriers (atomics.h); pg_memory_barrier() is a full fence. Channels are
//! queues behind a lock, as sockets are. Each model also runs with one step left out, to show
//! that the model would notice.

use super::super::layout::shared::*;
use super::{Counter, Flags, Word};
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::atomic::{fence, AtomicI32, AtomicU32, AtomicU64};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::collections::VecDeque;

words!(AtomicU32, u32; AtomicI32, i32; AtomicU64, u64;);

/// The step that is left out, to show that the model notices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeftOut {
    Nothing,
    /// `announced`: the dispatcher's fence between sending and reading the states.
    DispatchersBarrier,
    /// The backend's fence in baton_state_set.
    BackendsBarrier,
    /// assignments_handle clears the word only after it has looked at the queue.
    PokedFirst,
    /// The dispatcher does not read the owner after it has set the mark.
    OwnerLook,
    /// The backend's barrier between writing the owner and reading the flags.
    OwnersBarrier,
    /// The signal handler does not compare the session.
    Comparison,
    /// The backend takes the ticket by a read and a write.
    TicketsExchange,
    /// The backend claims itself by a read and a write.
    ClaimsExchange,
    /// `unclaim`: a backend that could not be sent an ASSIGN stays claimed.
    Unclaim,
    /// The POKE after `unclaim`.
    UnclaimsPoke,
    /// `not_poked`: a POKE that could not be sent counts as sent.
    NotPoked,
    /// `withdraw`: a session that could not be sent, or was taken back, still counts.
    Withdraw,
    /// The dispatcher does not look for sleeping backends again after no backend could be
    /// poked.
    SecondLook,
    /// Only one of two free backends is poked, whatever the queue holds.
    SecondPoke,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Frame {
    Assign(u64),
    Poke,
}

/// A pool's ready queue and its counter.
struct Pool {
    queued: AtomicI32,
    queue: Mutex<VecDeque<u64>>,
}

impl Pool {
    fn new() -> Pool {
        Pool {
            queued: AtomicI32::new(0),
            queue: Mutex::new(VecDeque::new()),
        }
    }
}

/// A backend, its slot, its pool, and its control socket.
struct Backend {
    state: AtomicU32,
    poked: AtomicU32,
    pool: Arc<Pool>,
    control: Mutex<(VecDeque<Frame>, bool)>,
    wakes: Condvar,
    left_out: LeftOut,
}

impl Backend {
    fn new(state: u32, left_out: LeftOut) -> Backend {
        Backend::of(Arc::new(Pool::new()), state, left_out)
    }

    fn of(pool: Arc<Pool>, state: u32, left_out: LeftOut) -> Backend {
        Backend {
            state: AtomicU32::new(state),
            poked: AtomicU32::new(0),
            pool,
            control: Mutex::new((VecDeque::new(), false)),
            wakes: Condvar::new(),
            left_out,
        }
    }

    // ---- the dispatcher's side: links.rs --------------------------------------

    fn send(&self, frame: Frame) {
        self.control.lock().unwrap().0.push_back(frame);
        self.wakes.notify_one();
    }

    /// put (links.rs), followed by what the core asks for (poke_idle, dispatch.rs).
    fn enqueue(&self, id: u64) {
        self.put(id);
        // The state that the core reads may be out of date when its action is carried out.
        if self.is_free() && super::poke(&self.poked) {
            self.send(Frame::Poke);
        }
    }

    /// links.rs
    fn put(&self, id: u64) {
        super::announce(&self.pool.queued);
        self.pool.queue.lock().unwrap().push_back(id);
        if self.left_out != LeftOut::DispatchersBarrier {
            super::announced(&self.pool.queued);
        }
    }

    fn is_free(&self) -> bool {
        let state = self.state.load(Relaxed);
        state == BACKEND_IDLE || state == BACKEND_LINGER
    }

    /// claim (links.rs). If the backend cannot be claimed, the session goes into the queue.
    /// Returns the state in which the backend was claimed.
    fn assign_or_enqueue(&self, id: u64) -> Option<u32> {
        let seen = self.state.load(Relaxed);
        let is_free = seen == BACKEND_IDLE || seen == BACKEND_LINGER;
        if is_free && super::claim(&self.state, seen) {
            self.send(Frame::Assign(id));
            Some(seen)
        } else {
            self.enqueue(id);
            None
        }
    }

    fn no_more(&self) {
        self.control.lock().unwrap().1 = true;
        self.wakes.notify_one();
    }

    // ---- the backend's side ----------------------------------------------------

    /// handover.c
    fn baton_state_set(&self, state: u32) {
        self.state.store(state, Relaxed);
        if self.left_out != LeftOut::BackendsBarrier {
            fence(SeqCst);
        }
    }

    /// handover.c
    fn baton_state_claim(&self, state_after: u32) -> bool {
        let mut expected = self.state.load(Relaxed);
        while expected != BACKEND_ASSIGNED {
            if self.left_out == LeftOut::ClaimsExchange {
                self.state.store(state_after, Relaxed);
                return true;
            }
            let changed = |found| {
                self.state
                    .compare_exchange(found, state_after, SeqCst, Relaxed)
            };
            if expected == state_after {
                return true;
            }
            match changed(expected) {
                Ok(_) => return true,
                Err(found) => expected = found,
            }
        }
        false
    }

    /// idle.c
    fn take_from_queue(&self) -> Option<u64> {
        let taken = self.pool.queue.lock().unwrap().pop_front();
        if taken.is_some() {
            self.pool.queued.fetch_sub(1, SeqCst);
        }
        taken
    }

    /// idle.c: true if the loop goes on.
    fn pass_baton(&self, served: &mut Vec<u64>) -> bool {
        if self.pool.queued.load(Relaxed) > 0 {
            if !self.baton_state_claim(BACKEND_BUSY) {
                return false;
            }
            if let Some(id) = self.take_from_queue() {
                served.push(id);
                return true;
            }
        }
        if self.state.load(Relaxed) == BACKEND_BUSY {
            self.baton_state_set(BACKEND_IDLE);
        }
        self.pool.queued.load(Relaxed) > 0
            && !self.pool.queue.lock().unwrap().is_empty()
            && self.state.load(Relaxed) != BACKEND_ASSIGNED
    }

    /// idle.c: waits for the control socket. False: the dispatcher sends nothing more, and this
    /// backend would sleep forever.
    fn sleep_idle(&self, served: &mut Vec<u64>) -> bool {
        let mut control = self.control.lock().unwrap();
        let frame = loop {
            if let Some(frame) = control.0.pop_front() {
                break frame;
            }
            if control.1 {
                return false;
            }
            control = self.wakes.wait(control).unwrap();
        };
        drop(control);
        match frame {
            Frame::Assign(id) => {
                self.baton_state_set(BACKEND_BUSY);
                served.push(id);
            }
            // pass_baton then looks at the queue.
            Frame::Poke if self.left_out != LeftOut::PokedFirst => {
                self.poked.store(0, Relaxed);
                fence(SeqCst);
            }
            Frame::Poke => {
                while self.pass_baton(served) {}
                self.poked.store(0, Relaxed);
                return self.sleep_idle(served);
            }
        }
        true
    }

    /// wait_for_session (idle.c), until the dispatcher sends nothing more.
    fn serve(&self) -> Vec<u64> {
        let mut served = Vec::new();
        loop {
            if !self.pass_baton(&mut served) && !self.sleep_idle(&mut served) {
                return served;
            }
        }
    }
}

/// Runs the dispatcher's steps for this backend in a thread of their own.
fn dispatcher_of<T: 'static>(
    backend: &Arc<Backend>,
    does: impl FnOnce(&Backend) -> T + 'static,
) -> thread::JoinHandle<T> {
    let backend = backend.clone();
    thread::spawn(move || {
        let done = does(&backend);
        backend.no_more();
        done
    })
}

/// Tries all orders in which a thread is preempted at most three times. A higher bound finds
/// nothing more.
fn check(model: impl Fn() + Sync + Send + 'static) {
    check_within(3, model);
}

fn check_within(interruptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.check(model);
}

// ---- no backend sleeps while a session is in the queue ---------------------------

fn queue_and_sleep(left_out: LeftOut) {
    check(move || {
        let backend = Arc::new(Backend::new(BACKEND_BUSY, left_out));
        let dispatcher = dispatcher_of(&backend, move |backend| {
            backend.enqueue(1);
            backend.enqueue(2);
        });
        let served = backend.serve();
        dispatcher.join().unwrap();
        assert_eq!(served, [1, 2]);
    });
}

#[test]
fn backend_never_sleeps_while_a_session_is_in_its_queue() {
    queue_and_sleep(LeftOut::Nothing);
}

#[test]
#[should_panic]
fn the_model_sees_a_barrier_left_out_by_the_dispatcher() {
    queue_and_sleep(LeftOut::DispatchersBarrier);
}

#[test]
#[should_panic]
fn the_model_sees_a_barrier_left_out_by_the_backend() {
    queue_and_sleep(LeftOut::BackendsBarrier);
}

#[test]
#[should_panic]
fn the_model_sees_that_poke_must_be_taken_back_before_the_look() {
    queue_and_sleep(LeftOut::PokedFirst);
}

// ---- a backend is claimed once --------------------------------------------------

fn claims(left_out: LeftOut) {
    check(move || {
        let backend = Arc::new(Backend::new(BACKEND_LINGER, left_out));
        let dispatcher = dispatcher_of(&backend, move |backend| backend.assign_or_enqueue(2));
        // The client of the session in place, 1, sends a query: listen_to_client.
        let mut served = Vec::new();
        let answers = backend.baton_state_claim(BACKEND_BUSY);
        if answers {
            served.push(1);
        }
        served.extend(backend.serve());
        let claimed = dispatcher.join().unwrap();
        // The backend lingers until it is claimed for the first time.
        assert!(
            !(answers && claimed == Some(BACKEND_LINGER)),
            "claimed twice"
        );
        // Otherwise its session was given back for the other one, and is served elsewhere.
        assert_eq!(served, if answers { vec![1, 2] } else { vec![2] });
        assert_ne!(backend.state.load(Relaxed), BACKEND_ASSIGNED);
    });
}

#[test]
fn a_backend_is_claimed_by_its_client_or_by_the_dispatcher() {
    claims(LeftOut::Nothing);
}

#[test]
#[should_panic]
fn the_model_sees_a_claim_that_is_no_exchange() {
    claims(LeftOut::ClaimsExchange);
}

// ---- a cancel is not lost and does not hit another session -----------------------

/// A session on its way to a backend, and back.
struct Session {
    owner: AtomicU32,
    flags: AtomicU32,
    /// The words of the backend's slot: the session in place, and the session to cancel.
    session: AtomicU64,
    cancel: AtomicU64,
    /// SIGUSR2, which the kernel delivers between two steps of the backend.
    signal: AtomicU32,
}

impl Session {
    fn new() -> Session {
        Session {
            owner: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            session: AtomicU64::new(0),
            cancel: AtomicU64::new(0),
            signal: AtomicU32::new(0),
        }
    }

    /// session_signal (identity.c): true if the running statement is cancelled.
    fn signalled(&self, left_out: LeftOut) -> bool {
        if self.signal.swap(0, SeqCst) == 0 {
            return false;
        }
        let here = self.session.load(Relaxed);
        let named = self.cancel.swap(0, SeqCst);
        named != 0 && (named == here || left_out == LeftOut::Comparison)
    }

    /// baton_session_take and baton_session_arm_cancel (handover.c): true if the session's
    /// statement is to be cancelled.
    fn take(&self, id: u64, left_out: LeftOut) -> bool {
        self.session.store(id, Relaxed);
        fence(loom::sync::atomic::Ordering::Release);
        self.owner.store(1, Relaxed);
        if left_out != LeftOut::OwnersBarrier {
            fence(SeqCst);
        }
        self.flags.load(Relaxed) & SESSION_CANCEL != 0
            && self.flags.fetch_and(!SESSION_CANCEL, SeqCst) & SESSION_CANCEL != 0
    }

    /// Cancels a session that waits (mark_cancel, links.rs).
    fn cancel(&self, id: u64, left_out: LeftOut) {
        let must_tell = if left_out == LeftOut::OwnerLook {
            self.flags.set(SESSION_CANCEL);
            false
        } else {
            super::mark_cancel(&self.flags, &self.owner)
        };
        if must_tell && super::name_cancelled(&self.session, &self.cancel, id) {
            self.signal.write(1);
        }
    }
}

fn cancels(left_out: LeftOut) {
    const ID: u64 = 7;
    const NEXT: u64 = 8;
    check(move || {
        let session = Arc::new(Session::new());
        let dispatcher = {
            let session = session.clone();
            thread::spawn(move || session.cancel(ID, left_out))
        };
        let _ = session.take(ID, left_out);
        let _ = session.signalled(left_out);
        // The session is given back, and the next one is taken.
        session.owner.store(0, Relaxed);
        session.session.store(NEXT, Relaxed);
        let next_cancelled = session.signalled(left_out);
        dispatcher.join().unwrap();
        let next_cancelled = next_cancelled | session.signalled(left_out);
        assert!(!next_cancelled, "another's statement is cancelled");
    });
}

#[test]
fn a_cancel_never_hits_the_session_that_came_next() {
    cancels(LeftOut::Nothing);
}

#[test]
#[should_panic]
fn the_model_sees_a_cancel_that_does_not_compare_the_session() {
    cancels(LeftOut::Comparison);
}

/// The statement runs until it is cancelled: is it ever?
fn a_cancel_arrives(left_out: LeftOut) {
    const ID: u64 = 7;
    check(move || {
        let session = Arc::new(Session::new());
        let dispatcher = {
            let session = session.clone();
            thread::spawn(move || session.cancel(ID, left_out))
        };
        let armed = session.take(ID, left_out);
        dispatcher.join().unwrap();
        assert!(armed | session.signalled(left_out), "the cancel is lost");
        assert_eq!(session.flags.load(Relaxed) & SESSION_CANCEL, 0);
    });
}

#[test]
fn a_cancel_of_a_session_on_its_way_to_a_backend_arrives() {
    a_cancel_arrives(LeftOut::Nothing);
}

#[test]
#[should_panic]
fn the_model_sees_that_owner_is_not_looked_at_after_the_mark() {
    a_cancel_arrives(LeftOut::OwnerLook);
}

#[test]
#[should_panic]
fn the_model_sees_a_barrier_left_out_as_a_session_is_taken() {
    a_cancel_arrives(LeftOut::OwnersBarrier);
}

// ---- one ticket, one backend ----------------------------------------------------

fn tickets(left_out: LeftOut) {
    check(move || {
        let room_ticket = Arc::new(AtomicU32::new(0));
        let retire = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let ticket = RETIRE_FIRST_TICKET;
        let backends: Vec<_> = (0..2)
            .map(|index: usize| {
                let (room_ticket, retire) = (room_ticket.clone(), retire.clone());
                // baton_retire_asked (handover.c), at some boundary
                thread::spawn(move || {
                    let asked = retire[index].load(Relaxed);
                    if asked == RETIRE_NOT {
                        return false;
                    }
                    let taken = TICKET_TAKEN | index as u32;
                    if left_out == LeftOut::TicketsExchange {
                        let is_there = room_ticket.load(Relaxed) == asked;
                        if is_there {
                            room_ticket.store(taken, Relaxed);
                        }
                        return is_there;
                    }
                    room_ticket
                        .compare_exchange(asked, taken, SeqCst, Relaxed)
                        .is_ok()
                })
            })
            .collect();
        super::offer(retire.iter(), &*room_ticket, ticket);
        let is_back = super::take_ticket_back(&*room_ticket, ticket);
        // The dispatcher may look before it hears of the backends.
        let taker = super::ticket_taker(&*room_ticket);
        let gone: Vec<u32> = (0..)
            .zip(backends)
            .filter_map(|(index, backend)| backend.join().unwrap().then_some(index))
            .collect();
        assert_eq!(gone, Vec::from_iter(taker));
        assert_eq!(taker.is_none(), is_back);
    });
}

#[test]
fn a_ticket_is_taken_once() {
    tickets(LeftOut::Nothing);
}

#[test]
#[should_panic]
fn the_model_sees_a_ticket_that_is_taken_without_an_exchange() {
    tickets(LeftOut::TicketsExchange);
}

// ---- Failed sends, and sessions taken back --------------------------------------
//
// Messages that the dispatcher could not send, and sessions that it takes back.

impl Backend {
    /// claim (links.rs), when the kernel cannot send descriptors.
    fn assign_in_vain(&self) {
        let seen = self.state.load(Relaxed);
        let is_free = seen == BACKEND_IDLE || seen == BACKEND_LINGER;
        if is_free && super::claim(&self.state, seen) {
            if self.left_out != LeftOut::Unclaim {
                super::unclaim(&self.state, seen);
            }
            if self.left_out != LeftOut::UnclaimsPoke {
                self.send(Frame::Poke);
            }
        }
    }

    /// poke (links.rs), when the socket has no room.
    fn poke_in_vain(&self) {
        let is_to_be_sent = self.is_free() && super::poke(&self.poked);
        if is_to_be_sent && self.left_out != LeftOut::NotPoked {
            super::not_poked(&self.poked);
        }
    }

    /// The core's look in a later round (wake_for_queue, dispatch.rs).
    fn look_for_sleepers(&self) {
        if self.left_out != LeftOut::SecondLook
            && self.pool.queued.load(Relaxed) > 0
            && self.is_free()
            && super::poke(&self.poked)
        {
            self.send(Frame::Poke);
        }
    }

    /// put (links.rs), when the queue has no room.
    fn put_in_vain(&self) {
        super::announce(&self.pool.queued);
        self.withdraw();
    }

    /// take_back (links.rs)
    fn take_back(&self) -> Option<u64> {
        let taken = self.pool.queue.lock().unwrap().pop_front();
        if taken.is_some() {
            self.withdraw();
        }
        taken
    }

    fn withdraw(&self) {
        if self.left_out != LeftOut::Withdraw {
            super::withdraw(&self.pool.queued);
        }
    }
}

// ---- a claim whose ASSIGN could not be sent ---------------------------------------

/// Session 1 is in the queue before the claim, and must be served; `comes` follows later.
fn unsent_assignments(comes: Option<u64>, left_out: LeftOut) {
    check(move || {
        let backend = Arc::new(Backend::new(BACKEND_BUSY, left_out));
        let dispatcher = dispatcher_of(&backend, move |backend| {
            // The backend is busy when it is seen. It looks at the queue itself before it
            // sleeps, and is claimed meanwhile.
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
fn backend_claimed_in_vain_serves_its_queue_and_next_session() {
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
fn the_model_sees_that_backend_claimed_in_vain_must_be_woken() {
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

// ---- a session that is not in the queue does not count ---------------------------

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
fn session_unsent_or_taken_back_does_not_count_in_the_queue() {
    withdrawals(LeftOut::Nothing);
}

#[test]
#[should_panic]
fn the_model_sees_a_withdrawal_that_is_left_out() {
    withdrawals(LeftOut::Withdraw);
}

// ---- Two backends at one queue --------------------------------------------------
//
// Two backends at one queue: a backend that is poked may find that the other one has taken the
// session that the POKE was for.

/// Both asleep, both about to sleep, or one of each.
const STATES: [[u32; 2]; 3] = [
    [BACKEND_IDLE, BACKEND_IDLE],
    [BACKEND_BUSY, BACKEND_BUSY],
    [BACKEND_IDLE, BACKEND_BUSY],
];

/// put (links.rs), then the core's look: as many backends are poked as the queue has messages
/// (wake_for_queue, dispatch.rs).
fn enqueue(backends: &[Arc<Backend>; 2], id: u64, left_out: LeftOut) {
    backends[0].put(id);
    let mut pokes = match left_out {
        LeftOut::SecondPoke => 1,
        _ => backends[0].pool.queued.load(SeqCst),
    };
    for backend in backends {
        if pokes > 0 && backend.is_free() {
            pokes -= 1;
            if super::poke(&backend.poked) {
                backend.send(Frame::Poke);
            }
        }
    }
}

/// Two sessions come. Each is served once, and no backend sleeps while the queue has a session.
/// `serve` is what each backend does.
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

/// The first session that the backend gets keeps it busy.
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
fn two_backends_at_one_queue_never_sleep_while_a_session_waits() {
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
fn free_backend_serves_while_other_at_same_queue_is_at_work() {
    for states in STATES {
        two_at_one_queue(states, serve_one, LeftOut::Nothing);
    }
}

#[test]
#[should_panic]
fn the_model_sees_that_each_queued_session_needs_a_poke() {
    two_at_one_queue(STATES[0], serve_one, LeftOut::SecondPoke);
}
