"""Strangers have the server begin to log them in, more of them than it has connections, and say nothing: others come
in by both ports, those too whose login is the server's to do."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

import pytest
from harness.account import pg_config
from harness.bystanders import Bystander
from harness.cluster import HOST, SUPERUSER
from harness.slow_ldap import SlowLdap
from harness.wire import GSSENC_REQUEST, Wire, startup

pytestmark = pytest.mark.pool_only

# More than max_connections and max_wal_senders.
STRANGERS = 100
# So many that, each after the other, they take longer than anybody waits.
CROWD = 300
ELSEWHERE = "127.0.0.2"
ASKS = startup({"user": "low", "database": "postgres"})
HALF_AN_ANSWER = b"p\0\0\0\x20gue"

# What a stranger says first, and when it is asked.
KINDS = {
    "for_a_password": (ASKS, b""),
    "with_half_an_answer": (ASKS, HALF_AN_ANSWER),
    "for_replication": (startup({"user": "low", "replication": "true"}), b""),
    "for_encryption": (GSSENC_REQUEST, b""),
}


class Strangers:
    """So many connections from there, at all times: who is sent away comes again, if they are to."""

    def __init__(
        self, cluster, source: str, first: bytes, then: bytes, come_again: bool = True, count: int = STRANGERS
    ) -> None:
        self._count = count
        self._port, self._source, self._first, self._then = cluster.pool_port, source, first, then
        self._come_again = come_again
        self._ended = threading.Event()
        self._poll = select.poll()
        self._all: dict[int, socket.socket] = {}
        self._asked: set[int] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _come(self) -> None:
        one = socket.create_connection((HOST, self._port), 20, source_address=(self._source, 0))
        one.sendall(self._first)
        self._all[one.fileno()] = one
        self._poll.register(one, select.POLLIN)

    def _hear(self, number: int) -> None:
        one = self._all[number]
        with contextlib.suppress(OSError):
            if one.recv(4096):
                if number not in self._asked:
                    one.sendall(self._then)
                    self._asked.add(number)
                return
        self._poll.unregister(one)
        self._asked.discard(number)
        self._all.pop(number).close()
        if self._come_again:
            self._come()

    def _run(self) -> None:
        while not self._ended.is_set():
            for number, _ in self._poll.poll(100):
                self._hear(number)

    def __enter__(self) -> Strangers:
        for _ in range(self._count):
            self._come()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        for one in self._all.values():
            one.close()


def add_fellow(cluster, beside, **who: str) -> None:
    """One more bystander, whose login is the server's to do: it comes by the pool's port."""

    def one_round() -> None:
        Wire.login(HOST, cluster.pool_port, timeout_s=20, **who).leave()

    beside.all.append(Bystander("fellow", one_round, beside._ended))


@pytest.fixture
def ldap():
    with SlowLdap(0.05) as service:
        yield service


@pytest.mark.parametrize("kind", KINDS)
def test_strangers_that_ask_and_say_nothing_stop_no_client(installation, bystanders, ldap, kind):
    if kind == "for_encryption" and "gssapi" not in pg_config("configure"):
        pytest.skip("this server is built without GSSAPI")
    cluster = installation()
    cluster.sql("CREATE ROLE fellow LOGIN")
    # nobody needs the first one's server: it is asked when the client has answered
    never = 'ldap ldapserver=127.0.0.1 ldapprefix="cn="'
    lines = [f"hostnossl all low all {never}", "hostgssenc all low all gss", "host replication low all scram-sha-256"]
    cluster.write_hba([*lines, ldap.line("fellow")])
    cluster.reload()
    beside = bystanders(cluster)
    if kind == "for_replication":
        add_fellow(cluster, beside, user=SUPERUSER, database="", replication="true")
    else:
        add_fellow(cluster, beside, user="fellow", password="any")
    with beside, Strangers(cluster, ELSEWHERE, *KINDS[kind]):
        beside.all_go_on(10)
        beside.all_go_on(10)


def test_a_crowd_at_one_s_own_address_is_not_waited_for(installation, bystanders):
    """All logins are the server's to do; who comes after the crowd does not stand behind all of it."""
    cluster = installation(pg_baton__login="server")
    cluster.write_hba(["host all low all scram-sha-256"])
    cluster.reload()
    crowd = Strangers(cluster, HOST, ASKS, b"", come_again=False, count=CROWD)
    with crowd, bystanders(cluster) as beside:
        beside.all_go_on(3)
