//! How a pool's backends start: what failed, and when it is tried again.

use crate::protocol::opening::Failure;

#[derive(Default)]
pub struct Starts {
    retry: Retry,
    /// Beside the backend started last another one was starting.
    together: bool,
    /// Why the last start failed.
    failure: Option<Failure>,
}

impl Starts {
    /// Is it not too early to try again?
    pub fn may_be_tried(&self, now_us: u64) -> bool {
        self.retry.allowed(now_us)
    }

    /// After a failure one at a time, until one succeeds.
    pub fn are_one_at_a_time(&self) -> bool {
        self.retry.is_waiting()
    }

    /// One is started; `together` with another.
    pub fn begin(&mut self, together: bool) {
        self.together = together;
    }

    /// A backend has come.
    pub fn has_come(&mut self) {
        self.retry.succeeded();
        self.failure = None;
    }

    /// Where but one more may come in, two that start at a time are both refused: the
    /// server counts them before it lets them in (CountUserBackends and CountDBConnections,
    /// InitPostgres, 15 to 18). True: that may be why, and the next one starts alone.
    pub fn were_in_each_other_s_way(&mut self, failure: &Failure, now_us: u64) -> bool {
        let may_be_why = self.together && failure.is_of_a_limit();
        if may_be_why {
            self.retry.failed(now_us);
        }
        may_be_why
    }

    /// To be tried again later. True if it failed otherwise before, or not at all.
    pub fn failed(&mut self, failure: Failure, now_us: u64) -> bool {
        self.retry.failed(now_us);
        let is_new = self.failure.as_ref() != Some(&failure);
        self.failure = Some(failure);
        is_new
    }

    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }
}

/// Backing off after failed starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Retry {
    failures: u32,
    not_before_us: u64,
}

impl Retry {
    const FIRST_US: u64 = 50_000;
    const MOST_US: u64 = 5_000_000;

    /// Several that were started together fail together: that counts once.
    fn failed(&mut self, now_us: u64) {
        if !self.allowed(now_us) {
            return;
        }
        let wait = Self::FIRST_US << self.failures.min(10);
        self.failures += 1;
        self.not_before_us = now_us + wait.min(Self::MOST_US);
    }

    fn succeeded(&mut self) {
        *self = Retry::default();
    }

    fn allowed(&self, now_us: u64) -> bool {
        now_us >= self.not_before_us
    }

    fn is_waiting(&self) -> bool {
        self.failures > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_starts_are_repeated_ever_more_slowly() {
        let mut retry = Retry::default();
        assert!(retry.allowed(0) && !retry.is_waiting());
        retry.failed(1_000_000);
        assert!(!retry.allowed(1_049_999) && retry.allowed(1_050_000));
        // the others of the same burst, and the next try
        for _ in 0..100 {
            retry.failed(1_010_000);
        }
        assert!(retry.allowed(1_050_000));
        retry.failed(1_050_000);
        assert!(!retry.allowed(1_149_999) && retry.allowed(1_150_000));
        let mut now_us = 1_150_000;
        for _ in 0..100 {
            retry.failed(now_us);
            now_us += Retry::MOST_US;
            assert!(retry.allowed(now_us) && retry.is_waiting());
        }
        retry.failed(now_us);
        assert!(!retry.allowed(now_us + Retry::MOST_US - 1));
        retry.succeeded();
        assert!(retry.allowed(0));
    }
}
