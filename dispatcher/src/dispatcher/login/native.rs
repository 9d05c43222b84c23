//! Native sessions: ordinary connections for life, each on a backend of its own,
//! of which the dispatcher knows no more than that they are there.
//!
//! Who becomes one is decided here, at the startup packet; how it comes to its
//! backend is told in errands.rs. Nothing that a client has proved is known then, so
//! nothing here may depend on who it is beyond the names that it gives: the
//! server decides whether it may come in.

use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::sys::socket::Address;
use crate::protocol::startup::{Replication, Startup};
use crate::protocol::Report;

/// Why a session is native, as the views say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Replication,
    Disabled,
    Listed,
    PoolMode,
    Busy,
    ContextMemory,
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
        }
    }
}

/// One native session, by its backend's control connection.
pub struct Native {
    pub why: Why,
    pub pid: u32,
    pub address: Address,
    pub user: Vec<u8>,
    pub database: Vec<u8>,
    pub application_name: Vec<u8>,
    /// TimestampTz.
    pub since: i64,
    /// As whom the server has let it in; None before that.
    pub role: Option<u32>,
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

/// `pg_baton.native_dbuser_names`: entries `database/user`, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeNames(Vec<(Pattern, Pattern)>);

/// A name, or `*` or `_`: any. In quotes these are names, too.
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

/// A name in quotes, where `""` stands for one, or one that goes up to a comma,
/// a slash or a blank; and what comes after it.
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
    /// None if it is no such list.
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

    fn have(&self, database: &[u8], user: &[u8]) -> bool {
        let mut entries = self.0.iter();
        entries.any(|(databases, users)| databases.fits(database) && users.fits(user))
    }
}

/// Are so many sessions waiting that new ones become native? From the threshold
/// on, and until half of them are served.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crowd {
    is_too_much: bool,
    looked_us: u64,
}

/// Counting takes a look at each pool.
const LOOK_AGAIN_US: u64 = 10_000;

impl Crowd {
    fn look(&mut self, threshold: usize, waiting: usize) {
        let most = if self.is_too_much {
            threshold / 2
        } else {
            threshold.saturating_sub(1)
        };
        self.is_too_much = threshold > 0 && waiting > most;
    }
}

/// A new session begins with less than this, beside what it shares with others.
const CONTEXT_BYTES: usize = 4096;

impl Dispatcher {
    /// Shall a client that has sent this become native?
    pub(super) fn why_native(&mut self, startup: &Startup) -> Option<Why> {
        if startup.replication != Replication::No {
            return Some(Why::Replication);
        }
        if !self.parameters.enabled {
            return Some(Why::Disabled);
        }
        let names = &self.parameters.native_dbuser_names;
        if names.have(&startup.database, &startup.user) {
            return Some(Why::Listed);
        }
        if self.is_crowded() {
            return Some(Why::Busy);
        }
        let arena = &self.contexts.arena;
        (arena.used() + CONTEXT_BYTES > arena.limit()).then_some(Why::ContextMemory)
    }

    /// The server has let one in. What it is told if that is one session too many.
    pub fn native_is_in(
        &mut self,
        connection: u32,
        role: u32,
        superuser: bool,
    ) -> Result<(), Report> {
        let Some(native) = self.natives.get(&connection) else {
            return Ok(());
        };
        let address = native.address;
        let room = self.has_room_for(&address, role, superuser);
        if let Some(native) = self.natives.get_mut(&connection).filter(|_| room.is_ok()) {
            native.role = Some(role);
        }
        room
    }

    fn is_crowded(&mut self) -> bool {
        let threshold = self.parameters.native_when_waiting as usize;
        if threshold == 0 {
            self.crowd = Crowd::default();
        } else if self.now_us >= self.crowd.looked_us + LOOK_AGAIN_US {
            let pools = self.core.pools();
            let waiting = pools.map(|pool| self.core.waiting_in(pool, &self.control));
            let waiting = waiting.sum();
            self.crowd.look(threshold, waiting);
            self.crowd.looked_us = self.now_us;
        }
        self.crowd.is_too_much
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_crowd_is_one_until_half_of_it_is_served() {
        let mut crowd = Crowd::default();
        let seen: Vec<bool> = [9, 10, 9, 6, 5, 9, 10, 0]
            .into_iter()
            .map(|waiting| {
                crowd.look(10, waiting);
                crowd.is_too_much
            })
            .collect();
        assert_eq!(seen, [false, true, true, true, false, false, true, false]);
        crowd.look(0, 100);
        assert!(!crowd.is_too_much);
    }
}
