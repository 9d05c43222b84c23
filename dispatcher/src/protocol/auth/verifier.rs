//! The server's stored form of a password (`pg_authid.rolpassword`), and the comparison of a
//! password with it.
//!
//! Follows get_password_type and plain_crypt_verify (backend/libpq/crypt.c) and
//! parse_scram_secret (backend/libpq/auth-scram.c).

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use md5::{Digest, Md5};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::keys::{Derivation, Key, DEFAULT_ITERATIONS};
use super::Secret;

/// Bytes of salt in a mock verifier (SCRAM_DEFAULT_SALT_LEN).
const MOCK_SALT_BYTES: usize = 16;

/// A role's stored password, parsed.
#[derive(Debug, Clone)]
pub enum Verifier {
    /// `md5` and 32 hexadecimal digits, as stored.
    Md5(Secret),
    /// A SCRAM secret.
    Scram(ScramVerifier),
}

/// `SCRAM-SHA-256$iterations:salt$stored:server`.
#[derive(Clone)]
pub struct ScramVerifier {
    /// How often the hash is iterated.
    pub iterations: u32,
    /// Base64, as stored: it is sent to the client unchanged.
    pub salt: String,
    /// H(ClientKey).
    pub stored_key: Key,
    /// HMAC(SaltedPassword, "Server Key").
    pub server_key: Key,
}

impl std::fmt::Debug for ScramVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScramVerifier")
    }
}

impl Verifier {
    /// None if the text is of no kind that PostgreSQL stores.
    pub fn parse(stored: &[u8]) -> Option<Verifier> {
        if let Some(digits) = stored.strip_prefix(b"md5") {
            // MD5_PASSWD_CHARSET (common/md5.h) has lower-case digits only.
            let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            if digits.len() == 32 && digits.iter().all(is_digit) {
                return Some(Verifier::Md5(Secret::new(stored)));
            }
        }
        ScramVerifier::parse(stored).map(Verifier::Scram)
    }
}

impl ScramVerifier {
    /// None if the text is not well formed.
    pub fn parse(stored: &[u8]) -> Option<ScramVerifier> {
        let rest = std::str::from_utf8(stored)
            .ok()?
            .strip_prefix("SCRAM-SHA-256$")?;
        let (iterations, rest) = rest.split_once(':')?;
        let (salt, rest) = rest.split_once('$')?;
        let (stored_key, server_key) = rest.split_once(':')?;
        STANDARD.decode(salt).ok()?;
        if salt.is_empty() {
            return None;
        }
        Some(ScramVerifier {
            iterations: iterations.parse().ok().filter(|count| *count > 0)?,
            salt: salt.to_owned(),
            stored_key: STANDARD.decode(stored_key).ok()?.try_into().ok()?,
            server_key: STANDARD.decode(server_key).ok()?.try_into().ok()?,
        })
    }

    /// Begins to derive the keys from `password` with this salt.
    pub(super) fn derivation(&self, password: &[u8]) -> Derivation {
        // Invariant: the salt was decoded when this verifier was parsed or made.
        let salt = STANDARD.decode(&self.salt).unwrap_or_default();
        Derivation::begin(password, &salt, self.iterations)
    }

    #[cfg(test)]
    pub fn derive(&self, password: &[u8]) -> super::keys::Keys {
        self.derivation(password).step(u32::MAX).unwrap()
    }
}

/// The secret from which the salt of a user without a stored one is derived.
///
/// The salt for a user must always be the same, whenever and on whichever port the client asks:
/// otherwise two attempts show that it is made up. So this should be the server's own mock
/// authentication nonce (GetMockAuthenticationNonce), with which the server's port and every
/// dispatcher give the same salt.
#[derive(Clone)]
pub struct MockSecret(Secret);

impl std::fmt::Debug for MockSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MockSecret")
    }
}

impl MockSecret {
    /// From the server's nonce, or any other secret of the cluster.
    pub fn new(bytes: impl Into<Vec<u8>>) -> MockSecret {
        MockSecret(Secret::new(bytes))
    }

    /// A secret that lasts until this process ends.
    pub fn random() -> MockSecret {
        MockSecret::new(rand::random::<[u8; 32]>())
    }

