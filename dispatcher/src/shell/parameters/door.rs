//! Limits for whoever stands at the door, before and after he has proved who he
//! is.

use crate::protocol::Report;

/// The parameters; 0 is no limit, but of `unauthenticated`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Logins that may begin in a second.
    pub login_rate: u32,
    /// From one address.
    pub login_rate_per_address: u32,
    pub sessions_per_address: u32,
    pub sessions_per_user: u32,
    /// Connections that have not logged in yet; -1: as many as there is room for.
    pub unauthenticated: i32,
    pub handshake_timeout_ms: u64,
    /// For each message that is waited for.
    pub login_step_timeout_ms: u64,
    /// Bytes before authentication, each of a TLS handshake and of what follows.
    pub login_bytes: u64,
}

/// 53300, with the parameter that says so.
pub fn too_many(what: &str, parameter: &str, limit: u32) -> Report {
    Report::fatal(b"53300", what)
        .with_detail(format!("Parameter \"pg_baton.{parameter}\" is {limit}."))
}

/// A client has sent more than it may before it is known.
pub fn too_much(limits: &Limits) -> Report {
    Report::fatal(b"54000", "too much was sent before authentication").with_detail(format!(
        "Parameter \"pg_baton.max_login_bytes\" is {} kB.",
        limits.login_bytes / 1024
    ))
}
