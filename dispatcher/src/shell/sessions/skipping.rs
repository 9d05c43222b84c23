//! Requests that are passed over: their session has waited too long for a
//! backend, or was cancelled while it waited.
//!
//! The request is read to its end, an error stands in for the answer, and the
//! session is ready for the next.

use super::sockets::Sockets;
use crate::core::{SessionId, Skipped};
use crate::protocol::frontend::{RequestEnd, RequestSkipper, SkipError};
use crate::protocol::{messages, Report};
use crate::shell::sys::memory::overwrite;
use crate::shell::sys::socket;
use std::collections::HashMap;
use std::io;

/// Bytes passed over for one session before others get their turn.
const BYTES_A_ROUND: usize = 1 << 20;

/// One that is being passed over.
struct Skipping {
    why: Skipped,
    skipper: RequestSkipper,
}

/// How far it has come.
#[derive(Debug)]
pub enum Progress {
    /// There is more to come: to be called again at its socket's next event.
    Waits,
    /// All that it has said was passed over, and nothing of that is left to be
    /// answered.
    Over,
    /// Its connection is of no more use.
    Cut,
    /// As well, and this is to be its last word.
    Refused(Report),
    /// It is not being passed over.
    None,
}

/// All of them.
#[derive(Default)]
pub struct Skippers {
    requests: HashMap<SessionId, Skipping>,
}

impl Skippers {
    /// Whoever calls it reads on, or waits for the socket's next event.
    pub fn begin(&mut self, id: SessionId, why: Skipped) {
        let skipper = RequestSkipper::new();
        self.requests.insert(id, Skipping { why, skipper });
    }

    pub fn forget(&mut self, id: SessionId) {
        self.requests.remove(&id);
    }

    /// Reads on in a request that is passed over. `error` makes the error that it
    /// gets for an answer.
    pub fn read_on(
        &mut self,
        id: SessionId,
        sockets: &Sockets,
        error: impl Fn(Skipped) -> Report,
    ) -> Progress {
        let Some(Skipping { why, skipper }) = self.requests.get_mut(&id) else {
            return Progress::None;
        };
        let mut left = BYTES_A_ROUND;
        let mut buffer = [0; 16 * 1024];
        while left > 0 {
            let room = skipper.wanted().min(buffer.len());
            let length = match socket::receive(sockets.fd(id), &mut buffer[..room]) {
                Ok(0) => return Progress::Cut,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return if skipper.in_request() {
                        Progress::Waits
                    } else {
                        self.requests.remove(&id);
                        Progress::Over
                    };
                }
                Err(_) => return Progress::Cut,
            };
            left = left.saturating_sub(length);
            let passed = skipper.feed(&buffer[..length]);
            overwrite(&mut buffer[..length]);
            match passed {
                Ok((_, None)) => {
                    if skipper.error_is_due() && !sockets.send(id, &error(*why).to_bytes()) {
                        // It does not read: nothing more can be told it.
                        return Progress::Cut;
                    }
                }
                Ok((_, Some(RequestEnd::Terminate))) | Err(SkipError::BadLength) => {
                    return Progress::Cut;
                }
                // That the next may come; and the error, if it has not been sent yet.
                Ok((_, Some(_))) => {
                    let mut out = Vec::new();
                    if !skipper.told() {
                        error(*why).encode(&mut out);
                    }
                    messages::ready_for_query(&mut out, b'I');
                    if !sockets.send(id, &out) {
                        return Progress::Cut;
                    }
                    self.requests.remove(&id);
                    return Progress::Over;
                }
                Err(SkipError::Unknown(report)) => return Progress::Refused(report),
            }
        }
        Progress::Waits
    }
}
