//! Frames of the control socket. They come from our own extension, which a bug
//! elsewhere in its process may have gone wrong.

use crate::shell::link::layout::shared::*;
use crate::shell::link::wire::{are_pairs, pairs, Answer, BackendSays, Frame, Reader, Writer};

pub fn run(data: &[u8]) {
    let Ok(frame) = Frame::parse(data) else {
        return;
    };
    let again = Writer::new(frame.kind, frame.session)
        .raw(frame.payload)
        .finish();
    // Its flags apart: it is as long as it says.
    assert_eq!(again[4..], data[4..]);
    let parsed = Frame::parse(&again).expect("what is written can be read");
    assert_eq!((parsed.kind, parsed.session), (frame.kind, frame.session));
    assert_eq!(parsed.payload, frame.payload);
    backend_says(&frame);
    launcher_answers(frame.payload);
    // What is in it says how it is read: a byte for each field.
    let mut fields = Reader(frame.payload);
    while let Ok(kind) = fields.u8() {
        let before = fields.0.len();
        let failed = match kind % 8 {
            0 => fields.u8().is_err(),
            1 => fields.u16().is_err(),
            2 => fields.u32().is_err(),
            3 => fields.i32().is_err(),
            4 => fields.u64().is_err(),
            5 => fields.i64().is_err(),
            6 => match fields.string() {
                Ok(text) => {
                    assert!(text.len() <= before);
                    pairs(text).for_each(|(name, value)| {
                        assert!(name.len() + value.len() + 2 <= text.len());
                    });
                    false
                }
                Err(_) => true,
            },
            _ => fields.raw(usize::from(kind)).is_err(),
        };
        assert!(fields.0.len() <= before);
        if failed {
            return;
        }
    }
}

/// What was read of a backend's message is all that was in it.
fn backend_says(frame: &Frame<'_>) {
    let Ok(Some(said)) = BackendSays::parse(frame) else {
        return;
    };
    let again = Writer::new(frame.kind, frame.session);
    let again = match said {
        BackendSays::Put {
            kind,
            key,
            aux,
            counters,
            value,
        } => {
            let again = (again.u16(kind).u16(key.len() as u16).raw(key))
                .u32(u32::from(counters.is_some()))
                .u64(aux as u64);
            let again = match counters {
                Some(it) => (it
                    .costs
                    .into_iter()
                    .chain(it.plans.map(|plans| plans as u64)))
                .fold(again, Writer::u64),
                None => again,
            };
            again.raw(value)
        }
        BackendSays::Delete { kind, key } => again.u16(kind).u16(key.len() as u16).raw(key),
        BackendSays::Release => again,
        BackendSays::Greeted {
            lasts,
            start_settings,
            notices,
            reported,
        } => {
            are_messages(notices);
            assert_eq!(strings_of(reported), reported);
            let again = again.u32(lasts).u64(start_settings);
            again.string(notices).raw(reported)
        }
        BackendSays::Retiring { cause, why } => again.u32(cause).string(why),
        // Of several numbers the same is made.
        BackendSays::Ended { .. } | BackendSays::Dedicated { .. } => {
            return assert_eq!(frame.payload.len(), 4);
        }
    };
    assert_eq!(again.finish()[16..], *frame.payload);
}

/// Each is a NoticeResponse, and they end where the bytes do: a client gets them as they are.
fn are_messages(notices: &[u8]) {
    let mut rest = notices;
    while let Some((head, body)) = rest.split_at_checked(5) {
        let length = u32::from_be_bytes(head[1..].try_into().expect("four bytes")) as usize;
        assert!(head[0] == b'N' && length >= 4);
        rest = &body[length - 4..];
    }
    assert!(rest.is_empty());
}

fn strings_of(reported: &[u8]) -> Vec<u8> {
    assert!(are_pairs(reported));
    pairs(reported)
        .flat_map(|(name, value)| [name, b"\0", value, b"\0"].concat())
        .collect()
}

/// The answer is the same whatever follows it, and nobody's limit is passed by it.
fn launcher_answers(payload: &[u8]) {
    let Ok((request, answer)) = Answer::parse(payload) else {
        return;
    };
    let more = [payload, b"more"].concat();
    let (again, same) = Answer::parse(&more).expect("there is more of it");
    assert_eq!(again, request);
    assert_eq!(format!("{same:?}"), format!("{answer:?}"));
    if let Some(report) = &answer.refusal {
        assert!(report.detail.as_ref().is_none_or(|text| !text.is_empty()));
        assert!(report.hint.as_ref().is_none_or(|text| !text.is_empty()));
    }
    let fits = answer.fits(answer.role_limit, answer.role_backends, 1);
    assert!(fits || (answer.role_limit >= 0 && !answer.superuser));
}
