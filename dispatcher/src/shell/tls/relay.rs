//! The relay of one client, between its TLS connection and the socketpair whose far end is
//! handed to backends; and the TLS session in it.
//!
//! The relay makes no system calls: [`Ends`] does. Its memory is bounded, because it reads
//! nothing from one end while earlier bytes wait to be written to the other: at most the
//! content of one buffer in each direction. An idle relay keeps no buffer at all; its thread
//! lends it one for each turn.
//!
//! The two directions do not wait for each other. Otherwise a client that sends much before it
//! reads would hang, which it does not over plain TCP.
//!
//! The relay ends in the ways that a backend would see on the client's own socket:
//!
//! | what happens | what follows |
//! |---|---|
//! | the client says it will send no more (close_notify), or closes its side | what it sent before is delivered, then the far end reads EOF; answers still go to the client |
//! | the client's connection is reset, or its TLS is broken | both ends are closed |
//! | the client sends much without any data, or changes its keys too often | both ends are closed |
//! | no process has the far end | earlier bytes are delivered, then close_notify and the end |

use super::Facts;
use crate::shell::sys::memory::{overwrite, Plaintext};
use crate::shell::sys::openssl_functions;
use crate::shell::sys::openssl_memory::{self, TlsSession};
use openssl::error::ErrorStack;
use openssl::ssl::{ErrorCode, ShutdownState, Ssl, SslStream};
use std::io::{self, Read, Write};

/// Bytes that one read takes, encrypted or in the clear.
const BUFFER_BYTES: usize = 32 * 1024;
/// Reads from one end in a turn, before other relays get theirs.
const READS_A_TURN: usize = 4;
/// While more than this waits to be sent to a client, the relay does not read from it. This
/// bounds what a client can make TLS answer (KeyUpdate).
const MOST_UNSENT_BYTES: usize = 4 * BUFFER_BYTES;

/// A client that has sent more than this without any data serves no purpose. The longest record
/// has fewer bytes.
const MOST_BYTES_WITHOUT_DATA: usize = 20 * 1024;
/// Changes of keys (KeyUpdate) that a client may cause at once. One that requests a change of the
/// relay's keys counts twice. Each message has 27 bytes and costs 10 us, twice that with a request.
const SPARE_KEY_CHANGES: usize = 128;
/// For this much data the client may cause one more change. Ciphers need a change after
/// gigabytes.
const DATA_FOR_A_KEY_CHANGE: usize = 16 * 1024;

/// Both ends of the relay. No call waits.
pub trait Ends {
    fn read_client(&mut self, into: &mut [u8]) -> io::Result<usize>;
    fn write_client(&mut self, bytes: &[u8]) -> io::Result<usize>;
    fn read_backend(&mut self, into: &mut [u8]) -> io::Result<usize>;
    fn write_backend(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// The client will send no more.
    fn end_backend(&mut self);
}

/// Buffers that all relays of a thread use in turn.
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
    /// No process has the far end any more: the remaining bytes are sent.
    Closing,
}

/// The result of a turn.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    Going,
    /// The handshake is over.
    Secured(Box<Facts>),
    /// Both ends are to be closed. Has the reason if it is for the log.
    Over(Option<String>),
}

/// The events for which the relay waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wants {
    pub client_in: bool,
    pub client_out: bool,
    pub backend_in: bool,
    pub backend_out: bool,
}

/// The relay; see the module.
pub struct Relay {
    secure: Secure,
    stage: Stage,
    /// Bytes of the client that the handshake may still take.
    bytes_left: u64,
    /// Bytes that the client has sent since the last data.
    bytes_without_data: usize,
    /// Bytes of data that the client has sent.
    data_bytes: usize,
    /// How many changes of keys the client may still cause.
    key_changes_left: usize,
    /// Decrypted bytes of the client that the far end has not taken.
    to_backend: Plaintext,
    /// `secure` may hold more bytes, because the far end took no more.
    has_undelivered: bool,
    client_ended: bool,
}

