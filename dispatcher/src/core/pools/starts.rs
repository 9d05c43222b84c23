//! How a pool's backends log in, and what became of that: on whose behalf they may, what
//! failed, when it is tried again, and whether one that goes could be replaced.

use crate::core::origin::{FailedOrigins, Origin, Provenance};
use crate::core::replaceable::Replaceable;
use crate::protocol::auth::client::Failure;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Starts {
    /// Where the pool's sessions come from, and how many from each.
    origins: BTreeMap<Provenance, u32>,
    retry: Retry,
    /// Beside the backend started last another one was starting.
    together: bool,
    /// Why the last start failed.
    failure: Option<Failure>,
    /// On whose behalf none starts.
    failed_origins: FailedOrigins,
    replaceable: Replaceable,
    /// Backends with no higher serial that are still starting are not let in: what they
    /// read has changed.
    stale_serial: u64,
    /// A backend of another role's did not become one of this pool: the next one is a
    /// process of its own.
    needs_process: bool,
}

impl Starts {
    // ---- where sessions come from ------------------------------------------

    pub fn comes_from(&mut self, from: Provenance) {
        *self.origins.entry(from).or_default() += 1;
    }

    pub fn gone_from(&mut self, from: Provenance) {
        if let Some(count) = self.origins.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.origins.remove(&from);
            }
        }
    }

    #[cfg(test)]
    pub fn sessions(&self) -> u32 {
        self.origins.values().sum()
    }

    // ---- starting ----------------------------------------------------------

    /// Is it not too early to try again?
    pub fn may_be_tried(&self, now_us: u64) -> bool {
        self.retry.allowed(now_us)
    }

    /// After a failure one at a time, until one succeeds.
    pub fn are_one_at_a_time(&self) -> bool {
        self.retry.is_waiting()
    }

    /// Of all that have been started, those that have not come.
    pub fn are_stale_up_to(&mut self, serial: u64) {
        self.stale_serial = serial;
    }

    pub fn is_stale(&self, serial: u64) -> bool {
        serial <= self.stale_serial
    }

    /// One is started; `together` with another.
    pub fn begin(&mut self, together: bool) {
        self.together = together;
    }

    /// A backend has come: on behalf of a client from there, or by the dispatcher's own
    /// connection; by what counted at `login_generation`.
    pub fn has_attached(&mut self, from: Option<Provenance>, login_generation: u64, now_us: u64) {
        self.has_come();
        self.failed_origins.has_attached();
        self.replaceable.attached(from, login_generation, now_us);
    }

    /// A backend has come, be it one that has served another role: no login was needed.
    pub fn has_come(&mut self) {
        self.retry.succeeded();
        self.failure = None;
        self.needs_process = false;
    }

    pub fn may_become(&self) -> bool {
        !self.needs_process
    }

    pub fn did_not_become(&mut self) {
        self.needs_process = true;
    }

    /// Two that started at a time were perhaps both refused, where one may come in. True:
    /// it is tried again, alone.
    pub fn were_in_each_other_s_way(&mut self, failure: &Failure, now_us: u64) -> bool {
        let may_be_why = self.together && failure.limit().is_some();
        if may_be_why {
            self.retry.failed(now_us);
        }
        may_be_why
    }

    /// The server did not let one in on behalf of this origin, or by the dispatcher's own
    /// connection. None: another way is tried at once; or what the pool has failed by.
    pub fn was_refused(&mut self, origin: Option<Origin>, failure: Failure) -> Option<Failure> {
        let origins = &mut self.failed_origins;
        match origin {
            // By what counted before a client from there was let in.
            Some(origin) if origin.is_past && origins.overtaken() => return None,
            Some(origin) => {
                if origins.failed(origin.from, failure.clone()) {
                    return None;
                }
            }
            None => origins.all_tried(),
        }
        Some(origins.first().cloned().unwrap_or(failure))
    }

    /// To be tried again later. True if it failed otherwise before, or not at all.
    pub fn failed(&mut self, failure: Failure, now_us: u64) -> bool {
        self.retry.failed(now_us);
        let is_new = self.failure.as_ref() != Some(&failure);
        self.failure = Some(failure);
        is_new
    }

    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    // ---- on whose behalf ---------------------------------------------------

    /// Before the next origin is chosen.
    pub fn begin_to_choose(&mut self, login_generation: u64) {
        self.failed_origins.renew(login_generation);
    }

    /// Is there one like this on whose behalf none has failed?
    pub fn has_origin_to_try(&self, is_possible: impl Fn(&Provenance) -> bool) -> bool {
        let mut origins = self.origins.keys();
        origins.any(|from| is_possible(from) && self.failure_of(from).is_none())
    }

    /// Why none started on behalf of a client from there.
    pub fn failure_of(&self, from: &Provenance) -> Option<&Failure> {
        self.failed_origins.failure_of(from)
    }

    /// A client from there has been let in.
    pub fn let_in(&mut self, from: &Provenance) {
        self.failed_origins.let_in(from);
    }

    // ---- could one be replaced? --------------------------------------------

    /// None: that is not known.
    pub fn are_replaceable(&self, login_generation: u64, now_us: u64) -> Option<bool> {
        self.replaceable.get(login_generation, now_us)
    }

    /// The launcher has been asked, and has not answered yet.
    pub fn is_asking(&self, now_us: u64) -> bool {
        self.replaceable.is_asking(now_us)
    }

    /// About clients from where it is to be asked now; None: all could log in.
    pub fn ask(&mut self, login_generation: u64, now_us: u64) -> Option<Provenance> {
        let origins = self.origins.keys().copied();
        let unknown = (self.replaceable).next_unknown(login_generation, now_us, origins);
        if unknown.is_some() {
            self.replaceable.is_asked(now_us);
        }
        unknown
    }

    /// Clients from there could log in until then; or (None) could not.
    pub fn is_answered(
        &mut self,
        from: Provenance,
        login_generation: u64,
        able_until_us: Option<u64>,
        now_us: u64,
    ) {
        match able_until_us {
            Some(until_us) => (self.replaceable).found_able(from, login_generation, until_us),
            // Who could not may leave.
            None => {
                let unsure_us = now_us + Replaceable::UNSURE_US;
                self.replaceable.found(false, login_generation, unsure_us);
            }
        }
    }
}

