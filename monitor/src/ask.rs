//! What the monitor asks: the launcher about the server, and the dispatcher for views.
//!
//! The launcher sends the connection to the dispatcher (docs/design/monitor.md), and another one
//! when that has ended. One question is asked at a time; each has a time limit, and answers are
//! kept for a second, so clients of the monitor cannot make the dispatcher work.

use crate::sys;
use anyhow::{bail, Context};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;
use tokio::time::{timeout, Instant};

/// Constants of `shared/`.
pub mod shared {
    #![allow(dead_code, missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}
use shared::*;

/// An answer takes at most this long, of the launcher or the dispatcher.
const LIMIT: Duration = Duration::from_secs(2);
/// Answers are as old as this at most.
const FRESH: Duration = Duration::from_secs(1);
/// More bytes are no answer of the dispatcher's.
const MOST_BYTES: usize = 64 << 20;

/// kind, flags, length, session.
const HEADER: usize = 16;

// ---- Frames -------------------------------------------------------------------

fn frame(kind: u32, number: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend((kind as u16).to_ne_bytes());
    bytes.extend(0u16.to_ne_bytes());
    bytes.extend((payload.len() as u32).to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

/// Reads a payload from its front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn raw(&mut self, length: usize) -> anyhow::Result<&'a [u8]> {
        let (head, rest) = (self.0.split_at_checked(length)).context("a frame is cut off")?;
        self.0 = rest;
        Ok(head)
    }

    fn u8(&mut self) -> anyhow::Result<u8> {
        Ok(self.raw(1)?[0])
    }

    fn u16(&mut self) -> anyhow::Result<u16> {
        Ok(u16::from_ne_bytes(self.raw(2)?.try_into()?))
    }

    fn u32(&mut self) -> anyhow::Result<u32> {
        Ok(u32::from_ne_bytes(self.raw(4)?.try_into()?))
    }

    fn u64(&mut self) -> anyhow::Result<u64> {
        Ok(u64::from_ne_bytes(self.raw(8)?.try_into()?))
    }

    /// Text; names may be in any encoding.
    fn text(&mut self, length: u32) -> anyhow::Result<String> {
        let bytes = self.raw(length as usize)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn string(&mut self) -> anyhow::Result<String> {
        let length = self.u32()?;
        self.text(length)
    }
}

/// A packet's kind, number and payload.
fn parse(packet: &[u8]) -> anyhow::Result<(u32, u64, &[u8])> {
    let mut reader = Reader(packet);
    let (kind, flags, length) = (reader.u16()?, reader.u16()?, reader.u32()?);
    let number = reader.u64()?;
    if flags != 0 || length as usize != reader.0.len() {
        bail!("a frame is malformed");
    }
    Ok((kind.into(), number, reader.0))
}

/// A row of a view.
#[derive(Clone, Debug, Default)]
pub struct Row(Vec<Option<String>>);

impl Row {
    #[cfg(test)]
    pub fn of(columns: &[&str]) -> Row {
        Row(columns.iter().map(|it| Some((*it).to_owned())).collect())
    }

    fn read(payload: &[u8]) -> anyhow::Result<Row> {
        let mut reader = Reader(payload);
        let count = reader.u32()?;
        let column = |_| {
            Ok(match reader.u32()? {
                u32::MAX => None,
                length => Some(reader.text(length)?),
            })
        };
        let columns: anyhow::Result<Vec<Option<String>>> = (0..count).map(column).collect();
        Ok(Row(columns?))
    }

    /// A column's text; None if it is NULL.
    pub fn text(&self, column: usize) -> Option<&str> {
        self.0.get(column)?.as_deref()
    }

    /// The numbers of a column `{"name": number}`; none if it is NULL.
    pub fn counts(&self, column: usize) -> BTreeMap<String, u64> {
        let read = |text| serde_json::from_str(text).ok();
        self.text(column).and_then(read).unwrap_or_default()
    }

    /// A column's number; None if it is NULL, or none.
    pub fn number(&self, column: usize) -> Option<u64> {
        self.text(column)?.parse().ok()
    }
}

// ---- Questions ------------------------------------------------------------------

/// A socket of packets.
struct Packets(AsyncFd<OwnedFd>);

impl Packets {
    fn new(fd: OwnedFd) -> io::Result<Packets> {
        Ok(Packets(sys::events_of(fd)?))
    }

    fn send(&self, packet: &[u8]) -> io::Result<()> {
        sys::send(sys::number(&self.0), packet)
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|fd| sys::receive(sys::number(fd), buffer)) {
                Ok(Ok((0, _))) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => return received,
                Err(_) => {}
            }
        }
    }
}

