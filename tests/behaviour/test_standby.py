"""The pool before a hot standby: reading, conflicts with recovery, promotion."""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from behaviour.test_login import login, shape
from harness.account import server_major
from harness.compare import same_as_direct
from harness.health import assert_healthy, wait_until
from harness.wire import QueryFailed, Wire, bind, copy_data, execute, parse, query, sync

HOST = "127.0.0.1"


def make_pair(run, name: str, forced: bool):
    """A primary, and a standby with the pool before it."""
    parameters = {"pg_baton.max_backends": 4, "pg_baton.force_migration": forced}
    # The primary has the library as well: it makes the views.
    primary = run.cluster(f"{name} primary", parameters=parameters).start()
    if primary.pooled:
        primary.sql("CREATE EXTENSION pg_baton")
    for statement in (
        "CREATE TABLE numbers AS SELECT generate_series(1, 1000) AS a",
        "CREATE TABLE locked AS SELECT 1 AS a",
        "CREATE TABLE removed (a int)",
        "CREATE SEQUENCE counter",
        "CREATE ROLE coming LOGIN PASSWORD 'one'",
        "CREATE DATABASE other",
    ):
        primary.sql(statement)
    # Replay waits for no session.
    standby = run.cluster(f"{name} standby", parameters={**parameters, "max_standby_streaming_delay": "0"})
    standby.become_standby_of(primary)
    standby.start()
    standby.replay(primary)
    return primary, standby


def finish_pair(primary, standby) -> None:
    standby.finish()
    primary.finish()


@pytest.fixture(scope="module", params=["normal", "forced"])
def pair(run, request):
    """The tests share this pair; they leave the standby a standby, and leave nothing behind."""
    both = make_pair(run, request.param, request.param == "forced")
    yield both
    finish_pair(*both)


@pytest.fixture(params=["normal", "forced"])
def own_pair(run, request):
    both = make_pair(run, f"own {request.param}", request.param == "forced")
    yield both
    finish_pair(*both)


def open_wire(cluster, **options) -> Wire:
    return Wire.login(HOST, cluster.pool_port, **options)


READING = {
    "recovery_is_shown": ["SELECT pg_is_in_recovery()", "SHOW transaction_read_only", "SHOW in_hot_standby"],
    "writes_are_refused": [
        "INSERT INTO numbers VALUES (0)",
        "SELECT nextval('counter')",
        "CREATE TEMP TABLE t (a int)",
        "BEGIN",
        "UPDATE numbers SET a = a",
        "SELECT 1",
        "ROLLBACK",
        "SELECT count(*) FROM numbers",
    ],
    "transactions": [
        "BEGIN",
        "SELECT sum(a) FROM numbers",
        "SAVEPOINT s",
        "SELECT 1/0",
        "ROLLBACK TO s",
        "SELECT max(a) FROM numbers",
        "COMMIT",
        "BEGIN TRANSACTION READ WRITE",
        "ROLLBACK",
        "BEGIN ISOLATION LEVEL SERIALIZABLE",
        "SELECT 1",
        "ROLLBACK",
    ],
    "what_a_session_keeps": [
        "SET work_mem = '5MB'",
        "SET my.own = 'x'",
        "PREPARE p (int) AS SELECT a FROM numbers WHERE a = $1",
        "EXECUTE p (7)",
        "SHOW work_mem",
        "SHOW my.own",
        "EXECUTE p (8)",
        "SELECT name, generic_plans, custom_plans FROM pg_prepared_statements",
        "SELECT lastval()",
        "SELECT currval('counter')",
        "DEALLOCATE p",
        "RESET ALL",
    ],
    "what_dedicates": [
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_advisory_unlock(1)",
        "DECLARE c CURSOR WITH HOLD FOR SELECT a FROM numbers",
        "FETCH 2 FROM c",
        "CLOSE c",
        "LISTEN nothing",
        "UNLISTEN *",
        "SELECT 1",
    ],
    "messages": [
        parse("SELECT a FROM numbers WHERE a = $1", "named", [23]) + sync(),
        bind(["5"], "named") + execute() + sync(),
        parse("INSERT INTO numbers VALUES (1)") + bind() + execute() + sync(),
        bind(["6"], "named") + execute() + sync(),
        "COPY (SELECT a FROM numbers WHERE a < 4) TO STDOUT",
    ],
}


