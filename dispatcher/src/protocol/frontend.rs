//! What a client sends after its startup packet, as far as the dispatcher reads it: one
//! authentication response at a time, and the skipped request of a session that has waited too
//! long.
//!
//! Both readers consume nothing past the present message (or request), and both hold a bounded
//! number of bytes: the skipper keeps five at most.

use super::report::Report;
use zeroize::Zeroizing;

/// PQ_SMALL_MESSAGE_LIMIT of libpq/libpq.h.
const SMALL_MESSAGE_LIMIT: u32 = 10_000;
/// PQ_LARGE_MESSAGE_LIMIT of libpq/libpq.h: MaxAllocSize - 1.
const LARGE_MESSAGE_LIMIT: u32 = 0x3fff_fffe;
const HEADER: usize = 5;

/// The result of feeding a [`ResponseReader`].
#[derive(Debug, PartialEq, Eq)]
pub enum Response {
    /// More bytes are needed.
    NeedMore,
    /// The body of one `p` message, without type and length.
    Message(Vec<u8>),
    /// A message of another type than `p`; nothing after its type was read.
    WrongType(u8),
    /// A length that `pq_getmessage` (pqcomm.c) would refuse.
    BadLength,
}

/// Reads one `p` message, of at most `limit` (the value of its length word).
#[derive(Debug)]
pub struct ResponseReader {
    limit: u32,
    /// Overwritten when it is no longer needed, as it may be a password.
    held: Zeroizing<Vec<u8>>,
}

impl ResponseReader {
    /// A reader for messages whose length word is at most `limit`.
    pub fn new(limit: u32) -> ResponseReader {
        ResponseReader {
            limit,
            held: Zeroizing::default(),
        }
    }

    /// How many bytes may be read without reading past the message.
    pub fn wanted(&self) -> usize {
        match self.length() {
            None => HEADER - self.held.len(),
            Some(length) => (length as usize + 1).saturating_sub(self.held.len()),
        }
    }

    fn length(&self) -> Option<u32> {
        let word = self.held.get(1..HEADER)?;
        Some(u32::from_be_bytes(word.try_into().ok()?))
    }

    /// Takes the bytes that it can use. Returns their number, and the result. After any result
    /// except [`Response::NeedMore`] the reader is ready for the next message. A wrong type is
    /// found without the length, as in stock.
    pub fn feed(&mut self, input: &[u8]) -> (usize, Response) {
        let mut consumed = 0;
        loop {
            if let Some(&message_type) = self.held.first() {
                if message_type != b'p' {
                    self.held.clear();
                    return (consumed, Response::WrongType(message_type));
                }
            }
            if let Some(length) = self.length() {
                if length < 4 || length > self.limit {
                    self.held.clear();
                    return (consumed, Response::BadLength);
                }
                if self.held.len() == length as usize + 1 {
                    let body = self.held[HEADER..].to_vec();
                    self.held = Zeroizing::default();
                    return (consumed, Response::Message(body));
                }
            }
            let take = self.wanted().min(input.len() - consumed);
            if take == 0 {
                return (consumed, Response::NeedMore);
            }
            self.take(&input[consumed..consumed + take]);
            consumed += take;
        }
    }

