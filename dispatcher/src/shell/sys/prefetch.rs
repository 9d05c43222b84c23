//! Has the processor fetch memory that is needed soon, while there is something else
//! to do. A hint: nothing comes of it where the processor has no such instruction, or
//! where nothing is at an address any more.

use foreign_types::ForeignTypeRef;
use openssl::ssl::SslStream;

const CACHE_LINE_BYTES: usize = 64;

/// All of it.
pub fn prefetch<T>(what: &T) {
    let start = std::ptr::from_ref(what).addr();
    for at in (0..size_of::<T>()).step_by(CACHE_LINE_BYTES) {
        prefetch_line(start + at);
    }
}

/// Where the parts of a TLS session are that a turn begins with, each of which says
/// where the next one is: the session, its BIO, and what that reads and writes. They
/// stay where they are as long as the session is there.
pub struct SessionPlaces([usize; 3]);

/// Of each part, what is used of it in any case.
const PART_BYTES: usize = 2 * CACHE_LINE_BYTES;

impl SessionPlaces {
    pub fn of<S>(stream: &SslStream<S>) -> SessionPlaces {
        let session = stream.ssl().as_ptr();
        // SAFETY: the session lives through the call, which counts no reference.
        let bio = unsafe { openssl_sys::SSL_get_rbio(session) };
        let wire = std::ptr::from_ref(stream.get_ref());
        SessionPlaces([session.addr(), bio.addr(), wire.addr()])
    }

    pub fn prefetch(&self) {
        for start in self.0 {
            for at in (0..PART_BYTES).step_by(CACHE_LINE_BYTES) {
                prefetch_line(start + at);
            }
        }
    }
}

/// The line that an address is in.
fn prefetch_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: it reads nothing that a program sees, and no address makes it fail.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
