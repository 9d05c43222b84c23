"""Many sessions at a time, more than there are backends for them."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterator

from .cluster import HOST, Cluster
from .wire import Wire


@contextlib.contextmanager
def closed_at_the_end() -> Iterator[Callable[..., list[Wire]]]:
    """Gives make(cluster, count, **options), which logs so many sessions in."""
    with contextlib.ExitStack() as stack:

        def make(cluster: Cluster, count: int, **options: str) -> list[Wire]:
            wires = []
            for _ in range(count):
                wires.append(Wire.login(HOST, cluster.pool_port, **options))
                stack.callback(wires[-1].close)
            return wires

        yield make


def commit_as_they_begin(wires: list[Wire]) -> None:
    """All sessions have asked to BEGIN; each commits as soon as it has begun, and makes room."""
    left = list(wires)
    while left:
        ready, _, _ = select.select([wire.sock for wire in left], [], [], 30)
        assert ready, "nobody begins"
        for wire in [wire for wire in left if wire.sock in ready]:
            wire.until_ready()
            wire.query("COMMIT")
            left.remove(wire)
