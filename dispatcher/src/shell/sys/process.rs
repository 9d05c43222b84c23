//! Processes, signals and limits; scheduling policies; and the rights that the dispatcher gives
//! up by Landlock.

use super::{check, check_length};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;

// ---- Processes ------------------------------------------------------------
//
// Processes, signals, limits, watched files, and clocks.

/// A descriptor that is readable once the process has ended.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    let fd = check(fd as libc::c_int)?;
    // SAFETY: new, and without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has the process ended?
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut wanted = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `wanted` lives through the call.
    unsafe { libc::poll(&mut wanted, 1, 0) == 1 }
}

/// A process's /proc/PID/stat from the third field on; empty if there is no such process.
fn stat_after_name(pid: u32) -> String {
    // proc(5): "pid (name) state ppid ...". The name may contain any byte.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(|byte| *byte == b')').next();
    String::from_utf8_lossy(after_name.unwrap_or_default()).into_owned()
}

/// Is the process with this number and descriptor a child of `parent`?
pub fn is_child(pid: u32, pidfd: &OwnedFd, parent: u32) -> bool {
    let fields = stat_after_name(pid);
    let is_child = fields.split_whitespace().nth(1) == Some(&parent.to_string());
    // If the process has not ended, the file was its own.
    is_child && !has_ended(pidfd)
}

/// Sends a signal to this process, and never to a later one with its number.
fn signal(pidfd: &OwnedFd, number: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            number,
            std::ptr::null::<libc::siginfo_t>(),
            0u32,
        )
    };
    check(result as libc::c_int)?;
    Ok(())
}

/// Makes a pooled backend look at what the dispatcher asks of it (`identity.c`).
pub fn hurry(pidfd: &OwnedFd) -> io::Result<()> {
    signal(pidfd, libc::SIGUSR2)
}

/// Asks a backend to end in an orderly way.
pub fn end(pidfd: &OwnedFd) -> io::Result<()> {
    signal(pidfd, libc::SIGTERM)
}

/// Asks the postmaster to read its configuration again.
pub fn reload(pidfd: &OwnedFd) -> io::Result<()> {
    signal(pidfd, libc::SIGHUP)
}

