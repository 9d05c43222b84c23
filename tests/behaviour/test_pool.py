"""The pool's size, limits and views."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time

import psycopg
import pytest
from harness.account import server_major
from harness.control_memory import ControlMemory
from harness.health import Load, assert_healthy, wait_until
from harness.processes import ITS_PROCESS
from harness.wire import LoginFailed, QueryFailed, Wire, query

pytestmark = pytest.mark.pool_only


def backends(cluster) -> int:
    return cluster.sql("SELECT count(*) FROM pg_baton_backends WHERE state <> 'retiring'")[0][0]


def login(cluster, **options) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, **options)


def test_the_pool_grows_as_needed_to_its_maximum_and_no_further(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=4)
    sessions = [login(cluster) for _ in range(10)]
    try:
        for session in sessions[:4]:
            session.query("BEGIN")
            assert backends(cluster) <= 4
        assert backends(cluster) == 4
        for session in sessions[4:]:
            session.send(query("SELECT 'late'"))
        waiting = "SELECT waiting FROM pg_baton_pools WHERE database = 'postgres'"
        wait_until(lambda: cluster.sql(waiting) == [(6,)], what="the late ones wait")
        time.sleep(0.5)
        assert backends(cluster) == 4
        assert cluster.sql(waiting) == [(6,)]
        for session in sessions[:4]:
            session.query("COMMIT")
        for session in sessions[4:]:
            assert [m.row() for m in session.until_ready() if m.type == "D"] == [[b"late"]]
    finally:
        for session in sessions:
            session.finish()


def test_pool_starts_no_backend_before_a_session_needs_it(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=4, pg_baton__backend_idle_timeout="500ms")
    wait_until(lambda: backends(cluster) == 0, what="no backend left after the start")
    with login(cluster) as session:
        session.query("BEGIN")  # otherwise the backend may end again
        assert backends(cluster) == 1
        session.query("COMMIT")


def test_idle_backends_end_after_timeout_but_the_minimum_stays(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=5, pg_baton__min_backends=2, pg_baton__backend_idle_timeout="700ms")
    sessions = [login(cluster) for _ in range(5)]
    for session in sessions:
        session.query("BEGIN")
    assert backends(cluster) == 5
    for session in sessions:
        session.query("COMMIT")
    wait_until(lambda: backends(cluster) == 2, what="two backends left")
    time.sleep(2)
    assert backends(cluster) == 2
    for session in sessions:
        assert session.query("SELECT 1") == [["1"]]
        session.finish()


def test_last_backend_of_a_role_with_a_limit_ends_as_others_do(cluster_with):
    """The pool asks each time whether it could get another backend; the answer holds for a moment only."""
    cluster = cluster_with(pg_baton__max_backends=4, pg_baton__backend_idle_timeout="700ms")
    cluster.sql("CREATE ROLE limited LOGIN CONNECTION LIMIT 5")
    with Wire.login("127.0.0.1", cluster.pool_port, user="limited") as session:
        session.query("SELECT 1")
        wait_until(lambda: backends(cluster) == 0, what="no backend left")
        assert session.query("SELECT 2") == [["2"]]


def test_backends_without_a_session_are_not_idle_sessions(make_cluster):
    """idle_session_timeout applies to sessions; the backends of the pool's minimum wait for a session."""
    cluster = make_cluster(
        parameters={"pg_baton.max_backends": 4, "pg_baton.min_backends": 2, "idle_session_timeout": "300ms"}
    )
    patient = "-c idle_session_timeout=0"  # for connections that stay idle for long
    with (
        psycopg.connect(cluster.direct(options=patient), autocommit=True) as administrator,
        login(cluster, options=patient) as session,
    ):
        administrator.execute("CREATE EXTENSION pg_baton")
        session.query("SELECT 1")
        there = "SELECT count(*) FROM pg_baton_backends WHERE state <> 'retiring' AND pid IS NOT NULL"
        wait_until(lambda: administrator.execute(there).fetchone() == (2,), what="the minimum is there")
        with cluster.new_log() as log:
            # on direct connections the timeout passes three times, one after the other
            for _ in range(3):
                with Wire.login("127.0.0.1", cluster.port) as direct:
                    assert [m.fields()["C"] for m in direct.until_closed(20) if m.type == "E"] == ["57P05"]
            assert log().count("idle-session timeout") == 3
        assert session.query("SELECT 2") == [["2"]]


