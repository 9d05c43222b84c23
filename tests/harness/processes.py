"""The processes of a cluster: which they are, and where they hang.

Every process of a server, and the dispatcher, has the data directory as its
working directory. That distinguishes them from all other processes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

PIDFD_GETFD = 438  # the same on all machines
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    pid: int
    state: str
    command: str


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def processes_in(directory: Path) -> list[Process]:
    """All living processes whose working directory is `directory`."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if os.readlink(f"/proc/{entry}/cwd") != str(directory):
                continue
        except OSError:
            continue
        stat = _read(f"/proc/{entry}/stat")
        if ")" not in stat:
            continue  # it has gone meanwhile
        state = stat.rpartition(")")[2].split()[0]
        if state in ("Z", "X"):
            continue
        command = _read(f"/proc/{entry}/cmdline").replace("\0", " ").strip()
        found.append(Process(int(entry), state, command))
    return sorted(found, key=lambda process: process.pid)


def cpu_seconds(pid: int) -> float:
    """Processor time used by a process so far; 0 if it is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 13:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(pid: int) -> list[str]:
    """The objects that the descriptors of a process refer to."""
    found = []
    try:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            try:
                found.append(os.readlink(f"/proc/{pid}/fd/{entry}"))
            except OSError:
                continue
    except OSError:
        pass
    return found


def stacks(processes: list[Process], limit: int = 16) -> str:
    """Where each process is: kernel wait channel, and gdb's backtraces."""
    lines = []
    for process in processes[:limit]:
        wchan = _read(f"/proc/{process.pid}/wchan")
        lines.append(f"--- {process.pid} [{process.state}] {process.command} (wchan {wchan})")
        if shutil.which("gdb"):
            try:
                shown = subprocess.run(
                    ["gdb", "-p", str(process.pid), "-batch", "-nx", "-ex", "thread apply all bt 25"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    stdin=subprocess.DEVNULL,
                    text=True,
                    timeout=20,
                ).stdout
                lines += [line for line in shown.splitlines() if line.startswith(("#", "Thread"))]
            except (subprocess.TimeoutExpired, OSError) as error:
                lines.append(f"(gdb: {error})")
        else:
            lines.append(_read(f"/proc/{process.pid}/stack"))
    return "\n".join(lines)


def core_backtrace(program: str, core: Path) -> str:
    """The place where a process was when it left a core file."""
    if not shutil.which("gdb"):
        return "(no gdb)"
    try:
        shown = subprocess.run(
            ["gdb", "-batch", "-nx", "-ex", "bt 30", program, str(core)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
        ).stdout
        return "\n".join(line for line in shown.splitlines() if line.startswith(("#", "Core", "Program")))
    except (subprocess.TimeoutExpired, OSError) as error:
        return f"(gdb: {error})"


def kill_all(processes: list[Process]) -> None:
    """SIGKILL for exactly these processes."""
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def wait_until_gone(directory: Path, timeout_s: float) -> list[Process]:
    """Waits until a directory has no process, and returns the processes that are left at the end."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = processes_in(directory)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


# The process that serves the asking session. pg_backend_pid() is the session's own
# number.  The clusters' template has the function.
ITS_PROCESS = "SELECT harness.its_process()"
ITS_PROCESS_FUNCTION = """CREATE SCHEMA harness;

GRANT USAGE ON SCHEMA harness TO PUBLIC;

CREATE FUNCTION harness.its_process() RETURNS int LANGUAGE sql SECURITY DEFINER
    AS $$ SELECT pg_catalog.split_part(pg_catalog.pg_read_file('/proc/self/stat'), ' ', 1)::int $$;

"""


def borrowed_socket(pid: int, number: int) -> socket.socket | None:
    """A copy of another process's descriptor, if it is a socket's."""
    process = os.pidfd_open(pid)
    try:
        found = LIBC.syscall(PIDFD_GETFD, process, number, 0)
    finally:
        os.close(process)
    if found < 0:
        if ctypes.get_errno() == errno.EBADF:
            return None
        import pytest

        pytest.skip("this system lends nobody another process's descriptors")
    try:
        return socket.socket(fileno=found)
    except OSError:
        os.close(found)
        return None


def watched(pid: int, data: int) -> list[int]:
    """The descriptors that a process's epoll knows by that event data (proc_pid_fdinfo(5))."""
    found = []
    for entry in os.listdir(f"/proc/{pid}/fd"):
        for line in _read(f"/proc/{pid}/fdinfo/{entry}").splitlines():
            words = line.split()
            if words[0] == "tfd:" and int(words[5], 16) == data:
                found.append(int(words[1]))
    return found


def memory_kb(pid: int) -> int:
    """The memory of a process, with its share of the memory that others have as well (Pss)."""
    lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
