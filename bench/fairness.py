#!/usr/bin/env python3
"""Fairness: the waiting times of clients beside other clients, on pg_baton, PgBouncer and the server itself.

    fairness.py [--rounds 3] [--seconds 5] [--only WORDS] [--tenants 10000] [--set NAME=VALUE] [--name NAME]

Cells: crowd (a quiet user, and new clients of the busy one, beside 2,000 busy clients), users (50 users with two
clients each on 8 backends, and one user with 100), one-backend (it goes between sessions of one user, or of two),
storm (5,000 logins at once after a restart), idle (10,000 connected, of which 50 work), analytics (beside look-ups),
tenants (10,000 roles with a session each, 100 of them at work; pg_baton alone).

The targets take turns; figures are medians of the rounds.  Both poolers have 8 backends, PgBouncer 8 for each user,
as it is usually set: it has no bound over all users under which each is served.  Direct connections are processes,
so the crowd has 500 of them there, and there is no storm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import builds  # noqa: E402
import processes  # noqa: E402
import readme  # noqa: E402
from figures import middle, number  # noqa: E402
from measure import Load, settle  # noqa: E402
from servers import Bouncer, Server, Target, load_words  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
BACKENDS = 8
SCALE = 10
TARGETS = ("direct", "pg_baton", "PgBouncer")
CROWD, CROWD_DIRECT = 2000, 500
USERS, CLIENTS_A_USER = 50, 2
# Each user has several turns in this time: in 10 s some users have five turns and others
# four, of 0.3 s every 2 s, and the result shows only when measuring began.
USERS_SECONDS = 20
STORM = 5000
CONNECTED, AT_WORK = 10_000, 50
LOOK_UPS, ANALYSTS = 64, 4
ANALYSIS = "SELECT count(*), sum(abalance), max(filler) FROM pgbench_accounts"
TENANTS_AT_WORK = 100
THINK_MS = 100
AT_LEAST, AT_MOST = "at least", "at most"
# Time beyond the measured time: logins and warm-up.
ALLOWANCE_S = 200

# Rows by name; each has the figures of baton-load (tps, p50, p99, max in ms) and those that a cell adds.
Rows = dict[str, dict[str, float]]


@dataclass
class World:
    """The servers, and the duration of each run."""

    server: Server
    bouncer: Bouncer
    seconds: float
    tenants: int

    def target(self, name: str) -> Target:
        return {"direct": self.server.direct, "pg_baton": self.server.pool, "PgBouncer": self.bouncer.target}[name]()


def load(target: Target, user: str, clients: int, seconds: float, *options: object) -> Load:
    words = [*load_words(target, user, clients), "--scale", SCALE, "--seconds", seconds, *options]
    return Load([str(word) for word in words], seconds + ALLOWANCE_S)


def figures_of(said: str, complaints: str) -> dict[str, float]:
    """The figures of a run's report; none if the run failed."""
    answer = json.loads(said.splitlines()[-1]) if said.strip() else {}
    if not answer or answer["errors"] or not answer["transactions"]:
        print(f"bench: {answer.get('errors', 'no')} errors: {complaints}", file=sys.stderr)
        return {}
    latency = answer["latency_ms"]
    return {
        "tps": answer["tps"],
        "p50": latency["p50"],
        "p99": latency["p99"],
        "max": latency["max"],
        "seconds": answer["connect_seconds"],
        **{f"user_{key}": value for key, value in answer["users_tps"].items()},
    }


def alone(one: Load) -> dict[str, float]:
    return figures_of(*one.finish())


def beside(busy: Load, *others: Load) -> list[dict[str, float]]:
    """The other loads begin when the busy clients are at work, and end before them."""
    found = [alone(one) for one in others]
    return [alone(busy), *found]


def crowd(world: World, target: Target) -> Rows:
    clients = CROWD_DIRECT if target.name == "direct" else CROWD
    busy = load(target, "busy", clients, world.seconds + 4, "--warmup", 1, "--marks")
    try:
        if not busy.reaches("measuring"):
            alone(busy)
            return {}
        options = ("--warmup", 0.5, "--partial", "--think", THINK_MS)
        found = beside(
            busy,
            load(target, "quiet", 1, world.seconds, *options),
            load(target, "busy", 4, world.seconds, *options, "--reconnect"),
        )
    finally:
        busy.process.kill()
    return {
        "the crowd itself": found[0],
        "a quiet user's client": found[1],
        "a new client of the crowd's user, login and first query": found[2],
    }


