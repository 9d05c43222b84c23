//! Who waits for events: the main thread for all that there is, and others, if
//! pg_baton.dispatchers is more than 1, for sessions.
//!
//! Each thread has an epoll of its own, and a session is one thread's for life, by
//! its index: backends arm it there again (handover.c does the same sum). Whoever
//! has something takes the [`Dispatcher`], handles a round of it, and leaves it to
//! the next. So decisions are made one after the other, as by one thread, and what
//! goes on side by side is the kernel's: looking through sockets, being woken,
//! and backends' arming, which all take the epoll's lock.
//!
//! An event that a thread has taken may wait for its turn while the session is
//! served, ends, or becomes armed again. One thread's round knows the same: its
//! events are of the time when they were read. A name that is past finds nothing,
//! and one event too many is a session that a backend finds to have said nothing.
//!
//! Time is the main thread's. One that has left something for sooner than that
//! wakes up wakes it.

use super::event_loop::batching::{Arrivals, Nap};
use super::event_loop::Dispatcher;
use super::sys::epoll::{self, Epoll};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const EVENTS_A_ROUND: usize = 256;

/// What is behind the lock.
struct Shared {
    dispatcher: Dispatcher,
    /// The main thread waits no longer than that; None: it does not wait.
    main_waits_ms: Option<i32>,
}

impl Shared {
    /// There is something to do for the main thread in so many milliseconds.
    fn main_is_needed_in(&mut self, milliseconds: i32) {
        if (self.main_waits_ms).is_some_and(|waits| waits > milliseconds) {
            self.main_waits_ms = None;
            self.dispatcher.wake_main_thread();
        }
    }
}

/// Whatever else is wrong, nobody goes on with what another left half done.
struct AbortsInPanic;

impl Drop for AbortsInPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Who panics with it ends the process.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until there is nothing left to do for good (blocks). `epolls`: of sessions,
/// one a thread; the first is that of all else.
pub fn run(dispatcher: Dispatcher, epolls: &[Arc<Epoll>]) -> io::Result<()> {
    let shared = Arc::new(Mutex::new(Shared {
        dispatcher,
        main_waits_ms: None,
    }));
    for (number, epoll) in epolls.iter().enumerate().skip(1) {
        let (shared, epoll) = (shared.clone(), epoll.clone());
        std::thread::Builder::new()
            .name(format!("sessions {number}"))
            .spawn(move || {
                let _aborts = AbortsInPanic;
                wait_for_sessions(&shared, &epoll).expect("epoll_wait");
            })?;
    }
    let _aborts = (epolls.len() > 1).then_some(AbortsInPanic);
    let result = wait_for_all(&shared, &epolls[0]);
    lock(&shared).dispatcher.leave();
    result
}

fn take(nap: Option<Nap>, arrivals: &mut Arrivals) {
    if let Some(nap) = nap {
        nap.take(arrivals);
    }
}

/// The main thread's loop.
fn wait_for_all(shared: &Mutex<Shared>, epoll: &Epoll) -> io::Result<()> {
    let mut events = [epoll::no_event(); EVENTS_A_ROUND];
    let mut arrivals = Arrivals::default();
    let mut own = lock(shared);
    while !own.dispatcher.is_finished() {
        let nap = own.dispatcher.nap(&arrivals, true);
        let timeout_ms = own.dispatcher.next_timeout_ms();
        own.main_waits_ms = Some(timeout_ms);
        drop(own);
        take(nap, &mut arrivals);
        let count = epoll.wait(&mut events, timeout_ms)?;
        own = lock(shared);
        own.main_waits_ms = None;
        if own.dispatcher.is_finished() {
            break;
        }
        own.dispatcher.round(&events[..count]);
        arrivals.came(count, own.dispatcher.now_us());
    }
    Ok(())
}

/// The other threads': until the process ends.
fn wait_for_sessions(shared: &Mutex<Shared>, epoll: &Epoll) -> io::Result<()> {
    let mut events = [epoll::no_event(); EVENTS_A_ROUND];
    let mut arrivals = Arrivals::default();
    loop {
        let count = epoll.wait(&mut events, -1)?;
        if count == 0 {
            continue;
        }
        let mut own = lock(shared);
        if own.dispatcher.is_finished() {
            return Ok(());
        }
        own.dispatcher.round(&events[..count]);
        arrivals.came(count, own.dispatcher.now_us());
        let needed_ms = if own.dispatcher.is_finished() {
            0
        } else {
            own.dispatcher.next_timeout_ms()
        };
        own.main_is_needed_in(needed_ms);
        let nap = own.dispatcher.nap(&arrivals, false);
        drop(own);
        take(nap, &mut arrivals);
    }
}
