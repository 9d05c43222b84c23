//! The CONTROL memory: the slots of backends, pools and sessions, and the statement counters.
//!
//! The postmaster creates it, and it outlives every dispatcher. So a new dispatcher finds the
//! slots of its predecessor. Slots of live backends that still serve a session ("orphans") stay
//! until these end, with the session slots that they hold. All other slots are freed.

use crate::core::{index_of, SessionId, Shown, Word, Words};
use crate::shell::link::handshake;
use crate::shell::link::layout::shared::*;
use crate::shell::link::layout::{
    BackendSlot, ControlHeader, Identity, PoolSlot, SessionSlot, StatementCounter, TallySlot,
    TenantSlot, TotalsSlot,
};
use crate::shell::link::wire::Counters;
use crate::shell::sys::memory::{copy_words, SharedMapping};
use anyhow::{bail, Context as _, Result};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use tracing::warn;

/// Views of the mapping, which lives as long as the process.
#[derive(Clone, Copy)]
pub struct Control {
    pub header: &'static ControlHeader,
    /// The secret, as it was when this program started. A process that connects must show it.
    pub secret: u64,
    pub backends: &'static [BackendSlot],
    pub pools: &'static [PoolSlot],
    pub tenants: &'static [TenantSlot],
    pub sessions: &'static [SessionSlot],
    pub counters: &'static [StatementCounter],
    pub identities: &'static [Identity],
    pub totals: &'static [TotalsSlot],
    pub tallies: &'static [TallySlot],
    /// Session slot plus 1, indexed by the process ID modulo the number of entries.
    pub pids: &'static [AtomicU32],
}

impl Control {
    /// Maps the memory and checks that its layout is the one that this program was built for.
    pub fn open(fd: RawFd) -> Result<Control> {
        let mapping = SharedMapping::open(fd).context("could not map the control memory")?;
        let header = mapping
            .slice::<ControlHeader>(0, 1)
            .and_then(<[_]>::first)
            .context("the control memory is too small")?;
        if header.magic.load(Acquire) != MAGIC {
            bail!("the control memory is not pg_baton's");
        }
        let version = header.layout_version.load(Acquire);
        if version != LAYOUT_VERSION {
            bail!("the extension has layout version {version:#x}, this program {LAYOUT_VERSION:#x}: both must come from the same build");
        }
        if header.total_size.load(Acquire) > mapping.length() as u64 {
            bail!("the control memory is cut short");
        }
        let region = "a region of the control memory lies outside of it";
        // Several regions have these lengths, so each is read once.
        let session_slots = header.session_slots.load(Acquire);
        let backend_slots = header.backend_slots.load(Acquire);
        let pool_slots = header.pool_slots.load(Acquire);
        Ok(Control {
            header,
            secret: header.secret.load(Acquire),
            backends: mapping
                .slice(header.backend_offset.load(Acquire), backend_slots)
                .context(region)?,
            pools: mapping
                .slice(header.pool_offset.load(Acquire), pool_slots)
                .context(region)?,
            tenants: mapping
                .slice(header.tenant_offset.load(Acquire), pool_slots)
                .context(region)?,
            sessions: mapping
                .slice(header.session_offset.load(Acquire), session_slots)
                .context(region)?,
            counters: mapping
                .slice(
                    header.counter_offset.load(Acquire),
                    header.counter_slots.load(Acquire),
                )
                .context(region)?,
            identities: mapping
                .slice(header.identity_offset.load(Acquire), session_slots)
                .context(region)?,
            totals: mapping
                .slice(header.totals_offset.load(Acquire), pool_slots)
                .context(region)?,
            tallies: mapping
                .slice(header.tally_offset.load(Acquire), backend_slots)
                .context(region)?,
            pids: mapping
                .slice(
                    header.pid_offset.load(Acquire),
                    header.pid_entries.load(Acquire),
                )
                .context(region)?,
        })
    }

