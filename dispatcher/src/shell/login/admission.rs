//! May a client that has proved itself come in?

use super::native::Natives;
use crate::core::may_take;
use crate::protocol::startup::Startup;
use crate::protocol::Report;
use crate::shell::link::wire::Answer;
use crate::shell::parameters::{self, Parameters};
use crate::shell::scheduler::Scheduler;
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::socket::Address;

/// Its CONNECTION LIMIT is reached.
fn too_many(what: &str, name: &[u8]) -> Report {
    let name = String::from_utf8_lossy(name);
    Report::fatal(
        b"53300",
        format!("too many connections for {what} \"{name}\""),
    )
}

/// The checks of InitPostgres (postinit.c), in its order: the role and its
/// limit, the server's limit, the database and its limit. What is set for the role in
/// the database the core knows (`Core::may_come_in`).
pub fn admit(
    sessions: &Scheduler,
    parameters: &Parameters,
    startup: &Startup,
    answer: &Answer,
) -> Result<(), Report> {
    let tally = sessions.session_tally();
    // The launcher gives a limit of a role that may log in; a refusal
    // beside it is the database's, which comes later. Who had the name
    // before does not count.
    let with_it = tally.of_role(answer.role) + 1;
    if !answer.fits(answer.role_limit, answer.role_backends, with_it) {
        return Err(too_many("role", &startup.user));
    }
    if let Some(report) = &answer.refusal {
        return Err(report.clone());
    }
    has_session_left(sessions, parameters, answer)?;
    let with_it = tally.in_database(answer.database) + 1;
    if !answer.fits(answer.database_limit, answer.database_backends, with_it) {
        return Err(too_many("database", &startup.database));
    }
    Ok(())
}

/// Part of pg_baton.max_sessions that only roles with few sessions get.
const FEW_PART: usize = 10;

/// Of max_sessions some are left for superusers, as of max_connections; and the last
/// ones of the others are for roles that have fewer than are left.
fn has_session_left(
    sessions: &Scheduler,
    parameters: &Parameters,
    answer: &Answer,
) -> Result<(), Report> {
    let most = parameters.max_sessions as usize;
    let left = most.saturating_sub(sessions.live_sessions());
    let kept = most / FEW_PART;
    let reserved = (parameters.superuser_reserved_connections as usize).min(kept);
    let for_all = match answer.superuser {
        true => left,
        false => left.saturating_sub(reserved),
    };
    let own = sessions.session_tally().of_role(answer.role);
    if for_all == 0 && left > 0 {
        // InitPostgres, postinit.c
        let whose = match parameters.server_major() {
            15 => "non-replication superuser connections",
            _ => "roles with the SUPERUSER attribute",
        };
        let text = format!("remaining connection slots are reserved for {whose}");
        Err(Report::fatal(b"53300", text))
    } else if for_all == 0 {
        Err(Report::fatal(b"53300", "sorry, too many clients already"))
    } else if !answer.superuser && may_take(own, for_all, kept) == 0 {
        let detail = format!(
            "The role has {own} sessions, and the last {kept} of pg_baton.max_sessions are for roles that have few."
        );
        Err(Report::fatal(b"53300", "sorry, too many clients already").with_detail(detail))
    } else {
        Ok(())
    }
}

/// May the server keep one more native session? Those leave to the pool what its shared
/// backends may need, and what is kept in a stall.
pub fn has_room_for_native(
    sessions: &Scheduler,
    natives: &Natives,
    superuser: bool,
) -> Result<(), Report> {
    // It is counted already.
    if superuser || natives.connections() <= sessions.most_native() {
        return Ok(());
    }
    let report = Report::fatal(b"53300", "sorry, too many clients already");
    Err(report
        .with_detail("Native sessions leave the pool the connections that its backends need."))
}

/// May one who has proved himself have one more session, by the limits at the door?
/// Native ones count with the others.
pub fn has_room_for(
    sessions: &Scheduler,
    natives: &Natives,
    limits: &parameters::DoorLimits,
    address: &Address,
    (role, superuser): (u32, bool),
) -> Result<(), Report> {
    if superuser {
        return Ok(());
    }
    let most = limits.sessions_per_user;
    let is_full =
        |most| sessions.session_tally().of_role(role) + natives.of_role(role) >= most as usize;
    if most > 0 && is_full(most) {
        let what = "too many sessions of this user";
        return Err(parameters::limit_exceeded(
            what,
            "max_sessions_per_user",
            most,
        ));
    }
    let most = limits.sessions_per_address;
    let is_full = |origin| sessions.sessions_from(&origin) + natives.from(origin) >= most as usize;
    if most > 0 && Origin::of(address).is_some_and(is_full) {
        let what = "too many sessions from this address";
        return Err(parameters::limit_exceeded(
            what,
            "max_sessions_per_address",
            most,
        ));
    }
    Ok(())
}
