#!/usr/bin/env python3
"""The benchmark.  pgbench and baton-load run on direct connections, through pg_baton
and through PgBouncer, in turns, for several rounds.  Tables, a plot and the project's
bars go to bench/results/, from which README.md's table is made.

    bench/run.py [--quick] [--rounds N] [--seconds S] [--only WORDS] [--name NAME]

The full run takes about an hour, --quick about 6 minutes, --only applications
about 16 (three rounds).  --only chooses the cells that have all of the given words
(applications, classic, statements, transactions, functions, records, settings, temporary, tpc-b,
select-only, reconnecting, a protocol, a number of clients, a generator; "64|400"
for either); "tls" alone is the table of bench/tls.py, "fairness" alone those of bench/fairness.py, which the full
run makes, too.  The results of a part go to bench/results/scratch, but those of the groups of the applications, of
fairness and of TLS go to applications.*, fairness.* and tls.*.

Ratios are computed within a round, where the runs are close to each other in time;
their median is reported.  A cell that fails does not stop the other cells.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import builds  # noqa: E402
import cells  # noqa: E402
import plot  # noqa: E402
import readme  # noqa: E402
import report  # noqa: E402
from cells import Cell  # noqa: E402
from measure import Measured, Sample, backend_memory, base_of, idle_memory, measure, settle  # noqa: E402
from servers import Bouncer, Canned, Server, Target  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
BACKENDS = 8
SCALE = 10


def settings(asked: list[str]) -> dict[str, str]:
    """The server's parameters in addition to those of every server."""
    return {
        "max_connections": str(cells.DIRECT_CLIENTS_MAX + 50),
        "shared_buffers": "512MB",
        "max_wal_size": "4GB",
        "pg_baton.max_sessions": "12000",
        **dict(value.split("=", 1) for value in asked),
    }


