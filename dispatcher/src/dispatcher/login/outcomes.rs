//! What other threads have found out for a login: passwords, names of users,
//! handshakes.

use super::clients::{login_of, Phase};
use super::jobs::{Done, Name};
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::sys::socket;
use crate::protocol::auth::server::PasswordResult;

impl Dispatcher {
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

    pub(super) fn named(&mut self, number: u32, serial: u64, name: String) {
        if let Some(login) = login_of(&mut self.logins, number, serial) {
            if let Phase::Asked(asked) = &mut login.phase {
                asked.os_user = Some(name);
                self.ask(number);
            }
        }
    }

    fn password_checked(&mut self, number: u32, serial: u64, result: PasswordResult) {
        let Some(login) = login_of(&mut self.logins, number, serial) else {
            return;
        };
        if let Phase::Proving(proving) = &mut login.phase {
            let action = proving.auth.password_checked(result);
            if self.auth_action(number, action) {
                self.await_login(number);
            }
        }
    }

    pub fn jobs_done(&mut self) {
        self.jobs.woken();
        while let Some(done) = self.jobs.take() {
            match done {
                Done::Password {
                    login,
                    serial,
                    result,
                } => {
                    self.password_checked(login, serial, result);
                }
                Done::Derive {
                    backend,
                    serial,
                    keys,
                } => self.derived(backend, serial, &keys),
                Done::Name {
                    login,
                    serial,
                    name,
                } => self.named(login, serial, name),
                Done::Handshake(handshake) => self.handshake_over(handshake),
                Done::TlsLoaded { generation, result } => self.tls_loaded(generation, result),
            }
        }
    }
}
