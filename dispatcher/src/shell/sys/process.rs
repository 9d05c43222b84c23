//! Processes, signals, limits, and files that are watched.

use super::{check, check_length};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A descriptor that is readable once the process has ended.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    let fd = check(fd as libc::c_int)?;
    // SAFETY: new, and owned by nobody else.
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

/// Is the process, whose descriptor this is, a child of the other?
pub fn is_child(pid: u32, pidfd: &OwnedFd, parent: u32) -> bool {
    // proc(5): "pid (name) state ppid ...", and any byte may stand in the name.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(|byte| *byte == b')').next();
    let after_name = String::from_utf8_lossy(after_name.unwrap_or_default());
    let is_child = after_name.split_whitespace().nth(1) == Some(&parent.to_string());
    // What was read was of that process if it has not ended.
    is_child && !has_ended(pidfd)
}

/// The signal goes to this process and to no other that has its number since.
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

/// Has a pooled backend look at what is asked of it (`cancel.c`).
pub fn hurry(pidfd: &OwnedFd) -> io::Result<()> {
    signal(pidfd, libc::SIGUSR2)
}

/// Has a backend end, in order.
pub fn end(pidfd: &OwnedFd) -> io::Result<()> {
    signal(pidfd, libc::SIGTERM)
}

/// Ignores SIGHUP and SIGPIPE; SIGTERM, SIGINT and SIGQUIT are read from the
/// descriptor that is returned.
pub fn signals() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero set is a valid value to initialise; the calls below
    // only read and write it.
    unsafe {
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGQUIT);
        check(libc::sigprocmask(
            libc::SIG_SETMASK,
            &set,
            std::ptr::null_mut(),
        ))?;
        let fd = check(libc::signalfd(
            -1,
            &set,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The limit of open files: soft as found, after it was raised to hard.
pub fn raise_descriptor_limit() -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` lives through the calls.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    let soft = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok((soft, limit.rlim_max))
}

/// Watches a file for changes of its content.
pub fn watch_file(path: &std::path::Path) -> io::Result<OwnedFd> {
    use std::os::unix::ffi::OsStrExt;
    let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // SAFETY: the result is a new descriptor.
    let fd = check(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })?;
    // SAFETY: new, and owned by nobody else.
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
    // SAFETY: new, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn signal_event(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` lives through the call. A full counter wakes just as well.
    let _ = check_length(|| unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) });
}

/// Reads and forgets what is there (eventfd, signalfd, inotify).
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

/// A user's name; None if there is none. May block in the name service, as
/// stock's peer authentication does; asked for local logins only.
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

/// The group's number by name.
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

/// Processor time that another process has used, microseconds.
pub fn cpu_time_of(pid: u32) -> Option<u64> {
    // As clock_getcpuclockid makes it: a number below 0 is a process's clock,
    // and 2 stands for the time as the scheduler counts it.
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

/// Processor time that this thread has used, microseconds.
pub fn thread_cpu_us() -> u64 {
    clock_us(libc::CLOCK_THREAD_CPUTIME_ID) as u64
}

/// As baton_monotonic_us() (monotonic.h).
pub fn monotonic_us() -> i64 {
    clock_us(libc::CLOCK_MONOTONIC)
}

/// Processor time used so far: in user mode and in the kernel.
pub fn cpu_time_us() -> (i64, i64) {
    // SAFETY: zeros are a valid value, and getrusage fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let microseconds = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    (microseconds(usage.ru_utime), microseconds(usage.ru_stime))
}
