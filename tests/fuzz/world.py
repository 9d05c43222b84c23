"""One of the two worlds: a cluster, and the sessions of a script in it.

perform() runs an operation on a session and returns the client's view of the answer,
as lines.  Two things come from the server at any time and are kept apart:
notifications (notifications()), and the remains of a closed session until its
server process has noticed the end (settle()).
"""

from __future__ import annotations

import random
import re
import sys
import time

from harness.cluster import HOST, SUPERUSER, Cluster
from harness.compare import _stable_parameter_order as stable_parameter_order
from harness.compare import describe
from harness.health import wait_until
from harness.wire import Closed, Message, QueryFailed, Wire, query

from . import ddl_words, role_words
from . import vocabulary as words
from .generator import SERVER, Operation, pid_mark

SETTLE_LIMIT_S = 20.0
ANSWER_LIMIT_S = 30.0
SERVER_LIMIT_S = 60.0
ADMIN_LOCK_LIMIT_S = 10
ADMIN_OPTIONS = "-c role=none -c default_transaction_read_only=off -c client_encoding=UTF8 -c TimeZone=UTC"
OBJECT_IN_USE = "55006"
TEMPORARY_SCHEMA = re.compile(r"pg_(toast_)?temp_\d+")
# A TOAST table is named after the oid of its table.
TOAST_TABLE = re.compile(r"pg_toast_\d+")
# Process IDs that were asked for; the name of its owner replaces each.
ONE_PID = re.compile(r"((?:pid=|PID ))(\d+)")
SOME_PIDS = re.compile(r"pids=\{(\d[^}]*)\}")
# The place where an error was raised: a function of the pool may refuse a request to
# a function of the server.
ERROR_PLACE = re.compile(r" F='[^']*' L='\d+' R='[\w:]+'")
# A compiled function has the name from the time of its compilation, with its schema or without,
# and with quote_all_identifiers or without, which counts for the types of its arguments, too.
COMPILED_NAME = re.compile(r"(PL/pgSQL function )((?:[\w.\"]+\.)?[\w\"]+)(\([^)]*\))?")
# A statement that is analysed again then waits for locks, and its error names the place; so does
# the error of a function that is compiled again, for which otherwise only its statement is named.
PLACE_OF_WAIT = re.compile(r"(C='55P03' M='[^']*').*?(?= F='|$)")
# A role that has been dropped has only its number, which differs from world to world.
DROPPED_ROLE = re.compile(r"(\b(?:role|OID|oid|user)(?: with)?(?: OID)?:? )\d{5,}")
# Locks that show a session's state; the other locks are momentary.  A relation
# that is not committed yet has no name for the watcher, only an oid.  Plans may be made
# again, and planning locks indexes, and conf, since IMMUTABLE functions read it.  The
# first session that looks at a partition locks its parent.
LOCKS = (
    r"SELECT locktype, regexp_replace(coalesce(relation::regclass::text, ''), '^\d+$', 'new'), mode, classid, objid, objsubid, count(*)"
    " FROM pg_locks WHERE database = (SELECT oid FROM pg_database WHERE datname = '{database}')"
    " AND locktype IN ('relation', 'advisory') AND pid <> pg_backend_pid()"
    " AND relation IS DISTINCT FROM to_regclass('public.conf')"
    " AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = relation AND relkind IN ('i', 'I') AND relname ~ '^(ledger|part|pg_)')"
    " AND NOT (relation IS NOT DISTINCT FROM to_regclass('public.part') AND mode = 'AccessShareLock')"
    " GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6"
)


def compiled_name(found: re.Match[str]) -> str:
    name = found[2].replace('"', "").removeprefix("public.")
    return found[1] + name + (found[3] or "").replace('"', "")


