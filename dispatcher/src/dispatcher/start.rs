//! From the program's start to the event loop.
//!
//! The launcher leaves descriptor 3 (its channel) and 4 (the CONTROL memory),
//! and sends PARAMETERS first of all. Until these have come the start may
//! block; afterwards nothing does.

use super::clients::Clients;
use super::event_loop::{timestamp, token, Dispatcher, Source};
use super::link::control::SPARE_CONNECTIONS;
use super::link::launcher::{mock_secret, parse_parameters, Link};
use super::link::layout::shared::*;
use super::link::memory::arena::Arena;
use super::link::memory::context::Contexts;
use super::link::memory::control::Control;
use super::link::wire::Frame;
use super::login::clients::SPARE_LOGINS;
use super::login::errands::Errands;
use super::login::greeting::Greetings;
use super::login::jobs::{Done, Jobs};
use super::login::limits::Rates;
use super::login::listeners::{self, EXIT_PORT_TAKEN};
use super::login::login_cache::LoginCache;
use super::login::native::Crowd;
use super::login::roles::Roles;
use super::login::securing::TlsOffer;
use super::parameters::Parameters;
use super::queries::Statistics;
use super::slab::Slab;
use super::sys::confine;
use super::sys::epoll::{self, ClientNumber, Epoll};
use super::sys::memory;
use super::sys::process;
use super::sys::socket::{self, Kind};
use super::threads::{self, MainThread};
use super::tls::certificates::Certificates;
use super::tls::context::{self, Occasion, ServerContext};
use super::tls::threads::Relays;
use super::{session_memory, Arguments};
use crate::core::Core;
use anyhow::{bail, Context as _, Result};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Instant;
use tracing::{info, warn};

const CHANNEL: RawFd = 3;
const CONTROL: RawFd = 4;
/// The number for client sockets, if the limit of open files allows it.
const CLIENT_NUMBER: u64 = 900;
/// Below the limit that the server's processes have.
const BELOW_LIMIT: u64 = 24;
/// The control socket, in the data directory.
const CONTROL_SOCKET: &str = "pg_baton.ctl";
/// How long to wait for PARAMETERS.
const FIRST_WORD_MS: i32 = 30_000;

/// `baton-dispatcher`.
pub fn main(_arguments: Arguments) -> Result<()> {
    // Before the first thread, which inherits what is blocked.
    let signals = process::signals().context("could not set up signals")?;
    let log = super::log::start();
    match prepare(signals)
        .and_then(|dispatcher| threads::run(dispatcher).context("the event loop failed"))
    {
        Err(error) if error.is::<listeners::Taken>() => {
            tracing::error!("{error:#}");
            drop(log);
            std::process::exit(i32::from(EXIT_PORT_TAKEN));
        }
        result => result,
    }
}

/// Waits for the launcher's first word. Blocks.
fn first_parameters(channel: &OwnedFd, buffer: &mut [u8]) -> Result<Parameters> {
    let waiting = Epoll::new()?;
    waiting.add(channel.as_raw_fd(), epoll::IN, 0)?;
    let mut events = [epoll::no_event()];
    let mut parameters = Parameters::default();
    for _ in 0..100 {
        if waiting.wait(&mut events, FIRST_WORD_MS)? == 0 {
            bail!("the launcher has not sent its parameters");
        }
        let length = socket::receive(channel.as_raw_fd(), buffer)
            .context("could not read from the launcher")?;
        if length == 0 {
            bail!("the launcher has gone; this program is started by pg_baton, not by hand");
        }
        let frame = Frame::parse(&buffer[..length])?;
        if frame.kind == MSG_PARAMETERS {
            parse_parameters(frame.payload, &mut parameters)?;
            return Ok(parameters);
        }
    }
    bail!("the launcher did not send its parameters first")
}

