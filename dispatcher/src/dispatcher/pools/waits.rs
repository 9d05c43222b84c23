//! Sessions that have waited too long for a backend, or whose client has.
//!
//! A session that was greeted keeps its connection: its request is read and
//! passed over, an error stands in for the answer, and it is ready for the
//! next. One that was not greeted yet ends with the error. A request that is
//! cancelled while it waits (cancel.rs) is passed over in the same way.

use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::sessions::{index_of, Place, SessionId, Skipped};
use crate::dispatcher::sys::socket;
use crate::protocol::frontend::{RequestEnd, RequestSkipper, SkipError};
use crate::protocol::messages;
use crate::protocol::{Report, Severity};
use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use tracing::info;

/// Bytes passed over for one session before others get their turn.
const BYTES_A_ROUND: usize = 1 << 20;

impl Dispatcher {
    fn wait_report(&self, number: u32, severity: Severity) -> Report {
        let pool = self.pools[number as usize].as_ref();
        let has_backend = pool.is_some_and(|pool| {
            pool.all_backends().any(|slot| {
                let backend = self.backends[slot as usize].as_ref();
                backend.is_some_and(|backend| backend.may_serve())
            })
        });
        let seconds = self.parameters.session_wait_timeout_ms as f64 / 1000.0;
        let failure = pool.and_then(|pool| pool.failure.as_ref());
        let report = Report::new(severity, b"53300", "timed out waiting for a backend");
        let report = report.with_hint(if has_backend || failure.is_none() {
            "All backends of the pool are busy. Raise pg_baton.max_backends or pg_baton.session_wait_timeout."
        } else {
            "What counts for logins may have changed since this session logged in."
        });
        match failure {
            Some(failure) => report.with_detail(format!(
                "No backend could be started: {failure}. The session waited for {seconds} s."
            )),
            None => report.with_detail(format!("The session waited for {seconds} s.")),
        }
    }

    /// Has the client hung up, and said nothing but that?
    pub fn has_gone(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        match socket::peek(session.fd()) {
            Ok(said) => matches!(said, Some(b'X') | None),
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// A client has gone that was still to be greeted: it counts for no limit
    /// any more, and nobody greets it before those who wait behind it. One that
    /// had been greeted is served all the same, as in stock: what it has asked
    /// for is to be done. False if a backend has taken it meanwhile.
    pub fn leave_ungreeted(&mut self, id: SessionId) -> bool {
        let Some(number) = self.sessions.get(id).map(|session| session.pool) else {
            return true;
        };
        if self.sessions.get(id).map(|session| session.place) == Some(Place::Queue) {
            self.drain_queue(number);
        }
        let waits = self.sessions.get(id).map(|session| session.place) == Some(Place::Waiting);
        if waits {
            if let Some(pool) = self.pools[number as usize].as_mut() {
                pool.fifo.retain(|other| *other != id);
            }
            self.end_left_session(id);
        }
        waits
    }

    /// A session that is still to be greeted waits again: that its client goes
    /// is seen anew.
    pub fn make_wait_ungreeted(&mut self, id: SessionId) {
        let fd = self.sessions.get(id).map_or(-1, |session| session.fd());
        if self
            .client_number
            .add_unarmed(&self.epoll, fd, true, id)
            .is_err()
        {
            return self.end_session(id);
        }
        self.make_wait(id);
    }

    /// Ends the waits that have reached their limit, longest first.
    pub fn expire_waits(&mut self) {
        let limit_us = self.parameters.session_wait_timeout_ms * 1000;
        if limit_us == 0 {
            return;
        }
        for number in 0..self.pools.len() as u32 {
            if self
                .oldest_wait_us(number)
                .is_none_or(|waited| waited < limit_us)
            {
                continue;
            }
            // The longest waits may be in the ready queue.
            self.drain_queue(number);
            while let Some(id) = self.first_expired(number, limit_us) {
                self.wait_expired(number, id);
            }
        }
    }

    /// How long the first of a pool's waiting sessions has waited.
    pub fn oldest_wait_us(&self, number: u32) -> Option<u64> {
        let pool = self.pools[number as usize].as_ref()?;
        let queued = self.queued(number).min(pool.sent.len());
        let in_queue = pool.sent.iter().skip(pool.sent.len() - queued);
        in_queue
            .chain(pool.fifo.iter())
            .filter_map(|id| self.sessions.get(*id))
            .find(|session| matches!(session.place, Place::Waiting | Place::Queue))
            .map(|session| self.now_us.saturating_sub(session.waits_since_us))
    }

    fn first_expired(&mut self, number: u32, limit_us: u64) -> Option<SessionId> {
        let now_us = self.now_us;
        let pool = self.pools[number as usize].as_mut()?;
        loop {
            let id = *pool.fifo.front()?;
            match self.sessions.get(id) {
                Some(session) if session.place == Place::Waiting => {
                    if now_us.saturating_sub(session.waits_since_us) < limit_us {
                        return None;
                    }
                    pool.fifo.pop_front();
                    return Some(id);
                }
                _ => pool.fifo.pop_front(),
            };
        }
    }

    fn wait_expired(&mut self, number: u32, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.greet {
            let report = self.wait_report(number, Severity::Fatal);
            return self.end_with(id, &report);
        }
        self.begin_skipping(id, Skipped::WaitedTooLong);
        self.skip_request(id);
    }

    /// Whoever calls it reads on, or waits for the socket's next event.
    pub fn begin_skipping(&mut self, id: SessionId, why: Skipped) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.place = Place::Skipping(why);
            self.skippers.insert(id, RequestSkipper::new());
        }
    }

