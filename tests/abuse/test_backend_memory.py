"""What a session leaves in a backend's memory is bounded (pg_baton.backend_cache_memory)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness.health import wait_until
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

BOUND_MB = 64
# What a backend has besides, and what a look has not seen yet.
MARGIN_MB = 40

WIDE = """DO $$ BEGIN FOR i IN 1..60 LOOP
    EXECUTE format('PREPARE s%s AS SELECT %s', i,
                   (SELECT string_agg('1+' || g || '+length(''x' || i || ''')', ',') FROM generate_series(1, 1500) g));
    EXECUTE 'EXECUTE s' || i;
END LOOP; END $$"""

FUNCTIONS = """DO $$ DECLARE body text; BEGIN
    SELECT string_agg(format('IF n > %s THEN SELECT count(*) INTO r FROM pg_class WHERE oid = n + %s; END IF;', k, k), ' ')
      INTO body FROM generate_series(1, 40) k;
    FOR f IN 1..40 LOOP
        EXECUTE format('CREATE FUNCTION f%s(n int) RETURNS int LANGUAGE plpgsql AS %L', f,
                       'DECLARE r int := 0; BEGIN ' || body || ' RETURN r; END');
    END LOOP; END $$"""
# Whose entries in a relation cache nothing frees.
TABLES = """DO $$ DECLARE columns text; BEGIN
    SELECT string_agg('c' || c || ' int', ',') INTO columns FROM generate_series(1, 1500) c;
    FOR t IN 1..250 LOOP EXECUTE format('CREATE TABLE wide%s (%s)', t, columns); END LOOP; END $$"""
LOOKS = "SELECT count(pg_relation_size(oid)) FROM pg_class WHERE relname LIKE 'wide%'"

MANY = "DO $$BEGIN FOR i IN 1..25000 LOOP EXECUTE format('PREPARE s%s AS SELECT %1$s', i); END LOOP; END$$"

CALLS = "SELECT " + ", ".join(f"public.f{f}(100)" for f in range(1, 41))


def own_mb(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) // 1024


def largest_backend(cluster) -> int:
    """The memory of the largest backend that serves low, among others, in MB; 0 if there is none."""
    pids = cluster.sql("SELECT pid FROM pg_baton_backends WHERE database = 'postgres'")
    sizes = [0]
    for (pid,) in pids:
        try:
            sizes.append(own_mb(pid))
        except (FileNotFoundError, ValueError):  # it has ended, or has no memory any more
            pass
    return max(sizes)


def shrinks(cluster) -> None:
    wait_until(lambda: largest_backend(cluster) <= BOUND_MB + MARGIN_MB, what="the backends shrink")


def log_in(cluster) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, user="low")


def test_wide_statements_do_not_stay_in_a_backend(installation, bystanders):
    """Prepared by a session that has left, and by one that is there and idle while others are served."""
    cluster = installation()
    with bystanders(cluster) as beside:
        session = log_in(cluster)
        session.query(WIDE)
        assert largest_backend(cluster) > BOUND_MB + MARGIN_MB
        session.leave()
        shrinks(cluster)

        session = log_in(cluster)
        session.query(WIDE)
        others = [log_in(cluster) for _ in range(20)]
        for other in others:
            other.query("BEGIN")
        for other in others:
            other.query("COMMIT")
        shrinks(cluster)
        assert len(session.query("EXECUTE s7")[0]) == 1500
        for one in [session, *others]:
            one.finish()
        beside.all_go_on()


def test_functions_of_many_tenants_keep_within_the_bound(installation, bystanders):
    """Each tenant's functions are compiled apart; the least recently used are freed for real."""
    cluster = installation()
    cluster.sql(FUNCTIONS)
    with bystanders(cluster) as beside:
        tenants = [log_in(cluster) for _ in range(12)]
        for number, tenant in enumerate(tenants):
            tenant.query(f"SET search_path = tenant{number}, public")
        for _ in range(2):
            for tenant in tenants:
                tenant.query(CALLS)
        shrinks(cluster)
        for tenant in tenants:
            tenant.query(CALLS)
            tenant.finish()
        shrinks(cluster)
        beside.all_go_on()


def test_functions_are_freed_while_they_are_in_use(installation):
    """A bound that a single function exceeds: each look frees what no call runs."""
    cluster = installation(pg_baton__backend_cache_memory="1MB", pg_baton__max_backends=1)
    cluster.sql(FUNCTIONS)
    sessions = [log_in(cluster) for _ in range(3)]
    for number, session in enumerate(sessions):
        session.query(f"SET search_path = tenant{number}, public")
    for _ in range(25):
        for session in sessions:
            session.query(CALLS)
            session.query("DECLARE c CURSOR WITH HOLD FOR SELECT public.f1(100)")
            session.query("SELECT pg_sleep(0.02)")
            session.query("CLOSE c")
    for session in sessions:
        session.finish()


@pytest.mark.parametrize("leaves", [True, False], ids=["as the session leaves", "between two transactions"])
def test_a_backend_with_tens_of_thousands_of_statements_ends(installation, bystanders, leaves):
    """To close them takes seconds where they are hundreds of thousands: the next session would wait for that."""
    cluster = installation(pg_baton__backend_cache_memory="1GB")
    with bystanders(cluster) as beside:
        session = log_in(cluster)
        session.query("BEGIN")
        ((pid,),) = cluster.sql("SELECT pid FROM pg_baton_backends WHERE user_name = 'low'")
        session.query(MANY)
        session.query("COMMIT")
        if leaves:
            session.leave()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the backend has ended")
        if not leaves:
            assert session.query("EXECUTE s24000") == [["24000"]]
            session.leave()
        beside.all_go_on()


def test_a_backend_that_cannot_free_what_it_holds_ends(installation, bystanders):
    """Between two transactions; its session goes on at another one."""
    cluster = installation(pg_baton__backend_cache_memory="1MB")
    cluster.sql(TABLES)
    with bystanders(cluster) as beside:
        session = log_in(cluster)
        session.query("SET my.own = 'kept'")
        # a backend that is younger than ten seconds stays
        told = re.compile(r"\[(\d+)\] .*backend ends since it has grown by")

        def has_told() -> bool:
            assert session.query(LOOKS) == [["250"]]
            return told.search(cluster.log()) is not None

        wait_until(has_told, what="a backend is to end")
        pid = int(told.search(cluster.log())[1])
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="it has ended")
        assert session.query("SHOW my.own") == [["kept"]]
        session.finish()
        beside.all_go_on()
