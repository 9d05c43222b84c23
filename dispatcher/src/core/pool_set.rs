//! A set of pools, by number.

/// One bit a pool.
pub struct PoolSet {
    bits: Vec<u64>,
    count: usize,
}

impl PoolSet {
    pub fn new(pools: usize) -> PoolSet {
        PoolSet {
            bits: vec![0; pools.div_ceil(64)],
            count: 0,
        }
    }

    pub fn insert(&mut self, pool: u32) {
        self.count += usize::from(!self.contains(pool));
        self.bits[pool as usize / 64] |= 1 << (pool % 64);
    }

    /// All that are in the other one, too.
    pub fn insert_all(&mut self, other: &PoolSet) {
        for (word, new) in self.bits.iter_mut().zip(&other.bits) {
            self.count += (new & !*word).count_ones() as usize;
            *word |= new;
        }
    }

    pub fn remove(&mut self, pool: u32) {
        self.count -= usize::from(self.contains(pool));
        self.bits[pool as usize / 64] &= !(1 << (pool % 64));
    }

    pub fn clear(&mut self) {
        self.bits.fill(0);
        self.count = 0;
    }

    pub fn contains(&self, pool: u32) -> bool {
        self.bits[pool as usize / 64] & (1 << (pool % 64)) != 0
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Puts so many of them into `some`, and nothing else: those from this number on, and
    /// then the first ones.
    pub fn some_from(&self, first: u32, most: usize, some: &mut Vec<u32>) {
        some.clear();
        let most = most.min(self.count);
        let words = self.bits.len();
        let first_word = first as usize / 64;
        // The first word once more at the end, for what is before the first bit.
        for nth in 0..=words {
            let at = (first_word + nth) % words.max(1);
            let mut word = self.bits.get(at).copied().unwrap_or(0);
            let below = (1u64 << (first % 64)) - 1;
            if first_word < words && nth == 0 {
                word &= !below;
            } else if first_word < words && nth == words {
                word &= below;
            } else if nth == words {
                return;
            }
            while word != 0 && some.len() < most {
                some.push(at as u32 * 64 + word.trailing_zeros());
                word &= word - 1;
            }
            if some.len() == most {
                return;
            }
        }
    }

    /// The first one from this number on.
    pub fn first_from(&self, first: u32) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let at = first as usize / 64;
        let word = self.bits.get(at)? & !((1 << (first % 64)) - 1);
        let rest = self.bits.iter().copied().enumerate().skip(at + 1);
        let (at, word) = std::iter::once((at, word))
            .chain(rest)
            .find(|(_, word)| *word != 0)?;
        Some(at as u32 * 64 + word.trailing_zeros())
    }

    /// The next one, round the end, from this number on, which goes on behind it.
    pub fn next_from(&self, from: &mut u32) -> Option<u32> {
        let next = self.first_from(*from).or_else(|| self.first_from(0))?;
        *from = next + 1;
        Some(next)
    }

    /// Those that are in it now; what is changed meanwhile is not seen.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let words: Vec<(u32, u64)> = (self.bits.iter().enumerate())
            .filter(|(_, word)| **word != 0)
            .map(|(at, word)| (at as u32 * 64, *word))
            .collect();
        words.into_iter().flat_map(|(first, word)| {
            (0..64)
                .filter(move |bit| word & (1 << bit) != 0)
                .map(move |bit| first + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_and_not_taken_out_is_in_it() {
        let mut set = PoolSet::new(130);
        assert!(set.is_empty());
        for pool in [0, 63, 64, 129, 64] {
            set.insert(pool);
        }
        set.remove(63);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 64, 129]);
        assert_eq!(set.count, 3);
    }

    #[test]
    fn what_is_in_another_one_is_put_in_once() {
        let (mut set, mut other) = (PoolSet::new(130), PoolSet::new(130));
        [1, 64, 129].iter().for_each(|pool| set.insert(*pool));
        [0, 64, 65].iter().for_each(|pool| other.insert(*pool));
        set.insert_all(&other);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 64, 65, 129]);
        assert_eq!((set.len(), other.len()), (5, 3));
    }

    #[test]
    fn some_of_it_are_those_from_a_number_on_and_then_the_first() {
        let mut set = PoolSet::new(200);
        let mut some = vec![7];
        set.some_from(5, 10, &mut some);
        assert!(some.is_empty());
        let all = [0, 5, 63, 64, 129, 130, 199];
        all.iter().for_each(|pool| set.insert(*pool));
        for first in 0..300 {
            let behind = all.iter().filter(|pool| **pool >= first);
            let order: Vec<u32> = (behind.chain(all.iter().filter(|pool| **pool < first)))
                .copied()
                .collect();
            for most in 0..9 {
                set.some_from(first, most, &mut some);
                assert_eq!(some, order[..most.min(7)], "{most} from {first}");
            }
            let behind = all.iter().find(|pool| **pool >= first);
            assert_eq!(set.first_from(first), behind.copied(), "from {first}");
        }
    }
}
