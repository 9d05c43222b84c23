//! The process that runs relays, and the dispatcher's connection to it.
//!
//! The keys of a TLS session cannot be handed over with a descriptor. So relays run in a process of
//! their own, which outlives the dispatcher: the far ends are kept as a plain client's socket is
//! (`shell/keeper.rs`), and their sessions go on under the next dispatcher, which has a process of
//! its own for new clients. The process ends with its last relay once its dispatcher has ended.
//!
//! The two have one connection, of packets. Both are the same program, so the form of a packet
//! concerns no one else. The dispatcher never waits for the other process, except at its start.

use super::context::{self, Occasion, Passphrase, ServerContext, Settings};
use super::threads::{Handshake, NewRelay, Threads, Told};
use super::{Certificate, ClientEnd, Facts, Names};
use crate::shell::link::wire::{Frame, Malformed, Reader, Writer};
use crate::shell::sys::socket;
use crate::shell::sys::{memory, openssl_memory, process};
use crate::shell::{batch_scheduling, log};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{mpsc, Arc, Mutex, PoisonError};
use std::time::Duration;
use tracing::Level;
use zeroize::Zeroizing;

/// Longest packet. A longer one does not fit into a socket's buffer by default.
const LONGEST: usize = 128 * 1024;
/// Clients that wait while the other process takes none. Further ones are refused.
const MOST_WAITING: usize = 1024;
/// How long relays may take for their last bytes when the server stops.
const LAST_BYTES_LIMIT: Duration = Duration::from_secs(3);
/// The descriptor of the connection in the new process.
const CONNECTION: RawFd = 3;

/// To the relays: the passphrase of the next configuration.
const PASSPHRASE: u32 = 1;
/// A configuration to load.
const LOAD: u32 = 2;
/// A client, with two descriptors: its socket and the near end.
const CLIENT: u32 = 3;
/// The server stops.
const FINISH: u32 = 4;
/// From the relays: what has become of a configuration.
const LOADED: u32 = 5;
/// The result of a handshake.
const HANDSHAKE: u32 = 6;
/// A line for the log.
const LINE: u32 = 7;
/// A decision of its threads about their scheduling policy.
const BATCH: u32 = 8;

/// A TLS configuration to be loaded.
pub struct Load<'a> {
    pub generation: u64,
    pub settings: &'a Settings,
    pub server_major: u32,
    pub occasion: Occasion,
    pub passphrase: &'a Passphrase,
}

/// What has become of a configuration.
pub struct Loaded {
    pub generation: u64,
    /// May a client begin with TLS at once? The error is for the log.
    pub result: Result<bool, String>,
}

/// What the process of the relays says.
pub enum Said {
    Loaded(Loaded),
    Handshake(Handshake),
    Line(Level, String),
    /// Until when its threads interrupt no others.
    Batch(u64),
}

// ---- The dispatcher's side ------------------------------------------------

/// A client's own socket, and the near end.
type Sockets = (ClientEnd, OwnedFd);

/// The process, as the event loop sees it.
pub struct Relays {
    connection: OwnedFd,
    /// Frames that the connection has had no room for.
    waiting: VecDeque<(Vec<u8>, Option<Sockets>)>,
    buffer: Vec<u8>,
    /// The server's certificate that the last client was shown: one copy serves all.
    certificate: Option<Arc<[u8]>>,
}

impl Relays {
    /// Starts the process. Must be called before this one gives up its access to files.
    pub fn start() -> io::Result<Relays> {
        let (connection, other) = socket::pair_of_packets()?;
        let own_name = std::env::args().next().unwrap_or_default();
        let name = match own_name.split_once(':') {
            Some((_, cluster)) => format!("baton-relay:{cluster}"),
            None => "baton-relay".to_owned(),
        };
        process::start_again(&name, "--relay", &other, CONNECTION)?;
        Ok(Relays {
            connection,
            waiting: VecDeque::new(),
            buffer: vec![0; LONGEST],
            certificate: None,
        })
    }

    /// Readable: the process has said something, or has ended.
    pub fn fd(&self) -> RawFd {
        self.connection.as_raw_fd()
    }

