"""One role's many sessions are served by the same backends as another role's and a superuser's, of the same
database: whatever they do, these go on, with pg_baton's defaults."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

import pytest
from harness.health import wait_until
from harness.ports import HOST
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only

# Several times as many as there are backends that sessions share.
CLIENTS = 60
ROUNDS = 3
# Those that compute are so few, on fewer backends: beside some fifty such processes, on two processors, a login at the
# server's own port takes many seconds, as it does beside direct connections.
COMPUTING = 12
FEW_BACKENDS = {"pg_baton__max_backends": 4}

BUSY = "DO $$ DECLARE t timestamptz := clock_timestamp(); BEGIN WHILE clock_timestamp() < t + interval '{}' LOOP END LOOP; END $$"
WIDE = "SELECT repeat('x', 8000000)"


class Crowd:
    """Sessions of `low` that send the same again and again: each as soon as anything of it is answered, or
    without waiting for that, as long as the connection takes it. Answers are thrown away."""

    def __init__(self, cluster, clients: int, texts: list[str], is_eager: bool) -> None:
        self.block = b"".join(query(text) for text in texts)
        self.is_eager = is_eager
        self.ended = threading.Event()
        self.failures: list[str] = []
        self.sockets: list[socket.socket] = []
        for _ in range(clients):
            self.sockets.append(Wire.login(HOST, cluster.pool_port, user="low", timeout_s=60).sock)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        rest = dict.fromkeys(self.sockets, self.block)
        events = selectors.EVENT_READ | selectors.EVENT_WRITE
        for one in self.sockets:
            one.setblocking(False)
            selector.register(one, events)
        while not self.ended.is_set():
            for key, event in selector.select(0.1):
                one = key.fileobj
                try:
                    if event & selectors.EVENT_READ:
                        if not one.recv(1 << 20):
                            raise ConnectionError("closed")
                        if not rest[one]:
                            rest[one] = self.block
                            selector.modify(one, events)
                    if event & selectors.EVENT_WRITE:
                        rest[one] = rest[one][one.send(rest[one]) :]
                        if not rest[one] and self.is_eager:
                            rest[one] = self.block
                        if not rest[one]:
                            selector.modify(one, selectors.EVENT_READ)
                except BlockingIOError:
                    pass
                except OSError as failure:
                    self.failures.append(str(failure))
                    selector.unregister(one)

    def __enter__(self) -> Crowd:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join(20)
        for one in self.sockets:
            one.close()


AT_WORK = {
    "short_transactions": ["SELECT 1"],
    "open_transactions": ["BEGIN", "SELECT 1", "COMMIT"],
    "open_transactions_for_a_while": ["BEGIN", "SELECT pg_sleep(0.2)", "COMMIT"],
    "failed_transactions": ["BEGIN", "SELECT 1 / 0", "ROLLBACK"],
    "computing": [BUSY.format("0.3 s")],
    "changed_state": ["SET my.own = 'x'", "RESET my.own"],
    "temporary_tables": ["CREATE TEMP TABLE IF NOT EXISTS mine (a int)", "DROP TABLE mine"],
    # a process in which that was used is one role's
    "a_library_of_one_role": ["SELECT dblink_get_connections()"],
    "new_sessions_settings": ["ALTER ROLE low SET work_mem = '1MB'", "ALTER ROLE low SET work_mem = '2MB'"],
}


@pytest.mark.parametrize("is_eager", [False, True], ids=["asks", "does_not_wait"])
@pytest.mark.parametrize("texts", [pytest.param(texts, id=name) for name, texts in AT_WORK.items()])
def test_sessions_that_are_always_at_work_stop_no_client(installation, bystanders, texts, is_eager):
    """All of a role's sessions ask again and again."""
    computes = texts == AT_WORK["computing"]
    cluster = installation(max_connections=100, **FEW_BACKENDS if computes else {})
    clients = COMPUTING if computes else CLIENTS
    cluster.sql("CREATE EXTENSION dblink")
    completed = "SELECT completed FROM pg_baton_pool_users WHERE user_name = 'low'"
    with bystanders(cluster) as beside, Crowd(cluster, clients, texts, is_eager) as crowd:
        ((before,),) = cluster.sql(completed)
        beside.all_go_on(ROUNDS)
        wait_until(lambda: cluster.sql(completed)[0][0] > before + clients, what="the crowd is at work")
        beside.all_go_on(ROUNDS)
        assert crowd.thread.is_alive() and not crowd.failures


COMPUTES = [BUSY.format("60 s")]


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(["BEGIN", "SELECT 1"], id="idle_in_transaction"),
        pytest.param(["BEGIN", "SELECT 1 / 0"], id="failed_transaction"),
        pytest.param([WIDE] * 3, id="no_reader"),
        pytest.param(COMPUTES, id="computing"),
        pytest.param(["SELECT pg_sleep(60)"], id="sleeping"),
        pytest.param(["SELECT pg_advisory_lock(1)"], id="waiting_for_each_other"),
    ],
)
def test_sessions_that_hold_backends_stop_no_client(installation, bystanders, texts):
    """All of a role's sessions, more than the server has connections, want to hold a backend."""
    computes = texts == COMPUTES
    cluster = installation(max_connections=100, **FEW_BACKENDS if computes else {})
    with bystanders(cluster) as beside, contextlib.ExitStack() as stack:
        for _ in range(COMPUTING if computes else 2 * CLIENTS):
            wire = stack.enter_context(Wire.login(HOST, cluster.pool_port, user="low", timeout_s=60))
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.send(*[query(text) for text in texts])
        held = "SELECT count(*) FROM pg_baton_sessions WHERE user_name = 'low' AND backend_pid IS NOT NULL"
        shared = 4 if computes else 20
        wait_until(lambda: cluster.sql(held)[0][0] >= shared, what="they have all backends that are shared")
        beside.all_go_on(ROUNDS)
        beside.all_go_on(ROUNDS)
