//! A way through some numbers, a group's tenants as a rule, that goes on in later rounds.

use std::collections::BTreeSet;

/// By number, round the end, from where it stands.
#[derive(Default)]
pub struct Lap {
    left: usize,
    /// The next one, or one behind it.
    from: u32,
}

impl Lap {
    pub fn is_on(&self) -> bool {
        self.left > 0
    }

    /// Each of so many is to be passed once from now on.
    pub fn begin(&mut self, all: usize) {
        self.left = all;
    }

    /// So many more, at most; how many those are.
    pub fn next(&mut self, all: &BTreeSet<u32>, most: usize, some: &mut Vec<u32>) -> usize {
        let most = self.left.min(most).min(all.len());
        let next = all.range(self.from..).chain(all.range(..self.from));
        some.extend(next.take(most));
        self.left -= most;
        self.from = match some.last() {
            Some(last) if self.is_on() => last + 1,
            _ => 0,
        };
        most
    }

    /// There is one more, or one less: none that is still to be passed is left out.
    pub fn has_another(&mut self, all: usize, is_new: bool) {
        if self.is_on() {
            self.left = (self.left + usize::from(is_new)).min(all);
        }
    }

    /// Those that it has passed, or all.
    #[cfg(test)]
    pub fn passed<'a>(&self, all: &'a BTreeSet<u32>) -> impl Iterator<Item = u32> + 'a {
        let (from, left) = (self.from, self.left);
        let in_order = all.range(from..).chain(all.range(..from));
        in_order.skip(left).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_passed_whoever_comes_and_goes_meanwhile() {
        let mut all: BTreeSet<u32> = (0..10).collect();
        let (mut lap, mut seen) = (Lap::default(), Vec::new());
        let mut go_on = |lap: &mut Lap, all: &BTreeSet<u32>, most| {
            let mut some = Vec::new();
            lap.next(all, most, &mut some);
            seen.extend(some);
        };
        go_on(&mut lap, &all, 3);
        lap.begin(all.len());
        go_on(&mut lap, &all, 3);
        assert!(lap.passed(&all).eq([0, 1, 2]));
        for (pool, is_new) in [(1, false), (5, false), (20, true), (9, false)] {
            match is_new {
                true => all.insert(pool),
                false => all.remove(&pool),
            };
            lap.has_another(all.len(), is_new);
        }
        while lap.is_on() {
            go_on(&mut lap, &all, 3);
        }
        assert!(all.iter().all(|pool| seen.contains(pool)), "{seen:?}");
        assert!(lap.passed(&all).eq(all.iter().copied()));
    }
}
