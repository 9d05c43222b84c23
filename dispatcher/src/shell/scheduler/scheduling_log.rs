//! The dispatcher's lines of the scheduling log (`pg_baton.log_scheduling`): why a pool
//! has grown or shrunk. Backends write the others (scheduling_log.c), with the same
//! prefix. docs/operations.md has them all.

use super::Scheduler;
use crate::core::{PoolChange, PoolKey};
use std::fmt::{Display, Formatter, Result};
use tracing::info;

/// One line. What others have chosen, the names, comes last: nothing that precedes
/// it can be theirs.
struct Line<'a> {
    change: &'a PoolChange,
    /// 0: none yet.
    backend_pid: u32,
    waiting: usize,
    pool: Option<&'a PoolKey>,
    /// Which gets the place.
    for_pool: Option<&'a PoolKey>,
}

impl Display for Line<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let PoolChange {
            slot,
            backends,
            why,
            ..
        } = self.change;
        let what = if why.is_growth() { "grew" } else { "shrank" };
        write!(out, "scheduling: {what}: slot={slot}")?;
        if self.backend_pid != 0 {
            write!(out, " backend_pid={}", self.backend_pid)?;
        }
        let (waiting, why) = (self.waiting, why.text());
        write!(out, " backends={backends} waiting={waiting} why=\"{why}\"")?;
        for (before, key) in [("", self.pool), ("for_", self.for_pool)] {
            if let Some(key) = key {
                let database = String::from_utf8_lossy(&key.database);
                write!(out, " {before}database={database}")?;
            }
        }
        Ok(())
    }
}

impl Scheduler {
    pub(super) fn tell_pool(&self, change: &PoolChange) {
        if !self.parameters.log_scheduling {
            return;
        }
        let key = |pool| self.core.pool_key(pool).map(|key| &**key);
        let line = Line {
            change,
            backend_pid: self.links.process_of(change.slot),
            waiting: self.core.waiting_in(change.pool, &self.control),
            pool: key(change.pool),
            for_pool: change.why.for_pool().and_then(key),
        };
        info!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Reason;

    fn key(database: &[u8]) -> PoolKey {
        PoolKey {
            database: database.to_vec(),
            database_oid: 2,
            options: Vec::new(),
            role_oid: None,
        }
    }

    #[test]
    fn a_line_has_the_same_fields_in_the_same_order_and_names_last() {
        let change = |why| PoolChange {
            slot: 3,
            pool: 7,
            backends: 2,
            why,
        };
        let (app, web) = (key(b"app why=\"x\""), key(b"web"));
        let grew = Line {
            change: &change(Reason::Waiting),
            backend_pid: 0,
            waiting: 5,
            pool: Some(&app),
            for_pool: None,
        };
        let text = "scheduling: grew: slot=3 backends=2 waiting=5 why=\"sessions wait\" \
                    database=app why=\"x\"";
        assert_eq!(grew.to_string(), text);
        let shrank = Line {
            change: &change(Reason::RoomFor(8)),
            backend_pid: 99,
            waiting: 0,
            pool: Some(&app),
            for_pool: Some(&web),
        };
        let text = "scheduling: shrank: slot=3 backend_pid=99 backends=2 waiting=0 \
                    why=\"room for another pool\" database=app why=\"x\" \
                    for_database=web";
        assert_eq!(shrank.to_string(), text);
    }
}
