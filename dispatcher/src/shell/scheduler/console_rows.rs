//! Rows of the console (`crate::console`): the pool's sessions, backends and counts in the terms
//! of PgBouncer. docs/console.md says what each column means here.
//!
//! Sessions and backends may be many: their rows are made a slice at a time, like those of views.
//! All other results are made at once: they have a row for each role in a database at most.

use super::Scheduler;
use crate::console::averages::{
    All, Figures, ASSIGNMENTS, LOGINS, QUERIES, QUERY_TIME, SENT, TRANSACTIONS, TRANSACTION_TIME,
    WAIT_TIME,
};
use crate::console::command::Show;
use crate::console::tables::{figures_of, Table, Value, TOTALS};
use crate::console::{Layout, DATABASE};
use crate::core::{index_of, Scope, TenantKey};
use crate::shell::link::layout::shared::*;
use crate::shell::log::utc;
use crate::shell::parameters::Parameters;
use crate::shell::sys::socket::Address;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;

/// Seconds from 1970 to 2000, the epoch of TimestampTz.
const POSTGRES_EPOCH: i64 = 946_684_800;

const NO_USER: &[u8] = b"(nouser)";
const NO_DATABASE: &[u8] = b"(nodb)";

/// A reader's result, and the position in it.
pub struct Listing {
    show: Show,
    table: Table,
    layout: Layout,
    next: usize,
}

impl Listing {
    pub fn new(show: Show, table: Table, layout: Layout) -> Listing {
        Listing {
            show,
            table,
            layout,
            next: 0,
        }
    }
}

/// What the scheduler does not know.
pub struct Outside {
    pub consoles: Vec<ConsoleFacts>,
    /// Names of databases that no client may log in to.
    pub disabled: BTreeSet<Vec<u8>>,
    /// Clients that log in.
    pub logins: usize,
}

/// A console, as a client.
#[derive(Clone)]
pub struct ConsoleFacts {
    pub id: u32,
    pub user: Vec<u8>,
    pub address: Address,
    pub local: Option<Address>,
    pub application_name: Vec<u8>,
    pub tls: String,
    /// TimestampTz.
    pub since: i64,
    pub asked: i64,
}

/// TimestampTz as PgBouncer shows a time; at most the present year.
fn time(timestamp: i64) -> String {
    let seconds = timestamp.div_euclid(1_000_000) + POSTGRES_EPOCH;
    utc(seconds.clamp(0, i64::from(u32::MAX)) as u64) + " UTC"
}

/// Whole seconds, and the rest in microseconds.
fn wait_of(us: u64) -> [Value<'static>; 2] {
    [Value::Number(us / 1_000_000), Value::Number(us % 1_000_000)]
}

/// An address and its port; a Unix socket has the pool's.
fn place(address: &Address, port: u16) -> (String, usize) {
    match address.text() {
        Some(text) => (text, usize::from(address.port)),
        None => ("unix".to_owned(), usize::from(port)),
    }
}

/// One row of SHOW CLIENTS, SERVERS and SOCKETS.
struct SocketRow<'a> {
    kind: &'static str,
    user: &'a [u8],
    database: &'a [u8],
    state: &'static str,
    address: (String, usize),
    local: (String, usize),
    connected: i64,
    asked: i64,
    wait_us: u64,
    closes: bool,
    ptr: String,
    link: String,
    remote_pid: usize,
    tls: &'a str,
    application_name: &'a [u8],
    id: usize,
}

