//! How the kernel schedules a thread: its policy, and how long it has waited.

use super::check;
use std::io;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// SCHED_OTHER
    Usual,
    /// SCHED_BATCH
    Batch,
}

impl Policy {
    /// None: another one.
    pub fn of_this_thread() -> Option<Policy> {
        // SAFETY: no memory is passed; 0 is the thread that calls.
        match unsafe { libc::sched_getscheduler(0) } {
            libc::SCHED_OTHER => Some(Policy::Usual),
            libc::SCHED_BATCH => Some(Policy::Batch),
            _ => None,
        }
    }

    /// For the thread that calls; its nice value stays (sched_setscheduler(2)).
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

/// Nanoseconds that the thread that calls has waited for a processor, and how often it
/// has got one: /proc/thread-self/schedstat (proc(5)). An error: the kernel does not keep
/// them, or no descriptor is free.
pub fn thread_waits() -> io::Result<(u64, u64)> {
    let text = std::fs::read("/proc/thread-self/schedstat")?;
    parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// "nanoseconds run, nanoseconds waited, times run"
fn parse(text: &[u8]) -> Option<(u64, u64)> {
    let mut numbers = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    numbers.next()?;
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