    /// Takes the memory over from an earlier dispatcher. `find` returns the descriptor of a
    /// process that is a live backend. The slots of sessions that are `adopted` stay as they are.
    /// Returns the backend slots of orphans, each with that descriptor.
    pub fn take_over(
        &self,
        own_pid: u32,
        adopted: &[u32],
        find: impl Fn(u32) -> Option<OwnedFd>,
    ) -> Vec<(u32, OwnedFd)> {
        self.header.dispatcher_pid.store(own_pid, SeqCst);
        self.header.dispatcher_epoch.fetch_add(1, SeqCst);
        self.header.room_ticket.store(0, SeqCst);
        self.header.batch_until_us.store(0, SeqCst);
        self.header.keeps_sessions.store(CAUSE_NONE, SeqCst);
        for ticket in &self.header.tickets {
            ticket.store(0, SeqCst);
        }
        let mut orphans = Vec::new();
        for (index, slot) in self.backends.iter().enumerate() {
            if slot.state.load(SeqCst) == BACKEND_FREE {
                continue;
            }
            let pid = slot.pid.load(SeqCst);
            let is_starting = slot.state.load(SeqCst) == BACKEND_STARTING;
            match find(pid).filter(|_| !is_starting) {
                Some(process) => {
                    slot.attach_token.store(0, SeqCst);
                    orphans.push((index as u32, process));
                }
                None => self.free_backend(index as u32),
            }
        }
        for pool in self.pools {
            pool.queued.store(0, SeqCst);
            pool.is_held_back.store(0, SeqCst);
        }
        for tenant in 0..self.tenants.len() {
            self.clear_tenant(tenant as u32);
        }
        for (index, slot) in self.sessions.iter().enumerate() {
            let owner = slot.owner.load(SeqCst).checked_sub(1);
            let is_orphan = |slot: u32| orphans.iter().any(|(orphan, _)| *orphan == slot);
            if owner.is_some_and(is_orphan) || adopted.binary_search(&(index as u32)).is_ok() {
                continue;
            }
            self.clear_session(index as u32);
        }
        orphans
    }

    /// Takes the words of these sessions over from the memory of a server that has ended. A session
    /// whose process ID has no free place here is left out.
    pub fn take_from(&self, earlier: &Control, sessions: &[u32]) {
        let next_pid = earlier.header.next_pid.load(SeqCst);
        self.header.next_pid.store(next_pid, SeqCst);
        for index in sessions {
            let at = *index as usize;
            let (Some(to), Some(identity)) = (self.sessions.get(at), self.identities.get(at))
            else {
                continue;
            };
            if self.put_pid(*index, earlier.identities[at].pid.load(SeqCst)) {
                copy_words(&earlier.identities[at], identity);
                copy_words(&earlier.sessions[at], to);
            }
        }
    }

    pub fn free_backend(&self, index: u32) {
        let slot = &self.backends[index as usize];
        slot.session.store(0, SeqCst);
        slot.cancel.store(0, SeqCst);
        slot.attach_token.store(0, SeqCst);
        slot.pid.store(0, SeqCst);
        slot.dedicated_cause.store(0, SeqCst);
        slot.transactions.store(0, SeqCst);
        slot.switches.store(0, SeqCst);
        slot.tenant.store(0, SeqCst);
        slot.xact_status.store(0, SeqCst);
        slot.poked.store(0, SeqCst);
        slot.retire.store(RETIRE_NOT, SeqCst);
        slot.served.iter().for_each(|one| one.store(0, SeqCst));
        slot.state.store(BACKEND_FREE, SeqCst);
    }

    /// Writes what backends must know of a tenant.
    pub fn begin_tenant(&self, index: u32, user: &[u8], superuser: bool) {
        let slot = &self.tenants[index as usize];
        slot.superuser.store(u32::from(superuser), SeqCst);
        // ProcessStartupPacket cuts a name that is too long in the same way.
        let name = user.iter().copied().take(slot.user_name.len() - 1);
        for (to, from) in slot.user_name.iter().zip(name.chain(std::iter::repeat(0))) {
            to.store(from, Relaxed);
        }
    }

