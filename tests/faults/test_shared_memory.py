"""A process that writes to shared memory, or changes it otherwise, harms no other process."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from harness.account import as_server_user
from harness.control_memory import ControlMemory, constant
from harness.health import CRASH, assert_healthy, assert_serves, wait_until
from harness.hostile import nobody_starts
from harness.processes import ITS_PROCESS
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
def test_no_process_can_take_shared_memory_from_under_others(cluster, name):
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
def test_cancel_reaches_its_backend_whatever_pid_memory_names(cluster, word):
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


# Fields of the header that describe the memory itself; none of them ever changes.
SHAPE = [
    *("magic", "layout_version", "backend_slots", "pool_slots", "session_slots", "counter_slots", "postmaster_pid"),
    *("backend_offset", "pool_offset", "session_offset", "counter_offset", "total_size", "secret"),
    *("pid_entries", "query_size", "identity_offset", "pid_offset", "query_offset", "tenant_offset"),
]


@pytest.mark.parametrize("value", [0, 3, 2**40, 2**64 - 1])
def test_processes_keep_their_layout_whatever_the_header_says(cluster, value):
    memory = ControlMemory(cluster)
    made = {name: getattr(memory.header, name) for name in SHAPE}
    with Wire.login(HOST, cluster.pool_port) as session:
        session.query("SET my.own = 'kept'")
        session.query("PREPARE mine AS SELECT 1")
        for name in SHAPE:
            setattr(memory.header, name, value)
        assert session.query("SHOW my.own; EXECUTE mine") == [["kept"], ["1"]]
        ((pid,),) = session.query("SELECT pg_backend_pid()")
        for table in ("pg_baton_sessions", "pg_baton_backends", "pg_stat_activity"):
            assert cluster.sql(f"SELECT count(*) > 0 FROM {table}") == [(True,)]
        assert cluster.sql(f"SELECT pg_cancel_backend({pid})") == [(True,)]
        assert session.query("SELECT 2") == [["2"]]
        assert_serves(cluster)
        # after a crash, the server writes the header anew; tests commit without waiting
        # for the disk, and the extension was created a moment ago
        cluster.sql("CHECKPOINT")
        cluster.expect_in_log(*CRASH)
        with Wire.login(HOST, cluster.pool_port) as victim:
            victim.query("BEGIN")
            os.kill(int(victim.query(ITS_PROCESS)[0][0]), signal.SIGKILL)
            victim.until_closed(20)
        cluster.wait_for_log("the shared memory of pg_baton was damaged, its header has been restored")
        cluster.wait_pool_ready()
    assert {name: getattr(memory.header, name) for name in SHAPE} == made
    assert_healthy(cluster)


def test_an_index_that_is_out_of_range_costs_one_process(cluster):
    memory = ControlMemory(cluster)
    wire = Wire.login(HOST, cluster.pool_port)
    wire.query("SELECT 1")
    backends = "FROM pg_baton_backends"
    cluster.sql(f"SELECT pg_terminate_backend(pid) {backends} WHERE session_id IS NULL")
    wait_until(lambda: cluster.sql(f"SELECT 1 {backends}") == [], what="there is no backend")
    with nobody_starts(cluster):
        wire.send(query("SELECT 1"))
        starting = constant("BATON_BACKEND_STARTING")
        slots = [memory.backend_slot(number) for number in range(memory.header.backend_slots)]
        wait_until(lambda: any(slot.state == starting for slot in slots), what="a backend is expected")
        for slot in slots:
            slot.pool = 2**32 - 1
    # the next backend finds the wrong index
    assert [m.row() for m in wire.until_ready(20) if m.type == "D"] == [[b"1"]]
    assert "pool slot 4294967295 of pg_baton is out of range" in cluster.log()
    wire.finish()
    assert_healthy(cluster)


@pytest.mark.parametrize("word", [1, 7, 2**32 - 1])
def test_idle_session_is_served_whatever_backend_its_slot_names(cluster, word):
    """The words of its slot name a backend that cannot have it."""
    memory = ControlMemory(cluster)
    cluster.sql("CREATE ROLE another LOGIN")
    with Wire.login(HOST, cluster.pool_port, user="another") as other, Wire.login(HOST, cluster.pool_port) as idle:
        other.query("BEGIN")
        idle.query("SET my.own = 'kept'")
        wait_until(
            lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions WHERE backend_pid IS NULL") == [(1,)],
            what="it is given back",
        )
        ((session,),) = cluster.sql("SELECT id FROM pg_baton_sessions WHERE user_name = 'postgres'")
        words = memory.session_slot(session)
        words.owner = words.last_backend = word
        assert idle.query("SHOW my.own", timeout_s=20) == [["kept"]]
        assert other.query("SELECT 1") == [["1"]]
        other.query("COMMIT")
    assert_healthy(cluster)


def test_backend_touches_no_session_if_its_slot_names_another(cluster):
    """The backend's own session has another name by now: the backend must not write there."""
    memory = ControlMemory(cluster)
    with Wire.login(HOST, cluster.pool_port) as session, Wire.login(HOST, cluster.pool_port) as other:
        session.query("SELECT 1")
        other.query("SET my.own = 'kept'")
        session.query("BEGIN")
        ((number,),) = cluster.sql("SELECT id FROM pg_baton_sessions WHERE state = 'idle in transaction'")
        words = memory.session_slot(number)
        words.id = number + (1 << 32)
        session.send(query("COMMIT"))
        session.until_closed(20)
        wait_until(lambda: words.id != number + (1 << 32), what="its slot is free")
        assert other.query("SHOW my.own") == [["kept"]]
    assert "is another session's" in cluster.log()
    assert_healthy(cluster)


