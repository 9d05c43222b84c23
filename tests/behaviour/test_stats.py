"""pg_baton_stats and the percentiles of pg_baton_pools agree with a load of known size."""

from __future__ import annotations

import collections
import time

import psycopg
import pytest
from harness.certificates import Authority, make_secure
from harness.health import wait_until
from harness.wire import LoginFailed, QueryFailed, Wire, bind, execute, parse, query, sync

pytestmark = pytest.mark.pool_only

HOST = "127.0.0.1"
ROUNDS = 15


@pytest.fixture(scope="module", params=["normal", "forced"])
def cluster(run, request):
    parameters = {
        "pg_baton.max_backends": 3,
        "pg_baton.max_extra_backends": 0,
        "pg_baton.force_migration": "on" if request.param == "forced" else "off",
    }
    one = run.cluster(f"stats-{request.param}", parameters=parameters)
    try:
        make_secure(one, authority := Authority(run.directory / f"stats-{request.param}"), authority.server())
        one.start()
        one.sql("CREATE EXTENSION pg_baton")
    except BaseException:
        one.destroy()
        raise
    yield one
    one.finish()


def stats(cluster, columns: str, user: str, database: str = "postgres") -> tuple:
    rows = cluster.sql(f"SELECT {columns} FROM pg_baton_stats WHERE (user_name, database) = ('{user}', '{database}')")
    return rows[0] if rows else ()


def await_stats(cluster, columns: str, user: str, expected: tuple, database: str = "postgres") -> None:
    """A client has its answer before its backend has counted it."""
    wait_until(lambda: stats(cluster, columns, user, database) == expected, 10, f"{columns}: {expected} of {user}")


class Load:
    """Asks, and counts what it asks and is answered."""

    def __init__(self, *wires: Wire) -> None:
        self.wires = wires
        self.counts = collections.Counter()
        self.classes = collections.Counter()

    def ask(self, wire: Wire, *messages: bytes, transactions: int = 1) -> None:
        answer = wire.ask(*messages)
        for message in answer:
            self.counts["bytes_sent"] += 5 + len(message.body)
            if message.type == "E":
                self.counts["errors"] += 1
                self.classes[message.fields()["C"][:2]] += 1
        self.counts["statements"] += sum(message.type in "CIs" for message in answer)
        self.counts["requests"] += sum(message.type == "Z" for message in answer)
        self.counts["transactions"] += transactions

    def run(self) -> None:
        for number in range(ROUNDS):
            for wire in self.wires:
                self.ask(wire, query("BEGIN"), transactions=0)
                self.ask(wire, query(f"SELECT {number}"), transactions=0)
                self.ask(wire, query("COMMIT"))
                self.ask(wire, query("SELECT 1; SELECT generate_series(1, 50)"))
                self.ask(wire, query(""))
                self.ask(wire, parse("SELECT 7"), bind(), execute(), bind(), execute(rows=1), sync())
                self.ask(wire, query("SELECT 1 / 0"))
                self.ask(wire, query("SELECT no_such_column"))
                self.ask(wire, query("DO $$BEGIN RAISE 'own' USING ERRCODE = 'ZX001'; END$$"))
        # Two requests at a time: the second is read from the buffer.
        for wire in self.wires:
            wire.send(query("SELECT 1"))
            self.ask(wire, query("SELECT 2"))
            self.counts["transactions"] += 1
            rest = wire.until_ready()
            for message in rest:
                self.counts["bytes_sent"] += 5 + len(message.body)
            self.counts["statements"] += 1
            self.counts["requests"] += 1

    def assert_counted(self, cluster, user: str) -> None:
        columns = ["transactions", "requests", "statements", "errors", "bytes_sent"]
        expected = tuple(self.counts[column] for column in columns)
        await_stats(cluster, ", ".join(columns), user, expected)
        classes = {"other" if name == "ZX" else name: count for name, count in self.classes.items()}
        assert stats(cluster, "errors_by_class", user) == (classes,)


def role(cluster, name: str, options: str = "") -> str:
    cluster.sql(f"CREATE ROLE {name} LOGIN {options}")
    return name


