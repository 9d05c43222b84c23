//! The dispatcher's parameters, as the launcher sends them.
//!
//! One table names, parses and describes every parameter. The launcher sends the whole
//! configuration at the start and at each reload. A name that is not in the table is ignored:
//! an older dispatcher may meet a newer extension. An invalid value leaves the parameter as it
//! was and is reported.

use super::sys::socket::Keepalives;
use super::tls::context::Settings as TlsSettings;
use crate::console::Layout;
use crate::core::Limits;
use crate::protocol::Report;
use std::collections::HashSet;
use std::sync::OnceLock;

/// The most backends, for each processor, of a pool whose sessions often take each other's
/// backends. It is more than can be at work, as each session waits for its client now and then.
const BACKENDS_A_PROCESSOR: usize = 4;

/// A tenth of max_connections is left to clients of the server's own port, within these limits.
/// A superuser's first backends may be among them.
const FOR_OWN_PORT: std::ops::RangeInclusive<u32> = 4..=10;
/// One part in this many of those connections, and at least one, is for superusers of the pool.
const FOR_SUPERUSERS_PART: u32 = 4;

/// One part in this many of max_connections, and at least FEWEST_NOT_LET_IN, is for clients
/// that the server itself authenticates and has not let in yet.
const NOT_LET_IN_PART: u32 = 8;
const FEWEST_NOT_LET_IN: u32 = 4;
const WAL_SENDERS_NOT_LET_IN_PART: usize = 4;

fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// All parameters.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    pub port: u16,
    pub listen_addresses: String,
    pub unix_socket_directories: String,
    pub unix_socket_permissions: u32,
    pub unix_socket_group: String,
    pub server_port: u16,
    /// The settings to change if the pool cannot listen on its port because the server uses the
    /// same; empty if it does not.
    pub port_collision: String,
    pub max_backends: u32,
    pub min_backends: u32,
    /// -1: limited only by the server's connections.
    pub max_dedicated: i32,
    /// -1: limited only by the server's connections.
    pub max_extra_backends: i32,
    pub sharing_threshold: u32,
    /// Threads that wait for events of sessions.
    pub dispatchers: u32,
    pub backend_idle_timeout_ms: u64,
    pub backend_lifetime_ms: u64,
    pub session_wait_timeout_ms: u64,
    /// How long sessions wait for the next server; 0: they end with this one.
    pub hold_sessions_ms: u32,
    /// May sessions of a primary go on at a standby?
    pub keep_after_demotion: bool,
    pub max_sessions: u32,
    pub session_memory_bytes: u64,
    pub authentication_timeout_ms: u64,
    pub force_migration: bool,
    /// May new clients become sessions of the pool?
    pub enabled: bool,
    /// The server authenticates every client, even where the dispatcher could.
    pub login_by_server: bool,
    /// The server combines the client's user and database into the role name (up to 16).
    pub db_user_namespace: bool,
    /// A client that asks for GSSAPI encryption gets it.
    pub gss_encryption: bool,
    /// pg_baton.console_version.
    pub console_layout: Layout,
    pub native_dbuser_names: NativeNames,
    /// 0: never.
    pub native_when_waiting: u32,
    pub max_connections: u32,
    pub max_wal_senders: u32,
    pub superuser_reserved_connections: u32,
    pub server_version: String,
    pub data_directory: String,
    pub backend_only_parameters: HashSet<String>,
    pub configuration_generation: u64,
    /// Settings that backends take from the configuration only when they start, as one text;
    /// used only for comparison.
    pub backend_start_settings: String,
    /// The parts of log_connections that are enabled.
    pub log_receipt: bool,
    pub log_authentication: bool,
    pub log_authorization: bool,
    pub log_disconnections: bool,
    pub log_scheduling: bool,
    pub mock_authentication_nonce: Vec<u8>,
    /// password_encryption: how newly set passwords are stored.
    pub stores_md5: bool,
    /// 0: the server has no such parameter (15).
    pub scram_iterations: u32,
    /// Limits for clients at login.
    pub door: DoorLimits,
    pub constants: Constants,
    pub tls: TlsSettings,
    /// tcp_keepalives_idle and its like, for the sockets of TLS clients; 0: the system's
    /// default.
    pub keepalives: Keepalives,
}