fn prepare(signals: OwnedFd) -> Result<Dispatcher> {
    let channel = memory::inherited(CHANNEL)
        .context("descriptor 3 is not the launcher's channel; this program is started by pg_baton, not by hand")?;
    let control_fd =
        memory::inherited(CONTROL).context("descriptor 4 is not the control memory")?;
    let control = Control::open(control_fd.as_raw_fd())?;

    let mut buffer = vec![0; FRAME_MAX as usize];
    let parameters = first_parameters(&channel, &mut buffer)?;

    // Backends have the limit that we were started with.
    let (soft, hard) =
        process::raise_descriptor_limit().context("could not raise the limit of open files")?;
    let number = CLIENT_NUMBER.min(soft.saturating_sub(BELOW_LIMIT));
    let client_number = ClientNumber::reserve(number as RawFd)
        .context("could not reserve a descriptor number for client sockets")?;

    let directory = PathBuf::from(&parameters.data_directory);
    let control_path = if parameters.data_directory.is_empty() {
        PathBuf::from(CONTROL_SOCKET)
    } else {
        // The path of a socket is short; the working directory is the data
        // directory already.
        std::env::set_current_dir(&directory).context("could not enter the data directory")?;
        PathBuf::from(CONTROL_SOCKET)
    };
    let control_listener = socket::listen_unix(&control_path, Kind::Packets, 0o700, None)
        .context("could not listen on the control socket; does another dispatcher run?")?;
    // The ports come before anything that an earlier dispatcher may still use.
    let listeners = listeners::open(&parameters)?;
    let tls = TlsOffer::new(load_tls(&parameters));
    give_up_files(&parameters);

    let own_pid = std::process::id();
    let orphans = control.take_over(own_pid, process::exists);
    if !orphans.is_empty() {
        info!(
            "{} backends still serve sessions of an earlier dispatcher",
            orphans.len()
        );
    }
    control
        .header
        .force_migration
        .store(u32::from(parameters.force_migration), SeqCst);

    let session_slots = control.sessions.len() as u32;
    let limit = session_memory(&parameters);
    let arena_size = Arena::total_size(session_slots, limit);
    let (arena_fd, arena_memory) =
        memory::create(arena_size).context("could not create the session memory")?;
    // Serials and versions of an earlier dispatcher are below these.
    let base = control.header.dispatcher_epoch.load(SeqCst) << 40;
    let arena = Arena::new(arena_memory, session_slots, limit, base);
    let contexts = Contexts::new(arena, control, base);

    let postmaster = process::pidfd(control.header.postmaster_pid.load(SeqCst))
        .context("could not watch the postmaster")?;
    let pid_file = match process::watch_file(&PathBuf::from("postmaster.pid")) {
        Ok(file) => Some(file),
        Err(error) => {
            warn!("could not watch postmaster.pid: {error}");
            None
        }
    };
    let threads = parameters.dispatchers.clamp(1, SESSION_THREADS_MAX) as usize;
    let session_epolls = (0..threads)
        .map(|_| Epoll::new().map(Arc::new))
        .collect::<io::Result<Vec<Arc<Epoll>>>>()
        .context("could not create an epoll instance")?;
    let epoll = session_epolls[0].clone();
    let main_thread = MainThread::new().context("could not create an eventfd")?;
    let jobs = Jobs::start().context("could not start a thread")?;
    let results = jobs.results();
    let relays = Relays::start(move |handshake| results.bring(Done::Handshake(handshake)))
        .context("could not start the threads of TLS relays")?;
    epoll.add(
        control_listener.as_raw_fd(),
        epoll::IN,
        token(Source::ControlListener, 0),
    )?;
    epoll.add(
        postmaster.as_raw_fd(),
        epoll::IN,
        token(Source::Postmaster, 0),
    )?;
    epoll.add(signals.as_raw_fd(), epoll::IN, token(Source::Signals, 0))?;
    epoll.add(jobs.fd(), epoll::IN, token(Source::Jobs, 0))?;
    epoll.add(main_thread.fd(), epoll::IN, token(Source::Wake, 0))?;
    if let Some(file) = &pid_file {
        epoll.add(file.as_raw_fd(), epoll::IN, token(Source::PidFile, 0))?;
    }

    let (highest_client, highest_heard) = highest_clients(hard, control.backends.len());
    let mut core = Core::new(
        parameters.limits(control.backends.len(), orphans.len()),
        session_slots,
        control.pools.len(),
        control.backends.len(),
        rand::random(),
        &control,
    );
    let generation = control.header.settings_generation.load(SeqCst);
    core.settings_changed(generation, |_| false);
    let mut dispatcher = Dispatcher {
        epoll,
        session_epolls,
        main_thread,
        client_number,
        control,
        contexts,
        arena_fd,
        arena_size: arena_size as u64,
        mock_secret: mock_secret(&parameters.mock_authentication_nonce),
        core,
        clients: Clients::default(),
        skippers: HashMap::new(),
        begun: HashMap::new(),
        begun_granted: None,
        queues: (0..control.pools.len()).map(|_| None).collect(),
        openings: (0..control.backends.len()).map(|_| None).collect(),
        attached: vec![None; control.backends.len()],
        orphans,
        roles: Roles::default(),
        greetings: Greetings::default(),
        settings_marks: control.header.read_settings_marks(),
        listeners: Vec::new(),
        control_listener,
        control_path,
        // a native session's backend has one, too
        connections: Slab::new(2 * control.backends.len() + SPARE_CONNECTIONS),
        dead_connections: Vec::new(),
        unidentified: VecDeque::new(),
        logins: Slab::new(session_slots as usize + SPARE_LOGINS),
        errands: Errands::default(),
        natives: HashMap::new(),
        crowd: Crowd::default(),
        rates: Rates::default(),
        link: Link::default(),
        login_cache: LoginCache::default(),
        jobs,
        tls,
        relays,
        certificates: Certificates::default(),
        postmaster,
        pid_file,
        signals,
        stopping: None,
        finished: false,
        resting: Vec::new(),
        unsendable: Vec::new(),
        reserve: Some(memory::placeholder()?),
        told_no_descriptors: false,
        highest_client,
        highest_heard,
        buffer,
        next_serial: 0,
        started: Instant::now(),
        started_at: timestamp(),
        statistics: Statistics::default(),
        now_us: 0,
        now: timestamp(),
        round_events: 0,
        last_tick_us: 0,
        last_sweep_us: 0,
        parameters,
    };
    dispatcher.add_launcher(channel);
    dispatcher.add_listeners(listeners)?;
    dispatcher.pid_file_changed();
    info!("ready on port {}", dispatcher.parameters.port);
    Ok(dispatcher)
}

