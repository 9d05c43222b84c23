//! Clients connect, log in, and become sessions. The dispatcher's exchange with the launcher
//! about them.

use super::shutdown::is_backend;
use super::Dispatcher;
use crate::console::DATABASE;
use crate::core::{Event, PoolSettings};
use crate::protocol::startup::{CancelRequest, Startup};
use crate::protocol::Report;
use crate::shell::batch_scheduling;
use crate::shell::console::Consoles;
use crate::shell::events::work;
use crate::shell::jobs::Done;
use crate::shell::link::layout::shared::FIRST_PID;
use crate::shell::link::layout::shared::*;
use crate::shell::link::wire::{Answer, Frame, Malformed, Reader, Writer};
use crate::shell::log::lines::{self, Client};
use crate::shell::login::client::names_of;
use crate::shell::login::launcher::{parse_parameters, Asker};
use crate::shell::login::native::{why_native, Why};
use crate::shell::login::places::{Guess, Sender};
use crate::shell::login::ports::Came;
use crate::shell::login::{answers, Effect, Entering};
use crate::shell::parameters::Parameters;
use crate::shell::scheduler::{NewClient, TurnedAway};
use crate::shell::sessions::greetings::{clean_ascii, Security, APPLICATION_NAME};
use crate::shell::sys::socket::Address;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use tracing::{info, warn};

/// Connections accepted in one round, by all listeners together.
pub(super) const ACCEPTS_A_ROUND: usize = 64;
/// Results of other threads that one round takes for logins.
const RESULTS_A_ROUND: usize = 64;
/// A startup packet with fewer bytes has few options: its client comes in at once.
const SHORT_PACKET: usize = 512;
/// Bytes of longer startup packets that one round turns into contexts. The options of 10,000
/// bytes, the longest packet, take up to a millisecond.
const PACKET_BYTES_A_ROUND: usize = 4_096;
/// Clients with a long startup packet that may wait for a later round.
const MOST_LATE: usize = 1_000;

/// Clients that have proved their identity, and whose startup packet is long. They come in some
/// at a time.
pub struct LongPackets<T> {
    waiting: VecDeque<(usize, T)>,
    bytes_left: usize,
}

impl<T> LongPackets<T> {
    pub fn new() -> LongPackets<T> {
        LongPackets {
            waiting: VecDeque::new(),
            bytes_left: 0,
        }
    }

    pub fn round_begins(&mut self) {
        self.bytes_left = PACKET_BYTES_A_ROUND;
    }

    /// A client with a startup packet of this length is ready to come in. Returns it if it is to
    /// come in now, or, as an error, if too many wait.
    fn add(&mut self, length: usize, client: T) -> Result<Option<T>, T> {
        if length < SHORT_PACKET {
            return Ok(Some(client));
        }
        if self.waiting.len() >= MOST_LATE {
            return Err(client);
        }
        self.waiting.push_back((length, client));
        Ok(self.next())
    }

