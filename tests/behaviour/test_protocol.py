"""Every part of the protocol works through the pool as on the server's port."""

from __future__ import annotations

import struct

import psycopg
import pytest
from harness.compare import same_as_direct
from harness.health import wait_until
from harness.processes import ITS_PROCESS
from harness.wire import (
    Wire,
    bind,
    copy_data,
    copy_done,
    copy_fail,
    describe_portal,
    execute,
    function_call,
    message,
    parse,
    query,
    sync,
)

SETUP = [
    "CREATE TABLE copied (a int, b text)",
    "CREATE TABLE rows AS SELECT i AS a, repeat('x', i % 50) AS b FROM generate_series(1, 20000) i",
    "CREATE FUNCTION noisy(n int) RETURNS int LANGUAGE plpgsql AS"
    " $$BEGIN FOR i IN 1..n LOOP RAISE NOTICE 'notice %', i USING DETAIL = 'd', HINT = 'h'; END LOOP; RETURN n; END$$",
    "CREATE PROCEDURE commits() LANGUAGE plpgsql AS"
    " $$BEGIN FOR i IN 1..3 LOOP PERFORM set_config('my.c', i::text, false); COMMIT; END LOOP; END$$",
]

TEARDOWN = "TRUNCATE copied"

SCRIPTS: dict[str, list[str | bytes]] = {
    "transactions_and_their_status": [
        "BEGIN",
        "SELECT 1",
        "SELECT 1/0",
        "SELECT 1",
        "ROLLBACK",
        "SELECT 1",
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "BEGIN",
        "SAVEPOINT a",
        "SELECT 1/0",
        "ROLLBACK TO a",
        "SELECT 2",
        "COMMIT",
        "START TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY",
        "CREATE TABLE nope ()",
        "END",
        "BEGIN",
        "COMMIT AND CHAIN",
        "SHOW transaction_isolation",
        "ROLLBACK AND CHAIN",
        "ROLLBACK",
    ],
    "multi_statement_queries": [
        "SELECT 1; SELECT 2; SELECT 3",
        "SELECT 1; SELECT 1/0; SELECT 3",
        ";;",
        "",
        "SELECT 1;;SELECT 2;",
        "BEGIN; SELECT 1",
        "SELECT 2; COMMIT; SELECT 3",
        "SELECT 1; syntax error",
        "INSERT INTO copied VALUES (1, 'a'); SELECT 1/0",
        "SELECT count(*) FROM copied",
        "INSERT INTO copied VALUES (1, 'a'); COMMIT; SELECT 1/0",
        "SELECT count(*) FROM copied",
    ],
    "notices_and_warnings": [
        "SELECT noisy(3)",
        "DO $$BEGIN RAISE WARNING 'w' USING ERRCODE = '01234'; END$$",
        "DO $$BEGIN RAISE INFO 'i'; END$$",
        "DO $$BEGIN RAISE LOG 'l'; END$$",
        "DROP TABLE IF EXISTS not_there",
        "SET client_min_messages = warning",
        "SELECT noisy(2)",
    ],
    "errors_with_every_field": [
        "DO $$BEGIN RAISE EXCEPTION 'm' USING DETAIL = 'd', HINT = 'h', ERRCODE = 'P1234', COLUMN = 'c',"
        " CONSTRAINT = 'n', DATATYPE = 't', TABLE = 'tt', SCHEMA = 's'; END$$",
        "SELECT * FROM no_such_table",
        "SELECT 'x'::int",
        "INSERT INTO copied VALUES ('x')",
        "SELEC 1",
        "CREATE TABLE copied (a int)",
    ],
    "copy_out": [
        "COPY (SELECT * FROM rows WHERE a < 10 ORDER BY a) TO STDOUT",
        "COPY (SELECT * FROM rows WHERE a < 10 ORDER BY a) TO STDOUT (FORMAT csv, HEADER)",
        "COPY (SELECT a FROM rows WHERE a < 4 ORDER BY a) TO STDOUT (FORMAT binary)",
        "COPY (SELECT 1/(a - 3) FROM generate_series(1, 5) a) TO STDOUT",
        "COPY nothing TO STDOUT",
        "SELECT 1; COPY (SELECT 2) TO STDOUT; SELECT 3",
    ],
    "copy_in": [
        query("COPY copied FROM STDIN") + copy_data(b"1\tone\n2\t") + copy_data(b"two\n") + copy_done(),
        "SELECT * FROM copied ORDER BY a",
        query("COPY copied FROM STDIN (FORMAT csv)") + copy_data(b'3,"th,ree"\n') + copy_done(),
        query("COPY copied FROM STDIN") + copy_done(),
        "SELECT * FROM copied ORDER BY a",
    ],
    "copy_in_that_fails": [
        query("COPY copied FROM STDIN") + copy_data(b"x\tone\n") + copy_done(),
        query("COPY copied FROM STDIN") + copy_data(b"1\tone\n") + copy_fail("changed my mind"),
        query("COPY copied FROM STDIN") + copy_data(b"1\tone\textra\n") + copy_data(b"2\ttwo\n") + copy_done(),
        "SELECT * FROM copied",
        "COPY nothing FROM STDIN",
        query("BEGIN"),
        query("COPY copied FROM STDIN") + copy_data(b"x\n") + copy_done(),
        "COMMIT",
        "SELECT count(*) FROM copied",
    ],
    "copy_by_extended_protocol": [
        parse("COPY copied FROM STDIN")
        + bind([])
        + describe_portal()
        + execute()
        + copy_data(b"7\tseven\n")
        + copy_done()
        + sync(),
        parse("COPY copied TO STDOUT") + bind([]) + describe_portal() + execute() + sync(),
        parse("COPY copied FROM STDIN") + bind([]) + execute() + copy_fail("no") + sync(),
        "SELECT * FROM copied",
    ],
    "copy_data_outside_of_copy_is_ignored": [
        copy_data(b"x") + query("SELECT 1"),
        copy_done() + query("SELECT 2"),
        copy_fail("x") + query("SELECT 3"),
    ],
    "large_objects": [
        "SELECT lo_from_bytea(4711, '\\x010203')",
        "BEGIN",
        "SELECT lo_open(4711, 393216)",
        "SELECT lowrite(0, 'abc')",
        "SELECT lo_lseek(0, 1, 0)",
        "SELECT loread(0, 10)",
        "COMMIT",
        "SELECT loread(0, 10)",
        "SELECT lo_get(4711)",
        "SELECT lo_unlink(4711)",
        "SELECT lo_get(4711)",
    ],
    "function_call_protocol": [
        function_call(177, [struct.pack("!i", 2), struct.pack("!i", 40)]),  # int4pl
        function_call(177, [struct.pack("!i", 2), None]),
        function_call(177, [struct.pack("!i", 2147483647), struct.pack("!i", 1)]),
        function_call(4294967295, []),
        function_call(177, [b"x", b"y"]),
        "BEGIN",
        function_call(177, [struct.pack("!i", 1), struct.pack("!i", 1)]),
        "COMMIT",
    ],
    "cursors": [
        "DECLARE c CURSOR FOR SELECT 1",
        "BEGIN",
        "DECLARE c SCROLL CURSOR FOR SELECT a FROM rows ORDER BY a",
        "FETCH 3 FROM c",
        "FETCH BACKWARD 1 FROM c",
        "MOVE 10 IN c",
        "FETCH c",
        "FETCH ABSOLUTE 100 FROM c",
        "SELECT name, statement, is_holdable, is_scrollable FROM pg_cursors",
        "CLOSE c",
        "FETCH c",
        "ROLLBACK",
        "FETCH c",
        "SELECT count(*) FROM pg_cursors",
    ],
    "held_cursors": [
        "BEGIN",
        "DECLARE h CURSOR WITH HOLD FOR SELECT generate_series(1, 5)",
        "FETCH h",
        "COMMIT",
        "FETCH 2 FROM h",
        "SELECT name, is_holdable FROM pg_cursors",
        "FETCH ALL FROM h",
        "FETCH h",
        "FETCH BACKWARD 1 FROM h",
        "CLOSE h",
        "FETCH h",
        "DECLARE h2 CURSOR WITH HOLD FOR SELECT 1/0",
        "SELECT 1",
        "DECLARE h3 CURSOR WITH HOLD FOR SELECT 1",
        "DISCARD ALL",
        "FETCH h3",
    ],
    "procedures_that_commit": ["CALL commits()", "SHOW my.c", "BEGIN", "CALL commits()", "ROLLBACK", "SHOW my.c"],
    "batches_over_many_syncs": [
        parse("SELECT 1") + bind([]) + execute() + parse("SELECT 2") + bind([]) + execute() + sync(),
        parse("INSERT INTO copied VALUES (1, 'x')")
        + bind([])
        + execute()
        + parse("SELECT 1/0")
        + bind([])
        + execute()
        + sync(),
        "SELECT * FROM copied",
        parse("BEGIN") + bind([]) + execute() + parse("SELECT 3") + bind([]) + execute() + sync(),
        "COMMIT",
    ],
    "unknown_portal_and_partial_execution": [
        execute("nothing") + sync(),
        parse("SELECT generate_series(1, 7)")
        + bind([])
        + execute("", 3)
        + execute("", 3)
        + execute("", 3)
        + execute("", 3)
        + sync(),
    ],
    "temporary_tables": [
        "CREATE TEMP TABLE t (a int)",
        "INSERT INTO t VALUES (1)",
        "SELECT * FROM t",
        "BEGIN",
        "CREATE TEMP TABLE u (a int) ON COMMIT DROP",
        "SELECT * FROM u",
        "COMMIT",
        "SELECT * FROM u",
        "DROP TABLE t",
        "SELECT * FROM t",
        "CREATE TEMP TABLE t AS SELECT 5 AS a",
        "SELECT * FROM t",
        "DISCARD TEMP",
        "SELECT * FROM t",
    ],
    "two_phase_commit": [
        "BEGIN",
        "INSERT INTO copied VALUES (9, 'two-phase')",
        "PREPARE TRANSACTION 'tp'",
        "SELECT count(*) FROM copied",
        "COMMIT PREPARED 'tp'",
        "SELECT count(*) FROM copied",
        "BEGIN",
        "INSERT INTO copied VALUES (9, 'x')",
        "PREPARE TRANSACTION 'tp'",
        "ROLLBACK PREPARED 'tp'",
        "ROLLBACK PREPARED 'tp'",
    ],
    "sequences": [
        "SELECT currval('seq')",
        "SELECT lastval()",
        "SELECT nextval('seq')",
        "SELECT currval('seq')",
        "SELECT lastval()",
        "SELECT nextval('other')",
        "SELECT lastval()",
        "SELECT currval('seq')",
        "SELECT setval('seq', 50)",
        "SELECT currval('seq')",
        "SELECT lastval()",
        "SELECT setval('other', 60, false)",
        "SELECT currval('other')",
        "SELECT nextval('other'), lastval()",
        "DISCARD SEQUENCES",
        "SELECT lastval()",
        "SELECT currval('seq')",
    ],
    "cached_sequences": [
        "SELECT nextval('cached')",
        "SELECT nextval('cached')",
        "SELECT currval('cached'), lastval()",
        "SELECT nextval('seq')",
        "SELECT nextval('cached')",
        "SELECT lastval()",
        "SELECT currval('cached')",
    ],
    "identity_columns_and_lastval": [
        "INSERT INTO counted (b) VALUES ('a') RETURNING id",
        "SELECT lastval()",
        "INSERT INTO counted (b) VALUES ('b')",
        "SELECT lastval(), currval(pg_get_serial_sequence('counted', 'id'))",
        "BEGIN",
        "INSERT INTO counted (b) VALUES ('c')",
        "ROLLBACK",
        "SELECT lastval()",
    ],
    "dropped_sequence": [
        "SELECT nextval('seq')",
        "SELECT nextval('other')",
        "DROP SEQUENCE other",
        "SELECT lastval()",
        "SELECT currval('seq')",
        "SELECT currval('other')",
    ],
    "sequence_functions_inside_functions": [
        "SELECT nextval('seq')",
        "DO $$BEGIN PERFORM set_config('my.v', currval('seq')::text, false); END$$",
        "SHOW my.v",
        "DO $$BEGIN PERFORM set_config('my.v', lastval()::text, false); END$$",
        "SHOW my.v",
        "PREPARE cv AS SELECT currval('seq'), lastval()",
        "EXECUTE cv",
        "SELECT nextval('other')",
        "EXECUTE cv",
    ],
    "random_seeds": ["SELECT setseed(0.5)", "SELECT random()", "SELECT random()", "SELECT setseed(0.25), random()"],
    "transaction_snapshot_and_functions": [
        "SELECT now() = statement_timestamp()",
        "BEGIN",
        "SELECT now() = statement_timestamp()",
        "COMMIT",
        "SELECT txid_current_if_assigned() IS NULL",
        "SELECT inet_client_addr()",
        "SELECT inet_server_addr(), inet_server_port() > 0",
        "SELECT inet_client_port() > 0",
        "SELECT pg_is_in_recovery()",
        "SELECT pg_trigger_depth()",
        "SELECT current_database(), current_schema()",
    ],
    "advisory_locks": [
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_try_advisory_lock(1)",
        "SELECT pg_advisory_unlock(1)",
        "SELECT pg_advisory_unlock(1)",
        "SELECT pg_advisory_unlock(1)",
        "SELECT pg_advisory_lock(2, 3)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        "SELECT pg_advisory_unlock_all()",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    ],
    "listen_and_notify": [
        "LISTEN here",
        "SELECT pg_listening_channels()",
        "NOTIFY here, 'one'",
        "BEGIN",
        "NOTIFY here, 'two'",
        "NOTIFY here, 'two'",
        "SELECT 1",
        "COMMIT",
        "UNLISTEN here",
        "NOTIFY here",
        "SELECT pg_listening_channels()",
        "LISTEN a",
        "LISTEN b",
        "UNLISTEN *",
        "NOTIFY a",
        "BEGIN",
        "LISTEN c",
        "ROLLBACK",
        "NOTIFY c",
    ],
}

SEQUENCES = (
    "DROP SEQUENCE IF EXISTS seq, other, cached; DROP TABLE IF EXISTS counted; CREATE SEQUENCE seq;"
    " CREATE SEQUENCE other START 7; CREATE SEQUENCE cached CACHE 10;"
    " CREATE TABLE counted (id bigint GENERATED ALWAYS AS IDENTITY, b text)"
)


@pytest.mark.parametrize("promise", SCRIPTS)
def test_protocol_is_as_on_a_direct_connection(server, promise):
    ignore = None
    if promise == "transaction_snapshot_and_functions":
        ignore = f"{server.port}|{server.pool_port}"
    if promise == "cached_sequences" and server.forced:
        pytest.skip("each backend caches numbers of its own: see the next test")
    same_as_direct(server, SCRIPTS[promise], setup=SEQUENCES, teardown=TEARDOWN, ignore=ignore)


def test_cached_sequence_gives_unique_values_and_own_currval(server):
    server.sql(SEQUENCES)
    sessions = [psycopg.connect(server.pool(), autocommit=True) for _ in range(6)]
    try:
        seen: set[int] = set()
        for _ in range(30):
            for session in sessions:
                (value,) = session.execute("SELECT nextval('cached')").fetchone()
                assert value not in seen
                seen.add(value)
                assert session.execute("SELECT currval('cached'), lastval()").fetchone() == (value, value)
    finally:
        for session in sessions:
            session.close()


def test_currval_and_lastval_never_leak_to_another_session(server):
    server.sql(SEQUENCES)
    one, two = (psycopg.connect(server.pool(), autocommit=True) for _ in range(2))
    with one, two:
        for _ in range(5):
            (value,) = one.execute("SELECT nextval('seq')").fetchone()
            for function in ("lastval()", "currval('seq')"):
                with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                    two.execute(f"SELECT {function}")
            assert one.execute("SELECT currval('seq'), lastval()").fetchone() == (value, value)


def test_notifications_arrive_while_the_listener_is_idle(server):
    with (
        psycopg.connect(server.pool(), autocommit=True) as listener,
        psycopg.connect(server.pool(), autocommit=True) as sender,
    ):
        listener.execute("LISTEN news")
        for n in range(5):
            sender.execute("SELECT pg_notify('news', %s)", (str(n),))
            (got,) = list(listener.notifies(timeout=30, stop_after=1))
            assert (got.channel, got.payload) == ("news", str(n))
        listener.execute("UNLISTEN news")
        sender.execute("NOTIFY news, 'late'")
        assert list(listener.notifies(timeout=0.3, stop_after=1)) == []


def test_session_knows_its_own_notifications_by_its_process_id(server):
    """Clients use the process ID to skip notifications that they have sent themselves."""
    with Wire.login("127.0.0.1", server.pool_port) as session, Wire.login("127.0.0.1", server.pool_port) as other:
        other.query("SELECT 1")
        session.query("LISTEN news")
        for _ in range(2):
            found = session.ask(query("NOTIFY news, 'mine'"))
            assert [sender(m) for m in found if m.type == "A"] == [session.backend_pid]
        other.query("NOTIFY news, 'not mine'")
        notification = session.read()
        assert notification.type == "A"
        assert sender(notification) != session.backend_pid


def sender(notification) -> int:
    return int.from_bytes(notification.body[:4], "big")


def test_invalid_message_type_is_answered_as_in_stock(server):
    same_as_direct(server, [message("q", b"what?")])
    same_as_direct(server, [message("Q", b"no end")])
    same_as_direct(server, [message("B", b"\0") + sync(), "SELECT 1"])


def test_debug_messages_show_only_the_session_s_own_transactions(server):
    """Transactions in which the pool examines the remains of a session's transaction are not shown."""
    same_as_direct(
        server,
        [
            "SET client_min_messages = debug5",
            "SELECT 1",
            parse("SELECT 2") + bind([]) + execute() + sync(),
            "PREPARE x AS SELECT 4",
            "EXECUTE x",
            "LISTEN a",
            "UNLISTEN a",
            "BEGIN",
            "COMMIT",
            "CREATE TEMP TABLE mine (a int)",
            "DROP TABLE mine",
            "SET work_mem = '5MB'",
            "SET ROLE NONE",
            "SELECT 9",
        ],
        # numbers of transactions, files and statistics; the contents of the caches; and
        # the message that another process is behind with invalidations: the process that
        # fills the server's queue to the next mark signals it, and says so (sinvaladt.c)
        ignore=r"\d+|^notice .*sending sinval catchup signal.*",
    )


def test_session_reports_catchup_signals_as_a_direct_one_does(server):
    """The signal goes to an idle process; a process of the pool counts like any other."""
    fills_the_queue = "DO $$BEGIN FOR n IN 1..200 LOOP CREATE TEMP TABLE mine (a int); DROP TABLE mine; END LOOP; END$$"
    with psycopg.connect(server.direct()) as idle:
        idle.execute("SELECT 1")
        idle.commit()
        for port in (server.port, server.pool_port):
            with Wire.login("127.0.0.1", port) as session:
                session.query("SET client_min_messages = debug4")
                said = [m.fields()["M"] for m in session.ask(query(fills_the_queue)) if m.type == "N"]
                assert any(text.startswith("sending sinval catchup signal to PID") for text in said)


def test_idle_in_transaction_timeout_is_the_server_s(server):
    same_as_direct(
        server,
        [
            # longer than the delays of a client that is not meant to be idle
            "SET idle_in_transaction_session_timeout = 2000",
            "BEGIN",
            "SELECT pg_sleep(2.1)",
            "DO $$BEGIN PERFORM 1; END$$",
            "ROLLBACK",
            "SELECT 1",
        ],
    )
    with Wire.login("127.0.0.1", server.pool_port) as session:
        session.query("SET idle_in_transaction_session_timeout = 200")
        session.query("BEGIN")
        found = session.until_closed(20)
        assert [m.fields()["C"] for m in found if m.type == "E"] == ["25P03"]


def test_idle_session_timeout_is_the_session_s(server):
    with Wire.login("127.0.0.1", server.pool_port) as session, Wire.login("127.0.0.1", server.pool_port) as other:
        session.query("SET idle_session_timeout = 300")
        found = session.until_closed(20)
        assert [(m.fields()["S"], m.fields()["C"], m.fields()["M"]) for m in found if m.type == "E"] == [
            ("FATAL", "57P05", "terminating connection due to idle-session timeout")
        ]
        assert other.query("SELECT 1") == [["1"]]


HALF_COPY_DATA = copy_data(1000 * b"x")[:15]


def ended_within_copy_data(server, port: int, case: str) -> list[str]:
    """What a session is told that has sent half a CopyData, which no COPY has asked for."""
    with Wire.login("127.0.0.1", port) as session:
        if case == "idle in transaction":
            session.query("SET idle_in_transaction_session_timeout = 300")
            session.query("BEGIN")
            session.send(HALF_COPY_DATA)
        elif case == "idle":
            session.query("SET idle_session_timeout = 300")
            session.send(query("SELECT 1") + HALF_COPY_DATA)
        else:
            session.query(case)
            session.send(HALF_COPY_DATA)
            # the backend has begun to read the message
            wait_until(lambda: session.unread_by_server() in (0, None), what="the message is being read")
            server.sql(f"SELECT pg_terminate_backend({session.backend_pid})")
        return [m.fields()["C"] for m in session.until_closed(20) if m.type == "E"]


@pytest.mark.parametrize("case", ["idle in transaction", "idle", "BEGIN", "LISTEN news"])
def test_half_an_ignored_message_keeps_no_session_from_its_end(server, case):
    direct, pool = (ended_within_copy_data(server, port, case) for port in (server.port, server.pool_port))
    assert pool == direct
    assert len(pool) == 1


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
@pytest.mark.parametrize(
    "parameter, begin, code",
    [("idle_in_transaction_session_timeout", "BEGIN", "25P03"), ("idle_session_timeout", "LISTEN news", "57P05")],
    ids=["in a transaction", "dedicated"],
)
def test_an_ignored_message_ends_the_idle_time(server, parameter, begin, code, together):
    for port in (server.port, server.pool_port):
        with Wire.login("127.0.0.1", port) as session:
            session.query(f"SET {parameter} = 1000")
            if together:
                session.send(query(begin) + copy_data(b"ignored"))
                session.until_ready()
            else:
                session.query(begin)
                session.send(copy_data(b"ignored"))
            assert session.silent(2)
            assert session.query("SELECT 1") == [["1"]]
            assert [m.fields()["C"] for m in session.until_closed(20) if m.type == "E"] == [code]


def test_notifications_arrive_in_the_middle_of_an_ignored_message(server):
    for port in (server.port, server.pool_port):
        with Wire.login("127.0.0.1", port) as session:
            session.query("LISTEN news")
            session.send(HALF_COPY_DATA)
            server.sql("NOTIFY news")
            assert session.read(20).type == "A"
            session.send(copy_data(1000 * b"x")[15:])
            assert session.query("SELECT 1") == [["1"]]


@pytest.mark.pool_only
def test_forced_migration_switches_backend_for_each_transaction(server):
    if not server.forced:
        pytest.skip("forced migration only")
    with Wire.login("127.0.0.1", server.pool_port) as session:

        def always_moves() -> bool:
            pids = [session.query(ITS_PROCESS)[0][0] for _ in range(11)]
            return all(one != other for one, other in zip(pids, pids[1:]))

        # If no other backend is free for long, the last backend of the session serves it again.
        wait_until(always_moves, what="each transaction is served by another backend than the last")
        session.query("BEGIN")
        assert session.query(ITS_PROCESS) == session.query(ITS_PROCESS)
        session.query("COMMIT")
