//! The events that the core takes, and the actions that it asks for.

use super::{ClientOwes, PauseState, PoolChange, Roles, Scope, Word};
use crate::protocol::opening::Failure;

/// An event. The driver carries out all pending actions before it tells the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session's socket is readable or, if `hup`, its client has hung up.
    Spoke {
        id: SessionId,
        hup: bool,
    },
    /// What a socket holds; the answer to [`Action::Look`].
    Said {
        id: SessionId,
        look: Look,
        says: Says,
    },
    /// A backend is to greet a new session.
    ToGreet(SessionId),
    Greeted(SessionId),
    /// A backend has given the session back by a message; its context is stored.
    GivenBack(SessionId),
    /// The stored context of a session has grown by this number of bytes, or shrunk.
    Stored {
        id: SessionId,
        grown: i64,
    },
    /// A session has ended: its backend said so, or its socket failed.
    Ended(SessionId, Ending),
    /// The dispatcher has skipped a request to its end.
    Skipped(SessionId),
    /// A client that has the session's key wants its query cancelled.
    Cancel(SessionId),
    /// The administrator ends the session. A backend that takes it later sees that by itself.
    Terminate(SessionId),

    /// A claim has succeeded, and the session was sent.
    Claimed,
    /// The backend's word has changed meanwhile.
    ClaimLost(SessionId),
    /// The session is in the ready queue.
    Queued,
    /// The kernel sends no descriptors now (ETOOMANYREFS, no memory), neither into the queue nor to
    /// a backend. The backend is free again.
    NotSent {
        pool: u32,
        id: SessionId,
        to_queue: bool,
    },
    /// The session is not in the ready queue, because the queue is full.
    QueueFull {
        pool: u32,
        id: SessionId,
    },
    QueueHasRoom(u32),
    /// A backend has taken the last session of a queue that is held back.
    QueueIsLow(u32),
    /// The session was in a ready queue and has been taken out.
    TakenBack(SessionId),
    /// All sessions of a ready queue have been taken back.
    QueueDrained(u32),

    /// A backend has logged in, attached, and was welcomed.
    Attached(u32),
    /// A backend's control connection has ended.
    BackendGone(u32),
    Dedicated(u32, bool),
    /// A backend may have become free.
    MayBeFree(u32),
    /// A backend says that it exits.
    Leaves {
        slot: u32,
        cause: Leaving,
    },
    /// A slot that an earlier dispatcher's backend had is free.
    SlotFreed(u32),
    /// The ticket was taken back; or, if `false`, a backend had already taken it.
    TicketBack(bool),
    /// The totals of a backend: transactions, and CPU time.
    Measured {
        slot: u32,
        transactions: u64,
        cpu_us: u64,
        /// The socket of its session's client has no room: the client does not read what was sent.
        is_unread: bool,
    },

    /// A hold on a database has ended; the hold's number.
    HoldEnded(u32),
    /// The connection of a statement that pauses has ended; its number.
    PauseAskerGone(u32),

    /// By time: checks limits that are in milliseconds.
    Tick,
    /// By time: once a second.
    Sweep,
    /// All events of this round have been told.
    RoundEnds,
    /// All pools have been served: does one of them want room?
    MakeRoom,
    /// The server, or this dispatcher, ends.
    Stop {
        /// Sessions that no backend has are kept, and do nothing.
        holds: bool,
    },
    /// The server is gone.
    Abandon,
    /// Another dispatcher follows this one.
    HandBack,
    /// The core resumes what it could not decide before.
    Then(Then),
}

/// What the core resumes when the actions before are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Cancel(SessionId),
    Terminate(SessionId),
    EndUngreeted(u32),
    Expire(u32),
    LeaveUngreeted(SessionId),
    Bury {
        slot: u32,
        /// The last backend of its pool.
        is_last: bool,
    },
    /// Ends sessions of databases that are dropped by force, or all sessions.
    EndSessions,
    /// Ends the sessions that no backend holds.
    EndHeldHere,
}

/// Why a backend exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    Asked,
    /// What a session left in the backend cannot be cleaned up.
    Unclean,
    /// A session needs a backend with the settings that starting backends read now.
    Outdated,
}

/// Why the dispatcher looks at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Has the client of an ungreeted session gone?
    Ungreeted,
    /// Does the client ask for something, or leave?
    Leaving,
    /// Is there a request that a cancel may mean?
    Cancel,
    /// The backend that had the session is dead: is the request still in the socket?
    Lost,
}

/// What is in a session's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    Nothing,
    Something,
    /// A Terminate message, or the end of the stream.
    Leaves,
    Broken,
}

/// How a session's connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client has gone. No other process holds the socket, or one holds it for a moment only.
    Left,
    /// The connection is cut, whichever process holds the socket.
    Cut,
}

/// Why the dispatcher ends a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The client gets no message.
    Ended(Ending),
    Administrator,
    IdleTooLong,
    WaitedTooLong,
    /// No backend can be opened for it.
    Failed(Box<Failure>),
}

/// Why a request is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    WaitedTooLong,
    Cancelled,
}

