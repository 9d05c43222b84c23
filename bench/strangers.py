#!/usr/bin/env python3
"""Measures the cost of strangers at the door for the clients inside: a load by pgbench, plain
and by TLS, with and without each kind of stranger beside it.

    strangers.py [--seconds 3] [--rounds 3] [--rate 200] [--share 0.2] [--kinds silent,guesses]
                 [--targets pg_baton,direct] [--once]

The kinds are those of tests/harness/strangers.py.  Each round makes, for each kind, a run
without and a run with the strangers, in alternating order.  The attack begins a second before
the load and lasts to the end of it.  The attack is at the pool's port with the
load through the pool, then at the server's own port with the load there, which shows the same
with stock PostgreSQL.  Beside the load a client logs in anew, plain, again and again.  A run
that other processes disturbed is made again (disturbance.py), but not with --once.

The attacker is a process of the same machine, so the load lacks its CPU, too: it makes at most
RATE connections a second, and waits while it has used more than SHARE of one core; the table
has the share that it used.  The cost of one stranger for the server, in CPU of all the server's
processes, is measured without other clients.  Peak memory and descriptors are the dispatcher's,
read every 0.1 s.  The results go to results/strangers.md and strangers.json after each round of
a target; those of a part of the measurement go to results/scratch.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))

import builds  # noqa: E402
import disturbance  # noqa: E402
import processes  # noqa: E402
from harness import strangers  # noqa: E402
from harness.wire import LoginFailed, Wire  # noqa: E402
from servers import HOST, USER, Server, pgbench_commands  # noqa: E402
from tls import certificate  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
BACKENDS = 8
CLIENTS = 8  # plain, and as many by TLS
ATTACKERS = 12  # threads, each of which waits for its answers
HELD_MOST = 1500
BEGINS_EARLIER_S = 1.0
SETTLE_LIMIT_S = 20
LOG_IN_PAUSE_S = 0.02
KINDS = {kind.__name__: kind for kind in strangers.KINDS}
TARGETS = ("pg_baton", "direct")
LOADS = ("plain", "TLS")


# ---- the attacker: a process of its own -------------------------------------------


class Pace:
    """Limits the attack to a number of connections a second and to a share of one core."""

    def __init__(self, rate: float, share: float) -> None:
        self.lock = threading.Lock()
        self.interval, self.share = 1 / rate, share
        self.began = self.due = time.monotonic()
        self.had = time.process_time()

    def wait(self) -> None:
        with self.lock:
            now = time.monotonic()
            spent = (time.process_time() - self.had) / self.share
            self.due = max(self.due + self.interval, now, self.began + spent)
            pause = self.due - now
        time.sleep(pause)


def attack(kind: str, port: int, rate: float, share: float) -> int:
    """Attacks until standard input ends; then prints how many connections were made and how many failed."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    stopping, pace, held, lock = threading.Event(), Pace(rate, share), [], threading.Lock()
    counts = {"made": 0, "failed": 0}

    def run() -> None:
        while not stopping.is_set():
            pace.wait()
            with lock:
                counts["made"] += 1
                number = counts["made"]
            try:
                one = KINDS[kind](port, number)
            except Exception:  # refused, cut off, or late: the attack goes on
                counts["failed"] += 1
                continue
            if one is not None:
                with lock:
                    held.append(one)
                    if len(held) > HELD_MOST:
                        held.pop(0).close()

    threads = [threading.Thread(target=run, daemon=True) for _ in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    print("began", flush=True)
    sys.stdin.read()
    stopping.set()
    print(json.dumps(counts), flush=True)
    # the process does not wait for threads that still wait for an answer
    os._exit(0)


@contextmanager
def attacked(kind: str | None, port: int, options: argparse.Namespace):
    """Gives a dictionary about the attack: first its process, later its counts."""
    about: dict = {"pid": None, "made": 0, "failed": 0, "cpu": 0.0, "seconds": 0.0}
    if kind is None:
        yield about
        return
    command = [
        sys.executable,
        __file__,
        "--attack",
        kind,
        "--port",
        str(port),
        "--rate",
        str(options.rate),
        "--share",
        str(options.share),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline() != "began\n":
            raise SystemExit("bench: the attacker has failed")
        began = time.monotonic()
        about["pid"] = process.pid
        time.sleep(BEGINS_EARLIER_S)
        yield about
        about["seconds"] = time.monotonic() - began
        said, _ = process.communicate(timeout=60)
        about |= json.loads(said)
    finally:
        process.kill()
        process.wait()


# ---- the load ----------------------------------------------------------------------


def pgbench(port: int, seconds: int, secure: bool, folder: Path) -> dict[str, float]:
    """Transactions a second, and the 99th percentile of their latency in milliseconds; zero and
    None if there is no room for pgbench's clients."""
    prefix = folder / ("tls" if secure else "plain")
    (command,) = pgbench_commands(port, CLIENTS, "simple", "-S", "-T", str(seconds), "-l", f"--log-prefix={prefix}")
    environment = {**os.environ, "PGSSLMODE": "require" if secure else "disable", "PGGSSENCMODE": "disable"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds + 120)
    took = []
    for log in folder.glob(f"{prefix.name}.*"):
        took += [int(line.split()[2]) for line in log.read_text().splitlines()]
        log.unlink()
    if "too many clients" in ran.stderr:
        return {"tps": 0, "p99_ms": None}
    if ran.returncode != 0 or not took:
        raise SystemExit(f"bench: pgbench failed\n{ran.stdout[-1000:]}{ran.stderr[-1000:]}")
    took.sort()
    return {"tps": len(took) / seconds, "p99_ms": took[int(len(took) * 0.99)] / 1000}


class Watch(threading.Thread):
    """Logs in again and again, and meanwhile reads the dispatcher's memory and descriptors."""

    def __init__(self, port: int, pids: tuple[int, ...]) -> None:
        super().__init__(daemon=True)
        self.port, self.pids = port, pids
        self.stopping = threading.Event()
        self.took: list[float] = []
        self.refused = 0
        self.memory = self.descriptors = 0
        self.looker = threading.Thread(target=self.look, daemon=True)

    def look(self) -> None:
        while not self.stopping.is_set():
            if self.pids:
                self.memory = max(self.memory, processes.memory_kib(self.pids)["VmRSS"])
                self.descriptors = max(self.descriptors, descriptors(self.pids))
            time.sleep(0.1)

    def run(self) -> None:
        while not self.stopping.is_set():
            began = time.monotonic()
            try:
                Wire.login(HOST, self.port, user=USER, database=USER).finish()
                self.took.append((time.monotonic() - began) * 1000)
            except (LoginFailed, OSError):
                self.refused += 1
            time.sleep(LOG_IN_PAUSE_S)

    def __enter__(self) -> Watch:
        self.looker.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in (self, self.looker):
            thread.join(60)


def descriptors(pids: tuple[int, ...]) -> int:
    found = 0
    for pid in pids:
        with suppress(OSError):
            found += len(os.listdir(f"/proc/{pid}/fd"))
    return found


def settle(pids: tuple[int, ...], quiet: int) -> None:
    """Waits until the dispatcher has closed the last run's connections."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while descriptors(pids) > quiet and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)


def run_once(kind: str | None, port: int, pids: tuple[int, ...], folder: Path, options: argparse.Namespace) -> dict:
    before = {"memory": processes.memory_kib(pids)["VmRSS"], "descriptors": descriptors(pids)}
    with attacked(kind, port, options) as about:
        used, began = processes.cpu_seconds((about["pid"],) if kind else ()), time.monotonic()
        with Watch(port, pids) as watch, ThreadPoolExecutor() as threads:
            loads = list(threads.map(lambda load: pgbench(port, options.seconds, load == "TLS", folder), LOADS))
        share = (processes.cpu_seconds((about["pid"],) if kind else ()) - used) / (time.monotonic() - began)
    found: dict = dict(zip(LOADS, loads))
    found["log_in_ms"] = statistics.median(watch.took) if watch.took else None
    found["log_in_most_ms"] = max(watch.took, default=None)
    found["logins_refused"] = watch.refused
    found |= {
        "attacker_share": share / (os.cpu_count() or 1),
        "before": before,
        "memory": watch.memory,
        "descriptors": watch.descriptors,
    }
    if kind:
        found["rate"] = about["made"] / about["seconds"]
    settle(pids, before["descriptors"] + BACKENDS + 2)
    return found


def server_cpu_seconds(server: Server) -> float:
    """CPU seconds of all the server's processes so far, including processes that have ended."""
    postmaster = server.process.pid
    words = Path(f"/proc/{postmaster}/stat").read_text().rpartition(")")[2].split()
    ended = sum(map(int, words[13:15])) / os.sysconf("SC_CLK_TCK")
    return ended + processes.cpu_seconds(list(processes.of_directory(server.data)))


def cost_of_one(kind: str, server: Server, port: int, pids: tuple[int, ...], options: argparse.Namespace) -> float:
    """Milliseconds of the server's CPU for each stranger, without other clients."""
    quiet, before = descriptors(pids), server_cpu_seconds(server)
    with attacked(kind, port, options) as about:
        time.sleep(options.seconds / 2)
    settle(pids, quiet)
    return (server_cpu_seconds(server) - before) * 1000 / max(about["made"], 1)


# ---- the table ---------------------------------------------------------------------


class Found:
    """The rounds of each target and kind: a run without and a run with the strangers."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[str, list[dict[str, dict]]]] = {target: {} for target in TARGETS}

    def add(self, target: str, kind: str, pair: dict[str, dict]) -> None:
        self.cells[target].setdefault(kind, []).append(pair)

    def others(self) -> list[float]:
        return [
            run["others"]
            for kinds in self.cells.values()
            for pairs in kinds.values()
            for pair in pairs
            for run in pair.values()
        ]

    def report(self, about: dict) -> str:
        lines = [
            "# Strangers at the door",
            "",
            f"{about['date']}; {about['revision']}; PostgreSQL {about['server']}; {os.cpu_count()} cores shared by"
            f" the load, the attacker, pooler and server; load: pgbench -S with {CLIENTS} plain clients and"
            f" {CLIENTS} by TLS, {BACKENDS} backends; {about['rounds']} rounds of {about['seconds']} s without and"
            f" with each kind, in turns; at most {about['rate']:g} strangers a second and {about['share']:g} of a"
            f" core for them; load average before it started: {about['load_before']};"
            f" {disturbance.described(self.others())}.",
            "",
            "Throughput and p99 of the load: ratio to without, median of the rounds' ratios (throughput: of both"
            " loads together, the least and the most). Attacker: its own share of the machine, which the load"
            " lacks whoever it talks to. CPU each: of all processes of the server, for one of them, with nobody"
            " else there. Login: of somebody else, plain, median without and with, and the longest"
            " with. No room: pgbench's clients did not come in. Memory and descriptors: the dispatcher's at most, and what it had before that.",
            "",
        ]
        for target in TARGETS:
            if not self.cells[target]:
                continue
            pooled = target == "pg_baton"
            lines += [
                "## " + ("At the pool's port" if pooled else "The same at the server's own port, without the pool"),
                "",
                "| strangers | a second | throughput, plain | by TLS | both | p99, plain | by TLS | attacker | CPU each, ms |"
                " login, ms |" + (" memory, MiB | descriptors |" if pooled else ""),
                "|---|---|---|---|---|---|---|---|---|---|" + ("---|---|" if pooled else ""),
            ]
            for kind, pairs in self.cells[target].items():
                lines.append(self.row(kind, pairs, pooled))
            lines.append("")
        return "\n".join(lines)

    @staticmethod
    def row(kind: str, pairs: list[dict[str, dict]], pooled: bool) -> str:
        def ratio(load: str, what: str) -> str:
            if not all(pair["with"][load]["tps"] for pair in pairs):
                return "no room"
            return f"{statistics.median(pair['with'][load][what] / pair['without'][load][what] for pair in pairs):.2f}"

        def middle(which: str, what: str) -> float:
            return statistics.median(
                [pair[which][what] for pair in pairs if pair[which][what] is not None] or [float("nan")]
            )

        both = [
            sum(pair["with"][load]["tps"] for load in LOADS) / sum(pair["without"][load]["tps"] for load in LOADS)
            for pair in pairs
        ]
        refused = sum(pair["with"]["logins_refused"] for pair in pairs)
        cells = [
            kind.replace("_", " "),
            f"{middle('with', 'rate'):,.0f}",
            *(ratio(load, "tps") for load in LOADS),
            f"{min(both):.2f} to {max(both):.2f}",
            *(ratio(load, "p99_ms") for load in LOADS),
            f"{middle('with', 'attacker_share'):.0%}",
            f"{middle('with', 'cost_ms'):.2f}",
            f"{middle('without', 'log_in_ms'):.1f}, {middle('with', 'log_in_ms'):.1f},"
            f" {middle('with', 'log_in_most_ms'):.0f}" + (f"; {refused} refused" if refused else ""),
        ]
        if pooled:
            memory = max(pairs, key=lambda pair: pair["with"]["memory"] - pair["with"]["before"]["memory"])["with"]
            files = max(pairs, key=lambda pair: pair["with"]["descriptors"])["with"]
            cells += [
                f"{memory['memory'] / 1024:.1f} ({memory['before']['memory'] / 1024:.1f})",
                f"{files['descriptors']:,} ({files['before']['descriptors']:,})",
            ]
        return "| " + " | ".join(cells) + " |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=200, help="connections a second that an attacker makes at most")
    parser.add_argument("--share", type=float, default=0.2, help="of one core that an attacker takes at most")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--once", action="store_true", help="no run is made again, whoever disturbed it")
    parser.add_argument("--attack", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    every = parser.parse_args([])
    is_part = any(getattr(options, part) != getattr(every, part) for part in ("kinds", "targets", "rate", "share"))
    options.path = RESULTS / ("scratch/strangers" if is_part else "strangers")
    return options


def main() -> int:
    options = arguments()
    if options.attack:
        return attack(options.attack, options.port, options.rate, options.share)
    load_before = os.getloadavg()[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    folder = Path(tempfile.mkdtemp(prefix="baton-bench-"))
    folder.chmod(0o755)
    cert, key = certificate(folder)
    build = builds.of_tree()
    server = Server(
        build, BACKENDS, {"max_connections": "300", "ssl": "on", "ssl_cert_file": str(cert), "ssl_key_file": str(key)}
    )
    found = Found()
    try:
        server.start(10)
        lines = server.data / "pg_hba.conf"
        lines.write_text("\n".join(strangers.RULES) + "\n" + lines.read_text())
        for statement in strangers.ROLES_SQL:
            server.query(statement)
        server.query("SELECT pg_reload_conf()")
        about = server.about(options.seconds, load_before) | {"rate": options.rate, "share": options.share}
        for number in range(1, options.rounds + 1):
            print(f"bench: round {number} of {options.rounds}", file=sys.stderr, flush=True)
            for target in options.targets.split(","):
                pooled = target == "pg_baton"
                port, pids = (server.pool_port, server.pool().pids) if pooled else (server.port, ())
                # after this run all backends have started, and work that is needed only once is done
                run_once(None, port, pids, folder, options)
                for kind in options.kinds.split(","):
                    pair = {}
                    for which in ("without", "with") if number % 2 else ("with", "without"):
                        pair[which], others = disturbance.undisturbed(
                            lambda: run_once(kind if which == "with" else None, port, pids, folder, options),  # noqa: B023
                            1 if options.once else disturbance.RUNS_MOST,
                        )
                        pair[which]["others"] = others
                    pair["with"]["cost_ms"] = cost_of_one(kind, server, port, pids, options)
                    found.add(target, kind, pair)
                    if not all(pair["without"][load]["tps"] for load in LOADS):
                        raise SystemExit("bench: no room for the load, and no strangers")
                    ratio = [sum(pair[which][load]["tps"] for load in LOADS) for which in ("with", "without")]
                    print(f"bench: {target}, {kind}: {ratio[0] / ratio[1]:.2f}", file=sys.stderr, flush=True)
                about["rounds"] = number
                options.path.parent.mkdir(exist_ok=True)
                options.path.with_suffix(".md").write_text(found.report(about))
                results = {"about": about, "cells": found.cells}
                options.path.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(found.report(about))
    print(f"written to {options.path.relative_to(builds.REPOSITORY)}.md and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
