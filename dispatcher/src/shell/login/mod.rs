//! The path of a client from an accepted connection to an authenticated session.
//!
//! [`Logins`] holds the logins in progress. It knows neither sessions and pools nor the
//! launcher's connection. What it needs from other parts is an [`Effect`], which the caller
//! carries out before it passes on the next event ([`Logins::next_effect`]).
//!
//! | module | what it does |
//! |---|---|
//! | `ports` | the pool's ports, and the connections that they accept |
//! | `client` | a login: its state, its conversation, its TLS and GSSAPI encryption |
//! | `launcher` | questions to the launcher, and the cache of its answers |
//! | `answers` | what follows from an answer; admission of an authenticated client |
//! | `limits` | limits before login: rates, times, bytes, and which login gives way |
//! | `native` | native sessions, and the reasons for them |
//! | `errands` | connections to the server that a client needs |
//! | `places` | places for such connections, their fair queue, and cancel requests |
//!
//! This file has the table of logins, and bounds the log lines that unauthenticated clients
//! cause.

pub mod answers;
pub mod client;
pub mod errands;
pub mod launcher;
mod limits;
pub mod native;
pub mod places;
pub mod ports;

pub use client::{Effect, Entering};

use super::events::{token, work, Slab, Source};
use super::jobs::JobsIn;
use super::link::memory::control::Control;
use super::log::lines;
use super::parameters::Parameters;
use super::sys::epoll::{self, ClientNumber, Epoll};
use super::sys::socket::{self, Address};
use super::tls::process::Relays;
use super::tls::{ClientEnd, HandedEnd};
use crate::core::{GroupKey, Now};
use crate::protocol::auth::verifier::MockSecret;
use crate::protocol::startup::{Startup, StartupReader};
use crate::protocol::Report;
use client::{Login, Phase, TlsOffer};
use errands::Errands;
use launcher::LoginCache;
use limits::{Rates, Watch};
use places::Guesses;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use tracing::{debug, info};

/// Logins in progress beyond the number of session slots.
const SPARE_LOGINS: usize = 1000;
/// Logins per tick to which a new configuration is applied.
const SETTLED_AT_ONCE: usize = 256;
/// Logins per round that end because their time is up or because there is no launcher. Each
/// costs about 10 microseconds.
const ENDED_AT_ONCE: usize = 64;
/// Microseconds that a client has to send its startup packet if the only answer to it is that
/// there is no room.
const IN_VAIN_US: u64 = 5_000_000;

/// All clients that are logging in.
pub struct Logins {
    control: Control,
    epoll: Arc<Epoll>,
    client_number: Arc<ClientNumber>,
    jobs: JobsIn,
    parameters: Arc<Parameters>,
    mock_secret: MockSecret,
    now: Now,

    logins: Slab<Login>,
    next_serial: u64,
    effects: VecDeque<Effect>,
    errands: Errands,
    rates: Rates,
    guesses: Guesses,
    lines: Lines,
    watch: Watch,
    /// Logins that [`Logins::settle`] looks at once no effect is pending. By then most new
    /// clients have moved on and need no entry in `watch`.
    unsettled: Vec<u32>,
    /// Logins that a reload of the configuration has left to settle.
    to_settle: Range<u32>,
    /// The next round, too, has logins to end.
    ends_more: bool,
    /// Units of work since the round began (`events::work`).
    work: usize,
    cache: LoginCache,
    tls: TlsOffer,
    relays: Relays,

    /// The highest descriptor that a session may have. Higher ones are kept for backends.
    highest_client: RawFd,
    launcher_is_up: bool,
    accepted: u64,
    failed: u64,
    abandoned: u64,
    /// The logins that were refused since the last call of `take_refused`.
    refused: Vec<Refused>,
}

/// The role and database of a login that was refused, if they are known and exist, and the
/// SQLSTATE of the refusal.
pub type Refused = (Option<GroupKey>, [u8; 5]);

/// The salt of a role that does not exist is derived from the server's
/// mock_authentication_nonce.
fn mock_secret(nonce: &[u8]) -> MockSecret {
    if nonce.is_empty() {
        MockSecret::random()
    } else {
        MockSecret::new(nonce.to_vec())
    }
}

