//! Rows about sessions, backends and pools. docs/views.md defines the columns, their order and
//! their texts.

use super::Scheduler;
use crate::core::{index_of, PoolMode};
use crate::shell::link::layout::shared::*;
use crate::shell::link::memory::context::Contexts;
use crate::shell::link::wire::{self, port_of, Row};
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
}

/// A reader's view, and its position in it.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub view: View,
    next: u32,
}

impl Rows {
    pub fn of(view: View) -> Rows {
        Rows { view, next: 0 }
    }
}

impl Scheduler {
    /// The rows of the next `most` numbers; None if there are no more. A session or backend
    /// that comes or goes meanwhile may be missing or present.
    pub fn rows(&self, at: &mut Rows, most: u32) -> Option<Vec<Vec<u8>>> {
        let end = match at.view {
            View::Sessions => self.core.sessions().slots_used(),
            View::Backends => self.control.backends.len() as u32,
            View::Pools => self.control.pools.len() as u32,
            View::Tenants => self.control.tenants.len() as u32,
            View::PoolSettings => (self.control.tenants.len() * POOL_SETTINGS.len()) as u32,
        };
        let from = at.next;
        let to = end.min(from.saturating_add(most));
        if from >= to {
            return None;
        }
        at.next = to;
        let row = |number| match at.view {
            View::Sessions => self.session_row(number),
            View::Backends => self.backend_row(number),
            View::Pools => self.pool_row(number),
            View::Tenants => self.tenant_row(number),
            View::PoolSettings => self.pool_setting_row(number),
        };
        Some((from..to).filter_map(row).collect())
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
            .text(backend_state(state))
            .optional(nonzero(slot.session.load(Relaxed)))
            .optional(cause(slot.dedicated_cause.load(Relaxed)))
            .number(slot.transactions.load(Relaxed))
            .number(slot.switches.load(Relaxed))
            .number(self.now.timestamp_of(slot.state_since_us.load(Relaxed)));
        Some(row.finish())
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
        Some(row.finish())
    }

    /// One row for each role in a database.
    fn tenant_row(&self, number: u32) -> Option<Vec<u8>> {
        let key = self.core.tenant_key(number)?;
        let sessions = self.core.sessions();
        let completed = self.control.tenants[number as usize]
            .completed
            .load(Relaxed);
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
