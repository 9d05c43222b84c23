//! Decides whether a woken thread may interrupt the process that runs on its processor.
//!
//! A process that wakes a relay, a backend or a client usually has more to do, and its
//! interruption costs more than the work that it has left. A thread with the policy SCHED_BATCH
//! (sched(7)) interrupts no other thread. But where other processes compute for milliseconds,
//! such a thread would wait for them. So each thread measures how long it has waited for a
//! processor when it was ready to run: first on average, and if the average is too long, some
//! waits one by one. If long waits make up most of these, the thread returns to the usual
//! policy for a while. A wait is too long if it exceeds the parameter's value and three times
//! the wait under the usual policy: where waits are long under the usual policy as well, an
//! interruption gains little.
//!
//! Backends run on the same processors: they follow the threads' decisions, which the main thread
//! publishes (idle.c).
//!
//! Clients that log in with TLS or SCRAM compute for milliseconds between two answers of the
//! dispatcher. A thread that waits until one of them has finished keeps the others waiting, and
//! leaves processors idle when there are few clients at a time. So while many clients log in
//! this way, all threads use the usual policy.

use super::sys::process::{monotonic_us, thread_waits, Policy};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Wake-ups between two looks, and between the switch to SCHED_BATCH and the first look after
/// it.
const WAKES_A_LOOK: u32 = 64;
const WAKES_A_TRY: u32 = 16;
/// Waits that a close look measures one by one, and looks between two close looks.
const WAITS_A_CLOSE_LOOK: u32 = 32;
const LOOKS_AFTER_CLOSE_LOOK: u32 = 16;
/// A single wait is long if it exceeds the longest acceptable average wait this many times.
const LONG_WAIT_TIMES: u64 = 4;
/// A look counts only if its wake-ups happened within this time.
const OFTEN_US: u64 = 1_000_000;
/// With SCHED_BATCH a thread may wait this many times as long as with the usual policy.
const USUAL_WAIT_TIMES: u64 = 3;
/// The wait under the usual policy is measured again after this time, if it matters.
const USUAL_WAIT_KNOWN_US: u64 = 10_000_000;
/// From this many logins a second on, for which clients compute, the usual policy applies.
/// They are counted over COUNTED_FOR_US.
const MANY_COMPUTED_A_SECOND: u64 = 100;
const COUNTED_FOR_US: u64 = 100_000;
/// How long SCHED_BATCH is not tried again after it failed; doubles each time.
const PAUSE_LEAST_US: u64 = 1_000_000;
const PAUSE_MOST_US: u64 = 8_000_000;

/// A decision is published when it moves the published time by this much.
const PUBLISHED_WITHIN_US: u64 = 100_000;

/// The constant batch_scheduling_wait_us in microseconds, for all threads; 0: never use SCHED_BATCH.
static MOST_WAIT_US: AtomicU64 = AtomicU64::new(0);

/// Logins for which clients have computed: a TLS handshake or a SCRAM proof.
static COMPUTED: AtomicU64 = AtomicU64::new(0);

/// Counts one more such login.
pub fn client_has_computed() {
    COMPUTED.fetch_add(1, Relaxed);
}

/// Until when, by the monotonic clock, a thread that is often woken has decided for SCHED_BATCH;
/// 0: the last decision was against it.
static UNTIL_US: AtomicU64 = AtomicU64::new(0);

/// Writes the decision into this word, for backends.
pub fn publish(until_us: &AtomicU64) {
    let decided_us = UNTIL_US.load(Relaxed);
    if until_us.load(Relaxed).abs_diff(decided_us) >= PUBLISHED_WITHIN_US {
        until_us.store(decided_us, Relaxed);
    }
}

/// The decision, for the dispatcher, if a process of relays has not told it yet.
pub fn untold() -> Option<u64> {
    static TOLD_US: AtomicU64 = AtomicU64::new(0);
    let (decided_us, told_us) = (UNTIL_US.load(Relaxed), TOLD_US.load(Relaxed));
    let is_new = told_us.abs_diff(decided_us) >= PUBLISHED_WITHIN_US;
    // Of several threads, one tells it.
    let exchange = || TOLD_US.compare_exchange(told_us, decided_us, Relaxed, Relaxed);
    (is_new && exchange().is_ok()).then_some(decided_us)
}

