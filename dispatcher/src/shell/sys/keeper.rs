//! The keeper: a process that outlives the dispatcher, and what it shares with it.
//!
//! It is cloned from the dispatcher at the start with CLONE_FILES: both have one table of
//! descriptors, so whatever the dispatcher opens is the keeper's, too, at no cost. While the
//! dispatcher lives, the keeper sleeps. When the dispatcher has ended, the keeper closes all
//! descriptors but those that the [`Ledger`] names. So backends and the launcher see their
//! connections close, as if there were no keeper. Then it hands what it has kept to the next
//! dispatcher, which connects to its socket, and ends.
//!
//! The ledger is a memory of words that only the dispatcher writes. A word for a descriptor has its
//! number + 1, or 0. The dispatcher writes 0 before it closes the descriptor, so no word ever
//! names a later descriptor of that number.
//!
//! What the keeper asks of a connection: that it comes from a process of the same user. A packet
//! of u32 numbers of descriptors is answered with these descriptors ([`LEDGER`]: the ledger's).
//! A packet of one byte ends the keeper: [`TAKEN`], or [`REFUSED`], if sessions that it still has
//! are to be told that they end.
//!
//! If the server ends, too, the keeper waits as long as the ledger says for the next server
//! (pg_baton.hold_sessions). Then it ends with 57P01 the sessions that no backend had: a backend may
//! outlive its postmaster, and still write to its client.

use super::memory::SharedMapping;
use super::socket::{self, MAX_KEPT};
use super::{check, memory, process};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

/// In a request: the ledger.
pub const LEDGER: u32 = u32::MAX;
/// Requests: the next dispatcher has what it wants; or it takes no session.
pub const TAKEN: u8 = b'e';
pub const REFUSED: u8 = b'x';
/// The form of the ledger: another build's may be another one.
const FORMAT: u32 = 0xba70_0003;
/// How long the keeper waits for the next dispatcher.
const PATIENCE_MS: i64 = 60_000;
/// Listening sockets that it may keep.
pub const MOST_PORTS: usize = 64;

const FORMAT_AT: usize = 0;
/// 1: another dispatcher follows if this one ends.
const KEEPS: usize = 1;
const OWN: usize = 2;
const ARENA: usize = 3;
const CONTROL: usize = 4;
const LISTENER: usize = 5;
/// How long sessions are held while there is no server, in milliseconds.
const HOLD_MS: usize = 6;
/// Which server it is.
const SERVER: usize = 7;
const PORTS: usize = SERVER + SERVER_WORDS;
const SESSIONS: usize = PORTS + MOST_PORTS;
/// Words that tell one server from another.
pub const SERVER_WORDS: usize = 6;

/// What the dispatcher tells the keeper.
#[derive(Clone, Copy)]
pub struct Ledger {
    words: &'static [AtomicU32],
}

fn word_of(fd: RawFd) -> u32 {
    (fd + 1).unsigned_abs()
}

fn fd_of(word: u32) -> Option<RawFd> {
    RawFd::try_from(word)
        .ok()
        .filter(|fd| *fd > 0)
        .map(|fd| fd - 1)
}

impl Ledger {
    /// Creates one for that many sessions. The descriptor stays open as long as the process.
    pub fn create(sessions: usize) -> io::Result<Ledger> {
        let length = (SESSIONS + sessions) * size_of::<u32>();
        let fd = memory::words(length)?;
        let ledger = Ledger::map(&fd)?;
        ledger.words[OWN].store(word_of(fd.as_raw_fd()), SeqCst);
        ledger.words[FORMAT_AT].store(FORMAT, SeqCst);
        std::mem::forget(fd);
        Ok(ledger)
    }

