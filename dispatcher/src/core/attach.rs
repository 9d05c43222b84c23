//! A backend comes: it has logged in and attached, or it has not.

use super::pools::PoolKey;
use super::{Action, Core, Words};
use crate::protocol::opening::Failure;
use crate::protocol::Report;

/// A backend that takes longer to start is given up.
const START_LIMIT_US: u64 = 60_000_000;

/// Who a backend is that has logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub role_oid: u32,
    pub database_oid: u32,
}

/// What becomes of a backend that attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// It is one of this pool.
    Welcome(u32),
    /// Nobody is expected in this slot.
    Unexpected,
    Stranger,
}

impl Identity {
    /// Is it in that database, and of the pool's role if it has one? By now a name may be
    /// another database's.
    pub fn is_of(&self, key: &PoolKey) -> bool {
        self.database_oid == key.database_oid
            && key.role_oid.is_none_or(|role| role == self.role_oid)
    }
}

impl Core {
    /// May it attach? One that may not is forgotten at once; one that may is
    /// there when it was welcomed (`Attached`).
    pub fn may_attach(&mut self, slot: u32, identity: Identity, words: &impl Words) -> Attach {
        let Some(backend) = self.backends.get(slot).filter(|b| b.life().is_starting()) else {
            return Attach::Unexpected;
        };
        let number = backend.pool();
        let Some(pool) = self.pool(number) else {
            return Attach::Unexpected;
        };
        if !identity.is_of(pool.key()) {
            let name = String::from_utf8_lossy(&pool.key().database).into_owned();
            let text = format!("database \"{name}\" does not exist");
            let report = Report::fatal(b"3D000", text)
                .with_detail("It seems to have just been dropped or renamed.");
            self.forget_backend(slot);
            self.start_failed(number, Failure::ServerError(report), words);
            return Attach::Stranger;
        }
        Attach::Welcome(number)
    }

    pub(super) fn attached(&mut self, slot: u32) {
        let now_us = self.now.us;
        self.backends.attached(slot, now_us);
        let Some(backend) = self.backends.get_mut(slot) else {
            return;
        };
        let (number, life) = (backend.pool(), backend.life());
        let after_us = now_us.saturating_sub(backend.started_us());
        self.passing.has_started(after_us);
        if let Some(pool) = self.pool_mut(number) {
            pool.starts.has_come();
        }
        if life.is_leaving() {
            self.act(Action::Retire(slot));
        }
        self.mark_dirty(number);
    }

    /// A backend could not be opened.
    pub fn open_failed(&mut self, slot: u32, failure: Failure, words: &impl Words) {
        let Some(backend) = self.backends.get(slot).filter(|b| b.life().is_starting()) else {
            return;
        };
        let number = backend.pool();
        self.forget_backend(slot);
        self.start_failed(number, failure, words);
    }

    pub(super) fn give_up_starting(&mut self, words: &impl Words) {
        let latest_us = self.now.us.saturating_sub(START_LIMIT_US);
        while let Some(slot) = self.backends.next_started_before(latest_us) {
            let text = "a backend did not attach in time; is pg_baton in shared_preload_libraries?";
            self.open_failed(slot, Failure::Protocol(text.into()), words);
        }
    }
}
