//! GSSAPI encryption of a client that logs in.
//!
//! The keys cannot leave the process that negotiates them, and the startup packet
//! comes after that. So who asks for it, and is to have it (pg_baton.gss_encryption),
//! goes to a backend of its own at once, which answers, reads the packet, and tells it
//! here (STARTUP; gss_startup.c is the extension's side). Up to there it is at a handshake,
//! and from there on like any other that becomes native (errands.rs).
//!
//! Nothing may be sent to it from here once a process has taken it.

use super::client::{login_of, Effect, Errand, ForServer, Phase};
use super::native::{Native, Why};
use super::Logins;
use crate::protocol::startup::{StartupError, StartupEvent, StartupReader};

impl Logins {
    /// A client has asked for it, and has not been answered.
    pub(super) fn begin_gss(&mut self, number: u32) {
        match self.count_login(number) {
            Ok(()) => self.send_on_errand(number, Errand::Gss, ForServer::Nameless),
            Err(report) => self.fail(number, &report),
        }
    }

    /// That process has taken it.
    pub(super) fn is_encrypting(&mut self, number: u32, pid: u32) {
        if let Some(login) = self.logins.get_mut(number) {
            login.step_began_us = self.now.us;
            login.phase = Phase::Encrypting { pid };
            self.settle(number);
        }
    }

    /// The process has read its first packet. What has become of it, if it is a native
    /// session now.
    pub fn encrypted(&mut self, number: u32, serial: u64, packet: &[u8]) -> Option<Native> {
        self.is_awaited(number, serial, false);
        let native = self.has_told_packet(number, serial, packet);
        if native.is_none() {
            self.place_is_free(serial);
            self.next_errands();
        }
        native
    }

    fn has_told_packet(&mut self, number: u32, serial: u64, packet: &[u8]) -> Option<Native> {
        let most = self.parameters.door.login_bytes;
        let login = login_of(&mut self.logins, number, serial)?;
        let Phase::Encrypting { pid } = login.phase else {
            return None;
        };
        login.bytes += packet.len() as u64;
        if most > 0 && login.bytes > most {
            self.drop_login(number);
            return None;
        }
        let length = u32::try_from(packet.len() + 4).unwrap_or(u32::MAX);
        let bytes = [&length.to_be_bytes(), packet].concat();
        let mut reader = StartupReader::within_tls(self.parameters.server_major());
        match reader.feed(&bytes).1 {
            StartupEvent::Startup(startup) => {
                login.phase = Phase::BecomingNative;
                self.settle(number);
                let (why, since) = (Why::GssEncryption, self.now.timestamp);
                let of = self.logins.get(number)?.logging_in(number);
                Some(Native::new(of, *startup, why, pid, since))
            }
            // The process has ended by now, and the connection ends with the login.
            StartupEvent::Cancel(request) => {
                self.effects.push_back(Effect::Cancel(number, request));
                None
            }
            // The process tells it why.
            StartupEvent::Failed(StartupError::Fatal { report, .. }) => {
                let kind = String::from_utf8_lossy(&report.sqlstate);
                self.log(&kind, format_args!("login failed: {report}"));
                let login = self.take_out(number)?;
                self.client_number.let_go(login.fd());
                self.failed += 1;
                None
            }
            _ => {
                self.drop_login(number);
                None
            }
        }
    }

    /// The process has ended before that.
    pub fn not_encrypted(&mut self, number: u32, serial: u64) {
        self.place_is_free(serial);
        if let Some(login) = login_of(&mut self.logins, number, serial) {
            let address = login.address;
            let line = format_args!("login failed, {address}: no GSSAPI encryption");
            self.log_of("GSSAPI", b"", line);
            self.drop_login(number);
        }
        self.next_errands();
    }
}
