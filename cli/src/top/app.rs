//! The state of `baton top`, and what keys do to it. No input or output is here.

use super::connection::{Reply, Signal};
use super::sample::{Order, Rates, Row, Sample, View};
use crate::why::sentences::sentences;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;

/// What the screen shows below the numbers.
#[derive(Debug)]
pub enum Mode {
    Table,
    /// One session, in sentences.
    Life {
        pid: i32,
        said: Vec<String>,
        scroll: u16,
    },
    Help,
}

/// What the keys write into, until Enter or Esc.
#[derive(Debug)]
pub enum Asking {
    Nothing,
    Filter(Filter, String),
    Confirmation(Box<Signal>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    Database,
    Role,
    Cause,
}

impl Filter {
    pub fn name(self) -> &'static str {
        match self {
            Filter::Database => "database",
            Filter::Role => "role",
            Filter::Cause => "part of the cause",
        }
    }
}

/// What the keys ask of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    /// A new sample is wanted now.
    Ask,
    Quit,
}

pub struct App {
    pub view: View,
    pub sample: Option<Sample>,
    pub rates: Option<Rates>,
    pub mode: Mode,
    pub asking: Asking,
    /// The row under the cursor, among those of the sample.
    pub cursor: usize,
    /// What has happened; the next key removes it.
    pub notice: Option<String>,
    /// Why there is no answer at present.
    pub failure: Option<String>,
    /// A signal that the next request takes along.
    pub signal: Option<Signal>,
}

/// Rows that a page key moves the cursor by.
const PAGE: usize = 15;

impl App {
    pub fn new(view: View) -> App {
        App {
            view,
            sample: None,
            rates: None,
            mode: Mode::Table,
            asking: Asking::Nothing,
            cursor: 0,
            notice: None,
            failure: None,
            signal: None,
        }
    }

    pub fn rows(&self) -> &[Row] {
        self.sample.as_ref().map_or(&[], |sample| &sample.rows)
    }

    fn selected(&self) -> Option<&Row> {
        self.rows().get(self.cursor)
    }

    /// The session whose facts the next request asks for.
    pub fn life_of(&self) -> Option<i32> {
        match self.mode {
            Mode::Life { pid, .. } => Some(pid),
            _ => None,
        }
    }

    pub fn take_reply(&mut self, reply: Reply) {
        if let Some(text) = reply.signal {
            self.notice = Some(text);
        }
        match reply.sample {
            Ok(facts) => self.take_sample(Sample::read(facts)),
            Err(error) => {
                self.failure = Some(crate::text::plain(&format!("{error:#}")));
                self.rates = None;
            }
        }
        if let Some((pid, facts)) = reply.life {
            self.take_life(pid, &facts);
        }
    }

    fn take_sample(&mut self, sample: Sample) {
        let mut happened = Vec::new();
        if self.failure.take().is_some() {
            happened.push(format!("the server answers again, {}", sample.text("time")));
        }
        if let Some(before) = &self.sample {
            self.rates = Rates::between(before, &sample);
            let dispatcher = |of: &Sample| of.whole("dispatcher.pid");
            if dispatcher(before) != dispatcher(&sample) {
                let pid = dispatcher(&sample);
                happened.push(format!("another dispatcher has started, process {pid}"));
            }
        }
        if !happened.is_empty() {
            self.notice = Some(happened.join("; "));
        }
        // The cursor stays with its session.
        let pid = self.selected().map(|row| row.pid);
        let found = sample.rows.iter().position(|row| Some(row.pid) == pid);
        let last = sample.rows.len().saturating_sub(1);
        self.cursor = found.unwrap_or(self.cursor).min(last);
        self.sample = Some(sample);
    }

    fn take_life(&mut self, of: i32, facts: &Value) {
        let Mode::Life { pid, said, .. } = &mut self.mode else {
            return;
        };
        if *pid != of {
            return;
        }
        match sentences(facts) {
            Some(told) => *said = told,
            // What was known last stays.
            None => {
                let ended = format!("Session {of} has ended.");
                if said.first() != Some(&ended) {
                    said.insert(0, ended);
                }
            }
        }
    }

    pub fn take_key(&mut self, key: KeyEvent) -> Effect {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && matches!(key.code, KeyCode::Char('c' | 'C')) {
            return Effect::Quit;
        }
        if is_control {
            return Effect::Nothing;
        }
        self.notice = None;
        match std::mem::replace(&mut self.asking, Asking::Nothing) {
            Asking::Filter(which, text) => self.take_filter_key(which, text, key.code),
            Asking::Confirmation(signal) => self.take_confirmation(signal, key.code),
            Asking::Nothing => match self.mode {
                Mode::Table => self.take_table_key(key.code),
                _ => self.take_page_key(key.code),
            },
        }
    }

