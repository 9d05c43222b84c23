"""Logging in: the same methods, limits and errors as on the server's port."""

from __future__ import annotations

import re
import struct

import psycopg
import pytest
from harness.compare import describe
from harness.health import wait_until
from harness.login_shape import shape
from harness.plain import without_tls
from harness.wire import GSSENC_REQUEST, LoginFailed, Wire, message, startup, text

HBA = [
    "host all by_md5 127.0.0.1/32 md5",
    "host all md5_with_scram 127.0.0.1/32 md5",
    "host all by_scram 127.0.0.1/32 scram-sha-256",
    "host all scram_with_md5 127.0.0.1/32 scram-sha-256",
    "host all expired,no_password,limited_scram 127.0.0.1/32 scram-sha-256",
    "host all nobody 127.0.0.1/32 scram-sha-256",
    "host all nobody_md5 127.0.0.1/32 md5",
    "host all nobody_password 127.0.0.1/32 password",
    "host all by_password 127.0.0.1/32 password",
    "host all rejected 127.0.0.1/32 reject",
    "host reject_here all 127.0.0.1/32 reject",
    "host all +group_members 127.0.0.1/32 password",
    "hostssl all only_ssl 127.0.0.1/32 trust",
    "host all only_ssl 127.0.0.1/32 reject",
    "host all from_elsewhere 10.9.8.0/24 trust",
    "host all from_elsewhere 127.0.0.1/32 reject",
    "host all by_ldap 127.0.0.1/32 ldap ldapserver=127.0.0.1 ldapprefix=x",
    "host sameuser by_sameuser 127.0.0.1/32 trust",
    "host all by_sameuser 127.0.0.1/32 reject",
    "local all by_peer peer",
    "local all by_scram scram-sha-256",
]

SETUP = [
    "SET password_encryption = 'md5'; CREATE ROLE by_md5 LOGIN PASSWORD 'secret'",
    "SET password_encryption = 'md5'; CREATE ROLE scram_with_md5 LOGIN PASSWORD 'secret'",
    "CREATE ROLE by_scram LOGIN PASSWORD 'sécret'",
    "CREATE ROLE md5_with_scram LOGIN PASSWORD 'secret'",
    "CREATE ROLE by_password LOGIN PASSWORD 'secret'",
    "CREATE ROLE expired LOGIN PASSWORD 'secret' VALID UNTIL '2001-01-01'",
    "CREATE ROLE expired_trusted LOGIN PASSWORD 'secret' VALID UNTIL '2001-01-01'",
    "CREATE ROLE no_password LOGIN",
    "CREATE ROLE rejected LOGIN",
    "CREATE ROLE only_ssl LOGIN",
    "CREATE ROLE from_elsewhere LOGIN",
    "CREATE ROLE by_ldap LOGIN",
    "CREATE ROLE by_peer LOGIN",
    "CREATE ROLE by_sameuser LOGIN",
    "CREATE ROLE group_members NOLOGIN",
    "CREATE ROLE member LOGIN PASSWORD 'secret' IN ROLE group_members",
    "CREATE ROLE no_login NOLOGIN",
    "CREATE ROLE trusted LOGIN",
    "CREATE ROLE limited LOGIN CONNECTION LIMIT 1",
    "CREATE ROLE limited_scram LOGIN PASSWORD 'secret' CONNECTION LIMIT 0",
    "CREATE DATABASE no_connect",
    "REVOKE CONNECT ON DATABASE no_connect FROM PUBLIC",
    "CREATE DATABASE closed ALLOW_CONNECTIONS false",
    "CREATE DATABASE full_up CONNECTION LIMIT 0",
    "CREATE DATABASE reject_here",
    "CREATE DATABASE by_sameuser",
]

PARAMETERS = {"authentication_timeout": "8s"}

GOOD = [
    ("postgres", "postgres", None),
    ("trusted", "postgres", None),
    ("trusted", "postgres", "not asked for"),
    ("by_md5", "postgres", "secret"),
    ("md5_with_scram", "postgres", "secret"),
    ("by_scram", "postgres", "sécret"),
    ("by_password", "postgres", "secret"),
    ("member", "postgres", "secret"),
    ("by_sameuser", "by_sameuser", None),
    ("expired_trusted", "postgres", None),
]

