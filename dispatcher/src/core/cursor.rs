//! Where a look goes on that takes some slots of a table at a time, round its end.

/// Slots that are still to be looked at, and the one that was last.
#[derive(Debug, Default)]
pub struct Cursor {
    left: u32,
    /// Of so many that there were.
    of: u32,
    last: u32,
}

impl Cursor {
    /// Each of so many slots is to be looked at once, from where it stands.
    pub fn begin(&mut self, slots: u32) {
        self.left = slots;
        self.of = slots;
    }

    pub fn has_more(&self) -> bool {
        self.left > 0
    }

    /// The next one of those that are left. There may be more slots now, which are
    /// looked at as well.
    pub fn next(&mut self, slots: u32) -> Option<u32> {
        if self.left == 0 {
            return None;
        }
        self.left += slots.saturating_sub(self.of);
        self.of = slots;
        self.left -= 1;
        self.step(slots)
    }

    /// The next one, for ever. None: there are none.
    pub fn step(&mut self, slots: u32) -> Option<u32> {
        let next = self.last.checked_add(1).filter(|next| *next < slots);
        self.last = next.unwrap_or(0);
        (slots > 0).then_some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_slot_is_looked_at_once_and_those_that_come_meanwhile_too() {
        let mut cursor = Cursor::default();
        assert!(!cursor.has_more() && cursor.next(5).is_none());
        for _ in 0..3 {
            cursor.begin(5);
            let mut seen: Vec<u32> = (0..3).filter_map(|_| cursor.next(5)).collect();
            while let Some(slot) = cursor.next(7) {
                seen.push(slot);
            }
            assert!(!cursor.has_more());
            assert_eq!(seen.len(), 7);
            assert_eq!(seen.into_iter().collect::<BTreeSet<u32>>().len(), 7);
        }
        cursor.begin(0);
        assert!(cursor.next(0).is_none() && cursor.step(0).is_none());
    }
}
