//! Authentication of a client, in the server's place.
//!
//! The caller knows from the launcher which method pg_hba.conf demands and how the role's
//! password is stored. [`ServerAuth::start`] returns the first action. The caller then carries
//! out each action and feeds what the client sends. Messages, order, texts and SQLSTATEs are
//! those of backend/libpq/auth.c and auth-sasl.c.
//!
//! A role that does not exist, has no usable password, or has an expired one is treated like
//! any other, with the same work, and fails at the end as a wrong password does: a stranger
//! cannot distinguish these cases.

use super::super::frontend::{Response, ResponseReader};
use super::super::messages;
use super::super::report::Report;
use super::keys::Derivation;
use super::scram::{self, Binding, ServerExchange};
use super::verifier::{self, MockSecret, ScramVerifier, Verifier};
use super::Secret;
use std::sync::{Arc, Weak};

/// PG_MAX_AUTH_TOKEN_LENGTH (backend/libpq/auth.c).
const MAX_PASSWORD_MESSAGE: u32 = 65_535;
/// PG_MAX_SASL_MESSAGE_LENGTH (backend/libpq/auth-sasl.c).
const MAX_SASL_MESSAGE: u32 = 1024;

/// The method of the matching line of pg_hba.conf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Every client is let in.
    Trust,
    /// No client is let in.
    Reject,
    /// scram-sha-256
    Scram,
    /// md5; SCRAM if the role's password is stored for SCRAM.
    Md5,
    /// The password in the clear.
    Password,
    /// The user of the operating system; the caller knows the maps and decides.
    Peer,
}

/// The client's user, and the rule for its authentication.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Role name, from the startup packet.
    pub user: Vec<u8>,
    /// How to authenticate.
    pub method: Method,
    /// `pg_authid.rolpassword`; None if the role does not exist, or its password does not or
    /// has expired.
    pub verifier: Option<Vec<u8>>,
    /// For [`Method::Peer`]: the maps allow it.
    pub peer_allowed: bool,
    /// The server's password_encryption is md5: an unknown user is then treated as a user whose
    /// password is stored that way.
    pub encryption_is_md5: bool,
    /// Otherwise an unknown user's SCRAM password counts as iterated this often where the
    /// dispatcher compares it; 0: the default. A challenge for an unknown user says 4096, as in
    /// stock (mock_scram_secret).
    pub scram_iterations: u32,
    /// tls-server-end-point of the client's TLS connection, if it has one: the client is then
    /// offered SCRAM-SHA-256-PLUS.
    pub channel_binding: Option<Vec<u8>>,
}

/// What the caller is to do next.
#[derive(Debug)]
pub enum Action {
    /// More bytes are needed.
    NeedMore,
    /// Send these bytes, then feed what comes.
    Send(Vec<u8>),
    /// Run the job on another thread and pass its result to [`ServerAuth::password_checked`].
    VerifyPassword(Box<PasswordJob>),
    /// The client has proved its identity. Send these bytes, if any; the caller then sends
    /// AuthenticationOk.
    Done {
        /// The last message of the exchange.
        send: Vec<u8>,
    },
    /// Send this and close.
    Failed(Report),
    /// Close without a message, as stock does; the text is for the log.
    Close(&'static str),
}

/// The comparison of a password with the stored one. It takes about a millisecond of CPU,
/// unless the verifier demands more iterations.
#[derive(Debug)]
pub struct PasswordJob {
    user: Vec<u8>,
    password: Secret,
    verifier: Verifier,
    derivation: Option<Derivation>,
    wanted: Weak<()>,
}

impl PasswordJob {
    /// Does the authentication still wait for the result?
    pub fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }

    /// plain_crypt_verify (backend/libpq/crypt.c), a number of its iterations. Blocks for their
    /// CPU time. Returns whether the password is right; None: not known yet.
    pub fn step(&mut self, iterations: u32) -> Option<bool> {
        let password = self.password.expose();
        Some(match &self.verifier {
            Verifier::Md5(stored) => verifier::equal(
                &verifier::md5_encrypt(password, &self.user),
                stored.expose(),
            ),
            Verifier::Scram(stored) => {
                let derivation = self
                    .derivation
                    .get_or_insert_with(|| stored.derivation(password));
                let keys = derivation.step(iterations)?;
                verifier::equal(keys.server_key(), &stored.server_key)
            }
        })
    }
}

