//! Control connections: the event loop reads their frames, learns from the first what each
//! peer is, and answers views.

use super::Dispatcher;
use crate::core::{Event, Identity, PauseState, PauseTerms, Scope, SessionId};
use crate::shell::console::Consoles;
use crate::shell::events::{work, Source};
use crate::shell::link::connections::{
    is_last_word, Offence, Peer, Received, Then, PACKETS_A_ROUND,
};
use crate::shell::link::layout::shared::{self, *};
use crate::shell::link::memory::context::Contexts;
use crate::shell::link::wire::{Frame, Malformed, Reader, Row, Writer};
use crate::shell::log::lines;
use crate::shell::login::answers;
use crate::shell::login::errands::Taken;
use crate::shell::login::native::LoginId;
use crate::shell::scheduler::{Hello, Refusal, Rows, View};
use crate::shell::sessions::greetings::Authenticated;
use crate::shell::sys::memory::overwrite;
use crate::shell::sys::{epoll, process};
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use tracing::{info, warn};

/// Packets read in one round from all control connections together. Each connection has its
/// share.
const PACKETS_OF_ALL: usize = 1024;
/// A packet counts once, and once more for each of these many bytes.
const BYTES_A_PACKET: usize = 4096;

/// Packets read from one connection before others get their turn, in a round of `events`
/// events.
fn packets_a_round(events: usize) -> usize {
    (PACKETS_OF_ALL / events.max(1)).clamp(8, PACKETS_A_ROUND)
}

/// No statement asks for more (pause.c).
pub(super) const MOST_PAUSED_US: u64 = 2 * 24 * 3_600_000_000;

/// The sessions that a pause concerns: a role and a database, 0 for any.
fn read_scope(reader: &mut Reader<'_>) -> Result<Scope, Malformed> {
    let some = |oid: u32| (oid != 0).then_some(oid);
    Ok(Scope {
        role_oid: some(reader.u32()?),
        database_oid: some(reader.u32()?),
    })
}

fn pause_row(what: u32, value: u64) -> Vec<u8> {
    Writer::new(MSG_ROW, 0).u32(what).u64(value).finish()
}

/// Is this a PUT that came in pieces? Its payload then fills a whole buffer.
fn is_long_put(frame: &Frame<'_>) -> bool {
    frame.kind == MSG_PUT && Contexts::is_long(frame.payload.len())
}

impl Dispatcher {
    pub(super) fn accept_connections(&mut self) {
        if let Err(error) = self.connections.accept(self.now.us) {
            self.connections.listen(false);
            (self.ports).let_rest(Source::ControlListener, 0, &error, self.now.us);
        }
    }

    pub(super) fn connection_event(&mut self, number: u32, events: u32) {
        if events & epoll::OUT != 0 {
            self.connections.send_unsent(number);
            self.read_on(number);
        }
        if events & (epoll::IN | epoll::HUP | epoll::ERR) != 0 && !self.is_busy_with(number) {
            self.read_connection(number);
        }
    }

    /// Is a message of this connection's backend still being processed? Later messages, and the
    /// end of the connection, are read afterwards.
    fn is_busy_with(&self, number: u32) -> bool {
        match self.connections.peer(number) {
            Some(Peer::Backend(slot)) => self.scheduler.is_busy_with(slot),
            _ => false,
        }
    }

    /// Called at the end of each round.
    pub(super) fn go_on_with_contexts(&mut self) {
        self.scheduler.go_on_with_contexts();
        for number in self.scheduler.take_heard_again() {
            self.connections.hear(number, true);
        }
    }

