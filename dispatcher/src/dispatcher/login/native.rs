//! Native sessions: ordinary connections for life, each on a backend of its own,
//! of which the dispatcher knows no more than that they are there.
//!
//! Who becomes one is decided here, at the startup packet; how it comes to its
//! backend is told in errands.rs. Nothing that a client has proved is known then, so
//! nothing here may depend on who it is beyond the names that it gives: the
//! server decides whether it may come in.

use crate::dispatcher::link::rows::{port_of, Row};
use crate::dispatcher::network::Origin;
use crate::dispatcher::parameters::Parameters;
use crate::dispatcher::sys::socket::Address;
use crate::protocol::startup::{Replication, Startup};
use std::collections::HashMap;

/// Why a session is native, as the views say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Replication,
    Disabled,
    Listed,
    PoolMode,
    Busy,
    ContextMemory,
    PoolMemory,
    FailedCheck,
}

impl Why {
    pub fn text(self) -> &'static str {
        match self {
            Why::Replication => "replication",
            Why::Disabled => "pg_baton.enabled",
            Why::Listed => "pg_baton.native_dbuser_names",
            Why::PoolMode => "pg_baton.pool_mode",
            Why::Busy => "pg_baton.native_when_waiting",
            Why::ContextMemory => "context memory",
            Why::PoolMemory => "pool memory",
            Why::FailedCheck => "failed check",
        }
    }
}

/// One native session, by its backend's control connection.
pub struct Native {
    why: Why,
    pid: u32,
    address: Address,
    user: Vec<u8>,
    database: Vec<u8>,
    application_name: Vec<u8>,
    /// TimestampTz.
    since: i64,
    /// As whom the server has let it in; None before that.
    role: Option<u32>,
}

impl Native {
    pub fn new(startup: Startup, why: Why, pid: u32, address: Address, since: i64) -> Native {
        let name = startup.settings().ok().and_then(|settings| {
            let is_it = |name: &[u8]| name.eq_ignore_ascii_case(b"application_name");
            let found = settings.into_iter().rev().find(|(name, _)| is_it(name));
            found.map(|(_, value)| value)
        });
        Native {
            why,
            pid,
            address,
            user: startup.user,
            database: startup.database,
            application_name: name.unwrap_or_default(),
            since,
            role: None,
        }
    }
}

/// All of them, by the control connection of each one's backend.
#[derive(Default)]
pub struct Natives {
    by_connection: HashMap<u32, Native>,
}

impl Natives {
    pub fn insert(&mut self, connection: u32, native: Native) {
        self.by_connection.insert(connection, native);
    }

    pub fn remove(&mut self, connection: u32) {
        self.by_connection.remove(&connection);
    }

    /// Where one comes from.
    pub fn address(&self, connection: u32) -> Option<Address> {
        (self.by_connection.get(&connection)).map(|native| native.address)
    }

    /// The server has let it in as this role.
    pub fn is_in(&mut self, connection: u32, role: u32) {
        if let Some(native) = self.by_connection.get_mut(&connection) {
            native.role = Some(role);
        }
    }

    /// Those that the server has let in as this role.
    pub fn of_role(&self, role: u32) -> usize {
        let natives = self.by_connection.values();
        natives.filter(|native| native.role == Some(role)).count()
    }

    /// Those that the server has let in from there.
    pub fn from(&self, origin: Origin) -> usize {
        let is_from_there =
            |native: &&Native| native.role.is_some() && Origin::of(&native.address) == Some(origin);
        self.by_connection.values().filter(is_from_there).count()
    }

    /// For pg_baton_sessions. What they do is known to the server alone
    /// (pg_stat_activity).
    pub fn rows(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.by_connection.values().map(|native| {
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
}

/// Shall a client that has sent this become native, by what it asks for and what
/// is configured?
pub fn why_native(startup: &Startup, parameters: &Parameters) -> Option<Why> {
    if startup.replication != Replication::No {
        return Some(Why::Replication);
    }
    if !parameters.enabled {
        return Some(Why::Disabled);
    }
    let names = &parameters.native_dbuser_names;
    (names.have(&startup.database, &startup.user)).then_some(Why::Listed)
}
