//! Which backend makes room for a pool that wants one, when no more backends may be started.
//!
//! The choice is free of I/O. A pool that waits and may start nothing has a [`Claim`]; a backend
//! that may leave for it is a [`Holding`]. Two demands are weighed. The session that waits longest
//! comes first, whatever its pool. And a backend belongs to one database for life, so to pass it on
//! costs a process. Hence pools are served in turns: a pool keeps what it has got for a *turn*,
//! which is short enough for all turns to fit into a part of session_wait_timeout.
//! docs/design/pools.md has the reasons.

use super::lifecycle::Reason;
use super::sessions::DEFAULT_WEIGHT;
use super::{Action, Core, Word, Words};

/// A turn is at least this long, if it need not be shorter,
const TURN_US: u64 = 100_000;
/// and this multiple of the time to replace a backend: at most a thirteenth of each turn is lost.
const TURN_COSTS: u64 = 12;
/// However long a replacement takes, a round of all turns is not longer than this, unless turns
/// would have to be shorter than TURN_US.
const MOST_ROUND_US: u64 = 3_000_000;
/// At most 1/ENDING_PART of all turns, but at least one, ends at a time: those that are over for
/// longest.
const ENDING_PART: usize = 64;
/// Silent pools keep 1/KEPT_PART of all backends, for sessions that speak again.
const KEPT_PART: usize = 4;
/// A backend that has been free for this long is not between two statements of a client that does
/// nothing else.
const QUIET_US: u64 = 20_000;
/// A session that has waited this long, or a quarter of what it may, is *late*.
const LATE_US: u64 = 1_000_000;
/// A session that has waited for half of what it may is *urgent*; after this time if there is no
/// limit.
const URGENT_US: u64 = 30_000_000;
/// A pool that has backends and lacks one for this long gets it from a pool that has more, as it
/// will keep it for long.
const LACKING_US: u64 = 500_000;
/// If two looks lie further apart, the time beyond this does not count.
const MOST_BETWEEN_LOOKS_US: u64 = 100_000;

/// For how long a pool has wanted one more backend, most of the time. With short transactions none
/// of its sessions waits for long, but there is always a waiting session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lack {
    for_us: u64,
    looked_us: u64,
}

impl Lack {
    /// Does the pool want one now? A look at which it does not takes back what a look at which it
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

/// The session that waits for longest in a pool, known by the time since when it waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct First {
    waits_since_us: u64,
    since_us: u64,
}

impl First {
    /// For how long has it been the same? If sessions are served in turn, it changes with each of
    /// them, however long all wait.
    pub fn look(&mut self, waits_since_us: u64, now_us: u64) -> u64 {
        if self.waits_since_us != waits_since_us {
            *self = First {
                waits_since_us,
                since_us: now_us,
            };
        }
        now_us.saturating_sub(self.since_us)
    }
}

/// A pool that could use one more backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub pool: u32,
    /// Backends that serve its sessions, or will: without dedicated and leaving ones.
    pub backends: usize,
    /// Since when the first of its sessions waits.
    pub since_us: u64,
    /// For how long this has been the same session.
    pub same_first_for_us: u64,
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
    /// Its role has as much as it may take while others are in want (sizing.rs).
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
    /// If this is the only backend of a pool that is silent for the moment: since when, and its
    /// slot.
    fn last_free(&self) -> Option<(u64, u32)> {
        let free_for_us = self.free_for_us?;
        (self.backends == 1 && self.has_sessions).then_some((free_for_us, self.slot))
    }
}

/// Backends of which one is to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    NoBackend,
    /// This one, which is free.
    Free(u32),
    /// The first of these that comes to a boundary.
    First(Vec<u32>),
}

