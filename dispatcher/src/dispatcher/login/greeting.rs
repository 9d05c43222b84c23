//! From a login to a session, and its greeting.
//!
//! What a new session is told (ParameterStatus, BackendKeyData, ReadyForQuery)
//! and what its context begins with follow from its user, database, startup
//! options, and the settings at that time. The first session of a kind is
//! greeted by a backend, which applies its options; what it then reports and
//! stores is kept, and the next of that kind is greeted from here without any
//! backend. application_name is left out of what makes a kind, since each
//! client has its own: its value is put into the kept greeting.

use super::clients::LoggedIn;
use super::limits::Origin;
use crate::core::{index_of, Ending, Event, PoolKey, SessionId};
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::layout::{Item, SessionRecord};
use crate::dispatcher::link::memory::arena::Content;
use crate::dispatcher::link::memory::context::Staged;
use crate::dispatcher::link::memory::control::NO_COUNTER;
use crate::dispatcher::link::wire;
use crate::dispatcher::pools::origin::provenance;
use crate::dispatcher::sys::socket::{self, Keepalives};
use crate::dispatcher::tls::HandedEnd;
use crate::protocol::messages;
use crate::protocol::startup::Startup;
use crate::protocol::Report;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;
use tracing::{info, warn};

type Setting = (Vec<u8>, Vec<u8>);

const APPLICATION_NAME: &[u8] = b"application_name";
/// Greetings kept, one a kind of session; when there are more, it begins anew.
const MOST_GREETINGS: usize = 1000;
/// After a reload backends may be late to see it: nothing is learnt so long.
const RELOAD_GRACE_US: u64 = 2_000_000;

/// What makes a kind of session.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Kind {
    pool: Arc<PoolKey>,
    options: Vec<Setting>,
    has_application_name: bool,
    is_local: bool,
    /// Its socket has no TCP settings then.
    is_relayed: bool,
    /// The pool's.
    settings_generation: u64,
}

/// Options whose values are names in catalogs: what they stand for may have
/// been dropped or taken away since somebody was greeted.
const NAMES_IN_CATALOGS: [&[u8]; 6] = [
    b"role",
    b"session_authorization",
    b"default_tablespace",
    b"temp_tablespaces",
    b"default_table_access_method",
    b"default_text_search_config",
];

/// NAMEDATALEN: a longer application_name is cut, and its client told so.
const NAME_BYTES: usize = 64;

/// What a session of a kind begins with.
struct Greeting {
    /// Kind, key and value of its items.
    items: Vec<(u16, Vec<u8>, Vec<u8>)>,
    /// NoticeResponses, whole.
    notices: Vec<u8>,
    /// Name NUL value NUL ...
    reported: Vec<u8>,
    idle_session_timeout_ms: u32,
    /// Of its socket: as it was, and as the parameters want it.
    keepalives: (Keepalives, Keepalives),
}

/// Greetings kept, and what is to be learnt from greetings under way.
#[derive(Default)]
pub struct Greetings {
    kept: HashMap<Kind, Arc<Greeting>>,
    /// Bounded by the sessions.
    learning: HashMap<SessionId, (Kind, Keepalives)>,
    not_before_us: u64,
    /// Of all of these: what a session may set depends on roles and
    /// privileges, too.
    login_generation: u64,
}

impl Greetings {
    pub fn configuration_changed(&mut self, now_us: u64) {
        self.kept.clear();
        self.learning.clear();
        self.not_before_us = now_us + RELOAD_GRACE_US;
    }

    /// The first who comes under a new login_generation: all others are old.
    fn note_login_generation(&mut self, generation: u64) {
        if self.login_generation != generation {
            self.login_generation = generation;
            self.forget_all();
        }
    }

    pub fn forget_all(&mut self) {
        self.kept.clear();
        self.learning.clear();
    }

    /// What a backend of this pool reads when it starts has changed.
    pub fn forget_pool(&mut self, key: &PoolKey) {
        self.kept.retain(|kind, _| *kind.pool != *key);
        self.learning.retain(|_, (kind, _)| *kind.pool != *key);
    }

    pub fn forget_session(&mut self, id: SessionId) {
        if !self.learning.is_empty() {
            self.learning.remove(&id);
        }
    }
}

/// A session's settings, sorted out.
struct Settings {
    /// Those that split pools, sorted.
    backend_only: Vec<Setting>,
    /// The others in their order, application_name apart. One name may come
    /// twice: the server applies each, and refuses the first if that is bad.
    options: Vec<Setting>,
    application_name: Option<Vec<u8>>,
}