BAD = {
    "wrong_password_md5": ("by_md5", "postgres", "wrong"),
    "wrong_password_scram": ("by_scram", "postgres", "wrong"),
    "wrong_password_plain": ("by_password", "postgres", "wrong"),
    "wrong_password_md5_with_scram_verifier": ("md5_with_scram", "postgres", "wrong"),
    "scram_line_with_md5_verifier": ("scram_with_md5", "postgres", "secret"),
    "empty_password_plain": ("by_password", "postgres", ""),
    "empty_password_md5": ("by_md5", "postgres", ""),
    "empty_password_scram": ("by_scram", "postgres", ""),
    "password_expired": ("expired", "postgres", "secret"),
    "password_expired_and_wrong": ("expired", "postgres", "wrong"),
    "user_without_password": ("no_password", "postgres", "secret"),
    "unknown_user_trust": ("who_is_this", "postgres", None),
    "unknown_user_scram": ("nobody", "postgres", "secret"),
    "unknown_user_md5": ("nobody_md5", "postgres", "secret"),
    "unknown_user_password": ("nobody_password", "postgres", "secret"),
    "unknown_database": ("postgres", "no_such_database", None),
    "unknown_database_with_password": ("by_scram", "no_such_database", "sécret"),
    "unknown_database_and_wrong_password": ("by_scram", "no_such_database", "wrong"),
    "unknown_user_and_database": ("who_is_this", "no_such_database", None),
    "rejected_by_line": ("rejected", "postgres", None),
    "rejected_by_database": ("postgres", "reject_here", None),
    "only_with_ssl": ("only_ssl", "postgres", None),
    "from_elsewhere": ("from_elsewhere", "postgres", None),
    "sameuser_elsewhere": ("by_sameuser", "postgres", None),
    "nologin": ("no_login", "postgres", None),
    "no_connect_privilege": ("trusted", "no_connect", None),
    "database_closed": ("postgres", "closed", None),
    "template0": ("postgres", "template0", None),
    "database_full": ("trusted", "full_up", None),
    "role_limit_zero": ("limited_scram", "postgres", "secret"),
    "default_database_is_the_user_s_name": ("trusted", None, None),
    "empty_user": ("", "postgres", None),
    "long_names": ("u" * 100, "d" * 100, None),
}


def login(port: int, user: str, database: str | None, password: str | None, host: str = "127.0.0.1", **options):
    wire = Wire.open(host, port, 20)
    messages = wire.log_in(user, database, password, **options)
    return wire, messages


@pytest.mark.parametrize("user, database, password", GOOD)
def test_every_method_lets_the_right_client_in(server, user, database, password):
    shapes = []
    for port in (server.port, server.pool_port):
        wire, messages = login(port, user, database, password)
        assert messages[-1].type == "Z", [describe(m) for m in messages]
        shapes.append(shape(messages))
        for _ in range(3):
            assert wire.query("SELECT session_user, current_database()") == [[user, database]]
        wire.finish()
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "promise", [pytest.param(name, marks=[without_tls] * (name == "only_with_ssl")) for name in BAD]
)
def test_a_login_that_fails_gets_the_server_s_own_error(server, promise):
    user, database, password = BAD[promise]
    shapes = []
    for port in (server.port, server.pool_port):
        wire, messages = login(port, user, database, password)
        wire.close()
        shapes.append(shape(messages))
    assert shapes[0][-1].startswith("E"), shapes[0]
    assert shapes[1] == shapes[0]


def test_peer_compares_the_system_s_user(server):
    shapes = []
    for port in (server.port, server.pool_port):
        wire, messages = login(port, "by_peer", "postgres", None, host=str(server.home))
        wire.close()
        shapes.append(shape(messages))
    assert shapes[1] == shapes[0]


def test_scram_over_the_unix_socket(server):
    shapes = []
    for port in (server.port, server.pool_port):
        for password in ("sécret", "wrong"):
            wire, messages = login(port, "by_scram", "postgres", password, host=str(server.home))
            wire.close()
            shapes.append(shape(messages))
    assert shapes[2:] == shapes[:2]


def test_a_method_that_only_the_server_knows_fails_as_there(server):
    """test_login_by_server.py has the logins by such methods that succeed."""
    shapes = []
    for port in (server.port, server.pool_port):
        wire, messages = login(port, "by_ldap", "postgres", "secret")
        wire.close()
        shapes.append(shape(messages))
    assert shapes[0][-1].startswith("E") and shapes[1] == shapes[0]


