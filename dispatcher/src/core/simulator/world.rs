//! What the core is shown, and the world behind it: shared words, kernel queues, the epoll,
//! sockets. It follows baton_shared.h and the kernel.

use super::settings::{Needs, Settings};
use crate::core::{index_of, SessionId, Shown, Word, Words};
use std::cell::Cell;
use std::collections::VecDeque;

/// BATON_TICKET_TAKEN
pub const TICKET_TAKEN: u32 = 1 << 31;

/// Messages that fit into a ready queue.
pub const QUEUE_HOLDS: usize = 12;

/// Shared: a backend's slot.
#[derive(Clone, Debug)]
pub struct BackendWords {
    pub word: Word,
    pub since_us: i64,
    pub session: SessionId,
    pub served: u64,
    /// 0: no, 1: now, else a ticket.
    pub retire: u32,
    pub poked: bool,
    pub keeps: bool,
}

pub const FREE: BackendWords = BackendWords {
    word: Word::Free,
    since_us: 0,
    session: 0,
    served: 0,
    retire: 0,
    poked: false,
    keeps: false,
};

/// Shared: a session's slot.
#[derive(Clone, Debug)]
pub struct SessionWords {
    pub is_free: bool,
    pub owner: u32,
    pub shown: Shown,
    pub since_us: i64,
    pub last_backend: u32,
    pub transactions: u64,
    pub cancelled: bool,
    pub idle_timeout_us: i64,
}

pub const NO_SESSION: SessionWords = SessionWords {
    is_free: true,
    owner: 0,
    shown: Shown::Other,
    since_us: 0,
    last_backend: 0,
    transactions: 0,
    cancelled: false,
    idle_timeout_us: 0,
};

#[derive(Clone, Debug, Default)]
pub struct PoolWords {
    pub queued: i32,
    pub queue: VecDeque<SessionId>,
    /// The backend that takes the last session says so.
    pub is_held_back: bool,
}

/// Shared: a tenant's slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct TenantWords {
    /// Its sessions keep their backends.
    pub keeps: bool,
    /// Backends keep no session of it between two transactions, and say so.
    pub is_counted: bool,
    /// A dedicated session's next request is held.
    pub is_paused: bool,
    pub memory_left: i64,
}

/// How a socket is armed in the epoll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    Not,
    ForEnd,
    Fully,
}

/// How a client keeps a backend waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idles {
    Not,
    InTransaction,
    Unread,
}

/// A client and its socket.
#[derive(Clone)]
pub struct Client {
    pub id: SessionId,
    /// Role and database.
    pub group: (u32, u32),
    pub tenant: u32,
    /// Of settings (settings.rs).
    pub needs: Needs,
    /// The stored bytes of its context.
    pub context_bytes: i64,
    /// Requests in its socket that no process has read.
    pub asked: u32,
    pub answered: u32,
    pub has_gone: bool,
    pub armed: Armed,
    /// It has been greeted (as the record's flag says).
    pub greeted: bool,
    /// It was told of its end, or its socket was closed.
    pub closed: bool,
    /// When the pending request was sent.
    pub asks_since_us: u64,
    /// Its next requests make it dedicated, for this number of transactions.
    pub taints: u32,
    /// How long its transactions take.
    pub transaction_us: u64,
    /// Its next transaction waits for the lock.
    pub wants_lock: bool,
    /// For most of a transaction the backend waits for this client.
    pub idles: Idles,
}

pub struct World {
    pub now_us: u64,
    pub timestamp: i64,
    pub backends: Vec<BackendWords>,
    pub sessions: Vec<SessionWords>,
    pub pools: Vec<PoolWords>,
    pub tenants: Vec<TenantWords>,
    pub clients: Vec<Option<Client>>,
    pub ticket: u32,
    /// The session that has the lock releases it at the end of its next transaction.
    pub lock: Option<SessionId>,
    pub settings: Settings,
    pub force_migration: bool,
    /// Backends look whether a dedicated session is paused: in seeds that have pauses.
    pub has_pauses: bool,
    /// All sessions keep their backends.
    pub keeps: bool,
    /// Nothing that a session does makes it dedicated.
    pub is_plain: bool,
    /// How often pools' words were looked at.
    pub looks: Cell<u64>,
    /// How many words of backends, sessions and pools were read.
    pub words_read: Cell<u64>,
}