    fn read_connection(&mut self, number: u32) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let (mut whole, longest) = (Vec::new(), self.scheduler.longest_value());
        let mut used = 0;
        let mut left = packets_a_round(self.round_events);
        while left > 0 {
            let Some(length) = self.connections.receive(number, &mut buffer) else {
                break;
            };
            used = used.max(length);
            let weight = 1 + length / BYTES_A_PACKET;
            left = left.saturating_sub(weight);
            self.turns.work += weight * work::PACKET;
            let packet = &buffer[..length];
            let received = (self.connections).assemble(number, packet, longest, &mut whole);
            let result = match received {
                Ok(Received::Whole(frame)) if is_long_put(&frame) => {
                    let session = frame.session;
                    self.put_long(number, session, std::mem::take(&mut whole))
                }
                Ok(Received::Whole(frame)) => self.frame(number, frame),
                Ok(Received::TooLong(kind, session)) => self.too_long(number, kind, session),
                Ok(Received::Part) => Ok(()),
                Err(offence) => Err(offence),
            };
            if let Err(offence) = result {
                self.expel(number, offence);
                break;
            }
            if self.is_busy_with(number) {
                self.connections.hear(number, false);
                break;
            }
            if is_last_word(packet) {
                break;
            }
        }
        // The buffers may hold stored passwords and contents of sessions.
        overwrite(&mut buffer[..used]);
        overwrite(&mut whole);
        self.buffer = buffer;
    }

    /// Closes a connection whose message is not allowed. If it belongs to a backend, the
    /// process loses its slot. It must not go on writing there, so it is told to end.
    fn expel(&mut self, number: u32, offence: Offence) {
        match self.connections.peer(number) {
            None => return,
            Some(Peer::Backend(slot)) => {
                let process = self.scheduler.end_backend(slot);
                warn!("backend {slot} (process ID {process}) is ended: {offence}");
            }
            Some(peer) => warn!("a control connection ({peer:?}) is closed: {offence}"),
        }
        self.connections.close(number);
    }

    /// Handles the connections that have ended; called at the end of each round.
    pub(super) fn bury_dead(&mut self) {
        loop {
            for number in self.scheduler.take_failed_connections() {
                self.connections.close(number);
            }
            let Some((number, peer)) = self.connections.bury() else {
                return;
            };
            match peer {
                Peer::Backend(slot) => self.scheduler.backend_gone(slot),
                Peer::Launcher => self.launcher_gone(number),
                Peer::Holder => self.scheduler.tell(Event::HoldEnded(number)),
                Peer::Pauser => self.scheduler.tell(Event::PauseAskerGone(number)),
                Peer::Native => {
                    if let Some((login, serial)) = self.natives.remove(number) {
                        self.logins.native_is_refused(login, serial);
                        self.logins_want();
                    }
                    self.look_at_others();
                }
                Peer::Authenticator(login, serial) => {
                    self.logins.not_authenticated(login, serial);
                    self.logins_want();
                }
                Peer::Encrypting(login, serial) => {
                    self.logins.not_encrypted(login, serial);
                    self.logins_want();
                }
                Peer::Query | Peer::Monitor => self.readers.forget(number),
                Peer::LogWriter => lines::connection_is_gone(number),
                Peer::Unknown => {}
            }
        }
    }

    fn frame(&mut self, number: u32, frame: Frame<'_>) -> Result<(), Offence> {
        let Some(peer) = self.connections.peer(number) else {
            return Ok(());
        };
        match peer {
            Peer::Unknown => self.hello(number, frame),
            // The process has received the last answer when it asks again; otherwise answers
            // would pile up.
            Peer::Holder | Peer::Pauser
                if frame.kind == MSG_HELLO_QUERY && !self.connections.has_unsent(number) =>
            {
                self.hello(number, frame)
            }
            Peer::Backend(slot) => self.scheduler.backend_frame(slot, frame),
            Peer::Launcher => Ok(self.launcher_frame(frame)?),
            Peer::Authenticator(login, serial) if frame.kind == MSG_AUTHENTICATED => {
                let mut reader = Reader(frame.payload);
                let said = shared::Authenticated::read(&mut reader)?;
                reader.end()?;
                let authenticated = Authenticated {
                    method: said.method.to_vec(),
                    identity: said.identity.to_vec(),
                };
                self.connections.set_peer(number, Peer::Query);
                (self.logins).authenticated_by_server(
                    login,
                    serial,
                    said.by_gss.then(|| said.principal.to_vec()),
                    said.had_to_prove.then_some(authenticated),
                );
                self.logins_want();
                Ok(())
            }
            Peer::Authenticator(login, serial) if frame.kind == MSG_AWAITS_CLIENT => {
                Ok(self.is_awaited((login, serial), Reader(frame.payload))?)
            }
            Peer::Native if frame.kind == MSG_AWAITS_CLIENT => {
                let login = self.natives.login(number).ok_or(Offence::OutOfOrder)?;
                Ok(self.is_awaited(login, Reader(frame.payload))?)
            }
            Peer::Encrypting(login, serial) if frame.kind == MSG_STARTUP => {
                let encrypted = self.logins.encrypted(login, serial, frame.payload);
                match encrypted {
                    Some(native) => {
                        self.natives.insert(number, native);
                        self.look_at_others();
                        self.connections.set_peer(number, Peer::Native);
                    }
                    None => {
                        self.connections.set_peer(number, Peer::Query);
                        self.connections.close(number);
                    }
                }
                self.logins_want();
                Ok(())
            }
            Peer::Native if frame.kind == MSG_NATIVE_IN => {
                Ok(self.native_is_in(number, Reader(frame.payload))?)
            }
            // Answers to questions that are not awaited would pile up.
            Peer::Monitor
                if frame.kind == MSG_MONITOR_QUESTION
                    && !self.readers.reads(number)
                    && !self.connections.has_unsent(number) =>
            {
                self.monitor_asks(number, Reader(frame.payload))
            }
            Peer::Query
            | Peer::Monitor
            | Peer::LogWriter
            | Peer::Holder
            | Peer::Pauser
            | Peer::Native
            | Peer::Authenticator(..)
            | Peer::Encrypting(..) => Err(Offence::OutOfOrder),
        }
    }

    fn too_long(&mut self, number: u32, kind: u32, session: SessionId) -> Result<(), Offence> {
        match self.connections.peer(number) {
            Some(Peer::Backend(slot)) => self.scheduler.too_long(slot, kind, session),
            _ => Err(Malformed.into()),
        }
    }

    fn put_long(
        &mut self,
        number: u32,
        session: SessionId,
        payload: Vec<u8>,
    ) -> Result<(), Offence> {
        match self.connections.peer(number) {
            Some(Peer::Backend(slot)) => self.scheduler.put_long(slot, session, payload),
            _ => Err(Offence::OutOfOrder),
        }
    }

    fn hello(&mut self, number: u32, frame: Frame<'_>) -> Result<(), Offence> {
        let mut reader = Reader(frame.payload);
        let version = reader.u32()?;
        if version != LAYOUT_VERSION {
            let why = format!("layout version {version:#x} is not {LAYOUT_VERSION:#x}");
            self.connections.refuse(number, &why);
            return Ok(());
        }
        if frame.kind == MSG_HELLO_BACKEND {
            return Ok(self.hello_backend(number, reader)?);
        }
        if frame.kind == MSG_HELLO_AGAIN {
            return Ok(self.hello_again(number, frame.session, reader)?);
        }
        if frame.kind == MSG_HELLO_TICKET {
            return Ok(self.hello_ticket(number, reader)?);
        }
        if reader.u64()? != self.control.secret {
            self.connections.refuse(number, "the secret is wrong");
            return Ok(());
        }
        let what = reader.u32()?;
        match frame.kind {
            MSG_HELLO_LAUNCHER => {
                reader.end()?;
                info!("a new launcher (process ID {what}) has connected");
                self.connections.set_peer(number, Peer::Launcher);
                self.launcher_connected(number);
                Ok(())
            }
            MSG_HELLO_LOG => {
                reader.end()?;
                self.connections.set_peer(number, Peer::LogWriter);
                if let Some(socket) = self.connections.socket(number) {
                    lines::writer_is(number, socket);
                }
                Ok(())
            }
            MSG_HELLO_MONITOR => {
                reader.end()?;
                // There is one monitor, and it uses one connection.
                self.connections.close_all(Peer::Monitor);
                self.connections.set_peer(number, Peer::Monitor);
                Ok(())
            }
            MSG_HELLO_QUERY if what == QUERY_PAUSE => {
                self.pause_sessions(number, frame.session, reader)
            }
            // A pause that does not stand yet ends with the connection.
            MSG_HELLO_QUERY if self.connections.peer(number) == Some(Peer::Pauser) => {
                Err(Offence::OutOfOrder)
            }
            MSG_HELLO_QUERY if what == QUERY_LEAVE_DATABASE => {
                Ok(self.hold_database(number, frame.session, reader)?)
            }
            // A hold ends only with the connection of its holder.
            MSG_HELLO_QUERY if self.connections.peer(number) == Some(Peer::Holder) => {
                Err(Offence::OutOfOrder)
            }
            MSG_HELLO_QUERY if what == QUERY_RESUME => Ok(self.resume_sessions(number, reader)?),
            MSG_HELLO_QUERY => {
                reader.end()?;
                self.connections.set_peer(number, Peer::Query);
                match what {
                    _ if !self.scheduler.has_session(frame.session) => {}
                    QUERY_CANCEL => self.scheduler.tell(Event::Cancel(frame.session)),
                    QUERY_TERMINATE => self.scheduler.tell(Event::Terminate(frame.session)),
                    _ => {}
                }
                self.answer_query(number, what);
                Ok(())
            }
            _ => Err(Offence::OutOfOrder),
        }
    }

    /// The monitor may read, and nothing else: strangers speak to it.
    fn monitor_asks(&mut self, number: u32, mut reader: Reader<'_>) -> Result<(), Offence> {
        let what = reader.u32()?;
        reader.end()?;
        match what {
            QUERY_BACKENDS
            | QUERY_POOLS
            | QUERY_DISPATCHERS
            | QUERY_PAUSES
            | QUERY_SESSION_COUNTS
            | QUERY_SESSIONS_AT_WORK
            | QUERY_NAMED_STATISTICS
            | QUERY_DATABASE_TIMES => {
                self.answer_query(number, what);
                Ok(())
            }
            _ => Err(Offence::OutOfOrder),
        }
    }

    fn hello_backend(&mut self, number: u32, mut reader: Reader<'_>) -> Result<(), Malformed> {
        let said = HelloBackend::read(&mut reader)?;
        reader.end()?;
        let Some(socket) = self.connections.socket(number) else {
            return Ok(());
        };
        let hello = Hello {
            slot: said.slot,
            secret: said.attach_token,
            pid: said.pid,
            identity: Identity {
                role_oid: said.role_oid,
                database_oid: said.database_oid,
            },
        };
        let is_process = self.connections.is_process(number, said.pid);
        let verdict = (self.scheduler).hello_backend(&hello, number, socket, is_process);
        self.is_backend(number, said.slot, verdict)
    }

    fn hello_again(
        &mut self,
        number: u32,
        session: SessionId,
        mut reader: Reader<'_>,
    ) -> Result<(), Malformed> {
        let (slot, count) = (reader.u32()?, reader.u32()?);
        let mut has = vec![session];
        for _ in 0..count {
            has.push(reader.u64()?);
        }
        reader.end()?;
        let Some(socket) = self.connections.socket(number) else {
            return Ok(());
        };
        let is_process = |pid| self.connections.is_process(number, pid);
        let verdict = (self.scheduler).hello_again(slot, &has, number, socket, is_process);
        self.is_backend(number, slot, verdict)
    }

    fn is_backend(
        &mut self,
        number: u32,
        slot: u32,
        verdict: Result<(), Refusal>,
    ) -> Result<(), Malformed> {
        match verdict {
            Ok(()) => self.connections.set_peer(number, Peer::Backend(slot)),
            Err(Refusal::Malformed(malformed)) => return Err(malformed),
            Err(Refusal::Told(why)) => self.connections.refuse(number, why),
            Err(Refusal::Unreachable) => self.connections.close(number),
        }
        Ok(())
    }

    fn hello_ticket(&mut self, number: u32, mut reader: Reader<'_>) -> Result<(), Malformed> {
        let (ticket, pid) = (reader.u64()?, reader.u32()?);
        reader.end()?;
        let is_process = self.connections.is_process(number, pid);
        let taken = self.connections.socket(number).and_then(|socket| {
            let fd = socket.as_raw_fd();
            self.logins.hello_ticket(fd, ticket, pid, is_process)
        });
        match taken {
            Some(Taken::Native(native)) => {
                self.natives.insert(number, native);
                self.look_at_others();
                self.connections.set_peer(number, Peer::Native);
            }
            Some(Taken::ToAuthenticate(login, serial)) => {
                let peer = Peer::Authenticator(login, serial);
                self.connections.set_peer(number, peer);
            }
            Some(Taken::ToEncrypt(login, serial)) => {
                let peer = Peer::Encrypting(login, serial);
                self.connections.set_peer(number, peer);
            }
            None => self.connections.refuse(number, "the ticket is not good"),
        }
        self.logins_want();
        Ok(())
    }

    /// Says whether the process that authenticates the client waits for the client.
    fn is_awaited(
        &mut self,
        (login, serial): LoginId,
        mut reader: Reader<'_>,
    ) -> Result<(), Malformed> {
        let is_awaited = reader.u8()? != 0;
        reader.end()?;
        self.logins.is_awaited(login, serial, is_awaited);
        Ok(())
    }

    /// The server has let a native session in. The answer says whether that exceeds a limit.
    fn native_is_in(&mut self, number: u32, mut reader: Reader<'_>) -> Result<(), Malformed> {
        let said = NativeIn::read(&mut reader)?;
        reader.end()?;
        let (role, superuser) = (said.role_oid, said.superuser);
        let address = self.natives.address(number);
        let room = address.map_or(Ok(()), |address| {
            self.has_room_for(&address, role, superuser)
        });
        let room = room
            .and_then(|()| answers::has_room_for_native(&self.scheduler, &self.natives, superuser));
        if room.is_ok() {
            self.natives.is_in(number, role);
            if let Some((login, serial)) = self.natives.take_login(number) {
                self.logins.native_is_in(login, serial);
            }
        }
        let why = room.err();
        let why = why.map(|why| (why.message, why.detail.unwrap_or_default()));
        let (message, detail) = why.unwrap_or_default();
        let answer = NativeAnswer {
            why: &message,
            detail: &detail,
        };
        let answer = answer.write(Writer::new(MSG_NATIVE_ANSWER, 0)).finish();
        self.connections.send_all(number, vec![answer], Then::Wait);
        Ok(())
    }

    /// Takes or confirms a hold on a database (database_lock.rs).
    fn hold_database(
        &mut self,
        number: u32,
        own: SessionId,
        mut reader: Reader<'_>,
    ) -> Result<(), Malformed> {
        let forced = reader.u8()? != 0;
        let database = reader.u32()?;
        reader.end()?;
        self.scheduler.hold(number, database, forced, own);
        self.connections.set_peer(number, Peer::Holder);
        Ok(())
    }

    /// A statement pauses sessions, or asks again (core/pause.rs).
    fn pause_sessions(
        &mut self,
        number: u32,
        own: SessionId,
        mut reader: Reader<'_>,
    ) -> Result<(), Offence> {
        let scope = read_scope(&mut reader)?;
        let by_role = reader.u32()?;
        let (wait_us, limit_us) = (reader.u64()?, reader.u64()?);
        reader.end()?;
        match self.connections.peer(number) {
            Some(Peer::Pauser) => self.scheduler.ask_pause(number),
            Some(Peer::Unknown) => {
                self.connections.set_peer(number, Peer::Pauser);
                let terms = PauseTerms {
                    scope,
                    by_role,
                    own,
                    wait_us: wait_us.min(MOST_PAUSED_US),
                    limit_us: limit_us.min(MOST_PAUSED_US),
                };
                self.scheduler.pause(number, terms);
            }
            _ => return Err(Offence::OutOfOrder),
        }
        Ok(())
    }

    fn resume_sessions(&mut self, number: u32, mut reader: Reader<'_>) -> Result<(), Malformed> {
        let scope = read_scope(&mut reader)?;
        reader.end()?;
        self.connections.set_peer(number, Peer::Query);
        let ended = self.scheduler.resume(scope);
        let rows = vec![
            pause_row(0, ended as u64),
            Writer::new(MSG_DONE, 0).finish(),
        ];
        self.connections.send_all(number, rows, Then::Close);
        Ok(())
    }

    /// Sends what is in the way to the statements that pause; called at the end of each round.
    pub(super) fn tell_pausers(&mut self) {
        for (number, state) in self.scheduler.take_paused() {
            if let Some(console) = Consoles::of_asker(number) {
                self.console_pause_is(console, &state);
                continue;
            }
            let mut frames = match state {
                PauseState::Stands => Vec::new(),
                PauseState::Ended => vec![pause_row(PAUSE_ENDED, 0)],
                PauseState::InTheWay(many, some) => {
                    let all = pause_row(PAUSE_SESSIONS, many as u64);
                    let some = some.into_iter().map(|id| pause_row(PAUSE_SESSION, id));
                    std::iter::once(all).chain(some).collect()
                }
            };
            frames.push(Writer::new(MSG_DONE, 0).finish());
            (self.connections).send_all(number, frames, Then::Wait);
        }
    }

    /// Sends the sessions in held databases to their holders; called at the end of each round.
    /// The rows of one role add up.
    pub(super) fn tell_holders(&mut self) {
        for found in self.scheduler.take_found() {
            let rows = (found.roles.into_iter())
                .map(|(role, count)| Writer::new(MSG_ROW, 0).u32(role).u32(count).finish());
            let done = Writer::new(MSG_DONE, 0).finish();
            let frames = rows.chain([done]).collect();
            (self.connections).send_all(found.number, frames, Then::Wait);
        }
    }
}

