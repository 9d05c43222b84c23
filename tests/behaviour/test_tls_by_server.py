"""The server itself authenticates clients that connect by TLS, while the dispatcher has
the TLS session: native ones, and with pg_baton.login = server all others.

The tests compare the answers of the pool's port with those of the server's own port."""

from __future__ import annotations

import functools
import re

import psycopg
import pytest
from harness.account import server_major
from harness.certificates import show
from harness.health import wait_until
from test_login_by_server import built_library
from test_tls_certificates import (  # noqa: F401 (a fixture)
    HBA,
    VISITS,
    authority,
    check_that_rsa_pss_can_be_bound_to,
    make_sslinfo,
    of_pg_stat_ssl,
    of_sslinfo,
    options,
    start_with_certificates,
    visit,
)

pytestmark = pytest.mark.pool_only

HOW = {"native": {"pg_baton.native_dbuser_names": "*/*"}, "session": {"pg_baton.login": "server"}}


@pytest.fixture(scope="module", params=HOW)
def server(run, request, authority):  # noqa: F811
    make = functools.partial(run.cluster, f"tls {request.param}")
    parameters = {"pg_baton.max_backends": 4, "log_connections": True, **HOW[request.param]}
    cluster = start_with_certificates(make, authority, **parameters)
    cluster.sql("CREATE EXTENSION pg_baton; GRANT pg_monitor TO scrammed")
    cluster.how = request.param
    yield cluster
    cluster.finish()


@pytest.mark.parametrize("case", VISITS)
def test_certificates_and_binding_count_as_on_the_server_s_port(server, authority, case):  # noqa: F811
    user, certificate, more = VISITS[case]
    chosen = options(authority, user, certificate, **more)
    assert visit(server.pool(**chosen)) == visit(server.direct(**chosen))


def test_a_client_is_bound_to_the_certificate_that_it_was_shown(server, authority):  # noqa: F811
    """The binding also holds after another certificate has come into force, here one hashed by SHA-384."""
    chosen = options(authority, "scrammed", None, password="correct", channel_binding="require")

    def gets_in() -> bool:
        with psycopg.connect(server.pool(**chosen)) as session:
            (mode,) = session.execute("SELECT mode FROM pg_baton_sessions WHERE pid = pg_backend_pid()").fetchone()
            return mode == ("native" if server.how == "native" else "shared")

    assert gets_in()
    show(server, authority.server("renewed", key="rsa", digest="sha384"))
    assert gets_in()


def test_client_is_bound_to_a_certificate_signed_by_rsa_pss(server, authority):  # noqa: F811
    check_that_rsa_pss_can_be_bound_to(server, authority)


@pytest.mark.parametrize("case", ["by_dn", "bound", "plain"])
def test_pg_stat_ssl_shows_each_session_its_own(server, authority, case):  # noqa: F811
    user, certificate, more = {**VISITS, "plain": ("postgres", None, {"sslmode": "disable"})}[case]
    chosen = options(authority, user, certificate, **more)
    with psycopg.connect(server.direct(**chosen), autocommit=True) as direct:
        expected = of_pg_stat_ssl(direct)
    with psycopg.connect(server.pool(**chosen), autocommit=True) as session:
        assert of_pg_stat_ssl(session) == expected
        ((pid,),) = session.execute("SELECT pg_backend_pid()").fetchall()
        seen = server.sql(
            f"SELECT ssl, version, cipher, bits, client_dn, client_serial, issuer_dn FROM pg_stat_ssl WHERE pid = {pid}"
        )
        assert seen == [expected]


@pytest.mark.parametrize("case", ["by_dn", "bound", "plain"])
def test_sslinfo_is_right_or_says_that_it_cannot_know(server, authority, case):  # noqa: F811
    make_sslinfo(server)
    user, certificate, more = {**VISITS, "plain": ("postgres", None, {"sslmode": "disable"})}[case]
    chosen = options(authority, user, certificate, **more)
    expected = of_sslinfo(server.direct(**chosen))
    if certificate is not None:
        expected[-3:] = ["0A000"] * 3
    assert of_sslinfo(server.pool(**chosen)) == expected


