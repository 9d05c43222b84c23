//! The table of pools: making them, replacing them, letting them go.
//!
//! A pool's backends read what ALTER ROLE/DATABASE ... SET and the configuration
//! say once, when they start. When that changes, its pool is *outdated*: who
//! logs in from then on gets another pool, whose backends have the new state.
//! The outdated one keeps its sessions, to which the change does not apply, and
//! its backends, for it may be that no new one could log in. Only when one of
//! the new pool has logged in do the sessions move there, and the old backends
//! go. docs/design/pools.md has the reasons.

use super::origin::FailedOrigins;
use super::pool::{Pool, PoolKey, Retry};
use super::replaceable::Replaceable;
use crate::dispatcher::event_loop::{token, Dispatcher, Source};
use crate::dispatcher::link::layout::settings_mark;
use crate::dispatcher::sessions::SessionId;
use crate::dispatcher::sys::{epoll, socket};
use crate::protocol::auth::client::Failure;
use crate::protocol::Report;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use tracing::{debug, warn};

/// Pools that only superusers may open, so that they can come in and see.
const POOLS_FOR_SUPERUSERS: usize = 16;

/// Who a backend has become by logging in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub role_oid: u32,
    pub database_oid: u32,
    pub superuser: bool,
}

/// A backend that has logged in by a pool's names and is not what the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    Role,
    Database,
    /// The same role, which has become a superuser or is none any more.
    Superuser(bool),
}

impl Identity {
    /// None if it is the pool's.
    pub fn compare(&self, key: &PoolKey) -> Option<Stranger> {
        if self.role_oid != key.role_oid {
            Some(Stranger::Role)
        } else if self.database_oid != key.database_oid {
            Some(Stranger::Database)
        } else if self.superuser != key.superuser {
            Some(Stranger::Superuser(self.superuser))
        } else {
            None
        }
    }
}

impl Dispatcher {
    /// The pool of a key; None if there can be no more pools.
    pub fn pool_for(&mut self, key: PoolKey) -> Option<u32> {
        match self.pool_numbers.get(&key) {
            Some(number) => Some(*number),
            None => self.create_pool(Rc::new(key)),
        }
    }

    fn free_pool(&self, superuser: bool) -> Option<u32> {
        let slots = self.control.pools.len();
        let reserve = POOLS_FOR_SUPERUSERS.min(slots / 2);
        let most = slots - if superuser { 0 } else { reserve };
        let unused = self.pools.iter().position(Option::is_none);
        let number = unused.unwrap_or(self.pools.len());
        (number < most).then_some(number as u32)
    }

    fn create_pool(&mut self, key: Rc<PoolKey>) -> Option<u32> {
        let number = self.free_pool(key.superuser).or_else(|| {
            self.drop_empty_pools();
            self.free_pool(key.superuser)
        })?;
        let (queue_write, queue_read) = match socket::short_queue() {
            Ok(pair) => pair,
            Err(error) => {
                warn!("could not create a ready queue: {error}");
                return None;
            }
        };
        let data = token(Source::Queue, number);
        // Not armed: only a full queue is waited for.
        self.epoll
            .add(queue_write.as_raw_fd(), epoll::ONESHOT, data)
            .ok()?;
        let slot = &self.control.pools[number as usize];
        slot.queued.store(0, SeqCst);
        slot.completed.store(0, SeqCst);
        slot.in_use.store(1, SeqCst);
        self.pool_numbers.insert(key.clone(), number);
        let serial = self.serial();
        if self.pools.len() == number as usize {
            self.pools.push(None);
        }
        self.pools[number as usize] = Some(Pool {
            key,
            serial,
            settings_generation: self.settings_generation,
            outdated: false,
            replaceable: Replaceable::default(),
            backends: Vec::new(),
            dedicated: Vec::new(),
            sessions: 0,
            fifo: VecDeque::new(),
            sent: VecDeque::new(),
            queue_write,
            queue_read,
            queue_full: false,
            dirty: false,
            retry: Retry::default(),
            failure: None,
            failed_origins: FailedOrigins::default(),
        });
        debug!("pool {number} created");
        Some(number)
    }

    /// Settings of roles or databases have changed.
    pub fn settings_changed(&mut self, generation: u64) {
        self.settings_generation = generation;
        let now = self.control.header.read_settings_marks();
        let before = std::mem::replace(&mut self.settings_marks, now.clone());
        // Those for all roles or all databases are under 0, InvalidOid.
        self.outdate_pools(|key| {
            [0, key.database_oid].iter().any(|database_oid| {
                [0, key.role_oid].iter().any(|role_oid| {
                    let mark = settings_mark(*database_oid, *role_oid);
                    now[mark] != before[mark]
                })
            })
        });
    }

    /// What starting backends of these pools read has changed.
    pub fn outdate_pools(&mut self, concerns: impl Fn(&PoolKey) -> bool) {
        for number in 0..self.pools.len() as u32 {
            let pool = self.pools[number as usize].as_ref();
            if pool.is_some_and(|pool| !pool.outdated && concerns(&pool.key)) {
                self.outdate_pool(number);
            }
        }
    }

