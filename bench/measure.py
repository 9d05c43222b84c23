"""Running one cell on one target: how fast, how evenly, with whose CPU time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import disturbance
import processes
import servers
from cells import Cell
from servers import Bouncer, Server, Target, load_words, pgbench_commands

SETTLE_LIMIT_S = 20
IDLE_SESSIONS = 10_000
MEMORY_SESSIONS = 400
MEMORY_LOADS = {"one statement": (), "60 of 200 statements": ("--stock", "200", "--own", "60")}
# Beyond what is measured: logins, what is prepared at login, the warm-up.
START_ALLOWANCE_S = 240


@dataclass
class Sample:
    """One run of one cell on one target."""

    target: str
    tps: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    pooler_us: float | None = None  # CPU of the pooler a transaction
    backends_us: float | None = None  # and of the backends
    generator: float | None = None  # the share of a core that the load took
    others: float | None = None  # the share of the machine that others took
    failure: str = ""


@dataclass
class Measured:
    """All rounds of one cell: for each, target name to sample."""

    cell: Cell
    rounds: list[dict[str, Sample]] = field(default_factory=list)


@dataclass
class Usage:
    """CPU time at one moment."""

    pooler: float
    backends: dict[int, float]
    generator: float

    @staticmethod
    def now(target: Target, server: Server, generator: int = 0) -> Usage:
        return Usage(
            processes.cpu_seconds(target.pids),
            processes.cpu_of_each(server.backends()),
            processes.cpu_seconds((generator,)) if generator else 0,
        )

    def backends_since(self, before: Usage) -> float:
        """Of those that still live."""
        return sum(now - before.backends.get(pid, 0) for pid, now in self.backends.items())


def measure(
    cell: Cell, target: Target, server: Server, seconds: float, scale: int, protocol: str | None = None
) -> Sample:
    """Runs a cell (blocks), anew if others disturb it.  A cell's base is a cell, too, made by `base_of`."""
    # CPU time is counted between the first second and the last; and direct,
    # 500 backends take seconds to get going.
    seconds = max(seconds, 4 if cell.clients >= 500 else 3 if cell.generator == "pgbench" else seconds)
    run = measure_load if cell.generator == "baton-load" else measure_pgbench
    sample, share = disturbance.undisturbed(
        lambda: run(cell, target, server, seconds, scale, protocol or cell.protocol)
    )
    sample.others = share
    return sample


def base_of(cell: Cell) -> Cell:
    assert cell.base
    return Cell(cell.groups, cell.workload, cell.protocol, cell.base.clients, cell.generator, cell.base.load)


def measure_pgbench(cell: Cell, target: Target, server: Server, seconds: float, scale: int, protocol: str) -> Sample:
    seconds = max(1, round(seconds))
    options = ["-T", str(seconds), "-P", "1", *(["-S"] if cell.workload != "tpc-b" else [])]
    commands = pgbench_commands(
        target.port, cell.clients, protocol, *options, reconnects=cell.workload == "reconnecting"
    )
    with ThreadPoolExecutor() as threads:
        runs = list(
            threads.map(lambda command: Progress(command, seconds, lambda: Usage.now(target, server)), commands)
        )
    sample = Sample(target.name, tps=0)
    for run in runs:
        if run.failure:
            return Sample(target.name, failure=run.failure)
        tps = re.search(r"^tps = ([\d.]+)", run.said, re.M)
        if not tps or not float(tps.group(1)):
            return Sample(target.name, failure="no figures in " + run.said[-300:])
        sample.tps += float(tps.group(1))
    transactions = sum(run.transactions for run in runs)
    if transactions and all(run.usages for run in runs):
        # They report at the same time, within what it takes to start one.
        before, after = runs[0].usages
        if target.pids:
            sample.pooler_us = (after.pooler - before.pooler) / transactions * 1e6
        sample.backends_us = after.backends_since(before) / transactions * 1e6
    return sample


class Progress:
    """A run of pgbench (blocks), and what was used between its first report of
    progress, when all have logged in, and the last but one."""

    def __init__(self, command: list[str], seconds: int, look: Callable[[], Usage]) -> None:
        self.transactions = 0.0
        self.usages: list[Usage] = []
        self.failure = ""
        complaints: list[str] = []
        # libkrb5 looks for tickets 70 us long before each connection, one thread at a time.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PGGSSENCMODE": "disable"},
        )
        timer = threading.Timer(seconds + START_ALLOWANCE_S, process.kill)
        timer.daemon = True
        timer.start()
        try:
            assert process.stderr
            reports = 0
            for line in process.stderr:
                found = re.match(r"progress: [\d.]+ s, ([\d.]+) tps", line)
                if not found:
                    complaints.append(line)
                    continue
                reports += 1
                if 1 < reports < seconds:
                    self.transactions += float(found.group(1))
                if reports in (1, seconds - 1):
                    self.usages.append(look())
            self.said = process.communicate()[0]
        finally:
            timer.cancel()
            # It has ended, unless the run is stopped.
            process.kill()
        if len(self.usages) < 2:
            self.usages = []
        if process.returncode != 0:
            self.failure = "".join(complaints).strip()[-300:] or f"ended with {process.returncode}"


