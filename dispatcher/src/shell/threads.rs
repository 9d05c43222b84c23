//! Threads that wait for events: the main thread waits for all, and others wait for sessions
//! if pg_baton.dispatchers is more than 1. The load of the main thread decides whether the
//! others wait.
//!
//! Each thread has an epoll of its own, and a session is one thread's for life, by
//! its index: backends arm it there again (handover.c does the same sum). Whoever
//! has something takes the [`Dispatcher`], handles a round of it, and leaves it to
//! the next. So decisions are made one after the other, as by one thread, and what
//! goes on side by side is the kernel's: looking through sockets, being woken,
//! and backends' arming, which all take the epoll's lock.
//!
//! To be woken costs more than most events. So the others wait only while the main
//! thread alone would not do ([`Load`]); else it waits for their sessions, too: their
//! epolls are in its own. Two may take events of one epoll at a time; each event is
//! had by one of them.
//!
//! An event that a thread has taken may wait for its turn while the session is
//! served, ends, or becomes armed again. One thread's round knows the same: its
//! events are of the time when they were read. A name that is past finds nothing,
//! and one event too many is a session that a backend finds to have said nothing.
//!
//! Time is the main thread's. One that has left something for sooner than that
//! wakes up wakes it.

use super::batch_scheduling::BatchScheduling;
use super::event_loop::{Arrivals, Dispatcher, Nap};
use super::events::{source_of, token, Source, TurnClock};
use super::sys::epoll::{self, Epoll, Event};
use super::sys::process;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Of one epoll: those that hand a session over take some 15 microseconds each.
const EVENTS_A_ROUND: usize = 128;

/// What is behind the lock.
struct Shared {
    dispatcher: Dispatcher,
    /// The main thread waits no longer than that; None: it does not wait.
    main_waits_ms: Option<i32>,
    /// The other threads wait for their sessions.
    are_all_awake: bool,
    /// Events of sessions that these have handled since the main thread looked.
    handled_by_others: usize,
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
    // Whoever has transactions take another way each time has threads do so, too.
    let is_tested = dispatcher.is_tested();
    let shared = Arc::new(Mutex::new(Shared {
        dispatcher,
        main_waits_ms: None,
        are_all_awake: is_tested,
        handled_by_others: 0,
    }));
    let awake = Arc::new(Condvar::new());
    let mut others = Others::new(epolls, awake.clone(), is_tested)?;
    for (number, epoll) in epolls.iter().enumerate().skip(1) {
        let (shared, epoll, awake) = (shared.clone(), epoll.clone(), awake.clone());
        std::thread::Builder::new()
            .name(format!("sessions {number}"))
            .spawn(move || {
                let _aborts = AbortsInPanic;
                wait_for_sessions(&shared, &epoll, &awake).expect("epoll_wait");
            })?;
    }
    let _aborts = (epolls.len() > 1).then_some(AbortsInPanic);
    let result = wait_for_all(&shared, &epolls[0], &mut others);
    lock(&shared).dispatcher.leave();
    result
}

fn take(nap: Option<Nap>, arrivals: &mut Arrivals) {
    if let Some(nap) = nap {
        nap.take(arrivals);
    }
}

/// The other threads' epolls, as the main thread sees them.
struct Others {
    epolls: Vec<Arc<Epoll>>,
    /// There are more events than were taken, which is not told again.
    have_more: Vec<bool>,
    awake: Arc<Condvar>,
    load: Load,
    /// They are awake for good.
    is_tested: bool,
}

impl Others {
    fn new(epolls: &[Arc<Epoll>], awake: Arc<Condvar>, is_tested: bool) -> io::Result<Others> {
        let others = &epolls[1..];
        for (number, epoll) in others.iter().enumerate() {
            // Told of news alone: taking events until there are none costs a call, to
            // be told again of what has been taken would cost a look in each wait.
            let events = if is_tested {
                0
            } else {
                epoll::IN | epoll::EDGES
            };
            let data = token(Source::Sessions, number as u32);
            epolls[0].add(epoll.as_raw_fd(), events, data)?;
        }
        Ok(Others {
            epolls: others.to_vec(),
            have_more: vec![false; others.len()],
            awake,
            load: Load::default(),
            is_tested,
        })
    }