/// The resources of the process that logins use.
pub struct Means {
    pub control: Control,
    pub epoll: Arc<Epoll>,
    pub client_number: Arc<ClientNumber>,
    pub jobs: JobsIn,
    pub relays: Relays,
    pub tls: TlsOffer,
    /// The highest descriptor that a session may have.
    pub highest_client: RawFd,
}

impl Logins {
    pub fn new(parameters: Arc<Parameters>, means: Means) -> Logins {
        let session_slots = means.control.sessions.len();
        Logins {
            control: means.control,
            epoll: means.epoll,
            client_number: means.client_number,
            jobs: means.jobs,
            mock_secret: mock_secret(&parameters.mock_authentication_nonce),
            parameters,
            now: Now::default(),
            logins: Slab::new(session_slots + SPARE_LOGINS),
            next_serial: 0,
            effects: VecDeque::new(),
            errands: Errands::default(),
            rates: Rates::default(),
            guesses: Guesses::default(),
            lines: Lines::default(),
            watch: Watch::default(),
            unsettled: Vec::new(),
            to_settle: 0..0,
            ends_more: false,
            work: 0,
            cache: LoginCache::default(),
            tls: means.tls,
            relays: means.relays,
            highest_client: means.highest_client,
            launcher_is_up: false,
            accepted: 0,
            failed: 0,
            abandoned: 0,
            refused: Vec::new(),
        }
    }

    // ---- events from other parts -------------------------------------------

    pub fn set_clock(&mut self, now: Now) {
        self.now = now;
    }

    /// The next effect to carry out. When there is none, the logins whose turn has changed are
    /// settled, because their state is final by then.
    pub fn next_effect(&mut self) -> Option<Effect> {
        let effect = self.effects.pop_front();
        if effect.is_none() {
            while let Some(number) = self.unsettled.pop() {
                self.settle(number);
            }
        }
        effect
    }

    pub fn launcher_is(&mut self, up: bool) {
        self.launcher_is_up = up;
    }

    /// Applies a reloaded configuration.
    pub fn reconfigure(&mut self, parameters: Arc<Parameters>) {
        self.mock_secret = mock_secret(&parameters.mock_authentication_nonce);
        self.parameters = parameters;
        self.cache = LoginCache::default();
        self.reload_tls();
        // The deadlines in `watch` may be later than the new configuration allows.
        self.to_settle = 0..self.logins.numbers();
    }

    /// In each tick: settles the next logins after a reload.
    fn settle_on(&mut self) {
        for _ in 0..SETTLED_AT_ONCE {
            let Some(number) = self.to_settle.next() else {
                return;
            };
            self.settle(number);
        }
    }

    /// Drops the cached answers for which `concerned(role, database)` is true.
    pub fn forget_answers(&mut self, concerned: impl Fn(u32, u32) -> bool) {
        (self.cache).forget(|answer| concerned(answer.role, answer.database));
    }

    // ---- queries -----------------------------------------------------------

    pub fn len(&self) -> usize {
        self.logins.len()
    }

    /// Is the login of this number still the one with this serial? Numbers are reused.
    pub fn has(&self, number: u32, serial: u64) -> bool {
        (self.logins.get(number)).is_some_and(|login| login.serial == serial)
    }

