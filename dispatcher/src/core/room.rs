//! All backends there may be exist, and a pool wants one: which may go for it?
//!
//! Free of I/O. A pool that waits and may start nothing has a [`Claim`], what
//! may go for it is a [`Holding`]. Two wishes are weighed here: whoever waits
//! longest comes first, whatever his pool; and a backend is of one role and
//! database for life, so to pass it on costs a process. Hence pools are served
//! in turns: what a pool has got it keeps for a *turn*, short enough for all
//! turns to fit into a part of session_wait_timeout. docs/design/pools.md has
//! the reasons.

/// A turn, if it need not be shorter: some twenty times what it costs to
/// replace a backend.
const TURN_US: u64 = 100_000;
/// A backend that nobody has used for so long is not between two statements
/// of a client that does nothing else.
const QUIET_US: u64 = 20_000;
/// A session that has waited so long, or a quarter of what it may, is *late*.
const LATE_US: u64 = 1_000_000;
/// One that has waited for half of what it may is *urgent*; this if it may for
/// ever.
const URGENT_US: u64 = 30_000_000;

/// A pool that could use one more backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub pool: u32,
    /// Those that serve its sessions, or will: not what one session has for
    /// itself, nor what is about to go.
    pub backends: usize,
    /// Since when the first of its sessions waits.
    pub since_us: u64,
}

/// A backend that serves a pool's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    pub slot: u32,
    pub pool: u32,
    /// Of the pool, this one included.
    pub backends: usize,
    /// Since when the first of the pool's sessions waits.
    pub waits_since_us: Option<u64>,
    /// Has the pool any session?
    pub has_sessions: bool,
    /// When the pool got it.
    pub since_us: u64,
    /// Has it ever served a transaction?
    pub has_served: bool,
    /// For how long it has been free, if it is.
    pub free_for_us: Option<u64>,
}

/// Backends of which one shall go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Nobody,
    /// This one, which is free.
    Free(u32),
    /// Whichever comes to a boundary first.
    First(Vec<u32>),
}

/// What counts at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    now_us: u64,
    turn_us: u64,
    late_us: u64,
    urgent_us: u64,
}

impl Rules {
    /// `timeout_us`: session_wait_timeout, 0 if there is none.
    pub fn new(now_us: u64, timeout_us: u64, backends: usize, claims: usize) -> Rules {
        let limit = |most: u64, share: u64| match timeout_us {
            0 => most,
            timeout => most.min(timeout / share),
        };
        // A round is as many turns as there are pools in want for a backend.
        let round_us = limit(u64::MAX, 4);
        let turns = claims.div_ceil(backends.max(1)).max(1) as u64;
        Rules {
            now_us,
            turn_us: TURN_US.min(round_us / turns),
            late_us: limit(LATE_US, 4),
            urgent_us: if timeout_us == 0 {
                URGENT_US
            } else {
                timeout_us / 2
            },
        }
    }

    fn waited_us(&self, claim: &Claim) -> u64 {
        self.now_us.saturating_sub(claim.since_us)
    }

    fn is_late(&self, claim: &Claim) -> bool {
        self.waited_us(claim) >= self.late_us
    }

    /// For whom room is made first: who waits longest, of those that have no
    /// backend or are late; then the others.
    pub fn sort(&self, claims: &mut [Claim]) {
        claims.sort_by_key(|claim| {
            let is_pressing = claim.backends == 0 || self.is_late(claim);
            (!is_pressing, claim.since_us)
        });
    }

    /// Has its pool had it for a turn?
    fn is_over(&self, held: &Holding) -> bool {
        // One that has served nobody yet came for nothing if it went.
        let turn_us = if held.has_served {
            self.turn_us
        } else {
            TURN_US
        };
        !held.has_sessions || self.now_us >= held.since_us + turn_us
    }

    fn may_go_free(&self, claim: &Claim, held: &Holding) -> bool {
        let Some(free_us) = held.free_for_us.filter(|_| held.waits_since_us.is_none()) else {
            return false;
        };
        if !held.has_sessions || free_us >= TURN_US {
            return true;
        }
        let presses = claim.backends == 0 || self.waited_us(claim) >= self.turn_us;
        presses && (self.is_over(held) || free_us >= QUIET_US)
    }

    fn may_go(&self, claim: &Claim, held: &Holding, has_larger: bool) -> bool {
        if !self.is_over(held) {
            return false;
        }
        let waits_longer = held
            .waits_since_us
            .is_none_or(|other| claim.since_us < other);
        let waited_us = self.waited_us(claim);
        if claim.backends == 0 {
            // In turns, where no pool has more than one.
            return held.backends > 1 || !has_larger || self.is_late(claim);
        }
        waits_longer
            && waited_us >= self.turn_us
            && (held.backends >= claim.backends + 2
                || (self.is_late(claim) && held.backends > 1)
                // What it has may be held by transactions that never end.
                || waited_us >= self.urgent_us)
    }

