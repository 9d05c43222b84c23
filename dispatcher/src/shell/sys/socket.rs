//! Sockets: their calls, their addresses, and packets that carry descriptors.

use super::{check, check_length};
use std::io;
use std::mem::size_of;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

// ---- Sockets --------------------------------------------------------------
//
// Sockets: listening, connecting, reading and writing.

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

/// The options of a TCP socket that the server's parameters set, tcp_keepalives_idle first.
const KEEPALIVES: [i32; 4] = [
    libc::TCP_KEEPIDLE,
    libc::TCP_KEEPINTVL,
    libc::TCP_KEEPCNT,
    libc::TCP_USER_TIMEOUT,
];
pub type Keepalives = [i32; KEEPALIVES.len()];

/// The current values; 0 for an option that cannot be read.
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

/// Sets the options whose `wanted` value differs from the current one (`are`).
pub fn set_keepalives(fd: RawFd, are: &Keepalives, wanted: &Keepalives) {
    for (at, option) in KEEPALIVES.into_iter().enumerate() {
        if are[at] != wanted[at] {
            // As in stock, the session goes on without the option.
            let _ = set_option(fd, libc::IPPROTO_TCP, option, wanted[at]);
        }
    }
}

/// Listens on a TCP address. IPv6 sockets accept IPv6 only, as in stock.
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
    // On Linux accepted sockets inherit these options. Stock sets the same for its connections
    // (StreamConnection, pqcomm.c): no delay, and keepalive.
    set_option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    set_option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    // A connection is accepted when the client has sent something, or after a second.
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

/// The kinds of Unix sockets in use.
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

/// Listens on a Unix socket. A socket file without a listener is removed first. If another
/// process listens on it, the error is `AddrInUse`.
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

/// Connects at once or fails. EAGAIN means that the other end is too busy.
pub fn connect_unix(path: &Path, kind: Kind) -> io::Result<OwnedFd> {
    let fd = new_socket(libc::AF_UNIX, kind.number())?;
    let (address, length) = unix_address(path)?;
    // SAFETY: `address` lives through the call.
    check(unsafe { libc::connect(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) })?;
    Ok(fd)
}

/// Begins to connect. The socket is writable once the attempt has succeeded or failed.
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

/// Accepts a connection. Returns it with its peer's address.
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

/// The local address of a connection.
pub fn local_address(fd: RawFd) -> io::Result<Address> {
    // SAFETY: zeros are a valid address.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: both live through the call, and `length` is the size of `storage`.
    check(unsafe { libc::getsockname(fd, std::ptr::from_mut(&mut storage).cast(), &mut length) })?;
    Ok(address_of(&storage))
}

/// The process ID and the user ID at the other end of a Unix socket.
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

/// The first byte, without removing it; None at the end of the connection.
pub fn peek(fd: RawFd) -> io::Result<Option<u8>> {
    let mut byte = [0];
    Ok(match receive_with(fd, &mut byte, libc::MSG_PEEK)? {
        0 => None,
        _ => Some(byte[0]),
    })
}

/// The first bytes, without removing them; 0 at the end of the connection.
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

/// Reads and discards what a client has sent so far (bounded). Closing a connection with unread
/// input resets it, and the client might then lose the last message that it was sent.
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
    // SAFETY: no memory is passed. A connection that is gone already does not matter.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Ends the sending direction. What was sent before still arrives.
pub fn shutdown_write(fd: RawFd) {
    // SAFETY: no memory is passed. A connection that is gone already does not matter.
    unsafe { libc::shutdown(fd, libc::SHUT_WR) };
}

/// The two ends of a stream.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    pair_of(libc::SOCK_STREAM)
}

/// The two ends of a packet socket, like those of a control connection.
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

/// The number of unread bytes; on a packet socket those of the next packet.
pub fn unread(fd: RawFd) -> usize {
    let mut length: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    unsafe { libc::ioctl(fd, libc::FIONREAD, &mut length) };
    usize::try_from(length).unwrap_or(0)
}

