//! What the scheduler has decided, done.
//!
//! Nothing is decided here. Each action is a few system calls and words in
//! shared memory; what can go wrong with one goes back as an event.

use crate::core::{index_of, Action, Ending, Event, Says, SessionId, Skipped, Why, Word};
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::memory::arena::Full;
use crate::dispatcher::link::memory::context::Staged;
use crate::dispatcher::link::{handshake, wire};
use crate::dispatcher::pools::queues::is_passing;
use crate::dispatcher::sys::{process, socket};
use crate::protocol::Report;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use tracing::{debug, info, warn};

impl Dispatcher {
    /// Tells the scheduler what has happened, and does what it wants.
    pub fn tell(&mut self, event: Event) {
        self.core.handle(event, &self.control);
        self.carry_out();
    }

    pub fn carry_out(&mut self) {
        while let Some(action) = self.core.next_action() {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Claim { slot, seen, id } => self.claim(slot, seen, id),
            Action::Enqueue { pool, id } => self.enqueue(pool, id),
            Action::Poke(slot) => self.poke(slot),
            Action::TakeBack(pool) => self.take_back(pool),
            Action::CloseQueue(pool) => self.close_queue(pool),
            Action::ResetCounter(pool) => {
                let queued = self.control.pools[pool as usize].queued.swap(0, SeqCst);
                if queued != 0 {
                    debug!("the counter of pool {pool}'s ready queue is set right: {queued}");
                }
            }

            Action::ShowWaiting(id) => {
                let slot = &self.control.sessions[index_of(id) as usize];
                slot.state.store(STATE_WAITING, Relaxed);
                slot.state_since_us.store(self.now, Relaxed);
            }
            Action::Arm(id) => self.arm(id),
            Action::ArmForEnd(id) => {
                let fd = self.clients.fd(id);
                let armed = (self.client_number).add_unarmed(self.session_epoll(id), fd, true, id);
                if armed.is_err() {
                    self.cut(id);
                }
            }
            Action::Look { id, look } => {
                let says = self.look(id);
                let event = Event::Said { id, look, says };
                self.core.handle(event, &self.control);
            }
            Action::Skip { id, why, later } => self.skip(id, why, later),
            Action::SkipOn(id) => self.skip_request(id),
            Action::End { id, pool, why } => self.ended(id, pool, &why),

            Action::CancelOnBackend(id) => self.hurry_backend(id, true),
            Action::TerminateOnBackend(id) => self.hurry_backend(id, false),
            Action::MarkCancel(id) => self.mark_cancel(id),
            Action::ClearCancel(id) => {
                let slot = &self.control.sessions[index_of(id) as usize];
                slot.flags.fetch_and(!SESSION_CANCEL, SeqCst);
            }

            Action::Open { slot, pool } => self.open_backend(slot, pool),
            Action::Retire(slot) => {
                let retire = &self.control.backends[slot as usize].retire;
                retire.store(RETIRE_NOW, SeqCst);
                // One that never sleeps, as others are always in its queue,
                // sees the word.
                self.send_to_backend(slot, &wire::bare(MSG_RETIRE, 0));
            }
            Action::Recall { slot, id } => {
                let held = match id {
                    0 => self.control.backends[slot as usize].session.load(SeqCst),
                    id => id,
                };
                if held != 0 {
                    self.send_to_backend(slot, &wire::bare(MSG_RECALL, held));
                }
            }
            Action::Evict { slot, id } => {
                let name = self.name_in_log(id);
                debug!("too many dedicated sessions, one is ended: {name}");
                self.send_to_backend(slot, &wire::bare(MSG_EVICT, id));
            }
            Action::Keep { pool, keeps } => {
                let (word, cause) = match pool {
                    Some(pool) => (
                        &self.control.pools[pool as usize].keeps_sessions,
                        CAUSE_POOL_MODE,
                    ),
                    None => (&self.control.header.keeps_sessions, CAUSE_FEW_SESSIONS),
                };
                word.store(if keeps { cause } else { CAUSE_NONE }, SeqCst);
            }
            Action::FreeSlot(slot) => {
                self.close_opening(slot);
                self.attached[slot as usize] = None;
                self.control.free_backend(slot);
            }
            Action::Offer { ticket, slots } => self.offer(ticket, &slots),
            Action::TakeTicketBack(ticket) => {
                let word = &self.control.header.room_ticket;
                let is_ours = handshake::take_ticket_back(word, ticket);
                let event = Event::TicketBack(is_ours);
                self.core.handle(event, &self.control);
            }
            Action::Measure(slot) => self.measure(slot),
            Action::ClearTicket { slot, ticket } => {
                let retire = &self.control.backends[slot as usize].retire;
                let _ = retire.compare_exchange(ticket, RETIRE_NOT, SeqCst, SeqCst);
            }

            Action::AskLimits { role, database } => self.ask_limits(role, database),
            Action::AskLauncher { pool, serial, from } => self.ask_for_pool(pool, serial, from),
            Action::TellFailure(pool) => self.tell_failure(pool),
            Action::FindPool { old, superuser } => {
                let key = self.core.pool_key(old).map(|key| (**key).clone());
                let new = key.and_then(|mut key| {
                    key.superuser = superuser;
                    self.pool_for(key)
                });
                let event = Event::Replaced { old, new };
                self.core.handle(event, &self.control);
            }
            Action::ForgetGreetings(pool) => {
                if let Some(key) = self.core.pool_key(pool) {
                    self.greetings.forget_pool(key);
                }
            }
            Action::ForgetGreeting(id) => self.greetings.forget_session(id),
            Action::ForgetAllGreetings => self.greetings.forget_all(),
            Action::PoolDropped(pool) => self.drop_pool(pool),
            Action::Then(then) => self.core.handle(Event::Then(then), &self.control),
        }
    }

