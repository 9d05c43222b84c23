"""A client gets the same challenge, and as soon, for a role that does not exist as for a role that does.

The delay depends on whether the dispatcher has to ask the launcher first. So a test stops the
launcher: if a client gets a challenge all the same, the dispatcher has not asked about it."""

from __future__ import annotations

import pytest
from behaviour.test_login import login, shape
from harness.cluster import HOST
from harness.health import launcher_stopped, wait_until
from harness.wire import Wire, startup

HBA = ["host all ordinary,limited,nobody_at_all 127.0.0.1/32 scram-sha-256"]

SETUP = [
    "CREATE ROLE ordinary LOGIN PASSWORD 'secret'",
    "CREATE ROLE limited LOGIN PASSWORD 'secret' CONNECTION LIMIT 1",
    "CREATE DATABASE limited_db CONNECTION LIMIT 1",
]

WHO = {
    "an_ordinary_role": ("ordinary", "postgres"),
    "nobody": ("nobody_at_all", "postgres"),
    "a_role_with_a_limit": ("limited", "postgres"),
    "a_database_with_a_limit": ("ordinary", "limited_db"),
    "nobody_in_a_database_with_a_limit": ("nobody_at_all", "limited_db"),
}


def attempt(port: int, user: str, database: str, password: str) -> list[str]:
    wire, messages = login(port, user, database, password)
    if messages[-1].type == "Z":
        wire.finish()
    wire.close()
    return shape(messages)


@pytest.mark.pool_only
@pytest.mark.parametrize("who", WHO)
def test_a_client_already_asked_about_gets_its_challenge_at_once(server, who):
    user, database = WHO[who]
    assert "password authentication failed" in attempt(server.pool_port, user, database, "wrong")[-1]
    with launcher_stopped(server), Wire.open(HOST, server.pool_port) as wire:
        wire.send(startup({"user": user, "database": database}))
        asked = wire.read()
        assert asked.type == "R" and b"SCRAM-SHA-256" in asked.body


@pytest.mark.parametrize("who", ["a_role_with_a_limit", "a_database_with_a_limit"])
def test_a_client_that_has_proved_itself_is_counted_anew(server, who):
    user, database = WHO[who]

    def gets_in() -> bool:
        return not attempt(server.pool_port, user, database, "secret")[-1].startswith("E")

    assert "password authentication failed" in attempt(server.pool_port, user, database, "wrong")[-1]
    # The pool has no backend yet: a backend would count towards the limit.
    with Wire.login(HOST, server.port, user=user, database=database, password="secret"):
        for _ in range(2):
            assert attempt(server.pool_port, user, database, "secret") == attempt(server.port, user, database, "secret")
            assert not gets_in()
    wait_until(gets_in, what="the other one has gone")
