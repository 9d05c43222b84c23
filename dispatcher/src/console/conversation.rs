//! The protocol of a console after its login: simple queries, and the same commands by prepared
//! statements and portals, which PgBouncer's console does not have.
//!
//! The owner of the socket gives what the client sends ([`Conversation::receive`]), and takes
//! one step after the other. A step that is a command is executed by the owner, which then says
//! how it went ([`Conversation::done`], [`Conversation::failed`]). The client's next message is
//! looked at only after that.
//!
//! What a client can make the dispatcher keep is bounded: one message, and some statements.

use super::command::{self, Command, HELP};
use super::tables::{Format, Table};
use super::{Access, Layout};
use crate::protocol::messages::{finish_message, put_string, ready_for_query, start_message};
use crate::protocol::{Report, Severity};
use std::collections::BTreeMap;

/// The longest message, with its head.
pub const MOST_BYTES: usize = 8192;
/// Prepared statements, and portals, of one client.
const MOST_NAMES: usize = 64;

/// A command that is to be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub command: Command,
    /// The columns of its result; None: it has no rows.
    pub table: Option<Table>,
    /// By a simple query: RowDescription comes first, and ReadyForQuery last.
    is_simple: bool,
}

/// What is next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The client is to send more.
    Wait,
    Run(Run),
    /// The connection ends.
    End,
}

#[derive(Default)]
pub struct Conversation {
    layout: Layout,
    input: Vec<u8>,
    statements: BTreeMap<Vec<u8>, Command>,
    portals: BTreeMap<Vec<u8>, Run>,
    /// After an error messages are skipped until Sync.
    skips: bool,
}

/// Reads the fields of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn string(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(text)
    }

    fn u16(&mut self) -> Option<u16> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*bytes))
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }
}

/// An error in a message whose bounds are right: the conversation goes on.
#[track_caller]
fn malformed(what: &str) -> Report {
    Report::error(b"08P01", format!("invalid message format: {what}"))
}

fn empty_message(out: &mut Vec<u8>, kind: u8) {
    let start = start_message(out, kind);
    finish_message(out, start);
}

fn describe(table: Option<&Table>, out: &mut Vec<u8>) {
    match table {
        Some(table) => table.describe(out),
        // NoData
        None => empty_message(out, b'n'),
    }
}

impl Conversation {
    pub fn new(layout: Layout) -> Conversation {
        Conversation {
            layout,
            ..Conversation::default()
        }
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Bytes to read from the client now.
    pub fn wanted(&self) -> usize {
        MOST_BYTES - self.input.len()
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.wanted());
        self.input.extend_from_slice(bytes);
    }

    /// Handles messages up to the next command; answers are appended to `out`.
    pub fn step(&mut self, access: Access, out: &mut Vec<u8>) -> Step {
        loop {
            let Some((head, _)) = self.input.split_first_chunk::<5>() else {
                return Step::Wait;
            };
            let [kind, length @ ..] = *head;
            let length = u32::from_be_bytes(length) as usize;
            if !(4..MOST_BYTES).contains(&length) {
                let text = format!("invalid message length {length} for the console");
                Report::fatal(b"08P01", text).encode(out);
                return Step::End;
            }
            if self.input.len() < 1 + length {
                return Step::Wait;
            }
            let message: Vec<u8> = self.input.drain(..=length).skip(5).collect();
            match self.message(kind, &message, access, out) {
                Ok(None) => {}
                Ok(Some(step)) => return step,
                Err(report) => self.error(&report, kind == b'Q', out),
            }
        }
    }

    fn error(&mut self, report: &Report, is_simple: bool, out: &mut Vec<u8>) {
        report.encode(out);
        match is_simple {
            true => ready_for_query(out, b'I'),
            false => self.skips = true,
        }
    }

