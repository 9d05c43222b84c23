"""More sessions want a backend than there are backends: which sessions get a backend, and when."""

from __future__ import annotations

import contextlib
import threading

import pytest
from harness.health import assert_healthy, wait_until
from harness.processes import ITS_PROCESS
from harness.wire import LoginFailed, Wire

pytestmark = pytest.mark.pool_only


def login(cluster, **options) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, **options)


class Crowd:
    """Clients of one role that ask again as soon as they have their answer."""

    def __init__(self, cluster, user: str, clients: int, statement: str) -> None:
        self.cluster, self.user, self.statement = cluster, user, statement
        self.stopping = threading.Event()
        self.served = [0] * clients
        self.failures: list[str] = []
        self.threads = [threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(clients)]

    def __enter__(self) -> Crowd:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), f"a client of {self.user} hangs"

    def _client(self, number: int) -> None:
        try:
            with login(self.cluster, user=self.user, timeout_s=60) as wire:
                while not self.stopping.is_set():
                    wire.query(self.statement, 60)
                    self.served[number] += 1
        except Exception as failure:  # noqa: BLE001
            self.failures.append(f"{type(failure).__name__}: {failure}")

    def wait_until_served(self, times: int = 3) -> None:
        """Waits until each client is served that many times more."""
        wanted = [served + times for served in self.served]
        wait_until(
            lambda: self.failures or all(a >= b for a, b in zip(self.served, wanted)),
            60,
            f"each client of {self.user} is served {times} times more: {self.served}",
        )
        assert not self.failures


@pytest.fixture
def cluster_with(make_cluster):
    def make(*roles, **parameters):
        parameters = {"session_wait_timeout": "20s", **parameters}
        cluster = make_cluster(parameters={f"pg_baton.{name}": value for name, value in parameters.items()})
        cluster.sql("CREATE EXTENSION pg_baton")
        for role in roles:
            cluster.sql(f"CREATE ROLE {role} LOGIN")
        return cluster

    return make


BUSY = "SELECT pg_sleep(0.02)"


def test_pool_with_a_never_empty_queue_gives_a_backend_up(cluster_with):
    cluster = cluster_with("busy", "late", max_backends=4)
    with Crowd(cluster, "busy", 8, BUSY) as busy:
        busy.wait_until_served()
        for _ in range(3):
            with login(cluster, user="late", timeout_s=30) as late:
                assert late.query("SELECT current_user", 30) == [["late"]]
        busy.wait_until_served()
    assert not busy.failures
    assert_healthy(cluster)


def test_new_logins_of_a_busy_role_succeed_after_settings_change(cluster_with):
    cluster = cluster_with("busy", max_backends=4)
    with Crowd(cluster, "busy", 8, BUSY) as busy:
        busy.wait_until_served()
        for work_mem in ("9MB", "10MB"):
            cluster.sql(f"ALTER ROLE busy SET work_mem = '{work_mem}'")
            with login(cluster, user="busy", timeout_s=30) as late:
                assert late.query("SHOW work_mem", 30) == [[work_mem]]
            busy.wait_until_served()
    assert_healthy(cluster)


def test_more_busy_roles_than_backends_are_all_served_alike(cluster_with):
    roles = [f"busy{n}" for n in range(12)]
    cluster = cluster_with(*roles, max_backends=4)
    with contextlib.ExitStack() as stack:
        crowds = [stack.enter_context(Crowd(cluster, role, 1, BUSY)) for role in roles]
        for crowd in crowds:
            crowd.wait_until_served()
        before = [crowd.served[0] for crowd in crowds]

        def served_alike() -> bool:
            more = [crowd.served[0] - count for crowd, count in zip(crowds, before)]
            return sum(more) > 600 and max(more) < 4 * min(more)

        # A role that is served less than others falls behind for ever; a role whose
        # backend stood still for a second has caught up after some more answers.
        wait_until(served_alike, 60, "600 answers, and nobody with four times as many as another")
    assert not any(crowd.failures for crowd in crowds)
    assert_healthy(cluster)


def test_one_client_among_crowds_of_other_roles_is_served(cluster_with):
    cluster = cluster_with("crowd1", "crowd2", "alone", max_backends=2)
    with (
        Crowd(cluster, "crowd1", 10, BUSY) as one,
        Crowd(cluster, "crowd2", 10, BUSY) as two,
        Crowd(cluster, "alone", 1, BUSY) as alone,
    ):
        alone.wait_until_served(10)
        one.wait_until_served()
        two.wait_until_served()
    assert not one.failures + two.failures + alone.failures
    assert_healthy(cluster)


def test_pool_with_a_long_held_backend_gets_another(cluster_with):
    """The other role has no backend to spare, and is served again and again all the same."""
    cluster = cluster_with("busy", "held", max_backends=2, session_wait_timeout="10s")
    with login(cluster, user="held") as holder, Crowd(cluster, "busy", 4, BUSY) as busy:
        holder.query("BEGIN")
        busy.wait_until_served()
        with login(cluster, user="held", timeout_s=30) as second:
            assert second.query("SELECT current_user", 30) == [["held"]]
        busy.wait_until_served()
        holder.query("COMMIT")
    assert not busy.failures
    assert_healthy(cluster)


