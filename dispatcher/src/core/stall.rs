//! When one more backend is useful, though there are as many as permitted: when sessions wait, and
//! the existing backends do not come to them.
//!
//! As long as backends come to the end of their transactions, more of them only add contention. But
//! all of them may be taken for long: by transactions that wait for a lock whose holder waits for a
//! backend, for clients that think or do not read, by some that compute, or by backends that do not
//! come to the end of their start. Then nothing is handed out to any waiting session. A backend
//! that has been in one transaction for a while is *held*, and another backend may take its place.
//! docs/design/pools.md has the reasons.

use super::backends::Life;
use super::lifecycle::Reason;
use super::{index_of, Action, Core, SessionId, Shown, Word, Words};
use std::cmp::Reverse;
use std::collections::HashSet;

/// A stall: for this long no session has been handed out, and a session waits.
const STALL_US: u64 = 200_000;
/// Soon after a stall this time suffices: the backends started for it are taken, too.
const AGAIN_US: u64 = 100_000;
/// A stall makes the next one start with a larger boost if that follows within this time.
const SOON_US: u64 = 2_000_000;
/// A session has waited for this long, whatever was handed out.
const LATE_US: u64 = 1_000_000;
/// A session whose role has no backend at all has waited for this long.
const NONE_US: u64 = 500_000;
/// A backend is measured again after this time,
const LOOK_US: u64 = 200_000;
/// and counts as idle if its CPU time is less than 1/LEAST_SHARE of it.
const LEAST_SHARE: u64 = 20;
/// From one step to the next.
const STEP_US: u64 = 100_000;
/// A backend's start is slow after this time.
pub const SLOW_START_US: u64 = 1_000_000;
/// How many more may be started at first; twice as many the next time.
const FIRST_BOOST: usize = 4;
const MOST_BOOST: usize = 1024;

/// Does any waiting session make progress?
#[derive(Debug, Default)]
pub struct Stall {
    handed_out: u64,
    since_us: u64,
    next_us: u64,
    /// How many more backends may count as held until the next tick.
    steps: usize,
    /// How many more may be started than are held.
    boost: usize,
    /// The boost of the next stall, and until when that counts.
    next_boost: usize,
    soon_until_us: u64,
}

/// The waiting sessions at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiting {
    /// Sessions of all pools.
    pub sessions: usize,
    /// The longest wait.
    pub longest_us: Option<u64>,
    /// The longest wait of sessions whose role has no backend.
    pub without_us: Option<u64>,
}

impl Stall {
    /// Runs in each tick. `handed_out`: sessions of all pools that have got a backend so far.
    /// `timeout_us`: session_wait_timeout, 0 if there is none. `held`: how many backends are held.
    pub fn look(
        &mut self,
        now_us: u64,
        handed_out: u64,
        waiting: Waiting,
        timeout_us: u64,
        held: usize,
    ) {
        (self.steps, self.boost) = (0, 0);
        if handed_out != self.handed_out {
            self.handed_out = handed_out;
            self.since_us = now_us;
        }
        let limit = |most: u64, share: u64| match timeout_us {
            0 => most,
            timeout_us => most.min(timeout_us / share),
        };
        if now_us >= self.soon_until_us {
            self.next_boost = FIRST_BOOST;
        }
        let stall_us = limit(STALL_US, 4);
        let stall_us = match self.next_boost > FIRST_BOOST {
            true => stall_us.min(AGAIN_US),
            false => stall_us,
        };
        let Some(waited_us) = waiting
            .longest_us
            .filter(|waited_us| *waited_us >= stall_us)
        else {
            return;
        };
        let is_stalled = now_us >= self.since_us + stall_us;
        let has_none = waiting.without_us >= Some(limit(NONE_US, 3));
        if !is_stalled && !has_none && waited_us < limit(LATE_US, 2) {
            return;
        }
        if is_stalled || has_none {
            self.boost = match is_stalled {
                true => self.next_boost.min(waiting.sessions).max(1),
                false => 1,
            };
        }
        if now_us < self.next_us {
            return;
        }
        self.next_us = now_us + STEP_US;
        // One at a time, then half as many again: transactions may hold the added backends in turn.
        self.steps = (held / 2).max(1);
        if is_stalled {
            self.next_boost = (2 * self.next_boost).min(MOST_BOOST);
            self.soon_until_us = now_us + SOON_US;
        }
    }