/// A thread has decided, of this process or of the relays': for SCHED_BATCH until then, or, 0,
/// against it.
pub fn decided(until_us: u64) {
    match until_us {
        0 => UNTIL_US.store(0, Relaxed),
        _ => {
            UNTIL_US.fetch_max(until_us, Relaxed);
        }
    }
}

pub fn set_most_wait_us(most_wait_us: u64) {
    MOST_WAIT_US.store(most_wait_us, Relaxed);
}

pub fn most_wait_us() -> u64 {
    MOST_WAIT_US.load(Relaxed)
}

/// The scheduling policy of one thread. It ends with the thread, as the policy does.
pub struct BatchScheduling {
    /// The policy cannot be changed, or was set from outside.
    is_refused: bool,
    wakes_left: u32,
    computed: Computed,
    decision: Decision,
}

impl BatchScheduling {
    /// For the calling thread.
    pub fn of_this_thread() -> BatchScheduling {
        BatchScheduling {
            is_refused: false,
            wakes_left: WAKES_A_LOOK,
            computed: Computed::default(),
            decision: Decision::default(),
        }
    }

    /// The thread has returned from waiting for events.
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
        let at_us = monotonic_us() as u64;
        let clients_compute = self.computed.are_many(COMPUTED.load(Relaxed), at_us);
        // A thread that cannot measure its waits has the usual policy.
        let most_wait_us = match &waits {
            Ok(_) if !clients_compute => MOST_WAIT_US.load(Relaxed),
            _ => 0,
        };
        let (waited_ns, times_run) = waits.unwrap_or_default();
        let seen = Seen {
            at_us,
            waited_ns,
            times_run,
        };
        let was_batch = self.decision.is_batch;
        self.wakes_left = self.decision.look(seen, most_wait_us);
        if self.decision.is_batch != was_batch {
            self.is_refused = !change(self.decision.is_batch);
        }
        // Backends have the policy of the process that started the dispatcher, too.
        if self.decision.is_batch && !self.is_refused {
            decided(at_us + OFTEN_US);
        } else if was_batch {
            decided(0);
        }
    }
}

/// False: the change is not permitted, or the policy is one that was set from outside on
/// purpose.
fn change(batch: bool) -> bool {
    let (from, to) = match batch {
        true => (Policy::Usual, Policy::Batch),
        false => (Policy::Batch, Policy::Usual),
    };
    Policy::of_this_thread() == Some(from) && to.set().is_ok()
}

/// The kernel's counts for one thread so far.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    at_us: u64,
    /// Time spent waiting for a processor.
    waited_ns: u64,
    times_run: u64,
}

/// Logins for which clients compute, as of the last count.
#[derive(Debug, Default)]
struct Computed {
    at_us: u64,
    all: u64,
    are_many: bool,
}

impl Computed {
    /// Are there many such logins? `all`: their number since the start.
    fn are_many(&mut self, all: u64, now_us: u64) -> bool {
        let for_us = now_us - self.at_us;
        if for_us >= COUNTED_FOR_US {
            let new = all - self.all;
            self.are_many = new * 1_000_000 >= MANY_COMPUTED_A_SECOND * for_us;
            (self.at_us, self.all) = (now_us, all);
        }
        self.are_many
    }
}

/// A series of waits that are measured one by one.
#[derive(Debug, Default)]
struct CloseLook {
    left: u32,
    /// Looks before the next close look, unless the average wait is very long.
    looks_before: u32,
    all_ns: u64,
    long_ns: u64,
}

impl CloseLook {
    fn begin() -> CloseLook {
        CloseLook {
            left: WAITS_A_CLOSE_LOOK,
            looks_before: LOOKS_AFTER_CLOSE_LOOK,
            ..CloseLook::default()
        }
    }

