//! What the core is shown of the memory that backends write too.
//!
//! Whatever is read here may be past when it is acted upon. So nothing is
//! decided by it alone: a backend is claimed by an [`Action`](super::Action)
//! whose loss comes back as an event, a session is somebody else's as long as
//! its slot says so, and a count that is wrong for a moment costs a look more.

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
    /// It can be claimed: it has no session, or one that is silent.
    pub fn is_free(self) -> bool {
        matches!(self, Word::Idle | Word::Linger)
    }
}

/// State of a session's slot, as far as it matters here.
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
    /// It says that its session is dedicated; so it takes nobody else.
    fn backend_keeps(&self, slot: u32) -> bool;
    fn backend_has_served(&self, slot: u32) -> bool;
    /// May a backend of ours be started in this slot?
    fn slot_is_free(&self, slot: u32) -> bool;

    /// Messages in a pool's ready queue. It may count one that has just been
    /// taken, or whose taker died of it.
    fn queued(&self, pool: u32) -> i32;

    /// The backend slot that holds a session; a slot that there is.
    fn holder(&self, index: u32) -> Option<u32>;
    fn shown(&self, index: u32) -> Shown;
    fn session_since_us(&self, index: u32) -> i64;
    /// May a new session have this slot?
    fn index_is_free(&self, index: u32) -> bool;
    fn last_backend(&self, index: u32) -> Option<u32>;
    fn transactions(&self, index: u32) -> u64;
    /// It was cancelled on its way to a backend.
    fn is_cancelled(&self, index: u32) -> bool;
    fn idle_timeout_us(&self, index: u32) -> i64;
    /// The backend that has taken the ticket which was out last, if one has.
    fn ticket_taker(&self) -> Option<u32>;
}
