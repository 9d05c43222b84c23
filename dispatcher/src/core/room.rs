//! All backends there may be exist, and a pool wants one: which may go for it?
//!
//! Free of I/O. A pool that waits and may start nothing has a [`Claim`], what
//! may go for it is a [`Holding`]. Two demands are weighed here: whoever waits
//! longest comes first, whatever his pool; and a backend is of one database
//! for life, so to pass it on costs a process. Hence pools are served in turns:
//! what a pool has got it keeps for a *turn*, short enough for all turns to fit
//! into a part of session_wait_timeout. docs/design/pools.md has
//! the reasons.

use super::sessions::DEFAULT_WEIGHT;

/// A turn is no shorter, if it need not be,
const TURN_US: u64 = 100_000;
/// and so many times as long as it takes to pass a backend on (passing.rs).
const LONG_TURN: u64 = 16;
/// Where so many pools take turns that a round of them would take longer than this, it
/// is as much shorter as it has to be, but no less than so many times: each is served
/// evenly over some seconds.
const EVEN_ROUND_US: u64 = 1_500_000;
const SHORT_TURN: u64 = 12;
/// However long it takes, a round is not longer for it, unless turns have to be shorter
/// than TURN_US then.
const MOST_ROUND_US: u64 = 3_000_000;
/// A part of all backends that pools which are silent keep, for who speaks again.
const KEPT_PART: usize = 4;
/// A backend that nobody has used for so long is not between two statements
/// of a client that does nothing else.
const QUIET_US: u64 = 20_000;
/// A session that has waited so long, or a quarter of what it may, is *late*.
const LATE_US: u64 = 1_000_000;
/// One that has waited for half of what it may is *urgent*; this if it may for
/// ever.
const URGENT_US: u64 = 30_000_000;
/// A pool that has backends and lacks one for so long gets it from one that has more:
/// it is for long that it will have it.
const LACKING_US: u64 = 500_000;
/// What happened between two looks that lie further apart nobody knows.
const MOST_BETWEEN_LOOKS_US: u64 = 100_000;

/// For how long a pool has wanted one backend more, most of the time: where
/// transactions are short none of its sessions waits for long, but somebody always does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lack {
    for_us: u64,
    looked_us: u64,
}

impl Lack {
    /// Does it want one now? A look at which it does not takes back what one at which it
    /// does has added.
    pub fn look(&mut self, wants: bool, now_us: u64) {
        let since_us = now_us.saturating_sub(self.looked_us);
        let since_us = since_us.min(MOST_BETWEEN_LOOKS_US);
        self.for_us = match wants {
            true => (self.for_us + since_us).min(2 * LACKING_US),
            false => self.for_us.saturating_sub(since_us),
        };
        self.looked_us = now_us;
    }

    pub fn is_lasting(&self) -> bool {
        self.for_us >= LACKING_US
    }
}

/// A pool that could use one more backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub pool: u32,
    /// Those that serve its sessions, or will: not what one session has for
    /// itself, nor what is about to go.
    pub backends: usize,
    /// Since when the first of its sessions waits.
    pub since_us: u64,
    /// When its last backend left; 0: it has not had any.
    pub without_since_us: u64,
    /// pg_baton.pool_weight
    pub weight: u64,
    /// It has wanted one more for long.
    pub is_lacking: bool,
    /// It has fewer than are reserved for it.
    pub is_owed: bool,
    /// Its role has no backend at all, of whatever pool.
    pub is_role_without: bool,
    /// Its role has as much as it may take while others are in want (places.rs).
    pub has_its_share: bool,
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
    /// pg_baton.pool_weight of the pool.
    pub weight: u64,
    /// The pool has no more than are reserved for it.
    pub is_reserved: bool,
}

impl Holding {
    /// The only one of a pool that is silent for the moment: since when, and which.
    fn last_free(&self) -> Option<(u64, u32)> {
        let free_for_us = self.free_for_us?;
        (self.backends == 1 && self.has_sessions).then_some((free_for_us, self.slot))
    }
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
    /// However much a pool weighs.
    most_turn_us: u64,
    /// Of a backend that has served nobody yet: it came for nothing if it went.
    unserved_us: u64,
    /// A backend that is free for so long is not between two statements.
    quiet_us: u64,
    late_us: u64,
    urgent_us: u64,
    /// Of turns that are over any may end, not only the one that is for longest: that
    /// one's backend has come to no boundary for some time.
    may_any_end: bool,
    /// If not, so many do.
    ending_at_once: usize,
}

