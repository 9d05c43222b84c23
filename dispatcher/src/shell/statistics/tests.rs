use super::*;
use crate::shell::link::layout::{
    BackendSlot, ControlHeader, Identity, PoolSlot, SessionSlot, StatementCounter, TenantSlot,
    TotalsSlot,
};
use crate::shell::sys::memory::{self, SharedMapping};
use std::os::fd::AsRawFd as _;

const BACKENDS: u32 = 3;
const TENANTS: u32 = 2000;

/// A CONTROL memory of its own.
fn control() -> Control {
    let memory = memory::words(16 << 20).unwrap();
    let mapping = SharedMapping::open(memory.as_raw_fd()).unwrap();
    let header = &mapping.slice::<ControlHeader>(0, 1).unwrap()[0];
    header.magic.store(MAGIC, Relaxed);
    header.layout_version.store(LAYOUT_VERSION, Relaxed);
    header.backend_slots.store(BACKENDS, Relaxed);
    header.pool_slots.store(TENANTS, Relaxed);
    header.session_slots.store(1, Relaxed);
    header.counter_slots.store(1, Relaxed);
    header.pid_entries.store(1, Relaxed);
    let mut at = size_of::<ControlHeader>().next_multiple_of(64);
    for (offset, size, count) in [
        (&header.backend_offset, size_of::<BackendSlot>(), BACKENDS),
        (&header.pool_offset, size_of::<PoolSlot>(), TENANTS),
        (&header.tenant_offset, size_of::<TenantSlot>(), TENANTS),
        (&header.session_offset, size_of::<SessionSlot>(), 1),
        (&header.counter_offset, size_of::<StatementCounter>(), 1),
        (&header.identity_offset, size_of::<Identity>(), 1),
        (&header.pid_offset, 64, 1),
        (&header.totals_offset, size_of::<TotalsSlot>(), TENANTS),
        (&header.tally_offset, size_of::<TallySlot>(), BACKENDS),
    ] {
        offset.store(at as u64, Relaxed);
        at = (at + size * count as usize).next_multiple_of(64);
    }
    Control::open(memory.as_raw_fd()).unwrap()
}

/// What tally.c does before a backend counts for a tenant.
fn serves(control: &Control, slot: u32, tenant: u32) {
    let tally = &control.tallies[slot as usize];
    let slot = &control.tenants[tenant as usize];
    let is_its = tenant_of(tally, control) == Some(tenant);
    if let Some(before) = tenant_of(tally, control).filter(|_| !is_its) {
        let before_slot = &control.tenants[before as usize];
        before_slot.folds_begun.fetch_add(1, SeqCst);
        let totals = &control.totals[before as usize].counts;
        for (total, count) in totals.iter().zip(&tally.counts) {
            total.fetch_add(count.swap(0, SeqCst), SeqCst);
        }
        before_slot.tallies.fetch_sub(1, SeqCst);
        before_slot.folds_ended.fetch_add(1, SeqCst);
    }
    if !is_its {
        tally.counts.iter().for_each(|count| count.store(0, SeqCst));
        tally.serial.store(slot.serial.load(SeqCst), SeqCst);
        tally.tenant.store(tenant + 1, SeqCst);
        slot.tallies.fetch_add(1, SeqCst);
    }
    tally.counts[COUNT_TRANSACTIONS as usize].fetch_add(1, SeqCst);
}

fn transactions(statistics: &mut Statistics, control: &Control) -> Vec<(Option<GroupKey>, u64)> {
    statistics.collect(control);
    let entries = statistics.entries.iter();
    let mut all: Vec<(Option<GroupKey>, u64)> = entries
        .map(|entry| (entry.key, entry.count(COUNT_TRANSACTIONS)))
        .filter(|(_, count)| *count > 0)
        .collect();
    all.sort_unstable();
    all
}

fn ends(statistics: &mut Statistics, control: &Control, tenant: u32) {
    statistics.tenant_ends(tenant, control);
    control.clear_tenant(tenant);
}

#[test]
fn each_transaction_counts_once_wherever_its_count_is() {
    let control = control();
    let mut statistics = Statistics::new();
    let keys = [(10, 1), (20, 1), (10, 1)];
    for (tenant, key) in keys.iter().enumerate() {
        statistics.tenant_begins(tenant as u32, *key, b"role", b"database");
    }
    let mut expected = BTreeMap::new();
    for step in 0..600_u32 {
        let (slot, tenant) = (step % BACKENDS, (step * step / 7) % 3);
        if step % 50 == 49 {
            statistics.backend_ends(slot, &control, 0);
        }
        if step % 70 == 69 {
            // Another tenant of the same key has the slot from here on.
            ends(&mut statistics, &control, tenant);
            statistics.tenant_begins(tenant, keys[tenant as usize], b"role", b"database");
        }
        serves(&control, slot, tenant);
        *expected.entry(Some(keys[tenant as usize])).or_insert(0) += 1;
        let all: Vec<_> = expected.iter().map(|(key, count)| (*key, *count)).collect();
        assert_eq!(transactions(&mut statistics, &control), all, "step {step}");
    }
    statistics.reset(&control, 5);
    assert_eq!(transactions(&mut statistics, &control), []);
    serves(&control, 0, 1);
    assert_eq!(
        transactions(&mut statistics, &control),
        [(Some((20, 1)), 1)]
    );
}

