use super::*;
use crate::protocol::auth::test_client::{ClientAuth, Proof};
use crate::protocol::backend::{BackendDecoder, BackendMessage};
use rand::{Rng, SeedableRng};

const SCRAM: &[u8] = b"SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

/// A job that is wanted as long as the first of the two lives.
pub fn password_job(iterations: u32) -> (Arc<()>, PasswordJob) {
    let stored = String::from_utf8_lossy(SCRAM).replace("4096", &iterations.to_string());
    let alive = Arc::default();
    let job = PasswordJob {
        user: b"alice".to_vec(),
        password: Secret::new(*b"pencil"),
        verifier: Verifier::parse(stored.as_bytes()).unwrap(),
        derivation: None,
        wanted: Arc::downgrade(&alive),
    };
    (alive, job)
}

#[test]
fn a_key_is_the_same_in_slices() {
    let (_alive, mut job) = password_job(4096);
    assert!(job.step(4000).is_none());
    assert!(job.step(95).unwrap());
    let (_alive, mut job) = password_job(4095);
    assert!(!job.step(4095).unwrap());
}

fn md5() -> Vec<u8> {
    verifier::md5_encrypt(b"pencil", b"alice")
}

fn claim(method: Method, stored: Option<&[u8]>) -> Claim {
    Claim {
        user: b"alice".to_vec(),
        method,
        verifier: stored.map(<[u8]>::to_vec),
        peer_allowed: false,
        encryption_is_md5: false,
        scram_iterations: 0,
        channel_binding: None,
    }
}

fn start(method: Method, stored: Option<&[u8]>) -> (ServerAuth, Action) {
    ServerAuth::start(claim(method, stored), &MockSecret::new(*b"mock"))
}

/// Lets a client log in. Returns the last action and what the client was asked for.
fn log_in(claim: Claim, proof: Proof, chunk: usize) -> (Action, Vec<&'static str>) {
    let (mut server, mut action) = ServerAuth::start(claim, &MockSecret::new(*b"mock"));
    let mut client = ClientAuth::new(proof);
    let mut decoder = BackendDecoder::default();
    let mut answer = |send: &[u8]| {
        decoder.feed(send);
        match decoder.next_message() {
            Ok(Some(BackendMessage::Authentication(request, data))) => {
                (request, client.answer(request, &data))
            }
            other => panic!("{other:?}"),
        }
    };
    let mut asked = Vec::new();
    loop {
        let send = match action {
            Action::Send(send) => send,
            Action::VerifyPassword(mut job) => {
                assert_eq!(server.wanted(), 0);
                action = server.password_checked(job.step(u32::MAX).unwrap());
                continue;
            }
            last => {
                if let Action::Done { send } = &last {
                    assert!(send.is_empty() || answer(send).1.is_empty());
                }
                return (last, asked);
            }
        };
        let (request, bytes) = answer(&send);
        asked.push(match request {
            3 => "password",
            5 => "md5",
            10 => "sasl",
            _ => "more",
        });
        action = Action::NeedMore;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            assert!(matches!(action, Action::NeedMore));
            let take = chunk.min(rest.len()).min(server.wanted());
            let (consumed, next) = server.feed(&rest[..take]);
            assert_eq!(consumed, take);
            rest = &rest[consumed..];
            action = next;
        }
    }
}

fn with_password(password: &[u8]) -> Proof {
    Proof::Password(password.to_vec())
}

fn assert_wrong_password(action: &Action) {
    let Action::Failed(report) = action else {
        panic!("{action:?}")
    };
    assert_eq!(
        *report,
        Report::fatal(
            b"28P01",
            "password authentication failed for user \"alice\""
        )
    );
}

#[test]
fn right_password_logs_in_by_every_method_and_wrong_one_by_none() {
    let md5 = md5();
    for chunk in [1, 1000] {
        for (method, stored, asked) in [
            (Method::Scram, SCRAM, "sasl"),
            (Method::Md5, SCRAM, "sasl"),
            (Method::Md5, &md5, "md5"),
            (Method::Password, SCRAM, "password"),
            (Method::Password, &md5, "password"),
        ] {
            let (action, way) =
                log_in(claim(method, Some(stored)), with_password(b"pencil"), chunk);
            assert!(matches!(action, Action::Done { .. }), "{method:?}");
            assert_eq!(way[0], asked);
            let (action, way) = log_in(claim(method, Some(stored)), with_password(b"wrong"), chunk);
            assert_wrong_password(&action);
            assert_eq!(way[0], asked);
        }
    }
}

