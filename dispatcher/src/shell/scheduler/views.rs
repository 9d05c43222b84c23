//! Rows about sessions, backends and pools. docs/views.md defines the columns, their order and
//! their texts.

use super::Scheduler;
use crate::core::{index_of, PoolMode, ShownPause};
use crate::shell::link::layout::shared::*;
use crate::shell::link::memory::context::Contexts;
use crate::shell::link::wire::{self, port_of, Row};
use crate::shell::statistics::{in_totals, object, transactions_in_tallies, PoolNumbers};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

fn cause(number: u32) -> Option<&'static str> {
    let text = CAUSES.get(number as usize);
    let text = text.unwrap_or(&CAUSES[CAUSE_OTHER as usize]);
    (number != CAUSE_NONE).then_some(text)
}

/// The words of pg_settings.source.
fn source(number: u32) -> &'static str {
    match number {
        SOURCE_FILE => "configuration file",
        SOURCE_COMMAND_LINE => "command line",
        SOURCE_GLOBAL => "global",
        SOURCE_DATABASE => "database",
        SOURCE_USER => "user",
        SOURCE_DATABASE_USER => "database user",
        _ => "default",
    }
}

fn session_state(number: u32) -> &'static str {
    match number {
        STATE_LOGIN => "login",
        STATE_WAITING => "waiting",
        STATE_ACTIVE => "active",
        STATE_IDLE_IN_TRANSACTION => "idle in transaction",
        _ => "idle",
    }
}

fn backend_state(number: u32) -> &'static str {
    match number {
        BACKEND_STARTING => "starting",
        BACKEND_IDLE => "idle",
        BACKEND_LINGER => "lingering",
        BACKEND_ASSIGNED => "assigned",
        BACKEND_BUSY => "busy",
        _ => "retiring",
    }
}

/// The value of SET, else the value that RESET returns to, else the startup option.
fn application_name(contexts: &Contexts, index: u32) -> Vec<u8> {
    let name = b"application_name";
    if let Some(value) = contexts.value(index, KIND_REPORTED, b"") {
        let reported = wire::pairs(value).find(|(key, _)| key == name);
        if let Some((_, value)) = reported {
            return value.to_vec();
        }
    }
    contexts
        .value(index, KIND_STARTUP, name)
        .map(<[u8]>::to_vec)
        .unwrap_or_default()
}

fn options_text(options: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let one = |(name, value): &(Vec<u8>, Vec<u8>)| [name.as_slice(), b"=", value].concat();
    options.iter().map(one).collect::<Vec<_>>().join(&b' ')
}

/// The views that have many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Sessions,
    Backends,
    Pools,
    Tenants,
    PoolSettings,
    Statistics,
    /// Statistics, with names in place of OIDs.
    NamedStatistics,
    /// Histograms, and what has changed the pools, of each database.
    DatabaseTimes,
    /// How many sessions are in each state.
    SessionCounts,
    /// Sessions that have not been idle for more than a moment.
    SessionsAtWork,
}

/// A reader's view, and its position in it.
#[derive(Clone, Debug)]
pub struct Rows {
    pub view: View,
    next: u32,
    /// Of the sessions so far: by tenant, state and cause.
    counts: BTreeMap<(u32, u32, u32), u32>,
}

impl Rows {
    pub fn of(view: View) -> Rows {
        Rows {
            view,
            next: 0,
            counts: BTreeMap::new(),
        }
    }
}

/// To count a session takes less than a sixteenth of the time of a row.
const COUNTED_A_ROW: u32 = 16;

/// Busy sessions are not shown to the monitor before this.
const MOMENT_US: i64 = 100_000;

