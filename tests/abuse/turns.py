"""What makes the dispatcher's loop busy: everything that one client, or many at once, can send or do.

test_long_turns.py runs each at a small scale and counts the work of one turn. By hand, at full scale,
it measures the longest turn of each in processor time, and says which is longer than 5 ms:

    python tests/abuse/turns.py [--scale 0.1] [--set NAME=VALUE] [NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.cluster import HOST, Cluster, Run  # noqa: E402
from harness.health import launcher_stopped, stop, wait_until  # noqa: E402
from harness.wire import Wire, query, startup  # noqa: E402

BOUND_US = 5000
LOG = "info,baton_dispatcher::shell::events=debug"
LIMIT_S = 120.0

HBA = ["local all +named peer map=anybody", "host all hashed 127.0.0.1/32 scram-sha-256"]
IDENT = ["anybody /^.*$ named"]


def prepares(count: int) -> str:
    """In the reverse of their order, which a sorted list likes least."""
    return (
        f"DO $$ BEGIN FOR i IN REVERSE {count}..1 LOOP "
        "EXECUTE format('PREPARE s%s AS SELECT 1', lpad(i::text, 7, '0')); END LOOP; END $$"
    )


def parameters(count: int) -> str:
    return (
        f"DO $$ BEGIN FOR i IN REVERSE {count}..1 LOOP "
        "PERFORM set_config(format('low.p%s', lpad(i::text, 7, '0')), 'x', false); END LOOP; END $$"
    )


def low(cluster: Cluster, user: str = "low") -> Wire:
    return Wire.login(HOST, cluster.pool_port, user=user, timeout_s=LIMIT_S)


def knocks(cluster: Cluster, count: int, user: Callable[[int], str], unix: bool = False) -> list[socket.socket]:
    """So many have sent their startup packets, and heard nothing yet."""
    family = socket.AF_UNIX if unix else socket.AF_INET
    address = f"{cluster.home}/.s.PGSQL.{cluster.pool_port}" if unix else (HOST, cluster.pool_port)
    found = []
    for number in range(count):
        one = socket.socket(family, socket.SOCK_STREAM)
        one.settimeout(LIMIT_S)
        one.connect(address)
        one.sendall(startup({"user": user(number), "database": "postgres"}))
        found.append(one)
    return found


def answered(sockets: list[socket.socket]) -> None:
    """All have heard something."""
    for one in sockets:
        one.recv(1)


@contextlib.contextmanager
def crowd(cluster: Cluster, count: int, user: str = "low") -> Iterator[list[socket.socket]]:
    """So many sessions."""
    sockets: list[socket.socket] = []
    for _ in range(0, count, 500):
        some = knocks(cluster, min(500, count - len(sockets)), lambda number: user)
        answered(some)
        sockets += some
    wait_until(lambda: sessions(cluster) >= count, LIMIT_S, "all are in")
    yield sockets
    for one in sockets:
        one.close()


@contextlib.contextmanager
def crowd_of_its_own(cluster: Cluster, count: int) -> Iterator[subprocess.Popen]:
    """So many sessions of another process, which end at once when that is killed."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import socket, time\n"
        "from harness.wire import startup\n"
        "all = []\n"
        f"for n in range({count}):\n"
        f"    one = socket.create_connection(('{HOST}', {cluster.pool_port}))\n"
        "    one.sendall(startup({'user': 'low', 'database': 'postgres'})); one.recv(1)\n"
        "    all.append(one)\n"
        "print('in', flush=True); time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"in\n"
        yield process
    finally:
        process.kill()
        process.wait()


def sessions(cluster: Cluster) -> int:
    ((count,),) = cluster.sql("SELECT sessions FROM pg_baton_dispatchers")
    return count


def stored(cluster: Cluster) -> int:
    ((memory,),) = cluster.sql("SELECT memory_bytes FROM pg_baton_dispatchers")
    return memory


