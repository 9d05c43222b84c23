"""An administrator sets each role's share of too few backends, and the lifetime of
backends."""

from __future__ import annotations

import contextlib
import select
import statistics
import threading

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
    """So many clients of each user ask again as soon as they have an answer; gives the number of answers."""
    wires = [Wire.login("127.0.0.1", cluster.pool_port, user=user) for user in users for _ in range(clients)]
    stop = threading.Event()
    answers = 0

    def ask() -> None:
        nonlocal answers
        for wire in wires:
            wire.send(query("SELECT pg_sleep(0.03)"))
        while not stop.is_set():
            ready, _, _ = select.select([wire.sock for wire in wires], [], [], 0.2)
            for wire in [wire for wire in wires if wire.sock in ready]:
                wire.until_ready()
                answers += 1
                wire.send(query("SELECT pg_sleep(0.03)"))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield lambda: answers
    finally:
        stop.set()
        thread.join(30)
        for wire in wires:
            wire.close()


def completed(cluster) -> dict[str, int]:
    return dict(cluster.sql("SELECT user_name, completed FROM pg_baton_pool_users"))


def shares(cluster, transactions: int) -> tuple[int, int]:
    """How many transactions quiet and busy complete each, of so many together."""
    before = completed(cluster)

    def since(user: str) -> int:
        return completed(cluster)[user] - before[user]

    wait_until(lambda: since("quiet") + since("busy") >= transactions, timeout_s=60, what="so many transactions")
    return since("quiet"), since("busy")


def served(cluster, user: str) -> int:
    """How many of a role's sessions have a backend, most of the time."""
    sql = f"SELECT count(*) FROM pg_baton_sessions WHERE user_name = '{user}' AND state = 'active'"
    return statistics.median_low(cluster.sql(sql)[0][0] for _ in range(21))


def test_backends_that_are_reserved_for_a_role_serve_no_other(cluster, crowd):
    cluster.sql("ALTER ROLE quiet SET pg_baton.pool_reserve = 2")
    (quiet,) = crowd(cluster, 1, user="quiet")
    with always_asking(cluster, "busy", clients=12):
        wait_until(lambda: served(cluster, "busy") == 2, what="the others have what is left")
        assert quiet.query("SELECT current_user") == [["quiet"]]
        # Reserved backends stay reserved while idle, however long the others wait.
        assert served(cluster, "busy") == 2
        quiet.finish()
        wait_until(lambda: served(cluster, "busy") == 4, what="nobody is there for whom anything is reserved")


def test_backends_no_longer_reserved_serve_waiting_sessions(cluster, crowd):
    cluster.sql("ALTER ROLE quiet SET pg_baton.pool_reserve = 3")
    (quiet,) = crowd(cluster, 1, user="quiet")
    with always_asking(cluster, "busy", clients=12):
        wait_until(lambda: served(cluster, "busy") == 1, what="the other has what is left")
        cluster.sql("ALTER ROLE quiet SET pg_baton.pool_reserve = 0")
        wait_until(lambda: served(cluster, "busy") == 4, what="they have what they need")
        assert quiet.query("SELECT current_user") == [["quiet"]]


def test_busy_roles_share_by_their_weights(cluster):
    cluster.sql("ALTER ROLE quiet SET pg_baton.pool_weight = 300")
    with always_asking(cluster, "busy", "quiet", clients=8):
        wait_until(lambda: (pair := shares(cluster, 400))[0] > 2 * pair[1], timeout_s=60, what="three to one")
        cluster.sql("ALTER ROLE quiet SET pg_baton.pool_weight = 33")
        cluster.sql("ALTER ROLE busy SET pg_baton.pool_weight = 100")
        wait_until(lambda: (pair := shares(cluster, 400))[1] > 2 * pair[0], timeout_s=60, what="one to three")


def test_equal_weights_give_equal_shares_at_any_client_count(cluster):
    with always_asking(cluster, "busy", clients=30), always_asking(cluster, "quiet", clients=5):
        quiet, busy = shares(cluster, 1000)
        assert 0.6 < quiet / busy < 1.6


@pytest.fixture
def eight(make_cluster):
    """A cluster as pool_levels.py needs it; the role busy has a weight and a reserve of its own."""
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


def test_most_specific_weight_counts_for_a_running_pool(eight):
    """The weight is much higher than the other role's, or much lower."""

    def who_has_more() -> str:
        quiet, busy = shares(eight, 300)
        return "quiet" if quiet > 2 * busy else "busy" if busy > 2 * quiet else "neither"

    with always_asking(eight, "busy", "quiet", clients=12):
        given = (10000, 50, 10000, 50, 10000)
        expected = ("quiet", "busy", "quiet", "busy", "quiet")
        assert_closest_counts(eight, "quiet", "pool_weight", given, expected, "busy", who_has_more)


def test_most_specific_reserve_counts_for_a_running_pool(eight, crowd):
    """Another role cannot have the reserved backends, however many of its sessions ask."""
    crowd(eight, 1, user="quiet")
    with always_asking(eight, "busy", clients=16):
        levels = (5, 2, 4, 6, 3)
        assert_closest_counts(eight, "quiet", "pool_reserve", levels, levels, 0, lambda: 8 - served(eight, "busy"))


def test_a_backend_is_replaced_when_its_time_is_over(cluster):
    def there(pid: int) -> bool:
        return cluster.sql(f"SELECT count(*) FROM pg_baton_backends WHERE pid = {pid}") == [(1,)]

    cluster.sql("SELECT 1")
    with Wire.login("127.0.0.1", cluster.pool_port, user="busy") as wire:
        cluster.set_parameters({"pg_baton.backend_lifetime": "500ms"})
        cluster.reload()
        # A transaction is not cut short.
        wire.query("BEGIN")
        first = cluster.sql("SELECT backend_pid FROM pg_baton_sessions WHERE user_name = 'busy'")[0][0]
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not there(first), timeout_s=3)
        assert there(first)
        wire.query("COMMIT")
        wait_until(lambda: wire.query("SELECT 1") and not there(first), what="another serves it")
