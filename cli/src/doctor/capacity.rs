//! Connections, background workers, open files and memory: what the configuration demands, and what there is.

use super::ask::Server;
use super::{Findings, Level};
use anyhow::Result;

/// Open files for other purposes than sessions and backends. The dispatcher warns by the same
/// numbers when it starts (start.rs).
const SPARE_FILES: i64 = 200;
/// Open files of the relay process for a session by TLS.
const FILES_OF_TLS: i64 = 2;

/// Compares max_connections with the backends of all kinds.
pub fn connections(server: &Server, findings: &mut Findings) {
    let most = server.number("max_connections");
    let reserved =
        server.number("superuser_reserved_connections") + server.number("reserved_connections");
    let left = most - reserved;
    let shared = server.number("pg_baton.max_backends");
    let dedicated = server.number("pg_baton.max_dedicated").max(0);
    let wanted = shared + dedicated;
    let minimum = shared + dedicated + 1;
    let check = "connections";
    if shared >= left {
        findings.mended(
            check,
            Level::Failure,
            format!(
                "max_connections is {most}, {reserved} of them reserved: pg_baton.max_backends = {shared} leaves none \
                 for dedicated and native sessions, nor for the server's own port"
            ),
            server.line("max_connections", (minimum + reserved).max(2 * shared)),
        );
    } else if wanted >= left {
        findings.mended(
            check,
            Level::Warning,
            format!(
                "max_connections is {most}, {reserved} of them reserved: {shared} shared and {dedicated} dedicated \
                 backends (pg_baton.max_backends, pg_baton.max_dedicated) cannot all be there"
            ),
            server.line("max_connections", minimum + reserved),
        );
    } else {
        let rest = left - wanted;
        findings.add(
            check,
            Level::Ok,
            format!(
                "max_connections = {most} has room for {shared} shared backends, {reserved} reserved connections, and \
                 {rest} for {}native sessions and the server's own port",
                if dedicated > 0 { "" } else { "dedicated and " }
            ),
        );
    }
}

/// Background workers that stay for the server's life, as far as pg_stat_activity shows them: all
/// processes but those of the server's own types, and workers that end with their work.
const LASTING_WORKERS: &str =
    "SELECT json_agg(backend_type) FROM pg_stat_activity WHERE backend_type NOT IN \
     ('client backend', 'autovacuum launcher', 'autovacuum worker', 'background writer', 'checkpointer', 'startup', \
      'walreceiver', 'walsender', 'walwriter', 'walsummarizer', 'archiver', 'logger', 'slotsync worker', 'io worker', \
      'standalone backend', 'parallel worker', 'pg_baton index reader') \
     AND backend_type NOT LIKE 'logical replication %worker'";

/// Have the launcher and the log writer places among max_worker_processes? The log writer uses no
/// database, so pg_stat_activity does not show it: it has none if all are taken by others.
pub fn workers(server: &Server, findings: &mut Findings) -> Result<()> {
    let check = "background workers";
    let most = server.number("max_worker_processes");
    let found = server.rows(LASTING_WORKERS, None)?;
    let name = "max_worker_processes";
    if !found.iter().any(|one| one == "pg_baton launcher") {
        findings.mended(
            check,
            Level::Failure,
            format!("the launcher does not run, and so no dispatcher; {name} is {most}"),
            format!(
                "the server's log says why; if it has no place: {}, and restart the server",
                server.line(name, most + 2)
            ),
        );
    } else if i64::try_from(found.len())? >= most {
        findings.mended(
            check,
            Level::Warning,
            format!(
                "{name} is {most}: the log writer has no place, and the dispatcher's lines go to standard error only"
            ),
            format!("{}, and restart the server", server.line(name, most + 1)),
        );
    } else {
        let text = format!("{name} = {most} has places for the launcher and the log writer");
        findings.add(check, Level::Ok, text);
    }
    Ok(())
}

/// A process's limit of open files from the text in /proc; None if the text is not understood.
fn file_limit(limits: &str) -> Option<i64> {
    let mut lines = limits.lines();
    let line = lines.find(|line| line.starts_with("Max open files"))?;
    match line.split_whitespace().nth(4)? {
        "unlimited" => Some(i64::MAX),
        hard => hard.parse().ok(),
    }
}

