"""What looks at a server beside a load: Prometheus, which asks its monitor for /metrics each second."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
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
def beside(work: Callable[[], object]) -> Iterator[None]:
    """A process of its own does this again and again, so that its interpreter is in nobody's way."""
    child = os.fork()
    if child == 0:
        try:
            while True:
                work()
        finally:
            os._exit(1)
    try:
        yield
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            raise SystemExit("bench: what looks beside the load has failed")
    finally:
        # it may have ended, and been waited for
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