    // ---- backends ----------------------------------------------------------

    fn claim(&mut self, slot: u32, seen: Word, id: SessionId) {
        let seen = match seen {
            Word::Linger => BACKEND_LINGER,
            _ => BACKEND_IDLE,
        };
        let state = &self.control.backends[slot as usize].state;
        if !handshake::claim(state, seen) {
            let event = Event::ClaimLost(id);
            return self.core.handle(event, &self.control);
        }
        self.statistics.assigned += 1;
        let connection = self.attached[slot as usize];
        let found = connection.and_then(|number| self.connections.get(number));
        if let (Some(number), Some(found)) = (connection, found) {
            let frame = wire::bare(MSG_ASSIGN, id);
            let sent = socket::send_descriptors(found.fd(), &frame, &[self.clients.fd(id)]);
            if let Some(error) = sent.as_ref().err().filter(|error| is_passing(error)) {
                if let Some(pool) = self.core.backend(slot).map(|backend| backend.pool()) {
                    handshake::unclaim(state, seen);
                    // It may have seen that it was claimed, and waits for what it gets.
                    self.send_to_backend(slot, &wire::bare(MSG_POKE, 0));
                    return self.not_sent(pool, id, false, error);
                }
            }
            if let Err(error) = sent {
                // It takes no more messages: it is dead or as good as that. What
                // it holds is sorted out when it is buried.
                debug!("could not assign a session to backend {slot}: {error}");
                self.connection_dead(number);
            }
        }
        self.core.handle(Event::Claimed, &self.control);
    }

    /// The process of a backend, as the kernel named it; 0: none. Not the word in
    /// shared memory, which any process of the server could have written.
    fn process_of(&self, slot: usize) -> u32 {
        let connection = self.attached[slot].and_then(|number| self.connections.get(number));
        connection.map_or(0, |connection| connection.process)
    }

    fn measure(&mut self, slot: u32) {
        let backend = &self.control.backends[slot as usize];
        let event = Event::Measured {
            slot,
            transactions: backend.transactions.load(Relaxed),
            cpu_us: process::cpu_time_of(self.process_of(slot as usize)).unwrap_or(0),
        };
        self.core.handle(event, &self.control);
    }

    /// One that has been poked is not poked again before it has read that.
    fn poke(&mut self, slot: u32) {
        let poked = &self.control.backends[slot as usize].poked;
        if handshake::poke(poked) && !self.send_to_backend(slot, &wire::bare(MSG_POKE, 0)) {
            handshake::not_poked(poked);
        }
    }