impl Scheduler {
    /// The rows of the next `most` numbers; None if there are no more. A session or backend
    /// that comes or goes meanwhile may be missing or present.
    pub fn rows(&mut self, at: &mut Rows, most: u32) -> Option<Vec<Vec<u8>>> {
        if at.view == View::SessionCounts {
            return self.session_counts(at, most);
        }
        let end = match at.view {
            View::SessionCounts => 0,
            View::Sessions | View::SessionsAtWork => self.core.sessions().slots_used(),
            View::Backends => self.control.backends.len() as u32,
            View::Pools => self.control.pools.len() as u32,
            View::Tenants => self.control.tenants.len() as u32,
            View::PoolSettings => (self.control.tenants.len() * POOL_SETTINGS.len()) as u32,
            View::Statistics | View::NamedStatistics => self.statistics.entries().len() as u32,
            View::DatabaseTimes => self.statistics.databases().len() as u32,
        };
        let from = at.next;
        let to = end.min(from.saturating_add(most));
        if from >= to {
            return None;
        }
        at.next = to;
        let mut counted = HashMap::new();
        match at.view {
            View::Pools | View::DatabaseTimes if from == 0 => {
                (self.statistics).read_all_times(&self.control, self.now.us);
            }
            View::Tenants => counted = transactions_in_tallies(&self.control),
            View::Statistics | View::NamedStatistics if from == 0 => {
                self.statistics.collect(&self.control)
            }
            _ => {}
        }
        let row = |number| match at.view {
            View::Sessions => self.session_row(number),
            View::SessionsAtWork => self.at_work_row(number),
            View::Backends => self.backend_row(number),
            View::Pools => self.pool_row(number),
            View::Tenants => self.tenant_row(number, &counted),
            View::PoolSettings => self.pool_setting_row(number),
            View::Statistics => self.statistics_row(number, false),
            View::NamedStatistics => self.statistics_row(number, true),
            View::DatabaseTimes => self.times_row(number),
            View::SessionCounts => None,
        };
        Some((from..to).filter_map(row).collect())
    }

    /// Counts the next sessions, and makes rows once all are counted.
    fn session_counts(&self, at: &mut Rows, most: u32) -> Option<Vec<Vec<u8>>> {
        let sessions = self.core.sessions();
        let end = sessions.slots_used();
        if at.next < end {
            let to = end.min(at.next.saturating_add(most.saturating_mul(COUNTED_A_ROW)));
            for index in at.next..to {
                let session = sessions.in_slot(index).and_then(|id| sessions.get(id));
                if let Some(session) = session {
                    let slot = &self.control.sessions[index as usize];
                    let state = slot.state.load(Relaxed);
                    let cause = slot.dedicated_cause.load(Relaxed);
                    let key = (session.tenant(), state, cause);
                    *at.counts.entry(key).or_default() += 1;
                }
            }
            at.next = to;
            return Some(Vec::new());
        }
        let mut rows = Vec::new();
        while rows.len() < most as usize {
            let Some(((tenant, state, why), count)) = at.counts.pop_first() else {
                break;
            };
            // The tenant may have ended since its sessions were counted.
            if let Some(key) = self.core.tenant_key(tenant) {
                let row = Row::new()
                    .bytes(&key.user)
                    .bytes(&key.database)
                    .text(session_state(state))
                    .optional(cause(why))
                    .number(count);
                rows.push(row.finish());
            }
        }
        (!rows.is_empty()).then_some(rows)
    }

    /// Of a database: its name (NULL: all others); of waits for a backend, transactions and
    /// logins, each the counts by powers of two (histogram.rs) and the sum in microseconds; and
    /// how many backends its pools have gained and lost, by reason.
    fn times_row(&self, number: u32) -> Option<Vec<u8>> {
        let numbers = self.statistics.databases().get(number as usize)?;
        let name = (!numbers.name.is_empty()).then(|| String::from_utf8_lossy(&numbers.name));
        let row = [&numbers.waits, &numbers.transactions, &numbers.logins]
            .into_iter()
            .fold(Row::new().optional(name), |row, times| {
                let (counts, sum_us) = times.columns();
                row.text(&counts).number(sum_us)
            });
        Some(row.text(&numbers.grown()).text(&numbers.shrunk()).finish())
    }

    /// Of a session that has been busy for more than a moment: what strangers may read.
    fn at_work_row(&self, index: u32) -> Option<Vec<u8>> {
        let id = self.core.sessions().in_slot(index)?;
        let session = self.core.sessions().get(id)?;
        let slot = &self.control.sessions[index as usize];
        let state = slot.state.load(Relaxed);
        let since = slot.state_since_us.load(Relaxed);
        if matches!(state, STATE_IDLE | STATE_LOGIN) || self.now.passed_us(since) <= MOMENT_US {
            return None;
        }
        let key = self.core.tenant_key(session.tenant())?;
        let row = Row::new()
            .number(self.control.identities[index as usize].pid.load(Relaxed))
            .bytes(&key.user)
            .bytes(&key.database)
            .bytes(&application_name(&self.contexts, index))
            .text(session_state(state))
            .optional(cause(slot.dedicated_cause.load(Relaxed)))
            .number(self.now.passed_us(since));
        Some(row.finish())
    }

