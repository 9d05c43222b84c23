//! No session is passed over: how many sessions may be served before a waiting one, counted beside
//! the core (docs/design/scheduler.md, promise 2; docs/design/pools.md, 2).
//!
//! Within a tenant: of the session's own line those that stood before it, and of the other line one
//! more than that, as the lines are served alternately. A session that is taken back out of the
//! ready queue has not been served; each time this may give the other line a turn.
//!
//! Between a pool's tenants: while one tenant is in turn, each other tenant is served at most once
//! more than the weights say between two sessions of the first, or twice as often if the first was
//! served out of its turn. Tenants that are served where some have reserves are left out.
//!
//! Between pools: this concerns a pool without a backend, in which a role waits that has had none
//! for long, and in which the first session is *late*. It comes before all pools with sessions that
//! came after that one, except pools below their reserve, and except superusers in need, as these
//! take no other's place. Places that were on their way to others then are no more than there are
//! backends. If there are so many pools that only some are compared at a time, this is not checked.

use crate::core::sessions::Of;
use crate::core::{Core, SessionId, Words};
use std::collections::{BTreeMap, BTreeSet};

/// A session that has waited this long is late, if there is no limit: two rounds of turns, each of
/// which takes 3 s, or 100 ms for each of the pools that seeds have.
const LATE_US: u64 = 8_000_000;

/// What was handed out of one tenant: by line, quiet and busy; and how often any of that was taken
/// back.
#[derive(Clone, Copy, Debug, Default)]
struct HandedOut {
    by_line: [i64; 2],
    taken_back: i64,
}

/// A waiting session, since it was first seen to wait.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    turn: u64,
    tenant: u32,
    /// The sessions before it in its line.
    ahead: i64,
    before: HandedOut,
}

/// The sessions of one tenant that were served while another tenant is in turn.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    served: i64,
    taken_back: i64,
    /// The highest weight that it has had meanwhile.
    weight: u64,
}

/// A tenant that is in turn, since one of its own sessions was served.
#[derive(Debug)]
struct InTurn {
    /// The least weight that it has had: earlier sessions may have cost it more than they would
    /// now.
    weight: u64,
    others: BTreeMap<u32, Others>,
}

/// A pool without a backend that wants one, and is late.
#[derive(Clone, Copy, Debug)]
struct Late {
    since_us: u64,
    /// Places that went to pools whose sessions came later.
    passed_over: usize,
}

/// All waiting sessions, and what is handed out meanwhile.
#[derive(Default)]
pub struct Turns {
    tenants: BTreeMap<u32, HandedOut>,
    /// By pool, and tenant.
    in_turn: BTreeMap<u32, BTreeMap<u32, InTurn>>,
    /// Tenants that were served where some had reserves.
    with_reserves: BTreeSet<u32>,
    /// Tenants that were served where others left the last backends to them.
    before_others: BTreeSet<u32>,
    /// The least weight of each tenant.
    least_weights: BTreeMap<u32, u64>,
    was_forced: bool,
    waiters: BTreeMap<SessionId, Waiter>,
    late: BTreeMap<u32, Late>,
    /// Places that were made for a pool, and counted then.
    made_for: BTreeMap<u32, usize>,
    /// Pools that got a place since the last check, and since when their first session waited.
    places: Vec<(u32, u64)>,
    /// The most that were served, or got a place, before one that came earlier.
    pub most_served_before: i64,
    pub most_of_others: i64,
    pub most_places_before: usize,
}

fn at(line: Of) -> usize {
    usize::from(line == Of::Busy)
}

impl Turns {
    pub fn handed_out(&mut self, core: &Core, id: SessionId) {
        self.count(core, id, 1);
        match core.is_migration_forced() {
            true => self.was_forced = true,
            false => self.passes_others(core, id),
        }
    }

    /// A session of a pool's queue is taken back.
    pub fn taken_back(&mut self, core: &Core, id: SessionId) {
        self.count(core, id, -1);
    }

