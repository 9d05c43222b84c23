//! The client's side of authentication, for tests of the server's side: what libpq would send
//! without channel binding.

use super::super::messages;
use super::keys::{hmac, stored_key, xor, Derivation, Key};
use super::scram::MECHANISM;
use super::verifier;
use base64::engine::general_purpose::STANDARD;
use base64::Engine;

/// The client's side of one exchange.
#[derive(Debug, Clone)]
pub struct ClientExchange {
    pub nonce: String,
}

/// The server's first message, parsed.
#[derive(Debug, Clone)]
pub struct Challenge {
    pub salt: Vec<u8>,
    pub iterations: u32,
    nonce: String,
    server_first: Vec<u8>,
}

impl ClientExchange {
    /// Begins with a new nonce.
    pub fn new() -> ClientExchange {
        let nonce = STANDARD.encode(rand::random::<[u8; 18]>());
        ClientExchange { nonce }
    }

    fn first_bare(&self) -> Vec<u8> {
        // The server takes the user's name from the startup packet.
        format!("n=,r={}", self.nonce).into_bytes()
    }

    pub fn client_first(&self) -> Vec<u8> {
        [b"n,,".as_slice(), &self.first_bare()].concat()
    }

    pub fn challenge(&self, server_first: &[u8]) -> Challenge {
        let text = std::str::from_utf8(server_first).unwrap();
        let mut parts = text.split(',');
        let mut part = |name: &str| parts.next().unwrap().strip_prefix(name).unwrap();
        let (nonce, salt, iterations) = (part("r="), part("s="), part("i="));
        assert!(nonce.starts_with(&self.nonce) && nonce.len() > self.nonce.len());
        Challenge {
            salt: STANDARD.decode(salt).unwrap(),
            iterations: iterations.parse().unwrap(),
            nonce: nonce.to_owned(),
            server_first: server_first.to_vec(),
        }
    }

    /// The final message, and the answer of a server that has this key.
    pub fn client_final(
        &self,
        challenge: &Challenge,
        client_key: &Key,
        server_key: &Key,
    ) -> (Vec<u8>, Vec<u8>) {
        let without_proof = format!("c=biws,r={}", challenge.nonce);
        let first_bare = self.first_bare();
        let auth_message: [&[u8]; 5] = [
            &first_bare,
            b",",
            &challenge.server_first,
            b",",
            without_proof.as_bytes(),
        ];
        let proof = xor(client_key, &hmac(&stored_key(client_key), &auth_message));
        let message = format!("{without_proof},p={}", STANDARD.encode(proof)).into_bytes();
        let answer = format!("v={}", STANDARD.encode(hmac(server_key, &auth_message)));
        (message, answer.into_bytes())
    }
}

/// What a client has to prove its identity.
#[derive(Debug, Clone)]
pub enum Proof {
    Password(Vec<u8>),
    ClientKey(Key),
}

/// A client that logs in as alice.
#[derive(Debug)]
pub struct ClientAuth {
    proof: Proof,
    exchange: ClientExchange,
    /// The server's expected last message.
    expected: Option<Vec<u8>>,
}

impl ClientAuth {
    pub fn new(proof: Proof) -> ClientAuth {
        ClientAuth {
            proof,
            exchange: ClientExchange::new(),
            expected: None,
        }
    }

    fn password(&self) -> &[u8] {
        match &self.proof {
            Proof::Password(password) => password,
            Proof::ClientKey(_) => panic!("asked for a password"),
        }
    }

    /// Answers one Authentication message; the answer to SCRAM's last one is empty.
    pub fn answer(&mut self, request: u32, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match request {
            3 => messages::password(&mut out, self.password()),
            5 => {
                let hash = verifier::md5_encrypt(self.password(), b"alice");
                let salt = data.try_into().unwrap();
                messages::password(&mut out, &verifier::md5_response(&hash, salt));
            }
            10 => {
                assert_eq!(data, [MECHANISM.as_bytes(), b"\0\0"].concat());
                let first = self.exchange.client_first();
                messages::sasl_initial_response(&mut out, MECHANISM, &first);
            }
            11 => {
                let challenge = self.exchange.challenge(data);
                let (client_key, server_key) = match &self.proof {
                    Proof::ClientKey(key) => (*key, [0; 32]),
                    Proof::Password(password) => {
                        let (salt, count) = (&challenge.salt, challenge.iterations);
                        let keys = Derivation::begin(password, salt, count).step(u32::MAX);
                        let keys = keys.unwrap();
                        (*keys.client_key(), *keys.server_key())
                    }
                };
                let exchange = &self.exchange;
                let (message, answer) = exchange.client_final(&challenge, &client_key, &server_key);
                self.expected = Some(answer);
                messages::sasl_response(&mut out, &message);
            }
            12 => assert_eq!(self.expected.as_deref(), Some(data)),
            other => panic!("request {other}"),
        }
        out
    }
}
