//! Authentication of clients.
//!
//! [`server`] decides in the server's place and with its rules whether a client may log in.
//! [`keys`], [`scram`] and [`verifier`] are the mechanics.
//!
//! To turn a password into keys takes about a millisecond of CPU (PBKDF2), so that is a
//! separate job, which the caller runs on another thread.

pub mod keys;
pub mod scram;
mod scram_text;
pub mod server;
pub mod verifier;

use zeroize::Zeroizing;

/// A password, key or the like. `Debug` does not show it, and it is overwritten when dropped.
/// It stays in one place of the heap, wherever the value is moved.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes over the bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Secret {
        Secret(Zeroizing::new(bytes.into()))
    }

    /// The bytes themselves.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod mock_tests;
#[cfg(test)]
mod test_client;
