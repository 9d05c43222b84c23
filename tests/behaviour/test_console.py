"""The console: a connection to database pgbouncer on the pool's port, answered as PgBouncer 1.25 does."""

from __future__ import annotations

import collections
import contextlib
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from harness.certificates import Authority, make_secure
from harness.crowds import closed_at_the_end
from harness.health import Load, wait_until
from harness.wire import LoginFailed, QueryFailed, Wire, bind, describe_portal, execute, parse, query, sync

pytestmark = [pytest.mark.pool_only, pytest.mark.one_major]

HOST = "127.0.0.1"
TEXT, INT4, NUMERIC = 25, 23, 1700
TOTALS = (
    "server_assignment_count xact_count query_count received sent xact_time query_time wait_time "
    "client_parse_count server_parse_count bind_count"
).split()
AVERAGES = [{"received": "recv"}.get(name, name) for name in TOTALS]
SOCKETS = (
    "type user database replication state addr port:i local_addr local_port:i connect_time request_time wait:i "
    "wait_us:i close_needed:i ptr link remote_pid:i tls application_name prepared_statements:i id:i"
)
COLUMNS = {
    "STATS": "database "
    + " ".join(f"total_{name}:n" for name in TOTALS)
    + " "
    + " ".join(f"avg_{name}:n" for name in AVERAGES),
    "POOLS": "database user cl_active:i cl_waiting:i cl_active_cancel_req:i cl_waiting_cancel_req:i sv_active:i "
    "sv_active_cancel:i sv_being_canceled:i sv_idle:i sv_used:i sv_tested:i sv_login:i maxwait:i maxwait_us:i "
    "pool_mode load_balance_hosts",
    "CLIENTS": SOCKETS,
    "SERVERS": SOCKETS,
    "DATABASES": "name host port:i database force_user pool_size:i min_pool_size:i reserve_pool_size:i "
    "server_lifetime:i pool_mode load_balance_hosts max_connections:i current_connections:i "
    "max_client_connections:i current_client_connections:i paused:i disabled:i",
    "LISTS": "list items:i",
    "CONFIG": "key value default changeable",
    "USERS": "name pool_size reserve_pool_size pool_mode max_user_connections:i current_connections:i "
    "max_user_client_connections:i current_client_connections:i",
}
ALL = (
    "STATS STATS_TOTALS STATS_AVERAGES POOLS CLIENTS SERVERS DATABASES USERS LISTS CONFIG MEM SOCKETS ACTIVE_SOCKETS "
    "FDS STATE VERSION TOTALS DNS_HOSTS DNS_ZONES PEERS PEER_POOLS"
).split()


@pytest.fixture
def cluster_with(make_cluster):
    def make(**ours):
        parameters = {"pg_baton.max_backends": 4, "pg_baton.max_extra_backends": 0}
        parameters |= {f"pg_baton.{name}": value for name, value in ours.items()}
        one = make_cluster(parameters=parameters)
        one.sql("CREATE EXTENSION pg_baton")
        one.sql("CREATE ROLE app LOGIN")
        one.sql("CREATE ROLE monitor LOGIN IN ROLE pg_monitor")
        one.sql("CREATE DATABASE shop")
        return one

    return make


@pytest.fixture
def cluster(cluster_with):
    return cluster_with()


@pytest.fixture
def console(cluster):
    with connect(cluster) as one:
        yield one


def connect(cluster, user: str = "postgres", **options) -> psycopg.Connection:
    return psycopg.connect(cluster.pool(dbname="pgbouncer", user=user, **options), autocommit=True)


def show(console: psycopg.Connection, what: str) -> list[dict]:
    with console.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(f"SHOW {what}").fetchall()


def of(rows: list[dict], **wanted) -> list[dict]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def clients(console, **wanted) -> list[dict]:
    return of(show(console, "CLIENTS"), **wanted)


def answers(wire: Wire) -> list[str]:
    return [message.type for message in wire.until_ready()]


def refusal(console, command: str) -> str:
    with pytest.raises(psycopg.Error) as refused:
        console.execute(command)
    return refused.value.diag.message_primary


