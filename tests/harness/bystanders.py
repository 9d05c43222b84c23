"""Well-behaved clients beside an attack, whose progress is counted.

A bystander is one client in a thread of its own: it logs in, or keeps its
session, and runs small transactions one after another. Its completed rounds
and its failures are counted; no time is asserted on but the one after which a
bystander counts as stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .cluster import SUPERUSER, Cluster
from .wire import Wire

# After so long without its rounds a bystander is stopped, however busy the machine is.
STOPPED_AFTER_S = 20.0
PAUSE_S = 0.02


class Bystander:
    """One client: `rounds` that it has completed, and what it was refused with."""

    def __init__(self, name: str, one_round: Callable[[], None], ended: threading.Event) -> None:
        self.name = name
        self.rounds = 0
        self.failures: list[str] = []
        self._one_round = one_round
        self._ended = ended
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(STOPPED_AFTER_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._one_round()
                self.rounds += 1
            except Exception as failure:  # whatever stops a client is what the test asks for
                if not self._ended.is_set():
                    self.failures.append(f"{type(failure).__name__}: {failure}")
            self._ended.wait(PAUSE_S)


class Bystanders:
    """The clients of a role and a superuser beside whatever `with` encloses.

    They are: a session of the role's at work (`worker`), the role's logins by the
    pool's port and by the server's own (`pool login`, `server login`), and the
    superuser's by both (`superuser by pool`, `superuser by server`).
    """

    def __init__(self, cluster: Cluster, role: str = "other", database: str = "postgres") -> None:
        self._ended = threading.Event()
        self._worker: Wire | None = None

        def log_in(port: int, user: str) -> Wire:
            host = cluster._host(port)
            return Wire.login(host, port, user=user, database=database, timeout_s=STOPPED_AFTER_S)

        def work() -> None:
            if self._worker is None:
                self._worker = log_in(cluster.pool_port, role)
            try:
                for text in ("BEGIN", "SELECT 1", "COMMIT"):
                    self._worker.query(text)
            except BaseException:
                self._worker.close()
                self._worker = None
                raise

        def come_and_go(port: int, user: str) -> Callable[[], None]:
            def one_round() -> None:
                with log_in(port, user) as wire:
                    found = wire.query("SELECT current_user")
                    assert found == [[user]], f"{found} for {user}"
                    wire.leave()

            return one_round

        self.all = [
            Bystander("worker", work, self._ended),
            Bystander("pool login", come_and_go(cluster.pool_port, role), self._ended),
            Bystander("server login", come_and_go(cluster.port, role), self._ended),
            Bystander("superuser by pool", come_and_go(cluster.pool_port, SUPERUSER), self._ended),
            Bystander("superuser by server", come_and_go(cluster.port, SUPERUSER), self._ended),
        ]

    def __enter__(self) -> Bystanders:
        for bystander in self.all:
            bystander.start()
        self.all_go_on(2)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for bystander in self.all:
            bystander.join()
        if self._worker is not None:
            self._worker.close()

    def all_go_on(self, rounds: int = 10) -> None:
        """Each completes so many further rounds, and none has been refused at any time."""
        before = {bystander.name: bystander.rounds for bystander in self.all}
        deadline = time.monotonic() + STOPPED_AFTER_S
        while True:
            failed = {bystander.name: bystander.failures for bystander in self.all if bystander.failures}
            assert not failed, f"bystanders failed: {failed}"
            left = {
                bystander.name: bystander.rounds - before[bystander.name]
                for bystander in self.all
                if bystander.rounds - before[bystander.name] < rounds
            }
            if not left:
                return
            assert time.monotonic() < deadline, f"rounds of {rounds} within {STOPPED_AFTER_S} s: {left}"
            time.sleep(0.02)
