//! Consoles: a client that has logged in to the database `pgbouncer` becomes one, and its
//! commands are executed here.
//!
//! A superuser's rights, or a membership, may end while a console is open. So before each command
//! it is checked whether a role or membership has changed that decides; the console then ends,
//! and the client may log in again.

use super::connections::ROWS_A_ROUND;
use super::Dispatcher;
use crate::console::command::{error, Command};
use crate::console::conversation::{Run, Step};
use crate::console::{tables::Value, Access, Layout, DATABASE};
use crate::core::{Event, PauseState, PauseTerms, Scope};
use crate::protocol::{messages, Report};
use crate::shell::console::{too_many, Console, Consoles, Heard, Job, NewConsole};
use crate::shell::events::work;
use crate::shell::link::layout::LoginMarks;
use crate::shell::link::wire::{Who, WhoByTls};
use crate::shell::login::client::names_of;
use crate::shell::login::launcher::Asker;
use crate::shell::login::Entering;
use crate::shell::scheduler::{ConsoleFacts, Listing, Outside};
use crate::shell::sessions::greetings::APPLICATION_NAME;
use crate::shell::sys::epoll;
use crate::shell::sys::{process, socket};
use std::sync::atomic::Ordering::SeqCst;
use tracing::info;

/// Sessions that KILL ends in a round: each costs a signal, or a message to a client.
const ENDED_A_ROUND: u32 = 64;
/// A slice of rows is made only while less than this is to be sent.
const MOST_UNSENT: usize = 16 * 1024;
/// Steps of one console in a round: a command takes two or three. A client may send hundreds at
/// once.
const STEPS_A_ROUND: usize = 32;
/// A pause of PAUSE and KILL lasts until RESUME; the core wants an end. The same as for
/// pg_baton_pause().
const PAUSED_US: u64 = super::connections::MOST_PAUSED_US;

/// What a console is told first.
fn greeting(layout: Layout, access: Access, key: &[u8], out: &mut Vec<u8>) {
    let version = format!("{}/bouncer", layout.release());
    let is_superuser = if access == Access::All { "on" } else { "off" };
    for (name, value) in [
        ("server_version", version.as_str()),
        ("client_encoding", "UTF8"),
        ("server_encoding", "UTF8"),
        ("DateStyle", "ISO"),
        ("TimeZone", "GMT"),
        ("standard_conforming_strings", "on"),
        ("is_superuser", is_superuser),
    ] {
        messages::parameter_status(out, name.as_bytes(), value.as_bytes());
    }
    messages::backend_key_data(out, std::process::id() as i32, key);
    messages::ready_for_query(out, b'I');
}

impl Dispatcher {
    /// A client that has proved its identity, and may have the console, gets one.
    pub(super) fn begin_console(&mut self, client: Entering, access: Access) {
        let Entering {
            socket,
            address,
            local,
            watched,
            mut startup,
            answer,
            proved,
            ..
        } = client;
        let names = names_of(&startup, address);
        let may_enter = self
            .not_now()
            .map_or(Ok(()), Err)
            .and_then(|()| self.has_room_for(&address, answer.role, answer.superuser))
            .and_then(|()| match self.consoles.has_room(answer.role, access) {
                true => Ok(()),
                false => Err(too_many()),
            });
        if let Err(report) = may_enter {
            self.logins.log_failure(&names, &report);
            return (self.logins).turn_away(&socket, None, proved.out, &report);
        }
        answer.lets_in();
        let newest = messages::newest_protocol(self.parameters.server_major());
        let key_bytes = messages::cancel_key_bytes(startup.protocol, newest);
        let user = startup.user.clone();
        if !address.is_local() && !socket.is_relayed() {
            let are = socket::keepalives(socket.fd());
            socket::set_keepalives(socket.fd(), &are, &self.parameters.keepalives);
        }
        let local = local.or_else(|| socket::local_address(socket.fd()).ok());
        let settings = startup.take_settings().unwrap_or_default();
        let is_name = |name: &[u8]| name.eq_ignore_ascii_case(APPLICATION_NAME);
        let name = settings.into_iter().rev().find(|(name, _)| is_name(name));
        let is_superuser = access == Access::All;
        let layout = self.parameters.console_layout;
        let new = NewConsole {
            watched,
            access,
            role: answer.role,
            marks: LoginMarks {
                // A database that comes or goes changes nothing here, nor does a membership for a
                // superuser.
                any_database: false,
                any_role: answer.marks.any_role && !is_superuser,
                memberships: answer.marks.memberships && !is_superuser,
                ..answer.marks
            },
            generation: self.control.header.login_generation.load(SeqCst),
            key_bytes,
            layout,
            facts: ConsoleFacts {
                id: 0,
                user,
                address,
                local,
                application_name: name.map(|(_, name)| name).unwrap_or_default(),
                tls: (socket.tls())
                    .map(|facts| format!("{}/{}", facts.protocol, facts.cipher))
                    .unwrap_or_default(),
                since: self.now.timestamp,
                asked: self.now.timestamp,
            },
            out: proved.out,
            socket,
        };
        let begun = self.consoles.begin(new);
        let Ok((number, key)) = begun else {
            return;
        };
        if let Some(mut console) = self.consoles.take(number) {
            greeting(layout, access, &key, &mut console.out);
            self.console_goes_on(number, console);
        }
    }

