//! Clients that are logging in.
//!
//! No backend is held meanwhile. A login reads no more than the message at
//! hand, since what follows the login belongs to a backend; its socket is
//! waited for under its own number, one event at a time, and only while
//! something is expected of the client. It ends as a session (greeting.rs), or
//! the connection ends; after authentication_timeout without a word, as in
//! stock. The number of logins is bounded, and so is what each may send.

use super::errands::{Errand, ForServer};
use super::jobs::Job;
use super::login_cache::{Who, WhoByTls};
use super::native::Why;
use crate::core::Event;
use crate::dispatcher::event_loop::{token, Dispatcher, Source};
use crate::dispatcher::link::launcher::{Answer, Asker};
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::slab::Slab;
use crate::dispatcher::sys::epoll;
use crate::dispatcher::sys::socket::{self, Address};
use crate::dispatcher::tls::facts::{Facts, Names};
use crate::dispatcher::tls::{ClientEnd, HandedEnd};
use crate::protocol::auth::server::{Action, Claim, Learnt, Method, ServerAuth};
use crate::protocol::messages;
use crate::protocol::startup::{CancelRequest, Startup, StartupError, StartupEvent, StartupReader};
use crate::protocol::Report;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use tracing::{debug, info};

/// Logins in progress beyond one a session slot.
pub const SPARE_LOGINS: usize = 1000;
/// Messages handled for one client before others get their turn.
const STEPS_A_ROUND: usize = 16;

/// How far a login has come.
pub(super) enum Phase {
    /// Reading the first packets.
    Startup(StartupReader),
    /// A relay shakes hands; it has begun with TLS at once, or asked for it.
    Securing { is_direct: bool },
    /// The launcher has been asked, or the name service.
    Asked(Box<Asked>),
    /// Authentication runs.
    Proving(Box<Proving>),
    /// Somebody is on his way to the server, or there with the client's socket.
    Errand { errand: Errand, what: ForServer },
}

pub(super) struct Asked {
    pub(super) startup: Startup,
    /// The name of the user at the other end of a Unix socket, "" if he has
    /// none; asked for when the method needs it.
    pub(super) os_user: Option<String>,
    /// This client has proved itself: it is asked again whether it may come in.
    proved: Option<Proved>,
    /// As which a backend authenticates it; 0: none does.
    role: u32,
}

pub(super) struct Proving {
    startup: Startup,
    os_user: Option<String>,
    answer: Answer,
    /// login_generation before the launcher was asked.
    generation: u64,
    pub(super) auth: ServerAuth,
}

/// What is left of an authentication that has succeeded.
struct Proved {
    /// To be sent before anything else: ends with AuthenticationOk.
    out: Vec<u8>,
    /// What the client has proved itself against.
    verifier: Vec<u8>,
    learnt: Learnt,
}

/// One client that is logging in.
pub struct Login {
    socket: HandedEnd,
    pub serial: u64,
    pub address: Address,
    pub(super) local: Option<Address>,
    pub deadline_us: u64,
    /// Its socket is in the epoll.
    pub(super) watched: bool,
    /// It counts among the logins of this second (door.rs).
    pub(super) is_counted: bool,
    /// What it has sent, a TLS handshake apart.
    pub(super) bytes: u64,
    /// Since when the client is at what it is at.
    pub(super) step_began_us: u64,
    pub(super) phase: Phase,
}

