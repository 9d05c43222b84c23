//! Sessions that keep their backend: their places, and what happens when there
//! are none left.
//!
//! How many there may be is places.rs's to say. One that becomes dedicated
//! gives its place among the shared backends back, and another starts there.
//! Beyond the bound it holds a place of theirs instead; when others wait in
//! vain for what is left, the last one ends (MSG_EVICT).

use super::places::{choose_excess, Dedicated};
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::wire;
use crate::dispatcher::sessions::index_of;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use tracing::debug;

/// Others wait in vain if they have waited so long, or a quarter of what they
/// may.
const IN_VAIN_US: u64 = 1_000_000;
/// From the word to a backend until it is taken not to have heard.
const EVICTION_US: u64 = 1_000_000;

impl Dispatcher {
    /// DEDICATED, or a session has left its backend.
    pub fn set_dedicated(&mut self, slot: u32, dedicated: bool) {
        let Some(backend) = self.backends[slot as usize].as_mut() else {
            return;
        };
        if backend.is_dedicated() == dedicated {
            return;
        }
        let number = backend.pool;
        let pool = self.pools[number as usize].as_mut();
        let lists = pool.map(|pool| (&mut pool.backends, &mut pool.dedicated));
        if dedicated {
            backend.dedicated_since_us = Some(self.now_us);
            self.dedicated_count += 1;
            if let Some((shared, apart)) = lists {
                shared.retain(|other| *other != slot);
                apart.push(slot);
            }
            // Its place is somebody else's, of whatever pool.
            self.mark_waiting();
        } else {
            backend.dedicated_since_us = None;
            self.dedicated_count -= 1;
            if let Some((shared, apart)) = lists {
                apart.retain(|other| *other != slot);
                shared.push(slot);
            }
            self.room.look_for_surplus();
        }
        self.mark_dirty(number);
    }

    /// Called in each tick.
    pub fn evict_excess(&mut self) {
        let places = self.places(0);
        if self.dedicated_count == 0 || !places.has_excess() {
            return;
        }
        let in_vain_us = match self.parameters.session_wait_timeout_ms * 1000 {
            0 => IN_VAIN_US,
            timeout_us => IN_VAIN_US.min(timeout_us / 4),
        };
        let longest_us = (0..self.pools.len() as u32)
            .filter_map(|number| self.oldest_wait_us(number))
            .max();
        if longest_us.is_none_or(|waited_us| waited_us < in_vain_us) {
            return;
        }
        let is_ending = |since_us: u64| since_us > 0 && self.now_us < since_us + EVICTION_US;
        if (self.backends.iter().flatten()).any(|backend| is_ending(backend.evicted_us)) {
            return;
        }
        let control = self.control;
        let all = (0..self.backends.len() as u32).filter_map(|slot| {
            let backend = self.backends[slot as usize].as_ref()?;
            let session = control.backends[slot as usize].session.load(SeqCst);
            let state = &control.sessions.get(index_of(session) as usize)?.state;
            Some(Dedicated {
                slot,
                since_us: backend.dedicated_since_us?,
                is_idle: session != 0 && state.load(Relaxed) == STATE_IDLE,
            })
        });
        if let Some(slot) = choose_excess(all) {
            let session = control.backends[slot as usize].session.load(SeqCst);
            debug!(
                "too many dedicated sessions, one is ended: {}",
                self.name_in_log(session)
            );
            self.send_to_backend(slot, &wire::bare(MSG_EVICT, session));
            if let Some(backend) = self.backends[slot as usize].as_mut() {
                backend.evicted_us = self.now_us;
            }
        }
    }
}