def test_columns_are_those_of_pgbouncer(console):
    types = {"i": INT4, "n": NUMERIC, "": TEXT}
    for what, columns in COLUMNS.items():
        expected = [(name, types[kind]) for name, _, kind in (column.partition(":") for column in columns.split())]
        described = console.execute(f"SHOW {what}").description
        assert [(column.name, column.type_code) for column in described] == expected, what
    assert console.info.parameter_status("server_version").endswith("/bouncer")
    assert show(console, "VERSION")[0]["version"].startswith("PgBouncer 1.25")


def test_columns_of_1_26_count_logins(cluster):
    """Compared with Debian's PgBouncer 1.26.1: one column more, or two in SHOW STATS, and two rows of SHOW TOTALS."""
    login = "client_login_count"

    def names(console, what: str) -> list[str]:
        return [column.name for column in console.execute(f"SHOW {what}").description]

    def reload(version: str) -> None:
        cluster.set_parameters({"pg_baton.console_version": version})
        cluster.reload()
        wait_until(
            lambda: version_of_a_new_one().startswith(f"PgBouncer {version}"), what="the dispatcher has reloaded"
        )

    def version_of_a_new_one() -> str:
        with connect(cluster) as console:
            return show(console, "VERSION")[0]["version"]

    with connect(cluster) as older:
        reload("1.26")
        expected = ["database", *(f"total_{name}" for name in [*TOTALS, login])]
        expected += [f"avg_{name}" for name in [*AVERAGES, login]]
        with connect(cluster) as console:
            assert names(console, "STATS") == expected
            assert names(console, "STATS_TOTALS")[1:] == [*names(older, "STATS_TOTALS")[1:], login]
            assert names(console, "STATS_AVERAGES")[1:] == [*names(older, "STATS_AVERAGES")[1:], f"avg_{login}"]
        assert names(older, "STATS") == [name for name in expected if not name.endswith(login)]
        with connect(cluster) as console:
            before = {row["database"]: row["client_login_count"] for row in show(console, "STATS_TOTALS")}
            for _ in range(3):
                psycopg.connect(cluster.pool(dbname="postgres")).close()
            after = {row["database"]: row["client_login_count"] for row in show(console, "STATS_TOTALS")}
            assert after["postgres"] - before["postgres"] == 3
            totals = [row["name"] for row in show(console, "TOTALS")]
            assert [name for name in totals if "login" in name] == [
                "total_client_login_count",
                "avg_client_login_count",
            ]


@pytest.mark.parametrize("user", ["postgres", "monitor"])
def test_both_protocols_and_formats_give_the_same(cluster, user):
    with connect(cluster, user) as console, Wire.login(HOST, cluster.pool_port, user, "pgbouncer") as wire:
        changing = {"STATS", "STATS_TOTALS", "STATS_AVERAGES", "TOTALS", "MEM"}
        for what in ALL:
            if what == "FDS" and user == "monitor":
                continue
            simple = console.execute(f"SHOW {what}").fetchall()
            for binary in (False, True):
                prepared = console.cursor(binary=binary).execute(f"SHOW {what}", prepare=True).fetchall()
                assert what in changing or prepared == simple, what
                assert len(prepared) == len(simple), what
            assert wire.query(f"SHOW {what}") is not None
        asked = wire.ask(parse("SHOW STATE"), bind(), describe_portal(), execute(), sync())
        assert [message.type for message in asked] == ["1", "2", "T", "D", "D", "D", "C", "Z"]
        failed = wire.ask(parse("SELECT 1"), bind(), execute(), sync())
        assert [message.type for message in failed] == ["E", "Z"]
        assert failed[0].fields()["C"] == "08P01"


def test_psql_works(cluster):
    def psql(*commands: str):
        options = [option for command in commands for option in ("-c", command)]
        return subprocess.run(
            ["psql", "-XAt", cluster.pool(dbname="pgbouncer"), *options], capture_output=True, text=True
        )

    done = psql("SHOW STATE", "SHOW HELP", "SET client_encoding = 'UTF8'", "PAUSE shop", "RESUME shop", ";")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["active|yes", "paused|no", "suspended|no", "SHOW", "SET", "PAUSE", "RESUME"]
    assert "KILL_CLIENT <client_id>" in done.stderr
    failed = psql("nonsense")
    assert failed.stderr == "ERROR:  invalid command 'nonsense', use SHOW HELP;\n"


