//! A look at all of a pool's backends that goes on in later rounds.

/// Where it is.
#[derive(Debug, Default)]
pub struct Walk {
    /// So many of those that are not dedicated have been looked at, and of those that are.
    shared: usize,
    dedicated: usize,
}

impl Walk {
    /// The next one. Who goes from one list to the other is put behind the others there:
    /// nobody is left out, and some may come twice.
    pub fn next(&mut self, shared: &[u32], dedicated: &[u32]) -> Option<u32> {
        if let Some(slot) = shared.get(self.shared) {
            self.shared += 1;
            return Some(*slot);
        }
        let slot = dedicated.get(self.dedicated)?;
        self.dedicated += 1;
        Some(*slot)
    }

    /// The one at this place is no longer in its list, and the others have moved up.
    pub fn is_taken_out(&mut self, at: usize, of_dedicated: bool) {
        let seen = match of_dedicated {
            true => &mut self.dedicated,
            false => &mut self.shared,
        };
        *seen -= usize::from(at < *seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_looked_at_whoever_goes_or_becomes_dedicated_meanwhile() {
        let (mut walk, mut shared, mut dedicated) = (Walk::default(), vec![1, 2, 3, 4], vec![5]);
        let mut seen = Vec::new();
        seen.extend(walk.next(&shared, &dedicated));
        seen.extend(walk.next(&shared, &dedicated));
        // One that was seen goes, and one that was not becomes dedicated.
        shared.remove(0);
        walk.is_taken_out(0, false);
        shared.remove(1);
        walk.is_taken_out(1, false);
        dedicated.push(3);
        for _ in 0..2 {
            seen.extend(walk.next(&shared, &dedicated));
        }
        assert_eq!(seen, [1, 2, 4, 5]);
        // One that is dedicated no longer comes once more.
        dedicated.remove(0);
        walk.is_taken_out(0, true);
        shared.push(5);
        seen.extend(std::iter::from_fn(|| walk.next(&shared, &dedicated)));
        assert_eq!(seen, [1, 2, 4, 5, 5, 3]);
    }
}
