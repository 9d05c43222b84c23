//! What other threads have found out for a login: passwords, names of users.

use super::client::{login_of, Phase};
use super::Logins;
use crate::shell::jobs::Name;
use crate::shell::sys::socket;

impl Logins {
    /// Asks the name service, on its own thread, who is at the other end.
    pub(super) fn ask_name(&mut self, number: u32) {
        let Some(login) = self.logins.get(number) else {
            return;
        };
        let serial = login.serial;
        match socket::peer(login.fd()) {
            Ok((_, uid)) => self.jobs.give_name(Name {
                login: number,
                serial,
                uid,
            }),
            Err(_) => self.named(number, serial, String::new()),
        }
    }

    pub fn named(&mut self, number: u32, serial: u64, name: String) {
        if let Some(login) = login_of(&mut self.logins, number, serial) {
            if let Phase::Asked(asked) = &mut login.phase {
                asked.os_user = Some(name);
                self.ask(number);
            }
        }
    }

    pub fn password_checked(&mut self, number: u32, serial: u64, matches: bool) {
        let Some(login) = login_of(&mut self.logins, number, serial) else {
            return;
        };
        if let Phase::Proving(proving) = &mut login.phase {
            let action = proving.auth.password_checked(matches);
            if self.auth_action(number, action) {
                self.await_login(number);
            }
        }
    }
}