    /// How many more may be started than are held.
    pub fn boost(&self) -> usize {
        self.boost
    }

    pub fn allows_one(&self) -> bool {
        self.steps > 0
    }

    /// One more backend counts as held.
    pub fn step(&mut self) {
        self.steps = self.steps.saturating_sub(1);
    }
}

/// What a backend has done since it was last measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// It has come to the end of a transaction.
    Moved,
    /// In the same transaction, it has computed,
    Computed,
    /// or done next to nothing.
    Idled,
}

/// A measurement of a backend at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub at_us: u64,
    /// Transactions that it has completed.
    pub transactions: u64,
    /// CPU time that it has used.
    pub cpu_us: u64,
}

impl Seen {
    /// Is it time to look again?
    pub fn is_past(&self, now_us: u64) -> bool {
        now_us >= self.at_us + LOOK_US
    }

    /// None: it is too early to say.
    pub fn since(&self, before: &Seen) -> Option<Since> {
        if self.transactions != before.transactions {
            return Some(Since::Moved);
        }
        let passed_us = self.at_us.saturating_sub(before.at_us);
        let used_us = self.cpu_us.saturating_sub(before.cpu_us);
        let since = match used_us < passed_us / LEAST_SHARE {
            true => Since::Idled,
            false => Since::Computed,
        };
        (passed_us >= LOOK_US).then_some(since)
    }
}

// ----------------------------------------------------------------------------
// Backends that transactions hold for long, while other sessions wait.
//
// The rules above say what that means, and sizing.rs how many backends may be added for them. The
// shell tells how much CPU time a backend has used (`Action::Measure`).

/// Backends that are measured in a tick, a few system calls each. There are ten ticks from one look
/// at a backend to the next, so ten times as many backends are all measured in time.
const MEASURED_AT_ONCE: usize = 256;

impl Core {
    /// Is it a backend whose transactions count as held, or a dedicated one?
    fn may_be_idle(&self, slot: u32) -> bool {
        let life = self.backends.life(slot);
        life.is_some_and(|it| it.may_be_held() || it.is_dedicated() && !it.is_leaving())
    }

    /// Runs in each tick.
    pub(super) fn look_for_held(&mut self, words: &impl Words) {
        let held = self.backends.held();
        let waiting = Waiting {
            sessions: self.waiting(words),
            longest_us: self.longest_seen_us(),
            without_us: self.longest_without_us(),
        };
        let (boost, timeout_us) = (self.stall.boost(), self.limits.session_wait_timeout_us);
        let handed_out = self.handed_out;
        (self.stall).look(self.now.us, handed_out, waiting, timeout_us, held);
        if waiting.longest_us.is_none() && held == 0 {
            return;
        }
        if self.stall.boost() > boost {
            self.mark_waiting();
        }
        let are_more = self.places(0).has_more_than_held();
        if held == 0 && !are_more && !self.stall.allows_one() {
            return;
        }
        let (first, end) = (self.next_measured, self.backends.end());
        let mut measured = 0;
        for slot in (first.min(end)..end).chain(0..first.min(end)) {
            let Some(backend) = self.backends.get(slot) else {
                continue;
            };
            if matches!(backend.life(), Life::Starting { .. }) {
                let is_slow = self.now.us >= backend.started_us() + SLOW_START_US;
                let was_held = backend.life().is_held();
                let is_held = is_slow && (was_held || self.places(0).has_more_than_held());
                self.backends.is_seen(slot, None, is_held);
                continue;
            }
            let is_at_work = self.may_be_idle(slot) && words.backend(slot) == Word::Busy;
            if backend.is_to_be_seen(is_at_work, self.now.us) {
                self.actions.push_back(Action::Measure(slot));
                measured += 1;
                if measured == MEASURED_AT_ONCE {
                    self.next_measured = slot + 1;
                    return;
                }
            }
        }
    }

