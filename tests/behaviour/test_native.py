"""Some clients of the pool's port get a native session: an ordinary connection for
life, which a client cannot tell from a connection to the server's own port."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from harness.account import run_as_server_user, server_major
from harness.health import wait_until, wait_until_replaced
from harness.wire import GSSENC_REQUEST, Wire, cancel, query, startup

HBA = [
    "local all alone peer map=alone",
    "local all by_password scram-sha-256",
    "host all by_password,listed_user all scram-sha-256",
    "host all refused all reject",
    "local all,replication postgres trust",
]
NAMES = "listed/*, _/listed_user, postgres/by_password, postgres/refused, postgres/alone"
PARAMETERS = {"pg_baton.max_backends": 3, "pg_baton.native_dbuser_names": NAMES, "log_connections": True}
ROLES = """
CREATE EXTENSION pg_baton;
CREATE ROLE by_password LOGIN PASSWORD 'correct';
CREATE ROLE listed_user LOGIN PASSWORD 'correct';
CREATE ROLE refused LOGIN;
CREATE ROLE alone LOGIN;
"""


@pytest.fixture(scope="module")
def native(run):
    cluster = run.cluster("native", parameters=PARAMETERS, hba=HBA)
    cluster.start()
    cluster.sql(ROLES)
    cluster.sql("CREATE DATABASE listed")
    yield cluster
    cluster.finish()


def modes(cluster) -> list[tuple]:
    return cluster.sql("SELECT user_name, database, mode, dedicated_cause FROM pg_baton_sessions ORDER BY 1, 2, 3")


def is_native(cluster, connection) -> bool:
    """True if the session has the real process of its process ID, and the view shows the session as native."""
    pid = connection.info.backend_pid
    (row,) = connection.execute("SELECT pg_backend_pid()").fetchall()
    found = cluster.sql(f"SELECT mode FROM pg_baton_sessions WHERE pid = {pid}")
    return row == (pid,) and pid < 1 << 22 and found == [("native",)]


def logs_in_natively(cluster) -> bool:
    with psycopg.connect(cluster.pool()) as connection:
        return connection.info.backend_pid < 1 << 22


@pytest.mark.pool_only
@pytest.mark.parametrize(
    "dbname, user, expected",
    [
        ("listed", "postgres", True),
        ("listed", "by_password", True),
        ("template1", "listed_user", True),
        ("postgres", "by_password", True),
        ("template1", "by_password", False),
        ("postgres", "postgres", False),
    ],
)
def test_databases_and_users_on_the_list_are_native(native, dbname, user, expected):
    with psycopg.connect(native.pool(dbname=dbname, user=user, password="correct")) as connection:
        assert is_native(native, connection) == expected


@pytest.mark.pool_only
def test_the_server_itself_decides_which_client_may_log_in(native):
    """The messages are those of the server's own port, and no client gets in without authentication."""

    def failure(conninfo: str) -> str:
        with pytest.raises(psycopg.OperationalError) as failed:
            psycopg.connect(conninfo).close()
        return str(failed.value).split("FATAL: ")[-1].strip()

    for options in (
        {"user": "by_password", "password": "wrong"},
        {"user": "refused"},
        {"dbname": "listed", "user": "nobody_of_that_name"},
        {"dbname": "listed", "options": "-c no_such_parameter=1"},
    ):
        assert failure(native.pool(**options)) == failure(native.direct(**options))
    attach = native.pool(dbname="listed", options="-c pg_baton.attach=0:1")
    assert failure(attach) == 'parameter "pg_baton.attach" cannot be set by a client'


@pytest.mark.pool_only
def test_the_server_sees_the_client_itself(native):
    with psycopg.connect(native.pool(dbname="listed")) as connection:
        row = connection.execute(
            "SELECT inet_client_addr()::text, inet_client_port() > 0, inet_server_addr()::text, inet_server_port(),"
            " (SELECT client_port = inet_client_port() FROM pg_stat_activity WHERE pid = pg_backend_pid())"
        ).fetchone()
        assert row == ("127.0.0.1/32", True, "127.0.0.1/32", native.pool_port, True)
        port = connection.execute("SELECT inet_client_port()").fetchone()[0]
        addresses = native.sql("SELECT client_addr::text, client_port FROM pg_baton_sessions WHERE mode = 'native'")
        assert addresses == [("127.0.0.1/32", port)]


