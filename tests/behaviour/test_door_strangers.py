"""Hostile strangers, in any number, with a load beside them: the clients of the load
notice nothing, and the cost of the strangers has a bound."""

from __future__ import annotations

import resource
import socket
import threading

import pytest
from harness import strangers
from harness.certificates import Authority, make_secure
from harness.health import Load, assert_serves, launcher_stopped, wait_until
from harness.ports import HOST
from harness.processes import memory_kb
from harness.wire import Wire

pytestmark = [pytest.mark.pool_only, pytest.mark.one_major]

WAITING = 300
ATTACKERS = 3
# Memory of the dispatcher for each client that waits: OpenSSL's own of a handshake, and a login: 60 to 80 kB, and
# three times that in one of 18 runs with OpenSSL 3.5 and two threads, as malloc() keeps what a peak has taken.
MOST_KB_EACH = 256
# More users than the dispatcher keeps answers about (launcher.rs).
NEW_USERS = 1100


@pytest.fixture(scope="module")
def server(run):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    cluster = run.cluster(
        "door strangers",
        hba=["host all postgres 127.0.0.9/32 trust", *strangers.RULES],
        # authentication_timeout is longer than the waits below, so that a login that is kept is seen
        parameters={
            "pg_baton.max_backends": 4,
            "pg_baton.max_unauthenticated": WAITING,
            "authentication_timeout": "10min",
            # the server authenticates each such client in a backend, and many of them at a time
            "max_connections": WAITING + 100,
            "max_wal_senders": WAITING,
        },
    )
    make_secure(cluster, Authority(run.directory / "door-strangers"))
    cluster.start()
    for role in strangers.ROLES_SQL:
        cluster.sql(role)
    cluster.sql("CREATE EXTENSION pg_baton")
    yield cluster
    cluster.finish()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Attack:
    """ATTACKERS threads connect without a pause; connections that are held are held to the end."""

    def __init__(self, server, kind) -> None:
        self.stopping = threading.Event()
        self.count = 0
        self.held: list[socket.socket] = []
        self.threads = [threading.Thread(target=self.run, args=(server, kind), daemon=True) for _ in range(ATTACKERS)]

    def run(self, server, kind) -> None:
        while not self.stopping.is_set():
            self.count += 1
            try:
                one = kind(server.pool_port, self.count)
            except (OSError, AssertionError):
                continue
            if one is not None:
                self.held.append(one)
                if len(self.held) > 2 * WAITING:
                    self.held.pop(0).close()

    def __enter__(self) -> Attack:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        for one in self.held:
            one.close()


def accepted(server) -> int:
    return server.sql("SELECT accepted FROM pg_baton_dispatchers")[0][0]


@pytest.mark.parametrize("kind", strangers.KINDS)
def test_strangers_cost_no_client_its_service(server, kind):
    assert_serves(server)
    with Load(server, clients=4, by_tls=2) as load:
        load.wait_for_answers(50)
        before = memory_kb(*server.dispatcher_pids())
        were = accepted(server)
        with Attack(server, kind):
            wait_until(lambda: accepted(server) - were > WAITING + 200, what="strangers at the door")
            load.wait_for_answers(300)
            # A new client can log in, too.  A login by TLS takes longer, and the login that has waited longest
            # from the strangers' address gives way (login/limits.rs), so this client has another address.
            assert_serves(server, source="127.0.0.9" if server.by_tls else "")
            grown = memory_kb(*server.dispatcher_pids()) - before
            (waiting,) = server.sql("SELECT connections FROM pg_baton_dispatchers")[0]
        load.stop()
        assert load.wrong == [] and load.lost == []
    # A stranger may be refused, and cut off.
    assert waiting <= WAITING + 4 + 6 + 2
    assert grown < (WAITING + 50) * MOST_KB_EACH, f"{grown} kB"
    wait_until(
        lambda: server.sql("SELECT connections FROM pg_baton_dispatchers") == [(0,)], what="the strangers' connections"
    )


def test_a_known_user_is_not_asked_about_anew_amid_many_others(server):
    """Otherwise each name without a role would make the next login of every user wait for the server."""

    def comes_in() -> None:
        with Wire.login(HOST, server.pool_port, user="by_scram", database="postgres", password="correct") as wire:
            assert wire.query("SELECT current_user") == [["by_scram"]]

    comes_in()
    for number in range(NEW_USERS):
        strangers.guesses_of_ever_new_users(server.pool_port, number)
    with launcher_stopped(server):
        comes_in()