/// Before the threads start that serve clients, which inherit it. Not where a
/// reload may have to run a command for a key's passphrase, which then may need to
/// write as well.
fn give_up_files(parameters: &Parameters) {
    let tls = &parameters.tls;
    if tls.is_on && !tls.passphrase_command.is_empty() && tls.passphrase_command_supports_reload {
        info!("ssl_passphrase_command_supports_reload is on: the dispatcher keeps its access to files");
    } else if let Err(error) = confine::files() {
        tracing::debug!("the kernel cannot take access to files away from this program: {error}");
    }
}

/// As stock where a process cannot load it (SubPostmasterMain): clients that
/// ask for TLS get none, and the log says why. Each reload tries again. Blocks.
fn load_tls(parameters: &Parameters) -> Option<ServerContext> {
    if !parameters.tls.is_on {
        return None;
    }
    let loaded = context::load(&parameters.tls, parameters.server_major(), Occasion::Start);
    if let Err(why) = &loaded {
        tracing::error!("{why}");
        tracing::error!("SSL configuration could not be loaded: clients cannot use TLS until it is mended and reloaded");
    }
    loaded.ok()
}

/// Clients beyond those who may come in that are heard before they are told so.
const HEARD_IN_VAIN: u64 = 32;

/// The highest numbers of descriptors for sessions, and for clients that are
/// heard in vain. Three descriptors a backend and some for the rest are kept from
/// sessions, but never more than half of all.
fn highest_clients(limit: u64, backends: usize) -> (RawFd, RawFd) {
    let kept = (3 * backends as u64 + 64 + HEARD_IN_VAIN).min(limit / 2);
    let number = |limit: u64| RawFd::try_from(limit).unwrap_or(RawFd::MAX);
    let highest = limit - kept;
    (
        number(highest),
        number(highest + HEARD_IN_VAIN.min(kept / 4)),
    )
}

impl Dispatcher {
    /// The last things before the end.
    pub fn leave(&mut self) {
        listeners::close(&mut self.listeners);
        let _ = std::fs::remove_file(&self.control_path);
        self.client_number.let_go_of_all();
        self.logins = Slab::new(0);
        self.clients = Clients::default();
        self.relays.finish();
        let own_pid = std::process::id();
        let word = &self.control.header.dispatcher_pid;
        let _ = word.compare_exchange(own_pid, 0, SeqCst, SeqCst);
    }
}
