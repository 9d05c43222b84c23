//! Lines for the server's log, and their way to the log writer.
//!
//! The log writer is a process of the server (log_writer.c). It writes lines with the server's
//! own formats and destinations, and a line about a client as that client's. A line is sent at
//! once, and never waited for. If the log writer does not take it, because the log takes
//! nothing, the line is kept; if too many are kept, it is lost and counted. While there is no
//! log writer, lines go to standard error (mod.rs).

use crate::protocol::{Report, Severity};
use crate::shell::link::layout::shared::*;
use crate::shell::link::wire::{Frame, Reader, Writer};
use crate::shell::sys::socket::{self, Address};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines that are kept while the log writer takes none, and their bytes.
const MOST_LINES: usize = 8_192;
const MOST_BYTES: usize = 4 << 20;
/// A longer text is cut: what clients send may be in it.
const LONGEST_TEXT: usize = 8_192;
/// At its end the program waits so long for the log writer.
const LAST_WAIT: Duration = Duration::from_secs(1);
const LAST_STEP: Duration = Duration::from_millis(5);

/// The client that a line is about, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Client<'a> {
    pub address: Address,
    pub user: &'a [u8],
    pub database: &'a [u8],
    pub application_name: &'a [u8],
    /// The session's process ID in SQL; 0 before the session has begun.
    pub pid: u32,
    /// When the session began (TimestampTz), or 0.
    pub since: i64,
}

impl Client<'_> {
    /// A client of which only the address is known.
    pub fn at(address: Address) -> Client<'static> {
        Client {
            address,
            ..Client::default()
        }
    }
}

/// Logs a line about a client.
pub fn client(client: &Client<'_>, message: &[u8]) {
    let line = LogLine {
        level: LOG_LOG as u8,
        message,
        ..LogLine::default()
    };
    about(client, line);
}

/// Logs a report that the client is sent, or would be sent. `detail` replaces the report's own,
/// as errdetail_log() does.
pub fn report(client: &Client<'_>, report: &Report, detail: Option<&[u8]>) {
    let level = match report.severity {
        Severity::Fatal => LOG_FATAL,
        Severity::Error => LOG_ERROR,
        Severity::Warning => LOG_WARNING,
        Severity::Notice => LOG_LOG,
    };
    let line = LogLine {
        level: level as u8,
        sqlstate: &report.sqlstate,
        message: &report.message,
        detail: detail.or(report.detail.as_deref()).unwrap_or_default(),
        hint: report.hint.as_deref().unwrap_or_default(),
        ..LogLine::default()
    };
    about(client, line);
}

fn about(client: &Client<'_>, line: LogLine<'_>) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let host = client.address.text();
    let port = match client.address.is_local() {
        true => String::new(),
        false => client.address.port.to_string(),
    };
    send(&LogLine {
        is_client: true,
        pid: client.pid,
        since: client.since,
        user: client.user,
        database: client.database,
        host: host.as_deref().unwrap_or("[local]").as_bytes(),
        port: port.as_bytes(),
        application_name: client.application_name,
        ..line
    });
}

/// Logs a line of the dispatcher's own.
pub fn own(level: tracing::Level, text: &str) {
    let level = match level {
        tracing::Level::ERROR => LOG_ERROR,
        tracing::Level::WARN => LOG_WARNING,
        _ => LOG_LOG,
    };
    let message = format!("pg_baton: {text}");
    send(&LogLine {
        level: level as u8,
        message: message.as_bytes(),
        ..LogLine::default()
    });
}

fn send(line: &LogLine<'_>) {
    let frame = frame(line);
    if let Err(frame) = sink().send(frame) {
        to_stderr(&frame);
    }
}

/// The text without zero bytes, which would end it early, and no longer than allowed.
fn clean(text: &[u8]) -> Vec<u8> {
    let text = &text[..text.len().min(LONGEST_TEXT)];
    text.iter().copied().filter(|byte| *byte != 0).collect()
}

