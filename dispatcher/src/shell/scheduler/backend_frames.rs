//! What a backend says on its control connection.
//!
//! It runs what users wrote, in C too, and is not believed: each message is read
//! to its exact end, is one that a backend may send, and is about a session that
//! this very backend can have (`Core::whose`). What is not costs the backend its
//! connection, and its process its life; the session that was named does not
//! notice. What came too late, as its session has ended meanwhile, is dropped.

use super::news::{Greeted, Then};
use super::Scheduler;
use crate::core::{Ending, Event, Leaving, SessionId, Tells, Whose};
use crate::shell::link::connections::Offence;
use crate::shell::link::layout::shared::*;
use crate::shell::link::memory::arena::Content;
use crate::shell::link::memory::context::{Contexts, Staged};
use crate::shell::link::wire::{BackendSays, Frame, Malformed};
use tracing::debug;

impl Scheduler {
    pub fn backend_frame(&mut self, slot: u32, frame: Frame<'_>) -> Result<(), Offence> {
        let id = frame.session;
        match BackendSays::parse(&frame)?.ok_or(Offence::OutOfOrder)? {
            BackendSays::Put {
                kind,
                key,
                aux,
                counters,
                value,
            } => self.changed(slot, id, |contexts, staged| {
                contexts.stage_put(staged, Content { kind, key, value }, counters, aux);
            }),
            BackendSays::Delete { kind, key } => self.changed(slot, id, |contexts, staged| {
                contexts.stage_delete(staged, kind, key);
            }),
            BackendSays::Release => self.released(slot, id),
            BackendSays::Greeted {
                lasts,
                start_settings,
                notices,
                reported,
            } => {
                let is_due = self.is_theirs(slot, id, Tells::InPlace)?;
                if !is_due {
                    self.drop_staged(slot);
                    return Ok(());
                }
                let session = self.core.sessions().get(id);
                if !session.is_some_and(|session| session.is_ungreeted()) {
                    return Err(Offence::OutOfOrder);
                }
                let greeted = Greeted {
                    lasts,
                    start_settings,
                    notices: notices.to_vec(),
                    reported: reported.to_vec(),
                };
                self.greeted(slot, id, greeted);
                Ok(())
            }
            BackendSays::Ended { is_cut } => {
                let is_due = self.is_theirs(slot, id, Tells::InPlace)?;
                self.drop_staged(slot);
                if is_due {
                    let ending = if is_cut { Ending::Cut } else { Ending::Left };
                    self.tell(Event::Ended(id, ending));
                }
                self.tell(Event::MayBeFree(slot));
                Ok(())
            }
            // Of itself alone; the session may have been given back since.
            BackendSays::Dedicated { has_cause } => {
                if !self.core.sessions().was_there(id) {
                    return Err(Offence::NotTheirs(id));
                }
                self.tell(Event::Dedicated(slot, has_cause));
                Ok(())
            }
            BackendSays::Retiring { cause, why } => {
                let why = String::from_utf8_lossy(why);
                let cause = match cause {
                    RETIRES_ASKED => Leaving::Asked,
                    RETIRES_SETTINGS => Leaving::Outdated,
                    _ => Leaving::Unclean,
                };
                debug!("backend {slot} retires: {cause:?} {why}");
                self.tell(Event::Leaves { slot, cause });
                Ok(())
            }
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
    fn changed(
        &mut self,
        slot: u32,
        id: SessionId,
        stage: impl FnOnce(&mut Contexts, &mut Staged),
    ) -> Result<(), Offence> {
        if !self.is_theirs(slot, id, Tells::InPlace)? {
            self.drop_staged(slot);
            return Ok(());
        }
        let mut staged = self.staged_of(slot, id);
        stage(&mut self.contexts, &mut staged);
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
        self.changed(slot, id, Contexts::stage_too_much)
    }

    /// What a backend has staged of this session, and of no other.
    pub(super) fn staged_of(&mut self, slot: u32, id: SessionId) -> Staged {
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
        self.apply_staged(slot, id, Then::Released);
        Ok(())
    }

    /// A PUT of a value that is long: `payload` is that message's.
    pub fn put_long(&mut self, slot: u32, id: SessionId, payload: Vec<u8>) -> Result<(), Offence> {
        let frame = Frame {
            kind: MSG_PUT,
            session: id,
            more: false,
            payload: &payload,
        };
        let Some(BackendSays::Put {
            kind,
            key,
            aux,
            counters,
            value,
        }) = BackendSays::parse(&frame)?
        else {
            return Err(Malformed.into());
        };
        if !self.is_theirs(slot, id, Tells::InPlace)? {
            self.drop_staged(slot);
            return Ok(());
        }
        let (key, length) = (key.to_vec(), value.len());
        let mut staged = self.staged_of(slot, id);
        let item = (kind, key.as_slice());
        if (self.contexts).store(&mut staged, item, length, payload, slot) {
            self.takes_long(slot, id, Then::Stored { counters, aux });
        }
        self.put_staged(slot, staged);
        Ok(())
    }

    pub(super) fn take_staged(&mut self, slot: u32) -> Staged {
        self.links.take_staged(slot)
    }

    pub(super) fn put_staged(&mut self, slot: u32, staged: Staged) {
        if let Err(mut staged) = self.links.put_staged(slot, staged) {
            self.contexts.discard(&mut staged);
        }
    }

    fn drop_staged(&mut self, slot: u32) {
        let mut staged = self.links.take_staged(slot);
        self.contexts.discard(&mut staged);
    }
}