    fn message(
        &mut self,
        kind: u8,
        message: &[u8],
        access: Access,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step>, Report> {
        if self.skips && !matches!(kind, b'S' | b'X') {
            return Ok(None);
        }
        let mut fields = Fields(message);
        match kind {
            b'Q' => {
                let query = fields.string().ok_or_else(|| malformed("query"))?;
                let command = command::parse(query, access)?;
                let table = command.columns(self.layout).map(Table::new);
                if let Some(table) = &table {
                    table.describe(out);
                }
                let is_simple = true;
                return Ok(Some(Step::Run(Run {
                    command,
                    table,
                    is_simple,
                })));
            }
            b'P' => self.prepare(fields, access, out)?,
            b'B' => self.bind(fields, out)?,
            b'D' => self.describe(fields, out)?,
            b'E' => {
                let portal = fields.string().and_then(|name| self.portals.get(name));
                let run = portal.ok_or_else(|| no_such("portal"))?;
                return Ok(Some(Step::Run(run.clone())));
            }
            b'C' => {
                let (what, name) = named(&mut fields)?;
                match what {
                    b'S' => self.statements.remove(name).map(|_| ()),
                    _ => self.portals.remove(name).map(|_| ()),
                };
                // CloseComplete
                empty_message(out, b'3');
            }
            b'S' => {
                self.skips = false;
                // The end of a transaction closes portals.
                self.portals.clear();
                ready_for_query(out, b'I');
            }
            b'H' => {}
            b'X' => return Ok(Some(Step::End)),
            _ => {
                let text = format!("unsupported packet type for admin console: {kind}");
                Report::fatal(b"08P01", text).encode(out);
                return Ok(Some(Step::End));
            }
        }
        Ok(None)
    }

    fn prepare(
        &mut self,
        mut fields: Fields<'_>,
        access: Access,
        out: &mut Vec<u8>,
    ) -> Result<(), Report> {
        let name = fields.string().ok_or_else(|| malformed("statement"))?;
        let query = fields.string().ok_or_else(|| malformed("query"))?;
        let command = command::parse(query, access)?;
        if !name.is_empty() && self.statements.contains_key(name) {
            let name = String::from_utf8_lossy(name);
            let text = format!("prepared statement \"{name}\" already exists");
            return Err(Report::error(b"42P05", text));
        }
        if self.statements.len() >= MOST_NAMES && !self.statements.contains_key(name) {
            return Err(Report::error(b"53000", "too many prepared statements"));
        }
        self.statements.insert(name.to_vec(), command);
        // ParseComplete
        empty_message(out, b'1');
        Ok(())
    }

    fn bind(&mut self, mut fields: Fields<'_>, out: &mut Vec<u8>) -> Result<(), Report> {
        let portal = fields.string().ok_or_else(|| malformed("portal"))?;
        let statement = fields.string().ok_or_else(|| malformed("statement"))?;
        let command = self.statements.get(statement);
        let command = command
            .ok_or_else(|| no_such("prepared statement"))?
            .clone();
        let mut read = || {
            let formats = fields.u16()?;
            fields.skip(2 * usize::from(formats))?;
            let parameters = fields.u16()?;
            if parameters > 0 {
                return Some((parameters, Vec::new()));
            }
            let many = fields.u16()?;
            let formats = (0..many).map(|_| fields.u16());
            Some((0, formats.collect::<Option<Vec<u16>>>()?))
        };
        let (parameters, formats) = read().ok_or_else(|| malformed("bind"))?;
        if parameters > 0 {
            let text = format!(
                "bind message supplies {parameters} parameters, but prepared statement requires 0"
            );
            return Err(Report::error(b"08P01", text));
        }
        let table = match command.columns(self.layout) {
            Some(columns) => {
                let formats = formats_of(&formats, columns.len())?;
                Some(Table { columns, formats })
            }
            None => None,
        };
        if self.portals.len() >= MOST_NAMES && !self.portals.contains_key(portal) {
            return Err(Report::error(b"53000", "too many portals"));
        }
        let is_simple = false;
        let run = Run {
            command,
            table,
            is_simple,
        };
        self.portals.insert(portal.to_vec(), run);
        // BindComplete
        empty_message(out, b'2');
        Ok(())
    }

    fn describe(&mut self, mut fields: Fields<'_>, out: &mut Vec<u8>) -> Result<(), Report> {
        let (what, name) = named(&mut fields)?;
        if what == b'S' {
            let command = self.statements.get(name);
            let command = command.ok_or_else(|| no_such("prepared statement"))?;
            // ParameterDescription
            let start = start_message(out, b't');
            out.extend_from_slice(&[0; 2]);
            finish_message(out, start);
            describe(command.columns(self.layout).map(Table::new).as_ref(), out);
        } else {
            let run = self.portals.get(name).ok_or_else(|| no_such("portal"))?;
            describe(run.table.as_ref(), out);
        }
        Ok(())
    }

    /// The command has been executed; its rows are in `out`.
    pub fn done(&self, run: &Run, out: &mut Vec<u8>) {
        let notice = match &run.command {
            Command::Show(command::Show::Help) => Some(("Console usage", HELP)),
            Command::IgnoredSet => Some(("SET ignored", "")),
            _ => None,
        };
        if let Some((text, detail)) = notice {
            let mut report = Report::new(Severity::Notice, b"00000", text);
            if !detail.is_empty() {
                report = report.with_detail(detail);
            }
            report.encode(out);
        }
        if run.command == Command::Nothing {
            // EmptyQueryResponse
            empty_message(out, b'I');
        } else {
            let start = start_message(out, b'C');
            put_string(out, run.command.tag().as_bytes());
            finish_message(out, start);
        }
        if run.is_simple {
            ready_for_query(out, b'I');
        }
    }

    /// The command has failed.
    pub fn failed(&mut self, run: &Run, report: &Report, out: &mut Vec<u8>) {
        self.error(report, run.is_simple, out);
    }
}

/// A statement or portal that Describe or Close names.
fn named<'a>(fields: &mut Fields<'a>) -> Result<(u8, &'a [u8]), Report> {
    let what = fields.0.first().copied();
    let what = what.filter(|what| matches!(what, b'S' | b'P'));
    let what = what.ok_or_else(|| malformed("kind"))?;
    fields.0 = &fields.0[1..];
    let name = fields.string().ok_or_else(|| malformed("name"))?;
    Ok((what, name))
}