impl World {
    pub fn new(sessions: usize, pools: usize, backends: usize) -> World {
        World {
            now_us: 1_000_000,
            timestamp: 1_000_000_000_000,
            backends: vec![FREE; backends],
            sessions: vec![NO_SESSION; sessions],
            pools: vec![PoolWords::default(); pools],
            tenants: vec![TenantWords::default(); pools],
            clients: vec![None; sessions],
            ticket: 0,
            lock: None,
            settings: Settings::default(),
            force_migration: false,
            has_pauses: false,
            keeps: false,
            is_plain: false,
            looks: Cell::new(0),
            words_read: Cell::new(0),
        }
    }

    fn count_word(&self) {
        self.words_read.set(self.words_read.get() + 1);
    }

    pub fn client(&mut self, id: SessionId) -> Option<&mut Client> {
        let client = self.clients.get_mut(index_of(id) as usize)?.as_mut();
        client.filter(|client| client.id == id && !client.closed)
    }

    /// What is told of a session's tenant; None if there is no such session.
    pub fn tenant_of(&self, id: SessionId) -> Option<&TenantWords> {
        let client = self.clients.get(index_of(id) as usize)?.as_ref();
        let client = client.filter(|client| client.id == id)?;
        self.tenants.get(client.tenant as usize)
    }

    /// A client that is still connected has the lock.
    pub fn is_locked(&self) -> bool {
        self.lock.is_some_and(|id| {
            let client = self.clients[index_of(id) as usize].as_ref();
            client.is_some_and(|client| client.id == id && !client.closed && !client.has_gone)
        })
    }

    pub fn session(&mut self, id: SessionId) -> &mut SessionWords {
        &mut self.sessions[index_of(id) as usize]
    }

    pub fn set_word(&mut self, slot: u32, word: Word) {
        let words = &mut self.backends[slot as usize];
        words.word = word;
        words.since_us = self.now_us as i64;
    }

    /// The event that a socket would make now, if any: has the client hung up?
    pub fn event_of(&self, index: usize) -> Option<(SessionId, bool)> {
        let client = self.clients[index].as_ref()?;
        let fires = !client.closed
            && match client.armed {
                Armed::Not => false,
                Armed::ForEnd => client.has_gone,
                Armed::Fully => client.has_gone || client.asked > 0,
            };
        fires.then_some((client.id, client.has_gone))
    }
}

impl Words for World {
    fn backend(&self, slot: u32) -> Word {
        self.count_word();
        self.backends[slot as usize].word
    }

    fn backend_since_us(&self, slot: u32) -> i64 {
        self.count_word();
        self.backends[slot as usize].since_us
    }

    fn backend_session(&self, slot: u32) -> SessionId {
        self.count_word();
        self.backends[slot as usize].session
    }

    fn backend_keeps(&self, slot: u32) -> bool {
        self.count_word();
        self.backends[slot as usize].keeps
    }

    fn backend_has_served(&self, slot: u32) -> bool {
        self.backends[slot as usize].served > 0
    }

    fn slot_is_free(&self, slot: u32) -> bool {
        self.backend(slot) == Word::Free
    }

    fn queued(&self, pool: u32) -> i32 {
        self.count_word();
        self.looks.set(self.looks.get() + 1);
        self.pools[pool as usize].queued
    }

    fn holder(&self, index: u32) -> Option<u32> {
        self.count_word();
        self.sessions[index as usize].owner.checked_sub(1)
    }

    fn shown(&self, index: u32) -> Shown {
        self.count_word();
        self.sessions[index as usize].shown
    }

    fn session_since_us(&self, index: u32) -> i64 {
        self.count_word();
        self.sessions[index as usize].since_us
    }

    fn index_is_free(&self, index: u32) -> bool {
        self.count_word();
        self.sessions[index as usize].is_free
    }

    fn last_backend(&self, index: u32) -> Option<u32> {
        self.count_word();
        self.sessions[index as usize].last_backend.checked_sub(1)
    }

    fn transactions(&self, index: u32) -> u64 {
        self.count_word();
        self.sessions[index as usize].transactions
    }

    fn is_cancelled(&self, index: u32) -> bool {
        self.count_word();
        self.sessions[index as usize].cancelled
    }

    fn idle_timeout_us(&self, index: u32) -> i64 {
        self.count_word();
        self.sessions[index as usize].idle_timeout_us
    }

    fn ticket_taker(&self) -> Option<u32> {
        self.ticket.checked_sub(TICKET_TAKEN)
    }
}
