//! Backends of which one may go for another pool, as they were seen; and which of them are
//! compared with each other for one choice.
//!
//! Few are all compared. Of very many two parts are: so many of those that are free or are
//! not their pool's only ones, which go before others do (room.rs), and so many of the
//! others; the next ones for the next choice, round the end. As a rule there are few of
//! the first kind where very many pools want backends: then all of these are compared each
//! time, and it is of the others alone that one may be chosen though another's turn is over
//! for longer. Where there are more, they are many enough to stand for all. Nobody can go if
//! nobody can of any part.

use super::room::Holding;

/// Of each kind: some 10 microseconds together.
const COMPARED_AT_ONCE: usize = 512;

#[derive(Debug)]
pub struct Candidates {
    all: Vec<Holding>,
    /// So many of the first are free, or not their pool's only ones; if they are parted.
    preferred: usize,
    are_parted: bool,
    at_once: usize,
    /// From which one of them on, and of the others, is compared now.
    from: [usize; 2],
}

impl Default for Candidates {
    fn default() -> Candidates {
        Candidates {
            all: Vec::new(),
            preferred: 0,
            are_parted: false,
            at_once: COMPARED_AT_ONCE,
            from: [0, 0],
        }
    }
}

impl Candidates {
    #[cfg(test)]
    pub fn compare_few(&mut self, at_once: usize) {
        self.at_once = at_once;
    }

    pub fn begin(&mut self, are_parted: bool) {
        self.all.clear();
        self.preferred = 0;
        self.are_parted = are_parted;
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All of them, in the order in which they were seen if they are not parted.
    pub fn all(&self) -> &[Holding] {
        &self.all
    }

    pub fn push(&mut self, held: Holding) {
        let is_preferred = held.free_for_us.is_some() || held.backends > 1;
        self.all.push(held);
        if self.are_parted && is_preferred {
            let last = self.all.len() - 1;
            self.all.swap(self.preferred, last);
            self.preferred += 1;
        }
    }

    /// How many there are of each kind.
    fn kinds(&self) -> [usize; 2] {
        [self.preferred, self.all.len() - self.preferred]
    }

    /// Places of those that are compared now.
    fn places(&self) -> impl Iterator<Item = usize> + Clone {
        let ([preferred, others], [first, first_other]) = (self.kinds(), self.from);
        let of_others = part(first_other, others, self.at_once);
        part(first, preferred, self.at_once).chain(of_others.map(move |at| preferred + at))
    }

    pub fn compared(&self) -> impl Iterator<Item = &Holding> + Clone {
        self.places().map(|at| &self.all[at])
    }

    /// So many of those that are free, or not their pool's only ones, are compared at a
    /// time; of so many.
    pub fn part(&self) -> (usize, usize) {
        (self.preferred.min(self.at_once), self.preferred)
    }

    /// In so many parts each has been compared.
    pub fn parts(&self) -> usize {
        let [preferred, others] = self.kinds();
        preferred.max(others).div_ceil(self.at_once)
    }

    pub fn next_part(&mut self) {
        let kinds = self.kinds();
        for (from, len) in self.from.iter_mut().zip(kinds) {
            *from = (*from + self.at_once) % len.max(1);
        }
    }

    /// Of those that are compared now these go no more.
    pub fn take_out(&mut self, is_to_go: impl Fn(u32) -> bool) {
        let places = self.places();
        let mut places: Vec<usize> = places.filter(|at| is_to_go(self.all[*at].slot)).collect();
        // Whoever is moved comes from further behind.
        places.sort_unstable();
        for mut at in places.into_iter().rev() {
            if at < self.preferred {
                self.preferred -= 1;
                self.all.swap(at, self.preferred);
                at = self.preferred;
            }
            self.all.swap_remove(at);
        }
    }
}

/// So many of `len`, from one on and round the end.
fn part(from: usize, len: usize, most: usize) -> impl Iterator<Item = usize> + Clone {
    let from = from % len.max(1);
    let behind = from + len.min(most);
    (from..behind.min(len)).chain(0..behind.saturating_sub(len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn held(slot: u32, backends: usize, free_for_us: Option<u64>) -> Holding {
        Holding {
            slot,
            pool: slot,
            backends,
            waits_since_us: None,
            has_sessions: true,
            since_us: 0,
            has_served: true,
            free_for_us,
            weight: 100,
            is_reserved: false,
        }
    }

    /// 3 and 10 are free, 6 and 12 have others.
    fn some() -> Candidates {
        let mut some = Candidates::default();
        some.compare_few(4);
        some.begin(true);
        for slot in 0..20 {
            let free_for_us = (slot % 7 == 3 && slot < 15).then_some(5);
            some.push(held(
                slot,
                1 + usize::from(slot % 6 == 0 && slot % 12 > 0),
                free_for_us,
            ));
        }
        some
    }

    fn compared(some: &Candidates) -> BTreeSet<u32> {
        some.compared().map(|held| held.slot).collect()
    }

    #[test]
    fn all_that_are_free_or_have_others_are_compared_and_of_the_rest_each_in_its_turn() {
        let mut some = some();
        let preferred = BTreeSet::from([3, 6, 10, 18]);
        assert_eq!((some.part(), some.parts()), ((4, 4), 4));
        let mut all = BTreeSet::new();
        for _ in 0..some.parts() {
            let now = compared(&some);
            assert!(now.is_superset(&preferred) && now.len() == 8, "{now:?}");
            all.extend(now);
            some.next_part();
        }
        assert!(all.into_iter().eq(0..20));
    }

    #[test]
    fn who_is_taken_out_is_compared_no_more_and_all_others_are() {
        let mut some = some();
        let mut left: BTreeSet<u32> = (0..20).collect();
        while some.len() > 0 {
            let gone: Vec<u32> = compared(&some).into_iter().step_by(3).collect();
            some.take_out(|slot| gone.contains(&slot));
            gone.iter().for_each(|slot| assert!(left.remove(slot)));
            let mut seen = BTreeSet::new();
            for _ in 0..some.parts() {
                seen.extend(compared(&some));
                some.next_part();
            }
            assert_eq!(seen, left);
        }
        assert!(left.is_empty());
    }

    #[test]
    fn few_are_all_there_in_their_order() {
        let mut few = Candidates::default();
        few.begin(false);
        (0..5).for_each(|slot| few.push(held(slot, 2, Some(1))));
        assert!(few.all().iter().map(|held| held.slot).eq(0..5));
    }
}
