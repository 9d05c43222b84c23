//! SCRAM-SHA-256 (RFC 5802, RFC 7677): proofs, and the messages.
//!
//! Messages are parsed exactly as in the server's auth-scram.c, error for error.

use base64::engine::general_purpose::STANDARD;
use base64::Engine;

use super::super::report::Report;
use super::keys::{hmac, stored_key, xor, Key};
use super::scram_text::{check_text, malformed, sanitize, sanitize_text, AttributeReader};
use super::verifier::{equal, ScramVerifier};

/// The mechanism without channel binding.
pub const MECHANISM: &str = "SCRAM-SHA-256";
/// The mechanism with channel binding.
pub const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// The only kind of channel binding.
const END_POINT: &[u8] = b"tls-server-end-point";
/// SCRAM_RAW_NONCE_LEN (common/scram-common.h).
const NONCE_BYTES: usize = 18;

fn nonce() -> String {
    STANDARD.encode(rand::random::<[u8; NONCE_BYTES]>())
}

/// The state of channel binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// There is no TLS.
    Impossible,
    /// It was offered, and the client has chosen the mechanism without it.
    NotChosen,
    /// The client has chosen it; this is the hash of the server's certificate.
    Chosen(Vec<u8>),
}

/// The server's side of one exchange, after the client's first message.
#[derive(Debug)]
pub struct ServerExchange {
    verifier: ScramVerifier,
    channel_binding_flag: u8,
    binding: Binding,
    client_first_bare: Vec<u8>,
    server_first: Vec<u8>,
    full_nonce: Vec<u8>,
}

impl ServerExchange {
    /// Reads the client's first message (read_client_first_message).
    pub fn start(
        verifier: ScramVerifier,
        binding: Binding,
        message: &[u8],
    ) -> Result<ServerExchange, Report> {
        ServerExchange::start_with_nonce(verifier, binding, message, &nonce())
    }

    fn start_with_nonce(
        verifier: ScramVerifier,
        binding: Binding,
        message: &[u8],
        server_nonce: &str,
    ) -> Result<ServerExchange, Report> {
        check_text(message)?;
        let mut reader = AttributeReader::new(message);
        let channel_binding_flag = reader.peek();
        match channel_binding_flag {
            b'n' | b'y' if matches!(binding, Binding::Chosen(_)) => {
                return Err(malformed(
                    "The client selected SCRAM-SHA-256-PLUS, but the SCRAM message does not include channel binding data.",
                ))
            }
            b'y' if binding == Binding::NotChosen => {
                return Err(
                    Report::fatal(b"28000", "SCRAM channel binding negotiation error").with_detail(
                        "The client supports SCRAM channel binding but thinks the server does not.  However, this server does support channel binding.",
                    ),
                )
            }
            b'p' if matches!(binding, Binding::Chosen(_)) => {
                let kind = reader.value_of(b'p')?;
                if kind != END_POINT {
                    let text = format!(
                        "unsupported SCRAM channel-binding type \"{}\"",
                        sanitize_text(kind)
                    );
                    return Err(Report::fatal(b"08P01", text));
                }
            }
            b'n' | b'y' => {
                reader.advance();
                if reader.peek() != b',' {
                    return Err(malformed(format!(
                        "Comma expected, but found character \"{}\".",
                        sanitize(reader.peek())
                    )));
                }
                reader.advance();
            }
            b'p' => {
                return Err(malformed(
                    "The client selected SCRAM-SHA-256 without channel binding, but the SCRAM message includes channel binding data.",
                ))
            }
            other => {
                return Err(malformed(format!(
                    "Unexpected channel-binding flag \"{}\".",
                    sanitize(other)
                )))
            }
        }
        match reader.peek() {
            b',' => reader.advance(),
            b'a' => {
                return Err(Report::fatal(
                    b"0A000",
                    "client uses authorization identity, but it is not supported",
                ))
            }
            other => {
                return Err(malformed(format!(
                    "Unexpected attribute \"{}\" in client-first-message.",
                    sanitize(other)
                )))
            }
        }
        let client_first_bare = reader.rest().to_vec();
        if reader.peek() == b'm' {
            return Err(Report::fatal(
                b"0A000",
                "client requires an unsupported SCRAM extension",
            ));
        }
        reader.value_of(b'n')?;
        let client_nonce = reader.value_of(b'r')?;
        if !client_nonce
            .iter()
            .all(|byte| (0x21..=0x7e).contains(byte) && *byte != b',')
        {
            return Err(Report::fatal(
                b"08P01",
                "non-printable characters in SCRAM nonce",
            ));
        }
        while !reader.rest().is_empty() {
            reader.any()?;
        }

        let full_nonce = [client_nonce, server_nonce.as_bytes()].concat();
        let server_first = [
            b"r=".as_slice(),
            &full_nonce,
            format!(",s={},i={}", verifier.salt, verifier.iterations).as_bytes(),
        ]
        .concat();
        Ok(ServerExchange {
            verifier,
            channel_binding_flag,
            binding,
            client_first_bare,
            server_first,
            full_nonce,
        })
    }

