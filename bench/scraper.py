"""Prometheus's part: a program that asks a monitor for /metrics each second."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from servers import HOST

LIMIT_S = 60
# The monitor keeps an answer for a second.
KEPT_S = 1.05


def scrapes(port: int, rounds: int) -> tuple[list[float], int]:
    """The times in ms of scrapes that are answered anew, sorted, and the size of one."""
    taken, size = [], 0
    for _ in range(rounds):
        time.sleep(KEPT_S)
        start = time.monotonic()
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=LIMIT_S) as answer:
            size = len(answer.read())
        taken.append((time.monotonic() - start) * 1000)
    return sorted(taken), size


@contextmanager
def scraped(port: int) -> Iterator[None]:
    """A process of its own scrapes, whose interpreter is in nobody's way."""
    child = os.fork()
    if child == 0:
        try:
            while True:
                scrapes(port, 1)
        finally:
            os._exit(1)
    try:
        yield
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            raise SystemExit("bench: the monitor does not answer")
    finally:
        # it may have ended, and been waited for
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
