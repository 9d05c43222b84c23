//! Pools that want a backend.
//!
//! There may be as many of them as there are sessions. What concerns one pool (a session
//! speaks, a backend is free) is done at once. What may concern any of them is done for so many
//! in each tick, and for so many in each round as long as there are places for them; as a rule
//! that is all of them. Where more want backends, rules that compare pools (room.rs) compare
//! those whose turn it is in this tick, and those that have begun to wait since: the pool that
//! has been without for longest is served first, and each comes to its turn.

use super::scan::Cursor;
use super::tenants::Tenant;
use super::{Action, Core, Words};

/// Pools looked at in a tick, or served for places in a round: half a millisecond.
const LOOKED_AT_ONCE: usize = 256;
/// Pools that have begun to wait since the last tick, as far as they count beside these.
const MOST_NEW: usize = 64;

/// Where the looks are.
#[derive(Default)]
pub struct Wants {
    ticks: Cursor,
    /// Looked at in the last tick.
    turn: Vec<u32>,
    /// Since when the first session waits, of the pools looked at in this pass, and of all in
    /// the one before.
    since_us: Option<u64>,
    all_since_us: Option<u64>,
    /// The longest wait, among those looked at last, of a role that has no backend for long.
    without_us: Option<u64>,
    /// Of these, that no backend may be started for; and the pool.
    in_vain: Option<(u64, u32)>,
    /// Pools without a backend whose sessions have begun to wait since the last tick.
    new: Vec<u32>,
    /// There may be places for these.
    places: Cursor,
    /// Places or not: limits have changed.
    in_any_case: bool,
}

fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

impl Wants {
    /// Is there more to be looked at without anything having happened?
    pub fn has_more(&self) -> bool {
        self.places.is_running()
    }
}

impl Core {
    /// In each tick. Waits that have reached their limit end; a failed start may be
    /// repeated by now, and forced migration has its patience. Also if all of them are in
    /// the ready queue: the backends that were to take from it may have become dedicated.
    pub(super) fn look_at_waiting(&mut self, words: &impl Words) {
        let turn = self.next_in_want();
        let (mut since_us, mut without_us, mut in_vain) = (None, None, None);
        for number in turn.iter().copied() {
            let waited_us = self.oldest_wait_us(number, words);
            let its_since_us = waited_us.map(|waited_us| self.now.us.saturating_sub(waited_us));
            since_us = earlier(since_us, its_since_us);
            self.count_handed_out(number, words);
            let is_over = self.expire_waits(number, waited_us);
            self.look_who_is_served(number, words);
            if let Some(waited_us) = self.waits_without_us(number, words) {
                without_us = without_us.max(Some(waited_us));
                let is_longest = in_vain.is_none_or(|(other_us, _)| waited_us > other_us);
                if !is_over && is_longest && self.wants_place(number, words) {
                    in_vain = Some((waited_us, number));
                }
            }
            if self.queued(number, words) > 0 && self.are_few(number) {
                self.act(Action::TakeBack(number));
            }
            if self.waiting_in(number, words) > 0 {
                self.mark_dirty(number);
            } else {
                self.look_whether_it_lacks(number, words);
                self.in_want.remove(number);
            }
        }
        let wants = &mut self.wants;
        wants.new.clear();
        wants.turn = turn;
        wants.without_us = without_us;
        wants.in_vain = in_vain;
        wants.since_us = earlier(wants.since_us, since_us);
        if !wants.ticks.is_running() {
            wants.all_since_us = wants.since_us.take();
        }
    }

    /// The next pools that want a backend; all, if they are so few.
    fn next_in_want(&mut self) -> Vec<u32> {
        let ticks = &mut self.wants.ticks;
        if self.in_want.len() <= LOOKED_AT_ONCE {
            ticks.stop();
            return self.in_want.iter().collect();
        }
        let first_from = |from| self.in_want.first_from(from);
        let turn = ticks.take(LOOKED_AT_ONCE, first_from);
        if !turn.is_empty() {
            return turn;
        }
        ticks.begin();
        ticks.take(LOOKED_AT_ONCE, first_from)
    }

    /// The longest wait, of any pool, as the ticks have seen it.
    pub(super) fn longest_seen_us(&self) -> Option<u64> {
        let since_us = earlier(self.wants.since_us, self.wants.all_since_us);
        since_us.map(|since_us| self.now.us.saturating_sub(since_us))
    }