    /// What goes for this claim.
    pub fn choose(&self, claim: &Claim, all: &[Holding]) -> Choice {
        let others = || all.iter().filter(|held| held.pool != claim.pool);
        let free = others().filter(|held| self.may_go_free(claim, held));
        if let Some(held) = free.max_by_key(|held| held.free_for_us) {
            return Choice::Free(held.slot);
        }
        let has_larger = others().any(|held| held.backends > 1);
        let busy: Vec<&Holding> = others()
            .filter(|held| self.may_go(claim, held, has_larger))
            .collect();
        first_of(&busy, !self.is_late(claim))
    }
}

/// What goes if there are more than there may be.
pub fn choose_surplus(all: &[Holding]) -> Choice {
    let free = all
        .iter()
        .filter(|held| held.waits_since_us.is_none() && held.free_for_us.is_some());
    if let Some(held) = free.max_by_key(|held| (held.backends > 1, held.free_for_us)) {
        return Choice::Free(held.slot);
    }
    first_of(&all.iter().collect::<Vec<_>>(), false)
}

/// Who gets a place that has become free: the pool for which it was made,
/// then who has no backend, then who waits longest.
pub fn place_key(
    meant_for: &[u32],
    number: u32,
    backends: usize,
    since_us: u64,
) -> (usize, bool, u64) {
    let place = meant_for.iter().position(|pool| *pool == number);
    (place.unwrap_or(usize::MAX), backends > 0, since_us)
}

