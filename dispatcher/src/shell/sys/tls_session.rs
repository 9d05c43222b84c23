//! A TLS session of OpenSSL's, whose large structures are put away while it has nothing to
//! do (`session_blocks.rs`).
//!
//! The only owner of its address: whoever uses it goes through [`TlsSession::stream`] or
//! [`TlsSession::work`], and so wakes it. A thread uses one at a time.

use super::openssl_memory::{about_to_free, working_for, WrittenTo};
use super::prefetch::SessionPlaces;
use super::session_blocks::SessionBlocks;
use openssl::error::ErrorStack;
use openssl::ssl::{Ssl, SslStream};
use std::io::{Read, Write};

/// Fields are dropped in this order: blocks are free by then.
pub struct TlsSession<S> {
    stream: SslStream<S>,
    blocks: SessionBlocks,
    /// What has been decrypted in there.
    written_to: WrittenTo,
    places: SessionPlaces,
}

impl<S: Read + Write> TlsSession<S> {
    /// `open` has OpenSSL make it, which reads and writes the wire.
    pub fn new(
        open: impl FnOnce() -> Result<Ssl, ErrorStack>,
        wire: S,
    ) -> Result<TlsSession<S>, ErrorStack> {
        let blocks = SessionBlocks::new();
        let mut written_to = WrittenTo::default();
        let stream = working_for(&mut written_to, blocks.slot(), || {
            open().and_then(|ssl| SslStream::new(ssl, wire))
        })?;
        Ok(TlsSession {
            places: SessionPlaces::of(&stream),
            stream,
            blocks,
            written_to,
        })
    }

    /// For what neither decrypts nor changes keys.
    pub fn stream(&mut self) -> &mut SslStream<S> {
        self.blocks.wake();
        &mut self.stream
    }

    pub fn work<R>(&mut self, work: impl FnOnce(&mut SslStream<S>) -> R) -> R {
        self.blocks.wake();
        let stream = &mut self.stream;
        working_for(&mut self.written_to, self.blocks.slot(), || work(stream))
    }

    /// It has nothing to do for a while. Next to nothing if it rests already.
    pub fn rest(&mut self) {
        self.blocks.rest();
    }

    #[allow(dead_code, reason = "for tests and the fuzzer")]
    pub fn is_at_rest(&self) -> bool {
        self.blocks.is_at_rest()
    }

    /// It is soon to be worked with.
    pub fn prefetch(&self) {
        self.places.prefetch();
    }
}

impl<S> Drop for TlsSession<S> {
    fn drop(&mut self) {
        self.blocks.wake();
        about_to_free(self.written_to);
    }
}