def test_a_session_that_has_only_been_greeted_is_idle(cluster_with):
    """A backend greets a session whose options no session has had before, and keeps it."""
    cluster = cluster_with(pg_baton__max_backends=1)
    cluster.sql("CREATE EXTENSION IF NOT EXISTS pg_baton")
    with login(cluster, TimeZone="Asia/Tokyo"):
        states = "SELECT state FROM pg_baton_sessions"
        wait_until(lambda: cluster.sql(states) == [("idle",)], what="it is idle")


def test_more_than_max_sessions_are_refused_with_an_error(cluster_with):
    cluster = cluster_with(pg_baton__max_sessions=5, pg_baton__max_backends=2)
    sessions = []
    try:

        def fill() -> None:
            while len(sessions) < 5:
                sessions.append(login(cluster))

        wait_until(lambda: _succeeds(fill), what="five sessions")
        with pytest.raises(LoginFailed) as failure:
            login(cluster)
        assert failure.value.fields["C"] == "53300" and failure.value.fields["S"] == "FATAL"
        for session in sessions:
            assert session.query("SELECT 1") == [["1"]]
        sessions.pop().finish()
        wait_until(lambda: _succeeds(lambda: login(cluster).finish()), what="a place after one left")
    finally:
        for session in sessions:
            session.finish()


def _succeeds(action) -> bool:
    try:
        action()
        return True
    except LoginFailed:
        return False


@pytest.mark.parametrize(
    "reserved",
    [
        {"superuser_reserved_connections": 3},
        pytest.param(
            {"superuser_reserved_connections": 2, "reserved_connections": 1},
            marks=pytest.mark.skipif(server_major() < 16, reason="came with PostgreSQL 16"),
        ),
    ],
    ids=["superusers", "agents"],
)
def test_connections_reserved_for_administrators_are_never_taken(cluster_with, reserved):
    cluster = cluster_with(max_connections=10, pg_baton__max_backends=50, max_wal_senders=0, **reserved)
    cluster.sql("CREATE ROLE worker LOGIN; CREATE ROLE agent LOGIN")
    if "reserved_connections" in reserved:
        cluster.sql("GRANT pg_use_reserved_connections TO agent")
    sessions = [login(cluster, user=user) for user in ["worker", "postgres"] * 6]
    try:
        for session in sessions:
            session.send(query("BEGIN"))
        time.sleep(2)
        # The administrator gets in three times on the server's own port, or twice and an agent once.
        users = ["agent" if "reserved_connections" in reserved else "postgres", "postgres", "postgres"]
        admins = [psycopg.connect(cluster.direct(user=user)) for user in users]
        for admin in admins:
            admin.close()
    finally:
        for session in sessions:
            session.close()


def test_idle_backends_of_one_pool_make_room_for_another(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=2)
    users = [f"user{n}" for n in range(5)]
    for user in users:
        cluster.sql(f"CREATE ROLE {user} LOGIN")
    sessions = {user: login(cluster, user=user) for user in users}
    try:
        for _ in range(3):
            for user, session in sessions.items():
                assert session.query("SELECT current_user") == [[user]]
        assert backends(cluster) <= 2
    finally:
        for session in sessions.values():
            session.finish()


def test_application_name_and_session_options_split_no_pool(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=3)
    sessions = [
        login(
            cluster,
            application_name=f"a{n}",
            options=f"-c work_mem={n + 1}MB",
            TimeZone=f"Etc/GMT-{n}",
            client_encoding=["UTF8", "LATIN1"][n % 2],
        )
        for n in range(8)
    ]
    try:
        for n, session in enumerate(sessions):
            assert session.query("SHOW work_mem") == [[f"{n + 1}MB"]]
        # The session by which the harness has seen that the pool is ready may still be leaving.
        wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(8,)], what="eight sessions")
        assert cluster.sql("SELECT database, user_name, options, sessions FROM pg_baton_pools WHERE sessions > 0") == [
            ("postgres", None, "", 8)
        ]
    finally:
        for session in sessions:
            session.finish()


def test_options_that_only_a_starting_backend_takes_split_a_pool(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=4)
    with login(cluster) as plain, login(cluster, options="-c ignore_system_indexes=on") as special:
        for _ in range(3):
            assert plain.query("SHOW ignore_system_indexes") == [["off"]]
            assert special.query("SHOW ignore_system_indexes") == [["on"]]
        rows = cluster.sql("SELECT options FROM pg_baton_pools WHERE sessions > 0 ORDER BY 1")
        assert len(rows) == 2 and rows[0] == ("",) and "ignore_system_indexes" in rows[1][0]