def users(world: World, target: Target) -> Rows:
    def one(name: str, *options: object) -> dict[str, float]:
        return alone(
            load(target, name, USERS * CLIENTS_A_USER, max(world.seconds, USERS_SECONDS), "--warmup", 3, *options)
        )

    return {
        f"{USERS} users with {CLIENTS_A_USER} clients each": one("user", "--users", USERS),
        f"one user with {USERS * CLIENTS_A_USER} clients": one("busy"),
    }


def one_backend(world: World, target: Target) -> Rows:
    """A backend goes from session to session with each transaction: the rows show the cost of another role."""
    if target.name != "pg_baton":
        return {}
    # with as many backends as sessions there is no hand-over
    world.server.set_backends(1)
    try:
        return {
            f"one backend, {words}": alone(load(target, name, 2, world.seconds, "--warmup", 1, *options))
            for words, name, *options in (
                ("two sessions of a user", "busy"),
                ("a session each of two users", "user", "--users", 2),
            )
        }
    finally:
        world.server.set_backends(BACKENDS)


def storm(world: World, target: Target) -> Rows:
    if target.name == "direct":
        return {}
    world.server.restart()
    return {
        f"{STORM:,} logins and first queries at once, after a restart": alone(
            load(target, "busy", STORM, 1, "--storm", "--threads", 2, "--login-limit", 120)
        )
    }


def idle(world: World, target: Target) -> Rows:
    found = {f"{AT_WORK} clients": alone(load(target, "busy", AT_WORK, world.seconds))}
    if target.name != "direct":
        found[f"{AT_WORK} clients of {CONNECTED:,} that are connected"] = alone(
            load(target, "busy", CONNECTED, world.seconds, "--working", AT_WORK)
        )
    return found


def analytics(world: World, target: Target) -> Rows:
    analysis = ("--text", ANALYSIS, "--partial", "--warmup", 0.5)
    without = alone(load(target, "busy", LOOK_UPS, world.seconds))
    busy = load(target, "analyst", ANALYSTS, world.seconds + 4, *analysis, "--marks")
    try:
        if not busy.reaches("measuring"):
            alone(busy)
            return {}
        found = beside(busy, load(target, "busy", LOOK_UPS, world.seconds))
    finally:
        busy.process.kill()
    return {
        f"look-ups, {LOOK_UPS} clients, alone": without,
        f"look-ups beside {ANALYSTS} analysts": found[1],
        "the analysts": found[0],
    }


def tenants(world: World, target: Target) -> Rows:
    """The cost of many roles with a session each: while they are there, at work, and after."""
    if target.name != "pg_baton":
        return {}
    each = ("--users", world.tenants, "--login-limit", 900)
    settle([target])
    few = at_work(load(target, "tenant", TENANTS_AT_WORK, world.seconds, "--users", TENANTS_AT_WORK, "--marks"), target)
    before = processes.memory_kib(target.pids)["VmRSS"]
    cpu_before = processes.cpu_seconds(target.pids)
    began = time.monotonic()
    holder = load(
        target, "tenant", world.tenants, world.seconds, *each, "--working", TENANTS_AT_WORK, "--marks", "--warmup", 3
    )
    holder.timer.cancel()
    many = at_work(
        holder,
        target,
        lambda: {
            "seconds": time.monotonic() - began,
            "memory_kib": processes.memory_kib(target.pids)["VmRSS"] - before,
            "login_cpu_ms": (processes.cpu_seconds(target.pids) - cpu_before) / world.tenants * 1000,
        },
    )
    settle([target])
    time.sleep(2)
    after = processes.memory_kib(target.pids)["VmRSS"] - before
    return {
        f"{TENANTS_AT_WORK} tenants of {TENANTS_AT_WORK}": few,
        f"{TENANTS_AT_WORK} tenants of {world.tenants:,}": {
            **many,
            "after_kib": after,
            "logins_a_second": world.tenants / many["seconds"],
        }
        if many
        else {},
    }


def at_work(one: Load, target: Target, look=dict) -> dict[str, float]:
    """A run's figures, the dispatcher's processor time for a transaction, and `look` when all clients are in."""
    try:
        if not one.reaches("measuring"):
            return figures_of(*one.finish())
        seen, before = look(), processes.cpu_seconds(target.pids)
        one.reaches("measured")
        used = processes.cpu_seconds(target.pids) - before
        found = alone(one)
    finally:
        one.process.kill()
    return {**found, "pooler_us": used / (found["tps"] * float(one.seconds)) * 1e6, **seen} if found else {}


CELLS = {
    "crowd": crowd,
    "users": users,
    "one-backend": one_backend,
    "storm": storm,
    "idle": idle,
    "analytics": analytics,
    "tenants": tenants,
}