    /// Takes the totals of a backend.
    pub(super) fn measured(
        &mut self,
        slot: u32,
        transactions: u64,
        cpu_us: u64,
        is_unread: bool,
        words: &impl Words,
    ) {
        let may_be_held = self.backends.may_be_held(slot);
        let is_busy = self.may_be_idle(slot) && words.backend(slot) == Word::Busy;
        let now = Seen {
            at_us: self.now.us,
            transactions,
            cpu_us,
        };
        self.look_at_client(slot, is_unread, now, words);
        let Some(backend) = self.backends.get(slot) else {
            return;
        };
        let was_held = backend.life().is_held();
        let since = match backend.seen() {
            Some(before) if is_busy => match now.since(&before) {
                None => return,
                Some(since) => since,
            },
            _ => Since::Moved,
        };
        let is_held = since != Since::Moved
            && may_be_held
            && (was_held
                || self.places(0).has_more_than_held()
                || since == Since::Idled && self.stall.allows_one());
        if since == Since::Idled && may_be_held && !is_held {
            // Its turn comes: it is measured again in the next tick.
            return;
        }
        self.backends.is_seen(slot, is_busy.then_some(now), is_held);
        if is_held && !was_held {
            self.stall.step();
            self.mark_waiting();
        } else if was_held && !is_held {
            self.room.look_for_surplus();
        }
    }

    /// Runs in each tick in which a session waits. Notes which sessions have backends at the
    /// moment: how many backends each role has counts for the waiting sessions.
    pub(super) fn note_roles(&mut self, words: &impl Words) {
        if self.in_want.is_empty() {
            return;
        }
        for slot in 0..self.backends.end() {
            self.note_role(slot, words);
        }
    }

    /// A lingering backend counts for no role. The role of an assigned backend, which has not taken
    /// its session yet, was noted when the session was sent there.
    pub(super) fn note_role(&mut self, slot: u32, words: &impl Words) {
        let session = match words.backend(slot) {
            Word::Assigned => return,
            Word::Linger => 0,
            _ => words.backend_session(slot),
        };
        let role = self.key_of(session).map(|key| key.role_oid);
        self.backends.is_of_role(slot, role);
    }
}

// ----------------------------------------------------------------------------
// Clients that keep a backend waiting: idle in a transaction, or without reading their results.
//
// In a stall extra backends take the places of those that such clients keep, as far as permitted.
// If none are left, and a role without any backend waits in vain for one, the connection of a
// client ends that has kept its backend so for pg_baton.extra_idle_timeout: one of the role with
// the most backends, and of that role the one that has for longest. docs/design/pools.md has the
// reasons.

/// While a backend waits for its client to read, its CPU time is at most 1/READS_PART of the wait;
/// a client that reads some kB a second causes more.
const READS_PART: u64 = 10_000;
/// Plus this, for interrupts.
const READS_LEAST_US: u64 = 200;

/// A measurement counts for this long: backends are not measured while no session waits.
const SEEN_US: u64 = 1_000_000;

/// What a backend waits for. `since` is the time of the session's state, which the end of each
/// statement changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientOwes {
    /// The client's next request of the transaction.
    Request { since: i64 },
    /// That the client reads what was sent.
    Reading { since: i64 },
}

/// A backend waits for its session's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleClient {
    session: SessionId,
    /// Transactions that the backend had completed.
    transactions: u64,
    owes: ClientOwes,
    since_us: u64,
    /// When a measurement last found it so.
    seen_us: u64,
    /// CPU time of the backend at the start of the wait.
    cpu_us: u64,
}

impl IdleClient {
    /// Seen again: is it the same wait?
    fn goes_on(&self, now: &IdleClient) -> bool {
        let passed_us = now.since_us.saturating_sub(self.since_us);
        let used_us = now.cpu_us.saturating_sub(self.cpu_us);
        let is_still = match self.owes {
            ClientOwes::Request { .. } => true,
            ClientOwes::Reading { .. } => used_us <= READS_LEAST_US + passed_us / READS_PART,
        };
        let same = |it: &IdleClient| (it.session, it.transactions, it.owes);
        same(self) == same(now) && is_still
    }
}

