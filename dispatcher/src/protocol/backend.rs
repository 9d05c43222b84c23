//! What a backend sends while it starts: a bounded decoder.
//!
//! The dispatcher opens backends as a client. Between the startup packet and the first
//! ReadyForQuery only these messages may come. Anything else, or a message longer than
//! [`MAX_MESSAGE`], is an error: the peer is then no PostgreSQL server, or in an unknown state.

use super::report::{Report, Severity};

/// The longest message that is taken, its type byte included: a reported parameter may be a
/// long setting (search_path, from 18 on).
pub const MAX_MESSAGE: usize = 1 << 20;
const HEADER: usize = 5;
/// The longest text without a length, as the postmaster makes it.
const MOST_TEXT: usize = 1_000;

/// A message from a starting backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendMessage {
    /// What the server demands, or the result (0: the client is authenticated); and the data
    /// that belong to it.
    Authentication(u32, Vec<u8>),
    /// A reported parameter.
    ParameterStatus,
    /// The key with which this backend's query can be cancelled.
    BackendKeyData,
    /// The backend is ready; the transaction status.
    ReadyForQuery(u8),
    /// An error, which ends a starting backend.
    Error(Report),
    /// A notice or warning.
    Notice(Report),
    /// The server speaks an older minor version than requested.
    NegotiateProtocolVersion,
}

/// The bytes are nothing that a starting backend sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A type that may not come.
    #[error("unexpected message type {0} from a starting backend")]
    UnexpectedType(u8),
    /// Too short or too long.
    #[error("message of type {0} from a starting backend has an invalid length")]
    BadLength(u8),
    /// The server cannot start a process: its postmaster says so in a message without a length
    /// (report_fork_failure_to_client, postmaster.c).
    #[error("{0}")]
    NoProcess(String),
    /// The body does not fit the type.
    #[error("message of type {0} from a starting backend is malformed")]
    Malformed(u8),
}

/// Holds bytes that have been fed and not yet been taken.
#[derive(Debug, Default)]
pub struct BackendDecoder {
    held: Vec<u8>,
    taken: usize,
}

impl BackendDecoder {
    /// Adds bytes. [`BackendDecoder::next_message`] must be called until it returns None, or
    /// the held bytes grow.
    pub fn feed(&mut self, input: &[u8]) {
        self.held.drain(..self.taken);
        self.taken = 0;
        self.held.extend_from_slice(input);
    }

    /// The next message, or None if more bytes are needed.
    pub fn next_message(&mut self) -> Result<Option<BackendMessage>, DecodeError> {
        let held = self.held.get(self.taken..).unwrap_or_default();
        let Some(&message_type) = held.first() else {
            return Ok(None);
        };
        if !b"RSKZENv".contains(&message_type) {
            return Err(DecodeError::UnexpectedType(message_type));
        }
        let Some(Ok(word)) = held.get(1..HEADER).map(<[u8; 4]>::try_from) else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(word) as usize;
        if !(4..MAX_MESSAGE).contains(&length) {
            // The text, and the NUL behind it.
            let text = &held[1..held.len().min(1 + MOST_TEXT)];
            let end = text.iter().position(|byte| *byte == 0);
            return match (message_type, end) {
                (b'E', Some(end)) if end > 0 => Err(no_process(&text[..end])),
                (b'E', None) if text.len() < MOST_TEXT => Ok(None),
                _ => Err(DecodeError::BadLength(message_type)),
            };
        }
        let Some(body) = held.get(HEADER..length + 1) else {
            return Ok(None);
        };
        let message = decode(message_type, body).ok_or(DecodeError::Malformed(message_type))?;
        self.taken += length + 1;
        Ok(Some(message))
    }
}

fn no_process(text: &[u8]) -> DecodeError {
    DecodeError::NoProcess(String::from_utf8_lossy(text).trim_end().to_owned())
}

fn decode(message_type: u8, body: &[u8]) -> Option<BackendMessage> {
    let mut reader = Reader(body);
    let message = match message_type {
        b'R' => BackendMessage::Authentication(reader.word()?, reader.rest().to_vec()),
        b'S' => {
            reader.string()?;
            reader.string()?;
            BackendMessage::ParameterStatus
        }
        b'K' => {
            reader.word()?;
            // Four bytes, or more from protocol 3.2 on.
            if !(4..=256).contains(&reader.rest().len()) {
                return None;
            }
            BackendMessage::BackendKeyData
        }
        b'Z' => BackendMessage::ReadyForQuery(reader.byte()?),
        b'E' => BackendMessage::Error(report(&mut reader, Severity::Error)?),
        b'N' => BackendMessage::Notice(report(&mut reader, Severity::Notice)?),
        b'v' => {
            reader.rest();
            BackendMessage::NegotiateProtocolVersion
        }
        _ => return None,
    };
    reader.0.is_empty().then_some(message)
}

fn report(reader: &mut Reader<'_>, severity: Severity) -> Option<Report> {
    let mut report = Report::new(severity, b"XX000", "");
    report.place = Box::default();
    loop {
        let code = reader.byte()?;
        if code == 0 {
            return Some(report);
        }
        let text = reader.string()?.to_vec();
        match code {
            b'V' => {
                report.severity = match text.as_slice() {
                    b"FATAL" | b"PANIC" => Severity::Fatal,
                    b"ERROR" => Severity::Error,
                    b"WARNING" => Severity::Warning,
                    _ => severity,
                }
            }
            b'C' => report.sqlstate = text.try_into().ok()?,
            b'M' => report.message = text,
            b'D' => report.detail = Some(text),
            b'H' => report.hint = Some(text),
            b'F' => report.place.file = text,
            b'L' => report.place.line = text,
            b'R' => report.place.routine = text,
            _ => {}
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*word))
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(text)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
#[path = "backend_tests.rs"]
pub mod tests;