    /// The server's first message.
    pub fn server_first(&self) -> &[u8] {
        &self.server_first
    }

    /// The channel binding that a client states in its final message if it sees the server's
    /// certificate.
    fn bound_to(&self) -> Vec<u8> {
        let hash = match &self.binding {
            Binding::Chosen(hash) => hash.as_slice(),
            _ => &[],
        };
        let input = [b"p=", END_POINT, b",,", hash].concat();
        STANDARD.encode(input).into_bytes()
    }

    /// Reads the client's final message (read_client_final_message) and checks its proof.
    /// Returns the server's final message; None if the proof is wrong, after the same work.
    pub fn finish(&self, message: &[u8]) -> Result<Option<Vec<u8>>, Report> {
        check_text(message)?;
        let mut reader = AttributeReader::new(message);
        match (reader.value_of(b'c')?, self.channel_binding_flag) {
            (given, b'p') => {
                if !equal(given, &self.bound_to()) {
                    return Err(Report::fatal(
                        b"28000",
                        "SCRAM channel binding check failed",
                    ));
                }
            }
            (b"biws", b'n') | (b"eSws", b'y') => {}
            _ => {
                return Err(Report::fatal(
                    b"08P01",
                    "unexpected SCRAM channel-binding attribute in client-final-message",
                ))
            }
        }
        let nonce = reader.value_of(b'r')?;
        let (without_proof, proof) = loop {
            let before = reader.position().saturating_sub(1);
            let (attribute, value) = reader.any()?;
            if attribute == b'p' {
                break (&message[..before], value);
            }
        };
        let Some(proof) = STANDARD
            .decode(proof)
            .ok()
            .and_then(|proof| Key::try_from(proof).ok())
        else {
            return Err(malformed("Malformed proof in client-final-message."));
        };
        if !reader.rest().is_empty() {
            return Err(malformed(
                "Garbage found at the end of client-final-message.",
            ));
        }
        if !equal(nonce, &self.full_nonce) {
            return Err(Report::fatal(b"08P01", "invalid SCRAM response")
                .with_detail("Nonce does not match."));
        }

        let auth_message: [&[u8]; 5] = [
            &self.client_first_bare,
            b",",
            &self.server_first,
            b",",
            without_proof,
        ];
        let client_key = xor(&proof, &hmac(&self.verifier.stored_key, &auth_message));
        let server_signature = hmac(&self.verifier.server_key, &auth_message);
        if !equal(&stored_key(&client_key), &self.verifier.stored_key) {
            return Ok(None);
        }
        let answer = format!("v={}", STANDARD.encode(server_signature));
        Ok(Some(answer.into_bytes()))
    }
}

#[cfg(test)]
#[path = "scram_tests.rs"]
mod tests;
