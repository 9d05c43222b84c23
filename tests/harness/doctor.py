"""Asking `baton doctor` of a cluster, and `baton upgrade`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from .account import server_program


def command(cluster, *more: str, conninfo: str | None = None, name: str = "doctor") -> list[str]:
    program = str(Path(cluster.run.stage.program).with_name("baton"))
    return [program, name, "--psql", server_program("psql"), *more, conninfo or cluster.direct()]


def doctor(cluster, *more: str, conninfo: str | None = None, **options) -> subprocess.CompletedProcess[str]:
    arguments = command(cluster, *more, conninfo=conninfo)
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, **options)


def upgrade(cluster) -> subprocess.CompletedProcess[str]:
    arguments = command(cluster, name="upgrade")
    return subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def read(ran: subprocess.CompletedProcess[str], status: int) -> list[dict]:
    assert ran.returncode == status, ran.stdout + ran.stderr
    said = json.loads(ran.stdout)
    assert said["works"] == (status == 0)
    return said["findings"]


def findings(cluster, status: int, **options) -> list[dict]:
    return read(doctor(cluster, "--json", **options), status)


def of(found: list[dict], check: str, level: str) -> dict:
    """The only finding of that kind."""
    kind = [one for one in found if (one["check"], one["level"]) == (check, level)]
    assert len(kind) == 1, found
    return kind[0]


def line_of(cluster, file: str, text: str) -> int:
    lines = (cluster.data / file).read_text().splitlines()
    return 1 + next(at for at, line in enumerate(lines) if text in line)


def with_views(cluster):
    cluster.sql("CREATE EXTENSION pg_baton")
    return cluster