def assert_well(standby) -> None:
    if standby.pooled:
        assert_healthy(standby)


def test_sessions_on_a_standby_are_as_on_a_direct_connection(pair):
    _, standby = pair
    for script in READING.values():
        same_as_direct(standby, script)
    assert_well(standby)


def test_many_sessions_on_a_standby_see_what_the_primary_commits(pair):
    primary, standby = pair
    sessions = [psycopg.connect(standby.pool(), autocommit=True, prepare_threshold=0) for _ in range(9)]
    try:
        for turn in range(5):
            primary.sql(f"INSERT INTO numbers VALUES ({2000 + turn})")
            standby.replay(primary)
            for number, session in enumerate(sessions):
                session.execute("SELECT set_config('my.number', %s, false)", (str(number),))
            for number, session in enumerate(sessions):
                seen = session.execute(
                    "SELECT max(a), current_setting('my.number') FROM numbers WHERE a > %s", (turn,)
                ).fetchone()
                assert seen == (2000 + turn, str(number))
                with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                    session.execute("DELETE FROM numbers")
    finally:
        for session in sessions:
            session.close()


def test_logins_on_a_standby_follow_the_primary(pair):
    """No process of the standby commits a change, so the pool there remembers nothing of a login."""
    primary, standby = pair
    standby.write_hba(["host all coming 127.0.0.1/32 scram-sha-256"])
    standby.reload()

    def attempt(port: int, password: str) -> list[str]:
        wire, messages = login(port, "coming", "other", password)
        if messages[-1].type == "Z":
            wire.finish()
        wire.close()
        return shape(messages)

    def refused(password: str) -> bool:
        standby.replay(primary)
        direct, pool = (attempt(port, password) for port in (standby.port, standby.pool_port))
        assert pool == direct
        return pool[-1].startswith("E")

    for port in (standby.pool_port, standby.port):
        wait_until(lambda port=port: attempt(port, "wrong")[-1].startswith("E"), what="the new pg_hba.conf")
    for _ in range(2):
        assert not refused("one") and refused("two")
        primary.sql("ALTER ROLE coming PASSWORD 'two'")
        assert refused("one") and not refused("two")
        primary.sql("ALTER ROLE coming NOLOGIN")
        assert refused("two")
        primary.sql("ALTER ROLE coming LOGIN PASSWORD 'one'")
        assert not refused("one")
        primary.sql("ALTER DATABASE other ALLOW_CONNECTIONS false")
        assert refused("one")
        primary.sql("ALTER DATABASE other ALLOW_CONNECTIONS true")
        assert not refused("one")
    standby.write_hba([])
    standby.reload()


SETTINGS = {
    "role": ("ALTER ROLE postgres SET work_mem = '7MB'", "ALTER ROLE postgres RESET work_mem"),
    "database": ("ALTER DATABASE postgres SET work_mem = '7MB'", "ALTER DATABASE postgres RESET work_mem"),
    "role_in_database": (
        "ALTER ROLE postgres IN DATABASE postgres SET work_mem = '7MB'",
        "ALTER ROLE postgres IN DATABASE postgres RESET ALL",
    ),
    "everybody": ("ALTER ROLE ALL SET work_mem = '7MB'", "ALTER ROLE ALL RESET ALL"),
}


def work_mem_of_a_new_session(standby) -> str:
    with open_wire(standby) as session:
        for _ in range(2):
            ((value,),) = session.query("SHOW work_mem")
        return value


def test_primary_s_setting_changes_reach_new_standby_sessions(pair):
    """A new session gets no backend from before the change."""
    primary, standby = pair
    for do, undo in SETTINGS.values():
        with open_wire(standby) as old:
            assert old.query("SHOW work_mem") == [["4MB"]]
            primary.sql(do)
            standby.replay(primary)
            assert work_mem_of_a_new_session(standby) == "7MB"
            assert old.query("SHOW work_mem") == [["4MB"]]
        primary.sql(undo)
        standby.replay(primary)
        assert work_mem_of_a_new_session(standby) == "4MB"


