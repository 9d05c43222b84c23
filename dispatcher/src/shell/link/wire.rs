//! Frames of the control connections: encoding and decoding, and the payloads of views,
//! backends and the launcher.

use super::layout::shared::*;
use super::layout::LoginMarks;
use crate::console::Access;
use crate::protocol::{messages, Report};
use crate::shell::sys::memory::{bytes_of, value_of};
use crate::shell::sys::socket::Address;
use crate::shell::tls::{Facts, Names};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

// ---- Frames ---------------------------------------------------------------
//
// Encoding and decoding of frames between the dispatcher and the server's processes.
//
// Free of I/O. Frames come from the extension, yet every length is checked: a faulty backend
// must not take the dispatcher down with it.

/// Bytes of a frame before its payload.
pub const HEADER: usize = size_of::<FrameHeader>();

/// The bytes of the header that hold the payload's length.
const LENGTH: std::ops::Range<usize> = {
    let at = std::mem::offset_of!(FrameHeader, length);
    at..at + 4
};

/// Most bytes of payload in one frame.
pub const MAX_PAYLOAD: usize = FRAME_MAX as usize - HEADER;

/// A payload is shorter or longer than its message demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message between the dispatcher and the server is malformed")]
pub struct Malformed;

/// A received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: u32,
    pub more: bool,
    pub session: u64,
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Decodes a packet.
    pub fn parse(packet: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        let mut reader = Reader(packet);
        let header: FrameHeader = value_of(reader.raw(HEADER)?);
        let flags = u32::from(header.flags);
        if header.length as usize != reader.0.len() || flags & !FRAME_MORE != 0 {
            return Err(Malformed);
        }
        Ok(Frame {
            kind: u32::from(header.kind),
            more: flags & FRAME_MORE != 0,
            session: header.session,
            payload: reader.0,
        })
    }
}

/// Reads a payload from its front.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn raw(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        if self.0.len() < length {
            return Err(Malformed);
        }
        let (head, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.raw(N)?.try_into().map_err(|_| Malformed)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_ne_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_ne_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_ne_bytes(self.array()?))
    }

    pub fn i32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_ne_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_ne_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_ne_bytes(self.array()?))
    }

    pub fn bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.u8()? != 0)
    }

    pub fn address(&mut self) -> Result<[u8; 16], Malformed> {
        self.array()
    }

    /// Checks that nothing is left.
    pub fn end(&self) -> Result<(), Malformed> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Malformed),
        }
    }

    /// u32 length and bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.raw(length as usize)
    }

    /// What [`Writer::nullable`] has written.
    pub fn nullable(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        match self.u32()? {
            u32::MAX => Ok(None),
            length => self.raw(length as usize).map(Some),
        }
    }

    /// Like [`Reader::bytes`]. Zero bytes are not checked for.
    pub fn string(&mut self) -> Result<&'a [u8], Malformed> {
        self.bytes()
    }
}

