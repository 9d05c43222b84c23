"""The benchmark's figures as Markdown and as a plot (SVG, no library needed).

`raw` is what run.py collects: about, idle, and cells with their rounds.
"""

from __future__ import annotations

import os
from statistics import median

TARGETS = ("direct", "pg_baton", "PgBouncer")
COLOURS = {"direct": "#7a7a7a", "pg_baton": "#c2410c", "PgBouncer": "#1d4ed8"}

# The project's bars: what, workload, protocol, clients, generator, against
# whom, at least.
BARS = (
    *((protocol, clients, "pgbench", "direct", 0.97)
      for protocol in ("simple", "extended", "prepared") for clients in (1, 8)),
    *((protocol, 8, "pgbench", "PgBouncer", 1.8) for protocol in ("simple", "extended", "prepared")),
    ("simple", 64, "pgbench", "PgBouncer", 1.4), ("simple", 64, "pgbench", "direct", 1.25),
    ("prepared", 64, "pgbench", "PgBouncer", 1.6), ("prepared", 64, "pgbench", "direct", 0.95),
    ("simple", 500, "pgbench", "PgBouncer", 1.4), ("prepared", 500, "pgbench", "PgBouncer", 1.4),
    ("simple", 500, "pgbench", "direct", 2.5),
    *((protocol, clients, "baton-load", "PgBouncer", 1.3)
      for clients in (2000, 10_000) for protocol in ("simple", "extended", "prepared")),
)


def figures(cell: dict, target: str, what: str = "tps") -> list[float]:
    return [samples[target][what] for samples in cell["rounds"]
            if target in samples and samples[target][what] is not None]


def ratio(cell: dict, target: str, other: str) -> float | None:
    """The median of the rounds' ratios."""
    found = [
        samples[target]["tps"] / samples[other]["tps"] for samples in cell["rounds"]
        if target in samples and other in samples and samples[target]["tps"] and samples[other]["tps"]
    ]
    return median(found) if found else None


def number(value: float | None, form: str = ",.0f") -> str:
    return "n/a" if value is None else format(value, form)


def middle(values: list[float]) -> float | None:
    return median(values) if values else None


def find(raw: dict, workload: str, protocol: str, clients: int, generator: str) -> dict | None:
    for one in raw["cells"]:
        if one["cell"] == {"workload": workload, "protocol": protocol, "clients": clients, "generator": generator}:
            return one
    return None


def markdown(raw: dict, plot_name: str) -> str:
    about = raw["about"]
    lines = [
        "# Benchmark", "",
        f"{about['date']}; PostgreSQL {about['server']}, {about['bouncer']} in transaction mode; pool of"
        f" {about['backends']}; {os.cpu_count()} cores shared by clients, pooler and server; pgbench scale"
        f" {about['scale']}, all in memory, fsync off; {about['rounds']} rounds of {about['seconds']} s, the three in"
        f" turns; {about['minutes']} minutes; load average of the machine before it started: {about['load_before']}."
        " Figures are medians; ratios are medians of each round's ratio.", "",
    ]
    if not about["bouncer_knows_prepared"]:
        lines += [f"{about['bouncer']} has no prepared statements in transaction mode: where the others run"
                  " prepared, it runs extended.", ""]
    lines += [f"![transactions a second by number of clients]({plot_name})", "", "## Transactions a second", ""]
    lines += ["| workload | protocol | clients | by | direct | pg_baton | PgBouncer | to direct | to PgBouncer |"
              " CPU us/tx pg_baton | PgBouncer |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for one in raw["cells"]:
        cell = one["cell"]
        row = [cell["workload"], cell["protocol"], f"{cell['clients']:,}", cell["generator"]]
        row += [number(middle(figures(one, target))) for target in TARGETS]
        row += [number(ratio(one, "pg_baton", "direct"), ".2f"), number(ratio(one, "pg_baton", "PgBouncer"), ".2f")]
        row += [number(middle(figures(one, target, "pooler_us")), ".2f") for target in ("pg_baton", "PgBouncer")]
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", "## 10,000 idle sessions", "",
              "| | resident bytes a session | of them its own | CPU while idle |", "|---|---|---|---|"]
    for target, idle in raw["idle"].items():
        lines.append(f"| {target} | {number(idle.get('bytes'))} | {number(idle.get('own_bytes'))} |"
                     f" {number(idle.get('cpu_percent'), '.2f')} % |")
    lines += ["", "## The bars", "", "| what | bar | measured | |", "|---|---|---|---|"]
    lines += [f"| {what} | {bar} | {value} | {verdict} |" for what, bar, value, verdict in bars(raw)]
    failures = [
        f"- {one['cell']}: {sample['target']}: {sample['failure']}"
        for one in raw["cells"] for samples in one["rounds"] for sample in samples.values() if sample["failure"]
    ]
    if failures:
        lines += ["", "## Failures", "", *failures]
    return "\n".join(lines) + "\n"