class Bench:
    """The servers of a run, and the measurements on them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.server = Server(
            builds.find(options.build) if options.build else builds.of_tree(), BACKENDS, settings(options.set)
        )
        self.bouncer = Bouncer(self.server, BACKENDS)
        self.canned = Canned()

    def start(self) -> None:
        self.server.start(SCALE)
        self.bouncer.start()
        self.canned.start()

    def stop(self) -> None:
        for one in (self.canned, self.bouncer, self.server):
            try:
                one.stop()
            except (OSError, subprocess.SubprocessError) as failure:
                print(f"bench: {failure}", file=sys.stderr)

    def target(self, name: str) -> Target:
        found = {
            "direct": self.server.direct,
            "pg_baton": self.server.pool,
            "PgBouncer": self.bouncer.target,
            "canned": self.canned.target,
        }
        return found[name]()

    def measure(self, cell: Cell, name: str) -> Sample:
        target = self.target("pg_baton" if name == "base" else name)
        settle([self.target("pg_baton"), self.target("PgBouncer")])
        # Clients of a PgBouncer that does not know prepared statements do without them.
        without = name == "PgBouncer" and cell.protocol == "prepared" and not self.bouncer.knows_prepared
        return measure(
            base_of(cell) if name == "base" else cell,
            target,
            self.server,
            self.options.seconds,
            SCALE,
            "extended" if without else None,
        )

    def all_rounds(self, wanted: list[Cell], keep: Callable[[list[Measured], int], None]) -> list[Measured]:
        measured = [Measured(cell) for cell in wanted]
        total, done = self.options.rounds * len(wanted), 0
        for number in range(self.options.rounds):
            for one in measured:
                done += 1
                names = [*one.cell.targets(), *(["base"] if one.cell.base else [])]
                turn = number % len(names)  # another target is first in each round
                samples = {name: self.measure(one.cell, name) for name in names[turn:] + names[:turn]}
                one.rounds.append(samples)
                shown = "  ".join(
                    f"{name} {sample.tps:.0f}" if sample.tps else f"{name} failed: {sample.failure}"
                    for name, sample in sorted(samples.items())
                )
                print(f"bench: {done}/{total}  {one.cell.label()}:  {shown}", file=sys.stderr, flush=True)
            keep(measured, number + 1)
        return measured


def name_of(options: argparse.Namespace) -> Path:
    """The path of the results, without a suffix.  The results of a part do not replace those of the whole."""
    if options.name:
        return RESULTS / options.name
    whole = {(): "quick" if options.quick else "full", ("applications",): "applications"}.get(tuple(options.only))
    if whole and not (options.quick and options.only):
        return RESULTS / whole
    return builds.SCRATCH / "part"


def write(path: Path, raw: dict) -> None:
    path.parent.mkdir(exist_ok=True)
    # A plot needs select-only.
    drawn = any(one["cell"]["workload"] == "select-only" for one in raw["cells"])
    path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    path.with_suffix(".md").write_text(report.markdown(raw, f"{path.name}.svg" if drawn else ""))
    if drawn:
        path.with_suffix(".svg").write_text(plot.plot(raw))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cells, shorter, two rounds")
    parser.add_argument("--rounds", type=int, help="rounds (5; 3 of the applications alone; quick: 2)")
    parser.add_argument("--seconds", type=float, help="seconds of each run (5; 3; quick: 2)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="only the cells that have all of these")
    parser.add_argument("--name", help="name of the result files")
    parser.add_argument("--note", help="a line for the report: what to know about this run")
    parser.add_argument("--build", help="measure this folder's build or this revision, not the checkout's")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the server")
    options = parser.parse_args()
    options.only = [word for words in options.only for word in words.split()]
    part = bool(options.only)
    options.rounds = options.rounds or (2 if options.quick else 3 if part else 5)
    options.seconds = options.seconds or (2 if options.quick else 3 if part else 5)
    return options


def fairness(options: argparse.Namespace) -> list[str]:
    """The command that measures fairness, which has its own cells and users."""
    words = [
        sys.executable,
        str(Path(__file__).with_name("fairness.py")),
        "--rounds",
        str(options.rounds),
        "--seconds",
        str(options.seconds),
    ]
    words += ["--only", *options.only[1:]] if options.only[1:] else []
    for name in ("build", "note", "name"):
        words += [f"--{name}", getattr(options, name)] if getattr(options, name) else []
    return [*words, *(word for value in options.set for word in ("--set", value))]


def tls(options: argparse.Namespace) -> list[str]:
    """The command that measures TLS, which has its own table and servers."""
    words = ["--rounds", str(min(options.rounds, 3)), "--seconds", str(max(1, round(options.seconds)))]
    return [sys.executable, str(Path(__file__).with_name("tls.py")), *words]


def main() -> None:
    options = arguments()
    if options.only == ["tls"]:
        os.execv(sys.executable, tls(options))
    if options.only[:1] == ["fairness"]:
        os.execv(sys.executable, fairness(options))
    wanted = cells.choose(options.quick, options.only)
    if not wanted:
        raise SystemExit("bench: no cell has all of these words: " + " ".join(options.only))
    path = name_of(options)
    # A benchmark that is stopped still stops the servers that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    idle: dict[str, dict[str, float]] = {}
    memory: dict[str, dict[str, float]] = {}
    started = time.monotonic()
    load_before = os.getloadavg()[0]
    bench = Bench(options)
    try:
        bench.start()
        # First, while both poolers are in their state after the start.
        if not options.only or "classic" in options.only:
            for name in ("pg_baton", "PgBouncer"):
                idle[name] = idle_memory(bench.target(name))
                print(f"bench: idle sessions, {name}: {idle[name]}", file=sys.stderr, flush=True)
        about = bench.server.about(options.seconds, load_before) | {
            "bouncer": bench.bouncer.version,
            "bouncer_knows_prepared": bench.bouncer.knows_prepared,
            "backends": BACKENDS,
            "scale": SCALE,
            "note": options.note or "",
        }

        def keep(measured: list[Measured], rounds: int) -> None:
            """Writes the results after each round, so that a run that is stopped still has results."""
            about["rounds"] = rounds
            about["minutes"] = round((time.monotonic() - started) / 60, 1)
            write(path, {"about": about, "idle": idle, "memory": memory, "cells": [asdict(one) for one in measured]})

        measured = bench.all_rounds(wanted, keep)
        # Last, because this measurement ends backends.
        if options.only in ([], ["applications"]) and not options.quick:
            for name in ("pg_baton", "PgBouncer"):
                memory[name] = backend_memory(bench.target(name), bench.server, bench.bouncer, SCALE)
                print(f"bench: memory of a backend, {name}: {memory[name]}", file=sys.stderr, flush=True)
            keep(measured, options.rounds)
    finally:
        bench.stop()
    if path in (RESULTS / "full", RESULTS / "applications"):
        readme.update(RESULTS)
    if not options.only and not options.quick and not options.name:
        subprocess.run(fairness(options), check=True)
        # tls.py fails if it misses a bar.
        subprocess.run(tls(options), check=False)
    print(path.with_suffix(".md").read_text())
    print(f"written to {path.relative_to(builds.REPOSITORY)}.md and .json")


if __name__ == "__main__":
    main()