    fn count(&mut self, core: &Core, id: SessionId, by: i64) {
        let Some(session) = core.sessions().get(id) else {
            return;
        };
        let tenant = self.tenants.entry(session.tenant()).or_default();
        tenant.by_line[at(session.line())] += by;
        let weight = core.sessions().weight_of_tenant(session.tenant());
        let least = self.least_weights.entry(session.tenant());
        least
            .and_modify(|it| *it = weight.min(*it))
            .or_insert(weight);
        tenant.taken_back += i64::from(by < 0);
        let in_turn = self.in_turn.entry(session.pool()).or_default();
        for other in in_turn.values_mut().filter(|_| by < 0) {
            let of_this = other.others.entry(session.tenant()).or_default();
            of_this.served -= 1;
            of_this.taken_back += 1;
        }
    }

    /// Counts this session against the other tenants of its pool that are in turn: they are passed
    /// over.
    fn passes_others(&mut self, core: &Core, id: SessionId) {
        let session = core.sessions().get(id).expect("it is there");
        let (own, pool) = (session.tenant(), session.pool());
        let weight = |tenant| core.sessions().weight_of_tenant(tenant);
        if core.reserved(pool) > 0 {
            self.with_reserves.insert(own);
        }
        if self.with_reserves.contains(&own) {
            self.in_turn.entry(pool).or_default().remove(&own);
            return;
        }
        if core.places(0).are_last_left() || core.keeps_one_free(pool) {
            self.before_others.insert(own);
        }
        let keeps_one_free = core.keeps_one_free(pool);
        let is_in_turn = |tenant: &u32| {
            let leaves = keeps_one_free && core.has_many(*tenant, pool);
            !leaves && !core.leaves_it_to_others(*tenant)
        };
        let all = core.sessions().tenants_in_turn(pool);
        let all: BTreeSet<u32> = all.filter(is_in_turn).collect();
        let in_turn = self.in_turn.entry(pool).or_default();
        in_turn.retain(|tenant, _| all.contains(tenant));
        let weights = &self.least_weights;
        let is_new = |tenant| InTurn {
            weight: weights
                .get(&tenant)
                .map_or(u64::MAX, |it| *it)
                .min(weight(tenant)),
            others: BTreeMap::new(),
        };
        in_turn.insert(own, is_new(own));
        let is_other = |tenant: &u32| *tenant != own;
        for tenant in all.into_iter().filter(is_other) {
            let passed = in_turn.entry(tenant);
            let passed = passed.or_insert_with(|| is_new(tenant));
            let others = passed.others.entry(own).or_default();
            others.served += 1;
            others.weight = others.weight.max(weight(own));
            // It may have been served before its turn.
            let was_before = self.was_forced
                || self.with_reserves.contains(&tenant)
                || self.before_others.contains(&tenant);
            let times = 1 + i64::from(was_before);
            let most = times * others.weight.div_ceil(passed.weight) as i64 + 1;
            assert!(
                others.served <= most + others.taken_back,
                "tenant {tenant} in turn, of {}, is passed over by {own}: {others:?}",
                passed.weight
            );
            self.most_of_others = self.most_of_others.max(others.served);
        }
    }

    /// A session that waits for another backend than its last one is passed over.
    pub fn is_forced(&mut self) {
        self.waiters.clear();
        self.in_turn.clear();
    }

    /// A backend leaves so that this pool gets its place.
    pub fn is_made_for(&mut self, core: &Core, pool: u32, words: &impl Words) {
        self.goes_for(pool);
        self.gets_place(core, pool, words);
    }

    /// No other pool could get its place.
    pub fn goes_for(&mut self, pool: u32) {
        *self.made_for.entry(pool).or_default() += 1;
    }

    /// A place goes to this pool.
    pub fn opened(&mut self, core: &Core, pool: u32, words: &impl Words) {
        match self.made_for.get_mut(&pool).filter(|places| **places > 0) {
            Some(places) => *places -= 1,
            None if core.is_superuser_s(pool, words) => {}
            None => self.gets_place(core, pool, words),
        }
    }

    fn gets_place(&mut self, core: &Core, pool: u32, words: &impl Words) {
        let waited_us = core.oldest_wait_us(pool, words);
        if let Some(waited_us) = waited_us.filter(|_| !core.is_owed_one(pool)) {
            let since_us = core.now_us().saturating_sub(waited_us);
            self.places.push((pool, since_us));
        }
    }

    /// Runs after each step.
    pub fn check(&mut self, core: &Core, words: &impl Words) {
        self.check_lines(core);
        self.check_places(core, words);
    }

