//! The settings of roles and databases, and those that all starting backends read: when they
//! changed.

use super::shell::Shell;
use std::collections::BTreeMap;

/// Which mark announces changes of settings; some share one, as in baton_shared.h.
pub fn mark_of(database: u32, role: u32) -> usize {
    match database as usize * 5 + role as usize {
        small @ ..15 => 1 + small % 13,
        other => 1 + other % 255,
    }
}

/// The last changes that concern a session, as of its login.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The backend that greets the session has read this change.
    pub change: u64,
    /// The backend that serves the session was started after this change.
    pub start: u64,
}

#[derive(Default)]
pub struct Settings {
    /// The number of changes; a backend that starts now has read all of them.
    pub changes: u64,
    /// The last change of what all starting backends read.
    starts: u64,
    /// The last changes that this mark announces.
    by_mark: BTreeMap<usize, Needs>,
}

impl Settings {
    pub fn needed_by(&self, (role, database): (u32, u32)) -> Needs {
        let marks = [(database, 0), (0, role), (database, role)];
        let marks = marks.map(|(database, role)| mark_of(database, role));
        let of_marks = marks.iter().chain(&[0]);
        let found: Vec<&Needs> = of_marks.filter_map(|mark| self.by_mark.get(mark)).collect();
        let change = found.iter().map(|needs| needs.change).max();
        let start = found.iter().map(|needs| needs.start).max();
        Needs {
            change: change.unwrap_or(0),
            start: start.unwrap_or(0).max(self.starts),
        }
    }
}

impl Shell {
    /// A setting of a role, a database, or both changes. Sometimes it is one that only a starting
    /// backend takes.
    pub fn settings_change(&mut self, mark: usize) {
        let settings = &mut self.world.settings;
        settings.changes += 1;
        let needs = settings.by_mark.entry(mark).or_default();
        needs.change = settings.changes;
        if settings.changes % 3 == 0 {
            needs.start = settings.changes;
        }
        self.core.settings_changed(&[mark]);
        self.carry_out();
    }

    /// The configuration is loaded anew, with settings that starting backends read.
    pub fn starts_change(&mut self) {
        let settings = &mut self.world.settings;
        settings.changes += 1;
        settings.starts = settings.changes;
    }
}