enum State {
    /// Waiting for `p` with the response to this salt.
    Md5 {
        stored: Option<Secret>,
        salt: [u8; 4],
    },
    /// Waiting for `p` with the password.
    Password,
    /// Waiting for the result of a job. The job is wanted as long as this value lives.
    Checking(#[allow(dead_code, reason = "what counts is that it is there")] Arc<()>),
    /// Waiting for SASLInitialResponse.
    SaslInitial,
    /// SASLInitialResponse came without data, and an empty challenge was sent.
    SaslFirst,
    /// Waiting for the client's final message.
    SaslFinal(Box<ServerExchange>),
    /// Nothing more is expected.
    Over,
}

/// The authentication of one client. It is finished after `Done`, `Failed` or `Close`.
pub struct ServerAuth {
    user: Vec<u8>,
    /// The stored verifier, or a mock one.
    verifier: Verifier,
    /// The verifier is a mock: the authentication fails in the end, whatever comes.
    doomed: bool,
    channel_binding: Option<Vec<u8>>,
    /// The client has chosen SCRAM-SHA-256-PLUS.
    is_plus: bool,
    state: State,
    reader: ResponseReader,
}

impl std::fmt::Debug for ServerAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerAuth")
    }
}

impl ServerAuth {
    /// Begins; the action is the first one for the caller.
    pub fn start(claim: Claim, mock: &MockSecret) -> (ServerAuth, Action) {
        let stored = claim.verifier.as_deref().and_then(Verifier::parse);
        let mut made_up = mock.verifier(&claim.user);
        if claim.method == Method::Password && claim.scram_iterations > 0 {
            made_up.iterations = claim.scram_iterations;
        }
        let verifier = match claim.method {
            Method::Trust | Method::Peer | Method::Reject => Verifier::Md5(Secret::new(*b"md5")),
            _ => Verifier::Scram(made_up),
        };
        let mut auth = ServerAuth {
            doomed: stored.is_none(),
            verifier,
            user: claim.user,
            channel_binding: claim.channel_binding,
            is_plus: false,
            state: State::Over,
            reader: ResponseReader::new(MAX_PASSWORD_MESSAGE),
        };
        let user = auth.user.as_slice();
        let action = match claim.method {
            Method::Trust => done_with_nothing(),
            Method::Peer if claim.peer_allowed => done_with_nothing(),
            Method::Peer => Action::Failed(Report::fatal(
                b"28000",
                quoting("Peer authentication failed for user \"", user, "\""),
            )),
            Method::Reject => Action::Failed(Report::fatal(
                b"28000",
                quoting(
                    "authentication failed for user \"",
                    user,
                    "\": host rejected",
                ),
            )),
            Method::Password => {
                if let Some(stored) = stored {
                    auth.verifier = stored;
                } else if claim.encryption_is_md5 {
                    // The same work as for a user who has a password.
                    auth.verifier = Verifier::Md5(Secret::new(*b"md5"));
                }
                auth.state = State::Password;
                sending(messages::authentication_cleartext)
            }
            // CheckPWChallengeAuth: the stored password decides; without one, the way in which
            // a new password would be stored.
            Method::Md5 => match stored {
                Some(Verifier::Md5(stored)) => auth.ask_md5(Some(stored)),
                Some(Verifier::Scram(stored)) => auth.ask_scram(Some(stored)),
                None if claim.verifier.is_none() && claim.encryption_is_md5 => auth.ask_md5(None),
                None => auth.ask_scram(None),
            },
            Method::Scram => match stored {
                Some(Verifier::Scram(stored)) => auth.ask_scram(Some(stored)),
                _ => auth.ask_scram(None),
            },
        };
        (auth, action)
    }