    /// The next client that is to come in now. The last one of a round may have more bytes than
    /// are left.
    pub fn next(&mut self) -> Option<T> {
        if self.bytes_left == 0 {
            return None;
        }
        let (length, client) = self.waiting.pop_front()?;
        self.bytes_left = self.bytes_left.saturating_sub(length);
        Some(client)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Dispatcher {
    pub(super) fn accept_clients(&mut self, index: u32) {
        // In proportion to the other events of the round: a single new connection needs no
        // second accept, and a crowd is let in fast enough.
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
                    let line = format!("could not accept new connection: {error}");
                    self.logins.log_accept(&line);
                }
                Came::Nobody => return,
            }
        }
    }

    /// Takes some of the results of other threads.
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
            }
            self.logins_want();
        }
        self.jobs.wake_again();
    }

    pub(super) fn relays_event(&mut self) {
        let is_alive = self.logins.relays_event();
        self.logins_want();
        if !is_alive {
            // The next dispatcher has another one.
            self.hand_back("without its TLS relays no client can use TLS");
        }
    }

    /// Carries out the effects that the logins ask for. Must be called after each call that
    /// tells the logins something.
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
                    // The client may have come after this round began. Settings that were
                    // committed before it came must apply to it.
                    self.look_at_settings();
                    self.login_answered(login, serial, generation, answer);
                }
                Effect::Cancel(login, request) => self.cancel_requested(login, request),
                Effect::Enter(entering) => self.is_to_enter(entering),
            }
        }
    }

    fn is_to_enter(&mut self, client: Box<Entering>) {
        match self.long_packets.add(client.startup.packet.len(), client) {
            Ok(Some(client)) => self.enter(*client),
            Ok(None) => {}
            Err(client) => {
                let report = Report::fatal(b"53300", "sorry, too many clients already")
                    .with_detail("Too many clients with long startup packets log in.");
                let names = names_of(&client.startup, client.address);
                self.logins.log_failure(&names, &report);
                let group = client.answer.group();
                (self.logins).turn_away(&client.socket, group, client.proved.out, &report);
            }
        }
    }

    /// A round begins: clients come in for which the last one had no bytes left.
    pub(super) fn long_packets_go_on(&mut self) {
        self.long_packets.round_begins();
        while let Some(client) = self.long_packets.next() {
            self.enter(*client);
        }
    }

    /// The client's startup packet is complete.
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
        if startup.database == DATABASE && !self.is_console_hidden {
            // The console is of use above all when the pool has no room.
            return None;
        }
        if self.scheduler.too_many_wait() {
            return Some(Why::Busy);
        }
        (self.scheduler.is_memory_full()).then_some(Why::ContextMemory)
    }

    /// The report for a new client while the pool can serve no session. After the launcher has
    /// gone it is usually back within a second, and the client and its question wait for it; if
    /// it stays away, the server has restarted after a crash.
    pub(super) fn not_now(&self) -> Option<Report> {
        if self.server.is_stopping() {
            return Some(Report::shutting_down());
        }
        if self.launcher.is_away(self.now.us) {
            return Some(Report::fatal(
                b"57P03",
                "the database system is in recovery mode",
            ));
        }
        None
    }

    /// A sender of wrong keys is ignored for a while, and does not learn whether this key is
    /// right (login/places.rs).
    fn cancel_requested(&mut self, login: u32, request: CancelRequest) {
        let Some(from) = self.logins.sender_of(login) else {
            return;
        };
        let has_session = match from {
            Sender::Network(origin) => self.scheduler.sessions_from(&origin) > 0,
            Sender::User(_) => true,
        };
        if !self.logins.may_guess(from, has_session) {
            let line = format!("cancel requests {from} are ignored: too many were wrong");
            self.logins.log_of(login, "cancel", b"ignored", &line);
            return self.logins.forget(login);
        }
        if self.cancel_console(request.pid, &request.key) {
            self.cancels += 1;
            self.logins.has_guessed(from, has_session, Guess::Right);
            return self.logins.forget(login);
        }
        let guess = match self.scheduler.session_of_key(request.pid, &request.key) {
            Some(id) => {
                self.cancels += 1;
                self.scheduler.count_cancel(id);
                self.scheduler.tell(Event::Cancel(id));
                Guess::Right
            }
            None if self.is_server_s(request.pid) => {
                self.logins.has_guessed(from, has_session, Guess::Server);
                return self.logins.forward_cancel(login, request);
            }
            None => {
                let pid = request.pid;
                let line = format!("PID {pid} in cancel request did not match any process");
                self.logins.log_of(login, "cancel", b"no match", &line);
                match self.scheduler.has_pid(pid) {
                    true => Guess::WrongKey,
                    false => Guess::NoSession,
                }
            }
        };
        self.logins.has_guessed(from, has_session, guess);
        self.logins.forget(login);
    }

    /// Is this the process ID of a process of the server? Only the postmaster knows what the
    /// process does and whether the key is right.
    fn is_server_s(&self, pid: i32) -> bool {
        let postmaster = self.control.header.postmaster_pid.load(SeqCst);
        let pid = u32::try_from(pid).ok().filter(|pid| *pid < FIRST_PID);
        pid.is_some_and(|pid| is_backend(pid, postmaster).is_some())
    }

    /// Applies the limits at login. Returns an error if the client may not come in.
    pub(super) fn has_room_for(
        &self,
        address: &Address,
        role: u32,
        superuser: bool,
    ) -> Result<(), Report> {
        let (scheduler, natives) = (&self.scheduler, &self.natives);
        let limits = &self.parameters.door;
        answers::has_room_for(scheduler, natives, limits, address, (role, superuser))
    }

    /// The console has not disabled the database.
    fn is_enabled(&self, database: u32) -> Result<(), Report> {
        match self.consoles.disabled().get(&database) {
            None => Ok(()),
            // As with ALLOW_CONNECTIONS off (CheckMyDatabase, postinit.c).
            Some(name) => {
                let name = String::from_utf8_lossy(name);
                let text = format!("database \"{name}\" is not currently accepting connections");
                let report = Report::fatal(b"55000", text);
                Err(report.with_detail("The pool's console has disabled it."))
            }
        }
    }

    /// Turns a client that has proved its identity into a session, if it may come in.
    fn enter(&mut self, client: Entering) {
        if let Some(access) = client.answer.console {
            self.log_authorized(&client);
            return self.begin_console(client, access);
        }
        let Entering {
            socket,
            address,
            local,
            watched,
            began_us,
            startup,
            answer,
            proved,
        } = client;
        let may_enter = self
            .not_now()
            .map_or(Ok(()), Err)
            .and_then(|()| self.is_enabled(answer.database))
            .and_then(|()| answers::admit(&self.scheduler, &self.parameters, &startup, &answer))
            .and_then(|()| self.has_room_for(&address, answer.role, answer.superuser));
        let security = Security {
            tls: socket.tls().map(AsRef::as_ref),
            principal: proved.principal.as_deref(),
        };
        let authorized = (self.parameters.log_authorization)
            .then(|| authorized(&startup, &security, self.parameters.server_major()));
        if let Err(report) = may_enter {
            let names = names_of(&startup, address);
            // PerformAuthentication (postinit.c) logs this before the checks.
            if let Some(line) = authorized {
                lines::client(&names, &line);
            }
            self.logins.log_failure(&names, &report);
            let group = answer.group();
            return (self.logins).turn_away(&socket, group, proved.out, &report);
        }
        answer.lets_in();
        let client = NewClient {
            socket,
            address,
            local,
            watched,
            took_us: self.now.us.saturating_sub(began_us),
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
            authorized,
            out: proved.out,
        };
        if let Err(turned_away) = self.scheduler.begin_session(client) {
            let TurnedAway {
                socket,
                out,
                report,
                user,
                database,
            } = *turned_away;
            let names = Client {
                user: &user,
                database: &database,
                ..Client::at(address)
            };
            self.logins.log_failure(&names, &report);
            (self.logins).turn_away(&socket, answer.group(), out, &report);
        }
    }

    /// For a client that becomes no session.
    fn log_authorized(&self, client: &Entering) {
        if self.parameters.log_authorization {
            let security = Security {
                tls: client.socket.tls().map(AsRef::as_ref),
                principal: client.proved.principal.as_deref(),
            };
            let major = self.parameters.server_major();
            let line = authorized(&client.startup, &security, major);
            lines::client(&names_of(&client.startup, client.address), &line);
        }
    }

    /// Counts the logins that were refused since the last call; called in each round.
    pub(super) fn count_refused(&mut self) {
        for (group, sqlstate) in self.logins.take_refused() {
            self.scheduler.login_refused(group, &sqlstate);
        }
    }
}

