//! The rows of the views. Columns, their order and their texts are those of
//! `docs/views.md`.

use super::event_loop::Dispatcher;
use super::link::layout::shared::*;
use super::link::memory::context::Contexts;
use super::link::wire::Writer;
use super::sys::process;
use super::sys::socket::Address;
use crate::core::index_of;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Counts since the dispatcher started.
#[derive(Default)]
pub struct Statistics {
    pub accepted: u64,
    pub logins: u64,
    pub logins_failed: u64,
    pub cancels: u64,
    pub assigned: u64,
    pub queued: u64,
    pub backends_started: u64,
}

/// One row under construction.
struct Row {
    writer: Writer,
    columns: u32,
}

impl Row {
    fn new() -> Row {
        Row {
            writer: Writer::new(MSG_ROW, 0),
            columns: 0,
        }
    }

    fn value(self, value: Option<&[u8]>) -> Row {
        Row {
            writer: self.writer.nullable(value),
            columns: self.columns + 1,
        }
    }

    fn bytes(self, value: &[u8]) -> Row {
        self.value(Some(value))
    }

    fn text(self, value: &str) -> Row {
        self.bytes(value.as_bytes())
    }

    fn number(self, value: impl std::fmt::Display) -> Row {
        self.text(&value.to_string())
    }

    fn optional(self, value: Option<impl std::fmt::Display>) -> Row {
        let text = value.map(|value| value.to_string());
        self.value(text.as_deref().map(str::as_bytes))
    }

    fn finish(self) -> Vec<u8> {
        let mut frame = self.writer.finish();
        // The number of columns comes first in the payload.
        let at = FRAME_HEADER_SIZE as usize;
        frame.splice(at..at, self.columns.to_ne_bytes());
        let length = (frame.len() - at) as u32;
        frame[4..8].copy_from_slice(&length.to_ne_bytes());
        frame
    }
}

fn cause(number: u32) -> Option<&'static str> {
    Some(match number {
        CAUSE_NONE => return None,
        CAUSE_ADVISORY_LOCK => "advisory lock",
        CAUSE_HELD_CURSOR => "held cursor",
        CAUSE_TEMPORARY_OBJECT => "temporary object",
        CAUSE_LISTEN => "listen",
        CAUSE_LOAD => "loaded library",
        CAUSE_SETSEED => "setseed",
        CAUSE_BACKUP => "backup",
        CAUSE_TEMPORARY_SLOT => "temporary replication slot",
        CAUSE_REPLICATION_ORIGIN => "replication origin",
        CAUSE_LISTED_OBJECT => "listed object",
        CAUSE_UNLISTED_LIBRARY => "unlisted library",
        CAUSE_CONTEXT_MEMORY => "context memory",
        CAUSE_DISPATCHER_GONE => "dispatcher gone",
        CAUSE_SELF_CHECK => "failed check",
        CAUSE_POOL_MODE => "pool mode",
        CAUSE_FEW_SESSIONS => "few sessions",
        _ => "other",
    })
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

