"""Other builds of the dispatcher, and a dispatcher that hangs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import psycopg
import pytest
from harness import doctor as asking
from harness.debugger import halted, needs_gdb
from harness.doctor import findings, of
from harness.health import (
    DISPATCHER_KILLED,
    Load,
    assert_healthy,
    assert_nothing_spins,
    assert_serves,
    stop,
    wait_for_next_dispatcher,
    wait_until,
)
from harness.processes import processes_in
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

NOTE = b"pg_baton\0\0\0\0"


def login(cluster, **options) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, **options)


def build(cluster) -> dict:
    with psycopg.connect(cluster.direct(), row_factory=psycopg.rows.dict_row) as direct:
        return direct.execute("SELECT * FROM pg_baton_build").fetchone()


def install(run, path: Path, layout: bytes | None = None, build: bytes | None = None) -> Path:
    """The program under test as another build, put in place by rename, as packages do."""
    content = bytearray(Path(run.stage.program).read_bytes())
    if layout is not None:
        at = content.index(NOTE) + len(NOTE)
        content[at : at + 4] = layout
    if build is not None:
        at = content.index(b"\x03\0\0\0GNU\0") + 8
        content[at : at + len(build)] = build
    path.parent.mkdir(exist_ok=True)
    path.parent.chmod(0o755)
    new = path.with_name("new")
    new.write_bytes(content)
    new.chmod(0o755)
    new.rename(path)
    return path


@pytest.fixture
def program(run, request) -> Path:
    name = re.sub(r"\W", "-", request.node.name)[:40]
    return install(run, run.directory / f"programs-{name}" / "baton-dispatcher")


@pytest.fixture
def cluster(make_cluster, program):
    cluster = make_cluster(parameters={"pg_baton.dispatcher_program": program, "pg_baton.max_backends": 3})
    cluster.sql("CREATE EXTENSION pg_baton")
    return cluster


def kill(cluster) -> int:
    cluster.expect_in_log(DISPATCHER_KILLED)
    (old,) = cluster.dispatcher_pids()
    os.kill(old, signal.SIGKILL)
    return wait_for_next_dispatcher(cluster, old)


def test_program_of_another_layout_does_not_take_over(cluster, program, run):
    first = build(cluster)
    install(run, program, layout=b"\x01\x02\x03\x04")
    pid = kill(cluster)
    with login(cluster) as session:
        assert session.query("SELECT 1") == [["1"]]
    cluster.wait_for_log("the installed one is of another layout")
    now = build(cluster)
    assert now["program_layout"] == now["library_layout"] == first["program_layout"]
    assert (now["program_build"], now["dispatcher_pid"]) == (first["program_build"], pid)
    assert now["installed_layout"] == "0x04030201" and now["installed_differs"]
    assert now["restarts"] == 1 and "signal 9" in now["last_end"]
    # its name is the one that ps shows for the installed program
    assert Path(f"/proc/{pid}/comm").read_text() == "baton-dispatche\n"
    found = findings(cluster, 1)
    assert "another layout" in of(found, "dispatcher", "failure")["text"]
    assert_healthy(cluster)


def test_program_that_is_gone_does_not_take_the_pool_down(cluster, program):
    program.unlink()
    kill(cluster)
    assert_serves(cluster)
    cluster.wait_for_log("it is not installed any more")
    assert build(cluster)["installed_program"] is None
    assert "no longer installed" in of(findings(cluster, 0), "dispatcher", "warning")["text"]


def test_descriptor_of_kept_program_reaches_no_started_program(cluster, program):
    """Neither what COPY PROGRAM starts nor the dispatcher itself has it."""
    listing = "COPY (SELECT 1) TO PROGRAM 'ls -l /proc/self/fd > %s'" % (seen := cluster.home / "descriptors")
    program.unlink()
    kill(cluster)
    cluster.sql(listing)
    assert "baton-dispatcher" not in seen.read_text()
    (pid,) = cluster.dispatcher_pids()
    own = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    assert not any("baton-dispatcher" in target for target in own), own


def test_newer_program_of_one_layout_waits_and_is_told_of(cluster, program, run):
    """doctor names `baton upgrade`, which replaces the dispatcher and says what happened."""
    assert_serves(cluster)
    assert not build(cluster)["installed_differs"]
    install(run, program, build=b"\xaa\xbb\xcc\xdd")
    assert build(cluster)["installed_differs"]
    found = of(findings(cluster, 0), "dispatcher", "warning")
    assert "waits" in found["text"] and "baton upgrade" in found["mend"]

    with login(cluster) as held, login(cluster) as idle:
        idle.query("SELECT 1")
        held.query("BEGIN")
        ran = asking.upgrade(cluster)
        assert ran.returncode == 0 and "aabbccdd" in ran.stdout and "No session ends." in ran.stdout, ran
        assert held.query("SELECT 1") == idle.query("SELECT 1") == [["1"]]
    now = build(cluster)
    assert now["program_build"].startswith("aabbccdd") and not now["installed_differs"]
    assert now["last_end"] == "asked for" and now["restarts"] == 1
    ran = asking.upgrade(cluster)
    assert ran.returncode == 0 and "already" in ran.stdout, ran
    assert_healthy(cluster)


def test_upgrade_to_another_layout_is_refused(cluster, program, run):
    install(run, program, layout=b"\x01\x02\x03\x04")
    (pid,) = cluster.dispatcher_pids()
    ran = asking.upgrade(cluster)
    assert ran.returncode == 1 and "another layout" in ran.stderr and "restart" in ran.stderr, ran
    assert cluster.dispatcher_pids() == [pid]


def test_only_superusers_replace_the_dispatcher_by_sql(cluster):
    cluster.sql("CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher")
    with psycopg.connect(cluster.direct(user="watcher")) as watcher:
        assert watcher.execute("SELECT restarts FROM pg_baton_build").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            watcher.execute("SELECT pg_baton_restart_dispatcher()")


def test_restart_by_sql_takes_parameters_and_keeps_transactions(make_cluster):
    """Asked by a session of the pool, too, whose own dispatcher goes."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 3})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.set_parameters({"pg_baton.dispatchers": 3})
    cluster.reload()
    assert cluster.sql("SELECT threads FROM pg_baton_dispatchers") != [(3,)]
    (old,) = cluster.dispatcher_pids()
    with login(cluster) as session:
        session.query("BEGIN")
        ((new,),) = session.query("SELECT pg_baton_restart_dispatcher()")
        assert [int(new)] == cluster.dispatcher_pids() != [old]
        session.query("COMMIT")
        assert session.query("SELECT 1") == [["1"]]
    assert cluster.sql("SELECT threads FROM pg_baton_dispatchers") == [(3,)]
    assert_healthy(cluster)


