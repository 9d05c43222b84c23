//! Pauses begin and end. While one stands, no process runs a transaction of a session that it
//! concerns, and none is handed out; afterwards all sessions are served as usual.

use super::scenario::Scenario;
use super::shares::{limits, quiet, Crowd, Steady};
use super::shell::Shell;
use crate::core::{Event, PauseState, PauseTerms, Scope, SessionId};

/// The connection of the only statement that pauses at a time.
const ASKER: u32 = 7;

/// What the statement has been told.
#[derive(Default)]
pub struct Pauses {
    pub is_asking: bool,
    pub told: Option<PauseState>,
    pub stood: u64,
    pub ended: u64,
}

impl Pauses {
    pub fn told(&mut self, asker: u32, state: PauseState) {
        assert_eq!(asker, ASKER);
        assert!(self.is_asking, "the statement has not asked");
        self.is_asking = false;
        match state {
            PauseState::Stands => self.stood += 1,
            PauseState::Ended => self.ended += 1,
            PauseState::InTheWay(..) => {}
        }
        self.told = Some(state);
    }
}

impl Shell {
    /// No session of a pause that stands is served.
    pub fn check_pauses(&self) {
        for process in self.processes.iter().flatten().filter(|it| !it.has_ended) {
            for id in process.runs_or_takes() {
                assert!(
                    !self.core.is_stopped_by_pause(id),
                    "{id:x} is served though a pause stands"
                );
            }
        }
    }

    pub fn pause(&mut self, terms: PauseTerms) {
        self.pauses.is_asking = true;
        self.core.pause(ASKER, terms);
        self.carry_out();
    }

    pub fn ask_pause(&mut self) {
        self.pauses.is_asking = true;
        self.core.ask_pause(ASKER);
        self.carry_out();
    }

    pub fn resume(&mut self, scope: Scope) -> usize {
        let ended = self.core.resume(scope);
        self.carry_out();
        ended
    }
}

impl Scenario {
    /// Runs in each step of seeds that have pauses.
    pub(super) fn pause_or_resume(&mut self) {
        if self.random().once_in(30) {
            let scope = self.some_scope();
            self.shell.resume(scope);
        }
        if self.shell.pauses.is_asking {
            return;
        }
        if let Some(PauseState::InTheWay(many, some)) = self.shell.pauses.told.take() {
            assert!(many > 0 && !some.is_empty() && some.len() <= many);
            if self.random().once_in(12) {
                return self.shell.tell(Event::PauseAskerGone(ASKER));
            }
            return self.shell.ask_pause();
        }
        if self.random().once_in(15) {
            let terms = PauseTerms {
                scope: self.some_scope(),
                by_role: u32::MAX,
                own: 0,
                wait_us: self.random().between(1, 1_000_000),
                limit_us: self.random().between(1_000, 2_000_000),
            };
            self.shell.pause(terms);
        }
    }

    fn some_scope(&mut self) -> Scope {
        let role = self.random().below(5) as u32;
        let database = self.random().below(3) as u32;
        Scope {
            role_oid: self.random().once_in(2).then_some(role),
            database_oid: self.random().once_in(2).then_some(database),
        }
    }

    pub(super) fn end_pauses(&mut self) {
        self.has_pauses = false;
        self.shell.tell(Event::PauseAskerGone(ASKER));
        self.shell.resume(Scope::default());
        self.shell.pauses.is_asking = false;
    }
}

// ----------------------------------------------------------------------------
// One thing at a time.

const ROLES: usize = 3;

fn crowds() -> Vec<Crowd> {
    let crowd = |pool| Crowd {
        clients: 4,
        think_us: 5_000,
        ..quiet(pool)
    };
    (0..ROLES).map(crowd).collect()
}

fn terms(scope: Scope) -> PauseTerms {
    PauseTerms {
        scope,
        by_role: u32::MAX,
        own: 0,
        wait_us: 1_000_000,
        limit_us: 60_000_000,
    }
}

fn of_role(role: u32) -> Scope {
    Scope {
        role_oid: Some(role),
        ..Scope::default()
    }
}

/// Pauses, and asks until nothing is in the way.
fn pause(steady: &mut Steady<'_>, terms: PauseTerms) {
    steady.shell.pause(terms);
    for _ in 0..100 {
        steady.go_on(5_000, false);
        match steady.shell.pauses.told.take() {
            Some(PauseState::Stands) => return,
            Some(_) => steady.shell.ask_pause(),
            None => {}
        }
    }
    panic!("it is never in force");
}

