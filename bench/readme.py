#!/usr/bin/env python3
"""Puts the results' figures into README.md: run.py does it when it has written
the files of a whole group, and this by itself from those that are there.

What stands between a pair of comments "figures: NAME" and "end of figures" is
replaced.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import figures, find, middle, ratio  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[1]
README = REPOSITORY / "README.md"

CLASSIC = (
    *(("select-only", protocol, clients, "pgbench") for protocol in ("simple", "prepared") for clients in (8, 64, 500)),
    ("select-only", "simple", 2000, "baton-load"), ("select-only", "simple", 10_000, "baton-load"),
    ("tpc-b", "simple", 8, "pgbench"), ("tpc-b", "simple", 500, "pgbench"),
    ("reconnecting", "simple", 8, "pgbench"),
)
APPLICATIONS = {
    "statements": "a random 60 of 200 prepared statements a session",
    "transactions": "transactions of 20 statements, 72 of 200 prepared ones a session",
    "functions": "a call of one of five PL/pgSQL functions with records and dynamic SQL",
    "records": "the same and a sixth, whose record's type differs between sessions",
    "settings": "three settings of its own a session",
    "temporary": "a temporary table on commit drop a transaction",
}


def thousands(value: float | None) -> str:
    return f"{value:,.0f}" if value is not None else ""


def bouncer_of(about: dict) -> str:
    """PgBouncer and its version without the last part."""
    return ".".join(about["bouncer"].split(".")[:2])


def of_classic(raw: dict) -> list[str]:
    lines = [f"| | direct | pg_baton | {bouncer_of(raw['about'])} |", "|---|---|---|---|"]
    for workload, protocol, clients, generator in CLASSIC:
        one = find(raw, workload, protocol, clients, generator)
        if not one:
            continue
        name = {"select-only": f"select-only, {protocol}", "tpc-b": "TPC-B"}.get(workload, workload)
        without = protocol == "prepared" and not raw["about"]["bouncer_knows_prepared"]
        row = [thousands(middle(figures(one, target))) for target in ("direct", "pg_baton", "PgBouncer")]
        lines.append(f"| {name}, {clients:,} clients | " + " | ".join(row) + (" (extended)" if without else "") + " |")
    return lines


def of_applications(raw: dict) -> list[str]:
    lines = [f"| | direct | pg_baton | {bouncer_of(raw['about'])} | our own | to our own |", "|---|---|---|---|---|---|"]
    for one in raw["cells"]:
        cell = one["cell"]
        if cell["workload"] not in APPLICATIONS:
            continue
        row = [thousands(middle(figures(one, target))) for target in ("direct", "pg_baton", "PgBouncer")]
        own = ["", ""]
        if cell["base"]:
            to_own = ratio(one, "pg_baton", "base")
            own = [f"{thousands(middle(figures(one, 'base')))} ({cell['base']['name']})",
                   "" if to_own is None else f"{to_own:.2f}"]
        protocol = f", {cell['protocol']}" if cell["workload"] == "functions" else ""
        lines.append(f"| {APPLICATIONS[cell['workload']]}{protocol}; {cell['clients']:,} clients | "
                     + " | ".join([*row, *own]) + " |")
    about = raw["about"]
    lines += ["", f"{about['date']}, {about['rounds']} rounds of {about['seconds']:g} s, load average before:"
              f" {about['load_before']}. {about.get('note', '')}".rstrip()]
    return lines


FAIRNESS = {
    "a quiet user's client": "crowd", "a new client of the crowd's user, log-in and first query": "crowd",
    "50 users with 2 clients each": "users", "5,000 log-ins and first queries at once, after a restart": "storm",
    "50 clients of 10,000 that are connected": "idle", "look-ups beside 4 analysts": "analytics",
}


def of_fairness(raw: dict) -> list[str]:
    def shown(found: dict, target: str) -> str:
        waits = [middle([one[what] for one in found.get(target, []) if what in one]) for what in ("p50", "p99")]
        return "" if None in waits else ", ".join(f"{wait:,.1f}" for wait in waits)

    lines = [f"| wait, ms: median, p99 | direct | pg_baton | {bouncer_of(raw['about'])} |", "|---|---|---|---|"]
    for row, cell in FAIRNESS.items():
        found = raw["cells"].get(cell, {}).get(row)
        if found:
            row = row + " beside 2,000 busy ones" * (cell == "crowd")
            lines.append(f"| {row} | " + " | ".join(shown(found, target) for target in (
                "direct", "pg_baton", "PgBouncer")) + " |")
    return lines


def update(results: Path) -> None:
    text = README.read_text()
    for name, make in (("full", of_classic), ("applications", of_applications), ("fairness", of_fairness)):
        source = results / f"{name}.json"
        if source.exists():
            block = "\n".join(make(json.loads(source.read_text())))
            text = re.sub(rf"(<!-- figures: {name} -->\n)[^<]*(<!-- end of figures -->)",
                          lambda found, block=block: f"{found.group(1)}{block}\n{found.group(2)}", text)
    README.write_text(text)


if __name__ == "__main__":
    update(REPOSITORY / "bench/results")
