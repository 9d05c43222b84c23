//! A client that is logging in: its state, its conversation with the dispatcher, results
//! that other threads bring for it, TLS, and GSSAPI encryption.
//!
//! It ends as a session (scheduler/new_session.rs), as a session of the server's own
//! (native.rs), or the connection ends; after authentication_timeout without a word,
//! as in stock. The number of logins is bounded, and so is what each may send.

use super::native::{LoggingIn, Native, Why};
use super::Logins;
use crate::protocol::auth::server::{Action, ServerAuth};
use crate::protocol::startup::{
    CancelRequest, Startup, StartupError, StartupEvent, StartupReader, Tls,
};
use crate::shell::events::{work, Slab};
use crate::shell::jobs::{Done, Job, Name};
use crate::shell::link::wire::{Answer, Who};
use crate::shell::sessions::greetings::Authenticated;
use crate::shell::sys::socket::{self, Address, Keepalives};
use crate::shell::tls::context::{self, Occasion, Passphrase, ServerContext};
use crate::shell::tls::threads::{Handshake, NewRelay};
use crate::shell::tls::{ClientEnd, Facts, HandedEnd, Names};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use tracing::{debug, warn};
use zeroize::{Zeroize, Zeroizing};

/// How far a login has come.
pub enum Phase {
    /// Reading the first packets.
    Startup(StartupReader),
    /// A relay shakes hands; it has begun with TLS at once, or asked for it.
    Securing { is_direct: bool },
    /// A process of the server begins GSSAPI encryption with it, and has not told its
    /// startup packet yet.
    Encrypting { pid: u32 },
    /// The launcher has been asked, or the name service.
    Asked(Box<Asked>),
    /// Authentication runs.
    Proving(Box<Proving>),
    /// Somebody is on his way to the server, or will be.
    Errand {
        errand: Errand,
        what: ForServer,
        has_begun: bool,
    },
    /// A backend authenticates it.
    Authenticating(Box<Asked>),
    /// A backend authenticates it, and is its own if it lets it in (native.rs).
    BecomingNative,
}

pub struct Asked {
    pub startup: Startup,
    /// The name of the user at the other end of a Unix socket, "" if he has
    /// none; asked for when the method needs it.
    pub os_user: Option<String>,
    /// This client has proved itself: it is asked again whether it may come in.
    pub proved: Option<Proved>,
    /// As which a backend authenticates it; 0: none does.
    pub role: u32,
}

/// What a client has somebody sent to the server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// A backend of its own, for life.
    Native(Why),
    /// A backend of its own, for life, that begins GSSAPI encryption with it first.
    Gss,
    /// A backend that authenticates it.
    Login,
    /// To cancel what a backend does that is not the pool's.
    Cancel,
}

/// What the server is to be sent.
pub enum ForServer {
    Client(Box<Asked>),
    /// One whose name nobody knows yet.
    Nameless,
    Cancel(CancelRequest),
}

impl Asked {
    pub fn new(startup: Startup) -> Box<Asked> {
        Box::new(Asked {
            startup,
            os_user: None,
            proved: None,
            role: 0,
        })
    }
}

pub struct Proving {
    pub startup: Startup,
    pub os_user: Option<String>,
    pub answer: Arc<Answer>,
    /// login_generation before the launcher was asked.
    pub generation: u64,
    pub auth: ServerAuth,
}

/// What is left of an authentication that has succeeded.
pub struct Proved {
    /// To be sent before anything else: ends with AuthenticationOk.
    pub out: Vec<u8>,
    /// As which GSSAPI knows it, if the server has asked that.
    pub principal: Option<Vec<u8>>,
    /// None if it did not have to prove anything.
    pub authenticated: Option<Authenticated>,
}

/// One client that is logging in.
pub struct Login {
    pub socket: HandedEnd,
    pub serial: u64,
    pub address: Address,
    pub local: Option<Address>,
    pub deadline_us: u64,
    /// Its socket is in the epoll.
    pub watched: bool,
    /// It counts among the logins of this second (limits.rs).
    pub is_counted: bool,
    /// What it has sent, a TLS handshake apart.
    pub bytes: u64,
    pub phase: Phase,
}