// ---- Views ----------------------------------------------------------------
//
// The dispatcher answers the queries of views.
//
// There may be many sessions, backends and pools. Their rows are made and sent a slice at a
// time; other events are handled in between.

/// Rows examined in one round, for all readers together. To make and send the rows of this many
/// sessions takes a millisecond.
pub(super) const ROWS_A_ROUND: usize = 256;

/// The readers of views and their positions, by control connection.
#[derive(Default)]
pub struct Readers {
    at: HashMap<u32, ViewReader>,
}

struct ViewReader {
    rows: Rows,
    /// After the pool's sessions: the next native session to list.
    next_native: u32,
}

impl Readers {
    fn reads(&self, number: u32) -> bool {
        self.at.contains_key(&number)
    }

    pub fn forget(&mut self, number: u32) {
        self.at.remove(&number);
    }
}

impl Dispatcher {
    /// Sends the next slice, if the reader has received the previous one.
    pub(super) fn read_on(&mut self, number: u32) {
        let Some(at) = self.readers.at.get_mut(&number) else {
            return;
        };
        if self.connections.has_unsent(number) {
            return;
        }
        // The connection's event comes again in the next round.
        let most = self.rows_left;
        if most == 0 {
            return;
        }
        let mut rows = self.scheduler.rows(&mut at.rows, most as u32);
        let view = at.rows.view;
        if rows.is_none() && matches!(view, View::Sessions | View::SessionCounts) {
            let are_counted = view == View::SessionCounts;
            rows = (self.natives).rows(&mut at.next_native, most, are_counted);
        }
        if let Some(rows) = rows {
            self.rows_left = 0;
            self.turns.work += rows.len().max(1) * work::ROW;
            return self.connections.send_all(number, rows, Then::More);
        }
        self.readers.forget(number);
        self.finish_answer(number, Vec::new());
    }

