//! The launcher: parameters come from it, and answers about who may log in.
//!
//! Its channel is either descriptor 3, inherited, or a control connection of a
//! launcher that has been started anew. Without one (the server restarts after
//! a crash) sessions go on, and nobody can log in: who comes waits a moment, for
//! a launcher that ended alone is soon replaced.

use super::control::{Connection, Peer};
use super::layout::settings_mark;
use super::layout::shared::*;
use super::wire::{Frame, Malformed, Reader, Writer};
use crate::core::{Event, Identity, PoolKey, PoolLimits, Provenance};
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::login::login_cache::{LoginCache, Who};
use crate::dispatcher::parameters::Parameters;
use crate::dispatcher::pools::origin::address_of;
use crate::dispatcher::sys::socket::{self, Address};
use crate::protocol::auth::verifier::MockSecret;
use crate::protocol::Report;
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use tracing::{debug, info, warn};

/// The channel to the launcher.
#[derive(Default)]
pub struct Link {
    connection: Option<u32>,
    /// When the last one went.
    lost_us: u64,
    next_request: u32,
    /// By request; bounded by the logins and the pools.
    questions: HashMap<u32, Question>,
}

/// Who wants to know; the serial tells it from an earlier one of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Login(u32, u64),
    /// For its clients from there.
    Pool(u32, u64, Provenance),
}

struct Question {
    asker: Asker,
    who: Who,
    /// login_generation before it was asked.
    generation: u64,
    /// And settings_generation.
    settings: u64,
    frame: Vec<u8>,
    /// Launchers that have had it.
    asked: u32,
}

/// A question that this many launchers died over is not put to another: it may
/// be what they died of, and every login waits for them.
const LAUNCHERS_A_QUESTION: u32 = 2;

const REPLACED_WITHIN_US: u64 = 3_000_000;

impl Link {
    pub fn is_up(&self) -> bool {
        self.connection.is_some()
    }

    /// Gone for so long that this is no mere replacement, which takes bgw_restart_time,
    /// a second (launcher.c).
    pub fn is_away(&self, now_us: u64) -> bool {
        !self.is_up() && now_us > self.lost_us + REPLACED_WITHIN_US
    }

    /// For a new launcher: what it shall be asked, and what is given up.
    fn ask_again(&mut self) -> (Vec<Vec<u8>>, Vec<Question>) {
        let given_up: Vec<u32> = (self.questions.iter())
            .filter(|(_, question)| question.asked >= LAUNCHERS_A_QUESTION)
            .map(|(request, _)| *request)
            .collect();
        let given_up = (given_up.iter())
            .filter_map(|request| self.questions.remove(request))
            .collect();
        let mut frames = Vec::new();
        for question in self.questions.values_mut() {
            question.asked += 1;
            frames.push(question.frame.clone());
        }
        (frames, given_up)
    }
}

/// What the launcher says of a client.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub method: u32,
    pub method_name: Vec<u8>,
    pub verifier: Vec<u8>,
    pub password_expired: bool,
    pub role: u32,
    pub database: u32,
    pub superuser: bool,
    pub role_limit: i32,
    pub database_limit: i32,
    pub role_backends: i32,
    pub database_backends: i32,
    pub refusal: Option<Report>,
    pub refuse_before_authentication: bool,
    /// The refusal comes when the client has proved itself, in place of
    /// AuthenticationOk: its certificate is not this role's.
    pub refuse_proof: bool,
    pub peer_allowed: bool,
    /// TimestampTz up to which the answer may be given again; 0: not at all.
    pub good_until: i64,
    /// Only a backend can say whether this role may connect: it must greet.
    pub ask_backend: bool,
    /// By pg_baton.pool_mode.
    pub is_native: bool,
}

impl Answer {
    /// Request number and answer.
    pub fn parse(payload: &[u8]) -> Result<(u32, Answer), Malformed> {
        let mut reader = Reader(payload);
        let request = reader.u32()?;
        let mut answer = Answer {
            method: reader.u32()?,
            method_name: reader.string()?.to_vec(),
            verifier: reader.string()?.to_vec(),
            password_expired: reader.u8()? != 0,
            ..Answer::default()
        };
        answer.role = reader.u32()?;
        answer.database = reader.u32()?;
        answer.superuser = reader.u8()? != 0;
        answer.role_limit = reader.i32()?;
        answer.database_limit = reader.i32()?;
        answer.role_backends = reader.i32()?;
        answer.database_backends = reader.i32()?;
        let sqlstate = reader.string()?;
        let (message, detail, hint) = (reader.string()?, reader.string()?, reader.string()?);
        if let Ok(sqlstate) = <&[u8; 5]>::try_from(sqlstate) {
            let mut report = Report::fatal(sqlstate, message);
            if !detail.is_empty() {
                report = report.with_detail(detail);
            }
            if !hint.is_empty() {
                report = report.with_hint(hint);
            }
            answer.refusal = Some(report);
        }
        let refuse_when = reader.u8()?;
        answer.refuse_before_authentication = refuse_when == 1;
        answer.refuse_proof = refuse_when == 2;
        answer.peer_allowed = reader.string()? == b"1";
        answer.good_until = reader.i64()?;
        answer.ask_backend = reader.u8()? != 0;
        answer.is_native = reader.u8()? != 0;
        Ok((request, answer))
    }

