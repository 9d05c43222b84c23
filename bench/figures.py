"""Medians and ratios out of what a run has collected.

`raw` is what run.py writes: about, idle, memory, and cells with their rounds.
A round has a sample for each target, and where a cell has a base of our own
one named "base".
"""

from __future__ import annotations

from statistics import median

TARGETS = ("direct", "pg_baton", "PgBouncer")


def figures(cell: dict, target: str, what: str = "tps") -> list[float]:
    return [
        samples[target][what]
        for samples in cell["rounds"]
        if target in samples and samples[target].get(what) is not None
    ]


def ratios(cell: dict, target: str, other: str, what: str = "tps") -> list[float]:
    """Of each round, where both lie next to each other in time."""
    return [
        samples[target][what] / samples[other][what]
        for samples in cell["rounds"]
        if target in samples and other in samples and samples[target].get(what) and samples[other].get(what)
    ]


def ratio(cell: dict, target: str, other: str) -> float | None:
    return middle(ratios(cell, target, other))


def middle(values: list[float]) -> float | None:
    return median(values) if values else None


def number(value: float | None, form: str = ",.0f") -> str:
    return "n/a" if value is None else format(value, form)


def find(raw: dict, workload: str, protocol: str, clients: int, generator: str) -> dict | None:
    wanted = {"workload": workload, "protocol": protocol, "clients": clients, "generator": generator}
    for one in raw["cells"]:
        if wanted.items() <= one["cell"].items():
            return one
    return None
