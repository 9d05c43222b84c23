//! Native sessions: ordinary connections for life, each on a backend of its own. The dispatcher
//! knows little more than that they exist.
//!
//! This file decides at the startup packet whether a session becomes native; client.rs does so
//! before the packet. errands.rs has how the client reaches its backend. At that point the
//! client has proved nothing, so no decision here may depend on more than the names that it
//! gives. The server decides whether to admit it.

use crate::protocol::startup::{Replication, Startup};
use crate::shell::link::wire::{port_of, Row};
use crate::shell::parameters::Parameters;
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::socket::Address;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The reason for which a session is native, as the views show it.
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

/// One native session.
pub struct Native {
    why: Why,
    pid: u32,
    address: Address,
    /// The relay of this process carries its bytes (TLS).
    is_relayed: bool,
    user: Vec<u8>,
    database: Vec<u8>,
    application_name: Vec<u8>,
    /// TimestampTz.
    since: i64,
    /// The role as which the server has admitted it; None before that.
    role: Option<u32>,
    /// The login, until the server has admitted the client.
    login: Option<LoginId>,
}

/// A login's number and serial.
pub type LoginId = (u32, u64);

/// What a native session takes over from its login.
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

    /// WAL senders count in max_wal_senders alone.
    fn is_connection(&self) -> bool {
        self.why != Why::Replication
    }

    /// The session's state is unknown here; pg_stat_activity shows it.
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
            .flag(Some(self.is_relayed))
            .finish()
    }

    /// One session, as the monitor counts them (`Scheduler::session_counts`).
    fn counted(&self) -> Vec<u8> {
        Row::new()
            .bytes(&self.user)
            .bytes(&self.database)
            .text("native")
            .text(self.why.text())
            .number(1)
            .finish()
    }
}

/// All native sessions, by the control connection of each one's backend.
#[derive(Default)]
pub struct Natives {
    by_connection: BTreeMap<u32, Native>,
    /// Number of admitted sessions per role, and per address.
    by_role: HashMap<u32, usize>,
    by_origin: HashMap<Origin, usize>,
    relayed: usize,
    /// Sessions that count in max_connections.
    connections: usize,
    /// Of these, sessions that the server has not admitted yet.
    logging_in: usize,
}

/// Adds or subtracts one.
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

    /// The session's backend has ended. Returns the login that ends with it, if there is one.
    pub fn remove(&mut self, connection: u32) -> Option<LoginId> {
        let native = self.by_connection.remove(&connection)?;
        self.count(&native, false);
        self.relayed -= usize::from(native.is_relayed);
        self.connections -= usize::from(native.is_connection());
        self.logging_in -= usize::from(native.is_connection() && native.login.is_some());
        native.login
    }

    /// Sessions that count in max_connections, including those that log in.
    pub fn connections(&self) -> usize {
        self.connections
    }

    /// Of these, sessions that the server has admitted.
    pub fn connections_in(&self) -> usize {
        self.connections - self.logging_in
    }

    /// The login of this session, until the server has admitted it.
    pub fn login(&self, connection: u32) -> Option<LoginId> {
        self.by_connection.get(&connection)?.login
    }

    /// Sessions whose bytes the relay of this process carries.
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

    /// The client's address.
    pub fn address(&self, connection: u32) -> Option<Address> {
        (self.by_connection.get(&connection)).map(|native| native.address)
    }

    /// The server has admitted the session as this role.
    pub fn is_in(&mut self, connection: u32, role: u32) {
        if let Some(mut native) = self.by_connection.remove(&connection) {
            self.count(&native, false);
            native.role = Some(role);
            self.count(&native, true);
            self.by_connection.insert(connection, native);
        }
    }

    /// Takes the login, which ends because the server has admitted the session.
    pub fn take_login(&mut self, connection: u32) -> Option<LoginId> {
        let native = self.by_connection.get_mut(&connection)?;
        let login = native.login.take()?;
        self.logging_in -= usize::from(native.is_connection());
        Some(login)
    }

    /// Sessions that the server has admitted as this role.
    pub fn of_role(&self, role: u32) -> usize {
        self.by_role.get(&role).copied().unwrap_or(0)
    }

    /// Sessions that the server has admitted from this address.
    pub fn from(&self, origin: Origin) -> usize {
        self.by_origin.get(&origin).copied().unwrap_or(0)
    }

    /// Rows for pg_baton_sessions, or for the monitor: at most `most` from `next` on; None if
    /// there are no more. A session that comes or goes meanwhile may be included or not.
    pub fn rows(&self, next: &mut u32, most: usize, are_counted: bool) -> Option<Vec<Vec<u8>>> {
        let some = self.by_connection.range(*next..).take(most);
        let mut last = None;
        let rows: Vec<Vec<u8>> = some
            .map(|(connection, native)| {
                last = Some(*connection);
                match are_counted {
                    true => native.counted(),
                    false => native.row(),
                }
            })
            .collect();
        *next = last?.saturating_add(1);
        Some(rows)
    }
}

/// The reason for which a client with this startup packet becomes native, by its request or by
/// the configuration; None if it does not.
pub fn why_native(startup: &Startup, parameters: &Parameters) -> Option<Why> {
    if startup.replication != Replication::No {
        return Some(Why::Replication);
    }
    if !parameters.enabled {
        return Some(Why::Disabled);
    }
    if parameters.db_user_namespace {
        // The server derives the role from the user's and the database's name.
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
    fn a_session_that_was_let_in_is_counted_until_it_goes() {
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
        while let Some(some) = all.rows(&mut next, 2, false) {
            assert!(some.len() <= 2, "{} at once", some.len());
            rows.extend(some);
            // A session that has been listed goes, and a new one comes.
            all.remove(1);
            all.insert(u32::MAX - 1, native(11));
        }
        let expected = [1, 3, 5, 7, 9, 11].map(|pid| native(pid).row());
        assert_eq!(rows, expected);
    }
}
