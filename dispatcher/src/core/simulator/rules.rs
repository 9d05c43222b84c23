//! The rules of sharing, checked where the core acts on them (docs/design/pools.md has the rules).

use super::shell::Shell;
use crate::core::backends::Life;
use crate::core::sessions::Whereabouts;
use crate::core::{Backend, Core, SessionId, Words};

/// Backends that this sweep retires, by slot and serial.
#[derive(Default)]
pub(super) struct TooOld {
    pub backends: Vec<(u32, u64)>,
}

impl Core {
    /// A backend is started for a pool, and is counted already.
    pub(super) fn check_opened(&self, pool: u32) {
        assert!(!self.is_held(pool), "its database is another's");
        // A superuser in need has had one more.
        let mut all = self.pools.existing().iter();
        if all.any(|number| self.has_superusers(number)) {
            let most = self.limits.ceiling + self.limits.for_superusers;
            assert!(self.backends.total() <= most);
            return;
        }
        assert!(
            !self.places(0).is_overdrawn(),
            "more backends than there are places"
        );
        // The same limit, computed from the parameters and not by sizing.rs.
        let count = |is_so: &dyn Fn(u32) -> bool| {
            let slots = self.backends.iter().map(|(slot, _)| slot);
            slots.filter(|slot| is_so(*slot)).count()
        };
        let limits = &self.limits;
        let dedicated = count(&|slot| self.backends.life(slot).is_some_and(Life::is_dedicated));
        let held = count(&|slot| self.backends.life(slot).is_some_and(Life::is_held));
        let extra = limits.max_extra.unwrap_or(usize::MAX);
        let extra = extra.min(held + self.stall.boost());
        let shared = count(&|_| true) - dedicated;
        let most_dedicated = limits.max_dedicated.unwrap_or(limits.ceiling);
        assert!(
            shared + dedicated <= limits.ceiling
                && shared <= limits.max_backends + extra
                && shared + dedicated <= limits.max_backends + most_dedicated + extra,
            "{shared} shared, {dedicated} dedicated, {held} held by {limits:?}"
        );
    }

    /// The role as which a backend of this pool starts belongs to one of the pool's tenants.
    pub(super) fn check_starts_as(&self, number: u32) {
        let starts_as = self.starts_as(number).expect("somebody waits");
        let pool = self.pool(number).expect("it is there");
        let own = pool.key().role_oid.unwrap_or(starts_as.role_oid);
        assert_eq!(starts_as.role_oid, own, "as of another role's");
    }

    /// One more backend is started for a pool. If it is an extra one, the number left is at least
    /// what the role with the fewest backends has, of those that wait there; or more are left than
    /// are kept for roles with few.
    pub(in crate::core) fn check_share(&self, pool: u32, words: &impl Words) {
        let (places, limits) = (self.places(0), &self.limits);
        let own = self.least_of_roles(pool, words) + self.backends.lives(pool).of_no_role();
        let total = self.backends.total();
        let is_extra = total > places.most_shared() + places.most_dedicated();
        let superuser_s = self.superuser_in_need(pool, words);
        if !is_extra || superuser_s.is_some_and(|own| own < 3) {
            return;
        }
        // A superuser's role counts by itself, without backends that have no role yet.
        let own = superuser_s.map_or(own, |its| own.min(its + 1));
        let left = limits.ceiling - total;
        let beyond = limits.ceiling - places.most_shared();
        let kept = (beyond / 4).max(limits.ceiling / 8).min(beyond);
        let kept = limits.max_extra.map_or(kept, |most| kept.min(most));
        assert!(
            own <= left + 1 || left >= kept,
            "a role has {own} backends, and {left} of {kept} are left: {places:?}"
        );
    }

