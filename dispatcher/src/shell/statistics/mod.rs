//! What is counted of the sessions of each role in each database, since the dispatcher started
//! or `pg_baton_stats_reset()`; and the times of the last minute in each pool.
//!
//! Backends count most of it, in their tallies in CONTROL (tally.c). The dispatcher reads the
//! tallies when a view is read, when a tenant or a backend ends, and, of the times, every ten
//! seconds. docs/design/statistics.md has the reasons.
//!
//! Any process of the server can write any number there. So a number is never an index, and
//! sums wrap or saturate.

pub mod histogram;

use super::link::layout::shared::*;
use super::link::layout::TallySlot;
use super::link::memory::control::Control;
use crate::core::GroupKey;
use histogram::{AllTimes, Histogram, LastMinute, PART_US};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Roles in databases that have a row of their own, besides those that have sessions.
const MOST_ROWS: usize = 1024;
/// SQLSTATEs that a row counts refused logins by; all others count together.
const MOST_STATES: usize = 32;
/// Databases whose pools have histograms of their own.
const MOST_DATABASES: usize = 256;
/// How often the totals of a tenant that ends are read again, because a backend adds to them.
const MOST_READS: usize = 100;

pub type Counts = [u64; COUNTS as usize];

fn add_all(to: &mut Counts, from: &[AtomicU64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to.wrapping_add(from.load(Relaxed));
    }
}

/// The tenant that this backend counts for, if the counts still concern it.
fn tenant_of(tally: &TallySlot, control: &Control) -> Option<u32> {
    let tenant = tally.tenant.load(SeqCst).checked_sub(1)?;
    let slot = control.tenants.get(tenant as usize)?;
    (slot.serial.load(SeqCst) == tally.serial.load(SeqCst)).then_some(tenant)
}

/// Adds a tenant's totals. Memory of totals that no backend has added to is never touched.
fn add_totals(to: &mut Counts, tenant: u32, control: &Control) {
    if control.tenants[tenant as usize].folds_begun.load(SeqCst) != 0 {
        add_all(to, &control.totals[tenant as usize].counts);
    }
}

/// One count of a tenant's totals.
pub fn in_totals(tenant: u32, of: u32, control: &Control) -> u64 {
    let mut counts = [0; COUNTS as usize];
    add_totals(&mut counts, tenant, control);
    counts[of as usize]
}

/// The counts of a tenant's sessions so far.
fn counts_of(tenant: u32, control: &Control) -> Counts {
    let mut counts = [0; COUNTS as usize];
    let slot = &control.tenants[tenant as usize];
    add_totals(&mut counts, tenant, control);
    if slot.tallies.load(SeqCst) != 0 {
        let tallies = control.tallies.iter();
        for tally in tallies.filter(|tally| tenant_of(tally, control) == Some(tenant)) {
            add_all(&mut counts, &tally.counts);
        }
    }
    counts
}

/// Transactions that the sessions of each tenant have completed, as far as backends have not
/// added them to the tenant's totals.
pub fn transactions_in_tallies(control: &Control) -> HashMap<u32, u64> {
    let mut of_tenant: HashMap<u32, u64> = HashMap::new();
    for tally in control.tallies {
        if let Some(tenant) = tenant_of(tally, control) {
            let count = tally.counts[COUNT_TRANSACTIONS as usize].load(Relaxed);
            let sum = of_tenant.entry(tenant).or_default();
            *sum = sum.wrapping_add(count);
        }
    }
    of_tenant
}

/// A JSON object of these numbers. The names have no characters that JSON escapes.
pub fn object<'a>(numbers: impl IntoIterator<Item = (impl Display + 'a, u64)>) -> String {
    let one = |(name, number)| format!("\"{name}\": {number}");
    let all: Vec<String> = numbers.into_iter().map(one).collect();
    format!("{{{}}}", all.join(", "))
}

/// What the dispatcher counts itself.
#[derive(Default)]
pub struct Own {
    pub logins: u64,
    pub tls_logins: u64,
    pub cancels: u64,
    pub evictions: u64,
    /// By SQLSTATE; "other" if there are too many of them.
    pub refused: BTreeMap<String, u64>,
}