impl Relay {
    /// The handshake may take this many bytes of the client; 0: no limit.
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
            data_bytes: 0,
            key_changes_left: SPARE_KEY_CHANGES,
            to_backend: Plaintext::default(),
            has_undelivered: false,
            client_ended: false,
        }
    }

    /// Prefetches the relay's memory before its turn.
    pub fn prefetch(&self) {
        self.secure.prefetch();
    }

    pub fn is_in_handshake(&self) -> bool {
        self.stage == Stage::Handshake
    }

    /// Bytes of memory that the relay keeps between its turns.
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

    /// The client has sent these bytes before the relay existed.
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

    /// The client is readable or writable, or the far end is writable.
    pub fn client_turn(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> Turn {
        self.with_output(buffers, |relay, buffers| match relay.stage {
            Stage::Handshake => relay.read_handshake(ends, buffers),
            _ => relay.carry_up(ends, buffers),
        })
    }

    /// The far end is readable, or the client is writable.
    pub fn backend_turn(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> Turn {
        self.with_output(buffers, |relay, buffers| relay.carry_down(ends, buffers))
    }

    /// Lends OpenSSL a buffer for output, unless it has one of its own with bytes in it.
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
            // The buffer now belongs to the relay, and is no larger than its content.
            buffers.output = Vec::with_capacity(2 * BUFFER_BYTES);
            output.shrink_to_fit();
        }
        result
    }

    /// Sends the pending output; false if the connection is gone.
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
            // Bytes that came along with the end of the handshake count as bytes of the login.
            Turn::Going if is_too_much => {
                let why =
                    "could not accept SSL connection: too much was sent before authentication";
                Turn::Over(Some(why.into()))
            }
            // The client may have sent data already.
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
        // After a failure the output is an alert.
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

    /// Carries bytes from the client to the far end, as long as the far end takes them.
    fn carry_up(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> Turn {
        if !self.flush(ends) {
            return Turn::Over(None);
        }
        if !self.deliver_rest(ends) {
            return Turn::Going;
        }
        // What an earlier turn has read.
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
            let data_before = self.data_bytes;
            self.secure.lend(&mut buffers.wire, length);
            let delivered = self.deliver(ends, buffers);
            self.secure.give_back(&mut buffers.wire);
            if self.bytes_without_data > MOST_BYTES_WITHOUT_DATA && delivered == Ok(true) {
                let why = "SSL error: the client sends much, and no data";
                return Turn::Over(Some(why.into()));
            }
            // Short records cost as much as long ones.
            let is_mostly_data = self.data_bytes - data_before >= length / 2;
            match delivered {
                Ok(true) if !is_drained && is_mostly_data => {}
                Ok(_) => return Turn::Going,
                Err(turn) => return turn,
            }
        }
        Turn::Going
    }

    /// Writes the bytes that the far end has not taken yet; false if some are left.
    fn deliver_rest(&mut self, ends: &mut impl Ends) -> bool {
        if self.to_backend.is_empty() {
            return true;
        }
        match ends.write_backend(self.to_backend.bytes()) {
            Ok(length) => self.to_backend.passed_on(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // No process will read them. What the far end has written may still be read.
            Err(_) => self.to_backend = Plaintext::default(),
        }
        self.to_backend.is_empty()
    }

    /// Decrypts all input and passes it on. False if the far end takes no more, or the client
    /// will send no more.
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
                        // An alert tells the client.
                        self.flush(ends);
                        return Err(Turn::Over(Some(format!("SSL error: {why}"))));
                    }
                };
                match came {
                    Came::Data(more) => length += more,
                    Came::KeyChange if self.key_changes_left > 0 => self.key_changes_left -= 1,
                    Came::KeyChange => {
                        overwrite(&mut buffers.clear[..length]);
                        let why = "SSL error: the client changes its keys too often";
                        return Err(Turn::Over(Some(why.into())));
                    }
                    Came::Nothing | Came::End => break,
                }
            }
            if length > 0 {
                self.count_data(length);
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
            // TLS itself may have an answer to send.
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

    fn count_data(&mut self, length: usize) {
        let before = self.data_bytes / DATA_FOR_A_KEY_CHANGE;
        self.data_bytes += length;
        let earned = self.data_bytes / DATA_FOR_A_KEY_CHANGE - before;
        self.key_changes_left = SPARE_KEY_CHANGES.min(self.key_changes_left + earned);
        self.bytes_without_data = 0;
    }

    /// Ends the direction to the far end once all bytes have been delivered.
    fn client_ends(&mut self, ends: &mut impl Ends) {
        self.client_ended = true;
        if self.to_backend.is_empty() {
            ends.end_backend();
        }
    }

    /// Carries bytes from the far end to the client, as long as the client takes them.
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
                // A reset: the far end was closed before all had been read there.
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
// The server's side of one TLS session: bytes in and out of memory, no I/O. All that OpenSSL
// writes stays in `output` until the caller takes it, so OpenSSL never waits for room.

/// The memory that OpenSSL reads and writes.
#[derive(Default)]
struct Wire {
    /// Unread input is `input[at..end]`.
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

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    Data(usize),
    /// More encrypted bytes are needed.
    Nothing,
    /// The client has changed its keys, or OpenSSL has changed its own as the client requested
    /// (KeyUpdate). If no input follows, the result is `Nothing` instead.
    KeyChange,
    /// The client says that it will send no more (close_notify).
    End,
}

/// The TLS session.
pub struct Secure {
    session: TlsSession<Wire>,
}

impl Secure {
    /// `open` makes OpenSSL's session.
    pub fn new(open: impl FnOnce() -> Result<Ssl, ErrorStack>) -> Result<Secure, String> {
        let open = || open().inspect(|ssl| openssl_functions::return_after_key_change(ssl));
        TlsSession::new(open, Wire::default())
            .map(|session| Secure { session })
            .map_err(|error| format!("could not initialize SSL connection: {error}"))
    }

    /// Gives the session the first `length` bytes of this buffer as input, in exchange for its
    /// own buffer. All earlier input must have been read.
    pub fn lend(&mut self, buffer: &mut Vec<u8>, length: usize) {
        let wire = self.session.stream().get_mut();
        debug_assert!(wire.at == wire.end && length <= buffer.len());
        std::mem::swap(&mut wire.input, buffer);
        (wire.at, wire.end) = (0, length);
    }

    /// Takes the buffer back. Input that is left in it is copied.
    pub fn give_back(&mut self, buffer: &mut Vec<u8>) {
        let wire = self.session.stream().get_mut();
        let rest = wire.input[wire.at..wire.end].to_vec();
        (wire.at, wire.end) = (0, rest.len());
        *buffer = std::mem::replace(&mut wire.input, rest);
    }

    /// Prefetches the session's memory before it is used.
    pub fn prefetch(&self) {
        self.session.prefetch();
    }

    /// The bytes to be sent.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.session.stream().get_mut().output
    }

    /// Continues the handshake. Returns what it has shown, once it is over. An error leaves an
    /// alert in the output.
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
        // OpenSSL would allocate and free a buffer to find this out.
        if self.is_exhausted() {
            return Ok(Came::Nothing);
        }
        match self.session.work(|stream| stream.ssl_read(into)) {
            Ok(0) => Ok(Came::Nothing),
            Ok(length) => Ok(Came::Data(length)),
            Err(error) => match error.code() {
                ErrorCode::WANT_READ | ErrorCode::WANT_WRITE if self.is_exhausted() => {
                    Ok(Came::Nothing)
                }
                ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Ok(Came::KeyChange),
                ErrorCode::ZERO_RETURN => Ok(Came::End),
                _ => Err(why(&error)),
            },
        }
    }

    /// True if OpenSSL has taken all input and returned all data in it. It reports other kinds
    /// of records (the end, an alert) as it takes them (ssl3_read_bytes); with reading ahead it
    /// would not, but that is off.
    fn is_exhausted(&mut self) -> bool {
        let stream = self.session.stream();
        let wire = stream.get_ref();
        wire.at == wire.end && stream.ssl().pending() == 0
    }

    /// Encrypts all of the bytes: the output always has room.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let written = self.session.work(|stream| stream.ssl_write(bytes));
            let length = written.map_err(|error| why(&error))?;
            bytes = &bytes[length..];
        }
        Ok(())
    }

    /// Sends close_notify, once.
    pub fn end(&mut self) {
        let stream = self.session.stream();
        if !stream.get_shutdown().contains(ShutdownState::SENT) {
            // An error does not matter: the connection is closed anyway.
            let _ = self.session.work(SslStream::shutdown);
        }
    }
}

/// The error's text for the log.
fn why(error: &openssl::ssl::Error) -> String {
    match error.ssl_error() {
        Some(stack) => super::context::reason(stack),
        None => "EOF detected".to_owned(),
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