@pytest.mark.parametrize("case", ["by_dn", "bound", "plain"])
def test_the_log_says_how_a_session_is_encrypted(server, authority, case):  # noqa: F811
    user, certificate, more = {**VISITS, "plain": ("postgres", None, {"sslmode": "disable"})}[case]
    chosen = options(authority, user, certificate, application_name="who SSL", **more)
    lines = []
    for conninfo in (server.direct, server.pool):
        since = server.log_file.stat().st_size
        psycopg.connect(conninfo(**chosen)).close()
        found: list[str] = []

        def is_said() -> bool:
            with server.log_file.open("rb") as log:
                log.seek(since)  # noqa: B023
                text = log.read().decode(errors="replace")
            found[:] = re.findall(rf"connection authorized: (user={user} .*application_name=who SSL.*)", text)  # noqa: B023
            return found != []  # noqa: B023

        wait_until(is_said, what="the line is in the log")
        lines.append(found)
    assert lines[0] == lines[1]
    assert ("SSL enabled (protocol=TLSv1.3, cipher=" in lines[0][0]) == (case != "plain")


def test_names_are_shown_in_the_database_s_encoding(server, authority):  # noqa: F811
    authority.sign("trusted", "/CN=trusted/O=Ünïcode ßüro")
    server.sql("DROP DATABASE IF EXISTS latin")
    server.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    chosen = options(authority, "trusted", "trusted", dbname="latin")
    found = []
    for conninfo in (server.direct, server.pool):
        with psycopg.connect(conninfo(**chosen), autocommit=True) as session:
            found.append(of_pg_stat_ssl(session))
    assert "Ünïcode" in found[1][4]
    # 18 stores the name before it knows the database, and shows UTF-8 as it is
    if server_major() < 18:
        assert found[0] == found[1]


def test_replication_by_tls_is_bound_and_shown(server, authority):  # noqa: F811
    if server.how != "native":
        pytest.skip("replication connections are native however others log in")
    server.sql("ALTER ROLE scrammed REPLICATION")
    server.write_hba(
        ["local all postgres trust", "host all postgres 127.0.0.1/32 trust"]
        + ["hostssl replication scrammed all scram-sha-256", *HBA],
        replaces=True,
    )
    server.reload()
    chosen = options(authority, "scrammed", None, password="correct", channel_binding="require", replication="true")

    def comes_in() -> bool:
        try:
            with psycopg.connect(server.pool(**chosen), autocommit=True) as session:
                pid = session.info.backend_pid
                assert server.sql(f"SELECT ssl, version FROM pg_stat_ssl WHERE pid = {pid}")[0][0] is True
            return True
        except psycopg.OperationalError:
            return False

    wait_until(comes_in, what="the new line is in force")
    said = r"replication connection authorized: user=scrammed.* SSL enabled \(protocol=TLSv1.3, cipher="
    wait_until(lambda: re.search(said, server.log_file.read_text(errors="replace")), what="the log says so")


# refused by the certificate, with or without a request for a password before
WRONG = ["another_s", "nameless", "not_in_the_map", "another_dn", "another_certificate", "trusted_with_another"]
# refused by pg_hba.conf alone
UNHEARD = ["without_one", "a_password_alone", "without_tls"]


@pytest.mark.parametrize("how", ["library", "login_server"])
def test_the_server_refuses_a_wrong_certificate(make_cluster, run, authority, how):  # noqa: F811
    """The log has the same lines about such clients as about those on the server's own port,
    including the lines of a library that audits logins."""
    parameters = {"pg_baton.max_backends": 2}
    if how == "library":
        parameters["shared_preload_libraries"] = f"pg_baton, {built_library(run, 'login_audit')}"
    else:
        parameters["pg_baton.login"] = "server"
    make = functools.partial(make_cluster, start=False)
    cluster = start_with_certificates(make, authority, **parameters)
    for case in [*WRONG, *UNHEARD]:
        user, certificate, more = VISITS[case]
        chosen = options(authority, user, certificate, **more)
        told, said = [], []
        for conninfo in (cluster.direct, cluster.pool):
            with cluster.new_log() as log:
                told.append(visit(conninfo(**chosen)))
                lines = re.findall(r"(?:LOG|FATAL|DETAIL):  ((?:audit:|.*failed for user|Connection matched).*)", log())
                said.append(sorted(re.sub(r"line \d+", "line", line) for line in lines))
        assert told[0] == told[1], case
        assert said[0] == said[1], case
        heard = [line for line in said[1] if line.startswith("audit:")]
        is_heard = how == "library" and case in WRONG
        assert heard == ([f"audit: {user} from 127.0.0.1: out"] if is_heard else []), case
