//! Checks whether the dispatcher is up, where it listens, and whether it is of the build that
//! is installed.

use super::ask::Server;
use super::{certificates, Findings, Level};
use anyhow::Result;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const CHECK: &str = "dispatcher";
/// The time limit of each step of a connection to the pool's port.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// SSLRequest: its length, 1234 and 5679.
pub const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// What is known of the dispatcher.
#[derive(Default)]
pub struct Dispatcher {
    pub is_up: bool,
    /// The dispatcher's own row in its view, if it could be asked.
    pub row: Option<Value>,
}

impl Dispatcher {
    /// The dispatcher's process ID on the server's machine.
    pub fn pid(&self) -> Option<u32> {
        let pid = self.row.as_ref()?["pid"].as_u64()?;
        u32::try_from(pid).ok()
    }

    /// Does a backend authenticate every client?
    pub fn login_by_server(&self) -> Option<bool> {
        self.row.as_ref()?["login_by_server"].as_bool()
    }
}

/// Reports whether the dispatcher is up and of this build.
pub fn look(server: &Server, findings: &mut Findings) -> Result<Dispatcher> {
    if !server.has_views() {
        return look_without_views(server, findings);
    }
    look_at_version(server, findings)?;
    let row = match server.view("pg_baton_dispatchers") {
        Ok(rows) => rows.into_iter().next(),
        Err(error) => {
            if !collides(server, findings) {
                findings.mended(
                    CHECK,
                    Level::Failure,
                    format!("it is not up: {error:#}"),
                    mend_of(server, &format!("{error:#}")),
                );
            }
            return Ok(Dispatcher::default());
        }
    };
    let Some(row) = row else {
        findings.add(CHECK, Level::Failure, "it says nothing of itself");
        return Ok(Dispatcher::default());
    };
    let (sessions, port) = (&row["sessions"], server.number("pg_baton.port"));
    let up = format!("it is up on port {port}, with {sessions} sessions");
    let dispatcher = Dispatcher {
        is_up: true,
        row: Some(row),
    };
    look_at_own_port(server, findings)?;
    look_at_build(server, findings);
    match is_library_replaced(server) {
        Some(true) => findings.mended(
            CHECK,
            Level::Warning,
            "pg_baton.so has been replaced since the server was started",
            "restart the server: library and program are of one build then",
        ),
        Some(false) => findings.add(CHECK, Level::Ok, up),
        None => {
            findings.add(CHECK, Level::Ok, up);
            findings.add(
                CHECK,
                Level::Unknown,
                "whether pg_baton.so has been replaced since the server was started it cannot see",
            );
        }
    }
    Ok(dispatcher)
}

/// What mends a dispatcher whose views fail with this error (views.c).
fn mend_of(server: &Server, error: &str) -> String {
    if error.contains("It does not answer.") {
        return "wait: the launcher replaces a dispatcher that makes no progress for 10 seconds; kill -KILL of the \
                process baton-dispatcher does so at once"
            .to_owned();
    }
    let program = server.text("pg_baton.dispatcher_program");
    let line = server.line("pg_baton.dispatcher_program", format!("'{program}'"));
    format!("the server's log says why; {line}")
}

/// Is this conversation a session of the pool? Then doctor cannot ask when the pool fails.
fn look_at_own_port(server: &Server, findings: &mut Findings) -> Result<()> {
    let asked = server.rows(
        &format!(
            "SELECT json_agg(pid) FROM {} WHERE pid = pg_backend_pid()",
            server.view_name("pg_baton_sessions")
        ),
        None,
    )?;
    if !asked.is_empty() {
        findings.mended(
            CHECK,
            Level::Warning,
            "doctor asks by the pool's port, where it gets no answer if the pool fails",
            format!("name the server's own port: port={}", server.number("port")),
        );
    }
    Ok(())
}

fn look_at_version(server: &Server, findings: &mut Findings) -> Result<()> {
    let versions = server.rows(
        "SELECT json_agg(json_build_array(installed_version, default_version)) FROM pg_available_extensions \
         WHERE name = 'pg_baton'",
        None,
    )?;
    let Some(versions) = versions.first() else {
        return Ok(());
    };
    if let (Some(installed), Some(newest)) = (versions[0].as_str(), versions[1].as_str()) {
        if installed != newest {
            let text = format!("the extension in this database is of version {installed}");
            let mend = format!("ALTER EXTENSION pg_baton UPDATE TO '{newest}'");
            findings.mended(CHECK, Level::Warning, text, mend);
        }
    }
    Ok(())
}

// ---- its build --------------------------------------------------------------

