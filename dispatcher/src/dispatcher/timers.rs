//! What happens by time alone.
//!
//! A *tick* looks at what has limits in milliseconds and happens only while
//! there is such a thing; a *sweep* once a second looks at the rest. An idle
//! dispatcher does nothing but one sweep a second.

use super::event_loop::Dispatcher;
use super::link::layout::shared::*;
use super::pools::backends::START_LIMIT_US;
use super::pools::pool::counter_is_wrong;
use super::sessions::{index_of, Place, SessionId};
use super::sys::{process, socket};
use crate::protocol::auth::client::Failure;
use crate::protocol::Report;
use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use tracing::{debug, warn};

const TICK_US: u64 = 20_000;
const SWEEP_US: u64 = 1_000_000;
/// So long after the start orphans are looked at in each tick.
const ORPHANS_END_US: u64 = 5_000_000;

impl Dispatcher {
    fn needs_ticks(&self) -> bool {
        self.stopping.is_some()
            || self.logins.len() > 0
            || self.expects_orphans_end()
            || self.room.is_offered()
            || self
                .pools
                .iter()
                .enumerate()
                .any(|(number, pool)| pool.is_some() && self.waiting_in(number as u32) > 0)
    }

    /// Most orphans have no session and end as soon as they notice.
    fn expects_orphans_end(&self) -> bool {
        !self.orphans.is_empty() && self.now_us < ORPHANS_END_US
    }

