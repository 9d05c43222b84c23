//! The words in shared memory by which dispatcher and backends agree which backend serves which
//! session. This file has the dispatcher's steps whose order matters.
//!
//! The backends' steps are in `handover.c`, `idle.c` and `identity.c`. `model.rs` repeats them,
//! and runs the functions of this file against them in every order that the memory model allows
//! (loom). So a change in either place must be made in both. Each function states what it
//! guarantees.
//!
//! The words belong to the shared memory; nothing here owns them.

use super::layout::shared::*;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{fence, AtomicI32, AtomicU32, AtomicU64};

/// An atomic word that both sides change. In the model it is loom's.
pub trait Word<T> {
    fn read(&self) -> T;
    fn write(&self, to: T);
    fn exchange(&self, to: T) -> T;
    /// Compare-and-swap: false if the word was not `from`.
    fn change(&self, from: T, to: T) -> bool;
    /// A full barrier between the accesses before it and after it.
    fn barrier(&self);
}

/// A counter of queued sessions.
pub trait Counter: Word<i32> {
    fn add(&self, by: i32);
}

/// A word of flags. Both functions return its previous value.
pub trait Flags: Word<u32> {
    fn set(&self, flags: u32) -> u32;
    fn clear(&self, flags: u32) -> u32;
}

/// Implements the traits for the server's words, and in the model for loom's. `fence` must come
/// from the same library.
macro_rules! words {
    ($($atomic:ty, $value:ty;)*) => {
        $(impl Word<$value> for $atomic {
            fn read(&self) -> $value {
                self.load(SeqCst)
            }
            fn write(&self, to: $value) {
                self.store(to, SeqCst);
            }
            fn exchange(&self, to: $value) -> $value {
                self.swap(to, SeqCst)
            }
            fn change(&self, from: $value, to: $value) -> bool {
                self.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
            }
            fn barrier(&self) {
                fence(SeqCst);
            }
        })*

        impl Counter for AtomicI32 {
            fn add(&self, by: i32) {
                self.fetch_add(by, SeqCst);
            }
        }

        impl Flags for AtomicU32 {
            fn set(&self, flags: u32) -> u32 {
                self.fetch_or(flags, SeqCst)
            }
            fn clear(&self, flags: u32) -> u32 {
                self.fetch_and(!flags, SeqCst)
            }
        }
    };
}
words!(AtomicU32, u32; AtomicI32, i32; AtomicU64, u64;);

// Follows the macro, which it uses.
#[cfg(test)]
mod model;

/// Claims a backend whose state was `seen`, idle or lingering. True: the backend now waits for
/// an ASSIGN, which the dispatcher must send. False: the backend has claimed itself.
pub fn claim(state: &impl Word<u32>, seen: u32) -> bool {
    state.change(seen, BACKEND_ASSIGNED)
}

/// Undoes a claim whose ASSIGN could not be sent. The backend may have read the state
/// meanwhile, so it must be woken to read it again.
pub fn unclaim(state: &impl Word<u32>, seen: u32) {
    state.change(BACKEND_ASSIGNED, seen);
}

/// Comes before a session is sent to the ready queue: a backend looks into the queue only if
/// the counter is above zero.
pub fn announce(queued: &impl Counter) {
    queued.add(1);
}

/// The session was not sent, or was taken out of the queue again.
pub fn withdraw(queued: &impl Counter) {
    queued.add(-1);
}

/// Comes after a session was sent to the queue and before the backends' states are read. Then
/// either the dispatcher sees that a backend is free and pokes it, or that backend sees the
/// session before it sleeps.
pub fn announced(queued: &impl Counter) {
    queued.barrier();
}

/// Must a POKE be sent? Not while another is under way: a backend that reads a POKE clears the
/// word before it looks at the queue.
pub fn poke(poked: &impl Word<u32>) -> bool {
    poked.exchange(1) == 0
}

/// The POKE could not be sent.
pub fn not_poked(poked: &impl Word<u32>) {
    poked.write(0);
}

/// Marks the session, so that the next backend that takes it cancels its statement. True: a
/// backend has the session already and may have missed the mark. The mark is then cleared, and
/// that backend must be told.
pub fn mark_cancel(flags: &impl Flags, owner: &impl Word<u32>) -> bool {
    flags.set(SESSION_CANCEL);
    flags.barrier();
    owner.read() != 0 && flags.clear(SESSION_CANCEL) & SESSION_CANCEL != 0
}

/// Names the session to the backend that should have it, which must then be signalled. False:
/// the backend has another session.
pub fn name_cancelled(session: &impl Word<u64>, cancel: &impl Word<u64>, id: u64) -> bool {
    let is_there = session.read() == id;
    if is_there {
        cancel.write(id);
    }
    is_there
}

/// Offers a ticket to these backends. The first one that takes it retires.
pub fn offer<'a, W: Word<u32> + 'a>(
    retire: impl Iterator<Item = &'a W>,
    room_ticket: &W,
    ticket: u32,
) {
    retire.for_each(|word| word.write(ticket));
    room_ticket.write(ticket);
}

/// The backend that has taken the latest ticket, if one has. The word keeps it until the next
/// ticket is offered.
pub fn ticket_taker(room_ticket: &impl Word<u32>) -> Option<u32> {
    room_ticket.read().checked_sub(TICKET_TAKEN)
}

/// Withdraws the ticket. True: no backend retires. False: a backend has taken the ticket and
/// will retire.
pub fn take_ticket_back(room_ticket: &impl Word<u32>, ticket: u32) -> bool {
    room_ticket.change(ticket, 0)
}
