//! What happens to the core, and what it asks for in return.

use super::{ClientOwes, PoolChange, Roles, Word};
use crate::protocol::opening::Failure;

/// What has happened. Whoever tells carries out the actions before he tells
/// the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session's socket is readable or, `hup`, its client has hung up.
    Spoke {
        id: SessionId,
        hup: bool,
    },
    /// What a socket holds, as asked by [`Action::Look`].
    Said {
        id: SessionId,
        look: Look,
        says: Says,
    },
    /// A new session is to be greeted by a backend.
    ToGreet(SessionId),
    Greeted(SessionId),
    /// A backend has given it back by a message; its context is stored.
    GivenBack(SessionId),
    /// So many bytes more, or less, of its context are stored than before.
    Stored {
        id: SessionId,
        grown: i64,
    },
    /// A session has ended: it was its backend that said so, or its socket failed.
    Ended(SessionId, Ending),
    /// A request has been passed over to its end.
    Skipped(SessionId),
    /// Whoever has its key wants what it runs cancelled.
    Cancel(SessionId),
    /// The administrator ends it; whoever gets it knows already.
    Terminate(SessionId),

    /// A claim has succeeded, and the session was sent.
    Claimed,
    /// The backend's word has changed meanwhile.
    ClaimLost(SessionId),
    /// The session is in the ready queue.
    Queued,
    /// The kernel sends no descriptors now (ETOOMANYREFS, no memory): neither to a
    /// backend, which is free again, nor into the queue.
    NotSent {
        pool: u32,
        id: SessionId,
        to_queue: bool,
    },
    /// It is not: the queue is full.
    QueueFull {
        pool: u32,
        id: SessionId,
    },
    QueueHasRoom(u32),
    /// The last of a queue that is held back has been taken.
    QueueIsLow(u32),
    /// It was in a ready queue and is not any more.
    TakenBack(SessionId),
    /// All that was in a ready queue has been taken back.
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
    /// The ticket was taken back; or, `false`, somebody had it already.
    TicketBack(bool),
    /// What a backend has done so far: transactions, and processor time.
    Measured {
        slot: u32,
        transactions: u64,
        cpu_us: u64,
        /// The socket of its session's client has no room: what was sent is not read.
        is_unread: bool,
    },

    /// A hold on a database has ended; by its number.
    HoldEnded(u32),

    /// By time: what has limits in milliseconds.
    Tick,
    /// By time: once a second.
    Sweep,
    /// All that happened in this round has been told.
    RoundEnds,
    /// Pools have been looked at: is there one that wants room?
    MakeRoom,
    /// The server, or this dispatcher, ends.
    Stop,
    /// The server is no more.
    Abandon,
    /// The core goes on with what it could not decide before.
    Then(Then),
}

/// What the core goes on with when the actions before are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Cancel(SessionId),
    Terminate(SessionId),
    EndUngreeted(u32),
    Expire(u32),
    LeaveUngreeted(SessionId),
    Bury {
        slot: u32,
        /// Of its pool.
        is_last: bool,
    },
    /// Sessions of databases that are dropped by force, or all.
    EndSessions,
}

/// Why a backend exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    Asked,
    /// What a session left there cannot be cleaned.
    Unclean,
    /// A session has come that needs one with what starting backends read now.
    Outdated,
}

/// Why a socket is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Has it gone that is still to be greeted?
    Ungreeted,
    /// Does it ask for something, or leave?
    Leaving,
    /// Is there a request that a cancel may mean?
    Cancel,
    /// Who had it in hand is dead: is its request there still?
    Lost,
}

/// What is in a session's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    Nothing,
    Something,
    /// Terminate, or its end.
    Leaves,
    Broken,
}

/// How a session's connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client has gone, and nobody else holds the socket, or not for long.
    Left,
    /// Whoever holds the socket.
    Cut,
}

/// Why a session is ended from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// There is nothing to tell it.
    Ended(Ending),
    Administrator,
    IdleTooLong,
    WaitedTooLong,
    /// No backend can be opened for it.
    Failed(Box<Failure>),
}

/// Why a request is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    WaitedTooLong,
    Cancelled,
}