/// As pg_stat_activity has it.
fn port_of(address: &Address) -> i32 {
    if address.is_local() {
        -1
    } else {
        i32::from(address.port)
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

/// SET's value, else what RESET goes back to, else the startup option.
fn application_name(contexts: &Contexts, index: u32) -> Vec<u8> {
    let name = b"application_name";
    if let Some(value) = contexts.value(index, KIND_REPORTED, b"") {
        let reported = super::link::wire::pairs(value).find(|(key, _)| key == name);
        if let Some((_, value)) = reported {
            return value.to_vec();
        }
    }
    contexts
        .value(index, KIND_STARTUP, name)
        .map(<[u8]>::to_vec)
        .unwrap_or_default()
}

impl Dispatcher {
    /// The rows of one view; none of one that is not known.
    pub fn answer_query(&self, what: u32) -> Vec<Vec<u8>> {
        match what {
            QUERY_SESSIONS => {
                let mut rows = self.session_rows();
                rows.extend(self.native_rows());
                rows
            }
            QUERY_BACKENDS => self.backend_rows(),
            QUERY_POOLS => self.pool_rows(),
            QUERY_DISPATCHERS => vec![self.dispatcher_row()],
            _ => Vec::new(),
        }
    }

    fn session_rows(&self) -> Vec<Vec<u8>> {
        let sessions = self.core.sessions();
        sessions
            .ids()
            .filter_map(|id| {
                let session = sessions.get(id)?;
                let index = index_of(id);
                let slot = &self.control.sessions[index as usize];
                let key = self.core.pool_key(session.pool())?;
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
                        .number(slot.state_since_us.load(Relaxed))
                        .number(slot.transactions.load(Relaxed))
                        .number(slot.migrations.load(Relaxed))
                        .number(self.contexts.bytes(index))
                        .finish(),
                )
            })
            .collect()
    }

    /// What they do is known to the server alone (pg_stat_activity).
    fn native_rows(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.natives.values().map(|native| {
            let unknown: Option<u64> = None;
            Row::new()
                .optional(unknown)
                .number(native.pid)
                .bytes(&native.user)
                .bytes(&native.database)
                .bytes(&native.application_name)
                .optional(native.address.text())
                .number(port_of(&native.address))
                .text("native")
                .optional(unknown)
                .text(native.why.text())
                .number(native.pid)
                .number(native.since)
                .optional(unknown)
                .optional(unknown)
                .optional(unknown)
                .optional(unknown)
                .finish()
        })
    }

    fn backend_rows(&self) -> Vec<Vec<u8>> {
        self.control
            .backends
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.state.load(SeqCst) != BACKEND_FREE)
            .map(|(number, slot)| {
                let backend = self.core.backend(number as u32);
                let key = backend.and_then(|backend| self.core.pool_key(backend.pool()));
                let nonzero = |value: u64| (value != 0).then_some(value);
                Row::new()
                    .number(number)
                    .optional(nonzero(u64::from(slot.pid.load(Relaxed))))
                    .optional(self.session_pid(slot.session.load(SeqCst)))
                    .bytes(key.map_or(b"", |key| &key.user))
                    .bytes(key.map_or(b"", |key| &key.database))
                    .text(backend_state(slot.state.load(SeqCst)))
                    .optional(nonzero(slot.session.load(Relaxed)))
                    .optional(cause(slot.dedicated_cause.load(Relaxed)))
                    .number(slot.transactions.load(Relaxed))
                    .number(slot.switches.load(Relaxed))
                    .number(slot.state_since_us.load(Relaxed))
                    .finish()
            })
            .collect()
    }

    fn session_pid(&self, id: u64) -> Option<i32> {
        let identity = self.control.identities.get(index_of(id) as usize)?;
        (id != 0 && identity.id.load(SeqCst) == id).then(|| identity.pid.load(Relaxed))
    }

    fn pool_rows(&self) -> Vec<Vec<u8>> {
        let mut rows = Vec::new();
        for number in self.core.pools() {
            let Some(key) = self.core.pool_key(number) else {
                continue;
            };
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
            let options: Vec<Vec<u8>> = key
                .options
                .iter()
                .map(|(name, value)| [name.as_slice(), b"=", value].concat())
                .collect();
            let completed = self.control.pools[number as usize].completed.load(Relaxed);
            let row = Row::new()
                .bytes(&key.user)
                .bytes(&key.database)
                .bytes(&options.join(&b' '))
                .number(slots.len() + dedicated)
                .number(starting)
                .number(idle)
                .number(busy)
                .number(dedicated)
                .number(self.core.sessions().members(number))
                .number(self.core.waiting_in(number, &self.control))
                .optional(self.core.oldest_wait_us(number, &self.control))
                .number(completed);
            rows.push(row.finish());
        }
        rows
    }

    fn dispatcher_row(&self) -> Vec<u8> {
        let pools = self.core.pools();
        let waiting: usize = pools
            .map(|pool| self.core.waiting_in(pool, &self.control))
            .sum();
        let (user_us, system_us) = process::cpu_time_us();
        let counts = &self.statistics;
        Row::new()
            .number(std::process::id())
            .number(self.started_at)
            .number(1)
            .number(self.core.sessions().live() + self.logins.len())
            .number(self.core.sessions().live())
            .number(waiting)
            .number(counts.accepted)
            .number(counts.logins)
            .number(counts.logins_failed)
            .number(counts.cancels)
            .number(counts.assigned + counts.queued)
            .number(counts.assigned)
            .number(counts.queued)
            .number(counts.backends_started)
            .number(self.contexts.arena.used())
            .number(self.contexts.arena.limit())
            .number(user_us)
            .number(system_us)
            .finish()
    }
}
