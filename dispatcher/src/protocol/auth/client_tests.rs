use super::*;
use crate::protocol::auth::server::{Action, Claim, Method, ServerAuth};
use crate::protocol::auth::verifier::MockSecret;
use rand::{Rng, SeedableRng};

const SCRAM: &[u8] = b"SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

/// A backend's whole start, played by our own server side.
fn start(method: Method, stored: &[u8], credentials: Credentials, chunk: usize) -> LoginAction {
    let claim = Claim {
        user: b"alice".to_vec(),
        method,
        verifier: Some(stored.to_vec()),
        peer_allowed: false,
        encryption_is_md5: false,
        scram_iterations: 0,
        channel_binding: None,
    };
    let (mut server, mut server_action) = ServerAuth::start(claim, &MockSecret::random());
    let (mut login, packet) =
        BackendLogin::start(b"alice", b"db", &[(b"options", b"-c a=b")], credentials);
    assert!(packet[8..].starts_with(b"user\0alice\0database\0db\0options\0"));
    loop {
        let mut to_client = Vec::new();
        match server_action {
            Action::Send(bytes) => to_client = bytes,
            Action::VerifyPassword(mut job) => {
                server_action = server.password_checked(job.step(u32::MAX).unwrap());
                continue;
            }
            Action::Done { send, .. } => {
                to_client = send;
                messages::authentication_ok(&mut to_client);
                messages::parameter_status(&mut to_client, b"TimeZone", b"UTC");
                messages::parameter_status(&mut to_client, b"TimeZone", b"GMT");
                messages::backend_key_data(&mut to_client, 1, &2i32.to_be_bytes());
                messages::ready_for_query(&mut to_client, b'I');
            }
            Action::Failed(report) => report.encode(&mut to_client),
            other => panic!("{other:?}"),
        }
        let mut to_server = None;
        for piece in to_client.chunks(chunk) {
            let mut action = login.feed(piece);
            if let LoginAction::Derive(mut job) = action {
                action = login.derived(&job.step(u32::MAX).unwrap());
            }
            match action {
                LoginAction::NeedMore => {}
                LoginAction::Send(bytes) => {
                    assert!(matches!(login.next_action(), LoginAction::NeedMore));
                    to_server = Some(bytes);
                }
                last => return last,
            }
        }
        server_action = server.feed(&to_server.expect("a reply")).1;
    }
}

fn password(password: &[u8]) -> Credentials {
    Credentials {
        password: Some(Secret::new(password)),
        ..Credentials::default()
    }
}

#[test]
fn backends_start_with_whatever_credentials_fit() {
    let md5 = verifier::md5_encrypt(b"pencil", b"alice");
    let Some(Verifier::Scram(scram)) = Verifier::parse(SCRAM) else {
        panic!()
    };
    let key = Secret::new(*scram.derive(b"pencil").client_key());
    let by_key = Credentials {
        client_key: Some(key),
        ..Credentials::default()
    };
    for chunk in [1, 7, 10_000] {
        for (method, stored, credentials) in [
            (Method::Trust, SCRAM, Credentials::default()),
            (Method::Password, SCRAM, password(b"pencil")),
            (Method::Md5, &md5, password(b"pencil")),
            (
                Method::Md5,
                &md5,
                Credentials::default().with_verifier(&md5),
            ),
            (Method::Scram, SCRAM, password(b"pencil")),
            (Method::Scram, SCRAM, by_key.clone()),
            (Method::Scram, SCRAM, by_key.clone().with_verifier(SCRAM)),
        ] {
            let LoginAction::Ready(started) = start(method, stored, credentials, chunk) else {
                panic!("{method:?}")
            };
            assert_eq!(
                started.parameters,
                [(b"TimeZone".to_vec(), b"GMT".to_vec())]
            );
            assert_eq!(started.pid, 1);
            assert_eq!(started.key, [0, 0, 0, 2]);
        }
    }
}

#[test]
fn missing_credentials_name_the_method() {
    let md5 = verifier::md5_encrypt(b"pencil", b"alice");
    for (method, stored, credentials, name) in [
        (Method::Password, SCRAM, Credentials::default(), "password"),
        (Method::Md5, &md5[..], Credentials::default(), "md5"),
        (
            Method::Scram,
            SCRAM,
            Credentials::default(),
            "scram-sha-256",
        ),
        (
            Method::Scram,
            SCRAM,
            Credentials::default().with_verifier(SCRAM),
            "scram-sha-256",
        ),
    ] {
        let LoginAction::Failed(failure) = start(method, stored, credentials, 10_000) else {
            panic!()
        };
        assert_eq!(failure, Failure::NoCredentials(name));
    }
}

