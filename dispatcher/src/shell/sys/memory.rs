//! Memory that processes share, and memory that is overwritten after use.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

// ---- Memory that processes share ------------------------------------------
//
// Shared memory: mapping what the postmaster made, making our own.
//
// Mappings live as long as the process, which is why they are `'static`.

fn memfd(name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` is a C string; the result is a new descriptor.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
    // SAFETY: new, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has free() join a small block with its neighbours at once. glibc keeps those of up to
/// 128 bytes apart otherwise, and one later call joins them all (malloc_consolidate()): of a
/// session that had 600,000 statements that was a turn of 8 ms.
pub fn join_free_blocks_at_once() {
    // SAFETY: it changes how malloc works and touches nothing else; before the first thread.
    unsafe { libc::mallopt(libc::M_MXFAST, 0) };
}

/// A descriptor that stands for nothing.
pub fn placeholder() -> io::Result<OwnedFd> {
    memfd(c"pg_baton placeholder")
}

/// A descriptor that whoever started this process has left for it. Must be
/// called once a number, before any descriptor is opened.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl touches no memory.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and by the convention with the launcher ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn map(fd: RawFd, length: usize) -> io::Result<*mut u8> {
    // SAFETY: a new shared mapping at an address the kernel chooses; it is
    // never unmapped.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(address.cast())
}

fn seal(fd: RawFd, seals: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) })?;
    Ok(())
}

/// A new memory of `length` bytes, zeroed, that other processes may map to
/// read; only this process writes. Pages cost nothing until they are used.
///
/// It is sealed: who holds its descriptor can neither shorten it, which would
/// be a SIGBUS for all who have mapped it, nor write to it.
pub fn create(length: usize) -> io::Result<(OwnedFd, &'static mut [u8])> {
    let fd = memfd(c"pg_baton arena")?;
    let size = libc::off_t::try_from(length).map_err(io::Error::other)?;
    // SAFETY: no pointers.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })?;
    let address = map(fd.as_raw_fd(), length)?;
    seal(fd.as_raw_fd(), libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    // Linux 5.1; before that it may be written to.
    let _ = seal(fd.as_raw_fd(), libc::F_SEAL_FUTURE_WRITE);
    seal(fd.as_raw_fd(), libc::F_SEAL_SEAL)?;
    // SAFETY: the mapping has `length` bytes, lives for ever, was made just
    // now so that this is its only reference here, and no other process
    // writes to it.
    Ok((fd, unsafe {
        std::slice::from_raw_parts_mut(address, length)
    }))
}

/// A memory as the postmaster makes it, for tests.
#[cfg(test)]
pub fn unsealed(length: usize) -> io::Result<OwnedFd> {
    let fd = memfd(c"pg_baton control")?;
    let size = libc::off_t::try_from(length).map_err(io::Error::other)?;
    // SAFETY: no pointers.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })?;
    Ok(fd)
}

/// A memory that other processes write too: only reached through atomics.
#[derive(Clone, Copy)]
pub struct SharedMapping {
    address: *const u8,
    length: usize,
}

impl SharedMapping {
    /// Maps all of `fd`.
    pub fn open(fd: RawFd) -> io::Result<SharedMapping> {
        // SAFETY: an all-zero stat is valid, and fstat fills it.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `status` lives through the call.
        check(unsafe { libc::fstat(fd, &mut status) })?;
        let length = usize::try_from(status.st_size).map_err(io::Error::other)?;
        if length == 0 {
            return Err(io::Error::other("the control memory is empty"));
        }
        Ok(SharedMapping {
            address: map(fd, length)?,
            length,
        })
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// `count` structures at `offset`; None if they do not lie within.
    ///
    /// `T` must consist of atomics alone (the structures of layout.rs do).
    pub fn slice<T>(&self, offset: u64, count: u32) -> Option<&'static [T]> {
        let offset = usize::try_from(offset).ok()?;
        let bytes = std::mem::size_of::<T>().checked_mul(count as usize)?;
        let end = offset.checked_add(bytes)?;
        if end > self.length || offset % std::mem::align_of::<T>() != 0 {
            return None;
        }
        // SAFETY: within the mapping and aligned (a mapping starts at a page),
        // which lives for ever; atomics may be shared with other processes and
        // every bit pattern of them is valid.
        Some(unsafe {
            std::slice::from_raw_parts(self.address.add(offset).cast::<T>(), count as usize)
        })
    }
}

/// The bytes of an integer or a structure of layout.rs, to copy it into a memory.
pub fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: only used for integers and the repr(C) structures of layout.rs, which
    // have no padding (build.rs has it asserted).
    unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(value).cast::<u8>(),
            std::mem::size_of::<T>(),
        )
    }
}

/// The integer, or structure of layout.rs, that these bytes are.
pub fn value_of<T: Copy>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), std::mem::size_of::<T>());
    // SAFETY: as many bytes as it has, at whatever address; only used for integers and
    // the structures of integers in layout.rs, of which every bit pattern is valid.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

// ---- Memory that is overwritten after use ---------------------------------
//
// What clients and backends say to each other, where this program has it in the
// clear: it is overwritten as soon as it has gone on.
//
// Secrets are in `zeroize`'s hands, which writes byte by byte. This may be
// megabytes a second, so it is one memset.

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
