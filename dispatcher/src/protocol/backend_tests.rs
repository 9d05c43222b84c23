use super::*;
use crate::protocol::messages;

#[path = "backend_decoded.rs"]
mod decoded;
pub use decoded::all;

#[test]
fn a_connection_limit_is_known_from_a_server_that_is_full() {
    let error = |routine: &str| {
        let mut body = b"SFATAL\0VFATAL\0C53300\0Mvoll\0".to_vec();
        body.extend_from_slice(format!("R{routine}\0\0").as_bytes());
        let mut bytes = vec![b'E'];
        bytes.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        bytes.extend_from_slice(&body);
        match all(&bytes, bytes.len()).0.as_slice() {
            [BackendMessage::Error(report)] => report.connection_limit,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(error("InitializeSessionUserId"), Some(LimitOf::Role));
    assert_eq!(error("CheckMyDatabase"), Some(LimitOf::Database));
    assert_eq!(error("InitPostgres"), None);
    assert_eq!(error("ProcessStartupPacket"), None);
}

#[test]
fn what_a_starting_backend_sends_is_understood_in_any_pieces() {
    let mut bytes = Vec::new();
    messages::authentication_sasl(&mut bytes, &["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]);
    messages::authentication_sasl_continue(&mut bytes, b"c");
    messages::authentication_sasl_final(&mut bytes, b"f");
    messages::authentication_md5(&mut bytes, *b"salt");
    messages::authentication_cleartext(&mut bytes);
    messages::authentication_ok(&mut bytes);
    messages::parameter_status(&mut bytes, b"TimeZone", b"UTC");
    messages::backend_key_data(&mut bytes, 7, &9i32.to_be_bytes());
    let report = Report::fatal(b"53300", "m").with_detail("d").with_hint("h");
    report.encode(&mut bytes);
    Report::new(Severity::Warning, b"01000", "w").encode(&mut bytes);
    messages::negotiate_protocol_version(&mut bytes, 3 << 16, &[]);
    messages::ready_for_query(&mut bytes, b'I');

    let expected = vec![
        BackendMessage::Authentication(Authentication::Sasl(vec![
            b"SCRAM-SHA-256-PLUS".to_vec(),
            b"SCRAM-SHA-256".to_vec(),
        ])),
        BackendMessage::Authentication(Authentication::SaslContinue(b"c".to_vec())),
        BackendMessage::Authentication(Authentication::SaslFinal(b"f".to_vec())),
        BackendMessage::Authentication(Authentication::Md5(*b"salt")),
        BackendMessage::Authentication(Authentication::Cleartext),
        BackendMessage::Authentication(Authentication::Ok),
        BackendMessage::ParameterStatus {
            name: b"TimeZone".to_vec(),
            value: b"UTC".to_vec(),
        },
        BackendMessage::BackendKeyData {
            pid: 7,
            key: vec![0, 0, 0, 9],
        },
        BackendMessage::Error(report),
        BackendMessage::Notice(Report::new(Severity::Warning, b"01000", "w")),
        BackendMessage::NegotiateProtocolVersion,
        BackendMessage::ReadyForQuery(b'I'),
    ];
    for chunk in [1, 2, 3, 7, 64, bytes.len()] {
        assert_eq!(all(&bytes, chunk), (expected.clone(), None), "by {chunk}");
    }
}

#[test]
fn every_first_byte_is_known_or_refused() {
    for byte in 0..=255u8 {
        let (found, error) = all(&[byte], 1);
        assert!(found.is_empty());
        let known = b"RSKZENv".contains(&byte);
        assert_eq!(error, (!known).then_some(DecodeError::UnexpectedType(byte)));
    }
}

#[test]
fn malformed_messages_are_refused() {
    for (bytes, expected) in [
        (&b"Z\0\0\0\x03"[..], DecodeError::BadLength(b'Z')),
        (b"Z\0\0\0\0", DecodeError::BadLength(b'Z')),
        (b"Z\xff\xff\xff\xff", DecodeError::BadLength(b'Z')),
        (b"Z\0\x01\0\0", DecodeError::BadLength(b'Z')),
        (b"Z\0\0\0\x04", DecodeError::Malformed(b'Z')),
        (b"Z\0\0\0\x06II", DecodeError::Malformed(b'Z')),
        (b"R\0\0\0\x06\0\0", DecodeError::Malformed(b'R')),
        (b"R\0\0\0\x0a\0\0\0\x05ab", DecodeError::Malformed(b'R')),
        (b"R\0\0\0\x0a\0\0\0\x0aA\0", DecodeError::Malformed(b'R')),
        (b"R\0\0\0\x09\0\0\0\0x", DecodeError::Malformed(b'R')),
        (b"S\0\0\0\x06a\0", DecodeError::Malformed(b'S')),
        (b"K\0\0\0\x0b\0\0\0\x01abc", DecodeError::Malformed(b'K')),
        (b"E\0\0\0\x04", DecodeError::Malformed(b'E')),
        (b"E\0\0\0\x07Mx\0", DecodeError::Malformed(b'E')),
        (b"E\0\0\0\x09C12\0\0", DecodeError::Malformed(b'E')),
        (
            b"Ecould not fork: why\n\0",
            DecodeError::NoProcess("could not fork: why".into()),
        ),
    ] {
        let (found, error) = all(bytes, bytes.len());
        assert!(found.is_empty(), "{bytes:?}");
        assert_eq!(error, Some(expected), "{bytes:?}");
    }
}