    /// May there be so many of ours, beside the others that there are, within
    /// this CONNECTION LIMIT? It is counted only if there is a limit.
    pub fn fits(&self, limit: i32, others: i32, ours: impl FnOnce() -> i64) -> bool {
        limit < 0 || self.superuser || i64::from(others) + ours() <= i64::from(limit)
    }
}

/// The salt of roles that do not exist comes from the server's own secret.
pub fn mock_secret(nonce: &[u8]) -> MockSecret {
    if nonce.is_empty() {
        MockSecret::random()
    } else {
        MockSecret::new(nonce.to_vec())
    }
}

/// The pairs of a PARAMETERS payload.
pub fn parse_parameters(payload: &[u8], parameters: &mut Parameters) -> Result<(), Malformed> {
    let mut reader = Reader(payload);
    for _ in 0..reader.u32()? {
        let name = String::from_utf8_lossy(reader.string()?);
        let value = String::from_utf8_lossy(reader.string()?);
        if !parameters.set(&name, &value) {
            warn!("invalid value for parameter \"{name}\": \"{value}\"");
        }
    }
    Ok(())
}

impl Dispatcher {
    /// Takes over the inherited channel.
    pub fn add_launcher(&mut self, socket: std::os::fd::OwnedFd) {
        let number = self.add_connection(Connection::new(socket, Peer::Launcher));
        self.link.connection = number;
        let up = number.is_some();
        self.tell(Event::LauncherIs { up });
    }

    /// A launcher that is new takes over; open questions are asked again, once.
    pub fn launcher_connected(&mut self, number: u32) {
        let old = self.link.connection.replace(number);
        self.tell(Event::LauncherIs { up: true });
        if let Some(old) = old.filter(|old| *old != number) {
            self.connection_dead(old);
        }
        let (frames, given_up) = self.link.ask_again();
        for frame in frames {
            self.send_to_launcher(frame);
        }
        self.core.ask_limits_again(|_| true);
        self.carry_out();
        for question in given_up {
            warn!(
                "two launchers ended while they were asked about a login of \"{}\"; it is refused",
                String::from_utf8_lossy(&question.who.user)
            );
            let report = Report::fatal(b"58000", "could not check who may log in")
                .with_detail("The server process that checks logins ended twice over this one.")
                .with_hint("See the server's log.");
            let answer = Answer {
                refusal: Some(report),
                refuse_before_authentication: true,
                ..Answer::default()
            };
            self.answered(question.asker, question.generation, answer);
        }
    }

    pub fn launcher_gone(&mut self, number: u32) {
        if self.link.connection == Some(number) {
            self.link.connection = None;
            self.link.lost_us = self.now_us;
            self.tell(Event::LauncherIs { up: false });
            if self.stopping.is_none() {
                warn!("the launcher has gone; sessions go on, nobody can log in until it is back");
            }
        }
    }

    fn send_to_launcher(&mut self, frame: Vec<u8>) {
        let Some(number) = self.link.connection else {
            return;
        };
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        if connection.unsent.is_empty() && socket::send(connection.fd(), &frame).is_ok() {
            return;
        }
        connection.unsent.push_back(frame);
        self.send_unsent(number);
    }

    pub fn ask_launcher(&mut self, asker: Asker, address: &Address, who: Who) {
        // First of all: whatever changes from here on makes the answer old.
        let generation = self.control.header.login_generation.load(SeqCst);
        let request = self.link.next_request;
        self.link.next_request = request.wrapping_add(1);
        let names = who.tls.as_ref().and_then(|tls| tls.certificate.as_ref());
        let frame = Writer::new(MSG_LOGIN_QUESTION, 0)
            .u32(request)
            .u8(u8::from(!address.is_local()))
            .u8(address.family as u8)
            .bytes(&address.bytes)
            .u16(address.port)
            .string(&who.user)
            .string(&who.database)
            .string(who.os_user.as_bytes())
            .u8(u8::from(who.tls.is_some()))
            .u8(u8::from(who.tls.as_ref().is_some_and(|tls| tls.has_ca)))
            .u8(u8::from(names.is_some()))
            .string(names.map_or(&[], |names| &names.common))
            .string(names.map_or(&[], |names| &names.distinguished))
            .finish();
        let question = Question {
            asker,
            who,
            generation,
            settings: self.core.settings_generation(),
            frame: frame.clone(),
            // one that is asked without a launcher waits for the first
            asked: u32::from(self.link.is_up()),
        };
        self.link.questions.insert(request, question);
        self.send_to_launcher(frame);
    }

