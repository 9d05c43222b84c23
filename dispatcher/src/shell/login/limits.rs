//! Limits before login: how logins are counted against them (parameters.rs has their values),
//! in which order logins are examined, and what follows when a limit is exceeded.
//!
//! Free of I/O. The memory per address is bounded, whatever clients do: an address without a
//! login for a second needs no entry.

use super::client::{Login, Phase};
use super::Logins;
use crate::protocol::Report;
use crate::shell::parameters::{limit_exceeded, too_many_login_bytes, DoorLimits};
use crate::shell::sessions::sockets::Origin;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use tracing::debug;

/// Bound on the addresses that are remembered; more than have logins in a second.
const MOST_ADDRESSES: usize = 65_536;
const SECOND_US: u64 = 1_000_000;

/// The time at which the next login would be due if all had come evenly, in microseconds. A
/// second's worth of logins may come at once.
type Due = u64;

fn admit(due: &mut Due, rate: u32, now_us: u64) -> bool {
    let Some(interval) = SECOND_US.checked_div(u64::from(rate)) else {
        return true;
    };
    let next = (*due).max(now_us) + interval.max(1);
    let fits = next <= now_us + SECOND_US;
    if fits {
        *due = next;
    }
    fits
}

/// The rates at which logins begin.
#[derive(Default)]
pub struct Rates {
    all: Due,
    each: HashMap<Origin, Due>,
}

impl Rates {
    /// Counts a login that begins, or returns the error for its client if there are too many. A
    /// refused login does not count.
    pub fn begin(
        &mut self,
        limits: &DoorLimits,
        origin: Option<Origin>,
        now_us: u64,
    ) -> Result<(), Report> {
        let rate = limits.login_rate_per_address;
        if let Some(origin) = origin.filter(|_| rate > 0) {
            if self.each.len() >= MOST_ADDRESSES {
                self.each.retain(|_, due| *due > now_us);
                // Without this, each further address would scan all entries again.
                if self.each.len() >= MOST_ADDRESSES / 2 {
                    self.each.clear();
                }
            }
            if !admit(self.each.entry(origin).or_default(), rate, now_us) {
                return Err(limit_exceeded(
                    "too many logins from this address",
                    "max_login_rate_per_address",
                    rate,
                ));
            }
        }
        if !admit(&mut self.all, limits.login_rate, now_us) {
            return Err(limit_exceeded(
                "too many logins at a time",
                "max_login_rate",
                limits.login_rate,
            ));
        }
        Ok(())
    }
}

/// The order in which clients give way when there is no room for another. Of the logins that
/// wait for their client, the one that has waited longest gives way, from the address that has
/// most of them. So an address that opens many connections and sends nothing loses its own, and
/// other clients log in. The next one is known at any time, without a scan.
#[derive(Default)]
pub struct Turns {
    /// Serial, in the order of arrival, and number.
    of: HashMap<Option<Origin>, BTreeSet<(u64, u32)>>,
    /// Addresses with most logins first; of these the one whose first login came first.
    order: BTreeSet<(Reverse<usize>, u64, Option<Origin>)>,
}

impl Turns {
    /// Adds a login that waits for its client.
    pub fn insert(&mut self, origin: Option<Origin>, serial: u64, number: u32) {
        self.change(origin, |those| those.insert((serial, number)));
    }

    /// Removes a login that no longer waits for its client.
    pub fn remove(&mut self, origin: Option<Origin>, serial: u64, number: u32) {
        self.change(origin, |those| those.remove(&(serial, number)));
    }

    pub fn next(&self) -> Option<u32> {
        let (_, _, origin) = self.order.first()?;
        let (_, number) = self.of.get(origin)?.first()?;
        Some(*number)
    }

    fn change(
        &mut self,
        origin: Option<Origin>,
        change: impl FnOnce(&mut BTreeSet<(u64, u32)>) -> bool,
    ) {
        let those = self.of.entry(origin).or_default();
        let place = |those: &BTreeSet<(u64, u32)>| {
            let (first, _) = *those.first()?;
            Some((Reverse(those.len()), first, origin))
        };
        let before = place(those);
        change(those);
        let after = place(those);
        if let Some(before) = before {
            self.order.remove(&before);
        }
        match after {
            Some(after) => {
                self.order.insert(after);
            }
            None => {
                self.of.remove(&origin);
            }
        }
    }
}

