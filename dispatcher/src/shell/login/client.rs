//! A client that is logging in: what is known of it, how far it has come, and what
//! it wants of others.
//!
//! It ends as a session (scheduler/new_session.rs), as a session of the server's own
//! (native.rs), or the connection ends; after authentication_timeout without a word,
//! as in stock. The number of logins is bounded, and so is what each may send.

use super::native::{LoggingIn, Why};
use crate::protocol::auth::server::ServerAuth;
use crate::protocol::startup::{CancelRequest, Startup, StartupReader};
use crate::shell::link::wire::{Answer, Who};
use crate::shell::sessions::greetings::Authenticated;
use crate::shell::slab::Slab;
use crate::shell::sys::socket::Address;
use crate::shell::tls::{ClientEnd, Facts, HandedEnd, Names};
use std::os::fd::RawFd;
use std::sync::Arc;

/// How far a login has come.
pub enum Phase {
    /// Reading the first packets.
    Startup(StartupReader),
    /// A relay shakes hands; it has begun with TLS at once, or asked for it.
    Securing { is_direct: bool },
    /// A process of the server begins GSSAPI encryption with it, and has not told its
    /// startup packet yet.
    Encrypting { pid: u32 },
    /// The launcher has been asked, or the name service.
    Asked(Box<Asked>),
    /// Authentication runs.
    Proving(Box<Proving>),
    /// Somebody is on his way to the server, or will be.
    Errand {
        errand: Errand,
        what: ForServer,
        has_begun: bool,
    },
    /// A backend authenticates it.
    Authenticating(Box<Asked>),
    /// A backend authenticates it, and is its own if it lets it in (native.rs).
    BecomingNative,
}

pub struct Asked {
    pub startup: Startup,
    /// The name of the user at the other end of a Unix socket, "" if he has
    /// none; asked for when the method needs it.
    pub os_user: Option<String>,
    /// This client has proved itself: it is asked again whether it may come in.
    pub proved: Option<Proved>,
    /// As which a backend authenticates it; 0: none does.
    pub role: u32,
}

/// What a client has somebody sent to the server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// A backend of its own, for life.
    Native(Why),
    /// A backend of its own, for life, that begins GSSAPI encryption with it first.
    Gss,
    /// A backend that authenticates it.
    Login,
    /// To cancel what a backend does that is not the pool's.
    Cancel,
}

/// What the server is to be sent.
pub enum ForServer {
    Client(Box<Asked>),
    /// One whose name nobody knows yet.
    Nameless,
    Cancel(CancelRequest),
}

impl Asked {
    pub fn new(startup: Startup) -> Box<Asked> {
        Box::new(Asked {
            startup,
            os_user: None,
            proved: None,
            role: 0,
        })
    }
}

pub struct Proving {
    pub startup: Startup,
    pub os_user: Option<String>,
    pub answer: Arc<Answer>,
    /// login_generation before the launcher was asked.
    pub generation: u64,
    pub auth: ServerAuth,
}

/// What is left of an authentication that has succeeded.
pub struct Proved {
    /// To be sent before anything else: ends with AuthenticationOk.
    pub out: Vec<u8>,
    /// As which GSSAPI knows it, if the server has asked that.
    pub principal: Option<Vec<u8>>,
    /// None if it did not have to prove anything.
    pub authenticated: Option<Authenticated>,
}

/// One client that is logging in.
pub struct Login {
    pub socket: HandedEnd,
    pub serial: u64,
    pub address: Address,
    pub local: Option<Address>,
    pub deadline_us: u64,
    /// Its socket is in the epoll.
    pub watched: bool,
    /// It counts among the logins of this second (door.rs).
    pub is_counted: bool,
    /// What it has sent, a TLS handshake apart.
    pub bytes: u64,
    /// Since when the client is at what it is at.
    pub step_began_us: u64,
    pub phase: Phase,
}