/// Writes one frame.
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn new(kind: u32, session: u64) -> Writer {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&bare(kind, session));
        Writer(bytes)
    }

    pub fn u8(mut self, value: u8) -> Writer {
        self.0.push(value);
        self
    }

    pub fn u16(mut self, value: u16) -> Writer {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Writer {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Writer {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn i32(self, value: i32) -> Writer {
        self.u32(value as u32)
    }

    pub fn i64(self, value: i64) -> Writer {
        self.u64(value as u64)
    }

    pub fn bool(self, value: bool) -> Writer {
        self.u8(u8::from(value))
    }

    pub fn address(self, value: [u8; 16]) -> Writer {
        self.raw(&value)
    }

    pub fn raw(mut self, value: &[u8]) -> Writer {
        self.0.extend_from_slice(value);
        self
    }

    /// u32 length and bytes.
    pub fn bytes(self, value: &[u8]) -> Writer {
        self.u32(value.len() as u32).raw(value)
    }

    /// Like [`Writer::bytes`], for bytes without a zero byte.
    pub fn string(self, value: &[u8]) -> Writer {
        self.bytes(value)
    }

    /// A string, or NULL for None.
    pub fn nullable(self, value: Option<&[u8]>) -> Writer {
        match value {
            Some(value) => self.string(value),
            None => self.u32(u32::MAX),
        }
    }

    /// The frame. Callers keep payloads below [`MAX_PAYLOAD`].
    pub fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() - HEADER;
        debug_assert!(length <= MAX_PAYLOAD);
        self.0[LENGTH].copy_from_slice(&(length as u32).to_ne_bytes());
        self.0
    }
}

/// A frame without payload, on the stack, for the hot path.
pub fn bare(kind: u32, session: u64) -> [u8; HEADER] {
    let header = FrameHeader {
        kind: kind as u16,
        session,
        ..FrameHeader::default()
    };
    let mut frame = [0; HEADER];
    frame.copy_from_slice(bytes_of(&header));
    frame
}

/// The bytes of an ASSIGN frame.
pub const ASSIGN: usize = HEADER + size_of::<i64>();

/// A session for a backend, given at this time of the monotonic clock.
pub fn assign(session: u64, shared_us: i64) -> [u8; ASSIGN] {
    let header = FrameHeader {
        kind: MSG_ASSIGN as u16,
        length: size_of::<i64>() as u32,
        session,
        ..FrameHeader::default()
    };
    let mut frame = [0; ASSIGN];
    frame[..HEADER].copy_from_slice(bytes_of(&header));
    frame[HEADER..].copy_from_slice(&shared_us.to_ne_bytes());
    frame
}

/// The pairs of a REPORTED value: name NUL value NUL ...
pub fn pairs(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let mut next = || {
            let end = bytes.iter().position(|byte| *byte == 0)?;
            let (text, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            Some(text)
        };
        Some((next()?, next()?))
    })
}

/// Does it consist of whole pairs?
pub fn are_pairs(bytes: &[u8]) -> bool {
    let ends = bytes.iter().filter(|byte| **byte == 0).count();
    bytes.last().is_none_or(|last| *last == 0) && ends % 2 == 0
}

// ---- Rows of views --------------------------------------------------------
//
// Rows of the views, as frames for the process that reads the view.

/// One row under construction.
pub struct Row {
    writer: Writer,
    columns: u32,
}

impl Row {
    pub fn new() -> Row {
        Row {
            writer: Writer::new(MSG_ROW, 0),
            columns: 0,
        }
    }

    fn value(self, value: Option<&[u8]>) -> Row {
        Row {
            writer: self.writer.nullable(value),
            columns: self.columns + 1,
        }
    }

    pub fn bytes(self, value: &[u8]) -> Row {
        self.value(Some(value))
    }

    pub fn text(self, value: &str) -> Row {
        self.bytes(value.as_bytes())
    }

    pub fn number(self, value: impl std::fmt::Display) -> Row {
        self.text(&value.to_string())
    }

    pub fn optional(self, value: Option<impl std::fmt::Display>) -> Row {
        let text = value.map(|value| value.to_string());
        self.value(text.as_deref().map(str::as_bytes))
    }

    /// None is NULL.
    pub fn flag(self, value: Option<bool>) -> Row {
        self.optional(value.map(|value| if value { "t" } else { "f" }))
    }

    pub fn finish(self) -> Vec<u8> {
        let mut frame = self.writer.finish();
        // The number of columns comes first in the payload.
        let at = HEADER;
        frame.splice(at..at, self.columns.to_ne_bytes());
        let length = (frame.len() - at) as u32;
        frame[LENGTH].copy_from_slice(&length.to_ne_bytes());
        frame
    }
}

/// The port as pg_stat_activity shows it.
pub fn port_of(address: &Address) -> i32 {
    if address.is_local() {
        -1
    } else {
        i32::from(address.port)
    }
}

// ---- Messages of backends -------------------------------------------------
//
// The messages that a backend may send on its control connection. Each is read to its exact
// end.
//
// Free of I/O. Whether this backend may send it, and for which session, is checked in
// scheduler/attach.rs.

