//! Messages that take descriptors along (SCM_RIGHTS), and a queue of them.

use super::socket::{own, set_option, shutdown_write};
use super::{check, check_length};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The kernel doubles it, and counts some 770 bytes for a small message: about
/// forty. It calls the socket writable again when three quarters have been
/// taken; with room for fewer, backends found it empty before it was refilled.
const QUEUE_BUFFER_BYTES: i32 = 16 * 1024;

/// A connected pair of packet sockets whose first end takes only a few
/// messages before it is full: whoever sends keeps order and count. Nothing can be
/// sent the other way, where nobody reads: descriptors could be put there, and the
/// kernel counts them as under way.
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
const CONTROL_BYTES: usize = 64;

/// A descriptor of the sender's process (linux/socket.h): it comes along where
/// somebody has asked for it (SO_PASSPIDFD), and a ready queue's end is also its
/// backends'.
const SCM_PIDFD: libc::c_int = 4;

#[repr(align(8))]
struct ControlBuffer([u8; CONTROL_BYTES]);

const _: () = {
    // SAFETY: CMSG_SPACE only computes.
    assert!(unsafe { libc::CMSG_SPACE((MAX_DESCRIPTORS * 4) as u32) } as usize <= CONTROL_BYTES);
};

/// Sends one packet with descriptors.
pub fn send(fd: RawFd, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    assert!(descriptors.len() <= MAX_DESCRIPTORS);
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
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

/// Receives one packet and the first descriptor that came with it (others are
/// closed: no message to the dispatcher carries more).
pub fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: zeros are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all that `message` points to lives through the call.
    let length = check_length(|| unsafe { libc::recvmsg(fd, &mut message, flags) })?;

    let mut first = None;
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
                        continue; // an error in the place of what the kernel adds
                    }
                    let descriptor = own(number);
                    if first.is_none() && kind == libc::SCM_RIGHTS {
                        first = Some(descriptor);
                    }
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok((length, first))
}

/// Has somebody who has the other end, too, shut it?
pub fn is_shut(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPIPE)
}

/// May a descriptor that could not be sent be sent a moment later?
pub fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ETOOMANYREFS | libc::ENOBUFS | libc::ENOMEM)
    )
}
