"""Knowledge that a session may have from before a change that PostgreSQL reports to no session.

A direct connection keeps such knowledge (an analysed statement, a compiled
function, a cached search_path). A pooled session may follow the state in force
(docs/limits.md).  Hence the exceptions, all of them in this file:

  a session or statement that is older than the change may answer either way:
      LOOSE, performed and not compared; it may still teach its backend;
  such a session or statement that would also leave something behind (a sequence's
      value): SKIP;
  a session whose own search_path a change of privileges alters: SKIP all its operations;
  a session that uses two record types in one function, or changes a setting that
      an IMMUTABLE function has read: treated as such a change;
  a function compiled under another search_path of the same session: LOOSE;
  a transaction that is older than any change, reported or not: SKIP its operations that
      ask for the objects of such changes, as the session learns of the change when it
      next waits for a lock.

The fuzzer compares everything else.  It forms the verdict as a script runs, so
that the verdict also holds for a script that has been made shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Values of About.keeper: the object that keeps the knowledge that an operation depends on.
FRESH = ""
SESSION = "session"
# Uses of these topics call a function of the session, however the statement is kept.
OF_FUNCTIONS = {"trigger"}

# The topic whose changes alter the search_path of sessions that name this schema in it.
PATH = "path"
PATH_SCHEMA = "club"

# The topic of functions that are compiled by search_path.
COMPILED = "compiled"

# The topic of schemas in which a statement has found names. The server checks whether a role may
# use them when it analyses the statement; in the pool also when the statement comes back to a backend.
PLACE = "place"

# The entry of a topic of which a session has learnt more than one value.
SEVERAL = "several values"


class Verdict(Enum):
    STRICT = "strict"
    LOOSE = "loose"
    SKIP = "skip"


@dataclass(frozen=True)
class About:
    """The relation of an operation to changes."""

    admin: bool = False
    """Performed by a connection of its own to the server itself."""
    changes: tuple[str, ...] = ()
    """Topics that it changes without any invalidation that plans or functions obey."""
    own_changes: tuple[str, ...] = ()
    """The same, for this session alone."""
    topics: tuple[str, ...] = ()
    """Topics that its answer depends on."""
    keeper: str = FRESH
    """What may be older than a change: nothing, the session, or the prepared statement so called."""
    makes: str = ""
    """The prepared statement that it makes."""
    value: str = ""
    """Of a topic that a session may use with one value only."""
    writes: bool = False
    alters: bool = False
    """Changes the catalog, in the session's own transaction."""
    asks: bool = False
    """Asks for what such changes are about."""
    shuts_out: tuple[str, ...] = ()
    """Roles that may not log in afterwards, or as somebody else."""
    kind: str = ""
    """For counting."""


class History:
    """When each session, statement and topic was last made or changed."""

    def __init__(self, sessions: int) -> None:
        self.clock = 0
        self.changed: dict[str, int] = {}
        self.connected = [0] * sessions
        self.by_path = [False] * sessions
        self.made: list[dict[str, int]] = [{} for _ in range(sessions)]
        self.own_version: list[dict[str, int]] = [{} for _ in range(sessions)]
        self.learnt: list[dict[str, str]] = [{} for _ in range(sessions)]
        self.altered = 0
        self.began: list[int | None] = [None] * sessions
        """When the transaction did that the session is in."""
        self.has_altered = [False] * sessions
        """Within that transaction."""

    def verdict(self, session: int, about: About, idle: bool, all_idle: bool) -> Verdict:
        if about.admin:
            return Verdict.STRICT if all_idle else Verdict.SKIP
        if self.by_path[session] and self.changed.get(PATH, 0) > self.connected[session]:
            return Verdict.SKIP
        if about.changes and not all_idle or about.own_changes and not idle:
            return Verdict.SKIP
        began = self.began[session]
        if about.asks and began is not None and self.altered > began:
            return Verdict.SKIP
        if not any(self._stale(session, topic, about) for topic in about.topics):
            return Verdict.STRICT
        if about.writes or about.makes or not idle:
            return Verdict.SKIP
        return Verdict.LOOSE

    def _stale(self, session: int, topic: str, about: About) -> bool:
        if topic == COMPILED:
            return COMPILED in self.own_version[session]
        keeper = SESSION if topic in OF_FUNCTIONS else about.keeper
        if keeper == FRESH:
            return False
        since = self.connected[session]
        if keeper != SESSION:
            since = max(since, self.made[session].get(about.keeper, 0))
        learnt = self.learnt[session].get(topic)
        return self.changed.get(topic, 0) > since or learnt not in (None, self._value(session, topic, about))

    def _value(self, session: int, topic: str, about: About) -> str:
        return f"{about.value}{self.own_version[session].get(topic, 0)}"

    def note_connect(self, session: int, options: tuple[tuple[str, str], ...]) -> None:
        self.clock += 1
        self.connected[session] = self.clock
        self.by_path[session] = any(PATH_SCHEMA in value for _, value in options)
        self.made[session] = {}
        self.own_version[session] = {}
        self.learnt[session] = {}

    def note(self, session: int, about: About) -> None:
        self.clock += 1
        for topic in about.changes:
            self.changed[topic] = self.clock
        for topic in about.own_changes:
            version = self.own_version[session]
            version[topic] = version.get(topic, 0) + 1
        if about.makes:
            self.made[session][about.makes] = self.clock
        self.has_altered[session] |= about.alters
        if about.keeper != FRESH or about.makes:
            learnt = self.learnt[session]
            for topic in about.topics:
                value = self._value(session, topic, about)
                learnt[topic] = value if learnt.get(topic, value) == value else SEVERAL

    def note_status(self, session: int, is_idle: bool) -> None:
        """Called after each operation of the session."""
        self.clock += 1
        if is_idle:
            if self.has_altered[session]:
                self.altered = self.clock
            self.has_altered[session] = False
            self.began[session] = None
        elif self.began[session] is None:
            self.began[session] = self.clock