/// The figures that count at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    now_us: u64,
    turn_us: u64,
    /// The longest turn, whatever a pool's weight.
    most_turn_us: u64,
    /// The turn of a backend that has not served yet: if it left before, its start was wasted.
    unserved_us: u64,
    /// A backend that is free for this long is not between two statements.
    quiet_us: u64,
    late_us: u64,
    urgent_us: u64,
    /// Any turn that is over may end, not only the one that is over for longest: the backend of
    /// that turn has come to no boundary for some time.
    may_any_end: bool,
    /// Otherwise this number of turns may end, those that are over for longest.
    ending_at_once: usize,
}

impl Rules {
    /// `timeout_us`: session_wait_timeout, 0 if there is none. `replacing_us`: what it takes to
    /// replace a backend.
    pub fn new(
        now_us: u64,
        timeout_us: u64,
        backends: usize,
        claims: usize,
        replacing_us: u64,
    ) -> Rules {
        let limit = |most: u64, share: u64| match timeout_us {
            0 => most,
            timeout => most.min(timeout / share),
        };
        // A round has as many turns as pools in want per backend.
        let round_us = limit(u64::MAX, 4);
        let turns = claims.div_ceil(backends.max(1)).max(1) as u64;
        let turn_us = (TURN_COSTS * replacing_us)
            .min(MOST_ROUND_US / turns)
            .max(TURN_US)
            .min(round_us / turns);
        Rules {
            now_us,
            turn_us,
            most_turn_us: round_us / turns,
            unserved_us: TURN_US,
            quiet_us: QUIET_US,
            // A late claim overrules the order of turns, but not before two rounds have passed.
            late_us: limit(LATE_US.max(2 * turns * turn_us), 4),
            urgent_us: if timeout_us == 0 {
                URGENT_US
            } else {
                timeout_us / 2
            },
            may_any_end: false,
            ending_at_once: (backends / ENDING_PART).max(1),
        }
    }

    pub fn with_any_end(self, may_any_end: bool) -> Rules {
        Rules {
            may_any_end,
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

    /// The order of claims. First come pools below their reserve. Then late claims, the longest
    /// wait first. Then pools without a backend, the longest without first, so that a pool that
    /// seldom asks need not wait for a round of those that always do. Then the others. Among late
    /// claims, and among those without, roles that have no backend at all come first: a role has as
    /// many pools as it likes.
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
            // Pools take turns if no pool has more than one backend that it may lose.
            return held.backends > 1 || !has_larger || self.is_late(claim);
        }
        // With short transactions no session waits for long. So a pool need not wait for its
        // reserve, nor for its share of a pool with a lower weight.
        if (claim.is_owed && held.backends > 1)
            || (claim.weight > held.weight && self.has_more(held, claim))
        {
            return true;
        }
        // Lateness overrules shares: a late pool must not lose again the backend that it got for
        // being late.
        let is_later = !waits_longer && self.is_late_since(held.waits_since_us);
        if claim.is_lacking && !is_later && self.has_more(held, claim) {
            return true;
        }
        waits_longer
            && waited_us >= self.turn_us
            && (self.has_more(held, claim)
                || (self.is_late(claim) && held.backends > 1)
                // Transactions that never end may hold the claiming pool's own backends.
                || waited_us >= self.urgent_us)
    }

    /// With one backend less, has its pool still no less than the other with one more, by their
    /// weights?
    fn has_more(&self, held: &Holding, claim: &Claim) -> bool {
        let (has, had) = (held.backends as u64, claim.backends as u64);
        has > 1 && (has - 1) * claim.weight >= (had + 1) * held.weight
    }

    /// The bound up to which silent pools keep their only backends. If a pool with backends wants
    /// one, the most recently used of these backends stay, as far as they are a fraction of all.
    /// If that pool serves none of its sessions, or one of them is urgent, only those of them stay
    /// that have served recently: transactions that never end may hold all its own. The result is
    /// the first that does not stay, in the order of the time for which they are free.
    fn kept_before(&self, claim: &Claim, all: &[Holding]) -> (u64, u32) {
        if claim.backends == 0 {
            return (0, 0);
        }
        let most = all.len() / KEPT_PART;
        if self.is_late(claim) && claim.backends < most {
            return (0, 0);
        }
        let is_stuck = claim.same_first_for_us >= self.late_us;
        let bound = match is_stuck || self.waited_us(claim) >= self.urgent_us {
            true => (self.late_us, 0),
            false => (u64::MAX, u32::MAX),
        };
        let mut free: Vec<(u64, u32)> = all.iter().filter_map(Holding::last_free).collect();
        if free.len() <= most {
            return bound;
        }
        bound.min(*free.select_nth_unstable(most).1)
    }

