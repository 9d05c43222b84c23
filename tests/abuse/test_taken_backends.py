"""One role takes all the backends it can get, and keeps them: another role and a superuser go on."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest
from harness.health import wait_until
from harness.wire import Wire, query, startup

pytestmark = pytest.mark.pool_only

# More than there are connections.
CLIENTS = 50
LOOP = "DO $$ DECLARE t timestamptz := clock_timestamp(); BEGIN WHILE clock_timestamp() < t + interval '15 s' LOOP END LOOP; END $$"
WIDE = "SELECT repeat('x', 8000000)"


@pytest.fixture
def attack():
    """attack(cluster, clients, *texts, **options): sessions of `low` that send these, and read no answer."""
    with contextlib.ExitStack() as stack:

        def begin(cluster, clients: int, *texts: str, role: str = "low", **options) -> list[Wire]:
            wires = []
            for _ in range(clients):
                wire = Wire.open("127.0.0.1", cluster.pool_port)
                stack.callback(wire.close)
                wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                wire.send(startup({"user": role, "database": "postgres", **options}))
                wire.send(*[query(text) for text in texts])
                wires.append(wire)
            return wires

        yield begin


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(["BEGIN", "SELECT 1"], id="idle_in_transaction"),
        pytest.param([WIDE], id="no_reader"),
        pytest.param(["LISTEN something"], id="dedicated"),
        pytest.param(["CREATE TEMP TABLE mine (a int)", "BEGIN"], id="dedicated_in_transaction"),
        pytest.param(["SELECT pg_sleep(600)"], id="sleeps"),
    ],
)
def test_sessions_that_keep_their_backends_stop_no_client(installation, bystanders, attack, texts):
    """Transactions left open, results not read, dedicated sessions: more than the server has connections."""
    cluster = installation(max_connections=40)
    with bystanders(cluster) as beside:
        attack(cluster, CLIENTS, *texts)
        beside.all_go_on(10)
        attack(cluster, CLIENTS, *texts)
        beside.all_go_on(10)


@pytest.mark.parametrize(
    "texts", [pytest.param(["BEGIN", "SELECT 1"], id="idle_in_transaction"), pytest.param([WIDE], id="no_reader")]
)
def test_several_roles_that_idle_in_all_backends_stop_no_client(installation, bystanders, attack, texts):
    """Together they take what is kept for roles with few, too; a role that comes then gets one all the same."""
    cluster = installation(max_connections=40)
    roles = [f"low{number}" for number in range(8)]
    for role in roles:
        cluster.sql(f"CREATE ROLE {role} LOGIN")
    for role in roles:
        attack(cluster, CLIENTS // 2, *texts, role=role)
    # 40, less 3 for superusers and 4 for the server's own port. Of the last ones a role gets some only while it has
    # fewer than are left: how many stay depends on who came first.
    all_places = 33

    def taken() -> int:
        return cluster.sql("SELECT count(*) FROM pg_baton_backends")[0][0]

    def no_more_come() -> bool:
        before = taken()
        time.sleep(2)
        return before >= all_places - len(roles) and taken() == before

    wait_until(no_more_come, what="they have all backends that they get")
    left = all_places - taken()
    # extra_idle_timeout_ms (10 s) is less than a bystander has
    with bystanders(cluster) as beside:
        beside.all_go_on(10)
    ended = cluster.log().count("and others wait in vain")
    assert ended <= 2 * len(roles) and (ended > 0 or left > 0), (ended, left)


def test_sessions_that_compute_stop_no_client(installation, bystanders, attack):
    """In all backends something computes for longer than anybody waits."""
    cluster = installation(max_connections=16)
    with bystanders(cluster) as beside:
        attack(cluster, 20, LOOP)
        beside.all_go_on(5)


@pytest.mark.parametrize("option", ["post_auth_delay", "temp_buffers"])
def test_starting_backends_of_many_kinds_stop_no_client(installation, bystanders, attack, option):
    """Each value is a pool of its own, whose backends start, and with post_auth_delay do not come to the end of it."""
    cluster = installation(max_connections=40)
    with bystanders(cluster) as beside:
        for number in range(CLIENTS):
            attack(cluster, 1, "BEGIN", options=f"-c {option}={100 + number}")
        beside.all_go_on(10)
