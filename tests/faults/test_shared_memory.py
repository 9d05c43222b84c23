"""What another process writes, or does to what is shared, harms nobody else."""

from __future__ import annotations

import os

import pytest

from harness.control_memory import ControlMemory
from harness.health import assert_healthy, wait_until
from harness.wire import Wire, query

HOST = "127.0.0.1"

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2})
    cluster.sql("CREATE EXTENSION pg_baton")
    return cluster


def shared_memory(pid: int, name: str) -> str:
    """The path of a process's descriptor of that memory."""
    directory = f"/proc/{pid}/fd"
    (path,) = {f"{directory}/{n}" for n in os.listdir(directory) if name in os.readlink(f"{directory}/{n}")}
    return path


@pytest.mark.parametrize("name", ["pg_baton control", "pg_baton arena"])
def test_nobody_can_take_shared_memory_from_under_the_others(cluster, name):
    (dispatcher,) = cluster.dispatcher_pids()
    owner = dispatcher if "arena" in name else cluster.postmaster_pid()
    with Wire.login(HOST, cluster.pool_port) as session:
        session.query("SET my.own = 'kept'")
        file = os.open(shared_memory(owner, name), os.O_RDWR)
        try:
            for length in (0, 4096, 1 << 40):
                with pytest.raises(PermissionError):
                    os.ftruncate(file, length)
            if "arena" in name:
                with pytest.raises(PermissionError):
                    os.pwrite(file, b"scribble", 0)
        finally:
            os.close(file)
        assert session.query("SHOW my.own") == [["kept"]]
    assert_healthy(cluster)


@pytest.mark.parametrize("word", [0, 1, 2**32 - 1, "postmaster", "other"])
def test_a_cancel_reaches_its_backend_whatever_process_the_memory_names(cluster, word):
    """A word of 2^32 - 1 would be kill(-1): every process of the server's user."""
    memory = ControlMemory(cluster)
    with Wire.login(HOST, cluster.pool_port) as victim, Wire.login(HOST, cluster.pool_port) as other:
        victim.send(query("SELECT pg_sleep(60)"))
        wait_until(
            lambda: cluster.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == [(1,)],
            what="it runs",
        )
        other.query("BEGIN")
        ((slot, pid),) = cluster.sql(
            "SELECT slot, b.pid FROM pg_baton_backends b JOIN pg_stat_activity a ON a.pid = b.session_pid"
            " WHERE wait_event = 'PgSleep'"
        )
        ((others,),) = cluster.sql(f"SELECT pid FROM pg_baton_backends WHERE slot <> {slot}")
        named = {"postmaster": cluster.postmaster_pid(), "other": others}.get(word, word)
        memory.backend_slot(slot).pid = named
        try:
            victim.cancel_request()
            assert [m.fields()["C"] for m in victim.until_ready(20) if m.type == "E"] == ["57014"]
        finally:
            memory.backend_slot(slot).pid = pid
        assert other.query("SELECT 1") == [["1"]]
        other.query("COMMIT")
    assert_healthy(cluster)