type Set = fn(&mut Parameters, &str) -> Option<()>;

macro_rules! number {
    ($field:ident) => {
        (stringify!($field), |parameters, text| {
            parameters.$field = text.parse().ok()?;
            Some(())
        })
    };
}

macro_rules! text {
    ($field:ident) => {
        (stringify!($field), |parameters, text| {
            parameters.$field = text.to_owned();
            Some(())
        })
    };
}

macro_rules! flag {
    ($field:ident) => {
        (stringify!($field), |parameters, text| {
            parameters.$field = matches!(text, "1" | "on" | "true");
            Some(())
        })
    };
}

macro_rules! door {
    ($name:literal, $field:ident) => {
        ($name, |parameters, text| {
            parameters.door.$field = text.parse().ok()?;
            Some(())
        })
    };
}

macro_rules! keepalive {
    ($name:literal, $at:literal) => {
        ($name, |parameters, text| {
            parameters.keepalives[$at] = text.parse().ok()?;
            Some(())
        })
    };
}

const TABLE: &[(&str, Set)] = &[
    keepalive!("tcp_keepalives_idle", 0),
    keepalive!("tcp_keepalives_interval", 1),
    keepalive!("tcp_keepalives_count", 2),
    keepalive!("tcp_user_timeout", 3),
    door!("max_login_rate", login_rate),
    door!("max_login_rate_per_address", login_rate_per_address),
    door!("max_sessions_per_address", sessions_per_address),
    door!("max_sessions_per_user", sessions_per_user),
    door!("max_unauthenticated", unauthenticated),
    number!(port),
    text!(listen_addresses),
    text!(unix_socket_directories),
    ("unix_socket_permissions", |parameters, text| {
        parameters.unix_socket_permissions = u32::from_str_radix(text, 8).ok()?;
        Some(())
    }),
    text!(unix_socket_group),
    number!(server_port),
    text!(port_collision),
    number!(max_backends),
    number!(min_backends),
    number!(max_dedicated),
    number!(max_extra_backends),
    number!(sharing_threshold),
    number!(dispatchers),
    number!(backend_idle_timeout_ms),
    number!(backend_lifetime_ms),
    number!(session_wait_timeout_ms),
    number!(hold_sessions_ms),
    flag!(keep_after_demotion),
    number!(max_sessions),
    number!(session_memory_bytes),
    number!(authentication_timeout_ms),
    flag!(force_migration),
    flag!(enabled),
    flag!(login_by_server),
    flag!(db_user_namespace),
    flag!(gss_encryption),
    ("console_version", |parameters, text| {
        parameters.console_layout = Layout::parse(text)?;
        Some(())
    }),
    ("native_dbuser_names", |parameters, text| {
        parameters.native_dbuser_names = NativeNames::parse(text)?;
        Some(())
    }),
    number!(native_when_waiting),
    number!(max_connections),
    number!(max_wal_senders),
    number!(superuser_reserved_connections),
    text!(server_version),
    text!(data_directory),
    ("backend_only_parameters", |parameters, text| {
        let names = text.split(',').map(|name| name.trim().to_ascii_lowercase());
        parameters.backend_only_parameters = names.filter(|name| !name.is_empty()).collect();
        Some(())
    }),
    number!(configuration_generation),
    text!(backend_start_settings),
    flag!(log_receipt),
    flag!(log_authentication),
    flag!(log_authorization),
    flag!(log_disconnections),
    flag!(log_scheduling),
    ("password_encryption", |parameters, text| {
        parameters.stores_md5 = text == "md5";
        Some(())
    }),
    number!(scram_iterations),
    ("test_constants", |parameters, text| {
        parameters.constants = Constants::changed_by(text);
        Some(())
    }),
    ("mock_authentication_nonce", |parameters, text| {
        parameters.mock_authentication_nonce = (0..text.len() / 2)
            .map(|at| u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok())
            .collect::<Option<_>>()?;
        Some(())
    }),
];