// ---- Watch ----------------------------------------------------------------
//
// The logins in the orders in which the limits examine them: by time, by address, and by what
// they wait for. No operation scans all of them.
//
// Free of I/O. An entry holds what was true when the login was last settled (`Logins::settle`),
// which happens whenever its turn may have changed. A login is examined again before it is
// ended because of its entry. A time in an entry is never later than the true one, but may be
// earlier: each message moves the true time, and costs nothing here.

/// The entry of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When its time is up, as of the last settling, in microseconds.
    pub due_us: u64,
    /// In the order of arrival.
    pub serial: u64,
    pub origin: Option<Origin>,
    /// The login waits for its client.
    pub keeps_us: bool,
    /// The login waits for the launcher.
    pub is_asked: bool,
}

/// All entries, by login number.
#[derive(Default)]
pub struct Watch {
    noted: Vec<Option<Seen>>,
    by_time: BTreeSet<(u64, u32)>,
    keep_us: Turns,
    asked: BTreeSet<u32>,
}

impl Watch {
    /// Sets the entry of a login.
    pub fn note(&mut self, number: u32, mut seen: Seen) {
        if let Some(before) = self.forget(number) {
            if before.serial == seen.serial {
                seen.due_us = seen.due_us.min(before.due_us);
            }
        }
        if self.noted.len() <= number as usize {
            self.noted.resize(number as usize + 1, None);
        }
        self.by_time.insert((seen.due_us, number));
        if seen.keeps_us {
            self.keep_us.insert(seen.origin, seen.serial, number);
        }
        if seen.is_asked {
            self.asked.insert(number);
        }
        self.noted[number as usize] = Some(seen);
    }

    /// Removes the entry of a login, and returns it.
    pub fn forget(&mut self, number: u32) -> Option<Seen> {
        let seen = self.noted.get_mut(number as usize)?.take()?;
        self.by_time.remove(&(seen.due_us, number));
        if seen.keeps_us {
            self.keep_us.remove(seen.origin, seen.serial, number);
        }
        self.asked.remove(&number);
        Some(seen)
    }

    /// Removes and returns a login whose time may be up. The caller notes it again if it is
    /// not.
    pub fn next_due(&mut self, now_us: u64) -> Option<u32> {
        let (due_us, number) = *self.by_time.first()?;
        if due_us > now_us {
            return None;
        }
        self.forget(number);
        Some(number)
    }

    /// The login that gives way when there is no room for another.
    pub fn giving_way(&self) -> Option<u32> {
        self.keep_us.next()
    }

    /// Logins that wait for the launcher, at most `most`.
    pub fn asked(&self, most: usize) -> Vec<u32> {
        self.asked.iter().copied().take(most).collect()
    }
}

// ---- Limits applied -------------------------------------------------------
//
// The limits before login, applied (parameters.rs has their values).
//
// - Logins a second: checked before a TLS handshake, else after the startup packet. The client
//   gets 53300.
// - Connections that have not logged in: checked when a client is accepted. A login that waits
//   for its client ends with 53300, or without a message if the client would not understand it.
// - Bytes before authentication: checked as they come. The client gets 54000; in a handshake
//   its connection is closed.
// - Sessions of an address and of a user (answers.rs): checked after authentication, except for
//   superusers. The client gets 53300.

impl Logins {
    /// Makes room for one more client; false if that is not possible.
    pub(super) fn make_room_at_the_door(&mut self) -> bool {
        let most = usize::try_from(self.parameters.door.unauthenticated);
        let is_full = most.is_ok_and(|most| self.logins.len() >= most.max(1));
        if !is_full && self.logins.has_room() {
            return true;
        }
        let Some(number) = self.giving_way() else {
            return false;
        };
        let report = Report::fatal(b"53300", "sorry, too many clients already")
            .with_detail("Too many connections have not logged in yet.");
        if self.logins.get(number).is_some_and(Login::hears_us) {
            self.fail(number, &report);
        } else {
            debug!("a client did not come in before others came");
            self.drop_login(number);
        }
        true
    }

    /// Counts the login against the rates, once. Returns the error for its client if there are too
    /// many logins.
    pub(super) fn count_login(&mut self, number: u32) -> Result<(), Report> {
        let Some(login) = self.logins.get_mut(number) else {
            return Ok(());
        };
        if std::mem::replace(&mut login.is_counted, true) {
            return Ok(());
        }
        let origin = Origin::of(&login.address);
        self.rates.begin(&self.parameters.door, origin, self.now.us)
    }