    /// What leaves for this claim.
    pub fn choose(&self, claim: &Claim, all: &[Holding]) -> Choice {
        ensure!(self.turn_us <= self.most_turn_us);
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
            // Where pools take turns, so that no turn is longer by chance.
            let over_for_us = |held: &&Holding| self.over_for_us(held);
            if self.ending_at_once < busy.len() {
                let at = busy.len() - self.ending_at_once;
                busy.select_nth_unstable_by_key(at, over_for_us);
                busy.drain(..at);
            }
            return first_of(&busy, false);
        }
        first_of(&busy, !self.is_late(claim))
    }
}

/// What leaves if there are more backends than permitted.
pub fn choose_surplus(all: &[Holding]) -> Choice {
    let free = all
        .iter()
        .filter(|held| held.waits_since_us.is_none() && held.free_for_us.is_some());
    if let Some(held) = free.max_by_key(|held| (held.backends > 1, held.free_for_us)) {
        return Choice::Free(held.slot);
    }
    first_of(&all.iter().collect::<Vec<_>>(), false)
}

/// The order in which pools get a place that has become free: the pool for which it was made, then
/// pools whose role has no backend, pools without a backend, and the longest wait.
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
        Choice::NoBackend
    } else {
        Choice::First(chosen)
    }
}

// ----------------------------------------------------------------------------
// Making room: as many backends as permitted exist, and a pool wants one.
//
// The rules above decide which backend may leave for which pool. This part passes the word:
// backends that may leave find a *ticket* in their slots, and the first of them that comes to a
// boundary takes it (pass_baton, idle.c) and exits. So a backend that a long transaction holds
// blocks no pool. If no pool wants room any more, the ticket is taken back and nothing has
// happened. There is one ticket at a time; it is issued anew in each tick, as the figures have
// changed.
//
// A look reads all backends, and each choice for a pool compares all of them.

/// Lower values mean something else in a slot (BATON_RETIRE_FIRST_TICKET), and higher ones that the
/// ticket was taken (BATON_TICKET_TAKEN).
const TICKETS: std::ops::Range<u32> = 2..1 << 31;

/// A surplus that has lasted this long is removed: a session that is dedicated for a moment, again
/// and again, must not cost a backend each time.
const SURPLUS_US: u64 = 1_000_000;
/// Pools with backends for which a backend is sought at a time, the longest wait first: for each of
/// them all backends are compared.
const MOST_TRIED: usize = 32;
/// The most backends that a ticket is offered to at a time.
const OFFERED_AT_ONCE: usize = 256;
/// A backend that has taken a ticket says so at once. If it does not within this time, it cannot
/// leave.
const TAKEN_US: u64 = 1_000_000;

/// If the backend with the first right to a ticket does not take it within this time (a tick, or
/// two), it is in a transaction: others may take it.
const UNTAKEN_US: u64 = 15_000;

/// The ticket, and when to look.
#[derive(Default)]
pub struct Room {
    /// Pools that get the places that have just become free, in this order.
    meant_for: Vec<u32>,
    /// A pool wants room.
    is_wanted: bool,
    /// It is time to look.
    is_due: bool,
    ticket: u32,
    /// Backends that may take it; empty: no ticket is out.
    offered: Vec<u32>,
    /// The pool that it is for; None if there are too many backends.
    offered_for: Option<u32>,
    /// Since when there are too many backends.
    surplus_since_us: Option<u64>,
    /// When it was first seen to be taken.
    taken_us: Option<u64>,
    /// Since when tickets have been offered, renewals included, without being taken.
    untaken_since_us: Option<u64>,
    /// No look before this time, as looks are expensive.
    not_before_us: u64,
}

