//! From a connection to a client that may come in.
//!
//! [`Logins`] has those who are logging in. It knows neither of sessions and pools
//! nor of the launcher's connection: what it wants of others is an [`Effect`], to be
//! carried out before the next event is told ([`Logins::next_effect`]).
//!
//! | module | what it does |
//! |---|---|
//! | `ports` | the pool's ports, and the connections that they accept |
//! | `client` | a login: its state, its conversation, its TLS and GSSAPI encryption |
//! | `launcher` | questions to the launcher, and the answers that are kept |
//! | `answers` | what follows from an answer; admission of a client that has proved itself |
//! | `limits` | limits before login: rates, times, bytes, and the order in which they are looked at |
//! | `native` | sessions that the server itself serves, and why |
//! | `errands` | connections to the server that a client needs |
//! | `places` | scarce places for such connections, their fair queue, and cancel requests |
//!
//! This file has the table of logins, and bounds the lines of the log that strangers cause.

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
use super::parameters::Parameters;
use super::sys::epoll::{self, ClientNumber, Epoll};
use super::sys::socket::{self, Address};
use super::tls::threads::Relays;
use super::tls::{ClientEnd, HandedEnd};
use crate::core::Now;
use crate::protocol::auth::verifier::MockSecret;
use crate::protocol::startup::StartupReader;
use crate::protocol::Report;
use client::{Login, Phase, TlsOffer};
use errands::Errands;
use launcher::LoginCache;
use limits::{Rates, Watch};
use places::Guesses;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use tracing::{debug, info};

/// Logins in progress beyond one a session slot.
const SPARE_LOGINS: usize = 1000;
/// Logins to which a new configuration is applied in a tick.
const SETTLED_AT_ONCE: usize = 256;
/// Logins that are ended for want of time, or of a launcher, in a round: some 10
/// microseconds each.
const ENDED_AT_ONCE: usize = 64;
/// Who can only be told that there is no room has so long to ask.
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
    /// To be settled when nothing is wanted of others any more: most who come are past
    /// being watched by then.
    unsettled: Vec<u32>,
    /// The configuration has been loaded anew since these were looked at.
    to_settle: Range<u32>,
    /// In the next round, too, some are ended.
    ends_more: bool,
    /// Pieces of work since the round began.
    work: usize,
    cache: LoginCache,
    tls: TlsOffer,
    relays: Relays,

    /// Sessions get no higher descriptor; above are those for backends.
    highest_client: RawFd,
    launcher_is_up: bool,
    accepted: u64,
    failed: u64,
}

/// The salt of roles that do not exist comes from the server's own secret.
fn mock_secret(nonce: &[u8]) -> MockSecret {
    if nonce.is_empty() {
        MockSecret::random()
    } else {
        MockSecret::new(nonce.to_vec())
    }
}

