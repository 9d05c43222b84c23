//! Listeners that rest.
//!
//! Without a free descriptor, in this process (EMFILE) or in the whole system
//! (ENFILE), nobody can be accepted, and the epoll would say again and again that
//! somebody waits: the loop would spin. Such a listener is left out for a moment,
//! then tried again; who waits there goes on waiting in the kernel's list.

use super::event_loop::{token, Dispatcher, Source};
use super::sys::epoll;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use tracing::warn;

const REST_US: u64 = 100_000;

/// One that rests.
#[derive(Clone, Copy, Debug)]
pub struct Resting {
    source: Source,
    index: u32,
    until_us: u64,
}

impl Dispatcher {
    pub fn let_rest(&mut self, source: Source, index: u32, why: &io::Error) {
        if !self.told_no_descriptors {
            self.told_no_descriptors = true;
            warn!(
                "could not accept new connections: {why}; it is tried again every {} ms",
                REST_US / 1000
            );
        }
        self.listen_for(source, index, 0);
        self.resting.push(Resting {
            source,
            index,
            until_us: self.now_us + REST_US,
        });
    }

    /// In each tick.
    pub fn wake_listeners(&mut self) {
        for _ in 0..self.resting.len() {
            let one = self.resting.remove(0);
            if self.now_us < one.until_us {
                self.resting.push(one);
            } else {
                self.listen_for(one.source, one.index, epoll::IN);
            }
        }
    }

    fn listen_for(&mut self, source: Source, index: u32, events: u32) {
        let listener: Option<RawFd> = match source {
            Source::Listener => {
                (self.listeners.get(index as usize)).map(|it| it.socket.as_raw_fd())
            }
            _ => Some(self.control_listener.as_raw_fd()),
        };
        // None: it has been closed since.
        if let Some(listener) = listener {
            let _ = self.epoll.modify(listener, events, token(source, index));
        }
    }
}
