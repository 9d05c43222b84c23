//! What new sessions are told and begin with, kept by kind; and the identity by which the
//! server's processes know a session.
//!
//! What a new session is told (ParameterStatus, BackendKeyData, ReadyForQuery), and what its
//! context begins with, follow from its user, its database, its startup options, and the
//! settings at that time. A backend greets the first session of a kind and applies its options.
//! The dispatcher keeps what that backend reports and stores, and greets the next session of
//! the kind without a backend (scheduler/new_session.rs). application_name is not part of a
//! kind, since each client has its own: its value is put into the kept greeting.
//!
//! Free of I/O.

use crate::core::{SessionId, TenantKey};
use crate::protocol::messages;
use crate::shell::link::layout::shared::*;
use crate::shell::link::layout::{LoginChanged, LoginMarks, SessionRecord, SettingsMarks, Tls};
use crate::shell::link::memory::control::Control;
use crate::shell::link::wire;
use crate::shell::sys::socket::Keepalives;
use crate::shell::tls::Facts;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;

pub type Setting = (Vec<u8>, Vec<u8>);

pub const APPLICATION_NAME: &[u8] = b"application_name";
/// Greetings kept, one for each kind of session; when there are more, those of the role that has
/// most are dropped.
const MOST_GREETINGS: usize = 1000;
/// Room for an application_name, with its message around it.
const USUAL_NAME_BYTES: usize = 96;
/// After a reload some backends are late to see it: for this long no greeting is learnt.
const RELOAD_GRACE_US: u64 = 2_000_000;

/// What makes a kind of session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Kind {
    pub tenant: Arc<TenantKey>,
    pub options: Vec<Setting>,
    pub has_application_name: bool,
    pub is_local: bool,
    /// The client's connection goes through the TLS relay, so the session's socket has no TCP
    /// settings.
    pub is_relayed: bool,
    /// Says which changes of its user and database make a greeting obsolete.
    pub marks: LoginMarks,
}

impl Kind {
    /// May what a session with this application_name (cleaned) begins with be given to the next
    /// of its kind?
    pub fn is_ordinary(application_name: Option<&[u8]>) -> bool {
        application_name.is_none_or(|name| name.len() < NAME_BYTES)
    }
}

/// NAMEDATALEN: a longer application_name is truncated, and its client gets a notice.
const NAME_BYTES: usize = 64;

/// What a session of a kind begins with.
pub struct Greeting {
    /// Kind, key and value of each item.
    pub items: Vec<(u16, Vec<u8>, Vec<u8>)>,
    /// The settings of its role and database at that time. The greeting is valid while these
    /// stay.
    pub settings_marks: SettingsMarks,
    /// The part of those settings that only a starting backend takes.
    pub start_settings: u64,
    pub told: Told,
    pub idle_session_timeout_ms: u32,
    /// The keepalives of the first session's socket: before the greeting, and as the parameters
    /// want them.
    pub keepalives: (Keepalives, Keepalives),
    /// The greeting depends on a name that was looked up: it is valid while this
    /// names_generation stays.
    pub names_generation: Option<u64>,
    /// The greeting depends on other roles than the client's.
    pub of_roles: bool,
    /// The greeting depends on the roles that the client's role is a member of.
    pub of_memberships: bool,
}

/// What all clients of a kind are told, ready to be sent except for the value of
/// application_name, which is each client's own: the part before that message, and the part
/// after it.
pub struct Told {
    messages: [Vec<u8>; 2],
    /// The reported parameters as a context has them, in the same two parts: name NUL value NUL
    /// ...
    reported: [Vec<u8>; 2],
    /// The value for the first client; None if the backend does not report application_name.
    application_name: Option<Vec<u8>>,
}

impl Told {
    /// `notices` are whole messages; `reported` is in the format of contexts.
    pub fn new(notices: &[u8], reported: &[u8]) -> Told {
        let mut told = Told {
            messages: [notices.to_vec(), Vec::new()],
            reported: [Vec::new(), Vec::new()],
            application_name: None,
        };
        for (name, value) in wire::pairs(reported) {
            if name == APPLICATION_NAME {
                told.application_name = Some(value.to_vec());
                continue;
            }
            let part = usize::from(told.application_name.is_some());
            messages::parameter_status(&mut told.messages[part], name, value);
            put_pair(&mut told.reported[part], name, value);
        }
        told
    }