    /// Questions whose asker has gone are forgotten.
    pub fn forget_questions(&mut self) {
        let (logins, core) = (&self.logins, &self.core);
        self.link
            .questions
            .retain(|_, question| match question.asker {
                Asker::Login(number, serial) => {
                    (logins.get(number)).is_some_and(|login| login.serial == serial)
                }
                Asker::Pool(number, serial, _) => core.pool_serial(number) == Some(serial),
            });
    }

    fn answered(&mut self, asker: Asker, generation: u64, answer: Answer) {
        match asker {
            Asker::Login(number, serial) => {
                self.login_answered(number, serial, generation, answer);
            }
            Asker::Pool(number, serial, from) => {
                self.pool_answered(number, serial, from, generation, &answer);
            }
        }
    }

    pub fn launcher_frame(&mut self, frame: Frame<'_>) -> Result<(), Malformed> {
        match frame.kind {
            MSG_PARAMETERS => {
                let mut parameters = self.parameters.clone();
                parse_parameters(frame.payload, &mut parameters)?;
                self.reconfigure(parameters);
            }
            MSG_LOGIN_ANSWER => {
                let (request, answer) = Answer::parse(frame.payload)?;
                // What the launcher has noticed of settings counts for this client.
                self.look_at_settings();
                if let Some(question) = self.link.questions.remove(&request) {
                    let (asker, generation) = (question.asker, question.generation);
                    // A pool does not say which user of the machine it is.
                    let is_of_now = question.settings == self.core.settings_generation();
                    if answer.good_until != 0 && is_of_now && matches!(asker, Asker::Login(..)) {
                        let who = question.who;
                        self.login_cache.keep(who, generation, answer.clone());
                    }
                    self.answered(asker, generation, answer);
                }
            }
            MSG_POOL_SETTINGS => {
                let mut reader = Reader(frame.payload);
                let group = (reader.u32()?, reader.u32()?);
                let mut values = [0; 6];
                for value in &mut values {
                    *value = reader.i32()?;
                }
                let limits = PoolLimits::of(values);
                self.core.set_pool_limits(group, limits);
                self.carry_out();
            }
            MSG_SHUTDOWN => self.stop("the server is stopping"),
            _ => return Err(Malformed),
        }
        Ok(())
    }

    fn reconfigure(&mut self, parameters: Parameters) {
        if parameters == self.parameters {
            return;
        }
        info!("parameters reloaded");
        if parameters.configuration_generation != self.parameters.configuration_generation {
            self.greetings.configuration_changed(self.now_us);
        }
        let starts_differ =
            parameters.backend_start_settings != self.parameters.backend_start_settings;
        self.mock_secret = mock_secret(&parameters.mock_authentication_nonce);
        self.contexts
            .arena
            .set_limit(crate::dispatcher::session_memory(&parameters));
        self.parameters = parameters;
        self.login_cache = LoginCache::default();
        self.reload_tls();
        self.control
            .header
            .force_migration
            .store(u32::from(self.parameters.force_migration), SeqCst);
        if starts_differ {
            self.core.outdate_pools(|_| true);
        }
        self.set_limits();
        // What is set for nobody in particular may have changed.
        self.core.ask_limits_again(|_| true);
        self.carry_out();
    }

    /// Which limits has a role in a database? A launcher that comes later is
    /// asked anew.
    pub fn ask_limits(&mut self, role: u32, database: u32) {
        let frame = Writer::new(MSG_POOL_QUESTION, 0).u32(role).u32(database);
        self.send_to_launcher(frame.finish());
    }

    /// Could another backend of a pool log in for clients from there?
    pub fn ask_for_pool(&mut self, pool: u32, serial: u64, from: Provenance) {
        let Some(key) = self.core.pool_key(pool) else {
            return;
        };
        let address = address_of(from);
        let who = Who::new(
            &key.user,
            &key.database,
            String::new(),
            &address,
            self.tls_of(from),
        );
        self.ask_launcher(Asker::Pool(pool, serial, from), &address, who);
    }

