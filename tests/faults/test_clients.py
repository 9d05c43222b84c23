"""Clients that die at the worst moment harm no other session."""

from __future__ import annotations

import struct
import time

import pytest
from harness.health import assert_healthy, assert_no_backend_lost, assert_serves, wait_until
from harness.processes import ITS_PROCESS
from harness.wire import Wire, bind, copy_data, execute, parse, query, startup, sync, terminate

SETUP = ["CREATE TABLE target (a int, b text)"]
PARAMETERS = {"pg_baton.max_backends": 3, "tcp_keepalives_idle": 5}

HOWS = ["close", "reset", "finish"]


def login(server, **options) -> Wire:
    return Wire.login("127.0.0.1", server.pool_port, **options)


def leave(wire: Wire, how: str) -> None:
    getattr(wire, how)()


@pytest.mark.parametrize("how", HOWS)
def test_client_leaves_while_idle(server, how):
    for _ in range(10):
        wire = login(server)
        wire.query("SELECT 1")
        leave(wire, how)
    assert_healthy(server)


@pytest.mark.parametrize("how", HOWS)
def test_client_leaves_right_after_login(server, how):
    for _ in range(10):
        leave(login(server), how)
    assert_healthy(server)


@pytest.mark.parametrize("how", HOWS)
def test_client_leaves_in_a_transaction(server, how):
    for _ in range(6):
        wire = login(server)
        wire.query("BEGIN")
        wire.query("INSERT INTO target VALUES (1, 'never')")
        leave(wire, how)
    for _ in range(6):
        wire = login(server)
        wire.query("BEGIN")
        wire.send(query("SELECT 1/0"))
        wire.until_ready()
        leave(wire, how)
    assert_healthy(server)
    assert server.sql("SELECT count(*) FROM target") == [(0,)]


def test_a_function_that_catches_all_commits_nothing_without_client(server):
    """The loss of the client is found when a notice cannot be sent."""
    wire = login(server)
    wire.send(
        query(
            "DO $$BEGIN FOR i IN 1..300 LOOP BEGIN"
            " PERFORM pg_sleep(0.005); RAISE NOTICE '%', repeat('x', 100);"
            " EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP;"
            " INSERT INTO target VALUES (2, 'never'); END$$"
        )
    )
    time.sleep(0.3)
    wire.reset()
    done = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'"
    wait_until(lambda: server.sql(done) == [(0,)], what="the function has ended")
    assert server.sql("SELECT count(*) FROM target WHERE a = 2") == [(0,)]
    assert_healthy(server)


@pytest.mark.pool_only
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("last", ["SELECT 1", "SELECT 1/0", "SELECT repeat('x', 1000) FROM generate_series(1, 20000)"])
def test_backend_of_a_client_gone_in_a_transaction_shows_idle(server, how, last):
    wire = login(server)
    wire.query("BEGIN")
    ((pid,),) = wire.query(ITS_PROCESS)
    wire.send(query(last))
    time.sleep(0.1)
    leave(wire, how)
    wait_until(lambda: server.sql("SELECT count(*) FROM pg_baton_sessions") == [(0,)], what="the session has ended")
    assert server.sql(f"SELECT state FROM pg_stat_get_activity({pid})") == [("idle",)]
    assert server.sql(f"SELECT state FROM pg_stat_activity WHERE pid = {pid}") == [], "it is nobody's"


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("part", [1, 3, 5, 20, 100])
def test_client_leaves_in_the_middle_of_a_message(server, how, part):
    whole = query("SELECT 'this text must never reach another session' || '" + "x" * 200 + "'")
    with login(server) as witness:
        for _ in range(4):
            wire = login(server)
            wire.query("SELECT 1")
            wire.send(whole[:part])
            time.sleep(0.02)
            leave(wire, "close" if how == "finish" else how)
            for n in range(3):
                assert witness.query(f"SELECT {n}") == [[str(n)]]
    assert_healthy(server)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_client_leaves_in_the_middle_of_a_huge_message(server, how):
    for _ in range(3):
        wire = login(server)
        wire.send(b"Q" + struct.pack("!I", 50_000_000) + b"SELECT '" + b"x" * 1_000_000)
        time.sleep(0.05)
        leave(wire, how)
    assert_healthy(server)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_client_leaves_between_messages_of_a_batch(server, how):
    for _ in range(5):
        wire = login(server)
        wire.send(parse("INSERT INTO target VALUES (2, 'never')"), bind([]), execute())
        time.sleep(0.05)
        leave(wire, how)
    # 'X' inside an open batch ends the session as well.
    for _ in range(5):
        wire = login(server)
        wire.send(parse("SELECT 1"), bind([]), execute())
        wire.finish()
    assert_healthy(server)
    assert server.sql("SELECT count(*) FROM target") == [(0,)]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_client_leaves_while_copying_in(server, how):
    for amount in (0, 10, 100_000):
        for _ in range(3):
            wire = login(server)
            wire.send(query("COPY target FROM STDIN"))
            assert wire.read().type == "G"
            if amount:
                wire.send(*[copy_data(b"1\tnever\n")] * amount)
            leave(wire, how)
    wire = login(server)
    wire.send(query("COPY target FROM STDIN"))
    wire.read()
    wire.send(copy_data(b"1\tnever\n")[:7])
    leave(wire, how)
    assert_healthy(server)
    assert server.sql("SELECT count(*) FROM target") == [(0,)]


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 200000)) TO STDOUT",
        "SELECT repeat('x', 1000) FROM generate_series(1, 200000)",
    ],
    ids=["copy", "select"],
)
def test_client_leaves_while_its_result_streams(server, how, sql):
    for _ in range(4):
        wire = login(server)
        wire.send(query(sql))
        wire.read_bytes(20000)
        leave(wire, how)
    assert_healthy(server)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_client_leaves_while_its_statement_runs(server, how):
    """As in stock the statement goes on to its end; then the backend is free."""
    for _ in range(3):
        wire = login(server)
        wire.send(query("SELECT pg_sleep(0.5)"))
        time.sleep(0.1)
        leave(wire, how)
    assert_healthy(server)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_client_leaves_while_it_waits_for_a_backend(server, how):
    holders = [login(server) for _ in range(3)]
    for holder in holders:
        holder.query("BEGIN")
    for _ in range(5):
        wire = login(server)
        wire.send(query("INSERT INTO target VALUES (3, 'maybe')"))
        time.sleep(0.02)
        leave(wire, how)
    time.sleep(0.2)
    for holder in holders:
        holder.query("COMMIT")
        holder.finish()
    assert_healthy(server)
    server.sql("TRUNCATE target")


