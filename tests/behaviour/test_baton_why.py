"""`baton why PID` says where a session is, why, and what comes next: for each state, and in each failure."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psycopg
import pytest
from harness.account import server_program
from harness.wire import Wire, query

pytestmark = [pytest.mark.pool_only, pytest.mark.one_major]


@pytest.fixture
def cluster(make_cluster):
    one = make_cluster(parameters={"pg_baton.max_backends": 2, "pg_baton.native_dbuser_names": "postgres/native"})
    one.sql("CREATE EXTENSION pg_baton")
    one.sql("CREATE ROLE app LOGIN; CREATE ROLE native LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    return one


def ask(cluster, pid: int | str, conninfo: str | None = None) -> subprocess.CompletedProcess[str]:
    program = str(Path(cluster.run.stage.program).with_name("baton"))
    command = [program, "why", "--psql", server_program("psql"), str(pid), conninfo or cluster.direct(user="watcher")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def why(cluster, pid: int | str) -> str:
    ran = ask(cluster, pid)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    return ran.stdout


def says(cluster, pid: int | str, *parts: str) -> str:
    """The backend may need a moment to give the session back."""
    deadline = time.monotonic() + 30
    while True:
        said = why(cluster, pid)
        if all(part in said for part in parts):
            return said
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def pid_of(wire: Wire) -> int:
    return int(wire.query("SELECT pg_backend_pid()")[0][0])


def test_an_idle_session_is_said_to_be_in_the_dispatcher(cluster, crowd):
    (app,) = crowd(cluster, 1, user="app")
    said = says(cluster, pid_of(app), "The dispatcher holds it; no backend serves it.")
    assert "of role app in database postgres" in said
    assert "can run on any backend of database postgres" in said


@pytest.mark.parametrize(
    ("begin", "cause", "end"),
    [
        ("LISTEN it", "listen", "UNLISTEN *"),
        ("CREATE TEMP TABLE kept ()", "temporary object", "DISCARD ALL"),
        ("SELECT pg_advisory_lock(7)", "advisory lock", "SELECT pg_advisory_unlock(7)"),
        ("DECLARE kept CURSOR WITH HOLD FOR SELECT 1", "held cursor", "CLOSE ALL"),
    ],
)
def test_a_dedicated_session_s_cause_and_its_end_are_said(cluster, crowd, begin, cause, end):
    """What ends it, according to the sentence, ends it."""
    (app,) = crowd(cluster, 1, user="app")
    pid = pid_of(app)
    app.query(begin)
    said = says(cluster, pid, f"It is dedicated because of {cause}: ", "Its next transaction runs on the same backend.")
    assert "It is shared again " in said
    if cause == "advisory lock":
        assert "It holds 1 advisory lock." in said
    app.query(end)
    said = says(cluster, pid, "Its next transaction can run on any backend of database postgres")
    assert "dedicated" not in said


def test_a_waiting_session_is_told_who_has_the_backends(cluster, crowd):
    holders = crowd(cluster, 2, user="app")
    pids = [pid_of(holder) for holder in holders]
    for holder in holders:
        holder.query("BEGIN")
    (waits,) = crowd(cluster, 1, user="app")
    pid = int(
        cluster.sql(f"SELECT pid FROM pg_baton_sessions WHERE user_name = 'app' AND pid NOT IN {tuple(pids)}")[0][0]
    )
    waits.send(query("SELECT 1"))
    said = says(cluster, pid, "It has waited for a backend for ")
    for holder in pids:
        assert f"Session {holder} has backend " in said
    assert ": role app, idle in transaction for " in said
    assert "1 session waits in database postgres" in said
    assert "(53300, pg_baton.session_wait_timeout)" in said
    for holder in holders:
        holder.query("COMMIT")
    waits.until_ready()


def test_a_role_at_its_limit_is_told_so(cluster, crowd):
    cluster.sql("ALTER ROLE app SET pg_baton.pool_max_backends = 1")
    holder, waits = crowd(cluster, 2, user="app")
    pid = pid_of(waits)
    holder.query("BEGIN")
    waits.send(query("SELECT 1"))
    says(cluster, pid, "Role app may have 1 backend in this database (pg_baton.pool_max_backends) and has 1")
    holder.query("COMMIT")
    waits.until_ready()


def test_a_paused_session_is_told_of_the_pause(cluster, crowd):
    (app,) = crowd(cluster, 1, user="app")
    pid = pid_of(app)
    cluster.sql("SELECT pg_baton_pause(role => 'app')")
    app.send(query("SELECT 1"))
    said = says(cluster, pid, "for the end of a pause", "A pause of sessions of role app holds back")
    assert "53300" not in said
    cluster.sql("SELECT pg_baton_resume()")
    app.until_ready()


def test_who_blocks_whom_is_said_on_both_sides(cluster, crowd):
    cluster.sql("CREATE TABLE wanted (); GRANT ALL ON wanted TO app")
    holder, waits = crowd(cluster, 2, user="app")
    held, blocked = pid_of(holder), pid_of(waits)
    holder.query("BEGIN")
    holder.query("LOCK wanted")
    waits.send(query("SELECT FROM wanted"))
    said = says(cluster, blocked, "It waits for a lock (relation).", f"Session {held} blocks it: role app")
    assert "idle in transaction for" in said and "It has been active for " in said
    assert "Its query: SELECT FROM wanted" in said
    said = says(cluster, held, f"It blocks 1 session that waits for its locks: {blocked}.")
    assert "its client has not sent the next statement" in said
    assert "Its last query: LOCK wanted" in said
    holder.query("COMMIT")
    waits.until_ready()


def test_processes_that_are_no_sessions_are_told_apart(cluster, crowd):
    (app,) = crowd(cluster, 1, user="app")
    app.query("BEGIN")
    session, process = cluster.sql("SELECT session_pid, pid FROM pg_baton_backends WHERE session_pid IS NOT NULL")[0]
    says(cluster, process, f"Process {process} is a backend of the pool", f"It serves session {session} now")
    with psycopg.connect(cluster.pool(user="native")) as native:
        says(cluster, native.info.backend_pid, "It is native", "pg_baton.native_dbuser_names names its database")
    with psycopg.connect(cluster.direct()) as direct:
        says(cluster, direct.info.backend_pid, "a connection on the server's own port")
    ((checkpointer,),) = cluster.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
    says(cluster, checkpointer, "a process of the server: checkpointer")


def test_a_hostile_text_cannot_command_the_terminal(cluster):
    with psycopg.connect(cluster.pool(user="app"), autocommit=True) as client:
        client.execute("BEGIN /* \x1b[2J\r\n\u202e */")
        said = says(cluster, client.info.backend_pid, "Its last query: BEGIN /* [2J */")
        assert not set(said) & {"\x1b", "\r", "\u202e"}


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_texts_of_other_encodings_do_not_stop_it(cluster, encoding):
    """Queries are shown as the bytes that other databases have."""
    cluster.sql(f"CREATE DATABASE other ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    cluster.sql("CREATE EXTENSION pg_baton", dbname="other")
    with psycopg.connect(cluster.pool(dbname="other"), autocommit=True, client_encoding="latin1") as client:
        client.execute("BEGIN /* \xe4 */")
        says(cluster, client.info.backend_pid, "Its last query: BEGIN /* ")
        there = cluster.direct(dbname="other", user="watcher")
        ran = ask(cluster, client.info.backend_pid, there)
        assert ran.returncode == 0 and "Its last query: BEGIN /* " in ran.stdout, ran.stderr


def test_failures_have_a_message_and_a_status(cluster):
    ran = ask(cluster, 2**31 - 1)
    assert ran.returncode == 1 and "no session and no process of the server has the ID" in ran.stderr
    cluster.sql("CREATE DATABASE elsewhere")
    ran = ask(cluster, 1, cluster.direct(dbname="elsewhere"))
    assert ran.returncode == 2 and "CREATE EXTENSION pg_baton" in ran.stderr
    ran = ask(cluster, 1, cluster.direct(user="app"))
    assert ran.returncode == 2 and "permission denied" in ran.stderr
    ran = ask(cluster, 1, "host=/nonexistent")
    assert ran.returncode == 2 and "connection" in ran.stderr
    assert ask(cluster, "x").returncode == 2


def test_without_a_dispatcher_it_says_what_to_do(make_cluster):
    cluster = make_cluster()
    cluster.sql("CREATE EXTENSION pg_baton; CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    cluster.set_parameters({"pg_baton.dispatcher_program": "/nonexistent"})
    cluster.stop()
    cluster.start(wait_for_pool=False)
    ran = ask(cluster, 1)
    assert ran.returncode == 2 and "dispatcher" in ran.stderr
