"""The pool listens where clients expect the server, and the server at its Unix
socket. The programs that administrators run go on working."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import psycopg
import pytest
from harness.account import give_to_server_user, run_as_server_user, server_major, server_program
from harness.doctor import findings, line_of, of, with_views
from harness.health import stop, wait_until
from harness.ports import free_port
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

# The programs of an older major version that has pg_baton.
OLDER = os.environ.get("BATON_TEST_UPGRADE_FROM", "")
PLACE = {"listen_addresses": "", "pg_baton.listen_addresses": "127.0.0.1", "pg_baton.max_backends": 3}


def test_clients_find_the_pool_and_administrators_the_server(make_cluster):
    cluster = make_cluster(parameters={**PLACE, "pg_baton.max_sessions": 2, "max_connections": 20})
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", cluster.port)) != 0
    for host, port in (("127.0.0.1", cluster.pool_port), (str(cluster.home), cluster.port)):
        run_as_server_user([server_program("pg_isready"), "-h", host, "-p", str(port)])
    assert "server is running" in run_as_server_user([server_program("pg_ctl"), "status", "-D", str(cluster.data)])
    run_as_server_user([server_program("pg_ctl"), "reload", "-D", str(cluster.data)])
    dump = [server_program("pg_dumpall"), "-h", "127.0.0.1", "-p", str(cluster.pool_port), "-U", "postgres"]
    assert "PostgreSQL database cluster dump complete" in run_as_server_user(dump)
    cluster.sql("CREATE EXTENSION pg_baton")
    no_session = [(0,)]
    # pg_dumpall's last session is one of the two until the dispatcher has seen its end
    wait_until(lambda: cluster.sql("SELECT sessions FROM pg_baton_dispatchers") == no_session, what="its sessions end")
    with Wire.login("127.0.0.1", cluster.pool_port) as one, Wire.login("127.0.0.1", cluster.pool_port) as other:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(cluster.pool())
        emergency = ["-h", str(cluster.home), "-p", str(cluster.port), "-U", "postgres", "-XAtc", "SELECT 'in'"]
        assert run_as_server_user([server_program("psql"), *emergency]) == "in\n"
        one.finish()
        other.finish()


def test_pg_ctl_starts_restarts_and_stops_server_and_pool(make_cluster):
    """Each command of pg_ctl has its usual meaning, and with -w pg_ctl returns when the work is done."""
    cluster = make_cluster(start=False, parameters=PLACE)

    def pg_ctl(*arguments: str) -> str:
        return run_as_server_user([server_program("pg_ctl"), "-D", str(cluster.data), *arguments])

    def pg_isready() -> int:
        command = [server_program("pg_isready"), "-h", "127.0.0.1", "-p", str(cluster.pool_port)]
        return subprocess.run(command, stdout=subprocess.DEVNULL, timeout=20).returncode

    log = ["-l", str(cluster.log_file)]
    assert pg_isready() == 2
    assert "server started" in pg_ctl("start", "-w", *log)
    wait_until(lambda: pg_isready() == 0, what="the pool answers")
    with Wire.login("127.0.0.1", cluster.pool_port) as idle, Wire.login("127.0.0.1", cluster.pool_port) as busy:
        idle.query("SET my.own = 'kept'")
        busy.query("BEGIN")
        pg_ctl("reload")
        assert idle.query("SHOW my.own") == [["kept"]]
        assert "server started" in pg_ctl("restart", "-w", "-m", "fast", *log)
        for session in (idle, busy):
            assert [one.fields()["C"] for one in session.until_closed() if one.type == "E"] == ["57P01"]
    wait_until(lambda: pg_isready() == 0, what="the pool answers again")
    with Wire.login("127.0.0.1", cluster.pool_port) as idle:
        idle.query("SELECT 1")
        # nothing runs: an idle session does not hold up a smart stop
        assert "server stopped" in pg_ctl("stop", "-w", "-m", "smart")
        idle.until_closed()
    assert pg_isready() == 2
    assert "server started" in pg_ctl("start", "-w", *log)
    wait_until(lambda: pg_isready() == 0, what="the pool answers")
    assert "server stopped" in pg_ctl("stop", "-w", "-m", "immediate")
    assert "server started" in pg_ctl("start", "-w", *log)
    wait_until(lambda: pg_isready() == 0, what="the pool answers")
    pg_ctl("stop", "-w")
    assert pg_isready() == 2 and cluster.processes() == []


def test_pg_ctl_promotes_a_standby_and_its_clients_stay(make_cluster):
    primary = make_cluster(parameters=PLACE)
    standby = make_cluster(start=False, parameters=PLACE)
    standby.become_standby_of_conninfo(primary.pool(dbname=None))
    standby.start()
    with Wire.login("127.0.0.1", standby.pool_port) as session:
        assert session.query("SHOW transaction_read_only") == [["on"]]
        assert "server promoted" in run_as_server_user(
            [server_program("pg_ctl"), "promote", "-w", "-D", str(standby.data)]
        )
        wait_until(lambda: session.query("SHOW transaction_read_only") == [["off"]], what="it writes")
        session.query("CREATE TABLE there (n integer)")
        session.finish()


def test_administrator_logs_in_while_the_dispatcher_is_stopped(make_cluster):
    """The login uses the server's own socket, and pg_isready says that the pool does not answer."""
    cluster = make_cluster(parameters={**PLACE, "pg_baton.hang_limit_ms": 0})
    (dispatcher,) = cluster.dispatcher_pids()
    stop(dispatcher)
    try:
        command = [server_program("pg_isready"), "-t", "1", "-h", "127.0.0.1", "-p", str(cluster.pool_port)]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=20).returncode == 2
        emergency = ["-h", str(cluster.home), "-p", str(cluster.port), "-U", "postgres", "-XAtc", "SELECT 'in'"]
        assert run_as_server_user([server_program("psql"), *emergency]) == "in\n"
    finally:
        os.kill(dispatcher, signal.SIGCONT)
    cluster.wait_pool_ready()