    /// Reads on in a request that is passed over.
    pub fn skip_request(&mut self, id: SessionId) {
        let mut left = BYTES_A_ROUND;
        let mut buffer = std::mem::take(&mut self.buffer);
        while left > 0 {
            let (Some(session), Some(skipper)) =
                (self.sessions.get(id), self.skippers.get_mut(&id))
            else {
                break;
            };
            let room = skipper.wanted().min(buffer.len());
            match socket::receive(session.fd(), &mut buffer[..room]) {
                Ok(0) => {
                    self.end_session(id);
                    break;
                }
                Ok(length) => {
                    left = left.saturating_sub(length);
                    match skipper.feed(&buffer[..length]) {
                        Ok((_, None)) => {
                            if skipper.error_is_due() && !self.tell_waited(id, false) {
                                break;
                            }
                        }
                        Ok((_, Some(RequestEnd::Terminate))) | Err(SkipError::BadLength) => {
                            self.end_session(id);
                            break;
                        }
                        Ok((_, Some(_))) => {
                            self.answer_skipped(id);
                            break;
                        }
                        Err(SkipError::Unknown(report)) => {
                            self.end_with(id, &report);
                            break;
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if skipper.in_request() {
                        self.await_rest(id);
                    } else {
                        self.nothing_asked(id);
                    }
                    break;
                }
                Err(_) => {
                    self.end_session(id);
                    break;
                }
            }
        }
        if left == 0 && self.skippers.contains_key(&id) {
            self.await_rest(id);
        }
        self.buffer = buffer;
    }

    /// Its socket's next event is skip_request's.
    pub fn await_rest(&mut self, id: SessionId) {
        let fd = self.sessions.get(id).map_or(-1, |session| session.fd());
        if self.client_number.arm(&self.epoll, fd, id).is_err() {
            self.end_session(id);
        }
    }

    /// The error, if it has not been sent yet, and at the request's end that
    /// the next may come. False if the session has ended.
    fn tell_waited(&mut self, id: SessionId, at_end: bool) -> bool {
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        let told = self.skippers.get(&id).is_some_and(RequestSkipper::told);
        let mut out = Vec::new();
        if !(at_end && told) {
            let report = match session.place {
                Place::Skipping(Skipped::Cancelled) => cancel_report(),
                _ => self.wait_report(session.pool, Severity::Error),
            };
            info!("statement refused, {}: {report}", self.name_in_log(id));
            report.encode(&mut out);
        }
        if at_end {
            messages::ready_for_query(&mut out, b'I');
        }
        let sent = socket::send(session.fd(), &out).ok() == Some(out.len());
        if !sent {
            // It does not read: nothing more can be told it.
            self.end_session(id);
        }
        sent
    }

    fn answer_skipped(&mut self, id: SessionId) {
        if self.tell_waited(id, true) {
            self.nothing_asked(id);
        }
    }

    /// All that it has said was passed over, and nothing of that is left to be
    /// answered: what it says next is a request that begins to wait.
    fn nothing_asked(&mut self, id: SessionId) {
        self.skippers.remove(&id);
        let slot = &self.control.sessions[index_of(id) as usize];
        slot.flags.fetch_and(!SESSION_CANCEL, SeqCst);
        slot.state_since_us.store(self.now, Relaxed);
        self.arm(id);
    }
}

/// As ProcessInterrupts (tcop/postgres.c) says it.
fn cancel_report() -> Report {
    let text = "canceling statement due to user request";
    Report::new(Severity::Error, b"57014", text)
}
