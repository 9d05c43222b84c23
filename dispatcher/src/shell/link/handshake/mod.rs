//! The words in shared memory by which dispatcher and backends agree who serves
//! whom: each step of the dispatcher's that must come in one order.
//!
//! The backends' steps are in `handover.c`, `idle.c` and
//! `identity.c`. `model.rs` runs these functions against those steps, written
//! down once more, in every order that the memory model allows (loom): a change
//! here or there is a change there. What each function promises is said at it.
//!
//! A word belongs to the memory; nothing here is owned.

use super::layout::shared::*;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{fence, AtomicI32, AtomicU32, AtomicU64};

/// An atomic word that both sides change. In the model it is loom's.
pub trait Word<T> {
    fn read(&self) -> T;
    fn write(&self, to: T);
    fn exchange(&self, to: T) -> T;
    /// Compare-and-swap: false if it was not `from`.
    fn change(&self, from: T, to: T) -> bool;
    /// A full barrier between what came before and what comes after.
    fn barrier(&self);
}

/// A counter.
pub trait Counter: Word<i32> {
    fn add(&self, by: i32);
}

/// Flags; both answer what was there before.
pub trait Flags: Word<u32> {
    fn set(&self, flags: u32) -> u32;
    fn clear(&self, flags: u32) -> u32;
}

/// For the server's words, and for loom's in the model: `fence` is of the same.
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

// After the macro, which it uses.
#[cfg(test)]
mod model;

/// Claims a backend that was `seen` idle or lingering. True: it is ours, and
/// waits for an ASSIGN, which has to be sent. False: it has claimed itself.
pub fn claim(state: &impl Word<u32>, seen: u32) -> bool {
    state.change(seen, BACKEND_ASSIGNED)
}

/// Nothing could be sent to it: as it was. It may have looked meanwhile, and must
/// be woken to look again.
pub fn unclaim(state: &impl Word<u32>, seen: u32) {
    state.change(BACKEND_ASSIGNED, seen);
}

/// Before a session is sent to the ready queue: a backend that counts none does
/// not look for it.
pub fn announce(queued: &impl Counter) {
    queued.add(1);
}

/// Nothing was sent, or it was taken out again.
pub fn withdraw(queued: &impl Counter) {
    queued.add(-1);
}

/// After it was sent, and before the backends' states are looked at: either the
/// dispatcher sees that a backend is free, and pokes it, or that backend sees
/// what was sent before it sleeps.
pub fn announced(queued: &impl Counter) {
    queued.barrier();
}

/// Shall a POKE be sent? Not while one is on its way: who reads it looks at the
/// queue after he has taken the word back.
pub fn poke(poked: &impl Word<u32>) -> bool {
    poked.exchange(1) == 0
}

/// The POKE could not be sent.
pub fn not_poked(poked: &impl Word<u32>) {
    poked.write(0);
}

/// Whoever has the session next cancels what it asks. True: somebody has it
/// already, perhaps without having seen the mark, which is taken back; the
/// backend has to be told.
pub fn mark_cancel(flags: &impl Flags, owner: &impl Word<u32>) -> bool {
    flags.set(SESSION_CANCEL);
    flags.barrier();
    owner.read() != 0 && flags.clear(SESSION_CANCEL) & SESSION_CANCEL != 0
}

/// Names the session to the backend that has it, which is to be signalled then.
/// False: it has another one.
pub fn name_cancelled(session: &impl Word<u64>, cancel: &impl Word<u64>, id: u64) -> bool {
    let is_there = session.read() == id;
    if is_there {
        cancel.write(id);
    }
    is_there
}

/// One of these backends may go, whichever takes the ticket first.
pub fn offer<'a, W: Word<u32> + 'a>(
    retire: impl Iterator<Item = &'a W>,
    room_ticket: &W,
    ticket: u32,
) {
    retire.for_each(|word| word.write(ticket));
    room_ticket.write(ticket);
}

/// Who has taken the ticket that was out last, if anybody has: the word says it
/// until the next one is out.
pub fn ticket_taker(room_ticket: &impl Word<u32>) -> Option<u32> {
    room_ticket.read().checked_sub(TICKET_TAKEN)
}

/// True: nobody goes. False: somebody has taken it, and will.
pub fn take_ticket_back(room_ticket: &impl Word<u32>, ticket: u32) -> bool {
    room_ticket.change(ticket, 0)
}
