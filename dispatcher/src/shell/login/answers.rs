//! What follows from the launcher's answer about a client, and whether an authenticated client
//! is admitted.

use super::client::{
    login_of, names_of, Asked, Effect, Entering, Errand, ForServer, Phase, Proved, Proving,
};
use super::native::{Natives, Why};
use super::Logins;
use crate::core::may_take;
use crate::protocol::auth::server::{Claim, Method, ServerAuth};
use crate::protocol::startup::{Startup, StartupReader};
use crate::protocol::{messages, Report};
use crate::shell::batch_scheduling;
use crate::shell::link::layout::shared::*;
use crate::shell::link::wire::{Answer, Who, WhoByTls};
use crate::shell::log::lines;
use crate::shell::parameters::{self, Parameters};
use crate::shell::scheduler::Scheduler;
use crate::shell::sessions::greetings::Authenticated;
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::socket::{self, Address};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use tracing::debug;

/// The data against which the authentication of a client as this user is checked.
fn claim(user: &[u8], method: Method, answer: &Answer, parameters: &Parameters) -> Claim {
    Claim {
        user: user.to_vec(),
        method,
        verifier: (!answer.verifier.is_empty() && !answer.password_expired)
            .then(|| answer.verifier.clone()),
        peer_allowed: answer.peer_allowed,
        // For a line with method md5 the launcher has already chosen between md5 and SCRAM.
        encryption_is_md5: answer.method == AUTH_MD5 || parameters.stores_md5,
        scram_iterations: parameters.scram_iterations,
        channel_binding: None,
    }
}

impl Logins {
    /// Starts making the client native; the server decides whether to admit it.
    pub fn goes_native(&mut self, number: u32, startup: Startup, why: Why) {
        let asked = Asked::new(startup);
        self.send_on_errand(number, Errand::Native(why), ForServer::Client(asked));
    }

    /// The startup packet is accepted: asks the launcher what the rules say about the client.
    pub fn goes_on(&mut self, number: u32, startup: Startup) {
        if let Some(login) = self.logins.get_mut(number) {
            login.phase = Phase::Asked(Asked::new(startup));
            self.ask(number);
        }
    }

    /// Answers from the cache, or asks the launcher.
    pub(super) fn ask(&mut self, number: u32) {
        self.unsettled.push(number);
        let Some(login) = self.logins.get(number) else {
            return;
        };
        let Phase::Asked(asked) = &login.phase else {
            return;
        };
        let (serial, address) = (login.serial, login.address);
        let os_user = asked.os_user.clone().unwrap_or_default();
        let who = Who::new(
            &asked.startup.user,
            &asked.startup.database,
            os_user,
            &address,
            login.socket.tls().map(|facts| WhoByTls::of(facts)),
        );
        let generation = self.control.header.login_generation.load(SeqCst);
        // Only the launcher knows whether the server is up at all.
        let cache = self.launcher_is_up.then_some(&mut self.cache);
        let (header, now) = (&self.control.header, self.now.timestamp);
        let changed = |from, to| header.login_changed(from, to);
        let known = cache.and_then(|cache| cache.find(&who, generation, now, changed));
        // A cached answer suffices for a challenge, even if connection limits apply: the
        // launcher is asked again once the client is authenticated. Otherwise the challenge
        // would come later than that of a role that does not exist, which has no limit.
        let is_proved = asked.proved.is_some();
        let known = known.filter(|answer| {
            !answer.counts_connections() || (answer.demands_proof() && !is_proved)
        });
        let effect = match known.cloned() {
            None => Effect::Ask {
                login: number,
                serial,
                address,
                who,
            },
            Some(answer) => Effect::Known {
                login: number,
                serial,
                generation,
                answer,
            },
        };
        self.effects.push_back(effect);
    }

    /// Keeps an answer in the cache.
    pub fn keep_answer(&mut self, who: Who, generation: u64, answer: Arc<Answer>) {
        let header = &self.control.header;
        let changed = |from, to| header.login_changed(from, to);
        self.cache.keep(who, generation, answer, changed);
    }

