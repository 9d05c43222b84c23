//! How much of a client's input must be there before a backend reads it.
//!
//! A function of the bytes alone. A client that has sent half a message occupies no backend. A
//! backend reads the input when it contains a complete message that makes the server answer or
//! ends the session, or a message too large to be awaited in the socket. What follows that
//! message does not matter: a session that is being served may stop in the middle of its next
//! message as well.
//!
//! The extension applies the same rule first (client_input.c).

use super::frontend::limit_of;

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A backend may read the input.
    Ready,
    /// A backend may not read the input before this many bytes are there.
    Needs(usize),
    /// All messages are complete, and none of them is answered before a Sync or Flush. A
    /// backend that has nothing else to do may run them, as the server would. `needed`: as in
    /// `Needs`.
    Pauses { needed: usize, messages: u32 },
}

/// `available` bytes are in the socket, and `bytes` are the first of them. `may_begin` is
/// BATON_MESSAGE_MAY_BEGIN.
pub fn look(bytes: &[u8], available: usize, may_begin: usize) -> Start {
    let (mut at, mut messages) = (0, 0);
    loop {
        if available >= may_begin || (at < available && at >= bytes.len()) {
            return Start::Ready;
        }
        let Some(&message_type) = bytes.get(at) else {
            return match at {
                0 => Start::Needs(1),
                _ => Start::Pauses {
                    needed: at + 1,
                    messages,
                },
            };
        };
        let Ok(limit) = limit_of(message_type) else {
            // The server reports the error, and ends the session.
            return Start::Ready;
        };
        if message_type == b'X' {
            return Start::Ready;
        }
        let Some(word) = bytes.get(at + 1..at + 5) else {
            if at + 5 <= available {
                return Start::Ready;
            }
            return Start::Needs(at + 5);
        };
        let length = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        if length < 4 || length > limit {
            return Start::Ready;
        }
        let end = at + 1 + length as usize;
        if end > available {
            return Start::Needs(end.min(may_begin));
        }
        match message_type {
            // Parse, Bind, Describe, Execute, Close: without a Sync or Flush behind them there
            // is no answer.
            b'P' | b'B' | b'D' | b'E' | b'C' => {
                at = end;
                messages += 1;
            }
            _ => return Start::Ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAY_BEGIN: usize = 32_768;

    fn message(message_type: u8, body: usize) -> Vec<u8> {
        let mut out = vec![message_type];
        out.extend_from_slice(&(body as u32 + 4).to_be_bytes());
        out.resize(5 + body, b' ');
        out
    }

    fn all(bytes: &[u8]) -> Start {
        look(bytes, bytes.len(), MAY_BEGIN)
    }

    #[test]
    fn query_is_read_when_whole_and_not_before() {
        let query = message(b'Q', 20);
        for sent in 0..query.len() {
            let needs = match sent {
                0 => 1,
                1..5 => 5,
                _ => query.len(),
            };
            assert_eq!(all(&query[..sent]), Start::Needs(needs), "{sent}");
        }
        assert_eq!(all(&query), Start::Ready);
    }

    #[test]
    fn batch_is_read_when_one_of_its_messages_is_answered() {
        let parts = [message(b'P', 9), message(b'B', 12), message(b'E', 5)];
        let batch = parts.concat();
        let pauses = Start::Pauses {
            needed: batch.len() + 1,
            messages: 3,
        };
        assert_eq!(all(&batch), pauses);
        assert_eq!(all(&batch[..batch.len() - 1]), Start::Needs(batch.len()));
        for end in [b'S', b'H', b'Q', b'F'] {
            let whole = [batch.clone(), message(end, 0)].concat();
            assert_eq!(all(&whole), Start::Ready);
            assert_eq!(all(&whole[..whole.len() - 1]), Start::Needs(whole.len()));
        }
    }

    #[test]
    fn what_ends_the_session_is_read_at_once() {
        for end in [&b"X"[..], b"?", b"Q\0\0\0\x03", b"S\xff\xff\xff\xff"] {
            assert_eq!(all(end), Start::Ready, "{end:?}");
            assert_eq!(all(&[&message(b'P', 3), end].concat()), Start::Ready);
        }
    }

    #[test]
    fn what_is_too_large_begins() {
        let large = message(b'Q', 1_000_000);
        assert_eq!(all(&large[..100]), Start::Needs(MAY_BEGIN));
        assert_eq!(all(&large[..MAY_BEGIN - 1]), Start::Needs(MAY_BEGIN));
        assert_eq!(all(&large[..MAY_BEGIN]), Start::Ready);
        // The whole message need not be there.
        assert_eq!(look(&large[..5], MAY_BEGIN, MAY_BEGIN), Start::Ready);
    }

    #[test]
    fn data_of_a_failed_copy_is_taken_when_whole() {
        assert_eq!(all(&message(b'd', 50)[..20]), Start::Needs(55));
        for left in [b'd', b'c', b'f'] {
            assert_eq!(all(&message(left, 50)), Start::Ready);
        }
    }
}
