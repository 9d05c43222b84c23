"""An attacker that controls the dispatcher does not thereby control the server's files."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import subprocess
from pathlib import Path

import pytest
from harness.debugger import needs_gdb
from harness.health import assert_healthy, wait_until

# landlock_create_ruleset (asm/unistd.h) with LANDLOCK_CREATE_RULESET_VERSION
LANDLOCK = ctypes.CDLL(None).syscall(444, None, 0, 1) > 0

pytestmark = [pytest.mark.pool_only, pytest.mark.skipif(not LANDLOCK, reason="the kernel has no Landlock")]


def in_dispatcher(cluster, *calls: str) -> list[tuple[int, int]]:
    """The result of each call when the dispatcher's event loop makes it, and errno."""
    (pid,) = cluster.dispatcher_pids()
    command = ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "thread 1"]
    for call in calls:
        command += ["-ex", f"print (int){call}", "-ex", "print *(int *)((void *(*)(void))__errno_location)()"]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    # gdb 13 knows no state as large as that of processors with AMX, and can call nothing there
    if "Couldn't write extended state" in ran.stderr:
        pytest.skip("gdb cannot call functions on this processor")
    assert ran.returncode == 0, ran.stderr
    shown = ran.stdout
    found = [int(value) for value in re.findall(r"^\$\d+ = (-?\d+)$", shown, re.MULTILINE)]
    assert len(found) == 2 * len(calls), shown
    return list(zip(found[::2], found[1::2]))


@needs_gdb
def test_a_dispatcher_writes_no_file_and_starts_no_program(make_cluster):
    cluster = make_cluster()
    cluster.sql("CREATE EXTENSION pg_baton")
    calls = {
        f'open64("PG_VERSION", {os.O_WRONLY})': errno.EACCES,
        f'open64("postgresql.conf", {os.O_RDWR | os.O_TRUNC})': errno.EACCES,
        f'open64("made", {os.O_WRONLY | os.O_CREAT}, 0600)': errno.EACCES,
        'mkdir("made", 0700)': errno.EACCES,
        'symlink("PG_VERSION", "made")': errno.EACCES,
        'execve("/bin/true", 0, 0)': errno.EACCES,
        f"ptrace(16, {cluster.postmaster_pid()}, 0, 0)": errno.EPERM,
    }
    assert in_dispatcher(cluster, *calls) == [(-1, why) for why in calls.values()]
    # the dispatcher can still read the files that it reads at a reload
    ((number, _),) = in_dispatcher(cluster, f'open64("PG_VERSION", {os.O_RDONLY})')
    assert number > 0
    assert_healthy(cluster)


def test_no_dispatcher_thread_keeps_rights_that_others_gave_up(make_cluster):
    """An attacker that controls the process has all of its threads. The thread that writes the
    log exists whatever is logged; it writes to the collector's pipe only."""
    cluster = make_cluster(parameters={"pg_baton.dispatcher_log": "error", "logging_collector": True})
    cluster.sql("CREATE EXTENSION pg_baton")
    (pid,) = cluster.dispatcher_pids()

    def threads() -> dict[str, bool]:
        status = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/status")]
        return {one.split("\n")[0]: "NoNewPrivs:\t1" in one for one in status}

    wait_until(lambda: all(threads().values()), 20, "all have")
    assert "Name:\tlog" in threads()
    assert_healthy(cluster)