def test_settings_count_on_the_standby_when_they_are_committed(pair):
    primary, standby = pair
    with psycopg.connect(primary.direct()) as session:
        session.execute(SETTINGS["role"][0])
        standby.replay(primary)
        assert [work_mem_of_a_new_session(standby) for _ in range(2)] == ["4MB", "4MB"]
        session.commit()
        standby.replay(primary)
        assert work_mem_of_a_new_session(standby) == "7MB"
    primary.sql(SETTINGS["role"][1])


def test_what_a_role_may_do_on_the_standby_follows_the_primary(pair):
    primary, standby = pair

    def is_superuser() -> str:
        with open_wire(standby, user="coming") as session:
            return session.query("SHOW is_superuser")[0][0]

    assert is_superuser() == "off"
    for change, value in (("SUPERUSER", "on"), ("NOSUPERUSER", "off")):
        primary.sql(f"ALTER ROLE coming {change}")
        standby.replay(primary)
        assert is_superuser() == value


@contextlib.contextmanager
def old_snapshot(primary, standby, port: int):
    """A session in a transaction that sees rows the primary is about to remove,
    and another that has nothing to do with it."""
    primary.sql("INSERT INTO removed SELECT generate_series(1, 1000)")
    standby.replay(primary)
    with Wire.login(HOST, port) as victim, Wire.login(HOST, port) as witness:
        witness.query("SET my.own = 'witness'")
        victim.query("BEGIN ISOLATION LEVEL REPEATABLE READ")
        victim.query("SELECT count(*) FROM removed")
        yield victim, witness


def sleeps(standby, session: Wire) -> None:
    """Waits until the session's statement runs: recovery ends an idle session, and does not cancel it."""
    session.send(query("SELECT pg_sleep(60)"))
    running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(60)'"
    wait_until(lambda: standby.sql(running) == [(1,)], what="the session's statement runs")


def asked_again(victim: Wire, text: str) -> list[list[str | None]]:
    """The startup process signals until it sees that the transaction has ended; a surplus signal
    hits the same session's next statement, with a direct connection as well."""
    for _ in range(10):
        with contextlib.suppress(QueryFailed):
            return victim.query(text)
    return victim.query(text)


def conflict(primary, standby, port: int) -> tuple[list[dict], list[list]]:
    """A session reads old rows that the primary then removes."""
    with old_snapshot(primary, standby, port) as (victim, witness):
        sleeps(standby, victim)
        primary.sql("DELETE FROM removed")
        primary.sql("VACUUM removed")
        found = [m.fields() for m in victim.until_ready(30) if m.type == "E"]
        after = [victim.query("ROLLBACK"), asked_again(victim, "SELECT count(*) FROM removed")]
        assert witness.query("SHOW my.own") == [["witness"]]
    return [{k: v for k, v in fields.items() if k not in "LR"} for fields in found], after


def test_a_query_cancelled_by_recovery_hits_its_own_session_only(pair):
    primary, standby = pair
    direct, pool = (conflict(primary, standby, port) for port in (standby.port, standby.pool_port))
    assert pool == direct
    assert [error["C"] for error in pool[0]] == ["40001"] and pool[1][1] == [["0"]]
    assert_well(standby)


def idle_conflict(primary, standby, port: int, sends: bytes) -> list[str]:
    """As before, but the session is idle in its transaction."""
    with old_snapshot(primary, standby, port) as (victim, witness):
        victim.send(sends)
        wait_until(lambda: victim.unread_by_server() in (0, None), what="it has been read")
        primary.sql("DELETE FROM removed")
        primary.sql("VACUUM removed")
        found = [m.fields()["C"] + " " + m.fields()["S"] for m in victim.until_closed(30) if m.type == "E"]
        for _ in range(3):
            assert witness.query("SHOW my.own") == [["witness"]]
    return found


@pytest.mark.parametrize("sends", [b"", copy_data(b"")[:3], copy_data(b"ignored")[:9]], ids=["", "head", "body"])
def test_recovery_ends_only_the_session_idle_in_transaction(pair, sends):
    primary, standby = pair
    direct, pool = (idle_conflict(primary, standby, port, sends) for port in (standby.port, standby.pool_port))
    assert pool == direct and len(pool) == 1
    assert_well(standby)


