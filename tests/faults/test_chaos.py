"""Sessions with random state keep it, whatever happens to the dispatcher: each client compares its session with a model.

BATON_TEST_CHAOS_S=600 makes it last ten minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Iterator

import pytest
from harness.cluster import HOST, SUPERUSER
from harness.health import DISPATCHER_KILLED, assert_healthy, wait_until, wait_until_replaced
from harness.wire import Closed, LoginFailed, QueryFailed, Wire

pytestmark = pytest.mark.pool_only

SECONDS = float(os.environ.get("BATON_TEST_CHAOS_S", "12"))
CLIENTS = 12
IDLE_SESSIONS = 40


class Session:
    """A client's session, and the state that it must have."""

    def __init__(self, cluster, number: int) -> None:
        self.random = random.Random(number)
        self.cluster = cluster
        self.number = number
        self.rows = 0
        self.longest_s = 0.0
        self.operations = [value for name, value in sorted(vars(Session).items()) if name.startswith("does_")]
        self.log_in()

    def log_in(self) -> None:
        port, name = self.cluster.pool_port, f"client {self.number}"
        self.wire = Wire.login(HOST, port, user=SUPERUSER, timeout_s=60, application_name=name)
        self.settings: dict[str, str] = {}
        self.statements: dict[str, str] = {}
        self.tables: dict[str, int] = {}
        self.drawn: str | None = None
        self.listens = False

    def query(self, sql: str) -> list[list[str | None]]:
        began = time.monotonic()
        rows = self.wire.query(sql)
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        return rows

    def value(self) -> str:
        return f"{self.number}-{self.random.randrange(10**9)}" + "x" * self.random.choice([0, 0, 0, 3000])

    # ---- what it does --------------------------------------------------------

    def does_set(self) -> None:
        name, value = self.random.choice(["my.a", "my.b", "my.c"]), self.value()
        self.query(f"SET {name} = '{value}'")
        self.settings[name] = value

    def does_set_in_vain(self) -> None:
        self.query("BEGIN")
        self.query(f"SET my.a = '{self.value()}'; SET LOCAL my.b = '{self.value()}'")
        self.query("ROLLBACK")

    def does_reset(self) -> None:
        self.query("RESET ALL")
        self.settings = {}

    def does_prepare(self) -> None:
        name, value = self.random.choice(["one", "other"]), self.value()
        if name in self.statements:
            self.query(f"DEALLOCATE {name}")
        self.query(f"PREPARE {name} AS SELECT '{value}'")
        self.statements[name] = value

    def does_draw(self) -> None:
        ((self.drawn,),) = self.query("SELECT nextval('drawn')")

    def does_write(self) -> None:
        self.query("BEGIN")
        self.query(f"INSERT INTO kept VALUES ({self.number})")
        self.query("COMMIT")
        self.rows += 1

    def does_use_a_temporary_table(self) -> None:
        if self.tables and self.random.random() < 0.7:
            name, _ = self.tables.popitem()
            self.query(f"DROP TABLE {name}")
        else:
            self.query("CREATE TEMP TABLE IF NOT EXISTS mine (n int)")
            self.query("INSERT INTO mine VALUES (1)")
            self.tables["mine"] = self.tables.get("mine", 0) + 1

    def does_listen(self) -> None:
        self.listens = not self.listens
        self.query("LISTEN here" if self.listens else "UNLISTEN *")

    def does_fail(self) -> None:
        with pytest.raises(QueryFailed, match="22012"):
            self.query("SELECT 1 / 0")

    def does_pause(self) -> None:
        time.sleep(self.random.uniform(0, 0.1))

    # ---- what it must have ---------------------------------------------------

    def check(self) -> None:
        shown = self.query("SELECT " + ", ".join(f"current_setting('my.{name}', true)" for name in "abc"))
        assert [value or None for value in shown[0]] == [self.settings.get(f"my.{name}") for name in "abc"]
        for name, value in self.statements.items():
            assert self.query(f"EXECUTE {name}") == [[value]]
        assert self.query("SELECT name FROM pg_prepared_statements ORDER BY 1") == [
            [it] for it in sorted(self.statements)
        ]
        if self.drawn is not None:
            assert self.query("SELECT currval('drawn')") == [[self.drawn]]
        for name, rows in self.tables.items():
            assert self.query(f"SELECT count(*) FROM {name}") == [[str(rows)]]
        assert self.query("SELECT count(*) FROM pg_listening_channels()") == [["1" if self.listens else "0"]]
        assert self.query("SELECT pg_backend_pid()") == [[str(self.wire.backend_pid)]]
        assert self.query(f"SELECT count(*) FROM kept WHERE client = {self.number}") == [[str(self.rows)]]

    def live(self, over: threading.Event) -> None:
        while not over.is_set():
            for _ in range(self.random.randrange(8)):
                self.random.choice(self.operations)(self)
            self.check()
            if self.random.random() < 0.05:
                self.wire.close()
                self.come_again()

    def come_again(self) -> None:
        """A client that is about to log in may be turned away when the dispatcher ends."""
        for _ in range(100):
            try:
                return self.log_in()
            except (Closed, LoginFailed, OSError):
                time.sleep(0.05)
        raise AssertionError("it cannot log in")


