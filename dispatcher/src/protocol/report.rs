//! An error or a notice as it is sent to a client.
//!
//! The fields and their order are those of `send_message_to_frontend`
//! (backend/utils/error/elog.c); context is left out. The source position is the server's in a
//! report of the server, and otherwise this program's.

use super::messages::{finish_message, put_string, start_message};
use std::panic::Location;

/// The severity, in the server's untranslated words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The request has failed; the session continues.
    Error,
    /// The session ends.
    Fatal,
    /// Not an error.
    Warning,
    /// Not an error.
    Notice,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
            Severity::Warning => "WARNING",
            Severity::Notice => "NOTICE",
        }
    }

    fn message_type(self) -> u8 {
        match self {
            Severity::Error | Severity::Fatal => b'E',
            Severity::Warning | Severity::Notice => b'N',
        }
    }
}

/// An error or notice. Texts are bytes because they may quote a client's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The severity.
    pub severity: Severity,
    /// Five characters.
    pub sqlstate: [u8; 5],
    /// The primary message.
    pub message: Vec<u8>,
    /// The detail, if there is one.
    pub detail: Option<Vec<u8>>,
    /// The hint, if there is one.
    pub hint: Option<Vec<u8>>,
    /// Where the report was made; boxed, since reports are passed on as errors.
    pub place: Box<Place>,
}

/// File, line and routine of a source. It is ignored when reports are compared.
#[derive(Debug, Clone, Eq, Default)]
pub struct Place {
    pub file: Vec<u8>,
    pub line: Vec<u8>,
    pub routine: Vec<u8>,
}

impl PartialEq for Place {
    fn eq(&self, _: &Place) -> bool {
        true
    }
}

impl Place {
    /// A place in this program. rustc knows no name of a routine, so the module's name stands
    /// for it.
    fn ours(location: &Location<'_>) -> Place {
        let path = location.file();
        let module = path.rsplit_once("src/").map_or(path, |(_, inside)| inside);
        let module = module.strip_suffix(".rs").unwrap_or(module);
        Place {
            file: path.rsplit('/').next().unwrap_or(path).into(),
            line: location.line().to_string().into_bytes(),
            routine: module.replace('/', "::").into_bytes(),
        }
    }
}

impl Report {
    /// A FATAL report: the session ends after it.
    #[track_caller]
    pub fn fatal(sqlstate: &[u8; 5], message: impl Into<Vec<u8>>) -> Report {
        Report::new(Severity::Fatal, sqlstate, message)
    }

    /// As ProcessInterrupts (postgres.c) reports pg_terminate_backend().
    #[track_caller]
    pub fn terminated() -> Report {
        Report::fatal(
            b"57P01",
            "terminating connection due to administrator command",
        )
    }

    /// As ProcessStartupPacket (postmaster.c; in 18 BackendInitialize) refuses clients of a server
    /// that stops.
    #[track_caller]
    pub fn shutting_down() -> Report {
        Report::fatal(b"57P03", "the database system is shutting down")
    }

    #[track_caller]
    /// An ERROR report: the request has failed.
    pub fn error(sqlstate: &[u8; 5], message: impl Into<Vec<u8>>) -> Report {
        Report::new(Severity::Error, sqlstate, message)
    }

    /// A report of any severity.
    #[track_caller]
    pub fn new(severity: Severity, sqlstate: &[u8; 5], message: impl Into<Vec<u8>>) -> Report {
        Report {
            severity,
            sqlstate: *sqlstate,
            message: message.into(),
            detail: None,
            hint: None,
            place: Box::new(Place::ours(Location::caller())),
        }
    }

    /// The same report with a detail.
    pub fn with_detail(mut self, detail: impl Into<Vec<u8>>) -> Report {
        self.detail = Some(detail.into());
        self
    }

    /// The same report with a hint.
    pub fn with_hint(mut self, hint: impl Into<Vec<u8>>) -> Report {
        self.hint = Some(hint.into());
        self
    }

    /// Appends the ErrorResponse or NoticeResponse message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = start_message(out, self.severity.message_type());
        let word = self.severity.word().as_bytes();
        put_field(out, b'S', word);
        put_field(out, b'V', word);
        put_field(out, b'C', &self.sqlstate);
        put_field(out, b'M', &self.message);
        if let Some(detail) = &self.detail {
            put_field(out, b'D', detail);
        }
        if let Some(hint) = &self.hint {
            put_field(out, b'H', hint);
        }
        let place = &self.place;
        for (code, text) in [
            (b'F', &place.file),
            (b'L', &place.line),
            (b'R', &place.routine),
        ] {
            if !text.is_empty() {
                put_field(out, code, text);
            }
        }
        out.push(0);
        finish_message(out, start);
    }

    /// The message as a vector of its own.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// The message for a client of protocol 2 or older: type byte, text, NUL, no length
    /// (send_message_to_frontend, "Old style").
    pub fn to_old_style_bytes(&self) -> Vec<u8> {
        let mut out = vec![self.severity.message_type()];
        out.extend_from_slice(self.severity.word().as_bytes());
        out.extend_from_slice(b":  ");
        out.extend(self.message.iter().filter(|byte| **byte != 0));
        out.extend_from_slice(b"\n\0");
        out
    }
}

fn put_field(out: &mut Vec<u8>, code: u8, text: &[u8]) {
    out.push(code);
    put_string(out, text);
}

/// Two blanks, as in elog.c: a search for "FATAL:  " in a server's log then finds this
/// program's lines, too.
impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}:  {} (SQLSTATE {})",
            self.severity.word(),
            String::from_utf8_lossy(&self.message),
            String::from_utf8_lossy(&self.sqlstate)
        )?;
        if let Some(detail) = &self.detail {
            write!(f, "; {}", String::from_utf8_lossy(detail))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_carries_all_fields_in_the_servers_order() {
        let line = line!() + 1;
        let report = Report::fatal(b"28P01", "no")
            .with_hint("h")
            .with_detail("d");
        let mut expected = vec![b'E', 0, 0, 0, 0];
        expected.extend_from_slice(b"SFATAL\0VFATAL\0C28P01\0Mno\0Dd\0Hh\0");
        let place = format!("Freport.rs\0L{line}\0Rprotocol::report\0\0");
        expected.extend_from_slice(place.as_bytes());
        expected[4] = (expected.len() - 1) as u8;
        assert_eq!(report.to_bytes(), expected);
        assert_eq!(
            Report::new(Severity::Notice, b"00000", "n").to_bytes()[0],
            b'N'
        );
    }

    #[test]
    fn a_nul_in_a_text_cannot_shift_the_fields() {
        let bytes = |text: &[u8]| Report::error(b"22023", text).to_bytes();
        assert_eq!(bytes(b"a\0b"), bytes(b"ab"));
    }

    #[test]
    fn old_style_has_no_length() {
        let report = Report::fatal(b"0A000", "bad");
        assert_eq!(report.to_old_style_bytes(), b"EFATAL:  bad\n\0");
    }
}
