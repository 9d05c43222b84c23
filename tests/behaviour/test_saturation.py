"""More sessions want a backend than there are: who gets one, and when."""

from __future__ import annotations

import threading
import time

import pytest

from harness.health import assert_healthy, wait_until
from harness.wire import Wire, query

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

    def __enter__(self) -> "Crowd":
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
        """Each client so often again."""
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
        parameters = {"session_wait_timeout": "10s", **parameters}
        cluster = make_cluster(parameters={f"pg_baton.{name}": value for name, value in parameters.items()})
        cluster.sql("CREATE EXTENSION pg_baton")
        for role in roles:
            cluster.sql(f"CREATE ROLE {role} LOGIN")
        return cluster

    return make


BUSY = "SELECT pg_sleep(0.02)"


def test_a_pool_whose_queue_is_never_empty_gives_a_backend_up(cluster_with):
    cluster = cluster_with("busy", "late", max_backends=4)
    with Crowd(cluster, "busy", 8, BUSY) as busy:
        busy.wait_until_served()
        for _ in range(3):
            with login(cluster, user="late", timeout_s=30) as late:
                assert late.query("SELECT current_user", 30) == [["late"]]
        busy.wait_until_served()
    assert not busy.failures
    assert_healthy(cluster)


def test_new_logins_of_a_busy_role_come_in_after_its_settings_have_changed(cluster_with):
    cluster = cluster_with("busy", max_backends=4)
    with Crowd(cluster, "busy", 8, BUSY) as busy:
        busy.wait_until_served()
        for work_mem in ("9MB", "10MB"):
            cluster.sql(f"ALTER ROLE busy SET work_mem = '{work_mem}'")
            with login(cluster, user="busy", timeout_s=30) as late:
                assert late.query("SHOW work_mem", 30) == [[work_mem]]
            busy.wait_until_served()
    assert_healthy(cluster)