@contextlib.contextmanager
def living(sessions: list[Session]) -> Iterator[list[str]]:
    """Each session lives in a thread of its own. Gives the list of failures, which grows meanwhile."""
    failures: list[str] = []
    over = threading.Event()

    def live(session: Session) -> None:
        try:
            session.live(over)
        except BaseException:
            failures.append(f"client {session.number}: {traceback.format_exc(limit=4)}")

    threads = [threading.Thread(target=live, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        over.set()
        for thread in threads:
            thread.join(90)
    assert not any(thread.is_alive() for thread in threads), "a client hangs"


class Events:
    """What happens to the dispatcher; each is over when another one, or the same, serves."""

    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self.count: dict[str, int] = {}

    def dispatcher(self) -> int:
        wait_until(self.cluster.dispatcher_pids, what="a dispatcher")
        return self.cluster.dispatcher_pids()[0]

    def end(self, by: signal.Signals) -> None:
        old = self.dispatcher()
        os.kill(old, by)
        wait_until_replaced(self.cluster, old)

    def killed(self) -> None:
        self.end(signal.SIGKILL)

    def asked_to_end(self) -> None:
        self.end(signal.SIGTERM)

    def killed_while_it_starts(self) -> None:
        self.killed()
        time.sleep(random.uniform(0, 0.1))
        self.killed()

    def reloaded(self) -> None:
        self.cluster.sql("SELECT pg_reload_conf()")

    def paused(self) -> None:
        self.cluster.sql("SELECT pg_baton_pause(timeout => '10 s')")
        time.sleep(0.2)
        self.cluster.sql("SELECT pg_baton_resume()")

    def happen(self, until: float) -> None:
        kinds = [self.killed, self.killed, self.asked_to_end, self.killed_while_it_starts, self.reloaded, self.paused]
        while time.monotonic() < until:
            time.sleep(random.uniform(0.5, 2))
            event = random.choice(kinds)
            event()
            self.count[event.__name__] = self.count.get(event.__name__, 0) + 1


def test_sessions_keep_their_state_whatever_happens_to_the_dispatcher(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 20, "max_connections": 60})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE SEQUENCE drawn")
    cluster.sql("CREATE TABLE kept (client int)")
    cluster.expect_in_log(DISPATCHER_KILLED)
    idle = [Session(cluster, 1000 + number) for number in range(IDLE_SESSIONS)]
    for session in idle:
        for _ in range(5):
            session.does_set()
            session.does_prepare()
        session.does_draw()
    busy = [Session(cluster, number) for number in range(CLIENTS)]
    events = Events(cluster)
    with living(busy) as failures:
        events.happen(time.monotonic() + SECONDS)
    print(f"{events.count}, {len(failures)} failures, longest {max(it.longest_s for it in busy):.3f} s")
    assert failures == []
    for session in idle:
        session.check()
    for session in idle + busy:
        session.wire.close()
    assert_healthy(cluster)