def test_max_backends_follows_a_reload(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=1)
    one, two = login(cluster), login(cluster)
    with one, two:
        one.query("BEGIN")
        two.send(query("SELECT 'served'"))
        assert two.silent(0.5)
        cluster.set_parameters({"pg_baton.max_backends": 2})
        cluster.reload()
        assert [m.row() for m in two.until_ready(20) if m.type == "D"] == [[b"served"]]
        one.query("COMMIT")


def test_many_clients_on_few_backends_all_get_their_own_answers(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=3)
    failures: list[str] = []

    def work(number: int) -> None:
        try:
            with psycopg.connect(cluster.pool(), autocommit=True) as session:
                session.execute(f"SET my.number = '{number}'")
                for turn in range(40):
                    if turn % 3 == 0:
                        with session.transaction():
                            session.execute("SELECT 1")
                            row = session.execute("SHOW my.number").fetchone()
                    else:
                        row = session.execute("SELECT current_setting('my.number')").fetchone()
                    if row != (str(number),):
                        failures.append(f"{number} got {row}")
        except Exception as error:
            failures.append(f"{number}: {error}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_session_s_idle_time_follows_the_monotonic_clock(cluster_with):
    """The control memory holds the start of the idle time as a moment of the monotonic clock. The views and
    idle_session_timeout compute with its age."""
    cluster = cluster_with(pg_baton__max_backends=2)
    memory = ControlMemory(cluster)
    age = (
        "SELECT extract(epoch FROM now() - state_since)::int FROM pg_baton_sessions WHERE application_name = 'watched'"
    )

    def idle_for(session: int, seconds: int) -> None:
        memory.session_slot(session).state_since_us = int((time.monotonic() - seconds) * 1_000_000)

    with login(cluster, application_name="watched", options="-c idle_session_timeout=2h") as watched:
        watched.query("SELECT 1")
        ((session,),) = cluster.sql("SELECT id FROM pg_baton_sessions WHERE application_name = 'watched'")
        for seconds in (0, 3600):
            idle_for(session, seconds)
            ((shown,),) = cluster.sql(age)
            assert seconds <= shown < seconds + 60
        assert watched.query("SELECT 1") == [["1"]]
        wait_until(lambda: cluster.sql(age) == [(0,)], what="it is idle anew")
        idle_for(session, 3 * 3600)
        assert [m.fields()["C"] for m in watched.until_closed(20) if m.type == "E"] == ["57P05"]


def test_views_show_sessions_backends_pools_and_the_dispatcher(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=3)
    with (
        login(cluster, application_name="watched") as session,
        Wire.login(str(cluster.home), cluster.pool_port, application_name="local") as local,
    ):
        session.query("SELECT 1")
        session.query("BEGIN")
        # The session by which the harness has seen that the pool is ready may still be leaving.
        wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(2,)], what="two sessions")
        rows = cluster.sql(
            "SELECT user_name, database, application_name, host(client_addr), client_port, mode, state, dedicated_cause,"
            " backend_pid, login_time <= now(), state_since <= clock_timestamp(), transactions"
            " FROM pg_baton_sessions WHERE application_name = 'watched'"
        )
        pid = int(session.query(ITS_PROCESS)[0][0])
        assert rows == [
            (
                "postgres",
                "postgres",
                "watched",
                "127.0.0.1",
                session.sock.getsockname()[1],
                "shared",
                "idle in transaction",
                None,
                pid,
                True,
                True,
                rows[0][-1],
            )
        ]
        assert rows[0][-1] >= 1
        assert cluster.sql(
            "SELECT client_addr, client_port FROM pg_baton_sessions WHERE application_name = 'local'"
        ) == [(None, -1)]
        (row,) = cluster.sql(
            f"SELECT user_name, database, state, session_id, transactions FROM pg_baton_backends WHERE pid = {pid}"
        )
        assert row[:3] == ("postgres", "postgres", "busy")
        assert cluster.sql(f"SELECT application_name FROM pg_baton_sessions WHERE id = {row[3]}") == [("watched",)]
        (pool,) = cluster.sql("SELECT user_name, backends, busy, sessions, waiting, longest_wait FROM pg_baton_pools")
        assert pool[0] is None and pool[2] >= 1 and pool[3:] == (2, 0, None)
        assert cluster.sql(
            "SELECT user_name, database, sessions, waiting, longest_wait, completed > 0 FROM pg_baton_pool_users"
        ) == [("postgres", "postgres", 2, 0, None, True)]
        (dispatcher,) = cluster.sql(
            "SELECT pid, sessions, logins, accepted, memory_limit_bytes, cpu_user_us FROM pg_baton_dispatchers"
        )
        assert dispatcher[0] in cluster.dispatcher_pids()
        assert dispatcher[1] == 2 and dispatcher[2] >= 2 and dispatcher[3] >= 2 and dispatcher[4] > 0
        session.query("COMMIT")
        local.query("SELECT 1")
    wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(0,)], what="no session left")


