//! Pauses: for a time, sessions of a database, of a role or all sessions get no backend.
//!
//! A session that is on a backend finishes its transaction there. A session that asks meanwhile
//! waits in its usual line, and keeps its turn. To the rest of the core a paused tenant is a tenant
//! whose limit leaves no room (served.rs): it takes no turn, starts no backend, and is counted, so
//! that no backend keeps one of its sessions between two transactions. Waits of paused sessions
//! count for nothing: no stall, no limit of waits, no session that is native because others wait.
//!
//! A session that is dedicated stays on its backend. The backend itself holds its next request
//! (idle.c), and shows it as waiting.
//!
//! The statement that pauses has an open connection to the dispatcher, and asks by it what is still
//! in the way. When nothing is, the pause no longer depends on the connection. Until then it ends
//! with the connection, so whatever happens to the statement, sessions are not left paused by it.
//! Each pause has an end in time, too.
//!
//! These sessions are not paused: the one that executes the statement, and those that log in while
//! the pause lasts, as a superuser or as the role that has paused. They can look, and resume.

use super::scan::Cursor;
use super::sessions::{Location, Whereabouts};
use super::tenants::Tenant;
use super::{index_of, Action, Core, SessionId, Shown, TenantKey, Words};
use std::collections::BTreeSet;

/// Tenants told in a round: an action each.
const TOLD_AT_ONCE: usize = 256;
/// Sessions looked at in a round: some 100 microseconds.
const LOOKED_AT_ONCE: usize = 4096;
/// Sessions named in one answer.
const MOST_NAMED: usize = 10;
/// For this long after a pause, sessions that waited for its end are not too many.
const RESUMES_US: u64 = 1_000_000;
/// The most pauses at a time.
const MOST: usize = 64;

/// The sessions that a pause concerns. None: any role, or any database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    pub role_oid: Option<u32>,
    pub database_oid: Option<u32>,
}

impl Scope {
    fn has(self, key: &TenantKey) -> bool {
        self.role_oid.is_none_or(|oid| oid == key.role_oid)
            && self.database_oid.is_none_or(|oid| oid == key.database_oid)
    }

    /// Does a RESUME of this scope end a pause of the other one?
    fn ends(self, other: Scope) -> bool {
        (self.role_oid.is_none() || self.role_oid == other.role_oid)
            && (self.database_oid.is_none() || self.database_oid == other.database_oid)
    }
}

/// What the statement asks for.
#[derive(Clone, Copy, Debug)]
pub struct PauseTerms {
    pub scope: Scope,
    /// The role that pauses.
    pub by_role: u32,
    /// The session that executes the statement; 0 if it is none of the pool's.
    pub own: SessionId,
    /// How long the statement waits.
    pub wait_us: u64,
    /// For how long the pause lasts, from when nothing is in the way any more.
    pub limit_us: u64,
}

/// The answer to the statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PauseState {
    /// Nothing is in the way, and the pause stays.
    Stands,
    /// How many sessions are in the way, and some of them: those that have been for longest.
    InTheWay(usize, Vec<SessionId>),
    /// The pause has been ended meanwhile, or there are too many.
    Ended,
}

/// A pause, for display.
pub struct ShownPause {
    pub scope: Scope,
    pub since: i64,
    pub ends: i64,
    pub waiting: usize,
    /// None: not known yet.
    pub in_the_way: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Backends are told of the pause. Then ready queues are taken back.
    Telling,
    /// All sessions are looked at: which are on backends?
    Looking,
    /// `out` has all sessions that may be in the way.
    Known,
}

struct Pause {
    terms: PauseTerms,
    /// The number of the statement's connection. None: the pause stays without it.
    asker: Option<u32>,
    is_asked: bool,
    since: i64,
    ends_us: u64,
    stage: Stage,
    slots: Cursor,
    out: Vec<SessionId>,
}

/// All pauses.
#[derive(Default)]
pub struct Pauses {
    list: Vec<Pause>,
    /// Tenants are told of pauses that have begun or ended.
    tenants: Cursor,
    /// Sessions that are not paused.
    exempt: BTreeSet<SessionId>,
    /// Sessions that waited for the end of a pause may still wait: a session that began to wait
    /// earlier than another need not have waited longer.
    mixed_until_us: u64,
    /// Until then no number of waiting sessions is too high.
    resumes_until_us: u64,
}

impl Pauses {
    pub fn need_ticks(&self) -> bool {
        !self.list.is_empty()
    }

