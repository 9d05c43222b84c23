//! A pool's last backend.
//!
//! Changes that PostgreSQL applies to new logins only (NOLOGIN, another
//! password, CONNECTION LIMIT, REVOKE CONNECT, ...) must not end the sessions
//! that are there. But a session needs a backend, and a backend logs in: a pool
//! that could get no other keeps its last one as long as it has sessions.
//! docs/design/pools.md has the reasons.

use super::origin::Provenance;
use super::pool::{Pool, PoolKey};
use super::pool_table::Identity;
use super::replaceable::Replaceable;
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::launcher::{Answer, Asker};
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::login::login_cache::Who;
use std::sync::atomic::Ordering::SeqCst;
use tracing::debug;

impl Dispatcher {
    /// Backends of a pool that its sessions can count on.
    pub fn serving_backends(&self, number: u32) -> usize {
        let pool = self.pools[number as usize].as_ref();
        pool.map_or(0, |pool| {
            let serving = pool.backends.iter().filter(|slot| self.is_usable(**slot));
            serving.count()
        })
    }

    /// May a pool's last backend go? Not while there are sessions and another
    /// could not log in. If that is not known, it is no for now, and the
    /// launcher is asked.
    pub fn may_lose_all(&mut self, number: u32) -> bool {
        let generation = self.control.header.login_generation.load(SeqCst);
        let now_us = self.now_us;
        let Some(mut pool) = self.pools[number as usize].take() else {
            return true;
        };
        // Taken out while its sessions are looked at.
        let may = self.could_all_log_in(number, &mut pool, generation, now_us);
        self.pools[number as usize] = Some(pool);
        may
    }

    fn could_all_log_in(
        &mut self,
        number: u32,
        pool: &mut Pool,
        generation: u64,
        now_us: u64,
    ) -> bool {
        if pool.sessions == 0 {
            return true;
        }
        if let Some(known) = pool.replaceable.get(generation, now_us) {
            return known;
        }
        if !self.link.is_up() || pool.replaceable.is_asking(now_us) {
            return false;
        }
        let unknown = (pool.replaceable).next_unknown(generation, now_us, self.pool_from(number));
        let Some((from, address)) = unknown else {
            return true;
        };
        pool.replaceable.is_asked(now_us);
        let asker = Asker::Pool(number, pool.serial, from);
        let who = Who::new(&pool.key.user, &pool.key.database, String::new(), &address);
        self.ask_launcher(asker, &address, who);
        false
    }

    /// The launcher has said whether a pool's role may log in from there.
    pub fn pool_answered(
        &mut self,
        number: u32,
        serial: u64,
        from: Provenance,
        generation: u64,
        answer: &Answer,
    ) {
        let Some(pool) = self.pools[number as usize]
            .as_ref()
            .filter(|pool| pool.serial == serial)
        else {
            return;
        };
        let key = pool.key.clone();
        let identity = Identity {
            role_oid: answer.role,
            database_oid: answer.database,
            superuser: answer.superuser,
        };
        let proves = match answer.method {
            // Which user of the machine asked has been left out.
            AUTH_TRUST | AUTH_PEER => true,
            AUTH_SCRAM | AUTH_MD5 | AUTH_PASSWORD => {
                // An expired one comes without its verifier.
                self.roles.knows(key.role_oid, &answer.verifier)
            }
            _ => false,
        };
        let count = |same: &dyn Fn(&PoolKey) -> bool| -> i64 {
            let pools = self.pools.iter().flatten().filter(|pool| same(&pool.key));
            pools.map(|pool| pool.all_backends().count() as i64).sum()
        };
        let may = answer.refusal.is_none()
            && !answer.ask_backend
            && identity.compare(&key).is_none()
            && proves
            && answer.fits(answer.role_limit, answer.role_backends, || {
                count(&|other| other.role_oid == key.role_oid)
            })
            && answer.fits(answer.database_limit, answer.database_backends, || {
                count(&|other| other.database_oid == key.database_oid)
            });
        debug!("another backend of pool {number} could log in: {may}");
        let now_us = self.now_us;
        let until_us = match answer.good_until {
            i64::MAX => u64::MAX,
            until if until > self.now => now_us + (until - self.now) as u64,
            _ => now_us + Replaceable::UNSURE_US,
        };
        if let Some(pool) = self.pools[number as usize].as_mut() {
            if may {
                pool.replaceable.found_able(from, generation, until_us);
            } else {
                // Who could not may leave.
                let until_us = now_us + Replaceable::UNSURE_US;
                pool.replaceable.found(false, generation, until_us);
            }
        }
        if may && self.may_lose_all(number) {
            self.shrink(number);
            // Somebody may wait for its place.
            for other in 0..self.pools.len() as u32 {
                if self.waiting_in(other) > 0 {
                    self.mark_dirty(other);
                }
            }
        }
    }

    pub fn is_usable(&self, slot: u32) -> bool {
        let backend = self.backends[slot as usize].as_ref();
        backend.is_some_and(|backend| backend.may_serve() && !backend.is_dedicated())
    }

    /// May a pool do without one of its backends, be it the last?
    pub fn may_lose_one(&mut self, number: u32) -> bool {
        self.serving_backends(number) > 1 || self.may_lose_all(number)
    }
}