    /// Maps the ledger of an earlier dispatcher, or this one's, which has no content yet.
    pub fn map(fd: &OwnedFd) -> io::Result<Ledger> {
        let mapping = SharedMapping::open(fd.as_raw_fd())?;
        let count = (mapping.length() / size_of::<u32>()) as u32;
        let words = mapping
            .slice(0, count)
            .filter(|words| words.len() >= SESSIONS);
        let words = words.ok_or_else(|| io::Error::other("the ledger is too short"))?;
        Ok(Ledger { words })
    }

    /// Has it been written by a program that writes it as this one does?
    pub fn is_known(&self) -> bool {
        self.words[FORMAT_AT].load(SeqCst) == FORMAT
    }

    fn put(&self, at: usize, fd: Option<RawFd>) {
        if let Some(word) = self.words.get(at) {
            word.store(fd.map_or(0, word_of), SeqCst);
        }
    }

    fn get(&self, at: usize) -> Option<RawFd> {
        self.words.get(at).and_then(|word| fd_of(word.load(SeqCst)))
    }

    /// From here on another dispatcher follows, or none.
    pub fn follows(&self, follows: bool) {
        self.words[KEEPS].store(u32::from(follows), SeqCst);
    }

    pub fn is_followed(&self) -> bool {
        self.words[KEEPS].load(SeqCst) != 0
    }

    pub fn set_arena(&self, fd: RawFd) {
        self.put(ARENA, Some(fd));
    }

    pub fn arena(&self) -> Option<RawFd> {
        self.get(ARENA)
    }

    pub fn set_control(&self, fd: RawFd) {
        self.put(CONTROL, Some(fd));
    }

    pub fn control(&self) -> Option<RawFd> {
        self.get(CONTROL)
    }

    /// How long sessions are to be held while there is no server.
    pub fn set_hold_ms(&self, hold_ms: u32) {
        self.words[HOLD_MS].store(hold_ms, SeqCst);
    }

    pub fn hold_ms(&self) -> u32 {
        self.words[HOLD_MS].load(SeqCst)
    }

    fn set_server(&self, server: [u32; SERVER_WORDS]) {
        for (word, value) in self.words[SERVER..].iter().zip(server) {
            word.store(value, SeqCst);
        }
    }

    pub fn server(&self) -> [u32; SERVER_WORDS] {
        std::array::from_fn(|at| self.words[SERVER + at].load(SeqCst))
    }

    /// The socket at which the keeper listens once the dispatcher has ended.
    pub fn set_listener(&self, fd: RawFd) {
        self.put(LISTENER, Some(fd));
    }

    /// Those that do not fit are closed with the dispatcher.
    pub fn set_ports(&self, ports: impl Iterator<Item = RawFd>) {
        for (at, fd) in ports.take(MOST_PORTS).enumerate() {
            self.put(PORTS + at, Some(fd));
        }
    }

    pub fn ports(&self) -> impl Iterator<Item = RawFd> + '_ {
        (PORTS..SESSIONS).filter_map(|at| self.get(at))
    }

    /// The session in slot `index` is to outlive the dispatcher.
    pub fn keep(&self, index: u32, fd: RawFd) {
        self.put(SESSIONS + index as usize, Some(fd));
    }

    pub fn keep_no_more(&self, index: u32) {
        self.put(SESSIONS + index as usize, None);
    }

    pub fn session(&self, index: u32) -> Option<RawFd> {
        self.get(SESSIONS + index as usize)
    }

    pub fn session_slots(&self) -> u32 {
        (self.words.len() - SESSIONS) as u32
    }
}

/// What the keeper asks, of shared memory and of files.
pub struct Questions<'a> {
    /// Has no backend the session in this slot?
    pub is_free: &'a dyn Fn(u32) -> bool,
    /// Which server has ended?
    pub server: &'a dyn Fn() -> Option<[u32; SERVER_WORDS]>,
}

