"""A notification names the session that sent it, whichever backend served it."""

from __future__ import annotations

import random

import pytest
from harness.wire import Message, Wire, query

SETUP = ["CREATE EXTENSION pg_baton"]
PARAMETERS = {"pg_baton.max_backends": 2}


def open_wire(server, **options) -> Wire:
    return Wire.login("127.0.0.1", server.pool_port, **options)


def listener(server, port: str, **options) -> Wire:
    wire = Wire.login("127.0.0.1", getattr(server, port), **options)
    wire.query("LISTEN news")
    return wire


def told(message: Message, encoding: str = "utf-8") -> tuple[int, str, str]:
    channel, payload = message.body[4:-1].decode(encoding).split("\0")
    return int.from_bytes(message.body[:4], "big"), channel, payload


def notifications(wire: Wire, count: int, statement: str = "SELECT 1") -> list[tuple[int, str, str]]:
    """The first so many, of the statement's answer and after it."""
    found = [m for m in wire.ask(query(statement)) if m.type == "A"]
    while len(found) < count:
        found += [m for m in wire.read_until("A", 20) if m.type == "A"]
    return [told(m) for m in found]


@pytest.mark.parametrize("port", ["pool_port", "port"])
def test_a_notification_names_the_session_that_sent_it(server, port):
    """Sessions take turns on the same backends, and send the same."""
    with listener(server, port) as wire:
        senders = [open_wire(server) for _ in range(5)]
        expected = []
        for turn in range(30):
            sender = senders[turn * 7 % 5]
            sender.query("NOTIFY news" if turn % 2 else "SELECT pg_notify('news', '')")
            expected.append((sender.backend_pid, "news", ""))
        assert notifications(wire, 30) == expected
        for sender in senders:
            sender.finish()


@pytest.mark.parametrize("port", ["pool_port", "port"])
def test_a_notification_read_long_after_names_its_sender(server, port):
    """Backends have served others since; some transactions came to nothing; there
    are more than a page of the queue holds."""
    rolls = random.Random(11)
    with listener(server, port) as wire:
        wire.query("BEGIN")
        senders = [open_wire(server) for _ in range(7)]
        expected = []
        for _ in range(400):
            sender = rolls.choice(senders)
            payload = "x" * rolls.choice((0, 5, 900))
            how = rolls.randrange(5)
            if how == 0:
                sender.query(f"BEGIN; NOTIFY news, '{payload}'; ROLLBACK")
                continue
            if how == 1:
                sender.query(f"BEGIN; SAVEPOINT a; NOTIFY news, '{payload}'; ROLLBACK TO a; COMMIT")
                continue
            if how == 2:
                sender.query(
                    f"BEGIN; NOTIFY news, '{payload}'; NOTIFY news, 'second'; NOTIFY news, '{payload}'; COMMIT"
                )
                expected.append((sender.backend_pid, "news", payload))
                expected.append((sender.backend_pid, "news", "second"))
                continue
            sender.query(
                f"DO $$BEGIN PERFORM pg_notify('news', '{payload}'); END$$" if how == 3 else f"NOTIFY news, '{payload}'"
            )
            expected.append((sender.backend_pid, "news", payload))
        for sender in senders:
            sender.finish()
        with open_wire(server) as other:
            other.query("NOTIFY elsewhere")
            other.query("SELECT 1")
        assert notifications(wire, len(expected), "COMMIT") == expected


def test_what_a_failed_commit_leaves_queued_is_no_session_s(server):
    """A serialization failure comes when the notification is in the queue already."""
    server.sql("CREATE TABLE skewed AS SELECT 1 AS a")
    with listener(server, "port") as wire:
        wire.query("BEGIN")
        expected = []
        for turn in range(6):
            with open_wire(server) as one, open_wire(server) as other, open_wire(server) as quiet:
                for session in (one, other):
                    session.query("BEGIN ISOLATION LEVEL SERIALIZABLE")
                    session.query("SELECT sum(a) FROM skewed")
                for session in (one, other):
                    session.query("INSERT INTO skewed VALUES (1)")
                    session.query("NOTIFY news")
                assert not [m for m in one.ask(query("COMMIT")) if m.type == "E"]
                assert [m.fields()["C"] for m in other.ask(query("COMMIT")) if m.type == "E"] == ["40001"]
                expected.append((one.backend_pid, "news", ""))
                # Either backend is the next.
                for _ in range(turn % 3):
                    quiet.query("SELECT 1")
                for _ in range(3):
                    with open_wire(server) as third:
                        third.query("NOTIFY news")
                        expected.append((third.backend_pid, "news", ""))
        assert notifications(wire, len(expected), "COMMIT") == expected


def test_a_session_knows_its_own_notifications_from_others(server):
    """LISTEN clients drop those that they have sent themselves, by the sender's number."""
    with listener(server, "pool_port") as wire, open_wire(server) as other:
        wire.query("NOTIFY other_news")
        other.query("NOTIFY news, 'theirs'")
        assert notifications(wire, 2, "NOTIFY news, 'mine'") == [
            (other.backend_pid, "news", "theirs"),
            (wire.backend_pid, "news", "mine"),
        ]


def test_senders_are_known_to_a_client_of_another_encoding(server):
    with listener(server, "pool_port", client_encoding="LATIN1") as wire, open_wire(server) as sender:
        for _ in range(2):
            sender.query("NOTIFY news, 'grün'")
            assert told(wire.read_until("A", 20)[-1], "latin-1") == (sender.backend_pid, "news", "grün")


def test_a_direct_session_s_notification_names_its_process(server):
    with listener(server, "pool_port") as wire, Wire.login("127.0.0.1", server.port) as sender:
        sender.query("NOTIFY news")
        assert notifications(wire, 1) == [(sender.backend_pid, "news", "")]


@pytest.mark.pool_only
def test_a_c_trigger_s_notification_names_session_or_process(server):
    """contrib/tcn calls the server's function without SQL: a listener that is faster
    than the sender's commit is told the process, never another session."""
    server.sql("CREATE EXTENSION IF NOT EXISTS tcn")
    server.sql("CREATE TABLE watched (id int PRIMARY KEY)")
    server.sql(
        "CREATE TRIGGER tell AFTER INSERT ON watched FOR EACH ROW EXECUTE FUNCTION triggered_change_notification('news')"
    )
    with listener(server, "port") as wire, open_wire(server) as one, open_wire(server) as two:
        wire.query("BEGIN")
        for number in range(20):
            (one if number % 2 else two).query(f"INSERT INTO watched VALUES ({number})")
        found = [sender for sender, _, _ in notifications(wire, 20, "COMMIT")]
        assert found == [two.backend_pid, one.backend_pid] * 10
