//! The commands of the console, and how their text is read: one command of one or two words, or
//! SET. Words may be quoted like identifiers, and are not case-sensitive where they are names of
//! commands.

use super::tables::{self, Column};
use super::{Access, Layout};
use crate::protocol::Report;

/// PgBouncer takes no longer word as an argument.
const MOST_ARGUMENT: usize = 63;
/// Bytes of a text that an error message quotes.
const MOST_QUOTED: usize = 900;

/// The results that SHOW gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    ActiveSockets,
    Clients,
    Config,
    Databases,
    DnsHosts,
    DnsZones,
    Fds,
    Help,
    Lists,
    Mem,
    PeerPools,
    Peers,
    Pools,
    Servers,
    Sockets,
    State,
    Stats,
    StatsAverages,
    StatsTotals,
    Totals,
    Users,
    Version,
}

pub const SHOWS: [(&str, Show); 22] = [
    ("active_sockets", Show::ActiveSockets),
    ("clients", Show::Clients),
    ("config", Show::Config),
    ("databases", Show::Databases),
    ("dns_hosts", Show::DnsHosts),
    ("dns_zones", Show::DnsZones),
    ("fds", Show::Fds),
    ("help", Show::Help),
    ("lists", Show::Lists),
    ("mem", Show::Mem),
    ("peer_pools", Show::PeerPools),
    ("peers", Show::Peers),
    ("pools", Show::Pools),
    ("servers", Show::Servers),
    ("sockets", Show::Sockets),
    ("state", Show::State),
    ("stats", Show::Stats),
    ("stats_averages", Show::StatsAverages),
    ("stats_totals", Show::StatsTotals),
    ("totals", Show::Totals),
    ("users", Show::Users),
    ("version", Show::Version),
];

/// Parameters that drivers ask for, with their values here.
const PARAMETERS: [(&str, &str); 5] = [
    ("client_encoding", "UTF-8"),
    ("default_transaction_isolation", "read committed"),
    ("standard_conforming_strings", "on"),
    ("datestyle", "ISO"),
    ("timezone", "GMT"),
];

/// Parameters that drivers set, beside those.
const IGNORED: [&str; 2] = ["application_name", "extra_float_digits"];

/// The text that SHOW HELP gives as a notice.
pub const HELP: &str = "\n\tSHOW HELP|CONFIG|DATABASES|POOLS|CLIENTS|SERVERS|USERS|VERSION\n\
    \tSHOW PEERS|PEER_POOLS\n\
    \tSHOW FDS|SOCKETS|ACTIVE_SOCKETS|LISTS|MEM|STATE\n\
    \tSHOW DNS_HOSTS|DNS_ZONES\n\
    \tSHOW STATS|STATS_TOTALS|STATS_AVERAGES|TOTALS\n\
    \tRELOAD\n\
    \tPAUSE [<db>]\n\
    \tRESUME [<db>]\n\
    \tRECONNECT [<db>]\n\
    \tKILL [<db>]\n\
    \tWAIT_CLOSE [<db>]\n\
    \tDISABLE <db>\n\
    \tENABLE <db>\n\
    \tKILL_CLIENT <client_id>";

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// An empty query.
    Nothing,
    Show(Show),
    /// The name and value of a parameter that drivers ask for.
    ShowParameter(&'static str, &'static str),
    /// SET of a parameter that drivers set; it changes nothing.
    IgnoredSet,
    /// Of a database; None: of all. So the next ones.
    Pause(Option<Vec<u8>>),
    Resume(Option<Vec<u8>>),
    Reconnect(Option<Vec<u8>>),
    Kill(Option<Vec<u8>>),
    WaitClose(Option<Vec<u8>>),
    Disable(Vec<u8>),
    Enable(Vec<u8>),
    KillClient(u64),
    Reload,
}

