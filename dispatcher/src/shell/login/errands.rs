//! Connections that the dispatcher opens to the server for one client: to let a backend take
//! the client's own socket, or to bring the server a cancel request that is not for a session
//! of the pool.
//!
//! Tickets: the dispatcher writes a ticket to CONTROL and sends the client's own startup packet
//! to the postmaster, with the ticket as the name of a protocol option before all others. The
//! backend that reads the packet connects to the control socket (HELLO_TICKET) and receives the
//! client's socket. From then on the dispatcher knows the backend by that control connection.
//! Anything that the server sends on the first connection before that is an error for the
//! client. client_ticket.c describes the extension's side, and which processes may do this.
//!
//! A client that is to have GSSAPI encryption has sent no startup packet yet. The dispatcher
//! sends one that has the ticket and no names (client.rs).
//!
//! There are few tickets (BATON_TICKETS), and each is valid for the moment of a fork. A client
//! for which no ticket is left waits; the postmaster forks one process at a time anyway. A
//! client also waits while unadmitted clients use all server connections, or WAL senders, that
//! they may (places.rs).
//!
//! An errand belongs to its login and ends with it. After a backend has taken the client's
//! socket, the login goes on until the backend reports that the client is authenticated or
//! admitted. Until then the dispatcher keeps the socket open too, the login counts as
//! unauthenticated, and the limits before login apply. To end it, the dispatcher shuts the
//! socket down.

use super::client::{login_of, Errand, ForServer, Phase};
use super::native::{Native, Why};
use super::places::{self, Places};
use super::Logins;
use crate::protocol::startup::{CancelRequest, Replication};
use crate::protocol::{messages, Report};
use crate::shell::backends::opening;
use crate::shell::events::{token, Source};
use crate::shell::link::layout::shared::*;
use crate::shell::link::wire::Writer;
use crate::shell::sessions::sockets::Origin;
use crate::shell::sys::epoll;
use crate::shell::sys::socket::{self, Address};
use crate::shell::tls::{Facts, Names};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use tracing::debug;

/// Bytes kept of what the server sends before its backend connects: an error.
const MOST_WORDS: usize = 16 * 1024;

/// A longer server certificate is not passed on, so there is no channel binding: a frame is
/// short.
const LONGEST_CERTIFICATE: usize = 16 * 1024;

/// A client that a server process has taken.
pub enum Taken {
    Native(Native),
    /// A login (number, serial) whose client the process authenticates.
    ToAuthenticate(u32, u64),
    /// A login (number, serial) whose startup packet the process will report.
    ToEncrypt(u32, u64),
}

/// One such connection. Its index in the table is the ticket modulo TICKETS.
struct OnErrand {
    errand: Errand,
    login: u32,
    serial: u64,
    /// 0: none is needed.
    ticket: u64,
    connection: OwnedFd,
    unsent: Vec<u8>,
    heard: Vec<u8>,
}

/// All errands, and the queues for places. Cancel requests need no ticket. Their places follow
/// those of the clients in the table.
#[derive(Default)]
pub struct Errands {
    under_way: Vec<Option<OnErrand>>,
    connections: Places,
    /// Clients for WAL senders, which use none of max_connections.
    wal_senders: Places,
    cancels: places::Waiting,
    /// Connections of max_connections that are left for the pool.
    connections_left: usize,
}

/// Connections to the server that are opened in one go. Each takes 20 microseconds or more.
const BEGUN_AT_ONCE: usize = 32;

const CLIENTS: Range<usize> = 0..TICKETS as usize;
const CANCELS: Range<usize> = CLIENTS.end..CLIENTS.end + places::CANCELS_AT_ONCE;

impl Errands {
    fn free_place(&mut self, places: Range<usize>) -> Option<u32> {
        if self.under_way.is_empty() {
            self.under_way.resize_with(CANCELS.end, || None);
        }
        let mut places = places.into_iter();
        let place = places.find(|place| self.under_way[*place].is_none())?;
        u32::try_from(place).ok()
    }

