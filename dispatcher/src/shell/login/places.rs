//! Processes of the server for clients that it has not let in yet: how many there are, who
//! waits for one, and from whom one is taken.
//!
//! Anybody can have the server fork one (replication, LDAP, ...) and then say nothing. So
//! there are few such places, and who comes when all are taken waits (queue.rs). While
//! some wait, a place is taken from a client that has been asked and has owed the answer
//! for a second: of the address with most of these the one that owes longest. From a client
//! for whom the server is at work, or asks somebody else, none is ever taken.
//!
//! A place is that of a process: it is free again when that has ended, or has let its
//! client in. Free of I/O.

use super::limits::Turns;
use super::queue::FairQueue;
use crate::shell::sessions::sockets::Origin;
use std::collections::{HashMap, HashSet};

/// So long a client may owe an answer while others wait.
const MOST_OWED_US: u64 = 1_000_000;

/// It is this client's turn.
#[derive(Clone, Copy)]
struct Owing {
    since_us: u64,
    serial: u64,
    origin: Option<Origin>,
}

#[derive(Default)]
pub struct Places {
    queue: FairQueue,
    /// By number.
    owing: HashMap<u32, Owing>,
    /// By when each began to owe.
    turns: Turns,
    /// Their processes are about to end: their places have been taken from them.
    leaving: HashSet<u64>,
}

impl Places {
    /// One more waits for one.
    pub fn add(&mut self, origin: Option<Origin>, serial: u64, number: u32) {
        self.queue.add(origin, serial, number);
    }

    /// The next one, number and serial: it has one of so many places.
    pub fn take(&mut self, most: usize) -> Option<(u32, u64)> {
        self.queue.take(most)
    }

    pub fn taken(&self) -> usize {
        self.queue.placed()
    }

    /// It has been asked, by the process that it has.
    pub fn owes(&mut self, number: u32, serial: u64, now_us: u64) {
        let Some(origin) = self.queue.origin_of_placed(serial) else {
            return;
        };
        self.owes_nothing(number);
        let since_us = now_us;
        self.turns.insert(origin, since_us, number);
        self.owing.insert(
            number,
            Owing {
                since_us,
                serial,
                origin,
            },
        );
    }

    /// It has answered, or is gone.
    pub fn owes_nothing(&mut self, number: u32) {
        if let Some(owing) = self.owing.remove(&number) {
            self.turns.remove(owing.origin, owing.since_us, number);
        }
    }

    /// It waits no more, or its process has ended or is no such any more.
    pub fn ended(&mut self, serial: u64) {
        self.queue.remove(serial);
        self.leaving.remove(&serial);
    }

    /// Whose place is taken now; it owes nothing any more, and has it until its process ends.
    pub fn gives_way(&mut self, most: usize, now_us: u64) -> Option<u32> {
        let is_full = !self.queue.would_serve(most, 0, None);
        if !is_full || self.queue.waiting() <= self.leaving.len() {
            return None;
        }
        let number = self.turns.next()?;
        let owing = *self.owing.get(&number)?;
        let freed = 1 + self.leaving.len();
        if now_us < owing.since_us + MOST_OWED_US
            || !self.queue.would_serve(most, freed, Some(owing.origin))
        {
            return None;
        }
        self.owes_nothing(number);
        self.leaving.insert(owing.serial);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::sessions::sockets::samples::v4;

    const MOST: usize = 8;
    const LATER_US: u64 = 10 * MOST_OWED_US;

    /// Clients from there; all that get a place begin to owe an answer, a millisecond after each other.
    fn places(origins: &[u32]) -> Places {
        let mut places = Places::default();
        for (at, origin) in origins.iter().enumerate() {
            places.add(v4(*origin), 100 + at as u64, at as u32);
        }
        let mut now_us = 0;
        while let Some((number, serial)) = places.take(MOST) {
            now_us += 1000;
            places.owes(number, serial, now_us);
        }
        places
    }

    #[test]
    fn while_nobody_waits_all_may_owe_as_long_as_they_like() {
        let mut places = places(&[1, 1, 1]);
        assert_eq!(places.gives_way(MOST, LATER_US), None);
    }

    #[test]
    fn who_owes_longest_of_the_address_with_most_gives_way_to_each_that_waits() {
        let mut places = places(&[2, 1, 1, 3, 4, 5, 6]);
        places.add(v4(7), 107, 7);
        assert_eq!(places.take(MOST), Some((7, 107)));
        places.owes(7, 107, 8000);
        places.add(v4(8), 200, 50);
        places.add(v4(9), 201, 51);
        assert_eq!(places.gives_way(MOST, MOST_OWED_US), None);
        // Of address 1, and then of those that have one each.
        assert_eq!(places.gives_way(MOST, LATER_US), Some(1));
        assert_eq!(places.gives_way(MOST, LATER_US), Some(0));
        // As many as wait, and none again until their processes have ended.
        assert_eq!(places.gives_way(MOST, LATER_US), None);
        assert_eq!(places.take(MOST), None);
        places.ended(101);
        assert_eq!(places.take(MOST), Some((50, 200)));
        places.ended(100);
        assert_eq!(places.take(MOST), Some((51, 201)));
        assert!(places.leaving.is_empty());
    }

    #[test]
    fn for_whom_the_server_works_keeps_its_place() {
        let mut places = places(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(places.taken(), 8);
        for number in 0..8 {
            places.owes_nothing(number);
        }
        assert_eq!(places.gives_way(MOST, LATER_US), None);
        // Asked once more, it has another second.
        places.owes(3, 103, LATER_US);
        let until_us = LATER_US + MOST_OWED_US;
        assert_eq!(places.gives_way(MOST, until_us - 1), None);
        assert_eq!(places.gives_way(MOST, until_us), Some(3));
    }

    #[test]
    fn nobody_gives_way_to_who_would_not_get_the_place() {
        // Address 1 has all that one may have, and is served; 2 and 3 say nothing.
        let mut places = places(&[1, 1, 1, 1, 1, 1, 1, 2, 3]);
        assert_eq!(places.taken(), 6);
        for number in 0..7 {
            places.owes_nothing(number);
        }
        for other in [40, 50] {
            places.add(v4(other), 300 + u64::from(other), other);
            assert_eq!(places.take(MOST), Some((other, 300 + u64::from(other))));
        }
        assert_eq!(places.gives_way(MOST, LATER_US), None);
        places.add(v4(6), 400, 60);
        assert_eq!(places.gives_way(MOST, LATER_US), Some(7));
    }

    #[test]
    fn who_waits_or_has_gone_owes_nothing() {
        let mut places = places(&[1, 1, 2]);
        places.add(v4(3), 200, 50);
        places.owes(50, 200, 1);
        assert_eq!(places.owing.len(), 3);
        for (number, serial) in [(0, 100), (1, 101), (2, 102), (50, 200)] {
            places.owes_nothing(number);
            places.ended(serial);
        }
        assert!(places.owing.is_empty() && places.turns.next().is_none());
        assert_eq!(places.taken(), 0);
    }
}