impl SocketRow<'_> {
    /// In SHOW SOCKETS each state has the kind before it, and `idle` of a client is `active`.
    fn put(&self, show: Show, table: &Table, out: &mut Vec<u8>) {
        let state = match (show, self.kind, self.state) {
            (Show::Sockets, "C", "waiting") => "cl_waiting",
            (Show::Sockets, "C", _) => "cl_active",
            (Show::Sockets, _, "new") => "sv_login",
            (Show::Sockets, _, "idle") => "sv_idle",
            (Show::Sockets, ..) => "sv_active",
            (_, _, state) => state,
        };
        let (connected, asked) = (time(self.connected), time(self.asked));
        let [wait, wait_us] = wait_of(self.wait_us);
        table.row(
            out,
            &[
                self.kind.into(),
                self.user.into(),
                self.database.into(),
                "none".into(),
                state.into(),
                self.address.0.as_str().into(),
                self.address.1.into(),
                self.local.0.as_str().into(),
                self.local.1.into(),
                connected.as_str().into(),
                asked.as_str().into(),
                wait,
                wait_us,
                usize::from(self.closes).into(),
                self.ptr.as_str().into(),
                self.link.as_str().into(),
                self.remote_pid.into(),
                self.tls.into(),
                self.application_name.into(),
                0.into(),
                self.id.into(),
            ],
        );
    }
}

impl From<i32> for Value<'_> {
    fn from(number: i32) -> Value<'static> {
        Value::Number(u64::try_from(number).unwrap_or(0))
    }
}

/// A row of SHOW POOLS.
#[derive(Default)]
struct PoolRow {
    clients: usize,
    waiting: usize,
    active: usize,
    idle: usize,
    starting: usize,
    wait_us: u64,
    is_dedicated: bool,
}

/// A row of SHOW DATABASES.
#[derive(Default)]
struct DatabaseRow {
    backends: usize,
    clients: usize,
    /// pg_baton.pool_max_backends of a role in it.
    most: usize,
    is_paused: bool,
}

/// The key of a row of SHOW POOLS: database and user.
type PoolName = (Vec<u8>, Vec<u8>);

fn name_of(key: &TenantKey) -> PoolName {
    (key.database.clone(), key.user.clone())
}

impl Scheduler {
    /// Appends the next rows, at most `most` of those that may be many. None: there are no more.
    /// Otherwise, how many were looked at.
    pub fn console_rows(
        &mut self,
        at: &mut Listing,
        outside: &Outside,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let (sessions, backends) = match at.show {
            Show::Clients => (self.core.sessions().slots_used() as usize, 0),
            Show::Servers => (0, self.control.backends.len()),
            Show::Sockets => (
                self.core.sessions().slots_used() as usize,
                self.control.backends.len(),
            ),
            _ if at.next > 0 => return None,
            _ => {
                at.next = 1;
                self.all_console_rows(at, outside, out);
                return Some(most);
            }
        };
        let consoles = match at.show {
            Show::Servers => 0,
            _ => outside.consoles.len(),
        };
        let end = backends + consoles + sessions;
        let (from, to) = (at.next, end.min(at.next + most));
        if from >= to {
            return None;
        }
        for number in from..to {
            let after = number.saturating_sub(backends);
            if number < backends {
                self.server_row(number as u32, at, out);
            } else if after < consoles {
                self.console_row(&outside.consoles[after], at, out);
            } else {
                self.client_row((after - consoles) as u32, at, out);
            }
        }
        at.next = to;
        Some(to - from)
    }

    // ---- sessions and backends ----------------------------------------------

    fn client_row(&self, index: u32, at: &Listing, out: &mut Vec<u8>) {
        let sessions = self.core.sessions();
        let id = sessions.in_slot(index);
        let session = id.and_then(|id| sessions.get(id));
        let key = session.and_then(|session| self.core.tenant_key(session.tenant()));
        let (Some(id), Some(key)) = (id, key) else {
            return;
        };
        let slot = &self.control.sessions[index as usize];
        let owner = slot.owner.load(SeqCst);
        let since = slot.state_since_us.load(Relaxed);
        let (state, wait_us) = match slot.state.load(Relaxed) {
            _ if owner > 0 => ("active", 0),
            STATE_WAITING | STATE_LOGIN => ("waiting", self.now.passed_us(since).max(0) as u64),
            _ => ("idle", 0),
        };
        let (login, address) = self.contexts.arena.record_identity(index);
        let (local_port, bytes) = self.contexts.arena.record_local(index);
        let local = Address {
            family: address.family,
            port: local_port,
            bytes,
            scope: 0,
        };
        let port = self.parameters.port;
        SocketRow {
            kind: "C",
            user: &key.user,
            database: &key.database,
            state,
            address: place(&address, port),
            local: place(&local, port),
            connected: login,
            asked: self.now.timestamp_of(since),
            wait_us,
            closes: false,
            ptr: format!("{id:#x}"),
            link: match owner {
                0 => String::new(),
                _ => format!("{owner:#x}"),
            },
            remote_pid: 0,
            tls: &self.control.shown_tls(index),
            application_name: &self.control.shown_name(index),
            id: self.control.identities[index as usize].pid.load(Relaxed) as usize,
        }
        .put(at.show, &at.table, out);
    }

