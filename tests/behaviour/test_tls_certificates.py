"""Clients that prove their identity by certificates, and servers that do so.

The tests compare the answers of the pool's port with those of the server's own port.
"""

from __future__ import annotations

import functools
import re
import socket
import ssl
import time

import psycopg
import pytest
from harness.certificates import Authority, make_secure, openssl, put, show
from harness.health import wait_until
from harness.wire import SSL_REQUEST, startup

HBA = [
    "hostssl all by_cert all cert",
    "hostssl all by_map all cert map=people",
    "hostssl all by_dn all cert clientname=DN map=names",
    "hostssl all any_cert all scram-sha-256 clientcert=verify-ca",
    "hostssl all own_cert all scram-sha-256 clientcert=verify-full",
    "hostssl all trusted all trust clientcert=verify-full",
    "hostssl all scrammed all scram-sha-256",
    "hostssl all hashed all md5",
    "host all all all reject",
]
IDENT = [
    "people somebody by_map",
    "people /^(.*)@example[.]com$ by_map",
    r'names "/^CN=by_dn,OU=Some\\, where,O=Example$" by_dn',
]
ROLES = """
CREATE ROLE by_cert LOGIN;
CREATE ROLE by_map LOGIN;
CREATE ROLE by_dn LOGIN;
CREATE ROLE any_cert LOGIN PASSWORD 'correct';
CREATE ROLE own_cert LOGIN PASSWORD 'correct';
CREATE ROLE trusted LOGIN;
CREATE ROLE scrammed LOGIN PASSWORD 'correct';
SET password_encryption = md5;
CREATE ROLE hashed LOGIN PASSWORD 'correct';
"""

# certificate file: its subject
SUBJECTS = {
    "by_cert": "/CN=by_cert",
    "somebody": "/CN=somebody",
    "mail": "/CN=anyone@example.com",
    "by_dn": "/O=Example/OU=Some, where/CN=by_dn",
    "any_cert": "/CN=whoever",
    "own_cert": "/CN=own_cert",
    "trusted": "/CN=trusted",
    "nameless": "/O=Example",
}


@pytest.fixture(scope="module")
def authority(run):
    authority = Authority(run.directory / "clients")
    for file, subject in SUBJECTS.items():
        authority.sign(file, subject)
    return authority


def start_with_certificates(make, authority, **parameters):
    """A cluster, made by `make`, that knows its clients by HBA, IDENT and ROLES."""
    cluster = make(
        parameters=parameters,
        hba=["local all postgres trust", "local all all reject", "host all postgres 127.0.0.1/32 trust", *HBA],
        hba_replaces=True,
    )
    make_secure(cluster, authority)
    cluster.write_ident(IDENT)
    cluster.start()
    cluster.sql(ROLES)
    return cluster


@pytest.fixture(scope="module", params=["normal", "forced"])
def server(run, request, authority):
    parameters = {"pg_baton.max_backends": 4, "pg_baton.force_migration": request.param == "forced"}
    make = functools.partial(run.cluster, f"cert {request.param}")
    cluster = start_with_certificates(make, authority, log_connections=True, **parameters)
    yield cluster
    cluster.finish()


def options(authority, user: str, certificate: str | None, **more) -> dict[str, object]:
    found: dict[str, object] = {"user": user, "sslmode": "require", **more}
    if certificate is not None:
        found["sslcert"] = authority.folder / f"{certificate}.crt"
        found["sslkey"] = authority.folder / f"{certificate}.key"
    else:
        found["sslcert"] = "/nonexistent"
    return found


def visit(conninfo: str) -> str:
    """The session_user that the server shows, or its refusal without the port."""
    try:
        with psycopg.connect(conninfo) as session:
            return session.execute("SELECT session_user").fetchone()[0]
    except psycopg.OperationalError as error:
        text = str(error).strip().splitlines()[0]
        return re.sub(r"^.*? failed: ", "", re.sub(r"port \d+", "port", text))


NAMED = re.compile(r'connection authenticated: identity="(.*)" method=(\S+)')