/// A role in a database.
pub struct Entry {
    /// None: all that have no row of their own.
    key: Option<GroupKey>,
    /// Of the role and the database, as of the last tenant; empty if there has been none.
    names: (Vec<u8>, Vec<u8>),
    /// How many tenants count for it.
    tenants: usize,
    /// Counts of tenants that have gone, and errors that the dispatcher has sent.
    past: Counts,
    /// The present sum while it is being collected.
    sum: Counts,
    /// The last sum that was collected, which no later one falls below.
    total: Counts,
    /// The sum at the last reset.
    base: Counts,
    own: Own,
    /// The order in which entries lost their last tenant.
    unused_since: u64,
}

impl Entry {
    fn new(key: Option<GroupKey>) -> Entry {
        Entry {
            key,
            names: Default::default(),
            tenants: 0,
            past: [0; COUNTS as usize],
            sum: [0; COUNTS as usize],
            total: [0; COUNTS as usize],
            base: [0; COUNTS as usize],
            own: Own::default(),
            unused_since: 0,
        }
    }

    pub fn key(&self) -> Option<GroupKey> {
        self.key
    }

    /// The names of the role and the database, once it has had sessions.
    pub fn names(&self) -> Option<(&[u8], &[u8])> {
        let (role, database) = &self.names;
        (!role.is_empty()).then_some((role, database))
    }

    pub fn own(&self) -> &Own {
        &self.own
    }

    /// A count since the last reset, as of the last [`Statistics::collect`].
    pub fn count(&self, of: u32) -> u64 {
        self.total[of as usize].saturating_sub(self.base[of as usize])
    }

    pub fn errors_by_class(&self) -> String {
        let counts = ERROR_CLASSES.iter().zip(COUNT_ERROR_CLASS..);
        let counts = counts.map(|(class, of)| (*class, self.count(of)));
        object(counts.filter(|(_, count)| *count > 0))
    }

    fn refused(&mut self, sqlstate: &[u8]) {
        let is_plain = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
        let mut state = match sqlstate.len() == 5 && sqlstate.iter().all(is_plain) {
            true => String::from_utf8_lossy(sqlstate).into_owned(),
            false => "other".to_owned(),
        };
        let refused = &mut self.own.refused;
        if !refused.contains_key(&state) && refused.len() >= MOST_STATES {
            "other".clone_into(&mut state);
        }
        *refused.entry(state).or_default() += 1;
    }

    /// Takes over all that another entry has counted.
    fn absorb(&mut self, other: Entry) {
        for (of, past) in self.past.iter_mut().enumerate() {
            let gone = other.past[of].saturating_sub(other.base[of]);
            *past = past.wrapping_add(gone);
        }
        self.own.logins += other.own.logins;
        self.own.tls_logins += other.own.tls_logins;
        self.own.cancels += other.own.cancels;
        self.own.evictions += other.own.evictions;
        for (state, count) in other.own.refused {
            let refused = &mut self.own.refused;
            let is_known = refused.contains_key(&state) || refused.len() < MOST_STATES;
            let state = if is_known { state } else { "other".to_owned() };
            *refused.entry(state).or_default() += count;
        }
    }
}

/// What is counted of a pool.
#[derive(Default)]
pub struct PoolNumbers {
    waits: LastMinute,
    transactions: LastMinute,
    logins: LastMinute,
    grown: BTreeMap<&'static str, u64>,
    shrunk: BTreeMap<&'static str, u64>,
}

impl PoolNumbers {
    /// Waits for a backend, transactions, and logins of the last minute.
    pub fn last_minute(&self, now_us: u64) -> [Histogram; 3] {
        [&self.waits, &self.transactions, &self.logins].map(|times| times.times(now_us))
    }

    pub fn grown(&self) -> String {
        object(self.grown.iter().map(|(why, count)| (*why, *count)))
    }

    pub fn shrunk(&self) -> String {
        object(self.shrunk.iter().map(|(why, count)| (*why, *count)))
    }
}