/// What the launcher says of the server and the dispatcher's process; 0 is unknown.
#[derive(Clone, Debug, Default)]
pub struct Server {
    pub in_recovery: bool,
    pub is_stopping: bool,
    pub dispatcher_starts: u32,
    pub descriptors: u64,
    pub descriptors_most: u64,
    pub resident_bytes: u64,
    pub server_version: String,
    pub version: String,
    pub dispatcher_version: String,
    pub dispatcher_build: String,
}

impl Server {
    /// The fields of BATON_SERVER_ANSWER_FIELDS, in their order.
    fn read(payload: &[u8]) -> anyhow::Result<Server> {
        let mut from = Reader(payload);
        Ok(Server {
            in_recovery: from.u8()? != 0,
            is_stopping: from.u8()? != 0,
            dispatcher_starts: from.u32()?,
            descriptors: from.u64()?,
            descriptors_most: from.u64()?,
            resident_bytes: from.u64()?,
            server_version: from.string()?,
            version: from.string()?,
            dispatcher_version: from.string()?,
            dispatcher_build: from.string()?,
        })
    }
}

/// Both ends of the questions.
struct Channels {
    launcher: Packets,
    dispatcher: Option<Packets>,
    /// Of the last question to the launcher: its answer has the same.
    number: u64,
    buffer: Vec<u8>,
}

impl Channels {
    /// Asks the launcher, and takes a connection to the dispatcher if that is wanted.
    async fn server(&mut self) -> anyhow::Result<Server> {
        self.number += 1;
        let wants = u8::from(self.dispatcher.is_none());
        let question = frame(MSG_SERVER_QUESTION, self.number, &[wants]);
        self.launcher.send(&question)?;
        loop {
            let received = self.launcher.receive(&mut self.buffer).await;
            let (length, connection) = match received {
                // The launcher has ended, or has closed this process's channel.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => std::process::exit(0),
                received => received?,
            };
            let (kind, number, payload) = parse(&self.buffer[..length])?;
            // Others answer earlier questions, too late.
            if kind == MSG_SERVER_ANSWER && number == self.number {
                if let Some(connection) = connection {
                    self.dispatcher = Some(Packets::new(connection)?);
                }
                return Server::read(payload);
            }
        }
    }

    /// Reads a view.
    async fn rows(&mut self, what: u32) -> anyhow::Result<Vec<Row>> {
        let dispatcher = (self.dispatcher.as_ref()).context("the dispatcher does not run")?;
        let question = frame(MSG_MONITOR_QUESTION, 0, &what.to_ne_bytes());
        dispatcher.send(&question)?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        loop {
            let (length, _) = dispatcher.receive(&mut self.buffer).await?;
            let (kind, _, payload) = parse(&self.buffer[..length])?;
            bytes += length;
            match kind {
                MSG_DONE => return Ok(rows),
                MSG_ROW if bytes <= MOST_BYTES => rows.push(Row::read(payload)?),
                _ => bail!("the dispatcher's answer is not understood"),
            }
        }
    }

    /// Reads views. A connection that has not answered in time is not used again.
    async fn views<const N: usize>(&mut self, what: [u32; N]) -> Option<[Vec<Row>; N]> {
        let mut all = [const { Vec::new() }; N];
        let read = async {
            for (rows, what) in all.iter_mut().zip(what) {
                *rows = self.rows(what).await?;
            }
            anyhow::Ok(())
        };
        if let Ok(Ok(())) = timeout(LIMIT, read).await {
            return Some(all);
        }
        self.dispatcher = None;
        None
    }

    /// Asks launcher and dispatcher. A new connection is tried if the one at hand fails at once,
    /// as after a restart of the dispatcher.
    async fn ask<const N: usize>(
        &mut self,
        what: [u32; N],
    ) -> (Option<Server>, Option<[Vec<Row>; N]>) {
        let began = Instant::now();
        let had_connection = self.dispatcher.is_some();
        let server = timeout(LIMIT, self.server()).await;
        let mut server = server.ok().and_then(Result::ok);
        let mut views = self.views(what).await;
        if views.is_none() && had_connection && began.elapsed() < LIMIT / 2 {
            if let Ok(Ok(again)) = timeout(LIMIT, self.server()).await {
                server = Some(again);
                views = self.views(what).await;
            }
        }
        (server, views)
    }
}