    pub(super) fn longest_without_us(&self) -> Option<u64> {
        self.wants.without_us
    }

    /// Of these, the longest in vain, and its pool: no backend may be started for it.
    pub(super) fn longest_in_vain(&self) -> Option<(u64, u32)> {
        self.wants.in_vain
    }

    /// Of a pool's tenants whose roles have no backend for long: the longest for which one
    /// has waited and got none for any of its sessions.
    fn waits_without_us(&self, number: u32, words: &impl Words) -> Option<u64> {
        let who_waits = self.who_waits(number, words).into_iter();
        let without = who_waits.filter(|(tenant, _)| self.has_for_long(tenant) == 0);
        let waited_us = without.map(|(tenant, waited_us)| self.waits_in_vain_us(tenant, waited_us));
        waited_us.max()
    }

    /// One of its sessions waits for so long: and for how long has none been handed out?
    pub(super) fn waits_in_vain_us(&self, tenant: &Tenant, waited_us: u64) -> u64 {
        waited_us.min(self.now.us.saturating_sub(tenant.handed_out_us))
    }

    fn count_handed_out(&mut self, number: u32, words: &impl Words) {
        let queued = self.queued(number, words);
        let Some(pool) = self.pools.get_mut(number) else {
            return;
        };
        self.handed_out += pool.queue.take_taken(queued);
        for id in pool.queue.forget_taken(queued) {
            let tenant = self.sessions.get(id).map(|session| session.tenant());
            if let Some(tenant) = tenant.and_then(|tenant| self.tenants.get_mut(tenant)) {
                tenant.handed_out_us = self.now.us;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn are_looked_at_in_turns(&self) -> bool {
        self.pools.existing().len() > LOOKED_AT_ONCE
    }

    /// In so many ticks each pool has its turn.
    #[cfg(test)]
    pub(super) fn ticks_for_all_pools(&self) -> usize {
        match self.are_looked_at_in_turns() {
            true => self.pools.existing().len() / LOOKED_AT_ONCE + 2,
            false => 1,
        }
    }

    /// There may be places for pools in which a session waits.
    pub(super) fn mark_waiting(&mut self) {
        if !self.in_want.is_empty() {
            self.wants.places.begin();
        }
    }

    /// Limits have changed.
    pub(super) fn mark_waiting_in_any_case(&mut self) {
        self.mark_waiting();
        self.wants.in_any_case = true;
    }

    /// In each round: the next of these; first those for which a place was made.
    pub(super) fn look_for_places(&mut self) {
        let wants = &mut self.wants;
        if !wants.places.is_running() {
            return;
        }
        let some = (wants.places).take(LOOKED_AT_ONCE, |from| self.in_want.first_from(from));
        let goes_on = wants.places.is_running() && some.len() == LOOKED_AT_ONCE;
        let in_any_case = wants.in_any_case;
        wants.in_any_case &= goes_on;
        if goes_on {
            for number in self.room.meant_for().to_vec() {
                self.mark_dirty(number);
            }
            if self.places(0).room() == 0 && !in_any_case {
                // Pools ask for room in their ticks.
                self.wants.places.stop();
                return;
            }
        }
        for number in some {
            self.mark_dirty(number);
        }
    }

    /// A pool wants room; `is_without` a backend: soon.
    pub(super) fn wants_room(&mut self, number: u32, is_without: bool) {
        self.room.want(is_without);
        let wants = &mut self.wants;
        if is_without && wants.new.len() < MOST_NEW && !wants.turn.contains(&number) {
            wants.new.push(number);
        }
    }

    /// So many of those that are compared: of all about how many?
    pub(super) fn in_all(&self, found: usize) -> usize {
        let (all, compared) = (self.in_want.len(), self.wants.turn.len());
        match all > LOOKED_AT_ONCE {
            true => found.max(found * all / compared.max(1)),
            false => found,
        }
    }

    /// Those that are compared with each other: all, if they are so few.
    pub(super) fn compared_in_want(&self) -> Vec<u32> {
        if self.in_want.len() <= LOOKED_AT_ONCE {
            return self.in_want.iter().collect();
        }
        let mut pools = [self.wants.turn.as_slice(), &self.wants.new].concat();
        pools.retain(|number| self.in_want.contains(*number));
        pools.sort_unstable();
        pools.dedup();
        pools
    }
}
