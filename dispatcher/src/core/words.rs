//! What the core sees of the memory that backends write too.
//!
//! A value read here may be out of date when the core acts on it. So no decision rests on it alone.
//! A backend is claimed by an [`Action`](super::Action), and a lost claim comes back as an event. A
//! session belongs to another process as long as its slot says so. A count that is wrong for a
//! moment costs one more check.

use super::SessionId;

/// State of a backend's slot (`baton_shared.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Free,
    Starting,
    Idle,
    Linger,
    Assigned,
    Busy,
    Retiring,
}

impl Word {
    /// It can be claimed: it has no session, or a silent one.
    pub fn is_free(self) -> bool {
        matches!(self, Word::Idle | Word::Linger)
    }
}

/// State of a session's slot, as far as the core needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    Idle,
    InTransaction,
    Waiting,
    Other,
}

/// The shared words; read only.
pub trait Words {
    fn backend(&self, slot: u32) -> Word;
    /// When the word last changed, as TimestampTz.
    fn backend_since_us(&self, slot: u32) -> i64;
    /// The session that a backend says it holds; 0: none.
    fn backend_session(&self, slot: u32) -> SessionId;
    /// The backend says that its session is dedicated: it takes no other session.
    fn backend_keeps(&self, slot: u32) -> bool;
    fn backend_has_served(&self, slot: u32) -> bool;
    /// May the dispatcher start a backend in this slot?
    fn slot_is_free(&self, slot: u32) -> bool;

    /// Messages in a pool's ready queue. It may count a message that has just been taken, or whose
    /// taker died before it lowered the counter.
    fn queued(&self, pool: u32) -> i32;

    /// The existing backend slot that holds a session.
    fn holder(&self, index: u32) -> Option<u32>;
    fn shown(&self, index: u32) -> Shown;
    fn session_since_us(&self, index: u32) -> i64;
    /// May a new session have this slot?
    fn index_is_free(&self, index: u32) -> bool;
    fn last_backend(&self, index: u32) -> Option<u32>;
    fn transactions(&self, index: u32) -> u64;
    /// The session was cancelled on its way to a backend.
    fn is_cancelled(&self, index: u32) -> bool;
    fn idle_timeout_us(&self, index: u32) -> i64;
    /// The backend that has taken the last ticket offered, if one has.
    fn ticket_taker(&self) -> Option<u32>;
}