def lock_conflict(primary, standby, port: int) -> list[str]:
    """The primary takes a lock that conflicts with a session's query."""
    standby.replay(primary)
    with Wire.login(HOST, port) as victim, Wire.login(HOST, port) as witness:
        victim.query("BEGIN")
        victim.query("LOCK TABLE locked IN ACCESS SHARE MODE")
        sleeps(standby, victim)
        primary.sql("BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE; UPDATE locked SET a = a + 1; COMMIT")
        found = [m.fields()["C"] for m in victim.until_ready(30) if m.type == "E"]
        victim.query("ROLLBACK")
        ((seen,),) = primary.sql("SELECT a FROM locked")
        standby.replay(primary)
        assert witness.query("SELECT a FROM locked") == victim.query("SELECT a FROM locked") == [[str(seen)]]
    return found


def test_a_lock_of_the_primary_cancels_the_query_in_its_way(pair):
    primary, standby = pair
    direct, pool = (lock_conflict(primary, standby, port) for port in (standby.port, standby.pool_port))
    assert pool == direct == ["40001"]


def dropped_database(primary, standby, port: int) -> list[str]:
    primary.sql("CREATE DATABASE doomed")
    standby.replay(primary)
    with Wire.login(HOST, port, database="doomed") as victim, Wire.login(HOST, port) as witness:
        for _ in range(2):
            victim.query("SELECT 1")
        primary.sql("DROP DATABASE doomed")
        standby.replay(primary)
        # The pool tells an idle client when the client sends a message.
        with contextlib.suppress(OSError):
            victim.send(query("SELECT 1"))
        found = [m.fields()["S"] for m in victim.until_closed(20) if m.type == "E"]
        assert witness.query("SELECT 1") == [["1"]]
    wire, messages = login(port, "postgres", "doomed", None)
    wire.close()
    return found + shape(messages)


def test_a_database_dropped_on_the_primary_ends_its_sessions(pair):
    primary, standby = pair
    direct, pool = (dropped_database(primary, standby, port) for port in (standby.port, standby.pool_port))
    assert pool == direct and pool[0] == "FATAL"


def told_of_hot_standby(server) -> str:
    with open_wire(server) as wire:
        return wire.parameters["in_hot_standby"]


def test_the_pool_serves_on_after_a_promotion_and_takes_writes(own_pair):
    primary, standby = own_pair
    sessions = [open_wire(standby) for _ in range(8)]
    try:
        for number, session in enumerate(sessions):
            session.query(f"SET my.number = '{number}'")
            session.query(f"PREPARE mine AS SELECT {number}, a FROM numbers WHERE a = 5")
            with pytest.raises(QueryFailed, match="25006"):
                session.query("INSERT INTO numbers VALUES (0)")
        sessions[0].query("BEGIN")
        assert sessions[0].query("SELECT count(*) FROM numbers WHERE a = 5000") == [["0"]]
        standby.sql("SELECT pg_promote(true, 30)")
        # A transaction begun in recovery stays read-only, as in stock.
        with pytest.raises(QueryFailed, match="25006"):
            sessions[0].query("INSERT INTO numbers VALUES (0)")
        sessions[0].query("ROLLBACK")
        for number, session in enumerate(sessions):
            session.query(f"INSERT INTO numbers VALUES ({5000 + number})")
            assert session.query("SHOW my.number") == [[str(number)]]
            assert session.query("EXECUTE mine") == [[str(number), "5"]]
            assert session.query("SELECT pg_is_in_recovery()") == [["f"]]
            assert session.query("SHOW in_hot_standby") == [["off"]]
        assert standby.sql("SELECT count(*) FROM numbers WHERE a >= 5000") == [(len(sessions),)]
        # New clients are told as well, whichever process greets them (target_session_attrs).
        for _ in range(3):
            wait_until(lambda: told_of_hot_standby(standby) == "off", what="new clients are told")
        # From now on this server itself has to notice changes.
        standby.sql(SETTINGS["role"][0])
        assert work_mem_of_a_new_session(standby) == "7MB"
        standby.sql("ALTER ROLE coming NOLOGIN")
        wire, messages = login(standby.pool_port, "coming", "postgres", None)
        wire.close()
        assert [m.fields()["C"] for m in messages if m.type == "E"] == ["28000"]
    finally:
        for session in sessions:
            session.finish()
    assert_well(standby)


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_in_hot_standby_is_reported_when_it_changes(own_pair, how):
    """A client such as libpq, with target_session_attrs, relies on the reported value."""
    _, standby = own_pair
    seen = []
    with open_wire(standby) as session, Wire.login(HOST, standby.port) as direct:
        assert session.parameters["in_hot_standby"] == direct.parameters["in_hot_standby"] == "on"
        if how == "busy":
            for wire in (session, direct):
                wire.query("BEGIN")
        standby.sql("SELECT pg_promote(true, 30)")
        for wire in (session, direct):
            wire.query("SELECT 1")
            if how == "busy":
                wire.query("COMMIT")
            wire.query("SELECT 1")
            seen.append(wire.parameters["in_hot_standby"])
    assert seen == ["off", "off"]