impl Parameters {
    /// Sets one parameter; false if the value is invalid.
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        match TABLE.iter().find(|(known, _)| *known == name) {
            Some((_, set)) => set(self, value).is_some(),
            None => {
                self.tls.set(name, value);
                true
            }
        }
    }

    /// The most backends that the pool may have, dedicated ones included: the server's
    /// connections without those for administrators and those for clients of its own port.
    /// `others`: further connections that exist.
    pub fn backend_ceiling(&self, slots: usize, others: usize) -> usize {
        let server = self
            .max_connections
            .saturating_sub(self.superuser_reserved_connections + self.for_own_port())
            as usize;
        server.saturating_sub(others).max(1).min(slots)
    }

    /// Connections that the pool leaves to clients of the server's own port.
    pub fn for_own_port(&self) -> u32 {
        let tenth = self.max_connections / 10;
        let own = tenth.clamp(*FOR_OWN_PORT.start(), *FOR_OWN_PORT.end());
        own.min(self.max_connections / 4)
    }

    /// The part of these that is kept for superusers who wait for a backend. It is not
    /// available to ordinary roles on the server's own port: PostgreSQL refuses them when only
    /// superuser_reserved_connections are left (InitPostgres, 15 to 18).
    fn for_superusers(&self) -> u32 {
        (self.for_own_port() / FOR_SUPERUSERS_PART).max(1)
    }

    /// How many of the server's connections clients may have that it has not let in yet: an
    /// eighth.
    pub fn most_not_let_in(&self) -> usize {
        let part = self.max_connections / NOT_LET_IN_PART;
        part.max(FEWEST_NOT_LET_IN) as usize
    }

    /// How many WAL senders such clients may have; the others are for standbys.
    pub fn most_wal_senders_not_let_in(&self) -> usize {
        (self.max_wal_senders as usize / WAL_SENDERS_NOT_LET_IN_PART).max(1)
    }

    /// The limits for the core.
    pub fn limits(&self, slots: usize, others: usize) -> Limits {
        Limits {
            max_backends: self.max_backends as usize,
            min_backends: self.min_backends as usize,
            max_dedicated: usize::try_from(self.max_dedicated).ok(),
            max_extra: usize::try_from(self.max_extra_backends).ok(),
            extra_idle_timeout_us: self.constants.extra_idle_timeout_ms * 1000,
            sharing_threshold: self.sharing_threshold as usize,
            ceiling: self.backend_ceiling(slots, others),
            for_superusers: self.for_superusers() as usize,
            session_wait_timeout_us: self.session_wait_timeout_ms * 1000,
            backend_idle_timeout_us: self.backend_idle_timeout_ms as i64 * 1000,
            backend_lifetime_us: self.backend_lifetime_ms * 1000,
            backends_for_steals: BACKENDS_A_PROCESSOR * processors(),
            native_when_waiting: self.native_when_waiting as usize,
            force_migration: self.force_migration,
        }
    }

    /// Session memory in bytes, at most what offsets can address.
    pub fn session_memory(&self) -> usize {
        const MOST: u64 = 8 << 30;
        self.session_memory_bytes.min(MOST) as usize
    }

    pub fn is_backend_only(&self, name: &[u8]) -> bool {
        std::str::from_utf8(name).is_ok_and(|name| {
            self.backend_only_parameters
                .contains(&name.to_ascii_lowercase())
        })
    }

    /// The server's major version.
    pub fn server_major(&self) -> u32 {
        let version = self.server_version.as_str();
        let end = version.find(|c: char| !c.is_ascii_digit());
        let digits = &version[..end.unwrap_or(version.len())];
        digits.parse().unwrap_or(15)
    }
}

