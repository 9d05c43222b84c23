//! Clients come, log in, and become sessions.

use super::orphans::is_backend;
use super::Dispatcher;
use crate::core::Event;
use crate::protocol::startup::{CancelRequest, Startup};
use crate::protocol::Report;
use crate::shell::jobs::Done;
use crate::shell::link::layout::shared::FIRST_PID;
use crate::shell::login::accepting::Came;
use crate::shell::login::cancels::{Guess, Sender};
use crate::shell::login::launcher::Asker;
use crate::shell::login::native::{why_native, Why};
use crate::shell::login::{admission, Effect, Entering};
use crate::shell::scheduler::NewClient;
use crate::shell::sys::socket::Address;
use crate::shell::work;
use std::sync::atomic::Ordering::SeqCst;

/// Connections taken in one round, from all listeners together.
pub(super) const ACCEPTS_A_ROUND: usize = 64;
/// Of what other threads have found out for logins.
const RESULTS_A_ROUND: usize = 64;

impl Dispatcher {
    pub(super) fn accept_clients(&mut self, index: u32) {
        // In proportion to how many others are to be served: a single knock
        // needs no second look, and a crowd is let in fast enough.
        let most = (self.round_events / 4).clamp(1, ACCEPTS_A_ROUND);
        for _ in 0..most {
            if self.accepts_left == 0 {
                return;
            }
            self.accepts_left -= 1;
            match self.ports.accept(index, self.now.us) {
                Came::Client {
                    socket,
                    address,
                    local,
                } => {
                    self.logins.begin(socket, address, local);
                    self.logins_want();
                }
                Came::TurnedAway => self.logins.count_turned_away(),
                Came::Gone(error) => {
                    let line = format_args!("could not accept new connection: {error}");
                    self.logins.log("accept", line);
                }
                Came::Nobody => return,
            }
        }
    }

    /// What other threads have found out, some of it.
    pub(super) fn jobs_done(&mut self) {
        self.jobs.woken();
        for _ in 0..RESULTS_A_ROUND {
            let Some(done) = self.jobs.take() else {
                return;
            };
            self.turns.work += work::LOGIN;
            match done {
                Done::Password {
                    login,
                    serial,
                    matches,
                } => self.logins.password_checked(login, serial, matches),
                Done::Name {
                    login,
                    serial,
                    name,
                } => self.logins.named(login, serial, name),
                Done::Handshake(handshake) => self.logins.handshake_over(handshake),
                Done::TlsLoaded { generation, result } => {
                    self.logins.tls_loaded(generation, result);
                }
            }
            self.logins_want();
        }
        self.jobs.wake_again();
    }

    /// Does what logins want of others. To be called after each thing that they are
    /// told.
    pub(super) fn logins_want(&mut self) {
        while let Some(effect) = self.logins.next_effect() {
            match effect {
                Effect::InVain(login) => {
                    let report = self.ports.no_descriptors();
                    self.logins.fail(login, &report);
                }
                Effect::Startup(login, startup) => self.startup(login, *startup),
                Effect::Ask {
                    login,
                    serial,
                    address,
                    who,
                } => {
                    let settings = self.scheduler.settings_generation();
                    let asker = Asker { login, serial };
                    (self.launcher).ask(asker, &address, who, settings, &mut self.connections);
                }
                Effect::Known {
                    login,
                    serial,
                    generation,
                    answer,
                } => {
                    // A client may have come after this round began; then what was
                    // committed before must count for it.
                    self.look_at_settings();
                    self.login_answered(login, serial, generation, answer);
                }
                Effect::Cancel(login, request) => self.cancel_requested(login, request),
                Effect::Enter(entering) => self.enter(*entering),
            }
        }
    }

    /// A client has said who it is.
    fn startup(&mut self, login: u32, startup: Startup) {
        if let Some(why) = self.why_native(&startup) {
            self.logins.goes_native(login, startup, why);
        } else if let Some(report) = self.not_now() {
            self.logins.fail(login, &report);
        } else {
            self.logins.goes_on(login, startup);
        }
    }

    fn why_native(&mut self, startup: &Startup) -> Option<Why> {
        if let Some(why) = why_native(startup, &self.parameters) {
            return Some(why);
        }
        if self.scheduler.too_many_wait() {
            return Some(Why::Busy);
        }
        (self.scheduler.is_memory_full()).then_some(Why::ContextMemory)
    }

