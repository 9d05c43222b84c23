//! Frames between the processes of one product: encoding and decoding.
//!
//! Free of I/O. Frames come from our own extension, yet every length is
//! checked: a backend gone wrong must not take the dispatcher with it.

use super::layout::shared::*;

/// Most bytes of payload in one frame.
pub const MAX_PAYLOAD: usize = (FRAME_MAX - FRAME_HEADER_SIZE) as usize;

/// A payload ended before what it should hold.
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
    /// Takes a packet apart.
    pub fn parse(packet: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        let mut reader = Reader(packet);
        let kind = reader.u16()?;
        let flags = reader.u16()?;
        let length = reader.u32()?;
        let session = reader.u64()?;
        if length as usize != reader.0.len() || u32::from(flags) & !FRAME_MORE != 0 {
            return Err(Malformed);
        }
        Ok(Frame {
            kind: u32::from(kind),
            more: u32::from(flags) & FRAME_MORE != 0,
            session,
            payload: reader.0,
        })
    }
}

/// Reads a payload from its front.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        if self.0.len() < length {
            return Err(Malformed);
        }
        let (head, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.bytes(N)?.try_into().map_err(|_| Malformed)
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

    /// There is no more.
    pub fn end(&self) -> Result<(), Malformed> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Malformed),
        }
    }

    /// u32 length and bytes.
    pub fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.bytes(length as usize)
    }
}

/// Writes one frame.
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn new(kind: u32, session: u64) -> Writer {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&(kind as u16).to_ne_bytes());
        bytes.extend_from_slice(&[0; 6]);
        bytes.extend_from_slice(&session.to_ne_bytes());
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

    pub fn bytes(mut self, value: &[u8]) -> Writer {
        self.0.extend_from_slice(value);
        self
    }

    pub fn string(self, value: &[u8]) -> Writer {
        self.u32(value.len() as u32).bytes(value)
    }

    /// A string or, if None, NULL (rows of views only).
    pub fn nullable(self, value: Option<&[u8]>) -> Writer {
        match value {
            Some(value) => self.string(value),
            None => self.u32(u32::MAX),
        }
    }

    /// The frame. Callers keep payloads below [`MAX_PAYLOAD`].
    pub fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() - FRAME_HEADER_SIZE as usize;
        debug_assert!(length <= MAX_PAYLOAD);
        self.0[4..8].copy_from_slice(&(length as u32).to_ne_bytes());
        self.0
    }
}

/// A frame without payload, on the stack: for the hot path.
pub fn bare(kind: u32, session: u64) -> [u8; FRAME_HEADER_SIZE as usize] {
    let mut frame = [0; FRAME_HEADER_SIZE as usize];
    frame[..2].copy_from_slice(&(kind as u16).to_ne_bytes());
    frame[8..].copy_from_slice(&session.to_ne_bytes());
    frame
}

/// Name NUL value NUL ...: the pairs of a REPORTED value.
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

/// Is it whole pairs, and nothing else?
pub fn are_pairs(bytes: &[u8]) -> bool {
    let ends = bytes.iter().filter(|byte| **byte == 0).count();
    bytes.last().is_none_or(|last| *last == 0) && ends % 2 == 0
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
        let bytes = Writer::new(MSG_PUT, 7).u32(100).bytes(b"x").finish();
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
}
