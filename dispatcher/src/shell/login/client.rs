//! A client that is logging in: its state, its conversation with the dispatcher, the results
//! that other threads compute for it, TLS, and GSSAPI encryption.
//!
//! A login ends in one of three ways: as a session of the pool (scheduler/new_session.rs), as a
//! native session (native.rs), or with the end of the connection. After authentication_timeout
//! the connection ends without a message, as in stock. The number of logins is bounded, and so
//! is the number of bytes that each may send.

use super::native::{LoggingIn, Native, Why};
use super::Logins;
use crate::core::GroupKey;
use crate::protocol::auth::server::{Action, ServerAuth};
use crate::protocol::startup::{
    CancelRequest, Startup, StartupError, StartupEvent, StartupReader, Tls,
};
use crate::protocol::Report;
use crate::shell::batch_scheduling::{self, client_has_computed};
use crate::shell::events::{token, work, Slab, Source};
use crate::shell::jobs::{Job, Name};
use crate::shell::link::wire::{Answer, Who};
use crate::shell::log::lines::{self, Client};
use crate::shell::sessions::greetings::Authenticated;
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::epoll;
use crate::shell::sys::socket::{self, Address, Keepalives};
use crate::shell::tls::context::{Occasion, Passphrase};
use crate::shell::tls::process::{Load, Loaded, Said};
use crate::shell::tls::threads::{Handshake, NewRelay};
use crate::shell::tls::{ClientEnd, Facts, HandedEnd, Names};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use tracing::{debug, warn};
use zeroize::{Zeroize, Zeroizing};

/// The state of a login.
pub enum Phase {
    /// The dispatcher reads the first packets.
    Startup(StartupReader),
    /// A relay performs the TLS handshake. `is_direct`: the client has begun with TLS at once;
    /// otherwise with an SSLRequest.
    Securing { is_direct: bool },
    /// A server process negotiates GSSAPI encryption with the client. It has not yet reported
    /// the client's startup packet.
    Encrypting { pid: u32 },
    /// The launcher, or the name service, has been asked.
    Asked(Box<Asked>),
    /// The client is being authenticated.
    Proving(Box<Proving>),
    /// The login waits for a connection to the server, or for what the server does on it.
    Errand {
        errand: Errand,
        what: ForServer,
        has_begun: bool,
    },
    /// A backend authenticates the client.
    Authenticating(Box<Asked>),
    /// A backend authenticates the client, and becomes its own backend if it admits it
    /// (native.rs).
    BecomingNative,
}

pub struct Asked {
    pub startup: Startup,
    /// The name of the operating system user at the other end of a Unix socket; "" if there is
    /// none. Looked up only when the method needs it.
    pub os_user: Option<String>,
    /// Set once the client is authenticated: the launcher is then asked again whether it is
    /// admitted.
    pub proved: Option<Proved>,
    /// The OID of the role as which a backend authenticates the client; 0 if no backend does.
    pub role: u32,
}

/// What a client needs a connection to the server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// A backend of the client's own, for life.
    Native(Why),
    /// A backend of the client's own, for life, which first negotiates GSSAPI encryption.
    Gss,
    /// A backend that authenticates the client.
    Login,
    /// A cancel request that is not for a session of the pool.
    Cancel,
}

/// What the server is to be sent.
pub enum ForServer {
    Client(Box<Asked>),
    /// A client whose startup packet has not been read yet.
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
    /// login_generation, read before the launcher was asked.
    pub generation: u64,
    pub auth: ServerAuth,
}

/// The result of a successful authentication.
pub struct Proved {
    /// Bytes to send to the client before anything else. They end with AuthenticationOk.
    pub out: Vec<u8>,
    /// The GSSAPI principal, if the server has authenticated the client by GSSAPI.
    pub principal: Option<Vec<u8>>,
    /// None if the client did not have to prove its identity.
    pub authenticated: Option<Authenticated>,
}

/// A client that is logging in.
pub struct Login {
    pub socket: HandedEnd,
    pub serial: u64,
    pub address: Address,
    pub local: Option<Address>,
    pub deadline_us: u64,
    /// The socket is in the epoll.
    pub watched: bool,
    /// The login has been counted against the login rates (limits.rs).
    pub is_counted: bool,
    /// When its connection was accepted.
    pub began_us: u64,
    /// Role and database, once they are known to exist.
    pub group: Option<GroupKey>,
    /// Bytes received from the client, without those of a TLS handshake.
    pub bytes: u64,
    pub phase: Phase,
}

impl Login {
    /// Bytes to read from the client now; 0 if the client is not to send anything.
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

    /// Makes `far` the login's socket and returns the client's own, which goes to a relay.
    pub fn hand_over(&mut self, far: HandedEnd) -> ClientEnd {
        std::mem::replace(&mut self.socket, far).into_client_end()
    }

