//! Which clients may become sessions: by what superusers have set for sessions of a role in a
//! database, and by how many sessions wait. The expected result comes from the existing clients,
//! and not from the core's counts.

use super::random::Random;
use super::shell::Shell;
use crate::core::sessions::Whereabouts;
use crate::core::{NoSession, PoolLimits, TenantKey};
use std::collections::{BTreeMap, VecDeque};

/// A role that is exempt from limits of sessions.
pub const SUPERUSER: u32 = 4;
/// The bytes that a new session begins with (scheduler/mod.rs).
pub const CONTEXT_BYTES: usize = 4096;
/// A login is answered by a count that is at most this old.
pub const LOOK_AGAIN_US: u64 = 10_000;

pub type Group = (u32, u32);

/// What the core was told of a group.
pub struct Known {
    pub limits: PoolLimits,
    /// The most sessions that may exist: sessions from before the limit count as long as they stay.
    most: usize,
}

pub struct ComingIn {
    /// A generator of its own, so that seeds without these limits stay the same.
    pub random: Random,
    /// pg_baton.pool_max_sessions by role and by database; None: all of them.
    pub set: BTreeMap<(Option<u32>, Option<u32>), i32>,
    pub by_file: i32,
    pub known: BTreeMap<Group, Known>,
    pub threshold: usize,
    /// When clients came, and how many sessions waited then.
    pub waited: VecDeque<(u64, usize)>,
    was_native: bool,
    /// Until then, the number of waiting sessions was extrapolated from some of very many pools.
    guessed_until_us: u64,
}

impl ComingIn {
    /// A quarter of all seeds, and none that was kept before these limits existed.
    pub fn of(seed: u64) -> Option<ComingIn> {
        matches!(seed % 8, 1 | 6).then(|| ComingIn {
            random: Random::new(!seed),
            set: BTreeMap::new(),
            by_file: -1,
            known: BTreeMap::new(),
            threshold: 0,
            waited: VecDeque::new(),
            was_native: false,
            guessed_until_us: 0,
        })
    }

    /// The value for a role in a database: the most specific setting.
    pub fn set_for(&self, (role, database): Group) -> i32 {
        let (role, database) = (Some(role), Some(database));
        let levels = [
            (role, database),
            (role, None),
            (None, database),
            (None, None),
        ];
        let found = levels.iter().find_map(|level| self.set.get(level));
        found.copied().unwrap_or(self.by_file)
    }

    /// The launcher has answered.
    pub fn is_told(&mut self, group: Group, limits: PoolLimits, shell: &Shell) {
        let most = most(&limits, sessions_of(group, shell));
        if shell.core.groups.get(group).is_some() {
            self.known.insert(group, Known { limits, most });
        }
    }

    /// Runs after each step: no group has more sessions than permitted. When the launcher has
    /// answered all questions, each group's limit is the setting.
    pub fn check(&mut self, shell: &Shell) {
        self.forget(shell);
        for (group, known) in &mut self.known {
            let sessions = sessions_of(*group, shell);
            let is_exempt = group.0 == SUPERUSER;
            assert!(
                is_exempt || sessions <= known.most,
                "{group:?} has {sessions} sessions, and may have {}",
                known.most
            );
            known.most = most(&known.limits, sessions);
        }
        let core = &shell.core;
        let are_to_be_asked = core.groups.are_to_be_asked_for();
        if !shell.asked_limits.is_empty() || are_to_be_asked {
            return;
        }
        for (key, group) in core.groups.iter() {
            let set = usize::try_from(self.set_for(*key)).ok();
            let known = group.limits().map(|limits| limits.max_sessions);
            assert_eq!(known, Some(set), "{key:?}: known, and set");
        }
    }

    /// Forgets groups whose tenants have all gone, or have come since.
    pub fn forget(&mut self, shell: &Shell) {
        self.known.retain(|group, _| {
            let group = shell.core.groups.get(*group);
            group.is_some_and(|group| group.limits().is_some())
        });
    }

    /// May one more session come in, by the limit of its role in its database?
    pub fn expected_limit(&self, key: &TenantKey, shell: &Shell) -> Result<(), NoSession> {
        let group = (key.role_oid, key.database_oid);
        let known = self.known.get(&group);
        let limit = known.and_then(|known| known.limits.max_sessions);
        match limit.filter(|_| !key.superuser) {
            Some(limit) if sessions_of(group, shell) >= limit => Err(NoSession::PoolLimit(limit)),
            _ => Ok(()),
        }
    }

    /// A client comes, and is native or not.
    pub fn check_native(&mut self, is_native: bool, shell: &Shell) {
        let now_us = shell.core.now.us;
        let waiting = waiting(shell);
        self.waited.push_back((now_us, waiting));
        let is_past = |(at_us, _): &(u64, usize)| at_us + LOOK_AGAIN_US <= now_us;
        while self.waited.front().is_some_and(is_past) {
            self.waited.pop_front();
        }
        if shell.core.are_looked_at_in_turns() {
            self.guessed_until_us = now_us + LOOK_AGAIN_US;
        }
        let counts = || self.waited.iter().map(|(_, count)| *count);
        let most = counts().max().unwrap_or(0);
        let least = counts().min().unwrap_or(0);
        let threshold = self.threshold;
        // From the threshold on, until half of it.
        let is_right = match (self.was_native, is_native) {
            (false, true) => threshold > 0 && most >= threshold,
            (true, true) => threshold > 0 && most > threshold / 2,
            (true, false) => threshold == 0 || least <= threshold / 2,
            (false, false) => threshold == 0 || least < threshold,
        };
        assert!(
            is_right || now_us < self.guessed_until_us,
            "{least} to {most} wait, the threshold is {threshold}: native {is_native}, before {}",
            self.was_native
        );
        self.was_native = is_native;
    }
}

fn most(limits: &PoolLimits, sessions: usize) -> usize {
    let limit = limits.max_sessions.unwrap_or(usize::MAX);
    limit.max(sessions)
}

fn sessions_of(group: Group, shell: &Shell) -> usize {
    let clients = shell.world.clients.iter().flatten();
    clients.filter(|client| client.group == group).count()
}

/// Sessions in lines, and in ready queues by their counters.
fn waiting(shell: &Shell) -> usize {
    let sessions = shell.core.sessions();
    let place = |id| sessions.get(id).map(|session| session.whereabouts());
    let in_line = sessions
        .ids()
        .filter(|id| matches!(place(*id), Some(Whereabouts::Waiting(_))));
    let queued = shell.world.pools.iter().map(|pool| pool.queued.max(0));
    in_line.count() + queued.sum::<i32>() as usize
}