def all_have_left(cluster: Cluster) -> None:
    wait_until(lambda: sessions(cluster) == 0, LIMIT_S, "all sessions have ended")


# -- what one session sends ---------------------------------------------------


def says(*statements: Callable[[int], str] | str) -> Callable[[Cluster, int], None]:
    def attack(cluster: Cluster, count: int) -> None:
        before = stored(cluster)
        with low(cluster) as wire:
            for statement in statements:
                wire.query(statement if isinstance(statement, str) else statement(count), timeout_s=LIMIT_S)
                wire.query("SELECT count(*) FROM pg_baton_sessions", timeout_s=LIMIT_S)
            wire.leave()
        wait_until(lambda: stored(cluster) < before + 1_000_000, LIMIT_S, "all is let go of")

    return attack


def the_same_statement(count: int) -> str:
    return f"DO $$ BEGIN FOR i IN 1..{count} LOOP EXECUTE 'PREPARE s AS SELECT 1'; EXECUTE 'DEALLOCATE s'; END LOOP; END $$"


# -- what many do at once -----------------------------------------------------


def logins(cluster: Cluster, count: int) -> None:
    """All knock before the first is heard."""
    with stopped(cluster):
        knocking = knocks(cluster, min(count, 4000), lambda number: "low")
    answered(knocking)
    for one in knocking:
        one.close()
    all_have_left(cluster)


@contextlib.contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    """The dispatcher stands still: what comes meanwhile is there at once."""
    (pid,) = cluster.dispatcher_pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def answers(cluster: Cluster, count: int) -> None:
    """The launcher answers about as many roles at once."""
    cluster.sql(f"DO $$ BEGIN FOR i IN 1..{count} LOOP EXECUTE 'CREATE ROLE r' || i || ' LOGIN'; END LOOP; END $$")
    with launcher_stopped(cluster):
        knocking = knocks(cluster, count, lambda number: f"r{number + 1}")
        time.sleep(0.5)
        (pid,) = cluster.dispatcher_pids()
    time.sleep(0.3)
    for one in knocking:
        one.close()
    all_have_left(cluster)


def strangers(cluster: Cluster, count: int) -> None:
    """As many unknown users, whom the launcher answers at once, and who are refused."""
    with launcher_stopped(cluster):
        knocking = knocks(cluster, count, lambda number: f"nobody{number}")
        time.sleep(0.5)
    answered(knocking)
    for one in knocking:
        one.close()


def names(cluster: Cluster, count: int) -> None:
    """As many on the Unix socket, whose system users are asked for."""
    with stopped(cluster):
        knocking = knocks(cluster, min(count, 4000), lambda number: "named", unix=True)
    answered(knocking)
    for one in knocking:
        one.close()
    all_have_left(cluster)


def challenges(cluster: Cluster, count: int) -> None:
    knocking = knocks(cluster, count, lambda number: "hashed")
    answered(knocking)
    with stopped(cluster):
        for one in knocking:
            one.close()
    time.sleep(0.5)


def silent(cluster: Cluster, count: int) -> None:
    """None says a word, and the time of all is up in one moment."""
    knocking = []
    with stopped(cluster):
        for _ in range(min(count, 4000)):
            knocking.append(socket.create_connection((HOST, cluster.pool_port), timeout=LIMIT_S))
            knocking[-1].sendall(b"\0")
        time.sleep(0.1)
    time.sleep(1)
    with stopped(cluster):
        time.sleep(2.5)
    for one in knocking:
        with contextlib.suppress(ConnectionError):
            one.recv(1)
        one.close()


def without_launcher(cluster: Cluster, count: int) -> None:
    """The launcher has gone, and the postmaster starts no other while all wait for its answer."""
    ((pid,),) = cluster.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")
    with contextlib.suppress(ProcessLookupError), launcher_stopped(cluster):
        knocking = knocks(cluster, count, lambda number: f"nobody{number}")
        time.sleep(0.3)
        stop(cluster.postmaster_pid())
        try:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)
            answered(knocking)
        finally:
            os.kill(cluster.postmaster_pid(), signal.SIGCONT)
    for one in knocking:
        one.close()
    cluster.wait_pool_ready()


