//! Backends that have had nothing to do for long go; a pool's last one with care.
//!
//! Changes that PostgreSQL applies to new logins only (NOLOGIN, another
//! password, CONNECTION LIMIT, REVOKE CONNECT, ...) must not end the sessions
//! that are there. But a session needs a backend, and a backend logs in: a pool
//! that could get no other keeps its last one as long as it has sessions.
//! docs/design/pools.md has the reasons.

use super::origin::Provenance;
use super::pool_changes::Reason;
use super::pools::{Oldest, Pool};
use super::replaceable::Replaceable;
use super::sweep::BACKENDS_AT_ONCE;
use super::{Action, Core, Words};
use std::cmp::Reverse;

impl Core {
    /// Those of a pool's backends that have been idle for long go, the newest last.
    /// Whether its last one may, the launcher is asked; when it answers, that pool is
    /// looked at again, for its answer may be good for less than a round.
    pub(super) fn shrink(&mut self, number: u32, slots: &[u32], words: &impl Words) {
        if self.limits.backend_idle_timeout_us == 0 {
            return;
        }
        let mut retire = self.long_idle(number, slots, words);
        if retire.is_empty() {
            return;
        }
        let serving = self.serving_backends(number);
        retire.truncate(serving.saturating_sub(self.min_backends(number)));
        if serving > 0 && retire.len() == serving && !self.may_lose_all(number, words) {
            retire.pop();
        }
        for slot in retire {
            self.retire(slot, Reason::Idle);
        }
    }

    /// Which of these backends is the oldest of their pool in this sweep, so far?
    pub(super) fn look_for_old(&mut self, number: u32, slots: &[u32]) {
        if self.limits.backend_lifetime_us == 0 {
            return;
        }
        let shared = slots.iter().filter(|slot| self.backends.is_shared(**slot));
        let with_age = shared.filter_map(|slot| {
            let backend = self.backends.get(*slot)?;
            Some(Oldest {
                attached_us: Reverse(backend.attached_us()),
                slot: *slot,
                serial: backend.serial(),
            })
        });
        let oldest = with_age.max();
        if let Some(pool) = self.pool_mut(number) {
            pool.has_seen(oldest);
        }
    }

    /// The oldest of a pool's backends goes if its time is over, one in each sweep,
    /// at the end of a transaction. The last stays if no other could log in.
    pub(super) fn retire_old(&mut self, number: u32, words: &impl Words) {
        let limit_us = self.limits.backend_lifetime_us;
        let oldest = self.pool_mut(number).and_then(Pool::ends_sweep);
        let Some(oldest) = oldest.filter(|_| limit_us > 0) else {
            return;
        };
        let backend = self.backends.get(oldest.slot);
        let is_still = backend.is_some_and(|backend| backend.serial() == oldest.serial)
            && self.backends.is_shared(oldest.slot);
        let age_us = self.now.us.saturating_sub(oldest.attached_us.0);
        if is_still && age_us > limit_us && self.may_lose_one(number, words) {
            self.retire(oldest.slot, Reason::Old);
        }
    }

    /// Those of a pool's backends that have had nothing to do for so long.
    pub(super) fn long_idle(&self, number: u32, slots: &[u32], words: &impl Words) -> Vec<u32> {
        let limit_us = self.limits.backend_idle_timeout_us;
        let is_idle = |slot: &&u32| {
            self.backends.is_shared(**slot)
                && words.backend(**slot).is_free()
                && self.now.passed_us(words.backend_since_us(**slot)) > limit_us
        };
        if self.waiting_in(number, words) > 0 {
            return Vec::new();
        }
        slots.iter().filter(is_idle).copied().collect()
    }

    /// Backends of a pool that its sessions can count on.
    pub(super) fn serving_backends(&self, number: u32) -> usize {
        self.backends.lives(number).shared()
    }

    /// May a pool do without one of its backends, be it the last?
    pub(super) fn may_lose_one(&mut self, number: u32, words: &impl Words) -> bool {
        self.serving_backends(number) > 1 || self.may_lose_all(number, words)
    }

    /// May a pool's last backend go? Not while there are sessions and another
    /// could not log in. None: that is not known, and the launcher can be asked.
    pub(super) fn may_do_without(&self, number: u32, words: &impl Words) -> Option<bool> {
        let pool = self
            .pool(number)
            .filter(|_| self.sessions.members(number) > 0);
        let Some(pool) = pool else {
            return Some(true);
        };
        let known = (pool.starts).are_replaceable(words.login_generation(), self.now.us);
        let can_ask = self.launcher_is_up && !pool.starts.is_asking(self.now.us);
        known.or((!can_ask).then_some(false))
    }

    /// Could one that is opened in the place of one of its backends log in, on behalf of
    /// each of a pool's sessions? None: that is not known.
    pub fn can_open_backends(&self, number: u32, words: &impl Words) -> Option<bool> {
        let pool = self.pool(number)?;
        (pool.starts).are_replaceable(words.login_generation(), self.now.us)
    }

    /// Finds that out for a pool with sessions, if it is not known. True: the launcher
    /// is asked.
    pub fn ask_about_pool(&mut self, number: u32, words: &impl Words) -> bool {
        let is_unknown =
            self.sessions.members(number) > 0 && self.may_do_without(number, words).is_none();
        is_unknown && !self.may_lose_all(number, words)
    }

    /// As well; if it is not known it is no for now, and the launcher is asked.
    fn may_lose_all(&mut self, number: u32, words: &impl Words) -> bool {
        if let Some(known) = self.may_do_without(number, words) {
            return known;
        }
        let now_us = self.now.us;
        let generation = words.login_generation();
        let Some(pool) = self.pool_mut(number) else {
            return true;
        };
        let Some(from) = pool.starts.ask(generation, now_us) else {
            return true;
        };
        let serial = pool.serial();
        let pool = number;
        self.act(Action::AskLauncher { pool, serial, from });
        false
    }

    /// The launcher has said whether a pool's role may log in from there, as
    /// of `generation`; `until_us`: as long as it can say.
    pub fn pool_answered(
        &mut self,
        number: u32,
        serial: u64,
        from: Provenance,
        generation: u64,
        may: Option<i64>,
        words: &impl Words,
    ) {
        let now = self.now;
        let Some(pool) = self.pool_mut(number).filter(|pool| pool.serial() == serial) else {
            return;
        };
        let able_until_us = may.map(|good_until| match good_until {
            i64::MAX => u64::MAX,
            until if until > now.timestamp => now.us + (until - now.timestamp) as u64,
            _ => now.us + Replaceable::UNSURE_US,
        });
        (pool.starts).is_answered(from, generation, able_until_us, now.us);
        if may.is_some() && self.may_lose_all(number, words) {
            // Of very many, the last one among them, those that came last.
            let slots = self.pool_backends(number);
            let newest = slots[slots.len().saturating_sub(BACKENDS_AT_ONCE)..].to_vec();
            self.shrink(number, &newest, words);
            // Somebody may wait for its place.
            self.mark_waiting();
        }
    }
}
