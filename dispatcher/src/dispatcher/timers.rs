//! What happens by time alone.
//!
//! A *tick* looks at what has limits in milliseconds and happens only while
//! there is such a thing; a *sweep* once a second looks at the rest. An idle
//! dispatcher does nothing but one sweep a second.

use super::event_loop::Dispatcher;
use super::link::layout::shared::*;
use super::sys::process;
use crate::core::Event;
use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;

const TICK_US: u64 = 20_000;
const SWEEP_US: u64 = 1_000_000;
/// So long after the start orphans are looked at in each tick.
const ORPHANS_END_US: u64 = 5_000_000;

impl Dispatcher {
    fn needs_ticks(&self) -> bool {
        self.logins.len() > 0
            || !self.resting.is_empty()
            || !self.unsendable.is_empty()
            || self.expects_orphans_end()
            || self.core.needs_ticks()
    }

    /// Most orphans have no session and end as soon as they notice.
    fn expects_orphans_end(&self) -> bool {
        !self.orphans.is_empty() && self.now_us < ORPHANS_END_US
    }

    /// How long the loop may sleep.
    pub fn next_timeout_ms(&self) -> i32 {
        if self.core.has_more() || !self.dead_connections.is_empty() {
            return 0;
        }
        let period = if self.needs_ticks() {
            TICK_US
        } else {
            SWEEP_US
        };
        (period / 1000) as i32
    }

    /// Called in each round.
    pub fn tick(&mut self) {
        if self.now_us < self.last_tick_us + TICK_US {
            return;
        }
        self.last_tick_us = self.now_us;
        self.wake_listeners();
        self.send_again();
        self.expire_logins();
        self.next_errands();
        self.expire_questions();
        self.tell(Event::Tick);
        self.stop_tick();
        if self.expects_orphans_end() {
            self.sweep_orphans();
        }
        if self.now_us >= self.last_sweep_us + SWEEP_US {
            self.last_sweep_us = self.now_us;
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        self.forget_questions();
        self.expire_silent();
        self.sweep_begun();
        self.sweep_orphans();
        self.check_queues();
        self.tell(Event::Sweep);
        let with_pool: HashSet<u32> = (self.core.pools())
            .filter_map(|number| self.core.pool_key(number))
            .map(|key| key.role_oid)
            .collect();
        self.roles.keep(|role| with_pool.contains(&role));
        self.sweep_certificates();
    }

    /// Backends of an earlier dispatcher: when one has ended its slots are free,
    /// and so is that of a session that one has ended.
    fn sweep_orphans(&mut self) {
        let control = self.control;
        if !self.orphans.is_empty() {
            for (index, slot) in control.sessions.iter().enumerate() {
                let is_left = slot.state.load(SeqCst) != STATE_FREE
                    && slot.owner.load(SeqCst) == 0
                    && self.core.sessions().in_slot(index as u32).is_none();
                if is_left {
                    control.clear_session(index as u32);
                }
            }
        }
        let before = self.orphans.len();
        let core = &mut self.core;
        self.orphans.retain(|slot| {
            let pid = control.backends[*slot as usize].pid.load(SeqCst);
            if process::exists(pid) {
                return true;
            }
            for (index, session) in control.sessions.iter().enumerate() {
                if session.owner.load(SeqCst) == slot + 1 {
                    control.clear_session(index as u32);
                }
            }
            control.free_backend(*slot);
            core.handle(Event::SlotFreed(*slot), &control);
            false
        });
        if self.orphans.len() != before {
            self.set_limits();
        }
    }

    /// What the scheduler goes by follows the configuration, and who else has
    /// connections of the server.
    pub fn set_limits(&mut self) {
        let slots = self.control.backends.len();
        let limits = self.parameters.limits(slots, self.orphans.len());
        self.core.set_limits(limits);
    }
}
