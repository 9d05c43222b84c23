"""Sessions with random state keep it, whatever happens to the server's processes: each client compares its session
with a model. If the server ends or crashes, those are lost that a direct connection would lose while it does something.

BATON_TEST_CHAOS_S=600 makes it last ten minutes, BATON_TEST_CHAOS_IDLE=1000 gives it as many idle sessions.
By TLS (BATON_TEST_TLS), a third of the clients have none.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import pytest
from harness.cluster import HOST, SUPERUSER
from harness.health import CRASH, DISPATCHER_KILLED, assert_healthy, hold_for, stop, wait_until, wait_until_replaced
from harness.wire import Closed, LoginFailed, QueryFailed, Wire

pytestmark = pytest.mark.pool_only

SECONDS = float(os.environ.get("BATON_TEST_CHAOS_S", "12"))
CLIENTS = 12
IDLE_SESSIONS = int(os.environ.get("BATON_TEST_CHAOS_IDLE", "40"))
# Seconds for which a session that has done something may stay on its backend.
LINGERS_S = 2.0
ALARMS_OF_CHAOS = (
    DISPATCHER_KILLED,
    *CRASH,
    r"terminating background worker \"pg_baton launcher\"",
    r"the process of TLS relays has ended",
)

GONE = (Closed, OSError)


class Session:
    """A client's session, and the state that it must have."""

    def __init__(self, cluster, number: int) -> None:
        self.random = random.Random(number)
        self.cluster = cluster
        self.number = number
        self.rows = 0
        self.longest_s = 0.0
        self.commits = False
        self.lost = 0
        self.operations = [value for name, value in sorted(vars(Session).items()) if name.startswith("does_")]
        self.log_in()

    def log_in(self) -> None:
        port, name = self.cluster.pool_port, f"client {self.number}"
        plain = self.number % 3 == 0
        self.wire = Wire.login(HOST, port, user=SUPERUSER, timeout_s=60, plain=plain, application_name=name)
        self.settings: dict[str, str] = {}
        self.statements: dict[str, str] = {}
        self.tables: dict[str, int] = {}
        self.drawn: str | None = None
        self.listens = False
        self.is_in_transaction = False
        self.busy_since = self.answered = time.monotonic()

    def query(self, sql: str) -> list[list[str | None]]:
        began = time.monotonic()
        if not self.is_in_transaction:
            self.busy_since = began
        rows = self.wire.query(sql)
        self.answered = time.monotonic()
        self.is_in_transaction = sql == "BEGIN" or self.is_in_transaction and sql not in ("COMMIT", "ROLLBACK")
        self.longest_s = max(self.longest_s, self.answered - began)
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
        self.commits = True
        self.query("COMMIT")
        self.rows += 1
        self.commits = False

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

    def live(self, over: threading.Event, events: Events) -> None:
        while not over.is_set():
            for _ in range(self.random.randrange(8)):
                self.attempt(self.random.choice(self.operations), events)
            self.attempt(Session.check, events)
            if self.random.random() < 0.05:
                self.wire.close()
                self.come_again()

    def attempt(self, operation: Callable[[Session], None], events: Events) -> None:
        """Does it. The session may be lost if the server ended while a backend had it."""
        was_dedicated = self.listens or bool(self.tables)
        try:
            operation(self)
        except GONE:
            assert events.may_have_ended(self, was_dedicated), (
                f"lost; its request is of {self.busy_since}, {events.ends}"
            )
            self.lost += 1
            self.come_again()
            self.attempt(Session.find_its_rows, events)

    def find_its_rows(self) -> None:
        """Those that it has been told of are there, and one more at most, if its COMMIT had no answer."""
        ((rows,),) = self.query(f"SELECT count(*) FROM kept WHERE client = {self.number}")
        assert int(rows) in ([self.rows, self.rows + 1] if self.commits else [self.rows])
        self.rows, self.commits = int(rows), False

    def come_again(self) -> None:
        """A client that is about to log in may be turned away when the dispatcher ends, or the server."""
        until = time.monotonic() + 60
        while True:
            try:
                return self.log_in()
            except (*GONE, LoginFailed):
                assert time.monotonic() < until, "it cannot log in"
                time.sleep(0.05)


