//! Sessions that keep their backend: their places, and what happens when there
//! are none left.
//!
//! How many there may be is places.rs's to say. One that becomes dedicated
//! gives its place among the shared backends back, and another starts there.
//! Beyond the bound it holds a place of theirs instead; when others wait in
//! vain for what is left, the last one ends (MSG_EVICT).

use super::places::Places;
use super::{index_of, Action, Core, Shown, Words};

/// Others wait in vain if they have waited so long, or a quarter of what they
/// may.
const IN_VAIN_US: u64 = 1_000_000;
/// From the word to a backend that its session is to end until it is taken not to have
/// heard.
const EVICTION_US: u64 = 1_000_000;

/// A session that was told to end for want of places: its backend's slot and serial, and
/// when it was.
#[derive(Clone, Copy, Debug)]
pub struct Evicted {
    slot: u32,
    serial: u64,
    at_us: u64,
}

impl Core {
    /// How many backends there are and may be; `going` of them have almost
    /// gone.
    pub(super) fn places(&self, going: usize) -> Places {
        Places {
            total: self.backends.total() - going,
            dedicated: self.backends.dedicated(),
            max_backends: self.limits.max_backends,
            max_dedicated: self.limits.max_dedicated,
            held: self.backends.held(),
            max_extra: self.limits.max_extra,
            ceiling: self.limits.ceiling,
        }
    }

    /// A backend has told that, or a session has left it.
    pub(super) fn told_dedicated(&mut self, slot: u32, dedicated: bool) {
        let is_new = self.set_dedicated(slot, dedicated);
        let pool = self.backends.get(slot).map(|backend| backend.pool());
        if let Some(number) = pool.filter(|_| is_new && !dedicated) {
            // It may sleep since before it was told of: nobody has poked it for
            // what was sent meanwhile.
            self.look_for_sleepers(number);
        }
    }

    /// True if that is new.
    fn set_dedicated(&mut self, slot: u32, dedicated: bool) -> bool {
        if !self.backends.set_dedicated(slot, dedicated, self.now.us) {
            return false;
        }
        let Some(number) = self.backends.get(slot).map(|backend| backend.pool()) else {
            return false;
        };
        self.pools.set_dedicated(number, slot, dedicated);
        if dedicated {
            // Its place is somebody else's, of whatever pool.
            self.mark_waiting();
        } else {
            self.room.look_for_surplus();
        }
        self.mark_dirty(number);
        true
    }

    /// Called in each tick.
    pub(super) fn evict_excess(&mut self, words: &impl Words) {
        let places = self.places(0);
        if self.backends.dedicated() == 0 || !places.has_excess() {
            return;
        }
        let in_vain_us = match self.limits.session_wait_timeout_us {
            0 => IN_VAIN_US,
            timeout_us => IN_VAIN_US.min(timeout_us / 4),
        };
        let longest_us = self.longest_seen_us();
        if longest_us.is_none_or(|waited_us| waited_us < in_vain_us) {
            return;
        }
        if self.is_one_being_evicted() {
            return;
        }
        let is_idle = |slot: u32| {
            let session = words.backend_session(slot);
            session != 0 && words.shown(index_of(session)) == Shown::Idle
        };
        let slots = self.backends.by_dedication().iter().map(|(_, slot)| *slot);
        let chosen = (self.excess).choose(slots, places.most_dedicated(), is_idle);
        let Some((slot, backend)) = chosen.and_then(|slot| Some((slot, self.backends.get(slot)?)))
        else {
            return;
        };
        self.evicted = Some(Evicted {
            slot,
            serial: backend.serial(),
            at_us: self.now.us,
        });
        let id = words.backend_session(slot);
        self.act(Action::Evict { slot, id });
    }

    /// Was one told to end a moment ago, and may not have heard yet? There is one at a
    /// time.
    fn is_one_being_evicted(&self) -> bool {
        self.evicted.is_some_and(|evicted| {
            let backend = self.backends.get(evicted.slot);
            let is_there = backend.is_some_and(|backend| backend.serial() == evicted.serial);
            is_there && self.now.us < evicted.at_us + EVICTION_US
        })
    }
}