impl Rules {
    /// `timeout_us`: session_wait_timeout, 0 if there is none.
    /// `passing_us`: what it takes to pass a backend on.
    pub fn new(
        now_us: u64,
        timeout_us: u64,
        backends: usize,
        claims: usize,
        passing_us: u64,
    ) -> Rules {
        let limit = |most: u64, share: u64| match timeout_us {
            0 => most,
            timeout => most.min(timeout / share),
        };
        // A round is as many turns as there are pools in want for a backend.
        let round_us = limit(u64::MAX, 4);
        let turns = claims.div_ceil(backends.max(1)).max(1) as u64;
        let longest_us = (LONG_TURN * passing_us).max(TURN_US);
        let shortest_us = (SHORT_TURN * passing_us).max(TURN_US);
        // Who waits, and who has one.
        let even_us = (EVEN_ROUND_US / (turns + 1)).saturating_sub(passing_us);
        let most_us = (MOST_ROUND_US / turns).max(TURN_US);
        let turn_us = even_us.clamp(shortest_us, longest_us);
        let turn_us = turn_us.min(most_us).min(round_us / turns);
        Rules {
            now_us,
            turn_us,
            most_turn_us: round_us / turns,
            unserved_us: TURN_US,
            quiet_us: QUIET_US,
            // Who is late overrules the order of turns: not before two rounds.
            late_us: limit(LATE_US.max(2 * turns * turn_us), 4),
            urgent_us: if timeout_us == 0 {
                URGENT_US
            } else {
                timeout_us / 2
            },
            may_any_end: false,
            ending_at_once: 1,
        }
    }

    pub fn with_any_end(self, may_any_end: bool) -> Rules {
        Rules {
            may_any_end,
            ..self
        }
    }

    pub fn with_ending_at_once(self, turns: usize) -> Rules {
        Rules {
            ending_at_once: turns.max(1),
            ..self
        }
    }

    fn waited_us(&self, claim: &Claim) -> u64 {
        self.now_us.saturating_sub(claim.since_us)
    }

    pub fn is_late(&self, claim: &Claim) -> bool {
        self.is_late_since(Some(claim.since_us))
    }

    fn is_late_since(&self, since_us: Option<u64>) -> bool {
        since_us.is_some_and(|since_us| self.now_us.saturating_sub(since_us) >= self.late_us)
    }

    /// For whom room is made first: for whom it is reserved; who is late, the
    /// longest wait first; who has no backend, the longest without first, so that
    /// who asks now and then need not wait for a round of those that always do;
    /// then the others. Among late ones, and among those without, roles that have no
    /// backend at all come first: a role has as many pools as it likes.
    pub fn sort(&self, claims: &mut [Claim]) {
        claims.sort_by_key(|claim| {
            let (class, since_us) = if claim.is_owed {
                (0, 0)
            } else if self.is_late(claim) {
                (1, 0)
            } else if claim.backends == 0 {
                (2, claim.without_since_us)
            } else {
                (3, 0)
            };
            (class, !claim.is_role_without, since_us, claim.since_us)
        });
    }

    /// Has its pool had it for a turn?
    fn is_over(&self, held: &Holding) -> bool {
        !held.has_sessions || self.over_for_us(held).is_some()
    }

    /// For how long its turn is over.
    fn over_for_us(&self, held: &Holding) -> Option<u64> {
        let turn_us = if held.has_served {
            (self.turn_us * held.weight / DEFAULT_WEIGHT).min(self.most_turn_us)
        } else {
            self.unserved_us
        };
        self.now_us.checked_sub(held.since_us + turn_us)
    }

    fn may_go_free(&self, claim: &Claim, held: &Holding) -> bool {
        let Some(free_us) = held.free_for_us.filter(|_| held.waits_since_us.is_none()) else {
            return false;
        };
        if !held.has_sessions || free_us >= TURN_US {
            return true;
        }
        if claim.has_its_share {
            return false;
        }
        let presses = claim.backends == 0 || self.waited_us(claim) >= self.turn_us;
        presses && (self.is_over(held) || free_us >= self.quiet_us)
    }

