//! The log: standard error is the server's, so lines look like the server's.

use std::fmt;
use std::time::SystemTime;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::EnvFilter;

struct ServerFormat;

impl<S, N> FormatEvent<S, N> for ServerFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // The words of elog.c; INFO is what the server calls LOG.
        let word = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "LOG",
            Level::DEBUG => "DEBUG1",
            Level::TRACE => "DEBUG5",
        };
        let (time, pid) = (timestamp(SystemTime::now()), std::process::id());
        write!(writer, "{time} UTC [{pid}] {word}:  pg_baton: ")?;
        let mut text = String::new();
        context
            .field_format()
            .format_fields(Writer::new(&mut text), event)?;
        writeln!(writer, "{}", on_one_entry(&text))
    }
}

/// As append_with_tabs (elog.c): what comes from outside can begin no entry of
/// its own.
fn on_one_entry(text: &str) -> String {
    text.replace('\n', "\n\t")
}

/// Year to millisecond, in UTC.
fn timestamp(now: SystemTime) -> String {
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03}",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60,
        since.subsec_millis()
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

/// Begins to log to standard error; `BATON_LOG` filters (default: info).
pub fn start() {
    let filter = EnvFilter::try_from_env("BATON_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .event_format(ServerFormat)
        .try_init();
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
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(date(19_783), (2024, 3, 1));
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_000_123);
        assert_eq!(timestamp(time), "2001-09-09 01:46:40.123");
    }
}