/// Kinds of items that a backend may change. STARTUP items belong to the dispatcher.
const KINDS: std::ops::RangeInclusive<u32> = KIND_RESET..=KIND_OTHER;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendSays<'a> {
    Put {
        kind: u16,
        key: &'a [u8],
        aux: i64,
        /// A statement's counters.
        counters: Option<Counters>,
        value: &'a [u8],
    },
    Delete {
        kind: u16,
        key: &'a [u8],
    },
    Release,
    /// `notices` are whole messages; `reported` is pairs of strings.
    Greeted {
        lasts: u32,
        start_settings: u64,
        notices: &'a [u8],
        reported: &'a [u8],
    },
    /// The client is gone, or the backend has ended the session with an error (`is_cut`).
    Ended {
        is_cut: bool,
    },
    Dedicated {
        has_cause: bool,
    },
    Retiring {
        /// `RETIRES_*`
        cause: u32,
        why: &'a [u8],
    },
}

/// A `BatonStatementCounter`; only backends interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// The bytes of two floating-point numbers.
    pub costs: [u64; 2],
    pub plans: [i64; 2],
}

impl<'a> BackendSays<'a> {
    /// Decodes a message; None if a backend may not send that kind.
    pub fn parse(frame: &Frame<'a>) -> Result<Option<BackendSays<'a>>, Malformed> {
        let mut reader = Reader(frame.payload);
        let said = match frame.kind {
            MSG_PUT => {
                let (kind, key) = item(&mut reader)?;
                let has_counters = match reader.u32()? {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed),
                };
                let aux = reader.i64()?;
                let mut counters = None;
                if has_counters {
                    counters = Some(Counters {
                        costs: [reader.u64()?, reader.u64()?],
                        plans: [reader.i64()?, reader.i64()?],
                    });
                }
                return Ok(Some(BackendSays::Put {
                    kind,
                    key,
                    aux,
                    counters,
                    value: reader.0,
                }));
            }
            MSG_DELETE => {
                let (kind, key) = item(&mut reader)?;
                BackendSays::Delete { kind, key }
            }
            MSG_RELEASE => BackendSays::Release,
            MSG_GREETED => {
                let lasts = reader.u32()?;
                let start_settings = reader.u64()?;
                let notices = reader.string()?;
                let reported = reader.0;
                if lasts & !(GREETING_OF_ROLES | GREETING_BY_PRIVILEGES) > GREETING_NAMES
                    || !messages::are_notices(notices)
                    || !are_pairs(reported)
                {
                    return Err(Malformed);
                }
                return Ok(Some(BackendSays::Greeted {
                    lasts,
                    start_settings,
                    notices,
                    reported,
                }));
            }
            MSG_END => match reader.u32()? {
                END_CLIENT_CLOSED | END_CLIENT_TERMINATED => BackendSays::Ended { is_cut: false },
                END_ERROR => BackendSays::Ended { is_cut: true },
                _ => return Err(Malformed),
            },
            MSG_DEDICATED => match reader.u32()? {
                cause if cause as usize >= CAUSES.len() => return Err(Malformed),
                cause => BackendSays::Dedicated {
                    has_cause: cause != CAUSE_NONE,
                },
            },
            MSG_RETIRING => BackendSays::Retiring {
                cause: match reader.u32()? {
                    cause @ RETIRES_ASKED..=RETIRES_SETTINGS => cause,
                    _ => return Err(Malformed),
                },
                why: reader.string()?,
            },
            _ => return Ok(None),
        };
        reader.end()?;
        Ok(Some(said))
    }
}

fn item<'a>(reader: &mut Reader<'a>) -> Result<(u16, &'a [u8]), Malformed> {
    let kind = reader.u16()?;
    if !KINDS.contains(&u32::from(kind)) {
        return Err(Malformed);
    }
    let length = reader.u16()?;
    Ok((kind, reader.raw(usize::from(length))?))
}

// ---- Questions to the launcher --------------------------------------------
//
// The question to the launcher about a client, and its answer.

/// All that the answer depends on: the question without the client's port.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Who {
    pub user: Vec<u8>,
    pub database: Vec<u8>,
    pub os_user: String,
    family: u16,
    address: [u8; 16],
    /// None without TLS.
    pub tls: Option<WhoByTls>,
}

/// The part of the question that only a TLS client has.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WhoByTls {
    /// A CA is configured, so a client certificate would have been verified.
    pub has_ca: bool,
    pub certificate: Option<Names>,
}