    pub fn is_running(&self) -> bool {
        let is_at_work = |pause: &Pause| pause.stage != Stage::Known || pause.is_asked;
        self.tenants.is_running() || self.list.iter().any(is_at_work)
    }

    #[cfg(test)]
    pub fn are_none(&self) -> bool {
        self.list.is_empty() && self.exempt.is_empty() && !self.tenants.is_running()
    }
}

impl Core {
    // ---- begin and end -----------------------------------------------------

    /// A statement begins to pause. `asker`: the number of its connection.
    pub fn pause(&mut self, asker: u32, terms: PauseTerms) {
        if self.stopping || self.pauses.list.len() >= MOST {
            let state = PauseState::Ended;
            return self.act(Action::TellPause { asker, state });
        }
        let now = self.now;
        self.pauses.list.push(Pause {
            terms,
            asker: Some(asker),
            is_asked: true,
            since: now.timestamp,
            // If the statement does not come to its end, its connection stays open.
            ends_us: now.us + terms.wait_us + terms.limit_us,
            stage: Stage::Telling,
            slots: Cursor::default(),
            out: Vec::new(),
        });
        self.pauses.tenants.begin();
        self.exempt(terms.own);
    }

    /// The statement asks again.
    pub fn ask_pause(&mut self, asker: u32) {
        let mut pauses = self.pauses.list.iter_mut();
        match pauses.find(|pause| pause.asker == Some(asker)) {
            Some(pause) => pause.is_asked = true,
            None => {
                let state = PauseState::Ended;
                self.act(Action::TellPause { asker, state });
            }
        }
    }

    /// The connection of a statement has ended. A pause that does not stand yet ends.
    pub(super) fn asker_gone(&mut self, asker: u32) {
        self.end_pauses(|pause| pause.asker == Some(asker));
    }

    /// Ends the pauses of these sessions; returns their number.
    pub fn resume(&mut self, scope: Scope) -> usize {
        self.end_pauses(|pause| scope.ends(pause.terms.scope))
    }

    /// Runs in each tick.
    pub(super) fn end_forgotten_pauses(&mut self) {
        let now_us = self.now.us;
        let over = (self.pauses.list.iter()).filter(|pause| pause.ends_us <= now_us);
        let over: Vec<Scope> = over.map(|pause| pause.terms.scope).collect();
        for scope in over {
            self.act(Action::TellPauseOver(scope));
        }
        self.end_pauses(|pause| pause.ends_us <= now_us);
    }

    /// The server stops: its end waits for no pause.
    pub(super) fn end_all_pauses(&mut self) {
        self.end_pauses(|_| true);
    }

    fn end_pauses(&mut self, is_over: impl Fn(&Pause) -> bool) -> usize {
        let before = self.pauses.list.len();
        for pause in self.pauses.list.iter().filter(|pause| is_over(pause)) {
            if let Some(asker) = pause.asker.filter(|_| pause.is_asked) {
                let state = PauseState::Ended;
                self.actions.push_back(Action::TellPause { asker, state });
            }
        }
        self.pauses.list.retain(|pause| !is_over(pause));
        let ended = before - self.pauses.list.len();
        if ended > 0 {
            self.pauses.tenants.begin();
            let now_us = self.now.us;
            let pauses = &mut self.pauses;
            pauses.resumes_until_us = now_us + RESUMES_US;
            let limit_us = self.limits.session_wait_timeout_us;
            pauses.mixed_until_us = now_us + limit_us + RESUMES_US;
        }
        if ended > 0 && self.pauses.list.is_empty() {
            for id in std::mem::take(&mut self.pauses.exempt) {
                let is_exempt = false;
                self.act(Action::Exempt { id, is_exempt });
            }
        }
        ended
    }

    // ---- which sessions ----------------------------------------------------

    /// Are the tenant's sessions paused?
    pub(super) fn is_paused(&self, tenant: u32) -> bool {
        self.tenant(tenant).is_some_and(|tenant| tenant.is_paused)
    }

    /// Is the session not to be given to a backend?
    #[cfg(test)]
    pub(super) fn is_session_paused(&self, id: SessionId) -> bool {
        let tenant = self.tenant_of(id);
        tenant.is_some_and(|tenant| tenant.is_paused) && !self.is_exempt(id)
    }

    pub(super) fn is_exempt(&self, id: SessionId) -> bool {
        self.pauses.exempt.contains(&id)
    }

    fn exempt(&mut self, id: SessionId) {
        if self.sessions.get(id).is_some() && self.pauses.exempt.insert(id) {
            let is_exempt = true;
            self.act(Action::Exempt { id, is_exempt });
        }
    }

