//! Carries out the actions of the core. Also the errors that sessions are told, and the
//! scheduling log.
//!
//! Each action is a few system calls and words in shared memory. If an action fails, the core
//! gets an event.

use super::{AskLimits, Found, Scheduler};
use crate::core::{
    index_of, Action, ClientOwes, Core, Ending, Event, Look, NoSession, PoolChange, PoolKey, Says,
    Scope, SessionId, Skipped, TenantKey, Why, Word,
};
use crate::protocol::opening::Failure;
use crate::protocol::{Report, Severity};
use crate::shell::backends::links::Claim;
use crate::shell::link::layout::shared::*;
use crate::shell::link::memory::context::Contexts;
use crate::shell::link::memory::control::Control;
use crate::shell::log::lines;
use crate::shell::parameters::Parameters;
use crate::shell::sessions::begun::Progress;
use crate::shell::statistics::Own;
use crate::shell::sys::socket;
use std::fmt::{Display, Formatter, Result};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use tracing::{debug, info, warn};

impl Scheduler {
    pub(super) fn carry_out(&mut self) {
        while let Some(action) = self.core.next_action() {
            self.actions += 1;
            self.act(action);
        }
    }

    /// Ends all backends of the pool. One of them has shut their common queue, and the
    /// dispatcher cannot tell which.
    fn end_backends_of(&self, pool: u32) {
        let slots = self.core.all_pool_backends(pool);
        let key = self.core.pool_key(pool);
        let name = |bytes: Option<&Vec<u8>>| {
            String::from_utf8_lossy(bytes.map_or(b"", |it| it)).into_owned()
        };
        warn!(
            "a backend of database \"{}\" has shut the queue of its pool: all {} are ended",
            name(key.map(|key| &key.database)),
            slots.len()
        );
        slots.iter().for_each(|slot| self.links.end(*slot));
    }

