//! Sessions of an earlier dispatcher go on: those that no backend holds, with their sockets, which
//! its keeper has, and their contexts, which are copied from its ARENA to this one.
//!
//! A session keeps its slot, its process ID and its cancel key, and gets another name. A backend
//! that still has a session of the earlier dispatcher keeps it (event_loop/shutdown.rs).
//!
//! Who holds a session is known only when no backend is about to take one or to give one back:
//! [`wait_for_backends`]. A session whose backend had told something that the earlier dispatcher
//! has not acted on is lost: its stored context is not the one that it had.

use super::Scheduler;
use crate::core::{Event, SessionId, TenantKey};
use crate::shell::keeper::Left;
use crate::shell::link::layout::shared::*;
use crate::shell::link::layout::{Item, SessionRecord};
use crate::shell::link::memory::arena::Content;
use crate::shell::link::memory::control::Control;
use crate::shell::link::memory::remains::Contexts as OldContexts;
use crate::shell::link::wire::{Counters, Malformed, Reader};
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::process;
use crate::shell::sys::socket::{self, Address};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// How long a backend may take to see that its dispatcher has gone.
const BACKENDS_LIMIT: Duration = Duration::from_secs(2);
const BACKENDS_LOOK: Duration = Duration::from_millis(1);

/// Flags of a session that go on with it. Others are about a request or a wait, which begin anew.
const LASTING_FLAGS: u32 = SESSION_UNNAMED | SESSION_SOCKET_SET;

/// Waits until no backend of an earlier dispatcher is about to take a session or to give one back,
/// and none of them will. Blocks. False: one of them could not be waited for.
///
/// The keeper has closed the dispatcher's ends before. A backend that is free or claimed sees that
/// as it sleeps, and ends or becomes busy (dispatcher_gone, idle.c). A busy backend looks for
/// itself after it has said that it hands over.
pub fn wait_for_backends(control: &Control, is_backend: impl Fn(u32) -> Option<OwnedFd>) -> bool {
    let is_at_rest = |slot: usize| {
        let state = control.backends[slot].state.load(SeqCst);
        let is_its_own = matches!(state, BACKEND_BUSY | BACKEND_RETIRING);
        is_its_own && control.tallies[slot].hands_over.load(SeqCst) == 0
    };
    let until = Instant::now() + BACKENDS_LIMIT;
    (0..control.backends.len()).all(|slot| {
        let pid = control.backends[slot].pid.load(SeqCst);
        let state = control.backends[slot].state.load(SeqCst);
        if matches!(state, BACKEND_FREE | BACKEND_STARTING) {
            return true;
        }
        let Some(backend) = is_backend(pid) else {
            return true;
        };
        while !is_at_rest(slot) && !process::has_ended(&backend) {
            if Instant::now() > until {
                tracing::warn!("backend {slot} (process ID {pid}) does not notice that its dispatcher has gone");
                return false;
            }
            std::thread::sleep(BACKENDS_LOOK);
        }
        true
    })
}

/// The slots of sessions that can be adopted.
pub fn adoptable(control: &Control, left: &Left) -> Vec<u32> {
    let Some(contexts) = left.contexts() else {
        return Vec::new();
    };
    let slots = (control.sessions.len() as u32).min(left.ledger.session_slots());
    let is_here = |index: &u32| {
        let slot = &control.sessions[*index as usize];
        let identity = &control.identities[*index as usize];
        let record = contexts.record(*index);
        left.ledger.session(*index).is_some()
            && slot.owner.load(SeqCst) == 0
            && slot.state.load(SeqCst) != STATE_FREE
            && record.is_some_and(|record| record.cancel_pid == identity.pid.load(SeqCst))
            && identity.told.load(SeqCst) == identity.heard.load(SeqCst)
    };
    (0..slots).filter(is_here).collect()
}

/// Could a backend that could not be waited for have this session?
fn is_in_doubt(socket: &OwnedFd, record: &SessionRecord) -> bool {
    socket::unread(socket.as_raw_fd()) > 0 || record.record_flags & RECORD_GREET != 0
}