#[test]
fn an_unusable_verifier_looks_like_a_wrong_password() {
    let md5 = md5();
    for (method, stored) in [
        (Method::Scram, None),
        (Method::Scram, Some(&md5[..])),
        (Method::Scram, Some(&b"SCRAM-SHA-256$garbage"[..])),
        (Method::Scram, Some(&b"pencil"[..])),
        (Method::Md5, None),
        (Method::Md5, Some(&b"pencil"[..])),
        (Method::Password, None),
        (Method::Password, Some(&b"pencil"[..])),
    ] {
        let (action, asked) = log_in(claim(method, stored), with_password(b"pencil"), 1000);
        assert_wrong_password(&action);
        let expected: &[&str] = if method == Method::Password {
            &["password"]
        } else {
            &["sasl", "more"]
        };
        assert_eq!(asked, expected);
    }
    for (method, way) in [(Method::Md5, "md5"), (Method::Password, "password")] {
        let mut claim = claim(method, None);
        claim.encryption_is_md5 = true;
        let (action, asked) = log_in(claim, with_password(b"pencil"), 1000);
        assert_wrong_password(&action);
        assert_eq!(asked, [way]);
    }
}

#[test]
fn no_proof_opens_a_made_up_verifier() {
    // The stored key and the server key of a mock verifier are zeros. An attacker could know
    // the server key, but no ClientKey for the stored key is known. The login is doomed in any
    // case.
    let proof = Proof::ClientKey([0; 32]);
    let (action, _) = log_in(claim(Method::Scram, None), proof, 1000);
    assert_wrong_password(&action);
}

#[test]
fn methods_without_a_password_are_decided_at_once() {
    assert!(matches!(start(Method::Trust, None).1, Action::Done { .. }));
    let mut allowed = claim(Method::Peer, None);
    allowed.peer_allowed = true;
    let mock = MockSecret::random();
    assert!(matches!(
        ServerAuth::start(allowed, &mock).1,
        Action::Done { .. }
    ));
    for (method, text) in [
        (
            Method::Peer,
            "Peer authentication failed for user \"alice\"",
        ),
        (
            Method::Reject,
            "authentication failed for user \"alice\": host rejected",
        ),
    ] {
        let (mut auth, action) = start(method, Some(SCRAM));
        let Action::Failed(report) = action else {
            panic!()
        };
        assert_eq!(report, Report::fatal(b"28000", text));
        assert_eq!(auth.wanted(), 0);
        assert_eq!(auth.feed(b"p").0, 0);
    }
}

fn p(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    messages::sasl_response(&mut out, body);
    out
}

