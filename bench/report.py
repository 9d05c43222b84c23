"""The benchmark's figures as Markdown."""

from __future__ import annotations

import os

import bars
import disturbance
from figures import TARGETS, figures, middle, number, ratio

WORKLOADS = {
    "statements": "each session a random 60 of 200 prepared statements, each prepared with its first use; counted from"
    " the second second on",
    "transactions": "BEGIN, 20 statements (a tenth updates, a tenth inserts, a fifth joins), COMMIT, each a round trip;"
    " each session a random 72 of 200 prepared statements, prepared at login",
    "functions": "a call of one of five PL/pgSQL functions (bench/functions.sql): loops over records, row types,"
    " EXECUTE format(...) USING, INTO a record and in a loop, of a relation that differs between sessions",
    "records": "the same with a sixth function, whose record has another type in each third session; PgBouncer fails"
    " (42804)",
    "settings": "select-only; each session has set app.tenant_id, statement_timeout and timezone to values of its own",
    "temporary": "a transaction creates a temporary table on commit drop, fills it with ten rows and reads it",
    "tpc-b": "pgbench's",
}


def markdown(raw: dict, plot_name: str) -> str:
    about = raw["about"]
    classic = [one for one in raw["cells"] if "classic" in one["cell"]["groups"]]
    applications = [one for one in raw["cells"] if "applications" in one["cell"]["groups"]]
    lines = ["# Benchmark", "", heading(about, raw["cells"]), ""]
    if about.get("note"):
        lines += [f"**{about['note']}**", ""]
    if not about["bouncer_knows_prepared"]:
        lines += [
            f"{about['bouncer']} has no prepared statements in transaction mode: where the others run"
            " prepared, it runs extended.",
            "",
        ]
    if applications:
        lines += [*of_applications(applications, about["bouncer"]), *of_memory(raw)]
        lines += ["", "### The bars", "", *table_of_bars(bars.applications(raw)), ""]
    if plot_name:
        lines += [
            "## Select-only, TPC-B, reconnecting",
            "",
            f"![transactions a second by number of clients]({plot_name})",
            "",
            *of_classic(classic),
            *of_idle(raw),
            "",
            "### The bars",
            "",
            *table_of_bars(bars.classic(raw)),
            "",
        ]
    shares = [
        share
        for one in raw["cells"]
        for samples in one["rounds"]
        for sample in samples.values()
        if (share := sample.get("generator"))
    ]
    if shares:
        lines += [f"baton-load took at most {max(shares):.2f} of a core.", ""]
    failures = [
        f"- {one['cell']['workload']} {one['cell']['protocol']} {one['cell']['clients']}, {name}: {sample['failure']}"
        for one in raw["cells"]
        for samples in one["rounds"]
        for name, sample in samples.items()
        if sample["failure"]
    ]
    if failures:
        lines += ["## Failures", "", *failures, ""]
    return "\n".join(lines)


def heading(about: dict, cells: list[dict]) -> str:
    return (
        f"{about['date']}; {about['revision']}; PostgreSQL {about['server']}, {about['bouncer']} in transaction mode;"
        f" pool of {about['backends']}; {os.cpu_count()} cores shared by clients, pooler and server; pgbench scale"
        f" {about['scale']}, all in memory, fsync off; {about['rounds']} rounds of {about['seconds']:g} s, the targets"
        f" in turns; {about['minutes']} minutes; load average of the machine before it started:"
        f" {about['load_before']}; {disturbance.of_cells(cells)}. Figures are medians; ratios are medians of each round's ratio."
    )


def of_applications(cells: list[dict], bouncer: str) -> list[str]:
    lines = ["## What applications do", ""]
    present = {one["cell"]["workload"] for one in cells}
    lines += [f"- **{name}**: {text}." for name, text in WORKLOADS.items() if name in present]
    lines += [
        "",
        "Our own: pg_baton with one statement (statements), with 8 clients (transactions), without settings"
        f" (settings). CPU of a transaction in us; {bouncer} cannot keep settings in transaction mode.",
        "",
        "| workload | protocol | clients | direct tps | pg_baton | PgBouncer | our own | to direct | to PgBouncer |"
        " to our own | p50, p99 ms direct | pg_baton | PgBouncer | CPU dispatcher | backends | PgBouncer |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in cells:
        row = [one["cell"]["workload"], one["cell"]["protocol"], f"{one['cell']['clients']:,}"]
        row += [number(middle(figures(one, target))) for target in (*TARGETS, "base")]
        row += [number(ratio(one, "pg_baton", other), ".2f") for other in ("direct", "PgBouncer", "base")]
        for target in TARGETS:
            latencies = [middle(figures(one, target, what)) for what in ("p50_ms", "p99_ms")]
            row.append("n/a" if None in latencies else ", ".join(number(value, ",.1f") for value in latencies))
        row.append(number(middle(figures(one, "pg_baton", "pooler_us")), ",.1f"))
        row.append(number(middle(figures(one, "pg_baton", "backends_us"))))
        row.append(number(middle(figures(one, "PgBouncer", "pooler_us")), ",.1f"))
        lines.append("| " + " | ".join(row) + " |")
    return lines


def of_memory(raw: dict) -> list[str]:
    memory = raw.get("memory") or {}
    if not any(memory.values()):
        return []
    lines = ["", "Memory of its own (MiB) that the greatest of the backends has which served 400 sessions:", ""]
    names = list(next(sizes for sizes in memory.values() if sizes))
    lines += ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    return lines + [
        f"| {target} | " + " | ".join(number(sizes.get(name), ".1f") for name in names) + " |"
        for target, sizes in memory.items()
    ]


def of_classic(cells: list[dict]) -> list[str]:
    lines = [
        "| workload | protocol | clients | by | direct | pg_baton | PgBouncer | to direct | to PgBouncer |"
        " CPU us/tx pg_baton | PgBouncer |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in cells:
        cell = one["cell"]
        row = [cell["workload"], cell["protocol"], f"{cell['clients']:,}", cell["generator"]]
        row += [number(middle(figures(one, target))) for target in TARGETS]
        row += [number(ratio(one, "pg_baton", "direct"), ".2f"), number(ratio(one, "pg_baton", "PgBouncer"), ".2f")]
        row += [number(middle(figures(one, target, "pooler_us")), ".2f") for target in ("pg_baton", "PgBouncer")]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def of_idle(raw: dict) -> list[str]:
    if not raw["idle"]:
        return []
    lines = [
        "",
        "10,000 idle sessions:",
        "",
        "| | resident bytes a session | of them its own | CPU while idle |",
        "|---|---|---|---|",
    ]
    return lines + [
        f"| {target} | {number(idle.get('bytes'))} | {number(idle.get('own_bytes'))} |"
        f" {number(idle.get('cpu_percent'), '.2f')} % |"
        for target, idle in raw["idle"].items()
    ]


def table_of_bars(rows: list[tuple[str, str, str, str]]) -> list[str]:
    return [
        "| what | bar | measured | |",
        "|---|---|---|---|",
        *(f"| {what} | {bar} | {value} | {verdict} |" for what, bar, value, verdict in rows),
    ]
