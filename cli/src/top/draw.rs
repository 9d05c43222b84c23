//! One frame of `baton top`.

use super::app::{App, Asking, Mode};
use super::sample::{Row, Sample};
use crate::text::{count, counted, duration};
use ratatui::buffer::{Buffer, Cell as BufferCell};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState, Widget, Wrap};
use ratatui::Frame;

/// Lines of numbers above the table.
const HEADER: u16 = 6;

const HELP: &[&str] = &[
    "up, down, PgUp, PgDn, Home, End   move the cursor",
    "Enter       the session under the cursor, in sentences (as baton why)",
    "s, S        sort by the next or the previous order;  r  reverse the order",
    "d, u, c     show only a database, a role (user), causes that contain a text",
    "x           remove these filters",
    "C           cancel the session's query, after a confirmation",
    "T           end the session (terminate), after a confirmation",
    "space       ask the server now",
    "Esc, q      back; in the table q ends the program, and Ctrl-C anywhere",
    "",
    "FOR: how long the session has been in its state. DEDICATED: the cause for",
    "which it keeps its backend. WAITS FOR: a backend, the end of a pause, the",
    "client that has a transaction open, the sessions that hold a lock, or a wait",
    "event of the server. WHY: \"> \" and what it waits for, or else the cause.",
    "\"pool\" beside the waits is the one with the longest p99.",
];