    /// A session has begun. While a pause lasts, superusers and the role that has paused come in.
    pub(super) fn exempt_if_privileged(&mut self, id: SessionId, key: &TenantKey) {
        let mut pauses = self.pauses.list.iter();
        if pauses.any(|pause| key.superuser || key.role_oid == pause.terms.by_role) {
            self.exempt(id);
        }
    }

    pub(super) fn forget_exempt(&mut self, id: SessionId) {
        self.pauses.exempt.remove(&id);
    }

    /// Exempt sessions of paused tenants that wait in this pool.
    fn waiting_exempt(&self, number: u32) -> impl Iterator<Item = SessionId> + '_ {
        let exempt = self.pauses.exempt.iter().copied();
        exempt.filter(move |id| {
            let session = self.sessions.get(*id);
            session.is_some_and(|session| {
                session.pool() == number
                    && matches!(session.whereabouts(), Whereabouts::Waiting(_))
                    && self.is_paused(session.tenant())
            })
        })
    }

    pub(super) fn first_exempt(&self, number: u32) -> Option<SessionId> {
        self.waiting_exempt(number).next()
    }

    pub(super) fn exempt_in(&self, number: u32) -> usize {
        self.waiting_exempt(number).count()
    }

    /// Does a pause last, or has one just ended?
    pub(super) fn is_pause_felt(&self) -> bool {
        !self.pauses.list.is_empty() || self.now.us < self.pauses.resumes_until_us
    }

    // ---- how long sessions wait --------------------------------------------

    /// Since when a waiting session of this tenant waits for a backend. None: its wait does not
    /// count.
    pub(super) fn counts_since_us(&self, tenant: u32, waits_since_us: u64) -> Option<u64> {
        let tenant = self.tenant(tenant)?;
        (!tenant.is_paused).then(|| waits_since_us.max(tenant.resumed_us))
    }

    /// The session of a pool that has waited longest, of those whose waits count.
    pub(super) fn longest_waiting(&self, number: u32) -> Option<SessionId> {
        let pauses = &self.pauses;
        if pauses.list.is_empty() && self.now.us >= pauses.mixed_until_us {
            return self.sessions.longest_waiting(number);
        }
        let tenants = self.pool(number)?.together.all().iter();
        let longest = tenants.filter_map(|tenant| {
            let id = self.sessions.longest_waiting_of(*tenant)?;
            Some((self.wait_us(id)?, id))
        });
        longest.max().map(|(_, id)| id)
    }

    // ---- the job of a round's end ------------------------------------------

    /// A tenant is new, or pauses have begun or ended.
    pub(super) fn follow_pauses(&mut self, number: u32) {
        let Some(tenant) = self.tenants.get_mut(number) else {
            return;
        };
        let key = tenant.key();
        let is_paused = (self.pauses.list.iter()).any(|pause| pause.terms.scope.has(key));
        if tenant.is_paused == is_paused {
            return;
        }
        tenant.is_paused = is_paused;
        if !is_paused {
            tenant.resumed_us = self.now.us;
        }
        let pool = tenant.pool();
        self.act(Action::Pause {
            tenant: number,
            is_paused,
        });
        self.has_room(number);
        self.mark_dirty(pool);
        if !is_paused && self.sessions.members_of_tenant(number) > 0 {
            // Wakes backends that hold a request of a dedicated session.
            self.wake_pool_of(number);
        }
    }

    /// Does the next slice of what pauses have to do.
    pub(super) fn pause_on(&mut self, words: &impl Words) {
        if self.pauses.tenants.is_running() {
            let existing = self.tenants.existing();
            let some = (self.pauses.tenants).take(TOLD_AT_ONCE, |from| existing.first_from(from));
            for number in some {
                self.follow_pauses(number);
            }
            return;
        }
        for at in 0..self.pauses.list.len() {
            if at >= self.pauses.list.len() {
                return;
            }
            match self.pauses.list[at].stage {
                Stage::Telling => {
                    self.take_paused_back(self.pauses.list[at].terms.scope);
                    let pause = &mut self.pauses.list[at];
                    pause.slots.begin();
                    pause.stage = Stage::Looking;
                }
                Stage::Looking => self.look_for_paused(at, words),
                Stage::Known => self.answer_pause(at, words),
            }
        }
    }

    /// From the next round on, no paused session is in a ready queue.
    fn take_paused_back(&mut self, scope: Scope) {
        for number in self.pools.with_backends().iter() {
            let tenants = self.pool(number).map(|pool| pool.together.all());
            let tenants = tenants.into_iter().flatten();
            let mut keys = tenants.filter_map(|tenant| self.tenant_key(*tenant));
            if keys.any(|key| scope.has(key)) {
                self.take_back_in_round(number);
            }
        }
    }

    fn look_for_paused(&mut self, at: usize, words: &impl Words) {
        for _ in 0..LOOKED_AT_ONCE {
            let end = self.sessions.slots_used();
            let pause = &mut self.pauses.list[at];
            let Some(index) = pause.slots.next_below(end) else {
                pause.stage = Stage::Known;
                return self.answer_pause(at, words);
            };
            let scope = pause.terms.scope;
            let Some(id) = self.sessions.in_slot(index) else {
                continue;
            };
            let is_concerned = self.key_of(id).is_some_and(|key| scope.has(key));
            if is_concerned && self.is_in_the_way(id, words) {
                self.pauses.list[at].out.push(id);
            }
        }
    }

    /// Does the session run a transaction, or may it begin one?
    fn is_in_the_way(&self, id: SessionId, words: &impl Words) -> bool {
        if self.is_exempt(id) {
            return false;
        }
        match self.locate(id, words) {
            Some(Location::OnItsWay(_)) => true,
            Some(Location::Held(slot)) => {
                // Its backend keeps it, and looks whether it is paused before it runs a request.
                let is_kept = words.backend_keeps(slot) && words.backend_session(slot) == id;
                let shown = words.shown(index_of(id));
                !is_kept || !matches!(shown, Shown::Idle | Shown::Waiting)
            }
            _ => false,
        }
    }

    fn answer_pause(&mut self, at: usize, words: &impl Words) {
        let mut out = std::mem::take(&mut self.pauses.list[at].out);
        out.retain(|id| self.is_in_the_way(*id, words));
        let now_us = self.now.us;
        let pause = &mut self.pauses.list[at];
        let is_asked = std::mem::take(&mut pause.is_asked);
        if let Some(asker) = pause.asker.filter(|_| is_asked) {
            let state = if out.is_empty() {
                pause.asker = None;
                pause.ends_us = now_us + pause.terms.limit_us;
                PauseState::Stands
            } else {
                out.sort_by_cached_key(|id| words.session_since_us(index_of(*id)));
                let some = out.iter().copied().take(MOST_NAMED).collect();
                PauseState::InTheWay(out.len(), some)
            };
            self.act(Action::TellPause { asker, state });
        }
        let pause = &mut self.pauses.list[at];
        pause.out = out;
        if is_asked && pause.asker.is_none() {
            // A pause of the same sessions that stood already is replaced.
            let (since, scope) = (pause.since, pause.terms.scope);
            let stays = |it: &Pause| it.since >= since || it.asker.is_some();
            (self.pauses.list).retain(|it| it.terms.scope != scope || stays(it));
        }
    }

    // ---- questions from outside -------------------------------------------

    /// Does a pause stand that concerns the session?
    #[cfg(test)]
    pub(super) fn is_stopped_by_pause(&self, id: SessionId) -> bool {
        let stands = |pause: &&Pause| pause.asker.is_none();
        let mut pauses = self.pauses.list.iter().filter(stands);
        let key = self.key_of(id).filter(|_| !self.is_exempt(id));
        key.is_some_and(|key| pauses.any(|pause| pause.terms.scope.has(key)))
    }

    /// Which tenants are paused, as the words that backends read are to say.
    pub fn paused_tenants(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        let all = self.tenants.existing().iter();
        all.filter_map(|number| Some((number, self.tenant(number)?.is_paused)))
    }

    pub fn shown_pauses(&self, words: &impl Words) -> Vec<ShownPause> {
        let shown = |pause: &Pause| {
            let scope = pause.terms.scope;
            let concerned = self.tenants.existing().iter().filter(|tenant| {
                let tenant = self.tenant(*tenant).map(Tenant::key);
                tenant.is_some_and(|key| scope.has(key))
            });
            let left_us = pause.ends_us.saturating_sub(self.now.us);
            let out = pause.out.iter();
            let in_the_way = out.filter(|id| self.is_in_the_way(**id, words)).count();
            ShownPause {
                scope,
                since: pause.since,
                ends: self.now.timestamp.saturating_add(left_us as i64),
                waiting: concerned
                    .map(|tenant| self.sessions.waiting_of_tenant(tenant))
                    .sum(),
                in_the_way: (pause.stage == Stage::Known).then_some(in_the_way),
            }
        };
        self.pauses.list.iter().map(shown).collect()
    }
}
