use super::super::keys::prepare;
use super::super::test_client::ClientExchange;
use super::*;

// The exchange of RFC 7677, section 3.
const CLIENT_FIRST: &[u8] = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const SERVER_FIRST: &[u8] =
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const CLIENT_FINAL: &[u8] = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const SERVER_FINAL: &[u8] = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
const VERIFIER: &[u8] = b"SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

fn verifier() -> ScramVerifier {
    ScramVerifier::parse(VERIFIER).unwrap()
}

fn exchange() -> ServerExchange {
    ServerExchange::start_with_nonce(verifier(), Binding::Impossible, CLIENT_FIRST, SERVER_NONCE)
        .unwrap()
}

fn detail(report: &Report) -> String {
    String::from_utf8_lossy(report.detail.as_deref().unwrap_or_default()).into_owned()
}

#[test]
fn server_speaks_the_rfcs_exchange() {
    let exchange = exchange();
    assert_eq!(exchange.server_first(), SERVER_FIRST);
    let server_final = exchange.finish(CLIENT_FINAL).unwrap();
    assert_eq!(server_final.as_deref(), Some(SERVER_FINAL));
}

#[test]
fn client_speaks_the_rfcs_exchange_but_for_the_user_name() {
    // The RFC's client names the user; libpq leaves that to the startup packet, so its proof is
    // different.
    let client = ClientExchange {
        nonce: "rOprNGfwEbeRWgbNEkqO".to_owned(),
    };
    assert_eq!(client.client_first(), b"n,,n=,r=rOprNGfwEbeRWgbNEkqO");
    let server = ServerExchange::start_with_nonce(
        verifier(),
        Binding::Impossible,
        &client.client_first(),
        SERVER_NONCE,
    )
    .unwrap();
    let challenge = client.challenge(server.server_first());
    let keys = verifier().derive(b"pencil");
    let (message, expected) = client.client_final(&challenge, keys.client_key(), keys.server_key());
    assert_eq!(server.finish(&message).unwrap(), Some(expected));
}

#[test]
fn a_wrong_proof_is_none_and_no_error() {
    let wrong = verifier().derive(b"pencils");
    let client = ClientExchange::new();
    let server =
        ServerExchange::start(verifier(), Binding::Impossible, &client.client_first()).unwrap();
    let challenge = client.challenge(server.server_first());
    let (message, _) = client.client_final(&challenge, wrong.client_key(), wrong.server_key());
    assert!(server.finish(&message).unwrap().is_none());
}

#[test]
fn passwords_are_prepared_as_the_server_prepares_them() {
    for (password, prepared) in [
        (&b"pencil"[..], &b"pencil"[..]),
        ("I\u{ad}X".as_bytes(), b"IX"),
        ("\u{aa}".as_bytes(), b"a"),
        ("\u{2168}".as_bytes(), b"IX"),
        ("a\u{a0}b".as_bytes(), b"a b"),
        // Prohibited, not UTF-8, or nothing left: used unchanged.
        ("\u{e9}\u{7}".as_bytes(), "\u{e9}\u{7}".as_bytes()),
        ("\u{627}1".as_bytes(), "\u{627}1".as_bytes()),
        (b"\xff\xfe", b"\xff\xfe"),
        // Prohibited, although the normalised text is not.
        ("a\u{340}b".as_bytes(), "a\u{340}b".as_bytes()),
        ("\u{1f130}x".as_bytes(), "\u{1f130}x".as_bytes()),
        ("\u{ad}".as_bytes(), "\u{ad}".as_bytes()),
        // ASCII always passes.
        (b"a\x07b", b"a\x07b"),
    ] {
        assert_eq!(prepare(password)[..], *prepared, "{password:?}");
    }
}

