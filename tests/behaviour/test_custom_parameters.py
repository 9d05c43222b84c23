"""A custom parameter is there for the session that set it, and for no other.

One backend serves all sessions: the next session finds in the server's table
of parameters what the last session left there."""

from __future__ import annotations

import psycopg
import pytest
from harness.account import DEBUG_PARALLEL, server_major
from harness.health import wait_until
from harness.processes import ITS_PROCESS

PARAMETERS = {"pg_baton.max_backends": 1}
SETUP = ["CREATE ROLE alice LOGIN", "CREATE ROLE bob LOGIN"]


def connect(server, **options):
    return psycopg.connect(server.pool(**options), autocommit=True)


# The server's own parameters begin with allow_in_place_tablespaces.
@pytest.mark.parametrize("name", ["acme.a", "_app.z", "é.x", "my.z", "zz.z"])
def test_custom_parameter_stays_its_session_s_in_any_sort_order(server, name):
    with connect(server) as one, connect(server) as other:
        read = f"SELECT current_setting('{name}', true)"
        one.execute(f"SET {name} = 'secret'")
        other.execute("DO $$BEGIN END$$")  # loads a library, so the table is examined again
        one.execute("SELECT 1")
        assert other.execute(read).fetchone() == (None,)
        one.execute(f"SET {name} = 'new'")
        assert other.execute(read).fetchone() == (None,)
        assert one.execute(f"SHOW {name}").fetchone() == ("new",)
        other.execute(f"SET {name} = 'its own'")
        for value in "newer", "newest":
            one.execute(f"SET {name} = '{value}'")
            assert other.execute(read).fetchone() == ("its own",)
            assert one.execute(read).fetchone() == (value,)
        one.execute("DISCARD ALL")
        assert other.execute(read).fetchone() == ("its own",)
        assert one.execute(read).fetchone() == ("",)
        with connect(server) as third:
            assert third.execute(read).fetchone() == (None,)


@pytest.mark.pool_only
@pytest.mark.skipif(server_major() > 15, reason="from 16 on the server's table gives up what is removed")
def test_names_of_past_sessions_do_not_pile_up_in_a_backend(server):
    """The server sorts its whole table whenever a SET adds a name to it."""
    with connect(server) as steady:
        before = steady.execute(ITS_PROCESS).fetchone()
        for nth in range(12):
            with connect(server) as session:
                session.execute(
                    f"SELECT count(set_config('my.of_{nth}_' || i, 'x', false)) FROM generate_series(1, 100) i"
                )
            steady.execute("SELECT 1")
        wait_until(lambda: steady.execute(ITS_PROCESS).fetchone() != before, what="another backend")


CONFLICT = "SELECT setting, source FROM pg_settings WHERE name = 'plpgsql.variable_conflict'"
OF_ANOTHER_PROCESS = "-c temp_buffers=900"  # only a process that starts can take it
LOAD = "DO $$BEGIN END$$"  # the procedural language's library comes with its first use


def ask(one, other, sql) -> tuple:
    """The answer to `one` by a backend in which `other` has loaded the library.  There is only one backend, but another
    backend may have come in its place, or beside it."""
    for attempt in range(20):
        with other.transaction():
            other.execute(LOAD)
            process = other.execute(ITS_PROCESS).fetchone()
        with one.transaction():
            answer = one.execute(sql).fetchone()
            its_process = one.execute(ITS_PROCESS).fetchone()
        if its_process == process:
            return answer
        if attempt % 2:  # else two sessions that forced migration moves in turn would never meet
            one.execute("SELECT 1")
    raise AssertionError("no backend stays")


@pytest.mark.parametrize("how", ["set", "startup"])
@pytest.mark.parametrize("user, found", [("bob", ("error", "default")), ("postgres", ("use_column", None))])
def test_only_permitted_roles_give_a_library_s_parameter_a_value(server, how, user, found):
    """The value was accepted because the parameter was not known yet.  A backend
    that has the library checks the value as loading the library would have done."""
    options = {"options": "-c plpgsql.variable_conflict=use_column"} if how == "startup" else {}
    # With one backend for all sessions, a session that only another process can serve makes the next backend fresh.
    with connect(server, user="alice", options=OF_ANOTHER_PROCESS) as before:
        before.execute("SELECT 1")
    with connect(server, user=user, **options) as one, connect(server, user=user) as other:
        if how == "set":
            one.execute("SET plpgsql.variable_conflict = 'use_column'")
        one.execute("SELECT 1")
        other.execute(LOAD)
        setting, source = found
        source = source or {"set": "session", "startup": "client"}[how]
        for _ in range(2):
            assert ask(one, other, CONFLICT) == (setting, source)
            with other.transaction():
                other.execute(LOAD)
                assert other.execute(CONFLICT).fetchone() == ("error", "default")


def test_a_backend_drops_names_reserved_by_its_loaded_libraries(server):
    with connect(server, user="alice", options=OF_ANOTHER_PROCESS) as before:
        before.execute("SELECT 1")
    with connect(server, user="bob") as one, connect(server, user="bob") as other:
        one.execute("SET plpgsql.no_such = 'x'")
        one.execute("SET my.other = 'y'")
        other.execute(LOAD)
        assert ask(one, other, "SELECT current_setting('plpgsql.no_such', true)") == (None,)
        assert one.execute("SHOW my.other").fetchone() == ("y",)
        # Parallel workers get all parameters, and would refuse plpgsql.no_such.
        one.execute(f"SET {DEBUG_PARALLEL} = on")
        assert one.execute("SELECT count(*) > 0 FROM pg_class").fetchone() == (True,)