def test_number_of_no_server_process_is_not_signalled(cluster):
    """kill(-1) would signal all of the user's processes."""
    memory = ControlMemory(cluster)
    with Wire.login(HOST, cluster.pool_port) as session:
        session.query("BEGIN")
        ((pid,),) = session.query("SELECT pg_backend_pid()")
        ((slot, process),) = cluster.sql("SELECT slot, pid FROM pg_baton_backends WHERE session_id IS NOT NULL")
        for number in (2**32 - 1, 2**32 - 2, 1, cluster.postmaster_pid(), os.getpid()):
            memory.backend_slot(slot).pid = number
            # as for a session without a backend: the server asks the dispatcher
            cluster.sql(f"SELECT pg_cancel_backend({pid})")
        memory.backend_slot(slot).pid = process
        assert session.query("SELECT 1") == [["1"]]
        session.query("COMMIT")
    assert_healthy(cluster)


@pytest.mark.parametrize("named", ["nobody", "none that is", "a stranger", "the postmaster", "a backend", "all"])
def test_next_launcher_adopts_the_listener_whatever_memory_names(cluster, named):
    """A process that memory names instead gets no signal."""
    memory = ControlMemory(cluster)
    dispatchers = cluster.dispatcher_pids()
    launcher = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'"
    stranger = subprocess.Popen(as_server_user(["sleep", "600"]))
    try:
        with Wire.login(HOST, cluster.pool_port) as session:
            session.query("SET my.own = 'kept'")
            ((backend,),) = session.query(ITS_PROCESS)
            words = {"nobody": 0, "none that is": 4194303, "a stranger": stranger.pid, "all": 2**32 - 1}
            words |= {"the postmaster": cluster.postmaster_pid(), "a backend": int(backend)}
            memory.header.dispatcher_pid = words[named]
            before = cluster.sql(launcher)
            cluster.sql(f"SELECT pg_terminate_backend({before[0][0]})")
            wait_until(lambda: cluster.sql(launcher) not in ([], before), what="there is another launcher")
            # the dispatcher asks the launcher about a role that it does not know yet
            cluster.sql("CREATE ROLE unknown_yet LOGIN")
            with Wire.login(HOST, cluster.pool_port, user="unknown_yet") as new:
                assert new.query("SELECT current_user") == [["unknown_yet"]]
                new.finish()
            assert session.query("SHOW my.own") == [["kept"]]
            session.finish()
        cluster.wait_for_takeover(dispatchers[0])
        assert cluster.dispatcher_pids() == dispatchers
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert_healthy(cluster)