    /// A ticket is issued: no backend leaves for a pool that may have no more, and no reserved one
    /// leaves.
    pub(super) fn check_offer(&self, slots: &[u32]) {
        for (nth, slot) in slots.iter().enumerate() {
            assert!(!slots[..nth].contains(slot), "it is told twice");
            assert!(self.backends.is_shared(*slot), "it serves no pool any more");
        }
        let Some(wants) = self.room.offered_for() else {
            return;
        };
        let pools = self.pools.with_backends().iter();
        let reserved: usize = pools
            .map(|number| self.reserved(number).min(self.serving_backends(number)))
            .sum();
        let all_fit = reserved <= self.most_reserved();
        for slot in slots {
            let pool = self.backends.get(*slot).map(|backend| backend.pool());
            let pool = pool.expect("it is there");
            assert_ne!(pool, wants, "a pool makes room for itself");
            let (has, kept) = (self.serving_backends(pool), self.reserved(pool));
            assert!(
                !all_fit || has > kept,
                "of {has} one goes, and {kept} are reserved"
            );
        }
    }

    /// A dedicated session is told to end: there are too many, and it did not come while there was
    /// room.
    pub(super) fn check_evicted(&self, slot: u32) {
        let places = self.places(0);
        assert!(places.has_excess(), "ended though there is room");
        let since = |slot: u32| self.backends.life(slot)?.dedicated_since_us();
        let own = since(slot).expect("it is dedicated");
        let before = self.backends.iter().filter(|(other, _)| {
            since(*other).is_some_and(|since_us| (since_us, *other) < (own, slot))
        });
        let before = before.count();
        assert!(
            before >= places.most_dedicated(),
            "{before} came before it, and there may be {}",
            places.most_dedicated()
        );
    }

    /// A client is ended that has been idle for long enough, both by what the core has seen and in
    /// reality.
    pub(super) fn check_idle_ended(&self, slot: u32, idle_us: u64, really_us: u64) {
        let least_us = self.limits.extra_idle_timeout_us;
        assert!(
            least_us > 0 && idle_us >= least_us && really_us >= idle_us,
            "idle for {idle_us} by what was seen, {really_us} really, and the limit is {least_us}"
        );
        assert!(
            self.places(0).has_extra(),
            "ended though there is no extra one"
        );
        let is_of_role = |backend: &Backend| backend.role().is_some();
        assert!(self.backends.get(slot).is_some_and(is_of_role));
    }

    /// Checked at the decision: what others are measured to do meanwhile does not count.
    pub(in crate::core) fn check_waits_in_vain(&self) {
        let waits_in_vain = |id: SessionId| {
            let role = self.key_of(id).map(|key| key.role_oid);
            let has_none = role.is_some_and(|role| self.backends.of_role(role) == 0);
            let place = self.sessions.get(id).map(|session| session.whereabouts());
            let waits = matches!(place, Some(Whereabouts::Waiting(_) | Whereabouts::Queue(_)));
            has_none && waits
        };
        assert!(
            self.sessions.ids().any(waits_in_vain),
            "ended, and no role is without a backend"
        );
    }

    /// Sessions keep their backends exactly while they are few.
    pub(super) fn check_threshold(&self, keeps: bool) {
        let most = (self.limits.sharing_threshold).min(self.places(0).most_dedicated());
        let live = self.sessions.live();
        assert!(
            !keeps || live <= most,
            "{live} keep backends, beyond {most}"
        );
        let is_few = live > 0 && most > 0 && live <= most - most / 8;
        assert!(keeps || !is_few, "{live} keep none, and {most} may");
    }

    /// Backends whose lifetime is over: the oldest of each pool that has others.
    pub(super) fn too_old(&self) -> TooOld {
        let oldest = |number: u32| {
            let slots = self.pool_backends(number).iter().copied();
            let shared = slots.filter(|slot| self.backends.is_shared(*slot));
            let with_age = shared.filter_map(|slot| {
                let backend = self.backends.get(slot)?;
                let age_us = self.now.us.saturating_sub(backend.attached_us());
                Some((age_us, slot, backend.serial()))
            });
            let (_, slot, serial) = with_age.max()?;
            self.is_too_old(slot, serial).then_some((slot, serial))
        };
        TooOld {
            backends: (self.pools.with_backends().iter())
                .filter_map(oldest)
                .collect(),
        }
    }

    fn is_too_old(&self, slot: u32, serial: u64) -> bool {
        let limit_us = self.limits.backend_lifetime_us;
        let backend = self.backends.get(slot);
        backend.is_some_and(|backend| {
            backend.serial() == serial
                && self.backends.is_shared(slot)
                && limit_us > 0
                && self.now.us.saturating_sub(backend.attached_us()) > limit_us
                && self.serving_backends(backend.pool()) > 1
        })
    }