    pub fn is_secured(&mut self, facts: Arc<Facts>) {
        self.socket.secured(facts);
    }

    /// What a native session takes over from the login of this number.
    pub fn logging_in(&self, number: u32) -> LoggingIn {
        LoggingIn {
            id: (number, self.serial),
            address: self.address,
            is_relayed: self.socket.is_relayed(),
        }
    }

    /// The client's names, as far as its startup packet has been read.
    pub fn client(&self) -> Client<'_> {
        let startup = match &self.phase {
            Phase::Asked(asked) | Phase::Authenticating(asked) => Some(&asked.startup),
            Phase::Proving(proving) => Some(&proving.startup),
            Phase::Errand {
                what: ForServer::Client(asked),
                ..
            } => Some(&asked.startup),
            _ => None,
        };
        let nameless = Client::at(self.address);
        startup.map_or(nameless, |startup| names_of(startup, self.address))
    }

    /// What the log says in addition to this report, if it is the result of the authentication.
    pub fn log_detail(&self, report: &Report) -> Option<Vec<u8>> {
        match &self.phase {
            Phase::Proving(proving) => proving.answer.log_detail(report, &proving.startup.user),
            _ => None,
        }
    }

    pub fn tls(&self) -> Option<&Arc<Facts>> {
        self.socket.tls()
    }

    pub fn certificate(&self) -> Option<&Names> {
        self.socket.certificate()
    }

    /// Does the login wait for the client, for the check of its password, or for a free place for
    /// a server process? Such logins are the first to go when there is no room. A login that
    /// cannot be sent a message counts as one.
    pub fn keeps_us(&self) -> bool {
        !self.hears_us() || self.wanted() > 0 || self.is_checked() || self.waits_for_a_place()
    }

    /// Does the client's password wait for its check (jobs.rs)?
    fn is_checked(&self) -> bool {
        matches!(&self.phase, Phase::Proving(proving) if proving.auth.is_checked())
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

    /// Is a TLS or GSSAPI handshake in progress?
    pub fn shakes_hands(&self) -> bool {
        matches!(
            self.phase,
            Phase::Securing { .. } | Phase::Encrypting { .. }
        )
    }

    /// Does a server process also have the socket, and talk to the client?
    pub fn is_a_backend_s(&self) -> bool {
        matches!(
            self.phase,
            Phase::Encrypting { .. } | Phase::Authenticating(_) | Phase::BecomingNative
        )
    }

    /// Has the client sent a cancel request that the server must carry out?
    pub fn cancels(&self) -> bool {
        let errand = Errand::Cancel;
        matches!(&self.phase, Phase::Errand { errand: its, .. } if *its == errand)
    }

    /// Would the client understand a message of the dispatcher now?
    pub fn hears_us(&self) -> bool {
        !self.shakes_hands() && !self.is_a_backend_s() && !self.cancels()
    }
}

/// The client of this startup packet, for a line in the log. As in the server, its
/// application_name is not known before it has been authenticated.
pub fn names_of(startup: &Startup, address: Address) -> Client<'_> {
    Client {
        user: &startup.user,
        database: &startup.database,
        ..Client::at(address)
    }
}

/// An authenticated client that is to become a session.
pub struct Entering {
    pub socket: HandedEnd,
    pub address: Address,
    /// The local address, if it is known without a system call.
    pub local: Option<Address>,
    /// The socket is in the epoll.
    pub watched: bool,
    /// When its connection was accepted.
    pub began_us: u64,
    pub startup: Startup,
    pub answer: Arc<Answer>,
    pub proved: Proved,
}

/// A request of a login to other parts of the dispatcher.
pub enum Effect {
    /// Tell the client that there is no room. Its descriptor is reserved for backends, and it
    /// has sent its startup packet.
    InVain(u32),
    /// Decide from the startup packet whether and how the login goes on.
    Startup(u32, Box<Startup>),
    /// Ask the launcher.
    Ask {
        login: u32,
        serial: u64,
        address: Address,
        who: Who,
    },
    /// Handle this cached answer as if the launcher had just given it.
    Known {
        login: u32,
        serial: u64,
        generation: u64,
        answer: Arc<Answer>,
    },
    /// Carry out the cancel request. The client's connection may close only after that: the
    /// close tells the client to go on, and the cancel must not hit its next query.
    Cancel(u32, CancelRequest),
    /// Decide whether to admit the client. It is no longer in the table of logins.
    Enter(Box<Entering>),
}

/// The login of this number, if it is still the one with this serial. Numbers are reused.
pub fn login_of(logins: &mut Slab<Login>, number: u32, serial: u64) -> Option<&mut Login> {
    let login = logins.get_mut(number);
    login.filter(|login| login.serial == serial)
}

