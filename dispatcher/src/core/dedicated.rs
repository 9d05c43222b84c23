//! Sessions that keep their backend: their places, and what happens when none are left.
//!
//! sizing.rs decides how many there may be. A session that becomes dedicated gives its place among
//! the shared backends back, and another backend starts there. Beyond the bound it holds a place of
//! theirs instead. When others wait in vain for what is left, one session of the role with the most
//! backends ends (MSG_EVICT).

use super::scan::Cursor;
use super::sizing::{choose_excess, Places, Role};
use super::tables::PoolSet;
use super::tenants::Tenant;
use super::{index_of, Action, Core, PoolMode, Shown, Word, Words};

/// Others wait in vain if they have waited this long, or a quarter of what they may.
const IN_VAIN_US: u64 = 1_000_000;
/// A superuser's session that has waited this long needs no place that others leave.
const SUPERUSER_WAITS_US: u64 = 100_000;
/// The most tenants of a pool that are compared with each other.
pub(super) const TENANTS_LOOKED_AT: usize = 64;
/// If a backend has not ended its session this long after it was told to, it counts as not having
/// heard.
const EVICTION_US: u64 = 1_000_000;

/// A session that was told to end for want of places: its backend's slot and serial, and the time.
#[derive(Clone, Copy, Debug)]
pub struct Evicted {
    slot: u32,
    serial: u64,
    at_us: u64,
}

impl Core {
    /// How many backends exist and may exist; `going` of them have almost gone.
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

    /// The places for the role with the best right to one, of the sessions that wait in this pool.
    pub(super) fn places_for(&self, number: u32, words: &impl Words) -> Places {
        self.places_without(0, number, words)
    }

    /// The same, when `gone` backends have gone. Which roles' sessions the backends will have that
    /// start, or that no session is known to have for long, is unknown: they count for that role.
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
        // Backends beyond the ceiling are for superusers that have none yet. Which tenant's turn
        // comes when a backend of the pool has started is unknown: until then no other starts.
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

    /// Tenants with a session that waits in this pool and may be served, and the length of its
    /// wait. Of very many, those whose turn is next are looked at, and the first ones of the ready
    /// queue.
    pub(super) fn waiting_tenants(&self, number: u32, words: &impl Words) -> Vec<(&Tenant, u64)> {
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

    /// Of the roles whose sessions wait in this pool, the fewest backends that one has for long.
    pub(super) fn least_of_roles(&self, number: u32, words: &impl Words) -> usize {
        let waiting_tenants = self.waiting_tenants(number, words).into_iter();
        let least = waiting_tenants
            .map(|(tenant, _)| self.has_for_long(tenant))
            .min();
        least.unwrap_or(0)
    }

    /// If a superuser's session waits for long: how many backends its role has for long.
    pub(super) fn superuser_in_need(&self, number: u32, words: &impl Words) -> Option<usize> {
        let pool = self.pool(number)?;
        if pool.together.superusers().is_empty() {
            return None;
        }
        let waiting_tenants = self.waiting_tenants(number, words).into_iter();
        let in_need = waiting_tenants.filter(|(tenant, waited_us)| {
            let in_vain_us = self.waits_in_vain_us(tenant, *waited_us);
            tenant.key().superuser && in_vain_us >= SUPERUSER_WAITS_US
        });
        in_need.map(|(tenant, _)| self.has_for_long(tenant)).min()
    }

    /// A backend has reported whether it is dedicated, or a session has left it.
    pub(super) fn told_dedicated(&mut self, slot: u32, dedicated: bool, words: &impl Words) {
        let is_new = self.set_dedicated(slot, dedicated);
        if is_new || words.backend(slot) != Word::Busy {
            self.note_role(slot, words);
        }
        if is_new && words.backend_keeps(slot) {
            // The session has a backend of its own now.
            self.is_back(words.backend_session(slot));
        }
        let pool = self.backends.get(slot).map(|backend| backend.pool());
        if let Some(number) = pool.filter(|_| is_new && !dedicated) {
            // The backend may have slept since before its report: no poke has told it of what was
            // sent meanwhile.
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
            // Its place goes to a session of any pool.
            self.mark_waiting();
        } else {
            self.room.look_for_surplus();
        }
        self.mark_dirty(number);
        true
    }

    /// Runs in each tick.
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

    /// A session that has waited this long waits in vain.
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

    /// Was a session told to end a moment ago, and may not have heard yet? There is one at a time.
    pub(super) fn is_one_being_evicted(&self) -> bool {
        self.evicted.is_some_and(|evicted| {
            let backend = self.backends.get(evicted.slot);
            let is_there = backend.is_some_and(|backend| backend.serial() == evicted.serial);
            is_there && self.now.us < evicted.at_us + EVICTION_US
        })
    }
}

// ----------------------------------------------------------------------------
// Sessions that keep their backends by configuration: those of tenants whose mode says so, and all
// sessions while they are few.
//
// The backends are told (`Action::Keep`), and check at each boundary. So a session that has been
// served becomes dedicated at the end of its next transaction, as if something of it lived in its
// backend, and the rules for dedicated sessions apply to it. When the condition ends, sleeping
// backends are woken, so that their sessions are shared again.

/// Backends that are woken in a round: a system call each.
pub(super) const WOKEN_AT_ONCE: usize = 256;

/// Backends that are woken to check again what they are told of their sessions' tenants.
pub struct Waking {
    slots: Cursor,
    /// The backends of all pools are woken.
    are_all: bool,
    /// Pools whose backends are woken.
    pools: PoolSet,
}

impl Waking {
    pub fn new(pools: usize) -> Waking {
        Waking {
            slots: Cursor::default(),
            are_all: false,
            pools: PoolSet::new(pools),
        }
    }

