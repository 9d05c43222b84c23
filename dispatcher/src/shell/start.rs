//! From the start of the program to the event loop.
//!
//! The launcher passes descriptor 3 (its channel) and 4 (the CONTROL memory), and sends
//! PARAMETERS first. Until PARAMETERS has arrived the start may block; afterwards nothing does.

use super::console::Consoles;
use super::event_loop::shutdown::is_backend;
use super::event_loop::{Dispatcher, Parts};
use super::events::{token, Source};
use super::jobs::Jobs;
use super::keeper::{Keeper, Left};
use super::link::connections::Connections;
use super::link::layout::shared::*;
use super::link::memory::control::Control;
use super::link::wire::Frame;
use super::login::client::TlsOffer;
use super::login::launcher::parse_parameters;
use super::login::ports::{self, Ports, EXIT_PORT_TAKEN};
use super::login::{Logins, Means};
use super::parameters::Parameters;
use super::scheduler::adopt::{adoptable, wait_for_backends, Adoptable};
use super::scheduler::Scheduler;
use super::sys::epoll::{self, ClientNumber, Epoll};
use super::sys::memory::{self, overwrite};
use super::sys::process;
use super::sys::socket::{self, Kind};
use super::tls::context::{Occasion, Passphrase};
use super::tls::process::{self as relays, Load, Relays};
use super::{batch_scheduling, threads, Arguments};
use anyhow::{bail, Context as _, Result};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use tracing::{info, warn};
use zeroize::Zeroizing;

const CHANNEL: RawFd = 3;
const CONTROL: RawFd = 4;
/// The descriptor number that all client sockets have in the epolls, if the limit of open files
/// allows it.
const CLIENT_NUMBER: u64 = 900;
/// If the limit of open files is low, the number is this far below it.
const BELOW_LIMIT: u64 = 24;
/// Open files besides those of clients and backends, and those of a client by TLS, in the process of
/// the relays. `baton doctor` counts with the same numbers (capacity.rs).
const SPARE_FILES: u64 = 200;
const FILES_OF_TLS: u64 = 2;
/// The control socket, in the data directory. dispatcher_link.h gives the path and the reason
/// for it.
const CONTROL_SOCKET: &str = "pg_stat_tmp/pg_baton.ctl";
/// The program failed for another reason than a port that is taken.
const EXIT_FAILURE: u8 = 1;
/// How long to wait for PARAMETERS, in milliseconds.
const FIRST_WORD_MS: i32 = 30_000;

/// The main function of `baton-dispatcher`.
pub fn main(arguments: Arguments) -> Result<()> {
    if arguments.relay {
        return relays::run().context("the process of TLS relays failed");
    }
    process::name_process(c"baton-dispatcher");
    memory::join_free_blocks_at_once();
    // Before the first thread starts, as threads inherit the blocked signals.
    let signals = process::signals().context("could not set up signals")?;
    let log = super::log::start();
    match prepare(signals).and_then(|(dispatcher, epolls)| {
        threads::run(dispatcher, &epolls).context("the event loop failed")
    }) {
        Ok(()) => Ok(()),
        Err(error) => {
            tracing::error!("{error:#}");
            drop(log);
            let code = match error.is::<ports::Taken>() {
                true => EXIT_PORT_TAKEN,
                false => EXIT_FAILURE,
            };
            std::process::exit(i32::from(code));
        }
    }
}

/// Waits for PARAMETERS from the launcher. Blocks.
fn first_parameters(channel: &OwnedFd, buffer: &mut [u8]) -> Result<(Parameters, Passphrase)> {
    let waiting = Epoll::new()?;
    waiting.add(channel.as_raw_fd(), epoll::IN, 0)?;
    let mut events = [epoll::no_event()];
    let mut parameters = Parameters::default();
    let mut passphrase = None;
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
            return Ok((parameters, passphrase));
        }
        if frame.kind == MSG_PASSPHRASE {
            passphrase = Some(Zeroizing::new(frame.payload.to_vec()));
            overwrite(&mut buffer[..length]);
        }
    }
    bail!("the launcher did not send its parameters first")
}