/// Does the socket have room to send, or has the connection ended?
pub fn has_room(fd: RawFd) -> bool {
    events(fd, libc::POLLOUT) != 0
}

/// Has the connection ended in both directions? Data sent before may still be unread.
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

/// The memory that the unread data takes, and its limit, in bytes.
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

/// Is the error a lack of descriptors, or of memory, for one more connection?
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
    )
}

// ---- Addresses ------------------------------------------------------------
//
// Addresses of sockets: the kernel's form, and that of a session record.

/// The address at the other end, in the form of a session record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    pub family: u16,
    pub port: u16,
    pub bytes: [u8; 16],
    pub scope: u32,
}

impl Address {
    /// The address of a Unix socket.
    #[cfg(test)]
    pub fn local() -> Address {
        Address {
            family: libc::AF_UNIX as u16,
            ..Address::default()
        }
    }

    pub fn is_local(&self) -> bool {
        self.family == libc::AF_UNIX as u16 || self.family == 0
    }

    /// The address as text, as pg_stat_activity shows it; None on a Unix socket.
    pub fn text(&self) -> Option<String> {
        if self.family == libc::AF_INET as u16 {
            let [a, b, c, d, ..] = self.bytes;
            return Some(std::net::Ipv4Addr::new(a, b, c, d).to_string());
        }
        if self.family == libc::AF_INET6 as u16 {
            return Some(Ipv6Addr::from(self.bytes).to_string());
        }
        None
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.text() {
            Some(text) => write!(f, "host={text} port={}", self.port),
            None => f.write_str("host=[local]"),
        }
    }
}

/// Is the path in the abstract namespace? It then begins with '@' and is not a file, as in
/// libpq and the server (getaddrinfo_unix, common/ip.c).
pub fn is_abstract(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().starts_with(b"@")
}

pub(super) fn unix_address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "socket path is too long",
        ));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let mut length = size_of::<libc::sockaddr_un>();
    if is_abstract(path) {
        // The name extends to the end of the given length.
        address.sun_path[0] = 0;
        length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len();
    }
    Ok((address, length as libc::socklen_t))
}

/// The kernel's form of an address.
pub(super) fn inet_address(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: zeros are a valid address.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(v4) => {
            let value = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is large and aligned enough for any.
            unsafe {
                std::ptr::from_mut(&mut storage)
                    .cast::<libc::sockaddr_in>()
                    .write(value)
            };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let value = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe {
                std::ptr::from_mut(&mut storage)
                    .cast::<libc::sockaddr_in6>()
                    .write(value)
            };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

pub(super) fn address_of(storage: &libc::sockaddr_storage) -> Address {
    let mut address = Address {
        family: storage.ss_family,
        ..Address::default()
    };
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is; storage is aligned for all.
            let value = unsafe {
                std::ptr::from_ref(storage)
                    .cast::<libc::sockaddr_in>()
                    .read()
            };
            address.port = u16::from_be(value.sin_port);
            address.bytes[..4].copy_from_slice(&value.sin_addr.s_addr.to_ne_bytes());
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let value = unsafe {
                std::ptr::from_ref(storage)
                    .cast::<libc::sockaddr_in6>()
                    .read()
            };
            address.port = u16::from_be(value.sin6_port);
            address.bytes = value.sin6_addr.s6_addr;
            address.scope = value.sin6_scope_id;
        }
        _ => address.family = libc::AF_UNIX as u16,
    }
    address
}

/// The loopback addresses of both families, with this port.
pub fn loopback(port: u16) -> [SocketAddr; 2] {
    [
        SocketAddr::from(([127, 0, 0, 1], port)),
        SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, port, 0, 0)),
    ]
}

// ---- Frames with descriptors ----------------------------------------------
//
// Messages that carry descriptors (SCM_RIGHTS), and a queue of them.