fn tenant_bytes(key: &TenantKey) -> Vec<u8> {
    let names = [&key.user, &key.database];
    let options = key.options.iter().flat_map(|(name, value)| [name, value]);
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(&key.role_oid.to_ne_bytes());
    out.extend_from_slice(&key.database_oid.to_ne_bytes());
    out.extend_from_slice(&[key.superuser, key.is_apart].map(u8::from));
    for text in names.into_iter().chain(options) {
        out.extend_from_slice(&(text.len() as u32).to_ne_bytes());
        out.extend_from_slice(text);
    }
    out
}

fn tenant_of(bytes: &[u8]) -> Result<TenantKey, Malformed> {
    let mut reader = Reader(bytes);
    let (role_oid, database_oid) = (reader.u32()?, reader.u32()?);
    let (superuser, is_apart) = (reader.bool()?, reader.bool()?);
    let (user, database) = (reader.bytes()?.to_vec(), reader.bytes()?.to_vec());
    let mut options = Vec::new();
    while reader.end().is_err() {
        options.push((reader.bytes()?.to_vec(), reader.bytes()?.to_vec()));
    }
    Ok(TenantKey {
        user,
        database,
        role_oid,
        database_oid,
        superuser,
        options,
        is_apart,
    })
}

impl Scheduler {
    /// Stores of which tenant a session is. False if there is no memory.
    pub(super) fn store_tenant(&mut self, index: u32, tenant: u32) -> bool {
        let bytes = self.core.tenant_key(tenant).map(|key| tenant_bytes(key));
        bytes.is_some_and(|bytes| self.contexts.put_tenant(index, &bytes).is_ok())
    }

    /// Adopts the sessions in these slots. `are_sure`: no backend can have any of them. Returns
    /// how many it has adopted. The others end with the keeper.
    pub fn adopt(&mut self, left: &Left, slots: &[u32], are_sure: bool) -> usize {
        let sockets = left.sockets(slots).unwrap_or_default();
        let Some(contexts) = left.contexts() else {
            return 0;
        };
        // Read before a statement of an adopted session gets a counter.
        let counters: Vec<Counters> = self.control.read_counters();
        let mut adopted = 0;
        for (index, socket) in sockets {
            let Some(record) = contexts.record(index) else {
                continue;
            };
            if are_sure || !is_in_doubt(&socket, &record) {
                let is_adopted = self.adopt_one(index, socket, record, &contexts, &counters);
                adopted += usize::from(is_adopted.is_some());
            }
            let is_here = self.core.sessions().in_slot(index);
            if is_here.is_none_or(|id| self.sockets.fd(id) < 0) {
                self.control.clear_session(index);
            }
        }
        adopted
    }

    fn adopt_one(
        &mut self,
        index: u32,
        socket: OwnedFd,
        old: SessionRecord,
        contexts: &OldContexts<'_>,
        counters: &[Counters],
    ) -> Option<()> {
        let key = tenant_of(contexts.content(old.tenant_entry)?.value).ok()?;
        let items = contexts.items(&old)?;
        let role = key.role_oid;
        let tenant = self.tenant_for(key)?;
        let id = self.core.adopt_session(tenant, index)?;
        let address = Address {
            family: old.peer_family,
            port: old.peer_port,
            scope: old.peer_scope,
            bytes: old.peer_address,
        };
        self.sockets.insert(id, socket, Origin::of(&address));
        let record = SessionRecord {
            id,
            tenant,
            account: self.contexts.arena.account_of_role(role),
            starts: self.starts,
            context_version: 0,
            items: 0,
            item_count: 0,
            first_statement: 0,
            statement_count: 0,
            authenticated: 0,
            tenant_entry: 0,
            ..old
        };
        self.contexts.arena.put_record(index, &record);
        let is_to_end = self.put_its_words(index, id);
        let is_stored = self.store_tenant(index, tenant)
            && self.store_proof(index, contexts.content(old.authenticated))
            && self.store_old(index, &items, old.record_flags, counters);
        if !is_stored {
            let report = super::new_session::out_of_memory();
            self.end_with(id, &report);
            return None;
        }
        let is_new = old.record_flags & RECORD_GREET != 0;
        let added = match is_new {
            true => self.sockets.add_unarmed(id, false),
            false => self.sockets.add(id, false),
        };
        if added.is_err() {
            self.tell(Event::Ended(id, crate::core::Ending::Cut));
            return None;
        }
        self.keep(id);
        if is_new {
            self.tell(Event::ToGreet(id));
        }
        if is_to_end {
            self.tell(Event::Terminate(id));
        }
        Some(())
    }