fn frame(line: &LogLine<'_>) -> Vec<u8> {
    let [message, detail, hint] = [line.message, line.detail, line.hint].map(clean);
    let [user, database, name] = [line.user, line.database, line.application_name].map(clean);
    let line = LogLine {
        message: &message,
        detail: &detail,
        hint: &hint,
        user: &user,
        database: &database,
        application_name: &name,
        ..*line
    };
    line.write(Writer::new(MSG_LOG_LINE, 0)).finish()
}

/// Writes the line of a frame to standard error.
fn to_stderr(frame: &[u8]) {
    let line = Frame::parse(frame).and_then(|frame| LogLine::read(&mut Reader(frame.payload)));
    if let Ok(line) = line {
        let word = match u32::from(line.level) {
            LOG_FATAL => "FATAL",
            LOG_ERROR => "ERROR",
            LOG_WARNING => "WARNING",
            _ => "LOG",
        };
        super::write(word, &text(&line));
    }
}

/// The line as text, for standard error. The names come last, so that none can imitate what
/// precedes them.
fn text(line: &LogLine<'_>) -> String {
    let shown = String::from_utf8_lossy;
    let mut text = shown(line.message).into_owned();
    for (before, part) in [
        ("; SQLSTATE ", line.sqlstate),
        ("; ", line.detail),
        (
            "; host=",
            if line.is_client {
                line.host
            } else {
                Default::default()
            },
        ),
        (" port=", line.port),
        (" user=", line.user),
        (" database=", line.database),
    ] {
        if !part.is_empty() {
            text += before;
            text += &shown(part);
        }
    }
    match text.strip_prefix("pg_baton: ") {
        Some(own) => own.to_owned(),
        None => text,
    }
}

// ---- The log writer -------------------------------------------------------

struct Sink {
    /// The number of its control connection, and its socket.
    writer: Option<(u32, Arc<OwnedFd>)>,
    /// Frames that it has not taken yet, and their bytes.
    unsent: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that were lost since the log writer took one.
    lost: u64,
}

static SINK: Mutex<Sink> = Mutex::new(Sink {
    writer: None,
    unsent: VecDeque::new(),
    bytes: 0,
    lost: 0,
});
static HAS_UNSENT: AtomicBool = AtomicBool::new(false);

fn sink() -> MutexGuard<'static, Sink> {
    SINK.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sink {
    /// Sends a frame or keeps it. Returns it if there is no log writer.
    fn send(&mut self, frame: Vec<u8>) -> Result<(), Vec<u8>> {
        self.flush();
        let Some((_, fd)) = &self.writer else {
            return Err(frame);
        };
        if self.unsent.is_empty() {
            match socket::send(fd.as_raw_fd(), &frame) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.writer = None;
                    return Err(frame);
                }
            }
        }
        if self.unsent.len() < MOST_LINES && self.bytes + frame.len() <= MOST_BYTES {
            self.bytes += frame.len();
            self.unsent.push_back(frame);
        } else {
            self.lost += 1;
        }
        HAS_UNSENT.store(true, SeqCst);
        Ok(())
    }

    /// Sends kept frames as far as the log writer takes them. If there is none any more, they
    /// go to standard error.
    fn flush(&mut self) {
        while let Some(frame) = self.unsent.front() {
            match &self.writer {
                None => to_stderr(frame),
                Some((_, fd)) => match socket::send(fd.as_raw_fd(), frame) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                    Err(_) => {
                        self.writer = None;
                        continue;
                    }
                },
            }
            self.bytes -= frame.len();
            self.unsent.pop_front();
            if self.unsent.is_empty() && self.lost > 0 {
                let lost = std::mem::take(&mut self.lost);
                self.keep_loss(lost);
            }
        }
        HAS_UNSENT.store(false, SeqCst);
    }

    fn keep_loss(&mut self, lost: u64) {
        let message = format!("pg_baton: {}", super::lost(lost));
        let frame = frame(&LogLine {
            level: LOG_WARNING as u8,
            message: message.as_bytes(),
            ..LogLine::default()
        });
        self.bytes += frame.len();
        self.unsent.push_back(frame);
    }
}