    fn session_row(&self, index: u32) -> Option<Vec<u8>> {
        let sessions = self.core.sessions();
        let id = sessions.in_slot(index)?;
        let session = sessions.get(id)?;
        let slot = &self.control.sessions[index as usize];
        let key = self.core.tenant_key(session.tenant())?;
        let (login, address) = self.contexts.arena.record_identity(index);
        let why = cause(slot.dedicated_cause.load(Relaxed));
        let owner = slot.owner.load(SeqCst);
        let pid = owner
            .checked_sub(1)
            .and_then(|slot| self.control.backends.get(slot as usize))
            .map(|backend| backend.pid.load(Relaxed));
        Some(
            Row::new()
                .number(id)
                .number(self.control.identities[index as usize].pid.load(Relaxed))
                .bytes(&key.user)
                .bytes(&key.database)
                .bytes(&application_name(&self.contexts, index))
                .optional(address.text())
                .number(port_of(&address))
                .text(if why.is_some() { "dedicated" } else { "shared" })
                .text(session_state(slot.state.load(Relaxed)))
                .optional(why)
                .optional(pid)
                .number(login)
                .number(self.now.timestamp_of(slot.state_since_us.load(Relaxed)))
                .number(slot.transactions.load(Relaxed))
                .number(slot.migrations.load(Relaxed))
                .number(self.contexts.bytes(index))
                .flag(Some(self.contexts.arena.record_is_relayed(index)))
                .finish(),
        )
    }

    fn backend_row(&self, number: u32) -> Option<Vec<u8>> {
        let slot = &self.control.backends[number as usize];
        let state = slot.state.load(SeqCst);
        if state == BACKEND_FREE {
            return None;
        }
        let backend = self.core.backend(number);
        let key = backend.and_then(|backend| self.core.pool_key(backend.pool()));
        // The tenant that the backend serves at the moment.
        let tenant = slot.tenant.load(Relaxed).checked_sub(1);
        let served = tenant.and_then(|tenant| self.core.tenant_key(tenant));
        let nonzero = |value: u64| (value != 0).then_some(value);
        let row = Row::new()
            .number(number)
            .optional(nonzero(u64::from(slot.pid.load(Relaxed))))
            .optional(self.session_pid(slot.session.load(SeqCst)))
            .optional(served.map(|key| String::from_utf8_lossy(&key.user)))
            .bytes(key.map_or(b"", |key| &key.database))
            .text(self.shown_state(slot, state))
            .optional(nonzero(slot.session.load(Relaxed)))
            .optional(cause(slot.dedicated_cause.load(Relaxed)))
            .number(slot.transactions.load(Relaxed))
            .number(slot.switches.load(Relaxed))
            .number(self.now.timestamp_of(slot.state_since_us.load(Relaxed)));
        Some(row.finish())
    }

