//! What a decoder makes of bytes, for its tests and its fuzzer (fuzz/src/backend.rs). Each of
//! them includes this file.

use crate::protocol::backend::{BackendDecoder, BackendMessage, DecodeError};

/// The messages that are read when the bytes come in pieces of this size.
pub fn all(bytes: &[u8], chunk: usize) -> (Vec<BackendMessage>, Option<DecodeError>) {
    let mut decoder = BackendDecoder::default();
    let mut found = Vec::new();
    for piece in bytes.chunks(chunk) {
        decoder.feed(piece);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => found.push(message),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}