    fn check_lines(&mut self, core: &Core) {
        let mut waiters = BTreeMap::new();
        if core.is_migration_forced() {
            return self.is_forced();
        }
        for number in core.tenants.existing().iter() {
            let now = self.tenants.get(&number).copied().unwrap_or_default();
            for line in [Of::Quiet, Of::Busy] {
                for (ahead, id) in core.sessions().list(line, number).enumerate() {
                    let turn = core.sessions().get(id).map_or(0, |session| session.turn());
                    let known = self.waiters.get(&id).copied();
                    let known = known.filter(|it| it.turn == turn && it.tenant == number);
                    let waiter = known.unwrap_or(Waiter {
                        turn,
                        tenant: number,
                        ahead: ahead as i64,
                        before: now,
                    });
                    self.check_waiter(id, &waiter, line, now);
                    waiters.insert(id, waiter);
                }
            }
        }
        self.waiters = waiters;
    }

    fn check_waiter(&mut self, id: SessionId, waiter: &Waiter, line: Of, now: HandedOut) {
        let since = |at: usize| now.by_line[at] - waiter.before.by_line[at];
        let (own, other) = (since(at(line)), since(1 - at(line)));
        let taken_back = now.taken_back - waiter.before.taken_back;
        assert!(
            own <= waiter.ahead,
            "{own} of its line were served before {id:x}, and {} stood there",
            waiter.ahead
        );
        assert!(
            other <= own + 1 + taken_back,
            "{other} of the other line were served before {id:x}, and {own} of its own"
        );
        self.most_served_before = self.most_served_before.max(other);
    }

    fn check_places(&mut self, core: &Core, words: &impl Words) {
        let places = std::mem::take(&mut self.places);
        let mut late = BTreeMap::new();
        // Of more pools some are compared at a time, and each has its turn.
        let are_compared = !core.are_looked_at_in_turns();
        for number in core.existing_pools().into_iter().filter(|_| are_compared) {
            let Some(since_us) = core.late_without_a_backend(number, words) else {
                continue;
            };
            let before = self.late.get(&number).filter(|it| it.since_us == since_us);
            // A role with backends in other pools may take fewer (may_take, sizing.rs).
            let is_restrained = core.least_of_roles(number, words) > 0;
            let later =
                |place: &&(u32, u64)| !is_restrained && place.0 != number && place.1 > since_us;
            let passed_over =
                before.map_or(0, |it| it.passed_over + places.iter().filter(later).count());
            let most = core.all_places();
            assert!(
                passed_over <= most,
                "{passed_over} places went to who came later than pool {number}, which has none"
            );
            self.most_places_before = self.most_places_before.max(passed_over);
            late.insert(
                number,
                Late {
                    since_us,
                    passed_over,
                },
            );
        }
        self.late = late;
    }
}

impl Core {
    pub(super) fn is_migration_forced(&self) -> bool {
        self.limits.force_migration
    }

    fn now_us(&self) -> u64 {
        self.now.us
    }

    fn existing_pools(&self) -> Vec<u32> {
        self.pools.existing().iter().collect()
    }

    fn all_places(&self) -> usize {
        self.limits.ceiling
    }

    /// The backend just started is beyond the permitted number, for a superuser in need: it took no
    /// other's place.
    fn is_superuser_s(&self, pool: u32, words: &impl Words) -> bool {
        self.places(0).is_overdrawn() && self.superuser_in_need(pool, words).is_some()
    }

    /// Has the pool no more than are reserved for it?
    fn is_owed_one(&self, number: u32) -> bool {
        self.backends.lives(number).expected() <= self.reserved(number)
    }

    /// Since when the first session waits of a pool that has no backend, wants one, and is late.
    fn late_without_a_backend(&self, number: u32, words: &impl Words) -> Option<u64> {
        let late_us = match self.limits.session_wait_timeout_us {
            0 => LATE_US,
            timeout_us => LATE_US.min(timeout_us / 4),
        };
        let waited_us = self.oldest_wait_us(number, words)?;
        let has_none = self.all_pool_backends(number).is_empty();
        if !has_none || waited_us < late_us {
            return None;
        }
        let wants = self.growth(number, words).is_some_and(|it| it.wants_room());
        wants.then(|| self.now.us - waited_us)
    }
}
