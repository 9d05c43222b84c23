//! Addresses of sockets: the kernel's form, and that of a session record.

use std::io;
use std::mem::size_of;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::Path;

/// Who is at the other end, in the form of a session record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    pub family: u16,
    pub port: u16,
    pub bytes: [u8; 16],
    pub scope: u32,
}

impl Address {
    /// Of a Unix socket.
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

/// A name that begins with '@' is in the abstract namespace and no file, as in
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
        // All of its length is the name.
        address.sun_path[0] = 0;
        length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len();
    }
    Ok((address, length as libc::socklen_t))
}

/// A kernel address made of a Rust one.
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

/// Loopback addresses of both families with a port.
pub fn loopback(port: u16) -> [SocketAddr; 2] {
    [
        SocketAddr::from(([127, 0, 0, 1], port)),
        SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, port, 0, 0)),
    ]
}