pub fn draw(frame: &mut Frame, app: &App) {
    let parts = Layout::vertical([
        Constraint::Length(HEADER),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .split(frame.area());
    frame.render_widget(header(app), parts[0]);
    match &app.mode {
        Mode::Table => {
            let width = parts[1].width;
            let table = table(app.rows(), width).header(titles(width));
            let mut state = TableState::new().with_selected(Some(app.cursor));
            frame.render_stateful_widget(table, parts[1], &mut state);
        }
        Mode::Life { pid, said, scroll } => {
            let mut lines = vec![Line::styled(format!("session {pid}"), bold())];
            if said.is_empty() {
                lines.push(Line::from("asking ..."));
            }
            lines.extend(said.iter().map(|one| Line::from(one.as_str())));
            let text = Paragraph::new(lines)
                .wrap(Wrap { trim: true })
                .scroll((*scroll, 0));
            frame.render_widget(text, parts[1]);
        }
        Mode::Help => {
            let lines = HELP.iter().map(|line| Line::from(*line));
            let text = Paragraph::new(lines.collect::<Vec<_>>()).wrap(Wrap { trim: false });
            frame.render_widget(text, parts[1]);
        }
    }
    frame.render_widget(Paragraph::new(foot(app)), parts[2]);
}

fn header(app: &App) -> Paragraph<'static> {
    Paragraph::new(match &app.sample {
        Some(sample) => numbers(app, sample),
        None => vec![Line::from("baton top")],
    })
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn per_second(number: Option<f64>) -> String {
    match number {
        None => "-".to_owned(),
        Some(number) if number >= 10.0 => count(number.round() as i64),
        Some(number) => format!("{number:.1}"),
    }
}

fn optional_time(seconds: Option<f64>) -> String {
    seconds.map_or("-".to_owned(), duration)
}

fn numbers(app: &App, sample: &Sample) -> Vec<Line<'static>> {
    let rates = app.rates;
    let rate = |of: fn(&super::sample::Rates) -> f64| per_second(rates.as_ref().map(of));
    let whole = |path: &str| count(sample.whole(path));
    let labelled = |label: &str, text: String| {
        Line::from(vec![
            Span::styled(format!("{label:<9}"), bold()),
            Span::raw(text),
        ])
    };
    let build = sample.text("build.build");
    let mut about = format!(
        "{}{}  up {}  process {}  restarts {}",
        sample.text("build.version"),
        if build.is_empty() {
            String::new()
        } else {
            format!(" ({})", build.chars().take(7).collect::<String>())
        },
        duration(sample.number("dispatcher.up").unwrap_or_default()),
        sample.whole("dispatcher.pid"),
        whole("build.restarts"),
    );
    if sample.installed_differs() {
        about += "  another build is installed";
    }
    let waits = match sample.worst_pool() {
        Some((database, p50, p99)) => format!(
            "last minute p50 {}, p99 {} (pool {})",
            duration(p50),
            duration(p99),
            crate::text::name(&database)
        ),
        None => "no wait in the last minute".to_owned(),
    };
    let waiting = match sample.number("pool.longest_wait") {
        Some(longest) => format!("{}, longest {}", whole("totals.waiting"), duration(longest)),
        None => whole("totals.waiting"),
    };
    let pauses = match sample.whole("pauses") {
        0 => String::new(),
        many => format!(", {}", counted(many, "pause")),
    };
    vec![
        labelled("pg_baton", format!("{about}  {}", sample.text("time"))),
        labelled(
            "load",
            format!(
                "{}/s transactions, {}/s requests, {}/s errors",
                rate(|rates| rates.transactions),
                rate(|rates| rates.requests),
                rate(|rates| rates.errors),
            ),
        ),
        labelled("waiting", format!("{waiting}; {waits}")),
        labelled(
            "backends",
            format!(
                "{}: {} busy, {} idle, {} dedicated, {} starting; hand-over {}",
                whole("backends.all"),
                whole("backends.busy"),
                whole("backends.idle"),
                whole("backends.dedicated"),
                whole("backends.starting"),
                optional_time(rates.and_then(|rates| rates.hand_over)),
            ),
        ),
        labelled(
            "logins",
            format!(
                "{}/s, refused {}/s",
                rate(|rates| rates.logins),
                rate(|rates| rates.refused),
            ),
        ),
        labelled(
            "sessions",
            format!(
                "{}: {} active, {} in transaction, {} dedicated, {} native{pauses}",
                whole("totals.sessions"),
                whole("totals.active"),
                whole("totals.in_transaction"),
                whole("totals.dedicated"),
                whole("totals.native"),
            ),
        ),
    ]
}

/// A column: its title, its width, and its text for a session. Width 0: what is left.
type Column = (&'static str, u16, fn(&Row) -> String);

fn columns(width: u16) -> Vec<Column> {
    let state = |row: &Row| match row.state.as_str() {
        "idle in transaction" => "idle in tx".to_owned(),
        "idle in transaction (aborted)" => "aborted tx".to_owned(),
        state => state.to_owned(),
    };
    // Why it is where it is: the wait of now, else the cause.
    let why = |row: &Row| {
        if row.waits_for.is_empty() {
            cause(row)
        } else {
            format!("> {}", row.waits_for)
        }
    };
    let is_narrow = width < 100;
    let names = if is_narrow { 9 } else { 12 };
    let mut columns: Vec<Column> = vec![
        ("PID", 10, |row| row.pid.to_string()),
        ("DATABASE", names, |row| row.database.clone()),
        ("ROLE", names, |row| row.role.clone()),
    ];
    if width >= 120 {
        columns.push(("APPLICATION", 14, |row| row.application.clone()));
    }
    columns.push(("STATE", 10, state));
    columns.push(("FOR", 7, |row| duration(row.age)));
    if is_narrow {
        columns.push(("WHY", 14, why));
    } else {
        columns.push(("DEDICATED", 16, cause));
        columns.push(("WAITS FOR", 14, |row| row.waits_for.clone()));
    }
    columns.push(("QUERY", 0, |row| row.query.clone()));
    columns
}

fn cause(row: &Row) -> String {
    if row.mode == "native" {
        format!("native: {}", row.cause)
    } else {
        row.cause.clone()
    }
}

fn table(rows: &[Row], width: u16) -> Table<'static> {
    let columns = columns(width);
    let widths = columns.iter().map(|(_, width, _)| match width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(*width),
    });
    let rows = rows.iter().map(|row| {
        let cells = columns.iter().map(|(_, _, text)| Cell::from(text(row)));
        TableRow::new(cells.collect::<Vec<_>>()).style(style_of(row))
    });
    Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

fn titles(width: u16) -> TableRow<'static> {
    let titles = columns(width).into_iter().map(|(title, _, _)| title);
    TableRow::new(titles.collect::<Vec<_>>()).style(bold().add_modifier(Modifier::UNDERLINED))
}