    /// Is the connection to be watched for room, too?
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn load(&mut self, load: &Load) {
        if let Some(passphrase) = load.passphrase {
            // The frame has room for it from the start, so no copy stays behind.
            let frame = Writer::new(PASSPHRASE, 0).raw(passphrase).finish();
            self.send(frame, None);
        }
        self.send(load_frame(load), None);
    }

    /// Waits for what becomes of the first configuration. Blocks.
    pub fn wait_for_load(&mut self) -> io::Result<Loaded> {
        loop {
            socket::wait_to_read(self.fd(), -1)?;
            match self.next()? {
                Some(Said::Loaded(loaded)) => return Ok(loaded),
                Some(Said::Line(level, text)) => log::lines::own(level, &text),
                Some(Said::Handshake(_) | Said::Batch(_)) | None => {}
            }
        }
    }

    /// Gives a client to the process. False, and the client's connection is closed, if the process
    /// takes none.
    pub fn give(&mut self, new: NewRelay) -> bool {
        if self.waiting.len() >= MOST_WAITING {
            return false;
        }
        let frame = client_frame(&new);
        self.send(frame, Some((new.client, new.near)));
        true
    }

    fn send(&mut self, frame: Vec<u8>, ends: Option<Sockets>) {
        self.waiting.push_back((frame, ends));
        self.flush();
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) {
        while let Some((frame, ends)) = self.waiting.pop_front() {
            let fds =
                (ends.as_ref()).map(|(client, near)| [client.0.as_raw_fd(), near.as_raw_fd()]);
            let fds = fds.as_ref().map_or(&[][..], |fds| &fds[..]);
            match socket::send_with_descriptors(self.fd(), &frame, fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.waiting.push_front((frame, ends));
                    return;
                }
                // The login's time limit ends it if it was not sent; the end of the process is
                // noticed by the event loop.
                Err(error) => tracing::warn!("could not give a client to its TLS relay: {error}"),
                Ok(()) => {}
            }
            // It may hold a passphrase.
            drop(Zeroizing::new(frame));
        }
    }

    /// The next thing that the process has said; None: there is nothing now. An error: the process
    /// has ended, or is not to be trusted.
    pub fn next(&mut self) -> io::Result<Option<Said>> {
        let length = match socket::receive(self.connection.as_raw_fd(), &mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(length) => length,
        };
        let mut said = read_said(&self.buffer[..length]).map_err(io::Error::other)?;
        if let Said::Handshake(Handshake {
            result: Ok(facts), ..
        }) = &mut said
        {
            let facts = Arc::make_mut(facts);
            match facts.server_certificate == self.certificate {
                true => facts.server_certificate.clone_from(&self.certificate),
                false => self.certificate.clone_from(&facts.server_certificate),
            }
        }
        Ok(Some(said))
    }

    /// The server stops, and all far ends have been closed: waits until the last bytes have been
    /// sent. Blocks.
    pub fn finish(&mut self) {
        self.waiting.clear();
        self.send(Writer::new(FINISH, 0).finish(), None);
        let limit = LAST_BYTES_LIMIT + Duration::from_millis(500);
        while socket::wait_to_read(self.fd(), limit.as_millis() as i32).is_ok() {
            if self.next().is_err() {
                return;
            }
        }
    }
}

// ---- The other side -------------------------------------------------------

/// The configuration that new clients get, and its generation.
type Current = Arc<Mutex<Option<(u64, Arc<ServerContext>)>>>;

/// Tells the dispatcher. Nothing waits for it: what it does not take at once, a thread sends.
#[derive(Clone)]
struct Tell {
    connection: Arc<OwnedFd>,
    later: mpsc::Sender<Vec<u8>>,
}

impl Tell {
    fn new(connection: Arc<OwnedFd>) -> io::Result<Tell> {
        let (later, frames) = mpsc::channel::<Vec<u8>>();
        let to = Arc::clone(&connection);
        std::thread::Builder::new()
            .name("tell".into())
            .spawn(move || {
                for frame in frames {
                    while is_full(&socket::send_with_descriptors(to.as_raw_fd(), &frame, &[])) {
                        if socket::wait_to_write(to.as_raw_fd(), -1).is_err() {
                            break;
                        }
                    }
                }
            })?;
        Ok(Tell { connection, later })
    }

