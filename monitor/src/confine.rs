//! The rights that the monitor gives up before it listens to strangers.
//!
//! It runs as the server's system user, who may do everything with the server. So the kernel
//! refuses: all files (Landlock, Linux 5.13 and later); to start a program, to open or connect a
//! socket, to signal or look into a process (seccomp). What remains are the descriptors that it
//! was started with, and those that the launcher sends.

use crate::sys::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The connections of clients, and some more.
const MOST_DESCRIPTORS: u64 = 128;

/// Gives up all of it. A kernel without Landlock or seccomp leaves the rest.
pub fn confine() -> io::Result<()> {
    crate::sys::limit_descriptors(MOST_DESCRIPTORS)?;
    // SAFETY: numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the name ends with a NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"baton-monitor".as_ptr()) };
    for (what, result) in [("files", files()), ("system calls", system_calls())] {
        if let Err(error) = result {
            eprintln!("baton-monitor: this kernel does not confine its {what}: {error}");
        }
    }
    Ok(())
}

// ---- Files ------------------------------------------------------------------

/// All rights of the first version of Landlock (linux/landlock.h).
const ALL_RIGHTS: u64 = (1 << 13) - 1;

/// No rule allows any of the rights.
fn files() -> io::Result<()> {
    // SAFETY: `ALL_RIGHTS` is the first field of landlock_ruleset_attr, which may be the whole
    // structure; the call reads as many bytes as it is told.
    let ruleset = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(&ALL_RIGHTS),
            size_of_val(&ALL_RIGHTS),
            0u32,
        )
    };
    let ruleset = check(ruleset as libc::c_int)?;
    // SAFETY: new, and without another owner.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
    // SAFETY: numbers only.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) };
    check(result as libc::c_int)?;
    Ok(())
}

// ---- System calls -----------------------------------------------------------

const DENIED: [libc::c_long; 22] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_io_uring_setup,
    libc::SYS_prlimit64,
    libc::SYS_setpriority,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_bpf,
    libc::SYS_unshare,
    libc::SYS_setns,
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// On x86-64, system calls from here on are of another ABI.
const FIRST_FOREIGN: u32 = 0x4000_0000;

/// Fields of seccomp_data.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

fn statement(code: u32, value: u32) -> libc::sock_filter {
    jump(code, value, 0, 0)
}

fn jump(code: u32, value: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: if_true,
        jf: if_false,
        k: value,
    }
}

/// Denied calls fail with EPERM. Another architecture's end the process.
fn system_calls() -> io::Result<()> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const IS_FROM: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = vec![
        statement(LOAD, ARCHITECTURE_AT),
        jump(IS, ARCHITECTURE, 1, 0),
        statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        statement(LOAD, NUMBER_AT),
        jump(IS_FROM, FIRST_FOREIGN, 0, 1),
        statement(RETURN, denied),
    ];
    for number in DENIED {
        filter.push(jump(IS, number as u32, 0, 1));
        filter.push(statement(RETURN, denied));
    }
    filter.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program and its filter live through the call.
    let result = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            std::ptr::from_ref(&program),
            0,
            0,
        )
    };
    check(result)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a child process, since it is for good.
    #[test]
    fn a_confined_process_opens_reaches_and_signals_nothing() {
        // SAFETY: the child only makes system calls, and ends without cleaning up.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let mut failed = 0;
            if confine().is_err() {
                failed = 100;
            }
            // SAFETY: C strings that live through the calls, and numbers.
            unsafe {
                let tried = [
                    libc::open(c"/etc/passwd".as_ptr(), libc::O_RDONLY),
                    libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY),
                    libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0),
                    libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0),
                    libc::kill(libc::getppid(), 0),
                    libc::execv(c"/bin/true".as_ptr(), std::ptr::null()),
                ];
                for (at, result) in tried.into_iter().enumerate() {
                    if result >= 0 {
                        failed = at as i32 + 1;
                    }
                }
                libc::_exit(failed);
            }
        }
        let mut status = 0;
        // SAFETY: `status` lives through the call.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert!(libc::WIFEXITED(status), "{status}");
        assert_eq!(libc::WEXITSTATUS(status), 0);
    }
}