/// Names the process for `ps` and `top`. Executed by a descriptor, it would have the number as
/// its name (before Linux 6.14).
pub fn name_process(name: &std::ffi::CStr) {
    // SAFETY: `name` ends with a NUL, and lives through the call.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Where the arguments of this process begin, and their length. (0, 0): not known.
pub fn arguments_of_this_process() -> (usize, usize) {
    // proc(5): arg_start is the 48th field.
    let fields = stat_after_name(std::process::id());
    let mut fields = fields.split_whitespace().skip(45).map(str::parse::<usize>);
    match (fields.next(), fields.next()) {
        (Some(Ok(from)), Some(Ok(end))) if from > 0 && end > from => (from, end - from),
        _ => (0, 0),
    }
}

/// Names a process that was cloned from this one, and has none of its threads: `ps` shows the name
/// in place of the arguments.
pub fn show_as(name: &std::ffi::CStr, arguments: (usize, usize)) {
    name_process(name);
    let (from, length) = arguments;
    let bytes = name.to_bytes();
    if bytes.len() < length {
        // SAFETY: the kernel has told where it has put the arguments, on this process's stack. Rust
        // reads them there as often as it is asked; this process asks no more.
        unsafe {
            let to = from as *mut u8;
            std::ptr::write_bytes(to, 0, length);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

/// Starts this program once more, with one argument. Of the descriptors of this process it has the
/// standard ones, and `fd` as `number`. It has a session of its own, and no signal of this one's is
/// blocked or ignored there. Nobody waits for its end: SIGCHLD is ignored ([`signals`]).
pub fn start_again(name: &str, argument: &str, fd: &OwnedFd, number: RawFd) -> io::Result<()> {
    let from = fd.as_raw_fd();
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0(name).arg(argument);
    // SAFETY: between fork and exec these are system calls alone. `from` is open, as `fd` lives.
    unsafe {
        command.pre_exec(move || {
            check(libc::setsid())?;
            let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_uint;
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flags);
            // Clears close-on-exec of the new number.
            check(libc::dup2(from, number)).map(drop)
        })
    };
    command.spawn().map(drop)
}

/// Ignores SIGHUP and SIGPIPE, and SIGCHLD, so that a keeper that dies leaves nothing. SIGTERM,
/// SIGINT and SIGQUIT are read from the descriptor that is returned.
pub fn signals() -> io::Result<OwnedFd> {
    // SAFETY: handlers are not functions of this program; the set lives through the call.
    unsafe {
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        check(libc::sigprocmask(
            libc::SIG_SETMASK,
            &terminating(),
            std::ptr::null_mut(),
        ))?;
    }
    terminations()
}

fn terminating() -> libc::sigset_t {
    // SAFETY: an all-zero set is a valid value to initialise; the calls only write it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGQUIT);
        set
    }
}

/// A descriptor that is readable when SIGTERM, SIGINT or SIGQUIT has come to the process that reads
/// it. They must be blocked. Allocates nothing.
pub fn terminations() -> io::Result<OwnedFd> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the set lives through the call; the result is a new descriptor.
    unsafe {
        let fd = check(libc::signalfd(-1, &terminating(), flags))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn descriptor_limit() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` lives through the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    Ok(limit)
}

/// Raises the soft limit of open files to the hard one. Returns the soft limit as found, and
/// the hard one.
pub fn raise_descriptor_limit() -> io::Result<(u64, u64)> {
    let mut limit = descriptor_limit()?;
    let soft = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` lives through the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok((soft, limit.rlim_max))
}

/// One more than the highest number that a descriptor may have.
pub fn most_descriptors() -> io::Result<usize> {
    Ok(descriptor_limit()?.rlim_max.min(1 << 21) as usize)
}

/// Do both descriptors lead to one file, or one memory?
pub fn is_same_file(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    let place = |fd: &OwnedFd| -> io::Result<(u64, u64)> {
        let file = std::fs::File::from(fd.try_clone()?);
        let about = file.metadata()?;
        Ok((about.dev(), about.ino()))
    };
    Ok(place(one)? == place(other)?)
}

/// A descriptor that is readable when the file's content changes.
pub fn watch_file(path: &std::path::Path) -> io::Result<OwnedFd> {
    use std::os::unix::ffi::OsStrExt;
    let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // SAFETY: the result is a new descriptor.
    let fd = check(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })?;
    // SAFETY: new, and without another owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let events = libc::IN_MODIFY | libc::IN_CLOSE_WRITE | libc::IN_DELETE_SELF;
    // SAFETY: `path` is a C string.
    check(unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), events) })?;
    Ok(fd)
}

/// A counter that wakes an epoll.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is a new descriptor.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: new, and without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn signal_event(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` lives through the call. A full counter wakes just as well.
    let _ = check_length(|| unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) });
}

/// Reads and discards what is there (eventfd, signalfd, inotify).
pub fn drain(fd: &OwnedFd) {
    let mut buffer = [0u8; 4096];
    loop {
        // SAFETY: `buffer` lives through the call.
        let result = check_length(|| unsafe {
            libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len())
        });
        match result {
            Ok(length) if length == buffer.len() => continue,
            _ => return,
        }
    }
}

/// The name of an operating system user; None if there is none. May block in the name service,
/// as stock's peer authentication does. Called for local logins only.
pub fn user_name(uid: u32) -> Option<String> {
    let mut entry: libc::passwd = unsafe_zeroed_passwd();
    let mut buffer = vec![0; 16_384];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers live through the call; the strings that `entry`
    // refers to lie in `buffer`.
    let result = unsafe {
        libc::getpwuid_r(
            uid,
            &mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        )
    };
    if result != 0 || found.is_null() {
        return None;
    }
    // SAFETY: a successful call leaves a C string within `buffer`.
    let name = unsafe { std::ffi::CStr::from_ptr(entry.pw_name) };
    name.to_str().ok().map(str::to_owned)
}