# ---- a dispatcher that hangs --------------------------------------------------


@pytest.fixture
def watched(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.hang_limit_ms": 1000, "pg_baton.max_backends": 3})
    cluster.sql("CREATE EXTENSION pg_baton")
    return cluster


def test_dispatcher_that_is_stopped_is_replaced(watched):
    watched.expect_in_log(DISPATCHER_KILLED)
    (old,) = watched.dispatcher_pids()
    with login(watched) as session:
        session.query("BEGIN")
        stop(old)
        wait_for_next_dispatcher(watched, old)
        assert session.query("SELECT 1") == [["1"]]
    watched.wait_for_log(rf"dispatcher \(PID {old}\) has made no progress for \d+ seconds, killing it")
    assert build(watched)["last_end"] == "made no progress"
    assert_healthy(watched)


def test_adopted_dispatcher_that_is_stopped_is_replaced(watched):
    watched.expect_in_log(r"terminating background worker \"pg_baton launcher\"")
    (old,) = watched.dispatcher_pids()
    watched.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")
    watched.wait_for_takeover(old)
    stop(old)
    wait_for_next_dispatcher(watched, old)
    watched.wait_for_log(rf"dispatcher \(PID {old}\) has made no progress")
    assert_healthy(watched)


def test_idle_and_busy_dispatchers_do_not_count_as_hung(watched):
    (old,) = watched.dispatcher_pids()
    time.sleep(3)
    with Load(watched, 4) as load:
        load.wait_for_answers(300)
        time.sleep(2)
    assert load.wrong == []
    assert watched.dispatcher_pids() == [old]
    assert_nothing_spins(watched)


@needs_gdb
def test_dispatcher_in_a_debugger_is_left_alone(watched):
    (old,) = watched.dispatcher_pids()
    with halted(old):
        watched.wait_for_log(rf"dispatcher \(PID {old}\) has made no progress for \d+ seconds, and is left alone")
    assert_serves(watched)
    assert watched.dispatcher_pids() == [old]


def test_stopped_dispatcher_ends_when_its_postmaster_is_killed(make_cluster):
    cluster = make_cluster()
    cluster.expect_in_log(DISPATCHER_KILLED)
    (old,) = cluster.dispatcher_pids()
    stop(old)
    os.kill(cluster.postmaster_pid(), signal.SIGKILL)
    cluster.process.wait(60)
    wait_until(lambda: processes_in(cluster.data) == [], what="no process left")
    restart_after_kill(cluster)
    assert_serves(cluster)


def test_stopped_dispatcher_of_a_killed_server_is_replaced(make_cluster):
    """Its launcher has been killed as well; it keeps the ports from the next server."""
    cluster = make_cluster()
    (old,) = cluster.dispatcher_pids()
    stop(old)
    for process in cluster.processes():
        if process.pid != old:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    cluster.process.wait(60)
    wait_until(lambda: [p.pid for p in processes_in(cluster.data)] == [old], what="only the dispatcher is left")
    restart_after_kill(cluster)
    cluster.wait_for_log(rf"the dispatcher of an earlier server \(PID {old}\) still runs, killing it")
    assert_serves(cluster)


def restart_after_kill(cluster) -> None:
    cluster.process = None
    (cluster.data / "postmaster.pid").unlink(missing_ok=True)
    cluster.start()


def test_restart_that_cannot_start_a_program_does_not_spin(make_cluster, run):
    """The launcher tries again at its usual pace, and carries the request out once it can."""
    copy = install(run, run.directory / "restart-without" / "baton-dispatcher", layout=b"\1\2\3\4")
    program = install(run, run.directory / "restart-with" / "baton-dispatcher")
    cluster = make_cluster(start=False, parameters={"pg_baton.dispatcher_program": copy})
    cluster.start(wait_for_pool=False)
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.wait_for_log("is of another layout than the library")
    with psycopg.connect(cluster.direct(), autocommit=True) as asking_one:
        asking_one.execute("SET statement_timeout = '2s'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            asking_one.execute("SELECT pg_baton_restart_dispatcher()")
    assert cluster.log().count("is of another layout than the library") < 5
    assert_nothing_spins(cluster)
    cluster.set_parameters({"pg_baton.dispatcher_program": program})
    cluster.reload()
    cluster.wait_pool_ready()
    assert_serves(cluster)