/// What is counted of all pools of a database since the dispatcher started. Pools come and go;
/// these numbers never decrease.
#[derive(Default)]
pub struct DatabaseNumbers {
    /// Empty: of all databases that have none of their own.
    pub name: Vec<u8>,
    pub waits: AllTimes,
    pub transactions: AllTimes,
    pub logins: AllTimes,
    grown: BTreeMap<&'static str, u64>,
    shrunk: BTreeMap<&'static str, u64>,
}

impl DatabaseNumbers {
    pub fn grown(&self) -> String {
        object(self.grown.iter().map(|(why, count)| (*why, *count)))
    }

    pub fn shrunk(&self) -> String {
        object(self.shrunk.iter().map(|(why, count)| (*why, *count)))
    }
}

/// The histograms of a backend when they were read last.
type Seen = [Box<[u32; BUCKETS as usize]>; 2];

pub struct Statistics {
    /// The first one is for all roles and databases that have none.
    entries: Vec<Entry>,
    by_key: HashMap<GroupKey, usize>,
    /// The entry of each tenant.
    of_tenant: HashMap<u32, usize>,
    /// Entries without a tenant so far.
    unused: u64,
    /// When the counts began, as a TimestampTz in microseconds.
    since: i64,
    pools: HashMap<u32, PoolNumbers>,
    /// The first one is for all databases that have none.
    databases: Vec<DatabaseNumbers>,
    /// The place in `databases` of each pool.
    database_of: HashMap<u32, usize>,
    seen: HashMap<u32, Seen>,
    /// The next backend slot whose times are read.
    next_slot: usize,
}

impl Statistics {
    pub fn new() -> Statistics {
        Statistics {
            entries: vec![Entry::new(None)],
            by_key: HashMap::new(),
            of_tenant: HashMap::new(),
            unused: 0,
            since: 0,
            pools: HashMap::new(),
            databases: vec![DatabaseNumbers::default()],
            database_of: HashMap::new(),
            seen: HashMap::new(),
            next_slot: 0,
        }
    }