/// Compares the program that runs, the one that is installed, and the library.
fn look_at_build(server: &Server, findings: &mut Findings) {
    let Ok(rows) = server.view("pg_baton_build") else {
        return; // The extension is of an older version, which another finding says.
    };
    let Some(build) = rows.first() else {
        return;
    };
    let text = |name: &str| build[name].as_str();
    let program = text("installed_program");
    match (text("installed_layout"), text("library_layout")) {
        (Some(installed), Some(library)) if installed != library => findings.mended(
            CHECK,
            Level::Failure,
            format!(
                "the installed program {} is of another layout ({installed}) than the library that the server runs \
                 ({library}), and is not used",
                program.unwrap_or_default()
            ),
            "restart the server: library and program are of one build then",
        ),
        _ if program.is_none() && build["dispatcher_pid"].is_number() => findings.mended(
            CHECK,
            Level::Warning,
            "its program is no longer installed; the one of the server's start is used until the server restarts",
            server.line("pg_baton.dispatcher_program", "its path"),
        ),
        _ if build["installed_differs"] == Value::Bool(true) => findings.mended(
            CHECK,
            Level::Warning,
            format!(
                "another build of its program waits to be used: {} runs, {} is installed",
                name_of(build, "program"),
                name_of(build, "installed")
            ),
            "baton upgrade, which ends no session",
        ),
        _ => {}
    }
}

/// The version and build of a program, of columns with this prefix.
pub fn name_of(build: &Value, prefix: &str) -> String {
    let text = |name: &str| build[format!("{prefix}_{name}")].as_str();
    let version = text("version").unwrap_or("of unknown version");
    match text("build") {
        Some(id) => format!("{version} (build {id})"),
        None => version.to_owned(),
    }
}

/// Has the library been replaced since the server started? Each backend inherits the
/// postmaster's mapping. None: the server cannot see it.
fn is_library_replaced(server: &Server) -> Option<bool> {
    judge(&server.file("/proc/self/maps")?)
}

fn judge(maps: &str) -> Option<bool> {
    let mut libraries = maps.lines().filter(|line| line.contains("/pg_baton.so"));
    let first = libraries.next()?;
    Some(first.ends_with(" (deleted)"))
}

// ---- without views ----------------------------------------------------------

/// Without the views only the dispatcher's port can be asked.
fn look_without_views(server: &Server, findings: &mut Findings) -> Result<Dispatcher> {
    match &server.views_owner {
        Some(owner) => findings.mended(
            CHECK,
            Level::Unknown,
            format!("its views in this database are not asked: {owner}, no superuser, could replace them"),
            server.mend_of_views(),
        ),
        None => findings.mended(
            CHECK,
            Level::Unknown,
            "this database has no views to ask it by",
            server.mend_of_views(),
        ),
    }
    if collides(server, findings) {
        return Ok(Dispatcher::default());
    }
    let port = server.number("pg_baton.port");
    let places = places(server)?;
    let names = places.iter().map(Place::name).collect::<Vec<_>>();
    let answering = places.iter().find(|place| place.answers());
    match answering {
        Some(place) => findings.add(
            CHECK,
            Level::Ok,
            format!("it answers on port {port} at {}", place.name()),
        ),
        None => findings.mended(
            CHECK,
            Level::Failure,
            format!("nobody answers on port {port} at {}", names.join(", ")),
            "the server's log says why",
        ),
    }
    Ok(Dispatcher {
        is_up: answering.is_some(),
        row: None,
    })
}

/// A place where a client may reach the pool.
enum Place {
    Host(String, u16),
    Socket(String),
}

impl Place {
    fn name(&self) -> String {
        match self {
            Place::Host(host, _) => host.clone(),
            Place::Socket(path) => path.clone(),
        }
    }

    /// Does a program that speaks the protocol answer here? Blocks, for ANSWER_LIMIT in each
    /// step.
    fn answers(&self) -> bool {
        match self {
            Place::Host(host, port) => connect(host, *port).is_some_and(|mut stream| {
                let answer = first_answer(&mut stream);
                if answer == Some(b'S') {
                    // A client that leaves in its handshake would be in the server's log.
                    let _ = certificates::served(stream, host);
                }
                answer.is_some()
            }),
            Place::Socket(path) => UnixStream::connect(path).is_ok_and(|mut stream| {
                let limited = stream.set_read_timeout(Some(ANSWER_LIMIT)).is_ok()
                    && stream.set_write_timeout(Some(ANSWER_LIMIT)).is_ok();
                limited && first_answer(&mut stream).is_some()
            }),
        }
    }
}

/// Connects to the first address that answers. Blocks, for ANSWER_LIMIT an address; reads and
/// writes on the stream have the same limit.
pub fn connect(host: &str, port: u16) -> Option<TcpStream> {
    let mut addresses = (host, port).to_socket_addrs().ok()?;
    let stream = addresses.find_map(|at| TcpStream::connect_timeout(&at, ANSWER_LIMIT).ok())?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).ok()?;
    stream.set_write_timeout(Some(ANSWER_LIMIT)).ok()?;
    Some(stream)
}

