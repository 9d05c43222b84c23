//! Settings change; and nobody is served by a backend that has read what was so before he
//! came, and is no more.

use super::shell::Shell;
use crate::core::backends::Life;
use crate::core::{Core, SessionId};

impl Shell {
    /// Somebody sets something for a role, a database, or both.
    pub fn settings_change(&mut self, mark: usize) {
        let generation = self.core.settings_generation() + 1;
        let settings = &mut self.world.settings;
        settings.changes += 1;
        settings
            .by_mark
            .insert(mark, (settings.changes, generation));
        self.core.settings_changed(generation, &[mark]);
        self.carry_out();
    }

    /// The configuration is loaded anew, with what starting backends read.
    pub fn starts_change(&mut self) {
        let settings = &mut self.world.settings;
        settings.changes += 1;
        settings.starts = settings.changes;
        self.core.outdate_pools();
        self.carry_out();
    }

    /// Who has just come is greeted by what is kept for settings as they are now.
    pub fn check_newcomer(&self, id: SessionId, group: (u32, u32)) {
        let session = self.core.sessions().get(id).expect("it has just come");
        let known = self.core.pool_settings_generation(session.pool());
        let (_, generation) = self.world.settings.newest_for(group);
        assert!(
            known >= generation,
            "greeted by settings {known} of {generation}"
        );
        let is_current = self.core.pool(session.pool()).map(|it| !it.is_outdated());
        assert_eq!(is_current, Some(true), "a new session of an outdated pool");
    }
}

impl Core {
    /// Of an outdated pool from which all have moved nobody stays; and nothing is to be done
    /// to pools that are no more.
    pub(super) fn check_outdated(&self) {
        let mut listed = self.retiring.iter().chain(self.waking.iter());
        assert!(listed.all(|number| self.pool(number).is_some()));
        for number in self.pools.existing().iter() {
            let pool = self.pool(number).expect("it exists");
            let is_over = pool.moved_to().is_some() && !self.moves.go_from(number);
            if !pool.is_outdated() || !is_over || self.sessions.members(number) > 0 {
                continue;
            }
            let mut lives = pool.all_backends().map(|slot| self.backends.life(slot));
            assert!(
                lives.all(|life| life.is_some_and(Life::is_leaving))
                    || self.retiring.contains(number),
                "a backend of pool {number} stays, whose sessions have moved"
            );
        }
    }

    /// At rest no outdated pool has backends, and no session.
    pub(super) fn check_none_is_left(&self) {
        for number in self.pools.with_backends().iter() {
            let lives = self.backends.lives(number);
            assert!(
                !self.is_left(number) || lives.may_serve() == 0,
                "outdated pool {number} has backends, and no session"
            );
        }
    }
}