def new_launcher(cluster: Cluster, count: int) -> None:
    """Another launcher is asked what all wait for."""
    ((pid,),) = cluster.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")
    with contextlib.suppress(ProcessLookupError), launcher_stopped(cluster):
        knocking = knocks(cluster, count, lambda number: f"nobody{number}")
        time.sleep(0.3)
        os.kill(pid, signal.SIGTERM)
    answered(knocking)
    for one in knocking:
        one.close()


def hang_ups(cluster: Cluster, count: int) -> None:
    with crowd_of_its_own(cluster, count) as process:
        process.kill()
        process.wait()
        all_have_left(cluster)


def hang_ups_with_state(cluster: Cluster, count: int) -> None:
    wires = []
    for _ in range(count):
        wires.append(low(cluster))
        wires[-1].query(prepares(2000))
    with stopped(cluster):
        for wire in wires:
            wire.close()
    all_have_left(cluster)


def statements_of_many(cluster: Cluster, count: int) -> None:
    """All store what they have prepared at once."""
    wires = [low(cluster) for _ in range(count)]
    for wire in wires:
        wire.send(query(prepares(5000)))
    for wire in wires:
        wire.until_ready(LIMIT_S)
        wire.close()
    all_have_left(cluster)


def reloads(cluster: Cluster, count: int) -> None:
    with crowd(cluster, count):
        for cost in (200, 201):
            cluster.set_parameters({"work_mem": f"{cost}MB", "pg_baton.max_backends": cost // 10})
            with cluster.new_log() as log:
                cluster.reload()
                wait_until(lambda: "parameters reloaded" in log() or cost == 201, LIMIT_S, "it is told")
            time.sleep(1.5)
        cluster.sql("ALTER ROLE low SET work_mem = '3MB'")
        cluster.sql("ALTER SYSTEM SET work_mem = '5MB'")
        cluster.sql("SELECT pg_reload_conf()")
        time.sleep(2)
        cluster.sql("ALTER ROLE low CONNECTION LIMIT 20000")
        cluster.sql("ALTER ROLE low SUPERUSER")
        time.sleep(2)
        cluster.sql("ALTER ROLE low NOSUPERUSER")
        time.sleep(2)


def views(cluster: Cluster, count: int) -> None:
    with crowd(cluster, count):

        def read() -> None:
            for view in ("sessions", "backends", "pools", "dispatchers"):
                cluster.sql(f"SELECT count(*) FROM pg_baton_{view}")

        readers = [threading.Thread(target=read) for _ in range(20)]
        with stopped(cluster):
            for reader in readers:
                reader.start()
            time.sleep(1)
        for reader in readers:
            reader.join()
        cluster.sql("SELECT count(*) FROM pg_stat_activity")


def terminations(cluster: Cluster, count: int) -> None:
    with crowd(cluster, count):
        cluster.sql("SELECT count(pg_terminate_backend(pid)) FROM pg_baton_sessions")
        all_have_left(cluster)


def cancels(cluster: Cluster, count: int) -> None:
    with stopped(cluster):
        all = []
        for number in range(min(count, 4000)):
            one = socket.create_connection((HOST, cluster.pool_port), timeout=LIMIT_S)
            one.sendall(
                (16).to_bytes(4, "big") + (80877102).to_bytes(4, "big") + (number + 2**30).to_bytes(4, "big") + b"keyk"
            )
            all.append(one)
    for one in all:
        with contextlib.suppress(ConnectionError):
            one.recv(1)
        one.close()


def dropped_database(cluster: Cluster, count: int) -> None:
    with crowd(cluster, count):
        with low(cluster) as wire:
            wire.query("SELECT 1")
        cluster.sql("CREATE DATABASE doomed TEMPLATE template0")
        some = []
        for _ in range(count // 2):
            one = socket.create_connection((HOST, cluster.pool_port), timeout=LIMIT_S)
            one.sendall(startup({"user": "low", "database": "doomed"}))
            some.append(one)
        answered(some)
        cluster.sql("DROP DATABASE doomed WITH (FORCE)")
        for one in some:
            one.close()


def questions(cluster: Cluster, count: int) -> None:
    """All of the sessions ask at once."""
    with crowd(cluster, count) as sockets:
        for _ in range(3):
            with stopped(cluster):
                for one in sockets:
                    one.sendall(query("SELECT 1"))
            deadline = time.monotonic() + LIMIT_S
            for one in sockets:
                drain(one, deadline)


def long_waits(cluster: Cluster, count: int) -> None:
    """All of them wait for the one backend until that has taken too long."""
    with low(cluster) as holder, crowd(cluster, count) as sockets:
        holder.query("BEGIN")
        with stopped(cluster):
            for one in sockets:
                one.sendall(query("SELECT 1"))
        for one in sockets:
            wire = Wire(one)
            wire.buffer += b"R"  # that has been read
            assert wire.read_until("E", LIMIT_S)[-1].fields()["C"] == "53300"
        holder.query("COMMIT")


def failed_starts(cluster: Cluster, count: int) -> None:
    """No backend can be started for whom all of them are."""
    cluster.sql("ALTER ROLE low SET session_preload_libraries = 'there_is_none'")
    with stopped(cluster):
        knocking = knocks(cluster, min(count, 4000), lambda number: "low")
    for one in knocking:
        Wire(one).until_closed(LIMIT_S)
        one.close()
    all_have_left(cluster)
    cluster.expect_in_log("there_is_none")


def drain(one: socket.socket, deadline: float) -> None:
    seen = b""
    while not seen.endswith(b"Z\0\0\0\5I") or b"SELECT 1" not in seen:
        seen = seen[-200:] + one.recv(65536)
        assert time.monotonic() < deadline


def pools(cluster: Cluster, count: int) -> None:
    """Sessions of as many kinds, each with a pool of its own."""
    cluster.sql(f"DO $$ BEGIN FOR i IN 1..{count} LOOP EXECUTE 'CREATE ROLE r' || i || ' LOGIN'; END LOOP; END $$")
    knocking = knocks(cluster, count, lambda number: f"r{number + 1}")
    time.sleep(3)
    cluster.sql("SELECT count(*) FROM pg_baton_pools")
    for one in knocking:
        one.close()
    all_have_left(cluster)


def listeners(cluster: Cluster, count: int) -> None:
    with crowd(cluster, count) as sockets:
        for one in sockets:
            one.sendall(query("LISTEN a; UNLISTEN a"))
        for one in sockets:
            one.recv(1)
        time.sleep(0.5)


def bytes_of_messages(cluster: Cluster, count: int) -> None:
    """Sessions that send a long statement each, byte by byte, all at once."""
    message = query("SELECT '" + "x" * 3000 + "'")
    with crowd(cluster, count) as sockets:
        for at in range(len(message) - 1):
            for one in sockets:
                one.send(message[at : at + 1])
        with stopped(cluster):
            for one in sockets:
                one.send(message[-1:])
        deadline = time.monotonic() + LIMIT_S
        for one in sockets:
            drain(one, deadline)


# name: (attack, its count at full scale, server's parameters)
ATTACKS: dict[str, tuple[Callable[[Cluster, int], None], int, dict[str, object]]] = {
    "statements": (says(prepares, "PREPARE one AS SELECT 1", "DEALLOCATE one", "DEALLOCATE ALL"), 600_000, {}),
    "statements_and_end": (says(prepares), 600_000, {}),
    "the_same_statement": (says(the_same_statement), 200_000, {}),
    "parameters": (says(parameters, "DISCARD ALL"), 30_000, {}),
    "a_long_value": (says(lambda n: "SET low.long = '" + "x" * n + "'", "SET low.long = ''"), 100_000_000, {}),
    "logins": (logins, 4000, {}),
    "answers": (answers, 1000, {}),
    "strangers": (strangers, 5000, {}),
    "names": (names, 4000, {}),
    "challenges": (challenges, 5000, {}),
    "silent": (silent, 4000, {"authentication_timeout": "2s"}),
    "without_launcher": (without_launcher, 5000, {}),
    "new_launcher": (new_launcher, 5000, {}),
    "hang_ups": (hang_ups, 5000, {}),
    "hang_ups_with_state": (hang_ups_with_state, 200, {}),
    "statements_of_many": (statements_of_many, 100, {}),
    "reloads": (reloads, 5000, {}),
    "views": (views, 5000, {}),
    "terminations": (terminations, 5000, {}),
    "cancels": (cancels, 4000, {}),
    "dropped_database": (dropped_database, 3000, {}),
    "questions": (questions, 5000, {}),
    "bytes_of_messages": (bytes_of_messages, 300, {}),
    "long_waits": (
        long_waits,
        5000,
        {"pg_baton.max_backends": 1, "pg_baton.max_extra_backends": 0, "pg_baton.session_wait_timeout": "3s"},
    ),
    "failed_starts": (failed_starts, 4000, {}),
    "pools": (pools, 1000, {}),
    "listeners": (listeners, 2000, {}),
}


def prepare(cluster: Cluster) -> None:
    cluster.write_hba(HBA)
    cluster.write_ident(IDENT)
    cluster.reload()
    for statement in (
        "CREATE EXTENSION IF NOT EXISTS pg_baton",
        "CREATE ROLE named LOGIN",
        "CREATE ROLE hashed LOGIN PASSWORD 'secret'",
        "GRANT SELECT ON pg_baton_sessions TO low",
        "GRANT EXECUTE ON FUNCTION pg_baton_get_sessions() TO low",
    ):
        cluster.sql(statement)


def longest(cluster: Cluster) -> tuple[int, int]:
    """Of the turns: microseconds, and pieces of work."""
    turns = re.findall(r"turn of (\d+) us, work (\d+)", cluster.log())
    return max((int(us) for us, _ in turns), default=0), max((int(work) for _, work in turns), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=", ".join(ATTACKS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    run = Run()
    too_long = 0
    try:
        for name in options.names or ATTACKS:
            attack, count, own = ATTACKS[name]
            asked = dict(value.split("=", 1) for value in options.set)
            cluster = run.cluster(
                name, parameters={"pg_baton.max_extra_backends": None, "pg_baton.dispatcher_log": LOG, **own, **asked}
            )
            cluster.start()
            try:
                for role in ("low", "other"):
                    cluster.sql(f"CREATE ROLE {role} LOGIN")
                prepare(cluster)
                began = time.monotonic()
                try:
                    attack(cluster, max(int(count * options.scale), 1))
                    what = ""
                except Exception as failure:
                    what = f" {type(failure).__name__}: {str(failure)[:200]}"
                us, work = longest(cluster)
                ((shown,),) = cluster.sql("SELECT longest_turn_us FROM pg_baton_dispatchers")
                is_long = shown > BOUND_US
                too_long += is_long
                print(
                    f"{name:20} {shown:8} us  {work:8} pieces  {time.monotonic() - began:6.1f} s"
                    f"{'  TOO LONG' if is_long else ''}{what}",
                    flush=True,
                )
                if is_long:
                    for line in re.findall(r"turn of .*", cluster.log())[-6:]:
                        print("   ", line)
            finally:
                cluster.destroy()
    finally:
        run.close()
    return int(too_long > 0)


if __name__ == "__main__":
    sys.exit(main())