    /// Handles the launcher's answer. `is_full`: the context memory has no room for more
    /// sessions of that role in that database.
    pub fn answered(
        &mut self,
        number: u32,
        serial: u64,
        generation: u64,
        answer: Arc<Answer>,
        is_full: bool,
    ) {
        let Some(login) = login_of(&mut self.logins, number, serial) else {
            return;
        };
        login.group = answer.group();
        let phase = std::mem::replace(&mut login.phase, Phase::Startup(StartupReader::default()));
        let Phase::Asked(mut asked) = phase else {
            return self.drop_login(number);
        };
        let by_server = self.parameters.login_by_server || answer.method == AUTH_BY_SERVER;
        let why = match (answer.native, is_full) {
            (NATIVE_POOL_MODE, _) => Some(Why::PoolMode),
            (NATIVE_DELEGATION, _) => Some(Why::Delegation),
            (NATIVE_FAILED_CHECK, _) => Some(Why::FailedCheck),
            (_, true) => Some(Why::PoolMemory),
            _ => None,
        };
        if let Some(why) = why.filter(|_| asked.proved.is_none()) {
            let errand = Errand::Native(why);
            return self.send_on_errand(number, errand, ForServer::Client(asked));
        }
        // The NegotiateProtocolVersion message comes before any other. From here on the server
        // does not send it, so the dispatcher does.
        let negotiate = std::mem::take(&mut asked.startup.negotiate);
        if !negotiate.is_empty() && socket::send(login.fd(), &negotiate).is_err() {
            return self.drop_login(number);
        }
        if by_server && !answer.refuse_before_authentication && asked.proved.is_none() {
            asked.role = answer.role;
            return self.send_on_errand(number, Errand::Login, ForServer::Client(asked));
        }
        if answer.refuse_before_authentication || answer.refuse_method {
            if let Some(report) = &answer.refusal {
                let report = report.clone();
                // CheckCertAuth() (auth.c) logs the identity before it looks at the map.
                let names = login.socket.certificate();
                let names = names.filter(|names| answer.is_by_certificate() && names.is_named());
                if let Some(names) = names {
                    let client = names_of(&asked.startup, login.address);
                    let by = by(&answer, &names.distinguished);
                    log_authenticated(&self.parameters, &client, &answer, &by);
                }
                let detail = answer.log_detail(&report, &asked.startup.user);
                let detail = detail.filter(|_| answer.refuse_method);
                return self.fail_as(number, &asked.startup, &report, detail.as_deref());
            }
        }
        if let Some(proved) = asked.proved.take() {
            if asked.role != 0 && asked.role != answer.role {
                // The name belongs to another role since the server was asked.
                let report = Report::fatal(b"28000", "the role has been renamed");
                return self.fail_as(number, &asked.startup, &report, None);
            }
            return self.enter(number, asked.startup, answer, proved);
        }
        if answer.method == AUTH_PEER && asked.os_user.is_none() && login.address.is_local() {
            login.phase = Phase::Asked(asked);
            return self.ask_name(number);
        }
        let Asked {
            startup, os_user, ..
        } = *asked;
        if let Some(name) = os_user.as_deref().filter(|_| answer.is_refused_peer()) {
            // As auth_peer() (auth.c) does.
            let client = names_of(&startup, login.address);
            let by = by(&answer, name.as_bytes());
            log_authenticated(&self.parameters, &client, &answer, &by);
        }
        let method = match answer.method {
            AUTH_TRUST => Method::Trust,
            AUTH_REJECT => Method::Reject,
            AUTH_SCRAM => Method::Scram,
            AUTH_MD5 => Method::Md5,
            AUTH_PASSWORD => Method::Password,
            AUTH_PEER => Method::Peer,
            // A launcher of another build.
            _ => return self.drop_login(number),
        };
        let claim = Claim {
            channel_binding: (login.socket.tls()).and_then(|facts| facts.end_point.clone()),
            ..claim(&startup.user, method, &answer, &self.parameters)
        };
        let (auth, action) = ServerAuth::start(claim, &self.mock_secret);
        login.phase = Phase::Proving(Box::new(Proving {
            startup,
            os_user,
            answer,
            generation,
            auth,
        }));
        let waits = self.auth_action(number, action);
        if waits {
            self.await_login(number);
        }
    }

