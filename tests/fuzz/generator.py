"""Makes up operations: the next messages of a session, until ReadyForQuery.

An operation is concrete (bytes), so that a script can be replayed, cut and
kept without the generator.  The generator knows of the sessions only whether they
are connected and in a transaction; it leaves to chance whether a name exists,
since errors are compared like everything else.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from harness import wire

from . import vocabulary as words
from .history import About


@dataclass(frozen=True)
class Operation:
    """Segments are sent at once; each makes the server say ReadyForQuery once.

    Messages sent behind them have no ReadyForQuery: a Flush, for example.  The
    server's answers to them are read with the session's next operation."""

    session: int
    label: str
    segments: tuple[bytes, ...] = ()
    connect: tuple[tuple[str, str], ...] | None = None
    disconnect: bool = False
    behind: bytes = b""
    ends: int | None = None
    """The session that it ends, if it may."""
    about: About = About()


@dataclass
class SessionView:
    """The generator's knowledge of a session, which comes from the direct world."""

    connected: bool = False
    status: str = "I"
    seeded: bool = False


@dataclass
class Script:
    """Messages under construction, with labels for human readers."""

    parts: list[bytes] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    segments: list[bytes] = field(default_factory=list)

    def add(self, label: str, part: bytes) -> None:
        self.labels.append(label)
        self.parts.append(part)

    def end(self) -> None:
        self.segments.append(b"".join(self.parts))
        self.parts = []

    def sync(self) -> None:
        self.add("Sync", wire.sync())
        self.end()

    def operation(self, session: int) -> Operation:
        return Operation(session, " | ".join(self.labels), tuple(self.segments), behind=b"".join(self.parts))


# The label of an operation on the server itself begins with this, followed by SQL.
SERVER = "server: "