    /// Sends the last rows of an answer, and its end. The monitor's connection stays.
    fn finish_answer(&mut self, number: u32, mut rows: Vec<Vec<u8>>) {
        rows.push(Writer::new(MSG_DONE, 0).finish());
        let then = match self.connections.peer(number) {
            Some(Peer::Monitor) => Then::Wait,
            _ => Then::Close,
        };
        self.connections.send_all(number, rows, then);
    }

    /// Sends the rows of one view, and their end. An unknown view has no rows.
    pub(super) fn answer_query(&mut self, number: u32, what: u32) {
        let view = match what {
            QUERY_SESSIONS => Some(View::Sessions),
            QUERY_BACKENDS => Some(View::Backends),
            QUERY_POOLS => Some(View::Pools),
            QUERY_TENANTS => Some(View::Tenants),
            QUERY_POOL_SETTINGS => Some(View::PoolSettings),
            QUERY_STATISTICS => Some(View::Statistics),
            QUERY_NAMED_STATISTICS => Some(View::NamedStatistics),
            QUERY_DATABASE_TIMES => Some(View::DatabaseTimes),
            QUERY_SESSION_COUNTS => Some(View::SessionCounts),
            QUERY_SESSIONS_AT_WORK => Some(View::SessionsAtWork),
            _ => None,
        };
        if let Some(view) = view {
            let rows = Rows::of(view);
            let next_native = 0;
            let reader = ViewReader { rows, next_native };
            self.readers.at.insert(number, reader);
            return self.connections.send_all(number, Vec::new(), Then::More);
        }
        let rows = match what {
            QUERY_DISPATCHERS => vec![self.dispatcher_row()],
            QUERY_PAUSES => self.scheduler.pause_rows(),
            QUERY_RESET_STATISTICS => {
                self.scheduler.reset_statistics(self.now.timestamp);
                Vec::new()
            }
            _ => Vec::new(),
        };
        self.finish_answer(number, rows);
    }

    fn dispatcher_row(&self) -> Vec<u8> {
        let (user_us, system_us) = process::cpu_time_us();
        let counts = self.scheduler.counts();
        let (accepted, failed, abandoned) = self.logins.counts();
        let (used, limit) = self.scheduler.memory();
        let sessions = self.scheduler.live_sessions();
        Row::new()
            .number(std::process::id())
            .number(self.started_at)
            .number(self.threads)
            .number(sessions + self.logins.len())
            .number(sessions)
            .number(self.scheduler.waiting())
            .number(accepted)
            .number(counts.sessions)
            .number(failed)
            .number(abandoned)
            .number(self.cancels)
            .number(counts.assigned + counts.queued)
            .number(counts.assigned)
            .number(counts.queued)
            .number(counts.backends_started)
            .number(used)
            .number(limit)
            .number(user_us)
            .number(system_us)
            .flag(Some(self.parameters.login_by_server))
            .number(self.turns.longest_us)
            .finish()
    }
}