def test_backends_that_their_sessions_keep_hide_no_other_pool(cluster_with):
    """The largest pool has dedicated backends only, so another pool gives a backend up."""
    cluster = cluster_with("listener", "busy", "late", max_backends=4)
    listeners = [login(cluster, user="listener") for _ in range(3)]
    try:
        for listener in listeners:
            listener.query("LISTEN something")
        with Crowd(cluster, "busy", 4, "SELECT pg_sleep(0.3)") as busy:
            busy.wait_until_served(1)
            for _ in range(3):
                with login(cluster, user="late", timeout_s=30) as late:
                    assert late.query("SELECT current_user", 30) == [["late"]]
            busy.wait_until_served(1)
        assert not busy.failures
    finally:
        for listener in listeners:
            listener.finish()


def test_backends_held_by_transactions_block_no_other_pool(cluster_with):
    """The backends of the largest pool reach no boundary; a backend of a smaller pool does."""
    cluster = cluster_with("held", "busy", "late", max_backends=4)
    holders = [login(cluster, user="held") for _ in range(3)]
    try:
        for holder in holders:
            holder.query("BEGIN")
        with Crowd(cluster, "busy", 4, BUSY) as busy:
            busy.wait_until_served()
            with login(cluster, user="late", timeout_s=30) as late:
                assert late.query("SELECT current_user", 30) == [["late"]]
            busy.wait_until_served()
        assert not busy.failures
    finally:
        for holder in holders:
            holder.finish()


def test_login_that_gave_up_waiting_costs_no_session_a_backend(cluster_with):
    """Both backends are held; the request made to them is forgotten with the login that wanted room."""
    cluster = cluster_with("held", "late", max_backends=2, session_wait_timeout="4s")
    holders = [login(cluster, user="held") for _ in range(2)]
    try:
        pids = []
        for holder in holders:
            holder.query("BEGIN")
            pids += holder.query(ITS_PROCESS)
        with pytest.raises(LoginFailed):
            login(cluster, user="late", timeout_s=30)
        wait_until(lambda: cluster.sql("SELECT sum(waiting) FROM pg_baton_pools") == [(0,)], what="nobody waits")
        # each backend reaches a boundary, after which the request would have ended it
        for holder in holders:
            holder.query("COMMIT")
            holder.query("BEGIN")
        assert sorted(cluster.sql("SELECT pid FROM pg_baton_backends WHERE user_name = 'held'")) == sorted(
            (int(pid),) for (pid,) in pids
        )
    finally:
        for holder in holders:
            holder.finish()


def backends(cluster) -> int:
    return cluster.sql("SELECT count(*) FROM pg_baton_backends WHERE state <> 'retiring'")[0][0]


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_lower_max_backends_follows_a_reload(cluster_with, busy):
    """The number of backends falls to the new limit."""
    cluster = cluster_with("role", max_backends=6, backend_idle_timeout="1h")
    with Crowd(cluster, "role", 12, BUSY) as crowd:
        crowd.wait_until_served()
        wait_until(lambda: backends(cluster) == 6, what="the pool has grown")
        if busy:
            cluster.set_parameters({"pg_baton.max_backends": 2})
            cluster.reload()
            wait_until(lambda: backends(cluster) <= 2, what="backends go at their boundaries")
            crowd.wait_until_served()
    if not busy:
        with login(cluster, user="role") as idle:
            idle.query("SELECT 1")
            cluster.set_parameters({"pg_baton.max_backends": 2})
            cluster.reload()
            wait_until(lambda: backends(cluster) <= 2, what="idle backends go")
            assert idle.query("SELECT 2") == [["2"]]
    assert not crowd.failures
    assert_healthy(cluster)


def test_idle_backends_end_if_the_server_has_no_connection_left(make_cluster):
    """Idle backends of any role and database end: the pool is not full, the server is."""
    cluster = make_cluster(
        parameters={
            "max_connections": 14,
            "superuser_reserved_connections": 3,
            "pg_baton.max_backends": 10,
            "pg_baton.session_wait_timeout": "20s",
        }
    )
    cluster.sql("CREATE ROLE one LOGIN; CREATE ROLE other LOGIN")
    cluster.sql("CREATE DATABASE elsewhere")
    sessions = [login(cluster, user="one") for _ in range(4)]
    direct = []
    try:
        for session in sessions:
            session.query("BEGIN")
        for session in sessions:
            session.query("COMMIT")
        with pytest.raises(LoginFailed):
            while True:
                direct.append(Wire.login("127.0.0.1", cluster.port, user="one"))
        with login(cluster, user="other", database="elsewhere", timeout_s=30) as late:
            assert late.query("SELECT current_user", 30) == [["other"]]
    finally:
        for wire in sessions + direct:
            wire.finish()