/// Starts the keeper, and returns its pidfd. Its process has one thread, whatever this one has:
/// from the clone on it makes system calls and touches memory that exists, and nothing else, as
/// malloc() may be locked.
///
/// `postmaster`: its process ID; the keeper ends with it.
pub fn start(ledger: Ledger, postmaster: u32, questions: &Questions<'_>) -> io::Result<OwnedFd> {
    // The keeper ends if the dispatcher is not this process any more.
    let dispatcher = process::pidfd(std::process::id())?;
    let postmaster = process::pidfd(postmaster)?;
    let most = process::most_descriptors()?;
    let marks = memory::anonymous(most)?;
    let arguments = process::arguments_of_this_process();
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: without CLONE_VM, this is fork(): the child has a copy of the memory, and of this
    // thread alone. It does not return to code that could wait for another thread.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if check(child as libc::c_int)? == 0 {
        process::show_as(c"baton-keeper", arguments);
        keep(
            ledger,
            dispatcher.as_raw_fd(),
            postmaster.as_raw_fd(),
            marks,
            questions,
        );
    }
    // They are the keeper's, too, and stay open.
    std::mem::forget((dispatcher, postmaster));
    process::pidfd(child as u32)
}

fn leave() -> ! {
    // SAFETY: ends the process; no destructors run.
    unsafe { libc::_exit(0) }
}

/// Waits until one of the descriptors is readable, and returns which. None: the time is over.
fn wait<const COUNT: usize>(fds: [RawFd; COUNT], limit_ms: i32) -> Option<usize> {
    // poll() skips a negative number.
    let mut wanted = fds.map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: `wanted` lives through the call.
    let ready = unsafe { libc::poll(wanted.as_mut_ptr(), COUNT as libc::nfds_t, limit_ms) };
    match ready {
        0 => None,
        _ => wanted.iter().position(|one| one.revents != 0),
    }
}

/// The life of the keeper.
fn keep(
    ledger: Ledger,
    dispatcher: RawFd,
    postmaster: RawFd,
    marks: &mut [u8],
    questions: &Questions<'_>,
) -> ! {
    let Questions {
        is_free,
        server: which,
    } = questions;
    let mut server = postmaster;
    loop {
        let limit_ms = match server {
            -1 => ledger.hold_ms().max(PATIENCE_MS as u32) as i32,
            _ => -1,
        };
        match wait([dispatcher, server], limit_ms) {
            Some(0) => break,
            // The dispatcher ends with the postmaster, too. It may just have started, and has not
            // said yet whether sessions are to be held.
            Some(_) => server = -1,
            // It hangs.
            None if server < 0 => leave(),
            None => {}
        }
    }
    let Some(listener) = ledger.get(LISTENER).filter(|_| ledger.is_followed()) else {
        leave();
    };
    close_the_rest(&ledger, [postmaster, listener], marks);
    // Blocked, as in the dispatcher.
    let signals = process::terminations().map_or(-1, IntoRawFd::into_raw_fd);
    let now_ms = || process::monotonic_us() / 1000;
    let mut server = postmaster;
    let mut until_ms = now_ms() + PATIENCE_MS;
    loop {
        // A service manager that stops the server waits for its last process, so a signal counts
        // once the server has ended. It may have come before.
        let termination = if server < 0 { signals } else { -1 };
        match wait([server, listener, termination], left_ms(until_ms)) {
            Some(1) => serve(&ledger, listener, server, until_ms, is_free),
            Some(2) => end_sessions(&ledger, is_free),
            // The server has ended.
            Some(_) => {
                server = -1;
                if let Some(which) = which() {
                    ledger.set_server(which);
                }
                until_ms = now_ms() + i64::from(ledger.hold_ms());
            }
            None if left_ms(until_ms) > 0 => {}
            None if server < 0 => end_sessions(&ledger, is_free),
            // Backends serve on those that they have.
            None => leave(),
        }
    }
}

fn left_ms(until_ms: i64) -> i32 {
    (until_ms - process::monotonic_us() / 1000).clamp(0, i64::from(i32::MAX)) as i32
}

