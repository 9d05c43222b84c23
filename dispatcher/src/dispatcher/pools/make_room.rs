//! Making room: as many backends as there may be exist, and a pool wants one.
//!
//! Who may go for whom is room.rs's to say. Here the word is passed: those that
//! may go find a *ticket* in their slots, and the first of them that comes to
//! a boundary takes it (pass_baton, idle.c) and exits. So a backend that is
//! held by a long transaction is in nobody's way, and if nobody wants room any
//! more the ticket is taken back and nothing has happened. There is one ticket
//! at a time; it is given out anew in each tick, as what counts has changed.

use super::backends::Backend;
use super::pool::Pool;
use super::room::{choose_surplus, place_key, Choice, Claim, Holding, Rules};
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::wire;
use crate::protocol::LimitOf;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use tracing::debug;

/// A surplus that has lasted so long goes: a session that is dedicated for a
/// moment, and again and again, shall not cost a backend each time.
const SURPLUS_US: u64 = 1_000_000;
/// Who has taken a ticket says so at once. If he does not he cannot go.
const TAKEN_US: u64 = 1_000_000;

/// The ticket, and when to look.
#[derive(Default)]
pub struct Room {
    /// Pools that get the places that have just become free, in this order.
    pub meant_for: Vec<u32>,
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
}