    /// How long the loop may sleep.
    pub fn next_timeout_ms(&self) -> i32 {
        if !self.dirty_pools.is_empty() || !self.dead_connections.is_empty() {
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
        self.expire_logins();
        self.expire_questions();
        self.expire_waits();
        self.retry_pools();
        self.evict_excess();
        self.room.look_again();
        self.stop_tick();
        if self.expects_orphans_end() {
            self.sweep_orphans();
        }
        if self.now_us >= self.last_sweep_us + SWEEP_US {
            self.last_sweep_us = self.now_us;
            self.sweep();
        }
    }

    /// Pools in which somebody waits are looked at again: a failed start may
    /// be repeated by now, and forced migration has its patience.
    fn retry_pools(&mut self) {
        for number in 0..self.pools.len() as u32 {
            let wants = self.pools[number as usize]
                .as_ref()
                .is_some_and(|pool| !pool.fifo.is_empty());
            if wants {
                self.mark_dirty(number);
            }
        }
    }

    fn sweep(&mut self) {
        self.forget_questions();
        self.sweep_starting();
        self.sweep_orphans();
        self.sweep_queues();
        for number in 0..self.pools.len() as u32 {
            self.shrink(number);
        }
        self.room.look_for_surplus();
        self.sweep_outdated();
        self.sweep_idle_sessions();
        self.drop_empty_pools();
        let with_pool: HashSet<u32> = (self.pools.iter().flatten())
            .map(|pool| pool.key.role_oid)
            .collect();
        self.roles.keep(|role| with_pool.contains(&role));
        for number in 0..self.pools.len() as u32 {
            // min_backends is kept.
            if self.parameters.min_backends > 0 {
                self.mark_dirty(number);
            }
        }
    }

    fn sweep_starting(&mut self) {
        for slot in 0..self.backends.len() as u32 {
            let late = self.backends[slot as usize]
                .as_ref()
                .is_some_and(|backend| {
                    backend.is_starting() && self.now_us > backend.started_us + START_LIMIT_US
                });
            if late {
                let text =
                    "a backend did not attach in time; is pg_baton in shared_preload_libraries?";
                self.opening_failed(slot, Failure::Protocol(text.into()));
            }
        }
    }

    /// Backends of an earlier dispatcher: when one has ended its slots are free,
    /// and so is that of a session that one has ended.
    fn sweep_orphans(&mut self) {
        let control = self.control;
        if !self.orphans.is_empty() {
            for (index, slot) in control.sessions.iter().enumerate() {
                let is_left = slot.state.load(SeqCst) != STATE_FREE
                    && slot.owner.load(SeqCst) == 0
                    && self.sessions.in_slot(index as u32).is_none();
                if is_left {
                    control.clear_session(slot);
                }
            }
        }
        self.orphans.retain(|slot| {
            let pid = control.backends[*slot as usize].pid.load(SeqCst);
            if process::exists(pid) {
                return true;
            }
            for session in control.sessions {
                if session.owner.load(SeqCst) == slot + 1 {
                    control.clear_session(session);
                }
            }
            control.free_backend(*slot);
            false
        });
    }

    /// A backend that died between taking a message and lowering the counter
    /// leaves the counter wrong for ever; it is set right when nobody can be
    /// between the two (counter_is_wrong, pool.rs).
    fn sweep_queues(&mut self) {
        for number in 0..self.pools.len() as u32 {
            let Some(pool) = self.pools[number as usize].as_ref() else {
                continue;
            };
            // In this order: who took something before is still busy.
            let is_empty = socket::next_packet_length(pool.queue_read.as_raw_fd()) == 0;
            let may_be_taking = pool.backends.iter().any(|slot| {
                let state = &self.control.backends[*slot as usize].state;
                state.load(SeqCst) == BACKEND_BUSY
            });
            let queued = self.control.pools[number as usize].queued.load(SeqCst);
            if counter_is_wrong(is_empty, may_be_taking, queued) {
                warn!("the counter of pool {number}'s ready queue was wrong: {queued}");
                self.drain_queue(number);
                self.control.pools[number as usize].queued.store(0, SeqCst);
            }
        }
    }

    /// Backends that have been idle for long go, the newest last. Whether the
    /// last may, the launcher is asked; when it answers, that pool is looked
    /// at again, for its answer may be good for less than a round.
    pub fn shrink(&mut self, number: u32) {
        let limit_us = self.parameters.backend_idle_timeout_ms as i64 * 1000;
        if limit_us == 0 {
            return;
        }
        let least = self.parameters.min_backends as usize;
        let mut retire = self.long_idle(number, limit_us);
        let serving = self.serving_backends(number);
        retire.truncate(serving.saturating_sub(least));
        if serving > 0 && retire.len() == serving && !self.may_lose_all(number) {
            retire.pop();
        }
        for slot in retire {
            debug!("backend {slot} has been idle for long");
            self.retire_backend(slot);
        }
    }

    /// Backends of a pool that have had nothing to do for so long.
    fn long_idle(&self, number: u32, limit_us: i64) -> Vec<u32> {
        let pool = self.pools[number as usize].as_ref();
        let Some(pool) = pool.filter(|_| self.waiting_in(number) == 0) else {
            return Vec::new();
        };
        let is_idle = |slot: &&u32| {
            let memory = &self.control.backends[**slot as usize];
            let state = memory.state.load(SeqCst);
            self.backends[**slot as usize]
                .as_ref()
                .is_some_and(|backend| backend.may_serve())
                && (state == BACKEND_IDLE || state == BACKEND_LINGER)
                && self.now - memory.state_since_us.load(Relaxed) > limit_us
        };
        pool.backends.iter().filter(is_idle).copied().collect()
    }

    /// idle_session_timeout: backends leave it to us, as they do not keep a
    /// session that has it set.
    fn sweep_idle_sessions(&mut self) {
        let now = self.now;
        let control = self.control;
        let late: Vec<SessionId> = self
            .sessions
            .ids()
            .filter(|id| {
                let slot = &control.sessions[index_of(*id) as usize];
                let limit_us = i64::from(slot.idle_session_timeout_ms.load(Relaxed)) * 1000;
                limit_us > 0
                    && slot.state.load(SeqCst) == STATE_IDLE
                    && now - slot.state_since_us.load(Relaxed) > limit_us
            })
            .collect();
        for id in late {
            let owner = control.sessions[index_of(id) as usize].owner.load(SeqCst);
            if owner != 0 {
                self.recall(owner - 1, id);
                continue;
            }
            let place = self.sessions.get(id).map(|session| session.place);
            if matches!(place, Some(Place::Waiting | Place::Skipping(_))) {
                continue;
            }
            let report = Report::fatal(
                b"57P05",
                "terminating connection due to idle-session timeout",
            );
            self.end_with(id, &report);
        }
    }
}