    /// False if the dispatcher has gone.
    fn send(&self, frame: Vec<u8>) -> bool {
        let sent = socket::send_with_descriptors(self.connection.as_raw_fd(), &frame, &[]);
        if is_full(&sent) {
            return self.later.send(frame).is_ok();
        }
        sent.is_ok()
    }

    fn told(&self, told: Told) -> bool {
        self.send(match told {
            Told::Handshake(handshake) => handshake_frame(&handshake),
            Told::Batch(until_us) => Writer::new(BATCH, 0).u64(until_us).finish(),
        })
    }

    fn line(&self, level: Level, text: &str) {
        let word = match level {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            _ => "LOG",
        };
        let frame = Writer::new(LINE, 0).u8(number_of(level)).raw(cut(text));
        if !self.send(frame.finish()) {
            log::write(word, text);
        }
    }
}

fn is_full(sent: &io::Result<()>) -> bool {
    matches!(sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// The main function of the process.
pub fn run() -> io::Result<()> {
    process::name_process(c"baton-relay");
    memory::join_free_blocks_at_once();
    openssl_memory::take_over();
    // A service manager may signal all processes of a server; this one ends by itself. Threads
    // inherit that.
    let signals = process::signals()?;
    let connection = Arc::new(memory::inherited(CONNECTION)?);
    process::raise_descriptor_limit()?;
    let confined = process::confine_files();
    let tell = Tell::new(Arc::clone(&connection))?;
    let through = tell.clone();
    log::start_by(move |level, text| through.line(level, text));
    if let Err(error) = confined {
        tracing::debug!("the kernel cannot take access to files away from this program: {error}");
    }
    let served = serve(&connection, &tell);
    drop(signals);
    served
}

/// Obeys the dispatcher, and returns when no relay is left, or the server has stopped.
fn serve(connection: &OwnedFd, tell: &Tell) -> io::Result<()> {
    let current = Current::default();
    let mut passphrase: Passphrase = None;
    let mut threads: Option<Threads> = None;
    let mut buffer = Zeroizing::new(vec![0; LONGEST]);
    loop {
        socket::wait_to_read(connection.as_raw_fd(), -1)?;
        let received = socket::receive_with_descriptors(connection.as_raw_fd(), &mut buffer);
        let (length, mut descriptors) = match received {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => (0, Vec::new()),
        };
        if length == 0 {
            // The dispatcher has ended. The far ends say which sessions go on.
            if let Some(threads) = &mut threads {
                threads.finish(None);
            }
            return Ok(());
        }
        let frame = Frame::parse(&buffer[..length]).map_err(io::Error::other)?;
        match frame.kind {
            PASSPHRASE => passphrase = Some(Zeroizing::new(frame.payload.to_vec())),
            LOAD => {
                let load = read_load(frame.payload).map_err(io::Error::other)?;
                start_loading(load, passphrase.take(), &current, tell)?;
            }
            CLIENT => {
                let (near, client) = (descriptors.pop(), descriptors.pop());
                let read = read_client(frame.payload, client.zip(near));
                let (login, serial, new) = read.map_err(io::Error::other)?;
                let context = lock(&current)
                    .as_ref()
                    .map(|(_, context)| Arc::clone(context));
                match (new, context) {
                    (Some(new), Some(context)) => {
                        if threads.is_none() {
                            let tell = tell.clone();
                            threads = Some(Threads::start(move |it| tell.told(it))?);
                        }
                        if let Some(threads) = &mut threads {
                            threads.give(new, context);
                        }
                    }
                    (new, _) => {
                        let why = match new {
                            Some(_) => "there is no TLS configuration",
                            None => "out of file descriptors",
                        };
                        tell.send(handshake_frame(&Handshake {
                            login,
                            serial,
                            result: Err(Some(format!("could not begin TLS: {why}"))),
                        }));
                    }
                }
            }
            FINISH => {
                if let Some(threads) = &mut threads {
                    threads.finish(Some(LAST_BYTES_LIMIT));
                }
                return Ok(());
            }
            _ => return Err(io::Error::other(Malformed)),
        }
        descriptors.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a LOAD frame has.
struct Wanted {
    generation: u64,
    server_major: u32,
    occasion: Occasion,
    settings: Settings,
}

/// Loads on a thread of its own, because loading reads files.
fn start_loading(
    wanted: Wanted,
    passphrase: Passphrase,
    current: &Current,
    tell: &Tell,
) -> io::Result<()> {
    let (current, tell) = (Arc::clone(current), tell.clone());
    let load = move || {
        let Wanted {
            generation,
            server_major,
            occasion,
            settings,
        } = wanted;
        let loaded = context::load(&settings, server_major, occasion, &passphrase);
        let result = loaded.map(|context| {
            let takes_direct = context.takes_direct;
            let mut current = lock(&current);
            if current
                .as_ref()
                .is_none_or(|(other, _)| *other <= generation)
            {
                *current = Some((generation, Arc::new(context)));
            }
            takes_direct
        });
        tell.send(loaded_frame(&Loaded { generation, result }));
    };
    std::thread::Builder::new()
        .name("tls-load".into())
        .spawn(load)?;
    Ok(())
}

// ---- Packets --------------------------------------------------------------

/// Texts and names that are longer are cut, so that each packet fits.
fn cut(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(LONGEST / 4)]
}

fn number_of(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

fn level_of(number: u8) -> Level {
    match number {
        1 => Level::ERROR,
        2 => Level::WARN,
        3 => Level::INFO,
        4 => Level::DEBUG,
        _ => Level::TRACE,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn load_frame(load: &Load) -> Vec<u8> {
    let mut writer = Writer::new(LOAD, 0)
        .u64(load.generation)
        .u32(load.server_major)
        .bool(load.occasion == Occasion::Reload)
        .u64(batch_scheduling::most_wait_us());
    for (name, value) in load.settings.all() {
        writer = writer.string(name.as_bytes()).string(value.as_bytes());
    }
    writer.finish()
}

fn read_load(payload: &[u8]) -> Result<Wanted, Malformed> {
    let mut reader = Reader(payload);
    let (generation, server_major) = (reader.u64()?, reader.u32()?);
    let occasion = match reader.bool()? {
        true => Occasion::Reload,
        false => Occasion::Start,
    };
    batch_scheduling::set_most_wait_us(reader.u64()?);
    let mut settings = Settings::default();
    while reader.end().is_err() {
        let (name, value) = (text(reader.string()?), text(reader.string()?));
        settings.set(&name, &value);
    }
    Ok(Wanted {
        generation,
        server_major,
        occasion,
        settings,
    })
}

fn client_frame(new: &NewRelay) -> Vec<u8> {
    let writer = Writer::new(CLIENT, 0)
        .u32(new.login)
        .u64(new.serial)
        .u64(new.most_bytes)
        .bool(new.direct.is_some());
    writer
        .raw(new.direct.as_deref().unwrap_or_default())
        .finish()
}

/// None in place of a client whose descriptors have not come.
fn read_client(
    payload: &[u8],
    ends: Option<(OwnedFd, OwnedFd)>,
) -> Result<(u32, u64, Option<NewRelay>), Malformed> {
    let mut reader = Reader(payload);
    let (login, serial) = (reader.u32()?, reader.u64()?);
    let (most_bytes, is_direct) = (reader.u64()?, reader.bool()?);
    let new = ends.map(|(client, near)| NewRelay {
        client: ClientEnd(client),
        near,
        direct: is_direct.then(|| reader.0.to_vec()),
        most_bytes,
        login,
        serial,
    });
    Ok((login, serial, new))
}

fn loaded_frame(loaded: &Loaded) -> Vec<u8> {
    let writer = Writer::new(LOADED, 0).u64(loaded.generation);
    match &loaded.result {
        Ok(takes_direct) => writer.bool(true).bool(*takes_direct),
        Err(why) => writer.bool(false).raw(cut(why)),
    }
    .finish()
}

fn handshake_frame(handshake: &Handshake) -> Vec<u8> {
    let writer = Writer::new(HANDSHAKE, 0)
        .u32(handshake.login)
        .u64(handshake.serial);
    let frame = match &handshake.result {
        Ok(facts) => facts_into(writer.u8(FACTS), facts),
        Err(Some(why)) => writer.u8(REASON).raw(cut(why)),
        Err(None) => writer.u8(NOTHING),
    }
    .finish();
    if frame.len() > LONGEST {
        let why = "could not accept SSL connection: the certificate is too long";
        return handshake_frame(&Handshake {
            login: handshake.login,
            serial: handshake.serial,
            result: Err(Some(why.to_owned())),
        });
    }
    frame
}

/// Kinds of a handshake's result.
const FACTS: u8 = 0;
const REASON: u8 = 1;
const NOTHING: u8 = 2;

fn facts_into(writer: Writer, facts: &Facts) -> Writer {
    let writer = writer
        .string(facts.protocol.as_bytes())
        .string(facts.cipher.as_bytes())
        .i32(facts.bits)
        .bool(facts.has_alpn)
        .bool(facts.has_ca)
        .nullable(facts.end_point.as_deref())
        .nullable(facts.server_certificate.as_deref());
    let Some(certificate) = &facts.certificate else {
        return writer.bool(false);
    };
    writer
        .bool(true)
        .bytes(&certificate.names.common)
        .bytes(&certificate.names.distinguished)
        .bytes(&certificate.subject)
        .bytes(&certificate.issuer)
        .string(certificate.serial.as_bytes())
}

fn facts_of(mut reader: Reader) -> Result<Facts, Malformed> {
    Ok(Facts {
        protocol: text(reader.string()?),
        cipher: text(reader.string()?),
        bits: reader.i32()?,
        has_alpn: reader.bool()?,
        has_ca: reader.bool()?,
        end_point: reader.nullable()?.map(<[u8]>::to_vec),
        server_certificate: reader.nullable()?.map(Arc::from),
        certificate: match reader.bool()? {
            false => None,
            true => Some(Certificate {
                names: Names {
                    common: reader.bytes()?.to_vec(),
                    distinguished: reader.bytes()?.to_vec(),
                },
                subject: reader.bytes()?.to_vec(),
                issuer: reader.bytes()?.to_vec(),
                serial: text(reader.string()?),
            }),
        },
    })
}

fn read_said(packet: &[u8]) -> Result<Said, Malformed> {
    let frame = Frame::parse(packet)?;
    let mut reader = Reader(frame.payload);
    match frame.kind {
        LOADED => {
            let (generation, is_good) = (reader.u64()?, reader.bool()?);
            let result = match is_good {
                true => Ok(reader.bool()?),
                false => Err(text(reader.0)),
            };
            Ok(Said::Loaded(Loaded { generation, result }))
        }
        HANDSHAKE => {
            let (login, serial) = (reader.u32()?, reader.u64()?);
            let result = match reader.u8()? {
                FACTS => Ok(Arc::new(facts_of(reader)?)),
                REASON => Err(Some(text(reader.0))),
                _ => Err(None),
            };
            Ok(Said::Handshake(Handshake {
                login,
                serial,
                result,
            }))
        }
        BATCH => Ok(Said::Batch(reader.u64()?)),
        LINE => Ok(Said::Line(level_of(reader.u8()?), text(reader.0))),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake(result: Result<Arc<Facts>, Option<String>>) -> Handshake {
        Handshake {
            login: 7,
            serial: 1 << 40,
            result,
        }
    }

    fn read_back(it: &Handshake) -> Handshake {
        match read_said(&handshake_frame(it)) {
            Ok(Said::Handshake(read)) => read,
            _ => panic!("no handshake"),
        }
    }

    #[test]
    fn facts_of_a_handshake_arrive_unchanged() {
        let without = Facts {
            protocol: "TLSv1.3".into(),
            cipher: "TLS_AES_256_GCM_SHA384".into(),
            bits: 256,
            has_alpn: true,
            has_ca: true,
            certificate: None,
            end_point: Some(vec![0, 255]),
            server_certificate: Some(Arc::from(vec![1; 3000])),
        };
        let with = Facts {
            certificate: Some(Certificate {
                names: Names {
                    common: b"alice".to_vec(),
                    distinguished: b"CN=alice".to_vec(),
                },
                subject: b"/CN=alice".to_vec(),
                issuer: b"/CN=authority".to_vec(),
                serial: "12345678901234567890".into(),
            }),
            end_point: None,
            server_certificate: None,
            ..without.clone()
        };
        for facts in [without, with, Facts::default()] {
            let read = read_back(&handshake(Ok(Arc::new(facts.clone()))));
            assert_eq!((read.login, read.serial), (7, 1 << 40));
            assert_eq!(read.result, Ok(Arc::new(facts)));
        }
        for result in [Err(None), Err(Some("why".to_owned()))] {
            assert_eq!(read_back(&handshake(result.clone())).result, result);
        }
    }

    #[test]
    fn client_with_a_certificate_beyond_a_packet_is_refused() {
        let facts = Facts {
            certificate: Some(Certificate {
                subject: vec![b'x'; LONGEST],
                ..Certificate::default()
            }),
            ..Facts::default()
        };
        let read = read_back(&handshake(Ok(Arc::new(facts))));
        assert!(read.result.is_err_and(|why| why.is_some()));
    }

    #[test]
    fn configuration_arrives_unchanged() {
        let settings = Settings {
            is_on: true,
            cert_file: "server.crt".into(),
            key_file: "server.key".into(),
            ca_file: "root.crt".into(),
            crl_file: "crl".into(),
            crl_dir: "crls".into(),
            dh_params_file: "dh".into(),
            ciphers: "HIGH".into(),
            tls13_ciphers: "TLS_AES_128_GCM_SHA256".into(),
            groups: "X25519".into(),
            prefer_server_ciphers: true,
            min_protocol_version: "TLSv1.2".into(),
            max_protocol_version: "TLSv1.3".into(),
            passphrase_command: "echo".into(),
            passphrase_command_supports_reload: true,
        };
        for (settings, occasion) in [
            (settings, Occasion::Start),
            (Settings::default(), Occasion::Reload),
        ] {
            let frame = load_frame(&Load {
                generation: 3,
                settings: &settings,
                server_major: 18,
                occasion,
                passphrase: &None,
            });
            let read = read_load(Frame::parse(&frame).unwrap().payload).unwrap();
            assert_eq!(read.settings, settings);
            let rest = (read.generation, read.server_major, read.occasion);
            assert_eq!(rest, (3, 18, occasion));
        }
    }

    #[test]
    fn clients_that_no_relay_takes_are_refused_in_the_end() {
        let (connection, _other) = socket::pair_of_packets().unwrap();
        let mut relays = Relays {
            connection,
            waiting: VecDeque::new(),
            buffer: Vec::new(),
            certificate: None,
        };
        let given = (0..2 * MOST_WAITING as u32).map_while(|login| {
            let (client, _) = socket::pair().unwrap();
            let new = NewRelay {
                near: client.try_clone().unwrap(),
                client: ClientEnd(client),
                direct: None,
                most_bytes: 0,
                login,
                serial: 0,
            };
            relays.give(new).then_some(())
        });
        let given = given.count();
        assert!((MOST_WAITING..2 * MOST_WAITING).contains(&given), "{given}");
    }

    #[test]
    fn client_without_descriptors_is_named() {
        let (near, _) = socket::pair().unwrap();
        let (client, _) = socket::pair().unwrap();
        let new = NewRelay {
            client: ClientEnd(client),
            near,
            direct: Some(b"\x16\x03".to_vec()),
            most_bytes: 9,
            login: 5,
            serial: 6,
        };
        let frame = client_frame(&new);
        let payload = Frame::parse(&frame).unwrap().payload;
        let (login, serial, read) = read_client(payload, None).unwrap();
        assert!((login, serial) == (5, 6) && read.is_none());
        let (_, _, read) = read_client(payload, Some((new.client.0, new.near))).unwrap();
        let read = read.unwrap();
        assert_eq!((read.direct, read.most_bytes), (new.direct, 9));
    }
}