/// What logins need of this process.
pub struct Means {
    pub control: Control,
    pub epoll: Arc<Epoll>,
    pub client_number: Arc<ClientNumber>,
    pub jobs: JobsIn,
    pub relays: Relays,
    pub tls: TlsOffer,
    /// Sessions get no higher descriptor.
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
        }
    }

    // ---- what goes on around it --------------------------------------------

    pub fn set_clock(&mut self, now: Now) {
        self.now = now;
    }

    /// What is wanted of others now. Nothing: those whose turn has changed meanwhile
    /// are settled, as it is known by now.
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

    /// The configuration has been loaded anew.
    pub fn reconfigure(&mut self, parameters: Arc<Parameters>) {
        self.mock_secret = mock_secret(&parameters.mock_authentication_nonce);
        self.parameters = parameters;
        self.cache = LoginCache::default();
        self.reload_tls();
        // Times that are noted may be later than they are now.
        self.to_settle = 0..self.logins.numbers();
    }

    /// In each tick: some more of those that are to be looked at anew.
    fn settle_on(&mut self) {
        for _ in 0..SETTLED_AT_ONCE {
            let Some(number) = self.to_settle.next() else {
                return;
            };
            self.settle(number);
        }
    }

    /// What the launcher has said of these, by role and database, is past.
    pub fn forget_answers(&mut self, concerned: impl Fn(u32, u32) -> bool) {
        (self.cache).forget(|answer| concerned(answer.role, answer.database));
    }

    // ---- questions ---------------------------------------------------------

    pub fn len(&self) -> usize {
        self.logins.len()
    }

    /// Is it still the one that was asked for? Numbers are used again.
    pub fn has(&self, number: u32, serial: u64) -> bool {
        (self.logins.get(number)).is_some_and(|login| login.serial == serial)
    }

    /// Clients that have come, and logins that have failed, since the start.
    pub fn counts(&self) -> (u64, u64) {
        (self.accepted, self.failed)
    }

    // ---- coming and going --------------------------------------------------

    pub fn begin(&mut self, client: OwnedFd, address: Address, local: Option<Address>) {
        self.accepted += 1;
        self.work += work::LOGIN;
        if self.parameters.log_receipt {
            info!("connection received: {address}");
        }
        let client = HandedEnd::plain(ClientEnd(client));
        let fd = client.fd();
        if !self.make_room_at_the_door() {
            self.failed += 1;
            let report = Report::fatal(b"53300", "sorry, too many clients already");
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
        // It has spoken already, as a rule: TCP_DEFER_ACCEPT.
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

    /// One more that was turned away without a word of its own.
    pub fn count_turned_away(&mut self) {
        self.accepted += 1;
        self.failed += 1;
    }

    /// The connection ends here; its descriptor with it.
    fn drop_login(&mut self, number: u32) {
        self.work += work::LOGIN_END;
        if let Some(login) = self.logins.get(number) {
            socket::discard_input(login.fd());
            self.failed += 1;
            self.forget(number);
        }
    }

    /// As well, but nothing has failed.
    pub fn forget(&mut self, number: u32) {
        if let Some(login) = self.take_out(number) {
            self.client_number.let_go(login.fd());
            if matches!(login.phase, Phase::Errand { .. }) {
                self.recall_errand(number, login.serial);
            } else if login.is_a_backend_s() {
                // That has the socket, too, and learns of it so.
                socket::shutdown(login.fd());
            }
        }
    }

    /// It is a login no more.
    fn take_out(&mut self, number: u32) -> Option<Login> {
        self.watch.forget(number);
        self.owes_nothing(number);
        self.logins.remove(number)
    }

    pub fn fail(&mut self, number: u32, report: &Report) {
        if let Some(login) = self.logins.get(number) {
            let address = login.address;
            if login.hears_us() {
                let _ = socket::send(login.fd(), &report.to_bytes());
            }
            self.log_failure(&address, report);
        }
        self.drop_login(number);
    }

    /// A line that a stranger can cause, of this kind ([`Lines`]).
    pub fn log(&mut self, kind: &str, says: fmt::Arguments<'_>) {
        let line = says.to_string();
        self.log_of(kind, line.as_bytes(), says);
    }

    /// The same, where lines that say more than `what` are not new by that.
    pub fn log_of(&mut self, kind: &str, what: &[u8], says: fmt::Arguments<'_>) {
        if self.lines.may_be_logged(kind, what) {
            info!("{says}");
        }
    }

    /// From this address; what differs by that alone is the same.
    pub fn log_failure(&mut self, address: &Address, report: &Report) {
        let kind = String::from_utf8_lossy(&report.sqlstate);
        let line = format_args!("login failed, {address}: {report}");
        self.log_of(&kind, &report.message, line);
    }

    /// Once a second: what was not logged.
    pub fn log_left_out(&mut self) {
        for (kind, count) in self.lines.look(self.now.us) {
            info!("... and {count} more like these in the last 10 s ({kind})");
        }
    }

    /// A client that has come as far as to be let in, and is not.
    pub fn turn_away(&mut self, socket: &HandedEnd, mut out: Vec<u8>, report: &Report) {
        self.failed += 1;
        report.encode(&mut out);
        let _ = socket::send(socket.fd(), &out);
        self.client_number.let_go(socket.fd());
    }

    /// Waits for the client, if it is expected to speak next.
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
        // Little is ever sent to a client that logs in, and its socket is
        // empty: one that does not take it is gone or plays games.
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

    /// Are some to be ended without anything having happened?
    pub fn has_more(&self) -> bool {
        self.ends_more
    }

    /// In each tick, and in the rounds after it as long as there are more: ends those
    /// whose time is up, without a word, as stock does; and with `refusal` those that
    /// wait for a launcher that does not come.
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

    /// Since this was asked last.
    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// Nobody comes in any more, but those that the server may still let in.
    pub fn stop(&mut self) {
        let report = Report::fatal(b"57P03", "the database system is shutting down");
        let is_ours = |login: &Login| !matches!(login.phase, Phase::BecomingNative);
        let ours = self.logins.iter().filter(|(_, login)| is_ours(login));
        let all: Vec<u32> = ours.map(|(number, _)| number).collect();
        for number in all {
            self.fail(number, &report);
        }
    }

    /// The last thing but one before the end of the program.
    pub fn close_all(&mut self) {
        self.logins = Slab::new(0);
        self.watch = Watch::default();
    }

    /// Once nobody's socket is open any more (blocks).
    pub fn finish_relays(&mut self) {
        self.relays.finish();
    }
}

// ---- Lines of the log -----------------------------------------------------
//
// Lines in the log that strangers cause: so many of a kind in a while, and a count of
// the others.
//
// A kind is an SQLSTATE, or a name of ours. Of each, the first ones of every ten seconds
// are logged, and so is the first that says something else than those before (a message
// names its role), up to a number of those; a line at the end says how many were not.
//
// Free of I/O.

const PERIOD_US: u64 = 10_000_000;
/// Of one kind in a period.
const OF_A_KIND: u32 = 20;
/// Beyond these, with a message that is new in this period.
const NEW_ONES: usize = 100;

/// What was logged in this period.
#[derive(Default)]
pub struct Lines {
    began_us: u64,
    /// Logged, and left out.
    kinds: BTreeMap<String, (u32, u64)>,
    said: HashSet<u64>,
    hasher: RandomState,
}

impl Lines {
    /// May a line of this kind that says this be logged?
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

    /// Once a second: kinds of which lines were left out, and how many, if a period is
    /// over.
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
        // Names can be made up without end.
        let made_up = logged(&mut lines, "28P01", 100_000, |nth| format!("role {nth}"));
        assert_eq!(made_up, NEW_ONES - 2);
    }
}
