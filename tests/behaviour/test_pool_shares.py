"""Who has which share of too few backends is the administrator's to say, role by
role, and how long a backend lives."""

from __future__ import annotations

import contextlib
import select
import threading
import time

import pytest

from harness.health import wait_until
from harness.pool_levels import assert_closest_counts
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster(make_cluster):
    one = make_cluster(parameters={"pg_baton.max_backends": 4, "pg_baton.session_wait_timeout": "60s"})
    one.sql("CREATE EXTENSION pg_baton")
    one.sql("CREATE ROLE quiet LOGIN")
    one.sql("CREATE ROLE busy LOGIN")
    return one


@contextlib.contextmanager
def always_asking(cluster, *users: str, clients: int):
    """So many clients of each that ask again as soon as they are answered; how many were."""
    wires = [Wire.login("127.0.0.1", cluster.pool_port, user=user) for user in users for _ in range(clients)]
    stop = threading.Event()
    answers = 0

    def ask() -> None:
        nonlocal answers
        for wire in wires:
            wire.send(query("SELECT pg_sleep(0.002)"))
        while not stop.is_set():
            ready, _, _ = select.select([wire.sock for wire in wires], [], [], 0.2)
            for wire in [wire for wire in wires if wire.sock in ready]:
                wire.until_ready()
                answers += 1
                wire.send(query("SELECT pg_sleep(0.002)"))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield lambda: answers
    finally:
        stop.set()
        thread.join(30)
        for wire in wires:
            wire.close()


def backends(cluster, user: str) -> list[int]:
    rows = cluster.sql(
        f"SELECT pid FROM pg_baton_backends WHERE user_name = '{user}' AND state NOT IN ('starting', 'retiring')"
        " ORDER BY pid"
    )
    return [pid for (pid,) in rows]


def test_backends_that_are_reserved_for_a_role_go_for_no_other(cluster):
    cluster.sql("ALTER ROLE quiet SET pg_baton.pool_reserve = 2")
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire.login("127.0.0.1", cluster.pool_port, user="quiet")) for _ in range(2)]
        for wire in wires:
            wire.send(query("SELECT pg_sleep(0.1)"))
        for wire in wires:
            wire.until_ready()
        kept = backends(cluster, "quiet")
        assert len(kept) == 2
        with always_asking(cluster, "busy", clients=12):
            wait_until(lambda: len(backends(cluster, "busy")) == 2, what="the others have what is left")
            stack.enter_context(pytest.raises(AssertionError))
            # For longer than any backend is left alone that nobody uses.
            wait_until(lambda: backends(cluster, "quiet") != kept, timeout_s=2, what="they go")


def test_what_is_reserved_no_more_is_for_those_who_wait(cluster):
    cluster.sql("ALTER ROLE quiet SET pg_baton.pool_reserve = 2")
    with Wire.login("127.0.0.1", cluster.pool_port, user="quiet") as wire:
        wire.query("SELECT 1")
        cluster.sql("ALTER ROLE quiet SET pg_baton.pool_reserve = 0")
        cluster.sql("ALTER ROLE busy SET pg_baton.pool_reserve = 4")
        with always_asking(cluster, "busy", clients=12):
            wait_until(lambda: len(backends(cluster, "busy")) >= 3, what="they have what they need")
            # Not all are ever reserved: who comes gets his turn.
            assert wire.query("SELECT current_user") == [["quiet"]]


def test_busy_roles_share_by_their_weights(cluster):
    cluster.sql("ALTER ROLE quiet SET pg_baton.pool_weight = 300")
    with always_asking(cluster, "busy", "quiet", clients=8):
        wait_until(
            lambda: (len(backends(cluster, "quiet")), len(backends(cluster, "busy"))) == (3, 1),
            timeout_s=30,
            what="three to one",
        )
        cluster.sql("ALTER ROLE quiet SET pg_baton.pool_weight = 33")
        cluster.sql("ALTER ROLE busy SET pg_baton.pool_weight = 100")
        wait_until(
            lambda: (len(backends(cluster, "quiet")), len(backends(cluster, "busy"))) == (1, 3),
            timeout_s=30,
            what="one to three",
        )


