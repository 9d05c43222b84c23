//! The table of pools: making them, replacing them, letting them go.
//!
//! When ALTER ROLE/DATABASE ... SET changes what a starting backend reads, the
//! backends that exist are out of date for new sessions. Each pool that has
//! backends is then replaced by a fresh one with a ready queue of its own: the
//! old pool's backends finish what they hold and retire, and cannot be first
//! at a session that logged in after the change.

use super::event_loop::{token, Dispatcher, Source};
use super::pools::{Pool, PoolKey, Retry};
use super::sys::{epoll, socket};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use tracing::{debug, warn};

impl Dispatcher {
    /// The pool of a key; None if there can be no more pools.
    pub fn pool_for(&mut self, key: PoolKey) -> Option<u32> {
        match self.pool_numbers.get(&key) {
            Some(number) => Some(*number),
            None => self.create_pool(Rc::new(key)),
        }
    }

    fn create_pool(&mut self, key: Rc<PoolKey>) -> Option<u32> {
        let number = self.pools.iter().position(Option::is_none)? as u32;
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
        self.pools[number as usize] = Some(Pool {
            key,
            backends: Vec::new(),
            sessions: 0,
            fifo: VecDeque::new(),
            sent: VecDeque::new(),
            queue_write,
            queue_read,
            queue_full: false,
            dirty: false,
            retry: Retry::default(),
            failure: None,
            origin_failure: None,
            room_wanted: false,
        });
        debug!("pool {number} created");
        Some(number)
    }

    /// Settings of roles or databases have changed.
    pub fn settings_changed(&mut self, generation: u64) {
        self.settings_generation = generation;
        self.greetings.settings_changed();
        let numbers: Vec<u32> = (0..self.pools.len() as u32)
            .filter(|number| {
                self.pools[*number as usize]
                    .as_ref()
                    .is_some_and(|pool| !pool.backends.is_empty())
            })
            .collect();
        for number in numbers {
            self.replace_pool(number);
        }
    }

    fn replace_pool(&mut self, old: u32) {
        let Some(pool) = self.pools[old as usize].as_ref() else {
            return;
        };
        let (key, backends) = (pool.key.clone(), pool.backends.clone());
        if self.pool_numbers.get(&key) != Some(&old) {
            // It has been replaced before.
            return;
        }
        let Some(new) = self.create_pool(key) else {
            return;
        };
        self.drain_queue(old);
        let Some(pool) = self.pools[old as usize].as_mut() else {
            return;
        };
        let fifo = std::mem::take(&mut pool.fifo);
        let sessions = std::mem::take(&mut pool.sessions);
        if let Some(pool) = self.pools[new as usize].as_mut() {
            pool.fifo = fifo;
            pool.sessions = sessions;
        }
        let ids: Vec<_> = self.sessions.ids().collect();
        for id in ids {
            if let Some(session) = self.sessions.get_mut(id).filter(|s| s.pool == old) {
                session.pool = new;
            }
        }
        for slot in backends {
            self.retire_backend(slot);
        }
        debug!("pool {old} is replaced by {new}: settings have changed");
        self.mark_dirty(new);
    }

    /// Pools that nobody uses go.
    pub fn drop_empty_pools(&mut self) {
        for number in 0..self.pools.len() {
            let unused = self.pools[number]
                .as_ref()
                .is_some_and(|pool| pool.sessions == 0 && pool.backends.is_empty() && !pool.dirty);
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
