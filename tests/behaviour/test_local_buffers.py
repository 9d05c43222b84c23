"""A process allocates local buffers once, for its first temporary table, as many as
temp_buffers says then.  Each session has as many as its own temp_buffers says."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from harness.health import wait_until
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

USE = "CREATE TEMPORARY TABLE t AS SELECT generate_series(1, 5000) a; SELECT count(*) FROM t; DROP TABLE t"


@pytest.fixture
def buffers(server):
    """A server with a separate database and role: none of their backends has had a temporary table."""
    server.sql("CREATE DATABASE buffers")
    server.sql("CREATE ROLE buffers LOGIN SUPERUSER")
    yield server
    server.sql("DROP DATABASE buffers WITH (FORCE)")
    server.sql("DROP ROLE buffers")


def enter(server, name: str = "somebody", **options: str) -> Wire:
    return Wire.login(
        "127.0.0.1", server.pool_port, user="buffers", database="buffers", application_name=name, **options
    )


def look(server, name: str) -> tuple[str, str | None]:
    (row,) = server.sql(f"SELECT mode, dedicated_cause FROM pg_baton_sessions WHERE application_name = '{name}'")
    return row


def used_now(session: Wire) -> str:
    """The session's temp_buffers, after a check that it has as many: else SET LOCAL would fail (check_temp_buffers)."""
    session.query("BEGIN")
    session.query(USE)
    ((shown,),) = session.query("SHOW temp_buffers")
    session.query(f"SET LOCAL temp_buffers = '{shown}'")
    session.query("COMMIT")
    return shown


def used(session: Wire) -> str:
    """The session's temp_buffers, after a check that it has as many in its next transaction, too."""
    shown = used_now(session)
    assert session.query("SHOW temp_buffers") == [[shown]]
    return shown


def use_all(server, **options: str) -> None:
    """Makes every backend allocate its buffers."""
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(enter(server, **options)) for _ in range(6)]
        for session in crowd:
            session.query("BEGIN")
        for session in crowd:
            session.query(USE)
        for session in crowd:
            session.query("COMMIT")


def test_local_buffers_are_as_many_as_their_session_says(buffers):
    """A session that sets temp_buffers keeps its backend, and no session gets that backend after it."""
    for name, *statements in (
        ("set", "SET temp_buffers = 200"),
        (
            "local",
            "BEGIN",
            "SET LOCAL temp_buffers = 300",
            "CREATE TEMPORARY TABLE t ON COMMIT DROP AS SELECT 1",
            "COMMIT",
        ),
    ):
        with enter(buffers, name) as session:
            for statement in statements:
                session.query(statement)
            session.query("SELECT 1")
            assert look(buffers, name) == ("dedicated", "listed parameter")
            ((process,),) = buffers.sql(f"SELECT pid FROM pg_baton_backends WHERE session_pid = {session.backend_pid}")
            session.finish()
        wait_until(lambda: not Path(f"/proc/{process}").exists(), what="its backend has ended")  # noqa: B023


def test_a_session_that_connects_with_temp_buffers_has_as_many(buffers):
    use_all(buffers)
    asked = {
        "-c temp_buffers=100": "800kB",
        "-c temp_buffers=2MB": "2MB",
        "-c temp_buffers=100 -c Temp_Buffers=300": "2400kB",
    }
    with contextlib.ExitStack() as stack:
        sessions = [
            (stack.enter_context(enter(buffers, f"{name} {number}", options=options, IntervalStyle="iso_8601")), shown)
            for number in range(2)
            for name, (options, shown) in enumerate(asked.items())
        ]
        plain = stack.enter_context(enter(buffers, "plain"))
        for _ in range(3):
            assert [used(session) for session, _ in sessions] == [shown for _, shown in sessions]
            assert used(plain) == "8MB"
        assert [look(buffers, f"{name} {number}") for name in range(3) for number in range(2)] == [("shared", None)] * 6
        for session, shown in sessions:
            session.query("DISCARD ALL")
            assert used(session) == shown


@pytest.mark.parametrize("setting", ["ROLE buffers", "DATABASE buffers", "ROLE buffers IN DATABASE buffers"])
def test_a_session_with_temp_buffers_by_a_setting_has_as_many(buffers, setting):
    use_all(buffers)
    with enter(buffers, "old") as old:
        assert used(old) == "8MB"
        for shown in ("800kB", "2MB"):
            buffers.sql(f"ALTER {setting} SET temp_buffers = '{shown}'")
            use_all(buffers, DateStyle="SQL")
            with enter(buffers, "new") as new, enter(buffers, "other", TimeZone="Asia/Tokyo") as other:
                for _ in range(3):
                    assert [used(new), used(other)] == [shown] * 2
                    # The session has as many as it says, whichever value that is (docs/limits.md).
                    assert used_now(old) in ("8MB", "800kB", "2MB")
                assert [look(buffers, name) for name in ("old", "new", "other")] == [("shared", None)] * 3
        buffers.sql(f"ALTER {setting} RESET temp_buffers")
        with enter(buffers, "plain") as plain:
            assert used(plain) == "8MB"
        used_now(old)


def test_sessions_after_a_reload_have_the_files_temp_buffers(buffers):
    use_all(buffers)
    with enter(buffers, "old") as old:
        try:
            buffers.set_parameters({"temp_buffers": "2MB"})
            buffers.reload()

            def found() -> str:
                with enter(buffers, "new") as new:
                    return used(new)

            def has_too(value: str) -> bool:
                # While older backends exist, the old session has now the one value and now the
                # other (docs/limits.md), until a session comes whose backend was started since.
                return found() == value and {used_now(old) for _ in range(3)} == {value}

            wait_until(lambda: found() == "2MB", what="new sessions have it")
            assert {found() for _ in range(3)} == {"2MB"}
            wait_until(lambda: has_too("2MB"), what="who was there before has it, too")
        finally:
            buffers.set_parameters({"temp_buffers": None})
            buffers.reload()
        wait_until(lambda: found() == "8MB", what="new sessions have it no more")
        wait_until(lambda: has_too("8MB"), what="nor has who was there before")
