//! The parts of SCRAM's messages: attributes and their values, and how errors show them
//! (auth-scram.c).

use crate::protocol::report::Report;

/// The checks that scram_exchange makes of every message.
pub(super) fn check_text(message: &[u8]) -> Result<(), Report> {
    if message.is_empty() {
        return Err(malformed("The message is empty."));
    }
    if message.contains(&0) {
        return Err(malformed("Message length does not match input length."));
    }
    Ok(())
}

pub(super) fn malformed(detail: impl Into<Vec<u8>>) -> Report {
    Report::fatal(b"08P01", "malformed SCRAM message").with_detail(detail)
}

/// sanitize_char: its buffer of five bytes is enough for both forms.
pub(super) fn sanitize(byte: u8) -> String {
    if (0x21..=0x7e).contains(&byte) {
        format!("'{}'", char::from(byte))
    } else {
        format!("0x{byte:02x}")
    }
}

/// sanitize_str: at most 30 bytes, and only printable ones.
pub(super) fn sanitize_text(text: &[u8]) -> String {
    (text.iter().take(30))
        .map(|byte| match byte {
            0x21..=0x7e => char::from(*byte),
            _ => '?',
        })
        .collect()
}

/// Reads `a=value,b=value...`; the end reads as NUL, as in C.
pub(super) struct AttributeReader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> AttributeReader<'a> {
    pub(super) fn new(text: &'a [u8]) -> AttributeReader<'a> {
        AttributeReader { text, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(super) fn peek(&self) -> u8 {
        self.rest().first().copied().unwrap_or(0)
    }

    pub(super) fn advance(&mut self) {
        self.at += 1;
    }

    /// read_attr_value.
    pub(super) fn value_of(&mut self, attribute: u8) -> Result<&'a [u8], Report> {
        if self.peek() != attribute {
            return Err(malformed(format!(
                "Expected attribute \"{}\" but found \"{}\".",
                char::from(attribute),
                sanitize(self.peek())
            )));
        }
        self.value(attribute)
    }

    /// read_any_attr.
    pub(super) fn any(&mut self) -> Result<(u8, &'a [u8]), Report> {
        let attribute = self.peek();
        if attribute == 0 {
            return Err(malformed("Attribute expected, but found end of string."));
        }
        if !attribute.is_ascii_alphabetic() {
            return Err(malformed(format!(
                "Attribute expected, but found invalid character \"{}\".",
                sanitize(attribute)
            )));
        }
        Ok((attribute, self.value(attribute)?))
    }

    pub(super) fn value(&mut self, attribute: u8) -> Result<&'a [u8], Report> {
        self.advance();
        if self.peek() != b'=' {
            return Err(malformed(format!(
                "Expected character \"=\" for attribute \"{}\".",
                char::from(attribute)
            )));
        }
        self.advance();
        let rest = self.rest();
        let end = rest.iter().position(|byte| *byte == b',');
        self.at += end.map_or(rest.len(), |end| end + 1);
        Ok(&rest[..end.unwrap_or(rest.len())])
    }
}
