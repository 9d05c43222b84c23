//! Latencies, in buckets that grow with the value: 32 for each power of two, so a quantile is
//! at most 3 % off and a sample costs one increment.

const BUCKETS_A_DOUBLING: u64 = 32;
const SHIFT: u32 = BUCKETS_A_DOUBLING.trailing_zeros();
/// Enough for 2^40 microseconds, which is twelve days.
const BUCKETS: usize = (BUCKETS_A_DOUBLING as usize) * 37;

/// Counts of latencies in microseconds.
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: vec![0; BUCKETS],
            count: 0,
            sum: 0,
            max: 0,
        }
    }
}

impl Histogram {
    /// Adds one sample.
    pub fn record(&mut self, microseconds: u64) {
        self.buckets[bucket_of(microseconds).min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.sum += microseconds;
        self.max = self.max.max(microseconds);
    }

    /// Adds the samples of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// The number of samples.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean of the samples, in microseconds.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }

    /// The smallest value that this share of the samples does not exceed.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return upper_bound(index).min(self.max);
            }
        }
        self.max
    }

    /// Converts microseconds for a report.
    pub fn milliseconds(microseconds: u64) -> f64 {
        microseconds as f64 / 1000.0
    }
}

fn bucket_of(value: u64) -> usize {
    if value < BUCKETS_A_DOUBLING {
        return value as usize;
    }
    let doubling = value.ilog2() - SHIFT;
    ((u64::from(doubling) << SHIFT) + (value >> doubling)) as usize
}

fn upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * BUCKETS_A_DOUBLING {
        return bucket;
    }
    let doubling = (bucket >> SHIFT) - 1;
    let within = bucket - (doubling << SHIFT);
    ((within + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::{bucket_of, upper_bound, Histogram};

    #[test]
    fn value_lies_in_bucket_that_ends_at_most_three_percent_above() {
        for value in (0..100_000).chain([1 << 30, (1 << 39) + 12_345]) {
            let upper = upper_bound(bucket_of(value));
            assert!(upper >= value, "{value} beyond {upper}");
            assert!(upper - value <= value / 32, "{value} far below {upper}");
            assert!(value == 0 || upper_bound(bucket_of(value) - 1) < value);
        }
    }

    #[test]
    fn quantiles_of_a_known_set() {
        let mut histogram = Histogram::default();
        for value in 1..=1000 {
            histogram.record(value);
        }
        assert_eq!(histogram.quantile(1.0), 1000);
        assert!((495..=520).contains(&histogram.quantile(0.5)));
        assert_eq!(histogram.mean(), 500);
        assert_eq!(Histogram::default().quantile(0.99), 0);
    }
}
