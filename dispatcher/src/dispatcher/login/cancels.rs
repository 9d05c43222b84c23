//! Cancel requests that are the server's to obey: those that wait to be brought to it.
//!
//! Anybody may send one, and each costs the postmaster a fork. So few are on their way
//! at one time, beside the clients for whom the server is asked for a backend; a few
//! wait, in the order they came, and one more takes the place of one of the address
//! that has most. A request that is lost is nothing new to who sends one.
//!
//! Free of I/O.

use super::limits::Turns;
use crate::dispatcher::network::Origin;
use std::collections::BTreeMap;

/// On their way to the server.
pub const AT_ONCE: usize = 8;
const MOST_WAITING: usize = 64;

/// Those that wait, by their login's serial.
#[derive(Default)]
pub struct Waiting {
    order: BTreeMap<u64, (u32, Option<Origin>)>,
    turns: Turns,
}

impl Waiting {
    /// One more, from there. Who gives way, if that is one too many.
    pub fn add(&mut self, origin: Option<Origin>, serial: u64, number: u32) -> Option<u32> {
        let is_full = self.order.len() >= MOST_WAITING;
        let gives_way = self.turns.next().filter(|_| is_full);
        if let Some(gone) = gives_way {
            let serial = (self.order.iter()).find(|(_, (number, _))| *number == gone);
            if let Some(serial) = serial.map(|(serial, _)| *serial) {
                self.forget(serial);
            }
        }
        self.order.insert(serial, (number, origin));
        self.turns.insert(origin, serial, number);
        gives_way
    }

    /// The next one, number and serial; it waits no more.
    pub fn take(&mut self) -> Option<(u32, u64)> {
        let (serial, (number, _)) = self.order.first_key_value()?;
        let next = (*number, *serial);
        self.forget(next.1);
        Some(next)
    }

    /// Its login has ended.
    pub fn forget(&mut self, serial: u64) {
        if let Some((number, origin)) = self.order.remove(&serial) {
            self.turns.remove(origin, serial, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::network::samples::v4;

    #[test]
    fn a_flood_of_one_address_costs_its_own_requests_alone() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.add(v4(1), 1, 1), None);
        for serial in 2..=MOST_WAITING as u64 {
            assert_eq!(waiting.add(v4(2), serial, serial as u32), None);
        }
        for serial in 100..1000 {
            let gone = waiting.add(v4(2), serial, serial as u32).unwrap();
            assert_ne!(gone, 1);
            assert_eq!(waiting.order.len(), MOST_WAITING);
        }
        assert_eq!(waiting.take(), Some((1, 1)));
        // The flood's last ones, in their order.
        let first = 1000 - (MOST_WAITING as u64 - 1);
        assert_eq!(waiting.take(), Some((first as u32, first)));
    }

    #[test]
    fn of_who_has_gone_nothing_is_kept() {
        let mut waiting = Waiting::default();
        waiting.add(v4(1), 1, 7);
        waiting.add(None, 2, 8);
        waiting.forget(1);
        waiting.forget(1);
        assert_eq!((waiting.take(), waiting.take()), (Some((8, 2)), None));
        assert!(waiting.turns.next().is_none());
    }
}
