//! Threads that wait for events. The main thread waits for all events. If pg_baton.dispatchers
//! is more than 1, other threads can wait for events of sessions; the load of the main thread
//! decides whether they do.
//!
//! Each thread has an epoll of its own. A session's index determines its thread for life:
//! backends arm the socket there again (handover.c makes the same computation). A thread that
//! has events takes the [`Dispatcher`], handles a round with it, and leaves it to the next. So
//! decisions are made one after the other, as in a single thread. The kernel's work runs in
//! parallel: it looks through sockets, wakes threads, and arms sockets for backends, all under
//! the lock of the epoll.
//!
//! A wake-up costs more than most events. So the other threads wait only while the main thread
//! alone is too slow ([`Load`]). Otherwise the main thread waits for their sessions, too: their
//! epolls are in its own. Two threads may take events from one epoll at a time; each event goes
//! to only one of them.
//!
//! While an event that a thread has taken waits for its turn, the session may be served, end,
//! or be armed again. The same happens in the round of a single thread, whose events are as old
//! as their reading. The id of an ended session finds nothing, and a superfluous event leads to
//! a session in which a backend finds no input.
//!
//! The main thread keeps the time. A thread that leaves work for an earlier time than the main
//! thread's next wake-up wakes the main thread.

use super::batch_scheduling::BatchScheduling;
use super::event_loop::{Arrivals, Dispatcher, Nap};
use super::events::{source_of, token, Source, TurnClock};
use super::sys::epoll::{self, Epoll, Event};
use super::sys::process;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Events taken from one epoll in a round. Each event that hands a session over takes some 15
/// microseconds.
const EVENTS_A_ROUND: usize = 128;

/// What the lock protects.
struct Shared {
    dispatcher: Dispatcher,
    /// How long the main thread waits at most, in milliseconds; None: it is not waiting.
    main_waits_ms: Option<i32>,
    /// Do the other threads wait for events of their sessions?
    are_all_awake: bool,
    /// Events of sessions that the other threads have handled since the main thread last
    /// looked.
    handled_by_others: usize,
}

impl Shared {
    /// There is work for the main thread in this many milliseconds.
    fn main_is_needed_in(&mut self, milliseconds: i32) {
        if (self.main_waits_ms).is_some_and(|waits| waits > milliseconds) {
            self.main_waits_ms = None;
            self.dispatcher.wake_main_thread();
        }
    }
}

/// Aborts the process if a thread panics: no other thread may continue with a state that is
/// half changed.
struct AbortsInPanic;

impl Drop for AbortsInPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // A thread that panics with the lock ends the process.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until the dispatcher is finished. Blocks. `epolls`: one for each thread's sessions; the
/// first is also the epoll of everything else.
pub fn run(dispatcher: Dispatcher, epolls: &[Arc<Epoll>]) -> io::Result<()> {
    // The test mode in which every transaction changes its way also uses all threads.
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
    if lock(&shared).dispatcher.is_outlived() {
        // Its sockets stay open.
        std::mem::forget(shared);
    }
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
    /// The epoll has more events than were taken; the kernel does not report these again.
    have_more: Vec<bool>,
    awake: Arc<Condvar>,
    load: Load,
    /// The other threads are awake all the time.
    is_tested: bool,
}

impl Others {
    fn new(epolls: &[Arc<Epoll>], awake: Arc<Condvar>, is_tested: bool) -> io::Result<Others> {
        let others = &epolls[1..];
        for (number, epoll) in others.iter().enumerate() {
            // Edge-triggered: one more call finds out that no event is left, while
            // level-triggering would make the kernel look again in each wait.
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

    /// `events` begins with `count` events of the main thread's epoll. Appends those of the
    /// other epolls, as far as there is room. Returns the number of all events.
    fn take(&mut self, events: &mut [Event], mut count: usize) -> io::Result<usize> {
        for event in &events[..count] {
            if let Some((Source::Sessions, number)) = source_of(event.u64) {
                if let Some(has_more) = self.have_more.get_mut(number as usize) {
                    *has_more = true;
                }
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

    /// The main thread has handled `count` events. Decides whether the other threads are to be
    /// awake.
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
        // Other threads that are waiting have one more round before they rest.
        own.are_all_awake = wanted;
        let events = if wanted { 0 } else { epoll::IN | epoll::EDGES };
        for (number, epoll) in self.epolls.iter().enumerate() {
            // Events that are pending already make an event (epoll(7)).
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

/// The loop of the main thread.
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
        own.dispatcher.publish_batch_scheduling();
        own.dispatcher.round(&events[..count], &mut clock);
        arrivals.came(count, own.dispatcher.now_us());
        others.look(&mut own, epoll, count)?;
    }
    Ok(())
}

/// The loop of every other thread, until the process ends.
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
// Decides when one thread is not enough.
//
// The measure is the thread's share of a core, not the number of events: where other processes
// use the cores, more threads would only wait for a core, too.

/// Time between two looks.
const LOOK_US: u64 = 100_000;
/// The share of a core, in percent, above which the others help.
const MUCH: u64 = 70;
/// The others help until there has been less than half of the work for this many looks.
const QUIET_LOOKS: u32 = 10;

/// What the main thread knows of its load.
#[derive(Default)]
pub struct Load {
    events: usize,
    looked_us: u64,
    cpu_us: u64,
    /// Events in a look at the time when help was needed; 0: no help is needed.
    much: usize,
    quiet: u32,
}

impl Load {
    /// Counts `events` handled events. Are more threads wanted than one? `thread_cpu_us`
    /// returns the processor time of this thread, and is called only once in LOOK_US.
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
        // The events, converted to a span of LOOK_US.
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

    /// `count` looks, each with this many events and this share of a core.
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
        // The main thread does less itself, as the others help.
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
