#!/usr/bin/env python3
"""The benchmark: pgbench and baton-load, direct, through pg_baton and through
PgBouncer, in turns, several rounds; a table, a plot and the bars of the
project in bench/results/.

    bench/run.py [--quick] [--rounds N] [--seconds S] [--only WORDS] [--name NAME]

The full run takes about 50 minutes, --quick about 5.  Ratios are made within a
round, where the three runs lie next to each other in time; what is reported
is their median.  One cell that fails does not stop the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import report  # noqa: E402
import servers  # noqa: E402
from servers import LOAD, Bouncer, Canned, Server, Target, cpu_seconds, memory_kib, program  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
BACKENDS = 8
SCALE = 10
IDLE_SESSIONS = 10_000
# Direct, each client is a process; beyond this many it says nothing new.
DIRECT_CLIENTS_MAX = 500
SETTLE_LIMIT_S = 20


@dataclass(frozen=True)
class Cell:
    """One workload at one number of clients."""

    workload: str				# select-only, tpc-b, reconnecting
    protocol: str				# simple, extended, prepared
    clients: int
    generator: str				# pgbench, baton-load

    def label(self) -> str:
        return f"{self.workload} {self.protocol} {self.clients} {self.generator}"


@dataclass
class Sample:
    """One run of one cell on one target."""

    target: str
    tps: float | None = None
    pooler_us: float | None = None	# CPU of the pooler a transaction
    failure: str = ""


@dataclass
class Measured:
    """All rounds of one cell: for each, target name to sample."""

    cell: Cell
    rounds: list[dict[str, Sample]] = field(default_factory=list)


def cells(quick: bool) -> list[Cell]:
    protocols = ("simple", "prepared") if quick else ("simple", "extended", "prepared")
    found = [Cell("select-only", protocol, clients, "pgbench") for protocol in protocols for clients in (1, 8, 64, 500)]
    many = (64, 2000, 10_000) if quick else (64, 500, 2000, 10_000)
    found += [Cell("select-only", protocol, clients, "baton-load")
              for protocol in (protocols[:1] if quick else protocols) for clients in many]
    found += [Cell("tpc-b", "simple", clients, "pgbench") for clients in ((8,) if quick else (1, 8, 64, 500))]
    found.append(Cell("reconnecting", "simple", 8, "pgbench"))
    return found


def command(cell: Cell, target: Target, seconds: float, bouncer_knows_prepared: bool) -> list[str]:
    protocol = cell.protocol
    if protocol == "prepared" and target.name == "PgBouncer" and not bouncer_knows_prepared:
        # Its clients have to do without: the nearest they can do.
        protocol = "extended"
    if cell.generator == "baton-load":
        return [str(LOAD), "--port", str(target.port), "--clients", str(cell.clients), "--protocol", protocol,
                "--seconds", str(seconds), "--warmup", "1", "--scale", str(SCALE)]
    words = [program("pgbench"), "-n", "-h", "127.0.0.1", "-p", str(target.port), "-U", servers.USER,
             "-c", str(cell.clients), "-j", str(min(2, cell.clients)), "-T", str(max(1, round(seconds))),
             "-M", protocol]
    if cell.workload != "tpc-b":
        words.append("-S")
    if cell.workload == "reconnecting":
        words.append("-C")
    return [*words, servers.USER]


def measure(cell: Cell, target: Target, seconds: float, bouncer_knows_prepared: bool) -> Sample:
    if cell.clients >= 500:
        # Direct, as many backends take seconds to get going.
        seconds = max(seconds, 4)
    before = cpu_seconds(target.pids)
    try:
        done = subprocess.run(command(cell, target, seconds, bouncer_knows_prepared), capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=seconds + 180)
    except subprocess.TimeoutExpired:
        return Sample(target.name, failure="did not end")
    used = cpu_seconds(target.pids) - before
    if done.returncode != 0:
        return Sample(target.name, failure=done.stderr.strip()[-300:])
    if cell.generator == "baton-load":
        answer = json.loads(done.stdout)
        if answer["errors"]:
            return Sample(target.name, failure=f"{answer['errors']} errors: {done.stderr.strip()[-300:]}")
        tps, transactions = answer["tps"], 0
    else:
        tps_found = re.search(r"^tps = ([\d.]+)", done.stdout, re.M)
        count_found = re.search(r"actually processed: (\d+)", done.stdout)
        if not tps_found or not count_found:
            return Sample(target.name, failure="no figures in " + done.stdout[-300:])
        tps, transactions = float(tps_found.group(1)), int(count_found.group(1))
    sample = Sample(target.name, tps=tps)
    # The load generator's warm-up and logins would count with its CPU time.
    if target.pids and transactions:
        sample.pooler_us = used / transactions * 1e6
    return sample


def settle(targets: list[Target]) -> None:
    """Waits until the poolers are done with what the last run left: closing
    ten thousand sessions takes a while."""
    pids = tuple(pid for target in targets for pid in target.pids)
    deadline = time.monotonic() + SETTLE_LIMIT_S
    before = cpu_seconds(pids)
    while time.monotonic() < deadline:
        time.sleep(0.25)
        now = cpu_seconds(pids)
        if now - before < 0.005:
            return
        before = now


def idle_memory(target: Target) -> dict[str, float]:
    """What 10,000 idle sessions cost a pooler: memory each, and CPU."""
    before = memory_kib(target.pids)
    holder = subprocess.Popen([str(LOAD), "--port", str(target.port), "--clients", str(IDLE_SESSIONS), "--idle"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin and holder.stdout
    if "holding" not in holder.stdout.readline():
        holder.wait(60)
        return {}
    time.sleep(2)
    after = memory_kib(target.pids)
    cpu_before = cpu_seconds(target.pids)
    time.sleep(5)
    cpu = cpu_seconds(target.pids) - cpu_before
    holder.stdin.close()
    holder.wait(60)
    each = {name: (after[name] - before[name]) * 1024 / IDLE_SESSIONS for name in after}
    return {"bytes": each["VmRSS"], "own_bytes": each["RssAnon"], "cpu_percent": cpu / 5 * 100}


def targets_of(cell: Cell, server: Server, bouncer: Bouncer, canned: Canned) -> list[Target]:
    found = [server.pool(), bouncer.target()]
    if cell.workload == "reconnecting":
        found.append(canned.target())
    if cell.clients <= DIRECT_CLIENTS_MAX:
        found.insert(0, server.direct())
    return found


def measure_all(options: argparse.Namespace, wanted: list[Cell], server: Server, bouncer: Bouncer,
                canned: Canned, keep: Callable[[list[Measured], int], None]) -> None:
    measured = [Measured(cell) for cell in wanted]
    total = options.rounds * len(wanted)
    done = 0
    for number in range(options.rounds):
        for one in measured:
            done += 1
            targets = targets_of(one.cell, server, bouncer, canned)
            turn = number % len(targets)  # who is first changes
            samples: dict[str, Sample] = {}
            for target in targets[turn:] + targets[:turn]:
                settle(targets)
                sample = measure(one.cell, target, options.seconds, bouncer.knows_prepared)
                samples[target.name] = sample
            one.rounds.append(samples)
            shown = "  ".join(f"{name} {sample.tps:.0f}" if sample.tps else f"{name} failed: {sample.failure}"
                              for name, sample in sorted(samples.items()))
            print(f"bench: {done}/{total}  {one.cell.label()}:  {shown}", file=sys.stderr, flush=True)
        keep(measured, number + 1)


def write(name: str, raw: dict[str, object]) -> None:
    """The three files of a result."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(report.markdown(raw, f"{name}.svg"))
    (RESULTS / f"{name}.svg").write_text(report.plot(raw))


