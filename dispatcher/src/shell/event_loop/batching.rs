//! Not waking up for each session that speaks, while nobody could serve it.
//!
//! A saturated pool whose transactions take a millisecond has an event each
//! fraction of one, and to be woken costs ten times what an event does. But as
//! long as its ready queue holds enough for all of its backends, a session that
//! speaks now only gets a place behind the others. So the dispatcher *naps*:
//! it waits for all but its sessions, until a batch of them will have spoken, or
//! the queue has run down to where the kernel calls it writable again (a
//! quarter), which is when the backends need more. docs/design/performance.md
//! has the figures.
//!
//! Order is not touched: the epoll lists sockets as they became readable.

use super::Dispatcher;
use crate::shell::sys::epoll;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// As many events are waited for.
const BATCH: u64 = 32;
/// For no longer, since sessions of pools that have no part in it may speak,
/// too. No longer than a tick.
const NAP_MAX_US: u64 = 20_000;
/// In so short a time they gather by themselves, and the queue could run dry
/// before the dispatcher is on a CPU again.
const NAP_MIN_US: u64 = 1_500;
/// A nap looks at each descriptor: with more it would cost what it saves.
const DESCRIPTORS_MAX: usize = 256;
/// A shorter nap was none: something else than sessions keeps us busy...
const NAP_CUT_SHORT_US: u64 = 300;
/// ... and for so many rounds it is not tried again.
const ROUNDS_AWAKE: u32 = 16;

/// How fast events come, and whether napping has been of use.
#[derive(Default)]
pub struct Arrivals {
    /// Between two events, smoothed.
    gap_us: u64,
    last_us: u64,
    /// Rounds without a nap still to come.
    awake: u32,
}

impl Arrivals {
    /// A round begins with so many events.
    pub fn came(&mut self, count: usize, now_us: u64) {
        let gap_us = now_us.saturating_sub(self.last_us) / count.max(1) as u64;
        self.gap_us = (7 * self.gap_us + gap_us) / 8;
        self.last_us = now_us;
        self.awake = self.awake.saturating_sub(1);
    }

    /// How long a batch takes to come; None if that is not worth a nap.
    fn nap_us(&self) -> Option<u64> {
        let nap_us = (BATCH * self.gap_us).min(NAP_MAX_US);
        (nap_us >= NAP_MIN_US && self.awake == 0).then_some(nap_us)
    }

    fn was_cut_short(&mut self) {
        self.awake = ROUNDS_AWAKE;
    }
}

/// What to wait for instead of sessions.
pub struct Nap {
    microseconds: u64,
    readable: Vec<RawFd>,
    writable: Vec<RawFd>,
}

impl Nap {
    /// Blocks, NAP_MAX_US at most. A descriptor that another thread has closed
    /// ends it, or what stands there now does not: it is only a nap.
    pub fn take(&self, arrivals: &mut Arrivals) {
        let began = Instant::now();
        epoll::wait_for_some(&self.readable, &self.writable, self.microseconds);
        if began.elapsed() < Duration::from_micros(NAP_CUT_SHORT_US) {
            arrivals.was_cut_short();
        }
    }
}

impl Dispatcher {
    /// Asked before a thread waits for events: a nap if nobody is the worse for
    /// it. `has_all`: it waits not for sessions only.
    pub fn nap(&self, arrivals: &Arrivals, has_all: bool) -> Option<Nap> {
        let microseconds = arrivals.nap_us()?;
        if self.is_urgent() || self.logins.len() > 0 || self.server.is_stopping() {
            return None;
        }
        let writable = self.scheduler.saturated_queues()?;
        let own = self
            .connections
            .descriptors()
            .chain(self.ports.descriptors());
        let readable: Vec<RawFd> = own.filter(|_| has_all).collect();
        (writable.len() + readable.len() <= DESCRIPTORS_MAX).then_some(Nap {
            microseconds,
            readable,
            writable,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(gap_us: u64, a_round: usize) -> Arrivals {
        let mut arrivals = Arrivals::default();
        for round in 1..100 {
            arrivals.came(a_round, round * gap_us * a_round as u64);
        }
        arrivals
    }

    #[test]
    fn it_naps_for_a_batch_however_many_come_a_round() {
        for a_round in [1, 4, 16] {
            let nap_us = arrivals(100, a_round).nap_us().expect("is worth a nap");
            assert!((2900..=3200).contains(&nap_us), "{a_round}: {nap_us}");
        }
    }

    #[test]
    fn it_never_naps_long_nor_for_what_gathers_by_itself() {
        assert_eq!(arrivals(100_000, 1).nap_us(), Some(NAP_MAX_US));
        assert_eq!(arrivals(15, 20).nap_us(), None);
        assert_eq!(Arrivals::default().nap_us(), None);
    }

    #[test]
    fn a_nap_that_was_of_no_use_is_not_tried_again_at_once() {
        let mut arrivals = arrivals(100, 1);
        arrivals.was_cut_short();
        let mut now_us = 10_000;
        for _ in 0..ROUNDS_AWAKE {
            assert_eq!(arrivals.nap_us(), None);
            now_us += 100;
            arrivals.came(1, now_us);
        }
        assert!(arrivals.nap_us().is_some());
    }
}