    fn console_row(&self, console: &ConsoleFacts, at: &Listing, out: &mut Vec<u8>) {
        let port = self.parameters.port;
        let local = console.local.unwrap_or_default();
        SocketRow {
            kind: "C",
            user: &console.user,
            database: DATABASE,
            state: "active",
            address: place(&console.address, port),
            local: place(&local, port),
            connected: console.since,
            asked: console.asked,
            wait_us: 0,
            closes: false,
            ptr: format!("{:#x}", console.id),
            link: String::new(),
            remote_pid: 0,
            tls: &console.tls,
            application_name: &console.application_name,
            id: console.id as usize,
        }
        .put(at.show, &at.table, out);
    }

    fn server_row(&self, number: u32, at: &Listing, out: &mut Vec<u8>) {
        let slot = &self.control.backends[number as usize];
        let state = slot.state.load(SeqCst);
        let Some(backend) = self.core.backend(number).filter(|_| state != BACKEND_FREE) else {
            return;
        };
        let served = slot.tenant.load(Relaxed).checked_sub(1);
        let served = served.and_then(|tenant| self.core.tenant_key(tenant));
        let pool = self.core.pool_key(backend.pool());
        let session = slot.session.load(SeqCst);
        let name = match session {
            0 => Vec::new(),
            id => self
                .control
                .identities
                .get(index_of(id) as usize)
                .map_or_else(Vec::new, |_| self.control.shown_name(index_of(id))),
        };
        let pid = slot.pid.load(Relaxed) as usize;
        let age_us = self.now.us.saturating_sub(backend.attached_us()) as i64;
        let port = self.parameters.server_port;
        let server = (String::from("unix"), usize::from(port));
        SocketRow {
            kind: "S",
            user: served.map_or(NO_USER, |key| &key.user),
            database: pool.map_or(NO_DATABASE, |key| &key.database),
            state: match state {
                BACKEND_STARTING => "new",
                BACKEND_ASSIGNED | BACKEND_BUSY => "active",
                BACKEND_RETIRING if session != 0 => "active",
                _ => "idle",
            },
            address: server.clone(),
            local: server,
            connected: self.now.timestamp.saturating_sub(age_us),
            asked: self.now.timestamp_of(slot.state_since_us.load(Relaxed)),
            wait_us: 0,
            closes: self.core.is_to_leave(number),
            ptr: format!("{:#x}", number + 1),
            link: match session {
                0 => String::new(),
                id => format!("{id:#x}"),
            },
            remote_pid: pid,
            tls: "",
            application_name: &name,
            id: pid,
        }
        .put(at.show, &at.table, out);
    }

    // ---- all others -----------------------------------------------------------