/// Says if the limit of open files lets in fewer sessions than max_sessions.
fn warn_of_few_files(parameters: &Parameters, most: u64) {
    let others = 2 * u64::from(parameters.max_connections) + SPARE_FILES;
    let (sessions, left) = (
        u64::from(parameters.max_sessions),
        most.saturating_sub(others),
    );
    let by_tls = left / FILES_OF_TLS;
    if sessions > left || parameters.tls.is_on && sessions > by_tls {
        warn!(
            "the limit of open files ({most}) suffices for {left} sessions, or {by_tls} by TLS; \
             pg_baton.max_sessions is {sessions}: raise LimitNOFILE of the server's service, or \
             lower pg_baton.max_sessions"
        );
    }
}

fn prepare(signals: OwnedFd) -> Result<(Dispatcher, Vec<Arc<Epoll>>)> {
    let channel = memory::inherited(CHANNEL)
        .context("descriptor 3 is not the launcher's channel; this program is started by pg_baton, not by hand")?;
    let control_fd =
        memory::inherited(CONTROL).context("descriptor 4 is not the control memory")?;
    let control = Control::open(control_fd.as_raw_fd())?;
    let server = control.header.postmaster_pid.load(SeqCst);
    // If it has gone, sessions stay with the earlier dispatcher's keeper.
    let postmaster = process::pidfd(server).context("could not watch the postmaster")?;
    // Before there is any secret in the memory, of which the keeper has a copy.
    let keeper = Keeper::start(control);
    let ledger = keeper.as_ref().map(|keeper| keeper.ledger);
    let mut relays = Relays::start().context("could not start the process of TLS relays")?;

    let mut buffer = vec![0; FRAME_MAX as usize];
    let (parameters, passphrase) = first_parameters(&channel, &mut buffer)?;
    let parameters = Arc::new(parameters);
    batch_scheduling::set_most_wait_us(parameters.constants.batch_scheduling_wait_us);
    begin_loading_tls(&mut relays, &parameters, &passphrase);
    drop(passphrase);

    // Backends have the limit that this process was started with.
    let (soft, hard) =
        process::raise_descriptor_limit().context("could not raise the limit of open files")?;
    warn_of_few_files(&parameters, hard);
    let number = CLIENT_NUMBER.min(soft.saturating_sub(BELOW_LIMIT));
    let client_number = ClientNumber::reserve(number as RawFd)
        .context("could not reserve a descriptor number for client sockets")?;
    let client_number = Arc::new(client_number);

    let directory = PathBuf::from(&parameters.data_directory);
    if !parameters.data_directory.is_empty() {
        // The path of a socket must be short; the working directory is already the data
        // directory.
        std::env::set_current_dir(&directory).context("could not enter the data directory")?;
    }
    let control_path = PathBuf::from(CONTROL_SOCKET);
    if let Some(folder) = control_path.parent() {
        // initdb creates the folder; it may have been removed by mistake.
        let _ = std::fs::create_dir(folder);
    }
    let control_listener = socket::listen_unix(&control_path, Kind::Packets, 0o700, None)
        .context("could not listen on the control socket; does another dispatcher run?")?;
    let mut left = Left::find(&control_fd, parameters.keep_after_demotion);
    if let Some(ledger) = ledger {
        ledger.set_hold_ms(parameters.hold_sessions_ms);
        ledger.set_control(control_fd.as_raw_fd());
        // It is the keeper's, too.
        std::mem::forget(control_fd);
    }
    let ports_left = left.as_mut().map(|it| std::mem::take(&mut it.ports));
    // The ports open before this process takes anything that an earlier dispatcher may still
    // use.
    let listeners = ports::open(&parameters, ports_left.unwrap_or_default())?;
    let tls = TlsOffer::new(tls_loaded(&mut relays, &parameters)?);
    give_up_files();

    let own_pid = std::process::id();
    let are_sure = wait_for_backends(&control, |pid| is_backend(pid, server));
    let adopted = (left.as_ref()).map_or_else(Adoptable::default, |left| adoptable(&control, left));
    if let Some(earlier) = left.as_ref().and_then(|left| left.earlier.as_ref()) {
        control.take_from(earlier, &adopted.free);
    }
    let orphans = control.take_over(own_pid, &adopted.all(), |pid| is_backend(pid, server));
    if !orphans.is_empty() {
        info!(
            "{} backends still serve sessions of an earlier dispatcher",
            orphans.len()
        );
    }
    let threads = parameters.dispatchers.clamp(1, SESSION_THREADS_MAX) as usize;
    let epolls = (0..threads)
        .map(|_| Epoll::new().map(Arc::new))
        .collect::<io::Result<Vec<Arc<Epoll>>>>()
        .context("could not create an epoll instance")?;
    let epoll = Arc::clone(&epolls[0]);
    let jobs = Jobs::start().context("could not start a thread")?;
    epoll.add(relays.fd(), epoll::IN, token(Source::Relays, 0))?;
    epoll.add(
        control_listener.as_raw_fd(),
        epoll::IN,
        token(Source::ControlListener, 0),
    )?;

    let (highest_client, highest_heard) = highest_clients(hard, control.backends.len());
    let scheduler = Scheduler::new(
        Arc::clone(&parameters),
        control,
        orphans.len(),
        Arc::clone(&client_number),
        &epolls,
        ledger,
    )?;
    let consoles = Consoles::new(Arc::clone(&epoll), Arc::clone(&client_number));
    let means = Means {
        control,
        epoll: Arc::clone(&epoll),
        client_number,
        jobs: jobs.input(),
        relays,
        tls,
        highest_client,
    };
    let backends = control.backends.len();
    let parts = Parts {
        control,
        epoll: Arc::clone(&epoll),
        scheduler,
        logins: Logins::new(Arc::clone(&parameters), means),
        ports: Ports::new(Arc::clone(&epoll), listeners, highest_heard)?,
        consoles,
        jobs,
        connections: Connections::new(epoll, control_listener, backends),
        control_path,
        channel,
        postmaster,
        signals,
        orphans,
        parameters: Arc::clone(&parameters),
        threads,
        keeper,
    };
    let mut dispatcher = Dispatcher::new(parts)?;
    dispatcher.adopt(left, &adopted, are_sure);
    info!("ready on port {}", parameters.port);
    Ok((dispatcher, epolls))
}

