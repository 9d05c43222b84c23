//! Finds the server's programs, and checks whether the extension is installed with them.

use super::system;
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The newest server that this program knows, and the oldest.
const NEWEST_SERVER: u32 = 18;
const OLDEST_SERVER: u32 = 15;

/// The programs of a server.
pub struct Programs {
    /// The folder of postgres, initdb, psql and pgbench.
    pub bin: PathBuf,
    /// As pg_config prints it: "PostgreSQL 15.18 (...)".
    pub version: String,
}

impl Programs {
    /// The programs of the named pg_config; else of the newest server that has the extension;
    /// else of the pg_config on the PATH.
    pub fn find(asked: Option<&Path>) -> Result<Self> {
        let pg_config = match asked {
            Some(path) => path.to_owned(),
            None => default_pg_config(),
        };
        let ask = |what: &str| -> Result<PathBuf> {
            let text = ask_pg_config(&pg_config, what)?;
            Ok(PathBuf::from(text))
        };
        let bin = ask("--bindir")?;
        let version = ask_pg_config(&pg_config, "--version")?;
        for program in ["postgres", "initdb", "psql", "pgbench"] {
            if !bin.join(program).exists() {
                bail!(
                    "there is no {program} in {}, is the server installed?",
                    bin.display()
                );
            }
        }
        let library = ask("--pkglibdir")?.join("pg_baton.so");
        let control = ask("--sharedir")?.join("extension/pg_baton.control");
        for file in [library, control] {
            if !file.exists() {
                bail!(
                    "pg_baton is not installed for {version}: there is no {}\n\
                     Run \"make install PG_CONFIG={}\" in pg_baton's folder, \
                     or name another server with --pg-config",
                    file.display(),
                    pg_config.display()
                );
            }
        }
        Ok(Programs { bin, version })
    }

    /// A command that runs one of the server's programs.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        // The caller's environment may describe another server.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C");
        command
    }
}

fn default_pg_config() -> PathBuf {
    let installed = |major: &u32| {
        let path = debian_pg_config(*major);
        path.exists()
            && ask_pg_config(&path, "--pkglibdir")
                .is_ok_and(|folder| Path::new(&folder).join("pg_baton.so").exists())
    };
    match (OLDEST_SERVER..=NEWEST_SERVER).rev().find(installed) {
        Some(major) => debian_pg_config(major),
        None => PathBuf::from("pg_config"),
    }
}

/// Where Debian's packages put the pg_config of each server.
fn debian_pg_config(major: u32) -> PathBuf {
    PathBuf::from(format!("/usr/lib/postgresql/{major}/bin/pg_config"))
}

fn ask_pg_config(pg_config: &Path, what: &str) -> Result<String> {
    let mut command = Command::new(pg_config);
    command.arg(what);
    let answer = system::run_well(command, None, true)
        .with_context(|| "cannot ask pg_config, name the server's own with --pg-config")?;
    Ok(answer.trim().to_owned())
}
