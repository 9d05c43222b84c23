//! When is a backend more of use, though there are as many as there may be? When
//! sessions wait, and those that are there get nothing done.
//!
//! As long as transactions complete, more backends only add
//! contention. But all of them may be *held*, by transactions that wait for a
//! lock whose holder waits for a backend, or for clients that think; then
//! nothing happens until a time-out. Which ones are is seen from outside: a
//! backend that has been in the same transaction for a while and has used
//! next to no processor time. One that computes is not held, be it ever so slow.
//! docs/design/pools.md has the reasons.

/// Nothing has completed for so long, and somebody waits.
const STALL_US: u64 = 500_000;
/// Somebody has waited for so long, whatever has completed.
const LATE_US: u64 = 2_000_000;
/// A backend is looked at again after this time,
const LOOK_US: u64 = 200_000;
/// and is held if it has used less than this part of it.
const LEAST_SHARE: u64 = 20;
/// From one backend that is found to be held to the next.
const STEP_US: u64 = 100_000;

/// Does anything complete?
#[derive(Debug, Default)]
pub struct Stall {
    completed: u64,
    since_us: u64,
    next_us: u64,
    /// So many more may be taken to be held until the next tick.
    steps: usize,
}

impl Stall {
    /// `completed`: transactions of all pools so far. `timeout_us`:
    /// session_wait_timeout, 0 if there is none.
    pub fn is_there(
        &mut self,
        now_us: u64,
        completed: u64,
        longest_wait_us: Option<u64>,
        timeout_us: u64,
    ) -> bool {
        if completed != self.completed {
            self.completed = completed;
            self.since_us = now_us;
        }
        let limit = |most: u64, share: u64| match timeout_us {
            0 => most,
            timeout_us => most.min(timeout_us / share),
        };
        let stall_us = limit(STALL_US, 4);
        let Some(waited_us) = longest_wait_us else {
            return false;
        };
        waited_us >= stall_us
            && (now_us >= self.since_us + stall_us || waited_us >= limit(LATE_US, 2))
    }

    /// How many more may be taken to be held now, if `held` are. One at a time,
    /// and half as many again: what is started for them may be held in turn.
    pub fn allow_steps(&mut self, now_us: u64, held: usize) {
        self.steps = 0;
        if now_us >= self.next_us {
            self.next_us = now_us + STEP_US;
            self.steps = (held / 2).max(1);
        }
    }

    /// A tick begins: none, until it is known whether there is a stall.
    pub fn allow_none(&mut self) {
        self.steps = 0;
    }

    pub fn allows_one(&self) -> bool {
        self.steps > 0
    }

    /// One more is taken to be held.
    pub fn step(&mut self) {
        self.steps -= 1;
    }
}

/// A backend at work, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub at_us: u64,
    /// Transactions that it has completed.
    pub transactions: u64,
    /// Processor time that it has used.
    pub cpu_us: u64,
}

impl Seen {
    /// Is it time to look again?
    pub fn is_past(&self, now_us: u64) -> bool {
        now_us >= self.at_us + LOOK_US
    }

    /// In the same transaction all the time, and next to nothing done? None: it
    /// is too early to say.
    pub fn is_held_since(&self, before: &Seen) -> Option<bool> {
        if self.transactions != before.transactions {
            return Some(false);
        }
        let passed_us = self.at_us.saturating_sub(before.at_us);
        let used_us = self.cpu_us.saturating_sub(before.cpu_us);
        (passed_us >= LOOK_US).then_some(used_us < passed_us / LEAST_SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_long_as_transactions_complete_there_is_no_stall() {
        let mut stall = Stall::default();
        for step in 0..100 {
            let now_us = step * 100_000;
            assert!(!stall.is_there(now_us, step, Some(600_000), 60_000_000));
        }
        // None has since 9.9 s.
        assert!(!stall.is_there(10_300_000, 99, Some(600_000), 60_000_000));
        assert!(stall.is_there(10_400_000, 99, Some(600_000), 60_000_000));
        assert!(!stall.is_there(10_400_000, 99, None, 60_000_000));
    }

    #[test]
    fn nobody_waits_for_long_because_others_are_served() {
        let mut stall = Stall::default();
        assert!(!stall.is_there(5_000_000, 7, Some(1_900_000), 0));
        assert!(stall.is_there(5_100_000, 8, Some(2_000_000), 0));
    }

    #[test]
    fn a_short_wait_makes_a_stall_short() {
        let mut stall = Stall::default();
        stall.is_there(1_000_000, 1, Some(10_000), 400_000);
        assert!(!stall.is_there(1_090_000, 1, Some(100_000), 400_000));
        assert!(stall.is_there(1_100_000, 1, Some(100_000), 400_000));
    }

    #[test]
    fn held_is_who_has_done_nothing_in_one_transaction() {
        let seen = |at_us, transactions, cpu_us| Seen {
            at_us,
            transactions,
            cpu_us,
        };
        let before = seen(1_000_000, 5, 70_000);
        assert_eq!(seen(1_199_999, 5, 70_000).is_held_since(&before), None);
        assert_eq!(
            seen(1_200_000, 5, 70_000).is_held_since(&before),
            Some(true)
        );
        assert_eq!(
            seen(1_200_000, 5, 80_000).is_held_since(&before),
            Some(false)
        );
        assert_eq!(
            seen(1_100_000, 6, 70_000).is_held_since(&before),
            Some(false)
        );
    }

    #[test]
    fn it_goes_one_at_a_time_and_faster_as_it_goes_on() {
        let mut stall = Stall::default();
        let mut held = 0;
        for tick in 0..50 {
            stall.allow_steps(1_000_000 + tick * 20_000, held);
            while stall.allows_one() {
                stall.step();
                held += 1;
            }
        }
        // In a second.
        assert_eq!(held, 42);
    }
}