    fn ask_md5(&mut self, stored: Option<Secret>) -> Action {
        let salt = rand::random();
        self.state = State::Md5 { stored, salt };
        sending(|out| messages::authentication_md5(out, salt))
    }

    fn ask_scram(&mut self, stored: Option<ScramVerifier>) -> Action {
        self.doomed = stored.is_none();
        if let Some(stored) = stored {
            self.verifier = Verifier::Scram(stored);
        }
        self.reader = ResponseReader::new(MAX_SASL_MESSAGE);
        self.state = State::SaslInitial;
        let mechanisms: &[&str] = match self.channel_binding {
            Some(_) => &[scram::MECHANISM_PLUS, scram::MECHANISM],
            None => &[scram::MECHANISM],
        };
        sending(|out| messages::authentication_sasl(out, mechanisms))
    }

    /// How many bytes may be read from the client without reading past the expected message; 0
    /// if none is expected.
    pub fn wanted(&self) -> usize {
        match self.state {
            State::Over | State::Checking(_) => 0,
            _ => self.reader.wanted(),
        }
    }

    /// Does the authentication wait for the result of a job?
    pub fn is_checked(&self) -> bool {
        matches!(self.state, State::Checking(_))
    }

    /// Takes the bytes that it can use. Returns their number, and the next action.
    pub fn feed(&mut self, input: &[u8]) -> (usize, Action) {
        if matches!(self.state, State::Over | State::Checking(_)) {
            return (0, Action::NeedMore);
        }
        let (consumed, response) = self.reader.feed(input);
        let action = match response {
            Response::NeedMore => return (consumed, Action::NeedMore),
            Response::Message(body) => self.message(body),
            Response::WrongType(message_type) => {
                let what = if self.in_sasl() { "SASL" } else { "password" };
                Action::Failed(Report::fatal(
                    b"08P01",
                    format!("expected {what} response, got message type {message_type}"),
                ))
            }
            // CheckSASLAuth takes this for a failed authentication, recv_password_packet for
            // the end of the connection.
            Response::BadLength if self.in_sasl() => self.wrong_password(),
            Response::BadLength => Action::Close("invalid message length"),
        };
        if !matches!(action, Action::Send(_) | Action::VerifyPassword(_)) {
            self.state = State::Over;
        }
        (consumed, action)
    }

    /// Continues after [`Action::VerifyPassword`].
    pub fn password_checked(&mut self, matches: bool) -> Action {
        let expected = matches!(self.state, State::Checking(_));
        self.state = State::Over;
        if expected && matches && !self.doomed {
            Action::Done { send: Vec::new() }
        } else {
            self.wrong_password()
        }
    }

    fn in_sasl(&self) -> bool {
        matches!(
            self.state,
            State::SaslInitial | State::SaslFirst | State::SaslFinal(_)
        )
    }

    /// auth_failed (backend/libpq/auth.c).
    fn wrong_password(&self) -> Action {
        Action::Failed(Report::fatal(
            b"28P01",
            quoting(
                "password authentication failed for user \"",
                &self.user,
                "\"",
            ),
        ))
    }

    fn message(&mut self, body: Vec<u8>) -> Action {
        let body = Secret::new(body);
        match std::mem::replace(&mut self.state, State::Over) {
            State::Md5 { stored, salt } => {
                let response = match password_of(body.expose()) {
                    Ok(response) => response,
                    Err(report) => return Action::Failed(report),
                };
                // Without a stored hash the same work is done with an empty one.
                let hash = stored.as_ref().map_or(&b""[..], Secret::expose);
                let right = verifier::md5_response(hash, salt);
                if verifier::equal(response.expose(), &right) && stored.is_some() {
                    done_with_nothing()
                } else {
                    self.wrong_password()
                }
            }
            State::Password => match password_of(body.expose()) {
                Ok(password) => {
                    let alive = Arc::default();
                    let wanted = Arc::downgrade(&alive);
                    self.state = State::Checking(alive);
                    Action::VerifyPassword(Box::new(PasswordJob {
                        user: self.user.clone(),
                        password,
                        verifier: self.verifier.clone(),
                        derivation: None,
                        wanted,
                    }))
                }
                Err(report) => Action::Failed(report),
            },
            State::SaslInitial => match sasl_initial(body.expose(), self.channel_binding.is_some())
            {
                Ok((is_plus, data)) => {
                    self.is_plus = is_plus;
                    match data {
                        Some(data) => self.sasl_first(data),
                        None => {
                            self.state = State::SaslFirst;
                            sending(|out| messages::authentication_sasl_continue(out, b""))
                        }
                    }
                }
                Err(report) => Action::Failed(report),
            },
            State::SaslFirst => self.sasl_first(body.expose()),
            State::SaslFinal(exchange) => match exchange.finish(body.expose()) {
                Ok(Some(last)) if !self.doomed => Action::Done {
                    send: bytes_of(|out| messages::authentication_sasl_final(out, &last)),
                },
                Ok(_) => self.wrong_password(),
                Err(report) => Action::Failed(report),
            },
            State::Checking(_) | State::Over => Action::NeedMore,
        }
    }