fn unsafe_zeroed_passwd() -> libc::passwd {
    // SAFETY: null pointers and zeros are valid values of its fields.
    unsafe { std::mem::zeroed() }
}

/// The number of a group, by name or number.
pub fn group_id(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; 16_384];
    // SAFETY: null pointers and zeros are valid values of its fields.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers live through the call.
    let result = unsafe {
        libc::getgrnam_r(
            name.as_ptr(),
            &mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        )
    };
    (result == 0 && !found.is_null()).then_some(entry.gr_gid)
}

pub fn own_uid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() }
}

/// CPU time that another process has used, in microseconds.
pub fn cpu_time_of(pid: u32) -> Option<u64> {
    // The encoding of clock_getcpuclockid: a number below 0 is the clock of a process, and 2
    // selects the time as the scheduler counts it.
    let pid = libc::clockid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
    // SAFETY: zeros are a valid value.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `time` lives through the call.
    check(unsafe { libc::clock_gettime((!pid << 3) | 2, &mut time) }).ok()?;
    let microseconds = time.tv_sec * 1_000_000 + time.tv_nsec / 1000;
    u64::try_from(microseconds).ok()
}

fn clock_us(clock: libc::clockid_t) -> i64 {
    // SAFETY: zeros are a valid value.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `time` lives through the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

/// CPU time that this thread has used, in microseconds.
pub fn thread_cpu_us() -> u64 {
    clock_us(libc::CLOCK_THREAD_CPUTIME_ID) as u64
}

/// Like baton_monotonic_us() (majors.h).
pub fn monotonic_us() -> i64 {
    clock_us(libc::CLOCK_MONOTONIC)
}

/// CPU time of this process so far, in microseconds: in user mode and in the kernel.
pub fn cpu_time_us() -> (i64, i64) {
    // SAFETY: zeros are a valid value, and getrusage fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let microseconds = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    (microseconds(usage.ru_utime), microseconds(usage.ru_stime))
}

// ---- Scheduling policy and waits for a CPU --------------------------------
//
// How the kernel schedules a thread: its policy, and how long it has waited for a CPU.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// SCHED_OTHER
    Usual,
    /// SCHED_BATCH
    Batch,
}

impl Policy {
    /// The policy of the calling thread; None if it is neither of these.
    pub fn of_this_thread() -> Option<Policy> {
        // SAFETY: no memory is passed; 0 is the thread that calls.
        match unsafe { libc::sched_getscheduler(0) } {
            libc::SCHED_OTHER => Some(Policy::Usual),
            libc::SCHED_BATCH => Some(Policy::Batch),
            _ => None,
        }
    }

    /// Sets the policy of the calling thread. Its nice value stays (sched_setscheduler(2)).
    pub fn set(self) -> io::Result<()> {
        let policy = match self {
            Policy::Usual => libc::SCHED_OTHER,
            Policy::Batch => libc::SCHED_BATCH,
        };
        let no_priority = libc::sched_param { sched_priority: 0 };
        // SAFETY: `no_priority` lives through the call.
        check(unsafe { libc::sched_setscheduler(0, policy, &no_priority) })?;
        Ok(())
    }
}

