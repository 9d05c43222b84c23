//! The first packets of a client: requests for encryption, a cancel request, or the startup
//! packet.
//!
//! Follows ProcessStartupPacket (backend/postmaster/postmaster.c of 15) in limits, order of
//! checks, texts and SQLSTATEs, and backend_startup.c of 18 for protocol 3.2 if the server is
//! an 18. It differs in three places. A cancel request may carry a key of up to 256 bytes with
//! any server. A request for GSSAPI encryption is refused (`N`) unless the pool offers it.
//! `db_user_namespace` is left to the server (login/native.rs).

use super::messages::{
    negotiate_protocol_version, newest_protocol, CANCEL_REQUEST_CODE, MOST_STARTUP_BYTES,
    PROTOCOL_3_0,
};
use super::options::{self, Setting};
use super::report::Report;

const MAX_PACKET: usize = MOST_STARTUP_BYTES;
/// Few packets are longer.
const USUAL_PACKET_BYTES: usize = 256;
/// A request for encryption, with its length word.
const REQUEST_BYTES: usize = 8;
/// NAMEDATALEN - 1.
const MAX_NAME: usize = 63;
/// The longest key that 18 takes (ProcessCancelRequestPacket); its own keys have 32 bytes.
const MAX_CANCEL_KEY: usize = 256;
const SSL_REQUEST_CODE: u32 = (1234 << 16) | 5679;
const GSS_REQUEST_CODE: u32 = (1234 << 16) | 5680;

/// What a client asked for in its startup packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Startup {
    /// Protocol version as requested (major in the upper 16 bits). Its minor number may be
    /// newer than the server's: see `negotiate`.
    pub protocol: u32,
    /// Role name, never empty, at most 63 bytes.
    pub user: Vec<u8>,
    /// Database name, at most 63 bytes; empty only for physical replication.
    pub database: Vec<u8>,
    /// The kind of replication connection, if any.
    pub replication: Replication,
    /// The `options` text, not split; see [`Startup::take_settings`].
    pub options: Option<Vec<u8>>,
    /// The other parameters as name and value, in the packet's order.
    pub parameters: Vec<Setting>,
    /// NegotiateProtocolVersion, or empty. It must be the first thing sent.
    pub negotiate: Vec<u8>,
    /// The packet as it came, without its length word.
    pub packet: Vec<u8>,
}

impl Startup {
    /// Takes all settings out of the startup packet as name and value, in the order in which
    /// process_startup_options (utils/init/postinit.c) applies them: those of `options` first.
    /// The server does so after authentication, so send the error only then.
    pub fn take_settings(&mut self) -> Result<Vec<Setting>, Report> {
        let mut settings = match self.options.take() {
            Some(text) => options::parse(&text)?,
            None => Vec::new(),
        };
        settings.append(&mut self.parameters);
        Ok(settings)
    }

    /// The role's name where `db_user_namespace` is on, as ProcessStartupPacket makes it.
    pub fn namespaced_user(&self) -> Vec<u8> {
        let at = self.user.iter().position(|byte| *byte == b'@');
        if at.is_some_and(|at| at + 1 == self.user.len()) {
            return self.user[..self.user.len() - 1].to_vec();
        }
        let mut name = [&self.user, &b"@"[..], &self.database].concat();
        name.truncate(MAX_NAME);
        name
    }

    #[cfg(test)]
    /// The last `application_name` among the plain parameters, if any.
    pub fn application_name(&self) -> Option<&[u8]> {
        self.parameters
            .iter()
            .rev()
            .find(|(name, _)| name == b"application_name")
            .map(|(_, value)| value.as_slice())
    }
}

/// The `replication` parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// An ordinary session.
    No,
    /// A WAL sender without a database.
    Physical,
    /// A WAL sender connected to a database.
    Database,
}

/// A request to cancel the query of the session with this key. It is never answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelRequest {
    /// The process ID in BackendKeyData.
    pub pid: i32,
    /// Four bytes in protocol 3.0, up to 256 later.
    pub key: Vec<u8>,
}

/// Why the connection ends here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartupError {
    /// Close without a message to the client; the text is for the log.
    Close(&'static str),
    /// Send these bytes, then close; the report is for the log.
    Fatal {
        /// Everything to send, already encoded as this client understands it.
        send: Vec<u8>,
        /// The error that the bytes contain.
        report: Report,
    },
}

