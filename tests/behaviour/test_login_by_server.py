"""Clients that only the server can authenticate are authenticated by it on the pool's
port, too: a backend does so on the client's own socket, and the client becomes a session
of the pool like any other.

The services are real; each is started by the test that needs it (harness/authenticators.py)."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import psycopg
import pytest
from harness.account import give_to_server_user, pg_config, server_major, server_program
from harness.authenticators import Ident, Kerberos, Ldap, Radius
from harness.certificates import Authority, make_secure
from harness.cluster import can_replace_system_files
from harness.health import wait_until
from harness.wire import Scram, Wire, message, query, startup, text

pytestmark = pytest.mark.pool_only

PARAMETERS = {"pg_baton.max_backends": 3}
USERS = {"alice": "correct", "bob": "other"}
ROLES = "CREATE EXTENSION pg_baton; CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE banned LOGIN"


def modes(cluster) -> list[tuple]:
    return cluster.sql("SELECT user_name, mode FROM pg_baton_sessions ORDER BY login_time")


def refusal(conninfo: str) -> str:
    with pytest.raises(psycopg.OperationalError) as failed:
        psycopg.connect(conninfo).close()
    return str(failed.value).split("FATAL: ")[-1]


def assert_pooled(cluster, **options) -> None:
    """alice logs in by the password that the service knows, by no other, and her
    session shares its backends with another session of the same role."""
    assert refusal(cluster.pool(user="alice", password="wrong", **options)) == refusal(
        cluster.direct(user="alice", password="wrong", **options)
    )
    alice = cluster.pool(user="alice", password="correct", **options)
    with psycopg.connect(alice, autocommit=True) as first, psycopg.connect(alice, autocommit=True) as second:
        assert modes(cluster) == [("alice", "shared")] * 2
        first.execute("SET my.own = 'first'")
        for _ in range(3):
            assert second.execute("SELECT current_user, current_setting('my.own', true)").fetchone() == ("alice", None)
            assert first.execute("SELECT session_user, current_setting('my.own')").fetchone() == ("alice", "first")
        ((backends,),) = cluster.sql("SELECT count(*) FROM pg_baton_backends WHERE user_name = 'alice'")
        assert 1 <= backends <= 2


def test_an_ldap_pool_grows_while_no_user_can_log_in(make_cluster, run):
    """The dispatcher opens the pool's backends once the server has let a session in: on the
    server's own port, the service is asked once a session, too."""
    with Ldap(run.directory / "ldap", USERS) as ldap:
        cluster = make_cluster(
            parameters=PARAMETERS, hba=[ldap.line("alice"), ldap.line("bob"), "local all alice reject"]
        )
        cluster.sql(ROLES)
        assert_pooled(cluster)
        wires = [Wire.login("127.0.0.1", cluster.pool_port, user="alice", password="correct") for _ in range(5)]
        ldap.stop()
        for wire in wires[:2]:
            wire.query("BEGIN")
        answers = [wire.query("SELECT current_user") for wire in wires]
        assert answers == [[["alice"]]] * 5
        ((backends,),) = cluster.sql("SELECT count(*) FROM pg_baton_backends")
        assert backends == 3
        # No other client can log in, not even as alice.
        assert "authentication failed" in refusal(cluster.pool(user="alice", password="correct"))
        # The backends have the rights of alice, and none of the dispatcher's.
        assert wires[0].query("SELECT rolsuper FROM pg_roles WHERE rolname = current_user") == [["f"]]
        for wire in wires:
            wire.finish()


def test_no_client_vouches_for_itself(make_cluster):
    """A client cannot vouch for itself on the server's port or the pool's, or while a backend of the pool starts."""
    cluster = make_cluster(parameters=PARAMETERS, hba=["host all alice all reject", "local all alice reject"])
    cluster.sql(ROLES)
    options = "-c pg_baton.attach=0:1:10"
    for port in (cluster.port, cluster.pool_port):
        for host in ("127.0.0.1", str(cluster.home)):
            for fake in ("_pq_.pg_baton_trusted", "_pq_.pg_baton", "_pq_.pg_baton.0000000000000001"):
                with Wire.open(host, port) as wire:
                    wire.send(startup({"user": "alice", "database": "postgres", "options": options, fake: ""}))
                    found = wire.until_closed()
                    assert [m.type for m in found] == ["v", "E"]
                    assert found[-1].fields()["C"] == "28000"


