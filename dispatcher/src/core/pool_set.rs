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

    pub fn remove(&mut self, pool: u32) {
        self.count -= usize::from(self.contains(pool));
        self.bits[pool as usize / 64] &= !(1 << (pool % 64));
    }

    fn contains(&self, pool: u32) -> bool {
        self.bits[pool as usize / 64] & (1 << (pool % 64)) != 0
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
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
}