    fn outdate_pool(&mut self, number: u32) {
        let generation = self.settings_generation;
        let Some(pool) = self.pools[number as usize].as_mut() else {
            return;
        };
        let key = pool.key.clone();
        let mut has_attached = false;
        for slot in pool.all_backends() {
            if let Some(backend) = self.backends[slot as usize].as_mut() {
                has_attached |= !backend.is_starting();
            }
        }
        if has_attached {
            pool.outdated = true;
            self.pool_numbers.remove(&key);
            debug!("pool {number} is outdated: settings have changed");
            self.leave_outdated(number);
        } else {
            // Nobody has learnt anything here; who starts is too early. So a
            // key never has more than one outdated pool: absorb_outdated.
            for slot in &pool.backends {
                if let Some(backend) = self.backends[*slot as usize].as_mut() {
                    backend.stale = true;
                }
            }
            pool.settings_generation = generation;
        }
        self.greetings.forget_pool(&key);
    }

    /// An outdated pool's backends go when it has no session any more.
    fn leave_outdated(&mut self, number: u32) {
        let Some(pool) = self.pools[number as usize].as_ref() else {
            return;
        };
        if pool.outdated && pool.sessions == 0 {
            for slot in pool.all_backends().collect::<Vec<_>>() {
                self.retire_backend(slot);
            }
        }
    }

    pub fn sweep_outdated(&mut self) {
        for number in 0..self.pools.len() as u32 {
            self.leave_outdated(number);
        }
    }

    /// A backend of this pool has logged in: others can, so nobody needs the
    /// old ones any more.
    pub fn absorb_outdated(&mut self, number: u32) {
        let Some(key) = self.pools[number as usize]
            .as_ref()
            .filter(|pool| !pool.outdated)
            .map(|pool| pool.key.clone())
        else {
            return;
        };
        for other in 0..self.pools.len() as u32 {
            let pool = self.pools[other as usize].as_ref();
            if pool.is_some_and(|pool| pool.outdated && pool.key == key) {
                self.move_sessions(other, number);
            }
        }
    }

    /// All that one pool has to another; its backends go.
    fn move_sessions(&mut self, old: u32, new: u32) {
        self.drain_queue(old);
        let Some(pool) = self.pools[old as usize].as_mut() else {
            return;
        };
        let backends: Vec<u32> = pool.all_backends().collect();
        let fifo = std::mem::take(&mut pool.fifo);
        let moved = std::mem::take(&mut pool.sessions);
        if let Some(pool) = self.pools[new as usize].as_mut() {
            let sessions = &self.sessions;
            let since = |id: &SessionId| sessions.get(*id).map_or(0, |s| s.waits_since_us);
            pool.fifo.extend(fifo);
            pool.fifo.make_contiguous().sort_by_key(since);
            pool.sessions += moved;
        }
        let ids: Vec<_> = self.sessions.ids().collect();
        for id in ids {
            if let Some(session) = self.sessions.get_mut(id).filter(|s| s.pool == old) {
                session.pool = new;
                self.greetings.forget_session(id);
            }
        }
        for slot in backends {
            self.retire_backend(slot);
        }
        debug!("the sessions of pool {old} have moved to pool {new}");
        self.mark_dirty(new);
    }

    /// A backend that logged in for this pool is not the pool's; it has gone.
    pub fn stranger_came(&mut self, number: u32, stranger: Stranger) {
        let Some(pool) = self.pools[number as usize].as_ref() else {
            return;
        };
        let name = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let report = match stranger {
            Stranger::Role => Report::fatal(
                b"28000",
                format!("role \"{}\" does not exist", name(&pool.key.user)),
            )
            .with_detail("It has been renamed or dropped; another role has its name now.")
            .with_hint("Connect again."),
            Stranger::Database => Report::fatal(
                b"3D000",
                format!("database \"{}\" does not exist", name(&pool.key.database)),
            )
            .with_detail("It seems to have just been dropped or renamed."),
            Stranger::Superuser(superuser) => {
                return self.superuser_changed(number, superuser);
            }
        };
        self.start_failed(number, Failure::ServerError(report));
    }

    /// Sessions whose backends logged in before the change keep them. If there
    /// is none left, they go on with backends of the role as it is now: what
    /// it may do the server asks of the catalog in any case.
    fn superuser_changed(&mut self, number: u32, superuser: bool) {
        let Some(pool) = self.pools[number as usize].as_ref() else {
            return;
        };
        let has_own = pool.all_backends().any(|slot| {
            let backend = self.backends[slot as usize].as_ref();
            backend.is_some_and(|backend| backend.may_serve())
        });
        let key = PoolKey {
            superuser,
            ..(*pool.key).clone()
        };
        let new = if has_own { None } else { self.pool_for(key) };
        match new {
            Some(new) => self.move_sessions(number, new),
            None => {
                let text = "the role has become a superuser or is none any more";
                self.start_failed(number, Failure::Protocol(text.into()));
            }
        }
    }

    /// Pools that nobody uses go.
    pub fn drop_empty_pools(&mut self) {
        for number in 0..self.pools.len() {
            let unused = self.pools[number]
                .as_ref()
                .is_some_and(|pool| pool.sessions == 0 && !pool.has_backends() && !pool.dirty);
            if !unused {
                continue;
            }
            if let Some(pool) = self.pools[number].take() {
                let _ = self.epoll.delete(pool.queue_write.as_raw_fd());
                if self.pool_numbers.get(&pool.key) == Some(&(number as u32)) {
                    self.pool_numbers.remove(&pool.key);
                }
                self.control.pools[number].in_use.store(0, SeqCst);
                debug!("pool {number} is dropped");
            }
        }
    }
}
