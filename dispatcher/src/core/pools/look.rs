//! Which of a pool's backends have nothing to do, seen some at a time.
//!
//! That is in words which they write themselves, so whoever wants to know reads each of
//! them. A pool may have very many; so a look goes round all of them, so many in a round
//! of the event loop. What has to be looked at is counted anew when somebody is sent into
//! the ready queue: a backend that was passed before may have gone to sleep meanwhile,
//! and nobody else wakes it.

/// How far a look has come.
#[derive(Debug, Default)]
pub struct Look {
    next: usize,
    /// Still to be looked at; 0: there is no look.
    left: usize,
    /// Looked at since this time round began, and found to be free.
    seen: usize,
    free: usize,
    /// How many were, the last time round.
    of_all: usize,
    /// The place of one that was free; before it may be others.
    free_at: usize,
}

impl Look {
    pub fn is_on(&self) -> bool {
        self.left > 0
    }

    /// Each of so many is to be looked at from now on: from where it is, or, if there is
    /// no look yet, from `first` on.
    pub fn begin(&mut self, backends: usize, first: usize) {
        if !self.is_on() {
            (self.next, self.seen, self.free) = (first, 0, 0);
        }
        self.left = backends;
    }

    pub fn end(&mut self) {
        self.left = 0;
    }

    /// The place of the next one among so many.
    pub(super) fn step(&mut self, backends: usize) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let at = if self.next < backends { self.next } else { 0 };
        self.next = at + 1;
        (backends > 0).then_some(at)
    }

    /// One of so many was seen. True if it is known how many are free: as many as `enough`,
    /// or all have been looked at once.
    pub fn saw(&mut self, is_free: bool, backends: usize, enough: usize) -> bool {
        self.seen += 1;
        self.free += usize::from(is_free);
        let is_enough = self.free >= enough;
        if self.seen < backends && !is_enough {
            return false;
        }
        self.of_all = self.free;
        if is_enough {
            self.end();
        }
        (self.seen, self.free) = (0, 0);
        true
    }

    /// One that is free has this place.
    pub fn is_free_at(&mut self, place: usize) {
        self.free_at = place;
    }

    /// Where one that is free is looked for first: half of what is looked at in a round
    /// before where one was, so that those in front are used, and the others may go.
    pub fn search_from(&self, backends: usize, at_once: usize) -> usize {
        match backends > at_once {
            true => self.free_at.saturating_sub(at_once / 2),
            false => 0,
        }
    }

    /// How many were free when they had been looked at last; or as many as were enough.
    pub fn of_all(&self) -> usize {
        self.of_all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_sent_into_the_queue_all_are_looked_at_after_that_and_counted_all_the_same() {
        let mut look = Look::default();
        assert!(!look.is_on() && look.step(9).is_none());
        look.begin(9, 4);
        let mut at: Vec<usize> = (0..6).filter_map(|_| look.step(9)).collect();
        assert!((0..6).all(|nth| !look.saw(nth == 0, 9, 5)));
        // One more is sent: from here on all of them once more.
        look.begin(9, 0);
        at.extend(std::iter::from_fn(|| look.step(9)));
        assert_eq!(at, [4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
        // Nine were seen in between, and of these two were free.
        let known: Vec<bool> = (0..9).map(|nth| look.saw(nth == 2, 9, 5)).collect();
        assert_eq!(known.iter().position(|known| *known), Some(2));
        assert_eq!((look.of_all(), look.is_on()), (2, false));
    }

    #[test]
    fn when_as_many_are_free_as_wait_no_more_are_looked_at() {
        let mut look = Look::default();
        look.begin(9, 0);
        assert!(look.step(9).is_some() && !look.saw(true, 9, 2));
        assert!(look.step(9).is_some() && look.saw(true, 9, 2));
        assert!(!look.is_on() && look.step(9).is_none());
        assert_eq!(look.of_all(), 2);
    }
}
