"""Agents that watch a server and programs that back it up connect through the pool, and
see the same as on the server's own port.  The programs are Debian's own; a test whose
program is missing is skipped, with the package's name."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import urllib.request

import psycopg
import pytest
from harness.account import give_to_server_user, neutral_environment, run_as_server_user, server_major
from harness.authenticators import program
from harness.health import wait_until
from harness.ports import HOST, free_port
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only

PARAMETERS = {"pg_baton.max_backends": 3, "listen_addresses": HOST}


@pytest.fixture(scope="module")
def watched(run):
    cluster = run.cluster("watched", parameters=PARAMETERS)
    cluster.start()
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    cluster.sql("CREATE TABLE things AS SELECT generate_series(1, 1000) AS n")
    cluster.sql("ANALYZE things")
    yield cluster
    cluster.finish()


def run_program(*command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = neutral_environment()
    return subprocess.run(
        command,
        env={**clean, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_prometheus_postgres_exporter(watched):
    """The exporter's metrics have the same names, and it collects them without an error."""
    exporter = program("prometheus-postgres-exporter", "prometheus-postgres-exporter")
    seen = []
    for port in (watched.port, watched.pool_port):
        listens = free_port()
        clean = neutral_environment()
        source = f"postgresql://watcher@{HOST}:{port}/postgres?sslmode=disable"
        process = subprocess.Popen(
            [exporter, f"--web.listen-address={HOST}:{listens}"],
            env={**clean, "DATA_SOURCE_NAME": source},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            texts: list[str] = []

            def scrape() -> bool:
                try:
                    with urllib.request.urlopen(f"http://{HOST}:{listens}/metrics", timeout=20) as answer:  # noqa: B023
                        texts.append(answer.read().decode())  # noqa: B023
                    return True
                except OSError:
                    return False

            wait_until(scrape, what="the exporter listens")
            # a second time: the exporter prepares statements, and keeps its connection
            assert scrape()
        finally:
            process.terminate()
            said = process.communicate(timeout=20)[1]
        for text in texts:
            assert re.search(r"^pg_up 1$", text, re.MULTILINE), said
            assert re.search(r"^pg_exporter_last_scrape_error 0$", text, re.MULTILINE), said
        names = {re.split(r"[{ ]", line)[0] for line in texts[-1].splitlines() if line.startswith("pg_")}
        seen.append(names)
        assert re.search(r'^pg_stat_activity_count{[^}]*datname="postgres"', texts[-1], re.MULTILINE)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "action",
    ["connection", "backends", "locks", "database_size", "txn_idle", "txn_time", "query_time", "bloat", "last_analyze",
     "autovac_freeze", "commitratio", "hitratio", "wal_files", "settings_checksum", "disabled_triggers"],
)  # fmt: skip
def test_check_postgres(watched, action):
    script = program("check_postgres", "check-postgres")
    limits = {
        "database_size": ["--warning=1TB"],
        "settings_checksum": ["--critical=0"],
        "query_time": ["--warning=1h"],
        "txn_time": ["--warning=1h"],
        "txn_idle": ["--warning=1h"],
        "bloat": ["--warning=1TB"],
        "last_analyze": ["--warning=1d", "--critical=2d"],
    }
    said = []
    for port in (watched.port, watched.pool_port):
        found = run_program(
            script, f"--action={action}", f"--host={HOST}", f"--port={port}", "--dbuser=postgres", "--dbname=postgres",
            *limits.get(action, []),
        )  # fmt: skip
        # the measured values differ from moment to moment
        said.append(
            (found.returncode, re.sub(r"[\d.]+", "n", re.sub(r"\|.*", "", found.stdout)).replace(str(port), ""))
        )
        assert "ERROR" not in found.stdout + found.stderr, found.stdout + found.stderr
    assert said[0] == said[1]


@pytest.mark.parametrize("service", ["connection", "backends", "backends_status", "locks", "database_size", "hit_ratio",
                                     "longest_query", "oldest_idlexact", "stat_snapshot_age", "uptime"])  # fmt: skip