fn answered(steady: &Steady<'_>, role: u32) -> u64 {
    let clients = steady.shell.world.clients.iter().flatten();
    let of_role = clients.filter(|client| client.group.0 == role);
    of_role.map(|client| u64::from(client.answered)).sum()
}

fn some_of(steady: &Steady<'_>, role: u32) -> SessionId {
    let mut clients = steady.shell.world.clients.iter().flatten();
    let client = clients.find(|client| client.group.0 == role);
    client.expect("it is there").id
}

fn roles(steady: &Steady<'_>) -> Vec<u32> {
    let clients = steady.shell.world.clients.iter().flatten();
    let mut all: Vec<u32> = clients.map(|client| client.group.0).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn other_roles_go_on_and_the_paused_one_is_served_after_it() {
    let crowds = crowds();
    let mut steady = Steady::new(&crowds, limits(4));
    steady.go_on(300_000, false);
    let roles = roles(&steady);
    assert_eq!(roles.len(), ROLES);
    pause(&mut steady, terms(of_role(roles[0])));
    let before: Vec<u64> = roles.iter().map(|role| answered(&steady, *role)).collect();
    steady.go_on(500_000, false);
    let after: Vec<u64> = roles.iter().map(|role| answered(&steady, *role)).collect();
    assert_eq!(before[0], after[0]);
    assert!(before[1] < after[1] && before[2] < after[2]);
    assert_eq!(steady.shell.resume(of_role(roles[0])), 1);
    steady.go_on(500_000, false);
    assert!(answered(&steady, roles[0]) > after[0]);
}

#[test]
fn a_forgotten_pause_ends_and_waits_count_from_then() {
    let crowds = crowds();
    let mut limits = limits(4);
    limits.session_wait_timeout_us = 400_000;
    let mut steady = Steady::new(&crowds, limits);
    steady.go_on(300_000, false);
    let mut short = terms(Scope::default());
    short.limit_us = 900_000;
    pause(&mut steady, short);
    let waits_ended = steady.shell.waits_ended;
    steady.go_on(800_000, false);
    assert!(steady.shell.core.sessions().all_waiting() > ROLES);
    steady.go_on(800_000, false);
    assert_eq!(steady.shell.waits_ended, waits_ended);
    assert!(steady.shell.core.pauses.are_none());
    assert!(steady.shell.core.sessions().all_waiting() < ROLES);
}

#[test]
fn the_session_that_pauses_is_served_meanwhile() {
    let crowds = crowds();
    let mut steady = Steady::new(&crowds, limits(4));
    steady.go_on(300_000, false);
    let role = roles(&steady)[0];
    let own = some_of(&steady, role);
    let mut own_terms = terms(Scope::default());
    own_terms.own = own;
    pause(&mut steady, own_terms);
    let all = |steady: &Steady<'_>| -> u64 {
        let of_each = roles(steady).into_iter().map(|it| answered(steady, it));
        of_each.sum()
    };
    let of_own = |steady: &mut Steady<'_>| {
        let client = steady.shell.world.client(own).expect("it is there");
        u64::from(client.answered)
    };
    let (before, own_before) = (all(&steady), of_own(&mut steady));
    steady.go_on(500_000, false);
    let (after, own_after) = (all(&steady), of_own(&mut steady));
    assert!(own_after > own_before);
    assert_eq!(after - before, own_after - own_before);
}

#[test]
fn a_statement_that_goes_before_nothing_is_in_the_way_resumes() {
    let crowds = crowds();
    let mut steady = Steady::new(&crowds, limits(4));
    steady.go_on(300_000, false);
    steady.shell.pause(terms(Scope::default()));
    steady.shell.tell(Event::PauseAskerGone(ASKER));
    steady.go_on(300_000, false);
    let core = &steady.shell.core;
    assert!(core.pauses.are_none() && core.sessions().all_waiting() < ROLES);
    // The connection is no pause's any more.
    steady.shell.pauses.is_asking = true;
    steady.shell.core.ask_pause(ASKER);
    steady.shell.carry_out();
    assert_eq!(steady.shell.pauses.told, Some(PauseState::Ended));
}

#[test]
fn sessions_that_wait_for_a_pause_make_no_new_one_native() {
    let crowds = crowds();
    let mut limits = limits(4);
    limits.native_when_waiting = 2;
    let mut steady = Steady::new(&crowds, limits);
    steady.go_on(300_000, false);
    pause(&mut steady, terms(Scope::default()));
    steady.go_on(500_000, false);
    let shell = &mut steady.shell;
    assert!(shell.core.waiting(&shell.world) > 2);
    assert!(!shell.core.too_many_wait(&shell.world));
    assert!(shell.core.longest_of_all_us(&shell.world) == 0);
}
