//! A backend goes, or changes whom it serves.

use super::pool::Pool;
use super::pool_changes::Reason;
use super::sessions::{Location, Whereabouts};
use super::{index_of, Action, Core, Ending, SessionId, Then, Why, Words};

/// A backend outlives as many moves of its pool's sessions, if not more.
const MOST_MOVES: usize = 16;

impl Core {
    /// Asks a backend to exit at its next boundary, and gives it no more.
    pub(super) fn retire(&mut self, slot: u32, why: Reason) {
        if self.backends.retire(slot) {
            self.tell_loss(slot, why);
            self.act(Action::Retire(slot));
        }
    }

    pub(super) fn retire_all(&mut self, number: u32, why: Reason) {
        let slots: Vec<u32> = (self.pool(number).into_iter())
            .flat_map(Pool::all_backends)
            .collect();
        for slot in slots {
            self.retire(slot, why);
        }
    }

    /// It is no longer dedicated if its session has gone.
    pub(super) fn may_be_free(&mut self, slot: u32, words: &impl Words) {
        self.told_dedicated(slot, false, words);
        if let Some(number) = self.backends.get(slot).map(|backend| backend.pool()) {
            self.mark_dirty(number);
        }
    }

    /// A backend exits, as it was asked to or for a reason of its own.
    pub(super) fn leaves(&mut self, slot: u32, was_asked: bool, words: &impl Words) {
        self.backends.retire(slot);
        if let Some(backend) = self.backends.get_mut(slot) {
            backend.says_it_exits = true;
        }
        let makes_room = self.backend_retires(slot, words);
        let why = match makes_room.unwrap_or(Reason::RoomForOthers) {
            why if was_asked => why,
            _ => Reason::Unclean,
        };
        self.tell_loss(slot, why);
    }

    /// The control connection of a backend has ended: so has the session that
    /// it held. One that it was sent but never took lives on.
    ///
    /// Told at the end of a round: an event by which it gave a session back
    /// has been handled then, and re-arming a socket twice does no harm.
    pub(super) fn backend_gone(&mut self, slot: u32) {
        let Some(backend) = self.backends.get(slot) else {
            return;
        };
        let number = backend.pool();
        let attached = |other: u32| {
            let life = self.backends.life(other);
            other != slot && life.is_some_and(|life| !life.is_starting())
        };
        let is_last = !(self.pool(number).into_iter())
            .flat_map(Pool::all_backends)
            .any(attached);
        // Who says that it exits has no session, and has none in hand. One that
        // has crashed or was terminated may have had any of its pool's.
        let mut lost: Vec<SessionId> = Vec::new();
        if is_last || !backend.says_it_exits {
            let mut pool = Some(number);
            for _ in 0..MOST_MOVES {
                let Some(number) = pool else {
                    break;
                };
                lost.extend(self.sessions.of_pool(number));
                pool = self.pool(number).and_then(|pool| pool.moved_to);
            }
        }
        if is_last {
            self.act(Action::TakeBack(number));
            self.act(Action::ResetCounter(number));
        }
        self.lost = lost;
        self.then(Then::Bury { slot, is_last });
    }

    /// Whom it may have had: the one in its slot, the one that it was sent, the
    /// one that it was giving back, and, if none of its pool is left, any that
    /// went into the queue and was taken by one that did not live to put it in
    /// place.
    pub(super) fn bury(&mut self, slot: u32, is_last: bool, words: &impl Words) {
        let number = self.backends.get(slot).map(|backend| backend.pool());
        let held = words.backend_session(slot);
        if self.may_have(slot, held) && words.holder(index_of(held)) == Some(slot) {
            self.end(held, Why::Ended(Ending::Cut));
        }
        for id in std::mem::take(&mut self.lost) {
            let Some(session) = self.sessions.get(id) else {
                continue;
            };
            let ungreeted = session.is_ungreeted();
            // One that has moved may be in the queue of either pool.
            let is_of_queue = Some(session.queue()) == number;
            let was_here = match self.sessions.locate(id, words, |_| true) {
                Some(Location::Held(holder)) => {
                    // Or its word names one that cannot have it: nobody would end it.
                    if holder == slot || !self.may_have(holder, id) {
                        self.end(id, Why::Ended(Ending::Cut));
                    }
                    false
                }
                Some(Location::OnItsWay(Whereabouts::Sent(to, _))) => to == slot,
                Some(Location::OnItsWay(_)) => is_last && is_of_queue,
                Some(Location::GivenBack { .. }) => words.last_backend(index_of(id)) == Some(slot),
                Some(Location::Here(_)) | None => false,
            };
            if was_here && ungreeted {
                self.make_wait_ungreeted(id, words);
            } else if was_here {
                self.arm(id);
            }
        }
        // It may not have said so before.
        self.backend_retires(slot, words);
        self.forget_backend(slot);
        if let Some(number) = number {
            // It may have been the one that was to take from the ready queue.
            self.poke_idle(number, 0, words);
            self.mark_dirty(number);
        }
    }

    /// Frees a slot.
    pub(super) fn forget_backend(&mut self, slot: u32) {
        self.tell_loss(slot, self.why_forgotten(slot));
        let Some(backend) = self.backends.remove(slot) else {
            return;
        };
        self.act(Action::FreeSlot(slot));
        let (number, now_us) = (backend.pool(), self.now.us);
        if let Some(pool) = self.pool_mut(number) {
            pool.forget_backend(slot);
            if !pool.has_backends() {
                pool.queue_full = false;
                pool.rests = false;
                pool.without_since_us = now_us;
                self.with_backends.remove(number);
                self.act(Action::CloseQueue(number));
            }
        }
        // There is room now: for this pool or another.
        self.room_made(backend.makes_room_for);
        self.mark_waiting();
    }
}
