//! Requests that are passed over: their session has waited too long for a
//! backend, or was cancelled while it waited.
//!
//! The request is read to its end, an error stands in for the answer, and the
//! session is ready for the next.

use crate::core::{index_of, Event, SessionId, Skipped};
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::sys::socket;
use crate::protocol::frontend::{RequestEnd, RequestSkipper, SkipError};
use crate::protocol::messages;
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use tracing::info;

/// Bytes passed over for one session before others get their turn.
const BYTES_A_ROUND: usize = 1 << 20;

/// One that is being passed over.
pub struct Skipping {
    why: Skipped,
    skipper: RequestSkipper,
}

impl Dispatcher {
    /// Whoever calls it reads on, or waits for the socket's next event.
    pub fn begin_skipping(&mut self, id: SessionId, why: Skipped) {
        let skipper = RequestSkipper::new();
        self.skippers.insert(id, Skipping { why, skipper });
    }

    /// Reads on in a request that is passed over.
    pub fn skip_request(&mut self, id: SessionId) {
        let mut left = BYTES_A_ROUND;
        let mut buffer = [0; 16 * 1024];
        while left > 0 {
            let Some(Skipping { skipper, .. }) = self.skippers.get_mut(&id) else {
                break;
            };
            let room = skipper.wanted().min(buffer.len());
            match socket::receive(self.clients.fd(id), &mut buffer[..room]) {
                Ok(0) => {
                    self.cut(id);
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
                            self.cut(id);
                            break;
                        }
                        Ok((_, Some(_))) => {
                            self.answer_skipped(id);
                            break;
                        }
                        Err(SkipError::Unknown(report)) => {
                            info!("session ended, {}: {report}", self.name_in_log(id));
                            self.say_last_word(id, &report);
                            self.cut(id);
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
                    self.cut(id);
                    break;
                }
            }
        }
        if left == 0 && self.skippers.contains_key(&id) {
            self.await_rest(id);
        }
    }

    /// Its socket's next event is skip_request's.
    pub fn await_rest(&mut self, id: SessionId) {
        let fd = self.clients.fd(id);
        if (self.client_number)
            .arm(self.session_epoll(id), fd, id)
            .is_err()
        {
            self.cut(id);
        }
    }

    /// The error, if it has not been sent yet, and at the request's end that
    /// the next may come. False if the session has ended.
    fn tell_waited(&mut self, id: SessionId, at_end: bool) -> bool {
        let pool = self.core.sessions().get(id).map(|session| session.pool());
        let (Some(pool), Some(skipping)) = (pool, self.skippers.get(&id)) else {
            return false;
        };
        let (why, told) = (skipping.why, skipping.skipper.told());
        let mut out = Vec::new();
        if !(at_end && told) {
            let report = self.skip_report(pool, why);
            info!("statement refused, {}: {report}", self.name_in_log(id));
            report.encode(&mut out);
        }
        if at_end {
            messages::ready_for_query(&mut out, b'I');
        }
        let sent = socket::send(self.clients.fd(id), &out).ok() == Some(out.len());
        if !sent {
            // It does not read: nothing more can be told it.
            self.cut(id);
        }
        sent
    }

    fn answer_skipped(&mut self, id: SessionId) {
        if self.tell_waited(id, true) {
            self.nothing_asked(id);
        }
    }

    /// All that it has said was passed over, and nothing of that is left to be
    /// answered.
    fn nothing_asked(&mut self, id: SessionId) {
        self.skippers.remove(&id);
        let flags = &self.control.sessions[index_of(id) as usize].flags;
        flags.fetch_and(!(SESSION_BEGUN | SESSION_LOOKED_AT), SeqCst);
        if socket::unread(self.clients.fd(id)) > 0 {
            // It has been read exactly so far: rest_may_begin, idle.c.
            flags.fetch_or(SESSION_LOOKED_AT, SeqCst);
        }
        self.core.handle(Event::Skipped(id), &self.control);
    }
}
