//! Asks the server by psql, which knows how to reach the server as its user does.
//!
//! The questions are asked as a superuser, in databases where other users create objects and
//! set search_path by ALTER DATABASE. So the first statement of each session restricts the
//! look-up of names and operators to pg_catalog, and the extension's views are asked only if no
//! other user than a superuser can replace them. Event triggers on login (17 and later), which
//! run before that statement, can only be created by superusers.

use anyhow::{bail, Context, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One parameter.
#[derive(Clone, Debug)]
struct Setting {
    /// The value in the parameter's base unit.
    value: String,
    unit: String,
    /// "file line 3", if a file sets the parameter.
    place: Option<String>,
}

/// The server, and its answers so far.
pub struct Server {
    psql: PathBuf,
    conninfo: Option<String>,
    settings: HashMap<String, Setting>,
    pub major: u32,
    config_file: String,
    /// The schema of the extension in the connected database, quoted; None without the
    /// extension, or if its views are not to be asked.
    schema: Option<String>,
    /// A user who is no superuser and can replace the extension's views.
    pub views_owner: Option<String>,
    /// psql must not ask for a password.
    is_unattended: bool,
}

const SETTINGS: &str = "SELECT json_agg(json_build_object('name', name, 'value', setting, 'unit', coalesce(unit, ''), \
     'file', sourcefile, 'line', sourceline)) FROM pg_settings";

/// The first statement of each session.
pub const PINNED: &str = "SET search_path = pg_catalog, pg_temp";

/// The extension's schema; and a user who owns the schema, the extension or its members, and is
/// no superuser: the owner of a schema can rename it and put another in its place. 6171 is
/// pg_database_owner (pg_authid.dat), whose only member is the database's owner.
const SCHEMA: &str = "WITH extension AS (SELECT * FROM pg_extension WHERE extname = 'pg_baton'), \
     members AS (SELECT d.classid, d.objid FROM pg_depend d JOIN extension e ON e.oid = d.refobjid \
     WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'), \
     owners AS (SELECT extowner AS owner FROM extension \
     UNION SELECT CASE n.nspowner WHEN 6171 THEN d.datdba ELSE n.nspowner END FROM extension e \
     JOIN pg_namespace n ON n.oid = e.extnamespace JOIN pg_database d ON d.datname = current_database() \
     UNION SELECT c.relowner FROM members m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid \
     UNION SELECT p.proowner FROM members m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid) \
     SELECT json_agg(json_build_object('schema', quote_ident(n.nspname), 'owner', \
     (SELECT min(r.rolname::text) FROM owners o JOIN pg_roles r ON r.oid = o.owner WHERE NOT r.rolsuper))) \
     FROM extension e JOIN pg_namespace n ON n.oid = e.extnamespace";

impl Server {
    /// Connects to the server and asks for its parameters. Blocks, as everything here does;
    /// psql has the time limits.
    pub fn ask(psql: &Path, conninfo: Option<&str>) -> Result<Server> {
        let mut server = Server::new(psql, conninfo);
        let is_superuser = server.rows("SELECT json_agg(current_setting('is_superuser'))", None)?;
        if is_superuser != [Value::from("on")] {
            bail!("ask as a superuser: pg_hba.conf and files of certificates are shown to no one else");
        }
        for row in server.rows(SETTINGS, None)? {
            let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let place = row["line"]
                .as_i64()
                .map(|line| format!("{} line {line}", text("file")));
            server.settings.insert(
                text("name"),
                Setting {
                    value: text("value"),
                    unit: text("unit"),
                    place,
                },
            );
        }
        server.major = server.number("server_version_num") as u32 / 10_000;
        server.config_file = server.text("config_file");
        server.look_for_schema()?;
        Ok(server)
    }

    /// Connects to the server, as any role, and looks only for the extension, without which this
    /// fails.
    pub fn with_views(psql: &Path, conninfo: Option<&str>) -> Result<Server> {
        Server::new(psql, conninfo).require_views()
    }

    /// Likewise, and nothing asks for a password.
    pub fn unattended(psql: &Path, conninfo: Option<&str>) -> Result<Server> {
        let mut server = Server::new(psql, conninfo);
        server.is_unattended = true;
        server.require_views()
    }

    fn require_views(mut self) -> Result<Server> {
        self.look_for_schema()?;
        self.require_extension()?;
        Ok(self)
    }

    fn new(psql: &Path, conninfo: Option<&str>) -> Server {
        Server {
            psql: psql.to_owned(),
            conninfo: conninfo.map(str::to_owned),
            settings: HashMap::new(),
            major: 0,
            config_file: String::new(),
            schema: None,
            views_owner: None,
            is_unattended: false,
        }
    }

    fn look_for_schema(&mut self) -> Result<()> {
        let found = self.rows(SCHEMA, None)?;
        let text = |name: &str| found.first()?[name].as_str().map(str::to_owned);
        self.views_owner = text("owner");
        self.schema = text("schema").filter(|_| self.views_owner.is_none());
        Ok(())
    }

    /// Fails unless the extension's views and functions in this database may be used.
    pub fn require_extension(&self) -> Result<()> {
        match &self.views_owner {
            _ if self.has_views() => Ok(()),
            Some(owner) => bail!(
                "role {owner:?} is no superuser and could replace the functions of the extension in this database"
            ),
            None => bail!(
                "the extension is not in this database: {}",
                self.mend_of_views()
            ),
        }
    }

    /// What makes has_views() true.
    pub fn mend_of_views(&self) -> &'static str {
        match self.views_owner {
            Some(_) => "ALTER EXTENSION pg_baton SET SCHEMA, to one that a superuser owns",
            None => "CREATE EXTENSION pg_baton, or name a database that has it",
        }
    }

    pub fn has_views(&self) -> bool {
        self.schema.is_some()
    }

    /// A view's name in a query: the extension may be outside of the search_path.
    pub fn view_name(&self, view: &str) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{view}"),
            None => view.to_owned(),
        }
    }

    /// All rows of one of the extension's views.
    pub fn view(&self, view: &str) -> Result<Vec<Value>> {
        let sql = format!("SELECT json_agg(v) FROM {} v", self.view_name(view));
        self.rows(&sql, None)
    }

    /// A file of the server's machine, which may be a different one. None: the server's user
    /// may not read it, or it does not exist.
    pub fn file(&self, path: &str) -> Option<String> {
        self.read_file(path).ok().flatten()
    }

    /// Like `file`; an error is the server's.
    pub fn read_file(&self, path: &str) -> Result<Option<String>> {
        let sql = format!("SELECT json_agg(pg_read_file({}))", literal(path));
        let rows = self.rows(&sql, None)?;
        Ok(rows.first().and_then(Value::as_str).map(str::to_owned))
    }

    /// psql, which connects to this server and prints nothing but results.
    pub fn psql(&self) -> Command {
        let mut command = Command::new(&self.psql);
        command.args([
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            "--set",
            "ON_ERROR_STOP=1",
        ]);
        if self.is_unattended {
            command.arg("--no-password");
        }
        // The later of several --dbname counts. PGDATABASE is a name, never a connection string.
        if let Some(conninfo) = &self.conninfo {
            command.args(["--dbname", conninfo]);
        }
        command
            .env("PGCLIENTENCODING", "UTF8")
            .env("PGAPPNAME", "baton");
        if std::env::var_os("PGCONNECT_TIMEOUT").is_none() {
            command.env("PGCONNECT_TIMEOUT", "10");
        }
        command
    }

    /// The rows of a query that returns one JSON array, in this database.
    pub fn rows(&self, sql: &str, database: Option<&str>) -> Result<Vec<Value>> {
        let mut command = self.psql();
        command.args(["--command", PINNED, "--command", sql]);
        if let Some(database) = database {
            match &self.conninfo {
                Some(conninfo) => command.args(["--dbname", &with_database(conninfo, database)]),
                None => command.env("PGDATABASE", database),
            };
        }
        let ran = (command.stdin(Stdio::null()).output())
            .with_context(|| format!("cannot run {}", self.psql.display()))?;
        if !ran.status.success() {
            bail!("{}", String::from_utf8_lossy(&ran.stderr).trim());
        }
        let text = String::from_utf8_lossy(&ran.stdout);
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        match serde_json::from_str(text.trim()) {
            Ok(Value::Array(rows)) => Ok(rows),
            _ => bail!("psql has not answered what it was asked: {}", text.trim()),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.settings.contains_key(name)
    }

    /// The value of a parameter; empty if there is no such parameter.
    pub fn text(&self, name: &str) -> String {
        self.settings
            .get(name)
            .map(|one| one.value.clone())
            .unwrap_or_default()
    }

    /// The value of a parameter; 0 if there is none.
    pub fn number(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// The value of a memory parameter, in bytes.
    pub fn bytes(&self, name: &str) -> i64 {
        let unit = self.settings.get(name).map_or("", |one| one.unit.as_str());
        let (count, what) = unit.split_at(unit.find(|c: char| !c.is_ascii_digit()).unwrap_or(0));
        let count: i64 = count.parse().unwrap_or(1);
        let factor = match what {
            "kB" => 1024,
            "MB" => 1024 * 1024,
            _ => 1,
        };
        self.number(name) * count * factor
    }

    pub fn is_on(&self, name: &str) -> bool {
        self.text(name) == "on"
    }

    /// The line that would set the parameter to this value, and its file.
    pub fn line(&self, name: &str, value: impl std::fmt::Display) -> String {
        let place = self.settings.get(name).and_then(|one| one.place.as_deref());
        let place = place.unwrap_or(&self.config_file);
        format!("{place}: {name} = {value}")
    }
}

/// A string constant of SQL, whatever standard_conforming_strings is.
pub fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// The same server, with another database.
fn with_database(conninfo: &str, database: &str) -> String {
    if conninfo.starts_with("postgres://") || conninfo.starts_with("postgresql://") {
        let encoded: String = (database.bytes())
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let mark = if conninfo.contains('?') { '&' } else { '?' };
        return format!("{conninfo}{mark}dbname={encoded}");
    }
    if !conninfo.contains('=') {
        // The text is only the name of a database.
        return format!("dbname={}", quoted(database));
    }
    format!("{conninfo} dbname={}", quoted(database))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_constant_means_the_text_that_it_was_made_from() {
        assert_eq!(literal("it's \\n"), "E'it''s \\\\n'");
    }

    #[test]
    fn a_database_takes_another_s_place() {
        assert_eq!(
            with_database("host=h dbname=a", "it's"),
            "host=h dbname=a dbname='it\\'s'"
        );
        assert_eq!(with_database("a", "b"), "dbname='b'");
        assert_eq!(
            with_database("postgresql://u@h/a", "b"),
            "postgresql://u@h/a?dbname=%62"
        );
    }
}