// ---- Limits before login --------------------------------------------------
//
// Limits for clients at login, before and after they have proved their identity.

/// The parameters; 0 is no limit, except for `unauthenticated`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DoorLimits {
    /// Logins that may begin in a second.
    pub login_rate: u32,
    /// Logins that may begin in a second from one address.
    pub login_rate_per_address: u32,
    pub sessions_per_address: u32,
    pub sessions_per_user: u32,
    /// Connections that have not logged in yet; -1: limited only by the room for them.
    pub unauthenticated: i32,
}

/// An error with SQLSTATE 53300 that names the parameter.
pub fn limit_exceeded(what: &str, parameter: &str, limit: u32) -> Report {
    Report::fatal(b"53300", what)
        .with_detail(format!("Parameter \"pg_baton.{parameter}\" is {limit}."))
}

/// The error for a client that has sent too many bytes before its authentication.
pub fn too_many_login_bytes(most: u64) -> Report {
    Report::fatal(b"54000", "too much was sent before authentication")
        .with_detail(format!("At most {} kB are read.", most / 1024))
}

// ---- Constants that tests change -------------------------------------------

/// Values that are constant except in tests, which change them by `pg_baton.test_constants`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constants {
    /// The longest time that a client may keep a backend idle while a role has none.
    pub extra_idle_timeout_ms: u64,
    /// The longest average wait for a processor of a thread that does not interrupt others.
    pub batch_scheduling_wait_us: u64,
    /// Bytes before authentication: the limit for a TLS handshake, and again for what follows.
    pub max_login_bytes: u64,
}

impl Default for Constants {
    fn default() -> Constants {
        Constants {
            extra_idle_timeout_ms: 10_000,
            batch_scheduling_wait_us: 250,
            max_login_bytes: 256 * 1024,
        }
    }
}

impl Constants {
    /// `text`: entries name=value, separated by commas. Entries with other names belong to the
    /// extension.
    fn changed_by(text: &str) -> Constants {
        let mut constants = Constants::default();
        for (name, value) in text.split(',').filter_map(|entry| entry.split_once('=')) {
            let Ok(value) = value.trim().parse::<u64>() else {
                continue;
            };
            match name.trim() {
                "extra_idle_timeout_ms" => constants.extra_idle_timeout_ms = value,
                "batch_scheduling_wait_us" => constants.batch_scheduling_wait_us = value,
                "max_login_bytes" => constants.max_login_bytes = value,
                _ => {}
            }
        }
        constants
    }
}

// ---- Names of native sessions ---------------------------------------------
//
// The users and databases whose sessions are native because the configuration says so.

/// `pg_baton.native_dbuser_names`: entries `database/user`, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeNames(Vec<(Pattern, Pattern)>);

/// A name, or any name: `*` or `_`. In quotes these are names themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Any,
    Name(Vec<u8>),
}

impl Pattern {
    fn of(text: &str, quoted: bool) -> Pattern {
        match text {
            "*" | "_" if !quoted => Pattern::Any,
            _ => Pattern::Name(text.as_bytes().to_vec()),
        }
    }

    fn fits(&self, name: &[u8]) -> bool {
        match self {
            Pattern::Any => true,
            Pattern::Name(own) => own == name,
        }
    }
}