/// Gives up access to files. Called before the threads start that serve clients, as they
/// inherit it.
fn give_up_files() {
    match process::confine_files() {
        Ok(()) => super::log::give_up_files(),
        Err(error) => tracing::debug!(
            "the kernel cannot take access to files away from this program: {error}"
        ),
    }
}

fn begin_loading_tls(relays: &mut Relays, parameters: &Parameters, passphrase: &Passphrase) {
    if parameters.tls.is_on {
        relays.load(&Load {
            generation: 0,
            settings: &parameters.tls,
            server_major: parameters.server_major(),
            occasion: Occasion::Start,
            passphrase,
        });
    }
}

/// The TLS configuration has been loaded. If that has failed, clients that ask for TLS get none and
/// the log says why, as in a server process that cannot load it (SubPostmasterMain). Each reload
/// tries again. Returns whether clients may begin with TLS at once. Blocks.
fn tls_loaded(relays: &mut Relays, parameters: &Parameters) -> Result<Option<bool>> {
    if !parameters.tls.is_on {
        return Ok(None);
    }
    let loaded = relays
        .wait_for_load()
        .context("the process of TLS relays has ended")?;
    if let Err(why) = &loaded.result {
        tracing::error!("{why}");
        tracing::error!("SSL configuration could not be loaded: clients cannot use TLS until it is mended and reloaded");
    }
    Ok(loaded.result.ok())
}

/// Clients beyond the limit whose startup packets are still read, so that they get an error
/// message.
const HEARD_IN_VAIN: u64 = 32;

/// The highest descriptor numbers for sessions, and for clients beyond the limit that only get
/// an error. Four descriptors for each backend, and some for the rest, are kept from sessions,
/// but never more than half of all.
fn highest_clients(limit: u64, backends: usize) -> (RawFd, RawFd) {
    let kept = (4 * backends as u64 + 64 + HEARD_IN_VAIN).min(limit / 2);
    let number = |limit: u64| RawFd::try_from(limit).unwrap_or(RawFd::MAX);
    let highest = limit - kept;
    (
        number(highest),
        number(highest + HEARD_IN_VAIN.min(kept / 4)),
    )
}
