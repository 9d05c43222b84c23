//! The table of sessions: which sessions exist, and where each is.
//!
//! A session is named by generation and index. A name with an old generation finds nothing, so that
//! a late event or message cannot hit the session that has the slot now. The low half of the name
//! is the index of the session's slot in CONTROL and of its record in the ARENA.
//!
//! A session is at exactly one place, [`Whereabouts`], and only [`Sessions::put`] moves it. It is
//! linked into the lists of waiting sessions if and only if it is `Waiting`. So a session leaves a
//! list from the middle at constant cost, and the lengths are exact. Backends re-arm the sockets of
//! sessions by themselves, so `Queue` and `Sent` mean "went there". `Core::locate` says, with the
//! words of the session's slot, where the session is now.

mod lists;
mod turns;

use super::event::name;
use super::{index_of, SessionId, Shown, Skipped, Words};
pub use lists::Of;
use lists::{Link, OfPool, OfTenant, LINKS, UNLINKED};
pub use turns::DEFAULT_WEIGHT;

/// What a session needs a backend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing has been sent to it since AuthenticationOk. Its socket is armed for its end only.
    Greeting,
    /// The backend that has the session has greeted it, and reports when it gives the session back.
    /// Until then an event of its socket dates from before.
    Return,
    Answer,
}

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// In the epoll: the client is silent.
    Idle,
    /// In the lists of waiting sessions of its pool and its tenant.
    Waiting(Need),
    /// It went into the pool's ready queue.
    Queue(Need),
    /// It went to this backend slot.
    Sent(u32, Need),
    /// Its request is being skipped.
    Skipping(Skipped),
}

impl Whereabouts {
    pub fn is_ungreeted(self) -> bool {
        use Whereabouts::{Queue, Sent, Waiting};
        matches!(
            self,
            Waiting(Need::Greeting) | Queue(Need::Greeting) | Sent(_, Need::Greeting)
        )
    }

    /// What it needs if it has to wait again.
    fn need(self) -> Need {
        if self.is_ungreeted() {
            Need::Greeting
        } else {
            Need::Answer
        }
    }

    /// Does it come back by a message only?
    fn is_announced(self) -> bool {
        use Whereabouts::{Queue, Sent};
        self.is_ungreeted() || matches!(self, Queue(Need::Return) | Sent(_, Need::Return))
    }
}

/// Where a session is now, as its slot's words show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Here: no other process touches it.
    Here(Whereabouts),
    /// In the ready queue, or on its way to a backend.
    OnItsWay(Whereabouts),
    /// Its backend has given it back. The event for that, or the message if `announced`, is still
    /// to come.
    GivenBack { announced: bool },
    /// This backend slot holds it.
    Held(u32),
}

/// What only the dispatcher knows of a session; the rest is in shared memory.
pub struct Session {
    generation: u32,
    is_live: bool,
    tenant: u32,
    pool: u32,
    whereabouts: Whereabouts,
    /// The pool whose queue it went into last; the session may have moved since.
    queue: u32,
    /// The serial of the backend that it was sent to last.
    sent_to: u64,
    /// Its number in the order in which sessions went into queues; lower is earlier.
    queued: u64,
    /// When it began to wait, microseconds of the monotonic clock.
    waits_since_us: u64,
    /// Its number in the order in which sessions began to wait; lower is earlier.
    turn: u64,
    /// The line in which it waits, or waited last.
    line: Of,
    /// The stored bytes of its context.
    context_bytes: i64,
    links: [Link; LINKS],
}

impl Session {
    pub fn tenant(&self) -> u32 {
        self.tenant
    }

    pub fn pool(&self) -> u32 {
        self.pool
    }

    pub fn whereabouts(&self) -> Whereabouts {
        self.whereabouts
    }

    pub fn queue(&self) -> u32 {
        self.queue
    }

    pub fn sent_to(&self) -> u64 {
        self.sent_to
    }

    pub fn queued(&self) -> u64 {
        self.queued
    }

    pub fn is_ungreeted(&self) -> bool {
        self.whereabouts.is_ungreeted()
    }

    pub fn waits_since_us(&self) -> u64 {
        self.waits_since_us
    }

    #[cfg(test)]
    pub fn turn(&self) -> u64 {
        self.turn
    }

    #[cfg(test)]
    pub fn line(&self) -> Of {
        self.line
    }

