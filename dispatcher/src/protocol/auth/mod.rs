//! Authentication of clients.
//!
//! [`server`] decides whether a client may log in, in place of the server and
//! with its rules. [`keys`], [`scram`] and [`verifier`] are the mechanics.
//!
//! Turning a password into keys costs about a millisecond of CPU
//! (PBKDF2), so it is a job of its own that the caller runs on another thread.

pub mod keys;
pub mod scram;
mod scram_text;
pub mod server;
pub mod verifier;

use zeroize::Zeroizing;

/// A password, key or the like: never shown by `Debug`, overwritten
/// when dropped. It lies in one place of the heap, wherever it is moved.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the bytes over.
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
