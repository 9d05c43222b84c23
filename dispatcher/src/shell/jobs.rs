//! Work that takes too long for the event loop: checking passwords, which
//! costs CPU, and asking the name service, which may wait for a network.
//!
//! One thread each. How often a password is hashed is said by its verifier, and
//! any role may set itself one with a count of hours: so that work is done in
//! slices. A new job gets its first slice at once, and nearly all need no other;
//! the rest take turns. Nobody's work goes on when who waits for it has gone.
//!
//! The number of jobs is bounded by the number of logins.
//! Results are brought by a channel; an eventfd tells the event loop that there
//! are some.

use crate::protocol::auth::server::PasswordJob;
use crate::shell::sys::process;
use crate::shell::tls::context::ServerContext;
use crate::shell::tls::threads::Handshake;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::Arc;

/// Iterations of a hash between two looks at what else there is to do: some
/// two milliseconds, and all that a usual password needs.
const SLICE_ITERATIONS: u32 = 8192;

/// A client's password to be checked; number and serial name who waits for it.
pub struct Job {
    pub login: u32,
    pub serial: u64,
    pub job: PasswordJob,
}

/// A user's name to be found.
pub struct Name {
    pub login: u32,
    pub serial: u64,
    pub uid: u32,
}

/// What came of it.
pub enum Done {
    Password {
        login: u32,
        serial: u64,
        matches: bool,
    },
    /// Of a client that speaks TLS.
    Handshake(Handshake),
    /// The configuration of this generation about TLS has been loaded.
    TlsLoaded {
        generation: u64,
        result: Result<ServerContext, String>,
    },
    /// "" if the user has none.
    Name {
        login: u32,
        serial: u64,
        name: String,
    },
}

impl Job {
    /// Does a part of it.
    fn step(&mut self) -> Option<Done> {
        let matches = self.job.step(SLICE_ITERATIONS)?;
        Some(Done::Password {
            login: self.login,
            serial: self.serial,
            matches,
        })
    }
}

/// Where results go; false once nobody reads them any more.
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

/// The threads, seen from who has work for them.
#[derive(Clone)]
pub struct JobsIn {
    work: mpsc::Sender<Job>,
    names: mpsc::Sender<Name>,
    results: Results,
}

impl JobsIn {
    pub fn give(&self, job: Job) {
        // The thread ends only with us.
        let _ = self.work.send(job);
    }

    pub fn give_name(&self, name: Name) {
        let _ = self.names.send(name);
    }

    /// For other threads that have something to tell the event loop.
    pub fn results(&self) -> Results {
        self.results.clone()
    }
}

/// The threads, seen from the event loop.
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

    /// For who has work.
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

    /// There may be more to take.
    pub fn wake_again(&self) {
        process::signal_event(&self.jobs.results.wake);
    }
}

/// Until nobody is left to give work, or to take what came of it.
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
    fn a_long_job_holds_up_no_other_and_ends_with_who_waits_for_it() {
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
                    // Nothing is wanted any more, nothing will come.
                    endless_wanted.take();
                    give.take();
                }
            }
            true
        });
        assert_eq!(*order.borrow(), [3, 2]);
    }
}
