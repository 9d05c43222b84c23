//! Pools in which somebody waits: looked at some at a time.
//!
//! There may be as many of them as there are sessions, and everybody waits while one
//! event is handled. What concerns one pool (a session speaks, a backend is free) is
//! done at once. What may concern any of them is done for so many in each tick, and for
//! so many in each round as long as there are places for them; as a rule that is all
//! of them. So where more want backends than that, rules that compare pools
//! (room.rs) compare those that it is the turn of, with who has just come: who of them
//! has been without for longest is served first, and each comes to its turn.

use super::tenants::Tenant;
use super::{Action, Core, Words};

/// Pools looked at in one go: some 100 microseconds.
const LOOKED_AT_ONCE: usize = 256;
/// Who has come since the last tick, as far as it counts beside these.
const MOST_NEW: usize = 64;

/// Where the looks are.
pub struct Wants {
    /// So many in one go.
    at_once: usize,
    /// Looked at in the last tick.
    turn: Vec<u32>,
    /// The first of the next one's.
    next: u32,
    /// Since when the first waits in those looked at in this time round; and in all, the
    /// time before.
    since_us: Option<u64>,
    all_since_us: Option<u64>,
    /// The longest wait, among those looked at last, of a role that has no backend for long.
    without_us: Option<u64>,
    /// Of these, that no backend may be started for; and the pool.
    in_vain: Option<(u64, u32)>,
    /// Pools without a backend whose sessions have begun to wait since the last tick.
    new: Vec<u32>,
    /// There may be places: so many are still to be looked at for that, from there on.
    left: usize,
    next_for_place: u32,
    /// Places or not: what counts is another now.
    in_any_case: bool,
}

fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

impl Default for Wants {
    fn default() -> Wants {
        Wants {
            at_once: LOOKED_AT_ONCE,
            turn: Vec::new(),
            next: 0,
            since_us: None,
            all_since_us: None,
            without_us: None,
            in_vain: None,
            new: Vec::new(),
            left: 0,
            next_for_place: 0,
            in_any_case: false,
        }
    }
}

impl Wants {
    /// Is there more to be looked at without anything having happened?
    pub fn has_more(&self) -> bool {
        self.left > 0
    }

    fn end_turn(&mut self, since_us: Option<u64>, are_all: bool) {
        self.new.clear();
        let (first, last) = (self.turn.first().copied(), self.turn.last().copied());
        if are_all {
            (self.since_us, self.all_since_us) = (None, since_us);
        } else if last < first || last < Some(self.next) {
            // The last of all were among them: a round begins.
            (self.all_since_us, self.since_us) = (self.since_us, since_us);
        } else {
            self.since_us = earlier(self.since_us, since_us);
        }
        self.next = last.map_or(0, |last| last + 1);
    }
}

impl Core {
    /// In each tick. Waits that have reached their limit end; a failed start may be
    /// repeated by now, and forced migration has its patience. Also if all of them are in
    /// the ready queue: the backends that were to take from it may have become dedicated.
    pub(super) fn look_at_waiting(&mut self, words: &impl Words) {
        let mut turn = std::mem::take(&mut self.wants.turn);
        let all = self.in_want.len();
        (self.in_want).some_from(self.wants.next, self.wants.at_once, &mut turn);
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
        let are_all = turn.len() == all;
        self.wants.turn = turn;
        self.wants.without_us = without_us;
        self.wants.in_vain = in_vain;
        self.wants.end_turn(since_us, are_all);
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
        self.held.handed_out += pool.queue.take_taken(queued);
        for id in pool.queue.forget_taken(queued) {
            let tenant = self.sessions.get(id).map(|session| session.tenant());
            if let Some(tenant) = tenant.and_then(|tenant| self.tenants.get_mut(tenant)) {
                tenant.handed_out_us = self.now.us;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn look_at_few(&mut self) {
        self.wants.at_once = 32;
        self.round.look_at_few();
    }

    #[cfg(test)]
    pub(super) fn are_looked_at_in_turns(&self) -> bool {
        self.pools.existing().len() > self.wants.at_once
    }

    /// In so many ticks each pool has its turn.
    #[cfg(test)]
    pub(super) fn ticks_for_all_pools(&self) -> usize {
        self.pools
            .existing()
            .len()
            .div_ceil(self.wants.at_once)
            .max(1)
    }

    /// There may be places for pools in which somebody waits.
    pub(super) fn mark_waiting(&mut self) {
        self.wants.left = self.in_want.len();
    }

    /// Limits are others now.
    pub(super) fn mark_waiting_in_any_case(&mut self) {
        self.mark_waiting();
        self.wants.in_any_case = true;
    }

    /// In each round: the next of these; first for whom a place was made.
    pub(super) fn look_for_places(&mut self) {
        if self.wants.left > self.wants.at_once {
            for number in self.room.meant_for().to_vec() {
                self.mark_dirty(number);
            }
            if self.places(0).room() == 0 && !self.wants.in_any_case {
                // Whoever comes to his turn in a tick asks for room.
                self.wants.left = 0;
            }
        }
        if self.wants.left == 0 {
            return;
        }
        let mut some = Vec::new();
        (self.in_want).some_from(self.wants.next_for_place, self.wants.at_once, &mut some);
        self.wants.left = self.wants.left.saturating_sub(self.wants.at_once);
        self.wants.in_any_case &= self.wants.left > 0;
        self.wants.next_for_place = some.last().map_or(0, |last| last + 1);
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
        match all > self.wants.at_once {
            true => found.max(found * all / compared.max(1)),
            false => found,
        }
    }

    /// Those that are compared with each other: all, if they are so few.
    pub(super) fn compared_in_want(&self) -> Vec<u32> {
        if self.in_want.len() <= self.wants.at_once {
            return self.in_want.iter().collect();
        }
        let mut pools = [self.wants.turn.as_slice(), &self.wants.new].concat();
        pools.retain(|number| self.in_want.contains(*number));
        pools.sort_unstable();
        pools.dedup();
        pools
    }
}
