//! What clients and backends say to each other, where this program has it in the
//! clear: it is overwritten as soon as it has gone on.
//!
//! Secrets are in `zeroize`'s hands, which writes byte by byte. This may be
//! megabytes a second, so it is one memset.

/// Overwrites what is of no use any more.
pub fn overwrite(bytes: &mut [u8]) {
    bytes.fill(0);
    // As if somebody looked: a write that nobody sees could be left out.
    std::hint::black_box(bytes);
}

/// What waits to be passed on.
#[derive(Default)]
pub struct Plaintext(Vec<u8>);

impl Plaintext {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of memory.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Keeps a copy, in place of nothing.
    pub fn keep(&mut self, bytes: &[u8]) {
        debug_assert!(self.0.is_empty());
        *self = Plaintext(bytes.to_vec());
    }

    /// So many of the first bytes have gone on.
    pub fn passed_on(&mut self, length: usize) {
        let left = Plaintext(self.0[length..].to_vec());
        *self = left;
    }
}

impl Drop for Plaintext {
    fn drop(&mut self) {
        overwrite(&mut self.0);
    }
}