def test_check_pgactivity(watched, service):
    script = program("check_pgactivity", "check-pgactivity")
    psql = run_program("sh", "-c", "command -v psql").stdout.strip()
    limits = ["-w", "90%", "-c", "95%"] if service in ("backends", "hit_ratio") else ["-w", "100000", "-c", "200000"]
    if service == "uptime":
        limits = ["-w", "1s"]
    if service in ("connection", "hit_ratio", "stat_snapshot_age"):
        limits = []
    status = watched.home / f"check_pgactivity-{service}"
    found = run_program(
        script, "-s", service, "-h", HOST, "-p", str(watched.pool_port), "-U", "watcher", "-d", "postgres",
        "-P", psql, "--status-file", str(status), *limits,
    )  # fmt: skip
    direct = run_program(
        script, "-s", service, "-h", HOST, "-p", str(watched.port), "-U", "watcher", "-d", "postgres",
        "-P", psql, "--status-file", f"{status}-direct", *limits,
    )  # fmt: skip
    assert found.returncode == direct.returncode, found.stdout + found.stderr + direct.stdout
    assert re.sub(r"[^A-Z_]", "", found.stdout.split("|")[0]) == re.sub(r"[^A-Z_]", "", direct.stdout.split("|")[0])


# What compares the connections with the limit: Zabbix's template (pgsql.connections), pgwatch's metric "backends", the
# alert rules for prometheus-postgres-exporter (pg_stat_activity_count, pg_stat_database_numbackends), Datadog's.
ROWS = "SELECT count(*) FROM pg_stat_activity WHERE "
PARTS_OF_MAX_CONNECTIONS = [
    ROWS + "datid IS NOT NULL AND state IS NOT NULL",
    ROWS + "backend_type = 'client backend'",
    ROWS + "datname IS NOT NULL",
    "SELECT sum(numbackends) FROM pg_stat_database",
    "SELECT count(*) FROM pg_stat_get_backend_idset()",
]


