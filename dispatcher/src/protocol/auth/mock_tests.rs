//! The login of a user that does not exist costs the same work as that of a user that does, so
//! the time of a refusal tells nothing.

use super::server::{Action, Claim, Method, ServerAuth};
use super::verifier::{MockSecret, ScramVerifier};
use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use std::time::{Duration, Instant};

/// The iterations of newly set passwords.
const ITERATIONS: u32 = 20_000;

/// The time of a refusal: the client knows the protocol, but not the password.
fn refused(method: Method, verifier: Option<&[u8]>, is_md5: bool) -> Duration {
    let claim = Claim {
        user: b"alice".to_vec(),
        method,
        verifier: verifier.map(<[u8]>::to_vec),
        peer_allowed: false,
        encryption_is_md5: is_md5,
        scram_iterations: ITERATIONS,
        channel_binding: None,
    };
    let mock = MockSecret::new(*b"mock");
    let begun = Instant::now();
    let (mut server, mut action) = ServerAuth::start(claim, &mock);
    loop {
        let mut answer = vec![b'p'];
        let mut body = Vec::new();
        match action {
            Action::Send(bytes) => {
                let text = String::from_utf8_lossy(&bytes[9..]);
                if bytes[8] == 10 {
                    let first = b"n,,n=,r=abcdef";
                    body.extend_from_slice(b"SCRAM-SHA-256\0");
                    body.extend_from_slice(&(first.len() as u32).to_be_bytes());
                    body.extend_from_slice(first);
                } else if bytes[8] == 11 {
                    let nonce = text.strip_prefix("r=").unwrap();
                    let nonce = nonce.split(',').next().unwrap();
                    let proof = STANDARD.encode([7; 32]);
                    body.extend_from_slice(format!("c=biws,r={nonce},p={proof}").as_bytes());
                } else {
                    body.extend_from_slice(b"md5a3556571e93b0d20722ba62be61e8c2d\0");
                }
            }
            Action::VerifyPassword(mut job) => {
                action = server.password_checked(job.step(u32::MAX).unwrap());
                continue;
            }
            Action::Failed(report) => {
                assert_eq!(report.sqlstate, *b"28P01");
                return begun.elapsed();
            }
            other => panic!("{other:?}"),
        }
        answer.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        answer.extend_from_slice(&body);
        let mut rest = answer.as_slice();
        action = Action::NeedMore;
        while matches!(action, Action::NeedMore) {
            let (consumed, next) = server.feed(&rest[..server.wanted().min(rest.len())]);
            rest = &rest[consumed..];
            action = next;
        }
    }
}

/// The shortest times of many, which no other program on the machine has disturbed. Runs
/// `times`, and again as often, up to `ROUNDS` times, while one of the two is more than twice
/// the other.
fn shortest(known: &[u8], method: Method, is_md5: bool, times: u32) -> (Duration, Duration) {
    const ROUNDS: u32 = 20;
    let (mut with, mut without) = (Duration::MAX, Duration::MAX);
    for round in 1..=ROUNDS * times {
        with = with.min(refused(method, Some(known), is_md5));
        without = without.min(refused(method, None, is_md5));
        if round % times == 0 && with < 2 * without && without < 2 * with {
            break;
        }
    }
    (with, without)
}

#[test]
fn login_of_an_absent_user_costs_the_same_work() {
    let made: ScramVerifier = MockSecret::random().verifier(b"alice");
    let key = || STANDARD.encode(rand::random::<[u8; 32]>());
    let (stored, server) = (key(), key());
    let scram = format!("SCRAM-SHA-256$4096:{}${stored}:{server}", made.salt).into_bytes();
    let of_now = format!("SCRAM-SHA-256${ITERATIONS}:{}${stored}:{server}", made.salt).into_bytes();
    let md5 = b"md500000000000000000000000000000000";
    for (method, known, is_md5, times) in [
        (Method::Scram, &scram[..], false, 3_000),
        (Method::Md5, &scram[..], false, 3_000),
        (Method::Md5, &md5[..], true, 3_000),
        (Method::Password, &of_now[..], false, 20),
        (Method::Password, &md5[..], true, 3_000),
    ] {
        let (with, without) = shortest(known, method, is_md5, times);
        println!("{method:?}: {with:?} {without:?}");
        assert!(with < 2 * without && without < 2 * with, "{method:?}");
    }
}