fn sort_out(settings: Vec<Setting>, is_backend_only: impl Fn(&[u8]) -> bool) -> Settings {
    let mut sorted = Settings {
        backend_only: Vec::new(),
        options: Vec::new(),
        application_name: None,
    };
    for (name, value) in settings {
        if name.eq_ignore_ascii_case(APPLICATION_NAME) {
            sorted.application_name = Some(value);
            continue;
        }
        if !is_backend_only(&name) {
            sorted.options.push((name, value));
            continue;
        }
        let list = &mut sorted.backend_only;
        list.retain(|(other, _)| !other.eq_ignore_ascii_case(&name));
        list.push((name, value));
    }
    sorted.backend_only.sort();
    sorted
}

fn names_in_catalogs(options: &[Setting]) -> bool {
    options.iter().any(|(name, _)| {
        NAMES_IN_CATALOGS
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
    })
}

/// As check_application_name cleans it: pg_clean_ascii makes `?` of what is
/// not printable ASCII up to 15, and `\xNN` from 16 on (common/string.c).
fn clean_ascii(text: &[u8], server_major: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        if (32..=126).contains(byte) {
            out.push(*byte);
        } else if server_major < 16 {
            out.push(b'?');
        } else {
            out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
        }
    }
    out
}

impl Dispatcher {
    /// Makes a session of a client that has logged in.
    pub fn begin_session(&mut self, client: LoggedIn) {
        let LoggedIn {
            socket,
            address,
            local,
            watched,
            startup,
            answer,
            mut out,
        } = client;
        let server_major = self.parameters.server_major();
        let settings = match self.settings_of(&startup) {
            Ok(settings) => settings,
            Err(report) => return self.turn_away(&socket, out, &report),
        };
        let key = PoolKey {
            user: startup.user,
            database: startup.database,
            role_oid: answer.role,
            database_oid: answer.database,
            superuser: answer.superuser,
            options: settings.backend_only,
        };
        let Some(number) = self.pool_for(key) else {
            let report = Report::fatal(b"53300", "sorry, too many clients already")
                .with_detail("There are as many pools as there can be.");
            return self.turn_away(&socket, out, &report);
        };
        let fd = socket.fd();
        let tls = socket.tls().cloned();
        let from = provenance(&address, fd, self.certificates.number(tls.as_deref()));
        let begun = self.core.begin_session(number, from, &self.control);
        let (Some(id), Some(pool)) = (begun, self.core.pool_key(number).cloned()) else {
            let report = Report::fatal(b"53300", "sorry, too many clients already");
            return self.turn_away(&socket, out, &report);
        };
        let origin = Origin::of(&address);
        self.clients.insert(id, socket.into_socket(), origin);
        let index = index_of(id);
        let login_generation = self.control.header.login_generation.load(SeqCst);
        self.greetings.note_login_generation(login_generation);
        let kind = Kind {
            pool,
            options: settings.options,
            has_application_name: settings.application_name.is_some(),
            is_local: address.is_local(),
            is_relayed: tls.is_some(),
            settings_generation: self.core.pool_settings_generation(number),
        };
        let (cancel_pid, cancel_key) = (self.new_pid(index), rand::random());
        let mut record = SessionRecord {
            id,
            protocol: messages::PROTOCOL_3_0,
            cancel_pid,
            cancel_key,
            login_time_us: self.now,
            settings_generation: self.core.settings_generation(),
            peer_family: address.family,
            peer_port: address.port,
            peer_address: address.bytes,
            peer_scope: address.scope,
            is_relayed: u32::from(tls.is_some()),
            ..SessionRecord::default()
        };
        if !address.is_local() {
            if let Some(local) = local.or_else(|| socket::local_address(fd).ok()) {
                record.local_port = local.port;
                record.local_address = local.bytes;
            }
        }
        self.contexts.arena.put_record(index, &record);
        let slot = &self.control.sessions[index as usize];
        self.control.clear_session(index);
        slot.id.store(id, SeqCst);
        slot.state_since_us.store(self.now, Relaxed);
        slot.state.store(STATE_LOGIN, SeqCst);
        self.statistics.logins += 1;
        let application_name = settings.application_name;
        let cleaned = (application_name.as_ref()).map(|name| clean_ascii(name, server_major));
        self.show_identity(
            index,
            &record,
            cleaned.as_deref().unwrap_or_default(),
            tls.as_deref(),
        );
        if self.parameters.log_authorization {
            let name = cleaned
                .as_deref()
                .map(|name| format!(" application_name={}", String::from_utf8_lossy(name)));
            info!(
                "connection authorized: user={} database={}{}{}",
                String::from_utf8_lossy(&kind.pool.user),
                String::from_utf8_lossy(&kind.pool.database),
                name.unwrap_or_default(),
                tls.map(|facts| facts.for_log()).unwrap_or_default(),
            );
        }
        let is_ordinary = !answer.ask_backend
            && !names_in_catalogs(&kind.options)
            && (cleaned.as_ref()).is_none_or(|name| name.len() < NAME_BYTES);
        if is_ordinary
            && !self.core.is_held(number)
            && self.greet_from_here(id, &kind, cleaned.as_deref(), watched, &mut out)
        {
            return;
        }
        let mut items: Vec<(u16, &[u8], &[u8])> = kind
            .options
            .iter()
            .map(|(name, value)| (KIND_STARTUP as u16, name.as_slice(), value.as_slice()))
            .collect();
        if let Some(name) = &application_name {
            items.push((KIND_STARTUP as u16, APPLICATION_NAME, name));
        }
        let stored = self.store_context(index, &items, RECORD_GREET);
        let watched = self.moves_to_its_thread(id, fd, watched);
        let epoll = self.session_epoll(id);
        let added = self.client_number.add_unarmed(epoll, fd, watched, id);
        if socket::send(fd, &out).ok() != Some(out.len()) || added.is_err() {
            return self.tell(Event::Ended(id, Ending::Cut));
        }
        if !stored {
            return self.end_with(id, &out_of_memory());
        }
        if is_ordinary && self.now_us >= self.greetings.not_before_us {
            let keepalives = socket::keepalives(fd);
            self.greetings.learning.insert(id, (kind, keepalives));
        }
        self.tell(Event::ToGreet(id));
    }