def bars(raw: dict) -> list[tuple[str, str, str, str]]:
    """Each bar: what, how high, what was measured, and whether that is enough."""
    rows = []

    def at_least(what: str, bar: float, value: float | None) -> None:
        if value is not None:
            rows.append((what, f"at least {bar:g}", f"{value:.2f}", "met" if value >= bar else "**missed**"))

    def at_most(what: str, bar: float, value: float | None, unit: str) -> None:
        if value is not None:
            rows.append((what, f"at most {bar:g} {unit}", f"{value:.2f} {unit}",
                         "met" if value <= bar else "**missed**"))

    for protocol, clients, generator, other, bar in BARS:
        one = find(raw, "select-only", protocol, clients, generator)
        if one:
            at_least(f"{clients:,} clients, {protocol}, to {other}", bar, ratio(one, "pg_baton", other))
    for protocol in ("simple", "extended", "prepared"):
        at_64 = find(raw, "select-only", protocol, 64, "baton-load")
        for clients in (2000, 10_000):
            one = find(raw, "select-only", protocol, clients, "baton-load")
            if one and at_64:
                own, base = middle(figures(one, "pg_baton")), middle(figures(at_64, "pg_baton"))
                at_least(f"{clients:,} clients, {protocol}, to our own at 64", 0.9, own / base if own and base else None)
    reconnecting = find(raw, "reconnecting", "simple", 8, "pgbench")
    if reconnecting:
        at_least("reconnecting, 8 clients, to PgBouncer", 1.3, ratio(reconnecting, "pg_baton", "PgBouncer"))
        to_direct = ratio(reconnecting, "pg_baton", "direct")
        rows.append(("reconnecting, 8 clients, to direct", "seeds claim 42", number(to_direct, ".1f"), ""))
        alone = middle(figures(reconnecting, "canned"))
        rows.append(("reconnecting, 8 clients, to the client alone (canned answers)", number(alone) + " tps",
                     number(ratio(reconnecting, "pg_baton", "canned"), ".2f"), ""))
    for clients in (64, 500):
        for protocol in ("simple", "extended", "prepared"):
            one = find(raw, "select-only", protocol, clients, "pgbench")
            ours = middle(figures(one, "pg_baton", "pooler_us")) if one else None
            theirs = middle(figures(one, "PgBouncer", "pooler_us")) if one else None
            at_most(f"dispatcher CPU a transaction, {clients} clients, {protocol}", 4, ours, "us")
            if ours is not None and theirs:
                at_most(f"the same, to PgBouncer's, {clients} clients, {protocol}", 0.2, ours / theirs, "of it")
    idle = raw["idle"].get("pg_baton", {})
    at_most("dispatcher memory an idle session", 1024, idle.get("bytes"), "bytes")
    at_most("dispatcher CPU while 10,000 are idle", 0.5, idle.get("cpu_percent"), "%")
    return rows


# -- the plot ------------------------------------------------------------------

WIDTH, HEIGHT = 430, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 15, 40, 45


def plot(raw: dict) -> str:
    """A panel a protocol: transactions a second by clients."""
    protocols = [protocol for protocol in ("simple", "extended", "prepared")
                 if any(one["cell"]["workload"] == "select-only" and one["cell"]["protocol"] == protocol
                        for one in raw["cells"])]
    width = max(WIDTH * len(protocols), WIDTH)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}"'
             f' font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>']
    for index, protocol in enumerate(protocols):
        parts.append(f'<g transform="translate({index * WIDTH},0)">{panel(raw, protocol)}</g>')
    return "\n".join(parts) + "\n</svg>\n"


def panel(raw: dict, protocol: str) -> str:
    # pgbench up to 64 clients, the load generator beyond (pgbench where the
    # generator has no figure).
    chosen: dict[int, dict] = {}
    for one in raw["cells"]:
        cell = one["cell"]
        if cell["workload"] != "select-only" or cell["protocol"] != protocol:
            continue
        wanted = "pgbench" if cell["clients"] <= 64 else "baton-load"
        if cell["clients"] not in chosen or cell["generator"] == wanted:
            chosen[cell["clients"]] = one
    counts = sorted(chosen)
    if not counts:
        return ""
    top = max([value for one in chosen.values() for target in TARGETS for value in figures(one, target)] or [1]) * 1.08
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(position: int) -> float:
        return LEFT + inner_width * (position + 0.5) / len(counts)

    def y(value: float) -> float:
        return TOP + inner_height * (1 - value / top)

    parts = [f'<text x="{LEFT}" y="18" font-size="13" font-weight="bold">select-only, {protocol}</text>']
    step = 10_000 if top > 25_000 else 5_000
    for value in range(0, int(top) + 1, step):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,}</text>')
    for position, clients in enumerate(counts):
        parts.append(f'<text x="{x(position):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{clients:,}</text>')
    parts.append(f'<text x="{LEFT + inner_width / 2}" y="{HEIGHT - 10}" text-anchor="middle">clients</text>')
    for row, target in enumerate(TARGETS):
        points = [(x(position), y(value)) for position, clients in enumerate(counts)
                  if (value := middle(figures(chosen[clients], target))) is not None]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[target]}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{COLOURS[target]}"/>' for a, b in points]
        parts.append(f'<text x="{LEFT + 4 + row * 80}" y="33" fill="{COLOURS[target]}">{target}</text>')
    return "".join(parts)
