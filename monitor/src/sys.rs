//! System calls that the standard library does not have: packets with a descriptor, and the note
//! by which the launcher knows the program.

use crate::ask::shared::LAYOUT_VERSION;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use tokio::io::unix::AsyncFd;

pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// A descriptor that the launcher has given to the program. It is closed by exec, and does not
/// block.
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: numbers only. This fails if there is no such descriptor.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: numbers only.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) })?;
    // SAFETY: it is open, and main() calls this once for each number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a packet.
pub fn send(fd: RawFd, packet: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `packet` lives through the call.
    let sent = unsafe { libc::send(fd, packet.as_ptr().cast(), packet.len(), flags) };
    match sent {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Room for the control message of one descriptor, aligned as a cmsghdr.
type Control = [u64; 4];

/// Receives a packet, and the descriptor that comes with it. A packet of length 0 is the end.
pub fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control: Control = Default::default();
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: what `message` points to lives through the call.
    let length = unsafe { libc::recvmsg(fd, &mut message, flags) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut descriptor = None;
    // SAFETY: the kernel has filled `message`, and the header it points to lies in `control`.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        let wanted = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        if !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
            && (*header).cmsg_len as usize >= wanted
        {
            let fd: RawFd = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast());
            descriptor = Some(OwnedFd::from_raw_fd(fd));
        }
    }
    if message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0 {
        return Err(io::Error::other("a message that is cut off"));
    }
    Ok((length as usize, descriptor))
}

/// A socket that listens, for the runtime.
pub fn listener(fd: OwnedFd) -> io::Result<tokio::net::TcpListener> {
    tokio::net::TcpListener::from_std(std::net::TcpListener::from(fd))
}

/// Limits the process's open files.
pub fn limit_descriptors(most: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: `limit` lives through the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(())
}

/// The events of a descriptor.
pub fn events_of(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd has the same descriptor until it is dropped.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// The number of a descriptor.
pub fn number(fd: &impl AsRawFd) -> RawFd {
    fd.as_raw_fd()
}

include!("../../shared/program_note.rs");
