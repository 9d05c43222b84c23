"""pg_hba.conf and pg_ident.conf are read by the server's own code on the pool's port:
whatever stands in them means there what it means on the server's own port.

Files and questions are random (BATON_RULES_SEED to see one again)."""

from __future__ import annotations

import os
import random
import struct

import psycopg
import pytest
from harness.account import acting_as, other_users, server_major
from harness.health import wait_until
from harness.wire import Wire, startup

SEED = int(os.environ.get("BATON_RULES_SEED", random.randrange(1 << 30)))
FILES = int(os.environ.get("BATON_RULES_FILES", 12))
QUESTIONS = 60

ROLES = ["anna", "Anna", "bert", "bert2", "+bert", "all", "crew", "nobody_such"]
DATABASES = ["postgres", "anna", "crew", "all", "sameuser", "replication", "no_such", "bert"]
SOURCES = ["127.0.0.1", "127.0.0.2", "127.0.0.9", "127.0.1.1"]
METHODS = ["trust", "reject", "md5", "scram-sha-256", "password"]
SETUP = [
    *(f'CREATE ROLE "{role}" LOGIN' for role in ROLES if role != "nobody_such"),
    "CREATE ROLE between NOLOGIN",
    "GRANT crew TO between; GRANT between TO anna; GRANT anna TO bert; GRANT bert TO bert2",
    *(f'CREATE DATABASE "{name}"' for name in ("anna", "crew", "all", "sameuser")),
]


def quoted(dice: random.Random, name: str) -> str:
    return f'"{name}"' if dice.random() < 0.3 else name


def tokens(dice: random.Random, names: list[str], keywords: list[str], expressions: list[str]) -> str:
    more = keywords + (expressions if server_major() >= 16 else [])
    some = [dice.choice(more) if dice.random() < 0.4 else quoted(dice, dice.choice(names)) for _ in range(3)]
    return ",".join(some[: dice.randint(1, 3)])


def hba_line(dice: random.Random) -> str:
    kind = dice.choice(["local", "host", "host", "host", "hostssl", "hostnossl", "hostgssenc", "hostnogssenc"])
    databases = tokens(
        dice,
        DATABASES,
        ["all", "sameuser", "samerole", "samegroup", "replication"],
        ["/^a", '"/^(crew|post).*$"', "/e.{2}$"],
    )
    roles = tokens(dice, ROLES, ["all", "+crew", "+anna", "+nobody_such", '"+crew"'], ["/^[aA]", '"/bert[0-9]"', "/^$"])
    address = dice.choice(
        ["127.0.0.1/32", "127.0.0.0/24", "127.0.0.2 255.255.255.254", "samehost", "samenet", "all", "0.0.0.0/0", "::/0"]
        + ["localhost", ".example.com", "127.0.0.0/8"]
    )
    return " ".join([kind, databases, roles, *([] if kind == "local" else [address]), dice.choice(METHODS)])


def first_word(port: int, role: str, database: str, source: str, home: str) -> tuple:
    """The server's first answer tells which line it was: its method, or the error."""
    wire = Wire.open(home, port) if source == "local" else Wire.open("127.0.0.1", port, source=source)
    wire.send(startup({"user": role, "database": database}))
    found = wire.read()
    wire.close()
    if found.type == "R":
        return ("asks for", struct.unpack_from("!I", found.body)[0])
    fields = found.fields()
    return ("error", fields["C"], fields["M"])


def load(server, lines: list[str], number: int) -> None:
    """Both ports go by the lines when this returns."""
    ours = ["host all postgres all trust", "local all postgres trust"]
    marked = [f"host of_{number} marker all reject", "host all marker all password"]
    server.write_hba([*ours, *marked, *lines])
    server.reload()
    for port in (server.port, server.pool_port):
        wait_until(
            lambda port=port: first_word(port, "marker", f"of_{number}", "127.0.0.1", "")[0] == "error",
            what=f"the rules are read on port {port}",
        )


