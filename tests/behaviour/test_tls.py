"""TLS clients are served as on the server's own port.

Real clients: libpq (psycopg's own and its command psql), OpenSSL's s_client,
Python's ssl.  Most tests run in normal operation and under forced migration.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import ssl
import struct
import threading
import time

import psycopg
import pytest
from harness.certificates import Authority, make_secure, put
from harness.health import stop
from harness.wire import SSL_REQUEST, Wire, cancel, query, startup

HBA = [
    "hostssl all only_secure all trust",
    "host all only_secure all reject",
    "hostnossl all only_plain all trust",
    "host all only_plain all reject",
    "local all by_password reject",
    "local all by_md5 reject",
    "hostssl all by_password all scram-sha-256",
    "hostssl all by_md5 all md5",
    "host all by_password,by_md5 all reject",
]
ROLES = """
CREATE EXTENSION pg_baton;
CREATE ROLE only_secure LOGIN;
CREATE ROLE only_plain LOGIN;
CREATE ROLE by_password LOGIN PASSWORD 'correct';
SET password_encryption = md5;
CREATE ROLE by_md5 LOGIN PASSWORD 'correct';
"""


@pytest.fixture(scope="module")
def authority(run):
    return Authority(run.directory / "certificates")


@pytest.fixture(scope="module", params=["normal", "forced"])
def server(run, request, authority):
    forced = request.param == "forced"
    cluster = run.cluster(
        f"tls {request.param}",
        parameters={"pg_baton.max_backends": 4, "pg_baton.force_migration": forced, "log_connections": True},
        hba=HBA,
    )
    make_secure(cluster, authority)
    cluster.start()
    cluster.sql(ROLES)
    yield cluster
    cluster.finish()


def secure(server, **options) -> str:
    return server.pool(sslmode="require", **options)


def shake_hands(server, **options) -> ssl.SSLSocket:
    """A TLS connection to the pool, before its startup packet."""
    raw = socket.create_connection(("127.0.0.1", server.pool_port), timeout=30)
    raw.sendall(SSL_REQUEST)
    assert raw.recv(1) == b"S"
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for name, value in options.items():
        setattr(context, name, value)
    return context.wrap_socket(raw)


def read_until_ready(connection) -> bytes:
    """All messages up to ReadyForQuery."""
    got = b""
    at = 0
    while True:
        while len(got) >= at + 5:
            (length,) = struct.unpack_from("!I", got, at + 1)
            if len(got) < at + 1 + length:
                break
            kind = got[at : at + 1]
            at += 1 + length
            if kind == b"Z":
                return got
        more = connection.recv(65536)
        if not more:
            raise EOFError(got)
        got += more


def wait_for_log(server, text: str, since: int = 0) -> None:
    deadline = time.monotonic() + 20
    while text not in server.log_file.read_text(errors="replace")[since:]:
        assert time.monotonic() < deadline, f"the log has no {text!r}\n{server.log_tail()}"
        time.sleep(0.05)


def log_length(server) -> int:
    return len(server.log_file.read_text(errors="replace"))


def test_a_secure_session_is_served_like_any_other(server):
    with psycopg.connect(secure(server), autocommit=True) as one, psycopg.connect(secure(server)) as other:
        one.execute("SET work_mem = '7MB'")
        one.execute("PREPARE p AS SELECT current_setting('work_mem')")
        for _ in range(3):
            assert one.execute("EXECUTE p").fetchone() == ("7MB",)
            assert other.execute("SHOW work_mem").fetchone() == ("4MB",)
            other.commit()
        address = one.execute("SELECT host(inet_client_addr()), inet_client_port(), inet_server_port()").fetchone()
        local = socket.fromfd(one.fileno(), socket.AF_INET, socket.SOCK_STREAM).getsockname()
        assert address == ("127.0.0.1", local[1], server.pool_port)


def test_client_that_verifies_the_server_gets_in(server, authority):
    root = authority.root.certificate
    with psycopg.connect(server.pool(sslmode="verify-full", sslrootcert=root)) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
    other = Authority(authority.folder / "other", "other")
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        psycopg.connect(server.pool(sslmode="verify-full", sslrootcert=other.root.certificate))


@pytest.mark.parametrize("port", ["pool", "direct"])
def test_lines_for_secure_clients_are_for_them_alone(server, port):
    conninfo = getattr(server, port)
    for user, mode, encryption in (
        ("only_secure", "disable", "no encryption"),
        ("only_plain", "require", "SSL encryption"),
    ):
        with pytest.raises(psycopg.OperationalError) as refused:
            psycopg.connect(conninfo(user=user, sslmode=mode))
        text = f'pg_hba.conf rejects connection for host "127.0.0.1", user "{user}", database "postgres", {encryption}'
        assert text in str(refused.value)
    for user, mode in (("only_secure", "require"), ("only_plain", "disable")):
        with psycopg.connect(conninfo(user=user, sslmode=mode)) as session:
            assert session.execute("SELECT current_user").fetchone() == (user,)


@pytest.mark.parametrize("user", ["by_password", "by_md5"])
def test_backends_are_let_in_by_the_line_for_secure_clients(server, user):
    sessions = [psycopg.connect(secure(server, user=user, password="correct")) for _ in range(3)]
    for session in sessions:
        # each session is in a transaction: it has a backend of its own
        assert session.execute("SELECT current_user").fetchone() == (user,)
    for session in sessions:
        session.close()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(secure(server, user=user, password="wrong"))


def test_much_goes_both_ways(server):
    rows = 200_000
    with psycopg.connect(secure(server), autocommit=True) as session:
        session.execute("CREATE TABLE IF NOT EXISTS much (n int, filling text)")
        session.execute("TRUNCATE much")
        sent, back = hashlib.sha256(), hashlib.sha256()
        with session.cursor().copy("COPY much FROM STDIN") as into:
            for number in range(0, rows, 1000):
                # all lines differ: the test notices a line that is lost, doubled or in another line's place
                lines = "".join(f"{at}\t{at * 7919:0200d}\n" for at in range(number, number + 1000)).encode()
                sent.update(lines)
                into.write(lines)
        with session.cursor().copy("COPY (SELECT * FROM much ORDER BY n) TO STDOUT") as out:
            for data in out:
                back.update(data)
        assert back.hexdigest() == sent.hexdigest()
        session.execute("DROP TABLE much")


def test_pipelines_arrive_whole(server):
    with psycopg.connect(secure(server), autocommit=True) as session, session.pipeline():
        cursors = [session.execute("SELECT %s::int, repeat('y', 5000)", (number,)) for number in range(500)]
        assert [cursor.fetchone()[0] for cursor in cursors] == list(range(500))


def test_a_secure_session_is_cancelled(server):
    with psycopg.connect(secure(server), autocommit=True) as session:
        for safe in (True, False):
            timer = threading.Timer(0.5, lambda: session.cancel_safe() if safe else session.cancel())  # noqa: B023
            timer.start()
            with pytest.raises(psycopg.errors.QueryCanceled):
                session.execute("SELECT pg_sleep(60)")
            timer.join()
            assert session.execute("SELECT 1").fetchone() == (1,)


def test_an_encrypted_cancel_request_is_heard(server):
    with psycopg.connect(secure(server), autocommit=True) as session:
        key = session.pgconn.backend_pid
        assert key
    victim = shake_hands(server)
    victim.sendall(startup({"user": "postgres", "database": "postgres"}))
    greeting = read_until_ready(victim)
    at = greeting.index(b"K\0\0\0\x0c")
    pid, secret = struct.unpack_from("!i4s", greeting, at + 5)
    victim.sendall(query("SELECT pg_sleep(60)"))
    time.sleep(0.5)
    messenger = shake_hands(server)
    messenger.sendall(cancel(pid, secret))
    # the pool hears the request, and closes the connection without an answer
    assert messenger.recv(100) == b""
    answer = read_until_ready(victim)
    assert b"57014" in answer
    victim.close()


def test_log_says_how_a_session_is_encrypted(server):
    since = log_length(server)
    with psycopg.connect(secure(server, user="only_secure")) as session:
        session.execute("SELECT 1")
    wait_for_log(server, "user=only_secure database=postgres SSL enabled (protocol=TLSv1.3, cipher=TLS_", since)


def test_a_client_that_goes_ends_its_session(server):
    idle = "SELECT count(*) FROM pg_baton_sessions WHERE user_name = 'only_secure'"
    for way in ("closes", "resets", "says so"):
        connection = shake_hands(server)
        connection.sendall(startup({"user": "only_secure", "database": "postgres"}))
        read_until_ready(connection)
        assert server.sql(idle) == [(1,)]
        if way == "resets":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if way == "says so":
            with contextlib.suppress(OSError):
                connection.unwrap()
        connection.close()
        deadline = time.monotonic() + 20
        while server.sql(idle) != [(0,)]:
            assert time.monotonic() < deadline, way
            time.sleep(0.05)


@pytest.mark.pool_only
@pytest.mark.parametrize("end", ["the client's", "the server's"])
def test_an_end_that_comes_with_the_last_words_is_seen(server, end):
    """The relay is told of the last data and of the end at once, when it looks again."""
    server.sql("ALTER ROLE only_secure SET pg_baton.pool_mode = native")
    idle = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'only_secure'"
    (dispatcher,) = server.dispatcher_pids()
    try:
        connection = shake_hands(server)
        connection.sendall(startup({"user": "only_secure", "database": "postgres"}))
        read_until_ready(connection)
        stop(dispatcher)
        try:
            if end == "the client's":
                connection.sendall(query("SELECT 1"))
                connection.shutdown(socket.SHUT_WR)
            else:
                server.sql(
                    "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE usename = 'only_secure'"
                )
        finally:
            os.kill(dispatcher, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while server.sql(idle) != [(0,)]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if end == "the server's":
            assert b"57P01" in connection.recv(65536)
            assert connection.recv(65536) == b""
        connection.close()
    finally:
        server.sql("ALTER ROLE only_secure RESET pg_baton.pool_mode")


def test_a_client_that_goes_in_its_query_is_noticed(server):
    """client_connection_check_interval looks at the socket that is handed over."""
    connection = shake_hands(server)
    options = "-c client_connection_check_interval=100ms"
    connection.sendall(startup({"user": "only_secure", "database": "postgres", "options": options}))
    read_until_ready(connection)
    connection.sendall(query("SELECT pg_sleep(600)"))
    active = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'only_secure' AND query LIKE '%pg_sleep(600)'"
    active += " AND state = 'active'"
    deadline = time.monotonic() + 20
    while server.sql(active) != [(1,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    connection.close()
    while server.sql(active) != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_renegotiation_is_refused(server):
    """s_client asks for a renegotiation at R; the session goes on or ends, but no renegotiation is done."""
    import subprocess

    process = subprocess.Popen(
        ["openssl", "s_client", "-starttls", "postgres", "-tls1_2", "-connect", f"127.0.0.1:{server.pool_port}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    time.sleep(1)
    out, _ = process.communicate(b"R\nR\n", timeout=30)
    assert b"Protocol  : TLSv1.2" in out
    assert b"no renegotiation" in out, out.decode(errors="replace")


def test_reload_brings_new_certificates_and_ends_no_session(server, authority):
    def serial() -> int:
        with contextlib.closing(socket.create_connection(("127.0.0.1", server.pool_port))) as raw:
            raw.sendall(SSL_REQUEST)
            assert raw.recv(1) == b"S"
            context = ssl.create_default_context(cafile=str(authority.root.certificate))
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 asks more of our own root
            with context.wrap_socket(raw, server_hostname="localhost") as connection:
                return int(connection.getpeercert()["serialNumber"], 16)

    before = serial()
    with psycopg.connect(secure(server), autocommit=True) as session:
        renewed = authority.server("renewed", key="rsa")
        put(server, renewed.certificate, "server.crt")
        put(server, renewed.key, "server.key")
        server.reload()
        deadline = time.monotonic() + 20
        while serial() == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        after = serial()
        assert session.execute("SELECT 1").fetchone() == (1,)

        # a key that other users may read: the certificate from before stays, and the log
        # says why (the server itself logs this, too)
        since = log_length(server)
        another = authority.server("another", key="rsa")
        put(server, another.certificate, "server.crt")
        put(server, another.key, "server.key", mode=0o644)
        server.reload()
        wait_for_log(server, 'pg_baton: private key file "server.key" has group or world access', since)
        wait_for_log(server, "pg_baton: SSL configuration was not reloaded", since)
        assert serial() == after
        since = log_length(server)
        put(server, renewed.key, "server.key")
        (server.data / "server.crt").write_text("nonsense")
        server.reload()
        wait_for_log(server, 'pg_baton: could not load server certificate file "server.crt"', since)
        assert serial() == after
        assert session.execute("SELECT 1").fetchone() == (1,)
        put(server, renewed.certificate, "server.crt")
        server.reload()


def test_parameters_of_tls_are_the_server_s(server):
    # All are set at once: a reload before this may still read the file.
    chosen = {"ssl_min_protocol_version": "TLSv1.2", "ssl_max_protocol_version": "TLSv1.2"}
    chosen["ssl_ciphers"] = "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256"
    server.set_parameters({**chosen, "ssl_ecdh_curve": "secp384r1"})
    server.reload()
    try:
        deadline = time.monotonic() + 20
        while True:
            with shake_hands(server) as connection:
                cipher, version, _ = connection.cipher()
            if version == "TLSv1.2":
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # not the cipher that both sides prefer
        assert cipher.endswith("AES128-GCM-SHA256")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(secure(server, ssl_min_protocol_version="TLSv1.3"))
    finally:
        server.set_parameters({"ssl_min_protocol_version": None, "ssl_max_protocol_version": None})
        server.set_parameters({"ssl_ciphers": None, "ssl_ecdh_curve": None})
        server.reload()


def test_without_tls_the_answer_is_no(server):
    server.set_parameters({"ssl": False})
    server.reload()
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.closing(socket.create_connection(("127.0.0.1", server.pool_port))) as raw:
                raw.sendall(SSL_REQUEST)
                if raw.recv(1) == b"N":
                    break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with psycopg.connect(server.pool(sslmode="prefer")) as session:
            assert session.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.set_parameters({"ssl": True})
        server.reload()
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(secure(server)):
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_on_a_unix_socket_there_is_no_tls(server):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as raw:
        raw.connect(str(server.home / f".s.PGSQL.{server.pool_port}"))
        raw.sendall(SSL_REQUEST)
        assert raw.recv(1) == b"N"


def test_tcp_settings_show_their_values_and_log_no_complaint(server):
    since = log_length(server)
    with psycopg.connect(secure(server), autocommit=True) as session:
        names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
        plain = psycopg.connect(server.pool(), autocommit=True)
        for name in names:
            assert session.execute(f"SHOW {name}").fetchone() == plain.execute(f"SHOW {name}").fetchone()
            session.execute(f"SET {name} = 77")
            assert session.execute(f"SHOW {name}").fetchone() == ("77",)
        plain.close()
        session.execute("SELECT * FROM pg_settings").fetchall()
    assert "sockopt(" not in server.log_file.read_text(errors="replace")[since:]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_slow_line_is_no_silence(run, authority, host):
    """A message may take longer than the limit while it goes on; a client that does not go on is cut off."""
    parameters = {
        "pg_baton.message_timeout_ms": 1000,
        "pg_baton.max_backends": 1,
        "pg_baton.listen_addresses": "127.0.0.1, ::1",
    }
    cluster = run.cluster("slow line", parameters=parameters)
    make_secure(cluster, authority)
    cluster.start()
    try:
        whole = query("SELECT 42 /*" + 1_500_000 * "x" + "*/")
        with Wire.login(host, cluster.pool_port, secure=True) as slow:
            for at in range(0, len(whole), 250_000):
                slow.send(whole[at : at + 250_000])
                time.sleep(0.5)
            assert [found.row() for found in slow.until_ready() if found.type == "D"] == [[b"42"]]
            slow.send(whole[:100_000])
            for _ in range(25):
                with contextlib.suppress(OSError):
                    slow.send(b"x")
                time.sleep(0.1)
            assert slow.until_closed()[-1].fields()["C"] == "57P05"
    finally:
        cluster.finish()