/// All of these, or those of the largest pools only.
fn first_of(held: &[&Holding], of_largest: bool) -> Choice {
    let most = held.iter().map(|held| held.backends).max();
    let chosen: Vec<u32> = held
        .iter()
        .filter(|held| !of_largest || Some(held.backends) == most)
        .map(|held| held.slot)
        .collect();
    if chosen.is_empty() {
        Choice::Nobody
    } else {
        Choice::First(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const NOW_US: u64 = 100_000_000;

    fn rules() -> Rules {
        Rules::new(NOW_US, 10_000_000, 4, 1)
    }

    fn claim(backends: usize, waited_us: u64) -> Claim {
        Claim {
            pool: 9,
            backends,
            since_us: NOW_US - waited_us,
        }
    }

    /// Busy, of a pool that has it for long and in which nobody waits.
    fn held(slot: u32, pool: u32, backends: usize) -> Holding {
        Holding {
            slot,
            pool,
            backends,
            waits_since_us: None,
            has_sessions: true,
            since_us: 0,
            has_served: true,
            free_for_us: None,
        }
    }

    fn free(slot: u32, pool: u32, free_for_us: u64) -> Holding {
        Holding {
            free_for_us: Some(free_for_us),
            ..held(slot, pool, 1)
        }
    }

    #[test]
    fn who_waits_longest_comes_first_if_he_has_nothing_or_is_late() {
        let of = |pool, backends, waited_us| Claim {
            pool,
            ..claim(backends, waited_us)
        };
        let mut claims = [
            of(0, 1, 900_000),
            of(1, 0, 100_000),
            of(2, 0, 300_000),
            of(3, 2, 1_200_000),
        ];
        rules().sort(&mut claims);
        assert_eq!(claims.map(|claim| claim.pool), [3, 2, 1, 0]);
    }

    #[test]
    fn the_largest_pools_give_up_first_and_what_is_free_before_that() {
        let all = [held(1, 1, 1), held(2, 2, 2), held(3, 2, 2), held(4, 3, 1)];
        assert_eq!(
            rules().choose(&claim(0, 0), &all),
            Choice::First(vec![2, 3])
        );
        let all = [held(2, 2, 2), free(5, 5, 30_000), free(6, 6, 40_000)];
        assert_eq!(rules().choose(&claim(0, 0), &all), Choice::Free(6));
    }

    #[test]
    fn nobody_gives_to_himself() {
        let own = Holding {
            pool: 9,
            ..free(1, 9, 30_000)
        };
        assert_eq!(rules().choose(&claim(1, 9_000_000), &[own]), Choice::Nobody);
    }

    #[test]
    fn a_pool_keeps_for_a_turn_what_it_has_got() {
        let since = |since_us| Holding {
            since_us,
            ..held(1, 1, 1)
        };
        let choose = |held| rules().choose(&claim(0, 500_000), &[held]);
        assert_eq!(choose(since(NOW_US - TURN_US + 1)), Choice::Nobody);
        assert_eq!(choose(since(NOW_US - TURN_US)), Choice::First(vec![1]));
        // Unless it has no use for it.
        let unused = Holding {
            has_sessions: false,
            ..since(NOW_US)
        };
        assert_eq!(choose(unused), Choice::First(vec![1]));
        let quiet = Holding {
            free_for_us: Some(QUIET_US),
            ..since(NOW_US - QUIET_US)
        };
        assert_eq!(choose(quiet), Choice::Free(1));
    }

    #[test]
    fn a_round_of_turns_fits_into_the_wait_that_is_allowed() {
        let turn_us = |timeout_us, claims| Rules::new(0, timeout_us, 4, claims).turn_us;
        assert_eq!(turn_us(0, 1000), TURN_US);
        assert_eq!(turn_us(60_000_000, 12), TURN_US);
        assert_eq!(turn_us(1_000_000, 100), 10_000);
        // But nobody goes that has served nobody.
        let new = Holding {
            since_us: NOW_US - 20_000,
            has_served: false,
            ..held(1, 1, 1)
        };
        let rules = Rules::new(NOW_US, 1_000_000, 4, 100);
        assert_eq!(rules.choose(&claim(0, 500_000), &[new]), Choice::Nobody);
        let served = Holding {
            has_served: true,
            ..new
        };
        assert_eq!(
            rules.choose(&claim(0, 500_000), &[served]),
            Choice::First(vec![1])
        );
    }

    #[test]
    fn a_pool_that_has_some_takes_from_a_larger_one_only() {
        let choose = |backends, of| rules().choose(&claim(backends, 500_000), &[held(1, 1, of)]);
        assert_eq!(choose(1, 3), Choice::First(vec![1]));
        assert_eq!(choose(1, 2), Choice::Nobody);
        assert_eq!(choose(1, 1), Choice::Nobody);
        // And not before it has waited for a turn.
        let now = rules().choose(&claim(1, TURN_US - 1), &[held(1, 1, 3)]);
        assert_eq!(now, Choice::Nobody);
        // Nor from one whose sessions wait longer.
        let waits = Holding {
            waits_since_us: Some(NOW_US - 600_000),
            ..held(1, 1, 3)
        };
        assert_eq!(rules().choose(&claim(1, 500_000), &[waits]), Choice::Nobody);
    }

    #[test]
    fn what_a_pool_has_may_be_held_for_ever() {
        let all = [held(1, 1, 1), held(2, 2, 2)];
        let choose = |waited_us| rules().choose(&claim(1, waited_us), &all);
        assert_eq!(choose(LATE_US - 1), Choice::Nobody);
        assert_eq!(choose(LATE_US), Choice::First(vec![2]));
        assert_eq!(choose(5_000_000), Choice::First(vec![1, 2]));
        // So may what the larger pools have.
        let choose = |waited_us| rules().choose(&claim(0, waited_us), &all);
        assert_eq!(choose(0), Choice::First(vec![2]));
        assert_eq!(choose(LATE_US), Choice::First(vec![1, 2]));
    }

    #[test]
    fn a_place_is_for_whom_it_was_made_then_for_who_has_none_then_for_who_waits_longest() {
        let mut pools = [(1, 0, 30), (2, 1, 10), (3, 0, 20), (4, 1, 40), (5, 1, 5)];
        pools.sort_by_key(|(pool, backends, since)| place_key(&[4], *pool, *backends, *since));
        assert_eq!(pools.map(|(pool, _, _)| pool), [4, 3, 1, 5, 2]);
    }

    #[test]
    fn too_many_go_free_ones_first_then_whoever_comes_to_a_boundary() {
        let all = [held(1, 1, 1), held(2, 2, 2), held(3, 2, 2)];
        assert_eq!(choose_surplus(&all), Choice::First(vec![1, 2, 3]));
        let all = [held(2, 2, 2), free(4, 4, 10)];
        assert_eq!(choose_surplus(&all), Choice::Free(4));
        assert_eq!(choose_surplus(&[]), Choice::Nobody);
    }

    /// Pools with `clients` each that ask without end, each answer 10 ms; to
    /// replace a backend takes 5. Answers for each pool, the longest wait of
    /// all, and how often a backend was replaced.
    fn simulate(clients: &[usize], backends: usize, timeout_us: u64) -> (Vec<u32>, u64, u32) {
        const ANSWER_US: u64 = 10_000;
        const REPLACE_US: u64 = 5_000;
        const STEP_US: u64 = 1_000;
        #[derive(Clone, Copy)]
        struct Backend {
            pool: usize,
            since_us: u64,
            busy_until_us: Option<u64>,
            served: u32,
        }
        let mut waiting: Vec<VecDeque<u64>> = clients
            .iter()
            .map(|count| VecDeque::from(vec![0; *count]))
            .collect();
        let mut running: Vec<Backend> = (0..backends)
            .map(|_| Backend {
                pool: 0,
                since_us: 0,
                busy_until_us: None,
                served: 0,
            })
            .collect();
        let mut answers = vec![0; clients.len()];
        let (mut longest_us, mut replaced) = (0, 0);
        for now_us in (0..20_000_000).step_by(STEP_US as usize) {
            let count = |running: &[Backend], pool| {
                running
                    .iter()
                    .filter(|backend| backend.pool == pool)
                    .count()
            };
            let mut claims: Vec<Claim> = (0..clients.len())
                .filter_map(|pool| {
                    Some(Claim {
                        pool: pool as u32,
                        backends: count(&running, pool),
                        since_us: *waiting[pool].front()?,
                    })
                })
                .collect();
            let rules = Rules::new(now_us, timeout_us, backends, claims.len());
            rules.sort(&mut claims);
            let all: Vec<Holding> = (running.iter().enumerate())
                .map(|(slot, backend)| Holding {
                    slot: slot as u32,
                    pool: backend.pool as u32,
                    backends: count(&running, backend.pool),
                    waits_since_us: waiting[backend.pool].front().copied(),
                    has_sessions: true,
                    since_us: backend.since_us,
                    has_served: backend.served > 0,
                    free_for_us: None,
                })
                .collect();
            let offer = claims
                .iter()
                .find_map(|claim| match rules.choose(claim, &all) {
                    Choice::First(slots) => Some((claim.pool as usize, slots)),
                    _ => None,
                });
            let mut is_taken = false;
            for (slot, backend) in running.iter_mut().enumerate() {
                if backend
                    .busy_until_us
                    .is_some_and(|until_us| now_us < until_us)
                    || now_us < backend.since_us
                {
                    continue;
                }
                if backend.busy_until_us.take().is_some() {
                    answers[backend.pool] += 1;
                    backend.served += 1;
                    waiting[backend.pool].push_back(now_us);
                }
                if let Some((pool, slots)) = &offer {
                    if !is_taken && slots.contains(&(slot as u32)) {
                        is_taken = true;
                        replaced += 1;
                        *backend = Backend {
                            pool: *pool,
                            since_us: now_us + REPLACE_US,
                            busy_until_us: None,
                            served: 0,
                        };
                        continue;
                    }
                }
                if let Some(since_us) = waiting[backend.pool].pop_front() {
                    longest_us = longest_us.max(now_us - since_us);
                    backend.busy_until_us = Some(now_us + ANSWER_US);
                }
            }
        }
        (answers, longest_us, replaced)
    }

    #[test]
    fn more_pools_than_backends_are_served_alike() {
        let (answers, longest_us, replaced) = simulate(&[1; 16], 4, 10_000_000);
        let (least, most) = (answers.iter().min(), answers.iter().max());
        assert!(most.unwrap() < &(least.unwrap() * 3 / 2), "{answers:?}");
        assert!(longest_us < 1_000_000, "{longest_us}");
        // About once a turn.
        assert!(replaced < 20 * 4 * 10, "{replaced}");
    }

    #[test]
    fn as_many_backends_as_pools_stay_where_they_are() {
        let (answers, _, replaced) = simulate(&[1, 1, 1, 1], 4, 10_000_000);
        assert!(answers.iter().all(|count| *count > 1500), "{answers:?}");
        assert!(replaced <= 4, "{replaced}");
        let (answers, _, replaced) = simulate(&[8, 2], 4, 10_000_000);
        assert!(answers.iter().all(|count| *count > 3000), "{answers:?}");
        assert!(replaced <= 4, "{replaced}");
        // A pool that is alone loses nothing.
        let (answers, _, replaced) = simulate(&[50], 4, 10_000_000);
        assert_eq!(replaced, 0);
        assert!(answers[0] > 7000, "{answers:?}");
    }

    #[test]
    fn nobody_waits_too_long_for_turns_however_short_the_wait_and_many_the_pools() {
        for (pools, timeout_us) in [(8, 500_000), (40, 1_000_000), (40, 0)] {
            let (answers, longest_us, _) = simulate(&vec![1; pools], 4, timeout_us);
            assert!(answers.iter().all(|count| *count > 0), "{answers:?}");
            assert!(
                timeout_us == 0 || longest_us < timeout_us,
                "{pools} {longest_us}"
            );
        }
        // Nor with a crowd beside.
        let (answers, longest_us, _) = simulate(&[40, 1, 1, 1, 1, 1], 4, 2_000_000);
        assert!(answers.iter().all(|count| *count > 0), "{answers:?}");
        assert!(longest_us < 2_000_000, "{longest_us}");
    }
}