impl Login {
    /// Bytes to read from the client now; 0 while it is not its turn.
    fn wanted(&self) -> usize {
        match &self.phase {
            Phase::Startup(reader) => reader.wanted(),
            Phase::Proving(proving) => proving.auth.wanted(),
            Phase::Securing { .. } | Phase::Asked(_) | Phase::Errand { .. } => 0,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// From here on it is spoken with there; its own socket is a relay's.
    pub(super) fn hand_over(&mut self, far: HandedEnd) -> ClientEnd {
        std::mem::replace(&mut self.socket, far).into_client_end()
    }

    pub(super) fn is_secured(&mut self, facts: Arc<Facts>) {
        self.socket.secured(facts);
    }

    pub(super) fn tls(&self) -> Option<&Arc<Facts>> {
        self.socket.tls()
    }

    pub(super) fn certificate(&self) -> Option<&Names> {
        self.socket.certificate()
    }

    /// It is the client's turn.
    pub(super) fn keeps_us(&self) -> bool {
        matches!(self.phase, Phase::Securing { .. }) || self.wanted() > 0
    }

    /// A handshake is going on.
    pub(super) fn shakes_hands(&self) -> bool {
        matches!(self.phase, Phase::Securing { .. })
    }

    pub fn waits_for_an_answer(&self) -> bool {
        matches!(self.phase, Phase::Asked(_))
    }
}

/// A client that has proved itself: what a session is made of.
pub struct LoggedIn {
    pub socket: HandedEnd,
    pub address: Address,
    /// Our end, where that is known without asking.
    pub local: Option<Address>,
    /// Its socket is in the epoll.
    pub watched: bool,
    pub startup: Startup,
    pub answer: Answer,
    /// To be sent before anything else: ends with AuthenticationOk.
    pub out: Vec<u8>,
}

/// A login, if it is still the one that was asked for: numbers are used again.
pub fn login_of(logins: &mut Slab<Login>, number: u32, serial: u64) -> Option<&mut Login> {
    let login = logins.get_mut(number);
    login.filter(|login| login.serial == serial)
}

impl Dispatcher {
    pub fn begin_login(&mut self, client: OwnedFd, address: Address, local: Option<Address>) {
        self.statistics.accepted += 1;
        if self.parameters.log_receipt {
            info!("connection received: {address}");
        }
        let client = HandedEnd::plain(ClientEnd(client));
        let fd = client.fd();
        if !self.make_room_at_the_door() {
            self.statistics.logins_failed += 1;
            let report = Report::fatal(b"53300", "sorry, too many clients already");
            let _ = socket::send(fd, &report.to_bytes());
            socket::discard_input(fd);
            return;
        }
        let serial = self.serial();
        self.client_number.is_new(fd);
        let login = Login {
            socket: client,
            serial,
            address,
            local,
            watched: false,
            is_counted: false,
            bytes: 0,
            step_began_us: self.now_us,
            deadline_us: self.now_us + self.login_limit_us(fd),
            phase: Phase::Startup(StartupReader::new(self.tls.for_client(address.is_local()))),
        };
        // It has spoken already, as a rule: TCP_DEFER_ACCEPT.
        if let Some(number) = self.logins.insert(login) {
            self.login_event(number);
        }
    }

    /// The connection ends here; its descriptor with it.
    pub fn drop_login(&mut self, number: u32) {
        if let Some(login) = self.logins.get(number) {
            socket::discard_input(login.fd());
            self.statistics.logins_failed += 1;
            self.forget_login(number);
        }
    }

    /// As well, but nothing has failed.
    pub(super) fn forget_login(&mut self, number: u32) {
        if let Some(login) = self.logins.remove(number) {
            self.client_number.let_go(login.fd());
            if matches!(login.phase, Phase::Errand { .. }) {
                self.recall_errand(number, login.serial);
            }
        }
    }

    fn send_to_login(&mut self, number: u32, bytes: &[u8]) -> bool {
        // Little is ever sent to a client that logs in, and its socket is
        // empty: one that does not take it is gone or plays games.
        let now_us = self.now_us;
        let sent = self.logins.get_mut(number).is_some_and(|login| {
            login.step_began_us = now_us;
            socket::send(login.fd(), bytes).ok() == Some(bytes.len())
        });
        if !sent {
            self.drop_login(number);
        }
        sent
    }

    pub fn fail_login(&mut self, number: u32, report: &Report) {
        if let Some(login) = self.logins.get(number) {
            info!("login failed, {}: {report}", login.address);
            let _ = socket::send(login.fd(), &report.to_bytes());
        }
        self.drop_login(number);
    }

    /// The client has sent something.
    pub fn login_event(&mut self, number: u32) {
        for _ in 0..STEPS_A_ROUND {
            let Some(login) = self.logins.get_mut(number) else {
                return;
            };
            let wanted = login.wanted();
            if wanted == 0 {
                return;
            }
            let mut bytes = [0; 4096];
            let room = wanted.min(bytes.len());
            let length = match socket::receive(login.fd(), &mut bytes[..room]) {
                Ok(0) => {
                    if matches!(&login.phase, Phase::Startup(reader) if reader.in_packet()) {
                        info!("incomplete startup packet");
                    }
                    return self.drop_login(number);
                }
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.await_login(number);
                }
                Err(_) => return self.drop_login(number),
            };
            let serial = login.serial;
            if !self.count_login_bytes(number, length) {
                return;
            }
            let Some(login) = self.logins.get_mut(number) else {
                return;
            };
            match &mut login.phase {
                Phase::Startup(reader) => {
                    let (_, event) = reader.feed(&bytes[..length]);
                    let is_last = matches!(event, StartupEvent::Startup(_));
                    if event == StartupEvent::Direct {
                        return self.begin_tls(number, Some(&bytes[..length]));
                    }
                    self.startup_event(number, event);
                    if is_last {
                        return;
                    }
                }
                Phase::Proving(proving) => {
                    let (_, action) = proving.auth.feed(&bytes[..length]);
                    self.auth_action(number, action);
                }
                Phase::Securing { .. } | Phase::Asked(_) | Phase::Errand { .. } => return,
            }
            // Less than there was room for: there is no more yet.
            if length < room || login_of(&mut self.logins, number, serial).is_none() {
                break;
            }
        }
        self.await_login(number);
    }

    /// Waits for the client, if it is expected to speak next.
    pub(super) fn await_login(&mut self, number: u32) {
        let Some(login) = self.logins.get_mut(number) else {
            return;
        };
        let wanted = login.wanted();
        if wanted == 0 {
            return;
        }
        let fd = login.fd();
        let data = token(Source::Login, number);
        let events = epoll::IN | epoll::ONESHOT;
        let known = std::mem::replace(&mut login.watched, true);
        let watched = self
            .client_number
            .watch(&self.epoll, fd, known, events, data);
        if watched.is_err() {
            self.drop_login(number);
        }
    }

    fn startup_event(&mut self, number: u32, event: StartupEvent) {
        match event {
            StartupEvent::NeedMore | StartupEvent::Direct => {}
            StartupEvent::Secure => self.begin_tls(number, None),
            StartupEvent::Answer(byte) => {
                self.send_to_login(number, &[byte]);
            }
            StartupEvent::Cancel(request) => self.cancel_requested(number, request),
            StartupEvent::Startup(_) if self.is_in_vain(number) => self.turn_away_heard(number),
            StartupEvent::Startup(startup) => self.ask_about(number, *startup),
            StartupEvent::Failed(error) => self.startup_failed(number, error),
        }
    }

    fn startup_failed(&mut self, number: u32, error: StartupError) {
        match error {
            StartupError::Close(why) => info!("{why}"),
            StartupError::Fatal { send, report } => {
                info!("login failed: {report}");
                if let Some(login) = self.logins.get(number) {
                    let _ = socket::send(login.fd(), &send);
                }
            }
        }
        self.drop_login(number);
    }

    /// The request's connection ends when it has been obeyed: that tells the client
    /// to go on, and what it then asks is not meant.
    fn cancel_requested(&mut self, number: u32, request: CancelRequest) {
        let key = request.short_key();
        match key.and_then(|key| self.session_of_key(request.pid, key)) {
            Some(id) => {
                self.statistics.cancels += 1;
                self.tell(Event::Cancel(id));
            }
            None if u32::try_from(request.pid).is_ok_and(|pid| pid < FIRST_PID) => {
                return self.forward_cancel(number, request);
            }
            None => info!(
                "PID {} in cancel request did not match any process",
                request.pid
            ),
        }
        self.forget_login(number);
    }

    /// Asks the launcher what the rules say about this client.
    fn ask_about(&mut self, number: u32, startup: Startup) {
        if let Err(report) = self.count_login(number) {
            return self.fail_login(number, &report);
        }
        let native = self.why_native(&startup);
        let asked = Box::new(Asked {
            startup,
            os_user: None,
            proved: None,
            role: 0,
        });
        if let Some(why) = native {
            return self.send_on_errand(number, Errand::Native(why), ForServer::Client(asked));
        }
        if let Some(report) = self.not_now() {
            return self.fail_login(number, &report);
        }
        let Some(login) = self.logins.get_mut(number) else {
            return;
        };
        login.phase = Phase::Asked(asked);
        self.ask(number);
    }

    /// Asks what is not known already.
    pub(super) fn ask(&mut self, number: u32) {
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
        // Nobody else says whether the server is there at all.
        let cache = self.link.is_up().then_some(&self.login_cache);
        let known = cache.and_then(|cache| cache.find(&who, generation, self.now).cloned());
        let Some(answer) = known else {
            return self.ask_launcher(Asker::Login(number, serial), &address, who);
        };
        // A client may have come after this round began; then what was
        // committed before must count for it.
        self.look_at_settings();
        self.login_answered(number, serial, generation, answer);
    }

    /// The launcher has answered.
    pub fn login_answered(&mut self, number: u32, serial: u64, generation: u64, answer: Answer) {
        let Some(login) = login_of(&mut self.logins, number, serial) else {
            return;
        };
        let phase = std::mem::replace(&mut login.phase, Phase::Startup(StartupReader::default()));
        let Phase::Asked(mut asked) = phase else {
            return self.drop_login(number);
        };
        if answer.is_native && asked.proved.is_none() {
            let errand = Errand::Native(Why::PoolMode);
            return self.send_on_errand(number, errand, ForServer::Client(asked));
        }
        // The server's own word, from here on ours: before anything else.
        let negotiate = std::mem::take(&mut asked.startup.negotiate);
        if !negotiate.is_empty() && socket::send(login.fd(), &negotiate).is_err() {
            return self.drop_login(number);
        }
        let by_server = self.parameters.login_by_server || answer.method == AUTH_BY_SERVER;
        if by_server && !answer.refuse_before_authentication && asked.proved.is_none() {
            asked.role = answer.role;
            return self.send_on_errand(number, Errand::Login, ForServer::Client(asked));
        }
        if answer.refuse_before_authentication {
            if let Some(report) = &answer.refusal {
                let report = report.clone();
                return self.fail_login(number, &report);
            }
        }
        if let Some(proved) = asked.proved.take() {
            if asked.role != 0 && asked.role != answer.role {
                // Another role has got the name since the server was asked.
                let report = Report::fatal(b"28000", "the role has been renamed");
                return self.fail_login(number, &report);
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
            user: startup.user.clone(),
            method,
            verifier: (!answer.verifier.is_empty() && !answer.password_expired)
                .then(|| answer.verifier.clone()),
            peer_allowed: answer.peer_allowed,
            encryption_is_md5: answer.method == AUTH_MD5,
            channel_binding: (login.socket.tls()).and_then(|facts| facts.end_point.clone()),
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

    /// Does what authentication asks for; true if the client is to speak next.
    pub(super) fn auth_action(&mut self, number: u32, action: Action) -> bool {
        match action {
            Action::NeedMore => true,
            Action::Send(bytes) => self.send_to_login(number, &bytes),
            Action::VerifyPassword(job) => {
                if let Some(login) = self.logins.get(number) {
                    let serial = login.serial;
                    self.jobs.give(Job::Password {
                        login: number,
                        serial,
                        job: *job,
                    });
                }
                false
            }
            Action::Done { send, learnt } => {
                self.login_proved(number, send, learnt);
                false
            }
            Action::Failed(report) => {
                self.fail_login(number, &report);
                false
            }
            Action::Close(why) => {
                debug!("login ended: {why}");
                self.drop_login(number);
                false
            }
        }
    }

    /// The client is who it says. What the launcher said of it before it began
    /// to prove that may have become old meanwhile.
    fn login_proved(&mut self, number: u32, mut out: Vec<u8>, learnt: Learnt) {
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
        // Its certificate is another's: in place of AuthenticationOk.
        if let Some(report) = answer.refusal.clone().filter(|_| answer.refuse_proof) {
            if out.is_empty() || self.send_to_login(number, &out) {
                self.fail_login(number, &report);
            }
            return;
        }
        messages::authentication_ok(&mut out);
        let certificate = login.socket.certificate();
        let by_certificate = certificate.filter(|_| answer.method_name == b"cert");
        let proves = answer.method != AUTH_TRUST || by_certificate.is_some();
        if self.parameters.log_authentication && proves {
            let user = String::from_utf8_lossy(&startup.user);
            let subject = by_certificate.map(|names| String::from_utf8_lossy(&names.distinguished));
            info!(
                "connection authenticated: identity=\"{}\" method={}",
                (os_user.as_deref()).unwrap_or(subject.as_deref().unwrap_or(&user)),
                String::from_utf8_lossy(&answer.method_name),
            );
        }
        let proved = Proved {
            out,
            verifier: answer.verifier.clone(),
            learnt,
        };
        let has_waited = matches!(answer.method, AUTH_SCRAM | AUTH_MD5 | AUTH_PASSWORD);
        let now = self.control.header.login_generation.load(SeqCst);
        let is_old = has_waited && (generation != now || answer.good_until == 0);
        if is_old || !self.link.is_up() {
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

    /// A backend has authenticated the client.
    pub fn authenticated_by_server(&mut self, number: u32, serial: u64) {
        let Some(login) = login_of(&mut self.logins, number, serial) else {
            return;
        };
        let phase = std::mem::replace(&mut login.phase, Phase::Startup(StartupReader::default()));
        let Phase::Errand {
            what: ForServer::Client(mut asked),
            ..
        } = phase
        else {
            return self.drop_login(number);
        };
        let mut out = Vec::new();
        messages::authentication_ok(&mut out);
        asked.proved = Some(Proved {
            out,
            verifier: Vec::new(),
            learnt: Learnt::VouchedFor,
        });
        login.phase = Phase::Asked(asked);
        self.ask(number);
    }

    /// The backend that was to authenticate it has ended, and told it why.
    pub fn not_authenticated(&mut self, number: u32, serial: u64) {
        if login_of(&mut self.logins, number, serial).is_some() {
            info!("login failed: the server has refused it");
            self.drop_login(number);
        }
    }

    /// May it come in? As in stock that is decided after it has proved itself.
    fn enter(&mut self, number: u32, startup: Startup, answer: Answer, proved: Proved) {
        let Some(login) = self.logins.remove(number) else {
            return;
        };
        let Proved {
            mut out,
            verifier,
            learnt,
        } = proved;
        let may_enter = (self.admit(&startup, &answer))
            .and_then(|()| self.has_room_for(&login.address, answer.role, answer.superuser));
        if let Err(report) = may_enter {
            info!("login failed, {}: {report}", login.address);
            report.encode(&mut out);
            let _ = socket::send(login.fd(), &out);
            self.client_number.let_go(login.fd());
            self.statistics.logins_failed += 1;
            return;
        }
        self.roles.logged_in(answer.role, &verifier, &learnt);
        let logged_in = LoggedIn {
            socket: login.socket,
            address: login.address,
            local: login.local,
            watched: login.watched,
            startup,
            answer,
            out,
        };
        self.begin_session(logged_in);
    }
}
