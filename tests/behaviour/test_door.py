"""Limits on clients that log in, each by its parameter."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time

import pytest
from harness.certificates import Authority, make_secure
from harness.cluster import HOST
from harness.health import stop, wait_until
from harness.impostor import Impostor
from harness.wire import SSL_REQUEST, LoginFailed, Wire, startup

pytestmark = [pytest.mark.pool_only, pytest.mark.one_major]

ELSEWHERE = "127.0.0.2"
HBA = ["host all by_scram all scram-sha-256", "host all all 127.0.0.0/8 trust"]
ROLES = ["CREATE ROLE one LOGIN", "CREATE ROLE other LOGIN", "CREATE ROLE by_scram LOGIN PASSWORD 'correct'"]


@pytest.fixture
def door(make_cluster, run):
    """Makes a cluster with these limits."""

    def make(secure: bool = False, **limits: object):
        parameters = {f"pg_baton.{name}": value for name, value in limits.items()}
        cluster = make_cluster(start=False, hba=HBA, parameters={"pg_baton.max_backends": 4, **parameters})
        if secure:
            make_secure(cluster, Authority(cluster.home / "authority"))
        cluster.start()
        for statement in ["CREATE EXTENSION pg_baton", *ROLES]:
            cluster.sql(statement)
        return cluster

    return make


def log_in(cluster, user: str = "one", source: str = "", database: str = "postgres", host: str = HOST) -> Wire:
    wire = Wire.open(str(cluster.home) if host == "socket" else host, cluster.pool_port, source=source)
    messages = wire.log_in(user, database)
    if messages[-1].type != "Z":
        wire.close()
        raise LoginFailed(messages)
    return wire


def refusal(attempt) -> dict[str, str]:
    """The fields of the error; the attempt must fail."""
    with pytest.raises(LoginFailed) as refused:
        attempt()
    return refused.value.fields


def is_refused(fields: dict[str, str], parameter: str, limit: object) -> None:
    assert fields["S"] == "FATAL" and fields["C"] == "53300", fields
    assert fields["D"] == f'Parameter "pg_baton.{parameter}" is {limit}.'


def knock_until_refused(attempt, most: int) -> tuple[int, dict[str, str]]:
    """How many logins succeeded, and the fields of the next one's error."""
    for number in range(most):
        try:
            attempt().leave()
        except LoginFailed as failure:
            return number, failure.fields
    raise AssertionError(f"{most} came in")


def test_logins_a_second_are_limited_for_one_address_alone(door):
    cluster = door(max_login_rate_per_address=5)
    time.sleep(1)  # logins during the start of the server no longer count
    begun = time.monotonic()
    number, fields = knock_until_refused(lambda: log_in(cluster), 10_000)
    assert 5 <= number <= 5 + 5 * (time.monotonic() - begun) + 1
    is_refused(fields, "max_login_rate_per_address", 5)
    for _ in range(5):
        log_in(cluster, source=ELSEWHERE).leave()
    for _ in range(20):
        log_in(cluster, host="socket").leave()
    wait_until(lambda: comes_in(cluster), what="the next second")


def comes_in(cluster) -> bool:
    try:
        log_in(cluster).leave()
    except LoginFailed:
        return False
    return True


def test_the_login_rate_limits_all_logins_and_no_cancel_requests(door):
    cluster = door(max_login_rate=5)
    time.sleep(1)
    with log_in(cluster, host="socket") as session:
        number, fields = knock_until_refused(lambda: log_in(cluster, source=ELSEWHERE), 10_000)
        is_refused(fields, "max_login_rate", 5)
        # while the server would refuse any login
        for _ in range(20):
            session.cancel_request()
        assert cluster.sql("SELECT cancels FROM pg_baton_dispatchers") == [(20,)]


def test_an_address_that_logs_in_too_often_gets_no_tls_handshake(door):
    cluster = door(secure=True, max_login_rate_per_address=2)
    time.sleep(1)

    def ask() -> bytes:
        with Wire.open(HOST, cluster.pool_port, plain=True) as wire:
            wire.send(SSL_REQUEST)
            return wire.read_bytes(1)

    answers = [ask() for _ in range(20)]
    assert answers[:2] == [b"S", b"S"] and b"E" in answers
    # handshake and startup packet together count once
    time.sleep(1.1)
    with Wire.open(HOST, cluster.pool_port).secure() as wire:
        assert wire.log_in("one", "postgres")[-1].type == "Z"
    with Wire.open(HOST, cluster.pool_port).secure() as wire:
        assert wire.log_in("one", "postgres")[-1].type == "Z"