@pytest.mark.parametrize("by_tls", [False, True])
def test_a_load_of_known_size_is_counted_exactly(cluster, by_tls):
    user = role(cluster, f"counted_{by_tls}".lower())
    wires = []
    for _ in range(4):
        wire = Wire.open(HOST, cluster.pool_port, plain=True)
        if by_tls:
            wire.secure()
        wire.log_in(user, "postgres")
        wires.append(wire)
    load = Load(*wires)
    load.run()
    load.assert_counted(cluster, user)
    assert stats(cluster, "logins, logins_tls, logins_refused", user) == (4, 4 if by_tls else 0, 0)
    given = "handed_over_directly + queued >= 4, waits <= handed_over_directly + queued, hand_over_time_us > 0"
    assert stats(cluster, given, user) == (True, True, True)
    times = "transaction_time_us > 0, request_time_us > 0, transaction_time_us >= request_time_us"
    assert stats(cluster, times, user) == (True, True, True)
    for wire in wires:
        wire.finish()


def test_dedicated_sessions_are_counted_as_well(cluster):
    user = role(cluster, "dedicated")
    with Wire.login(HOST, cluster.pool_port, user=user) as wire:
        load = Load(wire)
        load.ask(wire, query("SELECT pg_advisory_lock(77)"))
        cause = f"SELECT dedicated_cause FROM pg_baton_sessions WHERE user_name = '{user}'"
        wait_until(lambda: cluster.sql(cause) == [("advisory lock",)], what="it is dedicated")
        load.run()
        load.assert_counted(cluster, user)


def test_roles_on_the_same_backends_are_counted_apart(cluster):
    loads = {}
    for number in range(3):
        user = role(cluster, f"apart_{number}")
        loads[user] = Load(Wire.login(HOST, cluster.pool_port, user=user))
    for _ in range(3):
        for load in loads.values():
            load.run()
    for user, load in loads.items():
        load.assert_counted(cluster, user)
        load.wires[0].finish()


def test_counts_outlive_sessions_and_backends(cluster):
    user = role(cluster, "gone")
    gone = f"SELECT count(*) FROM pg_baton_pool_users WHERE user_name = '{user}'"
    load = Load()
    for _ in range(2):
        with Wire.login(HOST, cluster.pool_port, user=user) as wire:
            load.wires = (wire,)
            load.run()
        wait_until(lambda: cluster.sql(gone) == [(0,)], what="its tenant has gone")
        cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_baton_backends WHERE session_id IS NULL")
        load.assert_counted(cluster, user)
    assert stats(cluster, "logins", user) == (2,)


def test_a_wait_is_counted_and_timed(cluster):
    user = role(cluster, "waiter")
    # In a pool of their own: the percentiles are those of a minute.
    cluster.sql("CREATE DATABASE waits TEMPLATE template0")
    others = [Wire.login(HOST, cluster.pool_port, database="waits") for _ in range(3)]
    with Wire.login(HOST, cluster.pool_port, user=user, database="waits") as wire:
        before = stats(cluster, "waits", user, "waits")
        for other in others:
            other.query("BEGIN")
        wire.send(query("SELECT 1"))
        waiting = f"SELECT state FROM pg_baton_sessions WHERE user_name = '{user}'"
        wait_until(lambda: cluster.sql(waiting) == [("waiting",)], what="it waits")
        time.sleep(0.3)
        for other in others:
            other.query("COMMIT")
        wire.until_ready()
        waited = "transactions, waits, wait_time_us >= 300000"
        await_stats(cluster, waited, user, (1, before[0] + 1, True), "waits")
    found = "SELECT wait_p99 >= '0.28 s', wait_p50 <= wait_p95, transaction_p99 >= '0.28 s', login_p50 >= '0 s'"
    assert cluster.sql(f"{found} FROM pg_baton_pools WHERE database = 'waits'") == [(True, True, True, True)]
    for other in others:
        other.finish()


def test_a_transaction_s_time_includes_its_idle_time(cluster):
    user = role(cluster, "sleeper")
    with Wire.login(HOST, cluster.pool_port, user=user) as wire:
        time.sleep(0.3)  # between transactions nothing counts
        wire.query("BEGIN")
        time.sleep(0.3)
        wire.query("COMMIT")
        await_stats(cluster, "transactions", user, (1,))
        times = "transaction_time_us BETWEEN 300000 AND 600000 - request_time_us"
        assert stats(cluster, times, user) == (True,)


def test_refused_logins_are_counted_by_reason(cluster):
    user = role(cluster, "limited", "CONNECTION LIMIT 0")
    for name in (user, user, "nobody_of_that_name"):
        with pytest.raises(LoginFailed):
            Wire.login(HOST, cluster.pool_port, user=name)
    refused = "logins, logins_refused, logins_refused_by_state"
    await_stats(cluster, refused, user, (0, 2, {"53300": 2}))
    others = "SELECT logins_refused_by_state FROM pg_baton_stats WHERE user_name IS NULL"
    assert cluster.sql(others) == [({"28000": 1},)]


