//! Authentication towards PostgreSQL, as the client that opens a backend.
//!
//! [`ClientAuth`] answers Authentication messages from whatever credentials
//! there are; [`BackendLogin`] takes a whole start of a backend, from the
//! server's first byte to ReadyForQuery.

use super::super::backend::{Authentication, BackendDecoder, BackendMessage, DecodeError};
use super::super::messages;
use super::super::report::{LimitOf, Report};
use super::keys::{Derivation, Key, Keys};
use super::scram::{Challenge, ClientExchange, MECHANISM};
use super::verifier::{self, equal, Verifier};
use super::Secret;
use std::sync::{Arc, Weak};

/// What there is to log in with.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// From an earlier login of a client by SCRAM.
    pub client_key: Option<Secret>,
    /// Checks the server; from the role's SCRAM verifier.
    pub server_key: Option<Secret>,
    /// `md5` and digits, as stored.
    pub md5: Option<Secret>,
    /// The password itself.
    pub password: Option<Secret>,
}

impl Credentials {
    /// Adds what `pg_authid.rolpassword` gives: the md5 hash, or the
    /// server's key.
    pub fn with_verifier(mut self, stored: &[u8]) -> Credentials {
        match Verifier::parse(stored) {
            Some(Verifier::Md5(hash)) => self.md5 = Some(hash),
            Some(Verifier::Scram(scram)) => self.server_key = Some(Secret::new(scram.server_key)),
            None => {}
        }
        self
    }

    /// Is there anything to answer a question for a password with?
    pub fn can_prove(&self) -> bool {
        self.client_key.is_some() || self.md5.is_some() || self.password.is_some()
    }

    /// Adds what a client's login has shown.
    pub fn with_learnt(mut self, learnt: &super::server::Learnt) -> Credentials {
        use super::server::Learnt;
        match learnt {
            Learnt::Nothing | Learnt::VouchedFor => {}
            Learnt::ClientKey(key) => self.client_key = Some(key.clone()),
            Learnt::Password(password) => self.password = Some(password.clone()),
        }
        self
    }
}

/// Why no backend could be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The server asks for this method (as pg_hba.conf names it) and there is
    /// nothing to answer with.
    NoCredentials(&'static str),
    /// The server asks for a method that is not spoken here; its code.
    UnsupportedMethod(u32),
    /// The server said no.
    ServerError(Report),
    /// The server does not know the role's password: it is not the server.
    ServerNotProven,
    /// What came makes no sense.
    Protocol(String),
}

impl Failure {
    /// By the server's rules, or for want of a password, this login cannot be.
    pub fn is_login(&self) -> bool {
        match self {
            Failure::NoCredentials(_) | Failure::UnsupportedMethod(_) => true,
            Failure::ServerError(report) => report.sqlstate.starts_with(b"28"),
            Failure::ServerNotProven | Failure::Protocol(_) => false,
        }
    }

    /// The database has been dropped: it does not come back under its name.
    pub fn is_no_database(&self) -> bool {
        matches!(self, Failure::ServerError(report) if report.sqlstate == *b"3D000")
    }

    /// There are as many connections as may be.
    pub fn limit(&self) -> Option<LimitOf> {
        match self {
            Failure::ServerError(report) if report.sqlstate == *b"53300" => {
                Some(report.connection_limit.unwrap_or(LimitOf::Server))
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::NoCredentials(method) => {
                write!(
                    f,
                    "the server asks for {method} and nothing is known to answer with"
                )
            }
            Failure::UnsupportedMethod(code) => {
                write!(
                    f,
                    "the server asks for authentication request {code}, which is not supported"
                )
            }
            Failure::ServerError(report) => report.fmt(f),
            Failure::ServerNotProven => {
                f.write_str("the server could not prove that it knows the role")
            }
            Failure::Protocol(what) => f.write_str(what),
        }
    }
}

/// The reply to one Authentication message.
#[derive(Debug)]
pub enum Reply {
    /// Nothing to send; wait for the next.
    Wait,
    /// Send these bytes.
    Send(Vec<u8>),
    /// Run the job on some other thread and bring its result to `derived`.
    Derive(DeriveJob),
    /// AuthenticationOk has come.
    Authenticated,
    /// It cannot go on.
    Failed(Failure),
}

/// Making keys of a password: about a millisecond of CPU, unless the password's
/// verifier says otherwise.
#[derive(Debug)]
pub struct DeriveJob {
    derivation: Derivation,
    wanted: Weak<()>,
}

impl DeriveJob {
    /// Does anybody wait for it?
    pub fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }

    /// Does so many iterations. Blocks for their CPU time.
    pub fn step(&mut self, iterations: u32) -> Option<Keys> {
        self.derivation.step(iterations)
    }
}

#[derive(Debug)]
enum State {
    Begun,
    /// The password or its hash has been sent.
    PasswordSent,
    SaslFirstSent(ClientExchange),
    Deriving(ClientExchange, Challenge),
    /// The server's signature, if it can be foretold.
    SaslFinalSent(Option<Vec<u8>>),
    /// The server's signature has come.
    SaslOver,
    Over,
}

