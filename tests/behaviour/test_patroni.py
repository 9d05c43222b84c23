"""Under Patroni, on two nodes: what clients see while nodes change their roles, end and come back, and that no commit
is lost.  The configurations are those of docs/high-availability.md and docs/metrics.md.

A run prints what its sessions saw (pytest -s).  With BATON_TEST_LARGE=1 there are more switchovers and events, and all
of it once more with replication on the server's own port."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
from harness.health import wait_until
from harness.patroni import HAProxy, Node, PatroniCluster, conninfo, example, replaced
from harness.ports import HOST, free_port

pytestmark = [pytest.mark.pool_only, pytest.mark.one_major, pytest.mark.timeout(900)]

LARGE = os.environ.get("BATON_TEST_LARGE", "") not in ("", "0")
only_large = pytest.mark.skipif(not LARGE, reason="BATON_TEST_LARGE")
METRICS = Path(__file__).resolve().parents[2] / "docs/metrics.md"


class Writer(threading.Thread):
    """A client that writes rows, and connects again after an error."""

    def __init__(self, route: str, where: str) -> None:
        super().__init__(daemon=True)
        self.route, self.where = route, where
        self.ends = threading.Event()
        self.committed: list[tuple[int, str, float]] = []  # number of the row, server's address, when it was sent
        self.errors: list[tuple[str, float]] = []

    def run(self) -> None:
        number = 0
        while not self.ends.is_set():
            try:
                with psycopg.connect(self.where, autocommit=True) as connection:
                    while not self.ends.is_set():
                        number += 1
                        began = time.monotonic()
                        row = connection.execute(
                            "INSERT INTO written VALUES (%s, %s) RETURNING host(inet_server_addr())",
                            (self.route, number),
                        ).fetchone()
                        self.committed.append((number, row[0], began))
                        time.sleep(0.01)
            except psycopg.Error as error:
                self.errors.append((error.sqlstate or "closed", time.monotonic()))
                time.sleep(0.05)

    def report(self, moment: float) -> str:
        """The errors and the longest gap between commits since that moment."""
        sent = [began for _, _, began in list(self.committed) if began > moment - 1]
        gap = max(after - before for before, after in pairwise(sent))
        errors = Counter(state for state, when in list(self.errors) if when > moment)
        return f"{dict(errors)}, {gap:.1f} s"

    def since(self, moment: float) -> list[str]:
        """The servers of the commits that were sent after that moment."""
        return [server for _, server, began in list(self.committed) if began > moment]


def end_soon(session: psycopg.Connection) -> str:
    """Ends the transaction after a second; returns the session's setting."""
    if session.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
        session.execute("SELECT pg_sleep(1)")
    value = session.execute("SHOW work_mem").fetchone()[0]
    session.execute("COMMIT")
    return value


class World:
    """The cluster, a writer on each route, and sessions that meet each event."""

    def __init__(self, cluster: PatroniCluster, routes: dict[str, str]) -> None:
        self.cluster, self.routes = cluster, routes
        self.writers = [Writer(route, where) for route, where in routes.items()]
        self.last: dict[tuple[str, str], str] = {}  # what the sessions saw last

    @contextlib.contextmanager
    def event(self, name: str, short: bool = False):
        """What sessions see of an event. After it the leader serves all, and no commit is lost.

        With short, open transactions end by themselves soon after the event has begun."""
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor())
            sessions = {}
            for route, where in self.routes.items():
                for kind in ("idle", "in a transaction"):
                    session = sessions[route, kind] = psycopg.connect(where, autocommit=True)
                    stack.callback(session.close)
                    session.execute("SET work_mem = '7MB'")
                    if kind != "idle":
                        session.execute("BEGIN")
                        session.execute("SELECT count(*) FROM written")
            ending = {key: pool.submit(end_soon, one) for key, one in sessions.items() if short and key[1] != "idle"}
            began = time.monotonic()
            yield
            ended = time.monotonic()
            for key, session in sessions.items():
                try:
                    self.last[key] = ending[key].result() if key in ending else end_soon(session)
                except psycopg.Error as error:
                    self.last[key] = error.sqlstate or "closed"
        self.cluster.wait()
        leader = self.cluster.leader()
        self.assert_served(leader, ended)
        self.assert_pools(leader)
        self.assert_nothing_lost()
        for writer in self.writers:
            seen = {kind: state for (route, kind), state in self.last.items() if route == writer.route}
            print(f"{name}: {writer.route}: {seen}, writer: {writer.report(began)}")

    def assert_served(self, leader: Node, since: float) -> None:
        """Each writer's commits from then on are of this node."""
        wait_until(lambda: all(len(w.since(since)) > 5 for w in self.writers), what="all are served")
        for writer in self.writers:
            assert set(writer.since(since)) == {leader.host}, writer.route

    def assert_pools(self, leader: Node) -> None:
        """Each node has one dispatcher, which serves what the node can."""
        for node in self.cluster.nodes:
            wait_until(lambda node=node: self.in_recovery(node) == (node is not leader), what="its pool serves")
            assert len(node.dispatcher_pids()) == 1
            if node is not leader:
                with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                    node.sql("INSERT INTO written VALUES ('standby', 0)", self.cluster.ports.pool, "app")

    def in_recovery(self, node: Node) -> bool | None:
        """As a client of its pool sees it; None while there is no pool."""
        with contextlib.suppress(psycopg.OperationalError):
            return node.sql("SELECT pg_is_in_recovery()", self.cluster.ports.pool, "app")[0][0]

    def assert_nothing_lost(self) -> None:
        for writer in self.writers:
            committed = {number for number, _, _ in list(writer.committed)}
            rows = self.cluster.leader().sql(f"SELECT n FROM written WHERE writer = '{writer.route}'")
            assert committed <= {number for (number,) in rows}, writer.route

    def __enter__(self) -> World:
        for writer in self.writers:
            writer.start()
        return self

    def __exit__(self, *_) -> None:
        for writer in self.writers:
            writer.ends.set()
        for writer in self.writers:
            writer.join(60)