@pytest.mark.pool_only
def test_a_slow_reader_holds_only_its_own_backend(server):
    slow = login(server)
    with login(server) as other, login(server) as third:
        slow.send(query("SELECT repeat('x', 1000) FROM generate_series(1, 50000)"))
        time.sleep(0.3)
        for n in range(20):
            assert other.query(f"SELECT {n}") == [[str(n)]]
            assert third.query(f"SELECT {n}") == [[str(n)]]
        rows = 0
        while True:
            message = slow.read()
            rows += message.type == "D"
            if message.type == "Z":
                break
            if rows % 5000 == 0:
                time.sleep(0.01)
        assert rows == 50000
        assert slow.query("SELECT 1") == [["1"]]
        slow.finish()
    assert_healthy(server)


def test_a_listener_that_does_not_read_can_be_terminated(server):
    for port in (server.port, server.pool_port):
        with Wire.login(str(server.home), port) as listener:
            listener.query("LISTEN news")
            pid = listener.backend_pid
            server.sql("SELECT pg_notify('news', repeat('x', 7000) || i) FROM generate_series(1, 100) i")
            waits = f"SELECT state FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'ClientWrite'"
            wait_until(lambda: server.sql(waits) == [("idle",)], what="the backend waits for its client to read")
            assert server.sql(f"SELECT pg_terminate_backend({pid})") == [(True,)]
            there = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"
            wait_until(lambda: server.sql(there) == [(0,)], what="the session has ended")
            assert all(m.type == "A" for m in listener.until_closed())
    assert_serves(server)


def test_many_clients_die_at_random_under_load(server):
    import random

    chance = random.Random(4711)
    with login(server) as witness:
        witness.query("SET my.witness = 'still me'")
        for turn in range(150):
            wire = login(server)
            action = chance.randrange(7)
            if action == 0:
                wire.send(query("SELECT 1")[: chance.randrange(1, 12)])
            elif action == 1:
                wire.send(query("BEGIN; SELECT 1"), query("SELECT 2")[:4])
            elif action == 2:
                wire.send(parse("SELECT 1"), bind([]))
            elif action == 3:
                wire.send(query("COPY target FROM STDIN"), copy_data(b"1\tx\n"))
            elif action == 4:
                wire.send(*[query("SELECT repeat('y', 100000)")] * 5)
            elif action == 5:
                wire.send(parse("SELECT 1") + bind([]) + execute() + sync() + parse("SELECT 2"))
            leave(wire, chance.choice(HOWS) if action != 3 else "reset")
            if turn % 3 == 0:
                assert witness.query("SHOW my.witness") == [["still me"]]
    assert_healthy(server)
    assert server.sql("SELECT count(*) FROM target") == [(0,)]


# -- garbage ---------------------------------------------------------------------


def test_every_byte_value_as_first_byte_of_a_connection(server):
    for value in range(256):
        wire = Wire.open("127.0.0.1", server.pool_port)
        wire.send(bytes([value]) * 9)
        wire.close()
    assert_healthy(server)


def test_every_byte_value_as_message_type_of_a_session(server):
    with login(server) as witness:
        for value in range(256):
            wire = login(server)
            wire.send(bytes([value]) + struct.pack("!I", 9) + b"SEL\0\0")
            wire.send(sync())
            try:
                wire.until_ready(2)
            except Exception:
                pass
            wire.close()
            if value % 16 == 0:
                assert witness.query("SELECT 1") == [["1"]]
    assert_healthy(server)