    /// Sends a small frame; a backend that takes none is given up.
    pub fn send_to_backend(&self, slot: u32, frame: &[u8]) -> bool {
        let connection =
            self.attached[slot as usize].and_then(|number| self.connections.get(number));
        if let Some(connection) = connection {
            match socket::send(connection.fd(), frame) {
                Ok(_) => return true,
                Err(error) => debug!("could not send to backend {slot}: {error}"),
            }
        }
        false
    }

    fn offer(&mut self, ticket: u32, slots: &[u32]) {
        let backends = self.control.backends;
        let retire = slots.iter().map(|slot| &backends[*slot as usize].retire);
        handshake::offer(retire, &self.control.header.room_ticket, ticket);
        for slot in slots {
            // One that goes to sleep only now is looked at in the next tick.
            let state = self.control.backends[*slot as usize].state.load(SeqCst);
            if state == BACKEND_IDLE || state == BACKEND_LINGER {
                self.send_to_backend(*slot, &wire::bare(MSG_RETIRE, 0));
            }
        }
    }

    // ---- sessions' sockets -------------------------------------------------

    fn look(&self, id: SessionId) -> Says {
        if self.begun.contains_key(&id) {
            // Part of a message is none yet: a cancel means nothing.
            return Says::Nothing;
        }
        match socket::peek(self.clients.fd(id)) {
            Ok(Some(b'X') | None) => Says::Leaves,
            Ok(Some(_)) => Says::Something,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Says::Nothing,
            Err(_) => Says::Broken,
        }
    }

    /// Its socket into the epoll, to wait for the client.
    fn arm(&mut self, id: SessionId) {
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.owner.store(0, SeqCst);
        if slot.state.swap(STATE_IDLE, SeqCst) != STATE_IDLE {
            slot.state_since_us.store(self.now, Relaxed);
        }
        self.begun.remove(&id);
        let fd = self.clients.fd(id);
        if let Err(error) = self.client_number.arm(self.session_epoll(id), fd, id) {
            warn!("could not wait for a client: {error}");
            self.cut(id);
        }
    }

    /// Its socket is of no more use.
    pub fn cut(&mut self, id: SessionId) {
        let event = Event::Ended(id, Ending::Cut);
        self.core.handle(event, &self.control);
    }

    /// Ends a session with a last word to its client, and a line in the log.
    pub fn end_with(&mut self, id: SessionId, report: &Report) {
        info!("session ended, {}: {report}", self.name_in_log(id));
        self.say_last_word(id, report);
        self.tell(Event::Ended(id, Ending::Cut));
    }

    pub fn say_last_word(&self, id: SessionId, report: &Report) {
        let fd = self.clients.fd(id);
        let _ = socket::send(fd, &report.to_bytes());
        socket::discard_input(fd);
    }

    /// The session is no more. Its connection ends, whoever else holds it.
    fn ended(&mut self, id: SessionId, pool: u32, why: &Why) {
        if let Some(report) = self.last_word(pool, why) {
            // The server's end must not wait for thousands of lines.
            if *why != Why::Administrator {
                let name = self.identity_in_log(index_of(id), pool);
                info!("session ended, {name}: {report}");
            }
            self.say_last_word(id, &report);
        }
        let Some(client) = self.clients.remove(id) else {
            return;
        };
        let fd = client.as_raw_fd();
        if *why == Why::Ended(Ending::Left) {
            // No backend holds its socket, or one is just about to let go of
            // it: to close our own descriptor is enough, the epoll's item goes
            // with the file. Its Terminate was only peeked at; closing over it
            // would be a reset.
            let _ = socket::receive(fd, &mut [0; 64]);
            self.client_number.let_go(fd);
        } else {
            let _ = self.client_number.remove(self.session_epoll(id), fd);
            self.client_number.let_go(fd);
            socket::shutdown(fd);
        }
        drop(client);
        self.forget_session(id, pool);
    }

    /// Who a session is, for a line in the log.
    pub fn name_in_log(&self, id: SessionId) -> String {
        let pool = self.core.sessions().get(id).map(|session| session.pool());
        pool.map_or_else(String::new, |pool| self.identity_in_log(index_of(id), pool))
    }

