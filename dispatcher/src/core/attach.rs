//! A backend comes: it has logged in and attached, or it has not.

use super::pools::PoolKey;
use super::{Action, Core, Origin, Words};
use crate::protocol::auth::client::Failure;

/// A backend that takes longer to start is given up.
const START_LIMIT_US: u64 = 60_000_000;

/// Who a backend has become by logging in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub role_oid: u32,
    pub database_oid: u32,
    pub superuser: bool,
}

/// A backend that has logged in by a pool's names and is not what the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    Role,
    Database,
    /// The same role, which has become a superuser or is none any more.
    Superuser(bool),
}

/// What becomes of a backend that attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// It is one of this pool.
    Welcome(u32),
    /// Nobody is expected in this slot.
    Unexpected,
    /// What it has read when it started has changed.
    Stale,
    Stranger,
}

impl Identity {
    /// None if it is the pool's.
    pub fn compare(&self, key: &PoolKey) -> Option<Stranger> {
        if self.role_oid != key.role_oid {
            Some(Stranger::Role)
        } else if self.database_oid != key.database_oid {
            Some(Stranger::Database)
        } else if self.superuser != key.superuser {
            Some(Stranger::Superuser(self.superuser))
        } else {
            None
        }
    }
}

impl Core {
    /// May it attach? One that may not is forgotten at once; one that may is
    /// there when it was welcomed (`Attached`).
    pub fn may_attach(&mut self, slot: u32, identity: Identity, words: &impl Words) -> Attach {
        if let Some(number) = self.backends.get(slot).map(|backend| backend.pool()) {
            self.settle(number);
        }
        let Some(backend) = self.backends.get(slot).filter(|b| b.life().is_starting()) else {
            return Attach::Unexpected;
        };
        let number = backend.pool();
        if self.is_stale(slot) {
            self.forget_backend(slot);
            self.mark_dirty(number);
            return Attach::Stale;
        }
        let Some(pool) = self.pool(number) else {
            return Attach::Unexpected;
        };
        if let Some(stranger) = identity.compare(pool.key()) {
            self.forget_backend(slot);
            self.stranger_came(number, stranger, words);
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
        let generation = backend.login_generation();
        let from = backend.was_opened_for();
        let has_become = backend.has_become();
        match has_become {
            true => self.passing.has_become(after_us),
            false => self.passing.has_started(after_us),
        }
        if let Some(pool) = self.pool_mut(number) {
            match has_become {
                true => pool.starts.has_come(),
                false => pool.starts.has_attached(from, generation, now_us),
            }
        }
        if life.is_leaving() {
            self.act(Action::Retire(slot));
        }
        self.absorb_outdated(number);
        self.mark_dirty(number);
    }

    /// A backend could not be opened. `over_unix`: how the server was reached,
    /// if it was.
    pub fn open_failed(
        &mut self,
        slot: u32,
        failure: Failure,
        over_unix: Option<bool>,
        words: &impl Words,
    ) {
        let Some(backend) = self.backends.get(slot).filter(|b| b.life().is_starting()) else {
            return;
        };
        let (number, origin) = (backend.pool(), backend.origin());
        self.forget_backend(slot);
        match over_unix {
            _ if self.in_each_other_s_way(number, &failure) => {}
            Some(over_unix) if failure.is_login() => {
                self.login_failed(number, origin, over_unix, failure, words);
            }
            _ => self.start_failed(number, failure, words),
        }
    }

    /// On whose behalf a backend is opened that is about to log in; it is
    /// remembered. A client's descriptor can be sent over a Unix socket only.
    pub fn origin_for(
        &mut self,
        slot: u32,
        over_unix: bool,
        login_generation: u64,
    ) -> Option<Origin> {
        let number = self.backends.get(slot)?.pool();
        let origin = self.choose_origin(number, over_unix, login_generation);
        self.backends.get_mut(slot)?.opens_for(origin);
        origin
    }

    pub(super) fn give_up_starting(&mut self, words: &impl Words) {
        let latest_us = self.now.us.saturating_sub(START_LIMIT_US);
        while let Some(slot) = self.backends.next_started_before(latest_us) {
            if self.backends.get(slot).is_some_and(|it| it.has_become()) {
                // It has attached long ago: its end is told by its process.
                self.act(Action::EndProcess(slot));
                continue;
            }
            let text = "a backend did not attach in time; is pg_baton in shared_preload_libraries?";
            self.open_failed(slot, Failure::Protocol(text.into()), None, words);
        }
    }
}