#[test]
fn malformed_first_messages_get_the_servers_texts() {
    for (message, sqlstate, text, more) in [
        (&b""[..], b"08P01", "malformed SCRAM message", "The message is empty."),
        (b"n,,\0", b"08P01", "malformed SCRAM message", "Message length does not match input length."),
        (b"x,,n=,r=a", b"08P01", "malformed SCRAM message", "Unexpected channel-binding flag \"'x'\"."),
        (b"\x01", b"08P01", "malformed SCRAM message", "Unexpected channel-binding flag \"0x01\"."),
        (b"n", b"08P01", "malformed SCRAM message", "Comma expected, but found character \"0x00\"."),
        (b"yx", b"08P01", "malformed SCRAM message", "Comma expected, but found character \"'x'\"."),
        (b"p=tls-unique,,n=,r=a", b"08P01", "malformed SCRAM message", "The client selected SCRAM-SHA-256 without channel binding, but the SCRAM message includes channel binding data."),
        (b"n,a=x,n=,r=a", b"0A000", "client uses authorization identity, but it is not supported", ""),
        (b"n,x", b"08P01", "malformed SCRAM message", "Unexpected attribute \"'x'\" in client-first-message."),
        (b"n,,m=x", b"0A000", "client requires an unsupported SCRAM extension", ""),
        (b"n,,", b"08P01", "malformed SCRAM message", "Expected attribute \"n\" but found \"0x00\"."),
        (b"n,,n", b"08P01", "malformed SCRAM message", "Expected character \"=\" for attribute \"n\"."),
        (b"n,,n=,x=a", b"08P01", "malformed SCRAM message", "Expected attribute \"r\" but found \"'x'\"."),
        (b"n,,n=,r=a\x7f", b"08P01", "non-printable characters in SCRAM nonce", ""),
        (b"n,,n=,r=a,1=x", b"08P01", "malformed SCRAM message", "Attribute expected, but found invalid character \"'1'\"."),
        (b"n,,n=,r=a,z", b"08P01", "malformed SCRAM message", "Expected character \"=\" for attribute \"z\"."),
    ] {
        let report = ServerExchange::start(verifier(), Binding::Impossible, message).expect_err("malformed");
        assert_eq!(&report.sqlstate, sqlstate, "{message:?}");
        assert_eq!(report.message, text.as_bytes(), "{message:?}");
        assert_eq!(detail(&report), more, "{message:?}");
    }
    assert!(ServerExchange::start(verifier(), Binding::Impossible, b"y,,n=,r=a,x=1,").is_ok());
}

#[test]
fn malformed_final_messages_get_the_servers_texts() {
    let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    let malformed = "malformed SCRAM message";
    for (message, text, more) in [
        (
            "x=biws".to_owned(),
            malformed,
            "Expected attribute \"c\" but found \"'x'\".",
        ),
        (
            format!("c=eSws,r={nonce},p={proof}"),
            "unexpected SCRAM channel-binding attribute in client-final-message",
            "",
        ),
        (
            format!("c=,r={nonce},p={proof}"),
            "unexpected SCRAM channel-binding attribute in client-final-message",
            "",
        ),
        (
            "c=biws".to_owned(),
            malformed,
            "Expected attribute \"r\" but found \"0x00\".",
        ),
        (
            format!("c=biws,r={nonce}"),
            malformed,
            "Attribute expected, but found end of string.",
        ),
        (
            format!("c=biws,r={nonce},p=AAAA"),
            malformed,
            "Malformed proof in client-final-message.",
        ),
        (
            format!("c=biws,r={nonce},p=*"),
            malformed,
            "Malformed proof in client-final-message.",
        ),
        (
            format!("c=biws,r={nonce},p={proof},x=1"),
            malformed,
            "Garbage found at the end of client-final-message.",
        ),
        (
            format!("c=biws,r={nonce}x,p={proof}"),
            "invalid SCRAM response",
            "Nonce does not match.",
        ),
        (
            format!("c=biws,r=,p={proof}"),
            "invalid SCRAM response",
            "Nonce does not match.",
        ),
    ] {
        let report = exchange().finish(message.as_bytes()).expect_err(&message);
        assert_eq!(report.sqlstate, *b"08P01");
        assert_eq!(String::from_utf8_lossy(&report.message), text, "{message}");
        assert_eq!(detail(&report), more, "{message}");
    }
}

#[test]
fn client_bound_to_another_certificate_is_refused() {
    let start = |binding: Binding, first: &[u8]| ServerExchange::start(verifier(), binding, first);
    let bound = || Binding::Chosen(b"hash".to_vec());
    let sqlstate = |result: Result<ServerExchange, Report>| result.expect_err("refused").sqlstate;
    let first = b"p=tls-server-end-point,,n=,r=abc";
    let server = start(bound(), first).unwrap();
    for (given, expected) in [
        (b"hash".as_slice(), b"08P01"),
        (b"another".as_slice(), b"28000"),
    ] {
        let input = [b"p=tls-server-end-point,,", given].concat();
        // the nonce is wrong: that is checked after the binding
        let message = format!("c={},r=x,p=AAAA", STANDARD.encode(input));
        let report = server.finish(message.as_bytes()).expect_err("refused");
        assert_eq!(&report.sqlstate, expected);
    }
    assert_eq!(&sqlstate(start(bound(), b"n,,n=,r=abc")), b"08P01");
    assert_eq!(&sqlstate(start(bound(), b"y,,n=,r=abc")), b"08P01");
    assert_eq!(
        &sqlstate(start(bound(), b"p=tls-unique,,n=,r=abc")),
        b"08P01"
    );
    // The client could have had channel binding: an attacker has removed the offer.
    assert_eq!(
        &sqlstate(start(Binding::NotChosen, b"y,,n=,r=abc")),
        b"28000"
    );
    assert!(start(Binding::NotChosen, b"n,,n=,r=abc").is_ok());
    assert_eq!(&sqlstate(start(Binding::NotChosen, first)), b"08P01");
}
