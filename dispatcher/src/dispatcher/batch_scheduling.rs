//! Whether a thread that is woken may interrupt who is at work.
//!
//! Who wakes a relay, a backend or a client, has more to do, as a rule; to be interrupted
//! for it costs more than the work that is left. A thread with the policy SCHED_BATCH
//! (sched(7)) interrupts nobody. But where others compute for milliseconds it would wait
//! for them; so each thread looks for how long it has waited for a processor whenever it
//! was to run, and has the usual policy again for a while if that was too long.
//! Backends do the same (batch_scheduling.c, which says more).

use super::sys::scheduling::{thread_waits, Policy};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Times woken between two looks, and until the first one with the other policy.
const WAKES_A_LOOK: u32 = 64;
const WAKES_A_TRY: u32 = 16;
/// That many in so long are often.
const OFTEN_US: u64 = 1_000_000;
/// It is not tried again for so long, doubled each time.
const PAUSE_LEAST_US: u64 = 1_000_000;
const PAUSE_MOST_US: u64 = 64_000_000;

/// pg_baton.batch_scheduling_wait, microseconds, for all threads; 0: never.
static MOST_WAIT_US: AtomicU64 = AtomicU64::new(0);

pub fn set_most_wait_us(most_wait_us: u64) {
    MOST_WAIT_US.store(most_wait_us, Relaxed);
}

/// A thread's own. Dropped with it: a policy is a thread's.
pub struct BatchScheduling {
    /// The policy is not ours to change.
    is_refused: bool,
    began: Instant,
    wakes_left: u32,
    decision: Decision,
}

impl BatchScheduling {
    /// For the thread that calls this.
    pub fn of_this_thread() -> BatchScheduling {
        BatchScheduling {
            is_refused: false,
            began: Instant::now(),
            wakes_left: WAKES_A_LOOK,
            decision: Decision::default(),
        }
    }

    /// The thread has waited for events.
    pub fn woken(&mut self) {
        self.wakes_left -= 1;
        if self.wakes_left > 0 {
            return;
        }
        self.wakes_left = WAKES_A_LOOK;
        if self.is_refused {
            return;
        }
        let waits = thread_waits();
        // Who does not know for how long he waits has the usual policy.
        let most_wait_us = waits.as_ref().map_or(0, |_| MOST_WAIT_US.load(Relaxed));
        let (waited_ns, times_run) = waits.unwrap_or_default();
        let seen = Seen {
            at_us: self.began.elapsed().as_micros() as u64,
            waited_ns,
            times_run,
        };
        let was_batch = self.decision.is_batch;
        if self.decision.look(seen, most_wait_us) {
            self.wakes_left = WAKES_A_TRY;
        }
        if self.decision.is_batch != was_batch {
            self.is_refused = !change(self.decision.is_batch);
        }
    }
}

/// False: the policy is one that somebody has set who knew why, or may not be changed.
fn change(batch: bool) -> bool {
    let (from, to) = match batch {
        true => (Policy::Usual, Policy::Batch),
        false => (Policy::Batch, Policy::Usual),
    };
    Policy::of_this_thread() == Some(from) && to.set().is_ok()
}

/// What the kernel has counted of a thread so far.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    at_us: u64,
    /// For a processor.
    waited_ns: u64,
    times_run: u64,
}

/// Without clock and system calls.
#[derive(Debug)]
struct Decision {
    is_batch: bool,
    seen: Seen,
    tried_us: u64,
    not_before_us: u64,
    pause_us: u64,
}

impl Default for Decision {
    fn default() -> Decision {
        Decision {
            is_batch: false,
            seen: Seen::default(),
            tried_us: 0,
            not_before_us: 0,
            pause_us: PAUSE_LEAST_US,
        }
    }
}

impl Decision {
    /// True: it is tried from now on, and looked at soon.
    fn look(&mut self, now: Seen, most_wait_us: u64) -> bool {
        let before = std::mem::replace(&mut self.seen, now);
        let is_often = now.at_us - before.at_us < OFTEN_US;
        let times_run = (now.times_run.saturating_sub(before.times_run)).max(1);
        let wait_us = now.waited_ns.saturating_sub(before.waited_ns) / 1000 / times_run;
        let may_be = is_often && most_wait_us > 0;
        if !self.is_batch {
            self.is_batch = may_be && now.at_us >= self.not_before_us;
            self.tried_us = now.at_us;
            return self.is_batch;
        }
        if !may_be {
            self.is_batch = false;
        } else if wait_us > most_wait_us {
            self.is_batch = false;
            self.not_before_us = now.at_us + self.pause_us;
            self.pause_us = (2 * self.pause_us).min(PAUSE_MOST_US);
        } else if now.at_us - self.tried_us > self.pause_us {
            self.pause_us = PAUSE_LEAST_US;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks each so many microseconds, at which each wait was so long.
    struct Looks {
        decision: Decision,
        seen: Seen,
    }

    impl Looks {
        fn look(&mut self, after_us: u64, wait_us: u64) -> bool {
            self.seen.at_us += after_us;
            self.seen.times_run += 64;
            self.seen.waited_ns += 64 * 1000 * wait_us;
            self.decision.look(self.seen, 250);
            self.decision.is_batch
        }
    }

    fn looks() -> Looks {
        Looks {
            decision: Decision::default(),
            seen: Seen::default(),
        }
    }

    #[test]
    fn who_is_often_woken_and_hardly_waits_interrupts_nobody() {
        let mut looks = looks();
        assert!((0..100).all(|_| looks.look(10_000, 100)));
        assert!(!looks.look(2_000_000, 100), "seldom");
        assert!(looks.look(10_000, 100));
    }

    #[test]
    fn who_waits_for_others_that_compute_interrupts_them_for_longer_each_time() {
        let mut looks = looks();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(looks.look(10_000, 100) || looks.look(10_000, 100));
            assert!(!looks.look(10_000, 300));
            let since_us = looks.seen.at_us;
            while !looks.look(500_000, 10) {}
            pauses.push((looks.seen.at_us - since_us) / 1_000_000);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn when_it_has_gone_well_for_as_long_it_begins_with_a_short_pause_again() {
        let mut looks = looks();
        for _ in 0..4 {
            while !looks.look(500_000, 10) {}
            assert!(!looks.look(10_000, 300));
        }
        while !looks.look(500_000, 10) {}
        for _ in 0..40 {
            assert!(looks.look(500_000, 10));
        }
        assert!(!looks.look(10_000, 300));
        let since_us = looks.seen.at_us;
        while !looks.look(500_000, 10) {}
        assert_eq!(looks.seen.at_us - since_us, 1_000_000);
    }

    #[test]
    fn a_limit_of_zero_means_never() {
        let mut decision = Decision::default();
        let mut seen = Seen::default();
        for _ in 0..10 {
            seen.at_us += 10_000;
            assert!(!decision.look(seen, 0) && !decision.is_batch);
        }
        decision.look(
            Seen {
                at_us: 200_000,
                ..seen
            },
            250,
        );
        assert!(decision.is_batch);
        decision.look(
            Seen {
                at_us: 210_000,
                ..seen
            },
            0,
        );
        assert!(!decision.is_batch);
    }
}