    /// Counts one wait. True if long waits make up most of the total, and exceed what all waits
    /// of an acceptable average would add up to; the close look is then finished.
    fn has_computing_peer(&mut self, wait_ns: u64, right_us: u64) -> bool {
        let right_ns = right_us * 1000;
        self.left -= 1;
        self.all_ns += wait_ns;
        if wait_ns > LONG_WAIT_TIMES * right_ns {
            self.long_ns += wait_ns;
        }
        self.long_ns > self.all_ns / 2 && self.long_ns > u64::from(WAITS_A_CLOSE_LOOK) * right_ns
    }
}

/// The average wait under the usual policy.
#[derive(Debug, Default)]
struct UsualWait {
    us: u64,
    /// When the wait was last measured.
    at_us: Option<u64>,
}

impl UsualWait {
    fn is_known(&self, now_us: u64) -> bool {
        self.at_us
            .is_some_and(|at_us| now_us - at_us < USUAL_WAIT_KNOWN_US)
    }

    fn was(&mut self, mean_us: u64, now_us: u64) {
        self.us = match self.is_known(now_us) {
            true => (3 * self.us + mean_us) / 4,
            false => mean_us,
        };
        self.at_us = Some(now_us);
    }
}

/// The decision, free of clock and system calls.
#[derive(Debug)]
struct Decision {
    is_batch: bool,
    seen: Seen,
    usual_wait: UsualWait,
    /// The thread has the usual policy for one look, to measure its waits under it.
    is_looking_at_usual: bool,
    tried_us: u64,
    not_before_us: u64,
    pause_us: u64,
    close_look: CloseLook,
}

impl Default for Decision {
    fn default() -> Decision {
        Decision {
            is_batch: false,
            seen: Seen::default(),
            usual_wait: UsualWait::default(),
            is_looking_at_usual: false,
            tried_us: 0,
            not_before_us: 0,
            pause_us: PAUSE_LEAST_US,
            close_look: CloseLook::default(),
        }
    }
}

impl Decision {
    /// Takes the counts of one look. Returns the number of wake-ups until the next look.
    fn look(&mut self, now: Seen, most_wait_us: u64) -> u32 {
        let before = std::mem::replace(&mut self.seen, now);
        let is_often = now.at_us - before.at_us < OFTEN_US;
        let times_run = (now.times_run.saturating_sub(before.times_run)).max(1);
        let wait_ns = now.waited_ns.saturating_sub(before.waited_ns);
        let mean_us = wait_ns / 1000 / times_run;
        let may_be = is_often && most_wait_us > 0;
        if !self.is_batch {
            if is_often {
                self.usual_wait.was(mean_us, now.at_us);
            }
            self.is_batch = may_be && now.at_us >= self.not_before_us;
            if !std::mem::take(&mut self.is_looking_at_usual) {
                self.tried_us = now.at_us;
            }
            return if self.is_batch {
                WAKES_A_TRY
            } else {
                WAKES_A_LOOK
            };
        }
        let right_us = most_wait_us.max(USUAL_WAIT_TIMES * self.usual_wait.us);
        if !may_be {
            self.interrupt_again();
        } else if self.close_look.left > 0 {
            if self.close_look.has_computing_peer(wait_ns, right_us) {
                self.interrupt_again();
                self.not_before_us = now.at_us + self.pause_us;
                self.pause_us = (2 * self.pause_us).min(PAUSE_MOST_US);
            } else if self.close_look.left > 0 {
                return 1;
            } else {
                self.goes_well(now.at_us);
            }
        } else if mean_us > most_wait_us && !self.usual_wait.is_known(now.at_us) {
            self.interrupt_again();
            self.is_looking_at_usual = true;
        } else if mean_us > right_us {
            let are_long = mean_us > LONG_WAIT_TIMES * right_us;
            if are_long || self.close_look.looks_before == 0 {
                self.close_look = CloseLook::begin();
                return 1;
            }
            self.close_look.looks_before -= 1;
        } else {
            self.goes_well(now.at_us);
        }
        WAKES_A_LOOK
    }