/// The client's side of authentication.
#[derive(Debug)]
pub struct ClientAuth {
    user: Vec<u8>,
    credentials: Credentials,
    state: State,
    /// Jobs are wanted as long as this lives.
    alive: Arc<()>,
}

impl ClientAuth {
    /// To log in as `user`.
    pub fn new(user: impl Into<Vec<u8>>, credentials: Credentials) -> ClientAuth {
        ClientAuth {
            user: user.into(),
            credentials,
            state: State::Begun,
            alive: Arc::default(),
        }
    }

    /// Answers one message.
    pub fn request(&mut self, request: &Authentication) -> Reply {
        let state = std::mem::replace(&mut self.state, State::Over);
        match (state, request) {
            (State::Begun | State::PasswordSent | State::SaslOver, Authentication::Ok) => {
                Reply::Authenticated
            }
            (State::Begun, Authentication::Cleartext) => match &self.credentials.password {
                Some(password) => {
                    self.state = State::PasswordSent;
                    send(|out| messages::password(out, password.expose()))
                }
                None => Reply::Failed(Failure::NoCredentials("password")),
            },
            (State::Begun, Authentication::Md5(salt)) => self.md5(*salt),
            (State::Begun, Authentication::Sasl(mechanisms)) => {
                if !mechanisms.iter().any(|name| name == MECHANISM.as_bytes()) {
                    return protocol("the server offers no SASL mechanism that is spoken here");
                }
                if self.client_key().is_none() && self.credentials.password.is_none() {
                    return Reply::Failed(Failure::NoCredentials("scram-sha-256"));
                }
                let exchange = ClientExchange::new();
                let first = exchange.client_first();
                self.state = State::SaslFirstSent(exchange);
                send(|out| messages::sasl_initial_response(out, MECHANISM, &first))
            }
            (State::SaslFirstSent(exchange), Authentication::SaslContinue(data)) => {
                let Some(challenge) = exchange.challenge(data) else {
                    return protocol("the server's first SCRAM message is malformed");
                };
                if let Some(client_key) = self.client_key() {
                    let server_key = self.server_key();
                    return self.prove(&exchange, &challenge, &client_key, server_key.as_ref());
                }
                let Some(password) = &self.credentials.password else {
                    return Reply::Failed(Failure::NoCredentials("scram-sha-256"));
                };
                let derivation =
                    Derivation::begin(password.expose(), &challenge.salt, challenge.iterations);
                self.state = State::Deriving(exchange, challenge);
                Reply::Derive(DeriveJob {
                    derivation,
                    wanted: Arc::downgrade(&self.alive),
                })
            }
            (State::SaslFinalSent(expected), Authentication::SaslFinal(data)) => match expected {
                Some(expected) if !equal(&expected, data) => {
                    Reply::Failed(Failure::ServerNotProven)
                }
                _ => {
                    self.state = State::SaslOver;
                    Reply::Wait
                }
            },
            (_, Authentication::Other(code)) => Reply::Failed(Failure::UnsupportedMethod(*code)),
            _ => protocol("the server's authentication request came out of order"),
        }
    }

    /// Goes on after [`Reply::Derive`].
    pub fn derived(&mut self, keys: &Keys) -> Reply {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Deriving(exchange, challenge) => self.prove(
                &exchange,
                &challenge,
                keys.client_key(),
                Some(keys.server_key()),
            ),
            _ => protocol("keys were derived that nobody had asked for"),
        }
    }

    fn md5(&mut self, salt: [u8; 4]) -> Reply {
        let hash = match (&self.credentials.md5, &self.credentials.password) {
            (Some(hash), _) => hash.clone(),
            (None, Some(password)) => {
                Secret::new(verifier::md5_encrypt(password.expose(), &self.user))
            }
            (None, None) => return Reply::Failed(Failure::NoCredentials("md5")),
        };
        self.state = State::PasswordSent;
        send(|out| messages::password(out, &verifier::md5_response(hash.expose(), salt)))
    }

    fn prove(
        &mut self,
        exchange: &ClientExchange,
        challenge: &Challenge,
        client_key: &Key,
        server_key: Option<&Key>,
    ) -> Reply {
        let (message, expected) = exchange.client_final(challenge, client_key, server_key);
        self.state = State::SaslFinalSent(expected);
        send(|out| messages::sasl_response(out, &message))
    }

    fn client_key(&self) -> Option<Key> {
        as_key(self.credentials.client_key.as_ref()?)
    }

    fn server_key(&self) -> Option<Key> {
        as_key(self.credentials.server_key.as_ref()?)
    }
}

fn as_key(secret: &Secret) -> Option<Key> {
    secret.expose().try_into().ok()
}

fn send(encode: impl FnOnce(&mut Vec<u8>)) -> Reply {
    let mut out = Vec::new();
    encode(&mut out);
    Reply::Send(out)
}