    /// Counts bytes received from the client. False if they exceed the limit; the login has
    /// then ended.
    pub(super) fn count_login_bytes(&mut self, number: u32, length: usize) -> bool {
        let most = self.parameters.constants.max_login_bytes;
        let Some(login) = self.logins.get_mut(number) else {
            return false;
        };
        login.bytes += length as u64;
        if login.bytes <= most {
            return true;
        }
        let report = too_many_login_bytes(most);
        self.fail(number, &report);
        false
    }

    /// The login that gives way, of those that still wait for their client.
    fn giving_way(&mut self) -> Option<u32> {
        loop {
            let number = self.watch.giving_way()?;
            if self.logins.get(number).is_some_and(Login::keeps_us) {
                return Some(number);
            }
            self.settle(number);
        }
    }

    /// Brings the entry of a login in `watch` up to date: its turn may have changed, or it has
    /// begun or ended.
    pub(super) fn settle(&mut self, number: u32) {
        let Some(login) = self.logins.get(number) else {
            self.watch.forget(number);
            return;
        };
        let seen = Seen {
            due_us: self.due_us(login),
            serial: login.serial,
            origin: Origin::of(&login.address),
            keeps_us: login.keeps_us(),
            is_asked: matches!(login.phase, Phase::Asked(_)),
        };
        self.watch.note(number, seen);
    }