/// This control connection is the log writer's.
pub fn writer_is(number: u32, fd: Arc<OwnedFd>) {
    let mut sink = sink();
    sink.writer = Some((number, fd));
    sink.flush();
}

/// This control connection has ended. Nothing happens if it is not the log writer's.
pub fn connection_is_gone(number: u32) {
    let mut sink = sink();
    if (sink.writer.as_ref()).is_some_and(|(writer, _)| *writer == number) {
        sink.writer = None;
        sink.flush();
    }
}

/// Are there lines that the log writer has not taken?
pub fn has_unsent() -> bool {
    HAS_UNSENT.load(SeqCst)
}

/// Sends lines that were kept.
pub fn flush() {
    if has_unsent() {
        sink().flush();
    }
}

/// The program ends: waits a moment for the log writer; lines that it has not taken by then go
/// to standard error.
pub fn finish() {
    let give_up = Instant::now() + LAST_WAIT;
    while has_unsent() && Instant::now() < give_up {
        sink().flush();
        std::thread::sleep(LAST_STEP);
    }
    let mut sink = sink();
    sink.writer = None;
    sink.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(message: &str) -> Vec<u8> {
        frame(&LogLine {
            message: message.as_bytes(),
            ..LogLine::default()
        })
    }

    fn received(fd: &OwnedFd) -> Vec<String> {
        let mut buffer = vec![0; FRAME_MAX as usize];
        let mut all = Vec::new();
        while let Ok(length) = socket::receive(fd.as_raw_fd(), &mut buffer) {
            if length == 0 {
                break;
            }
            let frame = Frame::parse(&buffer[..length]).unwrap();
            let line = LogLine::read(&mut Reader(frame.payload)).unwrap();
            all.push(String::from_utf8_lossy(line.message).into_owned());
        }
        all
    }

    fn new_sink(fd: OwnedFd) -> Sink {
        Sink {
            writer: Some((1, Arc::new(fd))),
            unsent: VecDeque::new(),
            bytes: 0,
            lost: 0,
        }
    }

    #[test]
    fn lines_wait_in_order_and_a_line_counts_the_lost() {
        let (ours, theirs) = socket::pair_of_packets().unwrap();
        let mut sink = new_sink(ours);
        let mut sent = 0;
        while sink.lost < 3 {
            sink.send(line(&sent.to_string())).unwrap();
            sent += 1;
        }
        assert_eq!(sink.unsent.len(), MOST_LINES);
        let mut all = Vec::new();
        loop {
            let some = received(&theirs);
            if some.is_empty() {
                break;
            }
            all.extend(some);
            sink.flush();
        }
        let told = all.pop().unwrap();
        assert!(told.contains("3 lines"), "{told}");
        let expected: Vec<String> = (0..sent - 3).map(|number| number.to_string()).collect();
        assert_eq!(all, expected);
        assert_eq!((sink.bytes, sink.lost), (0, 0));
    }

    #[test]
    fn kept_lines_are_bounded_in_bytes() {
        let (ours, _theirs) = socket::pair_of_packets().unwrap();
        let mut sink = new_sink(ours);
        let long = "x".repeat(100_000);
        while sink.lost == 0 {
            sink.send(line(&long)).unwrap();
            assert!(sink.bytes <= MOST_BYTES);
        }
    }

    #[test]
    fn a_frame_comes_back_if_the_log_writer_is_gone() {
        let (ours, theirs) = socket::pair_of_packets().unwrap();
        let mut sink = new_sink(ours);
        drop(theirs);
        assert!(sink.send(line("a")).is_err());
        assert!(sink.send(line("b")).is_err());
    }

    #[test]
    fn a_zero_byte_is_left_out_of_a_text() {
        let frame = frame(&LogLine {
            user: b"a\0b",
            ..LogLine::default()
        });
        let frame = Frame::parse(&frame).unwrap();
        let line = LogLine::read(&mut Reader(frame.payload)).unwrap();
        assert_eq!(line.user, b"ab");
    }
}
