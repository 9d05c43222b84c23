//! How many of a tenant's sessions are being served, for limits that count them.
//!
//! pg_baton.pool_max_backends limits how many backends serve a role's sessions in a database at a
//! time, without those of dedicated sessions. pool_reserve is the number of sessions for which the
//! database always has a backend. The first starts and ends no process: sessions beyond it wait.
//! Sessions for which others' reserves leave no backend wait too, but for them more backends start,
//! or are passed on to their pool.
//!
//! Usually the dispatcher gets no message when a session is given back, as nothing depends on it.
//! If something does, the tenant is *counted*: backends are told so, keep no session of it between
//! two transactions, and report when they give one back. A session that has come back without a
//! report, as its backend has ended, is found in a tick.

use super::dedicated::TENANTS_LOOKED_AT;
use super::dispatch::count_free;
use super::sessions::Location;
use super::sizing::{Places, Role};
use super::{Action, Core, SessionId, Words};

/// The most tenants without room that are checked again in a tick, or in a round in which a session
/// of their pool has come back; and the most tenants with reserves.
const LOOKED_AT_ONCE: usize = 64;

impl Core {
    /// The group's limits, or the reserves in the pool, may have changed.
    pub(super) fn count_if_limited(&mut self, number: u32) {
        let Some(tenant) = self.tenant(number) else {
            return;
        };
        let has_limit = match self.limits_of(number) {
            Some(limits) => limits.max_backends.is_some(),
            None => true,
        };
        let pool = self.pool(tenant.pool());
        let has_limit = has_limit || tenant.is_paused;
        let is_counted = has_limit || pool.is_some_and(|pool| pool.together.reserve() > 0);
        if tenant.is_counted == is_counted {
            return;
        }
        if let Some(tenant) = self.tenant_mut(number) {
            tenant.is_counted = is_counted;
            tenant.served.clear();
        }
        self.count_served(number);
        self.act(Action::Count {
            tenant: number,
            is_counted,
        });
        if is_counted && self.sessions.members_of_tenant(number) > 0 {
            // Wakes backends that linger with a session of the tenant.
            self.wake_pool_of(number);
        }
    }

    /// A session has been handed out, to a backend or to the ready queue.
    pub(super) fn is_handed_out(&mut self, id: SessionId, to_backend: bool) {
        let now_us = self.now.us;
        let Some(number) = self.sessions.get(id).map(|session| session.tenant()) else {
            return;
        };
        let Some(tenant) = self.tenants.get_mut(number) else {
            return;
        };
        if to_backend {
            tenant.handed_out_us = now_us;
        }
        // It may have come back without a report.
        if tenant.is_counted && !tenant.served.contains(&id) {
            tenant.served.push(id);
            self.count_served(number);
            self.has_room(number);
        }
    }

    /// The session has come back, or ended.
    pub(super) fn is_served_no_more(&mut self, number: u32, id: SessionId) {
        let Some(tenant) = self.tenants.get_mut(number).filter(|it| it.is_counted) else {
            return;
        };
        let pool = tenant.pool();
        tenant.served.retain(|other| *other != id);
        self.count_served(number);
        self.has_room(number);
        // Other sessions may have waited for that.
        self.mark_dirty(pool);
    }

    pub(super) fn is_back(&mut self, id: SessionId) {
        if let Some(number) = self.sessions.get(id).map(|session| session.tenant()) {
            self.is_served_no_more(number, id);
        }
    }

    /// Some of a pool's tenants that had no room may have some.
    pub(super) fn look_for_room(&mut self, number: u32) {
        for tenant in self.next_without_room(number) {
            self.has_room(tenant);
        }
    }

    /// Runs in a tick. Some sessions of these tenants may also have come back without a report.
    pub(super) fn count_served_again(&mut self, number: u32, words: &impl Words) {
        for tenant in self.next_without_room(number) {
            self.count_again(tenant, words);
            self.has_room(tenant);
        }
        for tenant in self.reserving(number) {
            self.count_again(tenant, words);
        }
    }

    fn next_without_room(&mut self, number: u32) -> Vec<u32> {
        let pool = self.pools.get_mut(number);
        pool.map_or(Vec::new(), |pool| pool.next_without_room(LOOKED_AT_ONCE))
    }

    fn count_again(&mut self, number: u32, words: &impl Words) {
        let Some(tenant) = self.tenants.get_mut(number) else {
            return;
        };
        let mut served = std::mem::take(&mut tenant.served);
        served.retain(|id| self.is_served(*id, words));
        if let Some(tenant) = self.tenant_mut(number) {
            tenant.served = served;
        }
        self.count_served(number);
    }

    /// Is the session on a backend that serves others too, or on its way there?
    fn is_served(&self, id: SessionId, words: &impl Words) -> bool {
        match self.locate(id, words) {
            // The report that a backend is no longer dedicated to another session may not have
            // arrived yet.
            Some(Location::Held(slot)) => {
                let is_shared = self.backends.is_shared(slot) || self.is_leaving(slot);
                is_shared || !words.backend_keeps(slot)
            }
            Some(Location::OnItsWay(_)) => true,
            _ => false,
        }
    }

    fn is_leaving(&self, slot: u32) -> bool {
        let life = self.backends.life(slot);
        life.is_some_and(|life| life.is_leaving() && !life.is_dedicated())
    }

    /// May one more session of the tenant be served, by its group's limit and by pauses? Updates what is known of
    /// that.
    pub(super) fn has_room(&mut self, number: u32) -> bool {
        self.count_if_limited(number);
        let room = self.room_within_limit(number);
        self.sessions.set_room(number, room);
        let pool = self.pool_of_tenant(number);
        if let Some(pool) = pool.and_then(|pool| self.pools.get_mut(pool)) {
            match room {
                Some(0) => pool.without_room.insert(number),
                _ => pool.without_room.remove(&number),
            };
        }
        room != Some(0)
    }

