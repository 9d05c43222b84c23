"""make installcheck passes through the pool's port and through the server's own."""

from __future__ import annotations

import os
import subprocess

import pytest
from harness.account import pg_config
from harness.stage import REPOSITORY

pytestmark = pytest.mark.pool_only


@pytest.mark.parametrize("port", ["pool", "server"])
def test_installcheck(make_cluster, tmp_path, port):
    """The regression scripts and isolation specs of extension/test, by PostgreSQL's
    own testers; a difference is shown as they report it."""
    cluster = make_cluster()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "MAKE", "MFLAGS"))}
    environment.update(
        PGHOST="127.0.0.1",
        PGPORT=str(cluster.pool_port if port == "pool" else cluster.port),
        PGUSER="postgres",
        PGCONNECT_TIMEOUT="20",
    )
    done = subprocess.run(
        [
            "make",
            "-C",
            str(REPOSITORY / "extension"),
            "installcheck",
            f"PG_CONFIG={pg_config('bindir')}/pg_config",
            f"INSTALLCHECK_OUTPUT={tmp_path}",
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    differences = [file.read_text() for file in sorted(tmp_path.rglob("regression.diffs"))]
    assert done.returncode == 0, "\n".join([done.stdout, *differences])