VISITS = {
    "by_cert": ("by_cert", "by_cert", {}),
    "without_one": ("by_cert", None, {}),
    "another_s": ("by_cert", "somebody", {}),
    "nameless": ("by_cert", "nameless", {}),
    "by_map": ("by_map", "somebody", {}),
    "by_map_with_regex": ("by_map", "mail", {}),
    "not_in_the_map": ("by_map", "by_cert", {}),
    "by_dn": ("by_dn", "by_dn", {}),
    "another_dn": ("by_dn", "by_cert", {}),
    "any_certificate": ("any_cert", "any_cert", {"password": "correct"}),
    "any_certificate_and_a_wrong_password": ("any_cert", "any_cert", {"password": "wrong"}),
    "a_password_alone": ("any_cert", None, {"password": "correct"}),
    "own_certificate": ("own_cert", "own_cert", {"password": "correct"}),
    "own_certificate_and_a_wrong_password": ("own_cert", "own_cert", {"password": "wrong"}),
    "another_certificate": ("own_cert", "any_cert", {"password": "correct"}),
    "trusted_with_its_own": ("trusted", "trusted", {}),
    "trusted_with_another": ("trusted", "any_cert", {}),
    "without_tls": ("by_cert", "by_cert", {"sslmode": "disable"}),
    "bound": ("scrammed", None, {"password": "correct", "channel_binding": "require"}),
    "not_bound": ("scrammed", None, {"password": "correct", "channel_binding": "disable"}),
    "bound_and_wrong": ("scrammed", None, {"password": "wrong", "channel_binding": "require"}),
    "md5_cannot_be_bound": ("hashed", None, {"password": "correct", "channel_binding": "require"}),
    "md5": ("hashed", None, {"password": "correct", "channel_binding": "prefer"}),
}


@pytest.mark.parametrize("case", VISITS)
def test_pool_lets_in_the_certificates_that_the_server_lets_in(server, authority, case):
    user, certificate, more = VISITS[case]
    chosen = options(authority, user, certificate, **more)
    expected = visit(server.direct(**chosen))
    assert visit(server.pool(**chosen)) == expected
    # again: the pool keeps answers
    assert visit(server.pool(**chosen)) == expected


def check_that_rsa_pss_can_be_bound_to(server, authority) -> None:
    """The parameters of the signature name the hash of the binding; the kind of the signature does not."""
    try:
        for digest in ("sha256", "sha512"):
            show(server, authority.sign_by_itself("pss", "rsa:2048", "-sigopt", "rsa_padding_mode:pss", f"-{digest}"))
            for case, gets_in in (("bound", True), ("bound_and_wrong", False), ("not_bound", True)):
                user, certificate, more = VISITS[case]
                chosen = options(authority, user, certificate, **more)
                expected = visit(server.direct(**chosen))
                assert (expected == user) == gets_in
                assert visit(server.pool(**chosen)) == expected
    finally:
        show(server, authority.server())


def test_client_is_bound_to_a_certificate_signed_by_rsa_pss(server, authority):
    check_that_rsa_pss_can_be_bound_to(server, authority)


def test_backends_are_opened_by_the_certificate_s_line(server, authority):
    for user, certificate, more in (
        ("by_cert", "by_cert", {}),
        ("by_dn", "by_dn", {}),
        ("own_cert", "own_cert", {"password": "correct"}),
    ):
        chosen = options(authority, user, certificate, **more)
        sessions = [psycopg.connect(server.pool(**chosen)) for _ in range(3)]
        for session in sessions:
            assert session.execute("SELECT current_user").fetchone() == (user,)
        for session in sessions:
            session.close()


def test_a_stranger_s_certificate_ends_the_handshake(server, authority):
    other = Authority(authority.folder / "other", "other")
    other.sign("by_cert", "/CN=by_cert")
    for conninfo in (server.pool, server.direct):
        with pytest.raises(psycopg.OperationalError, match="unknown ca|certificate verify failed"):
            psycopg.connect(
                conninfo(
                    user="by_cert",
                    sslmode="require",
                    sslcert=other.folder / "by_cert.crt",
                    sslkey=other.folder / "by_cert.key",
                )
            )