/// The kernel doubles this value, and charges about 770 bytes for a small message, so about
/// forty messages fit. It reports the socket as writable again when three quarters have been
/// taken. With room for fewer messages, backends found the queue empty before it was refilled.
const QUEUE_BUFFER_BYTES: i32 = 16 * 1024;

/// A connected pair of packet sockets. The first end takes only a few messages before it is
/// full, so the sender keeps the order and the count. The other direction is shut: nothing
/// reads there, but a process could put descriptors there, which the kernel would count as in
/// flight.
pub fn short_queue() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [0; 2];
    // SAFETY: room for two descriptors.
    check(unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
            pair.as_mut_ptr(),
        )
    })?;
    let (write, read) = (own(pair[0]), own(pair[1]));
    set_option(
        write.as_raw_fd(),
        libc::SOL_SOCKET,
        libc::SO_SNDBUF,
        QUEUE_BUFFER_BYTES,
    )?;
    shutdown_write(read.as_raw_fd());
    Ok((write, read))
}

/// Most descriptors that one message carries.
pub const MAX_DESCRIPTORS: usize = 12;
/// Most descriptors in one message of a keeper; the kernel's limit is 253 (SCM_MAX_FD).
pub const MAX_KEPT: usize = 128;
const CONTROL_BYTES: usize = 64;
const KEPT_BYTES: usize = 1024;

/// A descriptor of the sender's process (linux/socket.h). It comes along if SO_PASSPIDFD is set
/// on the socket; backends share an end of the ready queue, and could set it.
const SCM_PIDFD: libc::c_int = 4;

#[repr(align(8))]
struct ControlBuffer<const BYTES: usize>([u8; BYTES]);

const _: () = {
    // SAFETY: CMSG_SPACE only computes.
    assert!(unsafe { libc::CMSG_SPACE((MAX_DESCRIPTORS * 4) as u32) } as usize <= CONTROL_BYTES);
    // SAFETY: CMSG_SPACE only computes.
    assert!(unsafe { libc::CMSG_SPACE((MAX_KEPT * 4) as u32) } as usize <= KEPT_BYTES);
};

/// Sends one packet with descriptors.
pub fn send_with_descriptors(fd: RawFd, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    match descriptors.len() {
        ..=MAX_DESCRIPTORS => send_rights(
            fd,
            bytes,
            descriptors,
            &mut ControlBuffer([0; CONTROL_BYTES]),
        ),
        _ => send_rights(fd, bytes, descriptors, &mut ControlBuffer([0; KEPT_BYTES])),
    }
}

fn send_rights<const BYTES: usize>(
    fd: RawFd,
    bytes: &[u8],
    descriptors: &[RawFd],
    control: &mut ControlBuffer<BYTES>,
) -> io::Result<()> {
    assert!(descriptors.len() <= MAX_KEPT);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: zeros are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    if !descriptors.is_empty() {
        let length = std::mem::size_of_val(descriptors) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only computes; the control buffer is larger than
        // what is asked for (asserted above), aligned, and `message` names it.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(length) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as usize;
            std::ptr::copy_nonoverlapping(
                descriptors.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                length as usize,
            );
        }
    }
    // SAFETY: all that `message` points to lives through the call.
    check_length(|| unsafe {
        libc::sendmsg(fd, &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    })?;
    Ok(())
}

/// Receives one packet and the first descriptor that came with it. Further ones are closed,
/// because no message to the dispatcher carries more, except for a keeper's.
pub fn receive_with_descriptor(
    fd: RawFd,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut first = None;
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
    let length = receive_rights(fd, buffer, &mut control, |descriptor| {
        if first.is_none() {
            first = Some(descriptor);
        }
    })?;
    Ok((length, first))
}

/// Receives one packet, and all descriptors that came with it.
pub fn receive_with_descriptors(fd: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut all = Vec::new();
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
    let length = receive_rights(fd, buffer, &mut control, |one| all.push(one))?;
    Ok((length, all))
}