def test_a_standby_streams_from_there(make_cluster):
    primary = make_cluster(parameters=PLACE)
    standby = make_cluster(start=False)
    standby.become_standby_of_conninfo(primary.pool(dbname=None, application_name="the_standby"))
    standby.start()
    streaming = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'the_standby'"
    wait_until(lambda: primary.sql(streaming) == [(1,)], what="it streams")
    primary.sql("CREATE TABLE there (n integer)")
    standby.replay(primary)
    assert standby.sql("SELECT count(*) FROM there") == [(0,)]
    standby.stop()


def test_port_conflict_messages_name_the_lines_to_change(make_cluster):
    """The messages of the dispatcher, of the launcher (the only line in csvlog) and of the doctor name them."""
    cluster = with_views(make_cluster())
    (cluster.data / "pool.conf").write_text(f"# ours\n\npg_baton.port = {cluster.port}\n")
    give_to_server_user(cluster.data / "pool.conf")
    cluster.set_parameters({"pg_baton.port": None, "include": "pool.conf"})
    cluster.stop()
    cluster.start(wait_for_pool=False)
    assert cluster.sql("SELECT 1") == [(1,)]
    theirs = f"{cluster.data}/postgresql.conf line {line_of(cluster, 'postgresql.conf', 'port = ')}"
    ours = f"{cluster.data}/pool.conf line 3"
    settings = re.escape(f'change "port" ({theirs}) or "pg_baton.port" ({ours})')
    assert line_of(cluster, "postgresql.conf", "port = ") == line_of(cluster, "postgresql.conf", f"'{cluster.port}'")
    cluster.wait_for_log(f"the server itself listens there: {settings}")
    cluster.wait_for_log(f"HINT:  The server itself listens there: {settings}, and restart the server")
    assert "another program already using that port" not in cluster.log()
    one = of(findings(cluster, 1), "dispatcher", "failure")
    assert f"the server itself listens on port {cluster.port}" in one["text"]
    assert f"{ours}: pg_baton.port = " in one["mend"] and f"{theirs}: port = " in one["mend"]
    cluster.sql("DROP EXTENSION pg_baton")
    assert "the server itself listens" in of(findings(cluster, 1), "dispatcher", "failure")["text"]


def test_a_port_that_is_the_command_line_s_is_said_to_be(make_cluster):
    cluster = make_cluster(start=False)
    cluster.set_parameters({"pg_baton.port": None})
    data = ["-D", str(cluster.data)]
    log = ["-l", str(cluster.log_file), "-o", f"-c pg_baton.port={cluster.port}"]
    run_as_server_user([server_program("pg_ctl"), "start", "-w", *data, *log])
    try:
        cluster.wait_for_log(r'"pg_baton.port" \(command line\)')
    finally:
        run_as_server_user([server_program("pg_ctl"), "stop", "-w", "-m", "fast", *data])


