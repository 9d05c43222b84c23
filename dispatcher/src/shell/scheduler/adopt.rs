//! Sessions of an earlier dispatcher go on, with their sockets, which its keeper has, and their
//! contexts, which are copied from its ARENA to this one. A session keeps its name, its slot, its
//! process ID and its cancel key.
//!
//! A backend that has a session serves it on. It connects again at its next boundary
//! (`HELLO_AGAIN`), gives the session back when it can be shared, and exits: it does not have this
//! ARENA. A backend whose session cannot be adopted keeps it as an ordinary connection
//! (event_loop/shutdown.rs).
//!
//! Who holds a session is known only when no backend is about to take one or to give one back:
//! [`wait_for_backends`]. A session whose backend had told something that the earlier dispatcher
//! has not acted on is adopted as if that backend had it: the backend tells that again.

use super::Scheduler;
use crate::core::{index_of, Backend, Event, Need, SessionId, TenantKey};
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
use std::collections::{BTreeMap, HashMap};
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
#[derive(Default)]
pub struct Adoptable {
    /// No backend has them. Sorted.
    pub free: Vec<u32>,
    /// By the slots of their backends: those that are on it, and those that it has given back, and
    /// whose changes it tells again. With what the backend tells of them first.
    pub held: BTreeMap<u32, Vec<(u32, Need)>>,
}

impl Adoptable {
    /// All of them, sorted.
    pub fn all(&self) -> Vec<u32> {
        let held = self.held.values().flatten().map(|(index, _)| *index);
        let mut all: Vec<u32> = self.free.iter().copied().chain(held).collect();
        all.sort_unstable();
        all
    }
}

fn need(is_ungreeted: bool) -> Need {
    if is_ungreeted {
        Need::Greeting
    } else {
        Need::Return
    }
}

/// `control`: this server's. Of an earlier server no backend is left, so only free sessions count.
pub fn adoptable(control: &Control, left: &Left) -> Adoptable {
    let mut found = Adoptable::default();
    let slots_here = control.sessions.len();
    let control = left.earlier.as_ref().unwrap_or(control);
    let Some(contexts) = left.contexts() else {
        return found;
    };
    let slots = control.sessions.len().min(slots_here) as u32;
    let slots = slots.min(left.ledger.session_slots());
    for index in 0..slots {
        let slot = &control.sessions[index as usize];
        let identity = &control.identities[index as usize];
        let told = identity.told.load(SeqCst);
        let unheard = told.wrapping_sub(identity.heard.load(SeqCst));
        let is_known =
            left.ledger.session(index).is_some() && slot.state.load(SeqCst) != STATE_FREE;
        let record = contexts
            .record(index)
            .filter(|record| is_known && record.cancel_pid == identity.pid.load(SeqCst));
        let Some(record) = record else {
            continue;
        };
        let was_last = slot.last_backend.load(SeqCst).checked_sub(1);
        match (slot.owner.load(SeqCst).checked_sub(1), unheard, was_last) {
            (None, 0, _) => found.free.push(index),
            // RELEASE, or both
            (None, 1 | 2, Some(teller)) if record.context_version != 0 => {
                let is_ungreeted = unheard == 2 || record.record_flags & RECORD_GREET != 0;
                let with = (index, need(is_ungreeted));
                found.held.entry(teller).or_default().push(with);
            }
            // GREETED
            (Some(holder), 0 | 1, _) if record.context_version != 0 => {
                let is_ungreeted = unheard == 1 || record.record_flags & RECORD_GREET != 0;
                let backend = control.backends.get(holder as usize);
                let is_there = backend.is_some_and(|it| it.session.load(SeqCst) == record.id);
                if is_there {
                    let with = (index, need(is_ungreeted));
                    found.held.entry(holder).or_default().push(with);
                }
            }
            _ => {}
        }
    }
    if left.earlier.is_some() {
        found.held.clear();
    }
    found
}

/// What an earlier dispatcher has stored.
struct Old<'a> {
    contexts: OldContexts<'a>,
    /// Its server was not this one.
    is_of_earlier: bool,
    /// Of the statements of all sessions, by their numbers, which are given away anew.
    counters: HashMap<u32, Counters>,
}