impl WhoByTls {
    pub fn of(facts: &Facts) -> WhoByTls {
        WhoByTls {
            has_ca: facts.has_ca,
            certificate: (facts.certificate.as_ref()).map(|certificate| certificate.names.clone()),
        }
    }
}

impl Who {
    pub fn new(
        user: &[u8],
        database: &[u8],
        os_user: String,
        address: &Address,
        tls: Option<WhoByTls>,
    ) -> Who {
        Who {
            user: user.to_vec(),
            database: database.to_vec(),
            os_user,
            family: address.family,
            address: address.bytes,
            tls,
        }
    }

    /// The question as a frame. The client's port is sent, but two questions that differ in it
    /// alone are equal.
    pub fn frame(&self, request: u32, address: &Address) -> Vec<u8> {
        let names = self.tls.as_ref().and_then(|tls| tls.certificate.as_ref());
        let question = LoginQuestion {
            request,
            is_host: !address.is_local(),
            family: address.family as u8,
            peer_address: address.bytes,
            port: address.port,
            user: &self.user,
            database: &self.database,
            os_user: self.os_user.as_bytes(),
            is_secure: self.tls.is_some(),
            has_ca: self.tls.as_ref().is_some_and(|tls| tls.has_ca),
            has_certificate: names.is_some(),
            common_name: names.map_or(&[], |names| &names.common),
            distinguished_name: names.map_or(&[], |names| &names.distinguished),
        };
        (question.write(Writer::new(MSG_LOGIN_QUESTION, 0))).finish()
    }
}

/// The launcher's answer about a client.
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
    /// The certificate does not match this role. The client is refused at once, unless a
    /// backend authenticates it: the backend then refuses it itself, so that hooks of other
    /// libraries see the attempt.
    pub refuse_method: bool,
    /// The certificate does not match this role. The refusal comes after the client's proof, in
    /// place of AuthenticationOk.
    pub refuse_proof: bool,
    pub peer_allowed: bool,
    /// TimestampTz until which the answer may be reused, except for its counts of connections;
    /// 0: it may not be reused.
    pub good_until: i64,
    /// Only a backend can decide whether this role may connect, so a backend must greet the
    /// client.
    pub ask_backend: bool,
    /// Login triggers must fire, so a backend must greet the client.
    pub fires_triggers: bool,
    /// Whether the client becomes native: BATON_NATIVE_*.
    pub native: u32,
    /// pg_baton.pool_max_sessions for its role and database; None: no limit.
    pub max_sessions: Option<usize>,
    /// A backend that serves this role serves no other role.
    pub is_apart: bool,
    /// The client wants the console, and may have it.
    pub console: Option<Access>,
    /// The changes that make the answer stale.
    pub marks: LoginMarks,
    /// The line of pg_hba.conf: its place, as the log names it, and what the log says of it when
    /// the authentication fails; empty if there is none.
    pub hba_place: Vec<u8>,
    pub hba_detail: Vec<u8>,
    /// Why no password is right; empty if one is. For the log alone.
    pub role_detail: Vec<u8>,
    /// The answer has admitted a session. Shared by all copies of the answer.
    pub has_let_in: Arc<AtomicBool>,
}

impl Answer {
    /// Role and database; None if one of them does not exist.
    pub fn group(&self) -> Option<(u32, u32)> {
        match (self.role, self.database) {
            (0, _) | (_, 0) => None,
            group => Some(group),
        }
    }

    /// Does a limit on connections apply? Their number changes without notice, so the launcher
    /// must be asked again before admission.
    pub fn counts_connections(&self) -> bool {
        self.role_limit >= 0 || self.database_limit >= 0
    }

    /// Notes that the answer has admitted a session.
    pub fn lets_in(&self) {
        self.has_let_in.store(true, Relaxed);
    }

    pub fn has_let_in(&self) -> bool {
        self.has_let_in.load(Relaxed)
    }

    /// Must the client prove its identity by a method that the dispatcher handles?
    pub fn demands_proof(&self) -> bool {
        matches!(self.method, AUTH_SCRAM | AUTH_MD5 | AUTH_PASSWORD)
    }

