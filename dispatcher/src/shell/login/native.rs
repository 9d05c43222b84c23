//! Native sessions: ordinary connections for life, each on a backend of its own,
//! of which the dispatcher knows no more than that they are there.
//!
//! Who becomes one is decided here, at the startup packet, or in client.rs, before that;
//! how it comes to its backend is told in errands.rs. Nothing that a client has proved is known then, so
//! nothing here may depend on who it is beyond the names that it gives: the
//! server decides whether it may come in.

use crate::protocol::startup::{Replication, Startup};
use crate::shell::link::wire::{port_of, Row};
use crate::shell::parameters::Parameters;
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::socket::Address;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Why a session is native, as the views say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Replication,
    Disabled,
    UserNamespaces,
    Listed,
    PoolMode,
    Busy,
    ContextMemory,
    PoolMemory,
    FailedCheck,
    GssEncryption,
    Delegation,
}

impl Why {
    pub fn text(self) -> &'static str {
        match self {
            Why::Replication => "replication",
            Why::Disabled => "pg_baton.enabled",
            Why::UserNamespaces => "db_user_namespace",
            Why::Listed => "pg_baton.native_dbuser_names",
            Why::PoolMode => "pg_baton.pool_mode",
            Why::Busy => "pg_baton.native_when_waiting",
            Why::ContextMemory => "context memory",
            Why::PoolMemory => "pool memory",
            Why::FailedCheck => "failed check",
            Why::GssEncryption => "GSSAPI encryption",
            Why::Delegation => "gss_accept_delegation",
        }
    }
}

/// One native session, by its backend's control connection.
pub struct Native {
    why: Why,
    pid: u32,
    address: Address,
    /// Its bytes go by this process (TLS).
    is_relayed: bool,
    user: Vec<u8>,
    database: Vec<u8>,
    application_name: Vec<u8>,
    /// TimestampTz.
    since: i64,
    /// As whom the server has let it in; None before that.
    role: Option<u32>,
    /// As long as that: its login.
    login: Option<LoginId>,
}

/// A login's number and serial.
pub type LoginId = (u32, u64);

/// What is known of a login that becomes a native session.
pub struct LoggingIn {
    pub id: LoginId,
    pub address: Address,
    pub is_relayed: bool,
}

impl Native {
    pub fn new(of: LoggingIn, mut startup: Startup, why: Why, pid: u32, since: i64) -> Native {
        let name = startup.take_settings().ok().and_then(|settings| {
            let is_it = |name: &[u8]| name.eq_ignore_ascii_case(b"application_name");
            let found = settings.into_iter().rev().find(|(name, _)| is_it(name));
            found.map(|(_, value)| value)
        });
        Native {
            why,
            pid,
            address: of.address,
            is_relayed: of.is_relayed,
            user: match why {
                Why::UserNamespaces => startup.namespaced_user(),
                _ => startup.user,
            },
            database: startup.database,
            application_name: name.unwrap_or_default(),
            since,
            role: None,
            login: Some(of.id),
        }
    }

    /// Walsenders count in max_wal_senders alone.
    fn is_connection(&self) -> bool {
        self.why != Why::Replication
    }

    /// What it does is known to the server alone (pg_stat_activity).
    fn row(&self) -> Vec<u8> {
        let unknown: Option<u64> = None;
        Row::new()
            .optional(unknown)
            .number(self.pid)
            .bytes(&self.user)
            .bytes(&self.database)
            .bytes(&self.application_name)
            .optional(self.address.text())
            .number(port_of(&self.address))
            .text("native")
            .optional(unknown)
            .text(self.why.text())
            .number(self.pid)
            .number(self.since)
            .optional(unknown)
            .optional(unknown)
            .optional(unknown)
            .optional(unknown)
            .finish()
    }
}

/// All of them, by the control connection of each one's backend.
#[derive(Default)]
pub struct Natives {
    by_connection: BTreeMap<u32, Native>,
    /// How many the server has let in, as this role, and from there.
    by_role: HashMap<u32, usize>,
    by_origin: HashMap<Origin, usize>,
    relayed: usize,
    /// Those that take of max_connections.
    connections: usize,
    /// Of these, those that the server has not let in yet.
    logging_in: usize,
}

/// One more or one less of these.
fn count<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K, is_in: bool) {
    let number = counts.remove(&key).unwrap_or(0);
    let number = match is_in {
        true => number + 1,
        false => number.saturating_sub(1),
    };
    if number > 0 {
        counts.insert(key, number);
    }
}

impl Natives {
    pub fn insert(&mut self, connection: u32, native: Native) {
        let _ = self.remove(connection);
        self.count(&native, true);
        self.relayed += usize::from(native.is_relayed);
        self.connections += usize::from(native.is_connection());
        self.logging_in += usize::from(native.is_connection() && native.login.is_some());
        self.by_connection.insert(connection, native);
    }