    /// Appends the messages to `out`. Returns the reported parameters for the session's
    /// context.
    fn tell(&self, application_name: Option<&[u8]>, out: &mut Vec<u8>) -> Vec<u8> {
        let length = |parts: &[Vec<u8>; 2]| parts[0].len() + parts[1].len() + USUAL_NAME_BYTES;
        // Room for BackendKeyData and ReadyForQuery as well.
        out.reserve(length(&self.messages) + USUAL_NAME_BYTES);
        let mut reported = Vec::with_capacity(length(&self.reported));
        out.extend_from_slice(&self.messages[0]);
        reported.extend_from_slice(&self.reported[0]);
        if let Some(first) = &self.application_name {
            let value = application_name.unwrap_or(first);
            messages::parameter_status(out, APPLICATION_NAME, value);
            put_pair(&mut reported, APPLICATION_NAME, value);
        }
        out.extend_from_slice(&self.messages[1]);
        reported.extend_from_slice(&self.reported[1]);
        reported
    }
}

fn put_pair(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for text in [name, value] {
        out.extend_from_slice(text);
        out.push(0);
    }
}

/// Kind, key and value of an item that a context begins with.
pub type Beginning<'a> = (u16, &'a [u8], Cow<'a, [u8]>);

impl Greeting {
    /// Appends what a client with this application_name (cleaned) is told, up to its cancel
    /// key. Returns what its context begins with.
    pub fn for_client(
        &self,
        application_name: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Vec<Beginning<'_>> {
        let reported = self.told.tell(application_name, out);
        let mut items: Vec<Beginning<'_>> = Vec::with_capacity(self.items.len() + 1);
        for (kind, key, value) in &self.items {
            match (application_name, u32::from(*kind)) {
                (_, KIND_REPORTED) => {}
                (Some(own), KIND_RESET) if key == APPLICATION_NAME => {
                    // Source and context stay; the text is this session's.
                    let mut reset = value[..2.min(value.len())].to_vec();
                    reset.extend_from_slice(own);
                    items.push((*kind, key, reset.into()));
                }
                _ => items.push((*kind, key, value.into())),
            }
        }
        items.push((KIND_REPORTED as u16, b"", reported.into()));
        items
    }
}

/// What the dispatcher knows of a greeting before a backend gives it.
pub struct Learning {
    pub kind: Kind,
    pub settings_marks: SettingsMarks,
    /// The keepalives of the session's socket before the greeting.
    pub keepalives: Keepalives,
    pub names_generation: u64,
    pub login_generation: u64,
}

/// The kept greetings, and what is known of those that backends are about to give.
#[derive(Default)]
pub struct Greetings {
    kept: HashMap<Kind, Arc<Greeting>>,
    /// The number of kept greetings of each role that has any, by the role's OID.
    of_roles: HashMap<u32, usize>,
    /// At most one entry for each session.
    learning: HashMap<SessionId, Learning>,
    not_before_us: u64,
    /// The login_generation for which all kept greetings are valid: what a session may set
    /// depends on roles and privileges, too.
    login_generation: u64,
}

impl Greetings {
    pub fn configuration_changed(&mut self, now_us: u64) {
        self.forget_all();
        self.not_before_us = now_us + RELOAD_GRACE_US;
    }

    /// Takes over a new login_generation, and drops the greetings that it makes obsolete.
    /// Called before a greeting is looked up or kept.
    pub fn note_login_generation(
        &mut self,
        generation: u64,
        changed: impl Fn(u64, u64) -> LoginChanged,
    ) {
        if self.login_generation == generation {
            return;
        }
        let changed = changed(self.login_generation, generation);
        self.retain(|kind, greeting| {
            !(changed.concerns(&kind.marks)
                || (greeting.of_roles && changed.has_roles())
                || (greeting.of_memberships && changed.has_memberships()))
        });
        self.learning
            .retain(|_, learning| !changed.concerns(&learning.kind.marks));
        self.login_generation = generation;
    }

    pub fn forget_all(&mut self) {
        self.retain(|_, _| false);
        self.learning.clear();
    }

    fn retain(&mut self, is_good: impl Fn(&Kind, &Greeting) -> bool) {
        let of_roles = &mut self.of_roles;
        self.kept.retain(|kind, greeting| {
            let stays = is_good(kind, greeting);
            if !stays {
                count_down(of_roles, kind.tenant.role_oid);
            }
            stays
        });
    }

    pub fn forget_session(&mut self, id: SessionId) {
        if !self.learning.is_empty() {
            self.learning.remove(&id);
        }
    }

    pub fn of(
        &self,
        kind: &Kind,
        settings_marks: &SettingsMarks,
        names_generation: u64,
    ) -> Option<Arc<Greeting>> {
        let kept = self.kept.get(kind)?;
        if kept.settings_marks != *settings_marks {
            return None;
        }
        let is_good = (kept.names_generation).is_none_or(|then| then == names_generation);
        is_good.then(|| kept.clone())
    }

