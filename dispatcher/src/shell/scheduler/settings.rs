//! What has changed outside: parameters, settings of roles and databases, limits.

use super::Scheduler;
use crate::core::{PoolLimits, PoolSettings, Roles, SessionId};
use crate::shell::link::layout::settings_mark;
use crate::shell::parameters::Parameters;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

/// The launcher is to be asked: which limits has this role in this database?
pub struct AskLimits {
    pub role: u32,
    pub database: u32,
}

/// Who is in a database that is held: some, or (`is_all`) the last of them.
pub struct Found {
    /// The hold's.
    pub number: u32,
    pub roles: Roles,
    pub is_all: bool,
}

/// Whose settings have changed; perhaps of some others, too.
pub struct Changed {
    before: Vec<u32>,
    now: Vec<u32>,
}

impl Changed {
    fn marks(&self) -> Vec<usize> {
        let marks = self.before.iter().zip(&self.now).enumerate();
        let changed = marks.filter(|(_, (before, now))| before != now);
        changed.map(|(mark, _)| mark).collect()
    }

    /// Those for all roles or all databases are under 0, InvalidOid.
    pub fn concerns(&self, role: u32, database: u32) -> bool {
        [0, database].iter().any(|database| {
            [0, role].iter().any(|role| {
                let mark = settings_mark(*database, *role);
                self.now[mark] != self.before[mark]
            })
        })
    }
}

impl Scheduler {
    /// Have a role's or a database's settings changed?
    pub fn look_at_settings(&mut self) -> Option<Changed> {
        let generation = self.control.header.settings_generation.load(SeqCst);
        if generation == self.settings_generation {
            return None;
        }
        self.settings_generation = generation;
        let now = self.control.header.read_settings_marks();
        let before = std::mem::replace(&mut self.settings_marks, now.clone());
        let changed = Changed { before, now };
        self.core.settings_changed(&changed.marks());
        Some(changed)
    }

    pub fn settings_generation(&self) -> u64 {
        self.settings_generation
    }

    /// The configuration has been loaded anew.
    pub fn reconfigure(&mut self, parameters: Arc<Parameters>) {
        let before = std::mem::replace(&mut self.parameters, parameters);
        let now = Arc::clone(&self.parameters);
        if now.configuration_generation != before.configuration_generation {
            self.greetings.configuration_changed(self.now.us);
        }
        self.contexts.arena.set_limit(now.session_memory());
        if now.backend_start_settings != before.backend_start_settings {
            // Who comes from now on is served by backends that are started from now on.
            self.starts = self.starts.wrapping_add(1);
            self.greetings.forget_all();
        }
        self.follow_limits();
        // What is set for nobody in particular may have changed.
        self.ask_limits_again();
    }

    /// So many other connections of the server are there, or will be in a moment.
    pub fn others_are(&mut self, orphans: usize, natives: usize) {
        if (self.orphans, self.natives) != (orphans, natives) {
            (self.orphans, self.natives) = (orphans, natives);
            self.follow_limits();
        }
    }

    /// What the core goes by follows the configuration, and who else has
    /// connections of the server.
    fn follow_limits(&mut self) {
        let others = self.orphans + self.natives;
        let limits = (self.parameters).limits(self.control.backends.len(), others);
        self.core.set_limits(limits);
    }

    // ---- the launcher ------------------------------------------------------

    /// What has to be asked since the last time.
    pub fn take_asks(&mut self) -> Vec<AskLimits> {
        std::mem::take(&mut self.asks)
    }

    /// A new launcher, or a new configuration, says anew.
    pub fn ask_limits_again(&mut self) {
        self.core.ask_limits_again();
    }

    pub fn set_pool_limits(&mut self, group: (u32, u32), settings: PoolSettings) {
        (self.core).set_pool_limits(group, PoolLimits::of(settings.values));
        self.core.keep_settings(group, settings);
        self.carry_out();
    }

    // ---- holds on databases ------------------------------------------------

    /// Takes or confirms a hold on a database (holds.rs); `take_found` says who is
    /// there.
    pub fn hold(&mut self, number: u32, database: u32, forced: bool, own: SessionId) {
        (self.core).hold(number, database, forced, own, &self.control);
        self.carry_out();
    }

    pub fn take_found(&mut self) -> Vec<Found> {
        std::mem::take(&mut self.found)
    }
}
