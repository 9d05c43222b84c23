"""Events that concern a session between two of its transactions do not affect another session."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from harness.health import assert_healthy, stop, wait_until
from harness.processes import ITS_PROCESS
from harness.wire import Closed, Wire, bind, copy_data, copy_done, copy_fail, execute, parse, query, startup, sync

# tcp_states.h
CLOSE_WAIT = 8

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster(make_cluster):
    """A cluster with one backend: the next session gets the same backend."""
    one = make_cluster(parameters={"pg_baton.max_backends": 1})
    one.sql("CREATE EXTENSION pg_baton")
    return one


def login(cluster, **options) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, **options)


def login_unix(cluster, **options) -> Wire:
    return Wire.login(str(cluster.home), cluster.pool_port, **options)


def knock(cluster, host: str, options: dict[str, str]) -> Wire:
    """A client that is let in and has not been greeted yet."""
    wire = Wire.open(host, cluster.pool_port)
    wire.send(startup({"user": "nobody_yet", "database": "postgres", **options}))
    assert wire.read().type == "R"
    return wire


@pytest.mark.parametrize("options", [{}, {"work_mem": "nonsense"}], ids=["greeted", "refused"])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_client_that_leaves_before_its_greeting_takes_no_other(cluster, how, options):
    """No backend has been started yet: the first is still to come when the client leaves."""
    cluster.sql("CREATE ROLE nobody_yet LOGIN")
    gone = knock(cluster, str(cluster.home) if how == "close" else "127.0.0.1", options)
    with knock(cluster, "127.0.0.1", {}) as next_one:
        getattr(gone, how)()
        next_one.until_ready(20)
        assert next_one.query("SELECT 1") == [["1"]]
    assert_healthy(cluster)


def test_listener_leaving_as_notified_costs_no_session_an_answer(cluster):
    cluster.sql("CREATE TABLE done (a int)")
    with login(cluster) as other:
        other.query("SELECT 1")
        listener = login_unix(cluster)
        listener.query("LISTEN news")
        ((pid,),) = listener.query(ITS_PROCESS)
        stop(int(pid))
        try:
            cluster.sql("NOTIFY news, 'to nobody'")
            listener.close()
        finally:
            os.kill(int(pid), signal.SIGCONT)
        wait_until(
            lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(1,)],
            what="the listener's session has ended",
        )
        assert other.query("INSERT INTO done VALUES (1) RETURNING a") == [["1"]]
    assert cluster.sql("SELECT a FROM done") == [(1,)]
    assert_healthy(cluster)


def test_refused_session_that_has_sent_queries_reads_the_reason(cluster):
    """A TCP connection that is closed with something unread is reset."""
    login(cluster).finish()
    with Wire.open("127.0.0.1", cluster.pool_port) as wire:
        options = {"user": "postgres", "database": "postgres", "work_mem": "nonsense"}
        wire.send(startup(options), query("SELECT 1"), query("SELECT 2"))
        assert wire.read_until("E")[-1].fields()["C"] == "22023"
        with pytest.raises(Closed, match="end of file"):
            wire.read()
        wait_until(lambda: cluster.sql("SELECT connections FROM pg_baton_dispatchers") == [(0,)], what="it is closed")
        assert wire.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == CLOSE_WAIT, "it was reset"
    assert_healthy(cluster)


def times_woken(pid: int) -> int:
    """How often a process has waited for something."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("voluntary_ctxt_switches:")[1].split()[0])


def test_notification_during_slowly_read_answer_is_told_at_once(cluster):
    """The end of a long answer does not fit into the socket, and the backend
    is already idle and waits for room."""
    waits = "SELECT state FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND backend_type = 'client backend'"
    with login_unix(cluster) as listener:
        listener.query("LISTEN news")
        for rows in range(20, 2000, 6):
            sql = f"SELECT repeat('x', 1000) FROM generate_series(1, {rows})"
            # The session is idle after this query, and not because the backend has yet to read it.
            written = (
                "SELECT 1 FROM pg_baton_sessions s JOIN pg_stat_activity a USING (pid)"
                f" WHERE s.state = 'idle' AND query = $${sql}$$"
            )
            listener.send(query(sql))
            wait_until(lambda: cluster.sql(waits) or cluster.sql(written), what="the answer is written or waits")
            if cluster.sql(waits) == [("idle",)]:
                break
            listener.until_ready()
        else:
            pytest.fail("no answer whose end alone waits")
        ((pid,),) = cluster.sql("SELECT pid FROM pg_baton_backends WHERE session_id IS NOT NULL")
        before = times_woken(pid)
        cluster.sql("NOTIFY news, 'hello'")
        wait_until(lambda: times_woken(pid) > before, what="the backend has been woken, and waits on")
        listener.until_ready()
        # the timer that flushes statistics would wake the backend after ten seconds
        assert listener.read(5).type == "A"
    assert_healthy(cluster)