    /// None: no limit.
    fn room_within_limit(&self, number: u32) -> Option<usize> {
        if self.is_paused(number) {
            return Some(0);
        }
        let most = match self.limits_of(number) {
            Some(limits) => limits.max_backends?,
            // The limits are not known yet.
            None => 1,
        };
        let group = self.tenant(number).and_then(|tenant| tenant.group());
        let served = group.map_or(0, |group| self.groups.served(group));
        Some(most.saturating_sub(served))
    }

    // ---- reserves ----------------------------------------------------------

    /// The tenant of a pool whose session is served next, if one may be served now.
    pub(super) fn next_tenant(&self, number: u32, words: &impl Words) -> Option<u32> {
        match self.is_kept(number) {
            false => {
                let is_last = self.keeps_one_free(number) && !self.has_two_free(number, words);
                let leaves = |tenant| {
                    self.leaves_it_to_others(tenant) || is_last && self.has_many(tenant, number)
                };
                let in_turn = self.sessions.tenants_in_turn(number);
                let mut in_turn = in_turn.take(TENANTS_LOOKED_AT);
                in_turn.find(|tenant| !leaves(*tenant))
            }
            true => {
                let owed = self.reserving(number).into_iter().filter(|tenant| {
                    let tenant = self.tenant(*tenant);
                    tenant.is_some_and(|tenant| tenant.is_owed() > 0)
                });
                let in_turn = owed.filter_map(|it| Some((self.sessions.turn_of(it)?, it)));
                in_turn.min().map(|(_, tenant)| tenant)
            }
        }
    }

    /// Of the last backends that can exist, a role that has its share takes none. Of the backends
    /// beyond what the pool may have, which are there for superusers, other roles take none.
    pub(super) fn leaves_it_to_others(&self, number: u32) -> bool {
        let Some(tenant) = self.tenant(number) else {
            return false;
        };
        let places = self.places(0);
        let beyond = places.total.saturating_sub(places.ceiling);
        if beyond > 0 && !tenant.key().superuser && self.backends.shared_and_not_held() <= beyond {
            return true;
        }
        let role = Role {
            backends: self.has_for_long(tenant),
            is_superuser_in_need: false,
        };
        Places { role, ..places }.has_its_share(self.backends.of_no_role())
    }

    /// Are backends so few that each is handed to the tenant that is next in turn? Then no session
    /// waits in the ready queue, where the first to come would get the backend.
    pub(super) fn are_few(&self, number: u32) -> bool {
        let has_some = self.backends.lives(number).shared() > 0;
        self.takes_turns(number)
            && has_some
            && (self.are_mostly_held(number) || self.places(0).are_few_left())
    }

    /// Has a pool several tenants?
    pub(super) fn takes_turns(&self, number: u32) -> bool {
        self.tenants_of_pool(number) > 1
    }

    fn tenants_of_pool(&self, number: u32) -> usize {
        let pool = self.pool(number);
        pool.map_or(0, |pool| pool.together.all().len())
    }

    /// Do transactions hold at least half of a pool's backends?
    fn are_mostly_held(&self, number: u32) -> bool {
        let lives = self.backends.lives(number);
        lives.shared_and_not_held() <= lives.shared() / 2
    }

    /// If most backends are held, the last free one is kept for tenants that do not have [many]. A
    /// backend that starts in a stall helps these tenants, and the next one goes to those that hold
    /// so many.
    ///
    /// [many]: Core::has_many
    pub(super) fn keeps_one_free(&self, number: u32) -> bool {
        let may_start_others = self.limits.max_extra != Some(0);
        may_start_others && self.takes_turns(number) && self.are_mostly_held(number)
    }

    /// Has its role two backends for long, and no fewer than each tenant's share?
    pub(super) fn has_many(&self, tenant: u32, number: u32) -> bool {
        let has = self.tenant(tenant).map_or(0, |it| self.has_for_long(it));
        has > 1 && has >= self.backends.lives(number).shared() / self.tenants_of_pool(number).max(1)
    }

    fn has_two_free(&self, number: u32, words: &impl Words) -> bool {
        let slots = self.pool(number).map_or(&[][..], |pool| pool.shared());
        let slots = slots.iter().copied();
        count_free(slots, words, |slot| self.backends.is_shared(slot)) == 2
    }

    fn reserving(&self, number: u32) -> Vec<u32> {
        let reserving = self.pool(number).map(|pool| pool.together.reserving());
        let some = reserving.into_iter().flatten().take(LOOKED_AT_ONCE);
        some.copied().collect()
    }

    /// Are all backends of a pool in use or reserved?
    pub(super) fn is_kept(&self, number: u32) -> bool {
        let kept = self.kept(number);
        let served = self.pool(number).map_or(0, |pool| pool.together.served());
        kept > 0 && self.serving_backends(number) <= served + kept
    }

    /// How many of a pool's backends are kept for tenants with reserves. As with the backends of
    /// all pools (`most_reserved`), a quarter, at least one, stays open to every waiting session,
    /// and a held backend is never kept.
    pub(super) fn kept(&self, number: u32) -> usize {
        let owed = self.pool(number).map_or(0, |pool| pool.together.owed());
        if owed == 0 {
            return 0;
        }
        let all = self.backends.lives(number).shared_and_not_held();
        owed.min(all - (all / 4).max(1).min(all))
    }
}
