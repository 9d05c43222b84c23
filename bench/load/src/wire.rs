//! The protocol's frames, without I/O: bytes in, events out; and the messages that a client
//! sends.
//!
//! Of the server's messages only the frames are followed: an answer ends with ReadyForQuery.
//! The text of an error is kept.

/// Protocol 3.0 (PostgreSQL: libpq/pqcomm.h, PG_PROTOCOL(3, 0)).
const PROTOCOL_VERSION: u32 = 3 << 16;
/// A frame's type and length.
const HEADER_BYTES: usize = 5;
/// Bytes of an error that are kept.
const ERROR_BYTES_MAX: usize = 1024;

/// Follows the frames of one session across reads of any size.
#[derive(Default)]
pub struct Reader {
    header: [u8; HEADER_BYTES],
    header_length: usize,
    /// Bytes of the present frame's body that are still to come.
    body_left: usize,
    error: Vec<u8>,
}

/// The content of a read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// ReadyForQuery came.
    pub ready: bool,
    /// An error came: its fields, NULs as spaces.
    pub error: Option<String>,
    /// Something came that this program does not know: a demand for a password, or no
    /// PostgreSQL message.
    pub unexpected: Option<String>,
}

impl Reader {
    /// Takes the bytes that were read.
    pub fn take(&mut self, mut bytes: &[u8]) -> Seen {
        let mut seen = Seen::default();
        while !bytes.is_empty() {
            if self.header_length < HEADER_BYTES {
                let count = bytes.len().min(HEADER_BYTES - self.header_length);
                self.header[self.header_length..self.header_length + count]
                    .copy_from_slice(&bytes[..count]);
                self.header_length += count;
                bytes = &bytes[count..];
                if self.header_length < HEADER_BYTES {
                    break;
                }
                let [_, a, b, c, d] = self.header;
                let length = u32::from_be_bytes([a, b, c, d]) as usize;
                let Some(body) = length.checked_sub(4) else {
                    seen.unexpected = Some(format!("a message of length {length}"));
                    return seen;
                };
                self.body_left = body;
            }
            let count = bytes.len().min(self.body_left);
            self.body(&bytes[..count], &mut seen);
            bytes = &bytes[count..];
            self.body_left -= count;
            if self.body_left == 0 {
                self.end_of_frame(&mut seen);
            }
        }
        seen
    }

    fn body(&mut self, part: &[u8], seen: &mut Seen) {
        match self.header[0] {
            b'E' => {
                let room = ERROR_BYTES_MAX.saturating_sub(self.error.len());
                self.error.extend_from_slice(&part[..part.len().min(room)]);
            }
            // AuthenticationOk is four zero bytes; any other value demands something.
            b'R' if part.iter().any(|&byte| byte != 0) => {
                seen.unexpected =
                    Some("a demand for authentication; only trust is known".to_owned());
            }
            _ => {}
        }
    }

    fn end_of_frame(&mut self, seen: &mut Seen) {
        match self.header[0] {
            b'Z' => seen.ready = true,
            b'E' => {
                let text = String::from_utf8_lossy(&self.error).replace('\0', " ");
                seen.error = Some(text);
                self.error.clear();
            }
            _ => {}
        }
        self.header_length = 0;
    }
}

/// The startup packet.
pub fn startup(user: &str, database: &str) -> Vec<u8> {
    let mut body = PROTOCOL_VERSION.to_be_bytes().to_vec();
    for text in [
        "user",
        user,
        "database",
        database,
        "application_name",
        "baton-load",
    ] {
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    let mut packet = (body.len() as u32 + 4).to_be_bytes().to_vec();
    packet.extend_from_slice(&body);
    packet
}

/// Terminate.
pub const FAREWELL: &[u8] = b"X\0\0\0\x04";

/// Query.
pub fn query(out: &mut Vec<u8>, text: &str) {
    message(out, b'Q', &[text.as_bytes(), b"\0"]);
}

/// Parse, without parameter types.
pub fn parse(out: &mut Vec<u8>, name: &str, text: &str) {
    message(
        out,
        b'P',
        &[name.as_bytes(), b"\0", text.as_bytes(), b"\0\0\0"],
    );
}

/// Bind the unnamed portal (parameters and results as text), Describe, Execute.
pub fn bind_and_execute(out: &mut Vec<u8>, statement: &str, values: &[&str]) {
    let mut parameters = (values.len() as u16).to_be_bytes().to_vec();
    for value in values {
        parameters.extend_from_slice(&(value.len() as u32).to_be_bytes());
        parameters.extend_from_slice(value.as_bytes());
    }
    // No portal name; no formats of parameters or results.
    message(
        out,
        b'B',
        &[b"\0", statement.as_bytes(), b"\0\0\0", &parameters, b"\0\0"],
    );
    message(out, b'D', &[b"P\0"]);
    message(out, b'E', &[b"\0\0\0\0\0"]);
}

/// Sync.
pub fn sync(out: &mut Vec<u8>) {
    message(out, b'S', &[]);
}

fn message(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.push(kind);
    out.extend_from_slice(&(length as u32 + 4).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::{bind_and_execute, parse, query, sync, Reader, Seen};

    const ANSWER: &[u8] = b"T\0\0\0\x06\0\0D\0\0\0\x06\0\0C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I";

    #[test]
    fn an_answer_in_pieces_of_any_size_is_ready_once() {
        for size in 1..=ANSWER.len() {
            let mut reader = Reader::default();
            let seen: Vec<Seen> = ANSWER.chunks(size).map(|part| reader.take(part)).collect();
            let (last, others) = seen.split_last().expect("has parts");
            assert!(last.ready, "pieces of {size}");
            assert!(
                others.iter().all(|one| *one == Seen::default()),
                "pieces of {size}"
            );
        }
    }

    #[test]
    fn an_error_is_kept() {
        let mut reader = Reader::default();
        let seen = reader.take(b"E\0\0\0\x0eSERROR\0\0\0\0Z\0\0\0\x05I");
        assert!(seen.ready);
        assert!(seen.error.is_some_and(|text| text.starts_with("SERROR")));
    }

    #[test]
    fn a_password_is_not_known() {
        let seen = Reader::default().take(b"R\0\0\0\x08\0\0\0\x0a");
        assert!(seen.unexpected.is_some());
        assert_eq!(
            Reader::default().take(b"R\0\0\0\x08\0\0\0\0"),
            Seen::default()
        );
    }

    #[test]
    fn nonsense_does_not_end_in_a_panic() {
        assert!(Reader::default().take(b"HTTP\0\0\0\0").unexpected.is_none());
        assert!(Reader::default().take(b"Z\0\0\0\x01").unexpected.is_some());
    }

    #[test]
    fn messages_say_their_own_length() {
        let mut out = Vec::new();
        parse(&mut out, "S_1", "SELECT $1::int4");
        bind_and_execute(&mut out, "S_1", &["17"]);
        sync(&mut out);
        query(&mut out, "COMMIT");
        let mut rest = &out[..];
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            kinds.push(rest[0]);
            let length = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
            rest = &rest[length + 1..];
        }
        assert_eq!(kinds, b"PBDESQ");
    }
}
