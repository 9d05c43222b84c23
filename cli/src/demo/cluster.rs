//! The private cluster: its directory, its server, and the end of both.
//!
//! The server is a child of this program, in a process group of its own. The kernel sends it
//! SIGINT if this program dies unexpectedly. `Drop` stops the server and removes the directory;
//! `finish` does the same and returns errors.

use super::programs::Programs;
use super::progress;
use super::system::{self, Account};
use anyhow::{bail, Context, Result};
use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::unix::fs::{chown, DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The cluster's user, and the first database.
const SUPERUSER: &str = super::NAME;
const MAINTENANCE_DATABASE: &str = "postgres";
const START_LIMIT: Duration = Duration::from_secs(60);
/// A fast shutdown writes a checkpoint.
const FAST_STOP_LIMIT: Duration = Duration::from_secs(30);
const IMMEDIATE_STOP_LIMIT: Duration = Duration::from_secs(5);
/// sun_path holds 108 bytes with the NUL; "/.s.PGSQL.65535" takes 15.
const SOCKET_DIRECTORY_MAX: usize = 107 - 15;
/// Lines of the server's log shown when the server does not start.
const LOG_LINES_SHOWN: usize = 20;

/// A cluster in a directory of its own.
pub struct Cluster<'a> {
    programs: &'a Programs,
    account: Option<Account>,
    directory: PathBuf,
    /// Set if the directory existed before: then it is not removed, and gets its old owner and
    /// permissions back.
    found: Option<Metadata>,
    /// The host by which both ports are asked.
    host: String,
    port: u16,
    server: Option<Child>,
    finished: bool,
}

impl<'a> Cluster<'a> {
    /// Creates the directory.
    pub fn create(
        programs: &'a Programs,
        account: Option<Account>,
        asked: Option<&Path>,
        port: u16,
    ) -> Result<Self> {
        let (directory, found) = make_directory(asked)?;
        Ok(Cluster {
            programs,
            account,
            directory,
            found,
            host: "127.0.0.1".to_owned(),
            port,
            server: None,
            finished: false,
        })
    }

    /// Sets the host at which the server will listen.
    pub fn ask_at(&mut self, host: String) {
        self.host = host;
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// Runs initdb; the server is not started yet.
    pub fn initialise(&self) -> Result<()> {
        let path_length = self.directory.as_os_str().len();
        if path_length > SOCKET_DIRECTORY_MAX {
            bail!(
                "the directory's path has {path_length} bytes, a Unix socket in it allows {SOCKET_DIRECTORY_MAX}: \
                 choose a shorter one with --dir"
            );
        }
        if let Some(account) = &self.account {
            chown(&self.directory, Some(account.uid), Some(account.gid)).with_context(|| {
                format!(
                    "cannot give {} to {}",
                    self.directory.display(),
                    account.name
                )
            })?;
        }
        // Other users may reach the sockets; the data directory is closed to them.
        fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o755))?;

