//! How logins are counted against the limits at the door (parameters/door.rs), and
//! who gives way when there is no room for another.
//!
//! Free of I/O. What is kept of an address is bounded, whoever comes: of who has
//! not come for a second nothing has to be known.

use crate::dispatcher::network::Origin;
use crate::dispatcher::parameters::door::{too_many, Limits};
use crate::protocol::Report;
use std::collections::{HashMap, VecDeque};

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
        limits: &Limits,
        origin: Option<Origin>,
        now_us: u64,
    ) -> Result<(), Report> {
        let rate = limits.login_rate_per_address;
        if let Some(origin) = origin.filter(|_| rate > 0) {
            if self.each.len() >= MOST_ADDRESSES {
                self.each.retain(|_, due| *due > now_us);
            }
            if self.each.len() >= MOST_ADDRESSES {
                self.each.clear();
            }
            if !admit(self.each.entry(origin).or_default(), rate, now_us) {
                return Err(too_many(
                    "too many logins from this address",
                    "max_login_rate_per_address",
                    rate,
                ));
            }
        }
        if !admit(&mut self.all, limits.login_rate, now_us) {
            return Err(too_many(
                "too many logins at a time",
                "max_login_rate",
                limits.login_rate,
            ));
        }
        Ok(())
    }
}

/// One that is still logging in and keeps us waiting.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub number: u32,
    /// In the order they came.
    pub serial: u64,
    pub origin: Option<Origin>,
}

/// So many are chosen at a time.
const CHOSEN_AT_ONCE: usize = 64;

/// Who goes when there is no room for another: of those that keep us waiting, the
/// one that has been longest at it of the address that has most of them. So whoever
/// opens many connections and says nothing loses them, and who comes to log in does
/// so.
///
/// All of them are looked at to choose some, which then go one after the other as
/// others come: a full table costs who comes next to nothing.
#[derive(Default)]
pub struct Turns {
    chosen: VecDeque<Waiting>,
    /// Of each address, as of the choice, and with what has changed since.
    counts: HashMap<Option<Origin>, usize>,
}

impl Turns {
    /// One from `newcomer` wants to come in. `keeps_us`: does one of before still?
    pub fn next(
        &mut self,
        newcomer: Option<Origin>,
        keeps_us: impl Fn(&Waiting) -> bool,
        all: impl FnOnce() -> Vec<Waiting>,
    ) -> Option<u32> {
        self.chosen.retain(keeps_us);
        let count = |origin| self.counts.get(&origin).copied().unwrap_or(0);
        // Nobody goes for one from where more are.
        let is_past =
            (self.chosen.front()).is_none_or(|first| count(newcomer) > count(first.origin));
        if is_past {
            self.choose(&all());
        }
        let one = self.chosen.pop_front()?;
        *self.counts.entry(newcomer).or_default() += 1;
        if let Some(count) = self.counts.get_mut(&one.origin) {
            *count = count.saturating_sub(1);
        }
        Some(one.number)
    }

    /// The oldest of the addresses that have most, until those would have no more
    /// than others.
    fn choose(&mut self, waiting: &[Waiting]) {
        self.counts.clear();
        self.chosen.clear();
        for one in waiting {
            *self.counts.entry(one.origin).or_default() += 1;
        }
        let most = self.counts.values().copied().max().unwrap_or(0);
        let with_most = |one: &&Waiting| self.counts.get(&one.origin) == Some(&most);
        let less = self.counts.values().copied().filter(|count| *count < most);
        let of_each = most - less.max().unwrap_or(0).min(most.saturating_sub(1));
        let mut found: Vec<Waiting> = waiting.iter().filter(with_most).copied().collect();
        found.sort_unstable_by_key(|one| one.serial);
        let mut taken: HashMap<Option<Origin>, usize> = HashMap::new();
        for one in found {
            let taken = taken.entry(one.origin).or_default();
            if *taken < of_each && self.chosen.len() < CHOSEN_AT_ONCE {
                *taken += 1;
                self.chosen.push_back(one);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::network::samples::v4;

    #[test]
    fn a_second_s_worth_may_come_at_once_and_then_evenly() {
        let limits = Limits {
            login_rate: 10,
            ..Limits::default()
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
        let limits = Limits {
            login_rate: 10,
            login_rate_per_address: 2,
            ..Limits::default()
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
            assert!(rates.begin(&Limits::default(), v4(number), 1).is_ok());
        }
        assert!(rates.each.is_empty());
        let limits = Limits {
            login_rate_per_address: 1,
            ..Limits::default()
        };
        for number in 0..3 * MOST_ADDRESSES as u32 {
            assert!(rates.begin(&limits, v4(number), 1).is_ok());
            assert!(rates.each.len() <= MOST_ADDRESSES);
        }
    }

    fn waiting(origins: &[u32]) -> Vec<Waiting> {
        (origins.iter().enumerate())
            .map(|(at, origin)| Waiting {
                number: at as u32,
                serial: 100 + at as u64,
                origin: v4(*origin),
            })
            .collect()
    }

    #[test]
    fn who_has_most_waiting_loses_the_oldest() {
        let first = |origins: &[u32]| {
            let all = waiting(origins);
            Turns::default().next(v4(9), |_| true, || all)
        };
        assert_eq!(first(&[1, 2, 2, 3]), Some(1));
        assert_eq!(first(&[1, 2, 3]), Some(0));
        assert_eq!(first(&[1, 2, 2, 1]), Some(0));
        assert_eq!(first(&[]), None);
    }

    #[test]
    fn a_full_table_is_looked_at_once_for_many_and_a_flood_costs_its_own_address_alone() {
        // Those that log in, and as many as there is room for of one that does not.
        let mut all = waiting(
            &(0..1000)
                .map(|at| if at < 20 { at } else { 99 })
                .collect::<Vec<_>>(),
        );
        let (mut turns, mut looks) = (Turns::default(), 0);
        for serial in 5000..6000 {
            let keeps_us = |one: &Waiting| all.iter().any(|other| other.serial == one.serial);
            let number = turns.next(v4(99), keeps_us, || {
                looks += 1;
                all.clone()
            });
            let place = number.unwrap() as usize;
            assert_eq!(all[place].origin, v4(99));
            all[place] = Waiting {
                serial,
                ..all[place]
            };
        }
        assert!(looks <= 1000 / CHOSEN_AT_ONCE + 1, "{looks}");
    }

    #[test]
    fn an_address_that_comes_to_have_most_is_the_next_to_lose() {
        let all = waiting(&[1, 1, 1, 1, 2, 3]);
        let mut turns = Turns::default();
        assert_eq!(turns.next(v4(3), |_| true, || all.clone()), Some(0));
        assert_eq!(turns.next(v4(3), |_| true, || all.clone()), Some(1));
        // 1 has two left of four, 3 has three by now.
        let now = waiting(&[3, 3, 1, 1, 2, 3]);
        assert_eq!(turns.next(v4(3), |_| true, || now), Some(0));
    }
}