    fn all_console_rows(&mut self, at: &Listing, outside: &Outside, out: &mut Vec<u8>) {
        let (table, figures_shown) = (&at.table, figures_of(at.layout));
        match at.show {
            Show::Stats | Show::StatsTotals | Show::StatsAverages => {
                for (name, figures) in self.figures() {
                    let average = self.averages.of(&name, &figures, self.now.us);
                    let both = match at.show {
                        Show::Stats => [Some(figures), Some(average)],
                        Show::StatsTotals => [Some(figures), None],
                        _ => [Some(average), None],
                    };
                    let shown = |figures: &Figures| figures.0.into_iter().take(figures_shown);
                    let numbers = both.iter().flatten().flat_map(shown);
                    let name = [Value::Text(&name)].into_iter();
                    let row: Vec<Value<'_>> = name.chain(numbers.map(Value::Number)).collect();
                    table.row(out, &row);
                }
            }
            Show::Totals => {
                let mut sum = Figures::default();
                self.figures().values().for_each(|figures| sum.add(figures));
                let average = self.averages.of_all(&sum, self.now.us);
                for (what, figures) in [("total", sum), ("avg", average)] {
                    for (name, number) in TOTALS.iter().zip(figures.0).take(figures_shown) {
                        let name = format!("{what}_{name}");
                        table.row(out, &[name.as_str().into(), Value::Number(number)]);
                    }
                }
            }
            Show::Pools => self.pools_for_console(table, outside, out),
            Show::Databases => self.databases_for_console(table, outside, out),
            Show::Users => self.users_for_console(table, outside, out),
            Show::Lists => {
                for (name, number) in self.lists(outside) {
                    table.row(out, &[name.into(), number.into()]);
                }
            }
            Show::Config => config(&self.parameters, |name, value, default, changes| {
                let values = [name, value, default, if changes { "yes" } else { "no" }];
                table.row(out, &values.map(Value::from));
            }),
            Show::Mem => {
                let (used, limit) = self.memory();
                // Kilobytes, as the columns are of type integer.
                let kilobytes = [used, limit.saturating_sub(used), limit].map(|it| it / 1024);
                let [used, free, _] = kilobytes.map(Value::from);
                let row = [
                    "session_memory".into(),
                    1024.into(),
                    used,
                    free,
                    limit.into(),
                ];
                table.row(out, &row);
            }
            Show::State => {
                let is_paused = self.is_paused(None);
                let word = |is| Value::from(if is { "yes" } else { "no" });
                table.row(out, &["active".into(), word(!is_paused)]);
                table.row(out, &["paused".into(), word(is_paused)]);
                table.row(out, &["suspended".into(), word(false)]);
            }
            Show::Version => {
                let own = env!("CARGO_PKG_VERSION");
                let text = format!("PgBouncer {} (pg_baton {own})", at.layout.release());
                table.row(out, &[text.as_str().into()]);
            }
            _ => {}
        }
    }

    /// The counts of each database. What databases and roles without a row of their own have
    /// counted stands under a name that no database has.
    pub(super) fn figures(&mut self) -> All {
        self.statistics.collect(&self.control);
        let mut all = All::new();
        for entry in self.statistics.entries() {
            let mut figures = Figures::default();
            let given = entry
                .count(COUNT_DIRECT)
                .wrapping_add(entry.count(COUNT_QUEUED));
            figures.0[ASSIGNMENTS] = given;
            for (of, count) in [
                (TRANSACTIONS, COUNT_TRANSACTIONS),
                (QUERIES, COUNT_REQUESTS),
                (SENT, COUNT_SENT),
                (TRANSACTION_TIME, COUNT_TRANSACTION_TIME),
                (QUERY_TIME, COUNT_REQUEST_TIME),
                (WAIT_TIME, COUNT_WAIT_TIME),
            ] {
                figures.0[of] = entry.count(count);
            }
            figures.0[LOGINS] = entry.own().logins;
            let name = match entry.names() {
                None if figures == Figures::default() => continue,
                None => NO_DATABASE,
                Some((_, database)) => database,
            };
            all.entry(name.to_vec()).or_default().add(&figures);
        }
        all.entry(DATABASE.to_vec()).or_default();
        all
    }

    /// In each sweep.
    pub(super) fn mark_averages(&mut self) {
        if self.averages.are_due(self.now.us) {
            let figures = self.figures();
            self.averages.mark(figures, self.now.us);
        }
    }

    fn tenant_keys(&self) -> Vec<(u32, Arc<TenantKey>)> {
        let all = 0..self.control.tenants.len() as u32;
        all.filter_map(|tenant| Some((tenant, Arc::clone(self.core.tenant_key(tenant)?))))
            .collect()
    }

