//! Memory that processes share, and memory that is overwritten after use.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

// ---- Memory that processes share ------------------------------------------
//
// Shared memory: mapping the memory that the postmaster has created, and creating the
// dispatcher's own.
//
// Mappings live as long as the process, so they are `'static`.

fn memfd(name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` is a C string; the result is a new descriptor.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
    // SAFETY: new, and without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes free() join a small block with its neighbours at once. Otherwise glibc keeps blocks of
/// up to 128 bytes apart until a later call joins them all (malloc_consolidate()). For a
/// session that had 600,000 statements that call took 8 ms.
pub fn join_free_blocks_at_once() {
    // SAFETY: it changes how malloc works and touches nothing else. It runs before the first
    // thread starts.
    unsafe { libc::mallopt(libc::M_MXFAST, 0) };
}

/// A descriptor that only occupies a number.
pub fn placeholder() -> io::Result<OwnedFd> {
    memfd(c"pg_baton placeholder")
}

/// A descriptor that the parent process has left for this one. Must be called once per number,
/// before any descriptor is opened.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl touches no memory.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and by convention with the launcher it belongs to this process alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Copies a structure of a shared memory ([`SharedMapping::slice`]), word by word.
pub fn copy_words<T>(from: &T, to: &T) {
    const { assert!(size_of::<T>() % 4 == 0 && align_of::<T>() >= 4) };
    for at in 0..size_of::<T>() / 4 {
        use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
        // SAFETY: within both structures, which consist of atomic integers and are aligned.
        unsafe {
            let from = std::ptr::from_ref(from).cast::<AtomicU32>().add(at);
            let to = std::ptr::from_ref(to).cast::<AtomicU32>().add(at);
            (*to).store((*from).load(SeqCst), SeqCst);
        }
    }
}

const READ_AND_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Maps a memory; `access` is PROT_READ, with PROT_WRITE or without it.
fn map(fd: RawFd, length: usize, access: libc::c_int) -> io::Result<*mut u8> {
    // SAFETY: a new shared mapping at an address the kernel chooses. Nothing
    // unmaps it but the drop of a `Remains`.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            access,
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

/// Creates a zeroed memory of `length` bytes. Other processes may map it to read; only this
/// process writes it. Pages cost nothing until they are used.
///
/// The memory is sealed. A process that holds its descriptor can neither shorten it, which
/// would cause a SIGBUS in every process that has mapped it, nor write to it.
pub fn create(length: usize) -> io::Result<(OwnedFd, &'static mut [u8])> {
    let fd = memfd(c"pg_baton arena")?;
    let size = libc::off_t::try_from(length).map_err(io::Error::other)?;
    // SAFETY: no pointers.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })?;
    let address = map(fd.as_raw_fd(), length, READ_AND_WRITE)?;
    seal(fd.as_raw_fd(), libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    // From Linux 5.1 on. Before that, other processes could write to it.
    let _ = seal(fd.as_raw_fd(), libc::F_SEAL_FUTURE_WRITE);
    seal(fd.as_raw_fd(), libc::F_SEAL_SEAL)?;
    // SAFETY: the mapping has `length` bytes and is never unmapped. It was made just now, so
    // this is its only reference in this process, and no other process writes to it.
    Ok((fd, unsafe {
        std::slice::from_raw_parts_mut(address, length)
    }))
}

/// A zeroed memory of words, which every process that has its descriptor may write.
pub fn words(length: usize) -> io::Result<OwnedFd> {
    let fd = memfd(c"pg_baton words")?;
    let size = libc::off_t::try_from(length).map_err(io::Error::other)?;
    // SAFETY: no pointers.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })?;
    Ok(fd)
}

/// Zeroed memory of this process, which is never given back.
pub fn anonymous(length: usize) -> io::Result<&'static mut [u8]> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address the kernel chooses; it is never unmapped.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, READ_AND_WRITE, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping has `length` bytes, and this is its only reference.
    Ok(unsafe { std::slice::from_raw_parts_mut(address.cast(), length) })
}

/// A memory that this process only reads, and that nobody writes any more.
pub struct Remains {
    address: *const u8,
    length: usize,
}

impl Remains {
    /// Maps all of `fd`.
    pub fn open(fd: RawFd) -> io::Result<Remains> {
        let length = length_of(fd)?;
        let address = map(fd, length, libc::PROT_READ)?;
        Ok(Remains {
            address: address.cast_const(),
            length,
        })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has `length` bytes and lives as long as `self`. Only the dispatcher
        // that has created the memory could write to it (`create`), and it has ended.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and no reference to it is left.
        unsafe { libc::munmap(self.address.cast_mut().cast(), self.length) };
    }
}

/// The size of a file, which is not 0.
fn length_of(fd: RawFd) -> io::Result<usize> {
    // SAFETY: an all-zero stat is valid, and fstat fills it.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `status` lives through the call.
    check(unsafe { libc::fstat(fd, &mut status) })?;
    match usize::try_from(status.st_size).map_err(io::Error::other)? {
        0 => Err(io::Error::other("the memory is empty")),
        length => Ok(length),
    }
}

/// A memory that other processes write too. It is accessed only through atomics.
#[derive(Clone, Copy)]
pub struct SharedMapping {
    address: *const u8,
    length: usize,
}

impl SharedMapping {
    /// Maps all of `fd`.
    pub fn open(fd: RawFd) -> io::Result<SharedMapping> {
        let length = length_of(fd)?;
        Ok(SharedMapping {
            address: map(fd, length, READ_AND_WRITE)?,
            length,
        })
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// `count` structures at `offset`; None if they do not lie within the mapping.
    ///
    /// `T` must consist of atomics alone (the structures of layout.rs do).
    pub fn slice<T>(&self, offset: u64, count: u32) -> Option<&'static [T]> {
        let offset = usize::try_from(offset).ok()?;
        let bytes = std::mem::size_of::<T>().checked_mul(count as usize)?;
        let end = offset.checked_add(bytes)?;
        if end > self.length || offset % std::mem::align_of::<T>() != 0 {
            return None;
        }
        // SAFETY: within the mapping, which is never unmapped, and aligned (a mapping starts at
        // a page). Atomics may be shared with other processes, and every bit pattern of them is
        // valid.
        Some(unsafe {
            std::slice::from_raw_parts(self.address.add(offset).cast::<T>(), count as usize)
        })
    }
}

/// The bytes of an integer or a structure of layout.rs, to copy it into a memory.
pub fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: used only for integers and the repr(C) structures of layout.rs, which have no
    // padding (build.rs asserts this).
    unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(value).cast::<u8>(),
            std::mem::size_of::<T>(),
        )
    }
}

/// Reads an integer, or a structure of layout.rs, from its bytes.
pub fn value_of<T: Copy>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), std::mem::size_of::<T>());
    // SAFETY: reads as many bytes as `T` has, at any address. Used only for integers and the
    // structures of integers in layout.rs, of which every bit pattern is valid.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

// ---- Memory that is overwritten after use ---------------------------------
//
// The messages between clients and backends that this program has in the clear. They are
// overwritten as soon as they have been passed on.
//
// `zeroize` handles secrets, and writes byte by byte. These messages may be megabytes a second,
// so one memset overwrites them.

/// Overwrites bytes that are no longer needed.
pub fn overwrite(bytes: &mut [u8]) {
    bytes.fill(0);
    // Keeps the compiler from removing the write, which is otherwise unused.
    std::hint::black_box(bytes);
}

/// Data that waits to be passed on.
#[derive(Default)]
pub struct Plaintext(Vec<u8>);

impl Plaintext {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The allocated bytes.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Keeps a copy. Nothing may be kept already.
    pub fn keep(&mut self, bytes: &[u8]) {
        debug_assert!(self.0.is_empty());
        *self = Plaintext(bytes.to_vec());
    }

    /// The first `length` bytes have been passed on.
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
