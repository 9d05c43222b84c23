//! Rows of the views, as frames for who asks.

use super::layout::shared::*;
use super::wire::Writer;
use crate::shell::sys::socket::Address;

/// One row under construction.
pub struct Row {
    writer: Writer,
    columns: u32,
}

impl Row {
    pub fn new() -> Row {
        Row {
            writer: Writer::new(MSG_ROW, 0),
            columns: 0,
        }
    }

    fn value(self, value: Option<&[u8]>) -> Row {
        Row {
            writer: self.writer.nullable(value),
            columns: self.columns + 1,
        }
    }

    pub fn bytes(self, value: &[u8]) -> Row {
        self.value(Some(value))
    }

    pub fn text(self, value: &str) -> Row {
        self.bytes(value.as_bytes())
    }

    pub fn number(self, value: impl std::fmt::Display) -> Row {
        self.text(&value.to_string())
    }

    pub fn optional(self, value: Option<impl std::fmt::Display>) -> Row {
        let text = value.map(|value| value.to_string());
        self.value(text.as_deref().map(str::as_bytes))
    }

    /// None is NULL.
    pub fn flag(self, value: Option<bool>) -> Row {
        self.optional(value.map(|value| if value { "t" } else { "f" }))
    }

    pub fn finish(self) -> Vec<u8> {
        let mut frame = self.writer.finish();
        // The number of columns comes first in the payload.
        let at = FRAME_HEADER_SIZE as usize;
        frame.splice(at..at, self.columns.to_ne_bytes());
        let length = (frame.len() - at) as u32;
        frame[4..8].copy_from_slice(&length.to_ne_bytes());
        frame
    }
}

/// As pg_stat_activity has it.
pub fn port_of(address: &Address) -> i32 {
    if address.is_local() {
        -1
    } else {
        i32::from(address.port)
    }
}