def test_role_with_serializable_as_its_default_logs_in(pair):
    """The role's transactions fail on a standby; its login does not."""
    primary, standby = pair
    primary.sql("CREATE ROLE serial LOGIN")
    primary.sql("ALTER ROLE serial SET default_transaction_isolation = 'serializable'")
    try:
        standby.replay(primary)
        same_as_direct(standby, ["SHOW default_transaction_isolation", "SELECT 1"], user="serial")
    finally:
        primary.sql("DROP ROLE serial")


def test_standby_opens_backends_for_a_role_that_lost_its_login(run):
    primary, standby = make_pair(run, "replaced", False)
    try:
        primary.sql("CREATE ROLE staying LOGIN")
        standby.replay(primary)
        with open_wire(standby, user="staying") as session:
            assert session.query("SELECT 1") == [["1"]]
            primary.sql("ALTER ROLE staying NOLOGIN")
            standby.replay(primary)
            standby.set_parameters({"pg_baton.backend_idle_timeout": "1s", "pg_baton.session_wait_timeout": "4s"})
            standby.reload()
            if standby.pooled:
                gone = "SELECT count(*) FROM pg_baton_backends WHERE user_name = 'staying'"
                wait_until(lambda: standby.sql(gone) == [(0,)], what="its backend has gone")
            assert session.query("SELECT session_user") == [["staying"]]
    finally:
        finish_pair(primary, standby)


@pytest.mark.skipif(server_major() < 17, reason="login event triggers came with PostgreSQL 17")
def test_login_trigger_from_the_primary_fires_for_each_client(pair):
    primary, standby = pair
    primary.sql(
        """
        CREATE FUNCTION welcome() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN
          PERFORM set_config('welcome.seen', inet_client_addr()::text, false);
          RAISE NOTICE 'welcome';
        END$$
        """
    )
    primary.sql("CREATE ROLE welcomed LOGIN")
    standby.replay(primary)
    try:
        # the role is greeted before there is a trigger, so that the greeting is kept
        for _ in range(2):
            psycopg.connect(standby.pool(user="welcomed")).close()
        primary.sql("CREATE EVENT TRIGGER on_login ON login EXECUTE FUNCTION welcome()")
        standby.replay(primary)
        for _ in range(2):
            same_as_direct(standby, ["SHOW welcome.seen", "SELECT 1"], user="welcomed")
        # and the pool's backends start and end as before
        with psycopg.connect(standby.pool(user="welcomed"), autocommit=True) as session:
            standby.set_parameters({"pg_baton.backend_idle_timeout": "1s"})
            standby.reload()
            if standby.pooled:
                there = "SELECT count(*) FROM pg_baton_backends WHERE user_name = 'welcomed'"
                wait_until(lambda: standby.sql(there) == [(0,)], what="idle backends have gone")
            assert session.execute("SELECT 1").fetchone() == (1,)
    finally:
        standby.set_parameters({"pg_baton.backend_idle_timeout": None})
        standby.reload()
        for statement in ("DROP EVENT TRIGGER IF EXISTS on_login", "DROP FUNCTION welcome", "DROP ROLE welcomed"):
            primary.sql(statement)
        standby.replay(primary)
