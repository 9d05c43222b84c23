//! Encoders of protocol messages, to clients and to backends.
//!
//! Layouts are those of the chapter "Message Formats" of PostgreSQL's manual. Each function
//! appends one whole message to `out`. NULs inside strings are removed, so that no text can
//! change the layout of its message.

/// Protocol 3.0, the newest that PostgreSQL 15 speaks (PG_PROTOCOL_LATEST, libpq/pqcomm.h).
pub const PROTOCOL_3_0: u32 = 3 << 16;
/// Major number 1234 marks requests that are not a protocol version.
pub const CANCEL_REQUEST_CODE: u32 = (1234 << 16) | 5678;
pub const PROTOCOL_3_2: u32 = (3 << 16) | 2;

/// PG_PROTOCOL_LATEST (pqcomm.h) of a server of this major.
pub fn newest_protocol(server_major: u32) -> u32 {
    if server_major >= 18 {
        PROTOCOL_3_2
    } else {
        PROTOCOL_3_0
    }
}

/// The length of a server's cancel key for a client that asked for this protocol version
/// (PostgresMain, postgres.c of 18).
pub fn cancel_key_bytes(asked: u32, newest: u32) -> usize {
    if asked.min(newest) >= PROTOCOL_3_2 {
        32
    } else {
        4
    }
}
/// MAX_STARTUP_PACKET_LENGTH (libpq/pqcomm.h): the longest packet that the server reads,
/// without its length word.
pub const MOST_STARTUP_BYTES: usize = 10_000;

/// Begins a message; give the result to [`finish_message`].
pub fn start_message(out: &mut Vec<u8>, message_type: u8) -> usize {
    out.push(message_type);
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    start
}

/// Writes the length of the message begun at `start`.
pub fn finish_message(out: &mut [u8], start: usize) {
    // Invariant: start_message left four bytes at `start`. The callers keep messages far below
    // u32::MAX.
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends a NUL-terminated string.
pub fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    if text.contains(&0) {
        out.extend(text.iter().filter(|byte| **byte != 0));
    } else {
        out.extend_from_slice(text);
    }
    out.push(0);
}

fn message(out: &mut Vec<u8>, message_type: u8, body: &[u8]) {
    let start = start_message(out, message_type);
    out.extend_from_slice(body);
    finish_message(out, start);
}

fn authentication(out: &mut Vec<u8>, code: u32, body: &[u8]) {
    let start = start_message(out, b'R');
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(body);
    finish_message(out, start);
}

/// Do the bytes consist of complete NoticeResponses only?
pub fn are_notices(mut bytes: &[u8]) -> bool {
    while let [b'N', a, b, c, d, rest @ ..] = bytes {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let Some(left) = length.checked_sub(4).and_then(|body| rest.get(body..)) else {
            return false;
        };
        bytes = left;
    }
    bytes.is_empty()
}

// ---- to a client ---------------------------------------------------------

/// AuthenticationOk.
pub fn authentication_ok(out: &mut Vec<u8>) {
    authentication(out, 0, &[]);
}

/// AuthenticationCleartextPassword.
pub fn authentication_cleartext(out: &mut Vec<u8>) {
    authentication(out, 3, &[]);
}

/// AuthenticationMD5Password.
pub fn authentication_md5(out: &mut Vec<u8>, salt: [u8; 4]) {
    authentication(out, 5, &salt);
}

/// AuthenticationSASL with the names of the mechanisms on offer.
pub fn authentication_sasl(out: &mut Vec<u8>, mechanisms: &[&str]) {
    let mut body = Vec::new();
    for mechanism in mechanisms {
        put_string(&mut body, mechanism.as_bytes());
    }
    body.push(0);
    authentication(out, 10, &body);
}

/// AuthenticationSASLContinue.
pub fn authentication_sasl_continue(out: &mut Vec<u8>, data: &[u8]) {
    authentication(out, 11, data);
}

/// AuthenticationSASLFinal.
pub fn authentication_sasl_final(out: &mut Vec<u8>, data: &[u8]) {
    authentication(out, 12, data);
}

/// ParameterStatus.
pub fn parameter_status(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let start = start_message(out, b'S');
    put_string(out, name);
    put_string(out, value);
    finish_message(out, start);
}

/// BackendKeyData. The length of the key depends on the protocol ([`cancel_key_bytes`]).
pub fn backend_key_data(out: &mut Vec<u8>, pid: i32, key: &[u8]) {
    let start = start_message(out, b'K');
    out.extend_from_slice(&pid.to_be_bytes());
    out.extend_from_slice(key);
    finish_message(out, start);
}

/// ReadyForQuery; `status` is `I`, `T` or `E`.
pub fn ready_for_query(out: &mut Vec<u8>, status: u8) {
    message(out, b'Z', &[status]);
}