    fn sasl_first(&mut self, data: &[u8]) -> Action {
        let Verifier::Scram(stored) = &self.verifier else {
            // ask_scram leaves no other kind of verifier.
            return self.wrong_password();
        };
        let binding = match &self.channel_binding {
            None => Binding::Impossible,
            Some(_) if !self.is_plus => Binding::NotChosen,
            Some(data) => Binding::Chosen(data.clone()),
        };
        match ServerExchange::start(stored.clone(), binding, data) {
            Ok(exchange) => {
                let send = bytes_of(|out| {
                    messages::authentication_sasl_continue(out, exchange.server_first())
                });
                self.state = State::SaslFinal(Box::new(exchange));
                Action::Send(send)
            }
            Err(report) => Action::Failed(report),
        }
    }
}

/// The checks of recv_password_packet.
fn password_of(body: &[u8]) -> Result<Secret, Report> {
    if body.iter().position(|byte| *byte == 0) != Some(body.len().wrapping_sub(1)) {
        return Err(Report::fatal(b"08P01", "invalid password packet size"));
    }
    let password = &body[..body.len() - 1];
    if password.is_empty() {
        return Err(Report::fatal(b"28P01", "empty password returned by client"));
    }
    Ok(Secret::new(password))
}

/// Parses SASLInitialResponse as CheckSASLAuth does. Returns whether the mechanism has channel
/// binding, and the data; None if there are none.
fn sasl_initial(body: &[u8], has_plus: bool) -> Result<(bool, Option<&[u8]>), Report> {
    let violation = |text: &str| Report::fatal(b"08P01", text);
    let Some(end) = body.iter().position(|byte| *byte == 0) else {
        return Err(violation("invalid string in message"));
    };
    let is_plus = has_plus && &body[..end] == scram::MECHANISM_PLUS.as_bytes();
    if !is_plus && &body[..end] != scram::MECHANISM.as_bytes() {
        return Err(violation(
            "client selected an invalid SASL authentication mechanism",
        ));
    }
    let rest = &body[end + 1..];
    let Some((length, data)) = rest.split_first_chunk::<4>() else {
        return Err(violation("insufficient data left in message"));
    };
    let length = i32::from_be_bytes(*length);
    let data = if length == -1 {
        if !data.is_empty() {
            return Err(violation("invalid message format"));
        }
        return Ok((is_plus, None));
    } else {
        data
    };
    match usize::try_from(length) {
        Ok(length) if length == data.len() => Ok((is_plus, Some(data))),
        Ok(length) if length < data.len() => Err(violation("invalid message format")),
        _ => Err(violation("insufficient data left in message")),
    }
}

fn done_with_nothing() -> Action {
    Action::Done { send: Vec::new() }
}

fn bytes_of(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn sending(encode: impl FnOnce(&mut Vec<u8>)) -> Action {
    Action::Send(bytes_of(encode))
}

fn quoting(before: &str, name: &[u8], after: &str) -> Vec<u8> {
    [before.as_bytes(), name, after.as_bytes()].concat()
}

#[cfg(test)]
#[path = "server_tests.rs"]
pub mod tests;