    fn get_mut(&mut self, place: u32) -> Option<&mut OnErrand> {
        self.under_way.get_mut(place as usize)?.as_mut()
    }

    fn place_of(&self, ticket: u64) -> Option<u32> {
        let place = u32::try_from(ticket % u64::from(TICKETS)).ok()?;
        let found = self.under_way.get(place as usize)?.as_ref()?;
        (ticket != 0 && found.ticket == ticket).then_some(place)
    }

    fn of_login(&self, login: u32, serial: u64) -> Option<u32> {
        let is_its = |it: &OnErrand| it.login == login && it.serial == serial;
        let place = (self.under_way.iter()).position(|it| it.as_ref().is_some_and(is_its))?;
        u32::try_from(place).ok()
    }
}

/// A ticket that cannot be guessed, and that leads to its place.
fn new_ticket(place: u32) -> u64 {
    loop {
        let ticket = rand::random::<u64>() & !u64::from(TICKETS - 1) | u64::from(place);
        if ticket >= u64::from(TICKETS) {
            return ticket;
        }
    }
}

/// The startup packet of a client that has not sent its own.
const NAMELESS: [u8; 5] = [0, 3, 0, 0, 0];

/// The client's startup packet, with the ticket before all of the client's options.
fn with_ticket(packet: &[u8], ticket: u64) -> Vec<u8> {
    let (protocol, rest) = packet.split_at(4);
    let option = format!("_pq_.pg_baton.{ticket:016x}\0\0");
    let length = (4 + packet.len() + option.len()) as u32;
    [&length.to_be_bytes(), protocol, option.as_bytes(), rest].concat()
}

impl Logins {
    /// Queues an errand, which begins when a place is free. The client's input is ignored from
    /// now on.
    pub(super) fn send_on_errand(&mut self, number: u32, errand: Errand, what: ForServer) {
        let Some(login) = self.logins.get_mut(number) else {
            return;
        };
        let (serial, origin) = (login.serial, Origin::of(&login.address));
        let places = match &what {
            ForServer::Client(asked) if asked.startup.replication != Replication::No => {
                Some(&mut self.errands.wal_senders)
            }
            ForServer::Client(_) | ForServer::Nameless => Some(&mut self.errands.connections),
            ForServer::Cancel(_) => None,
        };
        let mut gives_way = None;
        match places {
            Some(places) => places.add(origin, serial, number),
            None => gives_way = self.errands.cancels.add(origin, serial, number),
        }
        login.phase = Phase::Errand {
            errand,
            what,
            has_begun: false,
        };
        self.settle(number);
        if let Some(gives_way) = gives_way {
            debug!("a cancel request is not brought to the server: too many wait");
            self.forget(gives_way);
        }
        self.next_errands();
    }

    /// Begins waiting errands while there are places. The loop is bounded, because an errand
    /// that fails at once frees its place again.
    pub fn next_errands(&mut self) {
        let (connections, wal_senders) = self.most_places();
        for _ in 0..BEGUN_AT_ONCE {
            let Some(place) = self.errands.free_place(CLIENTS) else {
                break;
            };
            let next = self.errands.connections.take(connections);
            let Some((number, serial)) =
                next.or_else(|| self.errands.wal_senders.take(wal_senders))
            else {
                break;
            };
            self.begin_errand(place, number, serial);
        }
        self.take_places_back();
        for _ in CANCELS {
            let Some(place) = self.errands.free_place(CANCELS) else {
                return;
            };
            let Some((number, serial)) = self.errands.cancels.take() else {
                return;
            };
            self.begin_errand(place, number, serial);
        }
    }

    /// Most places for connections, and for WAL senders. If the pool has all connections that
    /// it may have, unadmitted clients get half of those that are left to the server's own
    /// port.
    fn most_places(&self) -> (usize, usize) {
        let taken = self.errands.connections.taken();
        let connections = (self.parameters.most_not_let_in())
            .min(self.errands.connections_left + taken)
            .max(self.parameters.for_own_port() as usize / 2)
            .max(1);
        (connections, self.parameters.most_wal_senders_not_let_in())
    }

