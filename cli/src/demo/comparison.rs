//! The short comparison: the same 200 clients of pgbench, in turns directly and through the
//! pool, so that other load on the machine affects both alike.

use super::cluster::Cluster;
use super::programs::Programs;
use super::{progress, system, NAME};
use anyhow::{Context, Result};
use std::fmt::Write;

/// Clients of the comparison.
pub const CLIENTS: u32 = 200;
const SECONDS: u32 = 5;
const ROUNDS: u32 = 2;
const SCALE: u32 = 5;

/// The two ports.
pub struct Ports {
    /// The server's own port.
    pub direct: u16,
    /// The pool's port.
    pub pool: u16,
}

/// The result of one run of pgbench.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    transactions_per_second: f64,
    latency_ms: f64,
}

/// Loads the data, compares, and returns the table. Blocks for about a minute.
pub fn run(cluster: &Cluster, programs: &Programs, ports: &Ports, backends: u32) -> Result<String> {
    progress(&format!("loading pgbench's data, scale {SCALE}"));
    let mut load = programs.command("pgbench");
    load.args(["--initialize", "--quiet", "--scale", &SCALE.to_string()])
        .args([
            "-h",
            cluster.host(),
            "-p",
            &ports.direct.to_string(),
            "-U",
            NAME,
            NAME,
        ]);
    system::run_well(load, None, false)?;
    cluster.query(ports.direct, NAME, "CREATE EXTENSION pg_baton")?;

    let mut table = format!(
        "\n{CLIENTS} clients, select-only            direct    pool of {backends:<4} pool/direct\n"
    );
    for protocol in ["simple", "prepared"] {
        let mut direct = Vec::new();
        let mut pool = Vec::new();
        for round in 1..=ROUNDS {
            for (name, port, figures) in [
                ("direct", ports.direct, &mut direct),
                ("pool", ports.pool, &mut pool),
            ] {
                progress(&format!(
                    "{CLIENTS} clients, {protocol}, {name}, round {round} of {ROUNDS}"
                ));
                figures.push(
                    pgbench(programs, cluster.host(), port, protocol).with_context(|| {
                        format!(
                            "pgbench failed; the server's log ends so:\n{}",
                            cluster.end_of_log()
                        )
                    })?,
                );
            }
        }
        let (direct, pool) = (mean(&direct), mean(&pool));
        let label = format!("{protocol} protocol, transactions/s");
        let _ = writeln!(
            table,
            "{label:<33} {:>9.0} {:>12.0} {:>11.2}",
            direct.transactions_per_second,
            pool.transactions_per_second,
            pool.transactions_per_second / direct.transactions_per_second
        );
        let label = format!("{protocol} protocol, mean latency ms");
        let _ = writeln!(
            table,
            "{label:<33} {:>9.2} {:>12.2}",
            direct.latency_ms, pool.latency_ms
        );
    }
    let _ = writeln!(
        table,
        "{:<33} {CLIENTS:>9} {backends:>12}",
        "server processes for them"
    );
    Ok(table)
}

fn pgbench(programs: &Programs, host: &str, port: u16, protocol: &str) -> Result<Figures> {
    let mut command = programs.command("pgbench");
    command
        .args([
            "--select-only",
            "--no-vacuum",
            "--progress",
            "1",
            "--jobs",
            "2",
        ])
        .args(["--protocol", protocol, "--time", &SECONDS.to_string()])
        .args(["--client", &CLIENTS.to_string(), "-h", host])
        .args(["-p", &port.to_string(), "-U", NAME, NAME]);
    let text = system::run_well(command, None, false)?;
    parse(&text).with_context(|| format!("pgbench's answer is not as expected: {text}"))
}

/// Reads the two relevant lines of pgbench's report.
fn parse(report: &str) -> Option<Figures> {
    let number_after = |start: &str| {
        let line = report.lines().find_map(|line| line.strip_prefix(start))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(Figures {
        transactions_per_second: number_after("tps = ")?,
        latency_ms: number_after("latency average = ")?,
    })
}

fn mean(figures: &[Figures]) -> Figures {
    let count = figures.len() as f64;
    let sum = |field: fn(&Figures) -> f64| figures.iter().map(field).sum::<f64>();
    Figures {
        transactions_per_second: sum(|f| f.transactions_per_second) / count,
        latency_ms: sum(|f| f.latency_ms) / count,
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, Figures};

    #[test]
    fn pgbench_report_is_read() {
        let report = "latency average = 4.123 ms\ninitial connection time = 12.5 ms\n\
                      tps = 48500.250000 (without initial connection time)\n";
        let expected = Figures {
            transactions_per_second: 48500.25,
            latency_ms: 4.123,
        };
        assert_eq!(parse(report), Some(expected));
        assert_eq!(parse("pgbench: error"), None);
    }
}
