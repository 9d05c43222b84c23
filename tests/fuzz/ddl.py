"""Generates changes of objects that sessions depend on, and sessions that use these objects.

ddl_words.py has the words, history.py decides which results are compared.  A share of the
operations comes from here, the rest is the common vocabulary (generator.py).
"""

from __future__ import annotations

from dataclasses import replace

from harness import wire

from . import ddl_words as words
from .ddl_words import Group, Use
from .generator import Generator, Operation, Script, SessionView, quote
from .history import PATH, PATH_SCHEMA, SESSION, About, History, Verdict

# The most statements that a session keeps prepared, before it gives up the oldest.
PREPARED_LIMIT = 10
TEXT_OID = 25
TRIES = 8
CLIENTS_AN_EPISODE = (1, 1, 2, 3)


class DdlGenerator(Generator):
    """A generator that knows of DDL beside sessions."""

    DDL_KINDS = (
        ("change", 12),
        ("own_change", 4),
        ("own", 1),
        ("ask", 12),
        ("prepare", 14),
        ("run_prepared", 22),
        ("wrapped", 16),
        ("call", 14),
        ("setting", 4),
        ("leave", 6),
        ("statistics", 1),
    )

    GROUPS = words.GROUPS
    USES = words.USES
    GROUPS_AN_EPISODE = 2
    WRAPPER = "use"
    # The users that may change the objects of the groups.
    MIGHTY: tuple[str, ...] = ("postgres",)

    def __init__(
        self, seed: int, sessions: int, database: str, backends: int, pids: bool, history: History, share: float
    ) -> None:
        super().__init__(seed, sessions, database, backends, pids)
        self.history = history
        self.share = share
        self.counter = 0
        self.prepared: list[list[tuple[str, Group, Use, bool]]] = [[] for _ in range(sessions)]
        """Name, what it asks of which group, whether by the protocol."""
        groups = self.random.sample(self.GROUPS, self.GROUPS_AN_EPISODE)
        self.changes = [(group, change) for group in groups for change in group.changes]
        self.own = [(group, change) for group in groups for change in group.own]
        self.uses = [number for number, (group, _) in enumerate(self.USES) if group in groups]
        self.calls = [(group, call) for group in groups for call in group.calls]
        about_path = any(PATH in change.untold for _, change in self.changes)
        self.paths = [path for path in words.SEARCH_PATHS if PATH_SCHEMA in path or not about_path]
        self.users = [""] * sessions
        self.wants_change = False
        """As soon as no session is in a transaction: these are ended."""
        self.clients = [self._client() for _ in range(self._pick(CLIENTS_AN_EPISODE))]

    def next(self, views: list[SessionView]) -> Operation:
        if self.random.random() >= self.share:
            return self._common(views)
        all_idle = all(view.status == "I" for view in views)
        if self.wants_change:
            return self._towards_change(views)
        for _ in range(TRIES):
            session = self.random.randrange(self.sessions)
            view = views[session]
            if not view.connected:
                return self.connect(session)
            if view.status == "E":
                continue
            kind = self.random.choices([k for k, _ in self.DDL_KINDS], [w for _, w in self.DDL_KINDS])[0]
            operation = getattr(self, "_ddl_" + kind)(session)
            idle = view.status == "I"
            if kind in ("leave", "statistics") and not idle:
                continue
            if operation is None or operation.disconnect:
                pass
            elif self.history.verdict(session, operation.about, idle, all_idle) is Verdict.SKIP:
                self.wants_change = kind == "change" and not all_idle
                if self.wants_change:
                    return self._towards_change(views)
                # A session that has grown old leaves, provided that it is idle.
                operation = self._ddl_leave(session) if idle and not operation.about.changes else None
            if operation is not None:
                return operation
        return self._common(views)

    def _common(self, views: list[SessionView]) -> Operation:
        operation = super().next(views)
        view = views[operation.session]
        if (
            operation.connect is None
            and view.status == "I"
            and (self.history.verdict(operation.session, About(), True, True) is Verdict.SKIP)
        ):
            return self._ddl_leave(operation.session)
        return operation

    def _towards_change(self, views: list[SessionView]) -> Operation:
        within = [number for number, view in enumerate(views) if view.connected and view.status != "I"]
        self.wants_change = bool(within)
        if not within:
            return self._ddl_change(0)
        text = self._pick(("COMMIT", "ROLLBACK"))
        return Operation(self._pick(within), text, (wire.query(text),))

    # -- changes -------------------------------------------------------------------

    def _ddl_change(self, session: int) -> Operation:
        group, change = self._pick(self.changes)
        sql = change.sql.replace(":database", self.database)
        return Operation(
            session,
            f"admin: {sql}",
            (wire.query(sql),),
            about=About(admin=True, changes=change.untold, shuts_out=change.shuts_out, kind=f"{group.name}: change"),
        )

    def _ddl_own_change(self, session: int) -> Operation | None:
        if self.users[session] not in self.MIGHTY and self.random.random() < 0.9:
            return None
        group, change = self._pick(self.changes)
        sql = change.sql.replace(":database", self.database)
        return Operation(
            session,
            sql,
            (wire.query(sql),),
            about=About(
                changes=change.untold,
                shuts_out=change.shuts_out,
                alters=True,
                kind=f"{group.name}: change by a session",
            ),
        )

    def _ddl_own(self, session: int) -> Operation | None:
        if not self.own:
            return None
        group, change = self._pick(self.own)
        return Operation(
            session,
            change.sql,
            (wire.query(change.sql),),
            about=About(own_changes=change.untold, kind=f"{group.name}: of one session"),
        )

    def _ddl_setting(self, session: int) -> Operation:
        if self.random.random() < 0.3:
            text, about = f"SET app.tenant = '{self._pick(words.TENANTS)}'", About(own_changes=("tenant",), topics=())
        else:
            text = self._pick(
                (
                    "SET app.region = 'north'",
                    "SET app.region = 'south'",
                    "SET LOCAL app.region = 'south'",
                    "RESET app.region",
                )
            )
            about = About()
        return Operation(session, text, (wire.query(text),), about=about)

    # -- queries -------------------------------------------------------------------

    def _text_of(self, use: Use) -> str:
        """The query with its value in it."""
        return use.query.replace("$1", f"{quote(self._pick(use.values))}::text") if use.values else use.query

    def _done(self, session: int, script: Script, about: About) -> Operation:
        return replace(script.operation(session), about=about)

    def _ddl_ask(self, session: int) -> Operation | None:
        """A query that is analysed and planned now."""
        if not self.uses:
            return None
        group, use = self.USES[self._pick(self.uses)]
        script = Script()
        form = self.random.randrange(6) if use.wrapped else self.random.randrange(2)
        if form <= 1:
            self._either(script, self._text_of(use))
        elif form == 2:
            self._query(script, f"SELECT public.dynamic({quote(self._text_of(use))})")
        elif form == 3:
            self._query(script, f"DO $do$BEGIN RAISE NOTICE '%', ({self._text_of(use)}); END$do$")
        elif form == 4:
            self._query(
                script,
                f"DECLARE ddl_cursor CURSOR WITH HOLD FOR {self._text_of(use)}; FETCH ALL FROM ddl_cursor;"
                " CLOSE ddl_cursor",
            )
        else:
            self._parsed(script, "", use)
            self._bound(script, "", use)
        if any(label.startswith("Parse") for label in script.labels):
            # Any later operation may bind the unnamed statement, and its age is not recorded.
            script.add("Parse '': SELECT 1", wire.parse("SELECT 1"))
            script.sync()
        return self._done(
            session, script, About(topics=use.topics, writes=use.writes, asks=True, kind=f"{group.name}: asked")
        )

    def _ddl_prepare(self, session: int) -> Operation | None:
        if not self.uses:
            return None
        group, use = self.USES[self._pick(self.uses)]
        held = self.prepared[session]
        # Often a statement that another session has prepared, too.
        others = [one for number, mine in enumerate(self.prepared) if number != session for one in mine]
        if others and self.random.random() < 0.5:
            _, group, use, _ = self._pick(others)
        self.counter += 1
        name = f"ddl{self.counter}"
        script = Script()
        by_protocol = self.random.random() < 0.5
        if len(held) >= PREPARED_LIMIT:
            old, _, _, was_protocol = held.pop(0)
            if was_protocol:
                script.add(f"Close {old}", wire.close_statement(old))
            else:
                self._query(script, f"DEALLOCATE {old}")
        if by_protocol:
            self._parsed(script, name, use)
        else:
            if script.parts:
                script.sync()
            self._query(script, f"PREPARE {name}{'(text)' if use.values else ''} AS {use.query}")
        held.append((name, group, use, by_protocol))
        for _ in range(self._pick((0, 1, 1, 2, 7))):
            self._run(script, name, use, by_protocol)
        return self._done(
            session,
            script,
            About(topics=use.topics, makes=name, writes=use.writes, asks=True, kind=f"{group.name}: prepared"),
        )

    def _ddl_run_prepared(self, session: int) -> Operation | None:
        if not self.prepared[session]:
            return None
        name, group, use, by_protocol = self._pick(self.prepared[session])
        script = Script()
        for _ in range(self._pick((1, 1, 2, 7))):
            self._run(script, name, use, by_protocol)
        return self._done(
            session,
            script,
            About(topics=use.topics, keeper=name, writes=use.writes, asks=True, kind=f"{group.name}: executed"),
        )

    def _parsed(self, script: Script, name: str, use: Use) -> None:
        script.add(f"Parse {name!r}: {use.query}", wire.parse(use.query, name, [TEXT_OID] if use.values else []))
        if self.random.random() < 0.5:
            script.add(f"Describe {name!r}", wire.describe_statement(name))
        script.sync()

    def _bound(self, script: Script, name: str, use: Use) -> None:
        values = [self._pick(use.values)] if use.values else []
        script.add(f"Bind {name!r} {values} | Execute", wire.bind(values, name) + wire.execute())
        script.sync()

    def _run(self, script: Script, name: str, use: Use, by_protocol: bool) -> None:
        if by_protocol and self.random.random() < 0.8:
            self._bound(script, name, use)
            return
        arguments = f"({quote(self._pick(use.values))})" if use.values else ""
        self._query(script, f"EXECUTE {name}{arguments}")

    def _ddl_wrapped(self, session: int) -> Operation | None:
        """A query by the function that the layout made of it."""
        if not self.uses:
            return None
        number = self._pick(self.uses)
        group, use = self.USES[number]
        if not use.wrapped:
            return None
        script = Script()
        function = f"sql_{self.WRAPPER}" if self.random.random() < 0.15 else self.WRAPPER
        for _ in range(self._pick((1, 1, 2, 7))):
            argument = quote(self._pick(use.values)) if use.values else ""
            self._query(script, f"SELECT public.{function}_{number}({argument}) -- {use.query[:60]}")
        return self._done(
            session,
            script,
            About(topics=use.topics, keeper=SESSION, writes=use.writes, asks=True, kind=f"{group.name}: by a function"),
        )

    def _ddl_call(self, session: int) -> Operation | None:
        if not self.calls:
            return None
        group, call = self._pick(self.calls)
        script = Script()
        for _ in range(self._pick((1, 1, 2, 7))):
            self._query(script, call.sql)
        return self._done(
            session,
            script,
            About(topics=call.topics, keeper=SESSION, value=call.value, asks=True, kind=f"{group.name}: by a function"),
        )

    def _ddl_statistics(self, session: int) -> Operation:
        script = Script()
        for text in self._pick(words.STATISTICS):
            self._query(script, text)
        return script.operation(session)

    # -- sessions that come and go ---------------------------------------------------

    def _ddl_leave(self, session: int) -> Operation:
        return Operation(session, "disconnect", disconnect=True)

    def _client(self) -> tuple[tuple[str, str], ...]:
        """A kind of client: sessions of the same kind leave their knowledge in the same places."""
        options = {"user": self._pick(("alice", "alice", "alice", "bob", "postgres", "postgres"))}
        settings = []
        if self.random.random() < 0.75:
            settings.append(f"search_path={self._pick(self.paths)}")
        if self.random.random() < 0.6:
            settings.append(f"app.tenant={self._pick(words.TENANTS)}")
        if settings:
            options["options"] = " ".join(f"-c {one}" for one in settings)
        return tuple(options.items())

    def connect(self, session: int) -> Operation:
        self.prepared[session] = []
        if self.random.random() < 0.15:
            operation = super().connect(session)
        else:
            options = self._pick(self.clients)
            operation = Operation(session, f"connect {dict(options)}", connect=options)
        self.users[session] = dict(operation.connect or ())["user"]
        return operation