/// The answer to SSLRequest: S or N.
pub fn first_answer(stream: &mut (impl Read + Write)) -> Option<u8> {
    stream.write_all(&SSL_REQUEST).ok()?;
    let mut answer = [0];
    stream.read_exact(&mut answer).ok()?;
    matches!(answer[0], b'S' | b'N').then_some(answer[0])
}

fn list(text: &str) -> Vec<String> {
    let names = text
        .split(',')
        .map(|name| name.trim().trim_matches('"').to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

/// The address by which psql has reached the server; None: its Unix socket.
pub fn server_address(server: &Server) -> Result<Option<String>> {
    let asked = server.rows("SELECT json_agg(host(inet_server_addr()))", None)?;
    Ok(asked.first().and_then(Value::as_str).map(str::to_owned))
}

fn listen_addresses(server: &Server) -> String {
    let own = server.text("pg_baton.listen_addresses");
    if own.is_empty() {
        server.text("listen_addresses")
    } else {
        own
    }
}

/// All places where the pool is to listen that can be reached from here.
fn places(server: &Server) -> Result<Vec<Place>> {
    let port = u16::try_from(server.number("pg_baton.port")).unwrap_or(0);
    let reached = server_address(server)?;
    let mut places = Vec::new();
    let is_shared = server.number("port") == i64::from(port);
    let theirs = list(&server.text("listen_addresses"));
    for address in list(&listen_addresses(server)) {
        // The server answers at this address.
        if is_shared && has(&theirs, &address) {
            continue;
        }
        let host = match address.as_str() {
            "*" | "0.0.0.0" | "::" => reached.clone().unwrap_or_else(|| "localhost".to_owned()),
            _ => address,
        };
        places.push(Place::Host(host, port));
    }
    for directory in list(&server.text("unix_socket_directories")) {
        let path = format!("{directory}/.s.PGSQL.{port}");
        if Path::new(&path).exists() || (places.is_empty() && reached.is_none()) {
            places.push(Place::Socket(path));
        }
    }
    Ok(places)
}

// ---- the server's own port ----------------------------------------------------

/// Would the pool listen only where the server does? Both can use one port number at different
/// addresses, and without Unix sockets, whose names contain the number.
fn collides(server: &Server, findings: &mut Findings) -> bool {
    let (port, own) = (server.number("port"), server.number("pg_baton.port"));
    let sockets = server.text("unix_socket_directories");
    let theirs = list(&server.text("listen_addresses"));
    let ours = list(&listen_addresses(server));
    if port != own || !share_all(&sockets, &theirs, &ours) {
        return false;
    }
    findings.mended(
        CHECK,
        Level::Failure,
        format!("it is not up: the server itself listens on port {port}, which is pg_baton.port as well"),
        format!(
            "{}, or {}, and restart the server",
            server.line("pg_baton.port", "another"),
            server.line("port", "another")
        ),
    );
    true
}

/// With one port number for both: does the server listen at every place of the pool?
fn share_all(sockets: &str, theirs: &[String], ours: &[String]) -> bool {
    !list(sockets).is_empty() || (!ours.is_empty() && ours.iter().all(|one| has(theirs, one)))
}

fn has(addresses: &[String], address: &str) -> bool {
    let mut addresses = addresses.iter();
    addresses.any(|one| one == address || matches!(one.as_str(), "*" | "0.0.0.0" | "::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str =
        "7f00-7f01 r-xp 0 08:01 8 /lib/libc.so.6 (deleted)\n7f00-7f01 r-xp 0 08:01 8 /usr/lib/pg_baton.so\n";

    #[test]
    fn what_cannot_be_read_is_not_taken_for_the_same() {
        assert_eq!(judge(LIBRARY), Some(false));
        let gone = LIBRARY.replace(".so\n", ".so (deleted)\n");
        assert_eq!(judge(&gone), Some(true));
        assert_eq!(judge("7f00-7f01 r-xp 0 08:01 8 /lib/libc.so.6\n"), None);
    }

    #[test]
    fn one_port_is_for_both_where_they_share_no_place() {
        let of = |text: &str| list(text);
        assert!(share_all("/tmp", &of("10.0.0.1"), &of("127.0.0.1")));
        assert!(share_all("", &of("a, b"), &of("b")));
        assert!(share_all("", &of("*"), &of("b")));
        assert!(!share_all("", &of("a"), &of("b, a")));
        assert!(!share_all("", &of("a"), &of("")));
    }
}
