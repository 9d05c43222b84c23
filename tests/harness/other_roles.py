"""Sessions of other roles at work in a suite's database, on the backends that serve the suite.

Each is a role's with settings of its own, and runs small transactions by the pool's port, one
after another.  What every one of them sees must be its own; what it sees of another's is kept
in `wrong`.  A database that is not there yet, or goes, and an ended session are no matter:
the suite does that.
"""

from __future__ import annotations

import itertools
import threading

import psycopg
from psycopg import errors

from .cluster import Cluster

PAUSE_S = 0.005
RETRY_S = 0.2
JOIN_S = 30


class OtherRoles:
    """Within `with` as many roles as `count` are at work; `served` counts their transactions."""

    def __init__(self, cluster: Cluster, database: str, count: int) -> None:
        self.cluster, self.database = cluster, database
        self.roles = [f"regress_beside_{number}" for number in range(count)]
        self.served = 0
        self.wrong: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(role,), daemon=True) for role in self.roles]

    def __enter__(self) -> OtherRoles:
        for role in self.roles:
            self.cluster.sql(f"CREATE ROLE {role} LOGIN")
            self.cluster.sql(f"ALTER ROLE {role} SET beside.role = '{role}'")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(JOIN_S)

    def _run(self, role: str) -> None:
        while not self._ended.is_set():
            try:
                conninfo = self.cluster.pool(dbname=self.database, user=role)
                with psycopg.connect(conninfo, autocommit=True, connect_timeout=JOIN_S) as session:
                    self._work(session, role)
            except psycopg.Error:
                self._ended.wait(RETRY_S)

    def _work(self, session: psycopg.Connection, role: str) -> None:
        expected = (role, role, "off", role, f"{role}, its own")
        session.execute("SELECT pg_catalog.set_config('beside.own', %s, false)", [f"{role}, its own"])
        for number in itertools.count():
            if self._ended.is_set():
                return
            with session.transaction():
                seen = session.execute(
                    "SELECT session_user, current_user, pg_catalog.current_setting('is_superuser'),"
                    " pg_catalog.current_setting('beside.role'), pg_catalog.current_setting('beside.own')"
                ).fetchone()
                if seen != expected:
                    self.wrong.append(f"{role} sees {seen}")
            if number % 10 == 0:
                self._is_refused(session, role)
            self.served += 1
            self._ended.wait(PAUSE_S)

    def _is_refused(self, session: psycopg.Connection, role: str) -> None:
        try:
            session.execute("SELECT rolpassword FROM pg_catalog.pg_authid")
            self.wrong.append(f"{role} reads pg_authid")
        except errors.InsufficientPrivilege:
            pass

    def problems(self) -> list[str]:
        """What would make the run worthless, or shows a hole."""
        return self.wrong or ([] if self.served else ["no other role was served"])