    /// Clears a tenant slot that is no longer used.
    pub fn clear_tenant(&self, index: u32) {
        let slot = &self.tenants[index as usize];
        slot.keeps_sessions.store(CAUSE_NONE, SeqCst);
        slot.is_counted.store(0, SeqCst);
        slot.is_paused.store(0, SeqCst);
        slot.memory_left.store(i64::MAX, SeqCst);
        // What backends have counted for this tenant is void from here on.
        slot.serial.fetch_add(1, SeqCst);
        slot.tallies.store(0, SeqCst);
        if slot.folds_begun.swap(0, SeqCst) != 0 {
            let totals = &self.totals[index as usize].counts;
            totals.iter().for_each(|count| count.store(0, SeqCst));
        }
        slot.folds_ended.store(0, SeqCst);
    }

    pub fn clear_session(&self, index: u32) {
        let slot = &self.sessions[index as usize];
        self.identities[index as usize].id.store(0, SeqCst);
        slot.id.store(0, Relaxed);
        slot.owner.store(0, Relaxed);
        slot.flags.store(0, Relaxed);
        slot.last_backend.store(0, Relaxed);
        slot.dedicated_cause.store(0, Relaxed);
        slot.idle_session_timeout_ms.store(0, Relaxed);
        slot.transactions.store(0, Relaxed);
        slot.migrations.store(0, Relaxed);
        slot.claimed.store(0, Relaxed);
        slot.state_since_us.store(0, Relaxed);
        let identity = &self.identities[index as usize];
        identity.told.store(0, Relaxed);
        identity.heard.store(0, Relaxed);
        slot.state.store(STATE_FREE, SeqCst);
    }

    /// What a backend has told of the session, the last of which has been done.
    pub fn has_heard(&self, index: u32) {
        let heard = &self.identities[index as usize].heard;
        heard.store(heard.load(Relaxed).wrapping_add(1), SeqCst);
    }

    /// Restores the session's name in its slot before the session goes to a backend, which
    /// trusts it. Only the dispatcher writes the name, but other processes could.
    pub fn restore_name(&self, id: SessionId) {
        let name = &self.sessions[index_of(id) as usize].id;
        if name.load(Relaxed) != id {
            warn!("the slot of session {id:x} was damaged, its name is put right");
            name.store(id, SeqCst);
        }
    }

    /// A statement's counters.
    pub fn read_counters(&self, index: u32) -> Option<Counters> {
        let slot = self.counters.get(index as usize)?;
        Some(Counters {
            costs: [
                slot.generic_cost.load(Relaxed),
                slot.total_custom_cost.load(Relaxed),
            ],
            plans: [
                slot.num_custom_plans.load(Relaxed),
                slot.num_generic_plans.load(Relaxed),
            ],
        })
    }

    /// Sets a statement's counters to the values that its session had when the statement was
    /// put.
    pub fn set_counters(&self, index: u32, counters: &Counters) {
        if let Some(slot) = self.counters.get(index as usize) {
            slot.generic_cost.store(counters.costs[0], Relaxed);
            slot.total_custom_cost.store(counters.costs[1], Relaxed);
            slot.num_custom_plans.store(counters.plans[0], Relaxed);
            slot.num_generic_plans.store(counters.plans[1], Relaxed);
        }
    }
}

impl Words for Control {
    fn backend(&self, slot: u32) -> Word {
        match self.backends[slot as usize].state.load(SeqCst) {
            BACKEND_FREE => Word::Free,
            BACKEND_STARTING => Word::Starting,
            BACKEND_IDLE => Word::Idle,
            BACKEND_LINGER => Word::Linger,
            BACKEND_ASSIGNED => Word::Assigned,
            BACKEND_BUSY => Word::Busy,
            _ => Word::Retiring,
        }
    }

    fn backend_since_us(&self, slot: u32) -> i64 {
        self.backends[slot as usize].state_since_us.load(Relaxed)
    }

    fn backend_session(&self, slot: u32) -> u64 {
        self.backends[slot as usize].session.load(SeqCst)
    }

    fn backend_keeps(&self, slot: u32) -> bool {
        let cause = &self.backends[slot as usize].dedicated_cause;
        cause.load(SeqCst) != CAUSE_NONE
    }

    fn backend_has_served(&self, slot: u32) -> bool {
        self.backends[slot as usize].transactions.load(Relaxed) > 0
    }