@contextlib.contextmanager
def living(sessions: list[Session], *how: object) -> Iterator[list[str]]:
    """Each session lives in a thread of its own, `how`. Gives the list of failures, which grows meanwhile."""
    failures: list[str] = []
    over = threading.Event()

    def live(session: Session) -> None:
        try:
            session.live(over, *how)
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
    """What happens to the server's processes; each is over when another one, or the same, does its work."""

    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self.count: dict[str, int] = {}
        # when the server's processes had gone (as long as they go, infinite), and whether they were told to
        self.ends: list[tuple[float, bool]] = []
        self.kinds = [value for name, value in sorted(vars(Events).items()) if name.startswith("is_")]

    def may_have_ended(self, session: Session, was_dedicated: bool) -> bool:
        """A backend that is told to end gives back what no transaction needs; one that is killed does not."""
        return any(
            (was_dedicated and session.answered < gone)
            or session.busy_since < gone
            or (not is_polite and session.answered > gone - LINGERS_S)
            for gone, is_polite in self.ends
        )

    def dispatcher(self) -> int:
        wait_until(self.cluster.dispatcher_pids, what="a dispatcher")
        return self.cluster.dispatcher_pids()[0]

    def processes(self, command: str) -> list[int]:
        return [process.pid for process in self.cluster.processes() if process.command.startswith(command)]

    def one_process(self, command: str) -> int:
        wait_until(lambda: self.processes(command), what=command)
        return self.processes(command)[0]

    # ---- which cost no session -------------------------------------------------

    def end(self, by: signal.Signals) -> None:
        old = self.dispatcher()
        os.kill(old, by)
        wait_until_replaced(self.cluster, old)

    def is_dispatcher_killed(self) -> None:
        self.end(signal.SIGKILL)

    def is_dispatcher_killed_twice(self) -> None:
        self.end(signal.SIGKILL)
        time.sleep(random.uniform(0, 0.1))
        self.end(signal.SIGKILL)

    def is_dispatcher_asked_to_end(self) -> None:
        self.end(signal.SIGTERM)

    def is_dispatcher_stopped(self) -> None:
        old = self.dispatcher()
        stop(old)
        wait_until_replaced(self.cluster, old)

    def is_dispatcher_restarted(self) -> None:
        self.cluster.sql("SELECT pg_baton_restart_dispatcher()")

    def is_keeper_killed(self) -> None:
        self.cluster.wait_pool_ready()
        old = self.one_process("baton-keeper")
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: self.processes("baton-keeper") not in ([], [old]), what="another keeper")

    def is_keeper_stopped(self) -> None:
        self.continued_after(self.one_process("baton-keeper"))

    def is_relay_killed(self) -> None:
        """It takes the sessions by TLS with it: only it has their keys."""
        if not self.cluster.by_tls:
            old = self.dispatcher()
            os.kill(self.one_process("baton-relay"), signal.SIGKILL)
            wait_until_replaced(self.cluster, old)

    def is_backend_stopped(self) -> None:
        for (pid,) in self.cluster.sql("SELECT pid FROM pg_baton_backends ORDER BY random() LIMIT 1"):
            self.continued_after(pid)

    def continued_after(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            stop(pid)
            time.sleep(random.uniform(0, 0.5))
            os.kill(pid, signal.SIGCONT)

    def is_launcher_ended(self) -> None:
        old = self.one_process("postgres: pg_baton launcher")
        os.kill(old, signal.SIGTERM)
        # a connection wakes the postmaster of 15 (Cluster.wait_for_takeover)
        wait_until(
            lambda: self.cluster.sql("SELECT 1") and self.processes("postgres: pg_baton launcher") not in ([], [old]),
            what="another launcher",
        )

    def is_reloaded(self) -> None:
        self.cluster.sql("SELECT pg_reload_conf()")

    def is_paused(self) -> None:
        self.cluster.sql("SELECT pg_baton_pause(timeout => '10 s')")
        time.sleep(0.2)
        self.cluster.sql("SELECT pg_baton_resume()")

    # ---- which cost those that do something --------------------------------------

    @contextlib.contextmanager
    def ending(self, is_polite: bool) -> Iterator[None]:
        self.ends.append((math.inf, is_polite))
        yield
        self.ends[-1] = (time.monotonic(), is_polite)

    def stops(self, by: signal.Signals) -> None:
        with self.ending(by in (signal.SIGTERM, signal.SIGINT)):
            self.cluster.process.send_signal(by)
            self.cluster.process.wait(60)
            # after a SIGKILL, the server does not start beside a backend
            wait_until(lambda: not self.processes("postgres"), what="the server's processes have ended")
        time.sleep(random.uniform(0, 0.5))
        self.cluster.start()

    def is_server_stopped_smart(self) -> None:
        self.stops(signal.SIGTERM)

    def is_server_stopped_fast(self) -> None:
        self.stops(signal.SIGINT)

    def is_server_stopped_immediately(self) -> None:
        self.stops(signal.SIGQUIT)

    def is_postmaster_killed(self) -> None:
        self.stops(signal.SIGKILL)

    def crashes(self, pid: int) -> None:
        with self.ending(False), self.cluster.new_log() as new_log:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: "database system is ready to accept connections" in new_log(), what="it recovers")

    def is_backend_killed(self) -> None:
        for (pid,) in self.cluster.sql("SELECT pid FROM pg_baton_backends ORDER BY random() LIMIT 1"):
            self.crashes(pid)

    def is_launcher_killed(self) -> None:
        self.crashes(self.one_process("postgres: pg_baton launcher"))

    def happen(self, until: float, between: Callable[[], None]) -> None:
        while time.monotonic() < until:
            time.sleep(random.uniform(0.5, 2))
            between()
            event = random.choice(self.kinds)
            event(self)
            self.count[event.__name__] = self.count.get(event.__name__, 0) + 1


