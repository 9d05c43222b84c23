"""Fixtures of all tests: the run, clusters, and what a failure shows.

A test that hangs is ended by pytest-timeout; before its clusters are torn
down, the report gets the server's log and the stacks of all its processes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import crowds  # noqa: E402
from harness.cluster import Cluster, Run  # noqa: E402
from harness.stage import direct_only, tls_wanted  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pool_only: has no meaning without the pool")
    config.addinivalue_line(
        "markers", "one_major: the programs answer, which are the same for each major of the server"
    )
    config.addinivalue_line("markers", "in_plain(reason): has no meaning where clients come by TLS (BATON_TEST_TLS)")


MODES = {"normal", "forced"}


def of_other_mode(item: pytest.Item, mode: str) -> bool:
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec else ()
    return any(value in MODES - {mode} for value in values if isinstance(value, str))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mode = os.environ.get("BATON_TEST_MODE")
    if mode:
        assert mode in MODES, "BATON_TEST_MODE"
        others = [item for item in items if of_other_mode(item, mode)]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)
    for item in items:
        if direct_only() and item.get_closest_marker("pool_only"):
            item.add_marker(pytest.mark.skip(reason="BATON_TEST_DIRECT"))
        in_plain = item.get_closest_marker("in_plain")
        if in_plain and tls_wanted() and not direct_only():
            item.add_marker(pytest.mark.skip(reason=f"BATON_TEST_TLS: {in_plain.args[0]}"))


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest):
    """The scratch directory, template cluster and stage of this run."""
    one = Run()
    request.config.stash[RUN] = one
    yield one
    one.close()


RUN = pytest.StashKey[Run]()


@pytest.fixture
def make_cluster(run: Run, request: pytest.FixtureRequest):
    """Makes clusters for one test; each is stopped and checked at its end."""
    made: list[Cluster] = []

    def make(start: bool = True, **options) -> Cluster:
        cluster = run.cluster(request.node.name, **options)
        made.append(cluster)
        return cluster.start() if start else cluster

    yield make
    failures = []
    for cluster in made:
        try:
            cluster.finish()
        except Exception as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


@pytest.fixture
def cluster_with(make_cluster):
    """A cluster with the extension; dots in names of parameters are written __."""

    def make(**parameters):
        cluster = make_cluster(parameters={name.replace("__", "."): value for name, value in parameters.items()})
        cluster.sql("CREATE EXTENSION pg_baton")
        return cluster

    return make


@pytest.fixture(scope="module", params=["normal", "forced"])
def server(run: Run, request: pytest.FixtureRequest):
    """A cluster shared by a module's tests, once as users run it, once with
    forced migration.  Tests that use it leave nothing behind.

    A module may set PARAMETERS, HBA and ROLES (SQL run once)."""
    if direct_only() and request.param == "forced":
        pytest.skip("BATON_TEST_DIRECT")
    parameters = {
        "pg_baton.max_backends": 12,
        "pg_baton.force_migration": request.param == "forced",
        **getattr(request.module, "PARAMETERS", {}),
    }
    name = f"{request.module.__name__}-{request.param}"
    cluster = run.cluster(name, parameters=parameters, hba=getattr(request.module, "HBA", ()))
    try:
        cluster.start()
        for statement in getattr(request.module, "SETUP", ()):
            cluster.sql(statement)
        if cluster.pooled:
            cluster.sql("CREATE EXTENSION IF NOT EXISTS pg_baton")
    except BaseException:
        cluster.destroy()
        raise
    cluster.forced = request.param == "forced"
    yield cluster
    cluster.finish()


@pytest.fixture
def pool(server: Cluster):
    """A psycopg connection through the pool, in autocommit mode."""
    import psycopg

    with psycopg.connect(server.pool(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def crowd():
    """make(cluster, count, **options): sessions that are closed at the test's end."""
    with crowds.closed_at_the_end() as make:
        yield make


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    one = item.config.stash.get(RUN, None)
    if one is None:
        return
    for cluster in one.live_clusters():
        if cluster.process is None and not cluster.processes():
            continue
        report.sections.append((f"log of {cluster.home.name}", cluster.log_tail(40)))
        hanging = call.excinfo is not None and (
            "Timeout" in call.excinfo.typename or "imeout" in str(call.excinfo.value)[:200]
        )
        if hanging:
            report.sections.append((f"stacks of {cluster.home.name}", cluster.stacks()))