    /// A backend's row is that of the role that it has served last; of the pool's first one if
    /// there is none.
    fn pools_for_console(&self, table: &Table, outside: &Outside, out: &mut Vec<u8>) {
        let mut rows: BTreeMap<PoolName, PoolRow> = BTreeMap::new();
        let mut first: HashMap<u32, PoolName> = HashMap::new();
        let sessions = self.core.sessions();
        for (tenant, key) in self.tenant_keys() {
            let row = rows.entry(name_of(&key)).or_default();
            let members = sessions.members_of_tenant(tenant);
            let waiting = sessions.waiting_of_tenant(tenant);
            row.clients += members;
            row.waiting += waiting;
            row.wait_us = row
                .wait_us
                .max(self.core.tenant_waits_us(tenant).unwrap_or(0));
            let mode = self
                .core
                .settings(tenant)
                .map(|settings| settings.values[MODE]);
            row.is_dedicated |= mode.is_some_and(|mode| mode != MODE_SHARED as i32);
            if let Some(pool) = self.core.pool_of_tenant(tenant) {
                first.entry(pool).or_insert_with(|| name_of(&key));
            }
        }
        for pool in 0..self.control.pools.len() as u32 {
            let Some(key) = self.core.pool_key(pool) else {
                continue;
            };
            for id in self.core.in_ready_queue(pool, &self.control) {
                let slot = &self.control.sessions[index_of(id) as usize];
                let key = self.core.key_of(id);
                let key = key.filter(|_| slot.state.load(Relaxed) == STATE_WAITING);
                if let Some(row) = key.and_then(|key| rows.get_mut(&name_of(key))) {
                    row.waiting += 1;
                    let wait_us = self.now.passed_us(slot.state_since_us.load(Relaxed));
                    row.wait_us = row.wait_us.max(wait_us.max(0) as u64);
                }
            }
            for number in self.core.all_pool_backends(pool) {
                let slot = &self.control.backends[number as usize];
                let served = slot.tenant.load(Relaxed).checked_sub(1);
                let served = served.and_then(|tenant| self.core.tenant_key(tenant));
                let served = served.filter(|it| it.database_oid == key.database_oid);
                let name = served.map(|key| name_of(key));
                let name = name.or_else(|| first.get(&pool).cloned());
                let name = name.unwrap_or_else(|| (key.database.clone(), NO_USER.to_vec()));
                let row = rows.entry(name).or_default();
                match slot.state.load(SeqCst) {
                    BACKEND_STARTING => row.starting += 1,
                    BACKEND_IDLE | BACKEND_LINGER => row.idle += 1,
                    BACKEND_ASSIGNED | BACKEND_BUSY => row.active += 1,
                    _ => {}
                }
            }
        }
        let own = (DATABASE.to_vec(), DATABASE.to_vec());
        rows.entry(own.clone()).or_default().clients = outside.consoles.len();
        for (name, row) in &rows {
            let [wait, wait_us] = wait_of(row.wait_us);
            let mode = match row.is_dedicated {
                _ if *name == own => "statement",
                true => "session",
                false => "transaction",
            };
            let none = Value::from(0);
            table.row(
                out,
                &[
                    name.0.as_slice().into(),
                    name.1.as_slice().into(),
                    row.clients.saturating_sub(row.waiting).into(),
                    row.waiting.into(),
                    none,
                    none,
                    row.active.into(),
                    none,
                    none,
                    row.idle.into(),
                    none,
                    none,
                    row.starting.into(),
                    wait,
                    wait_us,
                    mode.into(),
                    Value::Null,
                ],
            );
        }
    }