def test_sessions_keep_their_state_whatever_happens(make_cluster):
    parameters = {
        "pg_baton.max_backends": 20,
        "max_connections": 60,
        "pg_baton.hold_sessions": "60 s",
        "pg_baton.hang_limit_ms": 1000,
        # a crash would lose what was committed
        "synchronous_commit": "on",
    }
    cluster = make_cluster(parameters=parameters)
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE SEQUENCE drawn")
    cluster.sql("CREATE TABLE kept (client int)")
    cluster.expect_in_log(*ALARMS_OF_CHAOS)
    idle = [Session(cluster, 1000 + number) for number in range(IDLE_SESSIONS)]
    for session in idle:
        for _ in range(5):
            session.does_set()
            session.does_prepare()
        session.does_draw()
    busy = [Session(cluster, number) for number in range(CLIENTS)]
    events = Events(cluster)

    def some_look() -> None:
        for session in random.sample(idle, 3):
            session.attempt(Session.check, events)

    with living(busy, events) as failures:
        events.happen(time.monotonic() + SECONDS, some_look)
    print(f"{events.count}, {len(failures)} failures, longest {max(it.longest_s for it in busy):.3f} s")
    print(*failures, sep="\n")
    print(f"lost with the server: {sum(it.lost for it in busy)} busy, {sum(it.lost for it in idle)} idle")
    assert failures == []
    for session in idle:
        session.attempt(Session.check, events)
    for session in idle + busy:
        session.wire.close()
    assert_healthy(cluster)
    hold_for(cluster, "0")
