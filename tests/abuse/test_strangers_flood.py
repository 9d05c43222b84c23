"""Strangers who guess cancel keys or passwords, or fail to log in, as often as they can: nobody's query is
cancelled, others' cancel requests are obeyed, others' passwords are checked, and the log names each kind and
role, and a count."""

from __future__ import annotations

import contextlib
import socket

import pytest
from harness.health import wait_until
from harness.wire import LoginFailed, Wire, cancel, message, startup, text

pytestmark = pytest.mark.pool_only

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
FLOOD = 300
# Of one kind in ten seconds, twice as a period may end meanwhile, and some that are others'.
MOST_LINES = 60


def log_in(cluster, source: str, user: str = "other") -> Wire:
    return Wire.login(HERE, cluster.pool_port, user=user, timeout_s=20, source=source)


def ask_to_cancel(cluster, source: str, pid: int, key: bytes) -> None:
    address = (HERE, cluster.pool_port)
    with socket.create_connection(address, 20, source_address=(source, 0)) as sock:
        sock.sendall(cancel(pid, key))
        while sock.recv(64):
            pass


def cancels(cluster) -> int:
    ((count,),) = cluster.sql("SELECT cancels FROM pg_baton_dispatchers")
    return count


def test_an_address_that_guesses_cancel_keys_is_not_heard(installation, bystanders):
    """Not even with the right key, whose moment would tell; from another address it is obeyed at once."""
    cluster = installation()
    cluster.write_hba(["host all all 127.0.0.0/8 trust"])
    cluster.reload()
    with bystanders(cluster) as beside, log_in(cluster, HERE) as here, log_in(cluster, ELSEWHERE) as there:
        wrong = bytes(byte ^ 0xFF for byte in there.cancel_key)
        for _ in range(FLOOD):
            ask_to_cancel(cluster, HERE, there.backend_pid, wrong)
        for _ in range(3):
            ask_to_cancel(cluster, HERE, there.backend_pid, wrong)
            ask_to_cancel(cluster, HERE, here.backend_pid, here.cancel_key)
        assert cancels(cluster) <= 1
        ask_to_cancel(cluster, ELSEWHERE, there.backend_pid, there.cancel_key)
        wait_until(lambda: cancels(cluster) >= 1, what="the other address's request")
        beside.all_go_on(3)
        lines = [line for line in cluster.log().splitlines() if "cancel request" in line]
        assert 1 <= len(lines) <= MOST_LINES
        assert any("are ignored: too many were wrong" in line for line in lines)


def test_right_cancel_requests_are_not_limited_soon(installation):
    """An application that cancels hundreds of its queries in a row."""
    cluster = installation()
    with log_in(cluster, HERE) as here:
        for _ in range(FLOOD):
            ask_to_cancel(cluster, HERE, here.backend_pid, here.cancel_key)
        wait_until(lambda: cancels(cluster) == FLOOD, what="all requests")


def test_failures_of_strangers_leave_few_lines(installation, bystanders):
    """And each role's first failure one, amid a flood of others."""
    cluster = installation()
    for role in ("one", "two"):
        cluster.sql(f"CREATE ROLE {role} NOLOGIN")

    def fail(user: str) -> None:
        with pytest.raises(LoginFailed):
            log_in(cluster, HERE, user)

    with bystanders(cluster) as beside:
        for _ in range(FLOOD):
            fail("one")
        fail("two")
        for _ in range(FLOOD):
            with socket.create_connection((HERE, cluster.pool_port), 20) as sock:
                sock.sendall(b"\0\0\0\3")
        cluster.wait_for_log("startup packet")
        words = ("FATAL: ", "startup packet", "pg_baton: ")
        lines = [line for line in cluster.log().splitlines() if any(word in line for word in words)]
        assert len(lines) <= 2 * MOST_LINES
        assert sum('role "two" is not permitted to log in' in line for line in lines) == 1
        beside.all_go_on(3)
        cluster.wait_for_log(r"\.\.\. and \d+ more like these in the last 10 s \(28000\)", timeout_s=30)


# A stored password that takes the dispatcher minutes to check.
SLOW = f"SCRAM-SHA-256$2000000000:{'A' * 22}==${'A' * 43}=:{'A' * 43}="


def passwords_are_asked_for(cluster, source: str) -> bool:
    """The server has read pg_hba.conf."""
    with Wire.open(HERE, cluster.pool_port, 20, source) as one:
        one.send(startup({"user": "low", "database": "postgres"}))
        return one.read().type == "R"


@contextlib.contextmanager
def wrong_passwords(cluster, source: str, count: int):
    """So many clients that have sent a wrong password, all of them at once."""
    wait_until(lambda: passwords_are_asked_for(cluster, source), what="a question for a password")
    with contextlib.ExitStack() as ended:
        all_of_them = []
        for _ in range(count):
            one = ended.enter_context(Wire.open(HERE, cluster.pool_port, 20, source))
            one.send(startup({"user": "low", "database": "postgres"}))
            all_of_them.append(one)
        for one in all_of_them:
            assert one.read().type == "R"
        for one in all_of_them:
            one.send(message("p", text("wrong")))
        yield all_of_them


def test_wrong_passwords_of_one_address_delay_no_other_s(installation):
    """The password of a client at another address is checked before all of the flood's have been."""
    cluster = installation()
    for role in ("low", "other"):
        cluster.sql(f"ALTER ROLE {role} PASSWORD 'secret'")
    cluster.write_hba(["host all all 127.0.0.0/8 password"])
    cluster.reload()
    with wrong_passwords(cluster, ELSEWHERE, FLOOD) as flood:
        Wire.login(HERE, cluster.pool_port, "other", password="secret", source=HERE).finish()
        answered = sum(one.has_input() for one in flood)
        assert answered < FLOOD
        for one in flood:
            assert one.read().fields()["C"] == "28P01"


def test_logins_whose_password_waits_give_way_at_the_door(installation):
    """Checks that take minutes hold all places of connections that have not logged in."""
    most = 20
    cluster = installation(pg_baton__max_unauthenticated=most)
    # ALTER ROLE would compare it with the empty password first
    cluster.sql(f"UPDATE pg_authid SET rolpassword = '{SLOW}' WHERE rolname = 'low'")
    cluster.write_hba(["host all low 127.0.0.0/8 password", "host all all 127.0.0.0/8 trust"])
    cluster.reload()
    with wrong_passwords(cluster, ELSEWHERE, most) as flood:
        log_in(cluster, HERE).finish()
        assert flood[0].read().fields()["C"] == "53300"
        assert not any(one.has_input() for one in flood[1:])
