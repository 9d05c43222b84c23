//! From a client that may come in to a session, and its greeting: from the kept greetings
//! (sessions/greetings.rs) or by a backend.

use super::attach::{Greeted, Then};
use super::carry_out::no_session;
use super::Scheduler;
use crate::core::{index_of, Ending, Event, NoSession, SessionId, TenantKey};
use crate::protocol::startup::Startup;
use crate::protocol::{messages, Report};
use crate::shell::link::layout::shared::*;
use crate::shell::link::layout::{Item, LoginMarks, SessionRecord};
use crate::shell::link::memory::arena::Content;
use crate::shell::link::memory::control::NO_COUNTER;
use crate::shell::log::lines;
use crate::shell::sessions::greetings::{
    clean_ascii, sort_out, Authenticated, Beginning, Greeting, Kind, Learning, Security, Settings,
    Told, APPLICATION_NAME,
};
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::socket::{self, Address};
use crate::shell::tls::HandedEnd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use tracing::warn;

/// A greeting with more items is not kept: a copy would take too long.
const MOST_ITEMS: usize = 4096;

/// A client that has proved its identity and may come in.
pub struct NewClient {
    pub socket: HandedEnd,
    pub address: Address,
    /// The dispatcher's address of the connection, where it is known without a system call.
    pub local: Option<Address>,
    /// Is its socket in the main thread's epoll?
    pub watched: bool,
    /// How long its login took, in microseconds.
    pub took_us: u64,
    pub startup: Startup,
    pub role: u32,
    pub database: u32,
    pub superuser: bool,
    /// Its backends serve no other role.
    pub is_apart: bool,
    /// pg_baton.pool_max_sessions at the time of its login.
    pub max_sessions: Option<usize>,
    /// Says which changes of roles and databases concern the client.
    pub marks: LoginMarks,
    /// A backend must greet the client: only a backend can decide whether the client may
    /// connect, or fire login triggers.
    pub must_be_greeted: bool,
    /// The principal that GSSAPI has authenticated.
    pub principal: Option<Vec<u8>>,
    /// How the client has proved its identity, if it had to.
    pub authenticated: Option<Authenticated>,
    /// The line with which log_connections logs that the client is authorized.
    pub authorized: Option<Vec<u8>>,
    /// Bytes to send before anything else; they end with AuthenticationOk.
    pub out: Vec<u8>,
}

/// A client that could not become a session.
pub struct TurnedAway {
    pub socket: HandedEnd,
    /// Bytes still to be sent to it.
    pub out: Vec<u8>,
    /// The error.
    pub report: Report,
    pub user: Vec<u8>,
    pub database: Vec<u8>,
}

