//! A backend goes, or changes whom it serves.

use super::pool_changes::Reason;
use super::{Action, Core, Leaving, Words};

impl Core {
    /// Asks a backend to exit at its next boundary, and gives it no more.
    pub(super) fn retire(&mut self, slot: u32, why: Reason) {
        if self.backends.retire(slot) {
            self.tell_loss(slot, why);
            self.act(Action::Retire(slot));
            self.mark_pool_of(slot);
        }
    }

    /// It may be free; or it goes, and of its pool's fewer may be kept for reserves now, or
    /// be left to others.
    fn mark_pool_of(&mut self, slot: u32) {
        if let Some(number) = self.backends.get(slot).map(|backend| backend.pool()) {
            self.mark_dirty(number);
        }
    }

    /// As well, so that this pool may have its place.
    pub(super) fn retire_for(&mut self, slot: u32, pool: u32, why: Reason) {
        self.backends.goes_for(slot, Some(pool));
        self.retire(slot, why);
    }

    /// It is no longer dedicated if its session has gone.
    pub(super) fn may_be_free(&mut self, slot: u32, words: &impl Words) {
        self.told_dedicated(slot, false, words);
        self.mark_pool_of(slot);
    }

    /// A backend exits, as it was asked to or for a reason of its own. What it has in hand
    /// it gives back.
    pub(super) fn leaves(&mut self, slot: u32, cause: Leaving, words: &impl Words) {
        self.backends.retire(slot);
        let now_us = self.now.us;
        if let Some(backend) = self.backends.get_mut(slot) {
            backend.exits(now_us);
        }
        let makes_room = self.backend_retires(slot, words);
        let why = match cause {
            Leaving::Asked => makes_room.unwrap_or(Reason::RoomForOthers),
            Leaving::Unclean => Reason::Unclean,
            Leaving::Outdated => Reason::Outdated,
        };
        self.tell_loss(slot, why);
        self.mark_pool_of(slot);
    }

    /// Frees a slot.
    pub(super) fn forget_backend(&mut self, slot: u32) {
        self.tell_loss(slot, self.why_forgotten(slot));
        let Some(backend) = self.backends.remove(slot) else {
            return;
        };
        self.act(Action::FreeSlot(slot));
        let (number, now_us) = (backend.pool(), self.now.us);
        if self.pools.forget_backend(number, slot, now_us) {
            self.act(Action::CloseQueue(number));
            self.count_use(number);
        }
        // There is room now: for this pool or another.
        self.room_made(backend.makes_room_for());
        self.mark_waiting();
    }
}
