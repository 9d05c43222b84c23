//! When no backend can be started: what is tried next, and who is told.

use super::origin::Origin;
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::sessions::SessionId;
use crate::protocol::auth::client::Failure;
use crate::protocol::{Report, Severity};
use tracing::warn;

impl Dispatcher {
    /// The server does not let a backend in: the line that let a client in has
    /// changed since, say. Others are tried, and last the dispatcher's own way.
    pub fn login_failed(
        &mut self,
        number: u32,
        origin: Option<Origin>,
        over_unix: bool,
        failure: Failure,
    ) {
        let Some(pool) = self.pools[number as usize].as_mut() else {
            return;
        };
        match origin {
            // By what counted before a client from there was let in.
            Some(origin) if origin.is_past && pool.failed_origins.overtaken() => {
                return self.mark_dirty(number);
            }
            Some(origin) => {
                if pool.failed_origins.failed(origin.from, failure.clone()) {
                    return self.mark_dirty(number);
                }
            }
            None => pool.failed_origins.all_tried(),
        }
        let failure = pool.failed_origins.first().cloned().unwrap_or(failure);
        if self.note_failure(number, failure) {
            self.end_ungreeted(number, |this, id| {
                this.own_failure(number, id, over_unix).cloned()
            });
        }
    }

    /// A backend could not be started: tell those who cannot be helped by
    /// waiting, and try again later for the rest.
    pub fn start_failed(&mut self, number: u32, failure: Failure) {
        if self.note_failure(number, failure.clone()) {
            self.end_ungreeted(number, |_, _| Some(failure.clone()));
        }
    }

    /// To be tried again later; false if it was for want of room, which is made.
    fn note_failure(&mut self, number: u32, failure: Failure) -> bool {
        let now_us = self.now_us;
        let Some(pool) = self.pools[number as usize].as_mut() else {
            return false;
        };
        if pool.failure.as_ref() != Some(&failure) {
            warn!(
                "could not start a backend for user \"{}\", database \"{}\": {failure}",
                String::from_utf8_lossy(&pool.key.user),
                String::from_utf8_lossy(&pool.key.database),
            );
        }
        pool.retry.failed(now_us);
        let limit = failure.limit();
        pool.failure = Some(failure);
        limit.is_none_or(|limit| !self.make_room_within_limits(number, limit))
    }

    /// Ends the clients that no backend will greet, each for the failure that
    /// is its own. As long as the pool has a backend they wait for that.
    fn end_ungreeted(
        &mut self,
        number: u32,
        failure_of: impl Fn(&Dispatcher, SessionId) -> Option<Failure>,
    ) {
        let Some(pool) = self.pools[number as usize].as_ref() else {
            return;
        };
        if pool.has_backends() {
            return;
        }
        let key = pool.key.clone();
        self.drain_queue(number);
        let waiting: Vec<SessionId> = self.pools[number as usize]
            .as_ref()
            .map(|pool| pool.fifo.iter().copied().collect())
            .unwrap_or_default();
        for id in waiting {
            let Some(session) = self.sessions.get(id) else {
                continue;
            };
            let greet = session.greet;
            let Some(failure) = failure_of(self, id) else {
                continue;
            };
            if !greet && !failure.is_no_database() {
                continue;
            }
            if let Some(report) = final_report(&failure, &key.user) {
                self.end_with(id, &report);
            }
        }
    }
}

/// A backend logs in as its pool's client did (origin.rs).
const LOGIN_HINT: &str = "The line of pg_hba.conf that let this client in, or the password of its role, may have changed since: let it connect again.";

/// What to tell a client that has not been greeted, if waiting cannot help.
fn final_report(failure: &Failure, user: &[u8]) -> Option<Report> {
    match failure {
        Failure::ServerError(report) => {
            let state = &report.sqlstate;
            let is_login = state.starts_with(b"28");
            // Starting up or ending, or the connection broke; all else is
            // what a client of the server's own port is told, too.
            let may_pass = state.starts_with(b"57P") || state.starts_with(b"08");
            let mut report = report.clone();
            report.severity = Severity::Fatal;
            if is_login && report.hint.is_none() {
                report = report
                    .with_detail("pg_baton's dispatcher could not open a backend.")
                    .with_hint(LOGIN_HINT);
            }
            (!may_pass).then_some(report)
        }
        Failure::NoCredentials(_) | Failure::UnsupportedMethod(_) => Some(
            Report::fatal(
                b"28000",
                format!(
                    "no backend can be opened for user \"{}\"",
                    String::from_utf8_lossy(user)
                ),
            )
            .with_detail(format!(
                "For connections of pg_baton's dispatcher, {failure}."
            ))
            .with_hint(LOGIN_HINT),
        ),
        Failure::ServerNotProven | Failure::Protocol(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_waiting_cannot_mend_is_final() {
        let error = |state| Failure::ServerError(Report::fatal(state, "no"));
        assert!(final_report(&error(b"28P01"), b"u").is_some());
        assert!(final_report(&error(b"3D000"), b"u").is_some());
        assert!(final_report(&error(b"58P01"), b"u").is_some());
        assert!(final_report(&error(b"57P03"), b"u").is_none());
        let report = final_report(&Failure::NoCredentials("scram-sha-256"), b"u").unwrap();
        assert_eq!(&report.sqlstate, b"28000");
        assert!(String::from_utf8_lossy(report.hint.as_deref().unwrap()).contains("pg_hba.conf"));
        assert!(final_report(&Failure::Protocol("x".into()), b"u").is_none());
    }
}