impl Login {
    /// Bytes to read from the client now; 0 while it is not its turn.
    pub fn wanted(&self) -> usize {
        match &self.phase {
            Phase::Startup(reader) => reader.wanted(),
            Phase::Proving(proving) => proving.auth.wanted(),
            Phase::Securing { .. }
            | Phase::Encrypting { .. }
            | Phase::Asked(_)
            | Phase::Errand { .. }
            | Phase::Authenticating(_)
            | Phase::BecomingNative => 0,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// From here on it is spoken with there; its own socket is a relay's.
    pub fn hand_over(&mut self, far: HandedEnd) -> ClientEnd {
        std::mem::replace(&mut self.socket, far).into_client_end()
    }

    pub fn is_secured(&mut self, facts: Arc<Facts>) {
        self.socket.secured(facts);
    }

    /// It has this number.
    pub fn logging_in(&self, number: u32) -> LoggingIn {
        LoggingIn {
            id: (number, self.serial),
            address: self.address,
            is_relayed: self.socket.is_relayed(),
        }
    }

    pub fn tls(&self) -> Option<&Arc<Facts>> {
        self.socket.tls()
    }

    pub fn certificate(&self) -> Option<&Names> {
        self.socket.certificate()
    }

    /// It is the client's turn, as far as can be seen from here, or it waits for nothing, or for
    /// a process of the server that others have.
    pub fn keeps_us(&self) -> bool {
        !self.hears_us() || self.wanted() > 0 || self.waits_for_a_place()
    }

    fn waits_for_a_place(&self) -> bool {
        matches!(
            self.phase,
            Phase::Errand {
                has_begun: false,
                ..
            }
        )
    }

    /// A handshake is going on.
    pub fn shakes_hands(&self) -> bool {
        matches!(
            self.phase,
            Phase::Securing { .. } | Phase::Encrypting { .. }
        )
    }

    /// A process of the server has its socket as well, and speaks with it.
    pub fn is_a_backend_s(&self) -> bool {
        matches!(
            self.phase,
            Phase::Encrypting { .. } | Phase::Authenticating(_) | Phase::BecomingNative
        )
    }

    /// It has sent a cancel request, which is the server's to obey.
    pub fn cancels(&self) -> bool {
        let errand = Errand::Cancel;
        matches!(&self.phase, Phase::Errand { errand: its, .. } if *its == errand)
    }

    /// What we send it would be understood.
    pub fn hears_us(&self) -> bool {
        !self.shakes_hands() && !self.is_a_backend_s() && !self.cancels()
    }
}

/// A client that has proved itself: what a session is made of.
pub struct Entering {
    pub socket: HandedEnd,
    pub address: Address,
    /// Our end, where that is known without asking.
    pub local: Option<Address>,
    /// Its socket is in the epoll.
    pub watched: bool,
    pub startup: Startup,
    pub answer: Arc<Answer>,
    pub proved: Proved,
}

/// What a login wants of others.
pub enum Effect {
    /// It may not come in, as its descriptor is kept for backends, and has asked to:
    /// it is to be told so.
    InVain(u32),
    /// It has said who it is: may it go on, and how?
    Startup(u32, Box<Startup>),
    /// The launcher is to be asked.
    Ask {
        login: u32,
        serial: u64,
        address: Address,
        who: Who,
    },
    /// It has been asked that before.
    Known {
        login: u32,
        serial: u64,
        generation: u64,
        answer: Arc<Answer>,
    },
    /// Its connection ends when that has been obeyed: that tells the client to go
    /// on, and what it then asks is not meant.
    Cancel(u32, CancelRequest),
    /// May it come in? It is no login any more.
    Enter(Box<Entering>),
}

/// A login, if it is still the one that was asked for: numbers are used again.
pub fn login_of(logins: &mut Slab<Login>, number: u32, serial: u64) -> Option<&mut Login> {
    let login = logins.get_mut(number);
    login.filter(|login| login.serial == serial)
}
