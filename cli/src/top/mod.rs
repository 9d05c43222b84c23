//! `baton top`: sessions, backends and waits of a live server, in a terminal.
//!
//! One thread asks, by one psql that stays connected; this one draws and reads keys, and so
//! answers them while the server does not answer.

mod app;
mod connection;
mod draw;
mod sample;

use crate::demo::system::{catch_signals, interrupted, wait_for_hangup};
use anyhow::{bail, Context as _, Result};
use app::{App, Effect};
use connection::{Asker, Process, Reply, Request, Target};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::DefaultTerminal;
use sample::{Order, View};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

/// The options of `baton top`.
#[derive(clap::Args)]
pub struct Arguments {
    /// How to reach a database that has the extension: a connection string or URI for libpq; best the server's own port [default: as psql, by PG* variables]
    #[arg(value_name = "CONNINFO")]
    server: Option<String>,
    /// Time between two questions to the server, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_interval)]
    interval: Duration,
    /// Print one frame as text and end; its numbers a second are those of one interval
    #[arg(long)]
    once: bool,
    /// The most sessions that are asked for
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rows: u32,
    /// What sessions are sorted by
    #[arg(long, value_enum, default_value_t = Order::Urgency)]
    sort: Order,
    /// Sort the other way round
    #[arg(long)]
    reverse: bool,
    /// Only sessions of this database
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    /// Only sessions of this role
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
    /// Only dedicated and native sessions whose cause contains this text
    #[arg(long, value_name = "TEXT")]
    cause: Option<String>,
    /// The psql to ask with [default: the one on the PATH]
    #[arg(long, value_name = "PATH", default_value = "psql")]
    psql: PathBuf,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds from 0.1 to 3600".to_owned()),
    }
}

/// How long a key waits at most until a signal or an answer is seen.
const TICK: Duration = Duration::from_millis(100);
/// A question is given up after this time: its statement_timeout has passed and the network is
/// gone, or the server stands still.
const PATIENCE: Duration = Duration::from_secs(20);
/// Width of a frame as text if the environment does not say.
const TEXT_WIDTH: u16 = 132;

/// Returns 0. An error means that the server cannot be asked at the start, or the terminal is gone.
pub fn main(arguments: Arguments) -> Result<ExitCode> {
    let target = Target {
        psql: arguments.psql,
        conninfo: arguments.server,
    };
    let app = App::new(View {
        order: arguments.sort,
        is_reversed: arguments.reverse,
        database: arguments.database,
        role: arguments.role,
        cause: arguments.cause,
        limit: arguments.rows,
    });
    let process = Process::default();
    let asker = Asker::new(target, process.clone());
    if arguments.once {
        return print_once(app, asker, arguments.interval);
    }
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        bail!("this is no terminal: --once prints one frame as text");
    }
    let mut asker = asker;
    let mut app = app;
    let first = asker.ask(&request_of(&mut app));
    app.take_reply(first.or_error()?);
    catch_signals();
    let (requests, asked) = mpsc::channel();
    let (answered, replies) = mpsc::channel();
    std::thread::Builder::new()
        .spawn(move || connection::serve(asker, &asked, &answered))
        .context("no thread for the connection")?;
    let last = process.clone();
    // crossterm reads the end of a terminal again and again, and returns from no wait then.
    std::thread::Builder::new()
        .spawn(move || {
            wait_for_hangup();
            last.end();
            std::process::exit(2);
        })
        .context("no thread for the terminal")?;
    // From here on a panic restores the terminal, too.
    let terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let ran = run(
        terminal,
        &mut app,
        arguments.interval,
        &requests,
        &replies,
        &process,
    );
    ratatui::restore();
    process.end();
    ran.map(|()| ExitCode::SUCCESS)
}

impl Reply {
    fn or_error(self) -> Result<Reply> {
        let sample = self.sample?;
        Ok(Reply {
            sample: Ok(sample),
            ..self
        })
    }
}

fn request_of(app: &mut App) -> Request {
    Request {
        view: app.view.clone(),
        life_of: app.life_of(),
        signal: app.signal.take(),
    }
}

fn print_once(mut app: App, mut asker: Asker, interval: Duration) -> Result<ExitCode> {
    for is_first in [true, false] {
        let reply = asker.ask(&request_of(&mut app));
        app.take_reply(reply.or_error()?);
        if is_first {
            std::thread::sleep(interval);
        }
    }
    let columns = std::env::var("COLUMNS").ok();
    let width = columns.and_then(|text| text.parse().ok());
    let frame = draw::text(&app, width.unwrap_or(TEXT_WIDTH).clamp(40, 1000));
    io::stdout().write_all(frame.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Until the user or a signal ends it.
fn run(
    mut terminal: DefaultTerminal,
    app: &mut App,
    interval: Duration,
    requests: &Sender<Request>,
    replies: &Receiver<Reply>,
    process: &Process,
) -> Result<()> {
    let mut asked_at: Option<Instant> = None;
    let mut next = Instant::now() + interval.min(Duration::from_secs(1));
    let mut is_stale = true;
    loop {
        if is_stale {
            terminal.draw(|frame| draw::draw(frame, app))?;
            is_stale = false;
        }
        if interrupted() {
            return Ok(());
        }
        if event::poll(TICK)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match app.take_key(key) {
                    Effect::Quit => return Ok(()),
                    Effect::Ask => next = Instant::now(),
                    Effect::Nothing => {}
                },
                _ => {}
            }
            // Keys, and another size of the terminal.
            is_stale = true;
        }
        match replies.try_recv() {
            Ok(reply) => {
                app.take_reply(reply);
                asked_at = None;
                is_stale = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => bail!("the thread of the connection has ended"),
        }
        match asked_at {
            None if Instant::now() >= next => {
                requests.send(request_of(app))?;
                asked_at = Some(Instant::now());
                next = Instant::now() + interval;
            }
            Some(at) if at.elapsed() > PATIENCE => {
                // Its question fails, and the next one connects anew.
                process.end();
                asked_at = Some(Instant::now());
            }
            _ => {}
        }
    }
}