    fn take_filter_key(&mut self, which: Filter, mut text: String, key: KeyCode) -> Effect {
        match key {
            KeyCode::Enter => {
                let value = Some(text).filter(|text| !text.is_empty());
                match which {
                    Filter::Database => self.view.database = value,
                    Filter::Role => self.view.role = value,
                    Filter::Cause => self.view.cause = value,
                }
                return Effect::Ask;
            }
            KeyCode::Esc => return Effect::Nothing,
            KeyCode::Backspace => {
                text.pop();
            }
            // A name has at most 63 bytes.
            KeyCode::Char(c) if text.len() < 63 => text.push(c),
            _ => {}
        }
        self.asking = Asking::Filter(which, text);
        Effect::Nothing
    }

    fn take_confirmation(&mut self, signal: Box<Signal>, key: KeyCode) -> Effect {
        match key {
            KeyCode::Char('y' | 'Y') => {
                self.signal = Some(*signal);
                Effect::Ask
            }
            _ => {
                self.notice = Some("nothing was sent".to_owned());
                Effect::Nothing
            }
        }
    }

    fn take_table_key(&mut self, key: KeyCode) -> Effect {
        let last = self.rows().len().saturating_sub(1);
        match key {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Up => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::Down => self.cursor = (self.cursor + 1).min(last),
            KeyCode::PageUp => self.cursor = self.cursor.saturating_sub(PAGE),
            KeyCode::PageDown => self.cursor = (self.cursor + PAGE).min(last),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = last,
            KeyCode::Enter => {
                let pid = self.selected().map(|row| row.pid);
                if let Some(pid) = pid {
                    let said = Vec::new();
                    self.mode = Mode::Life {
                        pid,
                        said,
                        scroll: 0,
                    };
                    return Effect::Ask;
                }
            }
            KeyCode::Char('s' | '>') => return self.change_order(1),
            KeyCode::Char('S' | '<') => return self.change_order(Order::ALL.len() - 1),
            KeyCode::Char('r') => {
                self.view.is_reversed = !self.view.is_reversed;
                return Effect::Ask;
            }
            KeyCode::Char('d') => self.ask_filter(Filter::Database, self.view.database.clone()),
            KeyCode::Char('u') => self.ask_filter(Filter::Role, self.view.role.clone()),
            KeyCode::Char('c') => self.ask_filter(Filter::Cause, self.view.cause.clone()),
            KeyCode::Char('x') => {
                (self.view.database, self.view.role, self.view.cause) = (None, None, None);
                return Effect::Ask;
            }
            KeyCode::Char('C') => self.confirm("pg_cancel_backend"),
            KeyCode::Char('T') => self.confirm("pg_terminate_backend"),
            KeyCode::Char(' ') => return Effect::Ask,
            _ => {}
        }
        Effect::Nothing
    }

    /// Keys of a session's life and of the help.
    fn take_page_key(&mut self, key: KeyCode) -> Effect {
        let (is_life, scroll) = match &mut self.mode {
            Mode::Life { scroll, .. } => (true, scroll),
            _ => (false, &mut 0),
        };
        match key {
            KeyCode::Up => *scroll = scroll.saturating_sub(1),
            KeyCode::Down => *scroll = scroll.saturating_add(1).min(200),
            KeyCode::Home => *scroll = 0,
            KeyCode::Char('C') if is_life => self.confirm("pg_cancel_backend"),
            KeyCode::Char('T') if is_life => self.confirm("pg_terminate_backend"),
            KeyCode::Char(' ') => return Effect::Ask,
            KeyCode::Char('q' | '?' | 'h') | KeyCode::Esc | KeyCode::Enter => {
                self.mode = Mode::Table;
            }
            _ => {}
        }
        Effect::Nothing
    }

    fn change_order(&mut self, by: usize) -> Effect {
        let at = Order::ALL.iter().position(|&one| one == self.view.order);
        self.view.order = Order::ALL[(at.unwrap_or(0) + by) % Order::ALL.len()];
        self.view.is_reversed = false;
        self.cursor = 0;
        Effect::Ask
    }

    fn ask_filter(&mut self, which: Filter, present: Option<String>) {
        self.asking = Asking::Filter(which, present.unwrap_or_default());
    }

