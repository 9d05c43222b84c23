"""The pool serves the other sessions however many sessions keep a backend, or stop
in the middle of a message, a batch or a transaction."""

from __future__ import annotations

import contextlib
import time

import pytest
from harness.health import assert_no_backend_lost, wait_until
from harness.wire import Wire, bind, copy_data, copy_done, execute, parse, query, sync

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


def shared_backends(cluster) -> int:
    return cluster.sql("SELECT count(*) FROM pg_baton_backends WHERE dedicated_cause IS NULL AND state <> 'retiring'")[
        0
    ][0]


def states(cluster) -> list[str]:
    return [state for (state,) in cluster.sql("SELECT state FROM pg_baton_sessions")]


def dedicated_sessions(cluster) -> int:
    return cluster.sql("SELECT count(*) FROM pg_baton_sessions WHERE mode = 'dedicated'")[0][0]


def test_sessions_that_keep_backends_take_none_from_others(cluster_with, crowd):
    cluster = cluster_with("listener", "other", max_backends=4)
    listeners = crowd(cluster, 12, user="listener")
    for listener in listeners:
        listener.query("LISTEN something")
    others = crowd(cluster, 8, user="other")
    for other in others:
        assert other.query("SELECT current_user") == [["other"]]
    # Another session of the same role gets a backend all the same.
    (late,) = crowd(cluster, 1, user="listener")
    late.query("NOTIFY something")
    for listener in listeners:
        assert [message.type for message in listener.read_until("A")][-1] == "A"
    assert dedicated_sessions(cluster) == 12


def test_shared_backends_fall_to_max_backends_after_dedication(cluster_with, crowd):
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


def test_last_session_beyond_max_dedicated_ends_if_others_starve(cluster_with, crowd):
    """Two sessions are dedicated within the limit, three more in places of shared
    backends: as long as no session waits in vain, none ends."""
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


# Messages in which a client stops, and how many bytes it sends first; the rest brings the answer.
HALVES = {
    "one_byte": (query("SELECT 42"), 1),
    "header": (query("SELECT 42"), 5),
    "half_a_query": (query("SELECT 42"), 9),
    "half_a_long_query": (query("SELECT 42 /*" + 20_000 * "x" + "*/"), 15_000),
    "half_a_parse": (parse("SELECT 42") + bind() + execute() + sync(), 8),
    "a_batch_without_sync": (parse("SELECT 42") + bind() + execute() + sync(), -5),
    "a_batch_and_half_a_sync": (parse("SELECT 42") + bind() + execute() + sync(), -2),
    "data_of_no_copy": (copy_data(b"x" * 100) + query("SELECT 42"), 50),
}


@pytest.fixture(params=[False, True], ids=["", "forced"])
def stopped(cluster_with, request):
    return cluster_with("sloth", "other", max_backends=2, force_migration=request.param)


def test_clients_that_send_part_of_a_message_hold_up_no_session(stopped, crowd):
    sloths = crowd(stopped, 6, user="sloth")
    others = crowd(stopped, 4, user="other") + crowd(stopped, 4, user="sloth")
    # In the first round, the part belongs to the sessions' first message.
    for half, (whole, sent) in [*HALVES.items(), *HALVES.items()]:
        for sloth in sloths:
            sloth.send(whole[:sent])
        for other in others + others:
            assert other.query("SELECT 7") == [["7"]], half
        states = "SELECT DISTINCT state FROM pg_baton_sessions"
        # over TLS, the part may have come only now, and a backend looks at it
        # one of the two backends runs a whole batch, where the other is free
        held = [("active",), ("idle",)] if half == "a_batch_without_sync" else [("idle",)]
        wait_until(lambda: sorted(stopped.sql(states)) in ([("idle",)], held), what=f"{half}: idle")  # noqa: B023
        for sloth in sloths:
            sloth.send(whole[sent:])
        for sloth in sloths:
            assert [found.row() for found in sloth.until_ready() if found.type == "D"] == [[b"42"]], half
    for sloth in sloths:
        assert sloth.query("SELECT 8") == [["8"]]


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_a_message_that_comes_byte_by_byte_is_answered(stopped, over):
    text = "SELECT '" + 700 * "y" + "'"
    for _ in range(2):
        host = "127.0.0.1" if over == "tcp" else str(stopped.home)
        wire = Wire.login(host, stopped.pool_port, user="sloth")
        with wire:
            for byte in query(text):
                wire.send(bytes([byte]))
            rows = [found.row() for found in wire.until_ready() if found.type == "D"]
            assert rows == [[700 * b"y"]]


def test_idle_session_timeout_ends_clients_amid_a_message(stopped):
    with login(stopped, user="sloth", options="-c idle_session_timeout=1500") as sloth:
        sloth.query("SELECT 1")
        sloth.send(query("SELECT 2")[:3])
        assert sloth.until_closed()[-1].fields()["C"] == "57P05"


def test_client_that_leaves_amid_a_message_costs_no_backend(stopped, crowd):
    for half in ("one_byte", "half_a_query", "a_batch_without_sync"):
        whole, sent = HALVES[half]
        for sloth in crowd(stopped, 3, user="sloth"):
            sloth.send(whole[:sent])
            sloth.close()
    assert_no_backend_lost(stopped)