    fn may_go(&self, claim: &Claim, held: &Holding, has_larger: bool) -> bool {
        if !self.is_over(held) || claim.has_its_share {
            return false;
        }
        let waits_longer = held
            .waits_since_us
            .is_none_or(|other| claim.since_us < other);
        let waited_us = self.waited_us(claim);
        if claim.backends == 0 {
            // In turns, where no pool has more than one that it may lose.
            return held.backends > 1 || !has_larger || self.is_late(claim);
        }
        // Where transactions are short nobody waits for long: what is reserved for it,
        // or what the other weighs less, it need not wait for.
        if (claim.is_owed && held.backends > 1)
            || (claim.weight > held.weight && self.has_more(held, claim))
        {
            return true;
        }
        // Who is late overrules shares; and would lose again what he has got for it.
        let is_later = !waits_longer && self.is_late_since(held.waits_since_us);
        if claim.is_lacking && !is_later && self.has_more(held, claim) {
            return true;
        }
        waits_longer
            && waited_us >= self.turn_us
            && (self.has_more(held, claim)
                || (self.is_late(claim) && held.backends > 1)
                // What it has may be held by transactions that never end.
                || waited_us >= self.urgent_us)
    }

    /// With one less, has its pool still no less than the other with one more, for
    /// what each weighs?
    fn has_more(&self, held: &Holding, claim: &Claim) -> bool {
        let (has, had) = (held.backends as u64, claim.backends as u64);
        has > 1 && (has - 1) * claim.weight >= (had + 1) * held.weight
    }

    /// The only backends of pools that are silent for the moment: the ones used
    /// last stay where they are, as far as they are no more than a part of all, if
    /// it is a pool with backends that wants them. The first of these, by how long they
    /// are free, that does not stay.
    fn kept_before(&self, claim: &Claim, all: &[Holding]) -> (u64, u32) {
        if claim.backends == 0 {
            return (0, 0);
        }
        let most = all.len() / KEPT_PART;
        if self.is_late(claim) && claim.backends < most {
            return (0, 0);
        }
        let mut free: Vec<(u64, u32)> = all.iter().filter_map(Holding::last_free).collect();
        if free.len() <= most {
            return (u64::MAX, u32::MAX);
        }
        *free.select_nth_unstable(most).1
    }

    /// What goes for this claim.
    pub fn choose(&self, claim: &Claim, all: &[Holding]) -> Choice {
        let kept_before = self.kept_before(claim, all);
        let others = || {
            all.iter().filter(|held| {
                let is_kept = || held.last_free().is_some_and(|free| free < kept_before);
                held.pool != claim.pool && !held.is_reserved && !is_kept()
            })
        };
        let free = others().filter(|held| self.may_go_free(claim, held));
        if let Some(held) = free.max_by_key(|held| held.free_for_us) {
            return Choice::Free(held.slot);
        }
        let has_larger = others().any(|held| held.backends > 1 && self.is_over(held));
        let mut busy: Vec<&Holding> = others()
            .filter(|held| self.may_go(claim, held, has_larger))
            .collect();
        if !self.may_any_end && busy.iter().all(|held| held.backends == 1) {
            // Where turns are taken, so that none is longer by luck.
            let over_for_us = |held: &&Holding| self.over_for_us(held);
            if self.ending_at_once == 1 {
                let first = busy.iter().copied().max_by_key(over_for_us);
                busy = first.into_iter().collect();
            } else if self.ending_at_once < busy.len() {
                let at = busy.len() - self.ending_at_once;
                busy.select_nth_unstable_by_key(at, over_for_us);
                busy.drain(..at);
            }
            return first_of(&busy, false);
        }
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
/// then whose role has no backend, who has none, and who waits longest.
pub fn place_key(
    meant_for: &[u32],
    number: u32,
    (of_role, backends): (usize, usize),
    since_us: u64,
) -> (usize, bool, bool, u64) {
    let place = meant_for.iter().position(|pool| *pool == number);
    let place = place.unwrap_or(usize::MAX);
    (place, of_role > 0, backends > 0, since_us)
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
mod tests;
