//! Invariants that hold after every step (docs/design/scheduler.md).

use super::process::FromBackend;
use super::shell::Shell;
use crate::core::scan::JOBS;
use crate::core::sessions::{Of, Whereabouts};
use crate::core::{index_of, Backend, Core, Ownership, PoolMode, SessionId, Tally, Tells, Words};
use std::collections::BTreeMap;

/// The counts of a tenant's sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OfTenant {
    members: usize,
    greeted: usize,
    waiting: usize,
}

impl Core {
    /// Each session is at one place, and all lists and counts agree with the tables.
    pub(super) fn check_tables(&self) {
        let mut waiting: BTreeMap<u32, usize> = BTreeMap::new();
        let mut members: BTreeMap<u32, usize> = BTreeMap::new();
        let mut live = 0;
        let mut of_tenants: BTreeMap<u32, OfTenant> = BTreeMap::new();
        for id in self.sessions.ids() {
            let session = self.sessions.get(id).expect("it is listed");
            live += 1;
            *members.entry(session.pool()).or_default() += 1;
            let tenant = self.tenant(session.tenant()).expect("it has one");
            assert_eq!(tenant.pool(), session.pool(), "of its tenant's pool");
            let of_tenant = of_tenants.entry(session.tenant()).or_default();
            of_tenant.members += 1;
            of_tenant.greeted += usize::from(!session.is_ungreeted());
            if let Whereabouts::Waiting(_) = session.whereabouts() {
                *waiting.entry(session.pool()).or_default() += 1;
                of_tenant.waiting += 1;
            }
        }
        assert_eq!(live, self.sessions.live(), "live sessions");
        let all_waiting: usize = waiting.values().sum();
        assert_eq!(all_waiting, self.sessions.all_waiting(), "all that wait");
        for number in 0..self.sessions.pools() {
            let is_there = self.pool(number).is_some();
            let count = |of: &BTreeMap<u32, usize>| of.get(&number).copied().unwrap_or(0);
            assert!(is_there || count(&members) == 0, "sessions of no pool");
            assert_eq!(count(&members), self.sessions.members(number), "members");
            assert_eq!(count(&members), self.sessions.of_pool(number).count());
            assert_eq!(count(&waiting), self.sessions.waiting(number), "waiting");
            for id in self.check_list(Of::Waiting, number) {
                let session = self.sessions.get(id).expect("it is listed");
                assert_eq!(session.pool(), number, "of another pool's list");
            }
            let of_tenant = of_tenants.get(&number).copied().unwrap_or_default();
            self.check_lines(number, of_tenant);
            if self.pool(number).is_some() {
                assert!(
                    count(&waiting) == 0 || self.in_want.iter().any(|other| other == number),
                    "a pool in want that nobody looks at"
                );
            }
        }
        self.check_pools();
        self.check_tallies();
        self.backends.check();
        self.check_reserves();
        let mut dedicated = 0;
        let mut total = 0;
        let mut leaving = 0;
        for (slot, backend) in self.backends.iter() {
            total += 1;
            dedicated += usize::from(backend.life().is_dedicated());
            leaving += usize::from(backend.life().is_leaving());
            let pool = self.pool(backend.pool()).expect("a backend has a pool");
            let times = pool.all_backends().filter(|other| *other == slot);
            assert_eq!(times.count(), 1, "a backend is listed once in its pool");
            let is_apart = pool.dedicated().contains(&slot);
            assert_eq!(
                is_apart,
                backend.life().is_dedicated(),
                "listed as dedicated"
            );
        }
        assert_eq!(total, self.backends.total(), "all backends");
        assert_eq!(dedicated, self.backends.dedicated(), "dedicated backends");
        let held = self.backends.iter().filter(|(slot, backend)| {
            assert!(!backend.life().is_held() || self.backends.may_be_held(*slot));
            backend.life().is_held()
        });
        assert_eq!(held.count(), self.backends.held(), "held backends");
        assert_eq!(leaving, self.backends.leaving().len(), "leaving backends");
        assert!(
            self.actions.is_empty(),
            "actions that nobody has carried out"
        );
    }

    /// The waiting sessions of a list, in the order in which they began to wait.
    fn check_list(&self, of: Of, number: u32) -> Vec<SessionId> {
        let mut before = None;
        for id in self.sessions.list(of, number) {
            let session = self.sessions.get(id).expect("a list has only live ones");
            let waits = matches!(session.whereabouts(), Whereabouts::Waiting(_));
            assert!(waits, "in a list and does not wait");
            assert!(before < Some(session.turn()), "a list out of order");
            before = Some(session.turn());
        }
        self.sessions.list(of, number).collect()
    }

    /// A tenant's lines and counts.
    fn check_lines(&self, number: u32, found: OfTenant) {
        let lines = [Of::Quiet, Of::Busy].map(|line| {
            let all = self.check_list(line, number);
            for id in &all {
                let session = self.sessions.get(*id).expect("it is listed");
                assert_eq!(session.tenant(), number, "of another tenant's line");
                assert_eq!(session.line(), line, "of another line");
            }
            all.len()
        });
        let counted = OfTenant {
            members: self.sessions.members_of_tenant(number),
            greeted: self.sessions.greeted_members(number),
            waiting: self.sessions.waiting_of_tenant(number),
        };
        assert_eq!(counted, found, "of tenant {number}");
        assert_eq!(lines.iter().sum::<usize>(), found.waiting, "in lines");
    }