/// The line of PerformAuthentication (postinit.c). application_name is what the startup packet
/// has under this name.
fn authorized(startup: &Startup, security: &Security<'_>, server_major: u32) -> Vec<u8> {
    let mut line = [
        b"connection authorized: user=".as_slice(),
        &startup.user,
        b" database=",
        &startup.database,
    ]
    .concat();
    let is_it = |name: &[u8]| name == APPLICATION_NAME;
    if let Some((_, name)) = startup.parameters.iter().rfind(|(name, _)| is_it(name)) {
        line.extend_from_slice(b" application_name=");
        line.extend_from_slice(&clean_ascii(name, server_major));
    }
    line.extend_from_slice(security.for_log(server_major).as_bytes());
    line
}

// ---- Launcher -------------------------------------------------------------
//
// What the dispatcher asks the launcher, and what the launcher sends: parameters, and answers
// about logins.

impl Dispatcher {
    /// A new launcher takes over. Open questions are asked again, once.
    pub(super) fn launcher_connected(&mut self, number: u32) {
        let old = self.launcher.is_at(number);
        self.logins.launcher_is(true);
        if let Some(old) = old {
            self.connections.close(old);
        }
        let given_up = self.launcher.ask_again(&mut self.connections);
        self.scheduler.ask_limits_again();
        for (question, answer) in given_up {
            self.answered(question.asker, question.generation, answer);
        }
    }

    pub(super) fn launcher_gone(&mut self, number: u32) {
        if self.launcher.is_gone(number, self.now.us) {
            self.logins.launcher_is(false);
            if !self.server.is_stopping() {
                warn!("the launcher has gone; sessions go on, and no client can log in until it is back");
            }
        }
    }

    /// Sends the scheduler's questions to the launcher. Called at the end of each round; a
    /// launcher that connects later is asked about the limits again.
    pub(super) fn ask_what_pools_want(&mut self) {
        for ask in self.scheduler.take_asks() {
            let (role, database) = (ask.role, ask.database);
            let frame = Writer::new(MSG_POOL_QUESTION, 0).u32(role).u32(database);
            self.launcher.send(frame.finish(), &mut self.connections);
        }
    }

