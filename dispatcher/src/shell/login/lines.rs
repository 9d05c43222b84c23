//! Lines in the log that strangers cause: so many of a kind in a while, and a count of
//! the others.
//!
//! A kind is an SQLSTATE, or a name of ours. Of each, the first ones of every ten seconds
//! are logged, and so is the first that says something else than those before (a message
//! names its role), up to a number of those; a line at the end says how many were not.
//!
//! Free of I/O.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};

const PERIOD_US: u64 = 10_000_000;
/// Of one kind in a period.
const OF_A_KIND: u32 = 20;
/// Beyond these, with a message that is new in this period.
const NEW_ONES: usize = 100;

/// What was logged in this period.
#[derive(Default)]
pub struct Lines {
    began_us: u64,
    /// Logged, and left out.
    kinds: BTreeMap<String, (u32, u64)>,
    said: HashSet<u64>,
    hasher: RandomState,
}

impl Lines {
    /// May a line of this kind that says this be logged?
    pub fn may_be_logged(&mut self, kind: &str, says: &[u8]) -> bool {
        let is_new = self.said.len() < NEW_ONES && self.said.insert(self.hasher.hash_one(says));
        if !self.kinds.contains_key(kind) {
            self.kinds.insert(kind.to_owned(), (0, 0));
        }
        let Some((logged, left_out)) = self.kinds.get_mut(kind) else {
            return false;
        };
        let may_be = is_new || *logged < OF_A_KIND;
        match may_be {
            true => *logged += 1,
            false => *left_out += 1,
        }
        may_be
    }

    /// Once a second: kinds of which lines were left out, and how many, if a period is
    /// over.
    pub fn look(&mut self, now_us: u64) -> Vec<(String, u64)> {
        if now_us < self.began_us + PERIOD_US {
            return Vec::new();
        }
        self.began_us = now_us;
        self.said.clear();
        let kinds = std::mem::take(&mut self.kinds).into_iter();
        let left_out = kinds.map(|(kind, (_, left_out))| (kind, left_out));
        left_out.filter(|(_, left_out)| *left_out > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(lines: &mut Lines, kind: &str, tries: u32, says: impl Fn(u32) -> String) -> usize {
        let tries = (0..tries).map(says);
        tries
            .filter(|says| lines.may_be_logged(kind, says.as_bytes()))
            .count()
    }

    #[test]
    fn of_a_flood_some_lines_are_logged_and_the_rest_counted() {
        let mut lines = Lines::default();
        let same = |_| "no".to_owned();
        assert_eq!(logged(&mut lines, "28P01", 1000, same), 20);
        assert_eq!(logged(&mut lines, "53300", 5, same), 5);
        assert!(lines.look(PERIOD_US - 1).is_empty());
        let left_out = lines.look(PERIOD_US);
        assert_eq!(left_out, [("28P01".to_owned(), 980)]);
        assert_eq!(logged(&mut lines, "28P01", 1000, same), 20);
    }

    #[test]
    fn a_role_s_first_failure_is_logged_amid_a_flood_of_another_s() {
        let mut lines = Lines::default();
        assert_eq!(logged(&mut lines, "28P01", 1000, |_| "role a".into()), 20);
        assert!(lines.may_be_logged("28P01", b"role b"));
        assert!(!lines.may_be_logged("28P01", b"role b"));
        // Names can be made up without end.
        let made_up = logged(&mut lines, "28P01", 100_000, |nth| format!("role {nth}"));
        assert_eq!(made_up, NEW_ONES - 2);
    }
}
