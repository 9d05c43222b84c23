"""Batch scheduling: busy backends and busy threads of the dispatcher interrupt no running
process (SCHED_BATCH), as long as they need not wait for a processor for longer than the
limit. A policy that an administrator has set stays.

The machine decides how long the waits are: a limit that no wait reaches stands for a quiet
machine, and a limit of a microsecond beside processes that compute for a busy machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from harness.certificates import Authority, make_secure
from harness.relays import relay_threads

pytestmark = pytest.mark.pool_only

NEVER_REACHED = 60_000_000
TIMEOUT_S = 60


@pytest.fixture
def server(make_cluster, tmp_path):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2}, start=False)
    make_secure(cluster, Authority(tmp_path))
    return cluster.start()


@pytest.fixture
def session(server):
    with psycopg.connect(server.pool(sslmode="require"), autocommit=True) as session:
        session.execute("SELECT 1")
        yield session


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """Runs processes that leave no processor idle."""
    all_of_them = [
        subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in all_of_them:
            process.kill()
            process.wait()


def set_wait(server, microseconds: int) -> None:
    server.set_parameters({"pg_baton.batch_scheduling_wait_us": microseconds})
    server.reload()


def backends(server) -> list[int]:
    return [process.pid for process in server.processes() if process.command.startswith("postgres: postgres postgres")]


def relays(server) -> list[int]:
    return [int(thread.name) for thread in relay_threads(server.relay_pids())]


def policy_of(process: int) -> int | None:
    """None if the process has gone, as the backend that has asked for a reload does."""
    with contextlib.suppress(ProcessLookupError):
        return os.sched_getscheduler(process)
    return None


def who_is(server, policy: int) -> tuple[int, int]:
    """How many backends and relay threads have the policy."""
    return tuple(sum(policy_of(each) == policy for each in group) for group in (backends(server), relays(server)))


def work_until(session, check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not check():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s: {what}"
        for _ in range(20):
            session.execute("SELECT 1")


def work_until_busy(server, session) -> None:
    """Works until the session's backend and the thread that relays for it are busy. On a machine
    with other work, they are not always busy at the same moment."""
    work_until(session, lambda: who_is(server, os.SCHED_BATCH)[0] == 1, "the backend is busy")
    work_until(session, lambda: who_is(server, os.SCHED_BATCH)[1] == 1, "the relay is busy")


def test_busy_threads_interrupt_no_others_until_switched_off(server, session):
    set_wait(server, NEVER_REACHED)
    work_until_busy(server, session)
    set_wait(server, 0)
    work_until(session, lambda: who_is(server, os.SCHED_BATCH) == (0, 0), "neither may be")


def test_threads_that_wait_long_interrupt_others(server, session):
    set_wait(server, NEVER_REACHED)
    work_until_busy(server, session)
    with computing():
        set_wait(server, 1)
        work_until(session, lambda: who_is(server, os.SCHED_BATCH)[0] == 0, "the backend waits")
        work_until(session, lambda: who_is(server, os.SCHED_BATCH)[1] == 0, "the relay waits")


def test_what_an_administrator_has_set_stays(server, session):
    set_wait(server, NEVER_REACHED)
    changed = []
    for each in [*backends(server), *relays(server)]:
        with contextlib.suppress(ProcessLookupError):  # the backend that has asked for the reload may be going
            try:
                os.sched_setscheduler(each, os.SCHED_FIFO, os.sched_param(1))
            except PermissionError:
                pytest.skip("only an administrator may")
            changed.append(each)
    for _ in range(500):
        session.execute("SELECT 1")
    policies = [policy for policy in map(policy_of, changed) if policy is not None]
    assert len(policies) > 1 and set(policies) == {os.SCHED_FIFO}


def test_the_nice_value_stays(server, session):
    set_wait(server, NEVER_REACHED)
    niced = backends(server)
    for backend in niced:
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, backend, 5)
    work_until(session, lambda: who_is(server, os.SCHED_BATCH)[0] > 0, "it is busy")
    nice_values = []
    for backend in set(niced):
        with contextlib.suppress(ProcessLookupError):
            nice_values.append(os.getpriority(os.PRIO_PROCESS, backend))
    assert nice_values and set(nice_values) == {5}