def test_a_revoked_certificate_ends_the_handshake(server, authority):
    folder = authority.folder
    (folder / "index.txt").write_text("")
    (folder / "crlnumber").write_text("01\n")
    (folder / "ca.cnf").write_text(
        f"[ca]\ndefault_ca = c\n[c]\ndatabase = {folder}/index.txt\ncrlnumber = {folder}/crlnumber\n"
        "default_md = sha256\ndefault_crl_days = 2\n"
    )
    ca = ["-config", str(folder / "ca.cnf"), "-cert", str(authority.root.certificate), "-keyfile"]
    ca.append(str(authority.root.key))
    openssl("ca", *ca, "-revoke", str(folder / "somebody.crt"))
    openssl("ca", *ca, "-gencrl", "-out", str(folder / "root.crl"))
    put(server, folder / "root.crl", "root.crl")
    server.set_parameters({"ssl_crl_file": "root.crl"})
    server.reload()
    chosen = options(authority, "by_map", "somebody")
    try:
        deadline = time.monotonic() + 20
        while "revoked" not in visit(server.pool(**chosen)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert visit(server.pool(**options(authority, "by_map", "mail"))) == "by_map"
    finally:
        server.set_parameters({"ssl_crl_file": None})
        server.reload()


def test_log_names_a_client_that_logs_in_by_certificate(server, authority):
    since = len(server.log_file.read_text(errors="replace"))
    assert visit(server.pool(**options(authority, "by_map", "mail", options="-c work_mem=5MB"))) == "by_map"
    deadline = time.monotonic() + 20
    while (
        'connection authenticated: identity="CN=anyone@example.com" method=cert'
        not in (server.log_file.read_text(errors="replace")[since:])
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# A client that leaves by itself without a message leaves no last line.
@pytest.mark.parametrize("case", sorted(set(VISITS) - {"md5_cannot_be_bound"}))
def test_log_names_the_same_identity_as_the_server(server, authority, case):
    """Also if the client proved its identity and may not log in as that role."""
    user, certificate, more = VISITS[case]
    chosen = options(authority, user, certificate, **more)
    with server.new_log() as said:
        visit(server.direct(**chosen))
        # Without the lines of a backend that the pool opens for the case before.
        lines = [line for line in said().splitlines() if "[127.0.0.1(" in line]
        expected = NAMED.findall("\n".join(lines))
    with server.new_log() as said:
        visit(server.pool(**chosen))
        # A refusal or a greeting comes last; if there are many refusals, their number.
        last = r"FATAL: |\[127\.0\.0\.1\(.*connection authorized|more like these"
        wait_until(lambda: re.search(last, said()), 20, "the log says so")
        lines = [line for line in said().splitlines() if "[127.0.0.1(" in line]
    assert NAMED.findall("\n".join(lines)) == expected


def server_major(server) -> int:
    return int(server.sql("SHOW server_version_num")[0][0]) // 10000


def takes_tls_at_once(port: int, protocols: list[str]) -> bool:
    """Whether the port takes TLS from the first byte on, and goes on with it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        try:
            with context.wrap_socket(raw) as connection:
                connection.sendall(startup({"user": "postgres", "database": "postgres"}))
                return connection.recv(1) == b"R"
        except OSError:
            return False


def test_direct_negotiation_is_as_on_the_server_s_port(server):
    """From 17 on, and only with ALPN; before 17, the bytes are no startup packet."""
    for port in (server.port, server.pool_port):
        assert takes_tls_at_once(port, ["postgresql"]) == (server_major(server) >= 17)
        assert not takes_tls_at_once(port, [])
    # libpq's own direct negotiation, from libpq 17 on
    outcomes = []
    for conninfo in (server.direct, server.pool):
        try:
            with psycopg.connect(conninfo(sslmode="require", sslnegotiation="direct")) as session:
                outcomes.append(session.execute("SELECT 1").fetchone())
        except psycopg.OperationalError:
            outcomes.append("refused")
    assert outcomes == ([(1,), (1,)] if server_major(server) >= 17 else ["refused", "refused"])


def test_a_request_for_tls_within_direct_tls_is_refused_as_there(server):
    """The server refuses it once, and the client may go on; after the next request the connection ends."""
    if server_major(server) < 17:
        pytest.skip("no TLS from the first byte on before 17")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["postgresql"])
    answers = []
    for port in (server.port, server.pool_port):
        for last in (startup({"user": "postgres", "database": "postgres"}), SSL_REQUEST):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=20) as raw,
                context.wrap_socket(raw) as connection,
            ):
                connection.sendall(SSL_REQUEST)
                first = connection.recv(1)
                connection.sendall(last)
                answers.append((first, connection.recv(1)))
    assert answers == [(b"N", b"R"), (b"N", b"E")] * 2


def test_another_protocol_by_alpn_is_refused_from_17_on(server):
    answers = []
    for port in (server.port, server.pool_port):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
            raw.sendall(SSL_REQUEST)
            assert raw.recv(1) == b"S"
            try:
                with context.wrap_socket(raw) as connection:
                    answers.append(connection.selected_alpn_protocol())
            except ssl.SSLError:
                answers.append("refused")
    assert answers[0] == answers[1]


def of_pg_stat_ssl(session) -> tuple:
    return session.execute(
        "SELECT ssl, version, cipher, bits, client_dn, client_serial, issuer_dn "
        "FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    ).fetchone()


@pytest.mark.parametrize("case", ["by_dn", "bound", "plain"])
def test_pg_stat_ssl_shows_each_session_its_own(server, authority, case):
    user, certificate, more = {**VISITS, "plain": ("postgres", None, {"sslmode": "disable"})}[case]
    chosen = options(authority, user, certificate, **more)
    with psycopg.connect(server.direct(**chosen), autocommit=True) as direct:
        expected = of_pg_stat_ssl(direct)
    with psycopg.connect(server.pool(**chosen), autocommit=True) as session:
        other = psycopg.connect(server.pool(sslmode="disable"), autocommit=True)
        for _ in range(3):
            assert of_pg_stat_ssl(session) == expected
            assert of_pg_stat_ssl(other)[0] is False
        # the idle session, as another session sees it
        ((pid,),) = session.execute("SELECT pg_backend_pid()").fetchall()
        seen = server.sql(
            f"SELECT ssl, version, cipher, bits, client_dn, client_serial, issuer_dn FROM pg_stat_ssl WHERE pid = {pid}"
        )
        assert seen == [expected]
        other.close()


SSLINFO = (
    "SELECT ssl_is_used(), ssl_version(), ssl_cipher(), ssl_client_cert_present(), ssl_client_serial(),"
    " ssl_client_dn(), ssl_issuer_dn()"
)
SSLINFO_OF_CERTIFICATE = (
    "SELECT ssl_client_dn_field('CN')",
    "SELECT ssl_issuer_field('CN')",
    "SELECT * FROM ssl_extension_info()",
)


def of_sslinfo(conninfo: str) -> list[object]:
    """The results of all functions of sslinfo, or the SQLSTATE that they fail with; the first
    statement twice, and some functions in the other ways that functions are called."""
    said: list[object] = []
    with psycopg.connect(conninfo, autocommit=True) as session:
        for statement in (
            SSLINFO,
            SSLINFO,
            "SELECT * FROM ssl_version()",
            "SELECT secure_version()",
            "SELECT defined()",
        ):
            said.append(session.execute(statement).fetchall())
        for statement in SSLINFO_OF_CERTIFICATE:
            try:
                said.append(session.execute(statement).fetchall())
            except psycopg.Error as error:
                said.append(error.sqlstate)
        assert session.execute("SELECT 1").fetchone() == (1,)
    return said


def make_sslinfo(cluster) -> None:
    cluster.sql("CREATE EXTENSION IF NOT EXISTS sslinfo")
    cluster.sql(
        "CREATE OR REPLACE FUNCTION secure_version() RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN ssl_version(); END'"
    )
    cluster.sql(
        "CREATE OR REPLACE FUNCTION defined() RETURNS text LANGUAGE c SECURITY DEFINER AS '$libdir/sslinfo', 'ssl_cipher'"
    )


@pytest.mark.parametrize("case", ["by_dn", "bound", "plain"])
def test_sslinfo_is_right_or_says_that_it_cannot_know(server, authority, case):
    make_sslinfo(server)
    user, certificate, more = {**VISITS, "plain": ("postgres", None, {"sslmode": "disable"})}[case]
    chosen = options(authority, user, certificate, **more)
    expected = of_sslinfo(server.direct(**chosen))
    if certificate is not None:
        assert expected[-3] == [(user,)]
        expected[-3:] = ["0A000"] * 3
    # and no session gets the values of the other session on its backend
    for _ in range(2):
        assert of_sslinfo(server.pool(**chosen)) == expected
        assert of_sslinfo(server.pool(sslmode="disable"))[0] == [(False, None, None, False, None, None, None)]
