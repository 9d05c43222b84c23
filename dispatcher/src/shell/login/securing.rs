//! TLS of a client that logs in.
//!
//! After `S` its socket goes to a relay (tls/threads.rs), and the login goes on
//! at the far end of a socketpair, with the next startup packet, once the relay
//! says that the handshake is over. A client that does not get so far is
//! dropped by the login's time limit like any other: closing the far end ends
//! the relay.

use super::client::{login_of, Phase};
use super::Logins;
use crate::protocol::startup::{StartupReader, Tls};
use crate::shell::jobs::Done;
use crate::shell::sys::socket::{self, Keepalives};
use crate::shell::tls::context::{self, Occasion, Passphrase, ServerContext};
use crate::shell::tls::threads::{Handshake, NewRelay};
use crate::shell::tls::{Facts, HandedEnd};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use tracing::warn;
use zeroize::Zeroizing;

/// What TLS sessions begin with; None while there is none to offer.
#[derive(Default)]
pub struct TlsOffer {
    context: Option<Arc<ServerContext>>,
    /// Of the configuration that was read last.
    generation: u64,
    /// For the next one that is read.
    passphrase: Passphrase,
}

impl TlsOffer {
    pub fn new(context: Option<ServerContext>) -> TlsOffer {
        TlsOffer {
            context: context.map(Arc::new),
            generation: 0,
            passphrase: None,
        }
    }

    /// What a client with this kind of address may do.
    pub fn for_client(&self, is_local: bool) -> Tls {
        match &self.context {
            Some(context) if !is_local && context.takes_direct => Tls::OfferedDirectly,
            Some(_) if !is_local => Tls::Offered,
            _ => Tls::Refused,
        }
    }
}

impl Logins {
    /// What ssl_passphrase_command has said, for the configuration that comes next.
    pub fn keep_passphrase(&mut self, passphrase: &[u8]) {
        self.tls.passphrase = Some(Zeroizing::new(passphrase.to_vec()));
    }

    /// The configuration has been read again; so may be the files it names.
    pub(super) fn reload_tls(&mut self) {
        let passphrase = self.tls.passphrase.take();
        let settings = self.parameters.tls.clone();
        if !settings.is_on {
            self.tls.context = None;
            self.tls.generation += 1;
            return;
        }
        self.tls.generation += 1;
        let generation = self.tls.generation;
        let (results, major) = (self.jobs.results(), self.parameters.server_major());
        // Reads files.
        let started = std::thread::Builder::new()
            .name("tls-load".into())
            .spawn(move || {
                let result = context::load(&settings, major, Occasion::Reload, &passphrase);
                results.bring(Done::TlsLoaded { generation, result });
            });
        if let Err(error) = started {
            warn!("SSL configuration was not reloaded: {error}");
        }
    }

    pub fn tls_loaded(&mut self, generation: u64, result: Result<ServerContext, String>) {
        if generation != self.tls.generation {
            return;
        }
        match result {
            Ok(context) => self.tls.context = Some(Arc::new(context)),
            Err(why) => {
                warn!("{why}");
                warn!("SSL configuration was not reloaded");
            }
        }
    }

    /// Has a relay begin. `direct`: with these bytes, that the client has begun
    /// with of itself; else it has asked, and is answered here.
    pub(super) fn begin_tls(&mut self, number: u32, direct: Option<&[u8]>) {
        let Some(context) = self.tls.context.clone() else {
            return self.drop_login(number);
        };
        if let Err(report) = self.count_login(number) {
            // Nothing in the clear is understood by who has begun with TLS.
            return match direct {
                Some(_) => self.drop_login(number),
                None => self.fail(number, &report),
            };
        }
        let now_us = self.now.us;
        let Some(login) = self.logins.get_mut(number) else {
            return;
        };
        login.step_began_us = now_us;
        let (near, far) = match socket::pair() {
            Ok(pair) => pair,
            Err(error) => {
                warn!("could not begin TLS: {error}");
                return self.drop_login(number);
            }
        };
        let fd = login.fd();
        if login.local.is_none() {
            login.local = socket::local_address(fd).ok();
        }
        if std::mem::take(&mut login.watched) {
            let _ = self.client_number.remove(&self.epoll, fd);
        }
        self.client_number.let_go(fd);
        self.client_number.is_new(far.as_raw_fd());
        if direct.is_none() && socket::send(fd, b"S").ok() != Some(1) {
            return self.drop_login(number);
        }
        // Backends cannot reach it there.
        socket::set_keepalives(fd, &Keepalives::default(), &self.parameters.keepalives);
        let client = login.hand_over(HandedEnd::relayed(far));
        login.phase = Phase::Securing {
            is_direct: direct.is_some(),
        };
        let relay = NewRelay {
            client,
            near,
            context,
            direct: direct.map(<[u8]>::to_vec),
            most_bytes: self.parameters.door.login_bytes,
            login: number,
            serial: login.serial,
        };
        self.relays.give(relay);
        self.settle(number);
    }

    /// A relay has said how its handshake went.
    pub fn handshake_over(&mut self, handshake: Handshake) {
        let Handshake {
            login: number,
            serial,
            result,
        } = handshake;
        let Some(login) = login_of(&mut self.logins, number, serial) else {
            return;
        };
        let Phase::Securing { is_direct } = login.phase else {
            return;
        };
        match result {
            Ok(facts) if is_direct && !facts.has_alpn => {
                let why = "received direct SSL connection request without ALPN protocol negotiation extension";
                self.log("TLS", format_args!("{why}"));
                self.drop_login(number);
            }
            Ok(facts) => self.secured(number, facts, is_direct),
            Err(why) => {
                if let Some(why) = why {
                    let address = login.address;
                    self.log_of("TLS", why.as_bytes(), format_args!("{why}, {address}"));
                }
                self.drop_login(number);
            }
        }
    }

    fn secured(&mut self, number: u32, facts: Arc<Facts>, is_direct: bool) {
        let major = self.parameters.server_major();
        let reader = match is_direct {
            true => StartupReader::within_direct_tls(major),
            false => StartupReader::within_tls(major),
        };
        if let Some(login) = self.logins.get_mut(number) {
            login.is_secured(facts);
            login.step_began_us = self.now.us;
            login.phase = Phase::Startup(reader);
            self.event(number);
        }
    }
}
