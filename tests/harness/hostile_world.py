"""The surroundings of hostile backends: sessions that these backends must not affect."""

from __future__ import annotations

import time

from .control_memory import ControlMemory
from .health import assert_healthy, wait_until
from .hostile import Backend
from .wire import Wire, query

HOST = "127.0.0.1"
MAX_BACKENDS = 4


class World:
    """Hostile backends (liars), and sessions that they must not affect: an idle session, and
    a session in a transaction.  All are of one pool, or the liars are of another pool.  No
    backend is free, so that a session that asks is given to a liar."""

    def __init__(self, make_cluster, same_pool: bool, hba=(), setup: str = "", **parameters: str) -> None:
        self.cluster = make_cluster(parameters={"pg_baton.max_backends": MAX_BACKENDS} | parameters, hba=hba)
        self.cluster.sql("CREATE EXTENSION pg_baton")
        self.cluster.sql("CREATE ROLE liar LOGIN; " + setup)
        self.cluster.sql("CREATE DATABASE liars TEMPLATE template0")
        # the liars have a role of their own in either case: backends serve any role
        self.place = {"user": "liar", "database": "postgres" if same_pool else "liars"}
        ((self.role,),) = self.cluster.sql("SELECT oid FROM pg_roles WHERE rolname = 'liar'")
        found = "SELECT oid FROM pg_database WHERE datname = '{database}'"
        ((self.database,),) = self.cluster.sql(found.format(**self.place))
        self.idle = self.come("idle")
        self.busy = self.come("busy")
        self.busy.query("BEGIN")
        self.busy.query("SET LOCAL my.own = 'busy, too'")
        gone = self.come("gone")
        self.ids = {name: self.session_id(name) for name in ("idle", "busy", "gone")}
        gone.finish()
        wait_until(lambda: self.session_id("gone") is None, what="it has gone")
        # from here on the dispatcher greets clients of this role and database
        self.come("client", **self.place).finish()
        self.no_backend_is_free()
        self.memory = ControlMemory(self.cluster)

    def no_backend_is_free(self) -> None:
        """Ends the free backends of the liars' pool: none is free until another is started."""
        free = "FROM pg_baton_backends WHERE database = '{database}' AND session_id IS NULL".format(**self.place)

        def is_none_seen() -> bool:
            return self.cluster.sql(f"SELECT pg_terminate_backend(pid) {free}") == []

        # again and again: a backend may be starting
        wait_until(lambda: is_none_seen() and not time.sleep(0.2) and is_none_seen(), what="no backend is free")

    def come(self, name: str, user: str = "postgres", database: str = "postgres") -> Wire:
        wire = Wire.login(HOST, self.cluster.pool_port, user=user, database=database, application_name=name)
        wire.query(f"SET my.own = '{name}'")
        return wire

    def ask(self) -> Wire:
        """A client of the liar's role, for which a backend must be started."""
        wire = Wire.login(HOST, self.cluster.pool_port, application_name="client", **self.place)
        wire.send(query("SHOW my.own"))
        return wire

    def session_id(self, name: str) -> int | None:
        found = self.cluster.sql(f"SELECT id FROM pg_baton_sessions WHERE application_name = '{name}'")
        return found[0][0] if found else None

    def liar(self) -> Backend:
        return Backend(self.cluster, self.memory, self.role, self.database)

    def never(self) -> dict[str, int]:
        """IDs of sessions that have never existed."""
        some = self.ids["busy"]  # the ID of a session whose slot is not the first
        return {
            "the next of that slot": some + (1 << 32),
            "no generation": some & 0xFFFFFFFF,
            "more than 31 bits": some | 1 << 63,
            "no such slot": some | 0xFFFFFFFF,
        }

    def assert_unharmed(self) -> None:
        assert self.busy.query("SHOW my.own") == [["busy, too"]]
        self.busy.query("COMMIT")
        for wire, name in ((self.busy, "busy"), (self.idle, "idle")):
            assert wire.query("SHOW my.own") == [[name]]
            wire.finish()
        # the pool has as many backends as before
        holders = [self.come("holder") for _ in range(MAX_BACKENDS)]
        for wire in holders:
            wire.query("BEGIN", timeout_s=20)
        for wire in holders:
            wire.finish()
        assert_healthy(self.cluster)