    /// When the login will have taken too long, in microseconds.
    pub(super) fn due_us(&self, login: &Login) -> u64 {
        match &login.phase {
            // The server's own authentication_timeout applies. It is over before the session
            // may have to wait for anything else.
            Phase::BecomingNative => u64::MAX,
            _ => login.deadline_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::sessions::sockets::samples::v4;

    #[test]
    fn a_second_s_worth_may_come_at_once_and_then_evenly() {
        let limits = DoorLimits {
            login_rate: 10,
            ..DoorLimits::default()
        };
        let mut rates = Rates::default();
        let mut begun = |now_us| {
            let tries = (0..100).filter(|_| rates.begin(&limits, v4(1), now_us).is_ok());
            tries.count()
        };
        assert_eq!(begun(5_000_000), 10);
        assert_eq!(begun(5_050_000), 0);
        assert_eq!(begun(5_100_000), 1);
        assert_eq!(begun(5_500_000), 4);
        assert_eq!(begun(60_000_000), 10);
    }

    #[test]
    fn an_address_has_its_own_rate_and_refusals_take_none_of_all() {
        let limits = DoorLimits {
            login_rate: 10,
            login_rate_per_address: 2,
            ..DoorLimits::default()
        };
        let mut rates = Rates::default();
        let mut begin = |origin| rates.begin(&limits, origin, 1).is_ok();
        assert_eq!((0..50).filter(|_| begin(v4(1))).count(), 2);
        assert_eq!((0..50).filter(|_| begin(v4(2))).count(), 2);
        // A client without an address has no limit per address.
        assert_eq!((0..50).filter(|_| begin(None)).count(), 6);
    }

    #[test]
    fn nothing_is_counted_without_limits_and_counts_are_bounded() {
        let mut rates = Rates::default();
        for number in 0..1000 {
            assert!(rates.begin(&DoorLimits::default(), v4(number), 1).is_ok());
        }
        assert!(rates.each.is_empty());
        let limits = DoorLimits {
            login_rate_per_address: 1,
            ..DoorLimits::default()
        };
        for number in 0..3 * MOST_ADDRESSES as u32 {
            assert!(rates.begin(&limits, v4(number), 1).is_ok());
            assert!(rates.each.len() <= MOST_ADDRESSES);
        }
    }

    fn turns(origins: &[u32]) -> Turns {
        let mut turns = Turns::default();
        for (at, origin) in origins.iter().enumerate() {
            turns.insert(v4(*origin), 100 + at as u64, at as u32);
        }
        turns
    }

    #[test]
    fn the_address_with_most_waiting_loses_its_oldest_login() {
        assert_eq!(turns(&[1, 2, 2, 3]).next(), Some(1));
        assert_eq!(turns(&[1, 2, 3]).next(), Some(0));
        assert_eq!(turns(&[1, 2, 2, 1]).next(), Some(0));
        assert_eq!(turns(&[]).next(), None);
    }

    #[test]
    fn a_flood_costs_its_own_address_alone() {
        // Logins that proceed, and one address with all the rest.
        let all: Vec<u32> = (0..1000).map(|at| if at < 20 { at } else { 99 }).collect();
        let mut turns = turns(&all);
        for serial in 5000..7000 {
            let number = turns.next().unwrap();
            assert!(number >= 20, "{number}");
            let before = match serial - 980 {
                before if before < 5000 => u64::from(number) + 100,
                before => before,
            };
            turns.remove(v4(99), before, number);
            turns.insert(v4(99), serial, number);
        }
        assert_eq!((turns.of.len(), turns.order.len()), (21, 21));
    }

    #[test]
    fn many_addresses_that_keep_coming_back_lose_their_first_logins() {
        // 50 addresses with two logins each, and one with one.
        let all: Vec<u32> = (0..101).map(|at| at % 51).collect();
        let mut turns = turns(&all);
        let mut origins = all.clone();
        let mut serials: Vec<u64> = (100..201).collect();
        for serial in 5000..5500 {
            let number = turns.next().unwrap() as usize;
            let of = |origin: u32| origins.iter().filter(|other| **other == origin).count();
            let most = (0..51).map(of).max().unwrap();
            assert_eq!(of(origins[number]), most);
            turns.remove(v4(origins[number]), serials[number], number as u32);
            origins[number] = (serial % 51) as u32;
            serials[number] = serial;
            turns.insert(v4(origins[number]), serial, number as u32);
        }
    }

    #[test]
    fn an_address_that_comes_to_have_most_is_the_next_to_lose() {
        let mut turns = turns(&[1, 1, 1, 1, 2, 3]);
        for number in 0..2 {
            assert_eq!(turns.next(), Some(number));
            turns.remove(v4(1), 100 + u64::from(number), number);
            turns.insert(v4(3), 200 + u64::from(number), number);
        }
        // Address 1 has two left of four; address 3 has three by now.
        assert_eq!(turns.next(), Some(5));
    }

    #[test]
    fn queue_keeps_nothing_of_a_login_that_has_gone() {
        let mut turns = turns(&[1, 2, 2]);
        for (origin, serial, number) in [(2, 101, 1), (1, 100, 0), (2, 102, 2)] {
            turns.remove(v4(origin), serial, number);
        }
        // Removing a login that was never there changes nothing.
        turns.remove(v4(7), 1, 1);
        assert!(turns.of.is_empty() && turns.order.is_empty());
    }

    fn seen(serial: u64, due_us: u64) -> Seen {
        Seen {
            due_us,
            serial,
            origin: None,
            keeps_us: true,
            is_asked: false,
        }
    }

    #[test]
    fn a_due_login_is_found_among_any_others() {
        let mut watch = Watch::default();
        for number in 0..1000 {
            watch.note(number, seen(u64::from(number), 5_000 - u64::from(number)));
        }
        assert_eq!(watch.next_due(4_000), None);
        assert_eq!(watch.next_due(4_002), Some(999));
        assert_eq!(watch.next_due(4_002), Some(998));
        assert_eq!(watch.next_due(4_002), None);
        watch.forget(997);
        assert_eq!(watch.next_due(4_003), None);
        assert_eq!(watch.next_due(4_004), Some(996));
    }

    #[test]
    fn a_noted_time_gets_later_only_after_a_look_at_it() {
        let mut watch = Watch::default();
        watch.note(7, seen(1, 500));
        watch.note(7, seen(1, 900));
        assert_eq!(watch.next_due(500), Some(7));
        watch.note(7, seen(1, 900));
        assert_eq!(watch.next_due(899), None);
        watch.note(7, seen(1, 300));
        assert_eq!(watch.next_due(300), Some(7));
        // Another login has the number.
        watch.note(7, seen(1, 300));
        watch.note(7, seen(2, 900));
        assert_eq!(watch.next_due(899), None);
        assert_eq!(watch.by_time.len(), 1);
    }

    #[test]
    fn a_login_that_waits_for_the_launcher_keeps_no_login_waiting() {
        let mut watch = Watch::default();
        watch.note(3, seen(1, 500));
        watch.note(4, seen(2, 500));
        assert_eq!((watch.giving_way(), watch.asked(9)), (Some(3), vec![]));
        let asked = Seen {
            keeps_us: false,
            is_asked: true,
            ..seen(1, 500)
        };
        watch.note(3, asked);
        assert_eq!((watch.giving_way(), watch.asked(9)), (Some(4), vec![3]));
        watch.forget(4);
        watch.forget(3);
        assert_eq!((watch.giving_way(), watch.asked(9)), (None, vec![]));
    }
}
