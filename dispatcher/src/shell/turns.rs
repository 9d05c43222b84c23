//! How long the loop is at it before it looks for events again.
//!
//! What one client sends or owns may be of any size, and everybody else waits while the
//! loop is at it. So all that grows with it is done in slices, and what a turn took and
//! how much it did is measured: the view `pg_baton_dispatchers` shows the longest, and
//! the log (`debug`) each that was longer than those before.
//!
//! A turn's time is the thread's processor time, which is not others' to spoil. To read
//! that in each turn would cost as much as a short turn does, so it is read once a
//! millisecond: a turn is then no longer than what the thread has used since, and no
//! longer than the clock says.

use super::sys::process;
use tracing::debug;

/// A sample is good for so long.
const SAMPLE_US: u64 = 1_000;
/// Shorter turns are of no interest.
const NOTED_US: u64 = 1_000;

/// One thread's.
#[derive(Default)]
pub struct TurnClock {
    sampled_us: Option<u64>,
    cpu_us: u64,
}

impl TurnClock {
    /// A turn begins.
    pub fn begins(&mut self, now_us: u64) {
        let is_fresh = |sampled_us| now_us < sampled_us + SAMPLE_US;
        if !self.sampled_us.is_some_and(is_fresh) {
            self.sampled_us = Some(now_us);
            self.cpu_us = process::thread_cpu_us();
        }
    }
}

/// The longest turns since the start.
#[derive(Default)]
pub struct Turns {
    pub longest_us: u64,
    /// The most that one has done, in pieces (work.rs).
    most_work: usize,
    began_us: u64,
    /// Of this turn.
    pub work: usize,
}

impl Turns {
    pub fn begins(&mut self, now_us: u64, events: usize) {
        self.began_us = now_us;
        self.work = events * work::EVENT;
    }

    pub fn ends(&mut self, clock: &TurnClock, now_us: u64) {
        let took_us = now_us - self.began_us;
        let is_most = self.work > self.most_work;
        if !is_most && took_us <= self.longest_us.max(NOTED_US) {
            return;
        }
        let took_us = took_us.min(process::thread_cpu_us() - clock.cpu_us);
        self.most_work = self.most_work.max(self.work);
        let is_longest = took_us > self.longest_us;
        self.longest_us = self.longest_us.max(took_us);
        if is_most || is_longest {
            debug!("turn of {took_us} us, work {}", self.work);
        }
    }
}

/// What a turn of the loop does, in pieces (event_loop/turns.rs).
///
/// A piece takes about a quarter of a microsecond on a machine of these years: a look at
/// an item of a context, or 512 bytes of a long value. Other things count for several.
pub mod work {

    pub const EVENT: usize = 8;
    pub const PACKET: usize = 8;
    /// Of the core's.
    pub const ACTION: usize = 16;
    pub const ROW: usize = 16;
    /// A step of a login.
    pub const LOGIN: usize = 32;
    /// Its end, with that of its connection.
    pub const LOGIN_END: usize = 128;
}
