//! The log. Lines go to the log writer, a process of the server (lines.rs). Before it has
//! connected, after it has gone, and for debugging they go to standard error, which is the
//! server's, in a form like the server's: the rest of this file.
//!
//! A pipe to the log collector may be slow, stopped, or lead to a full disk. So a thread writes
//! to the pipe, and the event loop never waits for it. Lines that do not fit into the buffer
//! are lost, and the next line that is written says how many. A file takes each line at once.
//! So a client that has received an answer finds in the file what a stock backend would have
//! written before that answer.
//!
//! The thread starts before the program gives up its access to files (sys/process.rs), which
//! each thread does for itself and for the threads that it starts. So this thread is told to do
//! it as well; otherwise an attacker who controls the program could use it.

pub mod lines;

use super::sys::process;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::EnvFilter;

/// Takes the events of the `tracing` crate.
struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        match *event.metadata().level() {
            Level::DEBUG => write("DEBUG1", &text.0),
            Level::TRACE => write("DEBUG5", &text.0),
            level => lines::own(level, &text.0),
        }
    }
}

/// Gives them to a function.
struct Through<T>(T);

impl<S: Subscriber, T: Fn(Level, &str) + 'static> Layer<S> for Through<T> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        (self.0)(*event.metadata().level(), &text.0);
    }
}

/// The message of an event.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// Writes a line to standard error. The words are those of elog.c.
pub fn write(word: &str, text: &str) {
    let (time, pid) = (timestamp(SystemTime::now()), std::process::id());
    let text = on_one_entry(text);
    let line = format!("{time} UTC [{pid}] {word}:  pg_baton: {text}\n");
    // An error, such as a full disk, cannot be reported anywhere.
    let _ = match LINES.get() {
        Some(lines) => lines.clone().write_all(line.as_bytes()),
        None => io::stderr().lock().write_all(line.as_bytes()),
    };
}

/// Does what append_with_tabs (elog.c) does: text from outside cannot begin a log entry of its
/// own.
fn on_one_entry(text: &str) -> String {
    text.replace('\n', "\n\t")
}

/// The UTC time, from year to millisecond.
fn timestamp(now: SystemTime) -> String {
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    format!("{}.{:03}", utc(since.as_secs()), since.subsec_millis())
}

/// The UTC time, from year to second.
pub fn utc(unix_seconds: u64) -> String {
    let (year, month, day) = date(unix_seconds / 86_400);
    let of_day = unix_seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// The civil date of a day counted from 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
    let (mut year, mut rest) = (1970, days);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        rest -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

/// Lines that may wait to be written; a line is some 100 bytes.
const LINES_WAITING: usize = 8_192;

/// The writer of the log. When it is dropped at the end of the program, the lines that still
/// wait are written, for at most a second each way.
pub struct Log {
    _worker: Option<WorkerGuard>,
}

/// Tells the writing thread to give up its access to files.
static GIVES_UP_FILES: AtomicBool = AtomicBool::new(false);
/// The buffer of the writing thread, if there is one. A line sent here wakes the thread.
static LINES: OnceLock<NonBlocking> = OnceLock::new();

/// Standard error, and the count of lines that were lost.
struct Stderr {
    lost: Arc<OnceLock<ErrorCounter>>,
    told: usize,
    has_files: bool,
}

impl Stderr {
    /// If the thread that called `give_up_files` succeeded, this succeeds as well.
    fn give_up_files(&mut self) {
        if self.has_files && GIVES_UP_FILES.load(SeqCst) {
            self.has_files = process::confine_files().is_err();
        }
    }
}

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.give_up_files();
        let lost = self.lost.get().map_or(0, ErrorCounter::dropped_lines);
        let told = std::mem::replace(&mut self.told, lost);
        let mut stderr = io::stderr().lock();
        if lost > told {
            stderr.write_all(lost_lines(SystemTime::now(), lost - told).as_bytes())?;
        }
        stderr.write_all(line)?;
        Ok(line.len())
    }

    /// Called after one or more lines, including empty ones.
    fn flush(&mut self) -> io::Result<()> {
        self.give_up_files();
        io::stderr().flush()
    }
}

