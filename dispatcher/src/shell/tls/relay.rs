//! One client's relay, between its TLS connection and the socketpair whose far end is
//! handed to backends; and the TLS session in it.
//!
//! Free of system calls: [`Ends`] does them. Memory is bounded, because nothing
//! is read from one end while something read before waits to be written to the
//! other: at most one buffer's content a direction. A relay that has nothing to
//! do keeps no buffer at all; whoever runs it lends it his.
//!
//! The two directions do not wait for each other, or a client that sends much
//! before it reads would hang where it does not over plain TCP.
//!
//! Ends, as a backend would see them on the client's own socket:
//!
//! | what happens | what follows |
//! |---|---|
//! | the client says it will send no more (close_notify), or closes its side | what it sent before is delivered, then the far end reads EOF; answers still go to the client |
//! | the client's connection is reset, or its TLS is broken | both ends are closed |
//! | the client sends much that is no data | both ends are closed |
//! | nobody holds the far end any more | what was written before is delivered, then close_notify and the end |

use super::Facts;
use crate::shell::sys::memory::{overwrite, Plaintext};
use crate::shell::sys::openssl_functions;
use crate::shell::sys::openssl_memory::{self, TlsSession};
use openssl::error::ErrorStack;
use openssl::ssl::{ErrorCode, ShutdownState, Ssl, SslStream};
use std::io::{self, Read, Write};

/// Bytes of the wire, or in the clear, that are read at once.
const BUFFER_BYTES: usize = 32 * 1024;
/// Reads from one end before others get their turn.
const READS_A_TURN: usize = 4;
/// Beyond that much to be sent to it, no client is listened to: what it makes
/// TLS answer (KeyUpdate) must have a bound.
const MOST_UNSENT_BYTES: usize = 4 * BUFFER_BYTES;

/// A client that has sent so much without any data is of no use to anybody: the
/// longest record has fewer bytes, and a change of keys 27, which costs some 20 us.
const MOST_BYTES_WITHOUT_DATA: usize = 20 * 1024;

