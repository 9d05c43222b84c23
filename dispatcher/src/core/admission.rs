//! Who comes in: how many sessions a role may have in a database
//! (pg_baton.pool_max_sessions), and from when on new ones are native because too many
//! wait (pg_baton.native_when_waiting).
//!
//! What the launcher says of a client (CONNECTION LIMIT, a refusal) and the limits at
//! the door, for which native sessions count, are the shell's: login/answers.rs.

use super::groups::Group;
use super::pool_limits::group_of;
use super::{Core, TenantKey, Words};

/// Why a client becomes no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSession {
    /// Its role has so many in its database, and may have no more.
    PoolLimit(usize),
    /// There is no slot for it.
    Full,
}

/// Do so many sessions wait that new ones become native? From the threshold on, and
/// until only half as many wait.
#[derive(Debug, Default)]
pub struct Crowd {
    is_there: bool,
    /// Who logs in before is taken for the same moment's.
    look_at_us: u64,
}

/// To count takes a look at up to some hundred ready queues.
const LOOK_AGAIN_US: u64 = 10_000;

impl Crowd {
    fn look(&mut self, threshold: usize, waiting: usize) {
        let most = match self.is_there {
            true => threshold / 2,
            false => threshold.saturating_sub(1),
        };
        self.is_there = waiting > most;
    }
}

impl Core {
    /// May one more of this key come in? A superuser may in any case, as with CONNECTION
    /// LIMIT (InitializeSessionUserId in miscinit.c). As long as the launcher has not said
    /// what is set for the role in the database, what it said of this client counts.
    pub fn may_come_in(&self, key: &TenantKey, at_login: Option<usize>) -> Result<(), NoSession> {
        let group = group_of(key);
        let limits = self.groups.get(group).and_then(Group::limits);
        let most = limits.map_or(at_login, |limits| limits.max_sessions);
        match most.filter(|_| !key.superuser) {
            Some(most) if self.session_tally.of_group(group) >= most => {
                Err(NoSession::PoolLimit(most))
            }
            _ => Ok(()),
        }
    }

    /// A client says who it is: shall it be native, as too many wait for the pool's
    /// backends?
    pub fn too_many_wait(&mut self, words: &impl Words) -> bool {
        let threshold = self.limits.native_when_waiting;
        if threshold == 0 {
            self.crowd = Crowd::default();
        } else if self.now.us >= self.crowd.look_at_us {
            self.crowd.look(threshold, self.waiting(words));
            self.crowd.look_at_us = self.now.us + LOOK_AGAIN_US;
        }
        self.crowd.is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_sessions_are_native_from_the_threshold_on_and_until_half_of_it_is_served() {
        let mut crowd = Crowd::default();
        let seen = [9, 10, 9, 6, 5, 9, 10, 0].map(|waiting| {
            crowd.look(10, waiting);
            crowd.is_there
        });
        assert_eq!(seen, [false, true, true, true, false, false, true, false]);
    }
}
