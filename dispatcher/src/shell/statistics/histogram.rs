//! A histogram of times, and the times of the last minute.
//!
//! Buckets are logarithmic: times below 16 microseconds have a bucket each; above, each power of
//! two has 16 buckets of equal width, so a bucket is 3 to 6 percent wide. Backends count into
//! such buckets in CONTROL (tally.c).

use crate::shell::link::layout::shared::BUCKETS;

/// Buckets of each power of two.
const PARTS: u64 = 16;
const COUNT: usize = BUCKETS as usize;

/// How long one part of the last minute is, and how many parts a minute has.
pub const PART_US: u64 = 10_000_000;
const PARTS_OF_A_MINUTE: usize = 6;

/// Times in microseconds.
#[derive(Clone)]
pub struct Histogram {
    buckets: Box<[u64; COUNT]>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: Box::new([0; COUNT]),
        }
    }
}

impl Histogram {
    /// The bucket of a time.
    pub fn bucket_of(us: u64) -> usize {
        if us < PARTS {
            return us as usize;
        }
        let shift = us.ilog2() - PARTS.ilog2();
        let bucket = PARTS * u64::from(shift) + (us >> shift);
        (bucket as usize).min(COUNT - 1)
    }

    /// The shortest time of a bucket.
    fn start_of(bucket: usize) -> u64 {
        let bucket = bucket as u64;
        if bucket < PARTS {
            return bucket;
        }
        (PARTS + bucket % PARTS) << (bucket / PARTS - 1)
    }

    /// The middle of a bucket.
    fn middle_of(bucket: usize) -> u64 {
        let width = Histogram::start_of(bucket + 1) - Histogram::start_of(bucket);
        Histogram::start_of(bucket) + width / 2
    }

    pub fn add(&mut self, bucket: usize, count: u64) {
        if let Some(there) = self.buckets.get_mut(bucket) {
            *there = there.saturating_add(count);
        }
    }

    /// The time that this share of all times does not exceed, within the width of its bucket;
    /// None if there are no times.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let all = (self.buckets.iter()).fold(0_u64, |sum, count| sum.saturating_add(*count));
        let rank = (u128::from(all) * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0_u128;
        let found = self.buckets.iter().position(|count| {
            seen += u128::from(*count);
            seen >= rank
        });
        found.map(Histogram::middle_of)
    }
}

/// The times of the last minute, and of the part of a minute before it that the oldest part began
/// with. Each part has only the buckets that count something, in order: there may be very many
/// pools.
#[derive(Default)]
pub struct LastMinute {
    /// Each with its number.
    parts: [(u64, Vec<(u16, u32)>); PARTS_OF_A_MINUTE + 1],
}

impl LastMinute {
    pub fn add(&mut self, now_us: u64, bucket: usize, count: u32) {
        let number = now_us / PART_US;
        let place = (number % self.parts.len() as u64) as usize;
        let (of, buckets) = &mut self.parts[place];
        if *of != number {
            *of = number;
            buckets.clear();
        }
        let bucket = bucket.min(COUNT - 1) as u16;
        match buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
            Ok(at) => buckets[at].1 = buckets[at].1.saturating_add(count),
            Err(at) => buckets.insert(at, (bucket, count)),
        }
    }

    /// All times of the last minute.
    pub fn times(&self, now_us: u64) -> Histogram {
        let mut all = Histogram::default();
        let oldest = (now_us / PART_US).saturating_sub(PARTS_OF_A_MINUTE as u64);
        for (number, buckets) in &self.parts {
            if *number >= oldest {
                for (bucket, count) in buckets {
                    all.add(usize::from(*bucket), u64::from(*count));
                }
            }
        }
        all
    }
}

/// Times since the dispatcher started, in buckets for Prometheus: one for each power of two from
/// 32 microseconds to nine minutes, and one for all longer times.
#[derive(Default)]
pub struct AllTimes {
    buckets: [u64; POWERS as usize + 1],
    sum_us: u64,
}

/// The first bucket's times are below two to the power of this, in microseconds.
const FIRST_POWER: u32 = 5;
const POWERS: u32 = 25;