/// The result of feeding a [`StartupReader`].
#[derive(Debug, PartialEq, Eq)]
pub enum StartupEvent {
    /// More bytes are needed.
    NeedMore,
    /// Send this byte (always `N`), then continue to feed.
    Answer(u8),
    /// Send `S`, then speak TLS; another reader takes what comes within it.
    Secure,
    /// The client speaks TLS already. The fed bytes are its beginning.
    Direct,
    /// GSSAPI encryption is requested and offered. The process that is to have the keys answers
    /// `G`, and reads on.
    Gss,
    /// A cancel request; close after it.
    Cancel(CancelRequest),
    /// The startup packet.
    Startup(Box<Startup>),
    /// The connection ends.
    Failed(StartupError),
}

/// Reads the first packets, with one event for each. It is finished after `Cancel`, `Startup`
/// or `Failed`.
#[derive(Debug, Default)]
pub struct StartupReader {
    held: Vec<u8>,
    server_major: u32,
    tls: Tls,
    offers_gss: bool,
    ssl_done: bool,
    gss_done: bool,
    /// A packet has come.
    has_begun: bool,
}

/// What this connection may do about TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// A request for TLS is refused.
    #[default]
    Refused,
    /// TLS on request.
    Offered,
    /// TLS on request, or from the first byte on (17 and later).
    OfferedDirectly,
}

/// The first byte of a TLS connection: a record of type handshake (ProcessSSLStartup,
/// backend_startup.c). No packet is long enough to begin with it.
const TLS_HANDSHAKE: u8 = 0x16;

impl StartupReader {
    /// A reader for a new connection.
    pub fn new(server_major: u32, tls: Tls) -> StartupReader {
        StartupReader {
            server_major,
            tls,
            ..StartupReader::default()
        }
    }

    /// Sets whether this connection gets GSSAPI encryption when it asks for it.
    pub fn offering_gss(self, offers_gss: bool) -> StartupReader {
        StartupReader { offers_gss, ..self }
    }

    /// A reader for what comes within TLS with which the client began at once. A request for
    /// TLS is refused, and the client may continue, as in ProcessStartupPacket
    /// (backend_startup.c of 17). So is a request for GSSAPI encryption, which TLS would have
    /// to carry.
    pub fn within_direct_tls(server_major: u32) -> StartupReader {
        StartupReader::new(server_major, Tls::Refused)
    }

    /// A reader for what comes within TLS or another encryption that was requested, where no
    /// further encryption can be requested.
    pub fn within_tls(server_major: u32) -> StartupReader {
        StartupReader {
            server_major,
            ssl_done: true,
            gss_done: true,
            ..StartupReader::default()
        }
    }

    /// How many bytes may be read without reading what belongs to a backend. No packet is
    /// shorter than a request for encryption, and of the bytes after such a request one is
    /// enough (see [`StartupReader::feed`]).
    pub fn wanted(&self) -> usize {
        let missing = self.missing();
        if self.held.len() + missing <= REQUEST_BYTES {
            REQUEST_BYTES + 1 - self.held.len()
        } else {
            missing
        }
    }

    /// The bytes that are missing from the packet, or from its length word.
    pub(crate) fn missing(&self) -> usize {
        match self.packet_length() {
            None => 4 - self.held.len(),
            Some(length) => (4 + length.min(MAX_PACKET)).saturating_sub(self.held.len()),
        }
    }

    /// True if part of a packet has come. Stock logs "incomplete startup packet" if the
    /// connection ends then, and nothing otherwise.
    pub fn in_packet(&self) -> bool {
        !self.held.is_empty()
    }

    fn packet_length(&self) -> Option<usize> {
        let word = self.held.get(..4)?;
        let length = i32::from_be_bytes(word.try_into().ok()?);
        Some(usize::try_from(i64::from(length) - 4).unwrap_or(0))
    }