    /// Accepted clients, and failed and abandoned logins, since the start.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.accepted, self.failed, self.abandoned)
    }

    // ---- begin and end -----------------------------------------------------

    pub fn begin(&mut self, client: OwnedFd, address: Address, local: Option<Address>) {
        self.accepted += 1;
        self.work += work::LOGIN;
        if self.parameters.log_receipt {
            let client = lines::Client::at(address);
            lines::client(
                &client,
                format!("connection received: {address}").as_bytes(),
            );
        }
        let client = HandedEnd::plain(ClientEnd(client));
        let fd = client.fd();
        if !self.make_room_at_the_door() {
            let report = Report::fatal(b"53300", "sorry, too many clients already");
            self.count_refused(None, &report.sqlstate);
            let _ = socket::send(fd, &report.to_bytes());
            socket::discard_input(fd);
            return;
        }
        self.next_serial += 1;
        self.client_number.is_new(fd);
        let login = Login {
            socket: client,
            serial: self.next_serial,
            address,
            local,
            watched: false,
            is_counted: false,
            began_us: self.now.us,
            group: None,
            bytes: 0,
            deadline_us: self.now.us + self.limit_us(fd),
            phase: Phase::Startup(
                StartupReader::new(
                    self.parameters.server_major(),
                    self.tls.for_client(address.is_local()),
                )
                .offering_gss(self.parameters.gss_encryption && !address.is_local()),
            ),
        };
        // With TCP_DEFER_ACCEPT the client has usually sent something already.
        if let Some(number) = self.logins.insert(login) {
            self.unsettled.push(number);
            self.event(number);
        }
    }

    fn limit_us(&self, fd: RawFd) -> u64 {
        let limit_us = self.parameters.authentication_timeout_ms * 1000;
        if fd > self.highest_client {
            limit_us.min(IN_VAIN_US)
        } else {
            limit_us
        }
    }

    /// Counts a client that was turned away before it became a login.
    pub fn count_turned_away(&mut self) {
        self.accepted += 1;
        self.count_refused(None, b"53300");
    }

    /// Ends a login that its client has left, or will not hear of the end of, and closes its
    /// descriptor.
    fn drop_login(&mut self, number: u32) {
        self.abandoned += u64::from(self.end_login(number));
    }

    /// False: there is no such login.
    fn end_login(&mut self, number: u32) -> bool {
        self.work += work::LOGIN_END;
        let Some(login) = self.logins.get(number) else {
            return false;
        };
        socket::discard_input(login.fd());
        self.forget(number);
        true
    }

    /// Ends a login and closes its descriptor without counting a failure.
    pub fn forget(&mut self, number: u32) {
        if let Some(login) = self.take_out(number) {
            self.client_number.let_go(login.fd());
            if matches!(login.phase, Phase::Errand { .. }) {
                self.recall_errand(number, login.serial);
            } else if login.is_a_backend_s() {
                // The backend has the socket too. The shutdown ends its side as well.
                socket::shutdown(login.fd());
            }
        }
    }

    /// Removes the login from the table and from all that refers to it.
    fn take_out(&mut self, number: u32) -> Option<Login> {
        self.watch.forget(number);
        self.owes_nothing(number);
        self.logins.remove(number)
    }

    pub fn fail(&mut self, number: u32, report: &Report) {
        if let Some(login) = self.logins.get(number) {
            if self.lines.may_fail(report) {
                lines::report(&login.client(), report, login.log_detail(report).as_deref());
            }
        }
        self.refuse(number, report);
    }

    /// Like [`Logins::fail`], for a login whose startup packet has been taken out. `detail` is
    /// for the log alone.
    pub fn fail_as(
        &mut self,
        number: u32,
        startup: &Startup,
        report: &Report,
        detail: Option<&[u8]>,
    ) {
        if let Some(login) = self.logins.get(number) {
            if self.lines.may_fail(report) {
                lines::report(&client::names_of(startup, login.address), report, detail);
            }
        }
        self.refuse(number, report);
    }

    fn refuse(&mut self, number: u32, report: &Report) {
        if let Some(login) = self.logins.get(number) {
            if login.hears_us() {
                let _ = socket::send(login.fd(), &report.to_bytes());
            }
        }
        let group = self.logins.get(number).and_then(|login| login.group);
        if self.end_login(number) {
            self.count_refused(group, &report.sqlstate);
        }
    }

    fn count_refused(&mut self, group: Option<GroupKey>, sqlstate: &[u8; 5]) {
        self.failed += 1;
        self.refused.push((group, *sqlstate));
    }

    pub fn take_refused(&mut self) -> Vec<Refused> {
        std::mem::take(&mut self.refused)
    }

    /// Logs a line about the client of this login, which need not have proved anything, within
    /// the bound of its kind ([`Lines`]).
    pub fn log(&mut self, number: u32, kind: &str, says: &str) {
        self.log_of(number, kind, says.as_bytes(), says);
    }

    /// Like [`Logins::log`], but only `what` decides whether the line says something new.
    pub fn log_of(&mut self, number: u32, kind: &str, what: &[u8], says: &str) {
        if self.lines.may_be_logged(kind, what) {
            let login = self.logins.get(number);
            lines::client(
                &login.map(Login::client).unwrap_or_default(),
                says.as_bytes(),
            );
        }
    }

    /// Logs that a client has gone before its connection was accepted, within the bound.
    pub fn log_accept(&mut self, says: &str) {
        if self.lines.may_be_logged("accept", says.as_bytes()) {
            info!("{says}");
        }
    }

    /// Logs the failed login of a client that is no longer in the table. Lines that differ only
    /// in the address count as the same.
    pub fn log_failure(&mut self, client: &lines::Client<'_>, report: &Report) {
        if self.lines.may_fail(report) {
            lines::report(client, report, None);
        }
    }

    /// Once a second: logs how many lines were left out.
    pub fn log_left_out(&mut self) {
        for (kind, count) in self.lines.look(self.now.us) {
            info!("... and {count} more like these in the last 10 s ({kind})");
        }
    }

    /// Sends `report` to a client that was authenticated but is not admitted.
    pub fn turn_away(
        &mut self,
        socket: &HandedEnd,
        group: Option<GroupKey>,
        mut out: Vec<u8>,
        report: &Report,
    ) {
        self.count_refused(group, &report.sqlstate);
        report.encode(&mut out);
        let _ = socket::send(socket.fd(), &out);
        self.client_number.let_go(socket.fd());
    }

    /// Watches the socket, if the client is to send next.
    fn await_login(&mut self, number: u32) {
        self.unsettled.push(number);
        let Some(login) = self.logins.get_mut(number) else {
            return;
        };
        if login.wanted() == 0 {
            return;
        }
        let fd = login.fd();
        let data = token(Source::Login, number);
        let events = epoll::IN | epoll::ONESHOT;
        let known = std::mem::replace(&mut login.watched, true);
        let watched = self
            .client_number
            .watch(&self.epoll, fd, known, events, data);
        if watched.is_err() {
            self.drop_login(number);
        }
    }

    fn send_to_login(&mut self, number: u32, bytes: &[u8]) -> bool {
        // Little is ever sent during a login, and the send buffer is empty. If the message does
        // not fit, the client is gone or misbehaves.
        let sent = (self.logins.get(number))
            .is_some_and(|login| socket::send(login.fd(), bytes).ok() == Some(bytes.len()));
        if !sent {
            self.drop_login(number);
        }
        sent
    }

    // ---- time --------------------------------------------------------------

    /// In each tick.
    pub fn tick(&mut self) {
        self.settle_on();
        self.next_errands();
        self.ends_more = true;
    }

    /// Are there logins to end even if no event arrives?
    pub fn has_more(&self) -> bool {
        self.ends_more
    }

    /// In each tick, and in the following rounds while more are left: ends the logins whose
    /// time is up, without a message, as stock does. With `refusal`, it also refuses the logins
    /// that wait for a launcher that does not come.
    pub fn end_some(&mut self, refusal: Option<&Report>) {
        self.ends_more = false;
        self.expire();
        if let Some(report) = refusal {
            self.refuse_asked(report);
        }
    }

    fn expire(&mut self) {
        let now_us = self.now.us;
        for _ in 0..ENDED_AT_ONCE {
            let Some(number) = self.watch.next_due(now_us) else {
                return;
            };
            let due_us = self.logins.get(number).map(|login| self.due_us(login));
            if due_us.is_some_and(|due_us| due_us <= now_us) {
                debug!("a client did not log in in time");
                self.drop_login(number);
            } else {
                self.settle(number);
            }
        }
        self.ends_more = true;
    }

    fn refuse_asked(&mut self, report: &Report) {
        let asked = self.watch.asked(ENDED_AT_ONCE);
        self.ends_more |= asked.len() == ENDED_AT_ONCE;
        for number in asked {
            let login = self.logins.get(number);
            if login.is_some_and(|login| matches!(login.phase, Phase::Asked(_))) {
                self.fail(number, report);
            } else {
                self.settle(number);
            }
        }
    }

    /// Units of work since the last call.
    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// Refuses all logins, except those that the server may still admit.
    pub fn stop(&mut self, report: &Report) {
        let is_ours = |login: &Login| !matches!(login.phase, Phase::BecomingNative);
        let ours = self.logins.iter().filter(|(_, login)| is_ours(login));
        let all: Vec<u32> = ours.map(|(number, _)| number).collect();
        for number in all {
            self.fail(number, report);
        }
    }

    /// Closes all logins. Only [`Logins::finish_relays`] follows before the program ends.
    pub fn close_all(&mut self) {
        self.logins = Slab::new(0);
        self.watch = Watch::default();
    }

    /// Ends the relays, after all sockets are closed. Blocks.
    pub fn finish_relays(&mut self) {
        self.relays.finish();
    }
}