    /// A verifier that no password matches, made as in mock_scram_secret and scram_mock_salt.
    pub fn verifier(&self, user: &[u8]) -> ScramVerifier {
        let digest = Sha256::new()
            .chain_update(user)
            .chain_update(self.0.expose())
            .finalize();
        ScramVerifier {
            iterations: DEFAULT_ITERATIONS,
            salt: STANDARD.encode(&digest[..MOCK_SALT_BYTES]),
            stored_key: [0; 32],
            server_key: [0; 32],
        }
    }
}

/// `md5` and the hexadecimal digest of both texts (pg_md5_encrypt, common/md5_common.c).
pub fn md5_encrypt(text: &[u8], salt: &[u8]) -> Vec<u8> {
    let digest = Md5::new().chain_update(text).chain_update(salt).finalize();
    let mut out = b"md5".to_vec();
    for byte in digest {
        out.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    out
}

/// The answer to a salt by a client that knows `stored` (md5 and digits).
pub fn md5_response(stored: &[u8], salt: [u8; 4]) -> Vec<u8> {
    md5_encrypt(stored.strip_prefix(b"md5").unwrap_or(stored), &salt)
}

/// Are the bytes equal? Takes equally long for any content of the same length.
pub fn equal(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Password "pencil", salt and count of RFC 7677.
    pub const RFC: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[test]
    fn verifier_of_the_rfcs_password_is_recognised() {
        let verifier = ScramVerifier::parse(RFC.as_bytes()).unwrap();
        let keys = verifier.derive(b"pencil");
        assert_eq!(keys.stored_key(), verifier.stored_key);
        assert_eq!(*keys.server_key(), verifier.server_key);
        assert_ne!(
            verifier.derive(b"pencil ").stored_key(),
            verifier.stored_key
        );
    }

    #[test]
    fn malformed_verifiers_are_none() {
        let md5 = "md5a3556571e93b0d20722ba62be61e8c2d";
        assert!(matches!(
            Verifier::parse(md5.as_bytes()),
            Some(Verifier::Md5(_))
        ));
        let key = "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=";
        for bad in [
            "".to_owned(),
            "md5".to_owned(),
            md5.to_uppercase(),
            md5.replace('a', "A"),
            md5.replace('a', "g"),
            format!("{md5}0"),
            "plain".to_owned(),
            "SCRAM-SHA-256$".to_owned(),
            format!("SCRAM-SHA-1$4096:AAAA${key}:{key}"),
            format!("SCRAM-SHA-256$0:AAAA${key}:{key}"),
            format!("SCRAM-SHA-256$-1:AAAA${key}:{key}"),
            format!("SCRAM-SHA-256$x:AAAA${key}:{key}"),
            format!("SCRAM-SHA-256$99999999999999999999:AAAA${key}:{key}"),
            format!("SCRAM-SHA-256$4096:${key}:{key}"),
            format!("SCRAM-SHA-256$4096:A*AA${key}:{key}"),
            format!("SCRAM-SHA-256$4096:AAAA${key}"),
            format!("SCRAM-SHA-256$4096:AAAA${key}:AAAA"),
            format!("SCRAM-SHA-256$4096:AAAA$AAAA:{key}"),
            format!("SCRAM-SHA-256$4096:AAAA${key}:{key}x"),
        ] {
            assert!(Verifier::parse(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(Verifier::parse(b"\xff\xfe").is_none());
    }

    #[test]
    fn md5_is_the_servers() {
        // printf secretalice | md5sum
        assert_eq!(
            md5_encrypt(b"secret", b"alice"),
            b"md54a0a68b43b6cd5cf266fa02f196e2371".to_vec()
        );
    }

    #[test]
    fn mock_verifier_is_stable_for_a_user_and_differs_between_users() {
        let mock = MockSecret::new(*b"nonce");
        assert_eq!(mock.verifier(b"a").salt, mock.verifier(b"a").salt);
        assert_ne!(mock.verifier(b"a").salt, mock.verifier(b"b").salt);
        assert_ne!(
            mock.verifier(b"a").salt,
            MockSecret::random().verifier(b"a").salt
        );
        assert_eq!(mock.verifier(b"a").salt.len(), 24);
    }
}