impl Room {
    pub fn is_offered(&self) -> bool {
        !self.offered.is_empty()
    }

    /// Pools that get the places that have just become free, in this order.
    pub fn meant_for(&self) -> &[u32] {
        &self.meant_for
    }

    /// The same pools, which are about to get the places.
    pub fn take_meant_for(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.meant_for)
    }

    #[cfg(test)]
    pub fn offered_for(&self) -> Option<u32> {
        self.offered_for
    }

    /// A pool wants room. This is checked in each tick, and at once for a pool that has no backend.
    pub fn want(&mut self, at_once: bool) {
        self.is_wanted = true;
        self.is_due |= at_once && !self.is_offered();
    }

    /// Runs in each tick.
    pub fn look_again(&mut self) {
        self.is_due |= self.is_wanted || self.is_offered();
    }

    /// max_backends may have been lowered, or a dedicated session is shared.
    pub fn look_for_surplus(&mut self) {
        self.is_due = true;
    }
}

impl Room {
    /// Has there been a surplus for some time?
    fn lasting_surplus(&mut self, is_there: bool, now_us: u64) -> bool {
        if !is_there {
            self.surplus_since_us = None;
            return false;
        }
        let since_us = *self.surplus_since_us.get_or_insert(now_us);
        now_us >= since_us + SURPLUS_US
    }
}

impl Core {
    /// Runs in each round, after the pools have been served.
    pub(super) fn make_room(&mut self, words: &impl Words) {
        if !self.room.is_due || self.now.us < self.room.not_before_us {
            return;
        }
        self.room.is_due = false;
        if self.room.is_offered() {
            // Resumes when the ticket is back.
            return self.act(Action::TakeTicketBack(self.room.ticket));
        }
        self.give_ticket(words);
    }

    /// The ticket has been taken back, unless a backend has taken it and has not said so yet.
    pub(super) fn ticket_back(&mut self, is_ours: bool, words: &impl Words) {
        let taken_us = *self.room.taken_us.get_or_insert(self.now.us);
        if is_ours || self.now.us >= taken_us + TAKEN_US {
            self.forget_ticket();
            self.give_ticket(words);
        }
    }

    fn give_ticket(&mut self, words: &impl Words) {
        if self.stopping {
            return;
        }
        let mut claims = self.claims(words);
        self.room.is_wanted = !claims.is_empty();
        if claims.is_empty() {
            self.room.untaken_since_us = None;
        }
        let going = self.going_backends(words);
        let places = self.places(going);
        let is_surplus = self.room.lasting_surplus(places.has_surplus(), self.now.us);
        if !is_surplus && claims.is_empty() {
            return;
        }
        let all = self.holdings(words);
        // A look takes a tenth of a microsecond for each backend.
        self.room.not_before_us = self.now.us + all.len() as u64;
        let timeout_us = self.limits.session_wait_timeout_us;
        let replacing_us = self.replacing.us();
        let waiting = self.in_all(claims.len());
        let is_untaken = |since_us| self.now.us >= since_us + UNTAKEN_US;
        let rules = Rules::new(self.now.us, timeout_us, all.len(), waiting, replacing_us)
            .with_any_end(self.room.untaken_since_us.is_some_and(is_untaken));
        rules.sort(&mut claims);
        // A claim gets one of the places that are left or about to be left, if its role may take
        // it.
        let mut room = places.room();
        claims.retain(|claim| {
            let gets_one = room > 0 && self.places_without(going, claim.pool, words).room() > 0;
            room -= usize::from(gets_one);
            !gets_one
        });
        if is_surplus {
            self.offer(None, choose_surplus(&all));
        } else {
            self.give_to_first(&rules, &claims, &all);
        }
    }

