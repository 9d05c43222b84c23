//! Keys of SCRAM (RFC 5802), derived from a password.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use stringprep::tables;
use unicode_normalization::UnicodeNormalization;
use zeroize::{Zeroize, Zeroizing};

/// A key of the size of SHA-256.
pub type Key = [u8; 32];

/// SCRAM_DEFAULT_ITERATIONS (common/scram-common.h).
pub const DEFAULT_ITERATIONS: u32 = 4096;
/// The client's key and the server's, derived from a password with a salt and an iteration
/// count. They stay in one place of the heap, wherever this value is moved, until they are
/// overwritten.
pub struct Keys(Box<[Key; 2]>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    fn from_salted(salted: &Key) -> Keys {
        let made = [b"Client Key", b"Server Key"].map(|name| hmac(salted, &[name]));
        Keys(Box::new(made))
    }

    /// Proves that a client knows the password.
    #[cfg(test)]
    pub fn client_key(&self) -> &Key {
        &self.0[0]
    }

    /// Proves that the server is the one that has the verifier.
    pub fn server_key(&self) -> &Key {
        &self.0[1]
    }

    #[cfg(test)]
    /// H(ClientKey).
    pub fn stored_key(&self) -> Key {
        stored_key(self.client_key())
    }
}

pub(super) fn stored_key(client_key: &Key) -> Key {
    Sha256::digest(client_key).into()
}

pub(super) fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    // HMAC takes a key of any length: new_from_slice of Hmac never fails.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return [0; 32];
    };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// PBKDF2 of the prepared password (scram_SaltedPassword, common/scram-common.c), as far as it
/// has been computed.
pub(super) struct Derivation {
    /// Two states of SHA-256 that the password was put into. The crates do not overwrite them.
    mac: Hmac<Sha256>,
    last: Key,
    salted: Key,
    iterations_left: u32,
}

impl std::fmt::Debug for Derivation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Derivation")
    }
}

impl Derivation {
    /// Begins, with the first iteration done.
    pub(super) fn begin(password: &[u8], salt: &[u8], iterations: u32) -> Derivation {
        let begun = Derivation::compute_first(password, salt, iterations);
        overwrite_stack();
        begun
    }

    /// Leaves the password in its stack frames: the hmac crate pads the key in an array there.
    #[inline(never)]
    fn compute_first(password: &[u8], salt: &[u8], iterations: u32) -> Derivation {
        let prepared = prepare(password);
        let key = Hmac::<Sha256>::new_from_slice(&prepared);
        // HMAC takes a key of any length.
        let mac = key.unwrap_or_else(|_| Hmac::<Sha256>::new(&Default::default()));
        let first = mac
            .clone()
            .chain_update(salt)
            .chain_update(1u32.to_be_bytes());
        let last: Key = first.finalize().into_bytes().into();
        Derivation {
            mac,
            last,
            salted: last,
            iterations_left: iterations.saturating_sub(1),
        }
    }

    /// Does at most `most` iterations. Returns the keys when all are done. 4,096 iterations
    /// take about a millisecond of CPU.
    pub(super) fn step(&mut self, most: u32) -> Option<Keys> {
        let now = self.iterations_left.min(most);
        for _ in 0..now {
            let next = self.mac.clone().chain_update(self.last);
            self.last = next.finalize().into_bytes().into();
            self.salted = xor(&self.salted, &self.last);
        }
        self.iterations_left -= now;
        (self.iterations_left == 0).then(|| Keys::from_salted(&self.salted))
    }
}

/// Overwrites the stack frames that the function called before this one has left: both frames
/// begin at the same place. Each is a function of its own, never a part of its caller.
#[inline(never)]
fn overwrite_stack() {
    // compute_first and what it calls take 1 to 2 kB in a release build.
    [0xffu8; 8192].zeroize();
}

/// SASLprep. A password that it does not allow is used unchanged, as in
/// pg_be_scram_build_secret and libpq.
pub(super) fn prepare(password: &[u8]) -> Zeroizing<Vec<u8>> {
    if password.is_ascii() {
        // pg_saslprep (common/saslprep.c) lets ASCII pass, control characters included.
        return Zeroizing::new(password.to_vec());
    }
    let prepared = std::str::from_utf8(password).ok().and_then(saslprep);
    Zeroizing::new(prepared.map_or_else(|| password.to_vec(), String::into_bytes))
}

/// Follows pg_saslprep, which rejects prohibited characters before it normalises; RFC 4013, and
/// the crate's own function, do that afterwards.
fn saslprep(text: &str) -> Option<String> {
    // The mapped text is no longer than the original, so the string does not grow and leave
    // copies behind.
    let mut mapped = Zeroizing::new(String::with_capacity(text.len()));
    let letters = text
        .chars()
        .map(|c| match c {
            c if tables::non_ascii_space_character(c) => ' ',
            c => c,
        })
        .filter(|c| !tables::commonly_mapped_to_nothing(*c));
    mapped.extend(letters);
    let is_prohibited = |c| {
        tables::ascii_control_character(c)
            || tables::non_ascii_control_character(c)
            || tables::private_use(c)
            || tables::non_character_code_point(c)
            || tables::inappropriate_for_plain_text(c)
            || tables::inappropriate_for_canonical_representation(c)
            || tables::change_display_properties_or_deprecated(c)
            || tables::tagging_character(c)
            || tables::unassigned_code_point(c)
    };
    if mapped.is_empty() || mapped.chars().any(is_prohibited) {
        return None;
    }
    if mapped.contains(tables::bidi_r_or_al) {
        let is_whole = mapped.starts_with(tables::bidi_r_or_al)
            && mapped.ends_with(tables::bidi_r_or_al)
            && !mapped.contains(tables::bidi_l);
        if !is_whole {
            return None;
        }
    }
    Some(mapped.nfkc().collect())
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for Derivation {
    fn drop(&mut self) {
        self.last.zeroize();
        self.salted.zeroize();
    }
}

pub(super) fn xor(left: &Key, right: &Key) -> Key {
    std::array::from_fn(|at| left[at] ^ right[at])
}