/// What the server says to a session that an administrator ends (ProcessInterrupts, postgres.c).
const LAST_WORDS: &[u8] = b"E\0\0\0\x4fSFATAL\0VFATAL\0C57P01\0\
    Mterminating connection due to administrator command\0\0";
const _: () = assert!(LAST_WORDS.len() == 0x4f + 1);

/// The server has ended: ends the sessions that no backend had, and the keeper.
fn end_sessions(ledger: &Ledger, is_free: &dyn Fn(u32) -> bool) -> ! {
    let free = (0..ledger.session_slots()).filter(|index| is_free(*index));
    for fd in free.filter_map(|index| ledger.session(index)) {
        let _ = socket::send(fd, LAST_WORDS);
        socket::shutdown_write(fd);
        // Unread input would reset the connection, and the client would lose the last words.
        socket::discard_input(fd);
    }
    leave()
}

/// Closes all descriptors but those that are kept.
fn close_the_rest(ledger: &Ledger, own: [RawFd; 2], marks: &mut [u8]) {
    let sessions = (0..ledger.session_slots()).filter_map(|index| ledger.session(index));
    let others = [ledger.get(OWN), ledger.arena(), ledger.control()];
    let others = others.into_iter().flatten();
    let kept = sessions.chain(others).chain(ledger.ports()).chain(own);
    kept.for_each(|fd| {
        if let Some(mark) = marks.get_mut(fd as usize) {
            *mark = 1;
        }
    });
    let mut from = 0;
    for (fd, mark) in marks.iter().enumerate() {
        if *mark != 0 {
            close_range(from, fd);
            from = fd + 1;
        }
    }
    close_range(from, u32::MAX as usize);
}

/// Closes the descriptors from `from` up to `end`, which stays.
fn close_range(from: usize, end: usize) {
    if from < end {
        // SAFETY: no pointers. No value of this process owns any of them.
        unsafe { libc::syscall(libc::SYS_close_range, from, end - 1, 0) };
    }
}

/// Hands descriptors over to the process that connects, until it ends the keeper, its connection
/// ends, or the time is over.
fn serve(
    ledger: &Ledger,
    listener: RawFd,
    server: RawFd,
    until_ms: i64,
    is_free: &dyn Fn(u32) -> bool,
) {
    // SAFETY: the address is not wanted; the result is a new descriptor.
    let Ok(fd) = check(unsafe {
        libc::accept4(
            listener,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC,
        )
    }) else {
        return;
    };
    let is_ours = socket::peer(fd).is_ok_and(|(_, uid)| uid == process::own_uid());
    // If the server ends meanwhile, the other process must still get all: it may go on with it.
    while is_ours && wait([fd], left_ms(until_ms)) == Some(0) {
        let mut asked = [0u32; MAX_KEPT];
        // SAFETY: the buffer lives through the call, and any bytes are valid u32.
        let length = unsafe { libc::recv(fd, asked.as_mut_ptr().cast(), size_of_val(&asked), 0) };
        match length {
            1 if asked[0].to_ne_bytes()[0] == REFUSED && server < 0 => {
                end_sessions(ledger, is_free)
            }
            1 => leave(),
            4.. => {}
            _ => break,
        }
        let asked = &mut asked[..length as usize / size_of::<u32>()];
        for number in asked.iter_mut() {
            if *number == LEDGER {
                *number = ledger.words[OWN].load(SeqCst) - 1;
            }
        }
        let mut numbers = [0; MAX_KEPT];
        for (to, from) in numbers.iter_mut().zip(asked.iter()) {
            *to = *from as RawFd;
        }
        // If one of them is not open, none comes: the other end sees that the packet has none.
        let numbers = &numbers[..asked.len()];
        if socket::send_with_descriptors(fd, b"k", numbers).is_err()
            && socket::send_with_descriptors(fd, b"-", &[]).is_err()
        {
            break;
        }
    }
    // SAFETY: closes a descriptor that nothing else owns.
    unsafe { libc::close(fd) };
}