class Session:
    """A client's connection, or none."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self.status = "I"
        self.notifications: list[str] = []
        self.connect: tuple[tuple[str, str], ...] = ()
        self.pid = 0
        """Of the latest connection."""


class World:
    """Sessions of one episode in one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        port: int,
        sessions: int,
        database: str,
        pids: bool = True,
        secure: bool = False,
        roles: bool = False,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.port = port
        self.secure = secure
        self.roles = roles
        self.database = database
        self.sessions = [Session() for _ in range(sessions)]
        self.pids = pids
        self.whose: dict[int, str] = {}
        self.migrations = 0
        self.watcher: Wire | None = None

    def lay_out(self) -> None:
        """Makes the database as vocabulary.py describes it, and the roles as new."""
        with self._patient() as wire:
            wire.query(words.ROLE_RESET + ddl_words.ROLE_RESET)
            if wire.query("SELECT 1 FROM pg_file_settings WHERE sourcefile LIKE '%postgresql.auto.conf'"):
                self._change_server(wire, "ALTER SYSTEM RESET ALL")
            self._change_database(wire, f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)")
            if self.roles:
                wire.query(role_words.ROLE_RESET)
            self._change_database(wire, f"CREATE DATABASE {self.database} TEMPLATE fuzz_template")
            wire.finish()
        if self.roles:
            with self._admin(self.database) as wire:
                lay_out(wire, role_words.DATABASE_SETUP.replace(":database", self.database))
                wire.finish()

    def close(self) -> None:
        if self.watcher:
            self.watcher.finish()
            self.watcher = None
        if self.cluster.pooled:
            # Proof that the sessions really moved.
            with self._admin("postgres") as wire:
                rows = wire.query(f"SELECT sum(migrations) FROM pg_baton_sessions WHERE database = '{self.database}'")
                self.migrations += int(rows[0][0] or 0)
                wire.finish()
        for session in self.sessions:
            if session.wire:
                session.wire.finish()
                session.wire = None
        with self._patient() as wire:
            if self.roles:
                wire.query(role_words.EVERYBODY_RESET)
            self._change_database(wire, f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)")
            wire.finish()

    # -- operations --------------------------------------------------------------

    def perform(self, operation: Operation) -> list[str]:
        session = self.sessions[operation.session]
        if operation.connect is not None:
            return self._connect(session, operation.connect)
        if operation.label.startswith(SERVER):
            with self._patient() as wire:
                self._change_server(wire, operation.label.removeprefix(SERVER))
                wire.finish()
            return ["reloaded"]
        if operation.about.admin:
            return self._by_admin(operation)
        if session.wire is None:
            return ["not connected"]
        if operation.disconnect:
            session.wire.finish()
            session.wire = None
            session.status = "I"
            return ["disconnected"]
        lines = self._run(session, tuple(map(self._with_pids, operation.segments)), operation.behind)
        if "#PID" in operation.label:
            lines = [ERROR_PLACE.sub("", line) for line in lines]
        if operation.ends is not None and "row [b't']" in lines:
            lines += self._ended(self.sessions[operation.ends])
        return lines

    def _by_admin(self, operation: Operation) -> list[str]:
        """Performs the operation by a connection of its own to the server itself."""
        options = f"-c lock_timeout={ADMIN_LOCK_LIMIT_S}s"
        with self._admin(self.database, options) as wire:
            lines = [self._line(message) for message in wire.ask(*operation.segments)]
            wire.leave()
        return lines

    def _with_pids(self, segment: bytes) -> bytes:
        """The segment, with the marks replaced by the process IDs of the sessions in this world."""
        for number, session in enumerate(self.sessions):
            mark = pid_mark(number).encode()
            segment = segment.replace(mark, f"{session.pid:0{len(mark)}}".encode())
        return segment

    def _ended(self, session: Session) -> list[str]:
        """The messages to the client of a session that another session has ended."""
        if session.wire is None:
            return ["it was not connected"]
        try:
            told = [m.fields() for m in session.wire.until_closed(ANSWER_LIMIT_S) if m.type == "E"]
        except TimeoutError as failure:
            told = []
            print(f"{failure}\n{self.state()}", file=sys.stderr, flush=True)
        self._drop(session)
        return [f"it hears {fields['S']} {fields['C']} {fields['M']}" for fields in told]

    def _admin(self, database: str, options: str = "") -> Wire:
        """A connection to the server itself, whatever is set for all roles and databases."""
        return Wire.login(HOST, self.cluster.port, SUPERUSER, database, options=f"{ADMIN_OPTIONS} {options}")

    def _patient(self) -> Wire:
        """A connection to the server itself, which waits for locks as long as it takes."""
        return self._admin("postgres", "-c lock_timeout=0")

    def _watch(self) -> Wire:
        """A connection to the server itself, in the database: relations have names there."""
        if self.watcher is None:
            self.watcher = self._admin(self.database)
        return self.watcher

    def _change_database(self, wire: Wire, statement: str) -> None:
        """Tries again: the server waits only five seconds for sessions that are still in a database."""
        deadline = time.monotonic() + SERVER_LIMIT_S
        while True:
            try:
                wire.query(statement)
                return
            except QueryFailed as failure:
                if failure.sqlstate != OBJECT_IN_USE or time.monotonic() > deadline:
                    raise

    def _change_server(self, wire: Wire, statement: str) -> None:
        """Returns when every process has been told."""
        before = self._files_read_at()
        with self.cluster.new_log() as log:
            wire.query(statement)
            wire.query("SELECT pg_reload_conf()")
            wait_until(lambda: self._files_read_at() != before, SERVER_LIMIT_S, "the postmaster has read the files")
            if self.cluster.pooled:
                wait_until(lambda: "parameters reloaded" in log(), SERVER_LIMIT_S, "the dispatcher has been told")

    def _files_read_at(self) -> str | None:
        """The time when the postmaster read the files: before it starts this process it has
        sent SIGHUP to all the others (SIGHUP_handler in postmaster.c)."""
        with self._patient() as wire:
            ((when,),) = wire.query("SELECT pg_conf_load_time()")
            wire.finish()
            return when

    def _connect(self, session: Session, options: tuple[tuple[str, str], ...]) -> list[str]:
        if session.wire is not None:
            return ["connected already"]
        session.connect = options
        parameters = dict(options)
        user = parameters.pop("user")
        wire = Wire.open(HOST, self.port, ANSWER_LIMIT_S)
        if self.secure:
            wire.secure()
        try:
            messages = wire.log_in(user, self.database, **parameters)
        except TimeoutError as failure:
            print(self.state(), file=sys.stderr, flush=True)
            wire.close()
            return [f"no answer: {failure}"]
        # The dispatcher may write an error itself, so it has another place (docs/limits.md).
        lines = sorted(ERROR_PLACE.sub("", self._line(message)) for message in messages)
        session.notifications = []
        if messages and messages[-1].type == "Z":
            session.wire = wire
            session.status = "I"
            session.pid = wire.backend_pid
            self.whose[session.pid] = f"session {self.sessions.index(session)}"
        else:
            wire.close()
        return lines

    def _run(self, session: Session, segments: tuple[bytes, ...], behind: bytes) -> list[str]:
        lines: list[str] = []
        wire = session.wire
        assert wire is not None
        try:
            wire.send(*segments, behind)
            for _ in segments:
                while True:
                    message = wire.read()
                    if message.type == "A":
                        session.notifications.append(self._line(message))
                        continue
                    lines.append(self._line(message))
                    if message.type == "Z":
                        session.status = message.body.decode()
                        break
        except (Closed, ConnectionError):
            lines.append("closed")
            self._drop(session)
        except TimeoutError as failure:
            lines.append(f"no answer: {failure}")
            print(self.state(), file=sys.stderr, flush=True)
            self._drop(session)
        return stable_parameter_order(lines)

    def _drop(self, session: Session) -> None:
        if session.wire:
            session.wire.close()
        session.wire = None
        session.status = "I"

    def _line(self, message: Message) -> str:
        if message.type == "R":
            # Without nonces and salts.
            return f"authentication {int.from_bytes(message.body[:4], 'big')}"
        line = TEMPORARY_SCHEMA.sub("pg_temp_N", describe(message))
        if message.type in "EN":
            line = DROPPED_ROLE.sub(r"\1N", line)
            line = PLACE_OF_WAIT.sub(r"\1", COMPILED_NAME.sub(compiled_name, line))
        if message.type == "A" and self.pids:
            line += f" from {self._who(int.from_bytes(message.body[:4], 'big'))}"
        if message.type in "DN":
            line = ONE_PID.sub(lambda found: found[1] + self._who(int(found[2])), line)
            line = SOME_PIDS.sub(lambda found: f"pids={self._who_all(found[1])}", line)
        if message.type == "D" and len(message.body) >= 2000:
            line = f"row of {len(message.body)} bytes: {message.body[:60]!r}... {hash(message.body):x}"
        return line.replace(self.database, "the_database")

    def _who(self, pid: int) -> str:
        return self.whose.get(pid, "a stranger")

    def _who_all(self, listed: str) -> str:
        """The owners of these PIDs, without sessions that have just gone and the connections of World itself."""
        live = {session.pid for session in self.sessions if session.wire}
        pairs = [item.partition(":") for item in listed.split(",") if item]
        return str(sorted(self._who(int(pid)) + rest for pid, _, rest in pairs if int(pid) in live))

    def state(self) -> str:
        """The activity of all sessions and processes, for a report on a session that hangs."""
        found = [self.cluster.log_tail(20)]
        if self.cluster.pooled:
            with self._admin("postgres") as wire:
                for view in ("sessions", "backends", "pools"):
                    found.append(f"--- {view}")
                    found += [str(row) for row in wire.query(f"SELECT * FROM pg_baton_{view}")]
        found.append(self.cluster.stacks())
        return "\n".join(found)

    # -- results that come at any time -------------------------------------------

    def notifications(self, number: int) -> list[str]:
        """All notifications of that session so far; reads the input that is there."""
        session = self.sessions[number]
        wire = session.wire
        while wire and wire.has_input():
            try:
                message = wire.read()
            except (Closed, ConnectionError, TimeoutError):
                # The next operation will see and report it.
                break
            session.notifications.append(self._line(message))
        return session.notifications

    def busy(self) -> list[str]:
        """Sessions for which something still runs, although all requests are answered:
        their backends serve no other session.  The work may take a moment to end."""
        if not self.cluster.pooled:
            return []
        deadline = time.monotonic() + SETTLE_LIMIT_S
        with self._admin("postgres") as wire:
            while True:
                rows = wire.query(
                    "SELECT user_name, application_name, state FROM pg_baton_sessions"
                    f" WHERE database = '{self.database}' AND state NOT LIKE 'idle%'"
                )
                if not rows or time.monotonic() > deadline:
                    wire.finish()
                    return [str(row) for row in rows]
                time.sleep(0.005)

    def all_wait(self) -> None:
        """Waits until all processes wait for something: a process that has just
        answered does so a moment later."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        with self._admin("postgres") as wire:
            while time.monotonic() < deadline:
                running = wire.query(
                    "SELECT FROM pg_stat_activity WHERE backend_type = 'client backend'"
                    f" AND datname = '{self.database}' AND wait_event IS NULL"
                )
                if not running:
                    break
                time.sleep(0.005)
            wire.finish()

    def settle(self, locks_elsewhere: list[str] | None = None) -> list[str]:
        """Waits until the locks held are those of the other world, or, with no
        other world, until they stay the same; returns them."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        before: list[str] | None = None
        while True:
            all_gone = True
            if locks_elsewhere is None:
                # Before the locks: an ended session surely has no locks only once the view shows it no more.
                ours = self._watch().query(
                    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
                    f" AND datname = '{self.database}' AND pid <> pg_backend_pid()"
                )
                all_gone = int(ours[0][0] or 0) <= sum(1 for session in self.sessions if session.wire)
            found = self._watch().query(LOCKS.format(database=self.database))
            rows = sorted(TOAST_TABLE.sub("pg_toast_N", TEMPORARY_SCHEMA.sub("pg_temp_N", str(row))) for row in found)
            done = all_gone and rows == (before if locks_elsewhere is None else locks_elsewhere)
            if done or time.monotonic() > deadline:
                return rows
            before = rows
            time.sleep(0.002)


