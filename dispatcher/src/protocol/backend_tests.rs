use super::*;
use crate::protocol::messages;

#[path = "backend_decoded.rs"]
mod decoded;
pub use decoded::all;

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
        BackendMessage::Authentication(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0".to_vec()),
        BackendMessage::Authentication(11, b"c".to_vec()),
        BackendMessage::Authentication(12, b"f".to_vec()),
        BackendMessage::Authentication(5, b"salt".to_vec()),
        BackendMessage::Authentication(3, Vec::new()),
        BackendMessage::Authentication(0, Vec::new()),
        BackendMessage::ParameterStatus,
        BackendMessage::BackendKeyData,
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
        (b"Z\0\x10\0\x05", DecodeError::BadLength(b'Z')),
        (b"Z\0\0\0\x04", DecodeError::Malformed(b'Z')),
        (b"Z\0\0\0\x06II", DecodeError::Malformed(b'Z')),
        (b"R\0\0\0\x06\0\0", DecodeError::Malformed(b'R')),
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