    /// A backend greets this session: from its greeting the next of the kind may be greeted.
    pub fn learn_from(&mut self, id: SessionId, now_us: u64, learning: impl FnOnce() -> Learning) {
        if now_us >= self.not_before_us {
            self.learning.insert(id, learning());
        }
    }

    /// The session has been greeted. Returns what was known before, if the greeting may be
    /// kept. It may not if the marks of its settings have changed since: it is unknown which
    /// settings the backend has read.
    pub fn learnt(
        &mut self,
        id: SessionId,
        marks: impl FnOnce(&TenantKey) -> SettingsMarks,
    ) -> Option<Learning> {
        let learning = self.learning.remove(&id)?;
        let is_current = learning.settings_marks == marks(&learning.kind.tenant);
        is_current.then_some(learning)
    }

    pub fn keep(&mut self, kind: Kind, greeting: Greeting) {
        if self.kept.len() >= MOST_GREETINGS {
            // A role with many kinds of sessions drops its own.
            let most = self.of_roles.iter().max_by_key(|(_, count)| **count);
            if let Some(role) = most.map(|(role, _)| *role) {
                self.retain(|kind, _| kind.tenant.role_oid != role);
            }
        }
        let role = kind.tenant.role_oid;
        if self.kept.insert(kind, Arc::new(greeting)).is_none() {
            *self.of_roles.entry(role).or_default() += 1;
        }
    }
}

fn count_down(counts: &mut HashMap<u32, usize>, role: u32) {
    let left = counts.remove(&role).unwrap_or_default().saturating_sub(1);
    if left > 0 {
        counts.insert(role, left);
    }
}

/// The settings of a session, by their role in pooling.
pub struct Settings {
    /// Settings that only a starting backend takes, which split pools; sorted.
    pub backend_only: Vec<Setting>,
    /// The other settings in their order, without application_name. A name may come twice: the
    /// server applies each, and refuses the first one if its value is invalid.
    pub options: Vec<Setting>,
    pub application_name: Option<Vec<u8>>,
}

pub fn sort_out(settings: Vec<Setting>, is_backend_only: impl Fn(&[u8]) -> bool) -> Settings {
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

/// Cleans an application_name as check_application_name does: pg_clean_ascii replaces each byte
/// that is not printable ASCII by `?` up to 15, and by `\xNN` from 16 on (common/string.c).
pub fn clean_ascii(text: &[u8], server_major: u32) -> Vec<u8> {
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

// ---- Identity -------------------------------------------------------------
//
// What the server's processes can know of a session: its identity in CONTROL, and its process
// ID, which BackendKeyData and SQL show.
//
// Process IDs are given in order, above all that the kernel gives to processes. They start
// again when all have been given, some two thousand million sessions later; those of live
// sessions are skipped. A directory in CONTROL leads from a process ID to the session's slot,
// so a look-up costs the same however many sessions there are, here and in every process of the
// server.

/// What pg_stat_ssl and pg_stat_gssapi show of a session.
pub struct Security<'a> {
    pub tls: Option<&'a Facts>,
    pub principal: Option<&'a [u8]>,
}

/// How a client has proved its identity, and as which user: SYSTEM_USER and "connection
/// authenticated" in the log show this.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Authenticated {
    /// The method's name in pg_hba.conf (hba_authname in hba.c).
    pub method: Vec<u8>,
    pub identity: Vec<u8>,
}

impl Security<'_> {
    /// What PostgreSQL appends to "connection authorized" (PerformAuthentication in
    /// postinit.c).
    pub fn for_log(&self, server_major: u32) -> String {
        let tls = self.tls.map(|facts| facts.for_log());
        let gss = self.principal.map(|principal| {
            let delegated = match server_major {
                ..=15 => "",
                // A session that may delegate its credentials is native.
                _ => " delegated_credentials=no,",
            };
            format!(
                " GSS (authenticated=yes, encrypted=no,{delegated} principal={})",
                String::from_utf8_lossy(principal)
            )
        });
        tls.unwrap_or_default() + &gss.unwrap_or_default()
    }
}

/// The process IDs from `first` on, each once.
fn numbers_from(first: u32) -> impl Iterator<Item = u32> {
    let most = i32::MAX as u32;
    let first = first.clamp(FIRST_PID, most);
    (first..=most).chain(FIRST_PID..first)
}