@pytest.fixture(scope="module", params=["pool", pytest.param("server", marks=only_large)])
def world(run, request):
    """Replication goes through the port of that name."""
    with contextlib.ExitStack() as stack:
        directory = run.directory / f"patroni-{request.param}"
        cluster = stack.enter_context(PatroniCluster(run, directory, request.param == "pool"))
        for statement in (
            "CREATE EXTENSION pg_baton",
            "CREATE ROLE app LOGIN PASSWORD 'secret'",
            "CREATE TABLE written (writer text, n int, PRIMARY KEY (writer, n))",
            "GRANT ALL ON written TO app",
        ):
            cluster.leader().sql(statement)
        ports = {name: free_port() for name in ("primary", "monitored")}
        text = replaced(
            example("listen primary") + example("backend primary", METRICS),
            {
                "10.0.0.10:6543": f"{HOST}:{ports['primary']}",
                "backend primary": f"listen monitored\n    bind {HOST}:{ports['monitored']}",
                "inter 2s": "inter 200ms",
            },
        )
        haproxy = stack.enter_context(HAProxy(directory / "haproxy", cluster.ports.put_into(text)))
        for proxy in ports:
            wait_until(lambda proxy=proxy: haproxy.status(proxy, "two") == "DOWN", what="HAProxy knows the standby")
        nodes = ",".join(node.host for node in cluster.nodes)
        routes = {
            "libpq": conninfo(nodes, cluster.ports.pool, user="app", target_session_attrs="read-write"),
            "HAProxy": conninfo(HOST, ports["primary"], user="app"),
            "HAProxy by the monitor": conninfo(HOST, ports["monitored"], user="app"),
        }
        yield stack.enter_context(World(cluster, routes))


def test_the_standby_comes_and_follows_by_the_pool_s_port(world, request):
    natives = "SELECT user_name FROM pg_baton_sessions WHERE mode = 'native'"
    through_pool = "[pool]" in request.node.name
    assert world.cluster.leader().sql(natives) == ([("replicator",)] if through_pool else [])
    assert "replica has been created using basebackup" in world.cluster.standby().log()


def test_switchovers_lose_no_commit(world):
    for _ in range(10 if LARGE else 2):
        with world.event("switchover"):
            world.cluster.switch_over()
        assert world.last["libpq", "idle"] == "57P01"


def test_transactions_end_before_a_switchover_stops_them(world):
    """The hook before_stop pauses."""
    if not world.cluster.has_before_stop:
        pytest.skip("Patroni 3.0.3 and later have before_stop")
    with world.event("switchover, short transactions", short=True):
        world.cluster.switch_over()
    assert world.last["libpq", "in a transaction"] == "7MB"


def test_a_killed_node_is_replaced_and_rewound(world):
    cluster = world.cluster
    old, new = cluster.leader(), cluster.standby()
    with world.event("SIGKILL"):
        before = old.kill()
        cluster.wait(lambda: cluster.leader() is new, "the standby is promoted")
        wait_until(lambda: not old.processes(), what="nothing of its server is left")
        # What only this node has makes pg_rewind necessary.
        old.write_alone("CREATE TABLE only_here ()")
        old.start()
    assert "running pg_rewind from" in old.log()
    assert old.sql("SELECT to_regclass('only_here')") == [(None,)]
    assert not before & {process.pid for process in old.processes()}


def test_a_parameter_of_the_dcs_reaches_both_pools(world):
    with world.event("reload"):
        world.cluster.configure({"postgresql": {"parameters": {"pg_baton.max_backends": 17}}})
        for node in world.cluster.nodes:
            wait_until(lambda node=node: node.show("pg_baton.max_backends") == "17", what="it counts")
    assert set(world.last.values()) == {"7MB"}


@only_large
def test_a_parameter_of_the_dcs_waits_for_a_restart(world):
    cluster = world.cluster
    leader, standby = cluster.leader(), cluster.standby()
    cluster.configure({"postgresql": {"parameters": {"pg_baton.max_sessions": 5000}}})
    for node in cluster.nodes:
        wait_until(lambda node=node: node.state().get("pending_restart"), what="it waits for a restart")
    with world.event("restart of the standby"):
        standby.restart()
    assert set(world.last.values()) == {"7MB"}
    with world.event("restart of the leader"):
        leader.restart()
    assert cluster.leader() is leader
    assert {node.show("pg_baton.max_sessions") for node in cluster.nodes} == {"5000"}


@only_large
def test_a_standby_that_is_made_anew_disturbs_no_session(world):
    with world.event("reinit of the standby"):
        world.cluster.standby().reinitialize()
    assert set(world.last.values()) == {"7MB"}
