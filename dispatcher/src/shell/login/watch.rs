//! Who is logging in, in the orders in which limits look at them: by time, by address,
//! by what they wait for. Whoever there are besides is not looked at.
//!
//! Free of I/O. Of each login is noted what was true when it was settled last
//! (`Logins::settle`): whenever it may have become another's turn. It is looked at
//! again before it ends by what stands here. A time that is noted is never later than
//! the true one, but may be earlier: each message moves that, and costs nothing here.

use super::limits::Turns;
use crate::shell::sessions::sockets::Origin;
use std::collections::BTreeSet;

/// One login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When its time is up, as things stand.
    pub due_us: u64,
    /// In the order they came.
    pub serial: u64,
    pub origin: Option<Origin>,
    /// It is the client's turn.
    pub keeps_us: bool,
    /// It is the launcher's.
    pub is_asked: bool,
}

/// All of them, by number.
#[derive(Default)]
pub struct Watch {
    noted: Vec<Option<Seen>>,
    by_time: BTreeSet<(u64, u32)>,
    keep_us: Turns,
    asked: BTreeSet<u32>,
}

impl Watch {
    /// It is so now.
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

    /// It is one no more; what was noted.
    pub fn forget(&mut self, number: u32) -> Option<Seen> {
        let seen = self.noted.get_mut(number as usize)?.take()?;
        self.by_time.remove(&(seen.due_us, number));
        if seen.keeps_us {
            self.keep_us.remove(seen.origin, seen.serial, number);
        }
        self.asked.remove(&number);
        Some(seen)
    }

    /// One whose time may be up; it is to be noted again if it is not.
    pub fn next_due(&mut self, now_us: u64) -> Option<u32> {
        let (due_us, number) = *self.by_time.first()?;
        if due_us > now_us {
            return None;
        }
        self.forget(number);
        Some(number)
    }

    /// Who goes when there is no room for another (limits.rs).
    pub fn who_goes(&self) -> Option<u32> {
        self.keep_us.next()
    }

    /// Some of those that wait for the launcher, at most so many.
    pub fn asked(&self, most: usize) -> Vec<u32> {
        self.asked.iter().copied().take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn who_is_due_is_found_whoever_else_there_is() {
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
    fn what_is_noted_is_never_later_than_it_was_until_it_was_looked_at() {
        let mut watch = Watch::default();
        watch.note(7, seen(1, 500));
        watch.note(7, seen(1, 900));
        assert_eq!(watch.next_due(500), Some(7));
        watch.note(7, seen(1, 900));
        assert_eq!(watch.next_due(899), None);
        watch.note(7, seen(1, 300));
        assert_eq!(watch.next_due(300), Some(7));
        // Another one has the number.
        watch.note(7, seen(1, 300));
        watch.note(7, seen(2, 900));
        assert_eq!(watch.next_due(899), None);
        assert_eq!(watch.by_time.len(), 1);
    }

    #[test]
    fn who_waits_for_the_launcher_keeps_nobody_waiting() {
        let mut watch = Watch::default();
        watch.note(3, seen(1, 500));
        watch.note(4, seen(2, 500));
        assert_eq!((watch.who_goes(), watch.asked(9)), (Some(3), vec![]));
        let asked = Seen {
            keeps_us: false,
            is_asked: true,
            ..seen(1, 500)
        };
        watch.note(3, asked);
        assert_eq!((watch.who_goes(), watch.asked(9)), (Some(4), vec![3]));
        watch.forget(4);
        watch.forget(3);
        assert_eq!((watch.who_goes(), watch.asked(9)), (None, vec![]));
    }
}
