"""The workloads, each at several numbers of clients, and how one is chosen.

Two groups: "classic" is pgbench's select-only and TPC-B, one statement a
session; "applications" is what applications do: many prepared statements, each
session its own choice of them, transactions of many round trips, functions in
PL/pgSQL, settings, temporary tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Direct, each client is a process; beyond this many it says nothing new.
DIRECT_CLIENTS_MAX = 500
ALL = ("direct", "pg_baton", "PgBouncer")

STATEMENTS = ("--stock", "200", "--own", "60", "--prepare", "use")
ONE_STATEMENT = ("--prepare", "use")
FUNCTIONS = ("--functions", "--stock", "5", "--own", "5")
# The sixth function's record has a type of its own in each third session.
RECORDS = ("--functions", "--stock", "6", "--own", "6")
TRANSACTION = ("--stock", "200", "--own", "72", "--statements", "20", "--mixed")


@dataclass(frozen=True)
class Base:
    """Our own figure that another one of ours is compared with, measured next to it."""

    name: str
    clients: int
    load: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One workload at one number of clients."""

    groups: tuple[str, ...]
    workload: str
    protocol: str  # simple, extended, prepared
    clients: int
    generator: str  # pgbench, baton-load
    load: tuple[str, ...] = ()  # options of baton-load
    base: Base | None = None
    against: tuple[str, ...] = ALL

    def label(self) -> str:
        return f"{self.workload} {self.protocol} {self.clients} {self.generator}"

    def is_chosen(self, words: list[str]) -> bool:
        """Each of the words (regular expressions) is one of its own."""
        own = [*self.groups, self.workload, self.protocol, str(self.clients), self.generator]
        return all(any(re.fullmatch(word, one) for one in own) for word in words)

    def targets(self) -> tuple[str, ...]:
        return tuple(name for name in self.against if name != "direct" or self.clients <= DIRECT_CLIENTS_MAX)


def classic(quick: bool) -> list[Cell]:
    group = ("classic",)
    protocols = ("simple", "prepared") if quick else ("simple", "extended", "prepared")
    found = [
        Cell(group, "select-only", protocol, clients, "pgbench")
        for protocol in protocols
        for clients in ((8, 64, 500) if quick else (1, 8, 64, 500))
    ]
    many = (64, 10_000) if quick else (64, 500, 2000, 10_000)
    found += [
        Cell(group, "select-only", protocol, clients, "baton-load")
        for protocol in (protocols[:1] if quick else protocols)
        for clients in many
    ]
    # The dispatcher's share of these is one of the applications' bars.
    found += [
        Cell((*group, "applications") if clients >= 64 else group, "tpc-b", "simple", clients, "pgbench")
        for clients in ((64,) if quick else (1, 8, 64, 500))
    ]
    found.append(Cell(group, "reconnecting", "simple", 8, "pgbench", against=(*ALL, "canned")))
    return found


def applications(quick: bool) -> list[Cell]:
    group = ("applications",)
    found = [
        Cell(
            group,
            "statements",
            "prepared",
            clients,
            "baton-load",
            STATEMENTS,
            Base("one statement", clients, ONE_STATEMENT),
        )
        for clients in ((400,) if quick else (64, 400, 2000))
    ]
    found += [
        Cell(
            group,
            "transactions",
            "prepared",
            clients,
            "baton-load",
            TRANSACTION,
            Base("8 clients", 8, TRANSACTION) if clients > 8 else None,
        )
        for clients in ((2000,) if quick else (8, 64, 400, 2000, 5000))
    ]
    found += [
        Cell(group, "functions", protocol, clients, "baton-load", FUNCTIONS)
        for protocol in ("simple", "prepared")
        for clients in ((64,) if quick else (64, 400))
    ]
    # PgBouncer's sessions fail at a plan for another one's type.
    found += [
        Cell(group, "records", "prepared", clients, "baton-load", RECORDS, against=("direct", "pg_baton"))
        for clients in ((64,) if quick else (64, 400))
    ]
    # PgBouncer cannot keep settings in transaction mode.
    found += [
        Cell(
            group,
            "settings",
            "simple",
            clients,
            "baton-load",
            ("--settings",),
            Base("without settings", clients),
            against=("direct", "pg_baton"),
        )
        for clients in ((64,) if quick else (64, 400))
    ]
    found.append(Cell(group, "temporary", "simple", 16, "baton-load", ("--temporary-table",)))
    if not quick:
        found.append(Cell(group, "tpc-b", "simple", 200, "pgbench", against=("pg_baton",)))
    return found


def choose(quick: bool, words: list[str]) -> list[Cell]:
    return [cell for cell in [*classic(quick), *applications(quick)] if cell.is_chosen(words)]