    /// An event on a console's socket.
    pub(super) fn console_event(&mut self, number: u32, events: u32) {
        let Some(mut console) = self.consoles.take(number) else {
            return;
        };
        let is_gone = events & (epoll::RDHUP | epoll::HUP | epoll::ERR) != 0;
        let reads = console.job.is_none() && events & epoll::OUT == 0;
        if is_gone && (!reads || events & epoll::IN == 0) || reads && console.read() == Heard::Gone
        {
            return self.end_console(number, console);
        }
        self.console_goes_on(number, console);
    }

    /// In each round: consoles that have more to do. Those for which this round has no rows left
    /// are the first in the next one.
    pub(super) fn consoles_go_on(&mut self) {
        self.console_rows_left = ROWS_A_ROUND;
        let mut busy = self.consoles.take_busy().into_iter();
        for number in busy.by_ref() {
            if let Some(console) = self.consoles.take(number) {
                self.console_goes_on(number, console);
            }
            if self.console_rows_left == 0 {
                break;
            }
        }
        self.consoles.go_on_first(busy.collect());
    }

    fn end_console(&mut self, number: u32, console: Box<Console>) {
        if matches!(
            &console.job,
            Some((_, Job::Pause { .. } | Job::Kill { .. }))
        ) {
            let asker = Consoles::asker(number);
            self.scheduler.tell(Event::PauseAskerGone(asker));
        }
        self.consoles.close(number, console);
    }

    /// Sends, goes on with the present command, and looks for the next one: as far as this round
    /// and the client allow.
    fn console_goes_on(&mut self, number: u32, mut console: Box<Console>) {
        for _ in 0..STEPS_A_ROUND {
            self.turns.work += work::PACKET;
            let to_send = match console.flush() {
                None => return self.end_console(number, console),
                Some(false) => Some(true),
                Some(true) if console.ends => return self.end_console(number, console),
                Some(true) => match console.job.take() {
                    Some((run, job)) => match self.job_goes_on(number, &mut console, run, job) {
                        JobGoes::On => continue,
                        JobGoes::OnInNextRound => {
                            self.consoles.goes_on(number);
                            return self.consoles.put(number, console);
                        }
                        JobGoes::ByOthers => None,
                    },
                    None => match self.next_command(number, &mut console) {
                        true => continue,
                        false => Some(false),
                    },
                },
            };
            if !self.consoles.watch(number, &mut console, to_send) {
                return self.end_console(number, console);
            }
            return self.consoles.put(number, console);
        }
        self.consoles.goes_on(number);
        self.consoles.put(number, console);
    }

    /// False: the client is to send something first.
    fn next_command(&mut self, number: u32, console: &mut Console) -> bool {
        let before = console.out.len();
        match console.conversation.step(console.access, &mut console.out) {
            Step::Wait => return console.out.len() > before,
            Step::End => console.ends = true,
            Step::Run(run) if self.has_lost_rights(console) => {
                console.out.truncate(before);
                Report::fatal(b"57P01", "terminating console, as its role has changed")
                    .with_hint("Connect again.")
                    .encode(&mut console.out);
                drop(run);
                console.ends = true;
            }
            Step::Run(run) => self.execute(number, console, run),
        }
        true
    }

