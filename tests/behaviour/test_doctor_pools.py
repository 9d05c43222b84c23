"""Could a pool's backends be replaced? The dispatcher finds out, and `baton doctor` says so."""

from __future__ import annotations

import contextlib
from typing import Callable, Iterator

import psycopg
import pytest
from harness.doctor import findings, of, with_views
from harness.health import wait_until

pytestmark = pytest.mark.pool_only

COLUMN = "SELECT can_open_backends FROM pg_baton_pools WHERE user_name = 'leaver'"
HBA = ["host all leaver 127.0.0.1/32 scram-sha-256"]


@pytest.fixture
def cluster(make_cluster):
    cluster = with_views(make_cluster(hba=HBA))
    cluster.sql("SET password_encryption = 'scram-sha-256'; CREATE ROLE leaver LOGIN PASSWORD 'one'")
    return cluster


@contextlib.contextmanager
def session(cluster) -> Iterator[None]:
    """One that lives, and goes on to be served."""
    with psycopg.connect(cluster.pool(user="leaver", password="one"), autocommit=True) as one:
        yield
        assert one.execute("SELECT 1").fetchone() == (1,)


def change(sql: str) -> Callable:
    return lambda cluster: cluster.sql(sql)


def take_the_line(cluster) -> None:
    cluster.write_hba(["host all leaver 127.0.0.1/32 reject"])
    cluster.reload()


CHANGES = {
    "password": (change("ALTER ROLE leaver PASSWORD 'two'"), "password"),
    "line": (take_the_line, "pg_hba.conf"),
    "limit": (change("ALTER ROLE leaver CONNECTION LIMIT 0"), "CONNECTION LIMIT"),
    "nologin": (change("ALTER ROLE leaver NOLOGIN"), "the role is NOLOGIN"),
    "expired": (change("ALTER ROLE leaver VALID UNTIL '2001-01-01'"), "password has expired"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_who_could_not_log_in_again_is_said_to_be_so(cluster, what):
    done, why = CHANGES[what]
    with session(cluster):
        wait_until(lambda: cluster.sql(COLUMN) == [(True,)], what="that it could is known")
        assert of(findings(cluster, 0), "pools", "ok")
        done(cluster)
        wait_until(lambda: cluster.sql(COLUMN) == [(False,)], what="that it could not is known")
        one = of(findings(cluster, 1), "pools", "failure")
        assert "leaver in postgres" in one["text"] and why in one["text"]


def test_a_password_that_has_expired_is_nobody_s_who_needs_none(cluster):
    cluster.write_hba([])
    cluster.reload()
    cluster.sql("ALTER ROLE leaver VALID UNTIL '2001-01-01'")
    with session(cluster):
        assert of(findings(cluster, 0), "pools", "ok")
        wait_until(lambda: cluster.sql(COLUMN) == [(True,)], what="that it could is known")


def test_all_pools_are_found_out_about_however_many_there_are(cluster):
    """As many as are asked about at a time, and more."""
    cluster.write_hba([])
    cluster.reload()
    roles = [f"tenant_{number}" for number in range(70)]
    cluster.sql(";".join(f"CREATE ROLE {role} LOGIN" for role in roles))
    with contextlib.ExitStack() as stack:
        for role in roles:
            stack.enter_context(psycopg.connect(cluster.pool(user=role)))
        cluster.sql("ALTER ROLE tenant_69 NOLOGIN")
        found = findings(cluster, 1)
        assert "tenant_69 in postgres: the role is NOLOGIN" in of(found, "pools", "failure")["text"]
        assert not [one for one in found if one["level"] == "unknown"]