impl Room {
    pub fn is_offered(&self) -> bool {
        !self.offered.is_empty()
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

impl Dispatcher {
    /// Called in each round, after the pools have been looked at.
    pub fn make_room(&mut self) {
        if !self.room.is_due {
            return;
        }
        self.room.is_due = false;
        if !self.take_ticket_back() {
            return;
        }
        if self.stopping.is_some() {
            return;
        }
        let mut claims = self.claims();
        self.room.is_wanted = !claims.is_empty();
        let places = self.places(self.going_backends());
        let is_surplus = self.room.lasting_surplus(places.has_surplus(), self.now_us);
        if !is_surplus && claims.is_empty() {
            return;
        }
        let all = self.holdings();
        if is_surplus {
            return self.choose_and_offer(None, &all, choose_surplus);
        }
        let timeout_us = self.parameters.session_wait_timeout_ms * 1000;
        let rules = Rules::new(self.now_us, timeout_us, all.len(), claims.len());
        rules.sort(&mut claims);
        // The first ones get the places of those that are about to go.
        for claim in claims.into_iter().skip(places.room()) {
            self.choose_and_offer(Some(claim.pool), &all, |all| rules.choose(&claim, all));
            if self.room.is_offered() {
                return;
            }
        }
    }

    /// The order in which pools get what is free.
    pub fn place_key(&self, number: u32) -> (usize, bool, u64) {
        let pool = self.pools[number as usize].as_ref();
        let backends = pool.map_or(0, |pool| self.own_backends(pool));
        let waited_us = self.oldest_wait_us(number).unwrap_or(0);
        let since_us = self.now_us.saturating_sub(waited_us);
        place_key(&self.room.meant_for, number, backends, since_us)
    }

    /// Those that serve a pool's sessions, or are starting to.
    fn own_backends(&self, pool: &Pool) -> usize {
        let serves = |slot: &&u32| {
            let backend = self.backends[**slot as usize].as_ref();
            backend.is_some_and(|backend| !backend.retiring && !backend.is_dedicated())
        };
        pool.backends.iter().filter(serves).count()
    }

    fn claims(&self) -> Vec<Claim> {
        let claim = |number: u32| {
            let pool = self.pools[number as usize].as_ref()?;
            if self.waiting_in(number) == 0 || !self.growth(number)?.wants_room() {
                return None;
            }
            Some(Claim {
                pool: number,
                backends: self.own_backends(pool),
                since_us: self.now_us.saturating_sub(self.oldest_wait_us(number)?),
            })
        };
        (0..self.pools.len() as u32).filter_map(claim).collect()
    }

    /// Backends that will have gone in a moment.
    fn going_backends(&self) -> usize {
        let is_going = |(slot, backend): &(usize, &Backend)| {
            let state = self.control.backends[*slot].state.load(SeqCst);
            backend.connection.is_some()
                && backend.retiring
                && matches!(state, BACKEND_RETIRING | BACKEND_IDLE | BACKEND_LINGER)
        };
        let backends = self.backends.iter().enumerate();
        let there_are = backends.filter_map(|(slot, backend)| Some((slot, backend.as_ref()?)));
        // There may be far more slots than backends.
        let all = there_are.take(self.backend_count);
        all.filter(is_going).count()
    }

    /// What serves sessions of pools, and may be asked to go.
    fn holdings(&self) -> Vec<Holding> {
        let mut all = Vec::new();
        for number in 0..self.pools.len() as u32 {
            let Some(pool) = self.pools[number as usize].as_ref() else {
                continue;
            };
            let backends = self.serving_backends(number);
            if backends == 0 {
                continue;
            }
            let waits_since_us = (self.waiting_in(number) > 0)
                .then(|| self.oldest_wait_us(number))
                .flatten()
                .map(|waited_us| self.now_us.saturating_sub(waited_us));
            for slot in pool.backends.iter().filter(|slot| self.is_usable(**slot)) {
                let memory = &self.control.backends[*slot as usize];
                let is_free = matches!(memory.state.load(SeqCst), BACKEND_IDLE | BACKEND_LINGER);
                let free_for_us = self.now - memory.state_since_us.load(Relaxed);
                let backend = self.backends[*slot as usize].as_ref();
                all.push(Holding {
                    slot: *slot,
                    pool: number,
                    backends,
                    waits_since_us,
                    has_sessions: pool.sessions > 0,
                    since_us: backend.map_or(0, |backend| backend.attached_us),
                    has_served: memory.transactions.load(Relaxed) > 0,
                    free_for_us: is_free.then(|| u64::try_from(free_for_us).unwrap_or(0)),
                });
            }
        }
        all
    }

    /// Gives the ticket to whom `choose` names, but to no pool's last backend
    /// that could not be replaced.
    fn choose_and_offer(
        &mut self,
        pool: Option<u32>,
        all: &[Holding],
        choose: impl Fn(&[Holding]) -> Choice,
    ) {
        let mut all = all.to_vec();
        loop {
            let slots = match choose(&all) {
                Choice::Nobody => return,
                Choice::Free(slot) => vec![slot],
                Choice::First(slots) => slots,
            };
            let mut spared = Vec::new();
            for held in all.iter().filter(|held| slots.contains(&held.slot)) {
                if !spared.contains(&held.pool) && !self.may_lose_one(held.pool) {
                    spared.push(held.pool);
                }
            }
            if spared.is_empty() {
                return self.offer(pool, slots);
            }
            all.retain(|held| !spared.contains(&held.pool));
        }
    }

    fn offer(&mut self, pool: Option<u32>, slots: Vec<u32>) {
        let ticket = self.room.ticket.wrapping_add(1);
        self.room.ticket = ticket.max(RETIRE_FIRST_TICKET);
        for slot in &slots {
            let memory = &self.control.backends[*slot as usize];
            memory.retire.store(self.room.ticket, SeqCst);
        }
        self.control
            .header
            .room_ticket
            .store(self.room.ticket, SeqCst);
        for slot in &slots {
            // One that goes to sleep only now is looked at in the next tick.
            let state = self.control.backends[*slot as usize].state.load(SeqCst);
            if state == BACKEND_IDLE || state == BACKEND_LINGER {
                self.send_to_backend(*slot, &wire::bare(MSG_RETIRE, 0));
            }
        }
        self.room.offered = slots;
        self.room.offered_for = pool;
        self.room.taken_us = None;
    }

    /// False if somebody has taken it, and has not said so yet.
    fn take_ticket_back(&mut self) -> bool {
        if !self.room.is_offered() {
            return true;
        }
        let word = &self.control.header.room_ticket;
        let is_ours = word
            .compare_exchange(self.room.ticket, 0, SeqCst, SeqCst)
            .is_ok();
        let taken_us = *self.room.taken_us.get_or_insert(self.now_us);
        if !is_ours && self.now_us < taken_us + TAKEN_US {
            return false;
        }
        self.forget_ticket();
        true
    }

    fn forget_ticket(&mut self) {
        for slot in std::mem::take(&mut self.room.offered) {
            let retire = &self.control.backends[slot as usize].retire;
            let _ = retire.compare_exchange(self.room.ticket, RETIRE_NOT, SeqCst, SeqCst);
        }
        self.room.taken_us = None;
    }

    /// Has this one taken the ticket? Then nobody else may.
    fn took_ticket(&mut self, slot: u32) -> bool {
        let is_taken = self.control.header.room_ticket.load(SeqCst) == 0;
        let took = is_taken && self.room.offered.contains(&slot);
        if took {
            self.forget_ticket();
        }
        took
    }

    /// RETIRING: a backend exits, for whatever reason.
    pub fn backend_retires(&mut self, slot: u32) {
        let pool = self.room.offered_for;
        if self.took_ticket(slot) {
            debug!("backend {slot} makes room for pool {pool:?}");
            if let Some(backend) = self.backends[slot as usize].as_mut() {
                backend.makes_room_for = pool;
            }
        }
        self.room.is_due = true;
    }

    /// A backend has gone.
    pub fn room_made(&mut self, slot: u32, makes_room_for: Option<u32>) {
        let pool = self.room.offered_for;
        let pool = if self.took_ticket(slot) {
            pool
        } else {
            makes_room_for
        };
        self.room.meant_for.extend(pool);
        self.room.is_due = true;
    }

    /// The server has refused a backend: it has too many connections, of all,
    /// or of a role or a database with CONNECTION LIMIT. A free backend of
    /// another pool that counts there goes, for it is sessions that count.
    /// False if there is none, and none is going.
    pub fn make_room_within_limits(&mut self, number: u32, limit: LimitOf) -> bool {
        let Some(pool) = self.pools[number as usize].as_ref() else {
            return false;
        };
        let key = pool.key.clone();
        let mut backends = self.backends.iter().flatten();
        if backends.any(|backend| backend.retiring && backend.makes_room_for == Some(number)) {
            return true;
        }
        let mut free: Vec<Holding> = self.holdings();
        free.retain(|held| held.pool != number && held.free_for_us.is_some());
        free.sort_by_key(|held| std::cmp::Reverse(held.free_for_us));
        for held in free {
            let counts = self.pools[held.pool as usize]
                .as_ref()
                .is_some_and(|pool| match limit {
                    LimitOf::Role => pool.key.role_oid == key.role_oid,
                    LimitOf::Database => pool.key.database_oid == key.database_oid,
                    LimitOf::Server => true,
                });
            if counts && self.may_lose_one(held.pool) {
                if let Some(backend) = self.backends[held.slot as usize].as_mut() {
                    backend.makes_room_for = Some(number);
                }
                self.retire_backend(held.slot);
                return true;
            }
        }
        false
    }
}