fn style_of(row: &Row) -> Style {
    match row.state.as_str() {
        "waiting" => Style::new().fg(Color::Yellow),
        state if state.starts_with("idle in transaction") => Style::new().fg(Color::Magenta),
        "active" => Style::new().fg(Color::Green),
        _ if !row.cause.is_empty() => Style::new().fg(Color::Cyan),
        _ => Style::new(),
    }
}

fn foot(app: &App) -> Line<'static> {
    match &app.asking {
        Asking::Filter(which, text) => {
            return Line::styled(format!("{}: {text}_", which.name()), bold())
        }
        Asking::Confirmation(signal) => {
            let row = &signal.row;
            let what = match signal.function {
                "pg_cancel_backend" => "Cancel the query of",
                _ => "End",
            };
            return Line::styled(
                format!(
                    "{what} session {} ({} in {})? y, or any other key",
                    row.pid, row.role, row.database
                ),
                bold(),
            );
        }
        Asking::Nothing => {}
    }
    if let Some(failure) = &app.failure {
        return Line::styled(
            format!("no answer, asking again: {failure}"),
            Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        );
    }
    match (&app.notice, &app.mode) {
        (Some(notice), _) => Line::styled(notice.clone(), bold()),
        (None, Mode::Table) => Line::from(format!("{}   ? help  q quit", summary(app))),
        (None, _) => Line::from("Esc back   up, down scroll   C cancel   T terminate"),
    }
}

/// Which sessions the table has.
fn summary(app: &App) -> String {
    let Some(sample) = &app.sample else {
        return "asking ...".to_owned();
    };
    let (shown, matching) = (app.rows().len(), sample.whole("totals.matching"));
    let filters = app.view.filters();
    let mut text = if shown as i64 == matching {
        counted(matching, "session")
    } else {
        format!("{} of {}", shown, counted(matching, "session"))
    };
    if !filters.is_empty() {
        text += &format!(" with {filters}");
    }
    let reversed = if app.view.is_reversed {
        " reversed"
    } else {
        ""
    };
    text + &format!(", by {}{reversed}", app.view.order.name())
}

/// The frame as text, with all sessions that were asked for.
pub fn text(app: &App, width: u16) -> String {
    let mut text = lines(header(app), width, HEADER);
    let none: &[Row] = &[];
    text += &lines(table(none, width).header(titles(width)), width, 1);
    // A buffer has at most 65,535 cells.
    for row in app.rows() {
        text += &lines(table(std::slice::from_ref(row), width), width, 1);
    }
    text + &summary(app) + "\n"
}