/// NegotiateProtocolVersion. Like stock 15 it carries the whole version word
/// (SendNegotiateProtocolVersion, postmaster.c), not only the minor part.
pub fn negotiate_protocol_version(out: &mut Vec<u8>, newest: u32, unrecognized: &[Vec<u8>]) {
    let start = start_message(out, b'v');
    out.extend_from_slice(&newest.to_be_bytes());
    out.extend_from_slice(&(unrecognized.len() as u32).to_be_bytes());
    for name in unrecognized {
        put_string(out, name);
    }
    finish_message(out, start);
}

// ---- to a backend, as its client -----------------------------------------

/// StartupMessage of protocol 3.0. Parameters with an empty name are left out, as an empty name
/// ends the list.
pub fn startup_message(out: &mut Vec<u8>, parameters: &[(&[u8], &[u8])]) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&PROTOCOL_3_0.to_be_bytes());
    for (name, value) in parameters {
        if name.iter().any(|byte| *byte != 0) {
            put_string(out, name);
            put_string(out, value);
        }
    }
    out.push(0);
    finish_message(out, start);
}

/// PasswordMessage: a password in the clear or an MD5 response.
#[cfg(test)]
pub fn password(out: &mut Vec<u8>, password: &[u8]) {
    // Without the reserve, a growing vector would leave a copy of part of the password behind.
    out.reserve(password.len() + 6);
    let start = start_message(out, b'p');
    put_string(out, password);
    finish_message(out, start);
}

/// SASLInitialResponse.
#[cfg(test)]
pub fn sasl_initial_response(out: &mut Vec<u8>, mechanism: &str, data: &[u8]) {
    let start = start_message(out, b'p');
    put_string(out, mechanism.as_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
    finish_message(out, start);
}

/// SASLResponse.
#[cfg(test)]
pub fn sasl_response(out: &mut Vec<u8>, data: &[u8]) {
    message(out, b'p', data);
}

/// CancelRequest, the whole packet.
pub fn cancel_request(out: &mut Vec<u8>, pid: i32, key: &[u8]) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&CANCEL_REQUEST_CODE.to_be_bytes());
    out.extend_from_slice(&pid.to_be_bytes());
    out.extend_from_slice(key);
    finish_message(out, start);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(make: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = b"before".to_vec();
        make(&mut out);
        out.split_off(6)
    }

    #[test]
    fn messages_have_the_manuals_layout() {
        assert_eq!(made(authentication_ok), b"R\0\0\0\x08\0\0\0\0");
        assert_eq!(made(authentication_cleartext), b"R\0\0\0\x08\0\0\0\x03");
        assert_eq!(
            made(|out| authentication_md5(out, *b"salt")),
            b"R\0\0\0\x0c\0\0\0\x05salt"
        );
        assert_eq!(
            made(|out| authentication_sasl(out, &["A", "B"])),
            b"R\0\0\0\x0d\0\0\0\x0aA\0B\0\0"
        );
        assert_eq!(
            made(|out| authentication_sasl_continue(out, b"x")),
            b"R\0\0\0\x09\0\0\0\x0bx"
        );
        assert_eq!(
            made(|out| authentication_sasl_final(out, b"x")),
            b"R\0\0\0\x09\0\0\0\x0cx"
        );
        assert_eq!(
            made(|out| parameter_status(out, b"a", b"b")),
            b"S\0\0\0\x08a\0b\0"
        );
        assert_eq!(
            made(|out| backend_key_data(out, 1, &[0xff; 4])),
            b"K\0\0\0\x0c\0\0\0\x01\xff\xff\xff\xff"
        );
        assert_eq!(made(|out| ready_for_query(out, b'I')), b"Z\0\0\0\x05I");
        assert_eq!(
            made(|out| negotiate_protocol_version(out, PROTOCOL_3_0, &[b"_pq_.x".to_vec()])),
            b"v\0\0\0\x13\0\x03\0\0\0\0\0\x01_pq_.x\0"
        );
        assert_eq!(
            made(|out| startup_message(out, &[(b"user", b"u"), (b"", b"ignored")])),
            b"\0\0\0\x10\0\x03\0\0user\0u\0\0"
        );
        assert_eq!(made(|out| password(out, b"p\0w")), b"p\0\0\0\x07pw\0");
        assert_eq!(
            made(|out| sasl_initial_response(out, "M", b"xy")),
            b"p\0\0\0\x0cM\0\0\0\0\x02xy"
        );
        assert_eq!(made(|out| sasl_response(out, b"xy")), b"p\0\0\0\x06xy");
        assert_eq!(
            made(|out| cancel_request(out, 7, b"abcd")),
            b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x07abcd"
        );
    }
}
