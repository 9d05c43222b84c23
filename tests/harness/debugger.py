"""Stopping a process at a function, for moments that are too short to hit."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .health import wait_until

needs_gdb = pytest.mark.skipif(shutil.which("gdb") is None, reason="no gdb")


class Stop:
    """A process that will stop, or has stopped, where it was told to."""

    def __init__(self, directory: Path) -> None:
        self.reached = directory / "reached"
        self.attached = directory / "attached"
        self.go = directory / "go"

    def wait(self, timeout_s: float = 60) -> None:
        """Until it has come there."""
        wait_until(self.reached.exists, timeout_s, "the process is where it shall stop")


@contextlib.contextmanager
def halted(pid: int) -> Iterator[None]:
    """A debugger has stopped the process until the block ends."""
    with tempfile.TemporaryDirectory() as name:
        attached, go = Path(name) / "attached", Path(name) / "go"
        commands = [f"shell touch {attached}", f"shell while [ -d {name} ] && [ ! -e {go} ]; do sleep 0.02; done"]
        arguments = ["gdb", "-p", str(pid), "-batch", "-nx"]
        for command in [*commands, "detach"]:
            arguments += ["-ex", command]
        with subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as debugger:
            try:
                wait_until(attached.exists, 60, "gdb is attached")
                yield
            finally:
                go.touch()
                debugger.wait(60)


@contextlib.contextmanager
def stopped_at(pid: int, function: str) -> Iterator[Stop]:
    """The next time that the process enters `function`, it stops there until
    the block ends.  One of ours has to be a BATON_STOP_POINT."""
    with tempfile.TemporaryDirectory() as name:
        stop = Stop(Path(name))
        commands = ["set breakpoint pending off", "handle SIGUSR1 SIGALRM nostop noprint pass", f"break {function}"]
        commands += [f"shell touch {stop.attached}", "continue", f"shell touch {stop.reached}"]
        commands += [f"shell while [ -d {name} ] && [ ! -e {stop.go} ]; do sleep 0.02; done", "detach"]
        arguments = ["gdb", "-p", str(pid), "-batch", "-nx"]
        for command in commands:
            arguments += ["-ex", command]
        debugger = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(stop.attached.exists, 60, "gdb is attached")
            yield stop
        finally:
            stop.go.touch()
            try:
                debugger.wait(30)
            except subprocess.TimeoutExpired:
                # It was never there: the process must not die with gdb.
                debugger.terminate()
                debugger.wait(10)
