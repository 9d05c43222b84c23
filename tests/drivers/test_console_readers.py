"""Programs that read PgBouncer's console read the same series, with the same values, from the pool's.

Both have the same load, of known size.  A program that no registry has is represented by
what it asks for; pgbouncer_exporter and pgmetrics are also run if they are on the PATH."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request

import drivers
import psycopg
import pytest
from harness.account import as_server_user, give_to_server_user, neutral_environment
from harness.authenticators import Service, program
from harness.health import wait_until
from harness.ports import HOST, free_port
from harness.wire import Wire, query

pytestmark = [pytest.mark.pool_only, pytest.mark.in_plain("PgBouncer has no certificate here")]

POOLS = "cl_active cl_waiting sv_active sv_idle sv_used sv_tested sv_login maxwait"
CANCELLED = "cl_active_cancel_req cl_waiting_cancel_req sv_active_cancel sv_being_canceled"
TOTALS = "xact_count query_count xact_time query_time wait_time"
NEWER = "server_assignment_count client_parse_count server_parse_count bind_count"
TOTAL = " ".join(f"total_{name}" for name in [*TOTALS.split(), "received", "sent"])
AVERAGE = " ".join(f"avg_{name}" for name in [*TOTALS.split(), "recv", "sent"])

# What a program asks for: the columns that name a series, and those that are its values.
ASKED = {
    # DataDog/integrations-core, pgbouncer/datadog_checks/pgbouncer/metrics.py
    "datadog": {
        "STATS": ("database", f"{TOTAL} {AVERAGE}"),
        "POOLS": ("database user", f"{POOLS} maxwait_us"),
        "DATABASES": ("name", "pool_size max_connections current_connections"),
        "CONFIG": ("", "max_client_conn"),
        "CLIENTS": ("database user", "connect_time request_time wait wait_us"),
        "SERVERS": ("database user", "connect_time request_time"),
    },
    # netdata/netdata, src/go/plugin/go.d/collector/pgbouncer/collect.go
    "netdata": {
        "CONFIG": ("", "max_client_conn"),
        "DATABASES": ("name database", "max_connections current_connections paused disabled"),
        "STATS": ("database", f"{TOTAL} avg_xact_time avg_query_time"),
        "POOLS": ("database", f"{POOLS} maxwait_us"),
    },
    # prometheus-community/pgbouncer_exporter, collector.go
    "pgbouncer_exporter": {
        "LISTS": (
            "",
            "databases users pools free_clients used_clients login_clients free_servers used_servers dns_names "
            "dns_zones dns_queries",
        ),
        "CONFIG": ("", "max_client_conn max_user_connections"),
        "DATABASES": (
            "name host port database force_user pool_mode",
            "pool_size reserve_pool reserve_pool_size max_connections current_connections paused disabled",
        ),
        "STATS_TOTALS": ("database", f"{TOTALS} bytes_received bytes_sent {NEWER}"),
        "POOLS": ("database user", f"{POOLS} {CANCELLED}"),
    },
    # rapidloop/pgmetrics, collector/pgbouncer.go: by position, test_columns_are_those_of_pgbouncer
    "pgmetrics": {
        "POOLS": ("database user pool_mode", f"{POOLS} maxwait_us {CANCELLED}"),
        "SERVERS": ("database user", "wait wait_us"),
        "CLIENTS": ("database user", "wait wait_us"),
        "STATS": ("database", f"{TOTAL} {AVERAGE}"),
        "DATABASES": ("name host port database force_user", "max_connections current_connections paused disabled"),
    },
}

# Series that one side alone has, if PgBouncer is older: columns it lacks or names otherwise
# (Debian 12 has 1.18), and idle clients, which it called active.
OLDER = {
    (1, 24): "server_assignment|parse|bind|_client_connections|server_lifetime|reserve_pool|load_balance_hosts|peer",
    (1, 25): "client_connections.*state=",
}
# The version is in the name; pgmetrics omits what is zero.
ONE_SIDED = ["version_info", "^stats .*server_assignment"]
# Series whose values differ.
UNLIKE = "|".join(
    [
        "_time|duration|seconds|maxwait|avgwait|wait_us| wait$|avg_",  # measured
        "receive|server_lifetime",  # 0 here; PgBouncer's default is an hour
        "(?i:databases|dbs) .*max_connections|databases_.*max_connections",  # that of PgBouncer's test is 4
        "server_assignment",  # with those of logins
        "free_|( |pgbouncer_)(databases|pools)$",  # what a pool may still take; the harness logs in to postgres
        "cc_active|cc_idle| port$",  # idle clients, as in OLDER; the console's port
        r"(?i:stats)\S* pgbouncer .*count|^pgbouncer pgbouncer |stats_.*database=.pgbouncer",  # commands of consoles
        "^stats .*(xact|query)_count",  # pgmetrics reads the columns beside them (docs/console.md)
    ]
)
# PgBouncer counts a transaction as it begins.
UNLIKE_IF_BUSY = "(xact|query)_count|(queries|transactions)_(pooled_)?total"

build = functools.cache(drivers.build)

ROLES = ("idler", "buyer", "seller")
# cl_active, cl_waiting, sv_active and sv_idle of each role, and if one waits; transactions and requests
KNOWN = {
    "busy": ({"idler": (3, 0, 0, 0, False), "buyer": (2, 0, 2, 0, False), "seller": (2, 1, 2, 0, True)}, (6, 10)),
    "rest": ({"idler": (3, 0, 0, 0, False), "buyer": (2, 0, 0, 2, False), "seller": (3, 0, 0, 2, False)}, (11, 15)),
}


class PgBouncer(Service):
    def __init__(self, directory, cluster) -> None:
        super().__init__(directory)
        (directory / "users").write_text("".join(f'"{role}" ""\n' for role in ("monitor", *ROLES)))
        (directory / "ini").write_text(
            f"[databases]\nshop = port={cluster.port}\n[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {self.port}\n"
            f"unix_socket_dir = {cluster.home}\nauth_type = trust\nauth_file = {directory}/users\n"
            "stats_users = monitor\npool_mode = transaction\ndefault_pool_size = 4\nmax_db_connections = 4\n"
            "max_client_conn = 10000\n"
        )
        give_to_server_user(directory)
        self._run(as_server_user([program("pgbouncer", "pgbouncer"), str(directory / "ini")]))
        self._wait(self._listens)


def show(port: int, what: str) -> list[dict]:
    with psycopg.connect(address(port), autocommit=True, row_factory=psycopg.rows.dict_row) as console:
        rows = console.execute(f"SHOW {what};").fetchall()
    if what in ("CONFIG", "LISTS"):
        rows = [dict(list(row.values())[:2] for row in rows)]
    return rows


def address(port: int) -> str:
    return f"host={HOST} port={port} user=monitor dbname=pgbouncer sslmode=disable"


@pytest.fixture(scope="module", params=KNOWN)
def watched(run, request):
    """Ports of PgBouncer and of the pool, with sessions as in KNOWN."""
    cluster = run.cluster("watched", parameters={"pg_baton.max_backends": 4, "pg_baton.max_extra_backends": 0})
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.finish)
        cluster.start()
        cluster.sql("CREATE EXTENSION pg_baton")
        cluster.sql("CREATE DATABASE shop")
        cluster.sql("CREATE ROLE monitor LOGIN IN ROLE pg_monitor")
        for role in ROLES:
            cluster.sql(f"CREATE ROLE {role} LOGIN")
        pgbouncer = PgBouncer(cluster.home / "pgbouncer", cluster)
        stack.callback(pgbouncer.stop)
        for port in (pgbouncer.port, cluster.pool_port):
            load(stack, port, rests=request.param == "rest")
        pools, counts = KNOWN[request.param]
        wait_until(lambda: pools_of(pgbouncer.port) == pools, what="PgBouncer has the load")
        wait_until(lambda: pools_of(cluster.pool_port) == pools, what=f"{pools}")
        wait_until(lambda: counts_of(cluster.pool_port) == counts, what=f"{counts}")
        yield request.param, pgbouncer.port, cluster.pool_port


def load(stack: contextlib.ExitStack, port: int, rests: bool) -> None:
    """Transactions on each of four backends, and a session that waits for one; then, if it rests, their ends."""

    def login(role: str) -> Wire:
        return stack.enter_context(Wire.login(HOST, port, role, "shop"))

    idle = [login("idler") for _ in range(3)]
    for wire in idle * 2:
        wire.query("SELECT 1")
    runs = []
    for role in ("buyer", "buyer", "seller", "seller"):
        runs.append(login(role))
        runs[-1].query("BEGIN")
    waits = login("seller")
    waits.send(query("SELECT 1"))
    if rests:
        runs.pop().query("COMMIT")
        waits.until_ready()
        for wire in runs:
            wire.query("COMMIT")


def pools_of(port: int) -> dict[str, tuple]:
    rows = [row for row in show(port, "POOLS") if row["database"] == "shop"]
    columns = ("cl_active", "cl_waiting", "sv_active", "sv_idle")
    return {row["user"]: (*(row[column] for column in columns), row["maxwait"] + row["maxwait_us"] > 0) for row in rows}


def counts_of(port: int) -> tuple:
    (row,) = [row for row in show(port, "STATS") if row["database"] == "shop"]
    return row["total_xact_count"], row["total_query_count"]


def asked(name: str):
    def read(port: int) -> dict[str, float]:
        assert re.match(r"PgBouncer \d+\.\d+\.\d+", show(port, "VERSION")[0]["version"])
        found: dict[str, float] = {}
        for what, (labels, columns) in ASKED[name].items():
            for row in show(port, what):
                series = " ".join([what, *(f"{row[label]}" for label in labels.split())])
                for column in set(columns.split()) & row.keys():
                    found[f"{series} {column}"] = found.get(f"{series} {column}", 0) + number(row[column])
        return found

    return read


def number(value: object) -> float:
    text = str(value)
    if text.endswith(" UTC"):
        return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S UTC"))
    return int(text)


def telegraf(port: int) -> dict[str, float]:
    if not os.environ.get("BATON_TEST_LARGE"):
        pytest.skip("fetches some fifty modules: BATON_TEST_LARGE=1")
    folder = build("telegraf", "go", "build", "-o", "target/telegraf", ".")
    found = json.loads(output(folder / "target/telegraf", "pgbouncer", address(port)))
    assert found["errors"] is None, found["errors"]
    return found["values"]


def output(*command: object) -> str:
    done = subprocess.run(command, env=neutral_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def on_path(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on the PATH")
    return found


def pgmetrics(port: int) -> dict[str, float]:
    command = on_path("pgmetrics"), "-w", "-h", HOST, "-p", str(port), "-U", "monitor", "-f", "json"
    told = json.loads(output(*command, "pgbouncer"))["pgbouncer"]
    found = {name: value for name, value in told.items() if not isinstance(value, list)}
    for part in ("pools", "stats", "dbs"):
        for row in told[part]:
            series = f"{part} {row['db_name']} {row.get('user', '')}"
            found |= {f"{series} {name}": value for name, value in row.items()}
    return found


def pgbouncer_exporter(port: int) -> dict[str, float]:
    listens = free_port()
    url = f"postgres://monitor@{HOST}:{port}/pgbouncer?sslmode=disable"
    exporter = on_path("pgbouncer_exporter")
    return scraped(listens, exporter, f"--pgBouncer.connectionString={url}", f"--web.listen-address={HOST}:{listens}")


def prometheus_pgbouncer_exporter(port: int) -> dict[str, float]:
    folder = build(
        "exporter", sys.executable, *"-m pip install -q --no-deps --target target -r requirements.txt".split()
    )
    listens = free_port()
    config = folder / "target/config.yml"
    config.write_text(
        f"exporter_host: {HOST}\nexporter_port: {listens}\n"
        f"pgbouncers:\n  - dsn: postgresql://monitor@{HOST}:{port}/pgbouncer?sslmode=disable\n"
    )
    main = "from prometheus_pgbouncer_exporter.cli import main; main()"
    return scraped(
        listens, sys.executable, "-W", "ignore", "-c", main, "--config", str(config), PYTHONPATH=str(folder / "target")
    )


def scraped(listens: int, *command: str, **more: str) -> dict[str, float]:
    process = subprocess.Popen(command, env=neutral_environment() | more, stderr=subprocess.PIPE, text=True)
    texts: list[str] = []

    def scrape() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{listens}/metrics") as answer:
            texts.append(answer.read().decode())
        return bool(texts)

    try:
        wait_until(scrape, what="the exporter listens")
    finally:
        process.terminate()
        said = process.communicate(timeout=20)[1]
    lines = [line.rsplit(" ", 1) for line in texts[0].splitlines() if line.startswith("pgbouncer_")]
    found = {name: float(value) for name, value in lines}
    assert found["pgbouncer_up"] == 1, said
    return found


READERS = {f"as_{name}": asked(name) for name in ASKED}
READERS |= {one.__name__: one for one in (telegraf, pgbouncer_exporter, prometheus_pgbouncer_exporter, pgmetrics)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("reader", READERS)
def test_readers_see_what_they_see_of_pgbouncer(watched, reader):
    state, *ports = watched
    theirs, ours = (
        {name.replace(str(port), "PORT"): value for name, value in READERS[reader](port).items()} for port in ports
    )
    # The harness itself logs in to the pool.
    ours = {name: value for name, value in ours.items() if not re.search(r"\bpostgres\b", name)}
    version = re.search(r"(\d+)\.(\d+)", show(ports[0], "VERSION")[0]["version"])
    lacks = [names for since, names in OLDER.items() if tuple(map(int, version.groups())) < since]
    assert [n for n in theirs.keys() ^ ours.keys() if not re.search("|".join(ONE_SIDED + lacks), n)] == []
    unlike = UNLIKE if state == "rest" else f"{UNLIKE}|{UNLIKE_IF_BUSY}"
    compared = [name for name in theirs.keys() & ours.keys() if not re.search(unlike, name)]
    assert {name: ours[name] for name in compared} == {name: theirs[name] for name in compared}