    /// `events` begins with `count` of the main thread's epoll; what the others have is
    /// put behind them, as far as there is room. How many there are then.
    fn take(&mut self, events: &mut [Event], mut count: usize) -> io::Result<usize> {
        for event in &events[..count] {
            if let Some((Source::Sessions, number)) = source_of(event.u64) {
                self.have_more[number as usize] = true;
            }
        }
        for (epoll, has_more) in self.epolls.iter().zip(&mut self.have_more) {
            let room = &mut events[count..];
            if *has_more && !room.is_empty() {
                let taken = epoll.wait(room, 0)?;
                *has_more = taken == room.len();
                count += taken;
            }
        }
        Ok(count)
    }

    fn have_more(&self) -> bool {
        self.have_more.contains(&true)
    }

    /// The main thread has handled so many events: are the others to be awake?
    fn look(&mut self, own: &mut Shared, main: &Epoll, count: usize) -> io::Result<()> {
        if self.epolls.is_empty() || self.is_tested {
            return Ok(());
        }
        let count = count + std::mem::take(&mut own.handled_by_others);
        let now_us = own.dispatcher.now_us();
        let wanted = (self.load).are_more_wanted(count, now_us, process::thread_cpu_us);
        if wanted == own.are_all_awake {
            return Ok(());
        }
        // Those of them that wait have one more round before they rest.
        own.are_all_awake = wanted;
        let events = if wanted { 0 } else { epoll::IN | epoll::EDGES };
        for (number, epoll) in self.epolls.iter().enumerate() {
            // What is there already makes an event (epoll(7)).
            main.modify(
                epoll.as_raw_fd(),
                events,
                token(Source::Sessions, number as u32),
            )?;
        }
        self.awake.notify_all();
        Ok(())
    }
}

/// The main thread's loop.
fn wait_for_all(shared: &Mutex<Shared>, epoll: &Epoll, others: &mut Others) -> io::Result<()> {
    let mut events = [epoll::no_event(); 2 * EVENTS_A_ROUND];
    let mut arrivals = Arrivals::default();
    let mut scheduling = BatchScheduling::of_this_thread();
    let mut clock = TurnClock::default();
    let mut own = lock(shared);
    while !own.dispatcher.is_finished() {
        let nap = own.dispatcher.nap(&arrivals, true);
        let mut timeout_ms = own.dispatcher.next_timeout_ms();
        own.main_waits_ms = Some(timeout_ms);
        drop(own);
        if others.have_more() {
            timeout_ms = 0;
        } else {
            take(nap, &mut arrivals);
        }
        let count = epoll.wait(&mut events[..EVENTS_A_ROUND], timeout_ms)?;
        scheduling.woken();
        let count = others.take(&mut events, count)?;
        own = lock(shared);
        own.main_waits_ms = None;
        if own.dispatcher.is_finished() {
            break;
        }
        own.dispatcher.round(&events[..count], &mut clock);
        arrivals.came(count, own.dispatcher.now_us());
        others.look(&mut own, epoll, count)?;
    }
    Ok(())
}