fn no_such(what: &str) -> Report {
    let state = match what {
        "portal" => b"34000",
        _ => b"26000",
    };
    Report::error(state, format!("{what} does not exist"))
}

/// The format of each column: none are named for text, one for all, or one for each.
fn formats_of(said: &[u16], columns: usize) -> Result<Vec<Format>, Report> {
    let format = |number: &u16| match number {
        0 => Ok(Format::Text),
        1 => Ok(Format::Binary),
        _ => {
            let text = format!("unsupported format code: {number}");
            Err(Report::error(b"22023", text))
        }
    };
    let said: Vec<Format> = said.iter().map(format).collect::<Result<_, Report>>()?;
    match said.as_slice() {
        [] => Ok(Vec::new()),
        [all] => Ok(vec![*all; columns]),
        each if each.len() == columns => Ok(said),
        each => {
            let many = each.len();
            let text =
                format!("bind message has {many} result formats but query has {columns} columns");
            Err(Report::error(b"08P01", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::Show;
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    /// The kinds of the messages in `out`.
    fn kinds(mut out: &[u8]) -> String {
        let mut kinds = String::new();
        while let Some((head, _)) = out.split_first_chunk::<5>() {
            let [kind, length @ ..] = *head;
            kinds.push(kind as char);
            out = &out[1 + u32::from_be_bytes(length) as usize..];
        }
        assert!(out.is_empty());
        kinds
    }

    /// Sends messages; commands are executed without rows.
    fn send(conversation: &mut Conversation, messages: &[Vec<u8>]) -> (String, bool) {
        let mut out = Vec::new();
        for message in messages {
            conversation.receive(message);
            loop {
                match conversation.step(Access::All, &mut out) {
                    Step::Wait => break,
                    Step::Run(run) => conversation.done(&run, &mut out),
                    Step::End => return (kinds(&out), true),
                }
            }
        }
        (kinds(&out), false)
    }

    fn sent(messages: &[Vec<u8>]) -> (String, bool) {
        send(&mut Conversation::default(), messages)
    }

    fn simple(text: &str) -> Vec<u8> {
        message(b'Q', &[text.as_bytes(), b"\0"].concat())
    }

    fn parsed(name: &str, text: &str) -> Vec<u8> {
        let body = [name.as_bytes(), b"\0", text.as_bytes(), b"\0\0\0"].concat();
        message(b'P', &body)
    }

    fn bound(name: &str, formats: &[u16]) -> Vec<u8> {
        let mut body = [b"\0", name.as_bytes(), b"\0\0\0\0\0"].concat();
        body.extend_from_slice(&(formats.len() as u16).to_be_bytes());
        formats
            .iter()
            .for_each(|it| body.extend_from_slice(&it.to_be_bytes()));
        message(b'B', &body)
    }

    fn executed() -> Vec<u8> {
        message(b'E', b"\0\0\0\0\0")
    }

    fn synced() -> Vec<u8> {
        message(b'S', b"")
    }

    #[test]
    fn simple_queries_are_answered_one_by_one() {
        let (out, _) = sent(&[simple("SHOW STATS"), simple("nonsense"), simple("RELOAD")]);
        assert_eq!(out, "TCZEZCZ");
        assert_eq!(sent(&[simple("")]).0, "IZ");
        assert_eq!(sent(&[simple("SHOW HELP")]).0, "NCZ");
        assert_eq!(sent(&[simple("SET timezone = 'x'")]).0, "NCZ");
        assert_eq!(
            sent(&[message(b'X', b""), simple("")]),
            (String::new(), true)
        );
    }

    #[test]
    fn prepared_statements_give_what_simple_queries_give() {
        let describe = |what: &[u8]| message(b'D', what);
        let (out, _) = sent(&[
            parsed("s", "SHOW STATE"),
            describe(b"Ss\0"),
            bound("s", &[1]),
            describe(b"P\0"),
            executed(),
            message(b'C', b"Ss\0"),
            message(b'H', b""),
            synced(),
        ]);
        assert_eq!(out, "1tT2TC3Z");
        let (out, _) = sent(&[
            parsed("", "PAUSE x"),
            describe(b"S\0"),
            bound("", &[]),
            executed(),
        ]);
        assert_eq!(out, "1tn2C");
        let mut conversation = Conversation::default();
        let (out, _) = send(
            &mut conversation,
            &[parsed("", "SHOW STATE"), bound("", &[0, 1])],
        );
        assert_eq!(out, "12");
        let mut nothing = Vec::new();
        conversation.receive(&executed());
        let Step::Run(run) = conversation.step(Access::All, &mut nothing) else {
            panic!();
        };
        assert_eq!(run.command, Command::Show(Show::State));
        let formats = run.table.unwrap().formats;
        assert_eq!(formats, [Format::Text, Format::Binary]);
    }

    #[test]
    fn after_an_error_all_is_skipped_until_sync() {
        let errors = [
            parsed("", "nonsense"),
            bound("missing", &[]),
            executed(),
            message(b'D', b"Px\0"),
            message(b'D', b"x"),
            message(b'B', b"\0\0"),
            message(b'Q', b"unterminated"),
        ];
        for error in &errors[..6] {
            let (out, ends) = sent(&[error.clone(), executed(), synced(), simple("")]);
            assert_eq!((out.as_str(), ends), ("EZIZ", false), "{error:?}");
        }
        assert_eq!(sent(&errors[6..]).0, "EZ");
        let (out, _) = sent(&[parsed("", "SHOW STATE"), bound("", &[0, 0, 0]), synced()]);
        assert_eq!(out, "1EZ");
        let (out, _) = sent(&[parsed("", "SHOW STATE"), bound("", &[2]), synced()]);
        assert_eq!(out, "1EZ");
    }

    #[test]
    fn messages_come_in_any_pieces() {
        let all = [simple("SHOW STATE"), parsed("", "SHOW STATE"), synced()].concat();
        let mut conversation = Conversation::default();
        let bytes: Vec<Vec<u8>> = all.iter().map(|byte| vec![*byte]).collect();
        assert_eq!(send(&mut conversation, &bytes).0, "TCZ1Z");
    }

    #[test]
    fn what_a_client_makes_the_console_keep_is_bounded() {
        let long = message(b'Q', &vec![b' '; MOST_BYTES - 4]);
        let (out, ends) = sent(&[long[..MOST_BYTES].to_vec()]);
        assert_eq!((out.as_str(), ends), ("E", true));
        assert_eq!(sent(&[message(b'p', b"")]), ("E".to_owned(), true));
        assert_eq!(sent(&[vec![b'Q', 0, 0, 0, 3]]), ("E".to_owned(), true));
        let statements: Vec<Vec<u8>> = (0..=MOST_NAMES)
            .map(|number| parsed(&number.to_string(), "RELOAD"))
            .collect();
        let (out, _) = sent(&statements);
        assert_eq!(out, "1".repeat(MOST_NAMES) + "E");
        let twice = [parsed("a", "RELOAD"), parsed("a", "RELOAD")];
        assert_eq!(sent(&twice).0, "1E");
        let unnamed = [parsed("", "RELOAD"), parsed("", "RELOAD")];
        assert_eq!(sent(&unnamed).0, "11");
    }
}