impl Core {
    /// A backend at work has been measured.
    pub(super) fn look_at_client(
        &mut self,
        slot: u32,
        is_unread: bool,
        seen: Seen,
        words: &impl Words,
    ) {
        let session = words.backend_session(slot);
        let owes = self.owed(session, is_unread, words);
        let now = owes.map(|owes| IdleClient {
            session,
            transactions: seen.transactions,
            owes,
            since_us: seen.at_us,
            seen_us: seen.at_us,
            cpu_us: seen.cpu_us,
        });
        let before = self.backends.get(slot).and_then(|it| it.idle_client());
        let is = now.map(|now| match before.filter(|it| it.goes_on(&now)) {
            Some(before) => IdleClient {
                seen_us: now.seen_us,
                ..before
            },
            None => now,
        });
        self.backends.set_idle_client(slot, is);
    }

    /// The client owes a request if the session is idle in a transaction.
    fn owed(&self, session: SessionId, is_unread: bool, words: &impl Words) -> Option<ClientOwes> {
        // The backend wrote the word itself: it may name anything.
        self.sessions.get(session)?;
        let index = index_of(session);
        let since = words.session_since_us(index);
        match words.shown(index) {
            Shown::InTransaction => Some(ClientOwes::Request { since }),
            _ => is_unread.then_some(ClientOwes::Reading { since }),
        }
    }

    /// Runs in each tick.
    pub(super) fn end_idle_client(&mut self, words: &impl Words) {
        let least_us = self.limits.extra_idle_timeout_us;
        let places = self.places(0);
        let in_vain = self.longest_in_vain();
        let Some((_, waits)) = in_vain.filter(|(us, _)| *us >= self.in_vain_us()) else {
            return;
        };
        if least_us == 0 || !places.has_extra() || self.is_one_being_evicted() {
            return;
        }
        // A dedicated session that came within its bound takes no place from others.
        let by_dedication = self.backends.by_dedication().iter();
        let within: HashSet<u32> = by_dedication
            .take(places.most_dedicated())
            .map(|(_, slot)| *slot)
            .collect();
        let idle = self.backends.iter().filter_map(|(slot, backend)| {
            let client = backend.idle_client()?;
            let is_long = self.now.us >= client.since_us + least_us;
            let was_unread = matches!(client.owes, ClientOwes::Reading { .. });
            let is_still = words.backend_session(slot) == client.session
                && self.now.us < client.seen_us + SEEN_US
                && self.owed(client.session, was_unread, words) == Some(client.owes);
            let backends = self.backends.of_role(backend.role()?);
            let key = (backends, Reverse(client.since_us));
            (is_long && is_still && !within.contains(&slot)).then_some((
                key,
                slot,
                backend.serial(),
                client,
            ))
        });
        let Some((_, slot, serial, client)) = idle.max_by_key(|(key, ..)| *key) else {
            return;
        };
        #[cfg(test)]
        self.check_waits_in_vain();
        self.is_evicted(slot, serial);
        // Its place is not for waiting sessions of its own pool.
        self.retire(slot, Reason::RoomFromIdle(waits));
        self.act(Action::EndIdle {
            slot,
            id: client.session,
            waits_for: client.owes,
            idle_us: self.now.us - client.since_us,
        });
    }
}

#[cfg(test)]
mod stall_tests {
    use super::*;

    fn waiting(longest_us: u64) -> Waiting {
        Waiting {
            sessions: 50,
            longest_us: Some(longest_us),
            without_us: None,
        }
    }

    fn boosts(stall: &mut Stall, now_us: u64, handed_out: u64, of: Waiting) -> usize {
        stall.look(now_us, handed_out, of, 60_000_000, 0);
        stall.boost()
    }

    #[test]
    fn as_long_as_sessions_are_handed_out_there_is_no_stall() {
        let mut stall = Stall::default();
        for step in 1..=100 {
            let now_us = step * 100_000;
            assert_eq!(boosts(&mut stall, now_us, step, waiting(900_000)), 0);
            assert!(!stall.allows_one());
        }
        // Nothing has been handed out since 10 s.
        assert_eq!(boosts(&mut stall, 10_180_000, 100, waiting(900_000)), 0);
        assert_eq!(boosts(&mut stall, 10_200_000, 100, waiting(900_000)), 4);
        assert!(stall.allows_one());
        assert_eq!(boosts(&mut stall, 10_220_000, 100, waiting(90_000)), 0);
    }