    /// Has a change of roles or memberships happened that decides what this console may do?
    fn has_lost_rights(&self, console: &mut Console) -> bool {
        let header = &self.control.header;
        let generation = header.login_generation.load(SeqCst);
        let before = std::mem::replace(&mut console.generation, generation);
        before != generation && (header.login_changed(before, generation)).concerns(&console.marks)
    }

    fn execute(&mut self, number: u32, console: &mut Console, run: Run) {
        console.facts.asked = self.now.timestamp;
        let changes = !matches!(
            run.command,
            Command::Nothing | Command::Show(_) | Command::ShowParameter(..) | Command::IgnoredSet
        );
        if changes {
            let user = String::from_utf8_lossy(&console.facts.user).into_owned();
            info!("console of \"{user}\": {}", in_log(&run.command));
        }
        let result = match &run.command {
            Command::Nothing | Command::IgnoredSet => Ok(None),
            Command::Show(show) => {
                let table = run.table.clone().unwrap_or_default();
                Ok(Some(Job::Rows(Listing::new(
                    *show,
                    table,
                    console.conversation.layout(),
                ))))
            }
            Command::ShowParameter(_, value) => {
                if let Some(table) = &run.table {
                    table.row(&mut console.out, &[Value::from(*value)]);
                }
                Ok(None)
            }
            Command::Pause(Some(name))
            | Command::Kill(Some(name))
            | Command::Resume(Some(name))
            | Command::Reconnect(Some(name))
            | Command::WaitClose(Some(name))
            | Command::Disable(name)
            | Command::Enable(name) => {
                self.ask_for_database(number, console, name);
                Ok(Some(Job::Find))
            }
            Command::Pause(None)
            | Command::Kill(None)
            | Command::Resume(None)
            | Command::Reconnect(None)
            | Command::WaitClose(None) => self.of_database(number, console, &run.command, None),
            Command::KillClient(id) => self.kill_client(number, *id),
            Command::Reload => match process::reload(self.server.postmaster()) {
                Ok(()) => Ok(None),
                Err(why) => Err(error(format!("RELOAD failed: {why}"))),
            },
        };
        is_executed(console, run, result);
    }

    // ---- commands -------------------------------------------------------------

    /// Asks the launcher for the OID of a database, as if the console's client logged in to it.
    fn ask_for_database(&mut self, number: u32, console: &Console, name: &[u8]) {
        let facts = &console.facts;
        let who = Who::new(
            &facts.user,
            name,
            String::new(),
            &facts.address,
            console.tls().map(WhoByTls::of),
        );
        let asker = Asker {
            login: Consoles::asker(number),
            serial: console.serial,
        };
        let settings = self.scheduler.settings_generation();
        (self.launcher).ask(asker, &facts.address, who, settings, &mut self.connections);
    }

    /// The launcher's answer; 0: there is no such database.
    pub(super) fn console_database_is(&mut self, number: u32, serial: u64, database: u32) {
        let Some(mut console) = self.consoles.take(number) else {
            return;
        };
        match console.job.take() {
            Some((run, Job::Find)) if console.serial == serial => {
                let result = match (database, name_in(&run.command)) {
                    (0, name) => {
                        let name = String::from_utf8_lossy(name.unwrap_or_default());
                        Err(error(format!("no such database: {name}")))
                    }
                    (oid, _) => self.of_database(number, &console, &run.command, Some(oid)),
                };
                is_executed(&mut console, run, result);
                self.consoles.goes_on(number);
            }
            job => console.job = job,
        }
        self.consoles.put(number, console);
    }