    /// The client is authenticated. The launcher's answer may have become stale during the
    /// exchange.
    pub(super) fn login_proved(&mut self, number: u32, mut out: Vec<u8>) {
        let Some(login) = self.logins.get_mut(number) else {
            return;
        };
        let phase = std::mem::replace(&mut login.phase, Phase::Startup(StartupReader::default()));
        let Phase::Proving(proving) = phase else {
            return self.drop_login(number);
        };
        let Proving {
            startup,
            os_user,
            answer,
            generation,
            ..
        } = *proving;
        // The certificate belongs to another user: the refusal takes the place of
        // AuthenticationOk.
        if let Some(report) = answer.refusal.clone().filter(|_| answer.refuse_proof) {
            let by = by(&answer, &startup.user);
            let client = names_of(&startup, login.address);
            log_authenticated(&self.parameters, &client, &answer, &by);
            if out.is_empty() || self.send_to_login(number, &out) {
                let detail = answer.log_detail(&report, &startup.user);
                self.fail_as(number, &startup, &report, detail.as_deref());
            }
            return;
        }
        if answer.method == AUTH_SCRAM {
            batch_scheduling::client_has_computed();
        }
        messages::authentication_ok(&mut out);
        let certificate = login.socket.certificate();
        let by_certificate = certificate.filter(|_| answer.is_by_certificate());
        let had_to_prove = answer.method != AUTH_TRUST || by_certificate.is_some();
        let authenticated = had_to_prove.then(|| {
            let subject = by_certificate.map(|names| names.distinguished.as_slice());
            let identity = os_user.as_deref().map(str::as_bytes).or(subject);
            by(&answer, identity.unwrap_or(&startup.user))
        });
        let client = names_of(&startup, login.address);
        match &authenticated {
            Some(by) => log_authenticated(&self.parameters, &client, &answer, by),
            // ClientAuthentication(), auth.c; until 16 it logs nothing for trust.
            None if self.parameters.server_major() >= 17 => {
                let by = by(&answer, &startup.user);
                log_connected(&self.parameters, "user", &client, &answer, &by);
            }
            None => {}
        }
        let proved = Proved {
            out,
            principal: None,
            authenticated,
        };
        let now = self.control.header.login_generation.load(SeqCst);
        let is_old = answer.demands_proof()
            && (generation != now || answer.good_until == 0 || answer.counts_connections());
        if is_old || !self.launcher_is_up {
            login.phase = Phase::Asked(Box::new(Asked {
                startup,
                os_user,
                proved: Some(proved),
                role: 0,
            }));
            return self.ask(number);
        }
        self.enter(number, startup, answer, proved);
    }

    /// A backend reports that it has authenticated the client, by GSSAPI as this principal.
    pub fn authenticated_by_server(
        &mut self,
        number: u32,
        serial: u64,
        principal: Option<Vec<u8>>,
        authenticated: Option<Authenticated>,
    ) {
        self.place_is_free(serial);
        self.next_errands();
        let Some(login) = login_of(&mut self.logins, number, serial) else {
            return;
        };
        let phase = std::mem::replace(&mut login.phase, Phase::Startup(StartupReader::default()));
        let Phase::Authenticating(mut asked) = phase else {
            return self.drop_login(number);
        };
        let mut out = Vec::new();
        messages::authentication_ok(&mut out);
        asked.proved = Some(Proved {
            out,
            principal,
            authenticated,
        });
        login.phase = Phase::Asked(asked);
        self.ask(number);
    }

    /// The backend that was to authenticate the client has ended, and has sent it the error.
    pub fn not_authenticated(&mut self, number: u32, serial: u64) {
        self.place_is_free(serial);
        if self.has(number, serial) {
            debug!("the server has refused a login, and logged it");
            self.drop_login(number);
        }
        self.next_errands();
    }