def test_radius(make_cluster, run):
    with Radius(run.directory / "radius", USERS) as radius:
        cluster = make_cluster(parameters=PARAMETERS, hba=[radius.line("alice")])
        cluster.sql(ROLES)
        assert_pooled(cluster)


@pytest.mark.skipif(not can_replace_system_files(), reason="the server gets an /etc/pam.d/other of its own: needs root")
def test_pam(make_cluster, run):
    check = run.directory / "check-password"
    check.write_text("#!/bin/sh\n[ \"$PAM_USER:$(tr -d '\\0')\" = alice:correct ]\n")
    check.chmod(0o755)
    service = f"auth required pam_exec.so quiet expose_authtok {check}\naccount required pam_permit.so\n"
    cluster = make_cluster(
        parameters=PARAMETERS,
        hba=["host all alice all pam pamservice=of_this_test"],
        system_files={"/etc/pam.d/other": service},
    )
    cluster.sql(ROLES)
    assert_pooled(cluster)


def test_ident(make_cluster):
    ident = Ident("somebody")
    thread = threading.Thread(target=ident.serve)
    thread.start()
    try:
        cluster = make_cluster(
            parameters=PARAMETERS, hba=["host all alice all ident map=those", "host all bob all ident"]
        )
        cluster.write_ident(["those somebody alice"])
        cluster.reload()
        cluster.sql(ROLES)
        wait_until(lambda: psycopg.connect(cluster.direct(user="alice")).close() is None, what="the map is in force")
        asked = len(ident.asked)
        with psycopg.connect(cluster.pool(user="alice")) as connection:
            port = connection.execute("SELECT inet_client_port()").fetchone()[0]
            assert modes(cluster) == [("alice", "shared")]
        # The service is asked about the two ports of the client's connection, not about the dispatcher's.
        assert [re.split(r"\s*,\s*", found) for found in ident.asked[asked:]] == [[str(port), str(cluster.pool_port)]]
        assert "Ident authentication failed" in refusal(cluster.pool(user="bob"))
    finally:
        ident.stop()
        thread.join(10)


def test_gss(make_cluster, run, monkeypatch):
    with Kerberos(run.directory / "kerberos", USERS) as kerberos:
        for name, value in kerberos.environment.items():
            monkeypatch.setenv(name, value)
        give_to_server_user(kerberos.keytab)
        cluster = make_cluster(
            parameters={**PARAMETERS, "krb_server_keyfile": str(kerberos.keytab)},
            hba=["host all alice,bob all gss include_realm=0 krb_realm=EXAMPLE.NET", "local all alice trust"],
        )
        cluster.sql(ROLES)

        def psql(user: str) -> subprocess.CompletedProcess:
            conninfo = cluster.pool(user=user, host="localhost", hostaddr="127.0.0.1", application_name="by_gss")
            sql = "SELECT current_user, mode FROM pg_baton_sessions WHERE application_name = 'by_gss'"
            cluster.sql("GRANT pg_monitor, pg_signal_backend TO alice")
            return subprocess.run(
                [server_program("psql"), "-XAt", "-c", sql, conninfo], capture_output=True, text=True, timeout=60
            )

        assert psql("alice").returncode != 0
        kerberos.get_ticket("alice", "correct")
        done = psql("alice")
        assert done.stdout == "alice|shared\n", done.stderr
        refused = psql("bob")
        assert 'GSSAPI authentication failed for user "bob"' in refused.stderr
        assert_gss_is_shown(cluster)
        if server_major() >= 16:
            assert_delegation_is_native(cluster)


def by_gss(conninfo) -> psycopg.Connection:
    return psycopg.connect(
        conninfo(user="alice", host="localhost", hostaddr="127.0.0.1", gssencmode="disable"), autocommit=True
    )