def test_sessions_of_an_address_are_limited(door):
    cluster = door(max_sessions_per_address=3)
    inside = [log_in(cluster, user) for user in ("one", "other", "one")]
    is_refused(refusal(lambda: log_in(cluster, "other")), "max_sessions_per_address", 3)
    # other addresses have their own limit, superusers and Unix sockets have none
    inside += [log_in(cluster, source=ELSEWHERE) for _ in range(3)]
    is_refused(refusal(lambda: log_in(cluster, source=ELSEWHERE)), "max_sessions_per_address", 3)
    inside += [log_in(cluster, "postgres") for _ in range(2)]
    is_refused(refusal(lambda: log_in(cluster)), "max_sessions_per_address", 3)
    for wire in [inside.pop() for _ in range(2)]:
        wire.leave()
    inside[0].leave()
    wait_until(lambda: comes_in(cluster), what="room for one more")
    for wire in inside[1:]:
        wire.finish()


def test_sessions_of_a_user_are_limited_over_all_databases(door):
    cluster = door(max_sessions_per_user=2)
    cluster.sql("CREATE DATABASE second")
    inside = [log_in(cluster), log_in(cluster, database="second", source=ELSEWHERE)]
    for database in ("postgres", "second"):
        fields = refusal(lambda: log_in(cluster, database=database))  # noqa: B023
        is_refused(fields, "max_sessions_per_user", 2)
    inside += [log_in(cluster, "other"), log_in(cluster, "other")]
    inside += [log_in(cluster, "postgres") for _ in range(3)]
    inside[1].leave()
    log_in(cluster).leave()
    inside[0].finish()


@pytest.mark.parametrize("parameter", ["max_sessions_per_address", "max_sessions_per_user"])
def test_native_sessions_count_with_the_others(door, parameter):
    """They count once they have logged in, since superusers are exempt; their error is that of other sessions."""
    cluster = door(**{parameter: 3, "native_dbuser_names": "native/*"})
    cluster.sql("CREATE DATABASE native")
    inside = [log_in(cluster), log_in(cluster, database="native"), log_in(cluster, database="native")]
    assert sorted(wire.backend_pid < 1 << 22 for wire in inside) == [False, True, True]
    for database in ("native", "postgres"):
        is_refused(refusal(lambda: log_in(cluster, database=database)), parameter, 3)  # noqa: B023
    inside += [log_in(cluster, "postgres", database="native") for _ in range(3)]
    inside += [log_in(cluster, "other", database="native", source=ELSEWHERE) for _ in range(3)]
    is_refused(refusal(lambda: log_in(cluster, "other", source=ELSEWHERE)), parameter, 3)
    # superusers come in beyond the limit, and their sessions count for their address
    for wire in [inside.pop(3) for _ in range(3)] + [inside.pop(1)]:
        wire.leave()
    wait_until(lambda: comes_in(cluster), what="room for one more")
    for wire in inside:
        wire.finish()


def test_many_silent_connections_keep_no_client_out(door):
    cluster = door(max_unauthenticated=20)
    with log_in(cluster, source=ELSEWHERE) as early:
        # a slow client, which is the only one at its address
        slow = Wire.open(HOST, cluster.pool_port, source=ELSEWHERE)
        packet = startup({"user": "one", "database": "postgres"})
        slow.send(packet[:6])
        silent = []
        for _ in range(200):
            one = Wire.open(HOST, cluster.pool_port)
            one.send(packet[:6])
            silent.append(one)
        log_in(cluster, source=ELSEWHERE).leave()
        log_in(cluster).leave()
        assert early.query("SELECT 1") == [["1"]]
        slow.send(packet[6:])
        assert slow.until_ready()[-1].type == "Z"
        assert cluster.sql("SELECT connections <= 22 FROM pg_baton_dispatchers") == [(True,)]
        told = [one.until_closed() for one in silent[:150]]
        assert all(messages[-1].fields()["C"] == "53300" for messages in told)
        for one in [*silent, slow]:
            one.close()


