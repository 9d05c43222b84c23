//! Work that takes too long for the event loop: password checks, which cost CPU, and questions
//! to the name service, which may wait for a network.
//!
//! Each of the two has a thread. A verifier says how often its password is hashed, and any role
//! may give itself a verifier with a count that takes hours. So the thread works in slices, and
//! nearly all jobs need only one. The clients' addresses take turns ([`PasswordQueue`]). A job
//! stops when the login that waits for it has gone.
//!
//! The number of logins bounds the number of jobs. A channel carries the results; an eventfd
//! tells the event loop that there are some.

use crate::protocol::auth::server::PasswordJob;
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::process;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
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
    /// The client's address.
    pub origin: Option<Origin>,
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

/// The jobs of one address.
#[derive(Default)]
struct OfAddress {
    /// Jobs that have had no slice, in the order of arrival.
    new: VecDeque<Job>,
    /// Jobs that need more slices.
    unfinished: VecDeque<Job>,
    is_last_next: bool,
}

impl OfAddress {
    /// The next new job, alternately the first and the last one. So a burst is served to its end,
    /// and a standing crowd does not keep out the clients that come after it.
    fn next_new(&mut self) -> Option<Job> {
        self.is_last_next = !self.is_last_next;
        match self.is_last_next {
            true => self.new.pop_front(),
            false => self.new.pop_back(),
        }
    }
}

/// The password checks that wait. Each address in turn gets a slice for one new job, and one for
/// a job that needs more. So an address waits for no more than two slices of each other address,
/// however many jobs the others have.
#[derive(Default)]
struct PasswordQueue {
    addresses: HashMap<Option<Origin>, OfAddress>,
    /// Every address that has jobs, once.
    turns: VecDeque<Option<Origin>>,
}

impl PasswordQueue {
    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    fn add(&mut self, job: Job) {
        let jobs = match self.addresses.entry(job.origin) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.turns.push_back(job.origin);
                entry.insert(OfAddress::default())
            }
        };
        // Jobs whose logins have gone would otherwise pile up: the oldest logins end first.
        while jobs.new.front().is_some_and(|job| !job.job.is_wanted()) {
            jobs.new.pop_front();
        }
        jobs.new.push_back(job);
    }

    /// The next address has its turn. `bring` takes a result; false ends the work.
    fn turn(&mut self, bring: &impl Fn(Done) -> bool) -> bool {
        let Some(origin) = self.turns.pop_front() else {
            return true;
        };
        let Some(jobs) = self.addresses.get_mut(&origin) else {
            return true;
        };
        let mut goes_on = true;
        for mut job in [jobs.next_new(), jobs.unfinished.pop_front()]
            .into_iter()
            .flatten()
        {
            if !job.job.is_wanted() {
                continue;
            }
            match job.step() {
                Some(done) => goes_on &= bring(done),
                None => jobs.unfinished.push_back(job),
            }
        }
        match jobs.new.is_empty() && jobs.unfinished.is_empty() {
            true => {
                self.addresses.remove(&origin);
            }
            false => self.turns.push_back(origin),
        }
        goes_on
    }
}

/// Works until no sender of jobs, or no receiver of results, is left.
fn do_work(jobs: &mpsc::Receiver<Job>, bring: impl Fn(Done) -> bool) {
    let mut queue = PasswordQueue::default();
    loop {
        if queue.is_empty() {
            match jobs.recv() {
                Ok(job) => queue.add(job),
                Err(_) => return,
            }
        }
        loop {
            match jobs.try_recv() {
                Ok(job) => queue.add(job),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        if !queue.turn(&bring) {
            return;
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
    use crate::shell::sessions::sockets::samples::v4;
    use std::cell::RefCell;

    fn job(login: u32, origin: u32, iterations: u32) -> (std::sync::Arc<()>, Job) {
        let (wanted, job) = password_job(iterations);
        let (serial, origin) = (0, v4(origin));
        let job = Job {
            login,
            serial,
            origin,
            job,
        };
        (wanted, job)
    }

    /// Gives the jobs to the thread's work and returns the logins in the order of their results.
    /// `had` is called at each; the work ends when it returns false.
    fn done(jobs: impl IntoIterator<Item = Job>, mut had: impl FnMut(u32) -> bool) -> Vec<u32> {
        let (give, take) = mpsc::channel();
        for job in jobs {
            give.send(job).unwrap();
        }
        let (order, had) = (RefCell::new(Vec::new()), RefCell::new(&mut had));
        do_work(&take, |done| {
            let Done::Password { login, .. } = done else {
                panic!("a result of another kind");
            };
            order.borrow_mut().push(login);
            had.borrow_mut()(login)
        });
        drop(give);
        order.into_inner()
    }

    #[test]
    fn long_job_delays_no_other_and_ends_when_its_login_is_gone() {
        for [of_long, of_short] in [[1, 1], [1, 2]] {
            let (endless_wanted, endless) = job(1, of_long, u32::MAX);
            let (_long_wanted, long) = job(2, of_long, 3 * SLICE_ITERATIONS);
            let (_wanted, short) = job(3, of_short, 4096);
            let mut endless_wanted = Some(endless_wanted);
            let order = done([endless, long, short], |login| {
                // Otherwise the work would not end before the endless job.
                endless_wanted.take_if(|_| login == 2);
                login != 2
            });
            assert_eq!(order, [3, 2], "{of_long} {of_short}");
        }
    }

    #[test]
    fn a_flood_of_wrong_passwords_delays_its_own_address_alone() {
        let mut wanted = Vec::new();
        let mut jobs = Vec::new();
        for (login, origin) in (0..100).map(|login| (login, 1)).chain([(100, 2), (101, 3)]) {
            let (is_wanted, job) = job(login, origin, 1);
            wanted.push(is_wanted);
            jobs.push(job);
        }
        let order = done(jobs, |login| login != 101);
        assert_eq!(order, [0, 100, 101]);
    }

    #[test]
    fn last_of_a_crowd_at_one_address_waits_for_few_of_it() {
        let (wanted, jobs): (Vec<_>, Vec<_>) = (0..100).map(|login| job(login, 1, 1)).unzip();
        let order = done(jobs, |login| login != 99);
        assert_eq!(order, [0, 99]);
        drop(wanted);
    }

    #[test]
    fn jobs_whose_logins_have_gone_do_not_pile_up() {
        let mut queue = PasswordQueue::default();
        for login in 0..100 {
            let (is_wanted, job) = job(login, 1, 1);
            queue.add(job);
            drop(is_wanted);
        }
        assert_eq!(queue.addresses[&v4(1)].new.len(), 1);
        queue.turn(&|_| panic!("no login waits for a result"));
        assert!(queue.is_empty() && queue.addresses.is_empty());
    }
}
