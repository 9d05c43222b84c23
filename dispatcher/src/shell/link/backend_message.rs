//! What a backend may say on its control connection, read to its exact end.
//!
//! Free of I/O. Who may say it, and of which session, is not known here
//! (scheduler/backend_frames.rs).

use super::layout::shared::*;
use super::wire::{self, Frame, Malformed, Reader};
use crate::protocol::messages;

/// Kinds of items that a backend may change; STARTUP is the dispatcher's.
const KINDS: std::ops::RangeInclusive<u32> = KIND_RESET..=KIND_OTHER;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendSays<'a> {
    Put {
        kind: u16,
        key: &'a [u8],
        aux: i64,
        /// A statement's counters.
        counters: Option<Counters>,
        value: &'a [u8],
    },
    Delete {
        kind: u16,
        key: &'a [u8],
    },
    Release,
    /// `notices` are whole messages; `reported` is pairs of strings.
    Greeted {
        lasts: u32,
        start_settings: u64,
        notices: &'a [u8],
        reported: &'a [u8],
    },
    /// The client has gone, or is cut off.
    Ended {
        is_cut: bool,
    },
    Dedicated {
        has_cause: bool,
    },
    Retiring {
        /// `RETIRES_*`
        cause: u32,
        why: &'a [u8],
    },
}

/// A `BatonStatementCounter`; only backends understand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// The bytes of two floating-point numbers.
    pub costs: [u64; 2],
    pub plans: [i64; 2],
}

impl<'a> BackendSays<'a> {
    /// None: no backend may say that.
    pub fn parse(frame: &Frame<'a>) -> Result<Option<BackendSays<'a>>, Malformed> {
        let mut reader = Reader(frame.payload);
        let said = match frame.kind {
            MSG_PUT => {
                let (kind, key) = item(&mut reader)?;
                let has_counters = match reader.u32()? {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed),
                };
                let aux = reader.i64()?;
                let mut counters = None;
                if has_counters {
                    counters = Some(Counters {
                        costs: [reader.u64()?, reader.u64()?],
                        plans: [reader.i64()?, reader.i64()?],
                    });
                }
                return Ok(Some(BackendSays::Put {
                    kind,
                    key,
                    aux,
                    counters,
                    value: reader.0,
                }));
            }
            MSG_DELETE => {
                let (kind, key) = item(&mut reader)?;
                BackendSays::Delete { kind, key }
            }
            MSG_RELEASE => BackendSays::Release,
            MSG_GREETED => {
                let lasts = reader.u32()?;
                let start_settings = reader.u64()?;
                let notices = reader.string()?;
                let reported = reader.0;
                if lasts & !(GREETING_OF_ROLES | GREETING_BY_PRIVILEGES) > GREETING_NAMES
                    || !messages::are_notices(notices)
                    || !wire::are_pairs(reported)
                {
                    return Err(Malformed);
                }
                return Ok(Some(BackendSays::Greeted {
                    lasts,
                    start_settings,
                    notices,
                    reported,
                }));
            }
            MSG_END => match reader.u32()? {
                END_CLIENT_CLOSED | END_CLIENT_TERMINATED => BackendSays::Ended { is_cut: false },
                END_ERROR => BackendSays::Ended { is_cut: true },
                _ => return Err(Malformed),
            },
            MSG_DEDICATED => match reader.u32()? {
                cause if cause as usize >= CAUSES.len() => return Err(Malformed),
                cause => BackendSays::Dedicated {
                    has_cause: cause != CAUSE_NONE,
                },
            },
            MSG_RETIRING => BackendSays::Retiring {
                cause: match reader.u32()? {
                    cause @ RETIRES_ASKED..=RETIRES_SETTINGS => cause,
                    _ => return Err(Malformed),
                },
                why: reader.string()?,
            },
            _ => return Ok(None),
        };
        reader.end()?;
        Ok(Some(said))
    }
}

fn item<'a>(reader: &mut Reader<'a>) -> Result<(u16, &'a [u8]), Malformed> {
    let kind = reader.u16()?;
    if !KINDS.contains(&u32::from(kind)) {
        return Err(Malformed);
    }
    let length = reader.u16()?;
    Ok((kind, reader.bytes(usize::from(length))?))
}
