"""Builds and runs a driver's program and reads what it says.

Each program, in its driver's language, does what applications do with that
driver.  It finds the server by the PG* variables, prints "ok NAME" or
"not ok NAME: why" for each of its cases, and nothing else on standard output.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from harness.account import neutral_environment
from harness.cluster import HOST, SUPERUSER, Cluster

HERE = Path(__file__).resolve().parent
BUILD_TIMEOUT_S = 400
RUN_TIMEOUT_S = 300
# What is fetched comes over the network.
BUILD_ATTEMPTS = 3
BUILD_PAUSE_S = 10

# Sessions that listen or stand in a transaction keep their backend, and the
# programs have several of them at once.
PARAMETERS = {"pg_baton.max_backends": 10, "max_connections": 100}


def build(folder: str, *command: str) -> Path:
    """Builds a program in its folder; skips if its language is not there."""
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed (tools/setup test)")
    for attempt in range(BUILD_ATTEMPTS):
        time.sleep(BUILD_PAUSE_S * min(attempt, 1))
        done = subprocess.run(
            command,
            cwd=HERE / folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=BUILD_TIMEOUT_S,
        )
        if done.returncode == 0:
            break
    assert done.returncode == 0, f"{' '.join(command)} failed\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return HERE / folder


def run(server: Cluster, folder: Path, *command: str) -> dict[str, str]:
    """Runs a program against the pool: case name to "ok" or what went wrong."""
    environment = neutral_environment()
    environment.update(
        PGHOST=HOST,
        PGPORT=str(server.pool_port),
        PGUSER=SUPERUSER,
        PGDATABASE="postgres",
        PGSSLMODE=getattr(server, "sslmode", "disable"),
    )
    if getattr(server, "authority", ""):
        # node-postgres asks whose certificate it is by any sslmode
        environment["NODE_EXTRA_CA_CERTS"] = str(server.authority)
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=RUN_TIMEOUT_S,
        )
        output, errors = done.stdout, done.stderr
    except subprocess.TimeoutExpired as expired:
        output = (expired.stdout or b"").decode("utf-8", "replace")
        errors = f"no end within {RUN_TIMEOUT_S} s\n" + (expired.stderr or b"").decode("utf-8", "replace")
    found = {}
    for line in output.splitlines():
        if line.startswith("ok "):
            found[line[3:]] = "ok"
        elif line.startswith("not ok "):
            name, _, why = line[7:].partition(": ")
            found[name] = why
    found[""] = f"{output[-2000:]}\n{errors[-2000:]}"
    return found


def check(results: dict[str, str], case: str) -> None:
    assert case in results, f"{case} said nothing\n{results['']}"
    assert results[case] == "ok", f"{case}: {results[case]}\n{results['']}"