    /// If SCHED_BATCH has worked for as long as the last pause, the next pause is short again.
    fn goes_well(&mut self, now_us: u64) {
        if now_us - self.tried_us > self.pause_us {
            self.pause_us = PAUSE_LEAST_US;
        }
    }

    /// Returns to the usual policy.
    fn interrupt_again(&mut self) {
        self.is_batch = false;
        self.close_look = CloseLook::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_computing_logins_are_seen_within_a_moment_and_few_not() {
        let mut computed = Computed::default();
        assert!(!computed.are_many(50, 99_999), "not counted yet");
        assert!(computed.are_many(50, 100_000));
        assert!(computed.are_many(50, 150_000), "not counted anew yet");
        assert!(!computed.are_many(59, 200_000), "90 a second");
        assert!(computed.are_many(69, 300_000), "100 a second");
        assert!(!computed.are_many(169, 1_300_001), "over a longer time");
    }

    /// Looks at fixed intervals, at which each wait was equally long.
    struct Looks {
        decision: Decision,
        seen: Seen,
        next: u32,
    }

    impl Looks {
        fn look(&mut self, after_us: u64, wait_us: u64) -> bool {
            self.seen.at_us += after_us;
            self.seen.times_run += u64::from(self.next);
            self.seen.waited_ns += u64::from(self.next) * 1000 * wait_us;
            self.next = self.decision.look(self.seen, 250);
            self.decision.is_batch
        }

        /// Looks until the close look has a result, either way.
        fn look_closely(&mut self, waits_us: [u64; 2]) -> bool {
            for _ in 0..100 {
                if self.next != 1 {
                    let is_batch = self.decision.is_batch;
                    self.look(10_000, if is_batch { 300 } else { 10 });
                }
            }
            assert_eq!(self.next, 1);
            let mut waits = waits_us.into_iter().cycle();
            while self.next == 1 && self.look(300, waits.next().unwrap_or(0)) {}
            self.decision.is_batch
        }

        /// Meets a computing process `times` times; each pause is twice as long as the last
        /// one.
        fn meet_who_computes(&mut self, times: u32) {
            for _ in 0..times {
                while !self.look(500_000, 10) {}
                assert!(!self.look_closely([4_000, 4_000]));
            }
            while !self.look(500_000, 10) {}
        }

        /// Meets a computing process. Returns how long SCHED_BATCH is not tried again.
        fn pause_us(&mut self) -> u64 {
            assert!(!self.look_closely([4_000, 4_000]));
            let since_us = self.seen.at_us;
            while !self.look(500_000, 10) {}
            self.seen.at_us - since_us
        }
    }

    fn looks() -> Looks {
        Looks {
            decision: Decision::default(),
            seen: Seen::default(),
            next: WAKES_A_LOOK,
        }
    }

    #[test]
    fn thread_that_often_wakes_and_hardly_waits_interrupts_no_other() {
        let mut looks = looks();
        assert!((0..100).all(|_| looks.look(10_000, 100)));
        assert!(!looks.look(2_000_000, 100), "seldom");
        assert!(looks.look(10_000, 100));
    }

    #[test]
    fn thread_that_waits_for_computing_ones_interrupts_ever_longer() {
        let mut looks = looks();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(looks.look(10_000, 50) || looks.look(10_000, 50));
            assert!(!looks.look_closely([10, 4_000]));
            let since_us = looks.seen.at_us;
            while !looks.look(500_000, 10) {}
            pauses.push((looks.seen.at_us - since_us) / 1_000_000);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8, 8, 8, 8]);
    }

    #[test]
    fn thread_that_waits_in_queue_of_its_like_interrupts_no_other() {
        let mut looks = looks();
        assert!(looks.look(10_000, 50));
        for _ in 0..5 {
            assert!(looks.look_closely([600, 900]));
            assert!((0..LOOKS_AFTER_CLOSE_LOOK).all(|_| looks.look(10_000, 800)));
            assert_eq!(looks.next, WAKES_A_LOOK);
        }
        // A very long average wait leads to a close look in any case.
        assert!(looks.look_closely([600, 900]));
        assert!(looks.look(10_000, 2_000));
        assert!(looks.next == 1 && !looks.look_closely([2_000, 2_000]));
        assert!((0..10).any(|_| looks.look(500_000, 50)));
        // A single long wait is a process that computed once.
        assert!(looks.look(10_000, 300));
        assert!(looks.look(4_000, 4_000));
        while looks.next == 1 {
            assert!(looks.look(300, 500));
        }
    }

    #[test]
    fn rare_wake_ups_end_a_close_look_and_restore_the_usual_policy() {
        let mut looks = looks();
        assert!(looks.look(10_000, 50) && looks.look(10_000, 300));
        assert!(looks.look(4_000, 4_000));
        assert!(!looks.look(2_000_000, 10), "seldom");
        assert_eq!(looks.next, WAKES_A_LOOK);
        assert!(looks.look(10_000, 50) && looks.look(10_000, 100));
        assert_eq!(looks.next, WAKES_A_LOOK);
    }

    #[test]
    fn pause_is_short_again_after_an_equally_long_good_time() {
        let mut looks = looks();
        looks.meet_who_computes(4);
        for _ in 0..40 {
            assert!(looks.look(500_000, 10));
        }
        assert_eq!(looks.pause_us(), 1_000_000);
    }

    #[test]
    fn crowd_without_computing_processes_does_not_keep_pause_long() {
        let mut looks = looks();
        looks.meet_who_computes(2);
        for _ in 0..400 {
            let is_batch = looks.decision.is_batch;
            looks.look(100_000, if is_batch { 400 } else { 10 });
            assert!(!is_batch || looks.decision.pause_us <= 4_000_000);
        }
        assert_eq!(looks.pause_us(), 1_000_000);
    }

    #[test]
    fn thread_with_nearly_same_wait_by_usual_policy_interrupts_none() {
        let mut looks = looks();
        assert!(looks.look(10_000, 400));
        assert!(looks.look(10_000, 1_100) && looks.next == WAKES_A_LOOK);
        assert!(looks.look(10_000, 1_300) && looks.next == 1, "longer");
        let mut waits = [4_000, 600].into_iter().cycle();
        while looks.next == 1 {
            assert!(
                looks.look(300, waits.next().unwrap()),
                "4 ms are not long then"
            );
        }
        assert!(looks.look(10_000, 5_000) && looks.next == 1);
        while looks.next == 1 && looks.look(300, 5_000) {}
        assert!(!looks.decision.is_batch);
    }

    #[test]
    fn how_long_it_waits_with_the_usual_policy_is_looked_at_anew() {
        let mut looks = looks();
        assert!(looks.look(10_000, 400));
        for _ in 0..9 {
            assert!((0..24).all(|_| looks.look(400_000, 1_000)), "known");
            assert!(!looks.look(500_000, 1_000), "not any more");
            assert!(looks.look(10_000, 400), "for one look");
        }
        assert!((0..24).all(|_| looks.look(400_000, 1_000)));
        assert!(!looks.look(500_000, 1_000));
        assert!(looks.look(10_000, 30), "it is short now");
        assert!(!looks.look_closely([4_000, 1_000]));
        // Where waits are short, the wait under the usual policy is not needed.
        while !looks.look(500_000, 10) {}
        assert!((0..100).all(|_| looks.look(500_000, 100)));
    }

    #[test]
    fn a_limit_of_zero_means_never() {
        let mut decision = Decision::default();
        let mut seen = Seen::default();
        let mut look = |at_us, most_wait_us| {
            seen.at_us = at_us;
            decision.look(seen, most_wait_us);
            decision.is_batch
        };
        assert!((1..20).all(|n| !look(10_000 * n, 0)));
        assert!(look(200_000, 250));
        assert!(!look(210_000, 0));
    }
}
