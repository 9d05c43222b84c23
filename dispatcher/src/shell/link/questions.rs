//! What the launcher is asked about a client, and what it answers.

use super::layout::shared::*;
use super::login_changes::LoginMarks;
use super::wire::{Malformed, Reader, Writer};
use crate::protocol::Report;
use crate::shell::sys::socket::Address;
use crate::shell::tls::facts::{Facts, Names};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

/// All that a question consists of, the client's port apart.
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

/// What is asked of a client that speaks TLS.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WhoByTls {
    /// Its certificate would have been checked.
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

    /// The question; the client's port is no part of what makes a question.
    pub fn frame(&self, request: u32, address: &Address) -> Vec<u8> {
        let names = self.tls.as_ref().and_then(|tls| tls.certificate.as_ref());
        Writer::new(MSG_LOGIN_QUESTION, 0)
            .u32(request)
            .u8(u8::from(!address.is_local()))
            .u8(address.family as u8)
            .bytes(&address.bytes)
            .u16(address.port)
            .string(&self.user)
            .string(&self.database)
            .string(self.os_user.as_bytes())
            .u8(u8::from(self.tls.is_some()))
            .u8(u8::from(self.tls.as_ref().is_some_and(|tls| tls.has_ca)))
            .u8(u8::from(names.is_some()))
            .string(names.map_or(&[], |names| &names.common))
            .string(names.map_or(&[], |names| &names.distinguished))
            .finish()
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
    /// At once, too, unless a backend authenticates it: that refuses it, and other
    /// libraries' hooks hear of it. Its certificate is not this role's.
    pub refuse_method: bool,
    /// The refusal comes when the client has proved itself, in place of
    /// AuthenticationOk: its certificate is not this role's.
    pub refuse_proof: bool,
    pub peer_allowed: bool,
    /// TimestampTz up to which the answer may be given again, but for its counts of
    /// connections; 0: not at all.
    pub good_until: i64,
    /// Only a backend can say whether this role may connect: it must greet.
    pub ask_backend: bool,
    /// One must greet, for login triggers are to fire.
    pub fires_triggers: bool,
    /// Whether it becomes native: BATON_NATIVE_*.
    pub native: u32,
    /// pg_baton.pool_max_sessions for its role and database; None: no limit.
    pub max_sessions: Option<usize>,
    /// Backends that serve it serve no other role.
    pub is_apart: bool,
    /// Which changes make it old.
    pub marks: LoginMarks,
    /// Somebody has come in by it; of all its copies.
    pub has_let_in: Arc<AtomicBool>,
}

impl Answer {
    /// Connections count for it, which come and go without a word: whoever comes in
    /// must have been asked about since.
    pub fn counts_connections(&self) -> bool {
        self.role_limit >= 0 || self.database_limit >= 0
    }

    /// Somebody has come in by it.
    pub fn lets_in(&self) {
        self.has_let_in.store(true, Relaxed);
    }

    pub fn has_let_in(&self) -> bool {
        self.has_let_in.load(Relaxed)
    }

    /// The client has to prove itself, by what this answer says.
    pub fn demands_proof(&self) -> bool {
        matches!(self.method, AUTH_SCRAM | AUTH_MD5 | AUTH_PASSWORD)
    }

    /// pg_hba.conf's method is cert.
    pub fn is_by_certificate(&self) -> bool {
        self.method_name == b"cert"
    }

    /// The peer's system user may not be this role.
    pub fn is_refused_peer(&self) -> bool {
        self.method == AUTH_PEER && !self.peer_allowed
    }

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
        answer.refuse_method = refuse_when == 3;
        answer.peer_allowed = reader.string()? == b"1";
        answer.good_until = reader.i64()?;
        let greeter = reader.u8()?;
        answer.ask_backend = greeter == 1;
        answer.fires_triggers = greeter == 2;
        answer.native = u32::from(reader.u8()?);
        answer.max_sessions = usize::try_from(reader.i32()?).ok();
        answer.is_apart = reader.u8()? != 0;
        let concerns = u32::from(reader.u8()?);
        answer.marks = LoginMarks {
            any_role: concerns & CONCERNS_ANY_ROLE != 0,
            any_database: concerns & CONCERNS_ANY_DATABASE != 0,
            memberships: concerns & CONCERNS_MEMBERSHIPS != 0,
            role_hash: reader.u32()?,
            database_hash: reader.u32()?,
        };
        Ok((request, answer))
    }

    /// May there be so many of ours, beside the others that there are, within
    /// this CONNECTION LIMIT?
    pub fn fits(&self, limit: i32, others: i32, ours: usize) -> bool {
        limit < 0 || self.superuser || i64::from(others) + ours as i64 <= i64::from(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_the_header_says() {
        let of = |sqlstate: &[u8], refuse_when, greeter| {
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
                .u8(refuse_when)
                .string(b"1")
                .u64(9)
                .u8(greeter)
                .u8(1)
                .u32(4)
                .u8(1)
                .u8((CONCERNS_ANY_DATABASE | CONCERNS_MEMBERSHIPS) as u8)
                .u32(11)
                .u32(12)
                .finish();
            frame[16..].to_vec()
        };
        let payload = |sqlstate: &[u8]| of(sqlstate, 1, 1);
        let (request, answer) = Answer::parse(&payload(b"28000")).unwrap();
        assert_eq!(
            (request, answer.role_limit, answer.database_limit),
            (7, 3, -1)
        );
        assert_eq!((answer.role, answer.database), (10, 5));
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
        let other = Answer::parse(&of(b"28000", 3, 2)).unwrap().1;
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