def test_port_checks_are_no_failed_logins(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=2)
    counts = "SELECT logins, logins_failed, logins_abandoned FROM pg_baton_dispatchers"
    # the pool was asked whether it is ready
    ((ready, *none),) = cluster.sql(counts)
    assert none == [0, 0]
    for _ in range(3):
        socket.create_connection(("127.0.0.1", cluster.pool_port)).close()
    with Wire.open("127.0.0.1", cluster.pool_port) as check:
        check.send(struct.pack("!II", 8, 80877103))  # SSLRequest
    wait_until(lambda: cluster.sql(counts) == [(ready, 0, 4)], what="the checks to be counted")
    with pytest.raises(LoginFailed):
        Wire.login("127.0.0.1", cluster.pool_port, database="nonexistent")
    wait_until(lambda: cluster.sql(counts) == [(ready, 1, 4)], what="the refused login to be counted")


def test_views_are_for_monitors(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=3)
    cluster.sql("CREATE ROLE anyone LOGIN")
    cluster.sql("CREATE ROLE monitor LOGIN IN ROLE pg_monitor")
    for view in (
        "pg_baton_sessions",
        "pg_baton_backends",
        "pg_baton_pools",
        "pg_baton_pool_users",
        "pg_baton_dispatchers",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            cluster.sql(f"SELECT * FROM {view}", user="anyone")
        cluster.sql(f"SELECT * FROM {view}", user="monitor")
        with psycopg.connect(cluster.pool(user="monitor")) as session:
            session.execute(f"SELECT * FROM {view}")
        described = cluster.sql(
            f"SELECT count(*) FILTER (WHERE col_description(attrelid, attnum) IS NULL) FROM pg_attribute"
            f" WHERE attrelid = '{view}'::regclass AND attnum > 0"
        )
        assert described == [(0,)], f"{view} has columns without a comment"


def test_a_client_s_error_does_not_end_another_s_session(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=2)
    with login(cluster) as bad, login(cluster) as good:
        for _ in range(10):
            with pytest.raises(QueryFailed):
                bad.query("SELECT 1/0")
            assert good.query("SELECT 1") == [["1"]]


def test_forced_migration_switches_on_and_off_by_reload(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=3)
    with login(cluster) as session:

        def moves() -> int:
            pids = [session.query(ITS_PROCESS)[0][0] for _ in range(6)]
            return sum(1 for a, b in zip(pids, pids[1:]) if a != b)

        # The session may move to another backend once, if its first is slow to give it back.
        wait_until(lambda: moves() == 0, what="the session stays")
        cluster.set_parameters({"pg_baton.force_migration": True})
        cluster.reload()
        wait_until(lambda: moves() == 5, what="every transaction elsewhere")
        cluster.set_parameters({"pg_baton.force_migration": False})
        cluster.reload()
        wait_until(lambda: moves() == 0, what="the session stays again")


def test_a_thousand_sessions_on_three_backends(cluster_with):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    cluster = cluster_with(pg_baton__max_backends=3)
    sessions = [login(cluster) for _ in range(1000)]
    try:
        for number, session in enumerate(sessions):
            session.send(query(f"SELECT set_config('my.number', '{number}', false)"))
        for session in sessions:
            session.until_ready()
        for session in sessions:
            session.send(query("SHOW my.number"))
        for number, session in enumerate(sessions):
            assert [m.row() for m in session.until_ready() if m.type == "D"] == [[str(number).encode()]]
        wait_until(
            lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(1000,)], what="a thousand sessions"
        )
        assert backends(cluster) <= 3
    finally:
        for session in sessions:
            session.finish()
    wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(0,)], what="no session left")