// ---- Log lines ------------------------------------------------------------
//
// Bounds the log lines that unauthenticated clients cause.
//
// A kind is an SQLSTATE, or a name that the dispatcher gives. In each period of ten seconds the
// first lines of a kind are logged. A line whose message is new in this period (a message names
// its role) is also logged, up to a bound. At the end of the period one line per kind says how
// many were left out.
//
// Free of I/O.

const PERIOD_US: u64 = 10_000_000;
/// Lines of one kind that are logged in a period.
const OF_A_KIND: u32 = 20;
/// Lines with a message that is new in this period, which are logged beyond that.
const NEW_ONES: usize = 100;

/// What was logged in this period.
#[derive(Default)]
pub struct Lines {
    began_us: u64,
    /// Per kind: lines logged, and lines left out.
    kinds: BTreeMap<String, (u32, u64)>,
    said: HashSet<u64>,
    hasher: RandomState,
}

impl Lines {
    /// May the failure of a login with this report be logged?
    fn may_fail(&mut self, report: &Report) -> bool {
        let kind = String::from_utf8_lossy(&report.sqlstate);
        self.may_be_logged(&kind, &report.message)
    }

    /// May a line of this kind, with this message, be logged?
    pub fn may_be_logged(&mut self, kind: &str, says: &[u8]) -> bool {
        let is_new = self.said.len() < NEW_ONES && self.said.insert(self.hasher.hash_one(says));
        if !self.kinds.contains_key(kind) {
            self.kinds.insert(kind.to_owned(), (0, 0));
        }
        let Some((logged, left_out)) = self.kinds.get_mut(kind) else {
            return false;
        };
        let may_be = is_new || *logged < OF_A_KIND;
        match may_be {
            true => *logged += 1,
            false => *left_out += 1,
        }
        may_be
    }