@pytest.mark.skipif(shutil.which("check_postgres") is None, reason="check_postgres is not installed")
def test_check_postgres_reads_pools_and_clients(cluster, crowd):
    wires = crowd(cluster, 6, user="app", database="shop")
    for wire in wires:
        wire.send(query("BEGIN"))
    expected = {
        "pgb_pool_cl_active": "shop=4;",
        "pgb_pool_cl_waiting": "shop=2;",
        "pgb_pool_sv_active": "shop=4;",
        "pgb_pool_sv_idle": "shop=0;",
        "pgbouncer_backends": "'shop'=6;",
    }
    with connect(cluster) as console:
        wait_until(lambda: len(clients(console, state="waiting")) == 2, what="two wait")
    for action, word in expected.items():
        limits = [] if action == "pgbouncer_backends" else ["-w", "50", "-c", "60"]
        command = ["check_postgres", f"--action={action}", "-H", HOST, "-p", str(cluster.pool_port), "-u", "postgres"]
        done = subprocess.run([*command, "--db=pgbouncer", *limits], capture_output=True, text=True)
        assert done.returncode == 0 and word in done.stdout, done


def test_superusers_may_all_and_monitors_show(cluster):
    with pytest.raises(psycopg.OperationalError, match="not allowed"):
        connect(cluster, "app")
    with pytest.raises(LoginFailed) as refused:
        Wire.login(HOST, cluster.pool_port, "app", "pgbouncer")
    assert refused.value.fields["C"] == "42501"
    with connect(cluster, "monitor") as monitor:
        assert show(monitor, "POOLS")
        for command in ("PAUSE", "RESUME", "KILL", "KILL_CLIENT 1", "RECONNECT", "RELOAD", "SHOW FDS"):
            assert refusal(monitor, command) == "admin access needed"
    with pytest.raises(psycopg.OperationalError, match='database "pgbouncer" does not exist'):
        psycopg.connect(cluster.direct(dbname="pgbouncer"))


def test_pg_hba_decides_how_a_client_proves_itself(cluster):
    cluster.sql("ALTER ROLE monitor PASSWORD 'secret'")
    cluster.write_hba(["host pgbouncer monitor 127.0.0.1/32 scram-sha-256", "host pgbouncer all 127.0.0.1/32 reject"])
    cluster.reload()
    wait_until(lambda: not may_connect(cluster, "postgres"), what="the new rules count")
    assert not may_connect(cluster, "monitor", password="wrong")
    assert may_connect(cluster, "monitor", password="secret")


def may_connect(cluster, user: str, **options) -> bool:
    try:
        connect(cluster, user, **options).close()
    except psycopg.OperationalError:
        return False
    return True


def test_the_console_works_if_a_backend_authenticates(cluster_with):
    cluster = cluster_with(login_by_server="on")
    with connect(cluster, "monitor") as monitor:
        assert show(monitor, "STATE")[0]["value"] == "yes"
    with pytest.raises(psycopg.OperationalError, match="not allowed"):
        connect(cluster, "app")


def test_a_real_database_of_the_name_wins(cluster):
    with connect(cluster) as console, cluster.new_log() as log:
        cluster.sql("CREATE DATABASE pgbouncer")
        for _ in range(2):
            with psycopg.connect(cluster.pool(dbname="pgbouncer", user="app")) as real:
                assert real.execute("SELECT current_database()").fetchone() == ("pgbouncer",)
        lines = log().count("the pool's console cannot be reached")
        assert lines == 1
        assert show(console, "STATE"), "a console that is open stays"
        cluster.sql("DROP DATABASE pgbouncer WITH (FORCE)")
    with connect(cluster) as console:
        assert show(console, "STATE")


def test_lost_rights_end_a_console(cluster):
    cluster.sql("CREATE ROLE admin LOGIN SUPERUSER")
    with connect(cluster, "admin") as admin, connect(cluster, "monitor") as monitor:
        cluster.sql("ALTER ROLE app SET work_mem = '5MB'")
        assert show(admin, "STATE") and show(monitor, "STATE")
        cluster.sql("ALTER ROLE admin NOSUPERUSER")
        with pytest.raises(psycopg.OperationalError, match="terminating console"):
            admin.execute("PAUSE")
        cluster.sql("REVOKE pg_monitor FROM monitor")
        with pytest.raises(psycopg.OperationalError, match="terminating console"):
            monitor.execute("SHOW STATE")
        for user in ("admin", "monitor"):
            assert not may_connect(cluster, user)


