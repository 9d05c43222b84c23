//! What a session is told that is ended, or passed over, from here.

use crate::core::{Core, NoSession, Skipped, Why};
use crate::protocol::opening::Failure;
use crate::protocol::{Report, Severity};
use crate::shell::parameters::Parameters;

/// Of a session of this tenant's. None: nothing.
pub fn last_word(core: &Core, parameters: &Parameters, tenant: u32, why: &Why) -> Option<Report> {
    let pool = core.pool_of_tenant(tenant);
    Some(match why {
        Why::Ended(_) => return None,
        Why::Administrator => Report::fatal(
            b"57P01",
            "terminating connection due to administrator command",
        ),
        Why::IdleTooLong => Report::fatal(
            b"57P05",
            "terminating connection due to idle-session timeout",
        ),
        Why::WaitedTooLong => waited(core, parameters, pool?, Severity::Fatal),
        Why::Failed(failure) => {
            let user = core.tenant_key(tenant).map(|key| key.user.clone());
            failure_report(failure, &user.unwrap_or_default())
        }
    })
}

/// A client that has proved itself becomes no session.
pub fn no_session(user: &[u8], why: NoSession) -> Report {
    let user = String::from_utf8_lossy(user);
    match why {
        NoSession::PoolLimit(limit) => Report::fatal(
            b"53300",
            format!("too many connections for role \"{user}\""),
        )
        .with_detail(format!(
            "Parameter \"pg_baton.pool_max_sessions\" is {limit} for this role in this database."
        )),
        NoSession::Full => Report::fatal(b"53300", "sorry, too many clients already"),
    }
}

/// The answer to a request that is passed over.
pub fn skipped(core: &Core, parameters: &Parameters, pool: u32, why: Skipped) -> Report {
    match why {
        Skipped::WaitedTooLong => waited(core, parameters, pool, Severity::Error),
        // As ProcessInterrupts (tcop/postgres.c) says it.
        Skipped::Cancelled => {
            let text = "canceling statement due to user request";
            Report::new(Severity::Error, b"57014", text)
        }
    }
}

fn waited(core: &Core, parameters: &Parameters, pool: u32, severity: Severity) -> Report {
    let (has_backend, failure) = core.why_it_waits(pool);
    let seconds = parameters.session_wait_timeout_ms as f64 / 1000.0;
    let report = Report::new(severity, b"53300", "timed out waiting for a backend");
    let report = report.with_hint(if has_backend || failure.is_none() {
        "All backends of the pool are busy. Raise pg_baton.max_backends or pg_baton.session_wait_timeout."
    } else {
        "The database may have ceased to accept connections, or the role have been dropped, since this session logged in."
    });
    match failure {
        Some(failure) => report.with_detail(format!(
            "No backend could be started: {failure}. The session waited for {seconds} s."
        )),
        None => report.with_detail(format!("The session waited for {seconds} s.")),
    }
}

/// What to tell a client that has not been greeted and cannot be.
fn failure_report(failure: &Failure, user: &[u8]) -> Report {
    match failure {
        Failure::ServerError(report) => {
            let mut report = report.clone();
            report.severity = Severity::Fatal;
            report
        }
        Failure::Protocol(what) => Report::fatal(
            b"58000",
            format!(
                "no backend can be opened for user \"{}\"",
                String::from_utf8_lossy(user)
            ),
        )
        .with_detail(what.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_be_served_is_told_so_and_his_connection_ends() {
        let error = Failure::ServerError(Report::new(Severity::Error, b"3D000", "no"));
        assert_eq!(failure_report(&error, b"u").severity, Severity::Fatal);
    }
}
