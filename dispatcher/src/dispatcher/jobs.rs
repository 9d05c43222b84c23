//! Work that costs too much CPU for the event loop: making keys of passwords.
//!
//! One thread does it, in order. The number of jobs is bounded by the number
//! of logins and starting backends. Results are brought by a channel; an
//! eventfd tells the event loop that there are some.

use super::sys::process;
use crate::protocol::auth::client::DeriveJob;
use crate::protocol::auth::scram::Keys;
use crate::protocol::auth::server::{PasswordJob, PasswordResult};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::sync::Arc;

/// Work to do; number and serial name who waits for it.
pub enum Job {
    Password {
        login: u32,
        serial: u64,
        job: PasswordJob,
    },
    Derive {
        backend: u32,
        serial: u64,
        job: DeriveJob,
    },
}

/// What came of it.
pub enum Done {
    Password {
        login: u32,
        serial: u64,
        result: PasswordResult,
    },
    Derive {
        backend: u32,
        serial: u64,
        keys: Keys,
    },
}

/// The thread, seen from the event loop.
pub struct Jobs {
    work: mpsc::Sender<Job>,
    done: mpsc::Receiver<Done>,
    wake: Arc<OwnedFd>,
}

impl Jobs {
    pub fn start() -> io::Result<Jobs> {
        let (work, work_here) = mpsc::channel::<Job>();
        let (done_here, done) = mpsc::channel();
        let wake = Arc::new(process::eventfd()?);
        let wake_here = Arc::clone(&wake);
        std::thread::Builder::new()
            .name("passwords".into())
            .spawn(move || {
                for job in work_here {
                    let result = match job {
                        Job::Password { login, serial, job } => Done::Password {
                            login,
                            serial,
                            result: job.run(),
                        },
                        Job::Derive {
                            backend,
                            serial,
                            job,
                        } => Done::Derive {
                            backend,
                            serial,
                            keys: job.run(),
                        },
                    };
                    if done_here.send(result).is_err() {
                        return;
                    }
                    process::signal_event(&wake_here);
                }
            })?;
        Ok(Jobs { work, done, wake })
    }

    pub fn fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    pub fn give(&self, job: Job) {
        // The thread ends only with us.
        let _ = self.work.send(job);
    }

    pub fn take(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    pub fn woken(&self) {
        process::drain(&self.wake);
    }
}
