//! The order of turns among the tenants of a pool: start-time fair queueing. Each transaction costs
//! its tenant the same, divided by the tenant's weight.
//!
//! A tenant's clock advances with each of its sessions that is handed out, and the tenant whose
//! clock is furthest behind is served first. A tenant that had no waiting session for a while saves
//! nothing up: its clock is set to the pool's, which is that of the tenant served last. So a tenant
//! with one session waits for at most one session of each other tenant, however many sessions these
//! have.
//!
//! A tenant has *room* for as many more sessions as its limits allow (served.rs). A tenant without
//! room takes no turn, and its waiting sessions beyond its room start no backend.

#[cfg(test)]
use super::SessionId;
use super::Sessions;
use std::collections::BTreeSet;

/// What a transaction costs, before the division by the weight.
const COST: u64 = 1 << 32;
/// The places of tenants none of whose sessions has come back begin here.
const SERVED: u64 = 1 << 63;
/// The default of pg_baton.pool_weight.
pub const DEFAULT_WEIGHT: u64 = 100;

/// A tenant's share of its pool.
pub struct Share {
    clock: u64,
    /// Of tenants with equal clocks, the one with the lowest place is first. A tenant whose session
    /// came back unserved has the number of the first such event: sessions taken out of the ready
    /// queue may set all clocks to the pool's. Other tenants come after these, the one first that
    /// has waited longest since it was served: in the order of their numbers, one could be served
    /// once more than another.
    place: u64,
    cost: u64,
    /// How many more of its sessions may be served now; None: no limit.
    room: Option<usize>,
    /// How many of its waiting sessions are beyond its room.
    excess: usize,
    is_in_turn: bool,
}

impl Default for Share {
    fn default() -> Share {
        Share {
            clock: 0,
            place: SERVED,
            cost: COST / DEFAULT_WEIGHT,
            room: None,
            excess: 0,
            is_in_turn: false,
        }
    }
}

/// The key of the order of turns; the lowest is first.
pub type Turn = (u64, u64);

impl Share {
    fn turn(&self) -> Turn {
        (self.clock, self.place)
    }
}

/// The turns of a pool.
#[derive(Default)]
pub struct Turns {
    clock: u64,
    /// Tenants that have room and a waiting session.
    in_turn: BTreeSet<(Turn, u32)>,
    /// How many times a tenant's place has been set.
    places: u64,
    /// Of all tenants.
    excess: usize,
}

impl Sessions {
    /// Adds a new tenant to this pool.
    pub fn add_tenant(&mut self, tenant: u32, pool: u32) {
        let clock = self.of_pools[pool as usize].turns.clock;
        let of_tenant = &mut self.of_tenants[tenant as usize];
        ensure!(of_tenant.waiting() == 0);
        of_tenant.pool = pool;
        of_tenant.share = Share {
            clock,
            ..Share::default()
        };
    }

    pub fn set_weight(&mut self, tenant: u32, weight: u64) {
        self.of_tenants[tenant as usize].share.cost = COST / weight.max(1);
    }

    #[cfg(test)]
    pub fn weight_of_tenant(&self, tenant: u32) -> u64 {
        COST / self.of_tenants[tenant as usize].share.cost
    }

    /// How many more of its sessions may be served now; None: no limit.
    pub fn set_room(&mut self, tenant: u32, room: Option<usize>) {
        self.of_tenants[tenant as usize].share.room = room;
        self.has_other_waiting(tenant);
    }

    #[cfg(test)]
    pub fn room(&self, tenant: u32) -> Option<usize> {
        self.of_tenants[tenant as usize].share.room
    }

    /// How many of a pool's waiting sessions may be served.
    pub fn servable(&self, pool: u32) -> usize {
        self.waiting(pool) - self.of_pools[pool as usize].turns.excess
    }

    /// The session of a pool that is served next, by turns alone.
    #[cfg(test)]
    pub fn first_waiting(&self, pool: u32) -> Option<SessionId> {
        self.first_of_tenant(self.tenants_in_turn(pool).next()?)
    }