/// What the core wants done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Claims a backend in the state it was seen in and sends it the session;
    /// answered by `Claimed` or `ClaimLost`.
    Claim {
        slot: u32,
        seen: Word,
        id: SessionId,
    },
    /// Into the pool's ready queue; answered by `Queued` or `QueueFull`.
    Enqueue {
        pool: u32,
        id: SessionId,
    },
    /// Others wait whose turn is to come, and are not sent: whoever takes the last of the
    /// pool's queue is to say so. Answered by `QueueIsLow` if it has been taken.
    HoldBack(u32),
    /// Wakes a backend to look at the ready queue.
    Poke(u32),
    /// All that is in the pool's ready queue; answered by `TakenBack` for
    /// each, and `QueueDrained`.
    TakeBack(u32),
    /// Is the queue's counter right? Answered by `Core::check_queue`.
    CheckQueue(u32),
    /// Nobody takes from the queue any more, and it is empty.
    ResetCounter(u32),
    /// The pool has no backend any more: all that is in its queue is taken back,
    /// as by `TakeBack`, and its descriptors are closed. `Open` makes another.
    CloseQueue(u32),

    /// Shows the session as waiting.
    ShowWaiting(SessionId),
    /// Its client's next word is an event.
    Arm(SessionId),
    /// That its client goes is an event.
    ArmForEnd(SessionId),
    /// Answered by `Said`.
    Look {
        id: SessionId,
        look: Look,
    },
    /// Passes over its request; at once, or (`later`) when its socket is
    /// readable. Answered by `Skipped` or `Ended`.
    Skip {
        id: SessionId,
        why: Skipped,
        later: bool,
    },
    /// Goes on with that.
    SkipOn(SessionId),
    /// The session is no more.
    End {
        id: SessionId,
        tenant: u32,
        why: Why,
    },

    /// Tells the backend that has the session.
    CancelOnBackend(SessionId),
    TerminateOnBackend(SessionId),
    /// Whoever has it next is to cancel.
    MarkCancel(SessionId),
    /// It is cancelled here.
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
    /// Sessions of this tenant, or (None) of all, keep their backends from now on;
    /// or not any more.
    Keep {
        tenant: Option<u32>,
        keeps: bool,
    },
    /// Backends keep no session of this tenant between two transactions, and say when they
    /// give one back; or need not any more.
    Count {
        tenant: u32,
        is_counted: bool,
    },
    /// So many bytes more of contexts may be stored for sessions of this tenant;
    /// `i64::MAX`: there is no limit.
    ShowMemoryLeft {
        tenant: u32,
        left: i64,
    },
    /// There is more than before: backends of this pool that keep their sessions for
    /// want of it look again.
    WakeForMemory(u32),
    /// The backend is no more; its slot is free.
    FreeSlot(u32),
    /// Any of these may take the ticket and exit.
    Offer {
        ticket: u32,
        slots: Vec<u32>,
    },
    /// Answered by `TicketBack`.
    TakeTicketBack(u32),
    /// How much a backend has done; answered by `Measured`.
    Measure(u32),
    /// What is left of a ticket in a slot.
    ClearTicket {
        slot: u32,
        ticket: u32,
    },

    /// Which limits has this role in this database? Answered by
    /// `Core::set_pool_limits`.
    AskLimits {
        role: u32,
        database: u32,
    },
    /// The sessions that are in the database of this hold.
    TellWhoIsIn {
        number: u32,
        roles: Roles,
    },
    /// A new failure to start backends for a pool, which is worth a line.
    TellFailure(u32),
    /// A pool has grown or shrunk: a line of the scheduling log.
    TellPool(PoolChange),
    /// What any session was greeted with is past.
    ForgetAllGreetings,
    PoolDropped(u32),
    TenantDropped(u32),
    Then(Then),
}

// ----------------------------------------------------------------------------
// Names of sessions, and of pools of one role in one database.

/// Generation in the upper half (never 0, and 31 bits, so that a bigint holds a
/// name), index in the lower.
pub type SessionId = u64;

pub fn index_of(session: SessionId) -> u32 {
    session as u32
}

pub fn name(generation: u32, index: u32) -> SessionId {
    (u64::from(generation) << 32) | u64::from(index)
}

/// Role and database.
pub type GroupKey = (u32, u32);
