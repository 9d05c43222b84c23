"""However many sessions keep a backend, or stop in the middle of something:
the others are served."""

from __future__ import annotations

import contextlib

import pytest

from harness.health import wait_until
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only


def login(cluster, **options) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, **options)


@pytest.fixture
def cluster_with(make_cluster):
    def make(*roles, **parameters):
        server = {name: value for name, value in parameters.items() if name in ("max_connections",)}
        ours = {f"pg_baton.{name}": value for name, value in parameters.items() if name not in server}
        cluster = make_cluster(parameters={"pg_baton.session_wait_timeout": "20s", **server, **ours})
        cluster.sql("CREATE EXTENSION pg_baton")
        for role in roles:
            cluster.sql(f"CREATE ROLE {role} LOGIN")
        return cluster

    return make


@pytest.fixture
def crowd():
    """Sessions that are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(cluster, count: int, **options) -> list[Wire]:
            wires = [login(cluster, **options) for _ in range(count)]
            for wire in wires:
                stack.callback(wire.close)
            return wires

        yield make


def shared_backends(cluster) -> int:
    return cluster.sql("SELECT count(*) FROM pg_baton_backends WHERE dedicated_cause IS NULL AND state <> 'retiring'")[
        0
    ][0]


def dedicated_sessions(cluster) -> int:
    return cluster.sql("SELECT count(*) FROM pg_baton_sessions WHERE mode = 'dedicated'")[0][0]


def test_sessions_that_keep_their_backends_take_none_from_the_others(cluster_with, crowd):
    cluster = cluster_with("listener", "other", max_backends=4)
    listeners = crowd(cluster, 12, user="listener")
    for listener in listeners:
        listener.query("LISTEN something")
    others = crowd(cluster, 8, user="other")
    for other in others:
        assert other.query("SELECT current_user") == [["other"]]
    # And of their own kind, all the same.
    (late,) = crowd(cluster, 1, user="listener")
    late.query("NOTIFY something")
    for listener in listeners:
        assert [message.type for message in listener.read_until("A")][-1] == "A"
    assert dedicated_sessions(cluster) == 12


def test_as_many_backends_are_shared_as_before_when_sessions_are_dedicated_no_more(cluster_with, crowd):
    cluster = cluster_with("role", max_backends=2, backend_idle_timeout="1h")
    sessions = crowd(cluster, 6, user="role")
    for session in sessions:
        session.query("SELECT pg_advisory_lock_shared(1)")
    wait_until(lambda: dedicated_sessions(cluster) == 6, what="six sessions are dedicated")
    for session in sessions:
        session.query("SELECT pg_advisory_unlock_shared(1)")
    wait_until(lambda: shared_backends(cluster) <= 2, what="backends beyond max_backends go")
    for session in sessions:
        assert session.query("SELECT 1") == [["1"]]


def test_beyond_max_dedicated_the_last_session_ends_where_others_would_starve(cluster_with, crowd):
    """Two are dedicated by right, three more in places of the shared ones: as
    long as nobody is in want nobody ends."""
    cluster = cluster_with("keeper", "other", max_backends=4, max_dedicated=2, session_wait_timeout="4s")
    keepers = crowd(cluster, 5, user="keeper")
    for keeper in keepers:
        keeper.query("CREATE TEMP TABLE kept (a int)")
    (other,) = crowd(cluster, 1, user="other")
    assert other.query("SELECT 1") == [["1"]]
    for keeper in keepers:
        assert keeper.query("SELECT count(*) FROM kept") == [["0"]]

    (last,) = crowd(cluster, 1, user="keeper")
    last.query("CREATE TEMP TABLE kept (a int)")
    assert other.query("SELECT 2") == [["2"]]
    (report,) = last.until_closed()
    assert (report.fields()["C"], report.fields()["S"]) == ("53300", "FATAL")
    for keeper in keepers:
        assert keeper.query("SELECT count(*) FROM kept") == [["0"]]


def test_a_dedicated_session_in_a_transaction_is_not_ended(cluster_with, crowd):
    cluster = cluster_with("keeper", "other", max_backends=2, max_dedicated=0, session_wait_timeout="4s")
    first, second = crowd(cluster, 2, user="keeper")
    first.query("LISTEN something")
    second.query("LISTEN something")
    second.query("BEGIN")
    (other,) = crowd(cluster, 1, user="other")
    assert other.query("SELECT 1") == [["1"]]
    assert second.query("SELECT 2") == [["2"]]
    second.query("COMMIT")
    assert first.until_closed()[-1].fields()["C"] == "53300"


def test_500_listening_clients_and_2000_others_work_side_by_side(cluster_with, crowd):
    cluster = cluster_with("listener", "other", max_backends=8, max_connections=1200, session_wait_timeout="30s")
    listeners = crowd(cluster, 500, user="listener")
    others = crowd(cluster, 2000, user="other")
    for listener in listeners:
        listener.query("LISTEN something")
    for round_ in range(3):
        for other in others:
            other.send(query("SELECT 1"))
        for other in others:
            assert other.until_ready(30)[-1].type == "Z"
    assert dedicated_sessions(cluster) == 500
    assert shared_backends(cluster) <= 8
    others[0].query("NOTIFY something")
    for listener in listeners:
        listener.read_until("A", 30)