@pytest.mark.parametrize("length", [0, 1, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3FFFFFFF])
def test_oversized_and_undersized_lengths(server, length):
    for kind in (b"Q", b"P", b"B", b"X", b"d", b"S", b"p"):
        wire = login(server)
        wire.send(kind + struct.pack("!I", length) + b"x" * 100)
        try:
            wire.until_closed(1)
        except TimeoutError:
            pass
        wire.close()
    for prefix in (b"", b"\x00\x03\x00\x00"):
        wire = Wire.open("127.0.0.1", server.pool_port)
        wire.send(struct.pack("!I", length) + prefix + b"x" * 50)
        wire.close()
    assert_healthy(server)


def test_half_a_startup_packet(server):
    whole = startup({"user": "postgres", "database": "postgres"})
    for part in range(len(whole)):
        wire = Wire.open("127.0.0.1", server.pool_port)
        wire.send(whole[:part])
        (wire.reset if part % 2 else wire.close)()
    # Bytes that are sent one at a time make a whole packet in the end.
    wire = Wire.open("127.0.0.1", server.pool_port)
    for n in range(len(whole)):
        wire.send(whole[n : n + 1])
    assert wire.until_ready()[-1].type == "Z"
    wire.finish()
    assert_healthy(server)


def test_startup_and_first_query_in_one_packet(server):
    wire = Wire.open("127.0.0.1", server.pool_port)
    wire.send(startup({"user": "postgres", "database": "postgres"}) + query("SELECT 'early'") + query("SELECT 'bird'"))
    wire.until_ready()
    assert [m.row() for m in wire.until_ready() if m.type == "D"] == [[b"early"]]
    assert [m.row() for m in wire.until_ready() if m.type == "D"] == [[b"bird"]]
    wire.finish()


def test_random_bytes_in_place_of_messages(server):
    import random

    chance = random.Random(815)
    with login(server) as witness:
        for turn in range(80):
            wire = login(server) if turn % 2 else Wire.open("127.0.0.1", server.pool_port)
            try:
                wire.send(chance.randbytes(chance.randrange(1, 3000)))
                wire.until_closed(0.05)
            except (OSError, Exception):
                pass
            wire.close()
            assert witness.query("SELECT 1") == [["1"]]
    assert_healthy(server)


@pytest.mark.pool_only
def test_half_open_connections_do_not_keep_others_out(server):
    silent = [Wire.open("127.0.0.1", server.pool_port) for _ in range(100)]
    try:
        assert_serves(server)
    finally:
        for wire in silent:
            wire.close()
    wait_until(lambda: server.sql("SELECT connections FROM pg_baton_dispatchers") == [(0,)], what="no connection left")
    assert_no_backend_lost(server)


def backend_pids(server) -> set[int]:
    """The PIDs of the backends that are there; a backend that starts has none yet."""
    return {pid for (pid,) in server.sql("SELECT pid FROM pg_baton_backends WHERE pid IS NOT NULL")}


def ask_and_terminate(wire: Wire, begin: bool) -> None:
    if begin:
        wire.query("BEGIN")
    wire.send(parse("SELECT 1"), bind(), execute(), sync(), terminate())
    wire.until_closed()


def ask_and_vanish(wire: Wire, begin: bool) -> None:
    if begin:
        wire.query("BEGIN")
    wire.send(query("SELECT repeat('x', 1000) FROM generate_series(1, 20000)"))
    time.sleep(0.02)
    wire.reset()


@pytest.mark.parametrize("begin", [False, True], ids=["idle", "in-transaction"])
@pytest.mark.parametrize("leave_how", [ask_and_terminate, ask_and_vanish])
def test_a_crowd_that_leaves_costs_no_backend(server, leave_how, begin):
    """After Terminate behind the last request, or a result that the client does not read, the
    session ends and the backend serves on. Else a restarted application forks all backends anew."""
    assert_serves(server)
    before = backend_pids(server)
    for _ in range(20):
        leave_how(login(server), begin)
    assert_healthy(server)
    assert before and before <= backend_pids(server)


def test_batch_that_loses_its_client_midway_does_not_commit(server):
    """The client is lost while the first Execute sends its last data, where the server
    looks for no cancel before it reads the next message."""
    server.sql("CREATE TABLE IF NOT EXISTS of_the_lost (a int)")
    for port in (server.port, server.pool_port):
        wire = Wire.login("127.0.0.1", port)
        wire.send(
            parse("SELECT repeat('x', 20000000)") + bind() + execute(rows=1),
            parse("INSERT INTO of_the_lost VALUES (1)") + bind() + execute() + sync(),
        )
        waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"
        wait_until(lambda: server.sql(waits), what="the answer waits for its reader")
        wire.reset()
        runs = (
            "SELECT pid FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND state <> 'idle' AND pid <> pg_backend_pid()"
        )
        wait_until(lambda: not server.sql(runs), what="the batch has ended")
        with Wire.login("127.0.0.1", server.pool_port) as other:
            assert other.query("SELECT count(*) FROM of_the_lost") == [["0"]]
    assert_no_backend_lost(server)