/// The other threads': until the process ends.
fn wait_for_sessions(shared: &Mutex<Shared>, epoll: &Epoll, awake: &Condvar) -> io::Result<()> {
    let mut events = [epoll::no_event(); EVENTS_A_ROUND];
    let mut arrivals = Arrivals::default();
    let mut scheduling = BatchScheduling::of_this_thread();
    let mut clock = TurnClock::default();
    loop {
        let mut own = lock(shared);
        while !own.are_all_awake {
            own = awake.wait(own).unwrap_or_else(PoisonError::into_inner);
        }
        let nap = own.dispatcher.nap(&arrivals, false);
        drop(own);
        take(nap, &mut arrivals);
        let count = epoll.wait(&mut events, -1)?;
        scheduling.woken();
        if count == 0 {
            continue;
        }
        let mut own = lock(shared);
        if own.dispatcher.is_finished() {
            return Ok(());
        }
        own.dispatcher.round(&events[..count], &mut clock);
        own.handled_by_others += count;
        arrivals.came(count, own.dispatcher.now_us());
        let needed_ms = if own.dispatcher.is_finished() {
            0
        } else {
            own.dispatcher.next_timeout_ms()
        };
        own.main_is_needed_in(needed_ms);
    }
}

// ---- Load -----------------------------------------------------------------
//
// When one thread does not do any more.
//
// By its share of a core, not by how much there is to do: where others have the
// cores, more threads would only wait for them, too.

/// Between two looks.
const LOOK_US: u64 = 100_000;
/// Of a core, in percent: beyond that the others help.
const MUCH: u64 = 70;
/// They do so until there has been less than half of the work for so many looks.
const QUIET_LOOKS: u32 = 10;

/// What the main thread knows of its work.
#[derive(Default)]
pub struct Load {
    events: usize,
    looked_us: u64,
    cpu_us: u64,
    /// Events a look when help was called for; 0: there is none.
    much: usize,
    quiet: u32,
}

impl Load {
    /// So many events have been handled. Are more threads wanted than one?
    /// `thread_cpu_us` tells what this one has used, and is asked now and then.
    pub fn are_more_wanted(
        &mut self,
        events: usize,
        now_us: u64,
        thread_cpu_us: impl FnOnce() -> u64,
    ) -> bool {
        self.events += events;
        let passed_us = now_us.saturating_sub(self.looked_us);
        if passed_us < LOOK_US {
            return self.much > 0;
        }
        let cpu_us = thread_cpu_us();
        let used_us = cpu_us - self.cpu_us;
        // As many as there would have been by the next look.
        let events = (self.events as u64 * LOOK_US / passed_us) as usize;
        (self.events, self.looked_us, self.cpu_us) = (0, now_us, cpu_us);
        if used_us * 100 > passed_us * MUCH {
            self.much = self.much.max(events).max(1);
        }
        self.quiet = if 2 * events < self.much {
            self.quiet + 1
        } else {
            0
        };
        if self.quiet >= QUIET_LOOKS {
            (self.much, self.quiet) = (0, 0);
        }
        self.much > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many looks, each with that many events and so much of a core.
    fn looks(load: &mut Load, from: u64, count: u64, events: usize, percent: u64) -> Vec<bool> {
        let mut look = |number: u64| {
            let cpu_us = load.cpu_us + LOOK_US * percent / 100;
            load.are_more_wanted(events, (from + number) * LOOK_US, || cpu_us)
        };
        (1..=count).map(&mut look).collect()
    }

    #[test]
    fn a_thread_that_does_alone_is_left_alone() {
        let mut load = Load::default();
        assert!(!looks(&mut load, 0, 100, 5000, 60).contains(&true));
    }

    #[test]
    fn the_others_help_until_there_is_half_as_much_to_do() {
        let mut load = Load::default();
        assert!(looks(&mut load, 0, 1, 10_000, 90) == [true]);
        // It does less itself, now that it has help.
        assert!(!looks(&mut load, 1, 100, 12_000, 30).contains(&false));
        assert!(!looks(&mut load, 101, 9, 4000, 10).contains(&false));
        assert!(
            looks(&mut load, 110, 1, 9000, 20) == [true],
            "for a moment only"
        );
        assert!(!looks(&mut load, 111, 9, 4000, 10).contains(&false));
        assert!(looks(&mut load, 120, 1, 4000, 10) == [false]);
    }
}
