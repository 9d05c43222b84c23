//! Who waits for one of few places, and who has one.
//!
//! The next place goes to the address that has fewest, and of the last ones an address gets
//! some only while it has fewer than are left: whatever one does, another gets one. Within an address they
//! go in turn to who came first and to who came last: so a burst is served to its end, and
//! a crowd that stands there keeps nobody else of its address from coming in.
//!
//! Free of I/O. Nothing here is linear in who waits.

use crate::core::may_take;
use crate::shell::sessions::sockets::Origin;
use std::collections::{BTreeSet, HashMap};

/// Of all places this part is for addresses that have few; of two and more one at least.
const FEW_PART: usize = 4;

fn kept(most: usize) -> usize {
    (most / FEW_PART).max(usize::from(most > 1))
}

/// What an address has.
#[derive(Default)]
struct Share {
    /// Serial, in the order they came, and number.
    waiting: BTreeSet<(u64, u32)>,
    placed: usize,
    is_last_next: bool,
}

/// One that waits, or has a place.
struct One {
    origin: Option<Origin>,
    number: u32,
    is_placed: bool,
}

#[derive(Default)]
pub struct FairQueue {
    shares: HashMap<Option<Origin>, Share>,
    /// Addresses of which some wait: those that have fewest places first, and of these the one
    /// whose first came first.
    order: BTreeSet<(usize, u64, Option<Origin>)>,
    /// By serial.
    all: HashMap<u64, One>,
    placed: usize,
}

impl FairQueue {
    /// One more waits.
    pub fn add(&mut self, origin: Option<Origin>, serial: u64, number: u32) {
        let is_placed = false;
        self.all.insert(
            serial,
            One {
                origin,
                number,
                is_placed,
            },
        );
        self.change(origin, |share| {
            share.waiting.insert((serial, number));
        });
    }

    /// The next one, number and serial: it has a place now, one of so many.
    pub fn take(&mut self, most: usize) -> Option<(u32, u64)> {
        let (_, _, origin) = *self.order.first()?;
        if !self.would_serve(most, 0, None) {
            return None;
        }
        let share = self.shares.get(&origin)?;
        let next = match share.is_last_next {
            true => share.waiting.last(),
            false => share.waiting.first(),
        };
        let (serial, number) = *next?;
        self.all.get_mut(&serial)?.is_placed = true;
        self.placed += 1;
        self.change(origin, |share| {
            share.waiting.remove(&(serial, number));
            share.placed += 1;
            share.is_last_next = !share.is_last_next;
        });
        Some((number, serial))
    }

    /// Would the next one get a place if so many more were free, which `from` had?
    pub fn would_serve(&self, most: usize, freed: usize, from: Option<Option<Origin>>) -> bool {
        let Some((own, _, origin)) = self.order.first() else {
            return false;
        };
        let own = match from == Some(*origin) {
            true => own.saturating_sub(freed),
            false => *own,
        };
        let left = most.saturating_sub(self.placed.saturating_sub(freed));
        may_take(own, left, kept(most)) > 0
    }

    /// It waits no more, or has left its place.
    pub fn remove(&mut self, serial: u64) {
        let Some(one) = self.all.remove(&serial) else {
            return;
        };
        self.placed -= usize::from(one.is_placed);
        self.change(one.origin, |share| {
            share.placed -= usize::from(one.is_placed);
            share.waiting.remove(&(serial, one.number));
        });
    }

    pub fn waiting(&self) -> usize {
        self.all.len() - self.placed
    }

    pub fn placed(&self) -> usize {
        self.placed
    }

    /// Where one is from that has a place.
    pub fn origin_of_placed(&self, serial: u64) -> Option<Option<Origin>> {
        let one = self.all.get(&serial).filter(|one| one.is_placed)?;
        Some(one.origin)
    }

    fn change(&mut self, origin: Option<Origin>, change: impl FnOnce(&mut Share)) {
        let share = self.shares.entry(origin).or_default();
        let place = |share: &Share| {
            let (first, _) = *share.waiting.first()?;
            Some((share.placed, first, origin))
        };
        let before = place(share);
        change(share);
        let after = place(share);
        if share.waiting.is_empty() && share.placed == 0 {
            self.shares.remove(&origin);
        }
        if let Some(before) = before {
            self.order.remove(&before);
        }
        if let Some(after) = after {
            self.order.insert(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::sessions::sockets::samples::v4;

    const MOST: usize = 12;

    fn queue(origins: impl IntoIterator<Item = u32>) -> FairQueue {
        let mut queue = FairQueue::default();
        for (serial, origin) in origins.into_iter().enumerate() {
            queue.add(v4(origin), serial as u64, serial as u32);
        }
        queue
    }

    fn take_all(queue: &mut FairQueue) -> Vec<u64> {
        std::iter::from_fn(|| queue.take(MOST))
            .map(|(_, serial)| serial)
            .collect()
    }

    #[test]
    fn one_address_leaves_a_quarter_to_others() {
        let mut queue = queue([1; 100]);
        assert_eq!(take_all(&mut queue).len(), 9);
        for other in 2..5 {
            queue.add(v4(other), 1000 + u64::from(other), other);
            assert_eq!(queue.take(MOST), Some((other, 1000 + u64::from(other))));
        }
        queue.add(v4(5), 2000, 0);
        assert_eq!(queue.take(MOST), None);
        assert_eq!((queue.placed(), queue.waiting()), (12, 92));
    }

    #[test]
    fn who_has_fewest_is_next_however_many_others_came_before() {
        let mut queue = queue([1; 1000]);
        let placed = take_all(&mut queue);
        queue.add(v4(2), 5000, 7);
        queue.add(v4(2), 5001, 8);
        assert_eq!(take_all(&mut queue), [5000, 5001]);
        queue.remove(placed[0]);
        queue.remove(placed[1]);
        queue.add(v4(3), 5002, 9);
        assert_eq!(queue.take(MOST), Some((9, 5002)));
    }

    #[test]
    fn a_burst_is_served_to_its_end_and_who_comes_last_does_not_wait_for_all_of_it() {
        let mut queue = queue([1; 1000]);
        let mut placed = take_all(&mut queue);
        queue.add(v4(1), 5000, 7);
        let mut served = placed.len();
        let mut waited = None;
        while let Some(first) = placed.pop() {
            queue.remove(first);
            for serial in take_all(&mut queue) {
                served += 1;
                placed.push(serial);
                if serial == 5000 {
                    waited = Some(served);
                }
            }
        }
        assert_eq!(served, 1001);
        assert!(waited.is_some_and(|waited| waited <= 9 + 2), "{waited:?}");
        assert!(queue.shares.is_empty() && queue.order.is_empty() && queue.all.is_empty());
    }

    #[test]
    fn few_places_are_places() {
        for most in 1..5 {
            let mut queue = queue([1; 9]);
            let taken = std::iter::from_fn(|| queue.take(most)).count();
            assert_eq!(taken, most - usize::from(most > 1), "{most}");
        }
        assert_eq!(queue([1]).take(0), None);
    }

    #[test]
    fn of_who_has_gone_nothing_is_kept() {
        let mut queue = queue([1, 2, 1]);
        assert_eq!(queue.take(MOST), Some((0, 0)));
        for serial in [0, 0, 1, 2, 9] {
            queue.remove(serial);
        }
        assert_eq!((queue.placed(), queue.waiting()), (0, 0));
        assert!(queue.shares.is_empty() && queue.order.is_empty() && queue.all.is_empty());
    }
}