/// Backing off after failed starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Retry {
    failures: u32,
    not_before_us: u64,
}

impl Retry {
    const FIRST_US: u64 = 50_000;
    const MOST_US: u64 = 5_000_000;

    /// Several that were started together fail together: that counts once.
    fn failed(&mut self, now_us: u64) {
        if !self.allowed(now_us) {
            return;
        }
        let wait = Self::FIRST_US << self.failures.min(10);
        self.failures += 1;
        self.not_before_us = now_us + wait.min(Self::MOST_US);
    }

    fn succeeded(&mut self) {
        *self = Retry::default();
    }

    fn allowed(&self, now_us: u64) -> bool {
        now_us >= self.not_before_us
    }

    fn is_waiting(&self) -> bool {
        self.failures > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_starts_are_repeated_ever_more_slowly() {
        let mut retry = Retry::default();
        assert!(retry.allowed(0) && !retry.is_waiting());
        retry.failed(1_000_000);
        assert!(!retry.allowed(1_049_999) && retry.allowed(1_050_000));
        // the others of the same burst, and the next try
        for _ in 0..100 {
            retry.failed(1_010_000);
        }
        assert!(retry.allowed(1_050_000));
        retry.failed(1_050_000);
        assert!(!retry.allowed(1_149_999) && retry.allowed(1_150_000));
        let mut now_us = 1_150_000;
        for _ in 0..100 {
            retry.failed(now_us);
            now_us += Retry::MOST_US;
            assert!(retry.allowed(now_us) && retry.is_waiting());
        }
        retry.failed(now_us);
        assert!(!retry.allowed(now_us + Retry::MOST_US - 1));
        retry.succeeded();
        assert!(retry.allowed(0));
    }
}
