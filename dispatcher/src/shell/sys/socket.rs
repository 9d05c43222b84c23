//! Sockets: listening, connecting, reading and writing.

use super::address::{address_of, inet_address, unix_address};
pub use super::address::{is_abstract, loopback, Address};
use super::{check, check_length};
use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

pub(super) fn own(fd: libc::c_int) -> OwnedFd {
    // SAFETY: callers pass a descriptor that a system call has just made.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn new_socket(family: i32, kind: i32) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    Ok(own(check(fd)?))
}

pub(super) fn set_option(fd: RawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: `value` lives through the call.
    check(unsafe {
        libc::setsockopt(
            fd,
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// What the server's parameters set of a TCP socket, tcp_keepalives_idle first.
const KEEPALIVES: [i32; 4] = [
    libc::TCP_KEEPIDLE,
    libc::TCP_KEEPINTVL,
    libc::TCP_KEEPCNT,
    libc::TCP_USER_TIMEOUT,
];
pub type Keepalives = [i32; KEEPALIVES.len()];

/// 0 for what cannot be told.
pub fn keepalives(fd: RawFd) -> Keepalives {
    KEEPALIVES.map(|option| {
        let mut value = 0i32;
        let mut length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: both live through the call, and `length` is the right size.
        let result = unsafe {
            libc::getsockopt(
                fd,
                libc::IPPROTO_TCP,
                option,
                std::ptr::from_mut(&mut value).cast(),
                &mut length,
            )
        };
        if result == 0 {
            value
        } else {
            0
        }
    })
}

/// Sets those that are `wanted` otherwise than they `are`.
pub fn set_keepalives(fd: RawFd, are: &Keepalives, wanted: &Keepalives) {
    for (at, option) in KEEPALIVES.into_iter().enumerate() {
        if are[at] != wanted[at] {
            // As in stock the session goes on without.
            let _ = set_option(fd, libc::IPPROTO_TCP, option, wanted[at]);
        }
    }
}

/// Listens on a TCP address; IPv6 sockets take IPv6 alone, as stock's do.
pub fn listen_tcp(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() {
        libc::AF_INET6
    } else {
        libc::AF_INET
    };
    let fd = new_socket(family, libc::SOCK_STREAM)?;
    set_option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if address.is_ipv6() {
        set_option(fd.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    // Linux hands these down to what is accepted: what stock gives its
    // connections (StreamConnection, pqcomm.c), no delay and keepalive.
    set_option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    set_option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    // A client is accepted when it has spoken; a silent one a second later.
    set_option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1)?;
    let (storage, length) = inet_address(address);
    // SAFETY: `storage` lives through the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&storage).cast(), length) })?;
    listen(&fd)?;
    Ok(fd)
}

fn listen(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointers. The kernel lowers the number to its own limit.
    check(unsafe { libc::listen(fd.as_raw_fd(), 4096) })?;
    Ok(())
}

/// Kinds of Unix sockets in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Stream,
    Packets,
}

impl Kind {
    fn number(self) -> i32 {
        match self {
            Kind::Stream => libc::SOCK_STREAM,
            Kind::Packets => libc::SOCK_SEQPACKET,
        }
    }
}

/// Listens on a Unix socket. A file that nobody listens on any more is
/// removed first; one that somebody does is `AddrInUse`.
pub fn listen_unix(path: &Path, kind: Kind, mode: u32, group: Option<u32>) -> io::Result<OwnedFd> {
    match connect_unix(path, kind) {
        Ok(_) => return Err(io::Error::from(io::ErrorKind::AddrInUse)),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
            return Err(io::Error::from(io::ErrorKind::AddrInUse))
        }
        Err(_) => {}
    }
    let is_file = !is_abstract(path);
    if is_file {
        if let Err(error) = std::fs::remove_file(path) {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
        }
    }
    let fd = new_socket(libc::AF_UNIX, kind.number())?;
    let (address, length) = unix_address(path)?;
    // SAFETY: `address` lives through the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) })?;
    if is_file {
        if let Some(group) = group {
            std::os::unix::fs::chown(path, None, Some(group))?;
        }
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
    }
    listen(&fd)?;
    Ok(fd)
}

/// Connects at once or fails; EAGAIN means that the other end is too busy.
pub fn connect_unix(path: &Path, kind: Kind) -> io::Result<OwnedFd> {
    let fd = new_socket(libc::AF_UNIX, kind.number())?;
    let (address, length) = unix_address(path)?;
    // SAFETY: `address` lives through the call.
    check(unsafe { libc::connect(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) })?;
    Ok(fd)
}

/// Begins to connect; the socket is writable once that has come to an end.
pub fn connect_tcp(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() {
        libc::AF_INET6
    } else {
        libc::AF_INET
    };
    let fd = new_socket(family, libc::SOCK_STREAM)?;
    set_option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    let (storage, length) = inet_address(address);
    // SAFETY: `storage` lives through the call.
    let result = check(unsafe {
        libc::connect(fd.as_raw_fd(), std::ptr::from_ref(&storage).cast(), length)
    });
    match result {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(fd),
    }
}

/// A connection and its peer's address.
pub fn accept(listener: RawFd) -> io::Result<(OwnedFd, Address)> {
    // SAFETY: zeros are a valid address.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: both live through the call, and `length` is the size of `storage`.
    let fd = check(unsafe {
        libc::accept4(
            listener,
            std::ptr::from_mut(&mut storage).cast(),
            &mut length,
            libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        )
    })?;
    let fd = own(fd);
    let address = address_of(&storage);
    Ok((fd, address))
}

/// The address at our end.
pub fn local_address(fd: RawFd) -> io::Result<Address> {
    // SAFETY: zeros are a valid address.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: both live through the call, and `length` is the size of `storage`.
    check(unsafe { libc::getsockname(fd, std::ptr::from_mut(&mut storage).cast(), &mut length) })?;
    Ok(address_of(&storage))
}

/// Who is at the other end of a Unix socket: process and user.
pub fn peer(fd: RawFd) -> io::Result<(u32, u32)> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both live through the call, and `length` is the right size.
    check(unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut credentials).cast(),
            &mut length,
        )
    })?;
    Ok((credentials.pid as u32, credentials.uid))
}

