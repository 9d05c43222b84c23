//! Actions that are only checked: they change nothing in the world.

use super::shell::Shell;
use crate::core::lifecycle::Reason;
use crate::core::{Action, PoolChange};

impl Shell {
    /// No process goes on meanwhile: so seeds stay the same, however many such actions there are.
    pub fn is_only_looked_at(&mut self, action: &Action) -> bool {
        match action {
            Action::TellPool(change) => self.told(change),
            Action::TellWhoIsIn { number, roles } => {
                let waits = self.unanswered.remove(number);
                assert!(waits, "who is in a database is told to nobody");
                self.found += roles.iter().map(|(_, count)| count).sum::<u32>();
            }
            Action::CheckQueue(pool) => {
                let is_empty = self.world.pools[*pool as usize].queue.is_empty();
                self.core.check_queue(*pool, is_empty, &self.world);
            }
            _ => return false,
        }
        true
    }

    fn told(&mut self, change: &PoolChange) {
        self.core.check_reason(change);
        let process = self.processes[change.slot as usize].as_ref();
        match change.why {
            Reason::Ended => assert!(process.is_some_and(|process| process.has_ended)),
            Reason::NotStarted => assert!(process.is_none_or(|process| process.has_ended)),
            Reason::RoomFromIdle(pool) | Reason::RoomWithinConnectionLimit(pool) => {
                self.turns.goes_for(pool);
            }
            _ => {}
        }
        self.told.tell(change);
    }

    /// A pool's log lines add up to the backends that it has and keeps.
    pub fn check_told(&self) {
        assert_eq!(self.told.slots, self.core.staying(), "told, and there");
    }
}