    fn settings_of(&self, startup: &Startup) -> Result<Settings, Report> {
        let settings = startup.settings()?;
        for (name, _) in &settings {
            if name.eq_ignore_ascii_case(b"pg_baton.attach") {
                let text = "parameter \"pg_baton.attach\" cannot be set by a client";
                return Err(Report::fatal(b"42501", text));
            }
        }
        Ok(sort_out(settings, |name| {
            self.parameters.is_backend_only(name)
        }))
    }

    fn turn_away(&mut self, socket: &HandedEnd, mut out: Vec<u8>, report: &Report) {
        self.statistics.logins_failed += 1;
        info!("login failed: {report}");
        report.encode(&mut out);
        let _ = socket::send(socket.fd(), &out);
        self.client_number.let_go(socket.fd());
    }

    fn store_context(&mut self, index: u32, items: &[(u16, &[u8], &[u8])], flags: u32) -> bool {
        let mut stored = Vec::with_capacity(items.len());
        for (kind, key, value) in items {
            match self.contexts.arena.intern(Content {
                kind: *kind,
                key,
                value,
            }) {
                Ok(entry) => stored.push(Item {
                    entry,
                    counter: NO_COUNTER,
                    aux: 0,
                }),
                Err(_) => {
                    stored
                        .iter()
                        .for_each(|item| self.contexts.arena.release(item.entry));
                    return false;
                }
            }
        }
        self.contexts.begin(index, stored, flags).is_ok()
    }