    fn identity_in_log(&self, index: u32, pool: u32) -> String {
        let (_, address) = self.contexts.arena.record_identity(index);
        let (user, database) = match self.core.pool_key(pool) {
            Some(key) => (key.user.as_slice(), key.database.as_slice()),
            None => (&b""[..], &b""[..]),
        };
        let user = String::from_utf8_lossy(user);
        let database = String::from_utf8_lossy(database);
        format!("user={user} database={database} {address}")
    }

    fn forget_session(&mut self, id: SessionId, pool: u32) {
        let index = index_of(id);
        if self.parameters.log_disconnections {
            let (login, _) = self.contexts.arena.record_identity(index);
            let milliseconds = (self.now - login).max(0) / 1000;
            let seconds = milliseconds / 1000;
            info!(
                "disconnection: session time: {}:{:02}:{:02}.{:03} {}",
                seconds / 3600,
                seconds / 60 % 60,
                seconds % 60,
                milliseconds % 1000,
                self.identity_in_log(index, pool),
            );
        }
        self.contexts.end(index);
        self.control.clear_session(index);
        self.skippers.remove(&id);
        self.begun.remove(&id);
        self.greetings.forget_session(id);
        self.told_no_descriptors = false;
    }

    // ---- cancel ------------------------------------------------------------

    /// Whoever has it next is to cancel. Taken meanwhile, and the mark perhaps
    /// too late: it must not hit the next transaction instead.
    fn mark_cancel(&mut self, id: SessionId) {
        let slot = &self.control.sessions[index_of(id) as usize];
        if handshake::mark_cancel(&slot.flags, &slot.owner) {
            self.hurry_backend(id, true);
        }
    }

    /// Tells the backend that has the session; which one may change meanwhile,
    /// but then the session is not running what was to be cancelled.
    /// That one shall end stands in its identity already.
    fn hurry_backend(&self, id: SessionId, cancel: bool) {
        let owner = self.control.sessions[index_of(id) as usize]
            .owner
            .load(SeqCst);
        let Some(holder) = owner.checked_sub(1).map(|holder| holder as usize) else {
            return;
        };
        let Some(backend) = self.control.backends.get(holder) else {
            return;
        };
        let pid = self.process_of(holder);
        let is_there = if cancel {
            handshake::name_cancelled(&backend.session, &backend.cancel, id)
        } else {
            backend.session.load(SeqCst) == id
        };
        if is_there && pid != 0 {
            if let Err(error) = process::hurry(pid) {
                debug!("could not signal backend {pid}: {error}");
            }
        }
    }

    /// Shall this session, which has come back, be ended?
    pub fn shall_end(&self, id: SessionId) -> bool {
        let identity = &self.control.identities[index_of(id) as usize];
        identity.terminate.load(SeqCst) == id
    }

    // ---- contexts ----------------------------------------------------------

    /// RELEASE or GREETED: what was staged becomes the session's context.
    /// False if it did not fit; the session has then ended.
    pub fn apply_staged(&mut self, id: SessionId, staged: &mut Staged, greeted: bool) -> bool {
        let is_live = self.core.sessions().get(id).is_some();
        if !is_live || staged.session != id {
            let of_other = staged.session != 0 && staged.session != id;
            self.contexts.discard(staged);
            if of_other {
                warn!("changes of another session than the one given back were dropped");
            }
            if !greeted {
                return is_live;
            }
        }
        if !is_live {
            return false;
        }
        match self.contexts.apply(index_of(id), staged, greeted) {
            Ok(()) => true,
            Err(Full) => {
                let report = Report::fatal(b"53200", "out of memory")
                    .with_detail(
                        "The session's context does not fit into pg_baton's session memory.",
                    )
                    .with_hint("Raise pg_baton.session_memory.");
                self.end_with(id, &report);
                false
            }
        }
    }

    fn tell_failure(&self, pool: u32) {
        let (_, failure) = self.core.why_it_waits(pool);
        if let (Some(failure), Some(key)) = (failure, self.core.pool_key(pool)) {
            warn!(
                "could not start a backend for user \"{}\", database \"{}\": {failure}",
                String::from_utf8_lossy(&key.user),
                String::from_utf8_lossy(&key.database),
            );
        }
    }

    fn skip(&mut self, id: SessionId, why: Skipped, later: bool) {
        self.begin_skipping(id, why);
        if later {
            self.await_rest(id);
        } else {
            self.skip_request(id);
        }
    }
}