def test_what_was_notified_before_unlisten_is_told(make_cluster):
    """The promise holds also if UNLISTEN arrives before the notification has woken the
    listener. That happens by chance, hence the many turns."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 3})
    with login(cluster) as listener, login(cluster) as other:
        for turn in range(300):
            listener.query(f"LISTEN c{turn}")
            other.query(f"NOTIFY c{turn}")
            answer = listener.ask(query(f"UNLISTEN c{turn}"))
            assert "A" in [m.type for m in answer], turn


def test_checks_of_the_connection_end_with_the_command(make_cluster):
    """PostgreSQL's timer for these checks runs on after a command. It must not look
    for a client while the backend waits for none."""
    one = make_cluster(
        parameters={"pg_baton.max_backends": 2, "pg_baton.min_backends": 1, "client_connection_check_interval": "1ms"}
    )
    one.sql("CREATE EXTENSION pg_baton")
    # a backend that starts has no pid yet
    pids = "SELECT pid FROM pg_baton_backends WHERE pid IS NOT NULL ORDER BY pid"
    sessions = [login(one) for _ in range(4)]
    for session in sessions:
        session.query("SELECT 1")
    before = one.sql(pids)
    for turn in range(500):
        for number, session in enumerate(sessions):
            session.send(query(f"SELECT {number}, {turn}"))
        for number, session in enumerate(sessions):
            assert [m.row() for m in session.until_ready() if m.type == "D"] == [[b"%d" % number, b"%d" % turn]]
    assert set(before) <= set(one.sql(pids))
    for session in sessions:
        session.finish()
    assert_healthy(one)


@pytest.mark.parametrize("begin", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_what_is_left_of_a_failed_copy_holds_no_backend(cluster, extended, begin):
    """The client notices the failure late: its data arrive with and after the answer."""
    cluster.sql("CREATE TABLE IF NOT EXISTS target (a int)")
    command = "COPY target FROM STDIN"
    bad = copy_data(b"bad\n")
    with login(cluster) as copying, login(cluster) as other:
        for _ in range(2):
            assert copying.query("SELECT 1") == other.query("SELECT 1") == [["1"]]
        if begin:
            copying.query("BEGIN")
        copying.send(parse(command) + bind() + execute() + sync() if extended else query(command))
        copying.read_until("G")
        copying.send(bad * 20, copy_done(), sync() if extended else b"")
        assert [m.fields()["C"] for m in copying.until_ready() if m.type == "E"] == ["22P02"]
        if begin:
            # data that arrive between two commands of a transaction
            copying.send(bad * 20000, bad[:7])
            copying.send(bad[7:], copy_fail("too late"))
            copying.query("ROLLBACK")
        assert other.query("SELECT 2") == [["2"]]
        # data for a session that no backend holds
        copying.send(bad * 20000, copy_done())
        assert other.query("SELECT 3") == [["3"]]
        # and for a session that a backend holds
        assert copying.query("SELECT 4") == [["4"]]
        copying.send(bad * 3, copy_fail("too late"))
        assert other.query("SELECT 5") == [["5"]]
        copying.send(bad * 3, bad[:7])
        copying.send(bad[7:], query("SELECT 6"))
        assert [m.row() for m in copying.until_ready() if m.type == "D"] == [[b"6"]]
        # an unnamed statement that has to be made again comes behind the data
        copying.ask(parse("SELECT 7") + sync())
        assert other.query("SELECT 8") == [["8"]]
        copying.send(bad * 3 + bind() + execute() + sync())
        assert [m.row() for m in copying.until_ready() if m.type == "D"] == [[b"7"]]
        copying.send(bad * 3 + bad[:7])
        copying.close()
        assert other.query("SELECT 9") == [["9"]]
    assert_healthy(cluster)
    assert cluster.sql("SELECT count(*) FROM target") == [(0,)]
