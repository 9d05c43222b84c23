#!/usr/bin/env python3
"""Writes the figures of bench/results/full.json into README.md.  run.py does so after a
full benchmark; started by itself, this program uses the file that is there.

It replaces the text between the comments "figures: full" and "end of figures".
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import figures, find, middle  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[1]
README = REPOSITORY / "README.md"

CLASSIC = (
    *(("select-only", protocol, clients, "pgbench") for protocol in ("simple", "prepared") for clients in (8, 64, 500)),
    ("select-only", "simple", 2000, "baton-load"),
    ("select-only", "simple", 10_000, "baton-load"),
    ("tpc-b", "simple", 8, "pgbench"),
    ("tpc-b", "simple", 500, "pgbench"),
    ("reconnecting", "simple", 8, "pgbench"),
)


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


def update(results: Path) -> None:
    source = results / "full.json"
    if source.exists():
        block = "\n".join(of_classic(json.loads(source.read_text())))
        README.write_text(
            re.sub(
                r"(<!-- figures: full -->\n)[^<]*(<!-- end of figures -->)",
                lambda found: f"{found.group(1)}{block}\n{found.group(2)}",
                README.read_text(),
            )
        )


if __name__ == "__main__":
    update(REPOSITORY / "bench/results")