def main() -> None:
    parser = argparse.ArgumentParser(description="pg_baton's benchmark")
    parser.add_argument("--quick", action="store_true", help="about five minutes instead of fifty")
    parser.add_argument("--rounds", type=int, help="[5, quick: 2]")
    parser.add_argument("--seconds", type=float, help="a run [5, quick: 2]")
    parser.add_argument("--only", default="", help="cells whose label matches this pattern")
    parser.add_argument("--name", help="of the files in bench/results [full or quick]")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (2 if options.quick else 5)
    name = options.name or ("quick" if options.quick else "full")
    wanted = [cell for cell in cells(options.quick) if re.search(options.only, cell.label())]

    settings = {
        "max_connections": str(DIRECT_CLIENTS_MAX + 50), "shared_buffers": "512MB", "max_wal_size": "4GB",
        "pg_baton.max_sessions": "12000",
        **dict(value.split("=", 1) for value in options.set),
    }
    # Stopped, it still stops what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server = Server(BACKENDS, settings)
    bouncer = Bouncer(server, BACKENDS)
    canned = Canned()
    idle: dict[str, dict[str, float]] = {}
    started = time.monotonic()
    load_before = os.getloadavg()[0]
    try:
        server.start()
        bouncer.start()
        canned.start()
        subprocess.run([program("pgbench"), "-i", "-q", "-s", str(SCALE), "-h", "127.0.0.1", "-p",
                        str(servers.PG_PORT), "-U", servers.USER, servers.USER], check=True, capture_output=True)
        # First, while both poolers are as they started.
        if not options.only or "idle" in options.only:
            for target in (server.pool(), bouncer.target()):
                idle[target.name] = idle_memory(target)
                print(f"bench: idle sessions, {target.name}: {idle[target.name]}", file=sys.stderr, flush=True)
        about = {
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "server": server.query("SELECT split_part(version(), ' ', 2)"),
            "bouncer": bouncer.version,
            "bouncer_knows_prepared": bouncer.knows_prepared,
            "seconds": options.seconds, "backends": BACKENDS, "scale": SCALE,
            "load_before": round(load_before, 1),
        }

        def keep(measured: list[Measured], rounds: int) -> None:
            """After each round, so that a run that is stopped has not been for nothing."""
            about["rounds"] = rounds
            about["minutes"] = round((time.monotonic() - started) / 60, 1)
            write(name, {"about": about, "idle": idle, "cells": [asdict(one) for one in measured]})

        measure_all(options, wanted, server, bouncer, canned, keep)
    finally:
        canned.stop()
        bouncer.stop()
        server.stop()
    print((RESULTS / f"{name}.md").read_text())
    print(f"written to bench/results/{name}.md, {name}.svg and {name}.json")


if __name__ == "__main__":
    main()