    /// The counts that limits use agree with the tables.
    fn check_tallies(&self) {
        let mut sessions = Tally::default();
        for number in self.tenants.existing().iter() {
            let key = self.tenant_key(number).expect("it exists");
            sessions.add(key, self.sessions.members_of_tenant(number));
        }
        assert_eq!(sessions, self.session_tally, "sessions by role");
        let mut backends: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, backend) in self.backends.iter() {
            if let Some(role) = backend.role() {
                *backends.entry(role).or_default() += 1;
            }
        }
        assert!(backends
            .iter()
            .all(|(role, many)| self.backends.of_role(*role) == *many));
        assert_eq!(backends.len(), self.backends.roles(), "backends by role");
    }

    /// The counts of reserves follow each change of pools' limits, sessions and backends.
    fn check_reserves(&self) {
        let reserved = |number: u32| {
            let is_its = |(_, backend): &(u32, &Backend)| {
                backend.pool() == number && backend.life().is_shared()
            };
            let has = self.backends.iter().filter(is_its).count();
            self.reserved(number).min(has)
        };
        let reserved: usize = self.pools.existing().iter().map(reserved).sum();
        assert_eq!(reserved, self.backends.reserved(), "reserved backends");
    }

    /// The indexes of pools agree with the tables.
    fn check_pools(&self) {
        self.pools.check();
        let there: Vec<u32> = self.pools.existing().iter().collect();
        let unused = there.iter().filter(|number| self.has_neither(**number));
        assert!(self.unused.iter().eq(unused.copied()), "that nobody uses");
        self.check_tenants();
        self.check_groups();
        self.check_memory();
    }

    /// At the end of a round, no session waits that a free backend may serve. `is_told`: a backend
    /// that has taken the last session of a pool's queue has said so, and its message is not read
    /// yet. `will_say`: a free backend will say so.
    pub(super) fn check_served(
        &self,
        words: &impl Words,
        is_told: impl Fn(u32) -> bool,
        will_say: impl Fn(u32) -> bool,
    ) {
        for number in self.pools.existing().iter() {
            let Some(pool) = self.pool(number) else {
                continue;
            };
            if self.sessions.waiting(number) == 0
                || self.dirty.contains(number)
                || pool.queue.is_full()
                || pool.queue.rests()
                || self.is_forced(number)
                || is_told(number)
            {
                continue;
            }
            // Roles of the other sessions, and so whether a backend is left to others, are updated
            // in each tick.
            if self.limits.force_migration
                || self.places(0).are_last_left()
                || self.keeps_one_free(number)
                || self.next_tenant(number, words).is_none()
            {
                continue;
            }
            let free = pool
                .shared()
                .iter()
                .filter(|slot| self.backends.may_serve(**slot) && words.backend(**slot).is_free())
                .find(|slot| !will_say(**slot));
            assert!(
                free.is_none() || words.queued(number) > 0,
                "backend {free:?} is free and a session of pool {number} waits"
            );
        }
    }

    /// The count of waiting sessions is right, or close to it where very many pools want backends.
    pub(super) fn check_waiting(&self, words: &impl Words) {
        let pools = self.pools.existing().iter();
        let waiting: usize = pools.map(|number| self.waiting_in(number, words)).sum();
        assert!(
            self.waiting(words) == waiting || self.are_looked_at_in_turns(),
            "{} of {waiting} wait",
            self.waiting(words)
        );
    }

    pub(super) fn check_is_empty(&self) {
        let left: Vec<_> = (self.sessions.ids())
            .map(|id| self.sessions.get(id).map(|session| session.whereabouts()))
            .collect();
        assert!(left.is_empty(), "sessions are left: {left:?}");
        assert_eq!(self.backends.total(), 0, "backends are left");
        assert!(self.pools.existing().is_empty(), "pools are left");
        assert!(self.tenants.existing().is_empty(), "tenants are left");
        assert!(self.in_want.is_empty(), "pools are in want");
        assert!(self.holds.is_empty(), "holds are left");
        assert!(self.pauses.are_none(), "pauses are left");
        assert!(!self.room.is_offered(), "a ticket is out");
        assert!(self.burials.is_empty() && self.actions.is_empty());
        assert_eq!(self.session_tally, Tally::default());
    }

    /// A session in a ready queue is seen: not all of the pool's backends sleep, or one has been
    /// poked. A session that a wrong counter does not count need not be seen: the next tick
    /// corrects the counter. Nor does the counter alone prove a session: a backend that is to leave
    /// may have taken the last one, and not lowered the counter yet.
    pub(super) fn check_asked(
        &self,
        words: &impl Words,
        is_queue_empty: impl Fn(u32) -> bool,
        sleeps: impl Fn(u32) -> bool,
    ) {
        for number in self.pools.existing().iter() {
            let slots = self.pool_backends(number);
            let mut serving = slots.iter().filter(|slot| self.backends.may_serve(**slot));
            assert!(
                words.queued(number) <= 0
                    || is_queue_empty(number)
                    || serving.clone().next().is_none()
                    || !serving.all(|slot| sleeps(*slot)),
                "somebody is in the ready queue of pool {number} and all sleep"
            );
        }
    }

    /// Are there pools with an event that have not been served since?
    pub(super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.wants.has_more()
    }

    /// Are sessions looked for that an ended backend may have had?
    pub(super) fn is_burying(&self) -> bool {
        !self.burials.is_empty()
    }

    /// The jobs that have more to do, for the log of a failed seed.
    pub(super) fn what_is_more(&self) -> String {
        let jobs = JOBS.iter().filter(|job| self.is_running(**job));
        let names: Vec<String> = jobs.map(|job| format!("{job:?}")).collect();
        names.join(", ")
    }

    pub(super) fn dedicated_count(&self) -> usize {
        self.backends.dedicated()
    }

    pub(super) fn has_full_queue(&self) -> bool {
        let mut pools = self.pools.existing().iter();
        pools.any(|number| self.pool(number).is_some_and(|pool| pool.queue.is_full()))
    }

    pub(super) fn longest_wait_us(&self) -> u64 {
        let waits = self
            .pools
            .existing()
            .iter()
            .filter_map(|number| self.wait_us(self.longest_waiting(number)?));
        waits.max().unwrap_or(0)
    }
}

