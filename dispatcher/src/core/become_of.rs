//! A backend that goes for another pool of its database becomes that pool's instead.
//!
//! One that has taken the ticket (make_room.rs) gives its session back and waits. If the
//! pool for which it goes is of the same database and takes no other options at a start, its
//! process becomes a backend of that pool, with another authenticated user
//! (docs/design/roles.md). To the core it is one that has gone and another that starts, at
//! once and in the same slot. If it does not come, the pool's next backend is a process of
//! its own: that way it is told why the role may not log in.

use super::pool_changes::Reason;
use super::{Core, Identity, Words};

impl Core {
    pub(super) fn gives_way(&mut self, slot: u32, words: &impl Words) {
        // One that was told to go for another reason goes.
        let was_shared = self.backends.is_shared(slot);
        self.backends.retire(slot);
        // No transaction holds it.
        self.backends.is_seen(slot, None, false);
        let now_us = self.now.us;
        if let Some(backend) = self.backends.get_mut(slot) {
            backend.exits(now_us);
        }
        let why = self.backend_retires(slot, words);
        let why = why.unwrap_or(Reason::RoomForOthers);
        let heir = match why {
            Reason::RoomFor(pool) if was_shared => Some(pool),
            _ => None,
        };
        self.tell_loss(slot, why);
        match heir.filter(|pool| self.may_become(slot, *pool, words)) {
            Some(pool) => self.become_of(slot, pool),
            None => self.act(super::Action::Retire(slot)),
        }
    }

    /// Can the backend serve that pool's sessions, and does one wait for which a backend
    /// may be started?
    fn may_become(&self, slot: u32, number: u32, words: &impl Words) -> bool {
        let Some(backend) = self.backends.get(slot).filter(|it| it.serves_roles()) else {
            return false;
        };
        let (Some(old), Some(new)) = (self.pool_key(backend.pool()), self.pool(number)) else {
            return false;
        };
        let is_alike =
            old.database_oid == new.key().database_oid && old.options == new.key().options;
        is_alike
            && new.starts.may_become()
            && self
                .growth(number, words)
                .is_some_and(|growth| growth.wanted() > 0 && growth.own_room > 0)
            && self.places_without(1, number, words).room() > 0
    }

    fn become_of(&mut self, slot: u32, number: u32) {
        let Some(old) = self.backends.get(slot).map(|backend| backend.pool()) else {
            return;
        };
        let now_us = self.now.us;
        let together = self.backends.lives(number).starting() > 0;
        if let Some(pool) = self.pools.get(old) {
            self.backend_tally.take(pool.key(), 1);
        }
        self.backends.become_of(slot, number, now_us);
        if self.backends.lives(old).attached() == 0 {
            // As when one has gone: nobody is left to take what is in the queue.
            self.act(super::Action::TakeBack(old));
            self.act(super::Action::ResetCounter(old));
        }
        let is_last = self.pools.forget_backend(old, slot, now_us);
        if let Some(pool) = self.pools.get_mut(number) {
            pool.starts_one(together);
            self.backend_tally.add(pool.key(), 1);
        }
        self.pools.add_backend(number, slot);
        self.count_use(number);
        self.tell_growth(slot, number, Reason::Waiting);
        self.act(super::Action::Become { slot, pool: number });
        if is_last {
            self.act(super::Action::CloseQueue(old));
            self.count_use(old);
        }
        self.room.look_for_surplus();
    }

    /// A backend says that it is this now. May it serve its new pool? If not it is to end.
    /// None: it is not expected to have become anything.
    pub fn has_become(&mut self, slot: u32, identity: Identity) -> Option<bool> {
        let backend = self.backends.get(slot);
        let backend = backend.filter(|it| it.has_become() && it.life().is_starting())?;
        let number = backend.pool();
        let pool = self.pool(number);
        Some(pool.is_some_and(|pool| identity.is_of(pool.key())))
    }

    /// A backend has attached whose process can become another role's.
    pub fn serves_roles(&mut self, slot: u32) {
        if let Some(backend) = self.backends.get_mut(slot) {
            backend.set_serves_roles(true);
        }
    }

    /// A backend's process has ended: before it had become one of its pool?
    pub(super) fn did_not_become(&mut self, slot: u32) {
        let backend = self.backends.get(slot);
        let backend = backend.filter(|it| it.has_become() && it.life().is_starting());
        let Some(number) = backend.map(|backend| backend.pool()) else {
            return;
        };
        if let Some(pool) = self.pools.get_mut(number) {
            pool.starts.did_not_become();
        }
    }
}