    /// What a new client is told while nobody can be served. A launcher that
    /// has just gone is back in a second, and client and question wait for it;
    /// if it stays away the server has restarted after a crash.
    pub(super) fn not_now(&self) -> Option<Report> {
        if self.server.is_stopping() {
            return Some(Report::fatal(
                b"57P03",
                "the database system is shutting down",
            ));
        }
        if self.launcher.is_away(self.now.us) {
            return Some(Report::fatal(
                b"57P03",
                "the database system is in recovery mode",
            ));
        }
        None
    }

    /// Whoever has sent wrong keys of late is not heard: not even whether this one is
    /// right (login/cancels.rs).
    fn cancel_requested(&mut self, login: u32, request: CancelRequest) {
        let Some(from) = self.logins.sender_of(login) else {
            return;
        };
        let has_session = match from {
            Sender::Network(origin) => self.scheduler.sessions_from(&origin) > 0,
            Sender::User(_) => true,
        };
        if !self.logins.may_guess(from, has_session) {
            let line = format_args!("cancel requests {from} are ignored: too many were wrong");
            self.logins.log_of("cancel", b"ignored", line);
            return self.logins.forget(login);
        }
        let guess = match self.scheduler.session_of_key(request.pid, &request.key) {
            Some(id) => {
                self.cancels += 1;
                self.scheduler.tell(Event::Cancel(id));
                Guess::Right
            }
            None if self.is_server_s(request.pid) => {
                self.logins.has_guessed(from, has_session, Guess::Server);
                return self.logins.forward_cancel(login, request);
            }
            None => {
                let pid = request.pid;
                let line = format_args!("PID {pid} in cancel request did not match any process");
                self.logins.log_of("cancel", b"no match", line);
                match self.scheduler.has_pid(pid) {
                    true => Guess::WrongKey,
                    false => Guess::NoSession,
                }
            }
        };
        self.logins.has_guessed(from, has_session, guess);
        self.logins.forget(login);
    }

    /// The number of a process of the server. What it does, and whether the key is its
    /// own, only the postmaster knows.
    fn is_server_s(&self, pid: i32) -> bool {
        let postmaster = self.control.header.postmaster_pid.load(SeqCst);
        let pid = u32::try_from(pid).ok().filter(|pid| *pid < FIRST_PID);
        pid.is_some_and(|pid| is_backend(pid, postmaster).is_some())
    }

    /// By the limits at the door.
    pub(super) fn has_room_for(
        &self,
        address: &Address,
        role: u32,
        superuser: bool,
    ) -> Result<(), Report> {
        let (scheduler, natives) = (&self.scheduler, &self.natives);
        let limits = &self.parameters.door;
        admission::has_room_for(scheduler, natives, limits, address, (role, superuser))
    }

    /// A client has proved itself. May it come in?
    fn enter(&mut self, client: Entering) {
        let Entering {
            socket,
            address,
            local,
            watched,
            startup,
            answer,
            proved,
        } = client;
        let may_enter = self
            .not_now()
            .map_or(Ok(()), Err)
            .and_then(|()| admission::admit(&self.scheduler, &self.parameters, &startup, &answer))
            .and_then(|()| self.has_room_for(&address, answer.role, answer.superuser));
        if let Err(report) = may_enter {
            self.logins.log_failure(&address, &report);
            return self.logins.turn_away(&socket, proved.out, &report);
        }
        answer.lets_in();
        let client = NewClient {
            socket,
            address,
            local,
            watched,
            startup,
            role: answer.role,
            database: answer.database,
            superuser: answer.superuser,
            max_sessions: answer.max_sessions,
            is_apart: answer.is_apart,
            marks: answer.marks,
            must_be_greeted: answer.ask_backend || answer.fires_triggers,
            principal: proved.principal,
            authenticated: proved.authenticated,
            out: proved.out,
        };
        if let Err(turned_away) = self.scheduler.begin_session(client) {
            let (socket, out, report) = *turned_away;
            self.logins.log_failure(&address, &report);
            self.logins.turn_away(&socket, out, &report);
        }
    }
}