    /// A backend stays busy for as long as a session is dedicated to it. It is shown as idle between
    /// the session's transactions.
    fn shown_state(&self, slot: &BackendSlot, state: u32) -> &'static str {
        let index = index_of(slot.session.load(SeqCst)) as usize;
        let session = self.control.sessions.get(index);
        let rests = session.is_some_and(|session| session.state.load(Relaxed) == STATE_IDLE);
        match state {
            BACKEND_BUSY if rests && slot.dedicated_cause.load(Relaxed) != 0 => "idle",
            _ => backend_state(state),
        }
    }

    fn session_pid(&self, id: u64) -> Option<i32> {
        let identity = self.control.identities.get(index_of(id) as usize)?;
        (id != 0 && identity.id.load(SeqCst) == id).then(|| identity.pid.load(Relaxed))
    }

    fn pool_row(&self, number: u32) -> Option<Vec<u8>> {
        let key = self.core.pool_key(number)?;
        let slots = self.core.pool_backends(number);
        let (mut starting, mut idle, mut busy) = (0, 0, 0);
        for slot in slots {
            match self.control.backends[*slot as usize].state.load(SeqCst) {
                BACKEND_STARTING => starting += 1,
                BACKEND_IDLE | BACKEND_LINGER => idle += 1,
                BACKEND_ASSIGNED | BACKEND_BUSY => busy += 1,
                _ => {}
            }
        }
        let dedicated = self.core.pool_dedicated(number);
        let row = Row::new()
            .bytes(&key.database)
            .optional(self.core.only_user(number).map(String::from_utf8_lossy))
            .bytes(&options_text(&key.options))
            .number(slots.len() + dedicated)
            .number(starting)
            .number(idle)
            .number(busy)
            .number(dedicated)
            .number(self.core.sessions().members(number))
            .number(self.core.waiting_in(number, &self.control))
            .optional(self.core.oldest_wait_us(number, &self.control));
        let nothing = PoolNumbers::default();
        let numbers = self.statistics.pool(number).unwrap_or(&nothing);
        let times = numbers.last_minute(self.now.us);
        let percentiles = times.iter().flat_map(|times| {
            let percents = [50, 95, 99].into_iter();
            percents.map(|percent| times.percentile(percent))
        });
        let row = percentiles.fold(row, Row::optional);
        Some(row.text(&numbers.grown()).text(&numbers.shrunk()).finish())
    }

    /// One row for each role in a database that has had sessions, and one for all others.
    fn statistics_row(&self, number: u32, is_named: bool) -> Option<Vec<u8>> {
        let entry = self.statistics.entries().get(number as usize)?;
        let row = match is_named {
            true => {
                let (role, database) = entry.names().unzip();
                let [role, database] = [role, database].map(|it| it.map(String::from_utf8_lossy));
                Row::new().optional(role).optional(database)
            }
            false => {
                let (role, database) = entry.key().unzip();
                Row::new().optional(role).optional(database)
            }
        };
        let counts = [
            COUNT_TRANSACTIONS,
            COUNT_REQUESTS,
            COUNT_STATEMENTS,
            COUNT_ERRORS,
        ];
        let row = (counts.iter()).fold(row, |row, of| row.number(entry.count(*of)));
        let row = row.text(&entry.errors_by_class());
        let counts = [
            COUNT_SENT,
            COUNT_TRANSACTION_TIME,
            COUNT_REQUEST_TIME,
            COUNT_WAITS,
            COUNT_WAIT_TIME,
            COUNT_DIRECT,
            COUNT_QUEUED,
            COUNT_HAND_OVER_TIME,
        ];
        let row = (counts.iter()).fold(row, |row, of| row.number(entry.count(*of)));
        let own = entry.own();
        let refused = own.refused.iter().map(|(state, count)| (state, *count));
        let row = row
            .number(own.logins)
            .number(own.tls_logins)
            .number(own.refused.values().sum::<u64>())
            .text(&object(refused))
            .number(own.cancels)
            .number(own.evictions)
            .number(self.statistics.since());
        Some(row.finish())
    }

    /// One row for each role in a database.
    fn tenant_row(&self, number: u32, in_tallies: &HashMap<u32, u64>) -> Option<Vec<u8>> {
        let key = self.core.tenant_key(number)?;
        let sessions = self.core.sessions();
        let in_tallies = in_tallies.get(&number).copied().unwrap_or(0);
        let completed = in_totals(number, COUNT_TRANSACTIONS, &self.control);
        let completed = completed.wrapping_add(in_tallies);
        let (memory, most) = self.core.tenant_memory(number);
        let row = Row::new()
            .bytes(&key.user)
            .bytes(&key.database)
            .bytes(&options_text(&key.options))
            .number(sessions.members_of_tenant(number))
            .number(sessions.waiting_of_tenant(number))
            .optional(self.core.tenant_waits_us(number))
            .number(completed)
            .number(memory)
            .optional(most);
        Some(row.finish())
    }

    /// One row for each pause: there are few.
    pub fn pause_rows(&self) -> Vec<Vec<u8>> {
        let row = |pause: ShownPause| {
            Row::new()
                .optional(pause.scope.database_oid)
                .optional(pause.scope.role_oid)
                .number(pause.since)
                .number(pause.ends)
                .number(pause.waiting)
                .optional(pause.in_the_way)
                .finish()
        };
        let pauses = self.core.shown_pauses(&self.control);
        pauses.into_iter().map(row).collect()
    }

    /// Each tenant has as many consecutive numbers as there are settings.
    fn pool_setting_row(&self, number: u32) -> Option<Vec<u8>> {
        let settings = POOL_SETTINGS.len() as u32;
        let (tenant, at) = (number / settings, (number % settings) as usize);
        let said = self.core.settings(tenant)?;
        let key = self.core.tenant_key(tenant)?;
        let (name, value) = (POOL_SETTINGS[at], said.values[at]);
        let row = Row::new()
            .bytes(&key.user)
            .bytes(&key.database)
            .text(&format!("pg_baton.{name}"));
        let row = match name {
            "pool_mode" => row.text(PoolMode::name(value)),
            _ => row.number(value),
        };
        let unit = (name == "pool_memory").then_some("kB");
        Some(row.optional(unit).text(source(said.sources[at])).finish())
    }
}