// ---- Answers ----------------------------------------------------------------------

/// What health checks go by.
#[derive(Clone, Debug, Default)]
pub struct Health {
    pub server: Option<Server>,
    /// None: the dispatcher does not answer.
    pub pauses: Option<Vec<Row>>,
}

/// What metrics are made of. Without an answer of the dispatcher, its rows are missing.
#[derive(Debug, Default)]
pub struct Numbers {
    pub server: Option<Server>,
    pub is_up: bool,
    pub dispatchers: Vec<Row>,
    pub pauses: Vec<Row>,
    pub pools: Vec<Row>,
    pub backends: Vec<Row>,
    pub sessions: Vec<Row>,
    pub statistics: Vec<Row>,
    pub times: Vec<Row>,
    pub took: Duration,
}

/// An answer, and when it was asked for.
struct Kept<T>(Option<(Instant, Arc<T>)>);

impl<T> Kept<T> {
    fn fresh(&self) -> Option<Arc<T>> {
        let (at, answer) = self.0.as_ref()?;
        (at.elapsed() < FRESH).then(|| answer.clone())
    }

    fn keep(&mut self, answer: T) -> Arc<T> {
        let answer = Arc::new(answer);
        self.0 = Some((Instant::now(), answer.clone()));
        answer
    }
}

struct State {
    channels: Channels,
    health: Kept<Health>,
    numbers: Kept<Numbers>,
}

pub struct Asker(Mutex<State>);

impl Asker {
    pub fn new(channel: OwnedFd) -> io::Result<Asker> {
        Ok(Asker(Mutex::new(State {
            channels: Channels {
                launcher: Packets::new(channel)?,
                dispatcher: None,
                number: 0,
                buffer: vec![0; FRAME_MAX as usize],
            },
            health: Kept(None),
            numbers: Kept(None),
        })))
    }

    pub async fn health(&self) -> Arc<Health> {
        let state = &mut *self.0.lock().await;
        if let Some(health) = state.health.fresh() {
            return health;
        }
        let (server, views) = state.channels.ask([QUERY_PAUSES]).await;
        let pauses = views.map(|[pauses]| pauses);
        state.health.keep(Health { server, pauses })
    }

    /// The sessions that have been at work, or waiting, for more than a moment; empty without an answer.
    pub async fn sessions_at_work(&self) -> Vec<Row> {
        let state = &mut *self.0.lock().await;
        let (_, views) = state.channels.ask([QUERY_SESSIONS_AT_WORK]).await;
        views.map(|[sessions]| sessions).unwrap_or_default()
    }

    pub async fn numbers(&self) -> Arc<Numbers> {
        let state = &mut *self.0.lock().await;
        if let Some(numbers) = state.numbers.fresh() {
            return numbers;
        }
        let began = Instant::now();
        let views = [
            QUERY_DISPATCHERS,
            QUERY_PAUSES,
            QUERY_POOLS,
            QUERY_BACKENDS,
            QUERY_SESSION_COUNTS,
            QUERY_NAMED_STATISTICS,
            QUERY_DATABASE_TIMES,
        ];
        let (server, views) = state.channels.ask(views).await;
        let is_up = views.is_some();
        let [dispatchers, pauses, pools, backends, sessions, statistics, times] =
            views.unwrap_or_default();
        state.numbers.keep(Numbers {
            server,
            is_up,
            dispatchers,
            pauses,
            pools,
            backends,
            sessions,
            statistics,
            times,
            took: began.elapsed(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_are_cut_off_are_no_answers() {
        let whole = frame(MSG_ROW, 7, &[1, 0, 0, 0, 2, 0, 0, 0, b'a', b'b']);
        let (kind, number, payload) = parse(&whole).unwrap();
        assert_eq!((kind, number), (MSG_ROW, 7));
        assert_eq!(Row::read(payload).unwrap().text(0), Some("ab"));
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_err(), "{length}");
        }
        for length in 0..payload.len() {
            assert!(Row::read(&payload[..length]).is_err(), "{length}");
        }
        assert!(Row::read(&[0xff; 8]).is_err());
        let null = [1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(Row::read(&null).unwrap().text(0), None);
        let counts = Row::of(&[r#"{"a": 1, "b, c: }": 22}"#, "{}", "{"]);
        let expected = [("a".to_owned(), 1), ("b, c: }".to_owned(), 22)];
        assert_eq!(counts.counts(0), BTreeMap::from(expected));
        assert!((1..4).all(|column| counts.counts(column).is_empty()));
    }
}