    /// Takes the bytes that it can use. Returns their number, and the event.
    ///
    /// Stock refuses a connection on which data follow a request for encryption before its
    /// answer, since a man in the middle could have inserted them. If the input goes on after
    /// such a request, this reader does the same.
    pub fn feed(&mut self, input: &[u8]) -> (usize, StartupEvent) {
        let mut consumed = 0;
        if self.tls == Tls::OfferedDirectly
            && !self.has_begun
            && self.held.is_empty()
            && input.first() == Some(&TLS_HANDSHAKE)
        {
            return (0, StartupEvent::Direct);
        }
        loop {
            if let Some(length) = self.packet_length() {
                if !(4..=MAX_PACKET).contains(&length) {
                    return (consumed, close("invalid length of startup packet"));
                }
                if self.held.len() == 4 + length {
                    break;
                }
            }
            let take = self.missing().min(input.len() - consumed);
            if take == 0 {
                return (consumed, StartupEvent::NeedMore);
            }
            if self.held.is_empty() {
                self.held.reserve(USUAL_PACKET_BYTES);
            }
            self.held
                .extend_from_slice(&input[consumed..consumed + take]);
            consumed += take;
        }
        let held = std::mem::take(&mut self.held);
        let packet = &held[4..];
        self.has_begun = true;
        let event = self.packet(packet);
        let answer = match event {
            StartupEvent::Answer(byte) => Some(byte),
            StartupEvent::Secure => Some(b'S'),
            StartupEvent::Gss => Some(b'G'),
            _ => None,
        };
        if let Some(answer) = answer.filter(|_| consumed < input.len()) {
            let gss = code_of(packet) == GSS_REQUEST_CODE;
            let mut failure = early_data(gss);
            // Stock has sent its answer by then.
            failure.insert_first(answer);
            return (consumed, StartupEvent::Failed(failure.into_error()));
        }
        (consumed, event)
    }

    fn packet(&mut self, packet: &[u8]) -> StartupEvent {
        match code_of(packet) {
            CANCEL_REQUEST_CODE => {
                let (Some(pid), Some(key)) = (packet.get(4..8), packet.get(8..)) else {
                    return close("invalid length of startup packet");
                };
                if !(4..=MAX_CANCEL_KEY).contains(&key.len()) {
                    return close("invalid length of startup packet");
                }
                StartupEvent::Cancel(CancelRequest {
                    pid: i32::from_be_bytes([pid[0], pid[1], pid[2], pid[3]]),
                    key: key.to_vec(),
                })
            }
            SSL_REQUEST_CODE if !self.ssl_done => {
                self.ssl_done = true;
                match self.tls {
                    Tls::Refused => StartupEvent::Answer(b'N'),
                    Tls::Offered | Tls::OfferedDirectly => StartupEvent::Secure,
                }
            }
            GSS_REQUEST_CODE if !self.gss_done => {
                self.gss_done = true;
                match self.offers_gss {
                    true => StartupEvent::Gss,
                    false => StartupEvent::Answer(b'N'),
                }
            }
            protocol => match startup(protocol, newest_protocol(self.server_major), packet) {
                Ok(startup) => StartupEvent::Startup(Box::new(startup)),
                Err(failure) => StartupEvent::Failed(failure.into_error()),
            },
        }
    }
}

/// A FATAL error, with the bytes that must be sent before it.
struct Failure {
    before: Vec<u8>,
    report: Report,
    old_style: bool,
}

impl Failure {
    fn new(sqlstate: &[u8; 5], message: impl Into<Vec<u8>>) -> Failure {
        Failure {
            before: Vec::new(),
            report: Report::fatal(sqlstate, message),
            old_style: false,
        }
    }

    fn insert_first(&mut self, byte: u8) {
        self.before.insert(0, byte);
    }

    fn into_error(self) -> StartupError {
        let mut send = self.before;
        if self.old_style {
            send.extend(self.report.to_old_style_bytes());
        } else {
            self.report.encode(&mut send);
        }
        StartupError::Fatal {
            send,
            report: self.report,
        }
    }
}

fn close(why: &'static str) -> StartupEvent {
    StartupEvent::Failed(StartupError::Close(why))
}

fn early_data(gss: bool) -> Failure {
    let what = if gss {
        "received unencrypted data after GSSAPI encryption request"
    } else {
        "received unencrypted data after SSL request"
    };
    let mut failure = Failure::new(b"08P01", what);
    failure.report = failure.report.with_detail(
        "This could be either a client-software bug or evidence of an attempted man-in-the-middle attack.",
    );
    failure
}

fn code_of(packet: &[u8]) -> u32 {
    // Invariant: `feed` lets no packet of less than four bytes through.
    packet
        .get(..4)
        .and_then(|word| word.try_into().ok())
        .map_or(0, u32::from_be_bytes)
}