    /// Greets from what is kept, with this application_name, cleaned; false if
    /// a backend must do it.
    fn greet_from_here(
        &mut self,
        id: SessionId,
        kind: &Kind,
        application_name: Option<&[u8]>,
        watched: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(greeting) = self.greetings.kept.get(kind).cloned() else {
            return false;
        };
        out.extend_from_slice(&greeting.notices);
        let mut reported = Vec::with_capacity(greeting.reported.len() + 64);
        for (name, mut value) in wire::pairs(&greeting.reported) {
            if let (true, Some(own)) = (name == APPLICATION_NAME, application_name) {
                value = own;
            }
            messages::parameter_status(out, name, value);
            for text in [name, value] {
                reported.extend_from_slice(text);
                reported.push(0);
            }
        }
        let mut own_reset = Vec::new();
        let mut items: Vec<(u16, &[u8], &[u8])> = Vec::with_capacity(greeting.items.len() + 1);
        for (kind, key, value) in &greeting.items {
            match (application_name, u32::from(*kind)) {
                (_, KIND_REPORTED) => {}
                (Some(own), KIND_RESET) if key == APPLICATION_NAME => {
                    // Source and context stay, the text is this session's.
                    own_reset = value[..2.min(value.len())].to_vec();
                    own_reset.extend_from_slice(own);
                }
                _ => items.push((*kind, key, value)),
            }
        }
        if !own_reset.is_empty() {
            items.push((KIND_RESET as u16, APPLICATION_NAME, &own_reset));
        }
        items.push((KIND_REPORTED as u16, b"", &reported));

        let index = index_of(id);
        let stored = self.store_context(index, &items, 0);
        let (pid, key) = self.contexts.arena.record_cancel(index);
        messages::backend_key_data(out, pid, key);
        messages::ready_for_query(out, b'I');
        let fd = self.clients.fd(id);
        if !stored {
            self.end_with(id, &out_of_memory());
            return true;
        }
        let slot = &self.control.sessions[index as usize];
        slot.idle_session_timeout_ms
            .store(greeting.idle_session_timeout_ms, Relaxed);
        slot.state.store(STATE_IDLE, SeqCst);
        let (are, wanted) = &greeting.keepalives;
        if are != wanted {
            socket::set_keepalives(fd, are, wanted);
            slot.flags.fetch_or(SESSION_SOCKET_SET, SeqCst);
        }
        let sent = socket::send(fd, out).ok() == Some(out.len());
        let watched = self.moves_to_its_thread(id, fd, watched);
        let epoll = self.session_epoll(id);
        if !sent || self.client_number.add(epoll, fd, watched, id).is_err() {
            self.tell(Event::Ended(id, Ending::Cut));
        }
        true
    }

    /// GREETED: the backend has greeted, and keeps the session.
    pub fn greeted(
        &mut self,
        slot: u32,
        id: SessionId,
        staged: &mut Staged,
        notices: &[u8],
        reported: &[u8],
    ) {
        if staged.session != id {
            self.contexts.discard(staged);
            staged.session = id;
        }
        let content = Content {
            kind: KIND_REPORTED as u16,
            key: b"",
            value: reported,
        };
        self.contexts.stage_put(staged, content, None, 0);
        if !self.apply_staged(id, staged, true) {
            return;
        }
        self.tell(Event::Greeted(id));
        let Some((kind, keepalives)) = self.greetings.learning.remove(&id) else {
            return;
        };
        let keepalives = (keepalives, socket::keepalives(self.clients.fd(id)));
        let backends = self.control.backends[slot as usize]
            .settings_generation
            .load(SeqCst);
        let login_generation = self.control.header.login_generation.load(SeqCst);
        let is_current = backends >= kind.settings_generation
            && self.greetings.login_generation == login_generation;
        if !is_current {
            return;
        }
        if self.greetings.kept.len() >= MOST_GREETINGS {
            self.greetings.kept.clear();
        }
        let items = self
            .contexts
            .items(index_of(id))
            .map(|item| {
                let content = self.contexts.arena.content(item.entry);
                (content.kind, content.key.to_vec(), content.value.to_vec())
            })
            .collect();
        let greeting = Greeting {
            items,
            notices: notices.to_vec(),
            reported: reported.to_vec(),
            idle_session_timeout_ms: self.control.sessions[index_of(id) as usize]
                .idle_session_timeout_ms
                .load(Relaxed),
            keepalives,
        };
        self.greetings.kept.insert(kind, Arc::new(greeting));
    }
}

fn out_of_memory() -> Report {
    warn!("session memory is full: a client was turned away");
    Report::fatal(b"53200", "out of memory")
        .with_detail("pg_baton's session memory is full.")
        .with_hint("Raise pg_baton.session_memory.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, value: &str) -> Setting {
        (name.into(), value.into())
    }

    #[test]
    fn application_name_splits_neither_pools_nor_greetings() {
        let sorted = sort_out(
            vec![
                setting("work_mem", "1"),
                setting("Application_Name", "first"),
                setting("post_auth_delay", "0"),
                setting("WORK_MEM", "2"),
                setting("application_name", "last"),
            ],
            |name| name == b"post_auth_delay",
        );
        assert_eq!(sorted.application_name.as_deref(), Some(&b"last"[..]));
        let both = [setting("work_mem", "1"), setting("WORK_MEM", "2")];
        assert_eq!(sorted.options, both);
        assert_eq!(sorted.backend_only, [setting("post_auth_delay", "0")]);
    }

    #[test]
    fn names_are_cleaned_as_the_server_does() {
        assert_eq!(clean_ascii("a\u{e9}b".as_bytes(), 15), b"a??b");
        assert_eq!(clean_ascii("\u{e9}".as_bytes(), 16), b"\\xc3\\xa9");
    }
}