    /// The first claim for which a backend may leave gets the ticket. Earlier claims that get the
    /// places of leaving backends are not in `claims`.
    fn give_to_first(&mut self, rules: &Rules, claims: &[Claim], all: &[Holding]) {
        // No backend leaves for a pool without a backend; by whether the claim is late.
        let mut is_hopeless = [false; 2];
        let mut tried = 0;
        for claim in claims {
            if claim.backends > 0 {
                tried += 1;
                if tried > MOST_TRIED {
                    return;
                }
            }
            // What leaves for one pool without a backend would leave for another.
            let kind = usize::from(rules.is_late(claim));
            if claim.backends == 0 && is_hopeless[kind] {
                continue;
            }
            self.offer(Some(claim), rules.choose(claim, all));
            if self.room.is_offered() {
                return;
            }
            is_hopeless[kind] |= claim.backends == 0;
        }
    }

    /// The order in which pools get free places.
    pub(super) fn place_key(&self, number: u32, words: &impl Words) -> (usize, bool, bool, u64) {
        let backends = (
            self.least_of_roles(number, words),
            self.own_backends(number),
        );
        let waited_us = self.oldest_wait_us(number, words).unwrap_or(0);
        let since_us = self.now.us.saturating_sub(waited_us);
        place_key(&self.room.meant_for, number, backends, since_us)
    }

    /// Backends that serve a pool's sessions, or are starting to.
    fn own_backends(&self, number: u32) -> usize {
        self.backends.lives(number).expected()
    }

    fn claims(&mut self, words: &impl Words) -> Vec<Claim> {
        let mut pools = self.compared_in_want();
        pools.retain(|number| self.look_whether_it_lacks(*number, words));
        let may_be_reserved = self.reserves_left() > 0;
        let now_us = self.now.us;
        let claim = |number: u32| {
            let backends = self.own_backends(number);
            let since_us = now_us.saturating_sub(self.oldest_wait_us(number, words)?);
            let same_first_for_us = self.pool_mut(number)?.look_at_first(since_us, now_us);
            let pool = self.pool(number)?;
            // A pool that has just lost its last backend comes after the pools that wait for that
            // place, though the process has not ended yet.
            let is_losing = !pool.shared().is_empty();
            Some(Claim {
                pool: number,
                backends,
                since_us,
                same_first_for_us,
                without_since_us: match is_losing {
                    true => self.now.us,
                    false => pool.without_since_us(),
                },
                weight: self.weight(number),
                is_lacking: pool.is_lacking(),
                is_role_without: self.least_of_roles(number, words) == 0,
                has_its_share: self
                    .places_for(number, words)
                    .has_its_share(self.backends.of_no_role()),
                is_owed: backends < self.reserved(number) && may_be_reserved,
            })
        };
        pools.into_iter().filter_map(claim).collect()
    }

    /// Does a session wait in the pool, and no backend may be started for it?
    pub(super) fn wants_place(&self, number: u32, words: &impl Words) -> bool {
        self.waiting_in(number, words) > 0
            && (self.growth(number, words)).is_some_and(|growth| growth.wants_room())
    }

    /// Does a pool want another pool's place?
    pub(super) fn look_whether_it_lacks(&mut self, number: u32, words: &impl Words) -> bool {
        let wants = self.wants_place(number, words);
        let now_us = self.now.us;
        if let Some(pool) = self.pool_mut(number) {
            pool.lacks(wants, now_us);
        }
        wants
    }

    /// Backends that will have gone in a moment.
    fn going_backends(&self, words: &impl Words) -> usize {
        let is_going = |slot: &&u32| {
            let life = self.backends.life(**slot);
            let word = words.backend(**slot);
            life.is_some_and(|life| !life.is_starting())
                && (word.is_free() || word == Word::Retiring)
        };
        self.backends.leaving().iter().filter(is_going).count()
    }