def prepare(server: Server, tenants: int) -> None:
    for name in ("busy", "quiet", "analyst"):
        server.query(f"CREATE ROLE {name} LOGIN")
    for name, count in (("user", USERS), ("tenant", tenants)):
        server.query(
            f"DO $$BEGIN FOR n IN 1..{count} LOOP EXECUTE format('CREATE ROLE {name}_%s LOGIN', n); END LOOP; END$$"
        )
    server.query("GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC")


def all_rounds(world: World, names: list[str], rounds: int, keep) -> dict[str, dict[str, dict[str, list[dict]]]]:
    """The figures of the rounds, by cell, row and target."""
    found: dict = {name: {} for name in names}
    for done in range(rounds):
        for name in names:
            turn = done % len(TARGETS)
            for target in TARGETS[turn:] + TARGETS[:turn]:
                settle([world.target("pg_baton"), world.target("PgBouncer")])
                rows = CELLS[name](world, world.target(target))
                for row, figures in rows.items():
                    found[name].setdefault(row, {}).setdefault(target, []).append(figures)
                    shown = "  ".join(f"{key} {value:,.1f}" for key, value in figures.items())
                    print(
                        f"bench: {done + 1}/{rounds}  {target}, {row}:  {shown or 'failed'}",
                        file=sys.stderr,
                        flush=True,
                    )
        keep(found, done + 1)
    return found


def of(found: dict, target: str, what: str) -> float | None:
    return middle([figures[what] for figures in found.get(target, []) if what in figures])


def ratio(found: dict, what: str, target: str, other: str) -> float | None:
    """The median of the ratios of the rounds."""
    pairs = zip(found.get(target, []), found.get(other, []))
    return middle([one[what] / two[what] for one, two in pairs if one.get(what) and two.get(what)])


def markdown(raw: dict) -> str:
    about = raw["about"]
    lines = [
        "# Fairness",
        "",
        f"{about['date']}; {about['revision']}; PostgreSQL {about['server']}, {about['bouncer']} in transaction"
        f" mode with {BACKENDS} backends for each user, pg_baton with {BACKENDS} for all; {os.cpu_count()} cores"
        f" shared by clients, pooler and server; {about['rounds']} rounds of {about['seconds']:g} s, the targets in"
        f" turns; load average of the machine before it started: {about['load_before']}."
        f" {about['note']}".rstrip(),
        "",
        *table(raw["cells"]),
        "",
    ]
    lines += [
        f"A client that is quiet or new asks, and then does nothing for about {THINK_MS} ms; directly the crowd is"
        f" of {CROWD_DIRECT} clients. Times of the logins are those from the moment at which all began.",
        "",
    ]
    for row, found in raw["cells"].get("users", {}).items():
        lines += [
            f"{row}, transactions a second of a user:",
            "",
            "| | least | median | most | least to median |",
            "|---|---|---|---|---|",
        ]
        for target in TARGETS:
            least, median, most = (of(found, target, f"user_{what}") for what in ("least", "median", "most"))
            even = least / median if least is not None and median else None
            lines.append(f"| {target} | {number(least)} | {number(median)} | {number(most)} | {number(even, '.2f')} |")
        lines.append("")
    of_tenants = [(row, found) for row, found in raw["cells"].get("tenants", {}).items()]
    if of_tenants:
        lines += [
            "Tenants, each a role of its own with a session; the dispatcher's:",
            "",
            "| | logins took | CPU of a login | memory for all, while they are there | after | CPU of a transaction |",
            "|---|---|---|---|---|---|",
        ]
    for row, found in of_tenants:
        seconds, login, kib, after, cpu = (
            of(found, "pg_baton", what) for what in ("seconds", "login_cpu_ms", "memory_kib", "after_kib", "pooler_us")
        )
        lines.append(
            f"| {row} | {number(seconds, ',.1f')} s | {number(login, '.2f')} ms | {number(kib)} kB |"
            f" {number(after)} kB | {number(cpu, '.1f')} us |"
        )
    lines += ["", "## The bars", "", "| what | bar | measured | |", "|---|---|---|---|"]
    for what, which, bar, value in bars(raw["cells"]):
        if value is not None:
            is_met = value >= bar if which == AT_LEAST else value <= bar
            lines.append(f"| {what} | {which} {bar:g} | {value:,.2f} | {'met' if is_met else '**missed**'} |")
    return "\n".join(lines) + "\n"


