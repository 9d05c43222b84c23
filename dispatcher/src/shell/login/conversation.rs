//! What a client that logs in says, and is told.
//!
//! No backend is held meanwhile. A login reads no more than the message at
//! hand, since what follows the login belongs to a backend; its socket is
//! waited for under its own number, one event at a time, and only while
//! something is expected of the client.

use super::client::{login_of, Effect, Phase};
use super::Logins;
use crate::protocol::auth::server::Action;
use crate::protocol::startup::{Startup, StartupError, StartupEvent};
use crate::shell::jobs::Job;
use crate::shell::sys::socket;
use crate::shell::work;
use std::io;
use tracing::debug;
use zeroize::Zeroize;

/// Messages handled for one client before others get their turn.
const STEPS_A_ROUND: usize = 16;

impl Logins {
    /// The client has sent something.
    pub fn event(&mut self, number: u32) {
        let mut bytes = [0; 4096];
        for _ in 0..STEPS_A_ROUND {
            self.work += work::LOGIN;
            let Some(login) = self.logins.get_mut(number) else {
                return;
            };
            let wanted = login.wanted();
            if wanted == 0 {
                return self.unsettled.push(number);
            }
            let room = wanted.min(bytes.len());
            let length = match socket::receive(login.fd(), &mut bytes[..room]) {
                Ok(0) => {
                    if matches!(&login.phase, Phase::Startup(reader) if reader.in_packet()) {
                        self.log("startup packet", format_args!("incomplete startup packet"));
                    }
                    return self.drop_login(number);
                }
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.await_login(number);
                }
                Err(_) => return self.drop_login(number),
            };
            let serial = login.serial;
            if !self.count_login_bytes(number, length) {
                return;
            }
            let Some(login) = self.logins.get_mut(number) else {
                return;
            };
            match &mut login.phase {
                Phase::Startup(reader) => {
                    let (_, event) = reader.feed(&bytes[..length]);
                    // Others go on with it.
                    let is_last =
                        matches!(event, StartupEvent::Startup(_) | StartupEvent::Cancel(_));
                    if event == StartupEvent::Direct {
                        return self.begin_tls(number, Some(&bytes[..length]));
                    }
                    self.startup_event(number, event);
                    if is_last {
                        return;
                    }
                }
                Phase::Proving(proving) => {
                    let (_, action) = proving.auth.feed(&bytes[..length]);
                    bytes[..length].zeroize();
                    self.auth_action(number, action);
                }
                Phase::Securing { .. }
                | Phase::Encrypting { .. }
                | Phase::Asked(_)
                | Phase::Errand { .. }
                | Phase::Authenticating(_)
                | Phase::BecomingNative => return,
            }
            // Less than there was room for: there is no more yet.
            if length < room || login_of(&mut self.logins, number, serial).is_none() {
                break;
            }
        }
        self.await_login(number);
    }

    fn startup_event(&mut self, number: u32, event: StartupEvent) {
        match event {
            StartupEvent::NeedMore | StartupEvent::Direct => {}
            StartupEvent::Secure => self.begin_tls(number, None),
            StartupEvent::Gss if self.is_in_vain(number) => {
                self.send_to_login(number, b"N");
            }
            StartupEvent::Gss => self.begin_gss(number),
            StartupEvent::Answer(byte) => {
                self.send_to_login(number, &[byte]);
            }
            StartupEvent::Cancel(request) => {
                self.effects.push_back(Effect::Cancel(number, request));
            }
            StartupEvent::Startup(_) if self.is_in_vain(number) => {
                self.effects.push_back(Effect::InVain(number));
            }
            StartupEvent::Startup(startup) => self.has_named_itself(number, startup),
            StartupEvent::Failed(error) => self.startup_failed(number, error),
        }
    }

    fn startup_failed(&mut self, number: u32, error: StartupError) {
        match error {
            StartupError::Close(why) => self.log("startup packet", format_args!("{why}")),
            StartupError::Fatal { send, report } => {
                let kind = String::from_utf8_lossy(&report.sqlstate);
                self.log(&kind, format_args!("login failed: {report}"));
                if let Some(login) = self.logins.get(number) {
                    let _ = socket::send(login.fd(), &send);
                }
            }
        }
        self.drop_login(number);
    }

    /// Does what authentication asks for; true if the client is to speak next.
    pub(super) fn auth_action(&mut self, number: u32, action: Action) -> bool {
        match action {
            Action::NeedMore => true,
            Action::Send(bytes) => self.send_to_login(number, &bytes),
            Action::VerifyPassword(job) => {
                if let Some(login) = self.logins.get(number) {
                    let serial = login.serial;
                    self.jobs.give(Job {
                        login: number,
                        serial,
                        job: *job,
                    });
                }
                false
            }
            Action::Done { send } => {
                self.login_proved(number, send);
                false
            }
            Action::Failed(report) => {
                self.fail(number, &report);
                false
            }
            Action::Close(why) => {
                debug!("login ended: {why}");
                self.drop_login(number);
                false
            }
        }
    }

    /// May this client not come in, since its descriptor is one of those that
    /// are kept for backends? It is told so when it has asked to, not before:
    /// libpq from 17 on shows no error that comes in place of an answer to its
    /// SSLRequest (PQconnectPoll, fe-connect.c).
    fn is_in_vain(&self, number: u32) -> bool {
        let login = self.logins.get(number);
        login.is_some_and(|login| login.fd() > self.highest_client)
    }

    fn has_named_itself(&mut self, number: u32, startup: Box<Startup>) {
        match self.count_login(number) {
            Ok(()) => self.effects.push_back(Effect::Startup(number, startup)),
            Err(report) => self.fail(number, &report),
        }
    }
}