@pytest.mark.pool_only
def test_peer_checks_the_client_s_user_not_the_dispatcher_s(native):
    """The dispatcher runs as the server's own system user, which the map lets in."""
    import os
    import pwd

    own = pwd.getpwuid(os.geteuid()).pw_name
    owner = pwd.getpwuid(native.data.stat().st_uid).pw_name
    local = native.pool(host=str(native.home), user="alone")
    native.write_ident([f"alone {own} alone"])
    native.reload()
    with psycopg.connect(local) as connection:
        assert is_native(native, connection)
    if own == owner:
        pytest.skip("runs as the server's own user")
    native.write_ident([f"alone {owner} alone"])
    native.reload()

    def is_refused() -> bool:
        with pytest.raises(psycopg.OperationalError, match="Peer authentication failed"):
            psycopg.connect(local).close()
        return True

    wait_until(is_refused, what="the map is in force")


@pytest.mark.pool_only
def test_a_cancel_request_reaches_a_native_session(native):
    with psycopg.connect(native.pool(dbname="listed"), autocommit=True) as connection:
        failures: list[str | None] = []

        def sleep() -> None:
            try:
                connection.execute("SELECT pg_sleep(60)")
            except psycopg.Error as error:
                failures.append(error.sqlstate)

        thread = threading.Thread(target=sleep)
        thread.start()
        pid = connection.info.backend_pid
        sleeping = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'"
        wait_until(lambda: native.sql(sleeping) == [(1,)], what="it sleeps")
        with native.new_log() as log:
            with Wire.open("127.0.0.1", native.pool_port) as stranger:
                stranger.send(cancel(pid, b"\0\1\2\3"))
                assert stranger.until_closed() == []
            assert "wrong key in cancel request" in log()
        assert thread.is_alive()
        connection.cancel()
        thread.join(30)
        assert failures == ["57014"]
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.pool_only
def test_a_stranger_s_ticket_is_no_more_than_an_unknown_option(native):
    """This holds on the pool's port, on the server's own, and within a packet that goes to
    the server's port with a real ticket."""
    for port, database in ((native.port, "postgres"), (native.pool_port, "postgres"), (native.pool_port, "listed")):
        for fake in ("_pq_.pg_baton.0000000000000001", "_pq_.pg_baton." + "f" * 16, "_pq_.pg_baton"):
            with Wire.open("127.0.0.1", port) as wire:
                wire.send(startup({"user": "postgres", "database": database, fake: "x"}))
                messages = wire.until_ready()
                assert messages[0].type == "v" and fake.encode() in messages[0].body
                assert messages[0].body[4:8] == b"\0\0\0\1"
                assert wire.query("SELECT 1") == [["1"]]
                wire.finish()


@pytest.mark.pool_only
def test_a_client_that_asks_for_nothing_new_is_told_nothing_new(native):
    with Wire.open("127.0.0.1", native.port) as direct, Wire.open("127.0.0.1", native.pool_port) as pooled:
        told = []
        for wire in (direct, pooled):
            wire.send(startup({"user": "postgres", "database": "listed", "application_name": "told"}))
            told.append([(m.type, b"" if m.type == "K" else m.body) for m in wire.until_ready()])
            wire.finish()
        assert told[0] == told[1]


@pytest.mark.pool_only
def test_a_client_that_pipelines_its_first_query_gets_its_answer(native):
    with Wire.open("127.0.0.1", native.pool_port) as wire:
        wire.send(startup({"user": "postgres", "database": "listed"}), query("SELECT 'early'"))
        wire.until_ready()
        answer = wire.until_ready()
        assert [message.type for message in answer] == ["T", "D", "C", "Z"]
        wire.finish()


@pytest.mark.pool_only
def test_its_end_is_seen(native):
    connection = psycopg.connect(native.pool(dbname="listed"))
    assert ("postgres", "listed", "native", "pg_baton.native_dbuser_names") in modes(native)
    connection.close()
    wait_until(lambda: modes(native) == [], what="no native session is left")


@pytest.mark.pool_only
def test_a_native_session_outlives_its_dispatcher(make_cluster):
    import os
    import signal

    cluster = make_cluster(parameters={"pg_baton.native_dbuser_names": "*/*"})
    cluster.sql("CREATE EXTENSION pg_baton")
    with psycopg.connect(cluster.pool(), autocommit=True) as connection:
        connection.execute("SELECT 1")
        (old,) = cluster.dispatcher_pids()
        cluster.expect_in_log(r"dispatcher \(PID \d+\) has ended: child process was terminated by signal 9")
        os.kill(old, signal.SIGKILL)
        wait_until_replaced(cluster, old)
        cluster.wait_pool_ready()
        assert connection.execute("SELECT 2").fetchone() == (2,)


