"""Checks that a cluster is well after a test has disturbed it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from .cluster import HOST, SUPERUSER, Cluster
from .processes import cpu_seconds
from .wire import LoginFailed, QueryFailed, Wire

SETTLE_TIMEOUT_S = 60.0
SPIN_WINDOW_S = 1.0
SPIN_LIMIT_S = 0.5

# What the server logs of a process of its own that a test kills.
CRASH = (r"was terminated by signal 9", r"terminating any other active server processes")
# What the launcher logs of a dispatcher that a test kills.
DISPATCHER_KILLED = r"dispatcher \(PID \d+\) has ended: child process was terminated by signal 9"


def wait_until(check, timeout_s: float = SETTLE_TIMEOUT_S, what: str = "") -> None:
    """Waits until check() is true; a failure names the awaited state (`what`)."""
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.05)


def wait_until_replaced(cluster: Cluster, old: int) -> None:
    """Waits until there is another dispatcher than this one, which may not serve yet."""
    wait_until(lambda: cluster.dispatcher_pids() not in ([], [old]), what="a new dispatcher")


def wait_for_next_dispatcher(cluster: Cluster, old: int) -> int:
    """Waits until another dispatcher than this one serves; returns its process ID."""
    wait_until_replaced(cluster, old)
    cluster.wait_pool_ready()
    (new,) = cluster.dispatcher_pids()
    return new


def hold_for(cluster: Cluster, time: str) -> None:
    """From here on sessions are held for that long. Before a cluster's end: "0", or the keeper waits for another server."""
    with cluster.new_log() as new_log:
        cluster.set_parameters({"pg_baton.hold_sessions": time})
        cluster.reload()
        wait_until(lambda: "parameters reloaded" in new_log(), what="the dispatcher knows")


def stop(pid: int) -> None:
    """Sends SIGSTOP and waits until all threads of the process stand still, which takes a moment."""

    def states() -> set[str]:
        found = set()
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
                found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        return found

    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: states() == {"T"}, what="it stands still")
    except BaseException:
        os.kill(pid, signal.SIGCONT)
        raise


@contextlib.contextmanager
def launcher_stopped(cluster: Cluster):
    """The launcher stands still meanwhile: it answers no questions of the dispatcher."""
    ((pid,),) = cluster.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def start_two_backends(login, cluster: Cluster) -> None:
    """Runs two transactions at a time: from then on both backends of a pool exist."""
    with login(cluster) as one, login(cluster) as other:
        for text in ("BEGIN", "COMMIT"):
            one.query(text)
            other.query(text)


def assert_serves(cluster: Cluster, sessions: int = 6, turns: int = 3, source: str = "") -> None:
    """New sessions log in (from the address `source`), and each gets its own answers."""
    wires = [Wire.login(HOST, cluster.pool_port, source=source) for _ in range(sessions)]
    try:
        for number, wire in enumerate(wires):
            wire.query(f"SET my.number = '{number}'")
        for turn in range(turns):
            for number, wire in enumerate(wires):
                assert wire.query(f"SELECT current_setting('my.number'), {turn}") == [[str(number), str(turn)]]
    finally:
        for wire in wires:
            wire.finish()