/// A name in quotes, where `""` stands for a quote, or a name up to a comma, a slash or a
/// blank; and the text after it.
fn next_name(text: &str) -> Option<(Pattern, &str)> {
    let text = text.trim_start();
    let (name, quoted, rest) = if let Some(mut rest) = text.strip_prefix('"') {
        let mut name = String::new();
        loop {
            let (part, after) = rest.split_once('"')?;
            name.push_str(part);
            match after.strip_prefix('"') {
                Some(more) => {
                    name.push('"');
                    rest = more;
                }
                None => break (name, true, after),
            }
        }
    } else {
        let end = text.find([',', '/', '"', ' ', '\t', '\n', '\r']);
        let (name, rest) = text.split_at(end.unwrap_or(text.len()));
        (name.to_owned(), false, rest)
    };
    (!name.is_empty()).then(|| (Pattern::of(&name, quoted), rest.trim_start()))
}

impl NativeNames {
    /// None if the text is no such list.
    pub fn parse(text: &str) -> Option<NativeNames> {
        let mut entries = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (database, after) = next_name(rest)?;
            let (user, after) = next_name(after.strip_prefix('/')?)?;
            entries.push((database, user));
            rest = match after.strip_prefix(',') {
                Some(more) if !more.trim().is_empty() => more,
                None if after.is_empty() => after,
                _ => return None,
            };
        }
        Some(NativeNames(entries))
    }

    pub fn have(&self, database: &[u8], user: &[u8]) -> bool {
        let mut entries = self.0.iter();
        entries.any(|(databases, users)| databases.fits(database) && users.fits(user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_read_and_bad_values_are_told() {
        let mut parameters = Parameters::default();
        assert!(parameters.set("port", "6543"));
        assert!(parameters.set("unix_socket_permissions", "0777"));
        assert!(parameters.set("force_migration", "1"));
        assert!(parameters.set("backend_only_parameters", "post_auth_delay, JIT_x"));
        assert!(parameters.set("mock_authentication_nonce", "00ff"));
        assert!(parameters.set("of the future", "x"));
        assert!(parameters.set("test_constants", "break_x=1, max_login_bytes=10"));
        assert_eq!(parameters.constants.max_login_bytes, 10);
        assert!(parameters.set("test_constants", ""));
        assert_eq!(parameters.constants, Constants::default());
        assert!(!parameters.set("port", "70000"));
        assert_eq!(parameters.port, 6543);
        assert_eq!(parameters.unix_socket_permissions, 0o777);
        assert!(parameters.force_migration);
        assert!(parameters.is_backend_only(b"jit_X") && !parameters.is_backend_only(b"jit"));
        assert_eq!(parameters.mock_authentication_nonce, [0, 255]);
        parameters.set("server_version", "15.20 (Debian)");
        assert_eq!(parameters.server_major(), 15);
    }

    #[test]
    fn the_ceiling_leaves_administrators_and_direct_clients_theirs() {
        let parameters = Parameters {
            max_connections: 100,
            superuser_reserved_connections: 3,
            ..Parameters::default()
        };
        assert_eq!(parameters.backend_ceiling(100, 0), 87);
        assert_eq!(parameters.backend_ceiling(50, 0), 50);
        assert_eq!(parameters.backend_ceiling(100, 7), 80);
        assert_eq!(parameters.limits(100, 0).for_superusers, 2);
    }

    #[test]
    fn a_list_names_databases_and_users() {
        let names = NativeNames::parse(r#"d1/*, _/u1 ,d2/u2,"_"/"a ""b"",/""#).unwrap();
        let have = |database: &str, user: &str| names.have(database.as_bytes(), user.as_bytes());
        assert!(have("d1", "anybody") && have("anything", "u1") && have("d2", "u2"));
        assert!(!have("d2", "u3") && !have("d3", "u2") && !have("D1", "u3"));
        assert!(have("_", "a \"b\",/") && !have("_", "a"));
        assert!(!NativeNames::parse("").unwrap().have(b"d", b"u"));
        for bad in [
            "d1", "d1/", "/u", "a/b/c", "a/b,", ",a/b", "a b/c", "\"a/b", "a\"b/c",
        ] {
            assert_eq!(NativeNames::parse(bad), None, "{bad}");
        }
    }
}