@pytest.mark.pool_only
def test_enabled_off_makes_only_new_sessions_native(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2})
    cluster.sql("CREATE EXTENSION pg_baton")
    with psycopg.connect(cluster.pool(), autocommit=True) as pooled:
        pooled.execute("SET work_mem = '1MB'")
        cluster.set_parameters({"pg_baton.enabled": False})
        cluster.reload()

        def comes_native() -> bool:
            with psycopg.connect(cluster.pool(), autocommit=True) as other:
                return is_native(cluster, other)

        wait_until(comes_native, what="new sessions are native")
        with psycopg.connect(cluster.pool(), autocommit=True):
            assert ("postgres", "postgres", "native", "pg_baton.enabled") in modes(cluster)
        assert not is_native(cluster, pooled)
        assert pooled.execute("SHOW work_mem").fetchone() == ("1MB",)
        cluster.set_parameters({"pg_baton.enabled": True})
        cluster.reload()
        wait_until(lambda: not comes_native(), what="new sessions are the pool's again")


@pytest.mark.pool_only
def test_new_sessions_are_native_only_while_too_many_wait(make_cluster):
    cluster = make_cluster(
        parameters={"pg_baton.max_backends": 1, "pg_baton.native_when_waiting": 2, "max_connections": 20}
    )
    cluster.sql("CREATE EXTENSION pg_baton")
    with contextlib.ExitStack() as stack:
        holder, *others = (stack.enter_context(Wire.login("127.0.0.1", cluster.pool_port)) for _ in range(3))
        holder.query("BEGIN")
        for other in others:
            other.send(query("SELECT 1"))
        waiting = "SELECT sum(waiting) FROM pg_baton_pools"
        wait_until(lambda: cluster.sql(waiting) == [(2,)], what="two wait")
        # The dispatcher counts the waiting sessions anew after 10 ms; logins before use the last result.
        wait_until(lambda: logs_in_natively(cluster), what="that has been seen")
        with psycopg.connect(cluster.pool()) as connection:
            assert is_native(cluster, connection)
            assert ("postgres", "postgres", "native", "pg_baton.native_when_waiting") in modes(cluster)
        holder.query("COMMIT")
        for other in others:
            assert other.until_ready()[-1].type == "Z"

        def comes_pooled() -> bool:
            with psycopg.connect(cluster.pool()) as connection:
                return not is_native(cluster, connection)

        wait_until(comes_pooled, what="new sessions are the pool's again")


@pytest.mark.pool_only
@pytest.mark.parametrize(
    "reserved",
    [
        {"superuser_reserved_connections": 2},
        pytest.param(
            {"superuser_reserved_connections": 1, "reserved_connections": 1},
            marks=pytest.mark.skipif(server_major() < 16, reason="came with PostgreSQL 16"),
        ),
    ],
    ids=["superusers", "agents"],
)
def test_native_sessions_leave_administrators_their_connections(make_cluster, reserved):
    cluster = make_cluster(
        parameters={"pg_baton.native_dbuser_names": "*/*", "max_connections": 8, "max_wal_senders": 2, **reserved}
    )
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE ordinary LOGIN; CREATE ROLE agent LOGIN")
    with contextlib.ExitStack() as stack:
        with pytest.raises(psycopg.OperationalError, match="reserved|too many clients"):
            for _ in range(8):
                stack.enter_context(psycopg.connect(cluster.pool(user="ordinary")))
        sessions = "SELECT count(*) FROM pg_baton_sessions"
        wait_until(lambda: cluster.sql(sessions) == [(6,)], what="who was refused has gone")
        if "reserved_connections" in reserved:
            cluster.sql("GRANT pg_use_reserved_connections TO agent")

            def agent_comes() -> bool:
                try:
                    with psycopg.connect(cluster.pool(user="agent")) as agent:
                        return is_native(cluster, agent)
                except psycopg.OperationalError:
                    return False

            # The process that has served the GRANT may not have ended yet.
            wait_until(agent_comes, what="the agent is in, natively")
            clients = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            wait_until(lambda: cluster.sql(clients) == [(7,)], what="the agent has gone")
        with psycopg.connect(cluster.pool()) as administrator:
            assert is_native(cluster, administrator)