def assert_gss_is_shown(cluster) -> None:
    """The view shows it to the session itself and to other sessions, with a backend and without; never for a
    session that has logged in otherwise."""
    shown = "SELECT gss_authenticated, principal, encrypted FROM pg_stat_gssapi WHERE pid = "
    cluster.set_parameters({"pg_baton.max_backends": 1})
    cluster.reload()
    with by_gss(cluster.direct) as direct, by_gss(cluster.pool) as one:
        expected = direct.execute(shown + "pg_backend_pid()").fetchone()
        assert expected == (True, "alice@EXAMPLE.NET", False)
        with psycopg.connect(cluster.pool(user="alice", host=str(cluster.home)), autocommit=True) as other:
            pids = [session.execute("SELECT pg_backend_pid()").fetchone()[0] for session in (one, other)]
            plain = (False, None, False)
            for session in (one, other, one):
                for pid, its in zip(pids, (expected, plain), strict=True):
                    assert session.execute(shown + str(pid)).fetchone() == its
            # a role without the privilege to see the row sees nothing
            cluster.sql("CREATE ROLE blind LOGIN")
            assert cluster.sql(shown + str(pids[0]), user="blind") == []


def assert_delegation_is_native(cluster) -> None:
    """Credentials that a client delegates lie in the process that has authenticated it."""
    cluster.set_parameters({"gss_accept_delegation": True})
    cluster.reload()

    def is_native() -> bool:
        with by_gss(cluster.pool) as session:
            who = "SELECT mode, dedicated_cause FROM pg_baton_sessions WHERE pid = pg_backend_pid()"
            return session.execute(who).fetchone() == ("native", "gss_accept_delegation")

    wait_until(is_native, what="the parameter is in force")


def bearer(token: str) -> bytes:
    """OAUTHBEARER's first message (RFC 7628)."""
    said = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    return message("p", text("OAUTHBEARER") + struct.pack("!I", len(said)) + said)


@pytest.mark.skipif(server_major() < 18, reason="oauth is 18's")
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_oauth(make_cluster, run, secure):
    validator = built_library(run, "token_validator")
    cluster = make_cluster(
        start=False,
        parameters={**PARAMETERS, "oauth_validator_libraries": str(validator)},
        hba=['host all alice,bob all oauth issuer="https://issuer.invalid" scope="openid postgres"'],
    )
    make_secure(cluster, Authority(run.directory / f"oauth-certificates-{secure}"))
    cluster.start()
    cluster.sql(ROLES)

    def comes_with(user: str, token: str, port: int = cluster.pool_port) -> Wire:
        wire = Wire.open("127.0.0.1", port)
        if secure:
            wire.secure()
        wire.send(startup({"user": user, "database": "postgres"}))
        assert b"OAUTHBEARER\0" in wire.read().body
        wire.send(bearer(token))
        return wire

    # a token of any length, and a query sent along with it
    first, second = comes_with("alice", "alice.x"), comes_with("alice", "alice." + "y" * 30_000)
    for wire in (first, second):
        wire.send(query("SELECT current_user"))
        wire.until_ready()
        assert ["D" in one.type and one.row() for one in wire.until_ready()][1] == [b"alice"]
    assert modes(cluster) == [("alice", "shared")] * 2
    first.query("SET my.own = 'first'")
    assert second.query("SELECT current_setting('my.own', true)") == [[None]]

    for user, token in (("bob", "alice.x"), ("alice", "nobody.x"), ("alice", "none")):
        told = []
        for port in (cluster.port, cluster.pool_port):
            with comes_with(user, token, port) as wire:
                found = wire.read()
                if found.type == "R":
                    # the error in the mechanism's own form; then the client gives up
                    wire.send(message("p", b"\1"))
                    found = wire.until_closed()[-1]
                told.append((found.fields()["C"], found.fields()["M"]))
        assert told[0] == told[1] and told[0][0] == "28000"
    for wire in (first, second):
        wire.finish()


def test_the_server_s_own_rules_refuse_a_method_that_it_lacks(make_cluster):
    """For bsd on Linux, the file is not loaded, and the rules in force stay."""
    cluster = make_cluster(parameters=PARAMETERS, hba=["host all alice all trust"])
    cluster.sql(ROLES)
    with cluster.new_log() as log:
        cluster.write_hba(["host all alice all bsd"])
        cluster.reload()
        wait_until(lambda: 'invalid authentication method "bsd": not supported by this build' in log(), what="a reload")
    with psycopg.connect(cluster.pool(user="alice")) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("alice",)


