"""Replication goes through the pool's port as through the server's own.

Each tool of PostgreSQL that speaks the replication protocol, and a standby and a
subscription, whose connections last for their lives."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from harness.account import give_to_server_user, run_as_server_user, server_program
from harness.certificates import Authority, make_secure
from harness.health import wait_until
from harness.wire import LoginFailed, Wire, copy_done, query

HBA = [
    "hostssl replication only_secure all scram-sha-256",
    "host replication only_secure all reject",
    "host replication forbidden all reject",
]
PARAMETERS = {"pg_baton.max_backends": 3, "wal_level": "logical", "max_wal_senders": 6, "max_replication_slots": 6}


@pytest.fixture(scope="module")
def primary(run):
    cluster = run.cluster("primary", parameters=PARAMETERS, hba=HBA)
    make_secure(cluster, Authority(run.directory / "replication-certificates"))
    cluster.start()
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE only_secure LOGIN REPLICATION PASSWORD 'correct'")
    cluster.sql("CREATE ROLE forbidden LOGIN REPLICATION")
    cluster.sql("CREATE ROLE no_replication LOGIN")
    cluster.sql("CREATE TABLE numbers (n integer PRIMARY KEY)")
    cluster.sql("INSERT INTO numbers SELECT generate_series(1, 1000)")
    yield cluster
    cluster.finish()


@pytest.fixture
def directory(primary, request):
    path = primary.home / request.node.name.replace("[", "-").rstrip("]")
    path.mkdir()
    give_to_server_user(path)
    return path


def conninfo(cluster, **options) -> str:
    return cluster.pool(dbname=None, **options)


def senders(cluster) -> list[tuple]:
    return cluster.sql(
        "SELECT s.user_name, s.database, s.dedicated_cause, r.application_name"
        " FROM pg_baton_sessions s JOIN pg_stat_replication r USING (pid) WHERE s.mode = 'native'"
    )


@pytest.mark.pool_only
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_pg_basebackup(primary, directory, secure):
    options = {"user": "only_secure", "password": "correct", "sslmode": "require"} if secure else {}
    backup = directory / "backup"
    run_as_server_user(
        [server_program("pg_basebackup"), "-d", conninfo(primary, **options), "-D", str(backup)]
        + ["-c", "fast", "-X", "stream"]
    )
    run_as_server_user([server_program("pg_verifybackup"), str(backup)])


@pytest.mark.pool_only
def test_pg_receivewal(primary, directory):
    process = subprocess.Popen(
        [server_program("pg_receivewal"), "-d", conninfo(primary, application_name="receiver"), "-D", str(directory)],
        env={**os.environ},
    )
    try:
        wait_until(lambda: ("postgres", "", "replication", "receiver") in senders(primary), what="a WAL sender")
        primary.sql("INSERT INTO numbers VALUES (-1); SELECT pg_switch_wal()")
        wait_until(lambda: any(len(f.name) == 24 for f in directory.iterdir()), what="a whole segment has come")
    finally:
        process.terminate()
        process.wait(30)
    wait_until(lambda: senders(primary) == [], what="the WAL sender has gone")


@pytest.mark.pool_only
def test_pg_recvlogical(primary, directory):
    tool = [server_program("pg_recvlogical"), "-d", primary.pool(), "--slot", "through_the_pool"]
    subprocess.run([*tool, "--create-slot", "-P", "test_decoding"], check=True, timeout=60)
    primary.sql("INSERT INTO numbers VALUES (-2)")
    ((until,),) = primary.sql("SELECT pg_current_wal_insert_lsn()")
    out = subprocess.run(
        [*tool, "--start", "-f", "-", "--endpos", until, "-o", "include-xids=0"],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    ).stdout
    assert "table public.numbers: INSERT: n[integer]:-2" in out
    subprocess.run([*tool, "--drop-slot"], check=True, timeout=60)


@pytest.mark.pool_only
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_standby(primary, make_cluster, secure):
    name = f"the_standby_{secure}"
    # no certificate: the server's user cannot look for one in the tester's home
    options = {"sslmode": "require", "sslcert": "/nonexistent"} if secure else {}
    standby = make_cluster(start=False)
    standby.become_standby_of(primary)
    standby.set_parameters({"primary_conninfo": conninfo(primary, application_name=name, **options)})
    standby.start()
    number = -4 if secure else -3
    streams = ("postgres", "", "replication", name)
    wait_until(lambda: streams in senders(primary), what="it streams")
    primary.sql(f"INSERT INTO numbers VALUES ({number})")
    standby.replay(primary)
    assert standby.sql(f"SELECT count(*) FROM numbers WHERE n = {number}") == [(1,)]
    # what its sender is told to stop goes on by another connection
    pid = f"SELECT pid FROM pg_stat_replication WHERE application_name = '{name}'"
    (before,) = primary.sql(pid)
    primary.sql(f"SELECT pg_terminate_backend({before[0]})")
    wait_until(lambda: streams in senders(primary) and primary.sql(pid) != [before], what="it streams again")
    primary.sql(f"DELETE FROM numbers WHERE n = {number}")
    standby.replay(primary)
    assert standby.sql(f"SELECT count(*) FROM numbers WHERE n = {number}") == [(0,)]


@pytest.mark.pool_only
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_stream_is_cancelled_as_by_the_server(primary, secure):
    told = []
    for port in (primary.port, primary.pool_port):
        with Wire.login("127.0.0.1", port, database="", secure=secure, replication="true") as wire:
            ((_, _, position, _),) = wire.query("IDENTIFY_SYSTEM")
            wire.send(query(f"START_REPLICATION PHYSICAL {position}"))
            # CopyBothResponse
            assert wire.read_until("W")[-1].type == "W"
            wire.cancel_request(key=bytes(byte ^ 1 for byte in wire.cancel_key))
            wire.cancel_request()
            found = wire.read_until("E")[-1].fields()
            told.append({key: found[key] for key in "SCM"})
            wire.send(copy_done())
            wire.until_ready()
            assert wire.query("IDENTIFY_SYSTEM")[0][0]
    assert told[0] == told[1] and told[0]["C"] == "57014"


@pytest.mark.pool_only
def test_a_subscription(primary, make_cluster):
    subscriber = make_cluster(parameters={"wal_level": "logical"})
    subscriber.sql("CREATE TABLE numbers (n integer PRIMARY KEY)")
    primary.sql("CREATE PUBLICATION published FOR TABLE numbers")
    quoted = primary.pool().replace("'", "''")
    subscriber.sql(f"CREATE SUBSCRIPTION through_the_pool CONNECTION '{quoted}' PUBLICATION published")
    count = "SELECT count(*), max(n) FROM numbers"
    wait_until(lambda: subscriber.sql(count) == primary.sql(count), what="the first copy")
    assert ("postgres", "postgres", "replication", "through_the_pool") in senders(primary)
    primary.sql("INSERT INTO numbers VALUES (5000)")
    wait_until(lambda: subscriber.sql(count) == primary.sql(count), what="what came later")
    subscriber.sql("DROP SUBSCRIPTION through_the_pool")
    primary.sql("DROP PUBLICATION published")
    primary.sql("DELETE FROM numbers WHERE n = 5000")


@pytest.mark.pool_only
def test_refused_replication_gets_the_server_s_own_error(primary):
    for user in ("no_replication", "forbidden", "only_secure"):
        told = []
        for port in (primary.port, primary.pool_port):
            with pytest.raises(LoginFailed) as failed:
                Wire.login("127.0.0.1", port, user=user, database="", replication="true")
            fields = failed.value.fields
            told.append({key: fields[key] for key in "SCM"})
        assert told[0] == told[1] and told[0]["C"] in ("28000", "42501", *["28P01"] * primary.by_tls)


@pytest.mark.pool_only
def test_silent_replication_outlives_authentication_timeout(make_cluster):
    cluster = make_cluster(parameters={"authentication_timeout": "1s"})
    with Wire.login("127.0.0.1", cluster.pool_port, database="", replication="true") as wire:
        ended = time.monotonic() + 3
        while time.monotonic() < ended:
            assert wire.silent(0.5)
        assert [m.type for m in wire.ask(b"Q\0\0\0\x14IDENTIFY_SYSTEM\0")][-1] == "Z"
        wire.finish()
