//! The start of a backend, as a client of the server sees it, from the startup packet to
//! ReadyForQuery. The server asks the backends that the dispatcher opens for no password (the
//! extension's attach.c).

use super::backend::{BackendDecoder, BackendMessage, DecodeError};
use super::messages;
use super::report::Report;

/// Why no backend could be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The server has sent an error.
    ServerError(Report),
    /// The server has sent something that is not understood, or nothing.
    Protocol(String),
}

impl Failure {
    /// The database has been dropped: it does not come back under its name.
    pub fn is_no_database(&self) -> bool {
        matches!(self, Failure::ServerError(report) if report.sqlstate == *b"3D000")
    }

    /// A limit of connections has been reached.
    pub fn is_of_a_limit(&self) -> bool {
        matches!(self, Failure::ServerError(report) if report.sqlstate == *b"53300")
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::ServerError(report) => report.fmt(f),
            Failure::Protocol(what) => f.write_str(what),
        }
    }
}

/// The progress of a starting backend.
#[derive(Debug, PartialEq, Eq)]
pub enum Start {
    /// More bytes are needed.
    NeedsMore,
    /// ReadyForQuery has come.
    Ready,
    /// The backend cannot start; close the connection.
    Failed(Failure),
}

/// The start of one backend, after the startup packet.
#[derive(Debug, Default)]
pub struct BackendStart {
    decoder: BackendDecoder,
    is_let_in: bool,
}

impl BackendStart {
    /// Returns the startup packet to send first, and the reader of the answers.
    pub fn begin(
        user: &[u8],
        database: &[u8],
        parameters: &[(&[u8], &[u8])],
    ) -> (BackendStart, Vec<u8>) {
        let mut all: Vec<(&[u8], &[u8])> = vec![(b"user", user), (b"database", database)];
        all.extend_from_slice(parameters);
        let mut packet = Vec::new();
        messages::startup_message(&mut packet, &all);
        (BackendStart::default(), packet)
    }

    /// Adds bytes, and returns the progress.
    pub fn feed(&mut self, input: &[u8]) -> Start {
        self.decoder.feed(input);
        loop {
            let message = match self.decoder.next_message() {
                Ok(Some(message)) => message,
                Ok(None) => return Start::NeedsMore,
                Err(error) => return failed(&error),
            };
            match message {
                BackendMessage::Authentication(0, _) if !self.is_let_in => {
                    self.is_let_in = true;
                }
                BackendMessage::Authentication(..) if !self.is_let_in => {
                    let text =
                        "the server asks for a password; is pg_baton in shared_preload_libraries?";
                    return Start::Failed(Failure::Protocol(text.to_owned()));
                }
                BackendMessage::Error(report) => {
                    return Start::Failed(Failure::ServerError(report))
                }
                BackendMessage::Notice(_) => {}
                BackendMessage::NegotiateProtocolVersion if !self.is_let_in => {}
                BackendMessage::ParameterStatus | BackendMessage::BackendKeyData
                    if self.is_let_in => {}
                BackendMessage::ReadyForQuery(b'I') if self.is_let_in => return Start::Ready,
                _ => {
                    let text = "a starting backend sent a message out of order";
                    return Start::Failed(Failure::Protocol(text.to_owned()));
                }
            }
        }
    }
}

fn failed(error: &DecodeError) -> Start {
    Start::Failed(Failure::Protocol(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    fn begun() -> BackendStart {
        BackendStart::begin(b"alice", b"db", &[]).0
    }

    fn started() -> Vec<u8> {
        let mut bytes = Vec::new();
        messages::negotiate_protocol_version(&mut bytes, 3 << 16, &[b"_pq_.x".to_vec()]);
        messages::authentication_ok(&mut bytes);
        messages::parameter_status(&mut bytes, b"TimeZone", b"UTC");
        messages::backend_key_data(&mut bytes, 1, &2i32.to_be_bytes());
        messages::ready_for_query(&mut bytes, b'I');
        bytes
    }

    #[test]
    fn backend_has_started_when_ready_in_pieces_of_any_size() {
        let (_, packet) = BackendStart::begin(b"alice", b"db", &[(b"options", b"-c a=b")]);
        assert!(packet[8..].starts_with(b"user\0alice\0database\0db\0options\0-c a=b\0"));
        let bytes = started();
        for chunk in [1, 7, 10_000] {
            let mut start = begun();
            let mut states: Vec<Start> = bytes.chunks(chunk).map(|some| start.feed(some)).collect();
            assert_eq!(states.pop(), Some(Start::Ready));
            assert!(states.iter().all(|state| *state == Start::NeedsMore));
        }
    }

    #[test]
    fn the_server_s_refusal_is_passed_on() {
        let mut bytes = Vec::new();
        Report::fatal(b"53300", "sorry, too many clients already").encode(&mut bytes);
        let Start::Failed(failure) = begun().feed(&bytes) else {
            panic!()
        };
        assert!(failure.is_of_a_limit() && !failure.is_no_database());
    }

    #[test]
    fn start_answers_no_proof_request_and_takes_no_early_message() {
        for make in [
            |out: &mut Vec<u8>| messages::authentication_cleartext(out),
            |out: &mut Vec<u8>| messages::authentication_sasl(out, &["SCRAM-SHA-256"]),
            |out: &mut Vec<u8>| messages::ready_for_query(out, b'I'),
            |out: &mut Vec<u8>| messages::parameter_status(out, b"a", b"b"),
            |out: &mut Vec<u8>| messages::backend_key_data(out, 1, &2i32.to_be_bytes()),
        ] {
            let mut bytes = Vec::new();
            make(&mut bytes);
            let state = begun().feed(&bytes);
            assert!(matches!(state, Start::Failed(Failure::Protocol(_))));
        }
    }

    #[test]
    fn random_bytes_never_panic_and_never_make_a_backend_ready() {
        let mut random = rand::rngs::StdRng::seed_from_u64(20261122);
        let whole = started();
        for _ in 0..20_000 {
            let mut bytes = whole[..random.gen_range(0..whole.len() - 6)].to_vec();
            bytes.extend((0..30).map(|_| random.gen::<u8>()));
            let at = random.gen_range(0..bytes.len());
            bytes[at] = random.gen();
            assert_ne!(begun().feed(&bytes), Start::Ready);
        }
    }
}
