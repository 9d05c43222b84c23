//! Clients that keep a backend and let it wait: idle in a transaction, or without reading
//! their results.
//!
//! In a stall extra backends take the places of those that such clients keep, as far as
//! there may be any. Where there are none left, and a role without any backend waits in
//! vain for one, a client ends that has kept its backend so for
//! pg_baton.extra_idle_timeout: one of the role with the most backends, of these the one
//! that has for longest. docs/design/pools.md has the reasons.

use super::pool_changes::Reason;
use super::stall::Seen;
use super::{index_of, Action, Core, SessionId, Shown, Words};
use std::cmp::Reverse;
use std::collections::HashSet;

/// A backend that waits for its client to read uses no more than this part of the time
/// as processor time: some kB a second would be more.
const READS_PART: u64 = 10_000;
/// And this, for what interrupts it.
const READS_LEAST_US: u64 = 200;

/// What was seen counts for so long: nobody measures backends while nobody waits.
const SEEN_US: u64 = 1_000_000;

/// What a backend waits for; the session's state is of that time, which the end of each
/// statement changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientOwes {
    /// The next request of its transaction.
    Request { since: i64 },
    /// To read what was sent.
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
    /// It was so when the backend was measured last.
    seen_us: u64,
    /// Processor time of the backend at that time.
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

    /// A request, if it is idle in a transaction.
    fn owed(&self, session: SessionId, is_unread: bool, words: &impl Words) -> Option<ClientOwes> {
        if session == 0 {
            return None;
        }
        let index = index_of(session);
        let since = words.session_since_us(index);
        match words.shown(index) {
            Shown::InTransaction => Some(ClientOwes::Request { since }),
            _ => is_unread.then_some(ClientOwes::Reading { since }),
        }
    }

    /// In each tick.
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
        // A dedicated session that has come within its bound is in nobody's way.
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
        // Its place is not for others of its own pool that wait.
        self.retire_for(slot, waits, Reason::RoomFromIdle(waits));
        self.act(Action::EndIdle {
            slot,
            id: client.session,
            waits_for: client.owes,
            idle_us: self.now.us - client.since_us,
        });
    }
}

#[cfg(test)]
mod tests {
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
    fn who_has_said_something_meanwhile_begins_to_be_idle_anew() {
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
    fn who_reads_but_slowly_is_not_idle() {
        let reading = ClientOwes::Reading { since: 5 };
        let before = seen(reading, 1_000_000, 5_000);
        let after = |cpu_us| before.goes_on(&seen(reading, 11_000_000, cpu_us));
        assert!(after(5_000) && after(6_000));
        assert!(!after(6_500));
    }
}
