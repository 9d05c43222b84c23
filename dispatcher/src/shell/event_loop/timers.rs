//! What happens by time alone.
//!
//! A *tick* looks at what has limits in milliseconds and happens only while
//! there is such a thing; a *sweep* once a second looks at the rest. An idle
//! dispatcher does nothing but one sweep a second.

use super::Dispatcher;

const TICK_US: u64 = 20_000;
const SWEEP_US: u64 = 1_000_000;

/// When that was last.
#[derive(Default)]
pub struct Timers {
    last_tick_us: u64,
    last_sweep_us: u64,
}

impl Timers {
    fn is_tick_due(&mut self, now_us: u64) -> bool {
        let is_due = now_us >= self.last_tick_us + TICK_US;
        if is_due {
            self.last_tick_us = now_us;
        }
        is_due
    }

    fn is_sweep_due(&mut self, now_us: u64) -> bool {
        let is_due = now_us >= self.last_sweep_us + SWEEP_US;
        if is_due {
            self.last_sweep_us = now_us;
        }
        is_due
    }
}

impl Dispatcher {
    fn needs_ticks(&self) -> bool {
        self.logins.len() > 0
            || self.ports.have_resting()
            || self.orphans.want_ticks(self.now.us)
            || self.scheduler.needs_ticks()
    }

    /// Is there something that must not wait for an event?
    pub(super) fn is_urgent(&self) -> bool {
        self.scheduler.has_more() || self.logins.has_more() || self.connections.has_dead()
    }

    /// How long the loop may sleep.
    pub fn next_timeout_ms(&self) -> i32 {
        if self.is_urgent() {
            return 0;
        }
        let period = if self.needs_ticks() {
            TICK_US
        } else {
            SWEEP_US
        };
        period.div_ceil(1000) as i32
    }

    /// Called in each round.
    pub(super) fn tick(&mut self) {
        let now_us = self.now.us;
        if !self.timers.is_tick_due(now_us) {
            return;
        }
        self.look_at_descriptors();
        self.look_at_others();
        self.logins.tick();
        self.logins_want();
        self.scheduler.tick();
        self.stop_tick();
        self.look_at_orphans(false);
        if self.timers.is_sweep_due(now_us) {
            self.sweep();
        }
    }

    /// In each round.
    pub(super) fn end_some_logins(&mut self) {
        if self.logins.has_more() {
            let report = self.not_now();
            self.logins.end_some(report.as_ref());
            self.logins_want();
        }
    }

    fn sweep(&mut self) {
        self.forget_questions();
        self.logins.log_left_out();
        self.connections.expire_silent(self.now.us);
        self.look_at_orphans(true);
        self.scheduler.sweep();
    }

    fn look_at_orphans(&mut self, begins: bool) {
        let now_us = self.now.us;
        if (self.orphans).look(begins, now_us, &mut self.scheduler) {
            self.look_at_others();
        }
    }

    /// Who has connections of the server besides the pool's backends.
    pub(super) fn look_at_others(&mut self) {
        let others = self.natives.connections_in() + self.logins.connections();
        (self.scheduler).others_are(self.orphans.count(), others);
        let left = self.scheduler.connections_left();
        self.logins.connections_left(left);
    }

    /// Listeners that rest are tried again, and want of descriptors is news again
    /// once a session has ended.
    fn look_at_descriptors(&mut self) {
        let closed = self.scheduler.closed_sockets();
        if std::mem::replace(&mut self.closed_sockets, closed) != closed {
            self.ports.descriptors_are_free();
        }
        for _ in self.ports.wake(self.now.us) {
            self.connections.listen(true);
        }
    }
}