    /// Ends logins that owe an answer while others wait.
    fn take_places_back(&mut self) {
        let (connections, wal_senders) = self.most_places();
        let now_us = self.now.us;
        for _ in 0..BEGUN_AT_ONCE {
            let gone = self.errands.connections.gives_way(connections, now_us);
            let Some(number) =
                gone.or_else(|| self.errands.wal_senders.gives_way(wal_senders, now_us))
            else {
                return;
            };
            let line = "login failed: it said nothing, and others waited";
            self.log(number, "said nothing while others waited", line);
            self.drop_login(number);
        }
    }

    /// The process that has the client reports whether it waits for the client.
    pub fn is_awaited(&mut self, number: u32, serial: u64, is_awaited: bool) {
        if !self.has(number, serial) {
            return;
        }
        for places in [&mut self.errands.connections, &mut self.errands.wal_senders] {
            match is_awaited {
                true => places.owes(number, serial, self.now.us),
                false => places.owes_nothing(number),
            }
        }
    }

    /// The login that had this number owes no answer.
    pub(super) fn owes_nothing(&mut self, number: u32) {
        self.errands.connections.owes_nothing(number);
        self.errands.wal_senders.owes_nothing(number);
    }

    /// The login has no server process any more, or is admitted.
    pub(super) fn place_is_free(&mut self, serial: u64) {
        self.errands.connections.ended(serial);
        self.errands.wal_senders.ended(serial);
    }

    /// Connections of the server that unadmitted clients use.
    pub fn connections(&self) -> usize {
        self.errands.connections.taken()
    }

    /// Sets the number of connections that are left for the pool.
    pub fn connections_left(&mut self, left: usize) {
        self.errands.connections_left = left;
    }

    fn begin_errand(&mut self, place: u32, number: u32, serial: u64) {
        let connection = match opening::connect(&self.parameters) {
            Ok(connection) => connection,
            Err(error) => {
                let text = format!("could not connect to the server: {error}");
                return self.fail(number, &Report::fatal(b"57P03", text));
            }
        };
        let Some(login) = login_of(&mut self.logins, number, serial) else {
            return;
        };
        let Phase::Errand {
            errand,
            what,
            has_begun,
        } = &mut login.phase
        else {
            return;
        };
        *has_begun = true;
        let errand = *errand;
        let (ticket, unsent) = match what {
            ForServer::Client(asked) => {
                let ticket = new_ticket(place);
                (ticket, with_ticket(&asked.startup.packet, ticket))
            }
            ForServer::Nameless => {
                let ticket = new_ticket(place);
                (ticket, with_ticket(&NAMELESS, ticket))
            }
            ForServer::Cancel(request) => {
                let mut packet = Vec::new();
                messages::cancel_request(&mut packet, request.pid, &request.key);
                (0, packet)
            }
        };
        if unsent.len() > 4 + messages::MOST_STARTUP_BYTES {
            let report = Report::fatal(b"54000", "startup packet is too long for the pool");
            return self.fail(number, &report);
        }
        let fd = connection.as_raw_fd();
        let data = token(Source::Errand, place);
        if self.epoll.add(fd, epoll::IN | epoll::OUT, data).is_err() {
            return self.fail(number, &unreachable_server());
        }
        if ticket != 0 {
            self.control.header.tickets[place as usize].store(ticket, SeqCst);
        }
        self.errands.under_way[place as usize] = Some(OnErrand {
            errand,
            login: number,
            serial,
            ticket,
            connection,
            unsent,
            heard: Vec::new(),
        });
        self.settle(number);
    }

    /// Closes the connection and revokes its ticket.
    fn end_errand(&mut self, place: u32) -> Option<OnErrand> {
        let ended = self.errands.under_way.get_mut(place as usize)?.take()?;
        if ended.ticket != 0 {
            self.control.header.tickets[place as usize].store(0, SeqCst);
        }
        let _ = self.epoll.delete(ended.connection.as_raw_fd());
        Some(ended)
    }