impl AllTimes {
    /// Adds times of one of [`Histogram`]'s buckets.
    pub fn add(&mut self, bucket: usize, count: u64) {
        let bucket = bucket.min(COUNT - 1);
        let power = Histogram::start_of(bucket).checked_ilog2().unwrap_or(0);
        let place = (power + 1).saturating_sub(FIRST_POWER).min(POWERS);
        let there = &mut self.buckets[place as usize];
        *there = there.saturating_add(count);
        let us = Histogram::middle_of(bucket).saturating_mul(count);
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// The counts, and the sum in microseconds, which is exact to three percent.
    pub fn columns(&self) -> (String, u64) {
        let counts: Vec<String> = self.buckets.iter().map(u64::to_string).collect();
        (counts.join(" "), self.sum_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_times_are_counted_by_powers_of_two() {
        let mut all = AllTimes::default();
        for us in [0, 31, 32, 63, 64, 1 << 20, 1 << 28, 1 << 29, u64::MAX] {
            all.add(Histogram::bucket_of(us), 1);
        }
        let at = |place: u32| all.buckets[place as usize];
        assert_eq!(
            (at(0), at(1), at(2), at(20 + 1 - FIRST_POWER)),
            (2, 2, 1, 1)
        );
        assert_eq!((at(POWERS - 1), at(POWERS)), (1, 2));
        assert_eq!(all.buckets.iter().sum::<u64>(), 9);
        let mut some = AllTimes::default();
        some.add(Histogram::bucket_of(1_000_000), 1000);
        assert!(some.sum_us.abs_diff(1_000_000_000) * 32 <= 1_000_000_000);
    }

    #[test]
    fn buckets_are_in_order_and_six_percent_wide_at_most() {
        let mut before = 0;
        let times = (0..8192).chain((13..34).flat_map(|bit| {
            let power = 1_u64 << bit;
            (0..64).map(move |part| power + part * (power / 64))
        }));
        for us in times {
            let bucket = Histogram::bucket_of(us);
            assert!(bucket == before || bucket == before + 1, "{us}");
            before = bucket;
            let middle = Histogram::middle_of(bucket);
            assert!(middle.abs_diff(us) * 32 <= us, "{us} is shown as {middle}");
        }
        assert_eq!(before, COUNT - 1, "4.7 hours fill the buckets");
        assert_eq!(Histogram::bucket_of(u64::MAX), COUNT - 1);
    }

    #[test]
    fn a_percentile_is_the_time_that_so_many_do_not_exceed() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(50), None);
        for us in 1..=1000 {
            histogram.add(Histogram::bucket_of(us), 1);
        }
        for (percent, us) in [(1, 10_u64), (50, 500), (95, 950), (99, 990), (100, 1000)] {
            let found = histogram.percentile(percent).unwrap();
            assert!(found.abs_diff(us) * 16 <= us, "{percent}: {found}");
        }
        histogram.add(0, u64::MAX);
        histogram.add(COUNT, 1);
        assert_eq!(histogram.percentile(100), Some(0), "a count that is absurd");
    }

    #[test]
    fn times_count_for_a_minute() {
        let mut last = LastMinute::default();
        let (short, long) = (Histogram::bucket_of(5), Histogram::bucket_of(9));
        last.add(PART_US / 2, short, 1);
        last.add(3 * PART_US, long, 1);
        let percentiles = |last: &LastMinute, now_us| {
            let times = last.times(now_us);
            (times.percentile(50), times.percentile(100))
        };
        assert_eq!(percentiles(&last, 3 * PART_US), (Some(5), Some(9)));
        assert_eq!(percentiles(&last, 6 * PART_US), (Some(5), Some(9)));
        assert_eq!(percentiles(&last, 7 * PART_US), (Some(9), Some(9)));
        assert_eq!(percentiles(&last, 10 * PART_US), (None, None));
        last.add(10 * PART_US, short, 1);
        assert_eq!(percentiles(&last, 10 * PART_US), (Some(5), Some(5)));
    }
}
