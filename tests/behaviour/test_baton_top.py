"""`baton top` shows sessions and numbers, acts on keys, and leaves the terminal as it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import psycopg
import pytest
from harness.account import server_program
from harness.health import wait_for_next_dispatcher, wait_until
from harness.wire import query

pytestmark = [pytest.mark.pool_only, pytest.mark.one_major]

TIMEOUT_S = 30.0
ENTER, ESC, DOWN = "\r", "\x1b", "\x1b[B"


@pytest.fixture
def cluster(make_cluster):
    one = make_cluster(parameters={"pg_baton.max_backends": 2})
    one.sql("CREATE EXTENSION pg_baton")
    one.sql("CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    return one


def command(cluster, *options: str, conninfo: str | None = None, interval: str = "0.3") -> list[str]:
    program = str(Path(cluster.run.stage.program).with_name("baton"))
    return [
        program,
        "top",
        "--psql",
        server_program("psql"),
        "--interval",
        interval,
        *options,
        conninfo or cluster.direct(),
    ]


def once(cluster, *options: str, **more) -> str:
    environment = os.environ | {"COLUMNS": "150"}
    ran = subprocess.run(
        command(cluster, "--once", *options, **more), env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    return ran.stdout


def table(frame: str) -> list[str]:
    lines = frame.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("PID "))
    return lines[start + 1 : -1]


SEQUENCE = re.compile(rb"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Screen:
    """`baton top` in a terminal, which knows as much of xterm's sequences as that uses."""

    def __init__(self, arguments: list[str]) -> None:
        self.terminal, self.end = pty.openpty()
        self.before = termios.tcgetattr(self.end)
        self.drawn = b""
        self.cells: dict[tuple[int, int], str] = {}
        self.at = (1, 1)
        self.is_left = False
        self.resize(24, 80)
        self.process = subprocess.Popen(
            arguments,
            stdin=self.end,
            stdout=self.end,
            stderr=self.end,
            env=os.environ | {"TERM": "xterm"},
            preexec_fn=self._take_terminal,
        )

    def _take_terminal(self) -> None:
        os.setsid()
        fcntl.ioctl(self.end, termios.TIOCSCTTY, 0)

    def resize(self, rows: int, columns: int) -> None:
        self.rows = rows
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def text(self) -> str:
        """What the terminal shows now."""
        lines = [{} for _ in range(self.rows + 1)]
        for (row, column), cell in self.cells.items():
            if row <= self.rows:
                lines[row][column] = cell
        return "\n".join(
            "".join(line.get(column, " ") for column in range(1, max(line, default=0) + 1)).rstrip()
            for line in lines[1:]
        )

    def _read(self) -> None:
        ready, _, _ = select.select([self.terminal], [], [], 0.1)
        if ready:
            with contextlib.suppress(OSError):
                self.drawn += os.read(self.terminal, 65536)
        while self.drawn:
            if found := SEQUENCE.match(self.drawn):
                self.drawn = self.drawn[found.end() :]
                self._obey(found[1].decode(), found[2].decode())
            elif self.drawn[:1] == b"\x1b":
                return  # the rest of a sequence is to come
            else:
                end = self.drawn.find(b"\x1b")
                text, self.drawn = (self.drawn, b"") if end < 0 else (self.drawn[:end], self.drawn[end:])
                for character in text.decode(errors="replace"):
                    self.cells[self.at] = character
                    self.at = (self.at[0], self.at[1] + 1)

    def _obey(self, numbers: str, what: str) -> None:
        if what == "H":
            row, column = (int(number) for number in numbers.split(";"))
            self.at = (row, column)
        elif what == "J":
            self.cells.clear()
        elif (numbers, what) == ("?1049", "l"):
            self.is_left = True
        else:
            assert what == "m" or numbers in ("?1049", "?25"), f"unknown sequence {numbers}{what}"

    def expect(self, pattern: str) -> str:
        """Waits until the terminal shows it."""
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.text(), re.MULTILINE):
            assert time.monotonic() < deadline, f"{pattern} is not in\n{self.text()}"
            assert self.process.poll() is None, self.text()
            self._read()
        return self.text()

    def ends(self) -> int:
        """It has left its screen, and the terminal is as it was."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            self._read()
        self._read()
        assert self.is_left
        assert termios.tcgetattr(self.end) == self.before
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.end)


@pytest.fixture
def screen(cluster):
    with contextlib.ExitStack() as stack:

        def make(*options: str, **more: str) -> Screen:
            one = Screen(command(cluster, *options, **more))
            stack.callback(one.close)
            return one

        yield make


def pids(wires) -> list[int]:
    return [int(wire.query("SELECT pg_backend_pid()")[0][0]) for wire in wires]


def test_one_frame_has_numbers_and_the_urgent_sessions_first(cluster, crowd):
    wires = crowd(cluster, 4, user="app")
    (waits, idle, first, dedicated) = pids(wires)
    wires[3].query("LISTEN it")
    wires[2].query("BEGIN")
    with psycopg.connect(cluster.pool(user="other", application_name="shown")) as other:
        other.execute("SELECT 2")
        wires[0].send(query("SELECT 1"))
        wait_until(lambda: cluster.sql("SELECT sum(waiting) FROM pg_baton_pools") == [(1,)], what="it waits")
        frame = once(cluster, conninfo=cluster.direct(user="watcher"))
        rows = table(frame)
        assert [int(row.split()[0]) for row in rows] == [waits, first, other.info.backend_pid, dedicated, idle]
        assert re.search(r"waiting .* backend ", rows[0])
        assert re.search(r"postgres +app +idle in tx .* client +BEGIN$", rows[1])
        assert re.search(r"postgres +other +shown +idle in tx .* SELECT 2$", rows[2])
        assert re.search(r"idle .* listen +LISTEN it$", rows[3])
        assert "sessions 5: 0 active, 2 in transaction, 1 dedicated, 0 native" in frame
        assert re.search(r"^waiting  1, longest ", frame, re.MULTILINE)
        assert re.search(r"^backends 3: 2 busy, 0 idle, 1 dedicated, 0 starting", frame, re.MULTILINE)
        assert frame.splitlines()[-1] == "5 sessions, by urgency"
        other.rollback()
    wires[2].query("COMMIT")
    wires[0].until_ready()


def test_a_frame_says_who_holds_a_lock_and_who_is_paused(cluster, crowd):
    cluster.sql("CREATE TABLE wanted (); GRANT ALL ON wanted TO app")
    wires = crowd(cluster, 2, user="app")
    held, blocked = pids(wires)
    (paused,) = crowd(cluster, 1, user="other")
    pids([paused])
    cluster.sql("SELECT pg_baton_pause(role => 'other')")
    paused.send(query("SELECT 1"))
    wires[0].query("BEGIN")
    wires[0].query("LOCK wanted")
    wires[1].send(query("SELECT FROM wanted"))

    def told() -> bool:
        rows = {row.split()[0]: row for row in table(once(cluster))}
        lock = re.search(rf" active .* {held} +SELECT FROM wanted", rows[str(blocked)])
        return lock and " end of pause " in " ".join(rows.values())

    wait_until(told, what="the lock's holder and the pause are told")
    wires[0].query("COMMIT")
    wires[1].until_ready()
    cluster.sql("SELECT pg_baton_resume()")
    paused.until_ready()


def test_rates_are_those_of_the_interval(cluster, crowd):
    """A load of known size: its transactions are the interval's, or the previous moment's."""
    (app,) = crowd(cluster, 1, user="app")
    frame = ""

    def busy() -> bool:
        nonlocal frame
        process = subprocess.Popen(command(cluster, "--once", interval="1"), stdout=subprocess.PIPE, text=True)
        while process.poll() is None:
            app.query("SELECT 1")
        frame = process.stdout.read()
        found = re.search(r"^load +([0-9,.]+)/s transactions, ([0-9,.]+)/s requests", frame, re.MULTILINE)
        return found and min(float(number.replace(",", "")) for number in found.groups()) > 10

    wait_until(busy, what=frame)


def test_filters_orders_and_the_limit_choose_the_sessions(cluster, crowd):
    cluster.sql("CREATE DATABASE shop")
    app = pids(crowd(cluster, 3, user="app"))
    (other,) = pids(crowd(cluster, 1, user="other", database="shop"))
    wires = crowd(cluster, 1, user="other")
    (dedicated,) = pids(wires)
    wires[0].query("LISTEN it")

    def shown(*options: str) -> list[int]:
        return [int(row.split()[0]) for row in table(once(cluster, *options))]

    assert shown("--sort", "pid") == sorted([*app, other, dedicated])
    assert shown("--sort", "pid", "--reverse") == sorted([*app, other, dedicated], reverse=True)
    assert shown("--role", "app", "--sort", "pid") == sorted(app)
    assert shown("--database", "shop") == [other]
    assert shown("--cause", "lis") == [dedicated]
    assert shown("--role", "o'\\ther") == []
    frame = once(cluster, "--rows", "2", "--sort", "pid")
    assert len(table(frame)) == 2 and frame.splitlines()[-1] == "2 of 5 sessions, by pid"


def test_keys_filter_sort_and_show_a_session_s_life(cluster, crowd, screen):
    wires = crowd(cluster, 2, user="app")
    (first, second) = pids(wires)
    wires[1].query("LISTEN it")
    top = screen()
    top.expect("^2 sessions, by urgency")
    top.press("?")
    top.expect("remove these filters")
    top.press("q")
    top.press("clisten")
    top.expect("^part of the cause: listen_")
    top.press(ENTER)
    frame = top.expect("^1 session with cause = listen, by urgency")
    assert str(second) in frame and str(first) not in frame
    top.press(ENTER)
    top.expect("It is dedicated because of listen")
    wires[1].query("UNLISTEN it")
    top.expect("Its next transaction can run on any backend")
    top.press("q")
    top.press("x")
    top.expect("^2 sessions, by urgency")
    top.press("s")
    top.expect("^2 sessions, by since")
    top.resize(30, 140)
    top.expect("APPLICATION .* QUERY")
    top.press("q")
    assert top.ends() == 0


def test_signals_are_sent_after_a_confirmation(cluster, crowd, screen):
    (one,) = wires = crowd(cluster, 1, user="app")
    (pid,) = pids(wires)
    top = screen()
    top.expect("^1 session, by urgency")
    one.send(query("SELECT pg_sleep(600)"))
    top.expect("active .* SELECT pg_sl")
    top.press("C")
    top.expect(rf"^Cancel the query of session {pid} \(app in postgres\)")
    top.press("n")
    top.expect("nothing was sent")
    assert one.silent(0.5)
    top.press("Cy")
    assert any(message.type == "E" and b"57014" in message.body for message in one.until_ready())
    top.expect(rf"pg_cancel_backend\({pid}\) was sent")
    top.press("Ty")
    top.expect(rf"pg_terminate_backend\({pid}\) was sent")
    wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(0,)], what="the session has ended")
    top.press(" ")
    top.expect("^0 sessions")
    top.press("q")
    assert top.ends() == 0


def test_a_watcher_is_refused_what_it_may_not_do(cluster, crowd, screen):
    pids(crowd(cluster, 1))
    top = screen(conninfo=cluster.direct(user="watcher"))
    top.expect("^1 session, by urgency")
    top.press("Ty")
    top.expect("pg_terminate_backend.*(must be a|permission denied)")
    top.press(" ")
    top.expect("^1 session, by urgency")
    assert cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(1,)]


def test_restarts_of_server_and_dispatcher_are_survived(cluster, crowd, screen):
    crowd(cluster, 1, user="app")
    top = screen()
    top.expect("^1 session, by urgency")
    ((old,),) = cluster.sql("SELECT pid FROM pg_baton_dispatchers")
    cluster.sql("SELECT pg_baton_restart_dispatcher()")
    new = wait_for_next_dispatcher(cluster, old)
    top.expect(f"^another dispatcher has started, process {new}")
    top.press(" ")
    cluster.stop()
    top.expect("^no answer, asking again: ")
    cluster.start()
    top.expect("^the server answers again, ")
    top.press(" ")
    crowd(cluster, 1, user="app")
    top.expect("^1 session, by urgency")
    top.press("q")
    assert top.ends() == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, "\x03"])
def test_the_terminal_is_restored_at_each_end(cluster, screen, how):
    top = screen()
    top.expect("^0 sessions, by urgency")
    if isinstance(how, str):
        top.press(how)
    else:
        top.process.send_signal(how)
    assert top.ends() == 0


def test_it_ends_with_a_terminal_that_sends_no_signal(cluster):
    """The terminal is not the process's own, so no SIGHUP comes at its end."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        command(cluster), stdin=end, stdout=end, stderr=subprocess.DEVNULL, start_new_session=True
    )
    os.close(end)
    try:
        assert select.select([terminal], [], [], TIMEOUT_S)[0]
        os.read(terminal, 65536)
        os.close(terminal)
        assert process.wait(TIMEOUT_S) == 2
    finally:
        process.kill()
        process.wait()