    /// Tells the core the result of an action.
    fn back(&mut self, event: Event) {
        self.core.handle(event, &self.control);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Claim { slot, seen, id } => self.claim(slot, seen, id),
            Action::Enqueue { pool, id } => {
                self.control.restore_name(id);
                let (client, now_us) = (self.sockets.fd(id), self.now.shared_us);
                let event = self.queues.put(pool, id, client, now_us);
                if self.queues.is_shut(pool) {
                    self.end_backends_of(pool);
                }
                self.back(event);
            }
            Action::HoldBack(pool) => {
                let slot = &self.control.pools[pool as usize];
                // A backend that takes the last session lowers `queued`, or shows itself free,
                // before it reads `is_held_back`. So `queued` is read again after
                // `is_held_back` has become 1.
                if slot.is_held_back.swap(1, SeqCst) == 0 && slot.queued.load(SeqCst) <= 0 {
                    self.back(Event::QueueIsLow(pool));
                }
            }
            Action::Poke(slot) => self.links.poke(slot),
            Action::TakeBack(pool) => self.take_back(pool),
            Action::CloseQueue(pool) => self.close_queue(pool),
            Action::CheckQueue(pool) => {
                let is_empty = self.queues.is_empty(pool);
                self.core.check_queue(pool, is_empty, &self.control);
            }
            Action::ResetCounter(pool) => self.queues.reset_counter(pool),

            Action::ShowWaiting(id) => {
                let slot = &self.control.sessions[index_of(id) as usize];
                slot.state.store(STATE_WAITING, Relaxed);
                slot.state_since_us.store(self.now.shared_us, Relaxed);
                let identity = &self.control.identities[index_of(id) as usize];
                identity.idle_since_us.store(self.now.timestamp, Relaxed);
            }
            Action::Arm(id) => self.arm(id),
            Action::ArmForEnd(id) => {
                if self.sockets.arm_for_end(id).is_err() {
                    self.cut(id);
                }
            }
            Action::Look { id, look } => {
                // Part of a message is not a statement yet: there is nothing to cancel.
                let is_part = match look {
                    Look::Cancel => self.begun.is_part(id, &self.sockets),
                    Look::Ungreeted | Look::Leaving => self.begun.has(id),
                    Look::Lost => false,
                };
                let says = if is_part {
                    Says::Nothing
                } else {
                    self.sockets.look(id)
                };
                self.back(Event::Said { id, look, says });
            }
            Action::Skip { id, why, later } => self.skip(id, why, later),
            Action::SkipOn(id) => self.skip_on(id),
            Action::End { id, tenant, why } => self.ended(id, tenant, &why),

            Action::CancelOnBackend(id) => self.links.hurry(id, true),
            Action::TerminateOnBackend(id) => self.links.hurry(id, false),
            Action::MarkCancel(id) => self.links.mark_cancel(id),
            Action::ClearCancel(id) => {
                let slot = &self.control.sessions[index_of(id) as usize];
                slot.flags.fetch_and(!SESSION_CANCEL, SeqCst);
            }

            Action::Open { slot, pool } => self.open_backend(slot, pool),
            Action::Retire(slot) => self.links.retire(slot),
            Action::Recall { slot, id } => self.links.recall(slot, id),
            Action::Evict { slot, id } => {
                debug!("too many dedicated sessions, one is ended: {id:x}");
                self.count(id, |own| own.evictions += 1);
                self.links.evict(slot, id);
            }
            Action::Keep { tenant, keeps } => {
                let (word, cause) = match tenant {
                    Some(tenant) => (
                        &self.control.tenants[tenant as usize].keeps_sessions,
                        CAUSE_POOL_MODE,
                    ),
                    None => (&self.control.header.keeps_sessions, CAUSE_FEW_SESSIONS),
                };
                word.store(if keeps { cause } else { CAUSE_NONE }, SeqCst);
            }
            Action::Count { tenant, is_counted } => {
                let word = &self.control.tenants[tenant as usize].is_counted;
                word.store(u32::from(is_counted), SeqCst);
            }
            Action::Pause { tenant, is_paused } => {
                let word = &self.control.tenants[tenant as usize].is_paused;
                word.store(u32::from(is_paused), SeqCst);
            }
            Action::Exempt { id, is_exempt } => {
                let flags = &self.control.sessions[index_of(id) as usize].flags;
                match is_exempt {
                    true => flags.fetch_or(SESSION_EXEMPT, SeqCst),
                    false => flags.fetch_and(!SESSION_EXEMPT, SeqCst),
                };
            }
            Action::ShowMemoryLeft { tenant, left } => {
                let word = &self.control.tenants[tenant as usize].memory_left;
                word.store(left, SeqCst);
            }
            Action::WakeForMemory(pool) => self.wake_for_memory(pool),
            Action::FreeSlot(slot) => {
                self.openings.close(slot);
                self.links.forget(slot);
                let (control, now_us) = (&self.control, self.now.us);
                self.statistics.backend_ends(slot, control, now_us);
                self.control.free_backend(slot);
            }
            Action::Offer { ticket, slots } => self.links.offer(ticket, &slots),
            Action::TakeTicketBack(ticket) => {
                let event = self.links.take_ticket_back(ticket);
                self.back(event);
            }
            Action::EndIdle {
                slot,
                id,
                waits_for,
                idle_us,
            } => self.end_idle(slot, id, waits_for, idle_us),
            Action::Measure(slot) => {
                let held = self.control.backends[slot as usize].session.load(SeqCst);
                let event = self.links.measure(slot, self.is_unread(held));
                self.back(event);
            }
            Action::ClearTicket { slot, ticket } => self.links.clear_ticket(slot, ticket),

            Action::AskLimits { role, database } => {
                self.asks.push(AskLimits { role, database });
            }
            Action::TellWhoIsIn { number, roles } => self.found.push(Found { number, roles }),
            Action::TellPause { asker, state } => self.paused.push((asker, state)),
            Action::TellPauseOver(scope) => {
                warn!("a pause ends, as its time is over: {}", scope_in_log(scope));
            }
            Action::TellFailure(pool) => self.tell_failure(pool),
            Action::TellPool(change) => {
                let why = change.why;
                (self.statistics).pool_changed(change.pool, why.text(), why.is_growth());
                self.tell_pool(&change);
            }
            Action::ForgetAllGreetings => self.greetings.forget_all(),
            Action::PoolDropped(pool) => {
                self.close_queue(pool);
                self.statistics.pool_ends(pool);
            }
            Action::TenantDropped(tenant) => {
                self.statistics.tenant_ends(tenant, &self.control);
                self.control.clear_tenant(tenant);
            }
            Action::Then(then) => self.back(Event::Then(then)),
        }
    }

    // ---- pools and backends ------------------------------------------------

    /// Finds or creates the tenant of a key; None if there can be no more tenants.
    pub(super) fn tenant_for(&mut self, key: TenantKey) -> Option<u32> {
        let found = self.core.find_tenant(&key);
        let number = found.or_else(|| {
            let (user, superuser) = (key.user.clone(), key.superuser);
            let group = (key.role_oid, key.database_oid);
            let database = key.database.clone();
            let number = self.core.create_tenant(key)?;
            // Tenants without sessions may have given way to it.
            self.carry_out();
            (self.statistics).tenant_begins(number, group, &user, &database);
            if let Some(pool) = self.core.pool_of_tenant(number) {
                self.statistics.pool_is_of(pool, &database);
            }
            self.control.begin_tenant(number, &user, superuser);
            Some(number)
        });
        // Publishes the tenant's mode and limits.
        self.carry_out();
        number
    }

    /// Counts what happens to a session.
    pub(super) fn count(&mut self, id: SessionId, what: impl FnOnce(&mut Own)) {
        if let Some(session) = self.core.sessions().get(id) {
            what(self.statistics.of_tenant(session.tenant()));
        }
    }

    /// Takes all sessions out of the pool's queue.
    fn take_back(&mut self, pool: u32) {
        if !self.queues.is_open(pool) {
            return;
        }
        while let Some(id) = self.queues.take_back(pool) {
            self.back(Event::TakenBack(id));
        }
        self.back(Event::QueueDrained(pool));
    }

    /// Sessions that are still in the queue are taken back first, so that none is lost.
    fn close_queue(&mut self, pool: u32) {
        self.take_back(pool);
        self.queues.close(pool);
    }

    fn claim(&mut self, slot: u32, seen: Word, id: SessionId) {
        let pool = self.core.backend(slot).map(|backend| backend.pool());
        self.control.restore_name(id);
        let (client, now_us) = (self.sockets.fd(id), self.now.shared_us);
        let event = match self.links.claim(slot, seen, id, client, now_us) {
            Claim::Made => Event::Claimed,
            Claim::Lost => Event::ClaimLost(id),
            Claim::NotSent(error) => match pool {
                Some(pool) => self.queues.not_sent(pool, id, false, &error),
                None => Event::ClaimLost(id),
            },
        };
        self.back(event);
    }

    /// Wakes the pool's backends that keep their sessions for lack of memory: they check again.
    fn wake_for_memory(&mut self, pool: u32) {
        for slot in self.core.all_pool_backends(pool) {
            let backend = &self.control.backends[slot as usize];
            if backend.dedicated_cause.load(SeqCst) == CAUSE_POOL_MEMORY {
                self.links.poke(slot);
            }
        }
    }

    /// Has the client left data unread, so that its socket has no room?
    fn is_unread(&self, id: SessionId) -> bool {
        let fd = self.sockets.fd(id);
        id != 0 && fd >= 0 && !socket::has_room(fd)
    }

    /// Ends a session whose client keeps a backend idle. A client that does not read would not
    /// read an error either: its connection ends. If it is idle in a transaction, the backend
    /// ends it, unless the client has spoken meanwhile.
    fn end_idle(&mut self, slot: u32, id: SessionId, waits_for: ClientOwes, idle_us: u64) {
        let what = match waits_for {
            ClientOwes::Request { since } => {
                self.links.end_idle(slot, id, since);
                "is idle in its transaction"
            }
            ClientOwes::Reading { .. } if self.is_unread(id) => {
                socket::shutdown(self.sockets.fd(id));
                "has not read its results"
            }
            ClientOwes::Reading { .. } => return,
        };
        self.idle_ended += 1;
        let line = format!(
            "session is ended, its client {what} for {} s, and others wait in vain ({} so far)",
            idle_us / 1_000_000,
            self.idle_ended,
        );
        self.with_session(id, |client| lines::client(client, line.as_bytes()));
    }

    fn tell_failure(&self, pool: u32) {
        let (_, failure) = self.core.why_it_waits(pool);
        if let (Some(failure), Some(key)) = (failure, self.core.pool_key(pool)) {
            warn!(
                "could not start a backend for database \"{}\": {failure}",
                String::from_utf8_lossy(&key.database),
            );
        }
    }

    // ---- sessions ----------------------------------------------------------

    /// Arms the session's socket in its epoll, to wait for the client.
    fn arm(&mut self, id: SessionId) {
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.owner.store(0, SeqCst);
        if slot.state.swap(STATE_IDLE, SeqCst) != STATE_IDLE {
            slot.state_since_us.store(self.now.shared_us, Relaxed);
        }
        self.begun.forget(id);
        if let Err(error) = self.sockets.arm(id) {
            warn!("could not wait for a client: {error}");
            self.cut(id);
        }
    }

    fn skip(&mut self, id: SessionId, why: Skipped, later: bool) {
        // How much of a request has been read stands nowhere else.
        self.sockets.keep_no_more(id);
        self.skippers.begin(id, why);
        if later {
            self.await_rest(id);
        } else {
            self.skip_on(id);
        }
    }

    /// The next event of the session's socket continues `skip_on`. idle_session_timeout counts
    /// from here.
    fn await_rest(&mut self, id: SessionId) {
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.state_since_us.store(self.now.shared_us, Relaxed);
        if self.sockets.arm(id).is_err() {
            self.cut(id);
        }
    }

    /// Continues to skip the session's request.
    pub(super) fn skip_on(&mut self, id: SessionId) {
        let Some(session) = self.core.sessions().get(id) else {
            return;
        };
        let (tenant, pool, core) = (session.tenant(), session.pool(), &self.core);
        let (parameters, contexts, control) = (&self.parameters, &self.contexts, &self.control);
        let statistics = &mut self.statistics;
        let error = |why| {
            let report = skipped(core, parameters, pool, why);
            with_client(core, contexts, control, (index_of(id), tenant), |client| {
                lines::report(client, &report, None);
            });
            statistics.error(tenant, &report.sqlstate);
            report
        };
        match self.skippers.read_on(id, &self.sockets, error) {
            Progress::Waits => self.await_rest(id),
            Progress::Later => {}
            Progress::Over { drops_unnamed } => self.nothing_asked(id, drops_unnamed),
            Progress::Cut => self.cut(id),
            Progress::Refused(report) => {
                self.with_session(id, |client| lines::report(client, &report, None));
                self.sockets.say_last_word(id, &report);
                self.cut(id);
            }
            Progress::None => {}
        }
    }

    /// All that the client has sent was skipped, and no part of it still needs an answer.
    fn nothing_asked(&mut self, id: SessionId, drops_unnamed: bool) {
        let flags = &self.control.sessions[index_of(id) as usize].flags;
        let mut cleared = SESSION_BEGUN | SESSION_LOOKED_AT | SESSION_LATE | SESSION_PAUSE;
        if drops_unnamed {
            cleared |= SESSION_UNNAMED;
        }
        flags.fetch_and(!cleared, SeqCst);
        if socket::unread(self.sockets.fd(id)) > 0 {
            // The input has been read exactly up to here, so what remains may be the start of a
            // message (rest_may_begin, idle.c).
            flags.fetch_or(SESSION_LOOKED_AT, SeqCst);
        }
        self.sockets.keep(id);
        self.back(Event::Skipped(id));
    }

    /// Ends a session whose socket is of no more use.
    fn cut(&mut self, id: SessionId) {
        self.back(Event::Ended(id, Ending::Cut));
    }

    /// Ends a session with an error message to its client and a line in the log.
    pub(super) fn end_with(&mut self, id: SessionId, report: &Report) {
        self.with_session(id, |client| lines::report(client, report, None));
        self.sockets.say_last_word(id, report);
        self.tell(Event::Ended(id, Ending::Cut));
    }

    /// The session has ended. Its connection is closed, even if another process still has the
    /// socket.
    fn ended(&mut self, id: SessionId, tenant: u32, why: &Why) {
        if self.hands_back && self.sockets.is_kept(id) {
            return;
        }
        if let Some(report) = last_word(&self.core, &self.parameters, tenant, why) {
            // The shutdown of the server must not wait for thousands of lines.
            if *why != Why::Administrator {
                self.with_client(index_of(id), tenant, |client| {
                    lines::report(client, &report, None);
                });
            }
            self.statistics.error(tenant, &report.sqlstate);
            self.sockets.say_last_word(id, &report);
        }
        let how = match why {
            Why::Ended(Ending::Left) => Ending::Left,
            _ => Ending::Cut,
        };
        if self.sockets.close(id, how) {
            self.forget_session(id, tenant);
        }
    }

    fn forget_session(&mut self, id: SessionId, tenant: u32) {
        let index = index_of(id);
        if self.parameters.log_disconnections {
            let (login, _) = self.contexts.arena.record_identity(index);
            let milliseconds = (self.now.timestamp - login).max(0) / 1000;
            let seconds = milliseconds / 1000;
            let time = format!(
                "{}:{:02}:{:02}.{:03}",
                seconds / 3600,
                seconds / 60 % 60,
                seconds % 60,
                milliseconds % 1000,
            );
            self.with_client(index, tenant, |client| {
                let line = [
                    format!("disconnection: session time: {time} user=").as_bytes(),
                    client.user,
                    b" database=",
                    client.database,
                    format!(" {}", client.address).as_bytes(),
                ]
                .concat();
                lines::client(client, &line);
            });
        }
        self.nothing_is_applied(id);
        self.contexts.end(index);
        self.control.clear_session(index);
        self.skippers.forget(id);
        self.begun.forget(id);
        self.greetings.forget_session(id);
    }

    /// Logs something about this session, if there is one.
    fn with_session(&self, id: SessionId, log: impl FnOnce(&lines::Client<'_>)) {
        let tenant = self.core.sessions().get(id).map(|session| session.tenant());
        if let Some(tenant) = tenant {
            self.with_client(index_of(id), tenant, log);
        }
    }

    /// Logs something about the session in this slot.
    pub(super) fn with_client(
        &self,
        index: u32,
        tenant: u32,
        log: impl FnOnce(&lines::Client<'_>),
    ) {
        with_client(
            &self.core,
            &self.contexts,
            &self.control,
            (index, tenant),
            log,
        );
    }

    /// Has the termination of this session, which has come back, been requested?
    pub(super) fn shall_end(&self, id: SessionId) -> bool {
        let identity = &self.control.identities[index_of(id) as usize];
        identity.terminate.load(SeqCst) == id
    }
}

/// The sessions that a pause concerns, for a line in the log.
pub(super) fn scope_in_log(scope: Scope) -> String {
    let of = |oid: Option<u32>| oid.map_or("any".into(), |oid| oid.to_string());
    format!(
        "database={} role={}",
        of(scope.database_oid),
        of(scope.role_oid)
    )
}

/// Logs something about the session in this slot, which is of this tenant.
fn with_client(
    core: &Core,
    contexts: &Contexts,
    control: &Control,
    (index, tenant): (u32, u32),
    log: impl FnOnce(&lines::Client<'_>),
) {
    let (since, address) = contexts.arena.record_identity(index);
    let (pid, _) = contexts.arena.record_cancel(index);
    let (user, database) = match core.tenant_key(tenant) {
        Some(key) => (key.user.as_slice(), key.database.as_slice()),
        None => (&b""[..], &b""[..]),
    };
    let application_name = control.shown_name(index);
    log(&lines::Client {
        address,
        user,
        database,
        application_name: &application_name,
        pid: u32::try_from(pid).unwrap_or(0),
        since,
    });
}

// ---- Reports --------------------------------------------------------------
//
// The errors that the dispatcher sends to sessions which it ends or whose requests it skips.

/// The last error message for a session of this tenant; None: the session ends without a
/// message.
pub fn last_word(core: &Core, parameters: &Parameters, tenant: u32, why: &Why) -> Option<Report> {
    let pool = core.pool_of_tenant(tenant);
    Some(match why {
        Why::Ended(_) => return None,
        Why::Administrator => Report::terminated(),
        Why::IdleTooLong => Report::fatal(
            b"57P05",
            "terminating connection due to idle-session timeout",
        ),
        Why::WaitedTooLong => waited(core, parameters, pool?, Severity::Fatal),
        Why::Failed(failure) => {
            let user = core.tenant_key(tenant).map(|key| key.user.clone());
            failure_report(failure, &user.unwrap_or_default())
        }
    })
}

/// The error for a client that has proved its identity but cannot become a session.
pub fn no_session(user: &[u8], why: NoSession) -> Report {
    let user = String::from_utf8_lossy(user);
    match why {
        NoSession::PoolLimit(limit) => Report::fatal(
            b"53300",
            format!("too many connections for role \"{user}\""),
        )
        .with_detail(format!(
            "Parameter \"pg_baton.pool_max_sessions\" is {limit} for this role in this database."
        )),
        NoSession::Full => Report::fatal(b"53300", "sorry, too many clients already"),
    }
}

/// The error that answers a skipped request.
pub fn skipped(core: &Core, parameters: &Parameters, pool: u32, why: Skipped) -> Report {
    match why {
        Skipped::WaitedTooLong => waited(core, parameters, pool, Severity::Error),
        // The text of ProcessInterrupts (tcop/postgres.c).
        Skipped::Cancelled => {
            let text = "canceling statement due to user request";
            Report::new(Severity::Error, b"57014", text)
        }
    }
}

fn waited(core: &Core, parameters: &Parameters, pool: u32, severity: Severity) -> Report {
    let (has_backend, failure) = core.why_it_waits(pool);
    let seconds = parameters.session_wait_timeout_ms as f64 / 1000.0;
    let report = Report::new(severity, b"53300", "timed out waiting for a backend");
    let report = report.with_hint(if has_backend || failure.is_none() {
        "All backends of the pool are busy. Raise pg_baton.max_backends or pg_baton.session_wait_timeout."
    } else {
        "The database may have ceased to accept connections, or the role have been dropped, since this session logged in."
    });
    match failure {
        Some(failure) => report.with_detail(format!(
            "No backend could be started: {failure}. The session waited for {seconds} s."
        )),
        None => report.with_detail(format!("The session waited for {seconds} s.")),
    }
}

/// The error for a client that cannot be greeted because no backend could be opened.
fn failure_report(failure: &Failure, user: &[u8]) -> Report {
    match failure {
        Failure::ServerError(report) => {
            let mut report = report.clone();
            report.severity = Severity::Fatal;
            report
        }
        Failure::Protocol(what) => Report::fatal(
            b"58000",
            format!(
                "no backend can be opened for user \"{}\"",
                String::from_utf8_lossy(user)
            ),
        )
        .with_detail(what.as_bytes()),
    }
}

// ---- Scheduling log -------------------------------------------------------
//
// The dispatcher's lines of the scheduling log (`pg_baton.log_scheduling`): why a pool has
// grown or shrunk. Backends write the others (handover.c), with the same prefix.
// docs/operations.md lists all of them.

/// One line. The names, which users choose, come last: so no name can imitate a field that
/// precedes it.
struct Line<'a> {
    change: &'a PoolChange,
    /// 0: there is no process yet.
    backend_pid: u32,
    waiting: usize,
    pool: Option<&'a PoolKey>,
    /// The pool that gets the place.
    for_pool: Option<&'a PoolKey>,
}

impl Display for Line<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let PoolChange {
            slot,
            backends,
            why,
            ..
        } = self.change;
        let what = if why.is_growth() { "grew" } else { "shrank" };
        write!(out, "scheduling: {what}: slot={slot}")?;
        if self.backend_pid != 0 {
            write!(out, " backend_pid={}", self.backend_pid)?;
        }
        let (waiting, why) = (self.waiting, why.text());
        write!(out, " backends={backends} waiting={waiting} why=\"{why}\"")?;
        for (before, key) in [("", self.pool), ("for_", self.for_pool)] {
            if let Some(key) = key {
                let database = String::from_utf8_lossy(&key.database);
                write!(out, " {before}database={database}")?;
            }
        }
        Ok(())
    }
}

