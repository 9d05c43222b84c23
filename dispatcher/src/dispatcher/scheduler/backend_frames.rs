//! What a backend says on its control connection.
//!
//! It runs what users wrote, in C too, and is not believed: each message is read
//! to its exact end, is one that a backend may send, and is about a session that
//! this very backend can have (`Core::whose`). What is not costs the backend its
//! connection, and its process its life; the session that was named does not
//! notice. What came too late, as its session has ended meanwhile, is dropped.

use super::Scheduler;
use crate::core::{Ending, Event, SessionId, Tells, Whose};
use crate::dispatcher::link::connections::Offence;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::memory::arena::Content;
use crate::dispatcher::link::memory::context::Staged;
use crate::dispatcher::link::memory::control::Counters;
use crate::dispatcher::link::wire::{self, Frame, Malformed, Reader};
use crate::protocol::messages;
use tracing::debug;

/// Kinds of items that a backend may change; STARTUP is the dispatcher's.
const KINDS: std::ops::RangeInclusive<u32> = KIND_RESET..=KIND_OTHER;

impl Scheduler {
    pub fn backend_frame(&mut self, slot: u32, frame: Frame<'_>) -> Result<(), Offence> {
        let id = frame.session;
        let mut reader = Reader(frame.payload);
        match frame.kind {
            MSG_PUT | MSG_DELETE => self.changed(slot, &frame),
            MSG_RELEASE => {
                reader.end()?;
                self.released(slot, id)
            }
            MSG_GREETED => {
                let lasts = reader.u32()?;
                let length = reader.u32()? as usize;
                let notices = reader.bytes(length)?;
                let reported = reader.0;
                if lasts > GREETING_NAMES
                    || !messages::are_notices(notices)
                    || !wire::are_pairs(reported)
                {
                    return Err(Malformed.into());
                }
                let is_due = self.is_theirs(slot, id, Tells::InPlace)?;
                if !is_due {
                    self.drop_staged(slot);
                    return Ok(());
                }
                let session = self.core.sessions().get(id);
                if !session.is_some_and(|session| session.is_ungreeted()) {
                    return Err(Offence::OutOfOrder);
                }
                let mut staged = self.take_staged(slot);
                self.greeted(slot, id, lasts, &mut staged, notices, reported);
                self.put_staged(slot, staged);
                Ok(())
            }
            MSG_END => {
                let ending = match reader.u32()? {
                    END_CLIENT_CLOSED | END_CLIENT_TERMINATED => Ending::Left,
                    END_ERROR => Ending::Cut,
                    _ => return Err(Malformed.into()),
                };
                reader.end()?;
                let is_due = self.is_theirs(slot, id, Tells::InPlace)?;
                self.drop_staged(slot);
                if is_due {
                    self.tell(Event::Ended(id, ending));
                }
                self.tell(Event::MayBeFree(slot));
                Ok(())
            }
            // Of itself alone; the session may have been given back since.
            MSG_DEDICATED => {
                let cause = reader.u32()?;
                reader.end()?;
                if cause as usize >= CAUSES.len() {
                    return Err(Malformed.into());
                }
                if !self.core.sessions().was_there(id) {
                    return Err(Offence::NotTheirs(id));
                }
                self.tell(Event::Dedicated(slot, cause != CAUSE_NONE));
                Ok(())
            }
            MSG_RETIRING => {
                let why = reader.string()?;
                reader.end()?;
                let was_asked = why.is_empty();
                let why = if was_asked { b"asked to" } else { why };
                debug!("backend {slot} retires: {}", String::from_utf8_lossy(why));
                self.tell(Event::Leaves { slot, was_asked });
                Ok(())
            }
            _ => Err(Offence::OutOfOrder),
        }
    }

    /// False: the session has ended meanwhile.
    fn is_theirs(&self, slot: u32, id: SessionId, tells: Tells) -> Result<bool, Offence> {
        match self.core.whose(slot, id, tells, &self.control) {
            Whose::Theirs => Ok(true),
            Whose::Past => Ok(false),
            Whose::NotTheirs => Err(Offence::NotTheirs(id)),
        }
    }

    /// PUT and DELETE: staged until the session is given back.
    fn changed(&mut self, slot: u32, frame: &Frame<'_>) -> Result<(), Offence> {
        let id = frame.session;
        let mut reader = Reader(frame.payload);
        let kind = reader.u16()?;
        if !KINDS.contains(&u32::from(kind)) {
            return Err(Malformed.into());
        }
        let key_length = reader.u16()?;
        let key = reader.bytes(usize::from(key_length))?;
        let mut put = None;
        if frame.kind == MSG_PUT {
            let counters = match reader.u32()? {
                0 => false,
                1 => true,
                _ => return Err(Malformed.into()),
            };
            let aux = reader.i64()?;
            let mut counted = None;
            if counters {
                counted = Some(Counters {
                    costs: [reader.u64()?, reader.u64()?],
                    plans: [reader.i64()?, reader.i64()?],
                });
            }
            let value = reader.0;
            put = Some((Content { kind, key, value }, counted, aux));
        } else {
            reader.end()?;
        }
        if !self.is_theirs(slot, id, Tells::InPlace)? {
            self.drop_staged(slot);
            return Ok(());
        }
        let mut staged = self.staged_of(slot, id);
        match put {
            Some((content, counted, aux)) => {
                self.contexts.stage_put(&mut staged, content, counted, aux);
            }
            None => self.contexts.stage_delete(&mut staged, kind, key),
        }
        self.put_staged(slot, staged);
        Ok(())
    }

    /// The longest payload of a message that is of use.
    pub fn longest_value(&self) -> usize {
        self.contexts.longest_value()
    }

    /// A backend has said something longer than that of this session.
    pub fn too_long(&mut self, slot: u32, kind: u32, id: SessionId) -> Result<(), Offence> {
        if kind != MSG_PUT {
            return Err(Malformed.into());
        }
        if self.is_theirs(slot, id, Tells::InPlace)? {
            let mut staged = self.staged_of(slot, id);
            self.contexts.stage_too_much(&mut staged);
            self.put_staged(slot, staged);
        } else {
            self.drop_staged(slot);
        }
        Ok(())
    }

    /// What a backend has staged of this session, and of no other.
    fn staged_of(&mut self, slot: u32, id: SessionId) -> Staged {
        let mut staged = self.take_staged(slot);
        if staged.session != id {
            self.contexts.discard(&mut staged);
            staged.session = id;
        }
        staged
    }

    fn released(&mut self, slot: u32, id: SessionId) -> Result<(), Offence> {
        let is_due = id != 0 && self.is_theirs(slot, id, Tells::Back)?;
        self.tell(Event::MayBeFree(slot));
        if !is_due {
            self.drop_staged(slot);
            return Ok(());
        }
        let mut staged = self.take_staged(slot);
        let fits = self.apply_staged(id, &mut staged, false);
        self.put_staged(slot, staged);
        if fits && self.shall_end(id) {
            self.tell(Event::Terminate(id));
        } else if fits {
            self.tell(Event::GivenBack(id));
        }
        Ok(())
    }

    fn take_staged(&mut self, slot: u32) -> Staged {
        self.links.take_staged(slot)
    }

    fn put_staged(&mut self, slot: u32, staged: Staged) {
        if let Err(mut staged) = self.links.put_staged(slot, staged) {
            self.contexts.discard(&mut staged);
        }
    }

    fn drop_staged(&mut self, slot: u32) {
        let mut staged = self.links.take_staged(slot);
        self.contexts.discard(&mut staged);
    }
}
