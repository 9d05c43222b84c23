//! Averages of the last minute or two, of figures that are counted since the start: as PgBouncer
//! makes them, with a mark every `stats_period`.

use std::collections::BTreeMap;

/// PgBouncer's stats_period.
pub const PERIOD_US: u64 = 60_000_000;

/// The figures of a database, in the order of SHOW STATS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures(pub [u64; FIGURES]);

pub const FIGURES: usize = 12;

pub const ASSIGNMENTS: usize = 0;
pub const TRANSACTIONS: usize = 1;
pub const QUERIES: usize = 2;
pub const SENT: usize = 4;
pub const TRANSACTION_TIME: usize = 5;
pub const QUERY_TIME: usize = 6;
pub const WAIT_TIME: usize = 7;
pub const LOGINS: usize = 11;

/// The times, and the counts that each is divided by.
const TIMES: [(usize, usize); 3] = [
    (TRANSACTION_TIME, TRANSACTIONS),
    (QUERY_TIME, QUERIES),
    (WAIT_TIME, ASSIGNMENTS),
];

impl Figures {
    pub fn add(&mut self, other: &Figures) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.wrapping_add(more);
        }
    }

    /// What happened since `before`, `us` microseconds ago: counts per second, and the mean of
    /// each time.
    fn average(&self, before: &Figures, us: u64) -> Figures {
        let mut since = Figures::default();
        for (of, since) in since.0.iter_mut().enumerate() {
            *since = self.0[of].saturating_sub(before.0[of]);
        }
        let mut average = since;
        for count in &mut average.0 {
            let a_second = u128::from(*count) * 1_000_000 / u128::from(us.max(1));
            *count = u64::try_from(a_second).unwrap_or(u64::MAX);
        }
        for (time, count) in TIMES {
            average.0[time] = since.0[time].checked_div(since.0[count]).unwrap_or(0);
        }
        average
    }
}

/// The figures of all databases, by name.
pub type All = BTreeMap<Vec<u8>, Figures>;

/// The figures at the last two marks.
#[derive(Default)]
pub struct Averages {
    older: All,
    newer: All,
    older_us: u64,
    newer_us: u64,
}

impl Averages {
    /// Is it time for the next mark?
    pub fn are_due(&self, now_us: u64) -> bool {
        now_us >= self.newer_us + PERIOD_US
    }

    pub fn mark(&mut self, all: All, now_us: u64) {
        self.older = std::mem::replace(&mut self.newer, all);
        self.older_us = std::mem::replace(&mut self.newer_us, now_us);
    }

    /// The averages of a database since the older mark.
    pub fn of(&self, name: &[u8], now: &Figures, now_us: u64) -> Figures {
        let nothing = Figures::default();
        let before = self.older.get(name).unwrap_or(&nothing);
        now.average(before, now_us.saturating_sub(self.older_us))
    }

    /// The averages of all databases together.
    pub fn of_all(&self, now: &Figures, now_us: u64) -> Figures {
        let mut before = Figures::default();
        self.older.values().for_each(|figures| before.add(figures));
        now.average(&before, now_us.saturating_sub(self.older_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(transactions: u64, time: u64) -> Figures {
        let mut figures = Figures::default();
        figures.0[TRANSACTIONS] = transactions;
        figures.0[TRANSACTION_TIME] = time;
        figures
    }

    fn all(transactions: u64, time: u64) -> All {
        BTreeMap::from([(b"shop".to_vec(), figures(transactions, time))])
    }

    #[test]
    fn averages_are_those_since_the_mark_before_the_last() {
        let mut averages = Averages::default();
        let of = |averages: &Averages, transactions, time, now_us| {
            let average = averages.of(b"shop", &figures(transactions, time), now_us).0;
            (average[TRANSACTIONS], average[TRANSACTION_TIME])
        };
        assert_eq!(of(&averages, 100, 5_000, 10_000_000), (10, 50));
        assert!(!averages.are_due(PERIOD_US - 1) && averages.are_due(PERIOD_US));
        averages.mark(all(600, 600), PERIOD_US);
        assert_eq!(of(&averages, 600, 600, PERIOD_US), (10, 1));
        averages.mark(all(600, 600), 2 * PERIOD_US);
        assert_eq!(of(&averages, 600, 600, 2 * PERIOD_US), (0, 0));
        assert_eq!(of(&averages, 1200, 1800, 2 * PERIOD_US), (10, 2));
        let of_all = averages.of_all(&figures(1200, 1800), 2 * PERIOD_US).0;
        assert_eq!(of_all[TRANSACTIONS], 10);
        // After pg_baton_stats_reset().
        assert_eq!(of(&averages, 5, 5, 2 * PERIOD_US), (0, 0));
    }
}