/// Compares the limit of open files with max_sessions. The dispatcher and its relay process have
/// the same hard limit, and raise theirs to it.
pub fn open_files(server: &Server, dispatcher: Option<u32>, findings: &mut Findings) {
    let check = "open files";
    let limits = dispatcher.and_then(|pid| server.file(&format!("/proc/{pid}/limits")));
    let Some(most) = limits.as_deref().and_then(file_limit) else {
        let why = "how many files the dispatcher may open is not known";
        let mend = match dispatcher {
            Some(_) => "let the server's user read /proc of its own processes",
            None if !server.has_views() => server.mend_of_views(),
            None => "start the dispatcher",
        };
        return findings.mended(check, Level::Unknown, why, mend);
    };
    let sessions = server.number("pg_baton.max_sessions");
    let others = 2 * server.number("max_connections") + SPARE_FILES;
    let (plain, by_tls) = (sessions + others, FILES_OF_TLS * sessions + others);
    let advice = |files: i64| {
        format!(
            "the server's service: LimitNOFILE={files} (or {})",
            server.line(
                "pg_baton.max_sessions",
                ((most - others) / FILES_OF_TLS).max(1)
            )
        )
    };
    if plain > most {
        findings.mended(
            check,
            Level::Failure,
            format!("pg_baton.max_sessions = {sessions} takes {plain} open files, and the dispatcher may have {most}"),
            advice(if server.is_on("ssl") { by_tls } else { plain }),
        );
    } else if server.is_on("ssl") && by_tls > most {
        findings.mended(
            check,
            Level::Warning,
            format!(
                "{sessions} sessions by TLS (pg_baton.max_sessions) take {by_tls} open files of the process \
                 baton-relay, which may have {most}"
            ),
            advice(by_tls),
        );
    } else {
        findings.add(
            check,
            Level::Ok,
            format!("the dispatcher may have {most}, enough for {sessions} sessions"),
        );
    }
}

/// The total memory in the text of /proc/meminfo.
fn memory_bytes(text: &str) -> Option<i64> {
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kb: i64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kb * 1024)
}

fn in_mb(bytes: i64) -> i64 {
    bytes / 1024 / 1024
}

/// Compares the memory that is reserved in advance with the machine's.
pub fn memory(server: &Server, findings: &mut Findings) {
    let check = "memory";
    let Some(all) = server
        .file("/proc/meminfo")
        .as_deref()
        .and_then(memory_bytes)
    else {
        let text = "the server cannot read its machine's /proc/meminfo";
        return findings.add(check, Level::Unknown, text);
    };
    let buffers = server.bytes("shared_buffers");
    let contexts = server.bytes("pg_baton.session_memory");
    let queries =
        server.bytes("track_activity_query_size") * server.number("pg_baton.max_sessions");
    let text = format!(
        "{} MB for sessions' contexts at most (pg_baton.session_memory), {} for their last queries \
         (track_activity_query_size), {} of shared_buffers; the machine has {}",
        in_mb(contexts),
        in_mb(queries),
        in_mb(buffers),
        in_mb(all)
    );
    if buffers + contexts + queries > all / 10 * 9 {
        let value = format!("{}MB", (in_mb(all) / 10).max(1));
        findings.mended(
            check,
            Level::Failure,
            text,
            server.line("pg_baton.session_memory", value),
        );
    } else {
        findings.add(check, Level::Ok, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read_as_the_kernel_writes_it() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(file_limit(limits), Some(524_288));
        assert_eq!(
            file_limit("Max open files  1024  unlimited  files"),
            Some(i64::MAX)
        );
        assert_eq!(file_limit("Max processes 1 2 processes"), None);
        let memory = "MemTotal:       24683180 kB\nMemFree:        1 kB\n";
        assert_eq!(memory_bytes(memory), Some(24_683_180 * 1024));
        assert_eq!(memory_bytes(""), None);
    }
}
