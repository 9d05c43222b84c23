//! When is a backend more of use, though there are as many as there may be? When
//! sessions wait, and those that are there do not come to them.
//!
//! As long as backends come to the end of their transactions, more of them only add
//! contention. But all of them may be taken for long, by transactions that wait for a
//! lock whose holder waits for a backend, for clients that think or do not read, by
//! some that compute, or by backends that do not come to the end of their start. Then
//! nothing is handed out to anybody who waits. Who has been in one transaction for a while
//! is *held*, and another backend may be there in its place.
//! docs/design/pools.md has the reasons.

/// Nothing has been handed out for so long, and somebody waits.
const STALL_US: u64 = 200_000;
/// So it is soon after a stall: what was started for it is taken, too.
const AGAIN_US: u64 = 100_000;
/// A stall counts for the next one for so long.
const SOON_US: u64 = 2_000_000;
/// Somebody has waited for so long, whatever was handed out.
const LATE_US: u64 = 1_000_000;
/// So has somebody whose role has no backend at all.
const NONE_US: u64 = 500_000;
/// A backend is looked at again after this time,
const LOOK_US: u64 = 200_000;
/// and does nothing if it has used less than this part of it.
const LEAST_SHARE: u64 = 20;
/// From one step to the next.
const STEP_US: u64 = 100_000;
/// A backend's start is slow after this time.
pub const SLOW_START_US: u64 = 1_000_000;
/// So many more may be started at first, and twice as many the next time.
const FIRST_BOOST: usize = 4;
const MOST_BOOST: usize = 1024;

/// Does anybody who waits get on?
#[derive(Debug, Default)]
pub struct Stall {
    handed_out: u64,
    since_us: u64,
    next_us: u64,
    /// So many more may be taken to be held until the next tick.
    steps: usize,
    /// So many more may be started than are held.
    boost: usize,
    /// The next time, and until when that counts.
    next_boost: usize,
    soon_until_us: u64,
}

/// Who waits, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiting {
    /// Sessions of all pools.
    pub sessions: usize,
    /// The longest wait.
    pub longest_us: Option<u64>,
    /// Of those whose role has no backend.
    pub without_us: Option<u64>,
}

impl Stall {
    /// `handed_out`: sessions of all pools that have got a backend so far. `timeout_us`:
    /// session_wait_timeout, 0 if there is none. `held`: how many are. In each tick.
    pub fn look(
        &mut self,
        now_us: u64,
        handed_out: u64,
        waiting: Waiting,
        timeout_us: u64,
        held: usize,
    ) {
        (self.steps, self.boost) = (0, 0);
        if handed_out != self.handed_out {
            self.handed_out = handed_out;
            self.since_us = now_us;
        }
        let limit = |most: u64, share: u64| match timeout_us {
            0 => most,
            timeout_us => most.min(timeout_us / share),
        };
        if now_us >= self.soon_until_us {
            self.next_boost = FIRST_BOOST;
        }
        let stall_us = limit(STALL_US, 4);
        let stall_us = match self.next_boost > FIRST_BOOST {
            true => stall_us.min(AGAIN_US),
            false => stall_us,
        };
        let Some(waited_us) = waiting
            .longest_us
            .filter(|waited_us| *waited_us >= stall_us)
        else {
            return;
        };
        let is_stalled = now_us >= self.since_us + stall_us;
        let has_none = waiting.without_us >= Some(limit(NONE_US, 3));
        if !is_stalled && !has_none && waited_us < limit(LATE_US, 2) {
            return;
        }
        if is_stalled || has_none {
            self.boost = match is_stalled {
                true => self.next_boost.min(waiting.sessions).max(1),
                false => 1,
            };
        }
        if now_us < self.next_us {
            return;
        }
        self.next_us = now_us + STEP_US;
        // One at a time, and half as many again: what is started for them may be held in turn.
        self.steps = (held / 2).max(1);
        if is_stalled {
            self.next_boost = (2 * self.next_boost).min(MOST_BOOST);
            self.soon_until_us = now_us + SOON_US;
        }
    }

    /// So many more may be started than are held.
    pub fn boost(&self) -> usize {
        self.boost
    }

    pub fn allows_one(&self) -> bool {
        self.steps > 0
    }

    /// One more is taken to be held.
    pub fn step(&mut self) {
        self.steps = self.steps.saturating_sub(1);
    }
}