    #[test]
    fn late_session_has_idle_backends_replaced_and_no_others() {
        let mut stall = Stall::default();
        assert_eq!(boosts(&mut stall, 5_000_000, 7, waiting(990_000)), 0);
        assert!(!stall.allows_one());
        assert_eq!(boosts(&mut stall, 5_100_000, 8, waiting(1_000_000)), 0);
        assert!(stall.allows_one());
    }

    #[test]
    fn a_role_without_a_backend_gets_one_after_half_a_second() {
        let mut stall = Stall::default();
        let of = |us| Waiting {
            without_us: Some(us),
            ..waiting(us)
        };
        assert_eq!(boosts(&mut stall, 5_000_000, 7, of(490_000)), 0);
        assert_eq!(boosts(&mut stall, 5_020_000, 8, of(510_000)), 1);
    }

    #[test]
    fn a_short_wait_makes_a_stall_short() {
        let mut stall = Stall::default();
        let boost = |stall: &mut Stall, now_us, waited_us| {
            stall.look(now_us, 1, waiting(waited_us), 400_000, 0);
            stall.boost()
        };
        boost(&mut stall, 1_000_000, 10_000);
        assert_eq!(boost(&mut stall, 1_090_000, 100_000), 0);
        assert_eq!(boost(&mut stall, 1_100_000, 100_000), 4);
    }

    #[test]
    fn each_time_twice_as_many_are_started_but_no_more_than_wait() {
        let mut stall = Stall::default();
        let mut seen = Vec::new();
        for tick in 0..25 {
            let now_us = 1_000_000 + tick * 20_000;
            let boost = boosts(&mut stall, now_us, 1, waiting(500_000));
            if seen.last() != Some(&boost) {
                seen.push(boost);
            }
        }
        assert_eq!(seen, [0, 4, 8, 16, 32]);
        // Soon after a stall it goes on from there; later it starts anew.
        assert_eq!(boosts(&mut stall, 1_500_000, 2, waiting(500_000)), 0);
        assert_eq!(boosts(&mut stall, 1_600_000, 2, waiting(500_000)), 32);
        assert_eq!(boosts(&mut stall, 1_720_000, 2, waiting(500_000)), 50);
        assert_eq!(boosts(&mut stall, 4_700_000, 3, waiting(500_000)), 0);
        assert_eq!(boosts(&mut stall, 4_900_000, 3, waiting(500_000)), 4);
    }

    #[test]
    fn held_backend_stays_in_one_transaction_idle_or_computing() {
        let seen = |at_us, transactions, cpu_us| Seen {
            at_us,
            transactions,
            cpu_us,
        };
        let before = seen(1_000_000, 5, 70_000);
        let since = |at_us, transactions, cpu_us| seen(at_us, transactions, cpu_us).since(&before);
        assert_eq!(since(1_199_999, 5, 70_000), None);
        assert_eq!(since(1_200_000, 5, 70_000), Some(Since::Idled));
        assert_eq!(since(1_200_000, 5, 80_000), Some(Since::Computed));
        assert_eq!(since(1_100_000, 6, 70_000), Some(Since::Moved));
    }
}

#[cfg(test)]
mod idle_clients_tests {
    use super::*;

    fn seen(owes: ClientOwes, since_us: u64, cpu_us: u64) -> IdleClient {
        IdleClient {
            session: 7,
            transactions: 3,
            owes,
            since_us,
            seen_us: since_us,
            cpu_us,
        }
    }

    #[test]
    fn client_that_sends_meanwhile_begins_to_be_idle_anew() {
        let request = |since| ClientOwes::Request { since };
        let before = seen(request(5), 1_000_000, 10);
        assert!(before.goes_on(&seen(request(5), 1_200_000, 90_000)));
        assert!(!before.goes_on(&seen(request(6), 1_200_000, 10)));
        assert!(!before.goes_on(&seen(ClientOwes::Reading { since: 5 }, 1_200_000, 10)));
        let other = IdleClient {
            session: 8,
            ..before
        };
        assert!(!before.goes_on(&other));
    }

    #[test]
    fn client_that_reads_slowly_is_not_idle() {
        let reading = ClientOwes::Reading { since: 5 };
        let before = seen(reading, 1_000_000, 5_000);
        let after = |cpu_us| before.goes_on(&seen(reading, 11_000_000, cpu_us));
        assert!(after(5_000) && after(6_000));
        assert!(!after(6_500));
    }
}