fn protocol(what: &str) -> Reply {
    Reply::Failed(Failure::Protocol(what.to_owned()))
}

/// What a started backend has told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    /// Reported parameters, in the order they came.
    pub parameters: Vec<(Vec<u8>, Vec<u8>)>,
    /// From BackendKeyData.
    pub pid: i32,
    /// From BackendKeyData.
    pub key: Vec<u8>,
}

/// What to do next with a starting backend.
#[derive(Debug)]
pub enum LoginAction {
    /// More bytes are needed.
    NeedMore,
    /// Send these bytes, then call `next_action` again.
    Send(Vec<u8>),
    /// Run the job elsewhere, bring its result to `derived`.
    Derive(DeriveJob),
    /// The server knows not all options of the startup packet, which it has
    /// read; call `next_action` again.
    Negotiated,
    /// ReadyForQuery has come.
    #[allow(
        dead_code,
        reason = "the tests look at what was said; the dispatcher has no use for it"
    )]
    Ready(Started),
    /// It cannot go on; close.
    Failed(Failure),
}

/// Reported parameters taken from one backend at most.
const MAX_PARAMETERS: usize = 1_000;

/// One start of a backend, from after the startup packet to ReadyForQuery.
#[derive(Debug)]
pub struct BackendLogin {
    decoder: BackendDecoder,
    auth: ClientAuth,
    authenticated: bool,
    started: Started,
}

impl BackendLogin {
    /// The startup packet (whose parameters must hold `user`) to send first,
    /// and the state machine for what follows.
    pub fn start(
        user: &[u8],
        database: &[u8],
        parameters: &[(&[u8], &[u8])],
        credentials: Credentials,
    ) -> (BackendLogin, Vec<u8>) {
        let mut all: Vec<(&[u8], &[u8])> = vec![(b"user", user), (b"database", database)];
        all.extend_from_slice(parameters);
        let mut packet = Vec::new();
        messages::startup_message(&mut packet, &all);
        let login = BackendLogin {
            decoder: BackendDecoder::new(),
            auth: ClientAuth::new(user, credentials),
            authenticated: false,
            started: Started::default(),
        };
        (login, packet)
    }

    /// Adds bytes and says what to do.
    pub fn feed(&mut self, input: &[u8]) -> LoginAction {
        self.decoder.feed(input);
        self.next_action()
    }

    /// Goes on after [`LoginAction::Derive`].
    pub fn derived(&mut self, keys: &Keys) -> LoginAction {
        let reply = self.auth.derived(keys);
        self.reply(reply).unwrap_or_else(|| self.next_action())
    }

    /// What to do with what has been fed.
    pub fn next_action(&mut self) -> LoginAction {
        loop {
            let message = match self.decoder.next_message() {
                Ok(Some(message)) => message,
                Ok(None) => return LoginAction::NeedMore,
                Err(error) => return failed(&error),
            };
            if let Some(action) = self.message(message) {
                return action;
            }
        }
    }

    fn message(&mut self, message: BackendMessage) -> Option<LoginAction> {
        match message {
            BackendMessage::Authentication(request) if !self.authenticated => {
                let reply = self.auth.request(&request);
                self.reply(reply)
            }
            BackendMessage::Error(report) => {
                Some(LoginAction::Failed(Failure::ServerError(report)))
            }
            BackendMessage::NegotiateProtocolVersion if !self.authenticated => {
                Some(LoginAction::Negotiated)
            }
            BackendMessage::Notice(_) | BackendMessage::NegotiateProtocolVersion => None,
            BackendMessage::ParameterStatus { name, value } if self.authenticated => {
                let known = &mut self.started.parameters;
                match known.iter().position(|(known, _)| *known == name) {
                    Some(at) => known[at].1 = value,
                    None if known.len() >= MAX_PARAMETERS => return Some(out_of_order()),
                    None => known.push((name, value)),
                }
                None
            }
            BackendMessage::BackendKeyData { pid, key } if self.authenticated => {
                self.started.pid = pid;
                self.started.key = key;
                None
            }
            BackendMessage::ReadyForQuery(b'I') if self.authenticated => {
                Some(LoginAction::Ready(std::mem::take(&mut self.started)))
            }
            _ => Some(out_of_order()),
        }
    }

    fn reply(&mut self, reply: Reply) -> Option<LoginAction> {
        match reply {
            Reply::Wait => None,
            Reply::Send(bytes) => Some(LoginAction::Send(bytes)),
            Reply::Derive(job) => Some(LoginAction::Derive(job)),
            Reply::Authenticated => {
                self.authenticated = true;
                None
            }
            Reply::Failed(failure) => Some(LoginAction::Failed(failure)),
        }
    }
}

fn failed(error: &DecodeError) -> LoginAction {
    LoginAction::Failed(Failure::Protocol(error.to_string()))
}

fn out_of_order() -> LoginAction {
    LoginAction::Failed(Failure::Protocol(
        "a starting backend sent a message out of order".to_owned(),
    ))
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