impl Login {
    /// Bytes to read from the client now; 0 while it is not its turn.
    pub fn wanted(&self) -> usize {
        match &self.phase {
            Phase::Startup(reader) => reader.wanted(),
            Phase::Proving(proving) => proving.auth.wanted(),
            Phase::Securing { .. }
            | Phase::Encrypting { .. }
            | Phase::Asked(_)
            | Phase::Errand { .. }
            | Phase::Authenticating(_)
            | Phase::BecomingNative => 0,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// From here on it is spoken with there; its own socket is a relay's.
    pub fn hand_over(&mut self, far: HandedEnd) -> ClientEnd {
        std::mem::replace(&mut self.socket, far).into_client_end()
    }

    pub fn is_secured(&mut self, facts: Arc<Facts>) {
        self.socket.secured(facts);
    }

    /// It has this number.
    pub fn logging_in(&self, number: u32) -> LoggingIn {
        LoggingIn {
            id: (number, self.serial),
            address: self.address,
            is_relayed: self.socket.is_relayed(),
        }
    }

    pub fn tls(&self) -> Option<&Arc<Facts>> {
        self.socket.tls()
    }

    pub fn certificate(&self) -> Option<&Names> {
        self.socket.certificate()
    }

    /// It is the client's turn, as far as can be seen from here, or it waits for nothing, or for
    /// a process of the server that others have.
    pub fn keeps_us(&self) -> bool {
        !self.hears_us() || self.wanted() > 0 || self.waits_for_a_place()
    }

    fn waits_for_a_place(&self) -> bool {
        matches!(
            self.phase,
            Phase::Errand {
                has_begun: false,
                ..
            }
        )
    }

    /// A handshake is going on.
    pub fn shakes_hands(&self) -> bool {
        matches!(
            self.phase,
            Phase::Securing { .. } | Phase::Encrypting { .. }
        )
    }

    /// A process of the server has its socket as well, and speaks with it.
    pub fn is_a_backend_s(&self) -> bool {
        matches!(
            self.phase,
            Phase::Encrypting { .. } | Phase::Authenticating(_) | Phase::BecomingNative
        )
    }

    /// It has sent a cancel request, which is the server's to obey.
    pub fn cancels(&self) -> bool {
        let errand = Errand::Cancel;
        matches!(&self.phase, Phase::Errand { errand: its, .. } if *its == errand)
    }

    /// What we send it would be understood.
    pub fn hears_us(&self) -> bool {
        !self.shakes_hands() && !self.is_a_backend_s() && !self.cancels()
    }
}

/// A client that has proved itself: what a session is made of.
pub struct Entering {
    pub socket: HandedEnd,
    pub address: Address,
    /// Our end, where that is known without asking.
    pub local: Option<Address>,
    /// Its socket is in the epoll.
    pub watched: bool,
    pub startup: Startup,
    pub answer: Arc<Answer>,
    pub proved: Proved,
}

/// What a login wants of others.
pub enum Effect {
    /// It may not come in, as its descriptor is kept for backends, and has asked to:
    /// it is to be told so.
    InVain(u32),
    /// It has said who it is: may it go on, and how?
    Startup(u32, Box<Startup>),
    /// The launcher is to be asked.
    Ask {
        login: u32,
        serial: u64,
        address: Address,
        who: Who,
    },
    /// It has been asked that before.
    Known {
        login: u32,
        serial: u64,
        generation: u64,
        answer: Arc<Answer>,
    },
    /// Its connection ends when that has been obeyed: that tells the client to go
    /// on, and what it then asks is not meant.
    Cancel(u32, CancelRequest),
    /// May it come in? It is no login any more.
    Enter(Box<Entering>),
}

/// A login, if it is still the one that was asked for: numbers are used again.
pub fn login_of(logins: &mut Slab<Login>, number: u32, serial: u64) -> Option<&mut Login> {
    let login = logins.get_mut(number);
    login.filter(|login| login.serial == serial)
}

// ---- Conversation ---------------------------------------------------------
//
// What a client that logs in says, and is told.
//
// No backend is held meanwhile. A login reads no more than the message at
// hand, since what follows the login belongs to a backend; its socket is
// waited for under its own number, one event at a time, and only while
// something is expected of the client.

/// Messages handled for one client before others get their turn.
const STEPS_A_ROUND: usize = 16;

impl Logins {
    /// The client has sent something.
    pub fn event(&mut self, number: u32) {
        let mut bytes = [0; 4096];
        for _ in 0..STEPS_A_ROUND {
            self.work += work::LOGIN;
            let Some(login) = self.logins.get_mut(number) else {
                return;
            };
            let wanted = login.wanted();
            if wanted == 0 {
                return self.unsettled.push(number);
            }
            let room = wanted.min(bytes.len());
            let length = match socket::receive(login.fd(), &mut bytes[..room]) {
                Ok(0) => {
                    if matches!(&login.phase, Phase::Startup(reader) if reader.in_packet()) {
                        self.log("startup packet", format_args!("incomplete startup packet"));
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
                    // Others go on with it.
                    let is_last =
                        matches!(event, StartupEvent::Startup(_) | StartupEvent::Cancel(_));
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
                    bytes[..length].zeroize();
                    self.auth_action(number, action);
                }
                Phase::Securing { .. }
                | Phase::Encrypting { .. }
                | Phase::Asked(_)
                | Phase::Errand { .. }
                | Phase::Authenticating(_)
                | Phase::BecomingNative => return,
            }
            // Less than there was room for: there is no more yet.
            if length < room || login_of(&mut self.logins, number, serial).is_none() {
                break;
            }
        }
        self.await_login(number);
    }

    fn startup_event(&mut self, number: u32, event: StartupEvent) {
        match event {
            StartupEvent::NeedMore | StartupEvent::Direct => {}
            StartupEvent::Secure => self.begin_tls(number, None),
            StartupEvent::Gss if self.is_in_vain(number) => {
                self.send_to_login(number, b"N");
            }
            StartupEvent::Gss => self.begin_gss(number),
            StartupEvent::Answer(byte) => {
                self.send_to_login(number, &[byte]);
            }
            StartupEvent::Cancel(request) => {
                self.effects.push_back(Effect::Cancel(number, request));
            }
            StartupEvent::Startup(_) if self.is_in_vain(number) => {
                self.effects.push_back(Effect::InVain(number));
            }
            StartupEvent::Startup(startup) => self.has_named_itself(number, startup),
            StartupEvent::Failed(error) => self.startup_failed(number, error),
        }
    }

    fn startup_failed(&mut self, number: u32, error: StartupError) {
        match error {
            StartupError::Close(why) => self.log("startup packet", format_args!("{why}")),
            StartupError::Fatal { send, report } => {
                let kind = String::from_utf8_lossy(&report.sqlstate);
                self.log(&kind, format_args!("login failed: {report}"));
                if let Some(login) = self.logins.get(number) {
                    let _ = socket::send(login.fd(), &send);
                }
            }
        }
        self.drop_login(number);
    }

    /// Does what authentication asks for; true if the client is to speak next.
    pub(super) fn auth_action(&mut self, number: u32, action: Action) -> bool {
        match action {
            Action::NeedMore => true,
            Action::Send(bytes) => self.send_to_login(number, &bytes),
            Action::VerifyPassword(job) => {
                if let Some(login) = self.logins.get(number) {
                    let serial = login.serial;
                    self.jobs.give(Job {
                        login: number,
                        serial,
                        job: *job,
                    });
                }
                false
            }
            Action::Done { send } => {
                self.login_proved(number, send);
                false
            }
            Action::Failed(report) => {
                self.fail(number, &report);
                false
            }
            Action::Close(why) => {
                debug!("login ended: {why}");
                self.drop_login(number);
                false
            }
        }
    }

    /// May this client not come in, since its descriptor is one of those that
    /// are kept for backends? It is told so when it has asked to, not before:
    /// libpq from 17 on shows no error that comes in place of an answer to its
    /// SSLRequest (PQconnectPoll, fe-connect.c).
    fn is_in_vain(&self, number: u32) -> bool {
        let login = self.logins.get(number);
        login.is_some_and(|login| login.fd() > self.highest_client)
    }

    fn has_named_itself(&mut self, number: u32, startup: Box<Startup>) {
        match self.count_login(number) {
            Ok(()) => self.effects.push_back(Effect::Startup(number, startup)),
            Err(report) => self.fail(number, &report),
        }
    }
}

// ---- Results of other threads ---------------------------------------------
//
// What other threads have found out for a login: passwords, names of users.

impl Logins {
    /// Asks the name service, on its own thread, who is at the other end.
    pub(super) fn ask_name(&mut self, number: u32) {
        let Some(login) = self.logins.get(number) else {
            return;
        };
        let serial = login.serial;
        match socket::peer(login.fd()) {
            Ok((_, uid)) => self.jobs.give_name(Name {
                login: number,
                serial,
                uid,
            }),
            Err(_) => self.named(number, serial, String::new()),
        }
    }

    pub fn named(&mut self, number: u32, serial: u64, name: String) {
        if let Some(login) = login_of(&mut self.logins, number, serial) {
            if let Phase::Asked(asked) = &mut login.phase {
                asked.os_user = Some(name);
                self.ask(number);
            }
        }
    }

    pub fn password_checked(&mut self, number: u32, serial: u64, matches: bool) {
        let Some(login) = login_of(&mut self.logins, number, serial) else {
            return;
        };
        if let Phase::Proving(proving) = &mut login.phase {
            let action = proving.auth.password_checked(matches);
            if self.auth_action(number, action) {
                self.await_login(number);
            }
        }
    }
}

// ---- TLS ------------------------------------------------------------------
//
// TLS of a client that logs in.
//
// After `S` its socket goes to a relay (tls/threads.rs), and the login goes on
// at the far end of a socketpair, with the next startup packet, once the relay
// says that the handshake is over. A client that does not get so far is
// dropped by the login's time limit like any other: closing the far end ends
// the relay.

/// What TLS sessions begin with; None while there is none to offer.
#[derive(Default)]
pub struct TlsOffer {
    context: Option<Arc<ServerContext>>,
    /// Of the configuration that was read last.
    generation: u64,
    /// For the next one that is read.
    passphrase: Passphrase,
}

impl TlsOffer {
    pub fn new(context: Option<ServerContext>) -> TlsOffer {
        TlsOffer {
            context: context.map(Arc::new),
            generation: 0,
            passphrase: None,
        }
    }

    /// What a client with this kind of address may do.
    pub fn for_client(&self, is_local: bool) -> Tls {
        match &self.context {
            Some(context) if !is_local && context.takes_direct => Tls::OfferedDirectly,
            Some(_) if !is_local => Tls::Offered,
            _ => Tls::Refused,
        }
    }
}

impl Logins {
    /// What ssl_passphrase_command has said, for the configuration that comes next.
    pub fn keep_passphrase(&mut self, passphrase: &[u8]) {
        self.tls.passphrase = Some(Zeroizing::new(passphrase.to_vec()));
    }

    /// The configuration has been read again; so may be the files it names.
    pub(super) fn reload_tls(&mut self) {
        let passphrase = self.tls.passphrase.take();
        let settings = self.parameters.tls.clone();
        if !settings.is_on {
            self.tls.context = None;
            self.tls.generation += 1;
            return;
        }
        self.tls.generation += 1;
        let generation = self.tls.generation;
        let (results, major) = (self.jobs.results(), self.parameters.server_major());
        // Reads files.
        let started = std::thread::Builder::new()
            .name("tls-load".into())
            .spawn(move || {
                let result = context::load(&settings, major, Occasion::Reload, &passphrase);
                results.bring(Done::TlsLoaded { generation, result });
            });
        if let Err(error) = started {
            warn!("SSL configuration was not reloaded: {error}");
        }
    }

    pub fn tls_loaded(&mut self, generation: u64, result: Result<ServerContext, String>) {
        if generation != self.tls.generation {
            return;
        }
        match result {
            Ok(context) => self.tls.context = Some(Arc::new(context)),
            Err(why) => {
                warn!("{why}");
                warn!("SSL configuration was not reloaded");
            }
        }
    }

    /// Has a relay begin. `direct`: with these bytes, that the client has begun
    /// with of itself; else it has asked, and is answered here.
    pub(super) fn begin_tls(&mut self, number: u32, direct: Option<&[u8]>) {
        let Some(context) = self.tls.context.clone() else {
            return self.drop_login(number);
        };
        if let Err(report) = self.count_login(number) {
            // Nothing in the clear is understood by who has begun with TLS.
            return match direct {
                Some(_) => self.drop_login(number),
                None => self.fail(number, &report),
            };
        }
        let Some(login) = self.logins.get_mut(number) else {
            return;
        };
        let (near, far) = match socket::pair() {
            Ok(pair) => pair,
            Err(error) => {
                warn!("could not begin TLS: {error}");
                return self.drop_login(number);
            }
        };
        let fd = login.fd();
        if login.local.is_none() {
            login.local = socket::local_address(fd).ok();
        }
        if std::mem::take(&mut login.watched) {
            let _ = self.client_number.remove(&self.epoll, fd);
        }
        self.client_number.let_go(fd);
        self.client_number.is_new(far.as_raw_fd());
        if direct.is_none() && socket::send(fd, b"S").ok() != Some(1) {
            return self.drop_login(number);
        }
        // Backends cannot reach it there.
        socket::set_keepalives(fd, &Keepalives::default(), &self.parameters.keepalives);
        let client = login.hand_over(HandedEnd::relayed(far));
        login.phase = Phase::Securing {
            is_direct: direct.is_some(),
        };
        let relay = NewRelay {
            client,
            near,
            context,
            direct: direct.map(<[u8]>::to_vec),
            most_bytes: self.parameters.constants.max_login_bytes,
            login: number,
            serial: login.serial,
        };
        self.relays.give(relay);
        self.settle(number);
    }

    /// A relay has said how its handshake went.
    pub fn handshake_over(&mut self, handshake: Handshake) {
        let Handshake {
            login: number,
            serial,
            result,
        } = handshake;
        let Some(login) = login_of(&mut self.logins, number, serial) else {
            return;
        };
        let Phase::Securing { is_direct } = login.phase else {
            return;
        };
        match result {
            Ok(facts) if is_direct && !facts.has_alpn => {
                let why = "received direct SSL connection request without ALPN protocol negotiation extension";
                self.log("TLS", format_args!("{why}"));
                self.drop_login(number);
            }
            Ok(facts) => self.secured(number, facts, is_direct),
            Err(why) => {
                if let Some(why) = why {
                    let address = login.address;
                    self.log_of("TLS", why.as_bytes(), format_args!("{why}, {address}"));
                }
                self.drop_login(number);
            }
        }
    }

    fn secured(&mut self, number: u32, facts: Arc<Facts>, is_direct: bool) {
        let major = self.parameters.server_major();
        let reader = match is_direct {
            true => StartupReader::within_direct_tls(major),
            false => StartupReader::within_tls(major),
        };
        if let Some(login) = self.logins.get_mut(number) {
            login.is_secured(facts);
            login.phase = Phase::Startup(reader);
            self.event(number);
        }
    }
}

// ---- GSSAPI encryption ----------------------------------------------------
//
// GSSAPI encryption of a client that logs in.
//
// The keys cannot leave the process that negotiates them, and the startup packet
// comes after that. So who asks for it, and is to have it (pg_baton.gss_encryption),
// goes to a backend of its own at once, which answers, reads the packet, and tells it
// here (STARTUP; client_ticket.c is the extension's side). Up to there it is at a handshake,
// and from there on like any other that becomes native (errands.rs).
//
// Nothing may be sent to it from here once a process has taken it.

impl Logins {
    /// A client has asked for it, and has not been answered.
    pub(super) fn begin_gss(&mut self, number: u32) {
        match self.count_login(number) {
            Ok(()) => self.send_on_errand(number, Errand::Gss, ForServer::Nameless),
            Err(report) => self.fail(number, &report),
        }
    }

    /// That process has taken it.
    pub(super) fn is_encrypting(&mut self, number: u32, pid: u32) {
        if let Some(login) = self.logins.get_mut(number) {
            login.phase = Phase::Encrypting { pid };
            self.settle(number);
        }
    }

    /// The process has read its first packet. What has become of it, if it is a native
    /// session now.
    pub fn encrypted(&mut self, number: u32, serial: u64, packet: &[u8]) -> Option<Native> {
        self.is_awaited(number, serial, false);
        let native = self.has_told_packet(number, serial, packet);
        if native.is_none() {
            self.place_is_free(serial);
            self.next_errands();
        }
        native
    }

    fn has_told_packet(&mut self, number: u32, serial: u64, packet: &[u8]) -> Option<Native> {
        let most = self.parameters.constants.max_login_bytes;
        let login = login_of(&mut self.logins, number, serial)?;
        let Phase::Encrypting { pid } = login.phase else {
            return None;
        };
        login.bytes += packet.len() as u64;
        if login.bytes > most {
            self.drop_login(number);
            return None;
        }
        let length = u32::try_from(packet.len() + 4).unwrap_or(u32::MAX);
        let bytes = [&length.to_be_bytes(), packet].concat();
        let mut reader = StartupReader::within_tls(self.parameters.server_major());
        match reader.feed(&bytes).1 {
            StartupEvent::Startup(startup) => {
                login.phase = Phase::BecomingNative;
                self.settle(number);
                let (why, since) = (Why::GssEncryption, self.now.timestamp);
                let of = self.logins.get(number)?.logging_in(number);
                Some(Native::new(of, *startup, why, pid, since))
            }
            // The process has ended by now, and the connection ends with the login.
            StartupEvent::Cancel(request) => {
                self.effects.push_back(Effect::Cancel(number, request));
                None
            }
            // The process tells it why.
            StartupEvent::Failed(StartupError::Fatal { report, .. }) => {
                let kind = String::from_utf8_lossy(&report.sqlstate);
                self.log(&kind, format_args!("login failed: {report}"));
                let login = self.take_out(number)?;
                self.client_number.let_go(login.fd());
                self.failed += 1;
                None
            }
            _ => {
                self.drop_login(number);
                None
            }
        }
    }

    /// The process has ended before that.
    pub fn not_encrypted(&mut self, number: u32, serial: u64) {
        self.place_is_free(serial);
        if let Some(login) = login_of(&mut self.logins, number, serial) {
            let address = login.address;
            let line = format_args!("login failed, {address}: no GSSAPI encryption");
            self.log_of("GSSAPI", b"", line);
            self.drop_login(number);
        }
        self.next_errands();
    }
}