    pub fn context_bytes(&self) -> i64 {
        self.context_bytes
    }
}

/// All sessions. Bounded by the number of slots.
pub struct Sessions {
    table: Vec<Session>,
    free: Vec<u32>,
    slots: u32,
    live: usize,
    of_tenants: Vec<OfTenant>,
    of_pools: Vec<OfPool>,
    /// In all pools.
    waiting: usize,
    next_turn: u64,
    next_queued: u64,
    /// The generation at which the slots begin to count.
    first_generation: u32,
}

impl Sessions {
    pub fn new(slots: u32, pools: usize, first_generation: u32) -> Sessions {
        Sessions {
            table: Vec::new(),
            free: Vec::new(),
            slots,
            live: 0,
            of_tenants: (0..pools).map(|_| OfTenant::default()).collect(),
            of_pools: (0..pools).map(|_| OfPool::default()).collect(),
            waiting: 0,
            next_turn: 0,
            next_queued: 0,
            first_generation,
        }
    }

    #[cfg(test)]
    pub fn pools(&self) -> u32 {
        self.of_pools.len() as u32
    }

    pub fn live(&self) -> usize {
        self.live
    }

    /// Of all pools.
    pub fn all_waiting(&self) -> usize {
        self.waiting
    }

    /// Every session that has gone into a queue so far has a lower number.
    pub fn next_queued(&self) -> u64 {
        self.next_queued
    }

    /// Creates a session. None if no slot is usable: an orphaned backend may still hold one.
    pub fn create(
        &mut self,
        (tenant, pool): (u32, u32),
        usable: impl Fn(u32) -> bool,
    ) -> Option<SessionId> {
        let mut skipped = Vec::new();
        let mut found = None;
        while let Some(index) = self.next_slot() {
            if usable(index) {
                found = Some(index);
                break;
            }
            skipped.push(index);
        }
        self.free.extend(skipped);
        Some(self.begin(found?, (tenant, pool)))
    }

    /// A session of an earlier dispatcher goes on under its name. False if there is no such slot, a
    /// session has it, or that is no name.
    pub fn adopt(&mut self, id: SessionId, of: (u32, u32)) -> bool {
        self.take_slot_of(id).is_some_and(|generation| {
            // `begin` makes it the name's.
            self.table[index_of(id) as usize].generation = generation - 1;
            self.begin(index_of(id), of) == id
        })
    }

    fn take_slot_of(&mut self, id: SessionId) -> Option<u32> {
        let index = index_of(id);
        let generation = u32::try_from(id >> 32).ok()?;
        if !(1..=0x7fff_ffff).contains(&generation) {
            return None;
        }
        while self.table.len() as u64 <= u64::from(index) {
            let index = self.add_slot()?;
            self.free.push(index);
        }
        // Slots are taken in their order, so it is the last one.
        let at = self.free.iter().rposition(|free| *free == index)?;
        self.free.swap_remove(at);
        Some(generation)
    }

    fn begin(&mut self, index: u32, (tenant, pool): (u32, u32)) -> SessionId {
        let session = &mut self.table[index as usize];
        session.generation = (session.generation.wrapping_add(1) & 0x7fff_ffff).max(1);
        session.is_live = true;
        (session.tenant, session.pool) = (tenant, pool);
        session.context_bytes = 0;
        session.whereabouts = Whereabouts::Idle;
        let generation = session.generation;
        self.live += 1;
        self.comes_in(index);
        let id = name(generation, index);
        ensure!(self.get(id).is_some() && self.live <= self.table.len());
        id
    }