impl Command {
    /// The columns of its result; None: it has no rows.
    pub fn columns(&self, layout: Layout) -> Option<Vec<Column>> {
        match self {
            Command::Show(Show::Help) => None,
            Command::Show(show) => Some(tables::columns(*show, layout)),
            Command::ShowParameter(name, _) => Some(vec![Column::text(name)]),
            _ => None,
        }
    }

    /// The text of CommandComplete.
    pub fn tag(&self) -> &'static str {
        match self {
            Command::Nothing => "",
            Command::Show(_) | Command::ShowParameter(..) => "SHOW",
            Command::IgnoredSet => "SET",
            Command::Pause(_) => "PAUSE",
            Command::Resume(_) => "RESUME",
            Command::Reconnect(_) => "RECONNECT",
            Command::Kill(_) => "KILL",
            Command::WaitClose(_) => "WAIT_CLOSE",
            Command::Disable(_) => "DISABLE",
            Command::Enable(_) => "ENABLE",
            Command::KillClient(_) => "KILL_CLIENT",
            Command::Reload => "RELOAD",
        }
    }

    /// May anyone with the console execute it?
    fn is_for_all(&self) -> bool {
        match self {
            Command::Show(show) => *show != Show::Fds,
            Command::Nothing | Command::ShowParameter(..) | Command::IgnoredSet => true,
            _ => false,
        }
    }
}

/// An error of the console: PgBouncer gives all of them this SQLSTATE.
#[track_caller]
pub fn error(message: impl Into<Vec<u8>>) -> Report {
    Report::error(b"08P01", message)
}

/// A command of PgBouncer that is not for this pool.
#[track_caller]
fn unsupported(what: &str, hint: &str) -> Report {
    let text = format!("{what} is not supported by pg_baton's console");
    Report::error(b"0A000", text).with_hint(hint)
}

fn syntax_error(query: &[u8]) -> Report {
    let quoted = &query[..query.len().min(MOST_QUOTED)];
    error([b"invalid command '", quoted, b"', use SHOW HELP;"].concat())
}

/// A piece of a command's text.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Word(Vec<u8>),
    /// In single quotes.
    Value(Vec<u8>),
    Equals,
}

/// What stands between quotes, in which a doubled quote stands for one; and the bytes after it.
fn quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let quote = *text.first()?;
    let (mut content, mut at) = (Vec::new(), 1);
    loop {
        let byte = *text.get(at)?;
        at += 1;
        if byte == quote {
            if text.get(at) != Some(&quote) {
                return Some((content, &text[at..]));
            }
            at += 1;
        }
        content.push(byte);
    }
}