def test_counts_are_those_of_a_load_of_known_size(cluster, console, crowd):
    (app,) = crowd(cluster, 1, user="app", database="shop")
    (other,) = crowd(cluster, 1, user="monitor", database="shop")
    for wire in (app, other):
        # The greeting's backend has given the session back, and counts no more of the greeting.
        wire.query("SELECT 1")
    wait_until(lambda: stats(console, "shop")["total_xact_count"] == 2, what="both are counted")
    before = stats(console, "shop")
    sent = 0
    for number in range(25):
        for wire in (app, other):
            for text in ("BEGIN", f"SELECT {number}", "COMMIT", "SELECT generate_series(1, 9)"):
                sent += sum(5 + len(message.body) for message in wire.ask(query(text)))
    expected = {"xact_count": 100, "query_count": 200, "sent": sent}

    def counted() -> dict:
        now = stats(console, "shop")
        return {name: now[f"total_{name}"] - before[f"total_{name}"] for name in TOTALS}

    wait_until(lambda: expected.items() <= counted().items(), 10, f"{expected} of {counted()}")
    now = counted()
    assert now["xact_time"] > 0 and now["query_time"] > 0
    totals = {row["name"]: row["value"] for row in show(console, "TOTALS")}
    assert totals["total_xact_count"] == sum(row["total_xact_count"] for row in show(console, "STATS"))
    of_shop = of(show(console, "STATS_TOTALS"), database="shop")
    assert of_shop[0]["xact_count"] == stats(console, "shop")["total_xact_count"]
    assert stats(console, "shop")["avg_xact_count"] > 0


def stats(console, database: str) -> dict:
    zeros = collections.defaultdict(int)
    return next(iter(of(show(console, "STATS"), database=database)), zeros)


def test_clients_and_servers_are_the_sessions_and_backends(cluster, console):
    with closed_at_the_end() as make:
        wires = make(cluster, 9, user="app", database="shop", application_name="till")
        pids = {wire.backend_pid for wire in wires}
        for wire in wires[:4]:
            wire.query("BEGIN")
        for wire in wires[4:6]:
            wire.send(query("SELECT 1"))
        wait_until(lambda: len(clients(console, state="waiting")) == 2, what="two wait")
        wait_until(lambda: of(show(console, "POOLS"), user="app", sv_login=0), what="none starts")
        rows = clients(console, database="shop", user="app", application_name="till")
        assert {row["id"] for row in rows} == pids
        assert collections.Counter(row["state"] for row in rows) == {"active": 4, "waiting": 2, "idle": 3}
        linked = {row["ptr"]: row["link"] for row in rows if row["state"] == "active"}
        servers = of(show(console, "SERVERS"), database="shop", state="active")
        assert {row["link"]: row["ptr"] for row in servers} == linked
        backends = cluster.sql("SELECT pid FROM pg_baton_backends WHERE database = 'shop'")
        assert {row["remote_pid"] for row in of(show(console, "SERVERS"), database="shop")} == {
            pid for (pid,) in backends
        }
        (pool,) = of(show(console, "POOLS"), database="shop", user="app")
        assert (pool["cl_active"], pool["cl_waiting"], pool["sv_active"]) == (7, 2, 4)
        (own,) = of(show(console, "POOLS"), database="pgbouncer")
        assert (own["cl_active"], own["user"]) == (1, "pgbouncer")
        (user,) = of(show(console, "USERS"), name="app")
        assert (user["current_client_connections"], user["current_connections"]) == (9, 4)
        (database,) = of(show(console, "DATABASES"), name="shop")
        assert (database["current_client_connections"], database["current_connections"]) == (9, 4)
        sockets = collections.Counter(row["type"] for row in show(console, "SOCKETS") if row["database"] == "shop")
        assert sockets == {"C": 9, "S": 4}
        lists = {row["list"]: row["items"] for row in show(console, "LISTS")}
        assert lists["used_clients"] == len(show(console, "CLIENTS"))
    wait_until(lambda: not clients(console, database="shop"), what="all have left")