    /// The errand's login has ended.
    pub(super) fn recall_errand(&mut self, number: u32, serial: u64) {
        self.errands.cancels.forget(serial);
        self.place_is_free(serial);
        if let Some(place) = self.errands.of_login(number, serial) {
            self.end_errand(place);
        }
    }

    pub fn errand_event(&mut self, place: u32) {
        let Some(it) = self.errands.get_mut(place) else {
            return;
        };
        let fd = it.connection.as_raw_fd();
        if !it.unsent.is_empty() {
            match socket::send(fd, &it.unsent) {
                Ok(length) => drop(it.unsent.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The server has closed the connection. It may have sent the reason.
                Err(_) => it.unsent.clear(),
            }
            if it.unsent.is_empty() {
                let data = token(Source::Errand, place);
                let _ = self.epoll.modify(fd, epoll::IN, data);
            }
        }
        let mut bytes = [0; 4096];
        match socket::receive(fd, &mut bytes) {
            Ok(length) if length > 0 && it.heard.len() < MOST_WORDS => {
                it.heard.extend_from_slice(&bytes[..length]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => self.errand_failed(place),
        }
        self.next_errands();
    }

    /// The server has closed the connection, and no backend has connected.
    fn errand_failed(&mut self, place: u32) {
        let Some(it) = self.end_errand(place) else {
            return;
        };
        let Some(login) = login_of(&mut self.logins, it.login, it.serial) else {
            return;
        };
        if it.errand == Errand::Cancel {
            // The request counts as done: the server does not confirm it.
            return self.forget(it.login);
        }
        // Pass on an error only. Anything else means that the server did not read the ticket.
        if it.heard.first() == Some(&b'E') {
            let _ = socket::send(login.fd(), &it.heard);
            let line = "login failed: the server refused it";
            self.log(it.login, "refused by the server", line);
            return self.drop_login(it.login);
        }
        self.fail(it.login, &unreachable_server());
    }

    /// A server process shows a ticket on its control connection. `is_process`: the process has
    /// the process ID that it gives. None if the ticket is not valid for it.
    pub fn hello_ticket(
        &mut self,
        connection: RawFd,
        ticket: u64,
        pid: u32,
        is_process: bool,
    ) -> Option<Taken> {
        let place = self.errands.place_of(ticket)?;
        if !is_process {
            return None;
        }
        let it = self.end_errand(place)?;
        let login = login_of(&mut self.logins, it.login, it.serial)?;
        let local = login.local.or_else(|| {
            let is_plain = !login.address.is_local() && login.tls().is_none();
            is_plain
                .then(|| socket::local_address(login.fd()).ok())
                .flatten()
        });
        let (fd, address) = (login.fd(), login.address);
        let kind = match it.errand {
            Errand::Native(_) => TICKET_NATIVE,
            Errand::Gss => TICKET_GSS,
            Errand::Login | Errand::Cancel => TICKET_LOGIN,
        };
        let ends = (&address, &local.unwrap_or_default());
        let facts = login.tls().map(Arc::as_ref);
        let frame = client_frame(kind, ends, login.certificate(), facts);
        // The client's socket now belongs to the backend, so it must not raise events here.
        if std::mem::take(&mut login.watched) {
            let _ = self.client_number.remove(&self.epoll, fd);
        }
        if let Err(error) = socket::send_with_descriptors(connection, &frame, &[fd]) {
            debug!("could not give a client to a backend: {error}");
            self.fail(it.login, &unreachable_server());
            return None;
        }
        let taken = match it.errand {
            Errand::Native(why) => Taken::Native(self.becomes_native(it.login, why, pid)?),
            Errand::Gss => {
                self.is_encrypting(it.login, pid);
                self.is_awaited(it.login, it.serial, true);
                Taken::ToEncrypt(it.login, it.serial)
            }
            Errand::Login | Errand::Cancel => {
                self.is_authenticating(it.login);
                Taken::ToAuthenticate(it.login, it.serial)
            }
        };
        debug!("process {pid} has taken a client: {:?}", it.errand);
        self.next_errands();
        Some(taken)
    }

    /// A backend has taken the login's socket to authenticate the client.
    fn is_authenticating(&mut self, number: u32) {
        if let Some(login) = self.logins.get_mut(number) {
            let phase = std::mem::replace(&mut login.phase, Phase::BecomingNative);
            login.phase = match phase {
                Phase::Errand {
                    what: ForServer::Client(asked),
                    ..
                } => Phase::Authenticating(asked),
                phase => phase,
            };
            self.settle(number);
        }
    }

    /// A backend has taken the login's socket, and keeps it for life if it admits the client.
    fn becomes_native(&mut self, number: u32, why: Why, pid: u32) -> Option<Native> {
        let login = self.logins.get_mut(number)?;
        let phase = std::mem::replace(&mut login.phase, Phase::BecomingNative);
        self.settle(number);
        let Phase::Errand {
            what: ForServer::Client(asked),
            ..
        } = phase
        else {
            return None;
        };
        let of = self.logins.get(number)?.logging_in(number);
        let since = self.now.timestamp;
        Some(Native::new(of, asked.startup, why, pid, since))
    }

    /// The server has admitted the client. Only its backend keeps the socket.
    pub fn native_is_in(&mut self, number: u32, serial: u64) {
        self.place_is_free(serial);
        if self.has(number, serial) {
            if let Some(login) = self.take_out(number) {
                self.client_number.let_go(login.fd());
            }
        }
        self.next_errands();
    }

    /// The backend that the client was to have has ended, and has sent it the error.
    pub fn native_is_refused(&mut self, number: u32, serial: u64) {
        self.place_is_free(serial);
        if self.has(number, serial) {
            self.drop_login(number);
        }
        self.next_errands();
    }

    /// Brings a cancel request to the server. It is for no session of the pool, so it may be
    /// for a native session or for a connection on the server's own port. The client's
    /// connection ends when the server has read the request.
    pub fn forward_cancel(&mut self, number: u32, request: CancelRequest) {
        self.send_on_errand(number, Errand::Cancel, ForServer::Cancel(request));
    }
}

fn client_frame(
    kind: u32,
    (address, local): (&Address, &Address),
    names: Option<&Names>,
    facts: Option<&Facts>,
) -> Vec<u8> {
    let none = Facts::default();
    let tls = facts.unwrap_or(&none);
    let certificate = tls.certificate.as_ref();
    let shown = (tls.server_certificate.as_deref())
        .filter(|shown| shown.len() <= LONGEST_CERTIFICATE)
        .unwrap_or_default();
    let client = Client {
        kind,
        family: address.family,
        port: address.port,
        scope: address.scope,
        peer_address: address.bytes,
        local_port: local.port,
        local_address: local.bytes,
        is_relayed: facts.is_some(),
        has_certificate: names.is_some(),
        common_name: names.map_or(&[], |names| &names.common),
        distinguished_name: names.map_or(&[], |names| &names.distinguished),
        server_certificate: shown,
        bits: tls.bits.unsigned_abs(),
        version: tls.protocol.as_bytes(),
        cipher: tls.cipher.as_bytes(),
        client_dn: certificate.map_or(&[], |it| shown_name(&it.subject)),
        client_serial: certificate.map_or(&[], |it| it.serial.as_bytes()),
        issuer_dn: certificate.map_or(&[], |it| shown_name(&it.issuer)),
    };
    (client.write(Writer::new(MSG_CLIENT, 0))).finish()
}

/// At most as much of a name as pg_stat_ssl has room for (NAMEDATALEN).
fn shown_name(name: &[u8]) -> &[u8] {
    &name[..name.len().min(64)]
}

fn unreachable_server() -> Report {
    Report::fatal(b"57P03", "no backend could be started for this client")
        .with_detail("The server closed the connection that pg_baton had opened for it.")
        .with_hint("See the server's log.")
}
