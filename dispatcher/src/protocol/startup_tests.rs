use super::*;
use crate::protocol::messages::cancel_key_bytes;

fn packet(code: u32, body: &[u8]) -> Vec<u8> {
    let mut out = (body.len() as u32 + 8).to_be_bytes().to_vec();
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(body);
    out
}

fn hello(parameters: &[u8]) -> Vec<u8> {
    packet(PROTOCOL_3_0, parameters)
}

/// All events of the bytes, fed in pieces of `chunk`, until the last one.
fn events(bytes: &[u8], chunk: usize) -> Vec<StartupEvent> {
    let mut reader = StartupReader::new(15, Tls::Refused);
    let mut events = Vec::new();
    for piece in bytes.chunks(chunk) {
        let mut rest = piece;
        while !rest.is_empty() {
            let (consumed, event) = reader.feed(rest);
            rest = &rest[consumed..];
            match event {
                StartupEvent::NeedMore => {}
                StartupEvent::Answer(_) => events.push(event),
                _ => {
                    events.push(event);
                    return events;
                }
            }
        }
    }
    events
}

fn only(bytes: &[u8]) -> StartupEvent {
    let whole = events(bytes, bytes.len().max(1));
    assert_eq!(whole, events(bytes, 1), "byte at a time equals whole");
    assert!(whole.len() <= 1);
    whole.into_iter().next().unwrap_or(StartupEvent::NeedMore)
}

fn good(parameters: &[u8]) -> Startup {
    match only(&hello(parameters)) {
        StartupEvent::Startup(startup) => *startup,
        other => panic!("{other:?}"),
    }
}

fn bad(bytes: &[u8]) -> (String, String) {
    match only(bytes) {
        StartupEvent::Failed(StartupError::Fatal { send, report }) => {
            assert!(send.ends_with(&report.to_bytes()));
            assert_eq!(report.severity, crate::protocol::Severity::Fatal);
            (
                String::from_utf8_lossy(&report.sqlstate).into_owned(),
                String::from_utf8_lossy(&report.message).into_owned(),
            )
        }
        other => panic!("{other:?}"),
    }
}

fn closed(bytes: &[u8]) {
    assert_eq!(
        only(bytes),
        StartupEvent::Failed(StartupError::Close("invalid length of startup packet")),
        "{bytes:?}"
    );
}

#[test]
fn startup_packet_is_taken_apart() {
    let mut startup = good(
        b"user\0u\0database\0d\0options\0-c geqo=off\0application_name\0a\0DateStyle\0ISO\0application_name\0b\0\0",
    );
    assert_eq!(startup.user, b"u");
    assert_eq!(startup.database, b"d");
    assert_eq!(startup.protocol, PROTOCOL_3_0);
    assert_eq!(startup.replication, Replication::No);
    assert!(startup.negotiate.is_empty());
    assert_eq!(startup.application_name(), Some(&b"b"[..]));
    let settings = startup.take_settings().unwrap();
    let names: Vec<&[u8]> = settings.iter().map(|(name, _)| name.as_slice()).collect();
    let expected: [&[u8]; 4] = [
        b"geqo",
        b"application_name",
        b"DateStyle",
        b"application_name",
    ];
    assert_eq!(names, expected);
}

#[test]
fn database_defaults_to_user_and_names_are_cut_as_in_stock() {
    assert_eq!(good(b"user\0u\0\0").database, b"u");
    assert_eq!(good(b"database\0\0user\0u\0\0").database, b"u");
    let long = [b'x'; 100];
    let startup = good(&[b"user\0", &long[..], b"\0\0"].concat());
    assert_eq!(startup.user, [b'x'; 63]);
    assert_eq!(startup.database, [b'x'; 63]);
    let startup = good(&[b"user\0", &long[..63], b"\0\0"].concat());
    assert_eq!(startup.user.len(), 63);
    // The last of several values counts.
    assert_eq!(good(b"user\0a\0user\0b\0\0").user, b"b");
}

#[test]
fn replication_is_recognised() {
    for (value, expected) in [
        ("true", Replication::Physical),
        ("T", Replication::Physical),
        ("tru", Replication::Physical),
        ("yes", Replication::Physical),
        ("on", Replication::Physical),
        ("1", Replication::Physical),
        ("database", Replication::Database),
        ("false", Replication::No),
        ("of", Replication::No),
        ("N", Replication::No),
        ("0", Replication::No),
    ] {
        let startup = good(format!("user\0u\0replication\0{value}\0\0").as_bytes());
        assert_eq!(startup.replication, expected, "{value}");
        let physical = expected == Replication::Physical;
        assert_eq!(startup.database.is_empty(), physical);
    }
    for value in ["", "o", "truex", "10", "DATABASE", "maybe"] {
        let (sqlstate, message) = bad(&hello(
            format!("user\0u\0replication\0{value}\0\0").as_bytes(),
        ));
        assert_eq!(sqlstate, "22023");
        assert_eq!(
            message,
            format!("invalid value for parameter \"replication\": \"{value}\"")
        );
    }
}

