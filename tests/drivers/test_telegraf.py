"""Telegraf's input for PostgreSQL gathers the same through the pool as directly.

Its own code, in a program that is the agent's loop and no more.  It needs some
fifty modules, so it is built with BATON_TEST_LARGE=1 only."""

from __future__ import annotations

import json
import os
import subprocess

import drivers
import pytest
from drivers import PARAMETERS  # noqa: F401  (read by the server fixture)
from harness.account import neutral_environment
from harness.cluster import HOST, SUPERUSER

pytestmark = [
    pytest.mark.pool_only,
    pytest.mark.skipif(not os.environ.get("BATON_TEST_LARGE"), reason="fetches some fifty modules: BATON_TEST_LARGE=1"),
]


@pytest.fixture(scope="module")
def program():
    return drivers.build("telegraf", "go", "build", "-o", "target/telegraf", ".") / "target/telegraf"


@pytest.mark.timeout(900)
def test_telegraf_gathers_the_same(server, program):
    found = []
    for port in (server.port, server.pool_port):
        address = f"host={HOST} port={port} user={SUPERUSER} dbname=postgres sslmode={server.sslmode}"
        ran = subprocess.run(
            [program, "postgresql", address], env=neutral_environment(), capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
        found.append(json.loads(ran.stdout))
    assert found[1]["errors"] is None, found[1]["errors"]
    assert len(found[0]["values"]) > 40
    assert found[1]["values"].keys() == found[0]["values"].keys() and found[1]["rows"] == found[0]["rows"]