def table(cells: dict) -> list[str]:
    lines = [
        "| | tps direct | pg_baton | PgBouncer | p50, p99, longest wait (ms) direct | pg_baton | PgBouncer |"
        " p99 to PgBouncer's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in cells.items():
        for row, found in rows.items():
            shown = [row] + ["" if name == "storm" else number(of(found, target, "tps"), ",.0f") for target in TARGETS]
            for target in TARGETS:
                waits = [of(found, target, what) for what in ("p50", "p99", "max")]
                shown.append("" if None in waits else ", ".join(number(wait, ",.1f") for wait in waits))
            lines.append(
                "| " + " | ".join([*shown, number(ratio(found, "p99", "pg_baton", "PgBouncer"), ".2f")]) + " |"
            )
    return lines


def bars(cells: dict) -> list[tuple[str, str, float, float | None]]:
    """Of each bar: its name, at least or at most, the limit, and the measured value."""
    found: list[tuple[str, str, float, float | None]] = []
    rows = list(cells.get("users", {}).items())
    if len(rows) == 2:
        (many, of_many), (single, of_single) = rows
        least, median = of(of_many, "pg_baton", "user_least"), of(of_many, "pg_baton", "user_median")
        found += [
            (f"{many}, to direct", AT_LEAST, 0.9, ratio(of_many, "tps", "pg_baton", "direct")),
            (f"{many}, to {single}", AT_LEAST, 0.95, row_ratio(of_many, of_single, "tps")),
            (f"{many}, longest wait, to direct", AT_MOST, 5, ratio(of_many, "max", "pg_baton", "direct")),
            (f"{many}, the least user's share of the median's", AT_LEAST, 0.8, least / median if median else None),
        ]
    rows = list(cells.get("one-backend", {}).items())
    if len(rows) == 2:
        (same, of_same), (other, of_other) = rows
        found.append((f"{other}, time of a transaction, to {same}", AT_MOST, 1.15, row_ratio(of_same, of_other, "tps")))
    rows = list(cells.get("idle", {}).items())
    if len(rows) == 2:
        found.append((f"{rows[1][0]}, to these alone", AT_LEAST, 0.9, row_ratio(rows[1][1], rows[0][1], "tps")))
    rows = list(cells.get("tenants", {}).items())
    if len(rows) == 2:
        (few, of_few), (many, of_many) = rows
        found += [
            (f"{many}, to {few}", AT_LEAST, 0.95, row_ratio(of_many, of_few, "tps")),
            (f"{many}, logins a second", AT_LEAST, 1000, of(of_many, "pg_baton", "logins_a_second")),
        ]
    return found


def row_ratio(one: dict, other: dict, what: str) -> float | None:
    """The median of the rounds' ratios of two rows of pg_baton's own."""
    return ratio({"one": one.get("pg_baton", []), "other": other.get("pg_baton", [])}, what, "one", "other")


def write(path: Path, raw: dict) -> None:
    path.parent.mkdir(exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(raw))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--only", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--build", help="measure this folder's build or this revision, not the checkout's")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the server")
    parser.add_argument("--note", default="", help="a line for the report")
    parser.add_argument("--name", help="name of the result files")
    options = parser.parse_args()

    build = builds.find(options.build) if options.build else builds.of_tree()
    server = Server(
        build,
        BACKENDS,
        {
            "max_connections": "800",
            "shared_buffers": "512MB",
            "max_wal_size": "4GB",
            "pg_baton.max_sessions": "12000",
            **dict(value.split("=", 1) for value in options.set),
        },
    )
    bouncer = Bouncer(server, BACKENDS, by_user=True)
    is_whole = options.only == list(CELLS)
    path = RESULTS / (options.name or "fairness") if is_whole or options.name else builds.SCRATCH / "fairness"
    load_before = os.getloadavg()[0]
    try:
        server.start(SCALE)
        prepare(server, options.tenants)
        bouncer.users = ["busy", "quiet", "analyst", *(f"user_{n + 1}" for n in range(USERS))]
        bouncer.start()
        world = World(server, bouncer, options.seconds, options.tenants)
        about = server.about(options.seconds, load_before) | {"bouncer": bouncer.version, "note": options.note}

        def keep(found: dict, rounds: int) -> None:
            write(path, {"about": {**about, "rounds": rounds}, "cells": found})

        all_rounds(world, options.only, options.rounds, keep)
    finally:
        for one in (bouncer, server):
            try:
                one.stop()
            except (OSError, subprocess.SubprocessError) as failure:
                print(f"bench: {failure}", file=sys.stderr)
    if path == RESULTS / "fairness":
        readme.update(RESULTS)
    print(path.with_suffix(".md").read_text())
    print(f"written to {path.relative_to(builds.REPOSITORY)}.md and .json")


if __name__ == "__main__":
    main()
