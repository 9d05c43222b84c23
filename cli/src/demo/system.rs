//! System calls that std does not offer: signals, users, the end of a terminal, and the
//! preparation of a child before it becomes another program.
//!
//! All unsafe code of this program is here. The signal handler only stores into an
//! atomic; it may do no more.

use super::POLL;
use anyhow::{bail, Context, Result};
use std::ffi::{CStr, CString};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// The signal that asked this program to end; 0: none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// SIGINT, SIGTERM or SIGHUP came: end in the ordinary way.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

extern "C" fn note_signal(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// From here on SIGINT, SIGTERM and SIGHUP are recorded and do not end the program.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler is async-signal-safe, see the module's head; the structure is all
        // zeroes except for fields that are set here.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Has such a signal come?
pub fn interrupted() -> bool {
    SIGNAL.load(Ordering::Relaxed) != 0
}

/// Blocks until the terminal at standard input is gone.
pub fn wait_for_hangup() {
    let mut input = libc::pollfd {
        fd: libc::STDIN_FILENO,
        events: 0,
        revents: 0,
    };
    // SAFETY: poll writes to the structure, of which there is one.
    while unsafe { libc::poll(&mut input, 1, -1) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// Sleeps one poll interval. Blocks. An error if a signal has come.
pub fn pause() -> Result<()> {
    if interrupted() {
        return Err(Interrupted.into());
    }
    std::thread::sleep(POLL);
    Ok(())
}

/// Sends a signal to a child that has not been waited for yet, so its process ID cannot be
/// another process's.
pub fn signal_child(child: &Child, signal: libc::c_int) {
    // SAFETY: kill has no memory effects; the ID is of this program's own live child.
    unsafe {
        libc::kill(child.id() as libc::pid_t, signal);
    }
}

/// Waits for a child, for at most `limit`. Blocks.
pub fn wait_at_most(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            _ => return None,
        }
    }
}

/// An account to run the server as.
#[derive(Clone, Debug)]
pub struct Account {
    /// Its name, for messages.
    pub name: String,
    /// Its user ID.
    pub uid: u32,
    /// Its group ID.
    pub gid: u32,
}

/// The account for the server: None (the caller's own), unless the caller is root, as whom
/// PostgreSQL refuses to run.
pub fn server_account() -> Result<Option<Account>> {
    // SAFETY: geteuid always succeeds and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(None);
    }
    match ["postgres", "nobody"].into_iter().find_map(account_of) {
        Some(account) => Ok(Some(account)),
        None => bail!(
            "PostgreSQL does not run as root, and there is neither a user postgres nor nobody"
        ),
    }
}

fn account_of(name: &str) -> Option<Account> {
    let c_name = CString::new(name).ok()?;
    // SAFETY: getpwnam returns NULL or a structure that stays valid until the next call. This
    // program calls it from one thread only, and copies the structure.
    unsafe {
        let entry = libc::getpwnam(c_name.as_ptr());
        if entry.is_null() || (*entry).pw_uid == 0 {
            return None;
        }
        Some(Account {
            name: CStr::from_ptr((*entry).pw_name)
                .to_string_lossy()
                .into_owned(),
            uid: (*entry).pw_uid,
            gid: (*entry).pw_gid,
        })
    }
}

/// Makes the child run as the account, in a process group of its own (this program handles a
/// Ctrl-C at the terminal), and end with this program.
pub fn prepare_child(command: &mut Command, account: Option<&Account>, end_signal: libc::c_int) {
    if let Some(account) = account {
        // std also drops root's supplementary groups when it sets the uid.
        command.gid(account.gid).uid(account.uid);
    }
    command.process_group(0);
    // SAFETY: prctl is async-signal-safe and allocates nothing. It comes after the change of
    // user, which would clear its effect.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, end_signal);
            Ok(())
        });
    }
}

/// Runs a program to its end. Blocks. Its standard output is captured; its standard error is
/// inherited or, if `quiet`, captured too. A signal ends it. What it writes to captured streams
/// must fit into a pipe.
pub fn run(mut command: Command, account: Option<&Account>, quiet: bool) -> Result<Output> {
    prepare_child(&mut command, account, libc::SIGTERM);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(if quiet {
        Stdio::piped()
    } else {
        Stdio::inherit()
    });
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    while child.try_wait()?.is_none() {
        if let Err(interrupt) = pause() {
            signal_child(&child, libc::SIGTERM);
            if wait_at_most(&mut child, Duration::from_secs(5)).is_none() {
                let _ = child.kill();
                let _ = child.wait();
            }
            return Err(interrupt);
        }
    }
    Ok(child.wait_with_output()?)
}

/// Like `run`, but anything except success is an error with the program's output.
pub fn run_well(command: Command, account: Option<&Account>, quiet: bool) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = run(command, account, quiet)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed ({}) {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