def test_config_shows_the_parameters(cluster, console):
    values = {row["key"]: row["value"] for row in show(console, "CONFIG")}
    assert values["listen_port"] == str(cluster.pool_port)
    assert values["default_pool_size"] == "4"
    cluster.sql("ALTER SYSTEM SET pg_baton.max_backends = 3")
    console.execute("RELOAD")
    wait_until(lambda: of(show(console, "CONFIG"), key="default_pool_size")[0]["value"] == "3", what="it is reloaded")


def test_pause_waits_for_transactions_and_no_client_sees_an_error(cluster, console, crowd):
    (runs,) = crowd(cluster, 1, user="app", database="shop")
    runs.query("BEGIN")
    elsewhere, *wires = crowd(cluster, 7, user="app")
    with ThreadPoolExecutor() as pool:
        paused = pool.submit(console.execute, "PAUSE")
        with connect(cluster, "monitor") as monitor:
            wait_until(lambda: of(show(monitor, "STATE"), key="paused", value="yes"), what="a pause has begun")
            for wire in wires:
                wire.send(query("SELECT 1"))
            wait_until(lambda: len(clients(monitor, state="waiting")) == len(wires), what="the others wait")
            assert not paused.done()
            assert runs.query("SELECT 1") == [["1"]]
            runs.query("COMMIT")
            assert paused.result(timeout=30).statusmessage == "PAUSE"
            assert all(row["paused"] == int(row["name"] != "pgbouncer") for row in show(monitor, "DATABASES"))
    assert refusal(console, "PAUSE") == "already suspended/paused"
    assert all(wire.silent(0) for wire in wires)
    elsewhere.send(query("SELECT 1"))
    assert console.execute("RESUME").statusmessage == "RESUME"
    for wire in [elsewhere, *wires]:
        assert "E" not in answers(wire)
    assert refusal(console, "RESUME") == "pooler is not paused/suspended"


def test_pause_and_resume_of_one_database(cluster, console, crowd):
    assert refusal(console, "PAUSE nowhere") == "no such database: nowhere"
    assert console.execute("PAUSE shop").statusmessage == "PAUSE", "before its first session"
    (there,) = crowd(cluster, 1, user="app")
    assert there.query("SELECT 1") == [["1"]]
    assert cluster.sql("SELECT database FROM pg_baton_pauses") == [("shop",)]
    assert refusal(console, "RESUME postgres") == "database postgres is not paused"
    console.execute("RESUME shop")
    assert cluster.sql("SELECT database FROM pg_baton_pauses") == []


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_pause_that_does_not_stand_ends_with_its_console(cluster, crowd, how):
    (runs,) = crowd(cluster, 1, user="app")
    runs.query("BEGIN")
    with Wire.login(HOST, cluster.pool_port, "postgres", "pgbouncer") as console, connect(cluster) as other:
        console.send(query("PAUSE"))
        wait_until(lambda: of(show(other, "STATE"), key="paused", value="yes"), what="a pause has begun")
        if how == "cancel":
            console.cancel_request()
            failed = console.until_ready()
            assert failed[0].fields()["C"] == "57014"
            assert console.query("SHOW STATE")[1] == ["paused", "no"]
        else:
            console.close()
        wait_until(lambda: of(show(other, "STATE"), key="paused", value="no"), what="the pause has ended")


def test_pause_and_resume_under_load_lose_nothing(cluster, console):
    with Load(cluster, clients=6) as load:
        # A superuser who logs in while a pause lasts is not paused.
        load.wait_for_answers()
        for _ in range(5):
            console.execute("PAUSE")
            wait_until(lambda: len(clients(console, state="waiting")) == 6, what="all wait")
            answers_before = load.answers
            console.execute("RESUME")
            wait_until(lambda many=answers_before: load.answers > many + 20, what="all go on")
    assert (load.wrong, load.lost) == ([], [])


def test_kill_client_ends_that_session_alone(cluster, console, crowd):
    (idle, runs, stays) = crowd(cluster, 3, user="app", database="shop")
    runs.query("BEGIN")
    for wire in (idle, runs):
        console.execute(f"KILL_CLIENT {wire.backend_pid}")
        (last, *_) = wire.until_closed()
        assert last.fields()["C"] == "57P01"
    assert stays.query("SELECT 1") == [["1"]]
    assert refusal(console, "KILL_CLIENT 77777777") == "client not found"
    assert refusal(console, "KILL_CLIENT x") == "invalid client pointer supplied"
    with connect(cluster, "monitor") as monitor:
        (own,) = clients(console, user="monitor")
        console.execute(f"KILL_CLIENT {own['id']}")
        with pytest.raises(psycopg.OperationalError):
            show(monitor, "STATE")