def all_of(port: int, packet: bytes) -> bytes:
    """All bytes that the server sends until it closes the connection."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(packet)
        while more := client.recv(4096):
            heard += more
    return heard


@contextlib.contextmanager
def no_more_processes(cluster) -> Iterator[None]:
    def allow(processes: object) -> None:
        # as the server's own user: root may lack the capability
        run_as_server_user(["prlimit", "--pid", str(cluster.postmaster_pid()), f"--nproc={processes}:"])

    cluster.expect_in_log("could not fork")
    allow(1)
    try:
        yield
    finally:
        allow(resource.getrlimit(resource.RLIMIT_NPROC)[0])


@pytest.mark.pool_only
def test_clients_get_the_server_s_error_when_no_process_starts(make_cluster):
    """The error is the same whatever the process is needed for."""
    cluster = make_cluster(parameters={**PARAMETERS, "pg_baton.login": "server", "pg_baton.gss_encryption": "on"})
    packets = {
        "native": startup({"user": "postgres", "database": "listed"}),
        "login": startup({"user": "postgres", "database": "postgres"}),
        "encryption": GSSENC_REQUEST,
    }
    with no_more_processes(cluster):
        for what, packet in packets.items():
            # the client sends nothing here: data that the server has not read would cost the client the answer
            direct = all_of(cluster.port, b"")
            assert direct.startswith(b"Ecould not fork new process"), what
            assert all_of(cluster.pool_port, packet) == direct, what
    with psycopg.connect(cluster.pool()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.pool_only
def test_the_log_says_why_no_backend_starts(make_cluster):
    """The log has the server's own message, although the postmaster sends it in another protocol."""
    cluster = make_cluster()
    cluster.sql("CREATE DATABASE another")
    with ThreadPoolExecutor() as threads:
        with no_more_processes(cluster):
            client = threads.submit(psycopg.connect, cluster.pool(dbname="another"))
            cluster.wait_for_log('could not start a backend for database "another": .*could not fork new process')
        with client.result() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.pool_only
def test_a_list_that_is_none_is_refused(native):
    with psycopg.connect(native.direct(), autocommit=True) as connection:
        for bad in ("postgres", "a/b/c", "a/b,", "/u", "d/", '"d/u'):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                connection.execute(f"ALTER SYSTEM SET pg_baton.native_dbuser_names = '{bad}'")


@pytest.mark.pool_only
def test_new_sessions_are_native_while_context_memory_is_full(make_cluster):
    # Forced migration, so that contexts are stored after each transaction.
    cluster = make_cluster(
        parameters={"pg_baton.session_memory": "1MB", "pg_baton.max_backends": 8, "pg_baton.force_migration": True}
    )
    cluster.sql("CREATE EXTENSION pg_baton")
    memory = "SELECT memory_bytes + 4096 > memory_limit_bytes FROM pg_baton_dispatchers"
    with contextlib.ExitStack() as stack:
        # a role gets half of the memory that is left, so several roles are needed
        for nth, size in enumerate((15_000, 15_000, 3_000, 3_000, 3_000, 700, 700, 700, 700, 700)):
            role = f"filler{nth}"
            cluster.sql(f"CREATE ROLE {role} LOGIN")
            session = stack.enter_context(Wire.login("127.0.0.1", cluster.pool_port, user=role))
            for number in range(100):
                session.query(
                    f"SELECT set_config('my.own{number}', repeat(md5('{size} {number}'), {size // 32}), false)"
                )
                if (role, "postgres", "dedicated", "context memory") in modes(cluster):
                    break
        wait_until(lambda: cluster.sql(memory) == [(True,)], what="context memory is exhausted")
        with psycopg.connect(cluster.pool()) as connection:
            assert is_native(cluster, connection)
            assert ("postgres", "postgres", "native", "context memory") in modes(cluster)
    wait_until(lambda: cluster.sql(memory) == [(False,)], what="there is room again")
    with psycopg.connect(cluster.pool()) as connection:
        assert not is_native(cluster, connection)


@pytest.mark.pool_only
def test_pool_mode_native_counts_for_the_next_login(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE app LOGIN")
    cluster.sql("CREATE DATABASE other")

    def mode(**options) -> bool:
        with psycopg.connect(cluster.pool(user="app", **options)) as connection:
            return is_native(cluster, connection)

    assert not mode()
    cluster.sql("ALTER ROLE app IN DATABASE other SET pg_baton.pool_mode = native")
    assert mode(dbname="other") and not mode()
    cluster.sql("ALTER ROLE app SET pg_baton.pool_mode = native")
    assert mode()
    with psycopg.connect(cluster.pool(user="app")):
        assert ("app", "postgres", "native", "pg_baton.pool_mode") in modes(cluster)
    cluster.sql("ALTER ROLE app SET pg_baton.pool_mode = shared")
    assert mode(dbname="other") and not mode()
    cluster.sql("ALTER ROLE app IN DATABASE other RESET pg_baton.pool_mode")
    assert not mode(dbname="other")