fn failure(method: Method, stored: &[u8], bytes: &[u8]) -> Option<(String, String)> {
    let (mut auth, _) = start(method, Some(stored));
    match auth.feed(bytes).1 {
        Action::Failed(report) => Some((
            String::from_utf8_lossy(&report.sqlstate).into_owned(),
            String::from_utf8_lossy(&report.message).into_owned(),
        )),
        Action::Close(why) => Some(("close".to_owned(), why.to_owned())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn malformed_responses_get_the_servers_answers() {
    let md5 = md5();
    let wrong = "password authentication failed for user \"alice\"";
    let too_long = |limit: u32| {
        let mut out = vec![b'p'];
        out.extend_from_slice(&(limit + 1).to_be_bytes());
        out
    };
    let mech = b"SCRAM-SHA-256\0";
    for (method, bytes, sqlstate, text) in [
        (
            Method::Password,
            p(b""),
            "08P01",
            "invalid password packet size",
        ),
        (
            Method::Password,
            p(b"pencil"),
            "08P01",
            "invalid password packet size",
        ),
        (
            Method::Password,
            p(b"pen\0cil\0"),
            "08P01",
            "invalid password packet size",
        ),
        (
            Method::Password,
            p(b"\0"),
            "28P01",
            "empty password returned by client",
        ),
        (
            Method::Password,
            b"Q".to_vec(),
            "08P01",
            "expected password response, got message type 81",
        ),
        (
            Method::Password,
            too_long(65_535),
            "close",
            "invalid message length",
        ),
        (
            Method::Password,
            b"p\0\0\0\x03".to_vec(),
            "close",
            "invalid message length",
        ),
        (Method::Md5, p(b"md5\0"), "28P01", wrong),
        (
            Method::Md5,
            p(b"x"),
            "08P01",
            "invalid password packet size",
        ),
        (
            Method::Scram,
            b"X".to_vec(),
            "08P01",
            "expected SASL response, got message type 88",
        ),
        (Method::Scram, too_long(1024), "28P01", wrong),
        (Method::Scram, p(b""), "08P01", "invalid string in message"),
        (
            Method::Scram,
            p(b"SCRAM-SHA-256"),
            "08P01",
            "invalid string in message",
        ),
        (
            Method::Scram,
            p(b"SCRAM-SHA-256-PLUS\0\0\0\0\0"),
            "08P01",
            "client selected an invalid SASL authentication mechanism",
        ),
        (
            Method::Scram,
            p(b"\0"),
            "08P01",
            "client selected an invalid SASL authentication mechanism",
        ),
        (
            Method::Scram,
            p(&[&mech[..], b"\0\0"].concat()),
            "08P01",
            "insufficient data left in message",
        ),
        (
            Method::Scram,
            p(&[&mech[..], b"\0\0\0\x05abc"].concat()),
            "08P01",
            "insufficient data left in message",
        ),
        (
            Method::Scram,
            p(&[&mech[..], b"\xff\xff\xff\xfeabc"].concat()),
            "08P01",
            "insufficient data left in message",
        ),
        (
            Method::Scram,
            p(&[&mech[..], b"\0\0\0\x01abc"].concat()),
            "08P01",
            "invalid message format",
        ),
        (
            Method::Scram,
            p(&[&mech[..], b"\xff\xff\xff\xffabc"].concat()),
            "08P01",
            "invalid message format",
        ),
        (
            Method::Scram,
            p(&[&mech[..], b"\0\0\0\0"].concat()),
            "08P01",
            "malformed SCRAM message",
        ),
        (
            Method::Scram,
            p(&[&mech[..], b"\0\0\0\x01x"].concat()),
            "08P01",
            "malformed SCRAM message",
        ),
    ] {
        let stored = if method == Method::Scram { SCRAM } else { &md5 };
        assert_eq!(
            failure(method, stored, &bytes),
            Some((sqlstate.to_owned(), text.to_owned())),
            "{method:?} {bytes:?}"
        );
    }
}

#[test]
fn sasl_without_initial_data_gets_an_empty_challenge() {
    let (mut auth, _) = start(Method::Scram, Some(SCRAM));
    let (_, action) = auth.feed(&p(b"SCRAM-SHA-256\0\xff\xff\xff\xff"));
    let Action::Send(bytes) = action else {
        panic!()
    };
    assert_eq!(bytes, b"R\0\0\0\x08\0\0\0\x0b");
    let (_, action) = auth.feed(&p(b"n,,n=,r=abc"));
    let Action::Send(bytes) = action else {
        panic!()
    };
    assert!(bytes[9..].starts_with(b"r=abc"));
}

#[test]
fn client_that_was_told_of_no_channel_binding_is_refused() {
    // An attacker has removed SCRAM-SHA-256-PLUS from the list on its way to the client.
    let refusal = |flag: &str, channel_binding: Option<Vec<u8>>| {
        let mut claim = claim(Method::Scram, Some(SCRAM));
        claim.channel_binding = channel_binding;
        let (mut auth, _) = ServerAuth::start(claim, &MockSecret::new(*b"mock"));
        let message = format!("{flag},,n=,r=abc");
        let length = (message.len() as u32).to_be_bytes();
        let chosen = [b"SCRAM-SHA-256\0", &length[..], message.as_bytes()].concat();
        match auth.feed(&p(&chosen)).1 {
            Action::Send(_) => None,
            Action::Failed(report) => Some(report),
            other => panic!("{other:?}"),
        }
    };
    let refused = Report::fatal(b"28000", "SCRAM channel binding negotiation error").with_detail(
        "The client supports SCRAM channel binding but thinks the server does not.  However, this server does support channel binding.",
    );
    let hash = || Some(vec![7; 32]);
    assert_eq!(refusal("y", hash()), Some(refused));
    // The flag is right where there is no channel binding, and a client that supports none says
    // so.
    assert_eq!(refusal("y", None), None);
    assert_eq!(refusal("n", hash()), None);
}

#[test]
fn result_without_a_request_logs_no_client_in() {
    let (mut auth, _) = start(Method::Scram, Some(SCRAM));
    let action = auth.password_checked(true);
    assert_wrong_password(&action);
}

#[test]
fn random_bytes_never_panic_and_never_log_in() {
    let mut random = rand::rngs::StdRng::seed_from_u64(20261121);
    let md5 = md5();
    for round in 0..20_000 {
        let method = [Method::Scram, Method::Md5][round % 2];
        let stored: &[u8] = if round % 4 < 2 { SCRAM } else { &md5 };
        let (mut auth, _) = start(method, Some(stored));
        for _ in 0..3 {
            let mut body: Vec<u8> = (0..random.gen_range(0..40)).map(|_| random.gen()).collect();
            if random.gen() {
                let text = b"SCRAM-SHA-256\0\0\0\0\x0bn,,n=,r=abc".to_vec();
                body = text;
            }
            if random.gen() {
                let text = b"c=biws,r=abc,p=AAAA,n,y,p=tls,,".to_vec();
                body = text;
            }
            for _ in 0..random.gen_range(0..3) {
                if let Some(byte) = body.get_mut(random.gen_range(0..40)) {
                    *byte = random.gen();
                }
            }
            let bytes = if random.gen() { p(&body) } else { body };
            assert!(!matches!(auth.feed(&bytes).1, Action::Done { .. }));
        }
    }
}