def test_a_cancel_is_counted(cluster):
    user = role(cluster, "canceller")
    with Wire.login(HOST, cluster.pool_port, user=user) as wire:
        wire.send(query("SELECT pg_sleep(60)"))
        active = f"SELECT state FROM pg_baton_sessions WHERE user_name = '{user}'"
        wait_until(lambda: cluster.sql(active) == [("active",)], what="it runs")
        wire.cancel_request()
        wire.until_ready()
        await_stats(cluster, "cancels, errors, errors_by_class", user, (1, 1, {"57": 1}))


def test_counts_begin_anew_after_a_reset(cluster):
    user = role(cluster, "reset")
    with Wire.login(HOST, cluster.pool_port, user=user) as wire:
        Load(wire).run()
        before = stats(cluster, "stats_reset", user)[0]
        wait_until(lambda: stats(cluster, "transactions", user)[0] > 0, what="it is counted")
        time.sleep(0.1)
        cluster.sql("SELECT pg_baton_stats_reset()")
        assert stats(cluster, "transactions, statements, errors, logins", user) == (0, 0, 0, 0)
        assert stats(cluster, "stats_reset", user)[0] > before
        load = Load(wire)
        load.run()
        load.assert_counted(cluster, user)


def test_only_monitors_read_and_only_superusers_reset(cluster):
    role(cluster, "monitor", "IN ROLE pg_monitor")
    role(cluster, "stranger")
    assert cluster.sql("SELECT count(*) > 0 FROM pg_baton_stats", user="monitor") == [(True,)]
    for user, what in [
        ("stranger", "SELECT * FROM pg_baton_stats"),
        ("stranger", "SELECT pg_baton_get_stats()"),
        ("stranger", "SELECT pg_baton_stats_reset()"),
        ("monitor", "SELECT pg_baton_stats_reset()"),
    ]:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            cluster.sql(what, user=user)


def test_dropped_roles_and_databases_have_no_row(cluster):
    user = role(cluster, "dropped")
    cluster.sql("CREATE DATABASE dropped_too TEMPLATE template0")
    for database in ("postgres", "dropped_too"):
        with Wire.login(HOST, cluster.pool_port, user=user, database=database) as wire:
            wire.query("SELECT 1")
    assert stats(cluster, "logins", user, "dropped_too") == (1,)
    cluster.sql("DROP DATABASE dropped_too")
    assert stats(cluster, "logins", user, "dropped_too") == ()
    assert stats(cluster, "logins", user) == (1,)
    cluster.sql(f"DROP ROLE {user}")
    assert cluster.sql("SELECT count(*) FROM pg_baton_stats WHERE user_name IS NULL") == [(1,)]
    assert stats(cluster, "logins", user) == ()


def test_an_error_of_the_dispatcher_is_counted(cluster_with):
    parameters = {"pg_baton.max_backends": 1, "pg_baton.max_extra_backends": 0, "pg_baton.session_wait_timeout": "1s"}
    cluster = cluster_with(**parameters)
    user = role(cluster, "late")
    with Wire.login(HOST, cluster.pool_port) as other, Wire.login(HOST, cluster.pool_port, user=user) as wire:
        other.query("BEGIN")
        with pytest.raises(QueryFailed, match="timed out waiting"):
            wire.query("SELECT 1")
        assert stats(cluster, "errors, errors_by_class, transactions", user) == (1, {"53": 1}, 0)


def test_a_pool_counts_its_growth_by_reason(cluster_with):
    cluster = cluster_with(**{"pg_baton.max_backends": 2, "pg_baton.backend_idle_timeout": "200ms"})
    with Wire.login(HOST, cluster.pool_port) as one, Wire.login(HOST, cluster.pool_port) as other:
        one.query("BEGIN")
        other.query("BEGIN")
        one.query("COMMIT")
        other.query("COMMIT")
        idle = "SELECT grown, shrunk FROM pg_baton_pools WHERE database = 'postgres' AND backends = 0"
        wait_until(lambda: len(cluster.sql(idle)) == 1, what="the backends have ended")
        ((grown, shrunk),) = cluster.sql(idle)
        assert sum(grown.values()) == sum(shrunk.values()) >= 2
        assert grown["sessions wait"] >= 1 and shrunk["backend_idle_timeout"] >= 2
        with pytest.raises(QueryFailed):
            one.query("SELECT 1 / 0")
