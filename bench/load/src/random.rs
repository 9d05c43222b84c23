//! Random numbers from a seed, so that a run can be repeated.

/// xorshift64: good enough to spread keys.
pub struct Random(u64);

impl Random {
    /// A generator from a run's seed, different for each client.
    pub fn new(seed: u64, client: u64) -> Self {
        // splitmix64's finish, so that neighbouring clients have nothing in common.
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ client.wrapping_add(1);
        state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Random((state ^ (state >> 31)) | 1)
    }

    /// A number from 0 to below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(limit)) >> 32) as u32
    }

    /// `count` different numbers from 0 to below `limit`, in random order.
    pub fn draw(&mut self, count: u32, limit: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..limit).collect();
        let count = count.min(limit);
        for place in 0..count {
            let other = place + self.below(limit - place);
            all.swap(place as usize, other as usize);
        }
        all.truncate(count as usize);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::Random;
    use std::collections::HashSet;

    #[test]
    fn a_draw_has_different_numbers_and_repeats_with_its_seed() {
        let first = Random::new(1, 7).draw(60, 200);
        assert_eq!(first, Random::new(1, 7).draw(60, 200));
        assert_ne!(first, Random::new(1, 8).draw(60, 200));
        assert_ne!(first, Random::new(2, 7).draw(60, 200));
        let different: HashSet<u32> = first.iter().copied().collect();
        assert_eq!(different.len(), 60);
        assert!(first.iter().all(|&number| number < 200));
        assert_eq!(Random::new(1, 1).draw(5, 1), [0]);
    }

    #[test]
    fn every_number_of_the_stock_is_drawn_by_someone() {
        let drawn: HashSet<u32> = (0..100)
            .flat_map(|client| Random::new(1, client).draw(60, 200))
            .collect();
        assert_eq!(drawn.len(), 200);
    }
}