// ---- Conversation ---------------------------------------------------------
//
// The messages between a client that logs in and the dispatcher.
//
// No backend is held meanwhile. The dispatcher reads no further than the current message,
// because the bytes after the login belong to a backend. The socket is watched under the
// login's number, for one event at a time, and only while the client is to send something.

/// Messages handled for one client before the next client's turn.
const STEPS_A_ROUND: usize = 16;

impl Logins {
    /// Handles what the client has sent.
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
                        self.log(number, "startup packet", "incomplete startup packet");
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
                    // The caller of `next_effect` decides how the login goes on.
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
            // The read returned less than asked for, so the socket is empty.
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
            StartupError::Close(why) => self.log(number, "startup packet", why),
            StartupError::Fatal { send, report } => {
                if let Some(login) = self.logins.get(number) {
                    let client = Client::at(login.address);
                    self.log_failure(&client, &report);
                }
                if let Some(login) = self.logins.get(number) {
                    let _ = socket::send(login.fd(), &send);
                }
            }
        }
        self.drop_login(number);
    }

    /// Carries out an action of the authentication. True if the client is to send next.
    pub(super) fn auth_action(&mut self, number: u32, action: Action) -> bool {
        match action {
            Action::NeedMore => true,
            Action::Send(bytes) => self.send_to_login(number, &bytes),
            Action::VerifyPassword(job) => {
                if let Some(login) = self.logins.get(number) {
                    self.jobs.give(Job {
                        login: number,
                        serial: login.serial,
                        origin: Origin::of(&login.address),
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

    /// Is this client certain to be refused because its descriptor is reserved for backends?
    /// The dispatcher says so only after the startup packet: libpq from 17 on does not show an
    /// error that comes in place of an answer to its SSLRequest (PQconnectPoll, fe-connect.c).
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
// What other threads compute for a login: password checks and names of users.

impl Logins {
    /// Asks the name service, on its own thread, for the name of the user at the other end.
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
// After `S` the client's socket goes to a relay (tls/process.rs). When the relay reports the
// end of the handshake, the login goes on at the far end of a socketpair, with the next startup
// packet. A client that does not finish the handshake is dropped by the time limit of the
// login. Closing the far end ends the relay.

/// What the process of the relays says is heard in slices.
const SAID_A_ROUND: usize = 64;

/// TLS for new clients.
#[derive(Default)]
pub struct TlsOffer {
    /// May a client begin with it at once? None while TLS is not offered.
    takes_direct: Option<bool>,
    /// Number of the configuration that was read last.
    generation: u64,
    /// The passphrase for the next configuration that is read.
    passphrase: Passphrase,
}

impl TlsOffer {
    pub fn new(takes_direct: Option<bool>) -> TlsOffer {
        TlsOffer {
            takes_direct,
            generation: 0,
            passphrase: None,
        }
    }

    /// The TLS offer for a client with a local or a remote address.
    pub fn for_client(&self, is_local: bool) -> Tls {
        match self.takes_direct {
            Some(true) if !is_local => Tls::OfferedDirectly,
            Some(_) if !is_local => Tls::Offered,
            _ => Tls::Refused,
        }
    }
}

impl Logins {
    /// Keeps the output of ssl_passphrase_command for the next configuration.
    pub fn keep_passphrase(&mut self, passphrase: &[u8]) {
        self.tls.passphrase = Some(Zeroizing::new(passphrase.to_vec()));
    }

    /// The configuration has been reloaded, so the files that it names are read again.
    pub(super) fn reload_tls(&mut self) {
        let passphrase = self.tls.passphrase.take();
        self.tls.generation += 1;
        if !self.parameters.tls.is_on {
            self.tls.takes_direct = None;
            return;
        }
        self.relays.load(&Load {
            generation: self.tls.generation,
            settings: &self.parameters.tls,
            server_major: self.parameters.server_major(),
            occasion: Occasion::Reload,
            passphrase: &passphrase,
        });
        if self.relays.has_waiting() {
            self.watch_relays();
        }
    }

    /// The process of the relays has said something, or takes more. False: it has ended.
    pub fn relays_event(&mut self) -> bool {
        for _ in 0..SAID_A_ROUND {
            match self.relays.next() {
                Ok(Some(Said::Handshake(handshake))) => {
                    self.work += work::LOGIN;
                    self.handshake_over(handshake);
                }
                Ok(Some(Said::Loaded(loaded))) => self.tls_loaded(loaded),
                Ok(Some(Said::Line(level, text))) => lines::own(level, &text),
                Ok(Some(Said::Batch(until_us))) => batch_scheduling::decided(until_us),
                Ok(None) => break,
                Err(error) => {
                    warn!("the process of TLS relays has ended: {error}");
                    return false;
                }
            }
        }
        if self.relays.has_waiting() {
            self.relays.flush();
            self.watch_relays();
        }
        true
    }

    /// The relays' process is watched for room as long as something waits for it.
    fn watch_relays(&self) {
        let events = match self.relays.has_waiting() {
            true => epoll::IN | epoll::OUT,
            false => epoll::IN,
        };
        let data = token(Source::Relays, 0);
        let _ = self.epoll.modify(self.relays.fd(), events, data);
    }

    fn tls_loaded(&mut self, loaded: Loaded) {
        if loaded.generation != self.tls.generation {
            return;
        }
        match loaded.result {
            Ok(takes_direct) => self.tls.takes_direct = Some(takes_direct),
            Err(why) => {
                warn!("{why}");
                warn!("SSL configuration was not reloaded");
            }
        }
    }

    /// Gives the client to a relay. `direct` has the bytes of a client that has begun with TLS
    /// at once; None if the client has sent an SSLRequest, which is answered here.
    pub(super) fn begin_tls(&mut self, number: u32, direct: Option<&[u8]>) {
        if self.tls.takes_direct.is_none() {
            return self.drop_login(number);
        }
        if let Err(report) = self.count_login(number) {
            // A client that has begun with TLS at once does not understand a message in the
            // clear.
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
        // Backends have only the socketpair, so the keepalives of the client's socket are set
        // here.
        socket::set_keepalives(fd, &Keepalives::default(), &self.parameters.keepalives);
        let client = login.hand_over(HandedEnd::relayed(far));
        login.phase = Phase::Securing {
            is_direct: direct.is_some(),
        };
        let relay = NewRelay {
            client,
            near,
            direct: direct.map(<[u8]>::to_vec),
            most_bytes: self.parameters.constants.max_login_bytes,
            login: number,
            serial: login.serial,
        };
        if !self.relays.give(relay) {
            warn!("could not begin TLS: its relays take no more clients");
            return self.drop_login(number);
        }
        if self.relays.has_waiting() {
            self.watch_relays();
        }
        self.settle(number);
    }

    /// A relay reports the result of its handshake.
    fn handshake_over(&mut self, handshake: Handshake) {
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
        if result.is_ok() {
            client_has_computed();
        }
        match result {
            Ok(facts) if is_direct && !facts.has_alpn => {
                let why = "received direct SSL connection request without ALPN protocol negotiation extension";
                self.log(number, "TLS", why);
                self.drop_login(number);
            }
            Ok(facts) => self.secured(number, facts, is_direct),
            Err(why) => {
                if let Some(why) = why {
                    self.log(number, "TLS", &why);
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
// The keys cannot leave the process that negotiates them, and the startup packet follows the
// negotiation. So a client that asks for encryption, and may have it (pg_baton.gss_encryption),
// goes to a backend of its own at once. That backend answers the client, reads the startup
// packet, and reports it here (STARTUP; client_ticket.c is the extension's side). Until then
// the login counts as in a handshake; afterwards it is handled like any other that becomes
// native (errands.rs).
//
// Once a process has taken the client, the dispatcher sends it nothing.

impl Logins {
    /// The client has asked for encryption, and has not been answered.
    pub(super) fn begin_gss(&mut self, number: u32) {
        match self.count_login(number) {
            Ok(()) => self.send_on_errand(number, Errand::Gss, ForServer::Nameless),
            Err(report) => self.fail(number, &report),
        }
    }

    /// A server process has taken the client.
    pub(super) fn is_encrypting(&mut self, number: u32, pid: u32) {
        if let Some(login) = self.logins.get_mut(number) {
            login.phase = Phase::Encrypting { pid };
            self.settle(number);
        }
    }

    /// The server process reports the client's startup packet. Returns the native session, if
    /// the login becomes one.
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
            // The process has ended by now. The connection ends with the login.
            StartupEvent::Cancel(request) => {
                self.effects.push_back(Effect::Cancel(number, request));
                None
            }
            // The process sends the error to the client.
            StartupEvent::Failed(StartupError::Fatal { report, .. }) => {
                let login = self.take_out(number)?;
                self.log_failure(&Client::at(login.address), &report);
                self.client_number.let_go(login.fd());
                self.count_refused(None, &report.sqlstate);
                None
            }
            _ => {
                self.drop_login(number);
                None
            }
        }
    }

    /// The server process has ended before it reported a startup packet.
    pub fn not_encrypted(&mut self, number: u32, serial: u64) {
        self.place_is_free(serial);
        if self.has(number, serial) {
            self.log(number, "GSSAPI", "login failed: no GSSAPI encryption");
            self.drop_login(number);
        }
        self.next_errands();
    }
}
