//! One psql that stays connected and answers one question after the other.

use super::sample::{self, Row, View};
use crate::doctor::ask::{Server, PINNED};
use crate::why::facts;
use anyhow::{anyhow, bail, Context as _, Result};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};

/// How to reach the server.
#[derive(Clone, Debug)]
pub struct Target {
    pub psql: PathBuf,
    pub conninfo: Option<String>,
}

/// The process of the present connection, so that another thread can end it.
#[derive(Clone, Default)]
pub struct Process(Arc<Mutex<Option<Child>>>);

impl Process {
    fn replace(&self, child: Option<Child>) {
        let mut held = self.0.lock().unwrap_or_else(|held| held.into_inner());
        if let Some(mut old) = std::mem::replace(&mut *held, child) {
            let _ = old.kill();
            let _ = old.wait();
        }
    }

    /// A question that is being asked fails.
    pub fn end(&self) {
        self.replace(None);
    }
}

struct Connection {
    server: Server,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    errors: ChildStderr,
}

/// Warnings would fill the pipe that is read only at the end.
const BEGIN: &str = "SET client_min_messages = error; SET statement_timeout = '10s';";

impl Connection {
    fn open(target: &Target, process: &Process) -> Result<Connection> {
        let server = Server::unattended(&target.psql, target.conninfo.as_deref())?;
        let mut child = (server.psql())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", target.psql.display()))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        process.replace(Some(child));
        let (Some(questions), Some(answers), Some(errors)) = pipes else {
            bail!("psql has no pipes");
        };
        let mut connection = Connection {
            server,
            questions,
            answers: BufReader::new(answers),
            errors,
        };
        connection.send(&format!("{PINNED};\n{BEGIN}\n"))?;
        Ok(connection)
    }

    fn send(&mut self, text: &str) -> Result<()> {
        let sent = self.questions.write_all(text.as_bytes());
        sent.map_err(|error| self.failure(error.into()))
    }

    /// The first value of a query that returns one JSON array in one line. psql ends at an error.
    fn ask(&mut self, sql: &str) -> Result<Value> {
        self.send(&format!("{sql};\n"))?;
        let mut line = Vec::new();
        let read = self.answers.read_until(b'\n', &mut line);
        match read {
            Ok(0) => return Err(self.failure(anyhow!("the connection has ended"))),
            Err(error) => return Err(self.failure(error.into())),
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line);
        match serde_json::from_str(line.trim()) {
            Ok(Value::Array(mut values)) if !values.is_empty() => Ok(values.swap_remove(0)),
            _ => bail!("psql has not answered what it was asked: {}", line.trim()),
        }
    }

    /// What psql says of its end.
    fn failure(&mut self, error: anyhow::Error) -> anyhow::Error {
        let mut said = String::new();
        let _ = self.errors.read_to_string(&mut said);
        let first = said.lines().find(|line| !line.trim().is_empty());
        first.map_or(error, |line| anyhow!("{}", crate::text::plain(line)))
    }
}

/// What to ask for a frame.
pub struct Request {
    pub view: View,
    /// The session whose life is shown.
    pub life_of: Option<i32>,
    pub signal: Option<Signal>,
}

/// A session that is to be cancelled or ended.
#[derive(Clone, Debug)]
pub struct Signal {
    pub function: &'static str,
    pub row: Row,
}

/// The answers to a request.
pub struct Reply {
    pub sample: Result<Value>,
    pub life: Option<(i32, Value)>,
    /// What became of the signal.
    pub signal: Option<String>,
}

/// Asks, and connects if it must.
pub struct Asker {
    target: Target,
    process: Process,
    connection: Option<Connection>,
}

impl Asker {
    pub fn new(target: Target, process: Process) -> Asker {
        Asker {
            target,
            process,
            connection: None,
        }
    }

    pub fn ask(&mut self, request: &Request) -> Reply {
        let signal = request.signal.as_ref().map(|signal| self.send(signal));
        let sample = self.question(|server| sample::question(server, &request.view));
        let life = match (request.life_of, &sample) {
            (Some(pid), Ok(_)) => {
                let facts = self.question(|server| facts::question(server, pid));
                facts.ok().map(|facts| (pid, facts))
            }
            _ => None,
        };
        Reply {
            sample,
            life,
            signal,
        }
    }

    fn send(&mut self, signal: &Signal) -> String {
        let Signal { function, row } = signal;
        match self.question(|server| sample::signal(server, function, row)) {
            Ok(Value::Bool(true)) => format!("{function}({}) was sent", row.pid),
            Ok(Value::Bool(false)) => format!("{function}({}) has failed", row.pid),
            Ok(_) => format!("session {} has ended", row.pid),
            Err(error) => format!("{function}({}): {error:#}", row.pid),
        }
    }

    fn question(&mut self, make: impl FnOnce(&Server) -> String) -> Result<Value> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.target, &self.process)?,
        };
        let sql = make(&connection.server);
        let answer = connection.ask(&sql);
        match &answer {
            Ok(_) => self.connection = Some(connection),
            Err(_) => self.process.end(),
        }
        answer
    }
}

/// Answers requests until there are no more.
pub fn serve(mut asker: Asker, requests: &Receiver<Request>, replies: &Sender<Reply>) {
    while let Ok(request) = requests.recv() {
        if replies.send(asker.ask(&request)).is_err() {
            return;
        }
    }
}