def assert_no_backend_lost(cluster: Cluster) -> None:
    """With no session left, no backend is busy, in a transaction, or holds a lock."""
    if not cluster.pooled:
        return

    def quiet() -> bool:
        (held,) = cluster.sql(
            "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            "   AND state IN ('active', 'idle in transaction', 'idle in transaction (aborted)')"
            "   AND pid <> pg_backend_pid()),"
            " (SELECT count(*) FROM pg_locks WHERE pid <> pg_backend_pid() AND pid IN"
            "   (SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
            "    UNION ALL SELECT pid FROM pg_baton_backends)),"
            " (SELECT count(*) FROM pg_baton_sessions),"
            " (SELECT count(*) FROM pg_baton_backends WHERE state IN ('busy', 'assigned') OR session_id IS NOT NULL)"
        )
        quiet.seen = held
        return held == (0, 0, 0, 0)

    quiet.seen = ()
    try:
        wait_until(quiet)
    except AssertionError:
        activity = cluster.sql(
            "SELECT pid, state, wait_event, left(query, 60) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        )
        kept = cluster.sql("SELECT * FROM pg_baton_sessions") + cluster.sql("SELECT * FROM pg_baton_backends")
        raise AssertionError(f"(active, locks, sessions, held backends) = {quiet.seen}\n{activity}\n{kept}") from None


def assert_nothing_spins(cluster: Cluster) -> None:
    """No process of a cluster at rest uses the processor.

    A process that spins goes on with it. A process that worked for a moment, on a machine
    that charges it for the time of others, is at rest at the next measurement."""
    suspects = None
    for _ in range(3):
        before = {process.pid: cpu_seconds(process.pid) for process in cluster.processes()}
        time.sleep(SPIN_WINDOW_S)
        used = {process: cpu_seconds(process.pid) - before.get(process.pid, 0.0) for process in cluster.processes()}
        spin = {
            process.pid: f"{process} used {seconds} s of processor at rest"
            for process, seconds in used.items()
            if process.pid in before and seconds >= SPIN_LIMIT_S and (suspects is None or process.pid in suspects)
        }
        if not spin:
            return
        suspects = spin
    raise AssertionError("\n".join(suspects.values()))


def assert_healthy(cluster: Cluster) -> None:
    assert_serves(cluster)
    assert_no_backend_lost(cluster)
    assert_nothing_spins(cluster)


class Load:
    """Clients that send queries without end, in threads; each checks its own answers.

    A client that loses its connection counts that and connects again; a wrong
    answer is a failure for good.
    """

    def __init__(self, cluster: Cluster, clients: int, think_s: float = 0.0, by_tls: int = 0) -> None:
        """by_tls: the number of the clients that connect by TLS."""
        import threading

        self.cluster = cluster
        self.think_s = think_s
        self.by_tls = by_tls
        self.stopping = threading.Event()
        self.wrong: list[str] = []
        self.lost: list[str] = []
        self.answers = 0
        self.answers_of = [0] * clients
        self.longest_s = 0.0
        self.threads = [threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(clients)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(90)
            assert not thread.is_alive(), "a client of the load hangs"

    def _client(self, number: int) -> None:
        while not self.stopping.is_set():
            try:
                secure = number < self.by_tls
                with Wire.login(HOST, self.cluster.pool_port, user=SUPERUSER, timeout_s=30, secure=secure) as wire:
                    wire.query(f"SET my.number = '{number}'")
                    turn = 0
                    while not self.stopping.is_set():
                        turn += 1
                        if turn % 5 == 0:
                            wire.query("BEGIN")
                        began = time.monotonic()
                        got = wire.query(f"SELECT current_setting('my.number'), {turn}")
                        self.longest_s = max(self.longest_s, time.monotonic() - began)
                        if got != [[str(number), str(turn)]]:
                            self.wrong.append(f"{number}/{turn} got {got}")
                        if turn % 5 == 0:
                            wire.query("COMMIT")
                        self.answers += 1
                        self.answers_of[number] += 1
                        if self.think_s:
                            time.sleep(self.think_s)
            except QueryFailed as failure:
                self.lost.append(f"{failure.sqlstate}")
                time.sleep(0.05)
            except TimeoutError as failure:
                self.wrong.append(f"{number} hangs: {failure}")
                time.sleep(0.05)
            except (LoginFailed, OSError, Exception) as failure:
                self.lost.append(type(failure).__name__)
                time.sleep(0.05)

    def wait_for_answers(self, count: int = 200, timeout_s: float = 60) -> None:
        """Waits until `count` more answers have come, and at least one to each client."""
        wanted = self.answers + count
        each = [answers + 1 for answers in self.answers_of]

        def have_come() -> bool:
            return self.answers >= wanted and all(map(int.__ge__, self.answers_of, each))

        wait_until(have_come, timeout_s, f"{count} more answers of the load")
