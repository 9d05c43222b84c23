//! What a client of the console sends after its login.

use crate::console::conversation::{Conversation, Step};
use crate::console::tables::Value;
use crate::console::Access;
use crate::pieces::{choice, lengths};

/// The answers, and whether the connection has ended.
fn answers(input: &[u8], access: Access, piece: usize) -> (Vec<u8>, bool) {
    let (mut conversation, mut out) = (Conversation::default(), Vec::new());
    let mut rest = input;
    while !rest.is_empty() {
        let wanted = conversation.wanted();
        assert!(wanted > 0, "a message is never longer than what is kept");
        let (some, left) = rest.split_at(piece.min(wanted).min(rest.len()));
        conversation.receive(some);
        rest = left;
        loop {
            match conversation.step(access, &mut out) {
                Step::Wait => break,
                Step::End => return (out, true),
                Step::Run(run) => {
                    if let Some(table) = &run.table {
                        let values = [Value::Null, Value::Number(u64::MAX)];
                        table.row(&mut out, &values[..table.columns.len().min(2)]);
                    }
                    conversation.done(&run, &mut out);
                }
            }
        }
    }
    (out, false)
}

/// It does not matter where the network cuts the bytes; and all answers are whole messages.
pub fn run(data: &[u8]) {
    let (first, input) = choice(data);
    let access = match first % 2 {
        0 => Access::All,
        _ => Access::Show,
    };
    let mut pieces = lengths(input).into_iter();
    let expected = answers(input, access, usize::MAX);
    assert!(pieces.all(|piece| answers(input, access, piece) == expected));
    let mut out = expected.0.as_slice();
    while let Some((head, _)) = out.split_first_chunk::<5>() {
        let [_, length @ ..] = *head;
        out = &out[1 + u32::from_be_bytes(length) as usize..];
    }
    assert!(out.is_empty());
}