impl<'a> Old<'a> {
    fn of(
        contexts: OldContexts<'a>,
        found: &Adoptable,
        earlier: Option<&Control>,
        control: &Control,
    ) -> Old<'a> {
        let control = earlier.unwrap_or(control);
        let held = found.held.values().flatten().map(|(index, _)| *index);
        let records = (found.free.iter().copied().chain(held)).filter_map(|it| contexts.record(it));
        let items = records
            .filter_map(|record| contexts.items(&record))
            .flatten();
        let counters = items
            .filter_map(|(item, _)| Some((item.counter, control.read_counters(item.counter)?)))
            .collect();
        Old {
            contexts,
            is_of_earlier: earlier.is_some(),
            counters,
        }
    }
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

    /// Adopts sessions, and the backends that have some of them. `are_sure`: no backend can have
    /// any of those that are free. `process_of` gives a backend's pidfd away. Returns how many
    /// sessions it has adopted. Of the others, those that are free end with the keeper; a backend
    /// keeps its own as an ordinary connection.
    pub fn adopt(
        &mut self,
        left: &Left,
        found: &Adoptable,
        are_sure: bool,
        process_of: &mut impl FnMut(u32) -> Option<OwnedFd>,
    ) -> usize {
        let sockets = left.sockets(&found.free).unwrap_or_else(|error| {
            tracing::warn!("sessions of an earlier dispatcher are lost: {error}");
            Vec::new()
        });
        let Some(contexts) = left.contexts() else {
            return 0;
        };
        let old = Old::of(contexts, found, left.earlier.as_ref(), &self.control);
        let mut adopted = 0;
        for (index, socket) in sockets {
            let Some(record) = old.contexts.record(index) else {
                continue;
            };
            // An earlier server's process ID may have no place here.
            let pid = self.control.identities[index as usize].pid.load(SeqCst);
            if pid == record.cancel_pid && (are_sure || !is_in_doubt(&socket, &record)) {
                let is_adopted = self.adopt_one(None, socket, record, &old);
                adopted += usize::from(is_adopted.is_some());
            }
            let is_here = self.core.sessions().in_slot(index);
            if is_here.is_none_or(|id| self.sockets.fd(id) < 0) {
                self.control.clear_session(index);
            }
        }
        if are_sure {
            adopted += self.adopt_held(left, &found.held, &old, process_of);
        }
        adopted
    }

    fn adopt_held(
        &mut self,
        left: &Left,
        held: &BTreeMap<u32, Vec<(u32, Need)>>,
        old: &Old<'_>,
        process_of: &mut impl FnMut(u32) -> Option<OwnedFd>,
    ) -> usize {
        let mut adopted = 0;
        for (holder, with) in held {
            let slots: Vec<u32> = with.iter().map(|(index, _)| *index).collect();
            let backend = &self.control.backends[*holder as usize];
            let has_ended = backend.state.load(SeqCst) == BACKEND_FREE;
            let mut sessions = Vec::new();
            for (index, socket) in left.sockets(&slots).unwrap_or_default() {
                let need = with.iter().find(|(of, _)| *of == index).map(|it| it.1);
                let (Some(record), Some(need)) = (old.contexts.record(index), need) else {
                    continue;
                };
                if (self.adopt_one(Some((*holder, need)), socket, record, old)).is_some() {
                    sessions.push(record.id);
                } else if has_ended || self.control.sessions[index as usize].owner.load(SeqCst) == 0
                {
                    self.control.clear_session(index);
                }
            }
            adopted += sessions.len();
            if sessions.is_empty() {
                continue;
            }
            // The core has taken none for a backend that has ended.
            if let Some(process) = process_of(*holder) {
                let pid = backend.pid.load(SeqCst);
                self.links.adopt(*holder, (pid, process), sessions);
            }
        }
        adopted
    }

    /// Adopted backends connect from here on. What they then tell is lost if this process ends
    /// before it has read that, so it must be ready.
    pub fn call_adopted(&self) {
        for slot in self.links.awaited() {
            let backend = &self.control.backends[slot as usize];
            let own_pid = u64::from(std::process::id());
            backend.attach_token.store(own_pid, SeqCst);
            self.links.wake(slot);
        }
    }

    /// `holder`: the slot of the backend that has the session, which serves on, and what that tells
    /// of it first.
    fn adopt_one(
        &mut self,
        holder: Option<(u32, Need)>,
        socket: OwnedFd,
        record: SessionRecord,
        old: &Old<'_>,
    ) -> Option<()> {
        let (id, index) = (record.id, index_of(record.id));
        let key = tenant_of(old.contexts.content(record.tenant_entry)?.value).ok()?;
        let items = old.contexts.items(&record)?;
        let (role, database) = (key.role_oid, key.database_oid);
        let tenant = self.tenant_for(key)?;
        let is_new = record.record_flags & RECORD_GREET != 0;
        if !self.core.adopt_session(tenant, id, holder) {
            return None;
        }
        let address = Address {
            family: record.peer_family,
            port: record.peer_port,
            scope: record.peer_scope,
            bytes: record.peer_address,
        };
        self.sockets.insert(id, socket, Origin::of(&address));
        // The settings that another server begins with are those that it has now.
        let settings_marks = match old.is_of_earlier {
            false => record.settings_marks,
            true => (self.control.header).settings_marks_of(database, role),
        };
        let new = SessionRecord {
            tenant,
            settings_marks,
            account: self.contexts.arena.account_of_role(role),
            starts: self.starts,
            context_version: 0,
            items: 0,
            item_count: 0,
            first_statement: 0,
            statement_count: 0,
            authenticated: 0,
            tenant_entry: 0,
            ..record
        };
        self.contexts.arena.put_record(index, &new);
        let is_to_end = match holder {
            None => self.put_its_words(index, id),
            Some((slot, _)) => {
                self.put_backend_s_words(slot, id, tenant);
                false
            }
        };
        let is_stored = self.store_tenant(index, tenant)
            && self.store_proof(index, old.contexts.content(record.authenticated))
            && self.store_old(index, &items, record.record_flags, &old.counters);
        if !is_stored {
            let report = super::new_session::out_of_memory();
            self.end_with(id, &report);
            return None;
        }
        let added = match is_new || holder.is_some() {
            true => self.sockets.add_unarmed(id, false),
            false => self.sockets.add(id, false),
        };
        if added.is_err() {
            self.tell(Event::Ended(id, crate::core::Ending::Cut));
            return None;
        }
        self.sockets.keep(id);
        if is_new && holder.is_none() {
            self.tell(Event::ToGreet(id));
        }
        if is_to_end {
            self.tell(Event::Terminate(id));
        }
        Some(())
    }

    /// The backend has the session of this tenant, or has given it back: by the new dispatcher's
    /// numbers.
    fn put_backend_s_words(&self, slot: u32, id: SessionId, tenant: u32) {
        let backend = &self.control.backends[slot as usize];
        let pool = self.core.backend(slot).map_or(0, Backend::pool);
        backend.pool.store(pool, SeqCst);
        if backend.session.load(SeqCst) == id {
            backend.tenant.store(tenant + 1, SeqCst);
        }
    }

    /// Leaves what lasts in the words of a session that no backend has. True if the session has
    /// been told to end.
    fn put_its_words(&self, index: u32, id: SessionId) -> bool {
        let slot = &self.control.sessions[index as usize];
        let identity = &self.control.identities[index as usize];
        slot.id.store(id, SeqCst);
        slot.flags.fetch_and(LASTING_FLAGS, SeqCst);
        slot.last_backend.store(0, Relaxed);
        slot.dedicated_cause.store(0, Relaxed);
        slot.claimed.store(0, Relaxed);
        if !matches!(slot.state.load(SeqCst), STATE_IDLE | STATE_LOGIN) {
            slot.state_since_us.store(self.now.shared_us, Relaxed);
            slot.state.store(STATE_IDLE, SeqCst);
        }
        identity.id.store(id, SeqCst);
        identity.cancel.store(0, SeqCst);
        identity.terminate.load(SeqCst) == id
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
        counters: &HashMap<u32, Counters>,
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
            let counters = counters.get(&item.counter);
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
