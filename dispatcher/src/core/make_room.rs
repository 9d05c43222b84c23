//! Making room: as many backends as there may be exist, and a pool wants one.
//!
//! Who may go for whom is room.rs's to say. Here the word is passed: those that
//! may go find a *ticket* in their slots, and the first of them that comes to
//! a boundary takes it (pass_baton, idle.c) and exits. So a backend that is
//! held by a long transaction is in nobody's way, and if nobody wants room any
//! more the ticket is taken back and nothing has happened. There is one ticket
//! at a time; it is given out anew in each tick, as what counts has changed.
//!
//! A look reads all backends (holdings.rs), and each choice for a pool compares all of them.

use super::pool_changes::Reason;
use super::room::{choose_surplus, place_key, Choice, Claim, Holding, Rules};
use super::{Action, Core, Word, Words};

/// Lower ones mean something else in a slot (BATON_RETIRE_FIRST_TICKET), and higher
/// ones that it was taken (BATON_TICKET_TAKEN).
const TICKETS: std::ops::Range<u32> = 2..1 << 31;

/// A surplus that has lasted so long goes: a session that is dedicated for a
/// moment, and again and again, shall not cost a backend each time.
const SURPLUS_US: u64 = 1_000_000;
/// Pools with backends for which somebody is looked for at a time: for each of them all
/// backends are looked at,
const MOST_TRIED: usize = 32;
/// so often in all. The others come to their turn in the next tick.
const MOST_LOOKS: usize = 8192;
/// From so many backends on, where nobody could go, it is not looked for room as often as
/// a pool without one comes, but once in a microsecond for each: it costs a tenth of that.
const MANY_BACKENDS: usize = 100;
/// From so many turns on this part may end at a time, those that are over for longest: or it
/// would be waited for one backend after the other to come to a boundary.
const MANY_TURNS: usize = 1024;
const ENDING_PART: usize = 64;
/// Backends that a ticket is offered to at a time, most.
const OFFERED_AT_ONCE: usize = 256;
/// Who has taken a ticket says so at once. If he does not he cannot go.
const TAKEN_US: u64 = 1_000_000;

/// Who has the first right to a ticket and does not take it for so long (a tick, or two)
/// is in a transaction: others may.
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
    /// Backends that may take it; empty: it is not out.
    offered: Vec<u32>,
    /// The pool for which it is; none if there are too many backends.
    offered_for: Option<u32>,
    /// Since when there are too many backends.
    surplus_since_us: Option<u64>,
    /// It was seen to be taken.
    taken_us: Option<u64>,
    /// Since when it is offered, be it anew, and nobody has taken it.
    untaken_since_us: Option<u64>,
    /// Claims of pools with backends for which nobody could go; the next are tried next.
    tried: usize,
    /// Nobody could go.
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

    /// They are about to get them.
    pub fn take_meant_for(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.meant_for)
    }

    #[cfg(test)]
    pub fn offered_for(&self) -> Option<u32> {
        self.offered_for
    }

    /// A pool wants room: looked for in each tick, and at once for one that
    /// has no backend.
    pub fn want(&mut self, at_once: bool) {
        self.is_wanted = true;
        self.is_due |= at_once && !self.is_offered();
    }

    /// In each tick.
    pub fn look_again(&mut self) {
        self.is_due |= self.is_wanted || self.is_offered();
    }

    /// max_backends may have been lowered, or a dedicated session is shared.
    pub fn look_for_surplus(&mut self) {
        self.is_due = true;
    }
}

impl Room {
    /// All of so many backends.
    fn has_looked(&mut self, now_us: u64, backends: usize) {
        if backends >= MANY_BACKENDS {
            self.not_before_us = now_us + backends as u64;
        }
    }

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
    /// Told in each round, after the pools have been looked at.
    pub(super) fn make_room(&mut self, words: &impl Words) {
        if !self.room.is_due || self.now.us < self.room.not_before_us {
            return;
        }
        self.room.is_due = false;
        if self.room.is_offered() {
            // Goes on when it is back.
            return self.act(Action::TakeTicketBack(self.room.ticket));
        }
        self.give_ticket(words);
    }