/// What the core wants done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Claims a backend in the state it was seen in and sends it the session; answered by
    /// `Claimed`, `ClaimLost` or `NotSent`.
    Claim {
        slot: u32,
        seen: Word,
        id: SessionId,
    },
    /// Sends the session into the pool's ready queue; answered by `Queued`, `QueueFull` or
    /// `NotSent`.
    Enqueue {
        pool: u32,
        id: SessionId,
    },
    /// Sessions wait that are not sent, because their turn comes later. The backend that takes the
    /// last session of the pool's queue is to say so. Answered by `QueueIsLow` if it has been
    /// taken.
    HoldBack(u32),
    /// Wakes a backend to look at the ready queue.
    Poke(u32),
    /// Takes back all sessions of the pool's ready queue; answered by `TakenBack` for each session,
    /// then `QueueDrained`.
    TakeBack(u32),
    /// Is the queue's counter right? Answered by `Core::check_queue`.
    CheckQueue(u32),
    /// Sets the counter to zero: no backend takes from the queue any more, and it is empty.
    ResetCounter(u32),
    /// The pool has no backend any more. All sessions of its queue are taken back, as by
    /// `TakeBack`, and its descriptors are closed. `Open` makes another queue.
    CloseQueue(u32),

    /// Shows the session as waiting.
    ShowWaiting(SessionId),
    /// Arms the socket: the client's next message is an event.
    Arm(SessionId),
    /// Arms the socket for its end: that the client goes is an event.
    ArmForEnd(SessionId),
    /// Looks at the socket; answered by `Said`.
    Look {
        id: SessionId,
        look: Look,
    },
    /// Skips the session's request: at once or, if `later`, when its socket is readable. Answered
    /// by `Skipped` or `Ended`.
    Skip {
        id: SessionId,
        why: Skipped,
        later: bool,
    },
    /// Continues to skip the request.
    SkipOn(SessionId),
    /// Ends the session.
    End {
        id: SessionId,
        tenant: u32,
        why: Why,
    },

    /// Tells the backend that has the session.
    CancelOnBackend(SessionId),
    TerminateOnBackend(SessionId),
    /// The next backend that has the session is to cancel its query.
    MarkCancel(SessionId),
    /// Clears that mark: the dispatcher handles the cancel itself.
    ClearCancel(SessionId),

    /// Opens a backend; answered by `Attached`, or by `Core::open_failed`.
    Open {
        slot: u32,
        pool: u32,
    },
    /// Asks a backend to exit at its next boundary.
    Retire(u32),
    /// Asks a backend for a session that lingers on it.
    Recall {
        slot: u32,
        id: SessionId,
    },
    /// Tells a dedicated session, if it is idle, to end.
    Evict {
        slot: u32,
        id: SessionId,
    },
    /// Ends a session whose client keeps a backend waiting, if it still does.
    EndIdle {
        slot: u32,
        id: SessionId,
        waits_for: ClientOwes,
        idle_us: u64,
    },
    /// From now on, sessions of this tenant (None: all sessions) keep their backends; or no longer
    /// keep them.
    Keep {
        tenant: Option<u32>,
        keeps: bool,
    },
    /// While `is_counted`, backends keep no session of this tenant between two transactions, and
    /// report when they give one back.
    Count {
        tenant: u32,
        is_counted: bool,
    },
    /// While `is_paused`, backends hold the next request of this tenant's dedicated sessions.
    Pause {
        tenant: u32,
        is_paused: bool,
    },
    /// While `is_exempt`, a backend does not hold this session's requests.
    Exempt {
        id: SessionId,
        is_exempt: bool,
    },
    /// The bytes of contexts that may still be stored for sessions of this tenant; `i64::MAX`: no
    /// limit.
    ShowMemoryLeft {
        tenant: u32,
        left: i64,
    },
    /// There is more memory than before: backends of this pool that keep their sessions for want of
    /// memory check again.
    WakeForMemory(u32),
    /// The backend is gone; its slot is free.
    FreeSlot(u32),
    /// Any one of these backends may take the ticket and exit.
    Offer {
        ticket: u32,
        slots: Vec<u32>,
    },
    /// Answered by `TicketBack`.
    TakeTicketBack(u32),
    /// Reads a backend's totals; answered by `Measured`.
    Measure(u32),
    /// Clears what is left of a ticket in a slot.
    ClearTicket {
        slot: u32,
        ticket: u32,
    },

    /// Asks for the limits of this role in this database; answered by `Core::set_pool_limits`.
    AskLimits {
        role: u32,
        database: u32,
    },
    /// Reports the sessions in the database of this hold.
    TellWhoIsIn {
        number: u32,
        roles: Roles,
    },
    /// Answers the statement that pauses.
    TellPause {
        asker: u32,
        state: PauseState,
    },
    /// Logs that a pause has ended because its time is over.
    TellPauseOver(Scope),
    /// Logs a new failure to start backends for a pool.
    TellFailure(u32),
    /// A pool has grown or shrunk: writes a line of the scheduling log.
    TellPool(PoolChange),
    /// Forgets the stored greetings of all sessions: they are out of date.
    ForgetAllGreetings,
    PoolDropped(u32),
    TenantDropped(u32),
    Then(Then),
}

// ----------------------------------------------------------------------------
// Names of sessions, and of groups: the pools of one role in one database.

/// The generation in the upper half (never 0, and 31 bits, so that a bigint holds a name), the
/// index in the lower half.
pub type SessionId = u64;

pub fn index_of(session: SessionId) -> u32 {
    session as u32
}

pub fn name(generation: u32, index: u32) -> SessionId {
    (u64::from(generation) << 32) | u64::from(index)
}

/// Role and database.
pub type GroupKey = (u32, u32);