    /// Tenants that have room and a waiting session, in the order of their turns.
    pub fn tenants_in_turn(&self, pool: u32) -> impl Iterator<Item = u32> + '_ {
        let turns = &self.of_pools[pool as usize].turns;
        turns.in_turn.iter().map(|(_, tenant)| *tenant)
    }

    /// A session of this tenant may be served now, and none of the tenants before it. These save
    /// nothing up meanwhile: their clocks follow, so that they do not hold back the pool's.
    pub fn pass_over_earlier(&mut self, tenant: u32) {
        let of_tenant = &self.of_tenants[tenant as usize];
        let clock = of_tenant.share.clock;
        let turns = &mut self.of_pools[of_tenant.pool as usize].turns;
        while let Some(entry) = turns.in_turn.first().copied() {
            let share = &mut self.of_tenants[entry.1 as usize].share;
            if share.clock >= clock {
                return;
            }
            share.clock = clock;
            turns.in_turn.remove(&entry);
            turns.in_turn.insert((share.turn(), entry.1));
        }
    }

    /// A tenant's place among these, if it is one of them.
    pub fn turn_of(&self, tenant: u32) -> Option<Turn> {
        let share = &self.of_tenants[tenant as usize].share;
        share.is_in_turn.then_some(share.turn())
    }

    /// Updates a tenant's place after its waiting sessions or its room changed.
    pub(super) fn has_other_waiting(&mut self, tenant: u32) {
        let of_tenant = &mut self.of_tenants[tenant as usize];
        let waiting = of_tenant.waiting();
        let turns = &mut self.of_pools[of_tenant.pool as usize].turns;
        let share = &mut of_tenant.share;
        let excess = share.room.map_or(0, |room| waiting.saturating_sub(room));
        turns.excess = turns.excess + excess - share.excess;
        share.excess = excess;
        let is_in_turn = waiting > excess;
        if is_in_turn == share.is_in_turn {
            return;
        }
        share.is_in_turn = is_in_turn;
        if is_in_turn {
            if share.clock < turns.clock {
                turns.places += 1;
                (share.clock, share.place) = (turns.clock, SERVED + turns.places);
            }
            turns.in_turn.insert((share.turn(), tenant));
        } else {
            turns.in_turn.remove(&(share.turn(), tenant));
        }
    }

    /// One of its sessions is handed out, or has come back unserved.
    pub(super) fn charge(&mut self, tenant: u32, has_gone: bool) {
        let of_tenant = &mut self.of_tenants[tenant as usize];
        let turns = &mut self.of_pools[of_tenant.pool as usize].turns;
        let share = &mut of_tenant.share;
        let first = turns
            .in_turn
            .first()
            .map_or(share.clock, |((clock, _), _)| *clock);
        if share.is_in_turn {
            turns.in_turn.remove(&(share.turn(), tenant));
        }
        turns.places += 1;
        if has_gone {
            // A session with a reserved backend may overtake others. Its tenant pays for at most
            // one of these turns.
            turns.clock = turns.clock.max(share.clock.min(first));
            share.clock = share.clock.min(turns.clock + share.cost) + share.cost;
            share.place = SERVED + turns.places;
        } else {
            // If many sessions come back out of the ready queue, the last one has set the pool's
            // clock. Sessions that have begun to wait since are not behind them.
            share.clock = share.clock.saturating_sub(share.cost).max(turns.clock);
            share.place = share.place.min(turns.places);
        }
        if share.is_in_turn {
            turns.in_turn.insert((share.turn(), tenant));
        }
    }

    /// A tenant is in turn exactly when one of its sessions can be served.
    #[cfg(test)]
    pub fn check_turns(&self) {
        for (number, of_pool) in self.of_pools.iter().enumerate() {
            let of_its = |(_, it): &(usize, &super::lists::OfTenant)| it.pool as usize == number;
            let all = self.of_tenants.iter().enumerate().filter(of_its);
            let mut excess = 0;
            for (tenant, it) in all {
                let room = it.share.room.unwrap_or(usize::MAX);
                let place = (it.share.turn(), tenant as u32);
                assert_eq!(it.share.excess, it.waiting().saturating_sub(room));
                assert_eq!(it.share.is_in_turn, it.waiting().min(room) > 0);
                assert_eq!(of_pool.turns.in_turn.contains(&place), it.share.is_in_turn);
                excess += it.share.excess;
            }
            assert_eq!(excess, of_pool.turns.excess);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lists::Of;
    use super::*;

    /// Tenants 0, 1, 2 of pool 0, each with this number of waiting sessions.
    fn waiting(of: [usize; 3]) -> Sessions {
        let mut sessions = Sessions::new(400, 4, 1);
        for (tenant, many) in of.into_iter().enumerate() {
            sessions.add_tenant(tenant as u32, 0);
            for _ in 0..many {
                let id = sessions.create((tenant as u32, 0), |_| true).unwrap();
                sessions.wait(id, Of::Busy, 5);
            }
        }
        sessions
    }

    /// Hands out `many` sessions, each of which waits again at once, and counts them by tenant.
    fn served(sessions: &mut Sessions, many: usize) -> [usize; 3] {
        let mut served = [0; 3];
        for _ in 0..many {
            let id = sessions.first_waiting(0).unwrap();
            served[sessions.get(id).unwrap().tenant() as usize] += 1;
            sessions.enqueue(id);
            sessions.wait(id, Of::Busy, 5);
            sessions.check_turns();
        }
        served
    }

    #[test]
    fn tenants_get_equal_shares_however_many_sessions_they_have() {
        assert_eq!(served(&mut waiting([100, 2, 1]), 60), [20, 20, 20]);
    }

    #[test]
    fn shares_go_by_weight() {
        let mut sessions = waiting([9, 9, 9]);
        sessions.set_weight(0, 300);
        sessions.set_weight(2, 200);
        let [first, second, third] = served(&mut sessions, 60);
        assert!((29..=31).contains(&first) && (9..=11).contains(&second));
        assert!((19..=21).contains(&third));
    }

    #[test]
    fn silent_tenant_is_next_and_has_saved_no_turns_up() {
        let mut sessions = waiting([9, 9, 0]);
        served(&mut sessions, 1_000);
        let id = sessions.create((2, 0), |_| true).unwrap();
        sessions.wait(id, Of::Quiet, 6);
        let [.., third] = served(&mut sessions, 2);
        assert!(third > 0);
        assert_eq!(served(&mut sessions, 30), [10, 10, 10]);
    }

    #[test]
    fn tenant_without_room_is_passed_over_and_asks_for_no_backend() {
        let mut sessions = waiting([5, 3, 0]);
        sessions.set_room(0, Some(2));
        assert_eq!((sessions.waiting(0), sessions.servable(0)), (8, 5));
        sessions.set_room(0, Some(0));
        assert_eq!(sessions.servable(0), 3);
        assert_eq!(served(&mut sessions, 7), [0, 7, 0]);
        sessions.set_room(0, None);
        assert_eq!(sessions.servable(0), 8);
        assert_eq!(served(&mut sessions, 1), [1, 0, 0]);
    }

    #[test]
    fn a_tenant_that_may_not_be_served_disturbs_no_turns() {
        let mut sessions = waiting([9, 9, 9]);
        let mut served_in_stall = [0_usize; 3];
        for _ in 0..12 {
            let tenant = sessions.tenants_in_turn(0).find(|it| *it > 0).unwrap();
            sessions.pass_over_earlier(tenant);
            let id = sessions.first_of_tenant(tenant).unwrap();
            served_in_stall[tenant as usize] += 1;
            assert!(served_in_stall[1].abs_diff(served_in_stall[2]) <= 1);
            sessions.enqueue(id);
            sessions.wait(id, Of::Busy, 5);
            sessions.check_turns();
        }
        let shares = served(&mut sessions, 30);
        assert!(shares.iter().all(|of_tenant| of_tenant.abs_diff(10) <= 1));
    }

    #[test]
    fn however_often_all_are_taken_back_tenants_take_turns() {
        let mut sessions = waiting([40, 40, 1]);
        let mut served = [0; 3];
        for _ in 0..24 {
            let next = |sessions: &Sessions| sessions.first_waiting(0).unwrap();
            let id = next(&sessions);
            served[sessions.get(id).unwrap().tenant() as usize] += 1;
            sessions.send_to(id, 0, 1);
            let queued: Vec<_> = (0..7)
                .map(|_| {
                    let id = next(&sessions);
                    sessions.enqueue(id);
                    id
                })
                .collect();
            for id in queued {
                sessions.wait_on(id);
            }
            sessions.wait(id, Of::Busy, 5);
            sessions.check_turns();
        }
        assert_eq!(served, [8, 8, 8]);
    }

    #[test]
    fn session_is_still_next_after_a_failed_hand_over() {
        let mut sessions = waiting([2, 2, 0]);
        for _ in 0..5 {
            let id = sessions.first_waiting(0).unwrap();
            sessions.enqueue(id);
            sessions.wait_on(id);
            assert_eq!(sessions.first_waiting(0), Some(id));
            sessions.enqueue(id);
            sessions.wait(id, Of::Busy, 5);
        }
    }
}