def pid_mark(session: int) -> str:
    """Stands for a session's number, which differs from world to world."""
    return f"#PID{session:05}#"


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Generator:
    """One episode's source of operations."""

    def __init__(self, seed: int, sessions: int, database: str, backends: int, pids: bool = True) -> None:
        self.random = random.Random(seed)
        self.sessions = sessions
        self.database = database
        self.backends = backends
        self.kinds = [(kind, weight) for kind, weight in self.KINDS if pids or kind != "pids"]
        self.shows_others = True

    USERS = words.USERS
    ROLES = words.ROLES

    def next(self, views: list[SessionView]) -> Operation:
        session = self.random.randrange(self.sessions)
        # If as many sessions as there are backends are in transactions, all others
        # would wait for them, and no session would go on.
        within = [number for number, one in enumerate(views) if one.connected and one.status != "I"]
        if len(within) >= self.backends and session not in within:
            session = self._pick(within)
        view = views[session]
        if not view.connected:
            return self.connect(session)
        if self.random.random() < 0.01:
            return Operation(session, "disconnect", disconnect=True)
        script = Script()
        kinds = self.KINDS_FAILED if view.status == "E" else self.kinds
        kind = self.random.choices([k for k, _ in kinds], [w for _, w in kinds])[0]
        if kind == "ddl" and any(v.connected and v.status != "I" for v in views):
            kind = "probe"
        if kind == "server_setting":
            return self.server_setting(session)
        if kind == "pids":
            # Within a transaction stock shows other sessions as they were when it looked first, the
            # pool as they are (docs/limits.md).
            self.shows_others = view.status == "I"
            if self.random.random() < 0.4:
                return self.another_s_pid(session)
        if kind == "random" and not view.seeded:
            kind = "set"
        if kind in ("transaction_end", "savepoint") and view.status == "I" and self.random.random() < 0.8:
            kind = "begin"
        getattr(self, "_" + kind)(script)
        if self.random.random() < 0.06:
            self._flush(script)
        return script.operation(session)

    KINDS = (
        ("set", 22),
        ("reset", 6),
        ("probe", 14),
        ("show", 5),
        ("simple", 14),
        ("begin", 5),
        ("transaction_end", 9),
        ("savepoint", 5),
        ("sql_prepare", 8),
        ("sql_execute", 10),
        ("sql_deallocate", 2),
        ("parse", 12),
        ("bind_execute", 14),
        ("close", 2),
        ("unnamed_parse", 7),
        ("unnamed_execute", 6),
        ("pipeline", 5),
        ("portal", 3),
        ("cursor", 6),
        ("stock_prepare", 6),
        ("stock_use", 14),
        ("stock_drop", 3),
        ("sequence", 7),
        ("temporary", 3),
        ("advisory", 4),
        ("listen", 3),
        ("notify", 2),
        ("identity", 4),
        ("ddl", 3),
        ("stored_setting", 1),
        ("rare", 0.3),
        ("copy", 2),
        ("function_call", 1),
        ("random", 1),
        ("many", 1),
        ("explain", 3),
        ("multi", 4),
        ("server_setting", 0.3),
        ("flush", 1),
        ("pids", 9),
    )
    KINDS_FAILED = (
        ("transaction_end", 10),
        ("savepoint", 6),
        ("simple", 2),
        ("bind_execute", 2),
        ("sql_execute", 2),
        ("unnamed_execute", 1),
        ("parse", 1),
        ("set", 1),
        ("probe", 1),
    )

    # -- helpers -------------------------------------------------------------

    def _pick(self, choices):
        return self.random.choice(choices)

    def _query(self, script: Script, text: str) -> None:
        script.add(text if len(text) < 300 else text[:300] + "...", wire.query(text))
        script.end()

    def _either(self, script: Script, text: str) -> None:
        """Runs the text as a simple query, or as an unnamed statement run at once."""
        if self.random.random() < 0.75:
            self._query(script, text)
            return
        script.add(f"Parse/Bind/Execute {text}", wire.parse(text) + wire.bind())
        if self.random.random() < 0.5:
            script.add("Describe", wire.describe_portal())
        script.add("", wire.execute())
        script.sync()

    def _setting(self) -> tuple[str, str]:
        name = self._pick(words.PARAMETER_NAMES)
        return name, self._pick(words.PARAMETERS[name])

    def _name_sql(self, name: str) -> str:
        return '"' + name + '"' if " " in name else name

    def _statement(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The statement of a name: mostly the same one."""
        if self.random.random() < 0.75:
            return words.STATEMENTS[words.STATEMENT_NAMES.index(name) * 3 % len(words.STATEMENTS)]
        return self._pick(words.STATEMENTS)

    def _argument(self, kind: str) -> str:
        return str(self.random.randrange(1, 12)) if kind == "int" else self._pick(("", "text", "it's"))

    # -- parameters ------------------------------------------------------------

    def _set(self, script: Script) -> None:
        name, value = self._setting()
        form = self.random.randrange(8)
        if name == "search_path":
            shown = value or "''"
        else:
            shown = quote(value)
        if form <= 3:
            self._either(script, f"SET {name} = {shown}")
        elif form == 4:
            self._either(script, f"SET LOCAL {name} = {shown}")
        elif form == 5:
            self._either(script, f"SELECT set_config({quote(name)}, {quote(value)}, false)")
        elif form == 6:
            self._either(script, f"SELECT set_config({quote(name)}, {quote(value)}, true)")
        else:
            self._query(script, f"UPDATE pg_settings SET setting = {quote(value)} WHERE name = {quote(name)}")

    def _reset(self, script: Script) -> None:
        name = self._pick(words.PARAMETER_NAMES)
        self._either(script, self._pick((f"RESET {name}", f"SET {name} TO DEFAULT", f"SET LOCAL {name} TO DEFAULT")))

    def _show(self, script: Script) -> None:
        name = self._pick(words.PARAMETER_NAMES)
        self._either(script, self._pick((f"SHOW {name}", f"SELECT current_setting({quote(name)}, true)")))

    def _probe(self, script: Script) -> None:
        self._either(script, self._pick(words.PROBES))

    def _simple(self, script: Script) -> None:
        self._either(script, self._pick(words.SIMPLE))

    def _multi(self, script: Script) -> None:
        texts = []
        for _ in range(self.random.randrange(2, 5)):
            name, value = self._setting()
            texts.append(
                self._pick(
                    (
                        f"SET {name} = {quote(value)}",
                        f"SET LOCAL {name} = {quote(value)}",
                        "SELECT 1",
                        "SELECT 1/0",
                        "COMMIT",
                        "SAVEPOINT sp1",
                        "ROLLBACK TO sp1",
                        "ROLLBACK",
                        "BEGIN",
                        f"RESET {name}",
                        "SELECT nextval('seq_cached')",
                        "PREPARE s1 AS SELECT 1",
                        "DEALLOCATE s1",
                    )
                )
            )
        self._query(script, "; ".join(texts))

    def _many(self, script: Script) -> None:
        """A large context, or its end."""
        if self.random.random() < 0.5:
            for i in range(25):
                script.add(f"Parse m{i}", wire.parse(f"SELECT {i}, $1::text", f"m{i}"))
            script.sync()
        else:
            for i in range(25):
                script.add(f"Close m{i}", wire.close_statement(f"m{i}"))
            script.sync()

    # Statements out of a common stock, hundreds a session, under any of their names.

    def _stock_name(self) -> str:
        return f"k{self.random.randrange(300)}"

    def _stock_prepare(self, script: Script) -> None:
        for _ in range(self._pick((1, 5, 60))):
            name, text = self._stock_name(), self._pick(words.STOCK)
            if self.random.random() < 0.7:
                script.add(f"Parse {name}: {text}", wire.parse(text, name))
                script.sync()
            else:
                self._query(script, f"PREPARE {name} AS {text}")

    def _stock_use(self, script: Script) -> None:
        for _ in range(self._pick((1, 3, 8))):
            name, value = self._stock_name(), self._argument("int")
            form = self.random.randrange(7)
            if form == 6:
                self._query(script, f"EXPLAIN (COSTS OFF) EXECUTE {name}({quote(value)})")
            elif form == 0:
                self._query(script, f"EXECUTE {name}({quote(value)})")
            elif form == 1:
                script.add(f"Describe {name}", wire.describe_statement(name))
                script.sync()
            else:
                for _ in range(self._pick((1, 1, 7))):
                    script.add(f"Bind {name} {value!r}", wire.bind([value], name) + wire.execute())
                    script.sync()

    def _stock_drop(self, script: Script) -> None:
        for _ in range(self._pick((1, 3, 20))):
            name = self._stock_name()
            if self.random.random() < 0.7:
                script.add(f"Close {name}", wire.close_statement(name))
                script.sync()
            else:
                self._query(script, f"DEALLOCATE {name}")

    # -- transactions -------------------------------------------------------------

    def _begin(self, script: Script) -> None:
        self._either(
            script,
            self._pick(
                (
                    "BEGIN",
                    "BEGIN",
                    "START TRANSACTION ISOLATION LEVEL SERIALIZABLE",
                    "BEGIN READ ONLY",
                    "BEGIN ISOLATION LEVEL REPEATABLE READ",
                )
            ),
        )

    def _transaction_end(self, script: Script) -> None:
        self._either(
            script, self._pick(("COMMIT", "COMMIT", "ROLLBACK", "ROLLBACK", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN"))
        )

    def _savepoint(self, script: Script) -> None:
        name = self._pick(words.SAVEPOINTS)
        self._either(script, self._pick((f"SAVEPOINT {name}", f"ROLLBACK TO {name}", f"RELEASE {name}")))

    # -- prepared statements --------------------------------------------------------

    def _sql_prepare(self, script: Script) -> None:
        name = self._pick(words.STATEMENT_NAMES)
        text, kinds = self._statement(name)
        types = f"({', '.join(kinds)})" if kinds and self.random.random() < 0.7 else ""
        prepare = f"PREPARE {self._name_sql(name)}{types} AS {text}"
        if self.random.random() < 0.1:
            prepare = f"SELECT 'before'; {prepare}; SELECT 'after'"
        self._query(script, prepare)

    def _sql_execute(self, script: Script) -> None:
        name = self._pick(words.STATEMENT_NAMES)
        _, kinds = self._statement(name)
        arguments = ", ".join(quote(self._argument(kind)) for kind in kinds)
        execute = f"EXECUTE {self._name_sql(name)}" + (f"({arguments})" if kinds else "")
        self._query(script, execute)

    def _explain(self, script: Script) -> None:
        """Shows whether the plan is custom or generic."""
        name = self._pick(words.STATEMENT_NAMES)
        _, kinds = self._statement(name)
        arguments = ", ".join(quote(self._argument(kind)) for kind in kinds)
        execute = f"EXECUTE {self._name_sql(name)}" + (f"({arguments})" if kinds else "")
        self._query(script, f"EXPLAIN (COSTS OFF) {execute}")

    def _sql_deallocate(self, script: Script) -> None:
        self._either(script, f"DEALLOCATE {self._name_sql(self._pick(words.STATEMENT_NAMES))}")

    def _parse(self, script: Script) -> None:
        name = self._pick(words.STATEMENT_NAMES)
        text, kinds = self._statement(name)
        if self.random.random() < 0.3:
            script.add(f"Close {name}", wire.close_statement(name))
        oids = [23 if kind == "int" else 25 for kind in kinds] if self.random.random() < 0.5 else []
        script.add(f"Parse {name}: {text} {oids}", wire.parse(text, name, oids))
        if self.random.random() < 0.6:
            script.add(f"Describe {name}", wire.describe_statement(name))
        script.sync()

    def _add_bind_execute(self, script: Script, name: str, kinds: tuple[str, ...]) -> None:
        values = [self._argument(kind) for kind in kinds]
        result_formats = [1] if self.random.random() < 0.15 else []
        script.add(f"Bind {name!r} {values} {result_formats}", wire.bind(values, name, result_formats=result_formats))
        if self.random.random() < 0.4:
            script.add("Describe portal", wire.describe_portal())
        rows = self._pick((0, 0, 0, 2))
        script.add(f"Execute {rows}", wire.execute(rows=rows))

    def _bind_execute(self, script: Script) -> None:
        for _ in range(self._pick((1, 1, 1, 2, 3))):
            name = self._pick(words.STATEMENT_NAMES)
            _, kinds = self._statement(name)
            if self.random.random() < 0.15:
                script.add(f"Describe {name}", wire.describe_statement(name))
            self._add_bind_execute(script, name, kinds)
            if self.random.random() < 0.8:
                script.sync()
        if script.parts:
            script.sync()

    def _close(self, script: Script) -> None:
        name = self._pick(words.STATEMENT_NAMES + ("",))
        script.add(f"Close {name!r}", wire.close_statement(name))
        script.sync()

    def _unnamed_parse(self, script: Script) -> None:
        text, _ = self._pick(words.STATEMENTS + (("SELEC wrong", ()),))
        script.add(f"Parse '': {text}", wire.parse(text))
        if self.random.random() < 0.7:
            script.add("Describe ''", wire.describe_statement())
        script.sync()

    def _unnamed_execute(self, script: Script) -> None:
        if self.random.random() < 0.3:
            script.add("Describe ''", wire.describe_statement())
            script.sync()
        self._add_bind_execute(script, "", self._pick(((), ("int",), ("text", "text"))))
        script.sync()

    def _pipeline(self, script: Script) -> None:
        for _ in range(self.random.randrange(2, 7)):
            choice = self.random.randrange(6)
            if choice == 0:
                name, value = self._setting()
                text = f"SELECT set_config({quote(name)}, {quote(value)}, false)"
                script.add(text, wire.parse(text) + wire.bind() + wire.execute())
            elif choice == 1:
                text = self._pick(
                    (
                        "SELECT 1/0",
                        "BEGIN",
                        "COMMIT",
                        "ROLLBACK",
                        "SELECT 42",
                        "DISCARD ALL",
                        "DEALLOCATE ALL",
                        "SELECT nextval('seq_cached')",
                    )
                )
                script.add(text, wire.parse(text) + wire.bind() + wire.execute())
            elif choice == 2:
                name = self._pick(words.STATEMENT_NAMES)
                text, _ = self._statement(name)
                script.add(f"Parse {name}: {text}", wire.parse(text, name))
            elif choice == 3:
                name = self._pick(words.STATEMENT_NAMES)
                self._add_bind_execute(script, name, self._statement(name)[1])
            elif choice == 4:
                script.add("Flush", wire.flush())
            else:
                script.sync()
        script.sync()

    def _flush(self, script: Script) -> None:
        """Sends Flush outside of any batch: drivers do this behind their Sync."""
        if self.random.random() < 0.3:
            name = self._pick(words.STATEMENT_NAMES + ("",))
            script.add(f"Close {name!r}", wire.close_statement(name))
        for _ in range(self._pick((1, 1, 2))):
            script.add("Flush", wire.flush())

    def _portal(self, script: Script) -> None:
        """Named portals live to the end of the transaction."""
        portal = self._pick(PORTALS)
        choice = self.random.randrange(3)
        if choice == 0:
            text = "SELECT generate_series(1, 10)"
            script.add(f"Bind portal {portal}", wire.parse(text) + wire.bind(portal=portal))
        elif choice == 1:
            script.add(f"Execute portal {portal}", wire.execute(portal, 3))
        else:
            script.add(f"Close portal {portal}", wire.close_portal(portal))
        script.sync()

    # -- state that lives in a backend -------------------------------------------

    def _cursor(self, script: Script) -> None:
        name = self._pick(words.PORTAL_NAMES)
        self._either(
            script,
            self._pick(
                (
                    f"DECLARE {name} CURSOR WITH HOLD FOR SELECT a FROM shared ORDER BY a",
                    f"DECLARE {name} SCROLL CURSOR FOR SELECT a FROM shared ORDER BY a",
                    f"DECLARE {name} BINARY CURSOR WITH HOLD FOR SELECT 1",
                    f"FETCH 3 FROM {name}",
                    f"FETCH ALL FROM {name}",
                    f"MOVE BACKWARD 1 IN {name}",
                    f"CLOSE {name}",
                    f"CLOSE {name}",
                    "CLOSE ALL",
                    "SELECT opens_cursor()",
                    'FETCH ALL IN "opened"',
                )
            ),
        )

    def _sequence(self, script: Script) -> None:
        name = self._pick(words.SEQUENCES)
        self._either(
            script,
            self._pick(
                (
                    f"SELECT nextval('{name}')",
                    f"SELECT nextval('{name}')",
                    f"SELECT nextval('{name}')",
                    f"SELECT currval('{name}')",
                    "SELECT lastval()",
                    f"SELECT setval('{name}', 500)",
                    f"SELECT setval('{name}', 700, false)",
                    "DISCARD SEQUENCES",
                    f"SELECT nextval('{name}'), nextval('seq_plain'), lastval()",
                )
            ),
        )

    def _temporary(self, script: Script) -> None:
        name = self._pick(words.TEMP_TABLES)
        self._either(
            script,
            self._pick(
                (
                    f"CREATE TEMP TABLE {name} (a int, b text)",
                    f"CREATE TEMP TABLE IF NOT EXISTS {name} ON COMMIT DROP AS SELECT 5 AS a, 'temp' AS b",
                    f"INSERT INTO pg_temp.{name} VALUES (1, 'one') RETURNING *",
                    f"SELECT * FROM pg_temp.{name}",
                    f"DROP TABLE pg_temp.{name}",
                    f"DROP TABLE pg_temp.{name}",
                    "CREATE TEMP SEQUENCE seq_cached",
                    "DROP SEQUENCE pg_temp.seq_cached",
                    "DISCARD TEMP",
                    "CREATE TEMP VIEW temporary_view AS SELECT 1 AS one",
                    "DROP VIEW pg_temp.temporary_view",
                    "CREATE FUNCTION pg_temp.seven() RETURNS int LANGUAGE sql AS 'SELECT 7'",
                    "SELECT pg_temp.seven()",
                    "DROP FUNCTION pg_temp.seven()",
                    "CREATE TYPE pg_temp.pair AS (a int, b int)",
                    "DROP TYPE pg_temp.pair",
                )
            ),
        )

    def _advisory(self, script: Script) -> None:
        key = self.random.randrange(3)
        self._either(
            script,
            self._pick(
                (
                    f"SELECT pg_try_advisory_lock({key})",
                    f"SELECT pg_try_advisory_lock_shared({key})",
                    f"SELECT pg_try_advisory_xact_lock({key})",
                    f"SELECT pg_advisory_unlock({key})",
                    f"SELECT pg_advisory_unlock({key})",
                    f"SELECT pg_advisory_unlock_shared({key})",
                    "SELECT pg_advisory_unlock_all()",
                )
            ),
        )

    def _listen(self, script: Script) -> None:
        channel = self._pick(words.CHANNELS)
        self._either(script, self._pick((f"LISTEN {channel}", f"UNLISTEN {channel}", "UNLISTEN *")))

    def _notify(self, script: Script) -> None:
        channel = self._pick(words.CHANNELS)
        payload = self.random.randrange(1000)
        self._either(
            script, self._pick((f"NOTIFY {channel}, '{payload}'", f"SELECT pg_notify('{channel}', '{payload}')"))
        )

    def _identity(self, script: Script) -> None:
        role = self._pick(self.ROLES)
        self._either(
            script,
            self._pick(
                (
                    f"SET ROLE {role}",
                    f"SET ROLE {role}",
                    f"SET LOCAL ROLE {role}",
                    f"SET SESSION AUTHORIZATION {role}",
                    f"SET LOCAL SESSION AUTHORIZATION {role}",
                    "RESET ROLE",
                    "RESET SESSION AUTHORIZATION",
                    f"SELECT set_config('role', '{role}', false)",
                )
            ),
        )

    def _ddl(self, script: Script) -> None:
        self._query(script, self._pick(words.DDL).replace(":database", self.database))

    def _stored_setting(self, script: Script) -> None:
        setting = self._pick(words.STORED_SETTINGS)
        whom = self._pick(
            ("ROLE alice", "ROLE bob", f"DATABASE {self.database}", f"ROLE alice IN DATABASE {self.database}")
        )
        self._query(script, f"ALTER {whom} SET {setting}")

    def _rare(self, script: Script) -> None:
        self._query(script, self._pick(words.RARE))

    def _random(self, script: Script) -> None:
        self._query(script, "SELECT random()")

    def _copy(self, script: Script) -> None:
        choice = self.random.randrange(3)
        if choice == 0:
            self._query(script, "COPY shared TO STDOUT")
            return
        script.add("COPY shared_log FROM STDIN", wire.query("COPY shared_log FROM STDIN"))
        script.add("CopyData", wire.copy_data(self._pick((b"1\n2\n", b"wrong\n", b""))))
        if choice == 1:
            script.add("CopyDone", wire.copy_done())
        else:
            script.add("CopyFail", wire.copy_fail("changed my mind"))
        script.end()

    def _function_call(self, script: Script) -> None:
        # int4pl(int4, int4), pg_proc.dat
        script.add("FunctionCall int4pl", wire.function_call(177, [b"\0\0\0\1", self._pick((b"\0\0\0\2", b"\2"))]))
        script.end()

    # -- process IDs -------------------------------------------------------------

    def _pids(self, script: Script) -> None:
        self._either(script, self._pick(self._shown(words.PIDS)))

    def _shown(self, texts: tuple[str, ...]) -> list[str]:
        of_others = ("#PIDn#", "pids=")
        return [it for it in texts if self.shows_others or "pg_stat_" not in it or not any(w in it for w in of_others)]

    def another_s_pid(self, session: int) -> Operation:
        """The other session need not be connected (any more)."""
        other = (session + self.random.randrange(1, self.sessions)) % self.sessions
        ends = self.random.random() < 0.1
        text = words.END_ANOTHER if ends else self._pick(self._shown(words.PIDS_OF_OTHERS))
        text = text.replace("#PIDn#", pid_mark(other))
        return Operation(session, text, (wire.query(text),), ends=other if ends else None)

    # -- the server --------------------------------------------------------------

    def server_setting(self, session: int) -> Operation:
        name, value = self._pick(words.SERVER_SETTINGS)
        what = f"RESET {name}" if value is None else f"SET {name} = {quote(value)}"
        return Operation(session, f"{SERVER}ALTER SYSTEM {what}")

    # -- connections -------------------------------------------------------------

    def connect(self, session: int) -> Operation:
        options: dict[str, str] = {}
        for _ in range(self._pick((0, 0, 1, 1, 2))):
            name, value = self._pick(words.STARTUP)
            options[name] = value
        options["user"] = self._pick(self.USERS)
        return Operation(session, f"connect {options}", connect=tuple(options.items()))


PORTALS = ("n1", "n2")