def test_agents_may_count_what_max_connections_limits(make_cluster, crowd, tmp_path):
    """A role that may watch and end none sees fewer connections than the server has places, by the pool and beside it;
    any other sees all sessions."""
    cluster = make_cluster(parameters={**PARAMETERS, "max_connections": 30})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    cluster.sql("CREATE ROLE ender LOGIN IN ROLE pg_monitor, pg_signal_backend")
    cluster.sql("CREATE ROLE user_ LOGIN")
    crowd(cluster, 60)
    wait_until(lambda: cluster.sql(f"{ROWS} state = 'idle'") == [(60,)], what="all sessions are idle")

    def counts(port: int, user: str = "watcher") -> list[int]:
        with psycopg.connect(host=HOST, port=port, user=user, dbname="postgres") as connection:
            return [int(connection.execute(text).fetchone()[0]) for text in PARTS_OF_MAX_CONNECTIONS]

    def answers() -> list[int]:
        checks = []
        psql = run_program("sh", "-c", "command -v psql").stdout.strip()
        for port in (cluster.port, cluster.pool_port):
            where = ["--host", HOST, "--port", str(port)]
            script = program("check_postgres", "check-postgres")
            checks.append([script, "--action=backends", "--dbuser=watcher", "--dbname=postgres", *where])
            script = program("check_pgactivity", "check-pgactivity")
            status = ["-P", psql, "--status-file", str(tmp_path / f"status-{port}"), "-w", "90%", "-c", "95%"]
            checks.append([script, "-s", "backends", "-U", "watcher", "-d", "postgres", *where, *status])
        return [run_program(*check).returncode for check in checks]

    for port in (cluster.port, cluster.pool_port):
        assert all(count < 15 for count in counts(port)), counts(port)
        assert [count >= 60 for count in counts(port, "ender")] == [True, True, True, False, True]
        assert counts(port, "user_")[2] >= 60
    right = answers()
    cluster.sql("ALTER ROLE watcher SET pg_baton.show_idle_sessions = on")
    assert (right, answers()) == ([0] * 4, [2] * 4)
    cluster.sql("ALTER ROLE watcher RESET pg_baton.show_idle_sessions")
    # What ends the sessions of a database, or asks for one by its number, finds them all the same.
    with psycopg.connect(host=HOST, port=cluster.pool_port, user="watcher", dbname="postgres") as connection:
        ((pid,),) = cluster.sql(
            "SELECT pid FROM pg_stat_activity WHERE state = 'idle' AND usename <> 'watcher' LIMIT 1"
        )
        assert connection.execute("SELECT state FROM pg_stat_get_activity(%s)", [pid]).fetchone() == ("idle",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SET pg_baton.show_idle_sessions = on")


def test_pg_activity(watched):
    """Its screen shows the session by its own number, and the session's statement.  (If pg_activity
    can read postmaster.pid, it also shows the data of /proc, and nothing that is not there.)"""
    script = program("pg_activity", "pg-activity")
    watched.sql("CREATE ROLE looker LOGIN IN ROLE pg_read_all_stats")
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    with Wire.login(HOST, watched.pool_port, application_name="to_be_seen") as session:
        session.send(query("SELECT pg_sleep(600)"))
        process = subprocess.Popen(
            [script, "-h", HOST, "-p", str(watched.pool_port), "-U", "looker", "-d", "postgres"],
            stdin=end,
            stdout=end,
            stderr=end,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(end)
        screen = ""

        def shows_it() -> bool:
            nonlocal screen
            if select.select([terminal], [], [], 1)[0]:
                screen += os.read(terminal, 65536).decode(errors="replace")
            return bool(re.search(rf"{session.backend_pid}.*to_be_seen.*pg_sleep\(600\)", screen))

        try:
            wait_until(shows_it, what="the session is on the screen")
        finally:
            process.terminate()
            process.wait(20)
            os.close(terminal)
        session.cancel_request()
        session.until_ready()
        session.finish()


def test_pgbackrest(make_cluster, run):
    """Its backup begins and ends in the same session, and a restore from its archive succeeds."""
    backrest = program("pgbackrest", "pgbackrest")
    cluster = make_cluster(start=False, parameters={**PARAMETERS, "pg_baton.force_migration": True})
    folder = cluster.home / "repository"
    for path in (folder, folder / "log", folder / "lock", folder / "spool"):
        path.mkdir()
        give_to_server_user(path)
    configuration = folder / "pgbackrest.conf"
    configuration.write_text(
        f"[global]\nrepo1-path={folder}\nlog-path={folder}/log\nlock-path={folder}/lock\nspool-path={folder}/spool\n"
        f"start-fast=y\nlog-level-console=info\n[main]\npg1-path={cluster.data}\npg1-port={cluster.pool_port}\n"
        f"pg1-socket-path={cluster.home}\npg1-user=postgres\n"
    )
    configuration.chmod(0o644)
    command = [backrest, f"--config={configuration}", "--stanza=main"]
    cluster.set_parameters(
        {"archive_mode": True, "archive_command": f"{' '.join(command)} archive-push %p", "wal_level": "replica"}
    )
    cluster.start()
    cluster.sql("CREATE TABLE things AS SELECT 42 AS n")
    try:
        run_as_server_user([*command, "stanza-create"])
    except RuntimeError as refused:
        if "VersionNotSupportedError" in str(refused):
            pytest.skip(f"this pgbackrest is older than PostgreSQL {server_major()}")
        raise
    run_as_server_user([*command, "check"])
    said = run_as_server_user([*command, "--type=full", "backup"])
    assert "backup command end: completed successfully" in said
    cluster.sql("INSERT INTO things VALUES (43)")
    cluster.sql("SELECT pg_switch_wal()")
    cluster.stop()
    run_as_server_user([*command, "--delta", "restore"])
    cluster.set_parameters({"archive_mode": False})
    cluster.start()
    wait_until(lambda: cluster.sql("SELECT pg_is_in_recovery()") == [(False,)], what="it is recovered")
    with psycopg.connect(cluster.pool()) as session:
        assert session.execute("SELECT n FROM things ORDER BY 1").fetchall() == [(42,), (43,)]