#[test]
fn the_servers_refusal_is_passed_on() {
    let LoginAction::Failed(Failure::ServerError(report)) =
        start(Method::Scram, SCRAM, password(b"wrong"), 10_000)
    else {
        panic!()
    };
    assert_eq!(report.sqlstate, *b"28P01");
    assert_eq!(report.severity, crate::protocol::Severity::Fatal);
}

#[test]
fn a_server_that_does_not_know_the_role_is_refused() {
    let mut credentials = password(b"pencil");
    credentials.client_key = Some(Secret::new([1; 32]));
    credentials.server_key = Some(Secret::new([2; 32]));
    let mut auth = ClientAuth::new("alice", credentials);
    auth.request(&Authentication::Sasl(vec![b"SCRAM-SHA-256".to_vec()]));
    let State::SaslFirstSent(exchange) = &auth.state else {
        panic!()
    };
    let first = exchange.client_first();
    let nonce = String::from_utf8_lossy(&first[8..]).into_owned();
    let challenge = format!("r={nonce}x,s=AAAA,i=1").into_bytes();
    let Reply::Send(_) = auth.request(&Authentication::SaslContinue(challenge)) else {
        panic!()
    };
    let Reply::Failed(failure) = auth.request(&Authentication::SaslFinal(b"v=AAAA".to_vec()))
    else {
        panic!()
    };
    assert_eq!(failure, Failure::ServerNotProven);
}

#[test]
fn requests_out_of_order_fail() {
    use Authentication::*;
    let sasl = || Sasl(vec![b"SCRAM-SHA-256".to_vec()]);
    for requests in [
        vec![SaslContinue(vec![])],
        vec![SaslFinal(vec![])],
        // Ok in the midst of SASL would skip the check of the server.
        vec![sasl(), Ok],
        vec![sasl(), SaslFinal(vec![])],
        vec![sasl(), sasl()],
        vec![sasl(), SaslContinue(b"r=x".to_vec())],
        vec![Cleartext, Cleartext],
        vec![Sasl(vec![b"OTHER".to_vec()])],
        vec![Sasl(vec![])],
        vec![Other(7)],
    ] {
        let mut auth = ClientAuth::new("alice", password(b"x"));
        let last = requests.iter().map(|request| auth.request(request)).last();
        assert!(matches!(last, Some(Reply::Failed(_))), "{requests:?}");
    }
}

#[test]
fn messages_out_of_order_fail() {
    for make in [
        |out: &mut Vec<u8>| messages::ready_for_query(out, b'I'),
        |out: &mut Vec<u8>| messages::parameter_status(out, b"a", b"b"),
        |out: &mut Vec<u8>| messages::backend_key_data(out, 1, &2i32.to_be_bytes()),
    ] {
        let (mut login, _) = BackendLogin::start(b"a", b"d", &[], Credentials::default());
        let mut bytes = Vec::new();
        make(&mut bytes);
        assert!(matches!(
            login.feed(&bytes),
            LoginAction::Failed(Failure::Protocol(_))
        ));
    }
}

#[test]
fn random_bytes_never_panic_and_never_make_a_backend_ready() {
    let mut random = rand::rngs::StdRng::seed_from_u64(20261122);
    for _ in 0..20_000 {
        let (mut login, _) = BackendLogin::start(b"a", b"d", &[], password(b"x"));
        for _ in 0..4 {
            let mut bytes = Vec::new();
            match random.gen_range(0..5) {
                0 => messages::authentication_sasl(&mut bytes, &["SCRAM-SHA-256"]),
                1 => messages::authentication_sasl_continue(&mut bytes, b"r=a,s=AAAA,i=1"),
                2 => Report::fatal(b"28000", "x").encode(&mut bytes),
                3 => messages::parameter_status(&mut bytes, b"a", b"b"),
                _ => bytes.extend((0..30).map(|_| random.gen::<u8>())),
            }
            for _ in 0..random.gen_range(0..3) {
                let at = random.gen_range(0..bytes.len());
                bytes[at] = random.gen();
            }
            assert!(!matches!(login.feed(&bytes), LoginAction::Ready(_)));
        }
    }
}