#[test]
fn what_a_backend_counts_for_a_tenant_that_has_gone_is_void() {
    let control = control();
    let mut statistics = Statistics::new();
    statistics.tenant_begins(7, (1, 1), b"role", b"database");
    serves(&control, 0, 7);
    ends(&mut statistics, &control, 7);
    statistics.tenant_begins(7, (2, 2), b"role", b"database");
    control.tallies[0].counts[0].fetch_add(9, SeqCst);
    assert_eq!(transactions(&mut statistics, &control), [(Some((1, 1)), 1)]);
}

#[test]
fn rows_are_bounded_and_nothing_is_lost() {
    let control = control();
    let mut statistics = Statistics::new();
    for number in 0..3 * MOST_ROWS as u32 {
        let tenant = number % TENANTS;
        statistics.tenant_begins(tenant, (number + 1, 1), b"role", b"database");
        serves(&control, number % BACKENDS, tenant);
        statistics.of_tenant(tenant).logins += 1;
        ends(&mut statistics, &control, tenant);
    }
    assert_eq!(statistics.entries.len(), MOST_ROWS + 1);
    let all = transactions(&mut statistics, &control);
    let sum: u64 = all.iter().map(|(_, count)| count).sum();
    assert_eq!(sum, 3 * MOST_ROWS as u64);
    let newest = (3 * MOST_ROWS as u32, 1);
    assert!(all.contains(&(Some(newest), 1)));
    let logins: u64 = statistics.entries.iter().map(|it| it.own.logins).sum();
    assert_eq!(logins, 3 * MOST_ROWS as u64);
    for (key, entry) in &statistics.by_key {
        assert_eq!(statistics.entries[*entry].key, Some(*key));
    }
}

#[test]
fn strangers_take_no_row_from_roles_with_sessions() {
    let mut statistics = Statistics::new();
    for number in 0..2 * MOST_ROWS as u32 {
        statistics.refused(Some((number + 1, 1)), b"28P01");
        statistics.refused(None, format!("{number:05}").as_bytes());
    }
    assert!(statistics.entries.len() <= MOST_ROWS / 2 + 1);
    assert!(statistics.entries[0].own.refused.len() <= MOST_STATES + 1);
    let refused = statistics.entries.iter();
    let sum: u64 = refused.flat_map(|entry| entry.own.refused.values()).sum();
    assert_eq!(sum, 4 * MOST_ROWS as u64);
    statistics.entries[0].own.refused.clear();
    statistics.refused(None, b"\"\\\n\0a");
    assert_eq!(statistics.entries[0].own.refused["other"], 1);
}

#[test]
fn times_of_a_backend_are_its_pool_s() {
    let control = control();
    let mut statistics = Statistics::new();
    let tally = &control.tallies[1];
    control.backends[1].pool.store(4, SeqCst);
    control.backends[1].state.store(BACKEND_BUSY, SeqCst);
    tally.waits[5].fetch_add(2, SeqCst);
    statistics.read_all_times(&control, 0);
    tally.waits[9].fetch_add(1, SeqCst);
    tally.transactions[7].fetch_add(1, SeqCst);
    statistics.backend_ends(1, &control, 0);
    control.backends[1].state.store(BACKEND_FREE, SeqCst);
    statistics.read_all_times(&control, 0);
    let [waits, transactions, logins] = statistics.pool(4).unwrap().last_minute(0);
    assert_eq!(
        (waits.percentile(50), waits.percentile(99)),
        (Some(5), Some(9))
    );
    assert_eq!(transactions.percentile(50), Some(7));
    assert_eq!(logins.percentile(50), None);
    assert_eq!(tally.waits[5].load(SeqCst), 0);
}

#[test]
fn scribbled_words_are_numbers_and_nothing_else() {
    let control = control();
    let mut statistics = Statistics::new();
    statistics.tenant_begins(0, (1, 1), b"role", b"database");
    for value in [0, 7, u32::MAX, 1 << 31] {
        let tally = &control.tallies[0];
        tally.tenant.store(value, SeqCst);
        tally.serial.store(value, SeqCst);
        let counts = tally.counts.iter().chain(&control.totals[0].counts);
        counts.for_each(|count| count.store(u64::MAX / 2 + u64::from(value), SeqCst));
        let buckets = tally.waits.iter().chain(&tally.transactions);
        buckets.for_each(|count| count.store(value, SeqCst));
        let slot = &control.tenants[0];
        slot.folds_begun.store(u64::from(value), SeqCst);
        slot.tallies.store(value, SeqCst);
        control.backends[0].pool.store(value, SeqCst);
        control.backends[0].state.store(value, SeqCst);
        statistics.collect(&control);
        statistics.read_all_times(&control, 0);
        statistics.backend_ends(0, &control, 0);
        transactions_in_tallies(&control);
    }
    ends(&mut statistics, &control, 0);
}
