//! Work that takes too long for the event loop: password checks, which cost CPU, and questions
//! to the name service, which may wait for a network.
//!
//! Each of the two has a thread. A verifier says how often its password is hashed, and any role
//! may give itself a verifier with a count that takes hours. So the thread works in slices. A
//! new job gets its first slice at once, and nearly all jobs need no other; the rest take
//! turns. A job stops when the login that waits for it has gone.
//!
//! The number of logins bounds the number of jobs. A channel carries the results; an eventfd
//! tells the event loop that there are some.

use crate::protocol::auth::server::PasswordJob;
use crate::shell::sys::process;
use crate::shell::tls::context::ServerContext;
use crate::shell::tls::threads::Handshake;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::Arc;

/// Iterations of a hash in one slice: some two milliseconds, and all that a usual password
/// needs.
const SLICE_ITERATIONS: u32 = 8192;

/// A client's password to check. Number and serial name the login that waits for the result.
pub struct Job {
    pub login: u32,
    pub serial: u64,
    pub job: PasswordJob,
}

/// An operating-system user whose name a login waits for.
pub struct Name {
    pub login: u32,
    pub serial: u64,
    pub uid: u32,
}

/// The result of a job.
pub enum Done {
    Password {
        login: u32,
        serial: u64,
        matches: bool,
    },
    /// The TLS handshake of a client has ended.
    Handshake(Handshake),
    /// The TLS configuration of this generation has been loaded.
    TlsLoaded {
        generation: u64,
        result: Result<ServerContext, String>,
    },
    /// Empty if the user has no name.
    Name {
        login: u32,
        serial: u64,
        name: String,
    },
}

impl Job {
    /// Does one slice; the result, if that was the last one.
    fn step(&mut self) -> Option<Done> {
        let matches = self.job.step(SLICE_ITERATIONS)?;
        Some(Done::Password {
            login: self.login,
            serial: self.serial,
            matches,
        })
    }
}

/// Takes results for the event loop; false once the event loop has gone.
#[derive(Clone)]
pub struct Results {
    done: mpsc::Sender<Done>,
    wake: Arc<OwnedFd>,
}

impl Results {
    pub fn bring(&self, done: Done) -> bool {
        let sent = self.done.send(done).is_ok();
        process::signal_event(&self.wake);
        sent
    }
}

/// The sending side of the threads, for code that has jobs for them.
#[derive(Clone)]
pub struct JobsIn {
    work: mpsc::Sender<Job>,
    names: mpsc::Sender<Name>,
    results: Results,
}

impl JobsIn {
    pub fn give(&self, job: Job) {
        // The thread ends only with this process.
        let _ = self.work.send(job);
    }

    pub fn give_name(&self, name: Name) {
        let _ = self.names.send(name);
    }

    /// For other threads that report to the event loop.
    pub fn results(&self) -> Results {
        self.results.clone()
    }
}

/// The threads, as the event loop sees them.
pub struct Jobs {
    jobs: JobsIn,
    done: mpsc::Receiver<Done>,
}

impl Jobs {
    pub fn start() -> io::Result<Jobs> {
        let (work, work_here) = mpsc::channel();
        let (names, names_here) = mpsc::channel();
        let (done_here, done) = mpsc::channel();
        let wake = Arc::new(process::eventfd()?);
        let results = Results {
            done: done_here,
            wake,
        };
        let (of_work, of_names) = (results.clone(), results.clone());
        std::thread::Builder::new()
            .name("passwords".into())
            .spawn(move || do_work(&work_here, |done| of_work.bring(done)))?;
        std::thread::Builder::new()
            .name("names".into())
            .spawn(move || find_names(&names_here, |done| of_names.bring(done)))?;
        let jobs = JobsIn {
            work,
            names,
            results,
        };
        Ok(Jobs { jobs, done })
    }

    /// The sending side, for code that has jobs.
    pub fn input(&self) -> JobsIn {
        self.jobs.clone()
    }

    pub fn fd(&self) -> RawFd {
        self.jobs.results.wake.as_raw_fd()
    }

    pub fn take(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    pub fn woken(&self) {
        process::drain(&self.jobs.results.wake);
    }

    /// Wakes the event loop once more, as there may be more results.
    pub fn wake_again(&self) {
        process::signal_event(&self.jobs.results.wake);
    }
}

/// Works until no sender of jobs, or no receiver of results, is left.
fn do_work(jobs: &mpsc::Receiver<Job>, bring: impl Fn(Done) -> bool) {
    let mut unfinished: VecDeque<Job> = VecDeque::new();
    loop {
        let new = if unfinished.is_empty() {
            jobs.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            jobs.try_recv()
        };
        let new = match new {
            Ok(job) => Some(job),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => return,
        };
        for mut job in new.into_iter().chain(unfinished.pop_front()) {
            if !job.job.is_wanted() {
                continue;
            }
            match job.step() {
                Some(done) => {
                    if !bring(done) {
                        return;
                    }
                }
                None => unfinished.push_back(job),
            }
        }
    }
}

fn find_names(names: &mpsc::Receiver<Name>, bring: impl Fn(Done) -> bool) {
    for Name { login, serial, uid } in names {
        let name = process::user_name(uid).unwrap_or_default();
        let done = Done::Name {
            login,
            serial,
            name,
        };
        if !bring(done) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::auth::server::tests::password_job;
    use std::cell::RefCell;

    fn job(login: u32, iterations: u32) -> (std::sync::Arc<()>, Job) {
        let (wanted, job) = password_job(iterations);
        let serial = 0;
        (wanted, Job { login, serial, job })
    }

    #[test]
    fn long_job_delays_no_other_and_ends_when_its_login_is_gone() {
        let (give, take) = mpsc::channel();
        let (endless_wanted, endless) = job(1, u32::MAX);
        let (_long_wanted, long) = job(2, 3 * SLICE_ITERATIONS);
        let (_wanted, short) = job(3, 4096);
        for job in [endless, long, short] {
            give.send(job).unwrap();
        }
        let order = RefCell::new(Vec::new());
        let (give, endless_wanted) = (RefCell::new(Some(give)), RefCell::new(Some(endless_wanted)));
        do_work(&take, |done| {
            if let Done::Password { login, .. } = done {
                order.borrow_mut().push(login);
                if login == 2 {
                    // Both sides have gone: no job is wanted, and none will come.
                    endless_wanted.take();
                    give.take();
                }
            }
            true
        });
        assert_eq!(*order.borrow(), [3, 2]);
    }
}