def test_port_conflict_at_a_single_address_has_the_same_message(make_cluster):
    """The pool comes up at the other addresses."""
    cluster = make_cluster(start=False)
    cluster.set_parameters(
        {
            "pg_baton.port": cluster.port,
            "pg_baton.listen_addresses": "127.0.0.1, 127.0.0.2",
            "unix_socket_directories": "",
        }
    )
    cluster.start(wait_for_pool=False)
    cluster.wait_for_log(
        r'127\.0\.0\.1.*the server itself listens there: change "port" \(.*line \d+\) or "pg_baton.port"'
    )
    with Wire.login("127.0.0.2", cluster.port) as session:
        assert session.query("SELECT 1") == [["1"]]
    found = findings(cluster, 0)
    assert "at 127.0.0.2" in of(found, "dispatcher", "ok")["text"]


def upgrade(old_programs: str, old_data: Path, new) -> None:
    """Runs pg_upgrade. Its servers start no dispatcher."""
    work = new.home / "upgrade"
    work.mkdir()
    work.chmod(0o777)
    program = server_program("pg_upgrade")
    run_as_server_user(
        ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(work), program, "-U", "postgres", "--retain"]
        + [
            "-b",
            old_programs,
            "-B",
            str(Path(program).parent),
            "-d",
            str(old_data),
            "-D",
            str(new.data),
            "-s",
            str(new.home),
        ],
        timeout_s=300,
    )
    logs = "".join(path.read_text() for path in Path(new.data).rglob("*.log"))
    assert "database system is ready" in logs and "dispatcher started" not in new.log() + logs


def has_all(new) -> None:
    """The new cluster has the old cluster's table and, with it, the extension."""
    new.start()
    with psycopg.connect(new.pool()) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (42,)
        assert connection.execute("SELECT count(*) FROM pg_baton_sessions").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM pg_baton_failed_checks").fetchone() == (0,)


@pytest.mark.skipif(
    "BATON_TEST_PRELOAD" in os.environ, reason="the servers that pg_upgrade starts lack what is preloaded"
)
def test_pg_upgrade_has_its_servers_for_itself(make_cluster):
    old = make_cluster(parameters=PLACE)
    new = make_cluster(start=False, parameters=PLACE)
    old.sql("CREATE EXTENSION pg_baton")
    old.sql("CREATE TABLE kept AS SELECT 42 AS n")
    old.stop()
    started = old.log().count("dispatcher started")
    upgrade(str(Path(server_program("pg_upgrade")).parent), old.data, new)
    assert old.log().count("dispatcher started") == started
    has_all(new)


@pytest.mark.skipif(not OLDER, reason="BATON_TEST_UPGRADE_FROM names no older server's programs")
def test_pg_upgrade_from_an_older_major(make_cluster, run):
    home = run.directory / "older"
    home.mkdir()
    give_to_server_user(home)
    data, port, pool_port = home / "data", free_port(), free_port()

    def older(name: str, *arguments: str) -> str:
        return run_as_server_user([str(Path(OLDER) / name), *arguments])

    # checksums as the new cluster has them, by the default of 18
    checksums = ["-k"] if server_major() >= 18 else []
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N", *checksums]
    older("initdb", "-D", str(data), *options)
    settings = {
        **PLACE,
        "port": port,
        "unix_socket_directories": home,
        "shared_preload_libraries": "pg_baton",
        "pg_baton.port": pool_port,
        "pg_baton.dispatcher_program": run.stage.program,
    }
    with open(data / "postgresql.conf", "a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    older("pg_ctl", "start", "-w", "-D", str(data), "-l", str(home / "log"))
    try:
        wait_until(lambda: (home / f".s.PGSQL.{pool_port}").exists(), what="the pool of the older one")
        with psycopg.connect(f"host=127.0.0.1 port={pool_port} user=postgres", autocommit=True) as connection:
            assert connection.info.server_version // 10000 < server_major()
            connection.execute("CREATE EXTENSION pg_baton")
            connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
            assert connection.execute("SELECT mode FROM pg_baton_sessions").fetchall() == [("shared",)]
    finally:
        older("pg_ctl", "stop", "-w", "-D", str(data))
    new = make_cluster(start=False, parameters=PLACE)
    started = (home / "log").read_text().count("dispatcher started")
    upgrade(OLDER, data, new)
    assert (home / "log").read_text().count("dispatcher started") == started > 0
    has_all(new)