impl Control {
    /// Does this place of the directory lead to a live session?
    fn has_live_pid(&self, place: usize) -> bool {
        let Some(holder) = self.pids[place].load(Relaxed).checked_sub(1) else {
            return false;
        };
        let Some(holder) = self.identities.get(holder as usize) else {
            return false;
        };
        holder.id.load(Relaxed) != 0 && holder.pid.load(Relaxed) as usize % self.pids.len() == place
    }
}

impl Control {
    /// A process ID for the session in this slot. Its place in the directory is that of no live
    /// session.
    pub fn new_pid(&self, index: u32) -> i32 {
        let place = |number: u32| number as usize % self.pids.len();
        let number = numbers_from(self.header.next_pid.load(Relaxed))
            .find(|number| !self.has_live_pid(place(*number)))
            .unwrap_or(FIRST_PID); // The directory has more places than there are sessions.
        self.header.next_pid.store(number + 1, Relaxed);
        self.pids[place(number)].store(index + 1, SeqCst);
        number as i32
    }

    /// The session in this slot keeps its process ID. False if that has no place in the directory.
    pub fn put_pid(&self, index: u32, pid: i32) -> bool {
        let place = pid.unsigned_abs() as usize % self.pids.len();
        let is_free = pid > 0 && self.pids[place].load(SeqCst) == 0;
        if is_free {
            self.pids[place].store(index + 1, SeqCst);
        }
        is_free
    }

    /// The slot to which the directory leads for this process ID. Only the session's key proves
    /// that the session is the right one.
    pub fn slot_of_pid(&self, pid: i32) -> Option<u32> {
        let place = u32::try_from(pid).ok()? as usize % self.pids.len();
        self.pids[place].load(Relaxed).checked_sub(1)
    }

    /// The application_name of the session in this slot, as its identity shows it.
    pub fn shown_name(&self, index: u32) -> Vec<u8> {
        let shown = &self.identities[index as usize].application_name;
        let bytes = shown.iter().map(|byte| byte.load(Relaxed));
        bytes.take_while(|byte| *byte != 0).collect()
    }

    /// The TLS version and cipher of the session in this slot; empty without TLS.
    pub fn shown_tls(&self, index: u32) -> String {
        let tls = &self.identities[index as usize].tls;
        match tls.in_use.load(Relaxed) {
            0 => String::new(),
            _ => format!("{}/{}", text_of(&tls.version), text_of(&tls.cipher)),
        }
    }

    /// Publishes the identity: from here on the server's processes know the session.
    pub fn show_identity(
        &self,
        index: u32,
        record: &SessionRecord,
        key: &TenantKey,
        application_name: &[u8],
        security: &Security<'_>,
    ) {
        let identity = &self.identities[index as usize];
        identity.changes.fetch_or(1, SeqCst);
        identity.terminate.store(0, Relaxed);
        identity.cancel.store(0, Relaxed);
        identity.pid.store(record.cancel_pid, Relaxed);
        identity.role_oid.store(key.role_oid, Relaxed);
        identity.database_oid.store(key.database_oid, Relaxed);
        identity.login_time_us.store(record.login_time_us, Relaxed);
        identity.peer_family.store(record.peer_family, Relaxed);
        identity.peer_port.store(record.peer_port, Relaxed);
        identity.peer_scope.store(record.peer_scope, Relaxed);
        for (to, from) in identity.peer_address.iter().zip(record.peer_address) {
            to.store(from, Relaxed);
        }
        identity.query_start_us.store(0, Relaxed);
        identity.idle_since_us.store(record.login_time_us, Relaxed);
        identity.query_id.store(0, Relaxed);
        identity.is_tracked.store(1, Relaxed);
        put_text(&identity.application_name, application_name);
        show_tls(&identity.tls, security.tls);
        let principal = security.principal;
        put_text(&identity.gss_principal, principal.unwrap_or_default());
        (identity.gss_authenticated).store(u32::from(principal.is_some()), Relaxed);
        identity.changes.fetch_add(1, SeqCst);
        let used = &self.header.identities_used;
        used.fetch_max(index + 1, SeqCst);
        identity.id.store(record.id, SeqCst);
    }
}