impl Scheduler {
    /// Makes a session of a client.
    pub fn begin_session(&mut self, client: NewClient) -> Result<(), Box<TurnedAway>> {
        let NewClient {
            socket,
            address,
            local,
            watched,
            mut startup,
            out,
            ..
        } = client;
        let server_major = self.parameters.server_major();
        let (user, database) = (startup.user.clone(), startup.database.clone());
        let turn_away = |socket, out, report| {
            Box::new(TurnedAway {
                socket,
                out,
                report,
                user: user.clone(),
                database,
            })
        };
        let settings = match self.settings_of(&mut startup) {
            Ok(settings) => settings,
            Err(report) => return Err(turn_away(socket, out, report)),
        };
        let key = TenantKey {
            user: startup.user,
            database: startup.database,
            role_oid: client.role,
            database_oid: client.database,
            superuser: client.superuser,
            options: settings.backend_only,
            is_apart: client.is_apart,
        };
        // Checked before a tenant is created for the client.
        if let Err(why) = self.core.may_come_in(&key, client.max_sessions) {
            return Err(turn_away(socket, out, no_session(&user, why)));
        }
        let Some(number) = self.tenant_for(key) else {
            let report = no_session(&user, NoSession::Full)
                .with_detail("There are as many roles and databases in use as there can be.");
            return Err(turn_away(socket, out, report));
        };
        let fd = socket.fd();
        let tls = socket.tls().cloned();
        let begun = self.core.begin_session(number, &self.control);
        let (Ok(id), Some(tenant)) = (begun, self.core.tenant_key(number).cloned()) else {
            let why = begun.err().unwrap_or(NoSession::Full);
            return Err(turn_away(socket, out, no_session(&user, why)));
        };
        let origin = Origin::of(&address);
        self.sockets.insert(id, socket.into_socket(), origin);
        let index = index_of(id);
        // Read before a backend reads the settings, and before a kept greeting is looked up.
        let settings_marks = (self.control.header).settings_marks_of(client.database, client.role);
        let login_generation = self.control.header.login_generation.load(SeqCst);
        self.note_login_generation(login_generation);
        // Read before a backend looks up any name.
        let names_generation = self.control.header.names_generation.load(SeqCst);
        let kind = Kind {
            tenant,
            options: settings.options,
            has_application_name: settings.application_name.is_some(),
            is_local: address.is_local(),
            is_relayed: tls.is_some(),
            // The login has already checked the memberships that let the client in.
            marks: LoginMarks {
                memberships: false,
                ..client.marks
            },
        };
        let newest = messages::newest_protocol(server_major);
        let mut record = SessionRecord {
            id,
            protocol: startup.protocol.min(newest),
            cancel_pid: self.control.new_pid(index),
            cancel_key_length: messages::cancel_key_bytes(startup.protocol, newest) as u32,
            cancel_key: rand::random(),
            login_time_us: self.now.timestamp,
            settings_marks,
            starts: self.starts,
            peer_family: address.family,
            peer_port: address.port,
            peer_address: address.bytes,
            peer_scope: address.scope,
            is_relayed: u32::from(tls.is_some()),
            account: self.contexts.arena.account_of_role(client.role),
            tenant: number,
            ..SessionRecord::default()
        };
        if !address.is_local() {
            if let Some(local) = local.or_else(|| socket::local_address(fd).ok()) {
                record.local_port = local.port;
                record.local_address = local.bytes;
            }
        }
        self.contexts.arena.put_record(index, &record);
        let is_known = client.authenticated.as_ref().is_none_or(|authenticated| {
            let Authenticated { method, identity } = authenticated;
            let put = self.contexts.put_authenticated(index, method, identity);
            put.is_ok()
        });
        let is_known = is_known && self.store_tenant(index, number);
        let slot = &self.control.sessions[index as usize];
        self.control.clear_session(index);
        slot.id.store(id, SeqCst);
        slot.state_since_us.store(self.now.shared_us, Relaxed);
        slot.state.store(STATE_LOGIN, SeqCst);
        self.begun_sessions += 1;
        let own = self.statistics.of_tenant(number);
        own.logins += 1;
        own.tls_logins += u64::from(tls.is_some());
        if let Some(pool) = self.core.pool_of_tenant(number) {
            (self.statistics).login_took(pool, self.now.us, client.took_us);
        }
        let application_name = settings.application_name;
        let cleaned = (application_name.as_ref()).map(|name| clean_ascii(name, server_major));
        let cleaned = cleaned.as_deref();
        let shown = cleaned.unwrap_or_default();
        let security = Security {
            tls: tls.as_deref(),
            principal: client.principal.as_deref(),
        };
        (self.control).show_identity(index, &record, &kind.tenant, shown, &security);
        if let Some(line) = client.authorized {
            // The server writes the line before it takes the application_name over.
            self.with_client(index, number, |client| {
                let client = lines::Client {
                    application_name: b"",
                    ..*client
                };
                lines::client(&client, &line);
            });
        }
        let is_ordinary = !client.must_be_greeted && Kind::is_ordinary(cleaned);
        let kept = (self.greetings.of(&kind, &settings_marks, names_generation))
            .filter(|_| is_known && is_ordinary && !self.core.is_tenant_held(number));
        match kept {
            Some(greeting) => self.greet_from_here(id, &greeting, cleaned, watched, out),
            None => {
                let name = application_name.as_deref();
                let stored = is_known && self.store_beginning(index, &kind, name);
                let added = self.sockets.add_unarmed(id, watched);
                if !self.sockets.send(id, &out) || added.is_err() {
                    self.tell(Event::Ended(id, Ending::Cut));
                } else if !stored {
                    self.end_with(id, &out_of_memory());
                } else {
                    if is_ordinary {
                        let now_us = self.now.us;
                        (self.greetings).learn_from(id, now_us, || Learning {
                            kind,
                            settings_marks,
                            keepalives: socket::keepalives(fd),
                            names_generation,
                            login_generation,
                        });
                    }
                    self.sockets.keep(id);
                    self.tell(Event::ToGreet(id));
                }
            }
        }
        Ok(())
    }

    fn note_login_generation(&mut self, generation: u64) {
        let header = &self.control.header;
        let changed = |from, to| header.login_changed(from, to);
        self.greetings.note_login_generation(generation, changed);
    }