        progress(&format!(
            "making a cluster in {} for {}",
            self.directory.display(),
            self.programs.version
        ));
        let mut initdb = self.programs.command("initdb");
        initdb
            .args([
                "--username",
                SUPERUSER,
                "--auth",
                "trust",
                "--encoding",
                "UTF8",
            ])
            .args(["--no-locale", "--no-sync", "--no-instructions", "--pgdata"])
            .arg(self.data())
            .current_dir("/");
        system::run_well(initdb, self.account.as_ref(), true).map_err(|error| {
            let advice = match &self.account {
                Some(account) if !error.is::<system::Interrupted>() => format!(
                    "cannot make a cluster in {} as user {} (can that user enter the folders above it?)",
                    self.directory.display(),
                    account.name
                ),
                _ => format!("cannot make a cluster in {}", self.directory.display()),
            };
            error.context(advice)
        })?;
        Ok(())
    }

    /// The directory of the cluster and of its Unix sockets.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("server.log")
    }

    /// Adds lines to postgresql.conf; the last one of a name counts.
    pub fn write_parameters(&self, parameters: &[(String, String)]) -> Result<()> {
        let path = self.data().join("postgresql.conf");
        let mut file = File::options()
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(file, "\n# baton demo")?;
        for (name, value) in parameters {
            writeln!(file, "{name} = '{}'", quote(value))?;
        }
        Ok(())
    }

    /// Starts the server and waits until it serves queries.
    pub fn start(&mut self) -> Result<()> {
        progress("starting the server");
        let log = File::create(self.log()).context("cannot make the server's log")?;
        let mut command = self.programs.command("postgres");
        command
            .arg("-D")
            .arg(self.data())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        system::prepare_child(&mut command, self.account.as_ref(), libc::SIGINT);
        self.server = Some(command.spawn().context("cannot start the server")?);
        self.wait_for_port(self.port, MAINTENANCE_DATABASE)
            .context("the server does not start")
    }

    /// Waits until a query through the port is answered. Blocks.
    pub fn wait_for_port(&mut self, port: u16, database: &str) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let refused = match self.query(port, database, "SELECT 1") {
                Ok(_) => return Ok(()),
                Err(error) if error.is::<system::Interrupted>() => return Err(error),
                Err(error) => error,
            };
            if let Some(status) = self.server_status()? {
                bail!(
                    "the server ended ({status}); its log ends so:\n{}",
                    self.end_of_log()
                );
            }
            if Instant::now() > deadline {
                return Err(refused.context(format!(
                    "no answer on port {port} within {} s; the server's log ends so:\n{}",
                    START_LIMIT.as_secs(),
                    self.end_of_log()
                )));
            }
            system::pause()?;
        }
    }

    /// Runs one query; returns rows as psql -At prints them.
    pub fn query(&self, port: u16, database: &str, text: &str) -> Result<String> {
        let mut psql = self.programs.command("psql");
        psql.args([
            "--no-psqlrc",
            "-At",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            &self.host,
            "-U",
            SUPERUSER,
        ])
        .args(["-p", &port.to_string(), "-d", database, "-c", text])
        .env("PGCONNECT_TIMEOUT", "10")
        .current_dir("/");
        Ok(system::run_well(psql, None, true)?.trim().to_owned())
    }

    /// Creates a database.
    pub fn make_database(&self, name: &str) -> Result<()> {
        self.query(
            self.port,
            MAINTENANCE_DATABASE,
            &format!("CREATE DATABASE {name}"),
        )?;
        Ok(())
    }

    /// Waits for a signal. Blocks. An error if the server ends first.
    pub fn wait_for_signal(&mut self) -> Result<()> {
        while system::pause().is_ok() {
            if let Some(status) = self.server_status()? {
                bail!(
                    "the server ended by itself ({status}); its log ends so:\n{}",
                    self.end_of_log()
                );
            }
        }
        Ok(())
    }

    /// Stops the server and removes the directory.
    pub fn finish(mut self) -> Result<()> {
        self.stop_and_remove()
    }

    fn server_status(&mut self) -> Result<Option<std::process::ExitStatus>> {
        match &mut self.server {
            Some(server) => Ok(server.try_wait()?),
            None => Ok(None),
        }
    }

    /// The end of the server's log, for a message.
    pub fn end_of_log(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    fn stop_and_remove(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        let stopped = self.server.take().is_none_or(stop);
        let removed = self.remove();
        if !stopped {
            bail!("the server did not stop in time and was killed");
        }
        removed.with_context(|| format!("cannot remove {}", self.directory.display()))
    }

    fn remove(&self) -> std::io::Result<()> {
        let Some(found) = &self.found else {
            return fs::remove_dir_all(&self.directory);
        };
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?;
            } else {
                fs::remove_file(path)?;
            }
        }
        if self.account.is_some() {
            chown(&self.directory, Some(found.uid()), Some(found.gid()))?;
        }
        fs::set_permissions(&self.directory, found.permissions())
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.stop_and_remove() {
            progress(&format!("{error:#}"));
        }
    }
}

/// Stops the server, less and less gently. Blocks. False if it had to be killed.
fn stop(mut server: Child) -> bool {
    for (signal, limit) in [
        (libc::SIGINT, FAST_STOP_LIMIT),
        (libc::SIGQUIT, IMMEDIATE_STOP_LIMIT),
    ] {
        system::signal_child(&server, signal);
        if system::wait_at_most(&mut server, limit).is_some() {
            return true;
        }
    }
    let _ = server.kill();
    let _ = server.wait();
    false
}

/// Creates the requested directory, which must be new or empty, or else a temporary one.
/// Returns its metadata if it existed.
fn make_directory(asked: Option<&Path>) -> Result<(PathBuf, Option<Metadata>)> {
    let Some(path) = asked else {
        let path = std::env::temp_dir().join(format!("baton-demo-{}", std::process::id()));
        // Not create_dir_all: in a folder open to all users, an existing directory may be
        // another user's trap.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        return Ok((path, None));
    };
    let path = std::path::absolute(path)?;
    if !path.exists() {
        // The parents are not created: they would stay behind.
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        return Ok((path, None));
    }
    let cannot_read = || format!("cannot read {}", path.display());
    let found = fs::metadata(&path).with_context(cannot_read)?;
    if fs::read_dir(&path)
        .with_context(cannot_read)?
        .next()
        .is_some()
    {
        bail!("{} is not empty", path.display());
    }
    Ok((path, Some(found)))
}

/// A value as it is written between quotes in postgresql.conf.
fn quote(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\'', "''")
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quotes_and_backslashes_are_doubled() {
        assert_eq!(quote(r"it's a \ here"), r"it''s a \\ here");
    }
}