def test_connection_limit_of_a_role_counts(server):
    for port in (server.port, server.pool_port):
        first, messages = login(port, "limited", "postgres", None)
        assert messages[-1].type == "Z"
        second, messages = login(port, "limited", "postgres", None)
        assert [m.fields()["C"] for m in messages if m.type == "E"] == ["53300"]
        assert 'too many connections for role "limited"' in describe(messages[-1])
        second.close()
        first.query("SELECT 1")
        first.finish()

        def gets_in() -> bool:
            third, messages = login(port, "limited", "postgres", None)
            third.finish()
            return messages[-1].type == "Z"

        wait_until(gets_in, what="the first has gone")
        if port == server.port:
            there = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'limited'"
            wait_until(lambda: server.sql(there) == [(0,)], what="nobody is in the way of the pool's first")


@pytest.mark.pool_only
def test_what_is_logged_of_a_login_is_what_the_server_logs(server):
    server.set_parameters({"log_connections": True, "log_disconnections": True})
    server.reload()
    try:
        wait_until(lambda: server.sql("SHOW log_disconnections") == [("on",)], what="a reload")
        with server.new_log() as log:

            def the_pool_logs() -> bool:
                psycopg.connect(server.pool(user="trusted")).close()
                said = "authorized: user=trusted", "disconnection: .* user=trusted"
                return all(re.search(f"LOG:  (connection )?{words}", log()) for words in said)

            wait_until(the_pool_logs, what="the dispatcher has been told of the reload")
        found = []
        for port in (server.port, server.pool_port):
            with server.new_log() as log:
                wire, messages = login(port, "by_scram", "postgres", "sécret", application_name="café one")
                assert messages[-1].type == "Z"
                wire.finish()
                wait_until(lambda: re.search("LOG:  disconnection.*by_scram", log()), what="its end is logged")
                lines = re.findall("LOG:  ((?:connection auth|disconnection).*by_scram.*)", log())
            found.append([re.sub(r"port=\d+|time: [\d:.]+", "", line) for line in lines])
        assert len(found[0]) == 3 and found[0] == found[1]
    finally:
        server.set_parameters({"log_connections": False, "log_disconnections": False})
        server.reload()


def test_a_connection_limit_counts_own_sessions_despite_renames(server):
    """The sessions of the role that had the name before count for that role, under its new name."""
    for port in (server.port, server.pool_port):
        server.sql("CREATE ROLE known LOGIN")
        sessions = [login(port, "known", "postgres", None)[0] for _ in range(2)]
        try:
            server.sql("ALTER ROLE known RENAME TO known_before")
            server.sql("ALTER ROLE known_before CONNECTION LIMIT 2")
            server.sql("CREATE ROLE known LOGIN CONNECTION LIMIT 1")
            wire, messages = login(port, "known", "postgres", None)
            sessions.append(wire)
            assert messages[-1].type == "Z"
            for name in ("known", "known_before"):
                wire, messages = login(port, name, "postgres", None)
                sessions.append(wire)
                assert f'too many connections for role "{name}"' in describe(messages[-1])
        finally:
            for wire in sessions:
                wire.close()
            server.sql("DROP ROLE IF EXISTS known")
            server.sql("DROP ROLE IF EXISTS known_before")


def test_a_changed_password_counts_at_once(server):
    server.sql("CREATE ROLE changing LOGIN PASSWORD 'one'")
    try:
        server.write_hba(["host all changing 127.0.0.1/32 scram-sha-256", *HBA])
        server.reload()

        def is_asked() -> bool:
            wire, messages = login(server.pool_port, "changing", "postgres", "wrong")
            wire.close()
            return messages[-1].type == "E"

        wait_until(is_asked, what="the new pg_hba.conf is read")
        wire, messages = login(server.pool_port, "changing", "postgres", "one")
        assert messages[-1].type == "Z"
        server.sql("ALTER ROLE changing PASSWORD 'two'")
        late, messages = login(server.pool_port, "changing", "postgres", "one")
        assert [m.fields()["C"] for m in messages if m.type == "E"] == ["28P01"]
        late.close()
        new, messages = login(server.pool_port, "changing", "postgres", "two")
        assert messages[-1].type == "Z"
        assert new.query("SELECT 1") == [["1"]]
        assert wire.query("SELECT 1") == [["1"]], "a session that was logged in goes on"
        wire.finish()
        new.finish()
        server.sql("ALTER ROLE changing NOLOGIN")
        wire, messages = login(server.pool_port, "changing", "postgres", "two")
        wire.close()
        assert [m.fields()["C"] for m in messages if m.type == "E"] == ["28000"]
    finally:
        server.write_hba(HBA)
        server.reload()
        server.sql("DROP ROLE IF EXISTS changing")