def load_command(
    target: Target, clients: int, protocol: str, seconds: float, scale: int, options: tuple[str, ...]
) -> list[str]:
    words = load_words(target, servers.USER, clients)
    words += ["--seconds", str(seconds), "--warmup", "1", "--scale", str(scale), "--marks"]
    if "--temporary-table" not in options:
        words += ["--protocol", protocol]
    return [*words, *options]


class Load:
    """A running baton-load: its marks, and its end, which comes in any case."""

    def __init__(self, command: list[str], limit_s: float) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.late = False
        self.seconds = command[command.index("--seconds") + 1]
        self.timer = threading.Timer(limit_s, self.kill)
        # Nor does it keep a run that is stopped from ending.
        self.timer.daemon = True
        self.timer.start()

    def kill(self) -> None:
        self.late = True
        self.process.kill()

    def reaches(self, mark: str) -> bool:
        """Waits (blocks) for this mark."""
        assert self.process.stdout
        return self.process.stdout.readline().strip() == mark

    def finish(self) -> tuple[str, str]:
        """Lets it end (blocks); what it said, or else what went wrong."""
        try:
            said, complaints = self.process.communicate("\n")
        finally:
            self.timer.cancel()
        if self.late:
            return "", "did not end"
        if self.process.returncode != 0:
            return "", complaints.strip()[-300:] or f"ended with {self.process.returncode}"
        return said, complaints.strip()[-300:]


def measure_load(cell: Cell, target: Target, server: Server, seconds: float, scale: int, protocol: str) -> Sample:
    load = Load(load_command(target, cell.clients, protocol, seconds, scale, cell.load), seconds + START_ALLOWANCE_S)
    before = after = None
    try:
        if load.reaches("measuring"):
            before = Usage.now(target, server, load.process.pid)
        if before and load.reaches("measured"):
            after = Usage.now(target, server, load.process.pid)
        said, complaints = load.finish()
    finally:
        load.process.kill()
    if not said or not before or not after:
        return Sample(target.name, failure=complaints or "no figures")
    answer = json.loads(said)
    count = answer["transactions"]
    if answer["errors"] or not count:
        return Sample(target.name, failure=f"{count} transactions, {answer['errors']} errors: {complaints}")
    latency = answer["latency_ms"]
    return Sample(
        target.name,
        tps=answer["tps"],
        p50_ms=latency["p50"],
        p99_ms=latency["p99"],
        max_ms=latency["max"],
        pooler_us=(after.pooler - before.pooler) / count * 1e6 if target.pids else None,
        backends_us=after.backends_since(before) / count * 1e6,
        generator=(after.generator - before.generator) / seconds,
    )


def settle(targets: list[Target]) -> None:
    """Waits until the poolers are done with what the last run left: closing
    ten thousand sessions takes a while."""
    pids = tuple(pid for target in targets for pid in target.pids)
    deadline = time.monotonic() + SETTLE_LIMIT_S
    before = processes.cpu_seconds(pids)
    while time.monotonic() < deadline:
        time.sleep(0.25)
        now = processes.cpu_seconds(pids)
        if now - before < 0.005:
            return
        before = now


def idle_memory(target: Target) -> dict[str, float]:
    """What 10,000 idle sessions cost a pooler: memory each, and CPU."""
    before = processes.memory_kib(target.pids)
    holder = subprocess.Popen(
        [*load_words(target, servers.USER, IDLE_SESSIONS), "--idle"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin and holder.stdout
    try:
        if "holding" not in holder.stdout.readline():
            return {}
        time.sleep(2)
        after = processes.memory_kib(target.pids)
        cpu_before = processes.cpu_seconds(target.pids)
        time.sleep(5)
        cpu = processes.cpu_seconds(target.pids) - cpu_before
    finally:
        holder.stdin.close()
        try:
            holder.wait(60)
        except subprocess.TimeoutExpired:
            holder.kill()
    each = {name: (after[name] - before[name]) * 1024 / IDLE_SESSIONS for name in after}
    return {"bytes": each["VmRSS"], "own_bytes": each["RssAnon"], "cpu_percent": cpu / 5 * 100}


def backend_memory(target: Target, server: Server, bouncer: Bouncer, scale: int) -> dict[str, float]:
    """MiB of its own that a backend has which has served as many sessions with
    as many statements, the greatest of the pool's: for each of the loads, on
    backends that did nothing before."""
    found = {}
    protocol = "extended" if target.name == "PgBouncer" and not bouncer.knows_prepared else "prepared"
    for name, options in MEMORY_LOADS.items():
        server.renew_backends()
        load = Load(load_command(target, MEMORY_SESSIONS, protocol, 4, scale, options), 4 + START_ALLOWANCE_S)
        sizes = []
        try:
            if load.reaches("measuring") and load.reaches("measured"):
                sizes = [processes.memory_kib([pid])["RssAnon"] / 1024 for pid in server.backends()]
            load.finish()
        finally:
            load.process.kill()
        if not sizes:
            return {}
        found[name] = max(sizes)
    server.renew_backends()
    return found
