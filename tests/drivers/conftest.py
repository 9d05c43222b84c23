"""Drivers come in plain and by TLS, and under forced migration."""

from __future__ import annotations

import pytest
from drivers import PARAMETERS
from harness.certificates import Authority, make_secure


@pytest.fixture(scope="module", params=["normal", "forced", "normal-tls", "forced-tls"])
def server(run, request):
    """Takes the place of the one of all tests; `sslmode` is libpq's."""
    name = f"{request.module.__name__}-{request.param}"
    parameters = {**PARAMETERS, "pg_baton.force_migration": request.param.startswith("forced")}
    cluster = run.cluster(name, parameters=parameters)
    secure = request.param.endswith("tls")
    cluster.sslmode = "require" if secure else "disable"
    try:
        if secure:
            authority = Authority(run.directory / name)
            make_secure(cluster, authority)
            cluster.authority = authority.root.certificate
        cluster.start()
        if cluster.pooled:
            cluster.sql("CREATE EXTENSION IF NOT EXISTS pg_baton")
    except BaseException:
        cluster.destroy()
        raise
    yield cluster
    cluster.finish()