    /// Offers the ticket to the chosen backends. Of very many it is offered to some, and to others
    /// the next time.
    fn offer(&mut self, claim: Option<&Claim>, choice: Choice) {
        let mut slots = match choice {
            Choice::NoBackend => return,
            Choice::Free(slot) => vec![slot],
            Choice::First(slots) => slots,
        };
        if slots.len() > OFFERED_AT_ONCE {
            let first = self.room.ticket as usize * OFFERED_AT_ONCE % slots.len();
            slots.rotate_left(first);
            slots.truncate(OFFERED_AT_ONCE);
        }
        ensure!(
            !slots.is_empty() && !self.room.is_offered(),
            "one ticket at a time"
        );
        let next = Some(self.room.ticket + 1).filter(|next| TICKETS.contains(next));
        self.room.ticket = next.unwrap_or(TICKETS.start);
        self.act(Action::Offer {
            ticket: self.room.ticket,
            slots: slots.clone(),
        });
        self.room.offered = slots;
        self.room.offered_for = claim.map(|claim| claim.pool);
        self.room.untaken_since_us.get_or_insert(self.now.us);
        self.room.taken_us = None;
        self.room.not_before_us = 0;
    }

    fn forget_ticket(&mut self) {
        let ticket = self.room.ticket;
        for slot in std::mem::take(&mut self.room.offered) {
            self.act(Action::ClearTicket { slot, ticket });
        }
        self.room.taken_us = None;
    }

    /// Has this backend taken the ticket? Then no other has, and none of the others that leave
    /// meanwhile, for whatever reason, makes room for a pool.
    fn took_ticket(&mut self, slot: u32, words: &impl Words) -> bool {
        let took = words.ticket_taker() == Some(slot) && self.room.offered.contains(&slot);
        if took {
            self.forget_ticket();
            self.room.untaken_since_us = None;
        }
        took
    }

    /// A backend exits, for whatever reason. Has it taken the ticket, and for which pool?
    pub(super) fn backend_retires(&mut self, slot: u32, words: &impl Words) -> Option<Reason> {
        self.room.is_due = true;
        let pool = self.room.offered_for;
        if !self.took_ticket(slot, words) {
            return None;
        }
        self.backends.goes_for(slot, pool);
        Some(pool.map_or(Reason::Surplus, Reason::RoomFor))
    }

    /// A backend has gone.
    pub(super) fn room_made(&mut self, makes_room_for: Option<u32>) {
        self.room.meant_for.extend(makes_room_for);
        self.room.is_due = true;
    }

    /// The server has refused a backend of this pool, as it has too many connections. The backend
    /// of another pool that has been free for longest leaves. If none can leave, and none is
    /// leaving, the sessions that wait there to be greeted are told why.
    pub(super) fn make_room_within_limit(&mut self, number: u32, words: &impl Words) {
        if self.backends.has_leaver_for(number) {
            return;
        }
        match self.longest_free(number, words) {
            Some(slot) => {
                self.retire(slot, Reason::RoomWithinConnectionLimit(number));
            }
            None => self.begin_to_end_ungreeted(number),
        }
    }
}

// ----------------------------------------------------------------------------
// Which backends may leave for another pool: all of them, as they are at one moment.
//
// The figures are in words that backends write themselves, and in what is known of their pools. A
// look reads each of them. Of 4,000 backends that takes 0.3 ms, with all decisions that follow
// (`simulator/costs.rs`): so it is not cut into slices.

impl Core {
    /// All backends that serve sessions of pools and may be asked to leave.
    pub(super) fn holdings(&self, words: &impl Words) -> Vec<Holding> {
        let mut all = Vec::with_capacity(self.backends.total());
        // How many may be reserved beyond those of the pools seen so far.
        let mut reserves_left = self.most_reserved();
        for number in self.pools.with_backends().iter() {
            // Backends that its sessions can count on.
            let backends = self.serving_backends(number);
            if backends == 0 {
                continue;
            }
            let is_reserved = backends <= self.reserved(number) && backends <= reserves_left;
            reserves_left -= if is_reserved { backends } else { 0 };
            let waited_us = (self.waiting_in(number, words) > 0)
                .then(|| self.oldest_wait_us(number, words))
                .flatten();
            // Of the pool, the same for all its backends.
            let weight = self.weight(number);
            let waits_since_us = waited_us.map(|waited_us| self.now.us.saturating_sub(waited_us));
            let has_sessions = self.sessions.members(number) > 0;
            let slots = self.pool_backends(number).iter().copied();
            let shared = slots.filter(|slot| self.backends.is_shared(*slot));
            all.extend(shared.filter_map(|slot| {
                Some(Holding {
                    slot,
                    pool: number,
                    backends,
                    waits_since_us,
                    has_sessions,
                    since_us: self.backends.get(slot)?.attached_us(),
                    has_served: words.backend_has_served(slot),
                    free_for_us: self.free_for_us(slot, words),
                    weight,
                    is_reserved,
                })
            }));
        }
        all
    }