impl Scheduler {
    pub(super) fn tell_pool(&self, change: &PoolChange) {
        if !self.parameters.log_scheduling {
            return;
        }
        let key = |pool| self.core.pool_key(pool).map(|key| &**key);
        let line = Line {
            change,
            backend_pid: self.links.process_of(change.slot),
            waiting: self.core.waiting_in(change.pool, &self.control),
            pool: key(change.pool),
            for_pool: change.why.for_pool().and_then(key),
        };
        info!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Reason;

    #[test]
    fn an_unservable_client_is_told_so_and_its_connection_ends() {
        let error = Failure::ServerError(Report::new(Severity::Error, b"3D000", "no"));
        assert_eq!(failure_report(&error, b"u").severity, Severity::Fatal);
    }

    fn key(database: &[u8]) -> PoolKey {
        PoolKey {
            database: database.to_vec(),
            database_oid: 2,
            options: Vec::new(),
            role_oid: None,
        }
    }

    #[test]
    fn a_line_has_the_same_fields_in_the_same_order_and_names_last() {
        let change = |why| PoolChange {
            slot: 3,
            pool: 7,
            backends: 2,
            why,
        };
        let (app, web) = (key(b"app why=\"x\""), key(b"web"));
        let grew = Line {
            change: &change(Reason::Waiting),
            backend_pid: 0,
            waiting: 5,
            pool: Some(&app),
            for_pool: None,
        };
        let text = "scheduling: grew: slot=3 backends=2 waiting=5 why=\"sessions wait\" \
                    database=app why=\"x\"";
        assert_eq!(grew.to_string(), text);
        let shrank = Line {
            change: &change(Reason::RoomFor(8)),
            backend_pid: 99,
            waiting: 0,
            pool: Some(&app),
            for_pool: Some(&web),
        };
        let text = "scheduling: shrank: slot=3 backend_pid=99 backends=2 waiting=0 \
                    why=\"room for another pool\" database=app why=\"x\" \
                    for_database=web";
        assert_eq!(shrank.to_string(), text);
    }
}
