//! One TLS session, server's side: bytes of the wire in and out of memory, no
//! I/O. All that OpenSSL writes lies in `output` until somebody takes it, so
//! that nothing it does ever has to wait for room.

use super::facts::Facts;
use crate::shell::sys::tls_session::TlsSession;
use crate::shell::sys::{exchange_keys, openssl_memory, shown_certificates};
use openssl::error::ErrorStack;
use openssl::ssl::{ErrorCode, ShutdownState, Ssl, SslStream};
use std::io::{self, Read, Write};

/// Where OpenSSL reads and writes.
#[derive(Default)]
struct Wire {
    /// What has come and is not read yet is `input[at..end]`.
    input: Vec<u8>,
    at: usize,
    end: usize,
    output: Vec<u8>,
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = into.len().min(self.end - self.at);
        if length == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        into[..length].copy_from_slice(&self.input[self.at..self.at + length]);
        openssl_memory::given(&into[..length]);
        self.at += length;
        Ok(length)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What reading came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    Data(usize),
    /// More of the wire is needed.
    Nothing,
    /// The client says that it will send no more (close_notify).
    End,
}

/// The session.
pub struct Secure {
    session: TlsSession<Wire>,
}

impl Secure {
    /// `open` has OpenSSL make one.
    pub fn new(open: impl FnOnce() -> Result<Ssl, ErrorStack>) -> Result<Secure, String> {
        TlsSession::new(open, Wire::default())
            .map(|session| Secure { session })
            .map_err(|error| format!("could not initialize SSL connection: {error}"))
    }

    /// Gives it bytes of the wire, the first `length` of this buffer, for which
    /// it gives back what it has. All from before must have been read.
    pub fn lend(&mut self, buffer: &mut Vec<u8>, length: usize) {
        let wire = self.session.stream().get_mut();
        debug_assert!(wire.at == wire.end && length <= buffer.len());
        std::mem::swap(&mut wire.input, buffer);
        (wire.at, wire.end) = (0, length);
    }

    /// Takes the buffer back; what is left in it is kept apart.
    pub fn give_back(&mut self, buffer: &mut Vec<u8>) {
        let wire = self.session.stream().get_mut();
        let rest = wire.input[wire.at..wire.end].to_vec();
        (wire.at, wire.end) = (0, rest.len());
        *buffer = std::mem::replace(&mut wire.input, rest);
    }

    /// It is soon to be worked with.
    pub fn prefetch(&self) {
        self.session.prefetch();
    }

    /// What is to be sent.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.session.stream().get_mut().output
    }

    /// Goes on with the handshake; what it has shown once it is over. An error
    /// leaves an alert in the output.
    pub fn accept(&mut self) -> Result<Option<Facts>, String> {
        match self.session.work(SslStream::accept) {
            Ok(()) => {
                let ssl = self.session.stream().ssl();
                exchange_keys::forget(ssl);
                let facts = Facts::of(ssl);
                shown_certificates::empty(ssl);
                facts.map(Some)
            }
            Err(error) => match error.code() {
                ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Ok(None),
                _ => Err(why(&error)),
            },
        }
    }

    pub fn read(&mut self, into: &mut [u8]) -> Result<Came, String> {
        // To be told so by OpenSSL would take it a buffer, made and freed.
        if self.is_exhausted() {
            return Ok(Came::Nothing);
        }
        match self.session.work(|stream| stream.ssl_read(into)) {
            Ok(0) => Ok(Came::Nothing),
            Ok(length) => Ok(Came::Data(length)),
            Err(error) => match error.code() {
                ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Ok(Came::Nothing),
                ErrorCode::ZERO_RETURN => Ok(Came::End),
                _ => Err(why(&error)),
            },
        }
    }

    /// OpenSSL has taken all that has come, and given all data of it. What another
    /// kind of record comes to (the end, an alert) it says as it takes that
    /// (ssl3_read_bytes); reading ahead, where it would not, is off.
    fn is_exhausted(&mut self) -> bool {
        let stream = self.session.stream();
        let wire = stream.get_ref();
        wire.at == wire.end && stream.ssl().pending() == 0
    }

    /// Takes all of it: there is always room in the output.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let written = self.session.work(|stream| stream.ssl_write(bytes));
            let length = written.map_err(|error| why(&error))?;
            bytes = &bytes[length..];
        }
        Ok(())
    }

    /// Says that nothing more will come (close_notify), once.
    pub fn end(&mut self) {
        let stream = self.session.stream();
        if !stream.get_shutdown().contains(ShutdownState::SENT) {
            // Of no consequence: the connection is closed anyway.
            let _ = self.session.work(SslStream::shutdown);
        }
    }

    /// It has nothing to do for a while.
    pub fn rest(&mut self) {
        self.session.rest();
    }

    #[allow(dead_code, reason = "for tests and the fuzzer")]
    pub fn is_at_rest(&self) -> bool {
        self.session.is_at_rest()
    }
}

/// As the log has it.
fn why(error: &openssl::ssl::Error) -> String {
    match error.ssl_error() {
        Some(stack) => super::context::reason(stack),
        None => "EOF detected".to_owned(),
    }
}