    /// pg_hba.conf's method is cert.
    pub fn is_by_certificate(&self) -> bool {
        self.method_name == b"cert"
    }

    /// The peer's operating system user may not use this role.
    pub fn is_refused_peer(&self) -> bool {
        self.method == AUTH_PEER && !self.peer_allowed
    }

    /// The detail with which auth_failed() (auth.c) logs this report, if the report is its.
    pub fn log_detail(&self, report: &Report, user: &[u8]) -> Option<Vec<u8>> {
        let is_its = matches!(&report.sqlstate, b"28P01" | b"28000");
        if !is_its || self.hba_detail.is_empty() {
            return None;
        }
        let mut detail = self.role_detail.clone();
        // SCRAM has no detail of its own for a wrong password.
        let has_compared = matches!(self.method, AUTH_MD5 | AUTH_PASSWORD);
        if detail.is_empty() && has_compared && !self.refuse_proof {
            detail = b"Password does not match for user \"".to_vec();
            detail.extend_from_slice(user);
            detail.extend_from_slice(b"\".");
        }
        if !detail.is_empty() {
            detail.push(b'\n');
        }
        detail.extend_from_slice(&self.hba_detail);
        Some(detail)
    }

    /// Decodes the request number and the answer.
    pub fn parse(payload: &[u8]) -> Result<(u32, Answer), Malformed> {
        let said = LoginAnswer::read(&mut Reader(payload))?;
        let refusal = <&[u8; 5]>::try_from(said.refusal_sqlstate)
            .ok()
            .map(|code| {
                let mut report = Report::fatal(code, said.refusal_message);
                if !said.refusal_detail.is_empty() {
                    report = report.with_detail(said.refusal_detail);
                }
                if !said.refusal_hint.is_empty() {
                    report = report.with_hint(said.refusal_hint);
                }
                report
            });
        let concerns = u32::from(said.concerns);
        let answer = Answer {
            method: said.method,
            method_name: said.method_name.to_vec(),
            verifier: said.verifier.to_vec(),
            password_expired: said.password_expired,
            role: said.role,
            database: said.database,
            superuser: said.superuser,
            role_limit: said.role_limit,
            database_limit: said.database_limit,
            role_backends: said.role_backends,
            database_backends: said.database_backends,
            refusal,
            refuse_before_authentication: said.refuse_first,
            refuse_method: said.refuse_method,
            refuse_proof: said.refuse_proof,
            peer_allowed: said.peer_match,
            good_until: said.good_until,
            ask_backend: said.ask_backend,
            fires_triggers: said.fires_triggers,
            native: u32::from(said.native),
            max_sessions: usize::try_from(said.max_sessions).ok(),
            is_apart: said.is_apart,
            console: match u32::from(said.console) {
                CONSOLE_ALL => Some(Access::All),
                CONSOLE_SHOW => Some(Access::Show),
                _ => None,
            },
            marks: LoginMarks {
                any_role: concerns & CONCERNS_ANY_ROLE != 0,
                any_database: concerns & CONCERNS_ANY_DATABASE != 0,
                memberships: concerns & CONCERNS_MEMBERSHIPS != 0,
                role_hash: said.role_hash,
                database_hash: said.database_hash,
            },
            hba_place: said.hba_place.to_vec(),
            hba_detail: said.hba_detail.to_vec(),
            role_detail: said.role_detail.to_vec(),
            has_let_in: Arc::default(),
        };
        Ok((said.request, answer))
    }