#[test]
fn malformed_packets_get_stocks_answers() {
    let layout = "invalid startup packet layout: expected terminator as last byte";
    let no_user = "no PostgreSQL user name specified in startup packet";
    for (body, sqlstate, message) in [
        (&b""[..], "08P01", layout),
        (b"user", "08P01", layout),
        (b"user\0", "08P01", layout),
        (b"user\0u", "08P01", layout),
        (b"user\0u\0", "08P01", layout),
        (b"user\0u\0\0\0", "08P01", layout),
        (b"user\0u\0\0x", "08P01", layout),
        (b"user\0u\0\0a\0b\0\0", "08P01", layout),
        (b"\0", "28000", no_user),
        (b"user\0\0\0", "28000", no_user),
        (b"database\0d\0\0", "28000", no_user),
    ] {
        assert_eq!(
            bad(&hello(body)),
            (sqlstate.to_owned(), message.to_owned()),
            "{body:?}"
        );
    }
}

#[test]
fn final_name_without_terminator_is_a_layout_error_as_in_stock() {
    // Stock puts a zero byte behind the packet: "a\0b" reads as a pair, and the offset then
    // lies past the end.
    assert_eq!(bad(&hello(b"user\0u\0a\0b")).0, "08P01");
}

#[test]
fn lengths_out_of_bounds_close_without_a_word() {
    for length in [
        0u32,
        1,
        4,
        7,
        10_005,
        65_536,
        0x7fff_ffff,
        0x8000_0000,
        u32::MAX,
    ] {
        closed(&length.to_be_bytes());
    }
    // The largest packet that stock takes.
    let mut bytes = 10_004u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&PROTOCOL_3_0.to_be_bytes());
    bytes.extend_from_slice(b"user\0");
    bytes.resize(10_004 - 2, b'u');
    bytes.extend_from_slice(b"\0\0");
    assert!(matches!(only(&bytes), StartupEvent::Startup(_)));
}

#[test]
fn every_first_byte_is_survived() {
    for byte in 0..=255u8 {
        // A length of byte << 24 (+ 8): only 0 can be a packet.
        let bytes = [byte, 0, 0, 8, 0, 3, 0, 0];
        match only(&bytes) {
            StartupEvent::Failed(StartupError::Close(_)) => assert_ne!(byte, 0),
            StartupEvent::Failed(StartupError::Fatal { .. }) => assert_eq!(byte, 0),
            other => panic!("{byte}: {other:?}"),
        }
        assert_eq!(only(&[byte]), StartupEvent::NeedMore);
    }
}

