"""Clients of all these tests come as BATON_TEST_TLS says."""

from __future__ import annotations

import psycopg
import pytest
from harness.wire import Wire

IS_SECURE = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@pytest.mark.pool_only
def test_clients_come_as_they_are_to(server):
    with psycopg.connect(server.pool()) as session:
        assert session.execute(IS_SECURE).fetchone() == (server.by_tls,)
    for host, is_secure in (("127.0.0.1", server.by_tls), (str(server.home), False)):
        with Wire.login(host, server.pool_port) as session:
            assert session.query(IS_SECURE) == [["t" if is_secure else "f"]]