fn startup(protocol: u32, newest: u32, packet: &[u8]) -> Result<Startup, Failure> {
    if protocol >> 16 != PROTOCOL_3_0 >> 16 {
        let mut failure = Failure::new(
            b"0A000",
            format!(
                "unsupported frontend protocol {}.{}: server supports 3.0 to 3.{}",
                protocol >> 16,
                protocol & 0xffff,
                newest & 0xffff
            ),
        );
        // send_message_to_frontend (elog.c) knows 0 as "not known yet".
        failure.old_style = protocol >> 16 < 3 && protocol != 0;
        return Err(failure);
    }

    let mut startup = Startup {
        protocol,
        user: Vec::new(),
        database: Vec::new(),
        replication: Replication::No,
        options: None,
        parameters: Vec::new(),
        negotiate: Vec::new(),
        packet: packet.to_vec(),
    };
    let mut unrecognized = Vec::new();
    let mut offset = 4;
    while offset < packet.len() {
        let name = string_at(packet, offset);
        if name.is_empty() {
            break;
        }
        let value_offset = offset + name.len() + 1;
        if value_offset >= packet.len() {
            break;
        }
        let value = string_at(packet, value_offset);
        match name {
            b"database" => startup.database = value.to_vec(),
            b"user" => startup.user = value.to_vec(),
            b"options" => startup.options = Some(value.to_vec()),
            b"replication" => replication(&mut startup.replication, value)?,
            _ if name.starts_with(b"_pq_.") => unrecognized.push(name.to_vec()),
            _ => startup.parameters.push((name.to_vec(), value.to_vec())),
        }
        offset = value_offset + value.len() + 1;
    }
    if offset + 1 != packet.len() {
        return Err(Failure::new(
            b"08P01",
            "invalid startup packet layout: expected terminator as last byte",
        ));
    }
    if protocol > newest || !unrecognized.is_empty() {
        negotiate_protocol_version(&mut startup.negotiate, protocol.min(newest), &unrecognized);
    }

    if startup.user.is_empty() {
        let mut failure = Failure::new(
            b"28000",
            "no PostgreSQL user name specified in startup packet",
        );
        failure.before = startup.negotiate;
        return Err(failure);
    }
    if startup.database.is_empty() {
        startup.database = startup.user.clone();
    }
    // Bytes, not characters, as in stock.
    startup.database.truncate(MAX_NAME);
    startup.user.truncate(MAX_NAME);
    if startup.replication == Replication::Physical {
        startup.database.clear();
    }
    Ok(startup)
}

/// The string that begins at `offset`; the packet's end counts as a NUL.
fn string_at(packet: &[u8], offset: usize) -> &[u8] {
    let rest = packet.get(offset..).unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == 0);
    &rest[..end.unwrap_or(rest.len())]
}

/// As in stock, `true` after `database` leaves it a WAL sender with a database.
fn replication(replication: &mut Replication, value: &[u8]) -> Result<(), Failure> {
    *replication = match (value, parse_bool(value)) {
        (b"database", _) => Replication::Database,
        (_, Some(true)) if *replication == Replication::Database => Replication::Database,
        (_, Some(true)) => Replication::Physical,
        (_, Some(false)) => Replication::No,
        (_, None) => {
            let mut message = b"invalid value for parameter \"replication\": \"".to_vec();
            message.extend_from_slice(value);
            message.push(b'"');
            let mut failure = Failure::new(b"22023", message);
            failure.report = failure
                .report
                .with_hint("Valid values are: \"false\", 0, \"true\", 1, \"database\".");
            return Err(failure);
        }
    };
    Ok(())
}

/// parse_bool (utils/adt/bool.c): unique prefixes of the words, in any case.
fn parse_bool(value: &[u8]) -> Option<bool> {
    let lower = value.to_ascii_lowercase();
    let is = |word: &[u8], shortest: usize| lower.len() >= shortest && word.starts_with(&lower);
    if is(b"true", 1) || is(b"yes", 1) || is(b"on", 2) || lower == b"1" {
        Some(true)
    } else if is(b"false", 1) || is(b"no", 1) || is(b"off", 2) || lower == b"0" {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
#[path = "startup_tests.rs"]
mod tests;
