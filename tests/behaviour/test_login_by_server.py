"""What only the server can authenticate it authenticates on the pool's port, too:
a backend does it on the client's own socket, and the client becomes a session of
the pool like any other.

Real services, each started by the test that needs it (harness/authenticators.py)."""

from __future__ import annotations

import re
import subprocess
import threading
from pathlib import Path

import psycopg
import pytest
from harness.account import give_to_server_user, pg_config, server_program
from harness.authenticators import Ident, Kerberos, Ldap, Radius
from harness.certificates import Authority, make_secure
from harness.cluster import can_replace_system_files
from harness.health import wait_until
from harness.wire import Wire, query, startup

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
    """Alice comes in by the password that the service knows, by no other, and is
    served by one backend together with another session of hers."""
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


def test_ldap_and_a_pool_that_grows_while_nobody_can_log_in(make_cluster, run):
    """Its backends are the dispatcher's to open once the server has let a session in:
    on the server's own port nobody would ask that again, either."""
    with Ldap(run.directory / "ldap", USERS) as ldap:
        cluster = make_cluster(parameters=PARAMETERS, hba=[ldap.line("alice"), ldap.line("bob"), "local all alice reject"])
        cluster.sql(ROLES)
        assert_pooled(cluster)
        wires = [Wire.login("127.0.0.1", cluster.pool_port, user="alice", password="correct") for _ in range(5)]
        ldap.stop()
        for wire in wires[:2]:
            wire.query("BEGIN")
        answers = [wire.query("SELECT current_user") for wire in wires]
        assert answers == [[["alice"]]] * 5
        ((backends,),) = cluster.sql("SELECT count(*) FROM pg_baton_backends WHERE user_name = 'alice'")
        assert backends == 3
        # Nobody else comes in, and not with her name either.
        assert "authentication failed" in refusal(cluster.pool(user="alice", password="correct"))
        # And what she may not do any more she may not: these are hers, not the dispatcher's.
        assert wires[0].query("SELECT rolsuper FROM pg_roles WHERE rolname = current_user") == [["f"]]
        for wire in wires:
            wire.finish()


def test_nobody_vouches_for_himself(make_cluster):
    """Neither on the server's port nor on the pool's, nor while a backend of the pool's starts."""
    cluster = make_cluster(parameters=PARAMETERS, hba=["host all alice all reject", "local all alice reject"])
    cluster.sql(ROLES)
    options = "-c pg_baton.attach=0:1:2:7f000001000000000000000000000000:0"
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
        # The client's own two ports: not the dispatcher's.
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
            hba=["host all alice,bob all gss include_realm=0 krb_realm=EXAMPLE.NET"],
        )
        cluster.sql(ROLES)

        def psql(user: str) -> subprocess.CompletedProcess:
            conninfo = cluster.pool(user=user, host="localhost", hostaddr="127.0.0.1", application_name="by_gss")
            sql = "SELECT current_user, mode FROM pg_baton_sessions WHERE application_name = 'by_gss'"
            cluster.sql("GRANT pg_monitor TO alice")
            return subprocess.run(
                [server_program("psql"), "-XAt", "-c", sql, conninfo], capture_output=True, text=True, timeout=60
            )

        assert psql("alice").returncode != 0
        kerberos.get_ticket("alice", "correct")
        done = psql("alice")
        assert done.stdout == "alice|shared\n", done.stderr
        refused = psql("bob")
        assert 'GSSAPI authentication failed for user "bob"' in refused.stderr


def audit_library(run) -> Path:
    library = run.directory / "login_audit.so"
    if not library.exists():
        source = Path(__file__).resolve().parents[1] / "harness" / "login_audit.c"
        include = pg_config("includedir-server")
        subprocess.run(["cc", "-shared", "-fPIC", "-I", include, "-o", str(library), str(source)], check=True)
        library.chmod(0o755)
    return library


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_library_that_watches_logins_sees_every_client(make_cluster, run, order):
    libraries = [str(audit_library(run)), "pg_baton"]
    cluster = make_cluster(
        parameters={**PARAMETERS, "shared_preload_libraries": ", ".join(libraries if order == "before" else libraries[::-1])},
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
    assert re.search(r"connection authenticated: identity=\"alice\" method=scram-sha-256 \(.*pg_hba.conf:1\)", cluster.log())


def test_who_talks_before_he_is_let_in_is_refused_and_no_byte_goes_to_another(make_cluster):
    cluster = make_cluster(parameters={**PARAMETERS, "pg_baton.login": "server"}, hba=["host all alice all password"])
    cluster.sql(ROLES + "; ALTER ROLE alice PASSWORD 'correct'")
    with Wire.open("127.0.0.1", cluster.pool_port) as early:
        early.send(startup({"user": "alice", "database": "postgres"}))
        early.read_until("R")
        early.send(b"p\0\0\0\x0ccorrect\0" + query("SELECT 'early'"))
        found = early.until_closed()
        assert [m.fields()["C"] for m in found if m.type == "E"] == ["08P01"]
    with psycopg.connect(cluster.pool(user="alice", password="correct")) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_client_that_goes_while_a_backend_authenticates_it_leaves_nothing(make_cluster):
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