def built_library(run, name: str) -> Path:
    library = run.directory / f"{name}.so"
    if not library.exists():
        source = Path(__file__).resolve().parents[1] / "harness" / f"{name}.c"
        include = pg_config("includedir-server")
        subprocess.run(["cc", "-shared", "-fPIC", "-I", include, "-o", str(library), str(source)], check=True)
        library.chmod(0o755)
    return library


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_library_that_watches_logins_sees_every_client(make_cluster, run, order):
    libraries = [str(built_library(run, "login_audit")), "pg_baton"]
    cluster = make_cluster(
        parameters={
            **PARAMETERS,
            "shared_preload_libraries": ", ".join(libraries if order == "before" else libraries[::-1]),
        },
        hba=["host all alice,bob,banned all scram-sha-256"],
    )
    cluster.sql(ROLES + "; ALTER ROLE alice PASSWORD 'correct'; ALTER ROLE banned PASSWORD 'correct'")
    assert_pooled(cluster)
    with cluster.new_log() as log:
        refusal(cluster.pool(user="alice", password="wrong"))
        with psycopg.connect(cluster.pool(user="alice", password="correct")):
            pass
        told = refusal(cluster.pool(user="banned", password="correct"))
        assert "audit: alice from 127.0.0.1: out" in log() and "audit: alice from 127.0.0.1: in" in log()
    assert 'role "banned" is banned' in told
    cluster.set_parameters({"pg_baton.login": "dispatcher"})
    cluster.reload()

    def is_unheard() -> bool:
        with cluster.new_log() as log:
            with psycopg.connect(cluster.pool(user="alice", password="correct")):
                pass
            return "audit: alice from 127.0.0.1" not in log()

    wait_until(is_unheard, what="the dispatcher authenticates")


def test_a_library_that_delays_refusals_delays_them(make_cluster):
    """The library is PostgreSQL's own auth_delay; sessions that log in work as without it."""
    delay_s = 1
    libraries = {"shared_preload_libraries": "pg_baton, auth_delay", "auth_delay.milliseconds": delay_s * 1000}
    cluster = make_cluster(parameters={**PARAMETERS, **libraries}, hba=["host all alice all scram-sha-256"])
    cluster.sql(ROLES + "; ALTER ROLE alice PASSWORD 'correct'")
    assert_pooled(cluster)
    for conninfo in (cluster.direct, cluster.pool):
        began = time.monotonic()
        assert "password authentication failed" in refusal(conninfo(user="alice", password="wrong"))
        assert time.monotonic() - began >= delay_s


def test_with_login_server_every_method_is_the_server_s(make_cluster, run):
    cluster = make_cluster(
        start=False,
        parameters={**PARAMETERS, "pg_baton.login": "server", "log_connections": True},
        hba=[
            "hostssl all alice all scram-sha-256",
            "host all bob all md5",
            "host all banned all reject",
            "local all banned peer",
        ],
    )
    make_secure(cluster, Authority(run.directory / "login-certificates"))
    cluster.start()
    cluster.sql(ROLES + "; ALTER ROLE alice PASSWORD 'correct'; ALTER ROLE bob PASSWORD 'other'")
    assert_pooled(cluster, sslmode="require")
    with psycopg.connect(cluster.pool(user="bob", password="other")) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("bob",)
    assert "pg_hba.conf rejects" in refusal(cluster.pool(user="banned"))
    assert "Peer authentication failed" in refusal(cluster.pool(user="banned", host=str(cluster.home)))
    with psycopg.connect(cluster.pool(host=str(cluster.home))) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert re.search(
        r"connection authenticated: identity=\"alice\" method=scram-sha-256 \(.*pg_hba.conf:1\)", cluster.log()
    )
    # the dispatcher logs each client that it authenticates: it has authenticated none
    assert "pg_baton: connection authenticated" not in cluster.log()


def answers(wire: Wire) -> list[tuple]:
    """The messages up to the second ReadyForQuery, without parts that differ from session to
    session (from 16 on, ParameterStatus comes in any order)."""
    found = [(one.type, b"" if one.type == "K" else one.body) for one in wire.until_ready()]
    parameters = sorted(one for one in found if one[0] == "S")
    others = [one for one in found if one[0] != "S"]
    return others + parameters + [(one.type, one.body) for one in wire.until_ready()]