    fn databases_for_console(&self, table: &Table, outside: &Outside, out: &mut Vec<u8>) {
        let mut rows: BTreeMap<Vec<u8>, DatabaseRow> = BTreeMap::new();
        let paused: Vec<Scope> = self.paused_scopes();
        let is_paused = |oid: u32| {
            let mut scopes = paused.iter();
            scopes.any(|scope| scope.database_oid.is_none_or(|database| database == oid))
        };
        for entry in self.statistics.entries() {
            if let (Some((_, oid)), Some((_, database))) = (entry.key(), entry.names()) {
                let row = rows.entry(database.to_vec()).or_default();
                row.is_paused |= is_paused(oid);
            }
        }
        for pool in 0..self.control.pools.len() as u32 {
            if let Some(key) = self.core.pool_key(pool) {
                let row = rows.entry(key.database.clone()).or_default();
                row.backends += self.core.all_pool_backends(pool).len();
                row.is_paused |= is_paused(key.database_oid);
            }
        }
        for (tenant, key) in self.tenant_keys() {
            let row = rows.entry(key.database.clone()).or_default();
            row.clients += self.core.sessions().members_of_tenant(tenant);
            let most = self
                .core
                .settings(tenant)
                .map_or(-1, |it| it.values[MAX_BACKENDS]);
            row.most = row.most.max(usize::try_from(most).unwrap_or(0));
        }
        for name in &outside.disabled {
            rows.entry(name.clone()).or_default();
        }
        let own = rows.entry(DATABASE.to_vec()).or_default();
        own.clients = outside.consoles.len();
        let parameters = &self.parameters;
        let lifetime = parameters.backend_lifetime_ms / 1000;
        for (name, row) in &rows {
            let is_own = name == DATABASE;
            let most = match row.most {
                _ if is_own => 2,
                0 => parameters.max_backends as usize,
                most => most,
            };
            let least = if is_own {
                0
            } else {
                parameters.min_backends as usize
            };
            let port = if is_own {
                parameters.port
            } else {
                parameters.server_port
            };
            table.row(
                out,
                &[
                    name.as_slice().into(),
                    Value::Null,
                    usize::from(port).into(),
                    name.as_slice().into(),
                    if is_own {
                        Value::Text(DATABASE)
                    } else {
                        Value::Null
                    },
                    most.into(),
                    least.into(),
                    0.into(),
                    Value::Number(lifetime),
                    if is_own {
                        "statement".into()
                    } else {
                        Value::Null
                    },
                    Value::Null,
                    0.into(),
                    row.backends.into(),
                    0.into(),
                    row.clients.into(),
                    usize::from(row.is_paused).into(),
                    usize::from(outside.disabled.contains(name)).into(),
                ],
            );
        }
    }

    /// A backend counts for the role that it has served last.
    fn users_for_console(&self, table: &Table, outside: &Outside, out: &mut Vec<u8>) {
        let mut rows: BTreeMap<Vec<u8>, (usize, usize)> = BTreeMap::new();
        for entry in self.statistics.entries() {
            if let Some((user, _)) = entry.names() {
                rows.entry(user.to_vec()).or_default();
            }
        }
        for (tenant, key) in self.tenant_keys() {
            let row = rows.entry(key.user.clone()).or_default();
            row.1 += self.core.sessions().members_of_tenant(tenant);
        }
        for console in &outside.consoles {
            rows.entry(console.user.clone()).or_default().1 += 1;
        }
        for slot in self.control.backends {
            let is_there = slot.state.load(SeqCst) != BACKEND_FREE;
            let served = slot.tenant.load(Relaxed).checked_sub(1);
            let served = served.and_then(|tenant| self.core.tenant_key(tenant));
            if let Some(key) = served.filter(|_| is_there) {
                rows.entry(key.user.clone()).or_default().0 += 1;
            }
        }
        let most = self.parameters.door.sessions_per_user as usize;
        for (name, (backends, clients)) in &rows {
            table.row(
                out,
                &[
                    name.as_slice().into(),
                    "".into(),
                    "".into(),
                    Value::Null,
                    0.into(),
                    (*backends).into(),
                    most.into(),
                    (*clients).into(),
                ],
            );
        }
    }