    /// The ticket has been taken back, unless somebody was first and has not
    /// said so yet.
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
        self.room.has_looked(self.now.us, all.len());
        let timeout_us = self.limits.session_wait_timeout_us;
        let passing_us = self.passing.us();
        let waiting = self.in_all(claims.len());
        let is_untaken = |since_us| self.now.us >= since_us + UNTAKEN_US;
        let rules = Rules::new(self.now.us, timeout_us, all.len(), waiting, passing_us)
            .with_any_end(self.room.untaken_since_us.is_some_and(is_untaken))
            .with_ending_at_once(match all.len() {
                ..MANY_TURNS => 1,
                many => many / ENDING_PART,
            });
        rules.sort(&mut claims);
        // Of places that are left or about to be, a claim gets one its role may take.
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

    /// The first for whom somebody may go gets the ticket. Of those in front some get the
    /// places of those that are about to go, and are not among these.
    fn give_to_first(&mut self, rules: &Rules, claims: &[Claim], all: &[Holding]) {
        let most_tried = (MOST_LOOKS / all.len().max(1)).clamp(1, MOST_TRIED);
        let tried_before = std::mem::take(&mut self.room.tried);
        // For a pool without a backend that is late, or is not, nobody goes.
        let mut is_hopeless = [false; 2];
        let mut nth = 0;
        for claim in claims {
            if claim.backends > 0 {
                nth += 1;
                if nth > tried_before + most_tried {
                    self.room.tried = tried_before + most_tried;
                    return;
                }
                if nth <= tried_before {
                    continue;
                }
            }
            // What goes for one without a backend would for another.
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

    /// The order in which pools get what is free.
    pub(super) fn place_key(&self, number: u32, words: &impl Words) -> (usize, bool, bool, u64) {
        let backends = (
            self.least_of_roles(number, words),
            self.own_backends(number),
        );
        let waited_us = self.oldest_wait_us(number, words).unwrap_or(0);
        let since_us = self.now.us.saturating_sub(waited_us);
        place_key(&self.room.meant_for, number, backends, since_us)
    }

    /// Those that serve a pool's sessions, or are starting to.
    fn own_backends(&self, number: u32) -> usize {
        self.backends.lives(number).expected()
    }

    fn claims(&mut self, words: &impl Words) -> Vec<Claim> {
        let mut pools = self.compared_in_want();
        pools.retain(|number| self.look_whether_it_lacks(*number, words));
        let may_be_reserved = self.reserves_left() > 0;
        let claim = |number: u32| {
            let backends = self.own_backends(number);
            let pool = self.pool(number)?;
            // One that has just lost its last is behind those who wait for that place,
            // though the process has not ended yet.
            let is_losing = !pool.shared().is_empty();
            Some(Claim {
                pool: number,
                backends,
                since_us: (self.now.us).saturating_sub(self.oldest_wait_us(number, words)?),
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

    /// Does somebody wait in a pool, and none may be started?
    pub(super) fn wants_place(&self, number: u32, words: &impl Words) -> bool {
        self.waiting_in(number, words) > 0
            && (self.growth(number, words)).is_some_and(|growth| growth.wants_room())
    }

    /// Does a pool want another's place?
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

    /// Gives the ticket to whom is chosen: of very many to some, and to others the next time.
    fn offer(&mut self, claim: Option<&Claim>, choice: Choice) {
        let mut slots = match choice {
            Choice::Nobody => return,
            Choice::Free(slot) => vec![slot],
            Choice::First(slots) => slots,
        };
        if slots.len() > OFFERED_AT_ONCE {
            let first = self.room.ticket as usize * OFFERED_AT_ONCE % slots.len();
            slots.rotate_left(first);
            slots.truncate(OFFERED_AT_ONCE);
        }
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

    /// Has this one taken the ticket? Then nobody else has, and none of the others that
    /// leave meanwhile, for whatever reason, makes room for anybody.
    fn took_ticket(&mut self, slot: u32, words: &impl Words) -> bool {
        let took = words.ticket_taker() == Some(slot) && self.room.offered.contains(&slot);
        if took {
            self.forget_ticket();
            self.room.untaken_since_us = None;
        }
        took
    }

    /// A backend exits, for whatever reason. Has it taken the ticket, and for whom?
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

    /// The server has refused a backend of this pool, for it has too many connections: the one
    /// of another pool that has been free for longest goes. If nobody can, nor is going, who
    /// waits there to be greeted is told why not.
    pub(super) fn make_room_within_limit(&mut self, number: u32, words: &impl Words) {
        if self.backends.somebody_goes_for(number) {
            return;
        }
        match self.longest_free(number, words) {
            Some(slot) => {
                self.retire_for(slot, number, Reason::RoomWithinConnectionLimit(number));
            }
            None => self.begin_to_end_ungreeted(number),
        }
    }
}