def test_a_server_that_stands_still_does_not_stop_the_keys(cluster, screen):
    top = screen()
    top.expect("^0 sessions, by urgency")
    ((dispatcher,),) = cluster.sql("SELECT pid FROM pg_baton_dispatchers")
    os.kill(dispatcher, signal.SIGSTOP)
    try:
        top.press("?")
        top.expect("remove these filters")
        top.press("qq")
        assert top.ends() == 0
    finally:
        os.kill(dispatcher, signal.SIGCONT)


def test_between_two_questions_it_has_no_backend_of_the_pool(cluster, screen):
    """Through the pool's port it is a session like others, which gives its backend back."""
    top = screen(conninfo=cluster.pool(), interval="3600")
    top.expect("^0 sessions, by urgency")
    found = "SELECT state, mode FROM pg_baton_sessions WHERE application_name = 'baton'"
    wait_until(lambda: cluster.sql(found) == [("idle", "shared")], what="it is idle")
    top.press("q")
    assert top.ends() == 0


def test_failures_at_the_start_have_a_message_and_a_status(cluster):
    def failed(*options: str, **more) -> str:
        ran = subprocess.run(
            command(cluster, *options, **more), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
        assert ran.returncode == 2 and not ran.stdout
        return ran.stderr

    assert "--once prints one frame" in failed()
    assert "permission denied" in failed("--once", conninfo=cluster.direct(user="app"))
    assert "baton: " in failed("--once", conninfo="host=/nonexistent")
    assert "0.1 to 3600" in failed("--once", interval="0")
    cluster.sql("CREATE DATABASE elsewhere")
    assert "CREATE EXTENSION pg_baton" in failed("--once", conninfo=cluster.direct(dbname="elsewhere"))