fn lost_lines(now: SystemTime, lost: usize) -> String {
    let (time, pid) = (timestamp(now), std::process::id());
    let text = self::lost(lost as u64);
    format!("{time} UTC [{pid}] WARNING:  pg_baton: {text}\n")
}

pub fn lost(lines: u64) -> String {
    format!("{lines} lines of the dispatcher's log were lost, because the log took none")
}

/// The last line of a program that has failed by a fault of its own.
fn panic_line(now: SystemTime, place: &str, what: &str) -> String {
    let (time, pid) = (timestamp(now), std::process::id());
    let text = on_one_entry(&format!(
        "the dispatcher's program failed at {place}: {what}"
    ));
    format!("{time} UTC [{pid}] FATAL:  pg_baton: {text}\n")
}

/// The thread that panics writes the panic at once, as a line like the server's: the writing
/// thread may get no chance to do it.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let payload = panic.payload();
        let what = (payload.downcast_ref::<&str>().copied())
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let place = place.as_deref().unwrap_or("an unknown place");
        let line = panic_line(SystemTime::now(), place, what.unwrap_or("no message"));
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }));
}

/// Begins to log to standard error; `BATON_LOG` filters (default: info). Must be called after
/// signals are blocked, since the writing thread inherits that.
pub fn start() -> Log {
    log_panics();
    let worker = (!stderr_is_a_file()).then(by_a_thread);
    let _ = tracing_subscriber::registry()
        .with(Lines)
        .with(filter())
        .try_init();
    Log { _worker: worker }
}

/// Begins to log by a function, in a process without a log writer. `BATON_LOG` filters as in
/// [`start`].
pub fn start_by(tell: impl Fn(Level, &str) + Send + Sync + 'static) {
    log_panics();
    let _ = tracing_subscriber::registry()
        .with(Through(tell))
        .with(filter())
        .try_init();
}

/// What a program of the dispatcher's lets into the log.
fn filter() -> EnvFilter {
    EnvFilter::try_from_env("BATON_LOG").unwrap_or_else(|_| EnvFilter::new("info"))
}

impl Drop for Log {
    fn drop(&mut self) {
        lines::finish();
    }
}

fn stderr_is_a_file() -> bool {
    let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    (stderr.and_then(|stderr| stderr.metadata())).is_ok_and(|data| data.is_file())
}

/// Starts the thread that writes lines to standard error.
fn by_a_thread() -> WorkerGuard {
    let lost = Arc::<OnceLock<ErrorCounter>>::default();
    let (writer, worker) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES_WAITING)
        .thread_name("log")
        .finish(Stderr {
            lost: lost.clone(),
            told: 0,
            has_files: true,
        });
    let _ = lost.set(writer.error_counter());
    let _ = LINES.set(writer);
    worker
}

/// Makes the writing thread give up its access to files, as the calling thread has done
/// (`process::confine_files`).
pub fn give_up_files() {
    GIVES_UP_FILES.store(true, SeqCst);
    if let Some(lines) = LINES.get() {
        let _ = lines.clone().write(&[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_name_with_a_line_s_end_makes_no_entry() {
        let text = on_one_entry("user=x\n2001-01-01 LOG:  forged");
        assert_eq!(text, "user=x\n\t2001-01-01 LOG:  forged");
    }

    #[test]
    fn a_panic_is_one_entry_that_names_its_place() {
        let line = panic_line(SystemTime::UNIX_EPOCH, "src/a.rs:1:2", "two\nlines");
        let (head, rest) = line.split_once("FATAL:  ").unwrap();
        assert!(head.starts_with("1970-01-01 00:00:00.000 UTC ["));
        assert_eq!(
            rest,
            "pg_baton: the dispatcher's program failed at src/a.rs:1:2: two\n\tlines\n"
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(date(19_783), (2024, 3, 1));
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_000_123);
        assert_eq!(timestamp(time), "2001-09-09 01:46:40.123");
    }
}
