"""However large messages are, however many are sent at once, and in whatever pieces
they come: each is answered, in order, as on the server's port."""

from __future__ import annotations

import psycopg
import pytest
from harness.wire import Wire, bind, execute, flush, parse, query, sync


@pytest.mark.timeout(240)
def test_messages_of_200_megabytes_both_ways(server):
    size = 200 * 1024 * 1024
    with Wire.login("127.0.0.1", server.pool_port, timeout_s=120) as session:
        big = b"x" * size
        found = session.ask(
            parse("SELECT length($1::bytea)") + bind([big], formats=[1]) + execute() + sync(), timeout_s=120
        )
        assert [m.row() for m in found if m.type == "D"] == [[str(size).encode()]]
        assert session.query("SELECT 1") == [["1"]]
        found = session.ask(query(f"SELECT repeat('y', {size})"), timeout_s=120)
        (row,) = [m.row() for m in found if m.type == "D"]
        assert row[0] is not None and len(row[0]) == size and row[0].count(b"y") == size
        found = session.ask(query("SELECT length('" + "z" * size + "')"), timeout_s=120)
        assert [m.row() for m in found if m.type == "D"] == [[str(size).encode()]]
        assert session.query("SELECT 2") == [["2"]]


def test_large_copy_both_ways(server):
    server.sql("CREATE TABLE IF NOT EXISTS big_copy (a int, b text)")
    server.sql("TRUNCATE big_copy")
    with psycopg.connect(server.pool(), autocommit=True) as session:
        with session.cursor().copy("COPY big_copy FROM STDIN") as copy:
            for block in range(200):
                copy.write("".join(f"{block * 1000 + n}\t{'v' * 80}\n" for n in range(1000)))
        assert session.execute("SELECT count(*), sum(a) FROM big_copy").fetchone() == (200000, 199999 * 100000)
        total = 0
        with session.cursor().copy("COPY big_copy TO STDOUT") as copy:
            for data in copy:
                total += bytes(data).count(b"\n")
        assert total == 200000
    server.sql("DROP TABLE big_copy")


def test_many_batches_sent_at_once_are_answered_in_order(server):
    with Wire.login("127.0.0.1", server.pool_port) as session:
        count = 2000
        session.send(*[parse(f"SELECT {n}") + bind([]) + execute() + sync() for n in range(count)])
        for n in range(count):
            found = session.until_ready()
            assert [m.row() for m in found if m.type == "D"] == [[str(n).encode()]]


def test_many_simple_queries_sent_at_once_are_answered_in_order(server):
    with Wire.login("127.0.0.1", server.pool_port) as session:
        session.send(*[query(f"SELECT {n}") for n in range(2000)])
        for n in range(2000):
            assert [m.row() for m in session.until_ready() if m.type == "D"] == [[str(n).encode()]]


def test_pipelines_of_many_sessions_at_once(server):
    sessions = [Wire.login("127.0.0.1", server.pool_port) for _ in range(10)]
    try:
        for number, session in enumerate(sessions):
            session.send(*[parse(f"SELECT {number * 1000 + n}") + bind([]) + execute() + sync() for n in range(100)])
        for number, session in enumerate(sessions):
            for n in range(100):
                found = session.until_ready()
                assert [m.row() for m in found if m.type == "D"] == [[str(number * 1000 + n).encode()]]
    finally:
        for session in sessions:
            session.finish()


@pytest.mark.parametrize("pause_s", [0.0, 0.01])
def test_messages_may_come_byte_by_byte(server, pause_s):
    import time

    with Wire.login("127.0.0.1", server.pool_port) as session:
        for part in (query("SELECT 'slow'"), parse("SELECT 'slow'") + bind([]) + execute() + sync()):
            for n in range(len(part)):
                session.send(part[n : n + 1])
                time.sleep(pause_s if n < 12 else 0)
            assert [m.row() for m in session.until_ready() if m.type == "D"] == [[b"slow"]]


def test_answers_before_sync_come_when_flush_asks(server):
    with Wire.login("127.0.0.1", server.pool_port) as session:
        session.send(parse("SELECT 1") + flush())
        assert session.read().type == "1"
        session.send(bind([]) + flush())
        assert session.read().type == "2"
        session.send(execute() + flush())
        assert session.read().type == "D"
        assert session.read().type == "C"
        assert session.ask(sync())[-1].body == b"I"


def test_large_object_of_many_pages(server):
    with psycopg.connect(server.pool()) as session:
        (oid,) = session.execute("SELECT lo_from_bytea(0, convert_to(repeat('0123456789', 100000), 'UTF8'))").fetchone()
        session.commit()
        (length,) = session.execute("SELECT length(lo_get(%s))", (oid,)).fetchone()
        assert length == 1000000
        session.execute("SELECT lo_unlink(%s)", (oid,))
        session.commit()
