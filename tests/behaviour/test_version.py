"""All parts say the same version, the one in Cargo.toml."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from harness.stage import REPOSITORY

pytestmark = pytest.mark.pool_only


def says(program: Path) -> str:
    """The version that `program --version` prints after its name."""
    printed = subprocess.run([program, "--version"], check=True, stdout=subprocess.PIPE, text=True, timeout=20).stdout
    name, version = printed.split()
    assert name == program.name
    return version


def test_all_parts_say_one_version(cluster_with):
    cluster = cluster_with()
    (version,) = re.findall(r'^version = "(.*)"$', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)
    dispatcher = Path(cluster.run.stage.program)
    for program in ("baton-dispatcher", "baton", "baton-monitor"):
        assert says(dispatcher.with_name(program)) == version
    assert cluster.sql("SELECT pg_baton_version()") == [(version,)]
    assert cluster.sql(
        "SELECT default_version, installed_version FROM pg_available_extensions WHERE name = 'pg_baton'"
    ) == [(version, version)]


def test_library_tells_its_version_without_being_preloaded(make_cluster):
    """pg_baton_version() answers without a dispatcher; the views say what is missing."""
    cluster = make_cluster(start=False, parameters={"shared_preload_libraries": ""})
    cluster.start(wait_for_pool=False)
    cluster.sql("CREATE EXTENSION pg_baton")
    (row,) = cluster.sql(
        "SELECT pg_baton_version() = installed_version FROM pg_available_extensions WHERE name = 'pg_baton'"
    )
    assert row == (True,)
