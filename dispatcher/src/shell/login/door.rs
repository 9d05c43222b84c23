//! Limits at the door, applied (parameters/door.rs has what they are).
//!
//! | what | when | what follows |
//! |---|---|---|
//! | logins a second | before a TLS handshake, else as the startup packet has come | 53300 |
//! | connections that have not logged in | a client is accepted | one of those that keep us waiting goes, 53300; without a word where it would not be understood |
//! | time for a handshake, for each message | looked at 50 times a second, those whose time it is | closed without a word, as by authentication_timeout |
//! | bytes before authentication | as they come | 54000; in a handshake closed |
//! | sessions of an address, of a user (admission.rs) | after authentication, superusers apart | 53300 |

use super::client::{Login, Phase};
use super::watch::Seen;
use super::Logins;
use crate::protocol::Report;
use crate::shell::parameters::too_many_login_bytes;
use crate::shell::sessions::sockets::Origin;
use tracing::debug;

impl Logins {
    /// Makes room for one more client; false if none can be.
    pub(super) fn make_room_at_the_door(&mut self) -> bool {
        let most = usize::try_from(self.parameters.door.unauthenticated);
        let is_full = most.is_ok_and(|most| self.logins.len() >= most.max(1));
        if !is_full && self.logins.has_room() {
            return true;
        }
        let Some(number) = self.who_goes() else {
            return false;
        };
        let report = Report::fatal(b"53300", "sorry, too many clients already")
            .with_detail("Too many connections have not logged in yet.");
        if self.logins.get(number).is_some_and(Login::hears_us) {
            self.fail(number, &report);
        } else {
            debug!("a client did not come in before others came");
            self.drop_login(number);
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
        let report = too_many_login_bytes(&self.parameters.door);
        self.fail(number, &report);
        false
    }

    /// Of those that keep us waiting still.
    fn who_goes(&mut self) -> Option<u32> {
        loop {
            let number = self.watch.who_goes()?;
            if self.logins.get(number).is_some_and(Login::keeps_us) {
                return Some(number);
            }
            self.settle(number);
        }
    }

    /// It may be another's turn, or it has begun or ended: what is watched of it is
    /// what it is now.
    pub(super) fn settle(&mut self, number: u32) {
        let Some(login) = self.logins.get(number) else {
            self.watch.forget(number);
            return;
        };
        let seen = Seen {
            due_us: self.due_us(login),
            serial: login.serial,
            origin: Origin::of(&login.address),
            keeps_us: login.keeps_us(),
            is_asked: matches!(login.phase, Phase::Asked(_)),
        };
        self.watch.note(number, seen);
    }

    /// When it will have taken too long, for all or for what it is at.
    pub(super) fn due_us(&self, login: &Login) -> u64 {
        let limits = &self.parameters.door;
        let limit_ms = match &login.phase {
            _ if login.shakes_hands() => limits.handshake_timeout_ms,
            _ if login.wanted() > 0 => limits.login_step_timeout_ms,
            // By the server's own authentication_timeout, which is over before it may
            // have to wait for something else.
            Phase::BecomingNative => return u64::MAX,
            _ => 0,
        };
        let step_us = match limit_ms {
            0 => u64::MAX,
            limit_ms => login.step_began_us.saturating_add(limit_ms * 1000),
        };
        login.deadline_us.min(step_us)
    }
}