    /// Executes a command that concerns a database, or all.
    fn of_database(
        &mut self,
        number: u32,
        console: &Console,
        command: &Command,
        database: Option<u32>,
    ) -> Result<Option<Job>, Report> {
        let scope = Scope {
            role_oid: None,
            database_oid: database,
        };
        match command {
            Command::Resume(name) => match (self.scheduler.resume(scope), name) {
                (0, None) => Err(error("pooler is not paused/suspended")),
                (0, Some(name)) => {
                    let name = String::from_utf8_lossy(name);
                    Err(error(format!("database {name} is not paused")))
                }
                _ => Ok(None),
            },
            Command::Reconnect(_) => {
                self.scheduler.reconnect(database);
                Ok(None)
            }
            Command::WaitClose(_) => Ok(Some(Job::WaitClose { database })),
            Command::Disable(name) => {
                let may = database.is_none_or(|oid| self.consoles.disable(oid, name));
                may.then_some(None)
                    .ok_or_else(|| error("too many databases are disabled"))
            }
            Command::Enable(_) => {
                database.inspect(|oid| self.consoles.enable(*oid));
                Ok(None)
            }
            _ if self.scheduler.is_paused(None) => Err(error("already suspended/paused")),
            _ => {
                let terms = PauseTerms {
                    scope,
                    by_role: console.role,
                    own: 0,
                    wait_us: PAUSED_US,
                    limit_us: PAUSED_US,
                };
                self.scheduler.pause(Consoles::asker(number), terms);
                let asked = true;
                Ok(Some(match command {
                    Command::Kill(_) => Job::Kill {
                        database,
                        next: 0,
                        asked,
                        stands: false,
                    },
                    _ => Job::Pause { asked },
                }))
            }
        }
    }

    fn kill_client(&mut self, own: u32, id: u64) -> Result<Option<Job>, Report> {
        let pid = i32::try_from(id).ok();
        if let Some(session) = pid.and_then(|pid| self.scheduler.session_of_pid(pid)) {
            self.scheduler.terminate(session);
            return Ok(None);
        }
        let number = u32::try_from(id).ok().and_then(|id| id.checked_sub(1));
        let number = number.filter(|number| *number != own);
        let console = number.and_then(|number| Some((number, self.consoles.take(number)?)));
        let Some((number, mut console)) = console else {
            return Err(error("client not found"));
        };
        Report::terminated().encode(&mut console.out);
        let _ = console.flush();
        self.end_console(number, console);
        Ok(None)
    }

    // ---- commands that take longer ----------------------------------------------

    fn job_goes_on(&mut self, number: u32, console: &mut Console, run: Run, job: Job) -> JobGoes {
        match job {
            Job::Rows(mut listing) => {
                let outside = Outside {
                    consoles: self.consoles.facts(&console.facts),
                    disabled: self.consoles.disabled().values().cloned().collect(),
                    logins: self.logins.len(),
                };
                while self.console_rows_left > 0 && console.out.len() < MOST_UNSENT {
                    let most = self.console_rows_left;
                    let out = &mut console.out;
                    let rows = self
                        .scheduler
                        .console_rows(&mut listing, &outside, most, out);
                    let Some(rows) = rows else {
                        console.conversation.done(&run, &mut console.out);
                        return JobGoes::On;
                    };
                    self.console_rows_left = self.console_rows_left.saturating_sub(rows);
                    self.turns.work += rows * work::ROW;
                }
                console.job = Some((run, Job::Rows(listing)));
                match self.console_rows_left {
                    0 => JobGoes::OnInNextRound,
                    _ => JobGoes::On,
                }
            }
            Job::Find => {
                console.job = Some((run, job));
                JobGoes::ByOthers
            }
            Job::WaitClose { database } if self.scheduler.has_leaving_backends(database) => {
                console.job = Some((run, job));
                JobGoes::ByOthers
            }
            Job::WaitClose { .. } => {
                console.conversation.done(&run, &mut console.out);
                JobGoes::On
            }
            Job::Pause { asked } => {
                if !asked {
                    self.scheduler.ask_pause(Consoles::asker(number));
                }
                console.job = Some((run, Job::Pause { asked: true }));
                JobGoes::ByOthers
            }
            Job::Kill {
                database,
                mut next,
                mut asked,
                stands,
            } => {
                let most = ENDED_A_ROUND;
                let is_over = self.scheduler.terminate_some(database, &mut next, most) == 0;
                if is_over && stands {
                    console.conversation.done(&run, &mut console.out);
                    return JobGoes::On;
                }
                if is_over && !asked {
                    self.scheduler.ask_pause(Consoles::asker(number));
                    asked = true;
                }
                let job = Job::Kill {
                    database,
                    next,
                    asked,
                    stands,
                };
                console.job = Some((run, job));
                match is_over {
                    true => JobGoes::ByOthers,
                    false => JobGoes::OnInNextRound,
                }
            }
        }
    }