    /// Runs after each round: backends that were too old before the sweep have been told to leave.
    pub(super) fn check_lifetime(&self, before: &mut TooOld) {
        (before.backends).retain(|(slot, serial)| self.is_too_old(*slot, *serial));
        assert!(
            before.backends.is_empty(),
            "backends {:?} outlive their time",
            before.backends
        );
    }

    /// Each pool with sessions has its minimum of backends, as far as there is room.
    pub(super) fn check_least(&self, words: &impl Words) {
        for number in self.pools.existing().iter() {
            let starts = self
                .growth(number, words)
                .map_or(0, |growth| growth.starts());
            assert_eq!(starts, 0, "pool {number} lacks backends");
            self.check_has_least(number);
        }
    }

    /// A pool has fewer backends only for one of these reasons.
    fn check_has_least(&self, number: u32) {
        let has = self.pool_backends(number).len();
        let least = self.min_backends(number);
        let has_sessions = self.sessions.members(number) > 0;
        assert!(
            has >= least || !has_sessions || self.places(0).room() == 0,
            "pool {number} has {has} backends, and is to have {least}"
        );
    }

    /// Backends beyond a lowered max_backends, or that are no longer needed, have left; the last
    /// backend of each pool may stay.
    fn check_most(&self, words: &impl Words) {
        for number in self.pools.existing().iter() {
            let long_idle = self.long_idle(number, words).len();
            let stay = self.min_backends(number).max(1);
            assert!(
                self.limits.backend_idle_timeout_us == 0 || long_idle <= stay,
                "{long_idle} backends of pool {number} are idle for long"
            );
        }
        let are_last = |number: &u32| self.serving_backends(*number) <= 1;
        // An ended backend keeps its place until it is known which sessions it had.
        assert!(
            !self.burials.is_empty()
                || !self.places(0).has_surplus()
                || self.pools.with_backends().iter().all(|it| are_last(&it)),
            "more backends than max_backends: {:?}",
            self.places(0)
        );
    }

    /// One more backend counts as held: there are more than otherwise permitted, or a session had
    /// waited for long when the tick came.
    pub(super) fn check_held(&self, before: usize, waited_us: u64, was_surplus: bool) {
        let timeout_us = self.limits.session_wait_timeout_us;
        let least_us = match timeout_us {
            0 => 100_000,
            timeout_us => (timeout_us / 4).min(100_000),
        };
        assert!(
            self.backends.held() <= before || was_surplus || waited_us >= least_us,
            "more are held, and nobody waits for long"
        );
    }

    /// In FIFOs and ready queues.
    pub(super) fn longest_of_all_us(&self, words: &impl Words) -> u64 {
        let waits = self.pools.existing().iter();
        let longest_us = waits.filter_map(|number| self.oldest_wait_us(number, words));
        longest_us.max().unwrap_or(0)
    }

    /// A session goes to be served: no earlier session of its line is still waiting.
    pub(super) fn check_turn(&self, id: SessionId) {
        if self.limits.force_migration || self.is_exempt(id) {
            // A session that waits for another backend than its last one is passed over; so is a
            // paused one.
            return;
        }
        let session = self.sessions.get(id).expect("it is there");
        let line = self.sessions.list(session.line(), session.tenant());
        let first = line.into_iter().next();
        let before = first.and_then(|first| self.sessions.get(first));
        assert!(
            before.is_none_or(|before| before.turn() > session.turn()),
            "{id:x} is served before {:x}, who waits in the same line",
            first.unwrap_or_default()
        );
    }

    /// The pool for which a backend leaves.
    pub(super) fn makes_room(&self, slot: u32) -> Option<u32> {
        self.backends.life(slot)?.room_for()
    }

    pub(super) fn held_count(&self) -> usize {
        self.backends.held()
    }

    pub(super) fn is_surplus(&self) -> bool {
        self.places(0).has_surplus()
    }
}

impl Shell {
    /// At rest: no backend is started, and none that is kept leaves.
    pub fn check_rest(&self, opened_before: u64) {
        self.core.check_least(&self.world);
        self.core.check_most(&self.world);
        assert_eq!(
            self.opened, opened_before,
            "backends come though nobody asks"
        );
    }
}
