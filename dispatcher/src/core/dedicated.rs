//! Sessions that keep their backend: their places, and what happens when there
//! are none left.
//!
//! How many there may be is places.rs's to say. One that becomes dedicated
//! gives its place among the shared backends back, and another starts there.
//! Beyond the bound it holds a place of theirs instead; when others wait in
//! vain for what is left, one of the role with most ends (MSG_EVICT).

use super::places::{choose_excess, Places, Role};
use super::tenants::Tenant;
use super::{index_of, Action, Core, Shown, Word, Words};

/// Others wait in vain if they have waited so long, or a quarter of what they
/// may.
const IN_VAIN_US: u64 = 1_000_000;
/// A superuser who has waited so long needs no place that others leave.
const SUPERUSER_WAITS_US: u64 = 100_000;
/// Tenants of a pool that are compared with each other.
pub(super) const TENANTS_LOOKED_AT: usize = 64;
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
            boost: self.stall.boost(),
            max_extra: self.limits.max_extra,
            ceiling: self.limits.ceiling,
            for_superusers: self.limits.for_superusers,
            role: Role::default(),
        }
    }

    /// And for the role that has the best right to one, of those that wait in this pool.
    pub(super) fn places_for(&self, number: u32, words: &impl Words) -> Places {
        self.places_without(0, number, words)
    }

    /// When so many backends have gone. Whose sessions those will have that start, or are
    /// not seen yet to be somebody's for long, is not known: they count for that role.
    pub(super) fn places_without(&self, gone: usize, number: u32, words: &impl Words) -> Places {
        let of_no_role = self.backends.lives(number).of_no_role();
        let places = Places {
            role: Role {
                backends: self.least_of_roles(number, words) + of_no_role,
                is_superuser_in_need: false,
            },
            ..self.places(gone)
        };
        if places.room() > 0 {
            return places;
        }
        // Those beyond the ceiling are there for superusers, whoever has none yet. Whose turn
        // comes when one of the pool's has started is not known: until then no other starts.
        let beyond = places.total.saturating_sub(places.ceiling);
        if self.backends.lives(number).starting() > 0 {
            return places;
        }
        match self.superuser_in_need(number, words) {
            Some(backends) => Places {
                role: Role {
                    backends: backends + beyond,
                    is_superuser_in_need: true,
                },
                ..places
            },
            None => places,
        }
    }

    /// Tenants with a session that waits in this pool, and may be served, and for how long it
    /// does. Of very many those are looked at whose turn it is, and of the ready queue those
    /// that came first.
    pub(super) fn who_waits(&self, number: u32, words: &impl Words) -> Vec<(&Tenant, u64)> {
        let in_turn = self.sessions.tenants_in_turn(number);
        let in_turn = in_turn.filter_map(|tenant| Some((tenant, self.tenant_waits_us(tenant)?)));
        let queued = self.in_queue(number, words);
        let queued =
            queued.filter_map(|id| Some((self.sessions.get(id)?.tenant(), self.wait_us(id)?)));
        let all = (in_turn.take(TENANTS_LOOKED_AT)).chain(queued.take(TENANTS_LOOKED_AT));
        all.filter_map(|(tenant, waited_us)| Some((self.tenant(tenant)?, waited_us)))
            .collect()
    }

    pub(super) fn has_for_long(&self, tenant: &Tenant) -> usize {
        self.backends.of_role(tenant.key().role_oid)
    }

    /// Backends that the role has for long which has fewest, of those whose sessions wait in
    /// this pool.
    pub(super) fn least_of_roles(&self, number: u32, words: &impl Words) -> usize {
        let who_waits = self.who_waits(number, words).into_iter();
        let least = who_waits.map(|(tenant, _)| self.has_for_long(tenant)).min();
        least.unwrap_or(0)
    }

    /// Does a superuser's session wait for long? How many backends his role has for long.
    pub(super) fn superuser_in_need(&self, number: u32, words: &impl Words) -> Option<usize> {
        let pool = self.pool(number)?;
        if pool.together.superusers().is_empty() {
            return None;
        }
        let who_waits = self.who_waits(number, words).into_iter();
        let in_need = who_waits.filter(|(tenant, waited_us)| {
            let in_vain_us = self.waits_in_vain_us(tenant, *waited_us);
            tenant.key().superuser && in_vain_us >= SUPERUSER_WAITS_US
        });
        in_need.map(|(tenant, _)| self.has_for_long(tenant)).min()
    }

    /// A backend has told that, or a session has left it.
    pub(super) fn told_dedicated(&mut self, slot: u32, dedicated: bool, words: &impl Words) {
        let is_new = self.set_dedicated(slot, dedicated);
        if is_new || words.backend(slot) != Word::Busy {
            self.note_role(slot, words);
        }
        if is_new && words.backend_keeps(slot) {
            // It has a backend of its own now.
            self.is_back(words.backend_session(slot));
        }
        let pool = self.backends.get(slot).map(|backend| backend.pool());
        if let Some(number) = pool.filter(|_| is_new && !dedicated) {
            // It may sleep since before it was told of: nobody has poked it for
            // what was sent meanwhile.
            self.mark_dirty(number);
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
        if self.longest_seen_us() < Some(self.in_vain_us()) {
            return;
        }
        if self.is_one_being_evicted() {
            return;
        }
        let is_idle = |slot: u32| {
            let session = words.backend_session(slot);
            session != 0 && words.shown(index_of(session)) == Shown::Idle
        };
        let role_backends = |slot: u32| {
            let role = self.backends.get(slot).and_then(|backend| backend.role());
            role.map_or(0, |role| self.backends.of_role(role))
        };
        let slots = self.backends.by_dedication().iter().map(|(_, slot)| *slot);
        let most = places.most_dedicated();
        let chosen = choose_excess(slots, most, is_idle, role_backends);
        let Some((slot, backend)) = chosen.and_then(|slot| Some((slot, self.backends.get(slot)?)))
        else {
            return;
        };
        let serial = backend.serial();
        self.is_evicted(slot, serial);
        let id = words.backend_session(slot);
        self.act(Action::Evict { slot, id });
    }

    /// Who has waited so long waits in vain.
    pub(super) fn in_vain_us(&self) -> u64 {
        match self.limits.session_wait_timeout_us {
            0 => IN_VAIN_US,
            timeout_us => IN_VAIN_US.min(timeout_us / 4),
        }
    }

    pub(super) fn is_evicted(&mut self, slot: u32, serial: u64) {
        self.evicted = Some(Evicted {
            slot,
            serial,
            at_us: self.now.us,
        });
    }

    /// Was one told to end a moment ago, and may not have heard yet? There is one at a
    /// time.
    pub(super) fn is_one_being_evicted(&self) -> bool {
        self.evicted.is_some_and(|evicted| {
            let backend = self.backends.get(evicted.slot);
            let is_there = backend.is_some_and(|backend| backend.serial() == evicted.serial);
            is_there && self.now.us < evicted.at_us + EVICTION_US
        })
    }
}
