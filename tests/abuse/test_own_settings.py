"""A role's own settings lift no limit that a superuser has set for it."""

from __future__ import annotations

import itertools
import random
import string
import threading
import time

import pytest
from abuse.turns import knocks
from harness.cluster import SUPERUSER
from harness.health import launcher_stopped, wait_until
from harness.wire import LoginFailed, Wire, query

pytestmark = pytest.mark.pool_only

# As large as stays in the row, and as is stored beside it: as it is, and compressed; of many chunks.
SIZES = {"inline": 500, "of a few chunks": 8_000, "of many chunks": 50_000}
LIMITS = {"pool_max_sessions": "1", "pool_max_backends": "2", "pool_weight": "3", "pool_mode": "dedicated"}


def noise(size: int) -> str:
    return "".join(random.Random(size).choices(string.ascii_letters + string.digits, k=size))


def login(cluster, user: str) -> Wire:
    return Wire.login(cluster._host(cluster.pool_port), cluster.pool_port, user=user, database="postgres")


def lengthen(cluster, size: int, kind: str) -> None:
    """As the role itself, which may set what any session may."""
    with Wire.login(cluster._host(cluster.port), cluster.port, user="low", database="postgres") as low:
        text = noise(size) if kind == "as it is" else noise(40) * (size // 40)
        low.query(f"ALTER ROLE CURRENT_USER SET search_path = '{text}'")
        low.finish()


def in_force(cluster) -> dict[str, str]:
    """For `low`, which has a session; what is asked again is awaited."""
    sql = "SELECT name, setting FROM pg_baton_pool_settings WHERE user_name = 'low'"
    return {name.removeprefix("pg_baton."): value for name, value in cluster.sql(sql)}


@pytest.mark.parametrize("kind", ["as it is", "compressed"])
@pytest.mark.parametrize("size", SIZES)
def test_a_role_s_own_long_setting_lifts_no_limit(installation, size, kind):
    """However long it makes its row of pg_db_role_setting, and beside rows of others as long."""
    cluster = installation()
    for number in range(40):
        cluster.sql(f"CREATE ROLE filler{number}")
        cluster.sql(f"ALTER ROLE filler{number} SET search_path = '{noise(4_000 + number)}'")
    for name, value in LIMITS.items():
        cluster.sql(f"ALTER ROLE low SET pg_baton.{name} = '{value}'")
    lengthen(cluster, SIZES[size], kind)
    with login(cluster, "low") as first:
        assert first.query("SELECT 1") == [["1"]]
        wait_until(lambda: LIMITS.items() <= in_force(cluster).items(), what="the launcher has told the limits")
        with pytest.raises(LoginFailed) as failure:
            login(cluster, "low")
        assert failure.value.fields["C"] == "53300"
        first.finish()


def test_logins_at_once_come_to_no_more_than_the_limit(installation):
    """Also where the dispatcher has had no pool of the role, and so has not been told of its limits."""
    cluster = installation()
    cluster.sql("ALTER ROLE low SET pg_baton.pool_max_sessions = 2")

    def comes_in(wire: Wire) -> bool:
        last = wire.read_until("EZ", 20)[-1]
        assert last.type == "Z" or last.fields()["C"] == "53300"
        return last.type == "Z"

    # all are answered before anything about a pool
    with launcher_stopped(cluster):
        wires = [Wire(one) for one in knocks(cluster, 20, lambda number: "low")]
        time.sleep(0.5)
    assert [comes_in(wire) for wire in wires].count(True) == 2
    for wire in wires:
        wire.close()


def test_locks_that_leave_no_room_do_not_end_the_launcher(installation):
    """It reads what a superuser has set for a role as soon as there is room again."""
    cluster = installation()
    launcher = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'"
    before = cluster.sql(launcher)
    with login(cluster, "low") as low, login(cluster, SUPERUSER) as superuser, login(cluster, "other") as hoarder:
        low.query("SELECT 1")
        with launcher_stopped(cluster):
            superuser.query("ALTER ROLE low SET pg_baton.pool_weight = 3")
            for number in itertools.count():
                text = f"SELECT count(pg_advisory_lock({number}, i)) FROM generate_series(1, 1000) i"
                if any(message.type == "E" for message in hoarder.ask(query(text))):
                    break
        # it tries meanwhile
        time.sleep(0.5)
        hoarder.query("SELECT pg_advisory_unlock_all()")
        wait_until(lambda: in_force(cluster).get("pool_weight") == "3", what="the launcher has told the limits")
        for session in (low, superuser, hoarder):
            session.finish()
    assert cluster.sql(launcher) == before


def test_settings_too_long_to_examine_let_no_more_clients_in(installation, bystanders):
    """But superusers: what cannot be determined is the strictest limit, of that role and of no other."""
    cluster = installation()
    cluster.sql("CREATE DATABASE theirs OWNER low")
    cluster.sql("ALTER ROLE low SET pg_baton.pool_max_sessions = 1")
    with bystanders(cluster) as beside:
        lengthen(cluster, 100_000, "as it is")
        beside.all_go_on(3)
        with pytest.raises(LoginFailed) as failure:
            login(cluster, "low")
        assert failure.value.fields["C"] == "53300"
        assert "settings of role" in cluster.log()
        beside.all_go_on(3)
        with Wire.login(cluster._host(cluster.port), cluster.port, user="low", database="theirs") as low:
            low.query("ALTER ROLE CURRENT_USER RESET ALL")
            low.query(f"ALTER DATABASE theirs SET search_path = '{noise(100_000)}'")
            low.finish()
        host = cluster._host(cluster.pool_port)
        with pytest.raises(LoginFailed):
            Wire.login(host, cluster.pool_port, user="other", database="theirs")
        with Wire.login(host, cluster.pool_port, user=SUPERUSER, database="theirs") as superuser:
            assert superuser.query("SELECT 1") == [["1"]]
            superuser.finish()
        beside.all_go_on(3)


# In which database, what is set all the time, and whether a starting backend alone takes it.
CHANGING = {
    "its own": ("postgres", "ALTER ROLE CURRENT_USER SET work_mem = '{}kB'", False),
    "its database's": ("theirs", "ALTER DATABASE theirs SET work_mem = '{}kB'", False),
    "its database's, for a start": ("theirs", "ALTER DATABASE theirs SET temp_buffers = {}", True),
}


@pytest.mark.parametrize("whose", CHANGING)
def test_settings_that_change_all_the_time_stop_no_client(installation, bystanders, whose):
    """Another role's clients and a superuser's log in and work, on the backends that they have: a setting is read when
    a session is greeted. What only a starting backend takes costs a login a start, and no more."""
    database, statement, needs_start = CHANGING[whose]
    cluster = installation()
    cluster.sql("CREATE DATABASE theirs OWNER low")
    pids = "SELECT pid FROM pg_baton_backends WHERE state NOT IN ('retiring', 'starting')"
    ended = threading.Event()
    changes = itertools.count(1_000)
    failures = []

    def change() -> None:
        try:
            with Wire.login(cluster._host(cluster.port), cluster.port, user="low", database=database) as low:
                while not ended.is_set():
                    low.query(statement.format(next(changes)))
        except Exception as failure:  # that it goes on is what the test asks for
            failures.append(failure)

    with bystanders(cluster, database=database) as beside:
        attack = threading.Thread(target=change, daemon=True)
        before = set(cluster.sql(pids))
        attack.start()
        try:
            beside.all_go_on(20)
            assert next(changes) > 1_020
            if not needs_start:
                assert before and before <= set(cluster.sql(pids))
        finally:
            ended.set()
            attack.join(20)
        assert not failures
        beside.all_go_on(3)
