//! Who may come in: by what superusers have set for sessions of a role in a database,
//! and by how many wait. What is right is found from the clients that there are, and not
//! from what the core counts.

use super::random::Random;
use super::scenario::Scenario;
use super::shell::Shell;
use super::world::mark_of;
use crate::core::sessions::Whereabouts;
use crate::core::{NoSession, PoolKey, PoolLimits, Provenance, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A role that no limit of sessions concerns.
pub const SUPERUSER: u32 = 4;
/// A new session begins with so much (scheduler/mod.rs).
const CONTEXT_BYTES: usize = 4096;
/// Who logs in is told what was so at most so long ago.
const LOOK_AGAIN_US: u64 = 10_000;

type Group = (u32, u32);

/// What the core was told of a group.
struct Known {
    limits: PoolLimits,
    /// So many sessions may be there: those that came before that, as long as they stay.
    most: usize,
    /// Serial numbers of its pools: with the last of them it is forgotten.
    pools: BTreeSet<u64>,
}

pub struct ComingIn {
    /// Its own: the seeds that know nothing of it shall stay what they are.
    random: Random,
    /// pg_baton.pool_max_sessions by role and by database; None: all of them.
    set: BTreeMap<(Option<u32>, Option<u32>), i32>,
    by_file: i32,
    known: BTreeMap<Group, Known>,
    threshold: usize,
    /// When somebody came, and how many waited then.
    waited: VecDeque<(u64, usize)>,
    was_native: bool,
    /// How many wait was told from some of very many pools, up to then.
    guessed_until_us: u64,
}

impl ComingIn {
    /// A quarter of all seeds, and none that was kept before there was this.
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

    /// What counts for a role in a database: what is set most closely.
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
        let pools = pools_of(group, shell);
        let known = Known {
            limits,
            most,
            pools,
        };
        if !known.pools.is_empty() {
            self.known.insert(group, known);
        }
    }

    /// After each step: no group has more sessions than it may. And when the launcher has
    /// answered all that it was asked, what counts for each is what is set.
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
        let are_to_be_asked = core.groups.are_to_be_asked_for() || !core.pools.changed().is_empty();
        if !shell.asked_limits.is_empty() || are_to_be_asked {
            return;
        }
        for number in core.pools() {
            let group = core.group_of(number).expect("it is there");
            let limits = core.groups.get(group).and_then(|group| group.limits());
            let set = usize::try_from(self.set_for(group)).ok();
            let known = limits.map(|limits| limits.max_sessions);
            assert_eq!(known, Some(set), "{group:?}: known, and set");
        }
    }

    /// Groups of which no pool is left.
    fn forget(&mut self, shell: &Shell) {
        self.known.retain(|group, known| {
            let pools = pools_of(*group, shell);
            let is_left = !known.pools.is_disjoint(&pools);
            known.pools = pools;
            is_left
        });
    }

    /// May one more come in, by the limit of its role in its database?
    fn expected_limit(&self, key: &PoolKey, shell: &Shell) -> Result<(), NoSession> {
        let group = (key.role_oid, key.database_oid);
        let known = self.known.get(&group);
        let limit = known.and_then(|known| known.limits.max_sessions);
        match limit.filter(|_| !key.superuser) {
            Some(limit) if sessions_of(group, shell) >= limit => Err(NoSession::PoolLimit(limit)),
            _ => Ok(()),
        }
    }

    /// Somebody comes and is native, or not.
    fn check_native(&mut self, is_native: bool, shell: &Shell) {
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
        // From the threshold on, and until half of it.
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

fn pools_of(group: Group, shell: &Shell) -> BTreeSet<u64> {
    let core = &shell.core;
    let pools = core.pools();
    let own = pools.filter(|number| core.group_of(*number) == Some(group));
    own.filter_map(|number| core.pool_serial(number)).collect()
}

/// In lines, and in ready queues as these are counted.
fn waiting(shell: &Shell) -> usize {
    let sessions = shell.core.sessions();
    let place = |id| sessions.get(id).map(|session| session.whereabouts());
    let in_line = sessions
        .ids()
        .filter(|id| matches!(place(*id), Some(Whereabouts::Waiting(_))));
    let queued = shell.world.pools.iter().map(|pool| pool.queued.max(0));
    in_line.count() + queued.sum::<i32>() as usize
}

impl Scenario {
    /// Now and then a superuser sets how many sessions there may be, for any of those
    /// that he can set it for, or the file says from when on new ones are native.
    pub(super) fn set_for_sessions(&mut self) {
        let Some(coming_in) = &mut self.coming_in else {
            return;
        };
        let random = &mut coming_in.random;
        if random.once_in(100) {
            let threshold = random.below(2) * random.between(1, 30) as usize;
            coming_in.threshold = threshold;
            // Who comes next is told by what is so now.
            coming_in.waited.clear();
            self.time_passes(LOOK_AGAIN_US);
            self.set_clock();
            self.limits.native_when_waiting = threshold;
            let limits = self.limits;
            self.shell.core.set_limits(limits);
            return self.shell.carry_out();
        }
        if !random.once_in(40) {
            return;
        }
        let value = random.below(16) as i32 - 1;
        let role = random.once_in(2).then(|| random.below(5) as u32);
        let database = random.once_in(2).then(|| random.below(3) as u32);
        if role.is_none() && database.is_none() && random.once_in(2) {
            coming_in.by_file = value;
            return self.shell.core.ask_limits_again();
        }
        match random.below(3) {
            // RESET
            0 => coming_in.set.remove(&(role, database)),
            _ => coming_in.set.insert((role, database), value),
        };
        let mark = match (role, database) {
            (None, None) => 0,
            _ => mark_of(database.unwrap_or(0), role.unwrap_or(0)),
        };
        self.shell.settings_change(mark);
    }

    /// A client says who it is.
    pub(super) fn is_native(&mut self, key: &PoolKey) -> bool {
        let Some(coming_in) = &mut self.coming_in else {
            return false;
        };
        let shell = &mut self.shell;
        let is_native = shell.core.too_many_wait(&shell.world);
        coming_in.check_native(is_native, shell);
        self.summary.natives += u64::from(is_native);
        let group = (key.role_oid, key.database_oid);
        let has_no_memory = shell.core.has_no_memory_for(group, CONTEXT_BYTES);
        let known = coming_in.known.get(&group);
        let memory = known.and_then(|known| known.limits.memory);
        let clients = shell.world.clients.iter().flatten();
        let stored = clients.filter(|client| client.group == group);
        let stored: i64 = stored.map(|client| client.context_bytes).sum();
        let expected = memory.is_some_and(|most| most - stored < CONTEXT_BYTES as i64);
        assert_eq!(has_no_memory, expected, "{stored} bytes of {memory:?}");
        is_native
    }

    /// A client has logged in, and becomes a session if it may.
    pub(super) fn begin_session(&mut self, key: PoolKey, from: Provenance) -> Option<SessionId> {
        if let Some(coming_in) = &self.coming_in {
            let expected = coming_in.expected_limit(&key, &self.shell);
            let may = self.shell.core.may_come_in(&key);
            assert_eq!(may, expected, "one comes of {key:?}");
            self.summary.beyond_limit += u64::from(may.is_err());
            if let Some(pool) = self.shell.core.find_pool(&key).filter(|_| may.is_err()) {
                // Nor does one who has not asked come in.
                let shell = &mut self.shell;
                let begun = shell.core.begin_session(pool, from, &shell.world);
                assert_eq!(begun.map(|_| ()), expected, "one comes of {key:?}");
            }
            may.ok()?;
        }
        let core = &mut self.shell.core;
        let found = core.find_pool(&key);
        let pool = found.or_else(|| core.create_pool(key.clone()))?;
        self.shell.carry_out();
        let shell = &mut self.shell;
        let is_full = !shell.world.sessions.iter().any(|slot| slot.is_free);
        let begun = shell.core.begin_session(pool, from, &shell.world);
        if let Some(coming_in) = &mut self.coming_in {
            // It was asked before a pool was made.
            let expected = if is_full {
                Err(NoSession::Full)
            } else {
                Ok(())
            };
            assert_eq!(begun.map(|_| ()), expected, "one comes of {key:?}");
            self.summary.without_slot += u64::from(is_full);
            coming_in.forget(shell);
        }
        let id = begun.ok()?;
        shell.check_newcomer(id, (key.role_oid, key.database_oid));
        Some(id)
    }
}