/// The pieces of a text; None if it is no command.
fn pieces(mut text: &[u8]) -> Option<Vec<Piece>> {
    let is_space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut all = Vec::new();
    let mut is_apart = true;
    loop {
        match text.first().copied() {
            None => return Some(all),
            Some(byte) if is_space(byte) => {
                text = &text[1..];
                is_apart = true;
                continue;
            }
            // One semicolon may end the command.
            Some(b';') => {
                let is_end = text[1..].iter().all(|byte| is_space(*byte));
                return is_end.then_some(all);
            }
            Some(b'=') => {
                text = &text[1..];
                all.push(Piece::Equals);
                is_apart = true;
                continue;
            }
            _ if !is_apart => return None,
            Some(b'"') => {
                let (word, rest) = quoted(text)?;
                all.push(Piece::Word(word));
                text = rest;
            }
            Some(b'\'') => {
                let (value, rest) = quoted(text)?;
                all.push(Piece::Value(value));
                text = rest;
            }
            Some(byte) if is_of_word(&byte) => {
                let end = text.iter().position(|byte| !is_of_word(byte));
                let (word, rest) = text.split_at(end.unwrap_or(text.len()));
                all.push(Piece::Word(word.to_vec()));
                text = rest;
            }
            Some(_) => return None,
        }
        is_apart = false;
    }
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

fn find<T: Copy>(word: &[u8], all: &[(&'static str, T)]) -> Option<(&'static str, T)> {
    all.iter().copied().find(|(name, _)| is(word, name))
}

/// Reads a command, and checks that the client may execute it.
pub fn parse(query: &[u8], access: Access) -> Result<Command, Report> {
    let pieces = pieces(query).ok_or_else(|| syntax_error(query))?;
    let command = match pieces.as_slice() {
        [] => Ok(Command::Nothing),
        [Piece::Word(word)] => one(word, &[], query),
        [Piece::Word(set), Piece::Word(name), how, Piece::Value(_) | Piece::Word(_)]
            if is(set, "set") =>
        {
            let is_how = match how {
                Piece::Equals => true,
                Piece::Word(word) => is(word, "to"),
                Piece::Value(_) => false,
            };
            match is_how {
                true => set_parameter(name),
                false => Err(syntax_error(query)),
            }
        }
        [Piece::Word(word), Piece::Word(argument)] => one(word, argument, query),
        _ => Err(syntax_error(query)),
    }?;
    match access == Access::All || command.is_for_all() {
        true => Ok(command),
        false => Err(error("admin access needed")),
    }
}

fn set_parameter(name: &[u8]) -> Result<Command, Report> {
    let is_ignored = IGNORED.iter().any(|it| is(name, it)) || find(name, &PARAMETERS).is_some();
    match is_ignored {
        true => Ok(Command::IgnoredSet),
        false => {
            Err(error("SET failed")
                .with_hint("Use ALTER SYSTEM SET pg_baton.... = ..., and RELOAD."))
        }
    }
}

/// A command of one word, or of two.
fn one(word: &[u8], argument: &[u8], query: &[u8]) -> Result<Command, Report> {
    if argument.len() > MOST_ARGUMENT {
        return Err(error("bad arguments"));
    }
    let database = (!argument.is_empty()).then(|| argument.to_vec());
    if let Some(name) = database.as_ref().filter(|name| **name == super::DATABASE) {
        for command in [
            "pause",
            "kill",
            "reconnect",
            "wait_close",
            "disable",
            "enable",
        ] {
            if is(word, command) {
                let name = String::from_utf8_lossy(name);
                return Err(error(format!("cannot {command} admin db: {name}")));
            }
        }
    }
    if is(word, "show") || is(word, "select") {
        if let Some((name, value)) = find(argument, &PARAMETERS) {
            return Ok(Command::ShowParameter(name, value));
        }
        let found = find(argument, &SHOWS);
        let found = found.map(|(_, show)| Command::Show(show));
        return found.ok_or_else(|| syntax_error(query));
    }
    let is_it = |name| is(word, name);
    Ok(if is_it("pause") {
        Command::Pause(database)
    } else if is_it("resume") {
        Command::Resume(database)
    } else if is_it("reconnect") {
        Command::Reconnect(database)
    } else if is_it("kill") {
        Command::Kill(database)
    } else if is_it("wait_close") {
        Command::WaitClose(database)
    } else if is_it("disable") || is_it("enable") {
        let name = database.ok_or_else(|| error("a database is required"))?;
        match is_it("disable") {
            true => Command::Disable(name),
            false => Command::Enable(name),
        }
    } else if is_it("kill_client") {
        let number = std::str::from_utf8(argument).ok();
        let number = number.and_then(|text| text.parse().ok());
        Command::KillClient(number.ok_or_else(|| error("invalid client pointer supplied"))?)
    } else if is_it("reload") && argument.is_empty() {
        Command::Reload
    } else if is_it("suspend") {
        return Err(unsupported("SUSPEND", "Use PAUSE."));
    } else if is_it("shutdown") {
        let hint =
            "The pool ends with the server. To start its dispatcher anew, use baton upgrade.";
        return Err(unsupported("SHUTDOWN", hint));
    } else {
        return Err(syntax_error(query));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Command {
        parse(text.as_bytes(), Access::All).unwrap_or_else(|report| panic!("{text}: {report}"))
    }

    fn refused(text: &str, access: Access) -> String {
        let report = parse(text.as_bytes(), access).expect_err(text);
        String::from_utf8(report.message).unwrap()
    }

    #[test]
    fn commands_are_read_in_any_case_and_spacing() {
        let stats = Command::Show(Show::Stats);
        for text in [
            "SHOW STATS",
            "show stats;",
            " \n show\tStats ; ",
            "SELECT stats",
            "SHOW \"stats\"",
        ] {
            assert_eq!(read(text), stats, "{text}");
        }
        for (name, show) in SHOWS {
            assert_eq!(read(&format!("SHOW {name}")), Command::Show(show));
        }
        assert_eq!(read(""), Command::Nothing);
        assert_eq!(read(" ; "), Command::Nothing);
        assert_eq!(read("pause"), Command::Pause(None));
        assert_eq!(read("PAUSE Shop"), Command::Pause(Some(b"Shop".to_vec())));
        let odd = Command::Kill(Some(b"a \"b\" ; c".to_vec()));
        assert_eq!(read("KILL \"a \"\"b\"\" ; c\";"), odd);
        assert_eq!(read("KILL_CLIENT 8388609"), Command::KillClient(8_388_609));
        for text in [
            "SET datestyle = 'ISO, it''s'",
            "set application_name to x",
            "SET timezone=UTC",
        ] {
            assert_eq!(read(text), Command::IgnoredSet, "{text}");
        }
        let shown = Command::ShowParameter("datestyle", "ISO");
        assert_eq!(read("SHOW DateStyle"), shown);
    }

    #[test]
    fn what_is_no_command_is_refused_in_pgbouncers_words() {
        for text in [
            "SHOW",
            "SHOW nothing",
            "BEGIN",
            "SELECT 1",
            "SHOW STATS; SHOW POOLS",
            "SHOW STATS x",
            "SHOWSTATS",
            "SHOW \"stats",
            "SHOW\"stats\"",
            "SHOW STATS;;",
            "SET x",
            "SET x y z",
            "SHOW 'stats'",
            "RELOAD x",
            "SHOW -",
            "= x",
        ] {
            let expected = format!("invalid command '{text}', use SHOW HELP;");
            assert_eq!(refused(text, Access::All), expected);
        }
        assert_eq!(
            refused(&format!("PAUSE {}", "x".repeat(64)), Access::All),
            "bad arguments"
        );
        let text = refused("KILL_CLIENT x", Access::All);
        assert_eq!(text, "invalid client pointer supplied");
        assert_eq!(
            refused("PAUSE pgbouncer", Access::All),
            "cannot pause admin db: pgbouncer"
        );
        assert_eq!(refused("DISABLE", Access::All), "a database is required");
        assert_eq!(
            refused("SET max_client_conn = 5", Access::All),
            "SET failed"
        );
        let long = refused(&"x".repeat(100_000), Access::All);
        assert!(long.len() < 1000);
    }

    #[test]
    fn only_superusers_change_anything() {
        for text in [
            "PAUSE",
            "RESUME",
            "RECONNECT",
            "KILL",
            "KILL_CLIENT 1",
            "WAIT_CLOSE",
            "DISABLE x",
            "ENABLE x",
            "RELOAD",
            "SHOW FDS",
        ] {
            assert_eq!(refused(text, Access::Show), "admin access needed", "{text}");
            read(text);
        }
        for (name, show) in SHOWS.iter().filter(|(_, show)| *show != Show::Fds) {
            let found = parse(format!("SHOW {name}").as_bytes(), Access::Show);
            assert_eq!(found, Ok(Command::Show(*show)));
        }
    }

    #[test]
    fn what_the_pool_does_not_do_is_refused_with_a_hint() {
        for text in ["SUSPEND", "SHUTDOWN", "SHUTDOWN WAIT_FOR_CLIENTS"] {
            let report = parse(text.as_bytes(), Access::All).expect_err(text);
            assert_eq!(&report.sqlstate, b"0A000");
            assert!(report.hint.is_some());
        }
    }
}