    /// Of the session whose life is shown, or of the one under the cursor.
    fn confirm(&mut self, function: &'static str) {
        let row = match self.life_of() {
            Some(pid) => self.rows().iter().find(|row| row.pid == pid),
            None => self.selected(),
        };
        match row.cloned() {
            Some(row) => {
                self.asking = Asking::Confirmation(Box::new(Signal { function, row }));
            }
            None => self.notice = Some("there is no such session in the table".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn app() -> App {
        let mut app = App::new(View {
            order: Order::Urgency,
            is_reversed: false,
            database: None,
            role: None,
            cause: None,
            limit: 100,
        });
        app.take_reply(reply(&[7, 8, 9], 1.0, 50));
        app
    }

    fn reply(pids: &[i32], clock: f64, dispatcher: i32) -> Reply {
        let row =
            |pid: &i32| json!([pid, "shop", "app", "", "idle", 1, "shared", null, null, "", "5"]);
        let rows: Vec<_> = pids.iter().map(row).collect();
        let sample =
            json!({"clock": clock, "time": "now", "rows": rows, "dispatcher": {"pid": dispatcher}});
        Reply {
            sample: Ok(sample),
            life: None,
            signal: None,
        }
    }

    fn press(app: &mut App, keys: &str) -> Effect {
        let code = |c: char| match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            'v' => KeyCode::Down,
            c => KeyCode::Char(c),
        };
        let mut last = Effect::Nothing;
        for c in keys.chars() {
            last = app.take_key(KeyEvent::new(code(c), KeyModifiers::NONE));
        }
        last
    }

    #[test]
    fn the_cursor_stays_with_its_session() {
        let mut app = app();
        press(&mut app, "v");
        app.take_reply(reply(&[6, 7, 8, 9], 2.0, 50));
        assert_eq!(app.selected().map(|row| row.pid), Some(8));
        app.take_reply(reply(&[6], 3.0, 50));
        assert_eq!(app.selected().map(|row| row.pid), Some(6));
        app.take_reply(reply(&[], 4.0, 50));
        assert!(app.selected().is_none());
        press(&mut app, "vvC\n");
    }

    #[test]
    fn nothing_is_sent_without_confirmation() {
        for keys in ["T\x1b", "Tn", "T\n", "Cq", "\nT\x1b"] {
            let mut app = app();
            press(&mut app, keys);
            assert!(app.signal.is_none(), "{keys:?}");
        }
        let mut app = app();
        assert_eq!(press(&mut app, "vTy"), Effect::Ask);
        let signal = app.signal.unwrap();
        assert_eq!(
            (signal.function, signal.row.pid),
            ("pg_terminate_backend", 8)
        );
        // The session whose life is shown, wherever the cursor is.
        let mut app = self::app();
        press(&mut app, "v\n");
        app.take_reply(reply(&[9, 8, 7], 2.0, 50));
        press(&mut app, "Cy");
        let signal = app.signal.unwrap();
        assert_eq!((signal.function, signal.row.pid), ("pg_cancel_backend", 8));
    }

    #[test]
    fn filters_are_typed_and_removed() {
        let mut app = app();
        assert_eq!(press(&mut app, "dshopq\x08\n"), Effect::Ask);
        assert_eq!(app.view.database.as_deref(), Some("shop"));
        press(&mut app, "uapp\x1b");
        assert_eq!(app.view.role, None);
        press(&mut app, "clisten\n");
        assert_eq!(app.view.cause.as_deref(), Some("listen"));
        press(&mut app, "x");
        assert_eq!((app.view.database, app.view.cause), (None, None));
    }

    #[test]
    fn orders_come_in_turn() {
        let mut app = app();
        for _ in 0..Order::ALL.len() {
            press(&mut app, "s");
        }
        assert_eq!(app.view.order, Order::Urgency);
        press(&mut app, "S");
        assert_eq!(app.view.order, Order::Memory);
    }

    #[test]
    fn a_lost_server_and_a_new_dispatcher_are_told() {
        let mut app = app();
        app.take_reply(Reply {
            sample: Err(anyhow::anyhow!("gone\x1b[2J")),
            life: None,
            signal: None,
        });
        assert_eq!(app.failure.as_deref(), Some("gone [2J"));
        assert_eq!(app.rows().len(), 3, "the last rows stay");
        app.take_reply(reply(&[7], 2.0, 50));
        assert!(app.failure.is_none());
        assert!(app
            .notice
            .as_deref()
            .is_some_and(|text| text.contains("answers again")));
        app.take_reply(reply(&[7], 3.0, 51));
        assert!(app
            .notice
            .as_deref()
            .is_some_and(|text| text.contains("another dispatcher")));
    }

    #[test]
    fn a_life_ends_and_stays_readable() {
        let mut app = app();
        assert_eq!(press(&mut app, "\n"), Effect::Ask);
        let mut with = |facts: Value| {
            app.take_reply(Reply {
                life: Some((7, facts)),
                ..reply(&[7], 2.0, 50)
            });
            match &app.mode {
                Mode::Life { said, .. } => said.clone(),
                _ => panic!("no life is shown"),
            }
        };
        let process = json!({"state": "idle", "database": "shop", "session": null, "age": 1.0});
        let said = with(json!({"pid": 7, "process": process}));
        assert!(!said.is_empty());
        for _ in 0..2 {
            let after = with(json!({"pid": 7}));
            assert_eq!(after[0], "Session 7 has ended.");
            assert_eq!(after[1..], said[..]);
        }
        assert_eq!(press(&mut app, "q"), Effect::Nothing);
        assert_eq!(press(&mut app, "q"), Effect::Quit);
    }

    #[test]
    fn control_c_ends_it_anywhere() {
        let mut app = app();
        press(&mut app, "d");
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.take_key(key), Effect::Quit);
    }
}
