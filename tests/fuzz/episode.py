"""One episode: a script in both worlds, side by side, compared at every step."""

from __future__ import annotations

import difflib
import time
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator

from .generator import Generator, Operation, SessionView
from .vocabulary import RARE
from .world import World

NOTIFICATION_LIMIT_S = 20.0

# So often it is looked whether backends are free; after each Flush besides.
BUSY_STEPS = 50


@dataclass(frozen=True)
class Difference:
    """Where the two worlds parted."""

    step: int
    operation: Operation
    what: str
    direct: tuple[str, ...]
    other: tuple[str, ...]

    def signature(self) -> str:
        """What a shortened script must still show.

        The kind of thing that differs, without the values, which change when
        the script does."""
        if self.what != "answer":
            return self.what
        kinds = [line.split(" ")[0] for line in self.diff() if line[0] in "+-" and line[:3] not in ("+++", "---")]
        return f"{self.operation.label[:24]} {sorted(set(kinds))}"

    def diff(self) -> list[str]:
        return list(difflib.unified_diff(self.direct, self.other, "direct", "pool", lineterm="", n=3))


class Episode:
    """Runs operations in both worlds until they differ."""

    def __init__(self, direct: World, other: World) -> None:
        self.direct = direct
        self.other = other
        self.views = [SessionView() for _ in direct.sessions]
        self.done: list[Operation] = []

    def generate(self, seed: int, steps: int, backends: int) -> Iterator[Operation]:
        generator = Generator(seed, len(self.direct.sessions), self.direct.database, backends, self.direct.pids)
        for _ in range(steps):
            yield generator.next(self.views)

    def run(self, operations: Iterable[Operation], on_step: Callable[[], None] = lambda: None) -> Difference | None:
        self.direct.lay_out()
        self.other.lay_out()
        for step, operation in enumerate(operations):
            self.done.append(operation)
            difference = self._step(step, operation)
            if difference:
                return difference
            on_step()
        return None

    def close(self) -> None:
        self.direct.close()
        self.other.close()

    def _step(self, step: int, operation: Operation) -> Difference | None:
        if "wait_event" in operation.label:
            self.direct.all_wait()
            self.other.all_wait()
        direct = self.direct.perform(operation)
        other = self.other.perform(operation)
        if direct != other:
            return Difference(step, operation, "answer", tuple(direct), tuple(other))
        someone_left = False
        for view, session in zip(self.views, self.direct.sessions):
            someone_left = someone_left or (view.connected and session.wire is None)
            view.connected = session.wire is not None
            view.status = session.status
            view.seeded = view.seeded and view.connected
        if operation.label in RARE and not any(line.startswith("error") for line in direct):
            view = self.views[operation.session]
            view.seeded = view.connected
        if someone_left:
            held_direct = self.direct.settle()
            held_other = self.other.settle(held_direct)
            if held_direct != held_other:
                return Difference(step, operation, "locks after a session's end",
                                  tuple(held_direct), tuple(held_other))
        if operation.behind or step % BUSY_STEPS == 0:
            busy = self.other.busy()
            if busy:
                return Difference(step, operation, "a session keeps its backend busy", (), tuple(busy))
        return self._compare_notifications(step, operation)

    def _compare_notifications(self, step: int, operation: Operation) -> Difference | None:
        deadline = time.monotonic() + NOTIFICATION_LIMIT_S
        number = operation.session
        while True:
            direct = self.direct.notifications(number)
            other = self.other.notifications(number)
            if direct == other:
                return None
            if time.monotonic() > deadline:
                return Difference(step, operation, "notifications", tuple(direct), tuple(other))
            time.sleep(0.002)
