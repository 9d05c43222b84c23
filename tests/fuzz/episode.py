"""One episode: a script in both worlds, side by side, compared at every step."""

from __future__ import annotations

import difflib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from .ddl import DdlGenerator
from .generator import Generator, Operation, SessionView
from .history import COMPILED, PLACE, History, Verdict
from .role_words import EVERYBODY
from .roles import RolesGenerator
from .vocabulary import RARE
from .world import World

NOTIFICATION_LIMIT_S = 20.0

# These change a session's own settings; a session that stores a custom parameter for a role
# or database has that parameter from there on, empty (validate_option_array_item in guc.c).
SETTINGS_GO = re.compile(r"RESET ALL|DISCARD ALL|(?:SET|RESET) app\.tenant")
SETTING_TOPICS = ("tenant",)
# These may change its search_path, or the role that "$user" in it means.
PATH_GOES = re.compile(r"search_path|SCHEMA|RESET ALL|DISCARD ALL|ROLE|AUTHORIZATION|'role'")

# A statement that reads this shows the same of other processes once these wait.
LOOKS_AT_WAITS = "wait_event"
# These may execute an earlier statement of the session that reads it.
EXECUTES = re.compile(r"EXECUTE|Bind")

# The first session that asks for the transaction's counters may see none (docs/limits.md).
COUNT = re.compile(r"^row \[b'\d+'\]$")

# Steps between two checks that backends are free; the check also follows each Flush.
BUSY_STEPS = 50


@dataclass(frozen=True)
class Difference:
    """The point at which the two worlds parted."""

    step: int
    operation: Operation
    what: str
    direct: tuple[str, ...]
    other: tuple[str, ...]

    def signature(self) -> str:
        """The part of the difference that a shortened script must still show.

        It is the kind of difference, without the values, which change when
        the script does."""
        if self.what != "answer":
            return self.what
        kinds = [line.split(" ")[0] for line in self.diff() if line[0] in "+-" and line[:3] not in ("+++", "---")]
        return f"{self.operation.label[:24]} {sorted(set(kinds))}"

    def diff(self) -> list[str]:
        return list(difflib.unified_diff(self.direct, self.other, "direct", "pool", lineterm="", n=3))


class Episode:
    """Runs operations in both worlds until they differ."""

    def __init__(self, direct: World, other: World, shuts_out: bool = False) -> None:
        self.direct = direct
        self.other = other
        self.shuts_out = shuts_out
        """Are roles shut out while sessions of theirs live?"""
        self.users = [""] * len(direct.sessions)
        """As whom each session has logged in, if it is connected."""
        self.views = [SessionView() for _ in direct.sessions]
        self.done: list[Operation] = []
        self.history = History(len(direct.sessions))
        self.counts: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        """Operations about DDL, by kind, and those that began with an error."""
        self.may_look_at_waits: set[int] = set()
        """Sessions that may have prepared something that does."""
        self.loose = 0
        """Operations that may have been answered otherwise."""

    def generate(self, seed: int, steps: int, backends: int, ddl: float) -> Iterator[Operation]:
        rest = len(self.direct.sessions), self.direct.database, backends, self.direct.pids
        if self.direct.roles:
            generator: Generator = RolesGenerator(seed, *rest, self.history, ddl)
        else:
            generator = DdlGenerator(seed, *rest, self.history, ddl) if ddl else Generator(seed, *rest)
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

    def _verdict(self, operation: Operation) -> Verdict:
        shut_out = operation.about.shuts_out
        if not self.shuts_out and any(user and (user in shut_out or EVERYBODY in shut_out) for user in self.users):
            return Verdict.SKIP
        idle = [view.status == "I" for view in self.views]
        return self.history.verdict(operation.session, operation.about, idle[operation.session], all(idle))

    def _note(self, operation: Operation) -> None:
        if operation.connect is not None:
            if not self.views[operation.session].connected:
                self.history.note_connect(operation.session, operation.connect)
            return
        about = operation.about
        if not about.admin and SETTINGS_GO.search(operation.label):
            about = replace(about, own_changes=about.own_changes + SETTING_TOPICS)
        if not about.admin and PATH_GOES.search(operation.label):
            about = replace(about, own_changes=about.own_changes + (COMPILED, PLACE))
        self.history.note(operation.session, about)

    def _looks_at_waits(self, operation: Operation) -> bool:
        session, label = operation.session, operation.label
        if LOOKS_AT_WAITS in label:
            self.may_look_at_waits.add(session)
            return True
        if operation.connect is not None and not self.views[session].connected:
            self.may_look_at_waits.discard(session)
        return session in self.may_look_at_waits and EXECUTES.search(label) is not None

    def _step(self, step: int, operation: Operation) -> Difference | None:
        verdict = Verdict.STRICT if operation.connect or operation.disconnect else self._verdict(operation)
        if verdict is Verdict.SKIP:
            return None
        self._note(operation)
        if self._looks_at_waits(operation):
            self.direct.all_wait()
            self.other.all_wait()
        direct = self.direct.perform(operation)
        other = self.other.perform(operation)
        if operation.about.kind:
            self.counts[operation.about.kind] += 1
            self.failed[operation.about.kind] += any(line.startswith("error") for line in direct)
        if verdict is Verdict.LOOSE:
            self.loose += 1
        elif (
            direct != other
            and "pg_stat_xact" in operation.label
            and (other == [COUNT.sub("row [b'0']", line) for line in direct])
        ):
            self.loose += 1
        elif direct != other:
            return Difference(step, operation, "answer", tuple(direct), tuple(other))
        # A client that is not let in holds a connection for a moment, which CONNECTION LIMIT counts.
        someone_left = operation.connect is not None and any(line.startswith("error") for line in direct)
        if operation.connect is not None and not self.views[operation.session].connected:
            self.users[operation.session] = dict(operation.connect)["user"]
        for number, (view, session) in enumerate(zip(self.views, self.direct.sessions)):
            someone_left = someone_left or (view.connected and session.wire is None)
            if session.wire is None:
                self.users[number] = ""
            view.connected = session.wire is not None
            view.status = session.status
            view.seeded = view.seeded and view.connected
        self.history.note_status(operation.session, self.views[operation.session].status == "I")
        if operation.label in RARE and not any(line.startswith("error") for line in direct):
            view = self.views[operation.session]
            view.seeded = view.connected
        if someone_left:
            held_direct = self.direct.settle()
            held_other = self.other.settle(held_direct)
            if held_direct != held_other:
                return Difference(step, operation, "locks after a session's end", tuple(held_direct), tuple(held_other))
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