    pub fn since(&self) -> i64 {
        self.since
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    // ---- roles in databases -------------------------------------------------

    /// The entry of a role in a database, which is made if there is room among `most`.
    fn entry_of(&mut self, key: GroupKey, most: usize) -> usize {
        if let Some(entry) = self.by_key.get(&key) {
            return *entry;
        }
        if self.entries.len() <= most {
            self.entries.push(Entry::new(Some(key)));
            let entry = self.entries.len() - 1;
            self.by_key.insert(key, entry);
            return entry;
        }
        0
    }

    /// Makes room for an entry: that of the role that has been without sessions for longest is
    /// counted among the others.
    fn make_room(&mut self) {
        if self.entries.len() <= MOST_ROWS {
            return;
        }
        let unused = self.entries.iter().enumerate().skip(1);
        let unused = unused.filter(|(_, entry)| entry.tenants == 0);
        let Some((last, _)) = unused.min_by_key(|(_, entry)| entry.unused_since) else {
            return;
        };
        let gone = self.entries.swap_remove(last);
        gone.key.and_then(|key| self.by_key.remove(&key));
        // The last entry has its place now.
        let moved = self.entries.len();
        if let Some(key) = self.entries.get(last).and_then(|entry| entry.key) {
            self.by_key.insert(key, last);
        }
        for entry in self.of_tenant.values_mut() {
            if *entry == moved {
                *entry = last;
            }
        }
        self.entries[0].absorb(gone);
    }

    pub fn tenant_begins(&mut self, tenant: u32, key: GroupKey, role: &[u8], database: &[u8]) {
        if !self.by_key.contains_key(&key) {
            self.make_room();
        }
        let entry = self.entry_of(key, MOST_ROWS);
        if entry != 0 {
            self.entries[entry].names = (role.to_vec(), database.to_vec());
        }
        self.entries[entry].tenants += 1;
        self.of_tenant.insert(tenant, entry);
    }

    /// The tenant's last session has gone. Its slot must not be another's yet.
    pub fn tenant_ends(&mut self, tenant: u32, control: &Control) {
        let Some(entry) = self.of_tenant.remove(&tenant) else {
            return;
        };
        let slot = &control.tenants[tenant as usize];
        let mut counts = counts_of(tenant, control);
        for _ in 0..MOST_READS {
            // A backend that came to another tenant's session meanwhile has moved counts.
            let ended = slot.folds_ended.load(SeqCst);
            counts = counts_of(tenant, control);
            if slot.folds_begun.load(SeqCst) == ended {
                break;
            }
        }
        self.unused += 1;
        let entry = &mut self.entries[entry];
        for (past, count) in entry.past.iter_mut().zip(counts) {
            *past = past.wrapping_add(count);
        }
        entry.tenants -= 1;
        entry.unused_since = self.unused;
    }

    /// What the dispatcher counts itself of a tenant.
    pub fn of_tenant(&mut self, tenant: u32) -> &mut Own {
        let entry = self.of_tenant.get(&tenant).copied().unwrap_or(0);
        &mut self.entries[entry].own
    }

    /// The dispatcher has sent an error to one of the tenant's sessions.
    pub fn error(&mut self, tenant: u32, sqlstate: &[u8]) {
        let entry = self.of_tenant.get(&tenant).copied().unwrap_or(0);
        let class = sqlstate.get(..2);
        let class = (ERROR_CLASSES.iter()).position(|it| class == Some(it.as_bytes()));
        let class = class.unwrap_or(ERROR_CLASSES.len() - 1);
        let past = &mut self.entries[entry].past;
        past[COUNT_ERRORS as usize] += 1;
        past[COUNT_ERROR_CLASS as usize + class] += 1;
    }

    /// A login was refused. A stranger names any role: so half of the rows are left to roles
    /// that come in.
    pub fn refused(&mut self, key: Option<GroupKey>, sqlstate: &[u8]) {
        let entry = key.map_or(0, |key| self.entry_of(key, MOST_ROWS / 2));
        self.entries[entry].refused(sqlstate);
    }

    /// Adds up what all backends have counted. Totals are read before tallies: what a backend
    /// moves meanwhile is missing until the next time, and nothing counts twice.
    pub fn collect(&mut self, control: &Control) {
        for entry in &mut self.entries {
            entry.sum = entry.past;
        }
        for (tenant, entry) in &self.of_tenant {
            add_totals(&mut self.entries[*entry].sum, *tenant, control);
        }
        for tally in control.tallies {
            let tenant = tenant_of(tally, control);
            if let Some(entry) = tenant.and_then(|tenant| self.of_tenant.get(&tenant)) {
                add_all(&mut self.entries[*entry].sum, &tally.counts);
            }
        }
        for entry in &mut self.entries {
            for (total, sum) in entry.total.iter_mut().zip(entry.sum) {
                *total = sum.max(*total);
            }
        }
    }

    pub fn reset(&mut self, control: &Control, now: i64) {
        self.collect(control);
        for entry in &mut self.entries {
            entry.base = entry.total;
            entry.own = Own::default();
        }
        self.since = now;
    }

    // ---- pools --------------------------------------------------------------

    pub fn pool(&self, pool: u32) -> Option<&PoolNumbers> {
        self.pools.get(&pool)
    }

    pub fn databases(&self) -> &[DatabaseNumbers] {
        &self.databases
    }

    /// The pool is one of this database's.
    pub fn pool_is_of(&mut self, pool: u32, database: &[u8]) {
        if self.database_of.contains_key(&pool) {
            return;
        }
        let found = (self.databases.iter()).position(|it| it.name == database);
        let place = found.unwrap_or_else(|| match self.databases.len() <= MOST_DATABASES {
            true => {
                self.databases.push(DatabaseNumbers {
                    name: database.to_vec(),
                    ..DatabaseNumbers::default()
                });
                self.databases.len() - 1
            }
            false => 0,
        });
        self.database_of.insert(pool, place);
    }

    fn database_of(&mut self, pool: u32) -> &mut DatabaseNumbers {
        let place = self.database_of.get(&pool).copied().unwrap_or(0);
        &mut self.databases[place]
    }

    pub fn pool_changed(&mut self, pool: u32, why: &'static str, has_grown: bool) {
        let database = self.database_of(pool);
        let by_why = match has_grown {
            true => &mut database.grown,
            false => &mut database.shrunk,
        };
        *by_why.entry(why).or_default() += 1;
        let pool = self.pools.entry(pool).or_default();
        let by_why = match has_grown {
            true => &mut pool.grown,
            false => &mut pool.shrunk,
        };
        *by_why.entry(why).or_default() += 1;
    }

    pub fn login_took(&mut self, pool: u32, now_us: u64, us: u64) {
        let database = self.database_of(pool);
        database.logins.add(Histogram::bucket_of(us), 1);
        let pool = self.pools.entry(pool).or_default();
        pool.logins.add(now_us, Histogram::bucket_of(us), 1);
    }

    pub fn pool_ends(&mut self, pool: u32) {
        self.pools.remove(&pool);
        self.database_of.remove(&pool);
    }

    /// A backend has gone: what it has counted is kept, and its tally is empty.
    pub fn backend_ends(&mut self, slot: u32, control: &Control, now_us: u64) {
        self.read_times(slot, control, now_us);
        self.seen.remove(&slot);
        let tally = &control.tallies[slot as usize];
        if let Some(tenant) = tenant_of(tally, control) {
            let totals = &control.totals[tenant as usize].counts;
            let tenant = &control.tenants[tenant as usize];
            tenant.folds_begun.fetch_add(1, SeqCst);
            for (total, count) in totals.iter().zip(&tally.counts) {
                total.fetch_add(count.swap(0, SeqCst), SeqCst);
            }
            tenant.tallies.fetch_sub(1, SeqCst);
            tenant.folds_ended.fetch_add(1, SeqCst);
        }
        tally.tenant.store(0, SeqCst);
        for bucket in tally.waits.iter().chain(&tally.transactions) {
            bucket.store(0, Relaxed);
        }
    }

    /// Adds to its pool's last minute what a backend has counted since the last call.
    fn read_times(&mut self, slot: u32, control: &Control, now_us: u64) {
        let pool = control.backends[slot as usize].pool.load(SeqCst);
        if pool as usize >= control.pools.len() {
            return;
        }
        let tally = &control.tallies[slot as usize];
        let place = self.database_of.get(&pool).copied().unwrap_or(0);
        let database = &mut self.databases[place];
        let (seen, pool) = (
            self.seen.entry(slot).or_insert_with(|| {
                [
                    Box::new([0; BUCKETS as usize]),
                    Box::new([0; BUCKETS as usize]),
                ]
            }),
            self.pools.entry(pool).or_default(),
        );
        let [waits, transactions] = seen;
        for (seen, buckets, to, all) in [
            (waits, &tally.waits, &mut pool.waits, &mut database.waits),
            (
                transactions,
                &tally.transactions,
                &mut pool.transactions,
                &mut database.transactions,
            ),
        ] {
            for (bucket, (seen, count)) in seen.iter_mut().zip(buckets).enumerate() {
                let count = count.load(Relaxed);
                let more = count.wrapping_sub(*seen);
                if more != 0 {
                    to.add(now_us, bucket, more);
                    all.add(bucket, u64::from(more));
                    *seen = count;
                }
            }
        }
    }

    /// The times of all backends.
    pub fn read_all_times(&mut self, control: &Control, now_us: u64) {
        for slot in 0..control.backends.len() as u32 {
            self.look_at(slot, control, now_us);
        }
    }

    fn look_at(&mut self, slot: u32, control: &Control, now_us: u64) {
        match control.backends[slot as usize].state.load(SeqCst) {
            BACKEND_FREE | BACKEND_STARTING => {}
            _ => self.read_times(slot, control, now_us),
        }
    }

    /// Once a second: the times of some backends, so that each is read in each part of a minute.
    pub fn sweep(&mut self, control: &Control, now_us: u64) {
        let slots = control.backends.len();
        let some = slots.div_ceil(PART_US as usize / 1_000_000);
        for _ in 0..some {
            self.next_slot = (self.next_slot + 1) % slots;
            self.look_at(self.next_slot as u32, control, now_us);
        }
    }
}

#[cfg(test)]
mod tests;