    fn next_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| self.add_slot())
    }

    fn add_slot(&mut self) -> Option<u32> {
        if self.table.len() as u64 >= u64::from(self.slots) {
            return None;
        }
        let index = self.table.len() as u32;
        self.table.push(Session {
            // The first generation is arbitrary, so that names of an earlier dispatcher do not
            // match.
            generation: self
                .first_generation
                .wrapping_add(index.wrapping_mul(0x9E37_79B1)),
            is_live: false,
            tenant: 0,
            pool: 0,
            whereabouts: Whereabouts::Idle,
            queue: 0,
            sent_to: 0,
            queued: 0,
            waits_since_us: 0,
            turn: 0,
            line: Of::Quiet,
            context_bytes: 0,
            links: [UNLINKED; LINKS],
        });
        Some(index)
    }

    pub fn get(&self, session: SessionId) -> Option<&Session> {
        self.table
            .get(index_of(session) as usize)
            .filter(|found| found.is_live && u64::from(found.generation) == session >> 32)
    }

    /// Has there been a session of that name? Generations wrap after 2^31 sessions of a slot: a
    /// generation more than half of that ahead counts as past.
    pub fn was_there(&self, session: SessionId) -> bool {
        let Ok(generation @ 1..=0x7fff_ffff) = u32::try_from(session >> 32) else {
            return false;
        };
        let found = self.table.get(index_of(session) as usize);
        found.is_some_and(|found| {
            found.generation.wrapping_sub(generation) & 0x7fff_ffff <= 0x3fff_ffff
        })
    }

    /// The name of the live session in a slot.
    pub fn in_slot(&self, index: u32) -> Option<SessionId> {
        let found = self.table.get(index as usize)?;
        found.is_live.then(|| name(found.generation, index))
    }

    /// Removes a session and returns its tenant and its pool.
    pub fn remove(&mut self, session: SessionId) -> Option<(u32, u32)> {
        let found = self.get(session)?;
        let (tenant, pool) = (found.tenant, found.pool);
        let index = index_of(session);
        self.put(session, Whereabouts::Idle);
        self.goes_out(index);
        self.table[index as usize].is_live = false;
        self.free.push(index);
        self.live -= 1;
        ensure!(self.get(session).is_none() && self.waiting <= self.live);
        Some((tenant, pool))
    }

    /// Adds `grown` bytes, which may be negative, to the stored context; returns the tenant.
    pub fn context_grows(&mut self, session: SessionId, grown: i64) -> Option<u32> {
        self.get(session)?;
        let found = &mut self.table[index_of(session) as usize];
        found.context_bytes += grown;
        Some(found.tenant)
    }

    /// Slots that have ever been used.
    pub fn slots_used(&self) -> u32 {
        self.table.len() as u32
    }

    /// Names of all live sessions.
    pub fn ids(&self) -> impl Iterator<Item = SessionId> + '_ {
        (0..self.table.len() as u32).filter_map(|index| self.in_slot(index))
    }

    // ---- where each is ---------------------------------------------------

    /// Moves a session. No other function does.
    pub fn put(&mut self, session: SessionId, to: Whereabouts) {
        let index = index_of(session);
        let Some(found) = self.get(session) else {
            return;
        };
        let was = found.whereabouts;
        ensure!(may_follow(was, to), "{was:?} to {to:?}");
        let waits = |place| matches!(place, Whereabouts::Waiting(_));
        if waits(was) && !waits(to) {
            self.waits_no_more(index);
            self.waiting -= 1;
        }
        self.table[index as usize].whereabouts = to;
        self.count_ungreeted(self.table[index as usize].tenant, was, to);
        if waits(to) && !waits(was) {
            self.waiting += 1;
            self.waits_by_turn(index);
        }
    }

    /// The session begins to wait, behind all others of its line.
    pub fn wait(&mut self, session: SessionId, line: Of, now_us: u64) {
        let Some(need) = self.get(session).map(|found| found.whereabouts.need()) else {
            return;
        };
        self.begin_wait(session, need, line, now_us);
    }

    /// The session begins to wait for its greeting.
    pub fn wait_for_greeting(&mut self, session: SessionId, now_us: u64) {
        self.begin_wait(session, Need::Greeting, Of::Quiet, now_us);
    }

    fn begin_wait(&mut self, session: SessionId, need: Need, line: Of, now_us: u64) {
        let Some(found) = self.get(session) else {
            return;
        };
        ensure!(!matches!(found.whereabouts, Whereabouts::Waiting(_)));
        let turn = self.next_turn;
        self.next_turn += 1;
        let found = &mut self.table[index_of(session) as usize];
        found.waits_since_us = now_us;
        found.turn = turn;
        found.line = line;
        self.put(session, Whereabouts::Waiting(need));
    }

    /// Puts the session back at its old place in its line: its hand-over failed.
    pub fn wait_on(&mut self, session: SessionId) {
        if let Some(found) = self.get(session) {
            let (need, tenant, line) = (found.whereabouts.need(), found.tenant, found.line);
            self.takes_turns(tenant, line, false);
            self.put(session, Whereabouts::Waiting(need));
        }
    }

    pub fn enqueue(&mut self, session: SessionId) {
        if let Some(found) = self.get(session) {
            let (need, tenant, line) = (found.whereabouts.need(), found.tenant, found.line);
            let found = &mut self.table[index_of(session) as usize];
            found.queue = found.pool;
            found.queued = self.next_queued;
            self.next_queued += 1;
            self.put(session, Whereabouts::Queue(need));
            self.takes_turns(tenant, line, true);
        }
    }

    pub fn send_to(&mut self, session: SessionId, slot: u32, serial: u64) {
        if let Some(found) = self.get(session) {
            let (need, tenant, line) = (found.whereabouts.need(), found.tenant, found.line);
            self.table[index_of(session) as usize].sent_to = serial;
            self.put(session, Whereabouts::Sent(slot, need));
            self.takes_turns(tenant, line, true);
        }
    }

    /// A backend has the session, which has just been adopted.
    pub fn is_with(&mut self, session: SessionId, slot: u32, serial: u64, need: Need) {
        if self.get(session).is_some() {
            self.table[index_of(session) as usize].sent_to = serial;
            self.put(session, Whereabouts::Sent(slot, need));
        }
    }

    pub fn greeted(&mut self, session: SessionId) {
        let to = match self.get(session).map(|found| found.whereabouts) {
            Some(Whereabouts::Queue(_)) => Whereabouts::Queue(Need::Return),
            Some(Whereabouts::Sent(slot, _)) => Whereabouts::Sent(slot, Need::Return),
            _ => return,
        };
        self.put(session, to);
    }

    /// Where the session is, as its slot shows it. Only this function combines the dispatcher's own
    /// state with the words that backends write.
    pub fn locate(
        &self,
        session: SessionId,
        words: &impl Words,
        is_possible: impl Fn(u32) -> bool,
    ) -> Option<Location> {
        let found = self.get(session)?;
        let index = index_of(session);
        let sent = match found.whereabouts {
            here @ (Whereabouts::Idle | Whereabouts::Waiting(_) | Whereabouts::Skipping(_)) => {
                // Whatever its words say: it went to no backend.
                return Some(Location::Here(here));
            }
            sent @ (Whereabouts::Queue(_) | Whereabouts::Sent(..)) => sent,
        };
        let holder = words.holder(index).filter(|slot| is_possible(*slot));
        Some(match (holder, words.shown(index)) {
            (Some(slot), _) => Location::Held(slot),
            // A backend that gives a session back writes this state last.
            (None, Shown::Idle) => Location::GivenBack {
                announced: sent.is_announced(),
            },
            (None, _) => Location::OnItsWay(sent),
        })
    }
}