def test_kill_ends_a_databases_sessions_and_pauses_it(cluster, console, crowd):
    wires = crowd(cluster, 5, user="app", database="shop")
    wires[0].query("BEGIN")
    (stays,) = crowd(cluster, 1, user="app")
    assert console.execute("KILL shop").statusmessage == "KILL"
    for wire in wires:
        assert wire.until_closed()[0].fields()["C"] == "57P01"
    assert stays.query("SELECT 1") == [["1"]]
    assert not clients(console, database="shop")
    (late,) = crowd(cluster, 1, user="app", database="postgres")
    assert late.query("SELECT 1") == [["1"]]
    console.execute("RESUME shop")
    (again,) = crowd(cluster, 1, user="app", database="shop")
    assert again.query("SELECT 1") == [["1"]]


def test_reconnect_replaces_backends_and_keeps_sessions(cluster, console, crowd):
    wires = crowd(cluster, 6, user="app", database="shop")
    for wire in wires:
        wire.query("SET work_mem = '5MB'")

    def backends(database: str) -> set[int]:
        return {row["remote_pid"] for row in of(show(console, "SERVERS"), database=database)}

    cluster.sql("SELECT 1")
    before, elsewhere = backends("shop"), backends("postgres")
    assert before and elsewhere
    console.execute("RECONNECT shop")
    wait_until(lambda: not before & backends("shop"), what="the old backends have left")
    for wire in wires:
        assert wire.query("SHOW work_mem") == [["5MB"]]
    assert elsewhere <= backends("postgres")


def test_wait_close_returns_once_reconnect_has_replaced_all(cluster, console, crowd):
    """A backend in a transaction leaves at its end; RECONNECT does not wait for it, WAIT_CLOSE does, unless cancelled."""
    keeper, other = crowd(cluster, 2, user="app", database="shop")
    keeper.query("BEGIN")
    other.query("SELECT 1")
    before = {row["remote_pid"] for row in of(show(console, "SERVERS"), database="shop")}
    assert console.execute("WAIT_CLOSE").statusmessage == "WAIT_CLOSE"
    console.execute("RECONNECT shop")
    assert console.execute("WAIT_CLOSE postgres").statusmessage == "WAIT_CLOSE"
    assert of(show(console, "SERVERS"), database="shop", close_needed=1)
    with ThreadPoolExecutor(1) as threads, connect(cluster) as waiting:
        asked = threads.submit(waiting.execute, "WAIT_CLOSE shop")

        def cancelled() -> bool:
            waiting.cancel_safe()  # it may come before the command
            return asked.done()

        wait_until(cancelled, what="a cancel request ends the command")
        with pytest.raises(psycopg.errors.QueryCanceled):
            asked.result()
        asked = threads.submit(waiting.execute, "WAIT_CLOSE shop")
        assert keeper.query("SELECT 1") == [["1"]] and not asked.done()
        keeper.query("COMMIT")
        assert asked.result(timeout=60).statusmessage == "WAIT_CLOSE"
    assert not before & {row["remote_pid"] for row in of(show(console, "SERVERS"), database="shop")}


def test_a_disabled_database_lets_no_client_in(cluster, console, crowd):
    """Its sessions go on, and other databases are as before. The error is that of ALLOW_CONNECTIONS."""
    (inside,) = crowd(cluster, 1, user="app", database="shop")
    assert console.execute("DISABLE shop").statusmessage == "DISABLE"
    for user in ("app", "postgres"):
        with pytest.raises(psycopg.OperationalError, match='database "shop" is not currently accepting connections'):
            psycopg.connect(cluster.pool(dbname="shop", user=user))
    assert inside.query("SELECT 1") == [["1"]]
    crowd(cluster, 1, user="app", database="postgres")
    assert {row["name"]: row["disabled"] for row in show(console, "DATABASES")}["shop"] == 1
    console.execute("ENABLE shop")
    crowd(cluster, 1, user="app", database="shop")
    assert refusal(console, "DISABLE nothing") == "no such database: nothing"
    assert refusal(console, "DISABLE pgbouncer") == "cannot disable admin db: pgbouncer"