    /// Forgets the questions of logins that have gone.
    pub(super) fn forget_questions(&mut self) {
        let logins = &self.logins;
        (self.launcher).forget_questions(|Asker { login, serial }| {
            Consoles::of_asker(login).is_some() || logins.has(login, serial)
        });
    }

    pub(super) fn login_answered(
        &mut self,
        number: u32,
        serial: u64,
        generation: u64,
        answer: Arc<Answer>,
    ) {
        let group = (answer.role, answer.database);
        let is_full = self.scheduler.is_pool_memory_full(group);
        (self.logins).answered(number, serial, generation, answer, is_full);
    }

    fn answered(&mut self, asker: Asker, generation: u64, answer: Arc<Answer>) {
        if let Some(console) = Consoles::of_asker(asker.login) {
            return self.console_database_is(console, asker.serial, answer.database);
        }
        self.login_answered(asker.login, asker.serial, generation, answer);
        self.logins_want();
    }

    pub(super) fn launcher_frame(&mut self, frame: Frame<'_>) -> Result<(), Malformed> {
        match frame.kind {
            MSG_PASSPHRASE => self.logins.keep_passphrase(frame.payload),
            MSG_PARAMETERS => {
                let mut parameters = Parameters::clone(&self.parameters);
                parse_parameters(frame.payload, &mut parameters)?;
                self.reconfigure(parameters);
            }
            MSG_LOGIN_ANSWER => {
                let (request, answer) = Answer::parse(frame.payload)?;
                let answer = Arc::new(answer);
                // Changes of settings that the launcher has noticed must apply to this client.
                self.look_at_settings();
                if let Some(question) = self.launcher.answered(request) {
                    if question.who.database == DATABASE && answer.database != 0 {
                        self.console_is_hidden();
                    }
                    let (asker, generation) = (question.asker, question.generation);
                    let is_of_now = question.settings == self.scheduler.settings_generation();
                    if answer.good_until != 0 && is_of_now {
                        (self.logins).keep_answer(question.who, generation, answer.clone());
                    }
                    self.answered(asker, generation, answer);
                }
            }
            MSG_POOL_SETTINGS => {
                let mut reader = Reader(frame.payload);
                let group = (reader.u32()?, reader.u32()?);
                let mut values = [0; POOL_SETTINGS.len()];
                let mut sources = [0; POOL_SETTINGS.len()];
                for (value, source) in values.iter_mut().zip(&mut sources) {
                    *value = reader.i32()?;
                    *source = reader.u32()?;
                }
                let settings = PoolSettings { values, sources };
                self.scheduler.set_pool_limits(group, settings);
            }
            MSG_SHUTDOWN => match Reader(frame.payload).u32()? {
                0 => self.hand_back("the launcher replaces it"),
                _ => self.server_stops(),
            },
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// Also if no parameter has another value: the files of TLS may have changed.
    fn reconfigure(&mut self, parameters: Parameters) {
        batch_scheduling::set_most_wait_us(parameters.constants.batch_scheduling_wait_us);
        self.parameters = Arc::new(parameters);
        if let Some(ledger) = self.ledger() {
            ledger.set_hold_ms(self.parameters.hold_sessions_ms);
        }
        self.logins.reconfigure(Arc::clone(&self.parameters));
        self.show_parameters();
        (self.scheduler).reconfigure(Arc::clone(&self.parameters));
        info!("parameters reloaded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_long_startup_packets_come_in_a_round_and_all_in_order() {
        let mut packets = LongPackets::new();
        packets.round_begins();
        let mut came = Vec::new();
        for client in 0..100 {
            came.extend(packets.add(2_000, client).unwrap());
        }
        assert_eq!(came, [0, 1, 2]);
        assert_eq!(packets.add(SHORT_PACKET - 1, 100), Ok(Some(100)));
        packets.round_begins();
        assert_eq!(packets.add(10_000, 101), Ok(Some(3)));
        for rounds in 0.. {
            came.extend(std::iter::from_fn(|| packets.next()));
            if packets.is_empty() {
                assert!(rounds > 30);
                break;
            }
            packets.round_begins();
        }
        let all: Vec<i32> = (0..100)
            .filter(|client| *client != 3)
            .chain([101])
            .collect();
        assert_eq!(came, all);
    }

    #[test]
    fn clients_with_long_startup_packets_that_wait_are_bounded() {
        let mut packets = LongPackets::new();
        for client in 0..MOST_LATE {
            assert_eq!(packets.add(10_000, client), Ok(None));
        }
        assert_eq!(packets.add(10_000, 7), Err(7));
        assert_eq!(packets.add(100, 7), Ok(Some(7)));
    }
}