    /// For how long it has been free, if it is.
    fn free_for_us(&self, slot: u32, words: &impl Words) -> Option<u64> {
        let is_free = words.backend(slot).is_free();
        let free_for_us = || self.now.passed_us(words.backend_since_us(slot));
        is_free.then(|| u64::try_from(free_for_us()).unwrap_or(0))
    }

    /// Of all pools but this one, the backend that has been free for longest.
    pub(super) fn longest_free(&self, but: u32, words: &impl Words) -> Option<u32> {
        let pools = self.pools.with_backends().iter();
        let others = pools.filter(|number| *number != but);
        let slots = others.flat_map(|number| self.pool_backends(number).iter().copied());
        let shared = slots.filter(|slot| self.backends.is_shared(*slot));
        let free = shared.filter_map(|slot| Some((self.free_for_us(slot, words)?, slot)));
        free.max_by_key(|(free_for_us, _)| *free_for_us)
            .map(|(_, slot)| slot)
    }
}

// ----------------------------------------------------------------------------
// The recent cost of replacing a backend: a process ends, and another starts.
//
// It is a few milliseconds while CPUs are idle, and many times as long while all are busy. So it is
// measured, by the clock that the core is shown. It determines how long a pool keeps what it has
// got.

/// The divisor of a new figure: about the last ten figures count.
const NEW_PART: u64 = 8;
/// The most that a figure counts. A machine that slept, or a server that was stopped, predicts
/// nothing.
const MOST_US: u64 = 2_000_000;

/// A moving average. None before the first figure.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    /// Multiplied by NEW_PART.
    sum_us: Option<u64>,
}

impl Average {
    fn add(&mut self, us: u64) {
        let us = us.min(MOST_US);
        self.sum_us = Some(match self.sum_us {
            None => us * NEW_PART,
            Some(sum_us) => sum_us - sum_us / NEW_PART + us,
        });
    }

    fn us(self) -> u64 {
        self.sum_us.unwrap_or(0) / NEW_PART
    }
}

/// The time from the moment at which a backend says that it exits until its process has ended; and
/// from the request for a backend until it serves.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplacementCost {
    exit: Average,
    start: Average,
}

impl ReplacementCost {
    pub fn has_ended(&mut self, after_us: u64) {
        self.exit.add(after_us);
    }

    pub fn has_started(&mut self, after_us: u64) {
        self.start.add(after_us);
    }

    /// Both together.
    pub fn us(&self) -> u64 {
        self.exit.us() + self.start.us()
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod replacement_tests {
    use super::*;

    #[test]
    fn it_follows_what_the_last_ones_took() {
        let mut cost = ReplacementCost::default();
        assert_eq!(cost.us(), 0);
        cost.has_started(8_000);
        cost.has_ended(2_000);
        assert_eq!(cost.us(), 10_000);
        for _ in 0..10 {
            cost.has_started(80_000);
            cost.has_ended(20_000);
        }
        assert!((70_000..90_000).contains(&cost.us()), "{}", cost.us());
        // A server that was stopped for a while.
        cost.has_started(3_600_000_000);
        assert!(cost.us() < 90_000 + MOST_US / NEW_PART);
        for _ in 0..60 {
            cost.has_started(8_000);
            cost.has_ended(2_000);
        }
        assert!((9_900..10_500).contains(&cost.us()), "{}", cost.us());
    }
}