def test_random_rules_mean_the_same_on_both_ports(server):
    dice = random.Random(SEED)
    words = set()
    for number in range(FILES):
        lines = [hba_line(dice) for _ in range(dice.randint(1, 12))]
        if server_major() >= 16:
            (server.data / "more.conf").write_text("\n".join(hba_line(dice) for _ in range(3)) + "\n")
            (server.data / "more.conf").chmod(0o644)
            lines.insert(dice.randint(0, len(lines)), "include more.conf")
            lines.insert(dice.randint(0, len(lines)), "include_if_exists nothing.conf")
        load(server, lines, number)
        for _ in range(QUESTIONS):
            question = (dice.choice(ROLES), dice.choice(DATABASES), dice.choice([*SOURCES, "local"]), str(server.home))
            direct = first_word(server.port, *question)
            words.add(direct[:2])
            for _ in range(2):
                pool = first_word(server.pool_port, *question)
                assert pool == direct, f"BATON_RULES_SEED={SEED}: {question} by\n" + "\n".join(lines)
    assert len(words) > 3, words


ONE, OTHER = other_users(2) or ("", "")


@pytest.mark.skipif(not ONE, reason="only root can be two other system users")
def test_random_maps_mean_the_same_on_both_ports(server):
    dice = random.Random(SEED)
    seen = set()
    for number in range(FILES // 2):
        users = [ONE, OTHER, "/^(.)", f"/^({ONE[:2]}).*$", "/.*", f'"{ONE}"']
        roles = ["anna", "bert", "\\1", "all", "+crew", '"+bert"', '"all"', "/^a", "ann\\1", f"{ONE}"]
        maps = [f"{dice.choice('mn')} {dice.choice(users)} {dice.choice(roles)}" for _ in range(dice.randint(1, 6))]
        server.write_ident(maps)
        load(server, ["local all all peer map=m"], 1000 + number)
        for role in ["anna", "Anna", "bert", "bert2", "+bert", "all"]:
            for user in (ONE, OTHER):
                with acting_as(user):
                    answers = [
                        first_word(port, role, "postgres", "local", str(server.home))
                        for port in (server.port, server.pool_port, server.pool_port)
                    ]
                assert answers[1:] == answers[:1] * 2, f"BATON_RULES_SEED={SEED}: {role} {user} by {maps}"
                seen.add(answers[0][0])
    assert len(seen) == 2, "some come in and some do not"


@pytest.mark.pool_only
def test_a_file_with_errors_leaves_the_previous_rules_in_force(server):
    load(server, ["host all anna all reject"], 2000)
    server.write_hba(["host all anna all trust", "host all all all nonsense"])
    with server.new_log() as log:
        server.reload()
        wait_until(lambda: log().count('method "nonsense"') == 2, what="both refuse the file")
        assert first_word(server.pool_port, "anna", "postgres", "127.0.0.1", "")[0] == "error"
    load(server, ["host all anna all trust"], 2001)
    assert first_word(server.pool_port, "anna", "postgres", "127.0.0.1", "") == ("asks for", 0)


@pytest.mark.pool_only
def test_rules_survive_the_launcher_and_a_crash(server):
    """The next launcher has the postmaster's rules as the first one had."""
    load(server, ["host all anna all reject"], 3000)

    def launcher() -> list[tuple]:
        return server.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")

    for number in range(3):
        before = launcher()
        server.sql(f"SELECT pg_terminate_backend({before[0][0]})")
        wait_until(lambda before=before: launcher() not in ([], before), what="the next launcher")
        load(server, ["host all anna all reject", f"host all bert all {METHODS[number]}"], 3001 + number)
        for role in ("anna", "bert"):
            direct = first_word(server.port, role, "postgres", "127.0.0.1", "")
            assert first_word(server.pool_port, role, "postgres", "127.0.0.1", "") == direct
    assert server.sql("SELECT count(*) FROM pg_baton_failed_checks") == [(0,)]


@pytest.mark.pool_only
def test_without_the_server_s_rules_its_backends_authenticate(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.break_self_check": "rules", "pg_baton.max_backends": 3})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE anna LOGIN PASSWORD 'secret'")
    load(cluster, ["host all anna all scram-sha-256"], 1)
    for password in ("secret", "wrong"):
        outcomes = []
        for conninfo in (cluster.direct(user="anna", password=password), cluster.pool(user="anna", password=password)):
            try:
                with psycopg.connect(conninfo) as connection:
                    outcomes.append(connection.execute("SELECT current_user").fetchone())
            except psycopg.OperationalError as refused:
                outcomes.append(str(refused).split("FATAL: ")[-1])
        assert outcomes[0] == outcomes[1]
    assert cluster.sql("SELECT costs FROM pg_baton_failed_checks") == [("logins",)]
