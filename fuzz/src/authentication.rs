//! What a stranger answers while he logs in. The password is one that nobody
//! knows: whatever he says, he does not get in.

use crate::pieces::choice;
use crate::protocol::auth::server::{Action, Claim, Method, ServerAuth};
use crate::protocol::auth::verifier::MockSecret;
use base64::engine::general_purpose::STANDARD;
use base64::Engine;

/// Stands in the input for what only this exchange has: the server's part of the
/// nonce, which is as long.
const NONCE: &[u8; 24] = b"NNNNNNNNNNNNNNNNNNNNNNNN";

fn claim(choice: u8) -> Claim {
    let key = || STANDARD.encode(rand::random::<[u8; 32]>());
    let scram = format!("SCRAM-SHA-256$2:c2FsdHNhbHQ=${}:{}", key(), key());
    let md5 = format!("md5{:032x}", rand::random::<u128>());
    let verifier = match choice >> 2 & 3 {
        0 => None,
        1 => Some(md5),
        2 => Some("no verifier at all".into()),
        _ => Some(scram),
    };
    Claim {
        user: b"alice".to_vec(),
        method: [Method::Scram, Method::Md5, Method::Password, Method::Scram]
            [usize::from(choice & 3)],
        verifier: verifier.map(String::into_bytes),
        peer_allowed: false,
        encryption_is_md5: choice & 16 != 0,
        scram_iterations: 0,
        channel_binding: (choice & 32 != 0).then(|| vec![7; 32]),
    }
}

/// Puts the nonce that the server has sent where the input has its place.
fn fill_in(rest: &mut [u8], sent: &[u8]) {
    let Some(at) = sent.windows(2).position(|two| two == b"r=") else {
        return;
    };
    let nonce: Vec<u8> = sent[at + 2..]
        .iter()
        .copied()
        .take_while(|byte| *byte != b',')
        .collect();
    let Some(own) = nonce
        .len()
        .checked_sub(NONCE.len())
        .map(|from| &nonce[from..])
    else {
        return;
    };
    while let Some(at) = rest.windows(NONCE.len()).position(|part| part == NONCE) {
        rest[at..at + NONCE.len()].copy_from_slice(own);
        if own == NONCE {
            return;
        }
    }
}

pub fn run(data: &[u8]) {
    let (choice, input) = choice(data);
    let mut input = input.to_vec();
    let (mut auth, mut action) = ServerAuth::start(claim(choice), &MockSecret::new(*b"mock"));
    let piece = if choice & 64 != 0 { 3 } else { usize::MAX };
    let mut at = 0;
    loop {
        match action {
            Action::NeedMore => {}
            Action::Send(bytes) => fill_in(&mut input[at..], &bytes),
            Action::VerifyPassword(mut job) => {
                assert_eq!(auth.wanted(), 0);
                assert!(job.is_wanted());
                let Some(result) = job.step(10_000) else {
                    return;
                };
                action = auth.password_checked(result);
                continue;
            }
            Action::Done { .. } => panic!("nobody knows this password"),
            Action::Failed(report) => {
                let known = matches!(&report.sqlstate, b"28000" | b"28P01" | b"08P01" | b"0A000");
                assert!(known, "{report}");
                return;
            }
            Action::Close(_) => return,
        }
        let wanted = auth.wanted();
        assert!((1..=65_536).contains(&wanted), "{wanted}");
        let take = wanted.min(piece).min(input.len() - at);
        if take == 0 {
            return;
        }
        let (consumed, next) = auth.feed(&input[at..at + take]);
        assert!(consumed <= take && consumed > 0);
        at += consumed;
        action = next;
    }
}
