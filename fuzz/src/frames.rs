//! Frames of the control socket. They come from our own extension, which a bug
//! elsewhere in its process may have gone wrong.

use crate::dispatcher::link::wire::{pairs, Frame, Reader, Writer};

pub fn run(data: &[u8]) {
    let Ok(frame) = Frame::parse(data) else {
        return;
    };
    let again = Writer::new(frame.kind, frame.session)
        .bytes(frame.payload)
        .finish();
    // Its flags apart: it is as long as it says.
    assert_eq!(again[4..], data[4..]);
    let parsed = Frame::parse(&again).expect("what is written can be read");
    assert_eq!((parsed.kind, parsed.session), (frame.kind, frame.session));
    assert_eq!(parsed.payload, frame.payload);
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
            _ => fields.bytes(usize::from(kind)).is_err(),
        };
        assert!(fields.0.len() <= before);
        if failed {
            return;
        }
    }
}