    fn lists(&self, outside: &Outside) -> [(&'static str, usize); 14] {
        let named = self
            .statistics
            .entries()
            .iter()
            .filter_map(|entry| entry.names());
        let (mut databases, mut users) = (vec![DATABASE.to_vec()], Vec::new());
        for (user, database) in named {
            databases.push(database.to_vec());
            users.push(user.to_vec());
        }
        users.extend(outside.consoles.iter().map(|console| console.user.clone()));
        let mut pools: Vec<PoolName> = self
            .tenant_keys()
            .iter()
            .map(|(_, it)| name_of(it))
            .collect();
        for list in [&mut databases, &mut users] {
            list.sort_unstable();
            list.dedup();
        }
        pools.sort_unstable();
        pools.dedup();
        let live = self.live_sessions();
        let (most, backends) = (self.parameters.max_sessions as usize, self.backend_count());
        [
            ("databases", databases.len()),
            ("users", users.len()),
            ("peers", 0),
            ("pools", pools.len() + 1),
            ("peer_pools", 0),
            ("free_clients", most.saturating_sub(live)),
            ("used_clients", live + outside.consoles.len()),
            ("login_clients", outside.logins),
            ("free_servers", self.connections_left()),
            ("used_servers", backends),
            ("dns_names", 0),
            ("dns_zones", 0),
            ("dns_queries", 0),
            ("dns_pending", 0),
        ]
    }

    // ---- pauses -----------------------------------------------------------------

    /// The databases of all roles that are paused.
    fn paused_scopes(&self) -> Vec<Scope> {
        let pauses = self.core.shown_pauses(&self.control).into_iter();
        let scopes = pauses.map(|pause| pause.scope);
        scopes.filter(|scope| scope.role_oid.is_none()).collect()
    }

    /// Is a database paused, or (None) all databases, for all roles?
    pub fn is_paused(&self, database_oid: Option<u32>) -> bool {
        let scopes = self.paused_scopes();
        scopes
            .iter()
            .any(|scope| scope.database_oid == database_oid)
    }
}

/// Places in the values of pool_settings.inc.
const MAX_BACKENDS: usize = 0;
const MODE: usize = 3;

/// The settings that PgBouncer has, too: name, value, default, and whether a reload changes it.
fn config(of: &Parameters, mut show: impl FnMut(&str, &str, &str, bool)) {
    let seconds = |ms: u64| (ms / 1000).to_string();
    let flag = |is_on: bool| u32::from(is_on).to_string();
    let most_of_user = of.door.sessions_per_user.to_string();
    let (listen, folders) = (&of.listen_addresses, &of.unix_socket_directories);
    let mode = format!("0{:o}", of.unix_socket_permissions);
    for (name, value, default, changes) in [
        ("listen_addr", listen.clone(), "localhost", false),
        ("listen_port", of.port.to_string(), "6543", false),
        ("unix_socket_dir", folders.clone(), "/tmp", false),
        ("unix_socket_mode", mode, "0777", false),
        ("unix_socket_group", of.unix_socket_group.clone(), "", false),
        ("auth_type", "hba".to_owned(), "hba", false),
        ("pool_mode", "transaction".to_owned(), "transaction", false),
        (
            "max_client_conn",
            of.max_sessions.to_string(),
            "10000",
            false,
        ),
        ("default_pool_size", of.max_backends.to_string(), "20", true),
        ("min_pool_size", of.min_backends.to_string(), "0", true),
        ("reserve_pool_size", "0".to_owned(), "0", false),
        ("max_db_connections", "0".to_owned(), "0", false),
        ("max_user_connections", "0".to_owned(), "0", false),
        ("max_db_client_connections", "0".to_owned(), "0", false),
        ("max_user_client_connections", most_of_user, "0", true),
        (
            "server_idle_timeout",
            seconds(of.backend_idle_timeout_ms),
            "180",
            true,
        ),
        (
            "server_lifetime",
            seconds(of.backend_lifetime_ms),
            "0",
            true,
        ),
        (
            "query_wait_timeout",
            seconds(of.session_wait_timeout_ms),
            "60",
            true,
        ),
        (
            "client_login_timeout",
            seconds(of.authentication_timeout_ms),
            "60",
            true,
        ),
        ("stats_period", "60".to_owned(), "60", false),
        ("log_connections", flag(of.log_receipt), "0", true),
        ("log_disconnections", flag(of.log_disconnections), "0", true),
    ] {
        show(name, &value, default, changes);
    }
}