def test_a_cancel_does_not_hit_a_statement_that_is_not_whole_yet(stopped):
    with login(stopped, user="sloth") as sloth:
        sloth.query("SELECT 1")
        whole = query("SELECT pg_sleep(0.2), 5")
        sloth.send(whole[:7])
        wait_until(lambda: sloth.unread_by_server() == 7, what="half of it has come")
        sloth.cancel_request()
        sloth.send(whole[7:])
        assert [found.type for found in sloth.until_ready()] == ["T", "D", "C", "Z"]


def test_nor_while_its_client_waits_for_a_backend(cluster_with, crowd):
    """A cancel does not hit an incomplete statement that no backend has looked at, either."""
    cluster = cluster_with("role", max_backends=1)
    busy, sloth = crowd(cluster, 2, user="role")
    sloth.query("SELECT 1")
    busy.send(query("BEGIN; SELECT 1"))
    busy.until_ready()
    whole = query("SELECT 'whole'")
    sloth.send(whole[:7])
    waits = "SELECT count(*) FROM pg_baton_sessions WHERE state = 'waiting'"
    wait_until(lambda: cluster.sql(waits) == [(1,)], what="it waits for the only backend")
    sloth.cancel_request()
    sloth.send(whole[7:])
    busy.query("COMMIT")
    assert [found.type for found in sloth.until_ready()] == ["T", "D", "C", "Z"]
    # A cancel hits a waiting client that has sent the whole statement.
    busy.send(query("BEGIN; SELECT 1"))
    busy.until_ready()
    sloth.send(whole)
    wait_until(lambda: cluster.sql(waits) == [(1,)], what="it waits again")
    sloth.cancel_request()
    assert sloth.until_ready()[0].fields()["C"] == "57014"
    busy.query("COMMIT")


@pytest.mark.parametrize("rest", [b"", b"x"], ids=["silent", "dribbling"])
def test_a_large_message_begins_and_its_rest_has_a_limit(cluster_with, crowd, rest):
    cluster = cluster_with("sloth", "other", max_backends=1, message_timeout_ms=1000)
    whole = query("SELECT 42 /*" + 1_000_000 * "x" + "*/")
    (sloth, slow) = crowd(cluster, 2, user="sloth")
    # The slow client sends large pieces, with pauses shorter than the limit.
    for at in range(0, len(whole), 250_000):
        slow.send(whole[at : at + 250_000])
        time.sleep(0.4)
    assert [found.row() for found in slow.until_ready() if found.type == "D"] == [[b"42"]]
    sloth.send(whole[:100_000])
    for _ in range(20 if rest else 0):
        with contextlib.suppress(OSError):
            sloth.send(rest)
        time.sleep(0.1)
    assert sloth.until_closed()[-1].fields()["C"] == "57P05"
    (other,) = crowd(cluster, 1, user="other")
    assert other.query("SELECT 1") == [["1"]]
    assert slow.query("SELECT 1") == [["1"]]


def test_half_a_message_right_behind_a_whole_one_has_a_limit(cluster_with, crowd):
    cluster = cluster_with("sloth", "other", max_backends=2, message_timeout_ms=1000)
    sloths = crowd(cluster, 4, user="sloth")
    for sloth in sloths:
        sloth.send(query("SELECT 42") + query("SELECT 43")[:9])
    (other,) = crowd(cluster, 1, user="other")
    assert other.query("SELECT 1") == [["1"]]
    for sloth in sloths:
        assert [found.fields()["C"] for found in sloth.until_closed() if found.type == "E"] == ["57P05"]


def test_half_an_ignored_message_has_a_limit_and_may_be_slow(cluster_with, crowd):
    cluster = cluster_with("sloth", "other", max_backends=2, message_timeout_ms=1000)
    ignored = copy_data(200_000 * b"x")
    (slow, *sloths) = crowd(cluster, 4, user="sloth")
    slow.send(query("SELECT 42") + ignored[:3])
    slow.until_ready()
    for at in range(3, len(ignored), 70_000):
        slow.send(ignored[at : at + 70_000])
        time.sleep(0.4)
    assert slow.query("SELECT 43") == [["43"]]
    for sloth in sloths:
        sloth.send(query("SELECT 42") + ignored[:9])
    (other,) = crowd(cluster, 1, user="other")
    assert other.query("SELECT 1") == [["1"]]
    for sloth in sloths:
        assert [found.fields()["C"] for found in sloth.until_closed() if found.type == "E"] == ["57P05"]


def test_message_timeout_ends_no_open_batch_right_behind_a_query(cluster_with, crowd):
    cluster = cluster_with("role", max_backends=1, message_timeout_ms=200)
    (wire,) = crowd(cluster, 1, user="role")
    wire.send(query("SELECT 41") + parse("SELECT 42"))
    wire.until_ready()
    time.sleep(1)
    wire.send(bind() + execute() + sync())
    assert [found.row() for found in wire.until_ready() if found.type == "D"] == [[b"42"]]