    /// Its backend has ended. The login that has ended so.
    pub fn remove(&mut self, connection: u32) -> Option<LoginId> {
        let native = self.by_connection.remove(&connection)?;
        self.count(&native, false);
        self.relayed -= usize::from(native.is_relayed);
        self.connections -= usize::from(native.is_connection());
        self.logging_in -= usize::from(native.is_connection() && native.login.is_some());
        native.login
    }

    /// Those that count in max_connections, those that log in included.
    pub fn connections(&self) -> usize {
        self.connections
    }

    /// Of these, those that the server has let in.
    pub fn connections_in(&self) -> usize {
        self.connections - self.logging_in
    }

    /// Whose login it is, until the server has let it in.
    pub fn login(&self, connection: u32) -> Option<LoginId> {
        self.by_connection.get(&connection)?.login
    }

    /// Those whose bytes go by this process.
    pub fn relayed(&self) -> usize {
        self.relayed
    }

    fn count(&mut self, native: &Native, is_in: bool) {
        let Some(role) = native.role else { return };
        count(&mut self.by_role, role, is_in);
        if let Some(origin) = Origin::of(&native.address) {
            count(&mut self.by_origin, origin, is_in);
        }
    }

    /// Where one comes from.
    pub fn address(&self, connection: u32) -> Option<Address> {
        (self.by_connection.get(&connection)).map(|native| native.address)
    }

    /// The server has let it in as this role.
    pub fn is_in(&mut self, connection: u32, role: u32) {
        if let Some(mut native) = self.by_connection.remove(&connection) {
            self.count(&native, false);
            native.role = Some(role);
            self.count(&native, true);
            self.by_connection.insert(connection, native);
        }
    }

    /// The login that is one no more, since the server has let it in.
    pub fn take_login(&mut self, connection: u32) -> Option<LoginId> {
        let native = self.by_connection.get_mut(&connection)?;
        let login = native.login.take()?;
        self.logging_in -= usize::from(native.is_connection());
        Some(login)
    }

    /// Those that the server has let in as this role.
    pub fn of_role(&self, role: u32) -> usize {
        self.by_role.get(&role).copied().unwrap_or(0)
    }

    /// Those that the server has let in from there.
    pub fn from(&self, origin: Origin) -> usize {
        self.by_origin.get(&origin).copied().unwrap_or(0)
    }

    /// For pg_baton_sessions: at most so many of those from `next` on; None if there are
    /// no more. Who comes or goes meanwhile may be there or not.
    pub fn rows(&self, next: &mut u32, most: usize) -> Option<Vec<Vec<u8>>> {
        let some = self.by_connection.range(*next..).take(most);
        let mut last = None;
        let rows: Vec<Vec<u8>> = some
            .map(|(connection, native)| {
                last = Some(*connection);
                native.row()
            })
            .collect();
        *next = last?.saturating_add(1);
        Some(rows)
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
    if parameters.db_user_namespace {
        // The role is whom the server makes of the names.
        return Some(Why::UserNamespaces);
    }
    let names = &parameters.native_dbuser_names;
    (names.have(&startup.database, &startup.user)).then_some(Why::Listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(pid: u32) -> Native {
        Native {
            why: Why::Disabled,
            pid,
            address: Address::default(),
            is_relayed: pid % 2 == 1,
            user: Vec::new(),
            database: Vec::new(),
            application_name: Vec::new(),
            since: 0,
            role: None,
            login: Some((pid, 0)),
        }
    }

    #[test]
    fn who_has_been_let_in_is_counted_until_he_goes() {
        let mut all = Natives::default();
        for connection in 1..4 {
            all.insert(connection, native(connection));
        }
        assert_eq!(all.of_role(10), 0);
        all.is_in(1, 10);
        all.is_in(2, 10);
        all.is_in(3, 11);
        assert_eq!((all.of_role(10), all.of_role(11)), (2, 1));
        all.is_in(1, 11);
        all.is_in(1, 11);
        all.is_in(4, 11);
        assert_eq!((all.of_role(10), all.of_role(11)), (1, 2));
        assert_eq!(all.relayed(), 2);
        for connection in 0..4 {
            all.remove(connection);
            all.remove(connection);
        }
        assert!(all.by_role.is_empty() && all.by_origin.is_empty());
        assert_eq!(all.relayed(), 0);
    }

    #[test]
    fn rows_are_made_so_many_at_a_time_and_each_once() {
        let mut all = Natives::default();
        for connection in [7, 3, 9, 5, 1] {
            all.insert(connection, native(connection));
        }
        let (mut next, mut rows) = (0, Vec::new());
        while let Some(some) = all.rows(&mut next, 2) {
            assert!(some.len() <= 2, "{} at once", some.len());
            rows.extend(some);
            // One that is told already goes, and one that is not comes.
            all.remove(1);
            all.insert(u32::MAX - 1, native(11));
        }
        let expected = [1, 3, 5, 7, 9, 11].map(|pid| native(pid).row());
        assert_eq!(rows, expected);
    }
}