    /// What the core says of a console's pause.
    pub(super) fn console_pause_is(&mut self, number: u32, state: &PauseState) {
        let Some(mut console) = self.consoles.take(number) else {
            return;
        };
        let Some((run, mut job)) = console.job.take() else {
            return self.consoles.put(number, console);
        };
        let has_ended = *state == PauseState::Ended;
        let is_standing = *state == PauseState::Stands;
        match &mut job {
            Job::Rows(_) | Job::Find | Job::WaitClose { .. } => {}
            Job::Pause { asked } => *asked = false,
            Job::Kill { asked, stands, .. } => {
                *asked = false;
                *stands = is_standing;
            }
        }
        match job {
            Job::Rows(_) | Job::Find | Job::WaitClose { .. } => console.job = Some((run, job)),
            _ if has_ended => {
                let report = Report::error(b"57014", "the pause has been ended");
                (console.conversation).failed(&run, &report, &mut console.out);
                self.consoles.goes_on(number);
            }
            Job::Pause { .. } if is_standing => {
                console.conversation.done(&run, &mut console.out);
                self.consoles.goes_on(number);
            }
            Job::Kill { stands: true, .. } => {
                console.job = Some((run, job));
                self.consoles.goes_on(number);
            }
            // Asked again in the next tick.
            _ => console.job = Some((run, job)),
        }
        self.consoles.put(number, console);
    }

    /// In each tick: pauses that do not stand yet, and backends that have not left, are asked about
    /// again.
    pub(super) fn consoles_ask_again(&mut self) {
        for number in self.consoles.numbers() {
            let console = self.consoles.take(number);
            let Some(console) = console else {
                continue;
            };
            let is_to_ask = matches!(
                &console.job,
                Some((
                    _,
                    Job::Pause { asked: false }
                        | Job::Kill { asked: false, .. }
                        | Job::WaitClose { .. }
                ))
            );
            if is_to_ask {
                self.consoles.goes_on(number);
            }
            self.consoles.put(number, console);
        }
    }

    /// A cancel request with a console's key: PAUSE, KILL and WAIT_CLOSE end, and what is paused goes
    /// on. False: there is no such console.
    pub(super) fn cancel_console(&mut self, pid: i32, key: &[u8]) -> bool {
        if u32::try_from(pid) != Ok(std::process::id()) {
            return false;
        }
        let Some(number) = self.consoles.of_key(key) else {
            return false;
        };
        if let Some(mut console) = self.consoles.take(number) {
            match console.job.take() {
                Some((run, Job::WaitClose { .. })) => {
                    let report = Report::error(b"57014", "canceling statement due to user request");
                    is_executed(&mut console, run, Err(report));
                    self.consoles.goes_on(number);
                }
                job => console.job = job,
            }
            self.consoles.put(number, console);
        }
        // The core answers that the pause has ended, if there is one.
        let asker = Consoles::asker(number);
        self.scheduler.ask_pause(asker);
        self.scheduler.tell(Event::PauseAskerGone(asker));
        true
    }

    /// Logs, once, that there is a database of the console's name.
    pub(super) fn console_is_hidden(&mut self) {
        if !std::mem::replace(&mut self.is_console_hidden, true) {
            let name = String::from_utf8_lossy(DATABASE);
            info!("there is a database \"{name}\": the pool's console cannot be reached");
        }
    }
}

/// How a command goes on.
enum JobGoes {
    /// At once.
    On,
    OnInNextRound,
    /// When the core says something.
    ByOthers,
}

/// A command has a result, waits for one, or has failed.
fn is_executed(console: &mut Console, run: Run, result: Result<Option<Job>, Report>) {
    match result {
        Ok(Some(job)) => console.job = Some((run, job)),
        Ok(None) => console.conversation.done(&run, &mut console.out),
        Err(report) => (console.conversation).failed(&run, &report, &mut console.out),
    }
}

/// The database that a command names.
fn name_in(command: &Command) -> Option<&[u8]> {
    match command {
        Command::Pause(name)
        | Command::Resume(name)
        | Command::Reconnect(name)
        | Command::WaitClose(name)
        | Command::Kill(name) => name.as_deref(),
        Command::Disable(name) | Command::Enable(name) => Some(name),
        _ => None,
    }
}

/// A command as the log names it.
fn in_log(command: &Command) -> String {
    let argument = match command {
        Command::KillClient(id) => format!(" {id}"),
        _ => name_in(command).map_or_else(String::new, |name| {
            format!(" \"{}\"", String::from_utf8_lossy(name))
        }),
    };
    command.tag().to_owned() + &argument
}