    /// Like extend_from_slice, which would leave a copy behind when the vector grows.
    fn take(&mut self, bytes: &[u8]) {
        let length = self.held.len() + bytes.len();
        if length > self.held.capacity() {
            let room = length.max(2 * self.held.capacity());
            let mut larger = Zeroizing::new(Vec::with_capacity(room));
            larger.extend_from_slice(&self.held);
            self.held = larger;
        }
        self.held.extend_from_slice(bytes);
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEnd {
    /// A simple Query was skipped.
    Query,
    /// A FunctionCall was skipped.
    FunctionCall,
    /// The Sync of an extended-protocol batch was skipped.
    Sync,
    /// Terminate was skipped: the session is over.
    Terminate,
}

/// Why the requests cannot be distinguished any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipError {
    /// Not a message type: send this report and close (SocketBackend, tcop/postgres.c).
    Unknown(Report),
    /// A length out of bounds: stock logs "invalid message length" and closes without a
    /// message.
    BadLength,
}

/// Skips one request of a client, so that an error can answer it and the session continues in
/// step.
///
/// One request is what stock would skip if it raised an error at its first message: a Query or
/// FunctionCall alone; after any message of the extended protocol everything up to Sync,
/// whatever the types (`ignore_till_sync` in PostgresMain), except that Terminate ends the
/// session at once. COPY messages outside of a COPY are ignored, as in stock, and so is a Flush
/// with nothing before it: neither has an answer.
///
/// Stock sends the error of a batch at once, not with the Sync: the client may have sent a
/// Flush and wait for the error before it sends its Sync.
#[derive(Debug, Default)]
pub struct RequestSkipper {
    header: [u8; HEADER],
    header_held: usize,
    body_left: usize,
    extended: bool,
    told: bool,
    /// The next byte is the first one of a message's body.
    body_begins: bool,
    drops_unnamed: bool,
}

impl RequestSkipper {
    /// The skipper stands before the first byte of a message.
    pub fn new() -> RequestSkipper {
        RequestSkipper::default()
    }

    /// True if part of a request, or of any message, has been consumed.
    pub fn in_request(&self) -> bool {
        self.header_held > 0 || self.extended
    }

    /// True once, when a batch has begun: its error is due.
    pub fn error_is_due(&mut self) -> bool {
        self.extended && !std::mem::replace(&mut self.told, true)
    }

    /// The request's error has already been due, and is not to be sent at its end.
    pub fn told(&self) -> bool {
        self.told
    }

    /// The request would have dropped the unnamed statement before it failed: it has a Parse of
    /// the unnamed statement (exec_parse_message), or is a Query (exec_simple_query).
    pub fn drops_unnamed(&self) -> bool {
        self.drops_unnamed
    }

    /// How many bytes may be read without reading past the request.
    pub fn wanted(&self) -> usize {
        if self.header_held < HEADER {
            HEADER - self.header_held
        } else {
            self.body_left
        }
    }

    /// Consumes bytes up to the end of the request, and returns their number. If a request
    /// ended and the number is less than the input, another request follows. After an end the
    /// skipper stands before the next request.
    pub fn feed(&mut self, input: &[u8]) -> Result<(usize, Option<RequestEnd>), SkipError> {
        let mut consumed = 0;
        loop {
            if self.header_held < HEADER {
                let Some(&byte) = input.get(consumed) else {
                    return Ok((consumed, None));
                };
                consumed += 1;
                self.header[self.header_held] = byte;
                self.header_held += 1;
                if self.header_held == 1 {
                    limit_of(byte)?;
                }
                if self.header_held < HEADER {
                    continue;
                }
                let [message_type, a, b, c, d] = self.header;
                let length = u32::from_be_bytes([a, b, c, d]);
                if length < 4 || length > limit_of(message_type)? {
                    return Err(SkipError::BadLength);
                }
                self.body_left = length as usize - 4;
                self.body_begins = true;
            }
            let take = self.body_left.min(input.len() - consumed);
            if take > 0 && std::mem::take(&mut self.body_begins) {
                self.drops_unnamed |= self.header[0] == b'P' && input[consumed] == 0;
            }
            consumed += take;
            self.body_left -= take;
            if self.body_left > 0 {
                return Ok((consumed, None));
            }
            self.header_held = 0;
            if let Some(end) = self.message_passed(self.header[0]) {
                self.extended = false;
                return Ok((consumed, Some(end)));
            }
        }
    }