    pub fn has_more(&self) -> bool {
        self.slots.is_running()
    }

    /// Are this pool's backends still to be woken?
    pub fn concerns(&self, pool: u32) -> bool {
        self.are_all || self.pools.contains(pool)
    }

    /// Forgets a pool: its number may be another pool's next.
    pub fn forget_pool(&mut self, pool: u32) {
        self.pools.remove(pool);
    }

    fn begin_all(&mut self) {
        self.are_all = true;
        self.slots.begin();
    }

    pub fn begin(&mut self, pool: u32) {
        self.pools.insert(pool);
        self.slots.begin();
    }

    /// The next slot below `end`. None: that is all.
    fn next(&mut self, end: u32) -> Option<u32> {
        let next = self.slots.next_below(end);
        if next.is_none() {
            self.are_all = false;
            self.pools.clear();
        }
        next
    }
}

impl Core {
    /// The mode of a tenant's group has become known, or may have changed.
    pub(super) fn mode_may_differ(&mut self, number: u32) {
        let mode = self.limits_of(number).map(|limits| limits.mode);
        // A session that came before it was known that it should be native is served as close to
        // that as possible.
        let keeps = mode.unwrap_or_default() != PoolMode::Shared;
        let Some(tenant) = self.tenant_mut(number) else {
            return;
        };
        if tenant.keeps_sessions == keeps {
            return;
        }
        tenant.keeps_sessions = keeps;
        self.act(Action::Keep {
            tenant: Some(number),
            keeps,
        });
        if !keeps {
            // Wakes backends that sleep with a session of the tenant.
            self.wake_pool_of(number);
        }
    }

    /// All backends of a tenant's pool check again what they are told of it.
    pub(super) fn wake_pool_of(&mut self, tenant: u32) {
        let Some(number) = self.pool_of_tenant(tenant) else {
            return;
        };
        self.waking.begin(number);
    }

    /// A session has come or gone, or limits have changed. Never more sessions are kept than may be
    /// dedicated. After the limit has been exceeded, sessions are kept again only once their number
    /// has fallen by an eighth, as otherwise each session that comes and goes would change it.
    pub(super) fn look_at_threshold(&mut self) {
        let most = (self.limits.sharing_threshold).min(self.places(0).most_dedicated());
        let live = self.sessions.live();
        let are_few = most > 0 && live <= if self.are_few { most } else { most - most / 8 };
        if are_few == self.are_few {
            return;
        }
        self.are_few = are_few;
        self.act(Action::Keep {
            tenant: None,
            keeps: are_few,
        });
        if !are_few {
            self.waking.begin_all();
        }
    }

    /// Wakes the next backends in each round.
    pub(super) fn wake_on(&mut self) {
        let mut woken = 0;
        while woken < WOKEN_AT_ONCE && self.waking.has_more() {
            let Some(slot) = self.waking.next(self.backends.end()) else {
                return;
            };
            let backend = self.backends.get(slot);
            if backend.is_some_and(|backend| self.waking.concerns(backend.pool())) {
                self.wake(slot);
                woken += 1;
            }
        }
    }

    /// When the condition ends all backends are woken, as one that has just become dedicated by it
    /// may not have reported it yet.
    fn wake(&mut self, slot: u32) {
        let life = self.backends.life(slot);
        if life.is_some_and(|life| !life.is_starting()) {
            self.act(Action::Poke(slot));
        }
    }
}
