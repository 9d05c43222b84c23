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

use super::event_loop::Dispatcher;
use super::pools::batching::{Arrivals, Nap};
use super::sys::epoll::{self, Epoll};
use super::sys::process;
use crate::core::{index_of, SessionId};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const EVENTS_A_ROUND: usize = 256;

/// What others know of the main thread.
pub struct MainThread {
    wake: OwnedFd,
    /// It waits no longer than that; None: it does not wait.
    waits_ms: Option<i32>,
}

impl MainThread {
    pub fn new() -> io::Result<MainThread> {
        let wake = process::eventfd()?;
        let waits_ms = None;
        Ok(MainThread { wake, waits_ms })
    }

    pub fn fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    pub fn woken(&self) {
        process::drain(&self.wake);
    }

    /// There is something to do in so many milliseconds.
    fn is_needed_in(&mut self, milliseconds: i32) {
        if self.waits_ms.is_some_and(|waits| waits > milliseconds) {
            self.waits_ms = None;
            process::signal_event(&self.wake);
        }
    }
}

impl Dispatcher {
    /// Where a session's socket stands.
    pub fn session_epoll(&self, id: SessionId) -> &Epoll {
        &self.session_epolls[index_of(id) as usize % self.session_epolls.len()]
    }

    /// A client that the main thread has logged in; `watched`: it stands in its epoll.
    /// True if it stands in its thread's.
    pub fn moves_to_its_thread(&self, id: SessionId, fd: RawFd, watched: bool) -> bool {
        let is_the_same = std::ptr::eq(self.session_epoll(id), &*self.epoll);
        if watched && !is_the_same {
            let _ = self.client_number.remove(&self.epoll, fd);
        }
        watched && is_the_same
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

fn lock(dispatcher: &Mutex<Dispatcher>) -> MutexGuard<'_, Dispatcher> {
    // Who panics with it ends the process.
    dispatcher.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until there is nothing left to do for good (blocks).
pub fn run(dispatcher: Dispatcher) -> io::Result<()> {
    let epolls = dispatcher.session_epolls.clone();
    let dispatcher = Arc::new(Mutex::new(dispatcher));
    for (number, epoll) in epolls.iter().enumerate().skip(1) {
        let (dispatcher, epoll) = (dispatcher.clone(), epoll.clone());
        std::thread::Builder::new()
            .name(format!("sessions {number}"))
            .spawn(move || {
                let _aborts = AbortsInPanic;
                wait_for_sessions(&dispatcher, &epoll).expect("epoll_wait");
            })?;
    }
    let _aborts = (epolls.len() > 1).then_some(AbortsInPanic);
    let result = wait_for_all(&dispatcher, &epolls[0]);
    lock(&dispatcher).leave();
    result
}

fn take(nap: Option<Nap>, arrivals: &mut Arrivals) {
    if let Some(nap) = nap {
        nap.take(arrivals);
    }
}

/// The main thread's loop.
fn wait_for_all(dispatcher: &Mutex<Dispatcher>, epoll: &Epoll) -> io::Result<()> {
    let mut events = [epoll::no_event(); EVENTS_A_ROUND];
    let mut arrivals = Arrivals::default();
    let mut own = lock(dispatcher);
    while !own.finished {
        let nap = own.nap(&arrivals, true);
        let timeout_ms = own.next_timeout_ms();
        own.main_thread.waits_ms = Some(timeout_ms);
        drop(own);
        take(nap, &mut arrivals);
        let count = epoll.wait(&mut events, timeout_ms)?;
        own = lock(dispatcher);
        own.main_thread.waits_ms = None;
        if own.finished {
            break;
        }
        own.round(&events[..count]);
        arrivals.came(count, own.now_us);
    }
    Ok(())
}

/// The other threads': until the process ends.
fn wait_for_sessions(dispatcher: &Mutex<Dispatcher>, epoll: &Epoll) -> io::Result<()> {
    let mut events = [epoll::no_event(); EVENTS_A_ROUND];
    let mut arrivals = Arrivals::default();
    loop {
        let count = epoll.wait(&mut events, -1)?;
        if count == 0 {
            continue;
        }
        let mut own = lock(dispatcher);
        if own.finished {
            return Ok(());
        }
        own.round(&events[..count]);
        arrivals.came(count, own.now_us);
        let needed_ms = if own.finished {
            0
        } else {
            own.next_timeout_ms()
        };
        own.main_thread.is_needed_in(needed_ms);
        let nap = own.nap(&arrivals, false);
        drop(own);
        take(nap, &mut arrivals);
    }
}
