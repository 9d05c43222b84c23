//! What is set for roles and databases, and what all starting backends read: when it
//! changed.

use std::collections::BTreeMap;

/// By which mark changes of settings are told; some share one, as in baton_shared.h.
pub fn mark_of(database: u32, role: u32) -> usize {
    match database as usize * 5 + role as usize {
        small @ ..15 => 1 + small % 13,
        other => 1 + other % 255,
    }
}

#[derive(Default)]
pub struct Settings {
    /// So often something has changed: who starts now has read all of it.
    pub changes: u64,
    /// The last change of what all starting backends read.
    pub starts: u64,
    /// The last change that this mark tells of, and its generation.
    pub by_mark: BTreeMap<usize, (u64, u64)>,
}

impl Settings {
    /// The last change that concerns a role in a database, and its generation.
    pub fn newest_for(&self, (role, database): (u32, u32)) -> (u64, u64) {
        let marks = [(database, 0), (0, role), (database, role)];
        let marks = marks.map(|(database, role)| mark_of(database, role));
        let of_marks = marks.iter().chain(&[0]);
        let found = of_marks.filter_map(|mark| self.by_mark.get(mark).copied());
        let (change, generation) = found.max().unwrap_or_default();
        (change.max(self.starts), generation)
    }

    /// Who comes now is to be served by backends that have read up to this change.
    pub fn needed_by(&self, group: (u32, u32)) -> u64 {
        self.newest_for(group).0
    }
}