    /// Puts the session's new name into its slot and its identity, and what lasts of its words.
    /// True if the session has been told to end.
    fn put_its_words(&self, index: u32, id: SessionId) -> bool {
        let slot = &self.control.sessions[index as usize];
        let identity = &self.control.identities[index as usize];
        let is_to_end = identity.terminate.load(SeqCst) != 0
            && identity.terminate.load(SeqCst) == identity.id.load(SeqCst);
        let flags = slot.flags.load(SeqCst) & LASTING_FLAGS;
        let (timeout_ms, transactions, migrations) = (
            slot.idle_session_timeout_ms.load(Relaxed),
            slot.transactions.load(Relaxed),
            slot.migrations.load(Relaxed),
        );
        let (state, since_us) = (slot.state.load(SeqCst), slot.state_since_us.load(Relaxed));
        self.control.clear_session(index);
        slot.id.store(id, SeqCst);
        slot.flags.store(flags, SeqCst);
        slot.idle_session_timeout_ms.store(timeout_ms, Relaxed);
        slot.transactions.store(transactions, Relaxed);
        slot.migrations.store(migrations, Relaxed);
        let (state, since_us) = match state {
            STATE_IDLE | STATE_LOGIN => (state, since_us),
            _ => (STATE_IDLE, self.now.shared_us),
        };
        slot.state_since_us.store(since_us, Relaxed);
        slot.state.store(state, SeqCst);
        identity.cancel.store(0, SeqCst);
        identity
            .terminate
            .store(if is_to_end { id } else { 0 }, SeqCst);
        identity.id.store(id, SeqCst);
        is_to_end
    }

    fn store_proof(&mut self, index: u32, proof: Option<Content<'_>>) -> bool {
        proof.is_none_or(|proof| {
            let put = self
                .contexts
                .put_authenticated(index, proof.key, proof.value);
            put.is_ok()
        })
    }

    fn store_old(
        &mut self,
        index: u32,
        items: &[(Item, Content<'_>)],
        flags: u32,
        counters: &[Counters],
    ) -> bool {
        let account = self.contexts.arena.account(index);
        let mut stored = Vec::with_capacity(items.len());
        for (item, content) in items {
            let Ok(entry) = self.contexts.arena.intern(account, *content) else {
                stored
                    .iter()
                    .for_each(|item: &Item| self.contexts.arena.release(item.entry));
                return false;
            };
            let counters = counters.get(item.counter as usize);
            stored.push(Item {
                entry,
                counter: self.contexts.allot_counter(counters),
                aux: item.aux,
            });
        }
        let begun = self.contexts.begin(index, stored, flags);
        if let (Ok(grown), Some(id)) = (begun, self.core.sessions().in_slot(index)) {
            self.tell(Event::Stored { id, grown });
        }
        begun.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_read_as_it_was_written() {
        let key = TenantKey {
            user: b"app".to_vec(),
            database: b"shop".to_vec(),
            role_oid: 16_384,
            database_oid: 5,
            superuser: true,
            options: vec![
                (b"temp_buffers".to_vec(), b"8MB".to_vec()),
                (b"x".to_vec(), vec![]),
            ],
            is_apart: false,
        };
        let bytes = tenant_bytes(&key);
        assert!(tenant_of(&bytes).expect("it is whole") == key);
        for length in 0..bytes.len() {
            // Without an option it may be a tenant, too, but another one.
            assert!(tenant_of(&bytes[..length]).map_or(true, |cut| cut != key));
        }
    }
}