    fn message_passed(&mut self, message_type: u8) -> Option<RequestEnd> {
        match message_type {
            b'X' => Some(RequestEnd::Terminate),
            b'S' => Some(RequestEnd::Sync),
            b'Q' if !self.extended => {
                self.drops_unnamed = true;
                Some(RequestEnd::Query)
            }
            b'F' if !self.extended => Some(RequestEnd::FunctionCall),
            b'P' | b'B' | b'C' | b'D' | b'E' => {
                self.extended = true;
                None
            }
            _ => None,
        }
    }
}

/// The limits of SocketBackend (tcop/postgres.c).
pub fn limit_of(message_type: u8) -> Result<u32, SkipError> {
    match message_type {
        b'Q' | b'F' | b'B' | b'P' | b'd' => Ok(LARGE_MESSAGE_LIMIT),
        b'X' | b'C' | b'D' | b'E' | b'H' | b'S' | b'c' | b'f' => Ok(SMALL_MESSAGE_LIMIT),
        other => Err(SkipError::Unknown(Report::fatal(
            b"08P01",
            format!("invalid frontend message type {other}"),
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(message_type: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![message_type];
        out.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        out.extend_from_slice(body);
        out
    }

    fn batch(types: &[u8]) -> Vec<u8> {
        types.iter().flat_map(|t| message(*t, b"body")).collect()
    }

    fn ends(input: &[u8], chunk: usize) -> Vec<(usize, RequestEnd)> {
        let mut skipper = RequestSkipper::new();
        let mut found = Vec::new();
        let mut position = 0;
        for piece in input.chunks(chunk) {
            let mut rest = piece;
            loop {
                let (consumed, end) = skipper.feed(rest).unwrap();
                position += consumed;
                rest = &rest[consumed..];
                match end {
                    Some(end) => found.push((position, end)),
                    None => break,
                }
            }
            assert!(rest.is_empty());
        }
        found
    }

    #[test]
    fn a_request_is_what_stock_would_skip() {
        for (types, expected) in [
            (&b"Q"[..], vec![(1, RequestEnd::Query)]),
            (b"F", vec![(1, RequestEnd::FunctionCall)]),
            (b"S", vec![(1, RequestEnd::Sync)]),
            (b"X", vec![(1, RequestEnd::Terminate)]),
            (b"PBDES", vec![(5, RequestEnd::Sync)]),
            (b"PQFS", vec![(4, RequestEnd::Sync)]),
            (b"PBX", vec![(3, RequestEnd::Terminate)]),
            (b"dcfQ", vec![(4, RequestEnd::Query)]),
            (b"HQ", vec![(2, RequestEnd::Query)]),
            (b"HPHS", vec![(4, RequestEnd::Sync)]),
            (b"PBEH", vec![]),
            (
                b"QPSFX",
                vec![
                    (1, RequestEnd::Query),
                    (3, RequestEnd::Sync),
                    (4, RequestEnd::FunctionCall),
                    (5, RequestEnd::Terminate),
                ],
            ),
        ] {
            let bytes = batch(types);
            let expected: Vec<_> = expected.into_iter().map(|(n, end)| (n * 9, end)).collect();
            for chunk in [1, 2, 3, 5, 7, 9, bytes.len()] {
                assert_eq!(ends(&bytes, chunk), expected, "{types:?} by {chunk}");
            }
        }
    }

    #[test]
    fn wanted_never_reaches_past_the_request() {
        let bytes = [batch(b"PBDES"), batch(b"Q")].concat();
        let mut skipper = RequestSkipper::new();
        let mut position = 0;
        loop {
            let wanted = skipper.wanted();
            assert!(wanted > 0);
            let (consumed, end) = skipper.feed(&bytes[position..position + wanted]).unwrap();
            assert_eq!(consumed, wanted);
            position += consumed;
            if end.is_some() {
                break;
            }
            assert!(skipper.in_request());
        }
        assert_eq!(position, 45);
        assert!(!skipper.in_request());
    }

    #[test]
    fn a_batchs_error_is_due_once_before_its_sync() {
        let mut skipper = RequestSkipper::new();
        assert!(!skipper.error_is_due());
        assert_eq!(skipper.feed(&batch(b"P")), Ok((9, None)));
        assert!(skipper.error_is_due() && !skipper.error_is_due());
        assert_eq!(skipper.feed(&batch(b"DH")), Ok((18, None)));
        assert!(!skipper.error_is_due() && skipper.told());
        assert_eq!(skipper.feed(&batch(b"S")), Ok((9, Some(RequestEnd::Sync))));
        assert!(skipper.told());
    }

    #[test]
    fn a_query_and_an_unnamed_parse_drop_the_unnamed_statement() {
        let (sync, bind) = (message(b'S', b""), message(b'B', b"\0\0"));
        for (request, drops) in [
            (message(b'Q', b"SELECT 1\0"), true),
            (message(b'F', b"\0\0\0\0"), false),
            ([message(b'P', b"\0\0\0\0"), sync.clone()].concat(), true),
            ([message(b'P', b"s1\0\0\0\0"), sync.clone()].concat(), false),
            (
                [bind.clone(), message(b'P', b"\0"), sync.clone()].concat(),
                true,
            ),
            ([bind, message(b'Q', b"\0"), sync].concat(), false),
        ] {
            for chunk in 1..=request.len() {
                let mut skipper = RequestSkipper::new();
                for piece in request.chunks(chunk) {
                    skipper.feed(piece).unwrap();
                }
                assert_eq!(skipper.drops_unnamed(), drops, "{request:?} by {chunk}");
            }
        }
    }

    #[test]
    fn every_first_byte_is_a_message_type_or_stocks_error() {
        for byte in 0..=255u8 {
            let result = RequestSkipper::new().feed(&[byte]);
            if b"QFXBPCDEHSdcf".contains(&byte) {
                assert_eq!(result, Ok((1, None)));
            } else {
                let text = format!("invalid frontend message type {byte}");
                assert_eq!(
                    result,
                    Err(SkipError::Unknown(Report::fatal(b"08P01", text)))
                );
            }
        }
    }

    #[test]
    fn bad_lengths_are_refused_and_huge_ones_cost_no_memory() {
        for (message_type, length, good) in [
            (b'Q', 3u32, false),
            (b'Q', 0, false),
            (b'Q', 0x8000_0000, false),
            (b'Q', LARGE_MESSAGE_LIMIT, true),
            (b'Q', LARGE_MESSAGE_LIMIT + 1, false),
            (b'S', SMALL_MESSAGE_LIMIT, true),
            (b'S', SMALL_MESSAGE_LIMIT + 1, false),
        ] {
            let mut bytes = vec![message_type];
            bytes.extend_from_slice(&length.to_be_bytes());
            let mut skipper = RequestSkipper::new();
            let result = skipper.feed(&bytes);
            if good {
                assert_eq!(result, Ok((5, None)));
                assert_eq!(skipper.wanted(), length as usize - 4);
            } else {
                assert_eq!(result, Err(SkipError::BadLength));
            }
        }
    }

    #[test]
    fn response_reader_takes_one_message_and_no_more() {
        let bytes = [message(b'p', b"secret"), b"Qnext".to_vec()].concat();
        for chunk in [1, 3, 11, bytes.len()] {
            let mut reader = ResponseReader::new(100);
            let mut position = 0;
            let body = loop {
                let end = (position + chunk).min(bytes.len());
                let (consumed, response) = reader.feed(&bytes[position..end]);
                position += consumed;
                if response != Response::NeedMore {
                    break response;
                }
            };
            assert_eq!(body, Response::Message(b"secret".to_vec()));
            assert_eq!(position, 11);
        }
        assert_eq!(
            ResponseReader::new(9).feed(&message(b'p', b"123456")),
            (5, Response::BadLength)
        );
        assert_eq!(
            ResponseReader::new(9).feed(b"p\0\0\0\x03"),
            (5, Response::BadLength)
        );
        assert_eq!(
            ResponseReader::new(9).feed(b"p\0\0\0\x04"),
            (5, Response::Message(vec![]))
        );
        for byte in (0..=255u8).filter(|byte| *byte != b'p') {
            assert_eq!(
                ResponseReader::new(9).feed(&[byte, 0]),
                (2, Response::WrongType(byte))
            );
        }
    }
}
