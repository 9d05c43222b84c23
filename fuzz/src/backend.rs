//! What a starting backend sends: to the decoder, and to the login behind it.

use crate::pieces::{choice, lengths};
use crate::protocol::auth::client::{BackendLogin, Credentials, LoginAction};
use crate::protocol::auth::Secret;
use crate::protocol::backend::{BackendMessage, DecodeError};

#[path = "../../dispatcher/src/protocol/backend_decoded.rs"]
mod decoder;

fn decoded(input: &[u8], piece: usize) -> (Vec<BackendMessage>, Option<DecodeError>) {
    decoder::all(input, piece.min(input.len().max(1)))
}

fn credentials(choice: u8) -> Credentials {
    let secret = |bit: u8, bytes: &[u8]| (choice & bit != 0).then(|| Secret::new(bytes));
    Credentials {
        client_key: secret(1, &[3; 32]),
        server_key: secret(2, &[4; 32]),
        md5: secret(4, b"md5a3556571e93b0d20722ba62be61e8c2d"),
        password: secret(8, b"pencil"),
    }
}

/// What came of it, without what is random.
fn logged_in(choice: u8, input: &[u8], piece: usize) -> String {
    let (mut login, packet) = BackendLogin::start(b"alice", b"db", &[], credentials(choice));
    assert!(!packet.is_empty());
    let mut said = String::new();
    for part in input.chunks(piece.min(input.len().max(1))) {
        let mut action = login.feed(part);
        loop {
            action = match action {
                LoginAction::NeedMore => break,
                LoginAction::Send(bytes) => {
                    said += &format!("sent {} ", bytes.len());
                    login.next_action()
                }
                LoginAction::Derive(mut job) => match job.step(20_000) {
                    Some(keys) => login.derived(&keys),
                    None => return said + "so many iterations",
                },
                LoginAction::Negotiated => login.next_action(),
                LoginAction::Ready(started) => return said + &format!("{started:?}"),
                LoginAction::Failed(failure) => return said + &format!("{failure:?}"),
            };
        }
    }
    said
}

pub fn run(data: &[u8]) {
    let (choice, input) = choice(data);
    let [one, some, all] = lengths(input).map(|piece| decoded(input, piece));
    assert_eq!(one, all);
    assert_eq!(some, all);
    let [one, some, all] = lengths(input).map(|piece| logged_in(choice, input, piece));
    assert_eq!(one, all);
    assert_eq!(some, all);
}
