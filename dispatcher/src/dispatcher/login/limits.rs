//! How logins are counted against the limits at the door (parameters/door.rs), and
//! who gives way when there is no room for another.
//!
//! Free of I/O. What is kept of an address is bounded, whoever comes: of who has
//! not come for a second nothing has to be known.

use crate::dispatcher::network::Origin;
use crate::dispatcher::parameters::door::{too_many, Limits};
use crate::protocol::Report;
use std::collections::HashMap;

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

/// One that is still logging in, for [`whose_turn_to_go`].
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub number: u32,
    /// In the order they came.
    pub serial: u64,
    pub origin: Option<Origin>,
}

/// There is no room for another: of those that keep us waiting, the one that has
/// been longest at it of the address that has most of them. So whoever opens many
/// connections and says nothing loses them, and who comes to log in does so.
pub fn whose_turn_to_go(waiting: &[Waiting]) -> Option<u32> {
    let mut counts: HashMap<Option<Origin>, usize> = HashMap::new();
    for one in waiting {
        *counts.entry(one.origin).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    (waiting.iter())
        .filter(|one| counts.get(&one.origin) == Some(&most))
        .min_by_key(|one| one.serial)
        .map(|one| one.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::sys::socket::Address;

    fn address(family: i32, bytes: &[u8]) -> Address {
        let mut address = Address {
            family: family as u16,
            ..Address::default()
        };
        address.bytes[..bytes.len()].copy_from_slice(bytes);
        address
    }

    fn v4(last: u32) -> Option<Origin> {
        Origin::of(&address(libc::AF_INET, &last.to_be_bytes()))
    }

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

    #[test]
    fn who_has_most_waiting_loses_the_oldest() {
        let waiting = |origins: &[u32]| {
            let all: Vec<Waiting> = (origins.iter().enumerate())
                .map(|(at, origin)| Waiting {
                    number: at as u32,
                    serial: 100 + at as u64,
                    origin: v4(*origin),
                })
                .collect();
            whose_turn_to_go(&all)
        };
        assert_eq!(waiting(&[1, 2, 2, 3]), Some(1));
        assert_eq!(waiting(&[1, 2, 3]), Some(0));
        assert_eq!(waiting(&[1, 2, 2, 1]), Some(0));
        assert_eq!(waiting(&[]), None);
    }
}
