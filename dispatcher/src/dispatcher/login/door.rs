//! Limits at the door, applied (parameters/door.rs has what they are).
//!
//! | what | when | what follows |
//! |---|---|---|
//! | logins a second | before a TLS handshake, else as the startup packet has come | 53300 |
//! | connections that have not logged in | a client is accepted | one of those that keep us waiting goes, 53300 |
//! | time for a handshake, for each message | looked at 50 times a second | closed without a word, as by authentication_timeout |
//! | bytes before authentication | as they come | 54000; in a handshake closed |
//! | sessions of an address, of a user (admission.rs) | after authentication, superusers apart | 53300 |

use super::client::Login;
use super::limits::Waiting;
use super::Logins;
use crate::dispatcher::network::Origin;
use crate::dispatcher::parameters::door::too_much;
use crate::dispatcher::sys::socket::Address;
use crate::protocol::Report;
use tracing::debug;

impl Logins {
    /// Makes room for one more client; false if none can be.
    pub(super) fn make_room_at_the_door(&mut self, newcomer: &Address) -> bool {
        let most = usize::try_from(self.parameters.door.unauthenticated);
        let is_full = most.is_ok_and(|most| self.logins.len() >= most.max(1));
        if !is_full && self.logins.has_room() {
            return true;
        }
        let logins = &self.logins;
        let keeps_us = |one: &Waiting| {
            let login = logins.get(one.number);
            login.is_some_and(|login| login.serial == one.serial && login.keeps_us())
        };
        let all = || {
            (logins.iter())
                .filter(|(_, login)| login.keeps_us())
                .map(|(number, login)| Waiting {
                    number,
                    serial: login.serial,
                    origin: Origin::of(&login.address),
                })
                .collect()
        };
        let Some(number) = self.turns.next(Origin::of(newcomer), keeps_us, all) else {
            return false;
        };
        let report = Report::fatal(b"53300", "sorry, too many clients already")
            .with_detail("Too many connections have not logged in yet.");
        if self.logins.get(number).is_some_and(Login::shakes_hands) {
            // It would not be understood: no answer, or one within a handshake.
            debug!("a client did not shake hands before others came");
            self.drop_login(number);
        } else {
            self.fail(number, &report);
        }
        true
    }

    /// A login begins in earnest. What it is told if there are too many.
    pub(super) fn count_login(&mut self, number: u32) -> Result<(), Report> {
        let Some(login) = self.logins.get_mut(number) else {
            return Ok(());
        };
        if std::mem::replace(&mut login.is_counted, true) {
            return Ok(());
        }
        let origin = Origin::of(&login.address);
        self.rates.begin(&self.parameters.door, origin, self.now.us)
    }

    /// So many bytes have come; false if those were too many, and it is over.
    pub(super) fn count_login_bytes(&mut self, number: u32, length: usize) -> bool {
        let most = self.parameters.door.login_bytes;
        let Some(login) = self.logins.get_mut(number) else {
            return false;
        };
        login.bytes += length as u64;
        if most == 0 || login.bytes <= most {
            return true;
        }
        let report = too_much(&self.parameters.door);
        self.fail(number, &report);
        false
    }

    /// Has it taken too long for what it is at?
    pub(super) fn is_late(&self, login: &Login) -> bool {
        if !login.keeps_us() {
            return false;
        }
        let limits = &self.parameters.door;
        let limit_ms = if login.shakes_hands() {
            limits.handshake_timeout_ms
        } else {
            limits.login_step_timeout_ms
        };
        limit_ms > 0 && self.now.us >= login.step_began_us.saturating_add(limit_ms * 1000)
    }
}