def test_a_client_may_send_only_so_much_before_login_completes(door):
    # More than a hello of OpenSSL 3.5 with a key share of ML-KEM, together with the second hello.
    cluster = door(secure=True, max_login_bytes=8192)
    for secure in (False, True):
        wire = Wire.open(HOST, cluster.pool_port, plain=not secure)
        if secure:
            wire.secure()
        found = wire.log_in("one", "postgres", application_name="x" * 9000)
        assert found[-1].fields()["C"] == "54000"
        assert found[-1].fields()["D"] == "At most 8 kB are read."
        wire.close()
    with Wire.login(HOST, cluster.pool_port, user="by_scram", password="correct") as session:
        # the messages of a session have no such limit
        assert session.query(f"SELECT length('{'x' * 100_000}')") == [["100000"]]
    # a handshake has the limit, too
    with socket.create_connection((HOST, cluster.pool_port), timeout=20) as stranger:
        stranger.sendall(SSL_REQUEST)
        assert stranger.recv(1) == b"S"
        stranger.sendall(b"\x16\x03\x01\x40\x00\x01\x01\x00\x00" + b"x" * 9000)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


def says(attempt, parameter: str, limit: object) -> bool:
    """True if a login of the attempt is refused, for that limit."""
    try:
        attempt()
    except LoginFailed as failure:
        assert failure.fields["D"].startswith(f'Parameter "pg_baton.{parameter}" is {limit}'), failure.fields
        return True
    return False


def log_in_often(cluster) -> None:
    for _ in range(30):
        log_in(cluster).leave()


def is_pushed_out(cluster) -> bool:
    """True if one of many silent clients gets an error."""
    silent = [Wire.open(HOST, cluster.pool_port) for _ in range(30)]
    for one in silent:
        one.send(startup({"user": "one", "database": "postgres"})[:6])
    log_in(cluster, "postgres", host="socket").leave()
    told = [one.has_input() for one in silent]
    for one in silent:
        one.close()
    return any(told)


def asks_for_more(cluster, parameter: str, limit: object) -> bool:
    return says(lambda: log_in(cluster).leave(), parameter, limit)


# The limit, and a check that the limit counts; without a limit the check fails.
RELOADED = {
    "max_login_rate": (5, lambda cluster: says(lambda: log_in_often(cluster), "max_login_rate", 5)),
    "max_login_rate_per_address": (
        5,
        lambda cluster: says(lambda: log_in_often(cluster), "max_login_rate_per_address", 5),
    ),
    "max_sessions_per_address": (2, lambda cluster: asks_for_more(cluster, "max_sessions_per_address", 2)),
    "max_sessions_per_user": (2, lambda cluster: asks_for_more(cluster, "max_sessions_per_user", 2)),
    "max_unauthenticated": (10, is_pushed_out),
}


@pytest.mark.parametrize("parameter", RELOADED)
def test_a_limit_counts_from_the_next_reload_on(door, parameter):
    limit, counts = RELOADED[parameter]
    cluster = door(secure=True)
    inside = [log_in(cluster) for _ in range(3)]
    assert not counts(cluster)
    cluster.set_parameters({f"pg_baton.{parameter}": limit})
    cluster.reload()
    wait_until(lambda: counts(cluster), what="the limit counts")
    assert [wire.query("SELECT 1") for wire in inside] == [[["1"]]] * 3
    cluster.set_parameters({f"pg_baton.{parameter}": None})
    cluster.reload()
    wait_until(lambda: not counts(cluster), what="the limit is off")
    for wire in inside:
        wire.finish()


def test_the_dispatcher_is_told_how_passwords_are_stored(door):
    """The dispatcher makes up verifiers for unknown users in that way, so that each login takes as long."""
    cluster = door()
    impostor = Impostor(cluster)
    for encryption in ("md5", "scram-sha-256"):
        cluster.set_parameters({"password_encryption": encryption})
        stop(impostor.pid)
        try:
            with impostor.channel() as channel:
                channel.settimeout(20)
                cluster.reload()
                # An earlier reload's message may come first.
                messages = iter(lambda: channel.recv(65536), b"")
                assert any(pair("password_encryption", encryption) in said for said in messages)
        finally:
            os.kill(impostor.pid, signal.SIGCONT)
        # the dispatcher has not received that message
        cluster.reload()
        assert comes_in(cluster)


def pair(name: str, value: str) -> bytes:
    return b"".join(struct.pack("=I", len(text)) + text.encode() for text in (name, value))