class BrokenWorld(World):
    """Loses a session's state now and then, to check that the comparison notices the loss."""

    def __init__(self, *arguments, **keywords) -> None:
        super().__init__(*arguments, **keywords)
        self.random = random.Random(1)

    def perform(self, operation: Operation) -> list[str]:
        session = self.sessions[operation.session]
        if session.wire and session.status == "I" and operation.segments and self.random.random() < 0.02:
            session.wire.finish()
            session.wire = None
            notifications = session.notifications
            self._connect(session, session.connect)
            session.notifications = notifications
        return super().perform(operation)


def make_template(cluster: Cluster) -> None:
    """Makes, once for each cluster, the roles and the database that episodes copy."""
    with Wire.login(HOST, cluster.port, SUPERUSER, "postgres") as wire:
        for sql in (words.ROLE_SETUP + ddl_words.ROLE_SETUP, "CREATE DATABASE fuzz_template"):
            wire.query(sql)
        if cluster.pooled:
            wire.query("CREATE EXTENSION IF NOT EXISTS pg_baton")
        wire.finish()
    with Wire.login(HOST, cluster.port, SUPERUSER, "fuzz_template") as wire:
        for layout in (words.DATABASE_SETUP, ddl_words.DATABASE_SETUP):
            lay_out(wire, layout)
        wire.finish()


def lay_out(wire: Wire, layout: str) -> None:
    for found in wire.ask(query(layout)):
        if found.type == "E":
            raise RuntimeError(f"the layout fails: {found.fields()}")
