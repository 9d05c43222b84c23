"""The project's bars: the figure, its bar, the measured value, and whether the value meets the bar."""

from __future__ import annotations

from figures import figures, find, middle, number, ratio

PROTOCOLS = ("simple", "extended", "prepared")

# Bars of select-only: protocol, clients, generator, the compared target, the least ratio.
SELECT_ONLY = (
    *((protocol, clients, "pgbench", "direct", 0.97) for protocol in PROTOCOLS for clients in (1, 8)),
    *((protocol, 8, "pgbench", "PgBouncer", 1.8) for protocol in PROTOCOLS),
    ("simple", 64, "pgbench", "PgBouncer", 1.4),
    ("simple", 64, "pgbench", "direct", 1.25),
    ("prepared", 64, "pgbench", "PgBouncer", 1.6),
    ("prepared", 64, "pgbench", "direct", 0.95),
    ("simple", 500, "pgbench", "PgBouncer", 1.4),
    ("prepared", 500, "pgbench", "PgBouncer", 1.4),
    ("simple", 500, "pgbench", "direct", 2.5),
    *((protocol, clients, "baton-load", "PgBouncer", 1.3) for clients in (2000, 10_000) for protocol in PROTOCOLS),
)

# Bars of the applications' workloads: the compared target, the least ratio, the number of clients from which on the bar
# applies. Of several bars against the same target, the last bar that applies counts.
APPLICATIONS = {
    "statements": (("base", 0.85, 64), ("PgBouncer", 1.5, 64)),
    "transactions": (("base", 0.9, 64), ("PgBouncer", 1.5, 64)),
    "functions": (("direct", 0.9, 64), ("direct", 1, 400)),
    "records": (("direct", 0.9, 64), ("direct", 1, 400)),
    "settings": (("base", 0.9, 64),),
    "temporary": (("direct", 0.95, 16), ("PgBouncer", 0.95, 16)),
}
TPC_B_DISPATCHER_US = 6
BACKEND_MEMORY_MIB = 10


class Bars:
    """Collects rows: figure, bar, measured value, verdict."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str]] = []

    def at_least(self, what: str, bar: float, value: float | None) -> None:
        if value is not None:
            self.rows.append((what, f"at least {bar:g}", f"{value:.2f}", "met" if value >= bar else "**missed**"))

    def at_most(self, what: str, bar: float, value: float | None, unit: str) -> None:
        if value is not None:
            self.rows.append(
                (what, f"at most {bar:g} {unit}", f"{value:.2f} {unit}", "met" if value <= bar else "**missed**")
            )


def applications(raw: dict) -> list[tuple[str, str, str, str]]:
    bars = Bars()
    for one in raw["cells"]:
        cell = one["cell"]
        wanted = {
            other: bar
            for other, bar, from_clients in APPLICATIONS.get(cell["workload"], ())
            if cell["clients"] >= from_clients
        }
        for other, bar in wanted.items():
            name = f"our own, {cell['base']['name']}" if other == "base" else other
            bars.at_least(
                f"{cell['workload']}, {cell['protocol']}, {cell['clients']:,} clients, to {name}",
                bar,
                ratio(one, "pg_baton", other),
            )
    for one in raw["cells"]:
        if one["cell"]["workload"] == "tpc-b" and one["cell"]["clients"] >= 64:
            bars.at_most(
                f"dispatcher CPU a transaction, TPC-B, {one['cell']['clients']} clients",
                TPC_B_DISPATCHER_US,
                middle(figures(one, "pg_baton", "pooler_us")),
                "us",
            )
    memory = list(raw.get("memory", {}).get("pg_baton", {}).values())
    if len(memory) == 2:
        bars.at_most(
            "memory of a backend that served 400 sessions with 60 of 200 statements, beyond one statement's",
            BACKEND_MEMORY_MIB,
            memory[1] - memory[0],
            "MiB",
        )
    return bars.rows


def classic(raw: dict) -> list[tuple[str, str, str, str]]:
    bars = Bars()
    for protocol, clients, generator, other, bar in SELECT_ONLY:
        one = find(raw, "select-only", protocol, clients, generator)
        if one:
            bars.at_least(f"{clients:,} clients, {protocol}, to {other}", bar, ratio(one, "pg_baton", other))
    for protocol in PROTOCOLS:
        at_64 = find(raw, "select-only", protocol, 64, "baton-load")
        for clients in (2000, 10_000):
            one = find(raw, "select-only", protocol, clients, "baton-load")
            if one and at_64:
                own, base = middle(figures(one, "pg_baton")), middle(figures(at_64, "pg_baton"))
                bars.at_least(
                    f"{clients:,} clients, {protocol}, to our own at 64", 0.9, own / base if own and base else None
                )
    reconnecting = find(raw, "reconnecting", "simple", 8, "pgbench")
    if reconnecting:
        bars.at_least("reconnecting, 8 clients, to PgBouncer", 1.3, ratio(reconnecting, "pg_baton", "PgBouncer"))
        to_direct = ratio(reconnecting, "pg_baton", "direct")
        bars.rows.append(("reconnecting, 8 clients, to direct", "seeds claim 42", number(to_direct, ".1f"), ""))
        alone = middle(figures(reconnecting, "canned"))
        bars.rows.append(
            (
                "reconnecting, 8 clients, to the client alone (canned answers)",
                number(alone) + " tps",
                number(ratio(reconnecting, "pg_baton", "canned"), ".2f"),
                "",
            )
        )
    for clients in (64, 500):
        for protocol in PROTOCOLS:
            one = find(raw, "select-only", protocol, clients, "pgbench")
            ours = middle(figures(one, "pg_baton", "pooler_us")) if one else None
            theirs = middle(figures(one, "PgBouncer", "pooler_us")) if one else None
            bars.at_most(f"dispatcher CPU a transaction, {clients} clients, {protocol}", 4, ours, "us")
            if ours is not None and theirs:
                bars.at_most(f"the same, to PgBouncer's, {clients} clients, {protocol}", 0.2, ours / theirs, "of it")
    idle = raw["idle"].get("pg_baton", {})
    bars.at_most("dispatcher memory an idle session", 1024, idle.get("bytes"), "bytes")
    bars.at_most("dispatcher CPU while 10,000 are idle", 0.5, idle.get("cpu_percent"), "%")
    return bars.rows