def test_new_users_and_databases_are_known_at_once(server):
    server.sql("CREATE ROLE newcomer LOGIN")
    server.sql("CREATE DATABASE newplace OWNER newcomer")
    try:
        with psycopg.connect(server.pool(user="newcomer", dbname="newplace"), autocommit=True) as session:
            assert session.execute("SELECT current_user, current_database()").fetchone() == ("newcomer", "newplace")
    finally:
        server.sql("DROP DATABASE newplace WITH (FORCE)")
        server.sql("DROP ROLE newcomer")


def test_unfinished_logins_end_after_authentication_timeout(server):
    silent = Wire.open("127.0.0.1", server.pool_port)
    half = Wire.open("127.0.0.1", server.pool_port)
    half.send(startup({"user": "postgres", "database": "postgres"})[:11])
    asked = Wire.open("127.0.0.1", server.pool_port)
    asked.send(startup({"user": "by_scram", "database": "postgres"}))
    # not before the timeout: a client that takes a while logs in
    slow = Wire.open("127.0.0.1", server.pool_port, plain=True)
    slow.send(GSSENC_REQUEST)
    assert slow.read_bytes(1) == b"N"
    assert all(wire.silent(0.2) for wire in (silent, half))
    assert slow.log_in("postgres", "postgres")[-1].type == "Z"
    for wire in (silent, half, asked):
        wire.until_closed(30)
        wire.close()
    # and a client that has logged in is not dropped with the others
    assert slow.query("SELECT 1") == [["1"]]
    slow.finish()


@pytest.mark.pool_only
def test_no_unauthenticated_client_holds_a_backend(server):
    # Backends of sessions that have left may be there.
    backends = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'by_scram'"
    before = server.sql(backends)
    wires = []
    try:
        for _ in range(20):
            wire = Wire.open("127.0.0.1", server.pool_port)
            wire.send(startup({"user": "by_scram", "database": "postgres"}))
            wires.append(wire)
        with Wire.login("127.0.0.1", server.pool_port) as session:
            assert session.query("SELECT 1") == [["1"]]
        assert server.sql(backends) <= before
    finally:
        for wire in wires:
            wire.close()


def test_an_error_at_login_says_where_it_was_raised(server):
    for parameters in ({"user": "nobody_at_all"}, {"user": "postgres", "database": "no_such_database"}):
        for port in (server.port, server.pool_port):
            with Wire.open("127.0.0.1", port, 20) as wire:
                wire.send(startup(parameters))
                fields = wire.read_until("E")[-1].fields()
            assert fields["F"] and int(fields["L"]) > 0 and fields["R"]


def test_unknown_users_and_known_users_see_the_same_conversation(server):
    """The challenge for a user that does not exist looks like any other challenge, and has
    the same salt at each attempt, as the server's own mock challenge has."""
    salts = []
    for user in ("nobody", "nobody", "by_scram", "by_scram"):
        wire = Wire.open("127.0.0.1", server.pool_port, 20)
        wire.send(startup({"user": user, "database": "postgres"}))
        mechanisms = [b"SCRAM-SHA-256-PLUS"] * server.by_tls + [b"SCRAM-SHA-256", b""]
        assert wire.read().body == struct.pack("!I", 10) + b"".join(name + b"\0" for name in mechanisms)
        first = b"n,,n=,r=abcdefghijklmnop"
        wire.send(message("p", text("SCRAM-SHA-256") + struct.pack("!i", len(first)) + first))
        parts = dict(p.split("=", 1) for p in wire.read().body[4:].decode().split(","))
        salts.append((parts["s"], parts["i"]))
        wire.close()
    assert salts[0] == salts[1] and salts[2] == salts[3]
    assert len(salts[0][0]) == len(salts[2][0]) and salts[0][1] == salts[2][1]


@pytest.mark.pool_only
def test_the_pool_serves_users_that_need_a_password_to_connect(server):
    """The pool's backends log in by the client's proof; no password is kept."""
    for user, password in (("by_scram", "sécret"), ("by_md5", "secret"), ("by_password", "secret")):
        sessions = [login(server.pool_port, user, "postgres", password)[0] for _ in range(3)]
        for session in sessions:
            assert session.query("SELECT session_user") == [[user]]
            session.finish()


def test_a_login_that_failed_raises_for_libpq_clients(server):
    with pytest.raises(psycopg.OperationalError, match='password authentication failed for user "by_scram"'):
        psycopg.connect(server.pool(user="by_scram", password="wrong"))
    with pytest.raises(LoginFailed):
        Wire.login("127.0.0.1", server.pool_port, user="by_scram", password="wrong")
