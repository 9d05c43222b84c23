"""Many sessions at a time, more than there are backends for them."""

from __future__ import annotations

import select

from .wire import Wire


def commit_as_they_begin(wires: list[Wire]) -> None:
    """All have asked to BEGIN; each commits as soon as it may, and makes room."""
    left = list(wires)
    while left:
        ready, _, _ = select.select([wire.sock for wire in left], [], [], 30)
        assert ready, "nobody begins"
        for wire in [wire for wire in left if wire.sock in ready]:
            wire.until_ready()
            wire.query("COMMIT")
            left.remove(wire)