@pytest.mark.parametrize("forced", [False, True])
def test_few_backends_under_load_answer_right_and_then_rest(cluster_with, forced):
    cluster = cluster_with(pg_baton__max_backends=3, pg_baton__force_migration=forced)
    with Load(cluster, 24) as load:
        load.wait_for_answers(5000, 60)
    assert load.wrong == [] and load.lost == []
    assert_healthy(cluster)


WANT_A_DATABASE_ALONE = [
    "DROP DATABASE wanted",
    "ALTER DATABASE wanted RENAME TO renamed",
    "CREATE DATABASE renamed TEMPLATE wanted",
    "ALTER DATABASE wanted SET TABLESPACE elsewhere",
]


@pytest.mark.parametrize("way", ["direct", "pool"])
def test_a_database_is_free_for_sole_use_after_its_last_session(cluster_with, way):
    """Backends that have served the database must not block the command; a session does."""
    cluster = cluster_with(pg_baton__max_backends=4, allow_in_place_tablespaces=True)
    cluster.sql("CREATE TABLESPACE elsewhere LOCATION ''")
    with psycopg.connect(cluster.pool() if way == "pool" else cluster.direct(), autocommit=True) as session:
        for statement in WANT_A_DATABASE_ALONE:
            session.execute("CREATE DATABASE wanted")
            wires = [login(cluster, database="wanted") for _ in range(3)]
            for _ in range(2):
                for wire in wires:
                    wire.query("SELECT 1")
            if "DROP" in statement:
                with pytest.raises(psycopg.errors.ObjectInUse):
                    session.execute(statement)
            for wire in wires:
                assert wire.query("SELECT 1") == [["1"]]
                wire.finish()
            session.execute(statement)
            for name in ("wanted", "renamed"):
                session.execute(f"DROP DATABASE IF EXISTS {name}")
    assert_healthy(cluster)


def test_a_session_of_a_dropped_database_is_told_when_it_speaks(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=4)
    cluster.sql("CREATE DATABASE wanted")
    with login(cluster, database="wanted") as gone, login(cluster) as witness:
        for _ in range(2):
            gone.query("SELECT 1")
        cluster.sql("DROP DATABASE wanted WITH (FORCE)")
        with contextlib.suppress(OSError):
            gone.send(query("SELECT 1"))
        found = [message.fields() for message in gone.until_closed(20) if message.type == "E"]
        assert [fields["S"] for fields in found] == ["FATAL"] and found[0]["C"] in ("57P01", "3D000")
        assert witness.query("SELECT 1") == [["1"]]
    assert_healthy(cluster)


def test_each_session_can_have_a_role_of_its_own(cluster_with):
    """A service with a role for each tenant: most are silent, some are at work."""
    tenants, at_work = 1200, 100
    cluster = cluster_with(pg_baton__max_backends=8, pg_baton__max_sessions=2000)
    cluster.sql(
        f"DO $$ BEGIN FOR i IN 1..{tenants} LOOP EXECUTE format('CREATE ROLE tenant_%s LOGIN', i); END LOOP; END $$"
    )
    ((dispatcher,),) = cluster.sql("SELECT pid FROM pg_baton_dispatchers")
    sessions = [login(cluster, user=f"tenant_{number}") for number in range(1, tenants + 1)]
    try:
        assert cluster.sql(
            "SELECT count(*), count(DISTINCT user_name) FROM pg_baton_pool_users WHERE sessions = 1"
        ) >= [(tenants, tenants)]
        ((pools,),) = cluster.sql("SELECT count(*) FROM pg_baton_pools")
        assert pools == 1
        # A session costs a descriptor, or three with TLS.
        assert len(os.listdir(f"/proc/{dispatcher}/fd")) < tenants * (3 if cluster.by_tls else 1) + 200
        for _ in range(3):
            for session in sessions[:at_work]:
                session.send(query("SELECT current_user"))
            for number, session in enumerate(sessions[:at_work], 1):
                assert [found.row() for found in session.until_ready() if found.type == "D"] == [
                    [f"tenant_{number}".encode()]
                ]
    finally:
        for session in sessions:
            session.close()
    wait_until(
        lambda: cluster.sql("SELECT count(*) FROM pg_baton_pool_users") < [(20,)], what="roles without a session go"
    )
    with login(cluster, user=f"tenant_{tenants}") as late:
        assert late.query("SELECT 1") == [["1"]]
    assert_healthy(cluster)
