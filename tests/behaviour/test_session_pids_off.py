"""Where sessions have no process IDs of their own, nothing else is lost."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from harness import wire as w
from harness.account import pg_config
from harness.health import wait_until
from harness.wire import Wire, query

PID_MAX_LIMIT = 4_194_304

pytestmark = pytest.mark.pool_only


@pytest.fixture
def without(make_cluster, run):
    library = run.directory / "other_function.so"
    source = Path(__file__).resolve().parents[1] / "harness" / "other_function.c"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-I", pg_config("includedir-server"), "-o", str(library), str(source)], check=True
    )
    library.chmod(0o755)
    libraries = f"{library}, pg_baton"
    server = make_cluster(parameters={"pg_baton.max_backends": 2, "shared_preload_libraries": libraries})
    server.sql("CREATE EXTENSION pg_baton")
    assert server.log().count("SQL knows sessions by the process IDs of the backends") == 1
    assert re.search(r'check of this server failed: .*"pg_cancel_backend" is not as expected', server.log())
    return server


def open_wire(server, **options) -> Wire:
    return Wire.login("127.0.0.1", server.pool_port, **options)


def test_without_them_sql_knows_the_processes_as_before(without):
    with open_wire(without) as session, open_wire(without) as other:
        for wire in (session, other, session):
            ((process,),) = wire.query("SELECT pg_backend_pid()")
            assert int(process) <= PID_MAX_LIMIT
            assert wire.query(f"SELECT pid FROM pg_stat_activity WHERE pid = {process}") == [[process]]
        session.query("BEGIN")
        session.query("SELECT pg_advisory_xact_lock(1)")
        ((process,),) = session.query("SELECT pg_backend_pid()")
        assert other.query("SELECT pid FROM pg_locks WHERE locktype = 'advisory'") == [[process]]
        session.send(query("SELECT pg_sleep(60)"))
        running = f"SELECT state FROM pg_stat_activity WHERE pid = {process}"
        wait_until(lambda: without.sql(running) == [("active",)], what="it runs")
        assert other.query(f"SELECT pg_cancel_backend({process})") == [["t"]]
        assert [m.fields()["C"] for m in session.until_ready(20) if m.type == "E"] == ["57014"]
        session.query("ROLLBACK")


def test_without_them_sessions_are_pooled_with_their_context(without):
    wires = [open_wire(without, application_name=f"app {n}") for n in range(10)]
    for number, wire in enumerate(wires):
        wire.query(f"SET work_mem = '{number + 1}MB'")
        wire.ask(w.parse(f"SELECT {number}", "s") + w.sync())
    for _ in range(3):
        for number, wire in enumerate(wires):
            assert wire.query("SHOW work_mem") == [[f"{number + 1}MB"]]
            found = wire.ask(w.bind([], "s") + w.execute() + w.sync())
            assert [m.row() for m in found if m.type == "D"] == [[str(number).encode()]]
    assert without.sql("SELECT count(*) FROM pg_baton_sessions WHERE application_name LIKE 'app%'") == [(10,)]
    assert without.sql("SELECT count(*) <= 2 FROM pg_baton_backends") == [(True,)]
    for wire in wires:
        wire.finish()


def test_cancel_request_reaches_its_session_without_session_pids(without):
    with open_wire(without) as session, open_wire(without) as other:
        for _ in range(2):
            other.query("SELECT 1")
            session.send(query("SELECT pg_sleep(60)"))
            running = "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'"
            wait_until(lambda: without.sql(running) == [(1,)], what="it runs")
            session.cancel_request()
            assert [m.fields()["C"] for m in session.until_ready(20) if m.type == "E"] == ["57014"]


def test_without_them_a_session_knows_its_own_notifications(without):
    """By the number that its client was told; others' name processes."""
    with open_wire(without) as listener, open_wire(without) as other:
        listener.query("LISTEN news")
        other.query("NOTIFY news, 'theirs'")
        found = [m for m in listener.ask(query("NOTIFY news, 'mine'")) if m.type == "A"]
        while len(found) < 2:
            found += [m for m in listener.read_until("A", 20) if m.type == "A"]
        senders = [int.from_bytes(m.body[:4], "big") for m in found]
        assert senders[1] == listener.backend_pid
        assert senders[0] <= PID_MAX_LIMIT