fn text_of(shown: &[AtomicU8]) -> String {
    let bytes = shown.iter().map(|byte| byte.load(Relaxed));
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Copies as much of the text as fits, and NUL.
fn put_text(to: &[AtomicU8], text: &[u8]) {
    let text = text.iter().copied().take(to.len() - 1);
    for (to, from) in to.iter().zip(text.chain(std::iter::repeat(0))) {
        to.store(from, Relaxed);
    }
}

/// Shows what pgstat_bestart (backend_status.c) shows of a stock connection.
fn show_tls(to: &Tls, tls: Option<&Facts>) {
    let Some(facts) = tls else {
        return to.in_use.store(0, Relaxed);
    };
    to.bits.store(facts.bits.unsigned_abs(), Relaxed);
    put_text(&to.version, facts.protocol.as_bytes());
    put_text(&to.cipher, facts.cipher.as_bytes());
    let certificate = facts.certificate.as_ref();
    put_text(&to.client_dn, certificate.map_or(&[], |it| &it.subject));
    put_text(&to.issuer_dn, certificate.map_or(&[], |it| &it.issuer));
    let serial = certificate.map_or(&[][..], |it| it.serial.as_bytes());
    put_text(&to.client_serial, serial);
    to.in_use.store(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, value: &str) -> Setting {
        (name.into(), value.into())
    }

    #[test]
    fn each_client_is_told_its_own_application_name_where_it_stands() {
        let reported = b"A\x001\0application_name\0first\0B\x002\0";
        let told = Told::new(b"notice", reported);
        for (name, value) in [(None, "first"), (Some("own"), "own"), (Some(""), "")] {
            let mut out = b"ok".to_vec();
            let context = told.tell(name.map(str::as_bytes), &mut out);
            let pairs = [("A", "1"), ("application_name", value), ("B", "2")];
            let (mut messages, mut kept) = (b"oknotice".to_vec(), Vec::new());
            for (name, value) in pairs {
                messages::parameter_status(&mut messages, name.as_bytes(), value.as_bytes());
                put_pair(&mut kept, name.as_bytes(), value.as_bytes());
            }
            assert_eq!((out, context), (messages, kept));
        }
        // A client to which application_name is not reported gets no message about it.
        let mut out = Vec::new();
        assert_eq!(
            Told::new(b"", b"A\x001\0").tell(Some(b"own"), &mut out),
            b"A\x001\0"
        );
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

    fn keep(greetings: &mut Greetings, role: u32, options: Vec<Setting>) -> Kind {
        let kind = Kind {
            tenant: Arc::new(TenantKey {
                role_oid: role,
                user: b"role".to_vec(),
                database: b"db".to_vec(),
                database_oid: 5,
                superuser: false,
                options: Vec::new(),
                is_apart: false,
            }),
            options,
            has_application_name: false,
            is_local: false,
            is_relayed: false,
            marks: LoginMarks::default(),
        };
        let greeting = Greeting {
            items: Vec::new(),
            settings_marks: SettingsMarks::default(),
            start_settings: 0,
            told: Told::new(b"", b""),
            idle_session_timeout_ms: 0,
            keepalives: (Keepalives::default(), Keepalives::default()),
            names_generation: None,
            of_roles: false,
            of_memberships: false,
        };
        greetings.keep(kind.clone(), greeting);
        kind
    }

    #[test]
    fn a_role_with_many_kinds_of_sessions_drops_its_own_greetings() {
        let mut greetings = Greetings::default();
        let others: Vec<Kind> = (100..200)
            .map(|role| keep(&mut greetings, role, Vec::new()))
            .collect();
        for number in 0..5 * MOST_GREETINGS {
            let options = vec![setting("a.b", &number.to_string())];
            let last = keep(&mut greetings, 7, options);
            assert!(greetings.kept.contains_key(&last));
            assert!(greetings.kept.len() <= MOST_GREETINGS);
            assert!(others.iter().all(|kind| greetings.kept.contains_key(kind)));
        }
        let counted: usize = greetings.of_roles.values().sum();
        assert_eq!(counted, greetings.kept.len());
        keep(&mut greetings, 100, Vec::new());
        assert_eq!(greetings.of_roles[&100], 1);
        greetings.forget_all();
        assert!(greetings.kept.is_empty() && greetings.of_roles.is_empty());
    }

    #[test]
    fn names_are_cleaned_as_the_server_does() {
        assert_eq!(clean_ascii("a\u{e9}b".as_bytes(), 15), b"a??b");
        assert_eq!(clean_ascii("\u{e9}".as_bytes(), 16), b"\\xc3\\xa9");
    }

    #[test]
    fn numbers_are_positive_and_no_process_s() {
        for first in [0, 1, FIRST_PID, i32::MAX as u32, u32::MAX] {
            let some: Vec<u32> = numbers_from(first).take(3).collect();
            assert_eq!(some.len(), 3);
            for number in &some {
                assert!(*number > 4_194_304 && i32::try_from(*number).is_ok());
            }
        }
        let last = i32::MAX as u32;
        let some: Vec<u32> = numbers_from(last).take(3).collect();
        assert_eq!(some, [last, FIRST_PID, FIRST_PID + 1]);
    }
}