    fn slot_is_free(&self, slot: u32) -> bool {
        self.backend(slot) == Word::Free
    }

    fn queued(&self, pool: u32) -> i32 {
        self.pools[pool as usize].queued.load(SeqCst)
    }

    fn holder(&self, index: u32) -> Option<u32> {
        let slot = self.sessions.get(index as usize)?;
        let holder = slot.owner.load(SeqCst).checked_sub(1)?;
        ((holder as usize) < self.backends.len()).then_some(holder)
    }

    fn shown(&self, index: u32) -> Shown {
        // The number comes from a backend's slot, so it may be any.
        let slot = self.sessions.get(index as usize);
        match slot.map(|slot| slot.state.load(SeqCst)) {
            Some(STATE_IDLE) => Shown::Idle,
            Some(STATE_IDLE_IN_TRANSACTION) => Shown::InTransaction,
            Some(STATE_WAITING) => Shown::Waiting,
            _ => Shown::Other,
        }
    }

    fn session_since_us(&self, index: u32) -> i64 {
        self.sessions[index as usize].state_since_us.load(Relaxed)
    }

    fn index_is_free(&self, index: u32) -> bool {
        let slot = &self.sessions[index as usize];
        slot.state.load(Relaxed) == STATE_FREE && slot.owner.load(Relaxed) == 0
    }

    fn last_backend(&self, index: u32) -> Option<u32> {
        let slot = &self.sessions[index as usize];
        slot.last_backend.load(Relaxed).checked_sub(1)
    }

    fn transactions(&self, index: u32) -> u64 {
        self.sessions[index as usize].transactions.load(Relaxed)
    }

    fn is_cancelled(&self, index: u32) -> bool {
        let slot = &self.sessions[index as usize];
        slot.flags.load(Relaxed) & SESSION_CANCEL != 0
    }

    fn idle_timeout_us(&self, index: u32) -> i64 {
        let slot = &self.sessions[index as usize];
        i64::from(slot.idle_session_timeout_ms.load(Relaxed)) * 1000
    }

    fn ticket_taker(&self) -> Option<u32> {
        handshake::ticket_taker(&self.header.room_ticket)
    }
}

/// The free statement counters. Bounded by the number of counters.
pub struct CounterPool {
    free: Vec<u32>,
    next: u32,
    total: u32,
}

/// The statement has no counter.
pub const NO_COUNTER: u32 = u32::MAX;

impl CounterPool {
    pub fn new(total: u32) -> CounterPool {
        CounterPool {
            free: Vec::new(),
            next: 0,
            total,
        }
    }

    pub fn allot(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        if self.next >= self.total {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    pub fn release(&mut self, index: u32) {
        if index != NO_COUNTER {
            assert!(index < self.next, "a counter that was never allotted");
            self.free.push(index);
        }
    }

    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.next as usize - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::sys::memory::words;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn a_memory_of_another_layout_is_refused_by_name() {
        let memory = words(1 << 16).unwrap();
        let mapping = SharedMapping::open(memory.as_raw_fd()).unwrap();
        let header = &mapping.slice::<ControlHeader>(0, 1).unwrap()[0];
        let refusal = || match Control::open(memory.as_raw_fd()) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(refusal(), "the control memory is not pg_baton's");
        header.magic.store(MAGIC, Relaxed);
        header.layout_version.store(47, Relaxed);
        let ours = format!("this program {LAYOUT_VERSION:#x}");
        assert!(refusal().starts_with("the extension has layout version 0x2f, "));
        assert!(refusal().contains(&ours));
        header.layout_version.store(LAYOUT_VERSION, Relaxed);
        assert_eq!(refusal(), "");
    }

    #[test]
    fn counters_are_bounded_and_come_back() {
        let mut pool = CounterPool::new(2);
        assert_eq!(pool.allot(), Some(0));
        assert_eq!(pool.allot(), Some(1));
        assert_eq!(pool.allot(), None);
        pool.release(0);
        pool.release(NO_COUNTER);
        assert_eq!(pool.in_use(), 1);
        assert_eq!(pool.allot(), Some(0));
    }
}