def test_message_timeout_does_not_end_a_long_copy(cluster_with, crowd):
    cluster = cluster_with("role", max_backends=1, message_timeout_ms=300)
    cluster.sql("CREATE TABLE copied (a text); GRANT ALL ON copied TO role")
    (wire,) = crowd(cluster, 1, user="role")
    # The statement itself is large enough to be timed.
    wire.send(query("COPY copied FROM STDIN /*" + 40_000 * "x" + "*/"))
    wire.read_until("G")
    for _ in range(12):
        wire.send(copy_data(b"row\n")[:7])
        time.sleep(0.1)
        wire.send(copy_data(b"row\n")[7:])
    wire.send(copy_done())
    assert wire.until_ready()[0].body == b"COPY 12\0"


EXTRA = {"max_extra_backends": -1, "session_wait_timeout": "30s"}


def test_transactions_left_open_stop_no_other_session(cluster_with, crowd):
    cluster = cluster_with("holder", "other", max_backends=2, **EXTRA)
    holders = crowd(cluster, 7, user="holder")
    for holder in holders:
        holder.query("BEGIN")
    others = crowd(cluster, 3, user="other") + crowd(cluster, 3, user="holder")
    for other in others:
        assert other.query("SELECT 1") == [["1"]]
    for holder in holders:
        holder.query("COMMIT")
    wait_until(lambda: shared_backends(cluster) <= 2, what="those that were added go")
    for session in holders + others:
        assert session.query("SELECT 2") == [["2"]]


def test_backends_waiting_for_a_lock_let_the_lock_holder_in(cluster_with, crowd):
    """All eight backends wait, and the session that holds the lock waits in the queue behind many others."""
    cluster = cluster_with("role", max_backends=8, **EXTRA)
    holder, *others = crowd(cluster, 8 + 1 + 20, user="role")
    # A prepared transaction holds its lock while its session has no backend.
    cluster.sql("CREATE TABLE locked (a int); GRANT ALL ON locked TO role; INSERT INTO locked VALUES (1)")
    holder.query("BEGIN; UPDATE locked SET a = 2; PREPARE TRANSACTION 'held'")
    for session in others:
        session.send(query("UPDATE locked SET a = a + 1"))
    wait_until(lambda: states(cluster).count("waiting") >= 20, what="the others wait in the queue")
    holder.send(query("COMMIT PREPARED 'held'"))
    for session in (holder, *others):
        assert not [found for found in session.until_ready() if found.type == "E"]
    assert holder.query("SELECT a FROM locked") == [[str(2 + len(others))]]
    wait_until(lambda: shared_backends(cluster) <= 8, what="those that were added go")


def test_no_backend_is_added_beyond_the_bound(cluster_with, crowd):
    cluster = cluster_with("role", max_backends=2, max_extra_backends=1, session_wait_timeout="4s")
    holders = crowd(cluster, 3, user="role")
    for holder in holders:
        holder.query("BEGIN")
    (late,) = crowd(cluster, 1, user="role")
    late.send(query("SELECT 1"))
    assert late.read_until("E")[-1].fields()["C"] == "53300"
    assert len(cluster.sql("SELECT 1 FROM pg_baton_backends")) == 3
    for holder in holders:
        holder.query("COMMIT")


def test_open_transactions_get_a_silent_database_s_backend(cluster_with, crowd):
    """Of four backends three are in transactions that stay open, and one has served another database's idle session."""
    cluster = cluster_with(max_backends=4, max_extra_backends=0, session_wait_timeout="8s")
    cluster.sql("CREATE DATABASE silent")
    (silent,) = crowd(cluster, 1, database="silent")
    assert silent.query("SELECT 1") == [["1"]]
    holders = crowd(cluster, 4)
    for holder in holders:
        assert holder.query("BEGIN") == []
    for holder in holders:
        holder.query("COMMIT")
    assert silent.query("SELECT current_database()") == [["silent"]]


def test_an_idle_client_ends_for_a_role_without_a_backend(cluster_with, crowd):
    """Of the role with most backends, the client idle for longest ends; none without a limit, or for its own role."""
    options = {"max_backends": 2, "max_extra_backends": 1, "session_wait_timeout": "60s"}
    cluster = cluster_with("one", "two", "other", extra_idle_timeout_ms=0, **options)
    (two,) = crowd(cluster, 1, user="two")
    first, second, third = crowd(cluster, 3, user="one")
    (other,) = crowd(cluster, 1, user="other")
    for holder in (two, first, second):
        holder.query("BEGIN")
    other.send(query("SELECT 1"))
    assert other.silent(3)
    cluster.set_parameters({"pg_baton.extra_idle_timeout_ms": 1000})
    cluster.reload()
    assert [found.row() for found in other.until_ready() if found.type == "D"] == [[b"1"]]
    last = first.read_until("E")[-1].fields()
    assert (last["C"], "kept a backend idle" in last["D"]) == ("25P03", True)
    other.query("BEGIN")
    third.send(query("SELECT 1"))
    assert third.silent(3)
    for holder in (second, two, other):
        holder.query("COMMIT")
    assert third.until_ready()[-1].type == "Z"
    assert cluster.log().count("and others wait in vain") == 1
