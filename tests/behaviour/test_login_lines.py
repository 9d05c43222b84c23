"""pg_hba.conf has the same effect on the pool's port as on the server's: the same line
counts for a client, and the pool serves each client that a line lets in."""

from __future__ import annotations

import subprocess

import pytest
from behaviour.test_login import shape
from harness.account import acting_as, other_users, server_program
from harness.cluster import can_replace_system_files
from harness.health import wait_until
from harness.processes import ITS_PROCESS
from harness.wire import Wire, startup

ONE, OTHER = other_users(2) or ("", "")

needs_other_users = pytest.mark.skipif(not ONE, reason="only root can be two other system users")

HBA = [
    f'local all "{ONE or "-"}",elsewhere_by_tcp peer',
    f'local all mapped,"as_{OTHER}",either peer map=people',
    "local all by_scram,by_md5,by_password,by_address reject",
    "local all changing trust",
    "host all by_scram,changing 127.0.0.1/32 scram-sha-256",
    "host all by_md5 127.0.0.1/32 md5",
    "host all by_password 127.0.0.1/32 password",
    "host all elsewhere_by_tcp 127.0.0.1/32 scram-sha-256",
    "host all by_address 127.0.0.2/32 trust",
    "host all by_address 127.0.0.0/8 reject",
]

SETUP = [
    f'CREATE ROLE "{ONE or "-"}" LOGIN',
    "CREATE ROLE mapped LOGIN",
    f'CREATE ROLE "as_{OTHER}" LOGIN',
    "CREATE ROLE either LOGIN",
    "CREATE ROLE by_scram LOGIN PASSWORD 'secret'",
    "CREATE ROLE changing LOGIN PASSWORD 'secret'",
    "CREATE ROLE by_password LOGIN PASSWORD 'secret'",
    "CREATE ROLE elsewhere_by_tcp LOGIN PASSWORD 'secret'",
    "SET password_encryption = 'md5'; CREATE ROLE by_md5 LOGIN PASSWORD 'secret'",
    "CREATE ROLE by_address LOGIN",
]


def knock(server, port: int, role: str, os_user: str = "", source: str = "", password: str = "secret"):
    """A login over TCP, or over the Unix socket as a system user."""
    if os_user:
        with acting_as(os_user):
            wire = Wire.open(str(server.home), port)
    else:
        wire = Wire.open("127.0.0.1", port, source=source)
    return wire, wire.log_in(role, "postgres", password)


def outcome(server, port: int, role: str, **how) -> list[str]:
    wire, messages = knock(server, port, role, **how)
    lines = shape(messages)
    if messages[-1].type == "Z":
        for _ in range(3):
            assert wire.query("SELECT session_user") == [[role]]
        lines.append("in")
        wire.finish()
    wire.close()
    return lines


def same_outcome(server, role: str, **how) -> list[str]:
    direct, pool = (outcome(server, port, role, **how) for port in (server.port, server.pool_port))
    assert pool == direct
    return pool


def several_at_once(server, role: str, **how) -> None:
    """The pool opens a backend for each session, whichever method let the first session in."""
    wires = []
    try:
        for _ in range(3):
            wire, messages = knock(server, server.pool_port, role, **how)
            wires.append(wire)
            assert messages[-1].type == "Z"
            wire.query("BEGIN")
        pids = {wire.query(ITS_PROCESS)[0][0] for wire in wires}
        assert len(pids) == len(wires)
        for wire in wires:
            wire.query("COMMIT")
            assert wire.query("SELECT session_user") == [[role]]
    finally:
        for wire in wires:
            wire.finish()


@needs_other_users
def test_peer_lets_a_system_user_in_as_itself_and_no_other_user(server):
    for _ in range(2):
        assert same_outcome(server, ONE, os_user=ONE)[-1] == "in"
        assert "Peer authentication failed" in same_outcome(server, ONE, os_user=OTHER)[-1]
        assert "Peer authentication failed" in same_outcome(server, ONE, os_user="root")[-1]
    several_at_once(server, ONE, os_user=ONE)