/// Both ends; nothing here waits.
pub trait Ends {
    fn read_client(&mut self, into: &mut [u8]) -> io::Result<usize>;
    fn write_client(&mut self, bytes: &[u8]) -> io::Result<usize>;
    fn read_backend(&mut self, into: &mut [u8]) -> io::Result<usize>;
    fn write_backend(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// The client will send no more.
    fn end_backend(&mut self);
}

/// What all relays of a thread use in turn.
pub struct Buffers {
    wire: Vec<u8>,
    clear: Vec<u8>,
    output: Vec<u8>,
}

impl Buffers {
    pub fn new() -> Buffers {
        Buffers {
            wire: vec![0; BUFFER_BYTES],
            clear: vec![0; BUFFER_BYTES],
            output: Vec::with_capacity(2 * BUFFER_BYTES),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Handshake,
    Open,
    /// Nobody holds the far end: what is left is sent.
    Closing,
}

/// What came of a turn.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    Going,
    /// The handshake is over.
    Secured(Box<Facts>),
    /// Both ends are to be closed. Why, if that is for the log.
    Over(Option<String>),
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wants {
    pub client_in: bool,
    pub client_out: bool,
    pub backend_in: bool,
    pub backend_out: bool,
}

/// See the module.
pub struct Relay {
    secure: Secure,
    stage: Stage,
    /// Of a handshake, that may still come.
    bytes_left: u64,
    /// That the client has sent since data last came of it.
    bytes_without_data: usize,
    /// From the client, in the clear, not taken yet.
    to_backend: Plaintext,
    /// More may lie in `secure`: the far end took no more.
    has_undelivered: bool,
    client_ended: bool,
}

impl Relay {
    /// Its handshake may take so many bytes of the client's; 0 is no limit.
    pub fn new(secure: Secure, most_bytes: u64) -> Relay {
        Relay {
            secure,
            stage: Stage::Handshake,
            bytes_left: if most_bytes == 0 {
                u64::MAX
            } else {
                most_bytes
            },
            bytes_without_data: 0,
            to_backend: Plaintext::default(),
            has_undelivered: false,
            client_ended: false,
        }
    }

    /// It soon has a turn.
    pub fn prefetch(&self) {
        self.secure.prefetch();
    }

    pub fn is_in_handshake(&self) -> bool {
        self.stage == Stage::Handshake
    }

    /// Bytes of memory that it keeps between its turns.
    #[allow(dead_code, reason = "what tests and the fuzzer hold it to")]
    pub fn held(&mut self) -> usize {
        self.to_backend.capacity() + self.secure.output().capacity()
    }

    pub fn is_closing(&self) -> bool {
        self.stage == Stage::Closing
    }

    pub fn wants(&mut self) -> Wants {
        let unsent = self.secure.output().len();
        Wants {
            client_in: self.stage != Stage::Closing
                && !self.client_ended
                && self.to_backend.is_empty()
                && unsent <= MOST_UNSENT_BYTES,
            client_out: unsent > 0,
            backend_in: self.stage == Stage::Open && unsent == 0,
            backend_out: !self.to_backend.is_empty(),
        }
    }

    /// Something has come from the client before there was a relay.
    pub fn begin_with(
        &mut self,
        bytes: &[u8],
        ends: &mut impl Ends,
        buffers: &mut Buffers,
    ) -> Turn {
        self.with_output(buffers, |relay, buffers| {
            buffers.wire[..bytes.len()].copy_from_slice(bytes);
            relay.secure.lend(&mut buffers.wire, bytes.len());
            let turn = relay.handshake(ends);
            relay.secure.give_back(&mut buffers.wire);
            turn
        })
    }

    /// The client can be read from or written to, or the far end takes more.
    pub fn client_turn(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> Turn {
        self.with_output(buffers, |relay, buffers| match relay.stage {
            Stage::Handshake => relay.read_handshake(ends, buffers),
            _ => relay.carry_up(ends, buffers),
        })
    }

    /// The far end can be read from, or the client takes more.
    pub fn backend_turn(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> Turn {
        self.with_output(buffers, |relay, buffers| relay.carry_down(ends, buffers))
    }

    /// Lends OpenSSL a buffer to write to, unless it has one of its own, with
    /// something in it.
    fn with_output(
        &mut self,
        buffers: &mut Buffers,
        turn: impl FnOnce(&mut Relay, &mut Buffers) -> Turn,
    ) -> Turn {
        let lent = self.secure.output().is_empty();
        if lent {
            *self.secure.output() = std::mem::take(&mut buffers.output);
        }
        let result = turn(self, buffers);
        let output = self.secure.output();
        if output.is_empty() {
            buffers.output = std::mem::take(output);
        } else if lent {
            // Its own from here on, and no larger than it must be.
            buffers.output = Vec::with_capacity(2 * BUFFER_BYTES);
            output.shrink_to_fit();
        }
        result
    }

    /// Sends what there is; false if the connection is gone.
    fn flush(&mut self, ends: &mut impl Ends) -> bool {
        let output = self.secure.output();
        if output.is_empty() {
            return true;
        }
        match ends.write_client(output) {
            Ok(length) if length == output.len() => output.clear(),
            Ok(length) => {
                output.drain(..length);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        true
    }

    fn read_handshake(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> Turn {
        let length = match ends.read_client(&mut buffers.wire) {
            Ok(0) => {
                let why = "could not accept SSL connection: EOF detected";
                return Turn::Over(Some(why.into()));
            }
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return if self.flush(ends) {
                    Turn::Going
                } else {
                    Turn::Over(None)
                };
            }
            Err(error) => {
                return Turn::Over(Some(format!("could not accept SSL connection: {error}")));
            }
        };
        let is_too_much = self.bytes_left < length as u64;
        self.bytes_left = self.bytes_left.saturating_sub(length as u64);
        self.secure.lend(&mut buffers.wire, length);
        let turn = self.handshake(ends);
        self.secure.give_back(&mut buffers.wire);
        match turn {
            // What came with the end of its handshake is counted at the login.
            Turn::Going if is_too_much => {
                let why =
                    "could not accept SSL connection: too much was sent before authentication";
                Turn::Over(Some(why.into()))
            }
            // The client may have gone on already.
            Turn::Secured(facts) => {
                self.has_undelivered = true;
                match self.carry_up(ends, buffers) {
                    Turn::Going => Turn::Secured(facts),
                    over => over,
                }
            }
            turn => turn,
        }
    }

    fn handshake(&mut self, ends: &mut impl Ends) -> Turn {
        let result = self.secure.accept();
        // In the case of a failure that is an alert.
        let alive = self.flush(ends);
        match result {
            Err(why) => Turn::Over(Some(format!("could not accept SSL connection: {why}"))),
            _ if !alive => Turn::Over(None),
            Ok(None) => Turn::Going,
            Ok(Some(facts)) => {
                self.stage = Stage::Open;
                Turn::Secured(Box::new(facts))
            }
        }
    }

    /// From the client to the far end, as long as that takes it.
    fn carry_up(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> Turn {
        if !self.flush(ends) {
            return Turn::Over(None);
        }
        if !self.deliver_rest(ends) {
            return Turn::Going;
        }
        // Of what was read in an earlier turn.
        if self.has_undelivered {
            match self.deliver(ends, buffers) {
                Ok(true) => {}
                Ok(false) => return Turn::Going,
                Err(turn) => return turn,
            }
        }
        if self.client_ended {
            ends.end_backend();
            return Turn::Going;
        }
        for _ in 0..READS_A_TURN {
            if self.secure.output().len() > MOST_UNSENT_BYTES {
                return Turn::Going;
            }
            let length = match ends.read_client(&mut buffers.wire) {
                Ok(0) => {
                    self.client_ends(ends);
                    return Turn::Going;
                }
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Turn::Going,
                Err(_) => return Turn::Over(None),
            };
            let is_drained = length < buffers.wire.len();
            self.bytes_without_data += length;
            self.secure.lend(&mut buffers.wire, length);
            let delivered = self.deliver(ends, buffers);
            self.secure.give_back(&mut buffers.wire);
            if self.bytes_without_data > MOST_BYTES_WITHOUT_DATA && delivered == Ok(true) {
                let why = "SSL error: the client sends much, and no data";
                return Turn::Over(Some(why.into()));
            }
            match delivered {
                Ok(true) if !is_drained => {}
                Ok(_) => return Turn::Going,
                Err(turn) => return turn,
            }
        }
        Turn::Going
    }

    /// What the far end has not taken yet; false if it still does not.
    fn deliver_rest(&mut self, ends: &mut impl Ends) -> bool {
        if self.to_backend.is_empty() {
            return true;
        }
        match ends.write_backend(self.to_backend.bytes()) {
            Ok(length) => self.to_backend.passed_on(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Nobody will read it; what was written to us may still be read.
            Err(_) => self.to_backend = Plaintext::default(),
        }
        self.to_backend.is_empty()
    }

    /// Decrypts all that is here and passes it on; false if the far end takes
    /// no more, or there will be no more.
    fn deliver(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> Result<bool, Turn> {
        self.has_undelivered = true;
        loop {
            let mut length = 0;
            let mut came = Came::Nothing;
            while length < buffers.clear.len() {
                came = match self.secure.read(&mut buffers.clear[length..]) {
                    Ok(came) => came,
                    Err(why) => {
                        overwrite(&mut buffers.clear[..length]);
                        // An alert says so to the client.
                        self.flush(ends);
                        return Err(Turn::Over(Some(format!("SSL error: {why}"))));
                    }
                };
                match came {
                    Came::Data(more) => length += more,
                    Came::Nothing | Came::End => break,
                }
            }
            if length > 0 {
                self.bytes_without_data = 0;
                let bytes = &mut buffers.clear[..length];
                match ends.write_backend(bytes) {
                    Ok(taken) if taken == length => {}
                    Ok(taken) => self.to_backend.keep(&bytes[taken..]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.to_backend.keep(bytes);
                    }
                    Err(_) => {}
                }
                overwrite(bytes);
            }
            // TLS itself may have answered.
            if !self.flush(ends) {
                return Err(Turn::Over(None));
            }
            if came == Came::End {
                self.has_undelivered = false;
                self.client_ends(ends);
                return Ok(false);
            }
            if !self.to_backend.is_empty() {
                return Ok(false);
            }
            if came == Came::Nothing {
                self.has_undelivered = false;
                return Ok(true);
            }
        }
    }

    /// Not before all of it has been delivered.
    fn client_ends(&mut self, ends: &mut impl Ends) {
        self.client_ended = true;
        if self.to_backend.is_empty() {
            ends.end_backend();
        }
    }

    /// From the far end to the client, as long as that takes it.
    fn carry_down(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> Turn {
        for _ in 0..READS_A_TURN {
            if !self.flush(ends) {
                return Turn::Over(None);
            }
            match self.stage {
                _ if !self.secure.output().is_empty() => return Turn::Going,
                Stage::Handshake => return Turn::Going,
                Stage::Closing => return Turn::Over(None),
                Stage::Open => {}
            }
            match ends.read_backend(&mut buffers.clear) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Turn::Going,
                // Reset: it was closed before it had read all.
                Ok(0) | Err(_) => {
                    self.stage = Stage::Closing;
                    self.secure.end();
                }
                Ok(length) => {
                    let bytes = &mut buffers.clear[..length];
                    let written = self.secure.write(bytes);
                    overwrite(bytes);
                    if let Err(why) = written {
                        return Turn::Over(Some(format!("SSL error: {why}")));
                    }
                    if length < buffers.clear.len() {
                        return if self.flush(ends) {
                            Turn::Going
                        } else {
                            Turn::Over(None)
                        };
                    }
                }
            }
        }
        if self.flush(ends) {
            Turn::Going
        } else {
            Turn::Over(None)
        }
    }
}

// ---- TLS session ----------------------------------------------------------
//
// One TLS session, server's side: bytes of the wire in and out of memory, no
// I/O. All that OpenSSL writes lies in `output` until somebody takes it, so
// that nothing it does ever has to wait for room.

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
                openssl_functions::forget_exchange_keys(ssl);
                let facts = Facts::of(ssl);
                openssl_functions::empty_shown_certificates(ssl);
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
}

/// As the log has it.
fn why(error: &openssl::ssl::Error) -> String {
    match error.ssl_error() {
        Some(stack) => super::context::reason(stack),
        None => "EOF detected".to_owned(),
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
