//! What a starting backend sends: to the decoder, and to what waits for it to start.

use crate::pieces::lengths;
use crate::protocol::backend::{BackendMessage, DecodeError};
use crate::protocol::opening::{BackendStart, Start};

#[path = "../../dispatcher/src/protocol/backend_decoded.rs"]
mod decoder;

fn decoded(input: &[u8], piece: usize) -> (Vec<BackendMessage>, Option<DecodeError>) {
    decoder::all(input, piece.min(input.len().max(1)))
}

fn started(input: &[u8], piece: usize) -> Start {
    let (mut start, packet) = BackendStart::begin(b"alice", b"db", &[]);
    assert!(!packet.is_empty());
    for part in input.chunks(piece.min(input.len().max(1))) {
        match start.feed(part) {
            Start::NeedsMore => {}
            known => return known,
        }
    }
    Start::NeedsMore
}

pub fn run(input: &[u8]) {
    let [one, some, all] = lengths(input).map(|piece| decoded(input, piece));
    assert_eq!(one, all);
    assert_eq!(some, all);
    let [one, some, all] = lengths(input).map(|piece| started(input, piece));
    assert_eq!(one, all);
    assert_eq!(some, all);
}