@needs_other_users
def test_the_log_names_a_peer_that_may_not_be_the_role(server):
    server.set_parameters({"log_connections": True})
    server.reload()
    said = f'connection authenticated: identity="{OTHER}" method=peer'

    def is_said() -> bool:
        with server.new_log() as log:
            outcome(server, server.pool_port, ONE, os_user=OTHER)
            wait_until(lambda: "Peer authentication failed" in log(), 20, "a refusal")
            return said in log()

    try:
        # The first logins may come before the reload.
        wait_until(is_said, 20, said)
    finally:
        server.set_parameters({"log_connections": False})
        server.reload()


@needs_other_users
def test_psql_of_another_system_user_comes_in_by_peer(server):
    done = subprocess.run(
        ["setpriv", f"--reuid={ONE}", "--clear-groups", server_program("psql"), "-XAtd", "postgres"]
        + ["-h", str(server.home), "-p", str(server.pool_port), "-c", "SELECT session_user", "-c", "SELECT 1"],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{ONE}\n1\n", "")


@needs_other_users
def test_peer_maps_say_which_system_user_may_be_which_role(server):
    regular = "people /^(.*)$ as_\\1"
    by_name = f"as_{OTHER}"
    try:
        lines = [f"people {ONE} mapped", regular, f"people {ONE} either", f"people {OTHER} either"]
        server.write_ident([*lines, "others root either"])
        server.reload()
        wait_until(lambda: outcome(server, server.pool_port, "mapped", os_user=ONE)[-1] == "in", what="the map")
        wait_until(lambda: outcome(server, server.port, "mapped", os_user=ONE)[-1] == "in", what="the map")
        seen = {
            (name, user): same_outcome(server, name, os_user=user)[-1] == "in"
            for name in ("mapped", "either", by_name)
            for user in (ONE, OTHER, "root")
        }
        welcome = {("mapped", ONE), ("either", ONE), ("either", OTHER), (by_name, OTHER)}
        assert {pair for pair, is_in in seen.items() if is_in} == welcome
        several_at_once(server, "either", os_user=OTHER)

        server.write_ident([f"people {OTHER} mapped"])
        server.reload()
        wait_until(lambda: outcome(server, server.pool_port, "mapped", os_user=ONE)[-1] != "in", what="the new map")
        wait_until(lambda: outcome(server, server.port, "mapped", os_user=ONE)[-1] != "in", what="the new map")
        assert same_outcome(server, "mapped", os_user=OTHER)[-1] == "in"
    finally:
        server.write_ident([])
        server.reload()


@pytest.mark.parametrize("role", ["by_scram", "by_md5", "by_password"])
def test_passwords_over_tcp_need_no_line_for_the_pool(server, role):
    """The server's Unix socket is closed to these roles."""
    assert same_outcome(server, role)[-1] == "in"
    assert "28P01" in same_outcome(server, role, password="wrong")[-1]
    several_at_once(server, role)


def test_passwords_over_tcp_where_local_connections_are_peer(server):
    """A password lets a client in with such a pg_hba.conf, as Debian and others install it."""
    assert same_outcome(server, "elsewhere_by_tcp")[-1] == "in"
    several_at_once(server, "elsewhere_by_tcp")


def test_a_line_for_one_address_lets_that_address_in(server):
    assert same_outcome(server, "by_address", source="127.0.0.2")[-1] == "in"
    assert "28000" in same_outcome(server, "by_address")[-1]
    several_at_once(server, "by_address", source="127.0.0.2")


@pytest.mark.pool_only
def test_dispatcher_line_opens_backends_if_the_client_s_is_gone(server):
    """Sessions in place go on after a change that would not let them in again."""
    session, messages = knock(server, server.pool_port, "changing")
    assert messages[-1].type == "Z" and session.query("SELECT 1") == [["1"]]
    try:
        server.sql("ALTER ROLE changing PASSWORD 'other'")
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_baton_backends WHERE user_name = 'changing'")
        wait_until(
            lambda: server.sql("SELECT count(*) FROM pg_baton_backends WHERE user_name = 'changing'") == [(0,)],
            what="its backends have gone",
        )
        try:
            assert session.query("SELECT 1") == [["1"]]
        except Exception as failure:
            # The session lingered on the backend that was ended, and ended with it, as in stock PostgreSQL.
            assert "57P01" in str(failure)
    finally:
        session.finish()
        server.sql("ALTER ROLE changing PASSWORD 'secret'")


@pytest.mark.pool_only
def test_a_stranger_cannot_say_that_he_is_a_client_of_the_pool(server):
    """The dispatcher's statements about a client in a startup packet count only with the dispatcher's token."""
    for slot in range(4):
        for token in ("0", "1", "ffffffffffffffff"):
            wire = Wire.open("127.0.0.1", server.port)
            address = "7f000002" + "00" * 12
            options = f"-c pg_baton.attach={slot}:{token}:2:{address}"
            wire.send(startup({"user": "by_address", "database": "postgres", "options": options, "_pq_.pg_baton": ""}))
            found = wire.until_closed(20)
            wire.close()
            assert [m.type for m in found] == ["v", "E"]
            assert found[1].fields()["C"] == "28000" and '"127.0.0.1"' in found[1].fields()["M"]


# -- which line matches ----------------------------------------------------------

HOSTS = """
127.0.0.1 localhost
127.0.0.2 two.example.com alias.example.com
127.0.0.3 three.example.org
127.0.0.4 Four.Example.COM
127.0.0.5 shared.example.com
127.0.0.6 shared.example.com
"""

SOURCES = [f"127.0.0.{number}" for number in range(1, 9)]
# The sources (last digits) from which these lines let TLS clients in (BATON_TEST_TLS).
BY_TLS = {"without_ssl": set(), "with_ssl": {str(number) for number in range(1, 9)}}

# role: (the line's type, database, user and address; the last digits of the sources that it lets in)
LINES: dict[str, tuple[str, set[str]]] = {
    "named_localhost": ("host all named_localhost localhost", {"1"}),
    "named": ("host all named two.example.com", {"2"}),
    "named_otherwise": ("host all named_otherwise TWO.example.com", {"2"}),
    "named_four": ("host all named_four four.example.com", {"4"}),
    "named_by_alias": ("host all named_by_alias alias.example.com", set()),
    "named_by_part": ("host all named_by_part example.com", set()),
    "named_twice": ("host all named_twice shared.example.com", {"5", "6"}),
    "named_nothing": ("host all named_nothing nowhere.example.com", set()),
    "ending": ("host all ending .example.com", {"2", "4", "5", "6"}),
    "ending_otherwise": ("host all ending_otherwise .EXAMPLE.org", {"3"}),
    "ending_nowhere": ("host all ending_nowhere .example.net", set()),
    "by_samehost": ("host all by_samehost samehost", {"1"}),
    "by_samenet": ("host all by_samenet samenet", set("12345678")),
    "by_all": ("host all by_all all", set("12345678")),
    "by_mask": ("host all by_mask 127.0.0.4 255.255.255.252", set("4567")),
    "by_cidr": ("host all by_cidr 127.0.0.2/31", {"2", "3"}),
    "without_ssl": ("hostnossl all without_ssl 127.0.0.2/32", {"2"}),
    "without_gss": ("hostnogssenc all without_gss 127.0.0.2/32", {"2"}),
    "with_ssl": ("hostssl all with_ssl all", set()),
    "with_gss": ("hostgssenc all with_gss all", set()),
    "all": ('host all "all" 127.0.0.3/32', {"3"}),
    "crew_member": ("host all +crew 127.0.0.7/32", {"7"}),
    "crew_by_way": ("host all +crew 127.0.0.7/32", {"7"}),
    "+crew": ('host all "+crew" 127.0.0.8/32', {"8"}),
    "in_a_file": ("host all @listed 127.0.0.8/32", {"8"}),
}

# (database, role): the line, and whether it lets the role in
DATABASES: dict[tuple[str, str], tuple[str, bool]] = {
    ("all", "in_all"): ('host "all" in_all,not_in_all all', True),
    ("postgres", "not_in_all"): ('host "all" in_all,not_in_all all', False),
    ("crew", "in_crew"): ("host samerole in_crew,out_of_crew all", True),
    ("crew", "out_of_crew"): ("host samerole in_crew,out_of_crew all", False),
    ("sameuser", "in_sameuser"): ('host "sameuser" in_sameuser all', True),
    ("postgres", "in_sameuser"): ('host "sameuser" in_sameuser all', False),
    ("crew", "in_list"): ("host all_of_it,crew in_list all", True),
    ("postgres", "in_list"): ("host all_of_it,crew in_list all", False),
    ("replication", "in_replication"): ("host replication in_replication all", False),
    ("replication", "in_quoted"): ('host "replication" in_quoted all', True),
}


@pytest.fixture(scope="module")
def many_lines(run):
    if not can_replace_system_files():
        pytest.skip("only root, and where it may mount, gives a server an /etc/hosts of its own")
    lines = [line for line, _ in LINES.values()] + [line for line, _ in DATABASES.values()]
    cluster = run.cluster(
        "many lines",
        parameters={"pg_baton.max_backends": 8},
        hba=[f"{line} trust" for line in dict.fromkeys(lines)] + ["host all +judged 127.0.0.0/8 reject"],
        system_files={"/etc/hosts": HOSTS, "/etc/nsswitch.conf": "hosts: files\npasswd: files\ngroup: files\n"},
    )
    (cluster.data / "listed").write_text("somebody\nin_a_file, somebody_else\n")
    (cluster.data / "listed").chmod(0o644)
    cluster.start()
    try:
        cluster.sql("CREATE ROLE judged NOLOGIN")
        cluster.sql("CREATE ROLE crew NOLOGIN")
        cluster.sql("CREATE ROLE between NOLOGIN IN ROLE crew")
        roles = dict.fromkeys([*LINES, *(role for _, role in DATABASES)])
        for role in roles:
            cluster.sql(f'CREATE ROLE "{role}" LOGIN IN ROLE judged')
        cluster.sql("GRANT crew TO crew_member, in_crew; GRANT between TO crew_by_way")
        for database in dict.fromkeys(database for database, _ in DATABASES if database != "postgres"):
            cluster.sql(f'CREATE DATABASE "{database}"')
    except BaseException:
        cluster.destroy()
        raise
    yield cluster
    cluster.finish()


def visit(port: int, role: str, database: str, source: str) -> list[str]:
    wire = Wire.open("127.0.0.1", port, source=source)
    messages = wire.log_in(role, database)
    lines = shape(messages)
    if messages[-1].type == "Z":
        assert wire.query("SELECT session_user, current_database(), host(inet_client_addr())") == [
            [role, database, source]
        ]
        lines.append("in")
        wire.finish()
    wire.close()
    return lines


@pytest.mark.parametrize("role", LINES)
def test_a_line_s_address_means_the_same_on_both_ports(many_lines, role):
    let_in = set()
    for source in SOURCES:
        direct, pool = (visit(port, role, "postgres", source) for port in (many_lines.port, many_lines.pool_port))
        assert pool == direct, source
        if pool[-1] == "in":
            let_in.add(source[-1])
    assert let_in == (BY_TLS if many_lines.by_tls else {}).get(role, LINES[role][1])


@pytest.mark.parametrize("database, role", DATABASES)
def test_a_line_s_database_means_the_same_on_both_ports(many_lines, database, role):
    direct, pool = (visit(port, role, database, "127.0.0.1") for port in (many_lines.port, many_lines.pool_port))
    assert pool == direct
    assert (pool[-1] == "in") == DATABASES[database, role][1]