fn lines(widget: impl Widget, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    widget.render(area, &mut buffer);
    let line = |cells: &[BufferCell]| {
        let text: String = cells.iter().map(BufferCell::symbol).collect();
        text.trim_end().to_owned() + "\n"
    };
    let lines = buffer.content().chunks(usize::from(width.max(1)));
    lines.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::connection::Reply;
    use super::super::sample::{Order, View};
    use super::*;
    use ratatui::backend::TestBackend;
    use ratatui::Terminal;
    use serde_json::json;

    fn app() -> App {
        let mut app = App::new(View {
            order: Order::Urgency,
            is_reversed: false,
            database: Some("shop".into()),
            role: None,
            cause: None,
            limit: 3,
        });
        let sample = |clock: f64, transactions: i64| {
            json!({"clock": clock, "time": "2026-11-28 12:00:00",
                "rows": [
                    [533_043_403, "shop", "app", "776562", "waiting", 3.5, "shared", null, "backend", "", "1"],
                    [533_043_404, "shop", "a very long name of a role", "", "idle in transaction", 42, "dedicated", "listen", "client", "53454c4543540931", "1"],
                    [4711, "shop", "app", "", "active", 0.01, "native", "replication", null, "c3a4c3a4", "1"],
                ],
                "totals": {"sessions": 10_000, "matching": 5000, "waiting": 1, "active": 1, "in_transaction": 1, "dedicated": 1, "native": 1},
                "pool": {"longest_wait": 3.5}, "worst": ["shop", 0.0005, 0.25],
                "backends": {"all": 4, "busy": 2, "idle": 1, "dedicated": 1, "starting": 0},
                "counts": {"since": "1", "transactions": transactions, "requests": transactions, "errors": 0, "logins": 0, "refused": 0, "hand_overs": transactions, "hand_over_time_us": transactions * 20},
                "dispatcher": {"pid": 50, "up": 7300}, "build": {"version": "1.0.0", "build": "0123456789abcdef", "restarts": 0, "differs": false},
                "pauses": 0})
        };
        for (clock, transactions) in [(1.0, 0), (2.0, 12_345)] {
            app.take_reply(Reply {
                sample: Ok(sample(clock, transactions)),
                life: None,
                signal: None,
            });
        }
        app
    }

    #[test]
    fn a_frame_has_numbers_sessions_and_how_many_there_are() {
        let frame = text(&app(), 132);
        for part in [
            "1.0.0 (0123456)  up 2 h  process 50",
            "12,345/s transactions",
            "1, longest 3.5 s; last minute p50 500 us, p99 250 ms (pool shop)",
            "4: 2 busy, 1 idle, 1 dedicated, 0 starting; hand-over 20 us",
            "10,000: 1 active",
            "533043403  shop         app          web            waiting    3.5 s ",
            "listen           client         SELECT 1",
            "native: replicat",
            "3 of 5,000 sessions with database = shop, by urgency",
        ] {
            assert!(frame.contains(part), "{part:?} is missing in\n{frame}");
        }
    }

    #[test]
    fn eighty_columns_have_the_reason_and_some_of_the_query() {
        let frame = text(&app(), 80);
        assert!(frame.lines().all(|line| line.chars().count() <= 80));
        assert!(frame.contains("(pool shop)\n"), "{frame}");
        assert!(frame.contains("> backend"), "{frame}");
        assert!(frame.contains("> client"));
        assert!(frame.contains("SELECT 1"));
    }

    #[test]
    fn ten_thousand_sessions_can_be_printed() {
        let mut app = app();
        let row = app.rows()[0].clone();
        if let Some(sample) = &mut app.sample {
            sample.rows = vec![row; 10_000];
        }
        let frame = text(&app, 200);
        assert_eq!(frame.lines().count(), usize::from(HEADER) + 1 + 10_000 + 1);
        let with_session = frame
            .lines()
            .filter(|line| line.contains("> backend") || line.contains("533043403  shop"));
        assert_eq!(with_session.count(), 10_000);
    }

    #[test]
    fn any_size_can_be_drawn() {
        let mut app = app();
        let modes = [
            Mode::Table,
            Mode::Help,
            Mode::Life {
                pid: 5,
                said: vec!["a long sentence ".repeat(50)],
                scroll: 3,
            },
        ];
        for mode in modes {
            app.mode = mode;
            for (width, height) in [(1, 1), (5, 3), (20, 8), (80, 24), (300, 100)] {
                let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
                terminal.draw(|frame| draw(frame, &app)).unwrap();
            }
        }
    }

    #[test]
    fn help_fits_a_terminal_of_80_by_24() {
        let mut app = app();
        app.mode = Mode::Help;
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &app)).unwrap();
        let shown: String = (terminal.backend().buffer().content().iter())
            .map(BufferCell::symbol)
            .collect();
        let last: Vec<_> = HELP[HELP.len() - 1].split(' ').collect();
        assert!(shown.contains(last[last.len() - 1]), "{shown}");
    }
}