@pytest.mark.parametrize("command", ["SUSPEND", "SHUTDOWN", "SHUTDOWN WAIT_FOR_CLIENTS"])
def test_what_is_not_supported_says_what_to_do(console, command):
    with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
        console.execute(command)
    assert refused.value.diag.message_hint
    assert refusal(console, "SET max_client_conn = 5") == "SET failed"
    assert show(console, "STATE")


def test_a_full_pool_has_a_console(cluster_with, crowd):
    cluster = cluster_with(max_sessions=8, native_when_waiting=1)
    wires = crowd(cluster, 7, user="app", database="shop")
    with contextlib.suppress(LoginFailed):
        crowd(cluster, 9, user="app", database="shop")
    for wire in wires:
        wire.send(query("BEGIN"))
    before = cluster.log().count("sorry, too many clients")
    with connect(cluster) as console, connect(cluster, "monitor") as monitor:
        wait_until(lambda: clients(monitor, state="waiting"), what="sessions wait")
        assert len(show(console, "SERVERS")) >= 1
    assert before <= cluster.log().count("sorry, too many clients")


def test_consoles_are_few_and_some_are_for_superusers(cluster):
    with contextlib.ExitStack() as stack:
        monitors = 0
        with pytest.raises(psycopg.OperationalError, match="too many clients already"):
            for monitors in range(100):
                stack.enter_context(connect(cluster, "monitor"))
        assert 10 < monitors < 64
        for _ in range(8):
            stack.enter_context(connect(cluster))
    wait_until(lambda: may_connect(cluster, "monitor"), what="there is room again")


def test_each_of_many_sessions_is_listed_to_a_slow_reader(cluster, console):
    with closed_at_the_end() as make, Wire.login(HOST, cluster.pool_port, "postgres", "pgbouncer") as slow:
        wires = make(cluster, 600, user="app", database="shop")
        pids = {wire.backend_pid for wire in wires}
        assert {row["id"] for row in clients(console, user="app")} == pids
        # As much as the sockets hold is made, and no more until it is read.
        for _ in range(40):
            slow.send(query("SHOW SOCKETS"))
        for wire in wires[:20]:
            assert wire.query("SELECT 1") == [["1"]]
        assert len(clients(console, user="app")) == len(wires)
        for _ in range(40):
            rows = [message for message in slow.until_ready() if message.type == "D"]
            assert len(rows) >= len(wires)


def test_consoles_by_tls_are_shown_as_such(run):
    cluster = run.cluster("console-tls")
    try:
        make_secure(cluster, authority := Authority(run.directory / "console-tls"), authority.server())
        cluster.start()
        with psycopg.connect(
            f"host={HOST} port={cluster.pool_port} user=postgres dbname=pgbouncer sslmode=require", autocommit=True
        ) as console:
            (own,) = show(console, "CLIENTS")
            assert own["tls"].startswith("TLSv1.")
            assert console.execute("PAUSE postgres").statusmessage == "PAUSE"
            console.execute("RESUME")
    finally:
        cluster.finish()


def test_the_end_of_the_server_ends_consoles(cluster):
    with Wire.login(HOST, cluster.pool_port, "postgres", "pgbouncer") as console:
        stopped = threading.Thread(target=cluster.stop)
        stopped.start()
        assert console.until_closed()[0].fields()["C"] == "57P01"
        stopped.join()


def test_broken_messages_end_a_console_and_nothing_else(cluster, console):
    for bad in (b"Q\0\0\0\3", b"Q\0\1\0\0", b"F\0\0\0\4", b"p\0\0\0\4"):
        with Wire.login(HOST, cluster.pool_port, "postgres", "pgbouncer") as broken:
            broken.send(bad)
            assert broken.until_closed()[0].fields()["S"] == "FATAL"
    with Wire.login(HOST, cluster.pool_port, "postgres", "pgbouncer") as wire:
        with pytest.raises(QueryFailed):
            wire.query("BEGIN")
        assert wire.query("SHOW STATE")
    assert show(console, "STATE")