    /// Once a second: if the period is over, the kinds with lines left out, and how many each.
    pub fn look(&mut self, now_us: u64) -> Vec<(String, u64)> {
        if now_us < self.began_us + PERIOD_US {
            return Vec::new();
        }
        self.began_us = now_us;
        self.said.clear();
        let kinds = std::mem::take(&mut self.kinds).into_iter();
        let left_out = kinds.map(|(kind, (_, left_out))| (kind, left_out));
        left_out.filter(|(_, left_out)| *left_out > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(lines: &mut Lines, kind: &str, tries: u32, says: impl Fn(u32) -> String) -> usize {
        let tries = (0..tries).map(says);
        tries
            .filter(|says| lines.may_be_logged(kind, says.as_bytes()))
            .count()
    }

    #[test]
    fn of_a_flood_some_lines_are_logged_and_the_rest_counted() {
        let mut lines = Lines::default();
        let same = |_| "no".to_owned();
        assert_eq!(logged(&mut lines, "28P01", 1000, same), 20);
        assert_eq!(logged(&mut lines, "53300", 5, same), 5);
        assert!(lines.look(PERIOD_US - 1).is_empty());
        let left_out = lines.look(PERIOD_US);
        assert_eq!(left_out, [("28P01".to_owned(), 980)]);
        assert_eq!(logged(&mut lines, "28P01", 1000, same), 20);
    }

    #[test]
    fn a_role_s_first_failure_is_logged_amid_a_flood_of_another_s() {
        let mut lines = Lines::default();
        assert_eq!(logged(&mut lines, "28P01", 1000, |_| "role a".into()), 20);
        assert!(lines.may_be_logged("28P01", b"role b"));
        assert!(!lines.may_be_logged("28P01", b"role b"));
        // A client can invent any number of role names.
        let made_up = logged(&mut lines, "28P01", 100_000, |nth| format!("role {nth}"));
        assert_eq!(made_up, NEW_ONES - 2);
    }
}
