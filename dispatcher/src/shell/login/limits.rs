//! How logins are counted against the limits at the door (parameters/door.rs), and
//! who gives way when there is no room for another.
//!
//! Free of I/O. What is kept of an address is bounded, whoever comes: of who has
//! not come for a second nothing has to be known.

use crate::protocol::Report;
use crate::shell::parameters::{limit_exceeded, DoorLimits};
use crate::shell::sessions::sockets::Origin;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// Addresses known at a time; more than a second's logins come from.
const MOST_ADDRESSES: usize = 65_536;
const SECOND_US: u64 = 1_000_000;

/// When the next login would be due if all had come evenly. A second's worth may
/// come at once.
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

/// How many logins have begun of late.
#[derive(Default)]
pub struct Rates {
    all: Due,
    each: HashMap<Origin, Due>,
}

impl Rates {
    /// One more wants to begin; what it is told if that is too many. Who is
    /// refused does not count.
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
                // Else the next ones would have them all looked at again.
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

/// Who goes when there is no room for another: of those that keep us waiting, the
/// one that has been longest at it of the address that has most of them. So whoever
/// opens many connections and says nothing loses them, and who comes to log in does
/// so. It is known at any time, however many there are, and from however many addresses.
#[derive(Default)]
pub struct Turns {
    /// Serial, in the order they came, and number.
    of: HashMap<Option<Origin>, BTreeSet<(u64, u32)>>,
    /// Those that have most first; of these who came first.
    order: BTreeSet<(Reverse<usize>, u64, Option<Origin>)>,
}

impl Turns {
    /// One more keeps us waiting.
    pub fn insert(&mut self, origin: Option<Origin>, serial: u64, number: u32) {
        self.change(origin, |those| those.insert((serial, number)));
    }

    /// One does not any more.
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
    fn an_address_has_its_own_and_takes_nothing_from_all_when_it_is_refused() {
        let limits = DoorLimits {
            login_rate: 10,
            login_rate_per_address: 2,
            ..DoorLimits::default()
        };
        let mut rates = Rates::default();
        let mut begin = |origin| rates.begin(&limits, origin, 1).is_ok();
        assert_eq!((0..50).filter(|_| begin(v4(1))).count(), 2);
        assert_eq!((0..50).filter(|_| begin(v4(2))).count(), 2);
        // Nobody's address has no limit of its own.
        assert_eq!((0..50).filter(|_| begin(None)).count(), 6);
    }

    #[test]
    fn without_limits_nothing_is_counted_and_with_them_what_is_kept_is_bounded() {
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
    fn who_has_most_waiting_loses_the_oldest() {
        assert_eq!(turns(&[1, 2, 2, 3]).next(), Some(1));
        assert_eq!(turns(&[1, 2, 3]).next(), Some(0));
        assert_eq!(turns(&[1, 2, 2, 1]).next(), Some(0));
        assert_eq!(turns(&[]).next(), None);
    }

    #[test]
    fn a_flood_costs_its_own_address_alone() {
        // Those that log in, and as many as there is room for of one that does not.
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
    fn many_addresses_that_keep_coming_back_lose_who_came_first() {
        // 50 addresses with two each, and one with one.
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
        // 1 has two left of four, 3 has three by now.
        assert_eq!(turns.next(), Some(5));
    }

    #[test]
    fn of_who_has_gone_nothing_is_kept() {
        let mut turns = turns(&[1, 2, 2]);
        for (origin, serial, number) in [(2, 101, 1), (1, 100, 0), (2, 102, 2)] {
            turns.remove(v4(origin), serial, number);
        }
        // Who was never there changes nothing.
        turns.remove(v4(7), 1, 1);
        assert!(turns.of.is_empty() && turns.order.is_empty());
    }
}