#[test]
fn other_protocols_are_refused_in_words_they_understand() {
    for (code, version, old_style) in [
        (0u32, "0.0", false),
        (5, "0.5", true),
        (1 << 16, "1.0", true),
        ((2 << 16) | 1, "2.1", true),
        (4 << 16, "4.0", false),
        ((1234 << 16) | 5681, "1234.5681", false),
        (u32::MAX, "65535.65535", false),
    ] {
        match only(&packet(code, b"user\0u\0\0")) {
            StartupEvent::Failed(StartupError::Fatal { send, report }) => {
                assert_eq!(report.sqlstate, *b"0A000");
                assert_eq!(
                    String::from_utf8_lossy(&report.message),
                    format!("unsupported frontend protocol {version}: server supports 3.0 to 3.0")
                );
                let expected = if old_style {
                    report.to_old_style_bytes()
                } else {
                    report.to_bytes()
                };
                assert_eq!(send, expected);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn newer_minor_versions_and_unknown_options_are_negotiated() {
    let StartupEvent::Startup(startup) = only(&packet((3 << 16) | 2, b"user\0u\0\0")) else {
        panic!()
    };
    assert_eq!(startup.protocol, (3 << 16) | 2);
    assert_eq!(startup.negotiate, b"v\0\0\0\x0c\0\x03\0\0\0\0\0\0");

    let startup = good(b"_pq_.a\0x\0user\0u\0_pq_.b\0\0\0");
    assert_eq!(
        startup.negotiate,
        b"v\0\0\0\x1a\0\x03\0\0\0\0\0\x02_pq_.a\0_pq_.b\0"
    );
    assert!(startup.parameters.is_empty());

    // The negotiation is sent before the error about the user, too.
    match only(&packet((3 << 16) | 9, b"\0")) {
        StartupEvent::Failed(StartupError::Fatal { send, .. }) => assert_eq!(send[0], b'v'),
        other => panic!("{other:?}"),
    }
}

#[test]
fn encryption_is_refused_once_for_each_kind() {
    let ssl = packet(SSL_REQUEST_CODE, b"");
    let gss = packet(GSS_REQUEST_CODE, b"");
    let startup = hello(b"user\0u\0\0");
    for order in [[&ssl, &gss], [&gss, &ssl]] {
        let mut reader = StartupReader::new(15, Tls::Refused);
        for request in order {
            assert_eq!(reader.feed(request), (8, StartupEvent::Answer(b'N')));
        }
        let (_, event) = reader.feed(&startup);
        assert!(matches!(event, StartupEvent::Startup(_)));
    }
    for (request, version) in [(&ssl, "1234.5679"), (&gss, "1234.5680")] {
        let mut reader = StartupReader::new(15, Tls::Refused);
        reader.feed(request);
        match reader.feed(request).1 {
            StartupEvent::Failed(StartupError::Fatal { report, .. }) => {
                assert!(String::from_utf8_lossy(&report.message).contains(version));
            }
            other => panic!("{other:?}"),
        }
    }
    // A request longer than its code is still a request, as in stock.
    let long = packet(SSL_REQUEST_CODE, b"xyz");
    assert_eq!(
        StartupReader::new(15, Tls::Refused).feed(&long),
        (11, StartupEvent::Answer(b'N'))
    );
}

#[test]
fn gss_encryption_is_left_to_another_if_offered_and_only_once() {
    let gss = packet(GSS_REQUEST_CODE, b"");
    let offering = || StartupReader::new(15, Tls::Refused).offering_gss(true);
    let mut reader = offering();
    assert_eq!(
        reader.feed(&packet(SSL_REQUEST_CODE, b"")),
        (8, StartupEvent::Answer(b'N'))
    );
    assert_eq!(reader.feed(&gss), (8, StartupEvent::Gss));
    assert!(matches!(
        reader.feed(&gss).1,
        StartupEvent::Failed(StartupError::Fatal { .. })
    ));
    // GSSAPI encryption cannot be requested within another encryption.
    let mut within = StartupReader::within_tls(15).offering_gss(true);
    assert!(matches!(within.feed(&gss).1, StartupEvent::Failed(_)));
    // Bytes behind the request, in the clear, are not taken for encrypted ones.
    let bytes = [gss, hello(b"user\0u\0\0")].concat();
    match offering().feed(&bytes).1 {
        StartupEvent::Failed(StartupError::Fatal { send, .. }) => assert_eq!(send[..2], *b"GE"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn direct_tls_refuses_a_request_for_more_encryption_once() {
    let (ssl, gss) = (packet(SSL_REQUEST_CODE, b""), packet(GSS_REQUEST_CODE, b""));
    let mut reader = StartupReader::within_direct_tls(17);
    assert_eq!(reader.feed(&ssl), (8, StartupEvent::Answer(b'N')));
    assert_eq!(reader.feed(&gss), (8, StartupEvent::Answer(b'N')));
    let mut again = StartupReader::within_direct_tls(17);
    again.feed(&ssl);
    assert!(matches!(again.feed(&ssl).1, StartupEvent::Failed(_)));
    assert!(matches!(
        reader.feed(&hello(b"user\0u\0\0")).1,
        StartupEvent::Startup(_)
    ));
    // Encryption can be requested only once.
    for request in [ssl, gss] {
        let mut asked = StartupReader::within_tls(17);
        assert!(matches!(asked.feed(&request).1, StartupEvent::Failed(_)));
    }
}

#[test]
fn data_before_the_answer_about_encryption_end_the_connection() {
    for (code, word) in [(SSL_REQUEST_CODE, "SSL"), (GSS_REQUEST_CODE, "GSSAPI")] {
        let mut reader = StartupReader::new(15, Tls::Refused);
        let bytes = [packet(code, b""), hello(b"user\0u\0\0")].concat();
        match reader.feed(&bytes).1 {
            StartupEvent::Failed(StartupError::Fatal { send, report }) => {
                assert_eq!(send[..2], *b"NE");
                assert_eq!(report.sqlstate, *b"08P01");
                assert!(String::from_utf8_lossy(&report.message).contains(word));
            }
            other => panic!("{other:?}"),
        }
        // Read as the reader asks, in pieces or at once.
        for first in 1..=8 {
            let mut reader = StartupReader::new(15, Tls::Refused);
            assert_eq!(reader.wanted(), 9);
            let mut fed = first;
            assert!(fed == 8 || reader.feed(&bytes[..fed]).1 == StartupEvent::NeedMore);
            if fed == 8 {
                fed = 0;
            }
            assert_eq!(fed + reader.wanted(), 9);
            match reader.feed(&bytes[fed..9]).1 {
                StartupEvent::Failed(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn what_an_18_speaks_is_protocol_3_2() {
    let answer = |protocol: u32, parameters: &[u8]| {
        let bytes = packet(protocol, parameters);
        match StartupReader::new(18, Tls::Refused).feed(&bytes).1 {
            StartupEvent::Startup(startup) => startup.negotiate,
            StartupEvent::Failed(StartupError::Fatal { report, .. }) => report.to_bytes(),
            other => panic!("{other:?}"),
        }
    };
    for minor in 0..=2 {
        assert!(answer((3 << 16) | minor, b"user\0u\0\0").is_empty());
    }
    let older = answer(3 << 16, b"user\0u\0_pq_.a\0\0\0");
    assert_eq!(older, b"v\0\0\0\x13\0\x03\0\0\0\0\0\x01_pq_.a\0");
    let newer = answer((3 << 16) | 9999, b"user\0u\0\0");
    assert_eq!(newer, b"v\0\0\0\x0c\0\x03\0\x02\0\0\0\0");
    let refused = answer(4 << 16, b"user\0u\0\0");
    let text = b"server supports 3.0 to 3.2";
    assert!(refused.windows(text.len()).any(|part| part == text));

    let long = |asked| cancel_key_bytes(asked, newest_protocol(18)) == 32;
    assert!(!long(3 << 16) && !long((3 << 16) | 1) && long((3 << 16) | 2) && long((3 << 16) | 9));
    assert_eq!(cancel_key_bytes((3 << 16) | 2, newest_protocol(17)), 4);
}

#[test]
fn cancel_requests_have_keys_of_4_to_256_bytes() {
    for (length, accepted) in [
        (0, false),
        (3, false),
        (4, true),
        (32, true),
        (256, true),
        (257, false),
    ] {
        let mut body = 42u32.to_be_bytes().to_vec();
        body.resize(4 + length, 7);
        let bytes = packet(CANCEL_REQUEST_CODE, &body);
        if accepted {
            let StartupEvent::Cancel(cancel) = only(&bytes) else {
                panic!("{length}")
            };
            assert_eq!(cancel.pid, 42);
            assert_eq!(cancel.key, vec![7; length]);
        } else {
            closed(&bytes);
        }
    }
    closed(&packet(CANCEL_REQUEST_CODE, b""));
}

#[test]
fn wanted_never_reaches_past_a_startup_packet() {
    let startup = hello(b"user\0u\0\0");
    let bytes = [startup.clone(), b"Q\0\0\0".to_vec()].concat();
    let mut reader = StartupReader::new(15, Tls::Refused);
    let mut position = 0;
    loop {
        let wanted = reader.wanted();
        assert!(wanted > 0);
        let (consumed, event) = reader.feed(&bytes[position..position + wanted]);
        assert_eq!(consumed, wanted);
        position += consumed;
        if matches!(event, StartupEvent::Startup(_)) {
            break;
        }
        assert!(reader.in_packet());
    }
    assert_eq!(position, startup.len());
    // Given more bytes, the reader consumes no more.
    assert_eq!(
        StartupReader::new(15, Tls::Refused).feed(&bytes).0,
        startup.len()
    );
}

#[test]
fn a_role_s_name_by_its_database_is_made_as_the_server_makes_it() {
    let name = |user: &[u8], database: &[u8]| {
        let packet = [b"user\0", user, b"\0database\0", database, b"\0\0"].concat();
        good(&packet).namespaced_user()
    };
    assert_eq!(name(b"joe", b"d"), b"joe@d");
    assert_eq!(name(b"joe@", b"d"), b"joe");
    assert_eq!(name(b"joe@d", b"d"), b"joe@d@d");
    assert_eq!(name(b"joe@@", b"d"), b"joe@@@d");
    assert_eq!(name(b"@", b"d"), b"");
    let long = [b'x'; 70];
    assert_eq!(name(&long[..61], b"data"), [&long[..61], b"@d"].concat());
    assert_eq!(name(&long, b"d"), &long[..63]);
}