/// What a backend has done since it was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// It has come to the end of a transaction.
    Moved,
    /// In the same one it has computed,
    Computed,
    /// or done next to nothing.
    Idled,
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

    /// None: it is too early to say.
    pub fn since(&self, before: &Seen) -> Option<Since> {
        if self.transactions != before.transactions {
            return Some(Since::Moved);
        }
        let passed_us = self.at_us.saturating_sub(before.at_us);
        let used_us = self.cpu_us.saturating_sub(before.cpu_us);
        let since = match used_us < passed_us / LEAST_SHARE {
            true => Since::Idled,
            false => Since::Computed,
        };
        (passed_us >= LOOK_US).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(longest_us: u64) -> Waiting {
        Waiting {
            sessions: 50,
            longest_us: Some(longest_us),
            without_us: None,
        }
    }

    fn boosts(stall: &mut Stall, now_us: u64, handed_out: u64, of: Waiting) -> usize {
        stall.look(now_us, handed_out, of, 60_000_000, 0);
        stall.boost()
    }

    #[test]
    fn as_long_as_sessions_are_handed_out_there_is_no_stall() {
        let mut stall = Stall::default();
        for step in 1..=100 {
            let now_us = step * 100_000;
            assert_eq!(boosts(&mut stall, now_us, step, waiting(900_000)), 0);
            assert!(!stall.allows_one());
        }
        // None has since 10 s.
        assert_eq!(boosts(&mut stall, 10_180_000, 100, waiting(900_000)), 0);
        assert_eq!(boosts(&mut stall, 10_200_000, 100, waiting(900_000)), 4);
        assert!(stall.allows_one());
        assert_eq!(boosts(&mut stall, 10_220_000, 100, waiting(90_000)), 0);
    }

    #[test]
    fn who_is_late_has_those_that_do_nothing_replaced_and_no_others() {
        let mut stall = Stall::default();
        assert_eq!(boosts(&mut stall, 5_000_000, 7, waiting(990_000)), 0);
        assert!(!stall.allows_one());
        assert_eq!(boosts(&mut stall, 5_100_000, 8, waiting(1_000_000)), 0);
        assert!(stall.allows_one());
    }

    #[test]
    fn a_role_without_a_backend_gets_one_after_half_a_second() {
        let mut stall = Stall::default();
        let of = |us| Waiting {
            without_us: Some(us),
            ..waiting(us)
        };
        assert_eq!(boosts(&mut stall, 5_000_000, 7, of(490_000)), 0);
        assert_eq!(boosts(&mut stall, 5_020_000, 8, of(510_000)), 1);
    }

    #[test]
    fn a_short_wait_makes_a_stall_short() {
        let mut stall = Stall::default();
        let boost = |stall: &mut Stall, now_us, waited_us| {
            stall.look(now_us, 1, waiting(waited_us), 400_000, 0);
            stall.boost()
        };
        boost(&mut stall, 1_000_000, 10_000);
        assert_eq!(boost(&mut stall, 1_090_000, 100_000), 0);
        assert_eq!(boost(&mut stall, 1_100_000, 100_000), 4);
    }

    #[test]
    fn each_time_twice_as_many_are_started_but_no_more_than_wait() {
        let mut stall = Stall::default();
        let mut seen = Vec::new();
        for tick in 0..25 {
            let now_us = 1_000_000 + tick * 20_000;
            let boost = boosts(&mut stall, now_us, 1, waiting(500_000));
            if seen.last() != Some(&boost) {
                seen.push(boost);
            }
        }
        assert_eq!(seen, [0, 4, 8, 16, 32]);
        // Soon after, it goes on so; and later from the beginning.
        assert_eq!(boosts(&mut stall, 1_500_000, 2, waiting(500_000)), 0);
        assert_eq!(boosts(&mut stall, 1_600_000, 2, waiting(500_000)), 32);
        assert_eq!(boosts(&mut stall, 1_720_000, 2, waiting(500_000)), 50);
        assert_eq!(boosts(&mut stall, 4_700_000, 3, waiting(500_000)), 0);
        assert_eq!(boosts(&mut stall, 4_900_000, 3, waiting(500_000)), 4);
    }

    #[test]
    fn held_is_who_stays_in_one_transaction_whatever_it_does() {
        let seen = |at_us, transactions, cpu_us| Seen {
            at_us,
            transactions,
            cpu_us,
        };
        let before = seen(1_000_000, 5, 70_000);
        let since = |at_us, transactions, cpu_us| seen(at_us, transactions, cpu_us).since(&before);
        assert_eq!(since(1_199_999, 5, 70_000), None);
        assert_eq!(since(1_200_000, 5, 70_000), Some(Since::Idled));
        assert_eq!(since(1_200_000, 5, 80_000), Some(Since::Computed));
        assert_eq!(since(1_100_000, 6, 70_000), Some(Since::Moved));
    }
}
