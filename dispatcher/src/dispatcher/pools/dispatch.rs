//! Sessions that speak, and how each gets a backend.
//!
//! Ownership goes one way round: an event on a session's socket means that it
//! is the dispatcher's; it then waits in its pool's FIFO, and is handed over
//! either by ASSIGN to one backend, claimed by compare-and-swap, or through
//! the ready queue to whichever backend is first. From there it comes back by
//! its next event, by RELEASE, or by END.

use super::places::Places;
use super::pool::{choose_backend, Growth, QUEUE_DEPTH};
use crate::dispatcher::event_loop::{token, Dispatcher, Source};
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::memory::arena::Full;
use crate::dispatcher::link::wire;
use crate::dispatcher::sessions::{index_of, Place, SessionId};
use crate::dispatcher::sys::{epoll, socket};
use crate::protocol::Report;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{fence, AtomicU32};
use tracing::{debug, info, warn};

/// With forced migration, a session whose last backend is the only free one
/// gets it after all when it has waited so long: the others may be held by
/// transactions that wait for this very session.
const FORCED_PATIENCE_US: u64 = 300_000;

impl Dispatcher {
    pub fn session_event(&mut self, id: SessionId, events: u32) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let slot = &self.control.sessions[index_of(id) as usize];
        if slot.owner.load(SeqCst) != 0 {
            // The end of a session that was added unarmed: its backend sees it.
            return;
        }
        let (place, greet) = (session.place, session.greet);
        if greet
            && matches!(place, Place::Waiting | Place::Queue)
            && self.has_gone(id)
            && self.leave_ungreeted(id)
        {
            return;
        }
        match place {
            Place::Waiting => return,
            Place::Skipping(_) => return self.skip_request(id),
            Place::Idle | Place::Queue | Place::Backend(_) => {}
        }
        if greet {
            // It was greeted and given back before we have read that.
            self.drain_last_backend(id);
            match self.sessions.get(id) {
                Some(session) if !session.greet => {}
                _ => return,
            }
        }
        // Its backend has given it back after its first transaction: it may
        // well have come for no more (pass_baton, idle.c).
        let may_leave = slot.transactions.load(Relaxed) == 1;
        if may_leave || events & (epoll::RDHUP | epoll::HUP | epoll::ERR) != 0 {
            let fd = self.sessions.get(id).map_or(-1, |session| session.fd());
            match socket::peek(fd) {
                Ok(Some(b'X')) | Ok(None) => return self.end_left_session(id),
                Ok(Some(_)) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return self.arm(id);
                }
                Err(_) => return self.end_session(id),
            }
        }
        if self.stopping.is_some() {
            return self.end_by_administrator(id);
        }
        self.make_wait(id);
    }

    /// Into the FIFO of its pool.
    pub fn make_wait(&mut self, id: SessionId) {
        if self.is_forced_out(id) {
            return self.end_by_administrator(id);
        }
        if self.is_cancelled(id) {
            return self.cancel_waiting(id);
        }
        let now_us = self.now_us;
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.place = Place::Waiting;
        session.waits_since_us = now_us;
        let number = session.pool;
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.state.store(STATE_WAITING, Relaxed);
        slot.state_since_us.store(self.now, Relaxed);
        if let Some(pool) = self.pools[number as usize].as_mut() {
            pool.fifo.push_back(id);
        }
        self.mark_dirty(number);
    }

    pub fn mark_dirty(&mut self, number: u32) {
        if let Some(pool) = self.pools[number as usize].as_mut() {
            if !pool.dirty {
                pool.dirty = true;
                self.dirty_pools.push(number);
            }
        }
    }

    /// All pools in which somebody waits are looked at.
    pub fn mark_waiting(&mut self) {
        for number in 0..self.pools.len() as u32 {
            if self.waiting_in(number) > 0 {
                self.mark_dirty(number);
            }
        }
    }

    /// Serves every pool that something has happened to, and gives places that
    /// have become free to whom they are due (place_key, room.rs).
    pub fn look_at_pools(&mut self) {
        if self.dirty_pools.is_empty() {
            return;
        }
        let mut dirty = std::mem::take(&mut self.dirty_pools);
        if dirty.len() > 1 {
            dirty.sort_by_cached_key(|number| self.place_key(*number));
        }
        self.room.meant_for.clear();
        for number in &dirty {
            if let Some(pool) = self.pools[*number as usize].as_mut() {
                pool.dirty = false;
                self.hand_out(*number);
                self.grow(*number);
            }
        }
        if self.dirty_pools.is_empty() {
            // Keeps its room for the next round.
            dirty.clear();
            self.dirty_pools = dirty;
        }
    }

    /// The state words of a pool's backends that may be given something.
    fn find_backend(&self, number: u32, last: Option<u32>, force: bool) -> Option<(u32, u32)> {
        let pool = self.pools[number as usize].as_ref()?;
        let states = pool.backends.iter().filter_map(|slot| {
            let backend = self.backends[*slot as usize].as_ref()?;
            if !backend.may_serve() {
                return None;
            }
            let state: &AtomicU32 = &self.control.backends[*slot as usize].state;
            Some((*slot, state.load(SeqCst)))
        });
        choose_backend(states, last, force)
    }

    fn last_backend(&self, id: SessionId) -> Option<u32> {
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.last_backend.load(Relaxed).checked_sub(1)
    }

    /// Sessions in a pool's ready queue. It may count one that has just been
    /// taken, or whose taker died of it (timers.rs puts that right).
    pub fn queued(&self, number: u32) -> usize {
        let queued = self.control.pools[number as usize].queued.load(SeqCst);
        usize::try_from(queued).unwrap_or(0)
    }

    /// Hands out what waits in a pool's FIFO, as far as it goes. Who is in the
    /// ready queue came before: as long as it holds somebody, the next goes
    /// there too, even if a backend shows itself idle, as each does for a
    /// moment that has just given a session back.
    fn hand_out(&mut self, number: u32) {
        let forced = self.parameters.force_migration;
        let mut position = 0;
        let mut sent = 0;
        while let Some(id) = self.waiting_at(number, position) {
            let patient = self
                .sessions
                .get(id)
                .is_some_and(|session| self.now_us < session.waits_since_us + FORCED_PATIENCE_US);
            let would_overtake = !forced && self.queued(number) > 0;
            let found = if would_overtake {
                None
            } else {
                self.find_backend(number, self.last_backend(id), forced && patient)
            };
            if let Some((slot, seen)) = found {
                let state = &self.control.backends[slot as usize].state;
                if state
                    .compare_exchange(seen, BACKEND_ASSIGNED, SeqCst, SeqCst)
                    .is_ok()
                {
                    if let Some(pool) = self.pools[number as usize].as_mut() {
                        pool.fifo.remove(position);
                    }
                    self.assign(id, slot);
                }
                // Else its state has changed meanwhile: look again.
                continue;
            }
            if forced {
                position += 1;
                continue;
            }
            if !self.send_to_queue(number, id) {
                break;
            }
            sent += 1;
        }
        if sent > 0 {
            self.poke_idle(number, sent);
        }
    }

    /// The session at a place of the FIFO; names that are past are dropped.
    fn waiting_at(&mut self, number: u32, position: usize) -> Option<SessionId> {
        let pool = self.pools[number as usize].as_mut()?;
        loop {
            let id = *pool.fifo.get(position)?;
            match self.sessions.get(id) {
                Some(session) if session.place == Place::Waiting && session.pool == number => {
                    return Some(id);
                }
                _ => {
                    pool.fifo.remove(position);
                }
            }
        }
    }

    /// ASSIGN to a backend that has been claimed.
    fn assign(&mut self, id: SessionId, slot: u32) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.place = Place::Backend(slot);
        let fd = session.fd();
        self.statistics.assigned += 1;
        let Some(connection) = self.backends[slot as usize]
            .as_ref()
            .and_then(|b| b.connection)
        else {
            return;
        };
        let Some(found) = self.connections.get(connection) else {
            return;
        };
        let frame = wire::bare(MSG_ASSIGN, id);
        if let Err(error) = socket::send_descriptors(found.fd(), &frame, &[fd]) {
            // It takes no more messages: it is dead or as good as that. What
            // it holds is sorted out when it is buried.
            debug!("could not assign a session to backend {slot}: {error}");
            self.connection_dead(connection);
        }
    }

    /// Sends the FIFO's head into the ready queue; false if it has to stay.
    fn send_to_queue(&mut self, number: u32, id: SessionId) -> bool {
        let Some(pool) = self.pools[number as usize].as_mut() else {
            return false;
        };
        let served = |slot: &u32| {
            self.backends[*slot as usize]
                .as_ref()
                .is_some_and(|b| b.may_serve())
        };
        if pool.queue_full || !pool.backends.iter().any(served) {
            return false;
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let queued = &self.control.pools[number as usize].queued;
        queued.fetch_add(1, SeqCst);
        // From the send on a backend may own it.
        session.place = Place::Queue;
        let frame = wire::bare(MSG_ASSIGN, id);
        let write = pool.queue_write.as_raw_fd();
        if socket::send_descriptors(write, &frame, &[session.fd()]).is_err() {
            session.place = Place::Waiting;
            queued.fetch_sub(1, SeqCst);
            pool.queue_full = true;
            let data = token(Source::Queue, number);
            let _ = self.epoll.modify(write, epoll::OUT | epoll::ONESHOT, data);
            return false;
        }
        pool.fifo.pop_front();
        if pool.sent.len() == QUEUE_DEPTH {
            pool.sent.pop_front();
        }
        pool.sent.push_back(id);
        self.statistics.queued += 1;
        true
    }

    /// A backend may have become idle after it saw the queue empty and before
    /// it could see what was sent: wake as many as there are messages, those
    /// of before too, whose backends may have been poked and not woken yet.
    /// One that has been poked is not poked again before it has read that.
    fn poke_idle(&mut self, number: u32, sent: usize) {
        fence(SeqCst);
        let Some(pool) = self.pools[number as usize].as_ref() else {
            return;
        };
        let mut left = self.queued(number).max(sent);
        for slot in &pool.backends {
            let memory = &self.control.backends[*slot as usize];
            let state = memory.state.load(SeqCst);
            let may_serve = self.backends[*slot as usize]
                .as_ref()
                .is_some_and(|backend| backend.may_serve());
            if left == 0 || !may_serve || (state != BACKEND_IDLE && state != BACKEND_LINGER) {
                continue;
            }
            left -= 1;
            if memory.poked.swap(1, SeqCst) == 0
                && !self.send_to_backend(*slot, &wire::bare(MSG_POKE, 0))
            {
                memory.poked.store(0, SeqCst);
            }
        }
    }

    /// The ready queue has room again.
    pub fn queue_event(&mut self, number: u32) {
        if let Some(pool) = self.pools.get_mut(number as usize).and_then(Option::as_mut) {
            pool.queue_full = false;
        }
        self.mark_dirty(number);
    }

    /// Takes back what is in the ready queue, to the FIFO's front, in order.
    pub fn drain_queue(&mut self, number: u32) {
        let mut back = Vec::new();
        let mut packet = [0; FRAME_HEADER_SIZE as usize];
        let Some(pool) = self.pools[number as usize].as_mut() else {
            return;
        };
        let queued = &self.control.pools[number as usize].queued;
        while let Ok((length, descriptor)) =
            socket::receive_descriptor(pool.queue_read.as_raw_fd(), &mut packet)
        {
            if length == 0 {
                break;
            }
            drop(descriptor);
            queued.fetch_sub(1, SeqCst);
            if let Ok(frame) = wire::Frame::parse(&packet[..length]) {
                back.push(frame.session);
            }
        }
        for id in back.into_iter().rev() {
            if let Some(session) = self.sessions.get_mut(id) {
                session.place = Place::Waiting;
                pool.fifo.push_front(id);
            }
        }
        pool.sent.clear();
        self.mark_dirty(number);
    }

    /// Sessions of a pool in its FIFO and its ready queue.
    pub fn waiting_in(&self, number: u32) -> usize {
        let Some(pool) = self.pools[number as usize].as_ref() else {
            return 0;
        };
        pool.fifo.len() + self.queued(number)
    }

    /// How many backends there are and may be; `going` of them have almost
    /// gone.
    pub fn places(&self, going: usize) -> Places {
        Places {
            total: self.backend_count - going,
            dedicated: self.dedicated_count,
            max_backends: self.parameters.max_backends as usize,
            max_dedicated: usize::try_from(self.parameters.max_dedicated).ok(),
            // Orphans have connections of the server, too; but they must not
            // keep a new dispatcher from serving anybody.
            ceiling: self
                .parameters
                .backend_ceiling(self.control.backends.len(), self.orphans.len()),
        }
    }

    /// What a pool could start now; None if it shall not try.
    pub fn growth(&self, number: u32) -> Option<Growth> {
        let pool = self.pools[number as usize].as_ref()?;
        if self.stopping.is_some() || !pool.retry.allowed(self.now_us) || self.is_held(number) {
            return None;
        }
        let starting = pool
            .backends
            .iter()
            .filter(|slot| {
                // Attached or not; and one that is free is about to take from
                // the ready queue what still counts as waiting. Not under
                // forced migration: there is no queue then, and who waits
                // while one is free waits for another than that one.
                self.backends[**slot as usize].as_ref().is_some_and(|b| {
                    let state = self.control.backends[**slot as usize].state.load(SeqCst);
                    let about_to_serve = match state {
                        BACKEND_IDLE | BACKEND_LINGER => !self.parameters.force_migration,
                        state => state == BACKEND_STARTING,
                    };
                    b.is_starting() || (b.may_serve() && about_to_serve)
                })
            })
            .count();
        Some(Growth {
            waiting: self.waiting_in(number),
            starting,
            backends: pool.backends.len(),
            sessions: pool.sessions as usize,
            min_backends: self.parameters.min_backends as usize,
            places: self.places(0),
            force_migration: self.parameters.force_migration,
        })
    }

    /// Starts backends for those that wait, as far as the limits allow.
    pub fn grow(&mut self, number: u32) {
        let (Some(growth), Some(pool)) =
            (self.growth(number), self.pools[number as usize].as_ref())
        else {
            return;
        };
        // After a failure one at a time, until one succeeds.
        let most = if pool.retry.is_waiting() {
            usize::from(growth.starting == 0)
        } else {
            usize::MAX
        };
        let count = growth.starts().min(most);
        for _ in 0..count {
            self.open_backend(number);
        }
        if growth.wants_room() {
            self.room.want(growth.backends == 0);
        }
    }

    // ---- a session's end, and its way back -------------------------------

    /// Its socket into the epoll, to wait for the client.
    pub fn arm(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.place = Place::Idle;
        let fd = session.fd();
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.owner.store(0, SeqCst);
        if slot.state.swap(STATE_IDLE, SeqCst) != STATE_IDLE {
            slot.state_since_us.store(self.now, Relaxed);
        }
        if let Err(error) = self.client_number.arm(&self.epoll, fd, id) {
            warn!("could not wait for a client: {error}");
            self.end_session(id);
        }
    }

    /// RELEASE or GREETED: what was staged becomes the session's context.
    /// False if it did not fit; the session has then ended.
    pub fn apply_staged(
        &mut self,
        id: SessionId,
        staged: &mut crate::dispatcher::link::memory::context::Staged,
        greeted: bool,
    ) -> bool {
        if self.sessions.get(id).is_none() || staged.session != id {
            let of_other = staged.session != 0 && staged.session != id;
            self.contexts.discard(staged);
            if of_other {
                warn!("changes of another session than the one given back were dropped");
            }
            if !greeted {
                return self.sessions.get(id).is_some();
            }
        }
        if self.sessions.get(id).is_none() {
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

    /// Ends a session with a last word to its client, and a line in the log.
    pub fn end_with(&mut self, id: SessionId, report: &Report) {
        info!("session ended, {}: {report}", self.name_in_log(id));
        self.tell_and_end(id, report);
    }

    pub fn tell_and_end(&mut self, id: SessionId, report: &Report) {
        if let Some(session) = self.sessions.get(id) {
            let _ = socket::send(session.fd(), &report.to_bytes());
            socket::discard_input(session.fd());
        }
        self.end_session(id);
    }

    /// Forgets a session and ends its connection, whoever else holds it.
    pub fn end_session(&mut self, id: SessionId) {
        let Some((client, number)) = self.sessions.remove(id) else {
            return;
        };
        let fd = client.as_raw_fd();
        let _ = self.client_number.remove(&self.epoll, fd);
        self.client_number.let_go(fd);
        socket::shutdown(fd);
        drop(client);
        self.forget_session(id, number);
    }

    /// Its client has gone, and no backend holds its socket any more, or one
    /// is just about to let go of it: to close our own descriptor is enough,
    /// the epoll's item goes with the file.
    pub fn end_left_session(&mut self, id: SessionId) {
        let Some((client, number)) = self.sessions.remove(id) else {
            return;
        };
        let fd = client.as_raw_fd();
        // Its Terminate was only peeked at; closing over it would be a reset.
        let _ = socket::receive(fd, &mut [0; 64]);
        self.client_number.let_go(fd);
        drop(client);
        self.forget_session(id, number);
    }

    /// Who a session is, for a line in the log.
    pub fn name_in_log(&self, id: SessionId) -> String {
        let number = self.sessions.get(id).map(|session| session.pool);
        number.map_or_else(String::new, |number| {
            self.identity_in_log(index_of(id), number)
        })
    }

    fn identity_in_log(&self, index: u32, number: u32) -> String {
        let (_, address) = self.contexts.arena.record_identity(index);
        let key = self.pools[number as usize].as_ref().map(|pool| &pool.key);
        let (user, database) = key.map_or(("".into(), "".into()), |key| {
            (
                String::from_utf8_lossy(&key.user),
                String::from_utf8_lossy(&key.database),
            )
        });
        format!("user={user} database={database} {address}")
    }

    fn forget_session(&mut self, id: SessionId, number: u32) {
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
                self.identity_in_log(index, number),
            );
        }
        self.contexts.end(index);
        self.control
            .clear_session(&self.control.sessions[index as usize]);
        self.skippers.remove(&id);
        self.greetings.forget_session(id);
        self.told_no_descriptors = false;
        if let Some(pool) = self.pools[number as usize].as_mut() {
            pool.sessions -= 1;
        }
    }
}
