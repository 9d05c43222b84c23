//! epoll, and the single descriptor number under which it knows all client sockets.
//!
//! The kernel identifies an epoll item by the pair of open file and descriptor number. Backends
//! re-arm the sockets of sessions in the dispatcher's epoll themselves. They can name an item
//! only if their number for the client's socket is the number under which it was added. So
//! dispatcher and backends agree on one number. [`ClientNumber`] duplicates a client's socket
//! to that number for a call, and a placeholder when the client's socket is to be closed.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

pub const IN: u32 = libc::EPOLLIN as u32;
pub const OUT: u32 = libc::EPOLLOUT as u32;
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub const HUP: u32 = libc::EPOLLHUP as u32;
pub const ERR: u32 = libc::EPOLLERR as u32;
pub const EDGES: u32 = libc::EPOLLET as u32;
pub const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// The events for which an idle session's socket is armed.
pub const SESSION: u32 = IN | RDHUP | ONESHOT;

/// One event, as the kernel writes it.
pub type Event = libc::epoll_event;

pub fn no_event() -> Event {
    Event { events: 0, u64: 0 }
}

/// An epoll instance.
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers; the result is a new descriptor that we own.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` is new, and without another owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd })
    }

    fn control(&self, operation: i32, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        let mut event = Event { events, u64: data };
        // SAFETY: `event` lives through the call.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &mut event) })?;
        Ok(())
    }

    pub fn add(&self, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, data)
    }

    pub fn modify(&self, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, events, data)
    }

    pub fn delete(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    /// Waits at most `timeout_ms` milliseconds. Returns the number of events written.
    pub fn wait(&self, events: &mut [Event], timeout_ms: i32) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `events.len()` events.
        let result = check(unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                timeout_ms,
            )
        });
        match result {
            Ok(count) => Ok(count as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Blocks until a descriptor of the first list is readable or one of the second is writable, at
/// most for `microseconds`.
pub fn wait_for_some(readable: &[RawFd], writable: &[RawFd], microseconds: u64) {
    let polled = |events| {
        move |fd: &RawFd| libc::pollfd {
            fd: *fd,
            events,
            revents: 0,
        }
    };
    let first = readable.iter().map(polled(libc::POLLIN));
    let second = writable.iter().map(polled(libc::POLLOUT));
    let mut polled: Vec<libc::pollfd> = first.chain(second).collect();
    let limit = libc::timespec {
        tv_sec: (microseconds / 1_000_000) as libc::time_t,
        tv_nsec: (microseconds % 1_000_000 * 1000) as libc::c_long,
    };
    // SAFETY: the kernel writes `revents` of as many entries as there are, and reads the limit;
    // both live through the call. A failure means that the call does not wait.
    unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            &limit,
            std::ptr::null(),
        )
    };
}

/// The agreed number for client sockets, reserved for the life of the process.
///
/// A client's socket stays at that number until another replaces it or until it is let go,
/// because most calls for one client follow each other. So code that closes a client's socket
/// must first call `let_go`. Code that gets a new socket must call `is_new`, because the new
/// socket may have the descriptor of a closed one. Only one thread at a time may use it.
pub struct ClientNumber {
    number: RawFd,
    placeholder: OwnedFd,
    /// The descriptor that is duplicated there; -1: the placeholder.
    stands: AtomicI32,
}

impl ClientNumber {
    /// Reserves `number`, which must be free.
    pub fn reserve(number: RawFd) -> io::Result<ClientNumber> {
        let placeholder = super::memory::placeholder()?;
        // SAFETY: fcntl with F_GETFD touches no memory.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } != -1 {
            return Err(io::Error::other(format!("descriptor {number} is in use")));
        }
        let reserved = ClientNumber {
            number,
            placeholder,
            stands: AtomicI32::new(-1),
        };
        reserved.put(reserved.placeholder.as_raw_fd())?;
        Ok(reserved)
    }

    pub fn number(&self) -> RawFd {
        self.number
    }

    fn put(&self, fd: RawFd) -> io::Result<()> {
        // SAFETY: `number` has been ours since `reserve`, and nothing else uses it.
        check(unsafe { libc::dup3(fd, self.number, libc::O_CLOEXEC) })?;
        Ok(())
    }

    fn put_client(&self, client: RawFd) -> io::Result<()> {
        if self.stands.load(Relaxed) != client {
            self.put(client)?;
            self.stands.store(client, Relaxed);
        }
        Ok(())
    }

    /// Must be called before the client's socket is closed.
    pub fn let_go(&self, client: RawFd) {
        if self.stands.load(Relaxed) == client {
            // Cannot fail: both numbers are valid for the life of the process.
            let _ = self.put(self.placeholder.as_raw_fd());
            self.stands.store(-1, Relaxed);
        }
    }

    /// Must be called before all client sockets are closed.
    pub fn let_go_of_all(&self) {
        let stands = self.stands.load(Relaxed);
        self.let_go(stands);
    }

    /// Must be called for a newly accepted client, whose descriptor may be that of a closed
    /// one.
    pub fn is_new(&self, client: RawFd) {
        self.let_go(client);
    }

    /// Adds a client's socket, or changes its events if the epoll knows it already (`known`).
    pub fn watch(
        &self,
        epoll: &Epoll,
        client: RawFd,
        known: bool,
        events: u32,
        data: u64,
    ) -> io::Result<()> {
        self.put_client(client)?;
        if known {
            epoll.modify(self.number, events, data)
        } else {
            epoll.add(self.number, events, data)
        }
    }

    /// Adds a session's socket, armed.
    pub fn add(&self, epoll: &Epoll, client: RawFd, known: bool, session: u64) -> io::Result<()> {
        self.watch(epoll, client, known, SESSION, session)
    }

    /// Adds the socket of a session whose first owner is not the epoll, or changes it. Input
    /// makes no event, but the end of the connection makes one. That event may arrive while the
    /// session has another owner.
    pub fn add_unarmed(
        &self,
        epoll: &Epoll,
        client: RawFd,
        known: bool,
        session: u64,
    ) -> io::Result<()> {
        self.watch(epoll, client, known, RDHUP | ONESHOT, session)
    }

    /// Each arrival of input makes an event; input that is already there makes none.
    pub fn watch_edges(&self, epoll: &Epoll, client: RawFd, session: u64) -> io::Result<()> {
        self.watch(epoll, client, true, IN | RDHUP | EDGES, session)
    }

    /// Arms the socket again.
    pub fn arm(&self, epoll: &Epoll, client: RawFd, session: u64) -> io::Result<()> {
        self.watch(epoll, client, true, SESSION, session)
    }

    /// Removes the socket for good.
    pub fn remove(&self, epoll: &Epoll, client: RawFd) -> io::Result<()> {
        self.put_client(client)?;
        epoll.delete(self.number)
    }
}