impl Shell {
    /// No backend of these ever lies.
    pub fn check_is_believed(&self, slot: u32, message: FromBackend) {
        let (id, tells) = match message {
            FromBackend::Release(0) => return,
            FromBackend::Release(id) => (id, Tells::Back),
            FromBackend::Greeted(id) | FromBackend::End(id, _) => (id, Tells::InPlace),
            FromBackend::Dedicated(_)
            | FromBackend::Retiring
            | FromBackend::Outdated
            | FromBackend::Closed => return,
        };
        let ownership = self.core.ownership(slot, id, tells, &self.world);
        let session = self.core.sessions().get(id);
        let place = session.map(|session| session.whereabouts());
        assert_ne!(
            ownership,
            Ownership::Foreign,
            "{slot}: {message:?}, {place:?}"
        );
    }

    /// Backends are told to keep sessions exactly as their limits say. When they are not told any
    /// more, no backend sleeps on a kept session.
    pub fn check_modes(&self) {
        for number in self.core.tenants.existing().iter() {
            let tenant = self.core.tenant(number).expect("it exists");
            let limits = self.core.limits_of(number);
            let mode = limits.map(|limits| limits.mode).unwrap_or_default();
            let keeps = mode != PoolMode::Shared;
            let words = &self.world.tenants[number as usize];
            let is_told = words.keeps == keeps || self.core.is_to_follow(number);
            assert!(is_told, "its mode");
            assert_eq!(words.is_counted, tenant.is_counted, "that it is counted");
            assert_eq!(words.is_paused, tenant.is_paused, "that it is paused");
            assert_eq!(Some(words.memory_left), tenant.memory.shown(), "its memory");
        }
        self.core.check_threshold(self.world.keeps);
        for process in self.processes.iter().flatten() {
            let in_vain = process.keeps_in_vain(&self.world);
            assert!(
                !in_vain || self.core.waking.has_more() && self.core.waking.concerns(process.pool),
                "{process:?} keeps its session in vain"
            );
        }
    }

    /// No session is held by two backends, in two queues, or nowhere at all.
    pub fn check_world(&self) {
        let mut seen: BTreeMap<SessionId, &str> = BTreeMap::new();
        let mut put = |id: SessionId, place: &'static str| {
            if self.core.sessions().get(id).is_none() {
                return;
            }
            let before = seen.insert(id, place);
            assert!(before.is_none(), "{id:x} is in {before:?} and in {place}");
        };
        for pool in &self.world.pools {
            for id in &pool.queue {
                put(*id, "a ready queue");
            }
        }
        for process in self.processes.iter().flatten() {
            if process.held() != 0 && !process.has_ended {
                put(process.held(), "a backend");
            }
        }
        for id in self.core.sessions().ids() {
            let session = self.core.sessions().get(id).expect("it is listed");
            let client = self.world.clients[index_of(id) as usize].as_ref();
            assert!(client.is_some_and(|client| client.id == id), "no client");
            if let Some(slot) = self.world.holder(index_of(id)) {
                let process = &self.processes[slot as usize];
                assert!(
                    process.is_some(),
                    "{id:x} is held by {slot}, which is no more"
                );
            }
            if matches!(session.whereabouts(), Whereabouts::Waiting(_)) {
                assert!(
                    !seen.contains_key(&id),
                    "{id:x} waits and is in {:?}",
                    seen[&id]
                );
            }
        }
        for client in self.world.clients.iter().flatten() {
            let is_known = self.core.sessions().get(client.id).is_some();
            assert!(
                is_known,
                "a client whose session has ended: {:x}",
                client.id
            );
        }
    }
}
