//! The measured time: the same for all threads. It begins when the warm-up is over and every
//! session has had an answer.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(2);
const WARMUP_LIMIT: Duration = Duration::from_secs(60);

/// Shared by all threads.
pub struct Span {
    threads: u32,
    /// Threads whose sessions have all had an answer.
    served: AtomicU32,
    failed: AtomicBool,
    measured: OnceLock<(Instant, Instant)>,
}

impl Span {
    /// A span that has not begun.
    pub fn new(threads: u32) -> Self {
        Span {
            threads,
            served: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            measured: OnceLock::new(),
        }
    }

    /// A thread's sessions have all had an answer.
    pub fn is_served(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread has failed: the run is aborted.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Has a thread failed?
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The beginning and the end of the measured time, once they are known.
    pub fn measured(&self) -> Option<(Instant, Instant)> {
        self.measured.get().copied()
    }

    /// Waits for the end of the warm-up, and begins. Blocks. False if the run is aborted.
    pub fn begin(&self, warmup: Duration, seconds: Duration) -> bool {
        let start = Instant::now();
        while self.served.load(Ordering::Relaxed) < self.threads || start.elapsed() < warmup {
            if start.elapsed() > warmup + WARMUP_LIMIT {
                eprintln!("baton-load: some sessions had no answer within {WARMUP_LIMIT:?}");
                self.fail();
            }
            if self.has_failed() {
                return false;
            }
            std::thread::sleep(STEP);
        }
        let now = Instant::now();
        // Only this call sets it.
        let _ = self.measured.set((now, now + seconds));
        true
    }

    /// Waits for the end of the measured time, or for a failure. Blocks.
    pub fn wait_for_end(&self) {
        while let Some((_, end)) = self.measured() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.has_failed() {
                return;
            }
            std::thread::sleep(left.min(STEP * 10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Span;
    use std::time::Duration;

    #[test]
    fn it_begins_when_all_threads_are_served() {
        let span = Span::new(2);
        span.is_served();
        std::thread::scope(|scope| {
            let begun = scope.spawn(|| span.begin(Duration::ZERO, Duration::from_secs(1)));
            assert!(span.measured().is_none());
            span.is_served();
            assert!(begun.join().expect("does not panic"));
        });
        let (from, to) = span.measured().expect("has begun");
        assert_eq!(to - from, Duration::from_secs(1));
    }

    #[test]
    fn a_failure_ends_the_waiting() {
        let span = Span::new(1);
        span.fail();
        assert!(!span.begin(Duration::from_secs(9), Duration::from_secs(9)));
    }
}