@pytest.mark.parametrize("method", ["password", "scram-sha-256", "trust"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("forced", [False, True], ids=["normal", "forced"])
def test_a_session_gets_what_its_client_sends_with_the_password(early, method, secure, forced):
    """The client's first queries come in one packet with the password, as on a direct connection."""
    cluster = early(forced)
    user = {"password": "alice", "scram-sha-256": "bob", "trust": "postgres"}[method]
    for size in (1, 5_000, 60_000):
        queries = query(f"SELECT length('{'x' * size}'); SET my.own = 'early'")
        found = []
        for port in (cluster.port, cluster.pool_port):
            with Wire.open("127.0.0.1", port) as wire:
                if secure:
                    wire.secure()
                packet = startup({"user": user, "database": "postgres"})
                if method == "password":
                    # all at once: the client knows the server's next request
                    wire.send(packet, message("p", text("correct")), queries)
                elif method == "trust":
                    wire.send(packet, queries)
                else:
                    wire.send(packet)
                    scram = Scram("correct")
                    wire.read_until("R")
                    wire.send(message("p", text("SCRAM-SHA-256") + scram.first()))
                    wire.send(message("p", scram.final(wire.read().body[4:])), queries)
                    scram.check(wire.read().body[4:])
                found.append(answers(wire))
                assert wire.query("SHOW my.own") == [["early"]]
                wire.finish()
        assert found[0] == found[1]


@pytest.fixture(scope="module")
def early(run):
    """Clusters where the server authenticates; with forced migration or without."""
    made = {}
    authority = Authority(run.directory / "early-certificates")

    def make(forced: bool):
        if forced not in made:
            cluster = made[forced] = run.cluster(
                f"early {forced}",
                parameters={**PARAMETERS, "pg_baton.login": "server", "pg_baton.force_migration": forced},
                hba=["host all alice all password", "host all bob all scram-sha-256"],
            )
            make_secure(cluster, authority)
            cluster.start()
            cluster.sql(ROLES)
            cluster.sql("ALTER ROLE alice PASSWORD 'correct'; ALTER ROLE bob PASSWORD 'correct'")
        return made[forced]

    yield make
    for cluster in made.values():
        cluster.finish()


def test_passwords_in_pieces_or_malformed_are_taken_as_directly(early):
    cluster = early(False)
    correct = message("p", text("correct"))
    cases = {
        "byte by byte": [correct[at : at + 1] for at in range(len(correct))],
        "wrong": [message("p", text("wrong")), query("SELECT 1")],
        "long": [message("p", text("x" * 20_000))],
        "longer than any": [b"p" + (70_000).to_bytes(4, "big") + b"x" * 100],
        "shorter than any": [b"p\0\0\0\3"],
        "a query": [query("SELECT 1")],
        "nothing": [],
        "half": [correct[:3]],
        "half of its text": [correct[:7]],
        "empty": [message("p", text(""))],
    }
    for name, parts in cases.items():
        found = []
        for port in (cluster.port, cluster.pool_port):
            with Wire.open("127.0.0.1", port) as wire:
                wire.send(startup({"user": "alice", "database": "postgres"}))
                wire.read_until("R")
                for part in parts:
                    wire.send(part)
                    time.sleep(0.01)
                if name.startswith("half") or name == "nothing":
                    wire.sock.shutdown(socket.SHUT_WR)
                if name == "byte by byte":
                    found.append([one.type for one in wire.until_ready()][-2:])
                    wire.finish()
                else:
                    fields = [one.fields() for one in wire.until_closed()]
                    found.append([(one["C"], one["M"]) for one in fields])
        assert found[0] == found[1], name


def test_a_client_gone_during_authentication_leaves_nothing(make_cluster):
    cluster = make_cluster(
        parameters={**PARAMETERS, "pg_baton.login": "server", "authentication_timeout": "3s"},
        hba=["host all alice all password"],
    )
    cluster.sql(ROLES + "; ALTER ROLE alice PASSWORD 'correct'")
    silent = Wire.open("127.0.0.1", cluster.pool_port)
    for wire in (Wire.open("127.0.0.1", cluster.pool_port), silent):
        wire.send(startup({"user": "alice", "database": "postgres"}))
        wire.read_until("R")
        if wire is not silent:
            wire.close()
    silent.until_closed()
    silent.close()

    def authenticators() -> list[str]:
        return [p.command for p in cluster.processes() if "authentication" in p.command]

    wait_until(lambda: authenticators() == [], what="no backend authenticates any more")
    with psycopg.connect(cluster.pool(user="alice", password="correct")) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