/// Nanoseconds that the calling thread has waited for a CPU, and how often it has got one:
/// /proc/thread-self/schedstat (proc(5)). Fails if the kernel does not keep these numbers, or
/// if no descriptor is free.
pub fn thread_waits() -> io::Result<(u64, u64)> {
    let text = std::fs::read("/proc/thread-self/schedstat")?;
    parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// The text is "nanoseconds run, nanoseconds waited, times run".
fn parse(text: &[u8]) -> Option<(u64, u64)> {
    let mut numbers = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    numbers.next()?;
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

// ---- Landlock -------------------------------------------------------------
//
// The rights that the dispatcher gives up for good, by Landlock (Linux 5.13 and later).
//
// The dispatcher parses the messages of unauthenticated clients, and runs as the system user
// that owns the server's data files. Once its sockets are open, it needs to write no file and
// to start no program. So it gives up these rights, and the kernel refuses them even if an
// attacker takes control of the process. The cost arises only when a file is opened.
// docs/design/boundary.md lists the rights that remain.

// linux/landlock.h
const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const REMOVE_DIRECTORY: u64 = 1 << 4;
const MAKE_CHARACTER_DEVICE: u64 = 1 << 6;
const MAKE_DIRECTORY: u64 = 1 << 7;
const MAKE_REGULAR: u64 = 1 << 8;
const MAKE_FIFO: u64 = 1 << 10;
const MAKE_BLOCK_DEVICE: u64 = 1 << 11;
const MAKE_SYMLINK: u64 = 1 << 12;
/// From version 3 of Landlock on (Linux 6.2).
const TRUNCATE: u64 = 1 << 14;
const CREATE_RULESET_VERSION: u32 = 1;

/// The version of Landlock. Fails if the kernel has no Landlock.
fn version() -> io::Result<libc::c_int> {
    // SAFETY: no memory is passed.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u64>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    check(version as libc::c_int)
}

/// From here on this thread, and the threads that it starts, can write no file and start no
/// program. Fails, without an effect, if the kernel has no Landlock.
pub fn confine_files() -> io::Result<()> {
    let version = version()?;
    let mut denied = EXECUTE
        | WRITE_FILE
        | REMOVE_DIRECTORY
        | MAKE_CHARACTER_DEVICE
        | MAKE_DIRECTORY
        | MAKE_REGULAR
        | MAKE_FIFO
        | MAKE_BLOCK_DEVICE
        | MAKE_SYMLINK;
    if version >= 3 {
        denied |= TRUNCATE;
    }
    // The first field of landlock_ruleset_attr, which may be the whole structure. A right that
    // is handled and that no rule allows is denied.
    // SAFETY: `denied` lives through the call, which reads as many bytes as it is told.
    let ruleset = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(&denied),
            size_of_val(&denied),
            0u32,
        )
    };
    let ruleset = check(ruleset as libc::c_int)?;
    // SAFETY: new, and without another owner.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
    // SAFETY: numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: numbers only.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) };
    check(result as libc::c_int)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command};

    #[test]
    fn times_are_this_thread_s_own() {
        assert_eq!(parse(b"120 34 5\n"), Some((34, 5)));
        assert_eq!(parse(b"120 34"), None);
        let Ok((_, before)) = thread_waits() else {
            return;
        };
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(thread_waits().expect("it can be read").1 >= before + 3);
    }

    // The rights that the kernel refuses to a confined thread, one by one, and those that
    // remain.
    /// A directory with a file, a directory and a socket in it.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let process = std::process::id();
            let place =
                Place(std::env::temp_dir().join(format!("baton-confined-{name}-{process}")));
            fs::create_dir(&place.0).unwrap();
            fs::write(place.there(), "there").unwrap();
            fs::create_dir(place.directory()).unwrap();
            let _socket = std::os::unix::net::UnixListener::bind(place.socket()).unwrap();
            place
        }

        fn there(&self) -> PathBuf {
            self.0.join("there")
        }

        fn directory(&self) -> PathBuf {
            self.0.join("directory")
        }

        fn socket(&self) -> PathBuf {
            self.0.join("socket")
        }

        fn new_name(&self) -> PathBuf {
            self.0.join("made")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A process that may be traced unless something forbids it.
    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Sleeper {
            Sleeper(Command::new("sleep").arg("600").spawn().unwrap())
        }

        fn trace(&self) -> io::Result<()> {
            // SAFETY: numbers only.
            let result =
                unsafe { libc::ptrace(libc::PTRACE_SEIZE, self.0.id() as libc::pid_t, 0, 0) };
            check(result as libc::c_int).map(drop)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn path(path: &Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).unwrap()
    }

    fn make_node(at: &Path, kind: libc::mode_t) -> io::Result<()> {
        let at = path(at);
        // SAFETY: `at` is a string with its end.
        check(unsafe { libc::mknod(at.as_ptr(), kind | 0o600, 0) }).map(drop)
    }

    /// Without the right to write: making a file is a right of its own.
    fn make_regular(at: &Path) -> io::Result<()> {
        let at = path(at);
        // SAFETY: `at` is a string with its end.
        let made =
            check(unsafe { libc::open(at.as_ptr(), libc::O_RDONLY | libc::O_CREAT, 0o600) })?;
        // SAFETY: new, and without another owner.
        unsafe { libc::close(made) };
        Ok(())
    }

    fn truncate(at: &Path) -> io::Result<()> {
        let at = path(at);
        // SAFETY: `at` is a string with its end.
        check(unsafe { libc::truncate(at.as_ptr(), 0) }).map(drop)
    }

    /// Runs the test in a confined thread of its own, because the other test threads are not
    /// confined. None: the kernel has no Landlock, so nothing can be tested.
    fn confined<R: Send>(test: impl FnOnce() -> R + Send) -> Option<R> {
        let outcome = std::thread::scope(|scope| {
            let thread = scope.spawn(|| confine_files().map(|()| test()));
            thread
                .join()
                .unwrap_or_else(|why| std::panic::resume_unwind(why))
        });
        match outcome {
            Ok(seen) => Some(seen),
            // Not built in, or not enabled (landlock(7)). Any other error is a fault of the
            // dispatcher.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP)) => {
                eprintln!("skipped: the kernel has no Landlock ({error})");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn confined_process_writes_and_makes_no_file_starts_no_program() {
        let place = Place::new("refused");
        let (there, made) = (&place.there(), &place.new_name());
        let attempts = || -> Vec<(&str, io::Result<()>)> {
            let mut attempts = vec![
                (
                    "writing",
                    OpenOptions::new().write(true).open(there).map(drop),
                ),
                (
                    "appending",
                    OpenOptions::new().append(true).open(there).map(drop),
                ),
                (
                    "reading and writing",
                    OpenOptions::new()
                        .read(true)
                        .write(true)
                        .open(there)
                        .map(drop),
                ),
                ("a file", make_regular(made)),
                ("a file to write to", File::create(made).map(drop)),
                ("another name", fs::hard_link(there, made)),
                ("a new name", fs::rename(there, made)),
                ("a directory", fs::create_dir(made)),
                ("a directory's end", fs::remove_dir(place.directory())),
                ("a symbolic link", std::os::unix::fs::symlink(there, made)),
                ("a pipe", make_node(made, libc::S_IFIFO)),
                ("a character device", make_node(made, libc::S_IFCHR)),
                ("a block device", make_node(made, libc::S_IFBLK)),
                (
                    "a program",
                    Command::new("/bin/true")
                        .spawn()
                        .map(|mut child| drop(child.wait())),
                ),
            ];
            // Earlier versions refuse truncation only together with writing, and not by path.
            if version().is_ok_and(|version| version >= 3) {
                attempts.push(("truncation", truncate(there)));
            }
            attempts
        };
        let Some(refused) = confined(attempts) else {
            return;
        };
        for (what, outcome) in refused {
            let error = outcome.expect_err(what);
            assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{what}: {error}");
        }
        assert_eq!(fs::read(there).unwrap(), b"there");
        assert!(!made.exists() && place.directory().exists());
        // The thread that started the confined one has not given up anything.
        File::create(made).unwrap();
    }

    #[test]
    fn a_confined_process_traces_no_process() {
        let sleeper = Sleeper::new();
        let Some(outcome) = confined(|| sleeper.trace()) else {
            return;
        };
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn confined_process_and_threads_read_files_and_remove_sockets() {
        let place = Place::new("left");
        let test = || {
            let mut text = String::new();
            File::open(place.there())
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            assert_eq!(text, "there");
            assert_eq!(fs::read_dir(&place.0).unwrap().count(), 3);
            fs::remove_file(place.socket()).unwrap();
            let started = std::thread::spawn({
                let there = place.there();
                move || {
                    (
                        fs::read(&there).unwrap(),
                        OpenOptions::new().write(true).open(there),
                    )
                }
            });
            let (read, writing) = started.join().unwrap();
            assert_eq!(read, b"there");
            assert_eq!(writing.unwrap_err().raw_os_error(), Some(libc::EACCES));
        };
        let _ = confined(test);
    }
}