fn receive_with(fd: RawFd, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes.
    check_length(|| unsafe {
        libc::recv(
            fd,
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            flags | libc::MSG_DONTWAIT,
        )
    })
}

pub fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    receive_with(fd, buffer, 0)
}

/// The first byte without taking it; None at the end of the connection.
pub fn peek(fd: RawFd) -> io::Result<Option<u8>> {
    let mut byte = [0];
    Ok(match receive_with(fd, &mut byte, libc::MSG_PEEK)? {
        0 => None,
        _ => Some(byte[0]),
    })
}

/// The first bytes without taking them; 0 at the end of the connection.
pub fn peek_bytes(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    receive_with(fd, buffer, libc::MSG_PEEK)
}

pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads `bytes.len()` bytes.
    check_length(|| unsafe {
        libc::send(
            fd,
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        )
    })
}

/// Reads and forgets what a client has sent, as far as it is here (bounded):
/// closing a connection with unread input resets it, and the client may then
/// lose the last word it was sent.
pub fn discard_input(fd: RawFd) {
    let mut buffer = [0; 16_384];
    for _ in 0..4 {
        match receive(fd, &mut buffer) {
            Ok(length) if length == buffer.len() => {}
            _ => return,
        }
    }
}

/// Ends the connection for every process that holds it.
pub fn shutdown(fd: RawFd) {
    // SAFETY: no memory involved; a connection already gone is no matter.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Nothing more will be sent; what was sent before still arrives.
pub fn shutdown_write(fd: RawFd) {
    // SAFETY: no memory involved; a connection already gone is no matter.
    unsafe { libc::shutdown(fd, libc::SHUT_WR) };
}

/// Two ends of one stream.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    pair_of(libc::SOCK_STREAM)
}

/// As the two ends of a control connection.
#[cfg(test)]
pub fn pair_of_packets() -> io::Result<(OwnedFd, OwnedFd)> {
    pair_of(libc::SOCK_SEQPACKET)
}

fn pair_of(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut ends = [-1; 2];
    // SAFETY: the kernel writes two numbers.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    Ok((own(ends[0]), own(ends[1])))
}

/// How many bytes lie there unread; of packets, those of the next one.
pub fn unread(fd: RawFd) -> usize {
    let mut length: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    unsafe { libc::ioctl(fd, libc::FIONREAD, &mut length) };
    usize::try_from(length).unwrap_or(0)
}

/// Can something be sent, or is the connection over?
pub fn has_room(fd: RawFd) -> bool {
    events(fd, libc::POLLOUT) != 0
}

/// Is it over in both directions? What was sent before may still be there to be read.
pub fn has_hung_up(fd: RawFd) -> bool {
    events(fd, 0) & libc::POLLHUP != 0
}

fn events(fd: RawFd, events: libc::c_short) -> libc::c_short {
    let mut wanted = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: `wanted` lives through the call, which does not wait.
    unsafe { libc::poll(&mut wanted, 1, 0) };
    wanted.revents
}

/// The memory that what is unread takes, and how much it may.
pub fn receive_memory(fd: RawFd) -> Option<(u32, u32)> {
    // SK_MEMINFO_RMEM_ALLOC and SK_MEMINFO_RCVBUF (linux/sock_diag.h) are first.
    let mut words = [0u32; 16];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: both live through the call, and `length` is the size of `words`.
    check(unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            std::ptr::from_mut(&mut words).cast(),
            &mut length,
        )
    })
    .ok()?;
    Some((words[0], words[1]))
}

/// Is there no descriptor, or no memory, for one more connection now?
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
    )
}
