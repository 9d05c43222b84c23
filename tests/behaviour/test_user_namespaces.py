"""db_user_namespace (up to 16): the role that a user's name means depends on the database.

On the pool's port a name means the same role as on the server's own: the server itself
reads the client's startup packet, so such sessions are native."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import psycopg
import pytest
from harness.account import pg_config, server_major, server_program
from harness.cluster import HOST
from harness.health import wait_until
from harness.wire import GSSENC_REQUEST, LoginFailed, Wire

pytestmark = [pytest.mark.pool_only, pytest.mark.skipif(server_major() >= 17, reason="db_user_namespace is no more")]

HBA = ["host all joe,joe@mydb,joe@other all scram-sha-256", "host all banned@mydb all reject"]
ROLES = """
CREATE EXTENSION pg_baton;
CREATE ROLE joe LOGIN PASSWORD 'everywhere';
CREATE ROLE "joe@mydb" LOGIN PASSWORD 'within';
CREATE ROLE "ann@mydb" LOGIN;
CREATE ROLE ann LOGIN;
CREATE ROLE "a@b" LOGIN;
CREATE ROLE "a@b@mydb" LOGIN;
CREATE ROLE "banned@mydb" LOGIN;
CREATE ROLE banned LOGIN;
CREATE ROLE "postgres@postgres" LOGIN SUPERUSER;
"""
GLOBAL = "postgres@"

# User, database, password; some of them can log in.
WHO = [
    ("joe", "mydb", "within"),
    ("joe", "mydb", "everywhere"),
    ("joe@", "mydb", "everywhere"),
    ("joe@", "mydb", "within"),
    ("joe@mydb", "mydb", "within"),
    ("joe", "other", "everywhere"),
    ("joe@", "other", "everywhere"),
    ("joe@@", "mydb", "everywhere"),
    ("@", "mydb", ""),
    ("ann", "mydb", ""),
    ("ann", "other", ""),
    ("ann@", "other", ""),
    ("a@b", "mydb", ""),
    ("a@b@", "mydb", ""),
    ("banned", "mydb", ""),
    ("banned@", "mydb", ""),
    ("x" * 70, "mydb", ""),
    ("x" * 60, "mydb", ""),
    ("postgres", "postgres", ""),
]
LET_IN = {
    ("joe", "mydb", "within"): "joe@mydb",
    ("joe@", "mydb", "everywhere"): "joe",
    ("joe@", "other", "everywhere"): "joe",
    ("ann", "mydb", ""): "ann@mydb",
    ("ann@", "other", ""): "ann",
    ("a@b", "mydb", ""): "a@b@mydb",
    ("banned@", "mydb", ""): "banned",
    ("postgres", "postgres", ""): "postgres@postgres",
}


def psql(conninfo: str) -> str:
    """The roles of the session, or the server's error message."""
    sql = "SELECT current_user, session_user"
    done = subprocess.run(
        [server_program("psql"), "-XAt", "-c", sql, conninfo], capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() or done.stderr.split("FATAL: ")[-1].strip()


def modes(cluster, user: str = GLOBAL) -> list[tuple]:
    return cluster.sql("SELECT user_name, mode, dedicated_cause FROM pg_baton_sessions ORDER BY login_time", user=user)


def switch(cluster, is_on: bool) -> None:
    """Sets the parameter, and waits until both ports know."""
    cluster.set_parameters({"db_user_namespace": is_on})
    cluster.reload()
    wait_until(lambda: shows(cluster.port) == is_on and is_native(cluster) == is_on, what="the reload")


def shows(port: int) -> bool:
    for user in (GLOBAL, "postgres"):
        try:
            with Wire.login(HOST, port, user=user) as wire:
                return wire.query("SHOW db_user_namespace") == [["on"]]
        except LoginFailed:
            continue
    raise AssertionError("nobody comes in")


def is_native(cluster) -> bool:
    for user in (GLOBAL, "postgres"):
        try:
            with Wire.login(HOST, cluster.pool_port, user=user) as wire:
                return wire.backend_pid < 1 << 22
        except LoginFailed:
            continue
    raise AssertionError("nobody comes in")


@pytest.fixture
def server(make_cluster):
    def make(is_on: bool = False, **parameters: object):
        cluster = make_cluster(hba=HBA, parameters={"pg_baton.max_backends": 3, **parameters})
        cluster.sql(ROLES)
        for database in ("mydb", "other"):
            cluster.sql(f"CREATE DATABASE {database}")
        if is_on:
            # postgres then means the role postgres@postgres, which exists
            cluster.set_parameters({"db_user_namespace": True})
            cluster.restart()
        return cluster

    return make


@pytest.mark.parametrize("is_on", [True, False], ids=["from the start", "by a reload"])
def test_names_by_database_mean_the_same_roles_as_on_the_server(server, is_on):
    cluster = server(is_on)
    if not is_on:
        switch(cluster, True)
    assert all(psql(cluster.direct(user=user, dbname=database, password=password)).split("|")[0] == role
               for (user, database, password), role in LET_IN.items())  # fmt: skip
    for user, database, password in WHO:
        named = {"user": user, "dbname": database, "password": password}
        assert psql(cluster.pool(**named)) == psql(cluster.direct(**named)), named


def test_sessions_are_native_by_role_names_and_pooled_when_off(server):
    cluster = server()
    switch(cluster, True)
    password = {"dbname": "mydb", "password": "within"}
    with psycopg.connect(cluster.pool(user="joe", **password), autocommit=True) as native:
        assert modes(cluster) == [("joe@mydb", "native", "db_user_namespace")]
        with psycopg.connect(cluster.pool(user="joe@", dbname="mydb", password="everywhere")):
            assert [row[0] for row in modes(cluster)] == ["joe@mydb", "joe"]
        switch(cluster, False)
        # existing sessions keep their roles
        assert native.execute("SELECT current_user").fetchone() == ("joe@mydb",)
        assert [row[:2] for row in modes(cluster, "postgres")] == [("joe@mydb", "native")]
        with psycopg.connect(cluster.pool(user="joe@mydb", **password)) as pooled:
            assert pooled.execute("SELECT current_user").fetchone() == ("joe@mydb",)
            assert ("joe@mydb", "shared", None) in modes(cluster, "postgres")


def test_pools_from_before_go_on_and_grow(server):
    cluster = server()
    joe = {"host": HOST, "port": cluster.pool_port, "user": "joe", "database": "mydb", "password": "everywhere"}
    with Wire.login(**joe) as first, Wire.login(**joe) as second:
        assert first.query("SELECT 1") == [["1"]]
        switch(cluster, True)
        first.query("BEGIN")
        assert first.query("SELECT current_user") == [["joe"]]
        # on another backend, which the dispatcher opens now
        assert second.query("SELECT current_user") == [["joe"]]
        backends = cluster.sql("SELECT count(*) FROM pg_baton_backends WHERE database = 'mydb'", user=GLOBAL)
        assert backends == [(2,)]
        first.query("COMMIT")
        switch(cluster, False)
        with Wire.login(**joe) as third:
            for wire in (first, second):
                wire.query("BEGIN")
            assert third.query("SELECT current_user") == [["joe"]]
            for wire in (first, second):
                wire.query("COMMIT")


def test_login_as_another_role_than_that_of_the_pool_is_refused(server):
    """The postmaster knows that the parameter is on, the dispatcher does not yet: the server
    lets in ann@mydb, the dispatcher would let in ann."""
    cluster = server(**{"pg_baton.login": "server"})
    named = {"host": HOST, "port": cluster.pool_port, "user": "ann", "database": "mydb"}
    with Wire.login(**named) as wire:
        assert wire.query("SELECT current_user") == [["ann"]]
    ((launcher,),) = cluster.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")
    os.kill(launcher, signal.SIGSTOP)
    try:
        cluster.set_parameters({"db_user_namespace": True})
        cluster.reload()
        wait_until(lambda: shows(cluster.port), what="the reload")
        with pytest.raises(LoginFailed) as refused:
            Wire.login(**named)
        assert refused.value.fields["C"] == "57P03" and "db_user_namespace" in refused.value.fields["M"]
    finally:
        os.kill(launcher, signal.SIGCONT)
    wait_until(lambda: is_native(cluster), what="the dispatcher knows")
    with Wire.login(**named) as wire:
        assert wire.query("SELECT current_user") == [["ann@mydb"]]


@pytest.mark.skipif("gssapi" not in pg_config("configure"), reason="this server is built without GSSAPI")
def test_gssapi_encryption_is_offered_as_all_sessions_are_native(server):
    cluster = server()

    def answer() -> bytes:
        with socket.create_connection((HOST, cluster.pool_port), timeout=20) as client:
            client.sendall(GSSENC_REQUEST)
            return client.recv(1)

    assert answer() == b"N"
    switch(cluster, True)
    assert answer() == b"G"


def test_doctor_says_that_no_session_shares_a_backend(server):
    cluster = server()
    switch(cluster, True)
    program = Path(cluster.run.stage.program).with_name("baton")
    done = subprocess.run(
        [str(program), "doctor", "--psql", server_program("psql"), cluster.direct(user=GLOBAL)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert re.search(r"every session is native.* while db_user_namespace is on", done.stdout), done.stdout