/// The permitted moves. Any session may end, hence become `Idle`.
fn may_follow(was: Whereabouts, to: Whereabouts) -> bool {
    use Whereabouts::{Idle, Queue, Sent, Skipping, Waiting};
    match (was, to) {
        (_, Idle) => true,
        (Waiting(_), Waiting(_) | Queue(_) | Sent(..) | Skipping(_)) => true,
        // Its hand-over failed, it came back unserved, or it asks for something else; or it has
        // been greeted there.
        (Queue(_) | Sent(..), Waiting(_)) | (Queue(_), Queue(_)) => true,
        (Sent(before, _), Sent(after, _)) => before == after,
        (Idle, Waiting(_)) => true,
        // A backend has it since before this dispatcher.
        (Idle, Sent(_, Need::Return | Need::Greeting)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pool has one tenant, with the pool's number.
    fn sessions(slots: u32) -> Sessions {
        let mut sessions = Sessions::new(slots, 8, 77);
        (0..8).for_each(|number| sessions.add_tenant(number, number));
        sessions
    }

    fn create(sessions: &mut Sessions, pool: u32) -> Option<SessionId> {
        sessions.create((pool, pool), |_| true)
    }

    #[test]
    fn an_old_name_does_not_find_the_slots_next_session() {
        let mut sessions = sessions(1);
        let first = create(&mut sessions, 3).unwrap();
        assert!(create(&mut sessions, 3).is_none());
        assert_eq!(sessions.get(first).unwrap().pool, 3);
        assert!(sessions.remove(first).is_some());
        assert!(sessions.remove(first).is_none());
        let second = create(&mut sessions, 4).unwrap();
        assert_eq!(index_of(first), index_of(second));
        assert!(sessions.get(first).is_none());
        assert!(sessions.was_there(first) && sessions.was_there(second));
        for never in [0, 1, second + 1, second + (1 << 32), second | 1 << 63] {
            assert!(!sessions.was_there(never), "{never:x}");
        }
        assert_eq!(sessions.ids().collect::<Vec<_>>(), [second]);
        assert_eq!(sessions.live(), 1);
    }

    #[test]
    fn an_adopted_session_keeps_its_name_and_no_other_gets_it() {
        let mut sessions = sessions(8);
        for generation in [1, 77, 0x7fff_ffff] {
            let id = name(generation, 5);
            assert!(sessions.adopt(id, (0, 0)));
            assert!(sessions.get(id).is_some() && !sessions.adopt(id, (0, 0)));
            sessions.remove(id);
            assert!(sessions.was_there(id));
        }
        assert!(!sessions.adopt(name(1, 8), (0, 0)), "there is no such slot");
        assert!(!sessions.adopt(5, (0, 0)), "that is no name");
    }

    #[test]
    fn a_slot_that_an_orphan_holds_is_left_alone() {
        let mut sessions = sessions(3);
        let session = sessions.create((0, 0), |index| index == 2).unwrap();
        assert_eq!(index_of(session), 2);
        assert!(sessions.create((0, 0), |index| index == 2).is_none());
        assert!(create(&mut sessions, 0).is_some());
        assert!(create(&mut sessions, 0).is_some());
    }

    #[test]
    fn session_that_returns_unserved_keeps_its_turn() {
        let mut sessions = sessions(9);
        let ids: Vec<SessionId> = (0..5).filter_map(|_| create(&mut sessions, 1)).collect();
        for id in &ids {
            sessions.wait(*id, Of::Quiet, 5);
        }
        sessions.send_to(ids[2], 7, 1);
        sessions.enqueue(ids[0]);
        sessions.enqueue(ids[1]);
        assert_eq!(sessions.fifo(1).collect::<Vec<_>>(), ids[3..]);
        sessions.wait_on(ids[1]);
        sessions.wait_on(ids[2]);
        sessions.wait_on(ids[0]);
        assert_eq!(sessions.fifo(1).collect::<Vec<_>>(), ids);
        sessions.put(ids[1], Whereabouts::Skipping(Skipped::Cancelled));
        sessions.remove(ids[4]);
        assert_eq!(
            sessions.fifo(1).collect::<Vec<_>>(),
            [ids[0], ids[2], ids[3]]
        );
        assert_eq!((sessions.waiting(1), sessions.members(1)), (3, 4));
    }

    #[test]
    fn quiet_session_waits_for_every_other_turn_of_busy_sessions() {
        let mut sessions = sessions(9);
        let ids: Vec<SessionId> = (0..6).filter_map(|_| create(&mut sessions, 1)).collect();
        for id in &ids[..4] {
            sessions.wait(*id, Of::Busy, 5);
        }
        for id in &ids[4..] {
            sessions.wait(*id, Of::Quiet, 6);
        }
        assert_eq!(sessions.longest_waiting(1), Some(ids[0]));
        let mut served = Vec::new();
        while let Some(id) = sessions.first_waiting(1) {
            // A session whose hand-over failed is still the next.
            sessions.enqueue(id);
            sessions.wait_on(id);
            assert_eq!(sessions.first_waiting(1), Some(id));
            sessions.enqueue(id);
            served.push(id);
        }
        assert_eq!(served, [4, 0, 5, 1, 2, 3].map(|at| ids[at]));
    }

    #[test]
    fn rotation_visits_sessions_of_a_pool_by_number_despite_changes() {
        let mut sessions = sessions(9);
        let ids: Vec<SessionId> = (0..5).filter_map(|_| create(&mut sessions, 1)).collect();
        let mut seen: Vec<SessionId> = (0..2).filter_map(|_| sessions.rotate(1)).collect();
        // One session that was seen and one that was not are removed, and one is added.
        sessions.remove(ids[0]);
        sessions.remove(ids[3]);
        let new = create(&mut sessions, 1).unwrap();
        seen.extend((2..5).filter_map(|_| sessions.rotate(1)));
        assert_eq!(seen, [ids[0], ids[1], ids[2], ids[4], ids[1]]);
        assert_eq!(sessions.of_pool(1).count(), sessions.members(1));
        assert!(sessions.of_pool(1).any(|id| id == new));
        assert_eq!(sessions.rotate(2), None);
    }
}