    /// The launcher has said what a pool's role may do from there.
    fn pool_answered(
        &mut self,
        pool: u32,
        serial: u64,
        from: Provenance,
        generation: u64,
        answer: &Answer,
    ) {
        let Some(key) = self.core.pool_key(pool).cloned() else {
            return;
        };
        let identity = Identity {
            role_oid: answer.role,
            database_oid: answer.database,
            superuser: answer.superuser,
        };
        let proves = match answer.method {
            // Which user of the machine asked has been left out.
            AUTH_TRUST | AUTH_PEER => true,
            AUTH_SCRAM | AUTH_MD5 | AUTH_PASSWORD => {
                // An expired one comes without its verifier.
                self.roles.knows(key.role_oid, &answer.verifier)
            }
            AUTH_BY_SERVER => self.roles.are_vouched_for(key.role_oid),
            _ => false,
        };
        let count = |same: &dyn Fn(&PoolKey) -> bool| self.core.count_backends(same);
        let may = answer.refusal.is_none()
            && !answer.ask_backend
            && self.core.is_of_pool(pool, identity)
            && proves
            && answer.fits(answer.role_limit, answer.role_backends, || {
                count(&|other| other.role_oid == key.role_oid)
            })
            && answer.fits(answer.database_limit, answer.database_backends, || {
                count(&|other| other.database_oid == key.database_oid)
            });
        debug!("another backend of pool {pool} could log in: {may}");
        let until = may.then_some(answer.good_until);
        let control = self.control;
        self.core
            .pool_answered(pool, serial, from, generation, until, &control);
        self.carry_out();
    }

    pub fn settings_changed(&mut self, generation: u64) {
        // Answers say whose sessions are native.
        self.login_cache = LoginCache::default();
        let now = self.control.header.read_settings_marks();
        let before = std::mem::replace(&mut self.settings_marks, now.clone());
        // Those for all roles or all databases are under 0, InvalidOid.
        let concerns = |(role_oid, database_oid): (u32, u32)| {
            [0, database_oid].iter().any(|database_oid| {
                [0, role_oid].iter().any(|role_oid| {
                    let mark = settings_mark(*database_oid, *role_oid);
                    now[mark] != before[mark]
                })
            })
        };
        self.core
            .settings_changed(generation, |key| concerns((key.role_oid, key.database_oid)));
        self.core.ask_limits_again(concerns);
        self.carry_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_two_launchers_died_over_is_given_up() {
        let mut link = Link::default();
        for (request, asked) in [(1, 1), (2, 0)] {
            let who = Who::new(b"u", b"d", String::new(), &Address::default(), None);
            let question = Question {
                asker: Asker::Login(request, 0),
                who,
                generation: 0,
                settings: 0,
                frame: vec![request as u8],
                asked,
            };
            link.questions.insert(request, question);
        }
        let (frames, given_up) = link.ask_again();
        assert_eq!((frames.len(), given_up.len()), (2, 0));
        let (frames, given_up) = link.ask_again();
        assert_eq!(frames, [[2]]);
        assert_eq!(given_up[0].asker, Asker::Login(1, 0));
        assert_eq!(link.ask_again().1.len(), 1);
        assert!(link.questions.is_empty());
    }

    #[test]
    fn answers_and_parameters_are_read_as_the_header_says() {
        let payload = |sqlstate: &[u8]| {
            let frame = Writer::new(MSG_LOGIN_ANSWER, 0)
                .u32(7)
                .u32(AUTH_SCRAM)
                .string(b"scram-sha-256")
                .string(b"SCRAM")
                .u8(0)
                .u32(10)
                .u32(5)
                .u8(1)
                .u32(3)
                .u32(u32::MAX)
                .u32(1)
                .u32(2)
                .string(sqlstate)
                .string(b"message")
                .string(b"")
                .string(b"hint")
                .u8(1)
                .string(b"1")
                .u64(9)
                .u8(1)
                .u8(1)
                .finish();
            frame[16..].to_vec()
        };
        let (request, answer) = Answer::parse(&payload(b"28000")).unwrap();
        assert_eq!(
            (request, answer.role_limit, answer.database_limit),
            (7, 3, -1)
        );
        assert_eq!((answer.role, answer.database), (10, 5));
        assert_eq!((answer.good_until, answer.ask_backend), (9, true));
        assert!(answer.is_native);
        assert!(answer.superuser && answer.peer_allowed && answer.refuse_before_authentication);
        let report = answer.refusal.unwrap();
        assert_eq!((report.detail, report.hint), (None, Some(b"hint".to_vec())));
        assert!(Answer::parse(&payload(b"")).unwrap().1.refusal.is_none());
        for length in 0..payload(b"").len() {
            assert!(Answer::parse(&payload(b"")[..length]).is_err());
        }

        let frame = Writer::new(MSG_PARAMETERS, 0)
            .u32(2)
            .string(b"port")
            .string(b"1")
            .string(b"max_backends")
            .string(b"8")
            .finish();
        let mut parameters = Parameters::default();
        parse_parameters(&frame[16..], &mut parameters).unwrap();
        assert_eq!((parameters.port, parameters.max_backends), (1, 8));
        assert!(parse_parameters(&frame[16..40], &mut parameters).is_err());
    }
}