def test_busy_roles_of_equal_weight_come_to_equal_shares_and_stay(cluster):
    """However many the one had when the other came: sessions of neither wait for long."""
    with always_asking(cluster, "busy", clients=12) as answers:
        wait_until(lambda: len(backends(cluster, "busy")) == 4, what="the first have all")
        with always_asking(cluster, "quiet", clients=12):

            def shared() -> bool:
                return [len(backends(cluster, user)) for user in ("busy", "quiet")] == [2, 2]

            wait_until(shared, timeout_s=60, what="two to two")
            kept, answered = backends(cluster, "busy"), answers()
            wait_until(lambda: answers() > answered + 1000, timeout_s=60, what="a thousand answers more")
            assert backends(cluster, "busy") == kept


@pytest.fixture
def eight(make_cluster):
    """With what pool_levels.py wants; and busy's own weight and reserve are its own."""
    one = make_cluster(parameters={"pg_baton.max_backends": 8, "pg_baton.session_wait_timeout": "60s"})
    for statement in (
        "CREATE EXTENSION pg_baton",
        "CREATE ROLE quiet LOGIN",
        "CREATE ROLE busy LOGIN",
        "CREATE ROLE owner LOGIN",
        "CREATE DATABASE elsewhere",
        "ALTER ROLE busy IN DATABASE postgres SET pg_baton.pool_weight = 1000",
        "ALTER ROLE busy IN DATABASE postgres SET pg_baton.pool_reserve = 0",
    ):
        one.sql(statement)
    return one


def test_the_weight_that_is_set_most_closely_counts_for_a_running_pool(eight):
    """Much higher than the other role's, or much lower."""

    def who_has_more() -> str:
        quiet, busy = (len(backends(eight, user)) for user in ("quiet", "busy"))
        return "quiet" if quiet > 2 * busy else "busy" if busy > 2 * quiet else "neither"

    with always_asking(eight, "busy", "quiet", clients=12):
        given = (10000, 50, 10000, 50, 10000)
        expected = ("quiet", "busy", "quiet", "busy", "quiet")
        assert_closest_counts(eight, "quiet", "pool_weight", given, expected, "busy", who_has_more)


def test_the_reserve_that_is_set_most_closely_counts_for_a_running_pool(eight, crowd):
    """What a role keeps that has asked for much, once, beside one that always does."""
    wires = crowd(eight, 8, user="quiet")

    def kept() -> int | None:
        """None: it has not come to rest."""
        for wire in wires:
            wire.send(query("SELECT pg_sleep(0.05)"))
        for wire in wires:
            wire.until_ready()
        time.sleep(0.5)
        counts = []
        for _ in range(10):
            time.sleep(0.1)
            counts.append(len(backends(eight, "quiet")))
        return counts[0] if len(set(counts)) == 1 else None

    with always_asking(eight, "busy", clients=12):
        levels = (5, 2, 4, 6, 3)
        assert_closest_counts(eight, "quiet", "pool_reserve", levels, levels, 1, kept)


def test_a_backend_is_replaced_when_its_time_is_over(cluster):
    # On a loaded machine a pool may begin with two; the one that is looked at shall be the only one.
    cluster.sql("ALTER ROLE busy SET pg_baton.pool_max_backends = 1")
    with Wire.login("127.0.0.1", cluster.pool_port, user="busy") as wire:
        wire.query("SELECT 1")
        ((first,),) = [backends(cluster, "busy")]
        cluster.set_parameters({"pg_baton.backend_lifetime": "500ms"})
        cluster.reload()
        # A transaction is not cut short.
        wire.query("BEGIN")
        with contextlib.suppress(AssertionError):
            wait_until(lambda: backends(cluster, "busy") != [first], timeout_s=3)
        assert backends(cluster, "busy") == [first]
        wire.query("COMMIT")
        wait_until(lambda: wire.query("SELECT 1") and first not in backends(cluster, "busy"), what="another serves it")