    /// Does this CONNECTION LIMIT allow `ours` sessions of the pool beside `others` other
    /// connections?
    pub fn fits(&self, limit: i32, others: i32, ours: usize) -> bool {
        limit < 0 || self.superuser || i64::from(others) + ours as i64 <= i64::from(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let bytes = Writer::new(MSG_PUT, 7)
            .u16(3)
            .string(b"key")
            .nullable(None)
            .finish();
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.kind, frame.session, frame.more), (MSG_PUT, 7, false));
        let mut reader = Reader(frame.payload);
        assert_eq!(reader.u16(), Ok(3));
        assert_eq!(reader.string(), Ok(&b"key"[..]));
        assert_eq!(reader.u32(), Ok(u32::MAX));
        assert_eq!(reader.u8(), Err(Malformed));
        assert_eq!(Frame::parse(&bytes[..bytes.len() - 1]), Err(Malformed));
        assert_eq!(Frame::parse(&bare(MSG_POKE, 9)).unwrap().session, 9);
        assert_eq!(Frame::parse(&[0; 3]), Err(Malformed));
    }

    #[test]
    fn a_string_longer_than_its_frame_is_malformed() {
        let bytes = Writer::new(MSG_PUT, 7).u32(100).raw(b"x").finish();
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!(Reader(frame.payload).string(), Err(Malformed));
    }

    #[test]
    fn pairs_end_where_a_half_begins() {
        let all: Vec<_> = pairs(b"a\x001\0b\0\0c").collect();
        assert_eq!(all, [(&b"a"[..], &b"1"[..]), (b"b", b"")]);
        assert!(are_pairs(b"") && are_pairs(b"a\x001\0b\0\0"));
        assert!(!are_pairs(b"a\0") && !are_pairs(b"a\x001\0b") && !are_pairs(b"a\x001"));
    }

    #[test]
    fn an_answer_is_read_as_the_header_says() {
        let said = LoginAnswer {
            request: 7,
            method: AUTH_SCRAM,
            method_name: b"scram-sha-256",
            verifier: b"SCRAM",
            role: 10,
            database: 5,
            superuser: true,
            role_limit: 3,
            database_limit: -1,
            role_backends: 1,
            database_backends: 2,
            refusal_message: b"message",
            refusal_hint: b"hint",
            refuse_first: true,
            peer_match: true,
            good_until: 9,
            ask_backend: true,
            native: NATIVE_POOL_MODE as u8,
            max_sessions: 4,
            is_apart: true,
            concerns: (CONCERNS_ANY_DATABASE | CONCERNS_MEMBERSHIPS) as u8,
            role_hash: 11,
            database_hash: 12,
            console: CONSOLE_SHOW as u8,
            ..LoginAnswer::default()
        };
        let of = |said: LoginAnswer<'_>| {
            let frame = said.write(Writer::new(MSG_LOGIN_ANSWER, 0)).finish();
            let payload = frame[HEADER..].to_vec();
            assert_eq!(LoginAnswer::read(&mut Reader(&payload)), Ok(said));
            payload
        };
        let payload = |refusal_sqlstate| {
            of(LoginAnswer {
                refusal_sqlstate,
                ..said
            })
        };
        let (request, answer) = Answer::parse(&payload(b"28000")).unwrap();
        assert_eq!(
            (request, answer.role_limit, answer.database_limit),
            (7, 3, -1)
        );
        assert_eq!((answer.role, answer.database), (10, 5));
        assert_eq!(answer.console, Some(Access::Show));
        assert_eq!((answer.good_until, answer.ask_backend), (9, true));
        assert_eq!(
            (answer.native, answer.max_sessions, answer.is_apart),
            (NATIVE_POOL_MODE, Some(4), true)
        );
        let marks = LoginMarks {
            any_role: false,
            any_database: true,
            memberships: true,
            role_hash: 11,
            database_hash: 12,
        };
        assert_eq!(answer.marks, marks);
        assert!(answer.superuser && answer.peer_allowed && answer.refuse_before_authentication);
        let other = of(LoginAnswer {
            refuse_first: false,
            refuse_method: true,
            ask_backend: false,
            fires_triggers: true,
            ..said
        });
        let other = Answer::parse(&other).unwrap().1;
        assert!(other.refuse_method && !other.refuse_before_authentication && !other.refuse_proof);
        assert!(other.fires_triggers && !other.ask_backend && !answer.fires_triggers);
        let report = answer.refusal.unwrap();
        assert_eq!((report.detail, report.hint), (None, Some(b"hint".to_vec())));
        assert!(Answer::parse(&payload(b"")).unwrap().1.refusal.is_none());
        for length in 0..payload(b"").len() {
            assert!(Answer::parse(&payload(b"")[..length]).is_err());
        }
    }
}