/// Blocks until there is something to be read. Fails when the time is over; -1: it is never over.
pub fn wait_to_read(fd: RawFd, limit_ms: i32) -> io::Result<()> {
    wait_for(fd, libc::POLLIN, limit_ms)
}

/// Blocks until something can be written, as [`wait_to_read`].
pub fn wait_to_write(fd: RawFd, limit_ms: i32) -> io::Result<()> {
    wait_for(fd, libc::POLLOUT, limit_ms)
}

fn wait_for(fd: RawFd, events: libc::c_short, limit_ms: i32) -> io::Result<()> {
    let mut wanted = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: `wanted` lives through the call.
    match check(unsafe { libc::poll(&mut wanted, 1, limit_ms) })? {
        0 => Err(io::Error::from(io::ErrorKind::TimedOut)),
        _ => Ok(()),
    }
}

/// The address that a TCP socket is bound to.
pub fn bound_to(fd: RawFd) -> io::Result<SocketAddr> {
    let address = local_address(fd)?;
    match i32::from(address.family) {
        libc::AF_INET => {
            let [a, b, c, d, ..] = address.bytes;
            Ok(SocketAddr::from(([a, b, c, d], address.port)))
        }
        libc::AF_INET6 => Ok(SocketAddr::V6(std::net::SocketAddrV6::new(
            address.bytes.into(),
            address.port,
            0,
            address.scope,
        ))),
        _ => Err(io::Error::from(io::ErrorKind::Unsupported)),
    }
}

/// The path of a Unix socket; None if it has none.
pub fn path_of(fd: RawFd) -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: both live through the call, and `length` is the size of `address`.
    check(unsafe { libc::getsockname(fd, std::ptr::from_mut(&mut address).cast(), &mut length) })
        .ok()?;
    let is_path = i32::from(address.sun_family) == libc::AF_UNIX && address.sun_path[0] != 0;
    let path: Vec<u8> = address.sun_path.iter().map(|it| *it as u8).collect();
    let path = path.split(|byte| *byte == 0).next()?;
    is_path.then(|| std::ffi::OsStr::from_bytes(path).into())
}

/// Receives one packet of a keeper, with the descriptors that came with it.
pub fn receive_kept(fd: RawFd) -> io::Result<Vec<OwnedFd>> {
    let mut kept = Vec::with_capacity(MAX_KEPT);
    let mut control = ControlBuffer([0; KEPT_BYTES]);
    match receive_rights(fd, &mut [0], &mut control, |one| kept.push(one))? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        _ => Ok(kept),
    }
}

fn receive_rights<const BYTES: usize>(
    fd: RawFd,
    buffer: &mut [u8],
    control: &mut ControlBuffer<BYTES>,
    mut take: impl FnMut(OwnedFd),
) -> io::Result<usize> {
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: zeros are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = BYTES;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all that `message` points to lives through the call.
    let length = check_length(|| unsafe { libc::recvmsg(fd, &mut message, flags) })?;

    // SAFETY: the kernel has filled `message` and the control buffer; the
    // macros walk within msg_controllen.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            let kind = (*header).cmsg_type;
            if (*header).cmsg_level == libc::SOL_SOCKET
                && (kind == libc::SCM_RIGHTS || kind == SCM_PIDFD)
            {
                let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                for index in 0..count {
                    let number = libc::CMSG_DATA(header)
                        .cast::<RawFd>()
                        .add(index)
                        .read_unaligned();
                    if number < 0 {
                        // The kernel puts an error code in the place of a descriptor that it
                        // could not add.
                        continue;
                    }
                    let descriptor = own(number);
                    if kind == libc::SCM_RIGHTS {
                        take(descriptor);
                    }
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(length)
}

/// Has another process that shares the other end shut it?
pub fn is_shut(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPIPE)
}

/// Could a descriptor that was not sent be sent a moment later?
pub fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ETOOMANYREFS | libc::ENOBUFS | libc::ENOMEM)
    )
}
