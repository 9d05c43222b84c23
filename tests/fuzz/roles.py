"""Generates sessions of many roles in one database, and changes of these roles beside them.

role_words.py has the words; the forms of the queries and the compared results are those of
DDL beside sessions (ddl.py, history.py).
"""

from __future__ import annotations

from harness import wire

from . import role_words as words
from . import vocabulary
from .ddl import DdlGenerator
from .generator import Operation, Script
from .history import About

# The numbers of roles that sessions of an episode have, and the options that some of these sessions ask for at startup.
ROLES_AN_EPISODE = (8, 12, 16)
STARTUP = (
    ("options", "-c role=r_team"),
    ("options", "-c role=r_lone"),
    ("options", "-c work_mem=77kB -c app.tenant=t2"),
    ("options", "-c log_statement=ddl"),
    ("search_path", "other,public"),
    ("application_name", "from startup"),
    ("options", "-c app.tenant=t1"),
    ("options", "-c row_security=off"),
)


class RolesGenerator(DdlGenerator):
    """A generator that knows of roles."""

    GROUPS = words.GROUPS
    USES = words.USES
    GROUPS_AN_EPISODE = 4
    WRAPPER = "role_use"
    MIGHTY = words.MIGHTY
    USERS = words.LOGIN_ROLES
    ROLES = (*words.ROLES, "postgres", "none", "nobody_such")
    DDL_KINDS = (
        ("change", 12),
        ("own_change", 4),
        ("own", 6),
        ("ask", 20),
        ("prepare", 10),
        ("run_prepared", 16),
        ("wrapped", 14),
        ("become", 16),
        ("whole", 3),
        ("setting", 3),
        ("leave", 8),
    )

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        roles = self.random.sample(words.LOGIN_ROLES, min(self._pick(ROLES_AN_EPISODE), len(words.LOGIN_ROLES)))
        self.clients = [self._client_of(role) for role in (*roles, "postgres")]

    def _client_of(self, role: str) -> tuple[tuple[str, str], ...]:
        options = {"user": role}
        if role in words.WITH_PASSWORD:
            options["password"] = words.PASSWORD
        if self.random.random() < 0.2:
            name, value = self._pick(STARTUP)
            options[name] = value
        return tuple(options.items())

    def connect(self, session: int) -> Operation:
        operation = super().connect(session)
        options = dict(operation.connect or ())
        if options["user"] in words.WITH_PASSWORD and "password" not in options:
            options["password"] = words.PASSWORD
            operation = Operation(session, operation.label, connect=tuple(options.items()))
        return operation

    def _ddl_own(self, session: int) -> Operation:
        text = self._pick(words.OWN).replace(":database", self.database)
        return Operation(session, text, (wire.query(text),), about=About(alters=True, asks=True, kind="by a session"))

    def _ddl_become(self, session: int) -> Operation:
        """The session becomes another user for a while."""
        script = Script()
        self._identity(script)
        if self.random.random() < 0.6:
            self._either(script, words.IDENTITY)
        return script.operation(session)

    def _ddl_whole(self, session: int) -> Operation:
        script = Script()
        self._query(script, self._pick(("DISCARD ALL", "DISCARD ALL", "RESET ALL", "RESET SESSION AUTHORIZATION")))
        self._query(script, self._pick((words.SETTING_ROWS, words.IDENTITY)))
        return script.operation(session)

    def _stored_setting(self, script: Script) -> None:
        whom = self._pick(
            ("ROLE r_set", "ROLE r_plain", f"DATABASE {self.database}", f"ROLE r_here IN DATABASE {self.database}")
        )
        self._query(script, f"ALTER {whom} SET {self._pick(vocabulary.STORED_SETTINGS)}")

    def _pids(self, script: Script) -> None:
        if self.random.random() < 0.5:
            super()._pids(script)
        else:
            self._query(script, "SELECT usename, state FROM pg_stat_activity WHERE pid = pg_backend_pid()")
