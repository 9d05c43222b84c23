//! epoll, the only thing here that std does not have.
//!
//! All of this crate's unsafe code is here. `Epoll` owns the epoll descriptor. Sockets are only
//! borrowed for a registration, and the kernel forgets them when they are closed.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The most events that one wait returns.
pub const EVENTS_MAX: usize = 512;

/// An epoll instance that watches for input.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes no pointers; its result is checked, and has no other
        // owner.
        let fd = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Epoll {
            fd,
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }

    /// From now on reports input on the socket, by this number.
    pub fn watch(&self, socket: &impl AsRawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: number,
        };
        // SAFETY: both descriptors are open; the event lives through the call.
        let result = unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                socket.as_raw_fd(),
                &mut event,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Waits, and returns the numbers of the sockets with input. Blocks.
    pub fn wait(&mut self, milliseconds: i32) -> io::Result<impl Iterator<Item = u64> + '_> {
        // SAFETY: the kernel writes at most EVENTS_MAX events into a buffer of that capacity
        // and returns their number, so that many are initialised.
        unsafe {
            let count = libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS_MAX as i32,
                milliseconds,
            );
            if count < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            self.events.set_len(usize::try_from(count).unwrap_or(0));
        }
        Ok(self.events.iter().map(|event| event.u64))
    }
}