    /// Requests admission, which follows authentication as in stock.
    fn enter(&mut self, number: u32, startup: Startup, answer: Arc<Answer>, proved: Proved) {
        if let Some(login) = self.take_out(number) {
            self.effects.push_back(Effect::Enter(Box::new(Entering {
                socket: login.socket,
                address: login.address,
                local: login.local,
                watched: login.watched,
                began_us: login.began_us,
                startup,
                answer,
                proved,
            })));
        }
    }
}

/// The identity that the client has proved, by the method that the answer names.
fn by(answer: &Answer, identity: &[u8]) -> Authenticated {
    Authenticated {
        method: answer.method_name.clone(),
        identity: identity.to_vec(),
    }
}

/// Logs a line of log_connections.
fn log_authenticated(
    parameters: &Parameters,
    client: &lines::Client<'_>,
    answer: &Answer,
    authenticated: &Authenticated,
) {
    log_connected(parameters, "identity", client, answer, authenticated);
}

fn log_connected(
    parameters: &Parameters,
    what: &str,
    client: &lines::Client<'_>,
    answer: &Answer,
    authenticated: &Authenticated,
) {
    if parameters.log_authentication {
        let line = [
            format!("connection authenticated: {what}=\"").as_bytes(),
            &authenticated.identity,
            b"\" method=",
            &authenticated.method,
            b" (",
            &answer.hba_place,
            b")",
        ]
        .concat();
        lines::client(client, &line);
    }
}

// ---- Admission ------------------------------------------------------------
//
// Whether an authenticated client is admitted.

/// The CONNECTION LIMIT of a role or database is reached.
fn too_many(what: &str, name: &[u8]) -> Report {
    let name = String::from_utf8_lossy(name);
    Report::fatal(
        b"53300",
        format!("too many connections for {what} \"{name}\""),
    )
}

/// The checks of InitPostgres (postinit.c), in its order: the role and its limit, the server's
/// limit, the database and its limit. The core checks the settings for the role in the database
/// (`Core::may_come_in`).
pub fn admit(
    sessions: &Scheduler,
    parameters: &Parameters,
    startup: &Startup,
    answer: &Answer,
) -> Result<(), Report> {
    let tally = sessions.session_tally();
    // The launcher gives a role's limit only if the role may log in. A refusal that comes with
    // a limit concerns the database, so it follows the role's check. Sessions of a role that
    // had this name before do not count.
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

/// pg_baton.max_sessions divided by this is kept for roles with few sessions.
const FEW_PART: usize = 10;

/// Part of max_sessions is reserved for superusers, as of max_connections. The last slots of
/// the rest go only to roles that have fewer sessions than slots are left.
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

/// Does the server have room for this native session? Native sessions leave to the pool the
/// connections that its shared backends may need, and those that are reserved for a stall.
pub fn has_room_for_native(
    sessions: &Scheduler,
    natives: &Natives,
    superuser: bool,
) -> Result<(), Report> {
    // `connections()` already counts this session.
    if superuser || natives.connections() <= sessions.most_native() {
        return Ok(());
    }
    let report = Report::fatal(b"53300", "sorry, too many clients already");
    Err(report
        .with_detail("Native sessions leave the pool the connections that its backends need."))
}

/// Do the limits before login leave room for one more session of this role and address? Native
/// sessions count too.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_user_s_password_counts_as_stored_the_current_way() {
        let mut parameters = Parameters::default();
        let is_md5 = |method, number, parameters: &Parameters| {
            let answer = Answer {
                method: number,
                ..Answer::default()
            };
            claim(b"nobody", method, &answer, parameters).encryption_is_md5
        };
        assert!(!is_md5(Method::Password, AUTH_PASSWORD, &parameters));
        assert!(is_md5(Method::Md5, AUTH_MD5, &parameters));
        assert!(parameters.set("password_encryption", "md5"));
        assert!(is_md5(Method::Password, AUTH_PASSWORD, &parameters));
        assert!(parameters.set("password_encryption", "scram-sha-256"));
        assert!(parameters.set("scram_iterations", "7000"));
        assert!(!is_md5(Method::Password, AUTH_PASSWORD, &parameters));
        let claim = claim(b"nobody", Method::Password, &Answer::default(), &parameters);
        assert_eq!(claim.scram_iterations, 7000);
    }
}