    fn settings_of(&self, startup: &mut Startup) -> Result<Settings, Report> {
        let settings = startup.take_settings()?;
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

    /// Stores the items with which a backend is to begin the session. False if there is no
    /// memory for them.
    fn store_beginning(&mut self, index: u32, kind: &Kind, name: Option<&[u8]>) -> bool {
        let mut items: Vec<Beginning<'_>> = Vec::with_capacity(kind.options.len() + 1);
        for (name, value) in &kind.options {
            items.push((KIND_STARTUP as u16, name, value.into()));
        }
        if let Some(name) = name {
            items.push((KIND_STARTUP as u16, APPLICATION_NAME, name.into()));
        }
        self.store_context(index, &items, RECORD_GREET)
    }

    fn store_context(&mut self, index: u32, items: &[Beginning<'_>], flags: u32) -> bool {
        let mut stored = Vec::with_capacity(items.len());
        let account = self.contexts.arena.account(index);
        for (kind, key, value) in items {
            let content = Content {
                kind: *kind,
                key,
                value,
            };
            match self.contexts.arena.intern(account, content) {
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
        let begun = self.contexts.begin(index, stored, flags);
        if let (Ok(grown), Some(id)) = (begun, self.core.sessions().in_slot(index)) {
            self.tell(Event::Stored { id, grown });
        }
        begun.is_ok()
    }

    /// Greets the client from a kept greeting, with this application_name, already cleaned.
    fn greet_from_here(
        &mut self,
        id: SessionId,
        greeting: &Greeting,
        application_name: Option<&[u8]>,
        watched: bool,
        mut out: Vec<u8>,
    ) {
        let items = greeting.for_client(application_name, &mut out);
        let index = index_of(id);
        let stored = self.store_context(index, &items, 0);
        (self.contexts.arena).put_record_start_settings(index, greeting.start_settings);
        let (pid, key) = self.contexts.arena.record_cancel(index);
        messages::backend_key_data(&mut out, pid, key);
        messages::ready_for_query(&mut out, b'I');
        if !stored {
            return self.end_with(id, &out_of_memory());
        }
        let slot = &self.control.sessions[index as usize];
        slot.idle_session_timeout_ms
            .store(greeting.idle_session_timeout_ms, Relaxed);
        slot.state.store(STATE_IDLE, SeqCst);
        let (are, wanted) = &greeting.keepalives;
        if are != wanted {
            socket::set_keepalives(self.sockets.fd(id), are, wanted);
            slot.flags.fetch_or(SESSION_SOCKET_SET, SeqCst);
        }
        let added = self.sockets.add(id, watched);
        // Not kept before: if this process died then, the client would wait for its greeting.
        let sent = self.sockets.send(id, &out);
        self.sockets.keep(id);
        if !sent || added.is_err() {
            self.tell(Event::Ended(id, Ending::Cut));
        }
    }

    /// GREETED: the backend has greeted the client, and keeps the session.
    pub(super) fn greeted(&mut self, slot: u32, id: SessionId, greeted: Greeted) {
        let mut staged = self.staged_of(slot, id);
        let content = Content {
            kind: KIND_REPORTED as u16,
            key: b"",
            value: &greeted.reported,
        };
        self.contexts.stage_put(&mut staged, content, None, 0);
        self.put_staged(slot, staged);
        self.apply_staged(slot, id, Then::Greeted(greeted));
    }

    /// The session's context now holds what the greeting brought.
    pub(super) fn greeting_applied(&mut self, id: SessionId, greeted: &Greeted) {
        let Greeted {
            lasts,
            start_settings,
            notices,
            reported,
        } = greeted;
        (self.contexts.arena).put_record_start_settings(index_of(id), *start_settings);
        self.control.has_heard(index_of(id));
        self.tell(Event::Greeted(id));
        let login_generation = self.control.header.login_generation.load(SeqCst);
        self.note_login_generation(login_generation);
        let header = &self.control.header;
        let marks = |it: &TenantKey| header.settings_marks_of(it.database_oid, it.role_oid);
        let Some(learning) = self.greetings.learnt(id, marks) else {
            return;
        };
        let flags = *lasts & (GREETING_OF_ROLES | GREETING_BY_PRIVILEGES);
        let lasts = *lasts & !flags;
        let by_privileges = lasts == GREETING_NAMES || flags & GREETING_BY_PRIVILEGES != 0;
        // Up to 15 a role's privileges depend on the rolinherit of other roles (login.c).
        let of_roles = flags & GREETING_OF_ROLES != 0
            || (by_privileges && self.parameters.server_major() < 16);
        let of_memberships = of_roles || by_privileges;
        if of_memberships && learning.login_generation != login_generation {
            return;
        }
        if lasts == GREETING_NEVER || self.contexts.items(index_of(id)).count() > MOST_ITEMS {
            return;
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
            settings_marks: learning.settings_marks,
            start_settings: *start_settings,
            told: Told::new(notices, reported),
            idle_session_timeout_ms: self.control.sessions[index_of(id) as usize]
                .idle_session_timeout_ms
                .load(Relaxed),
            keepalives: (learning.keepalives, socket::keepalives(self.sockets.fd(id))),
            names_generation: (lasts == GREETING_NAMES).then_some(learning.names_generation),
            of_roles,
            of_memberships,
        };
        self.greetings.keep(learning.kind, greeting);
    }
}

pub(super) fn out_of_memory() -> Report {
    warn!("session memory is full: a client was turned away");
    Report::fatal(b"53200", "out of memory")
        .with_detail("pg_baton's session memory is full.")
        .with_hint("Raise pg_baton.session_memory.")
}
