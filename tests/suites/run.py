#!/usr/bin/env python3
"""Drivers' and frameworks' own test suites, directly and through the pool, compared.

    run.py [--out build/suites] [--set NAME=VALUE]... [--list] [SUITE...]

The suites are unchanged, of pinned releases from their package registries. Each runs
first by the server's own port, then by the pool's, where each transaction is served by
another backend than the last (pg_baton.force_migration). A test that ends otherwise
through the pool than directly is run once more by both ports, since some suites have
tests that depend on time; one that differs again is a difference. Without SUITE: all.
Exit status: 0 no difference, 1 a difference, 2 a suite could not be run.

What each run printed stays in the --out directory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.cluster import HOST, SUPERUSER, Cluster, Run  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 1800
# What is fetched comes over the network.
FETCH_ATTEMPTS = 3
FETCH_PAUSE_S = 10
# A suite's own tests hold several transactions open at a time.
PARAMETERS = {
    "max_connections": 100,
    "wal_level": "logical",
    "pg_baton.max_backends": 4,
    "pg_baton.max_extra_backends": None,
    "pg_baton.force_migration": True,
}


class CannotRun(Exception):
    """A suite that could not be fetched or started."""


def fetched(command: list[str], **options) -> str:
    """Runs a command that fetches, up to three times; its output."""
    for attempt in range(FETCH_ATTEMPTS):
        time.sleep(FETCH_PAUSE_S * min(attempt, 1))
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
        if done.returncode == 0:
            return done.stdout
    raise CannotRun(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


@dataclass
class Suite:
    """One package's tests. `setup` is SQL for each database that they get. `environment` and
    the arguments of a suite may have {host}, {port}, {user} and {database}."""

    package: str
    version: str
    setup: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    # The one that the tests use, whatever the environment says.
    database: str = ""

    def filled(self, texts: Iterable[str], port: int, database: str) -> list[str]:
        return [text.format(host=HOST, port=port, user=SUPERUSER, database=database) for text in texts]

    def filled_environment(self, port: int, database: str) -> dict[str, str]:
        return dict(zip(self.environment, self.filled(self.environment.values(), port, database), strict=True))

    def fetch(self, work: Path) -> None:
        raise NotImplementedError

    def command(self, work: Path, port: int, database: str, tests: list[str]) -> tuple[list[str], Path, dict[str, str]]:
        """What runs all of it, or those tests alone: the command, where, and its environment."""
        raise NotImplementedError

    def outcomes(self, output: str) -> dict[str, str]:
        """Each test's name and how it ended, of what the command printed."""
        raise NotImplementedError


@dataclass
class GoSuite(Suite):
    """A Go module's tests (`go test -json`)."""

    def fetch(self, work: Path) -> None:
        if not (work / "go.mod").exists():
            found = json.loads(fetched(["go", "mod", "download", "-json", f"{self.package}@{self.version}"], cwd="/"))
            shutil.copytree(found["Dir"], work, dirs_exist_ok=True)
            subprocess.run(["chmod", "-R", "u+w", str(work)], check=True)
        fetched(["go", "mod", "download"], cwd=work)

    def command(self, work: Path, port: int, database: str, tests: list[str]) -> tuple[list[str], Path, dict[str, str]]:
        only = sorted({test.split(" ", 1)[1].split("/")[0] for test in tests})
        chosen = ["-run", f"^({'|'.join(only)})$"] if only else []
        return (
            ["go", "test", "-p", "1", "-count=1", "-json", *chosen, "./..."],
            work,
            self.filled_environment(port, database),
        )

    def outcomes(self, output: str) -> dict[str, str]:
        found = {}
        for line in output.splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("Test") and event["Action"] in ("pass", "fail", "skip"):
                # Names of subtests have folders that are another one in each run.
                name = re.sub(r"/tmp/\w+?\d+/", "/tmp/", event["Test"])
                found[f"{event['Package']} {name}"] = event["Action"]
        return found


@dataclass
class PythonSuite(Suite):
    """The tests in a package's source distribution, run beside the installed package."""

    needs: tuple[str, ...] = ()
    # Its uncompiled folder would be imported in place of the installed package.
    compiled: str = ""

    def fetch(self, work: Path) -> None:
        python = work / "venv" / "bin" / "python"
        if not python.exists():
            venv.create(work / "venv", with_pip=True)
        fetched([str(python), "-m", "pip", "install", "-q", f"{self.package}=={self.version}", *self.needs])
        if not (work / "source").exists():
            fetched([str(python), "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
                     "--dest", str(work), f"{self.package}=={self.version}"])  # fmt: skip
            (archive,) = work.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(work, filter="data")
            (unpacked,) = work.glob(f"{archive.name.removesuffix('.tar.gz')}")
            if self.compiled:
                shutil.rmtree(unpacked / self.compiled)
            unpacked.rename(work / "source")


@dataclass
class PytestSuite(PythonSuite):
    """One that pytest runs: all in `paths`, or some of their tests."""

    arguments: tuple[str, ...] = ()
    paths: tuple[str, ...] = ("tests",)

    def command(self, work: Path, port: int, database: str, tests: list[str]) -> tuple[list[str], Path, dict[str, str]]:
        return (
            [str(work / "venv/bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfExXp", "--timeout=120"]
            + self.filled(self.arguments, port, database)
            + (tests or list(self.paths)),
            work / "source",
            self.filled_environment(port, database),
        )

    def outcomes(self, output: str) -> dict[str, str]:
        lines = re.findall(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) (\S+::\S.*?)(?: - .*)?$", output, re.MULTILINE)
        return {name: outcome for outcome, name in lines}


@dataclass
class DjangoSuite(PythonSuite):
    """Django's runtests.py, of the labels that ask the database most."""

    labels: tuple[str, ...] = ()

    SETTINGS = """
import os
def database(name):
    return {"ENGINE": "django.db.backends.postgresql", "USER": os.environ["PGUSER"], "HOST": os.environ["PGHOST"],
            "PORT": os.environ["PGPORT"], "NAME": "postgres", "TEST": {"NAME": os.environ["PGDATABASE"] + name}}
DATABASES = {name: database(name) for name in ("default", "other")}
SECRET_KEY = "of tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
"""

    def command(self, work: Path, port: int, database: str, tests: list[str]) -> tuple[list[str], Path, dict[str, str]]:
        (work / "source/tests/baton_settings.py").write_text(self.SETTINGS)
        environment = {"PGHOST": HOST, "PGPORT": str(port), "PGUSER": SUPERUSER, "PGDATABASE": database}
        labels = sorted(re.sub(r"\w+ \((.*)\)", r"\1", test) for test in tests) or list(self.labels)
        return (
            [
                "../../venv/bin/python",
                "runtests.py",
                "--settings=baton_settings",
                "--parallel=1",
                "-v2",
                "--noinput",
                *labels,
            ],
            work / "source/tests",
            environment,
        )

    def outcomes(self, output: str) -> dict[str, str]:
        lines = re.findall(
            r"^(test\w* \(\S+\)).*?\.\.\. (ok|FAIL|ERROR|skipped|expected failure)", output, re.MULTILINE | re.DOTALL
        )
        return dict(lines)


LIBPQ_ENVIRONMENT = {"PGHOST": "{host}", "PGPORT": "{port}", "PGUSER": "{user}", "PGDATABASE": "{database}"}

SUITES: dict[str, Suite] = {
    "pgx": GoSuite(
        "github.com/jackc/pgx/v5",
        "v5.12.0",
        ("CREATE EXTENSION hstore", "CREATE EXTENSION ltree", "CREATE DOMAIN uint64 AS numeric(20,0)"),
        {"PGX_TEST_DATABASE": "host={host} port={port} user={user} dbname={database} sslmode=disable"},
    ),
    "asyncpg": PytestSuite(
        "asyncpg",
        "0.31.0",
        needs=("pytest", "pytest-timeout", "distro", "uvloop"),
        compiled="asyncpg",
        # Those that start servers of their own (PGHOST is not heeded) or read its source.
        arguments=("--ignore=tests/test__environment.py", "--ignore=tests/test__sourcecode.py"),
        environment=LIBPQ_ENVIRONMENT,
    ),
    "psycopg2": PytestSuite(
        "psycopg2",
        "2.9.13",
        ("CREATE EXTENSION hstore",),
        needs=("pytest", "pytest-timeout"),
        environment={**LIBPQ_ENVIRONMENT, "PSYCOPG2_TESTDB": "{database}", "PSYCOPG2_TEST_REPL_DSN": ""},
    ),
    "pg8000": PytestSuite(
        "pg8000",
        "1.31.6",
        ("CREATE EXTENSION IF NOT EXISTS hstore",),
        needs=("pytest", "pytest-timeout", "pytest-mock", "pytest-benchmark", "pytz"),
        # Not those of authentication (they need roles, and lines of pg_hba.conf), speed, and the README (port
        # 5432). A client that writes as its session is terminated gets a reset or an end, directly by chance.
        arguments=tuple(
            "--benchmark-disable --ignore-glob=*/auth/* --ignore-glob=*/test_benchmarks.py --ignore=test/test_readme.py"
            " -k not(test_broken_pipe_read)".split()
        ),
        paths=("test",),
        environment=LIBPQ_ENVIRONMENT,
        database=SUPERUSER,
    ),
    "pq": GoSuite("github.com/lib/pq", "v1.12.3", environment={**LIBPQ_ENVIRONMENT, "PGSSLMODE": "disable"}),
    "django": DjangoSuite(
        "Django",
        "5.2.19",
        needs=("psycopg[binary]==3.3.9",),
        labels=tuple(
            "backends postgres_tests transactions migrations migrate_signals schema queries aggregation annotations "
            "transaction_hooks select_for_update introspection inspectdb model_fields db_functions".split()
        ),
    ),
    "alembic": PytestSuite(
        "alembic",
        "1.17.2",
        ("CREATE SCHEMA test_schema", "CREATE EXTENSION hstore"),
        needs=("pytest", "pytest-timeout", "psycopg[binary]==3.3.9", "SQLAlchemy==2.0.45"),
        arguments=(
            "--backend-only",
            "-p",
            "no:logging",
            "--dburi=postgresql+psycopg://{user}@{host}:{port}/{database}",
        ),
    ),
    "sqlalchemy": PytestSuite(
        "SQLAlchemy",
        "2.1.9",
        (
            "CREATE SCHEMA test_schema",
            "CREATE SCHEMA test_schema_2",
            "CREATE EXTENSION hstore",
            "CREATE EXTENSION citext",
        ),
        needs=("pytest", "pytest-timeout", "psycopg[binary]==3.3.9", "asyncpg", "greenlet"),
        arguments=(
            "--backend-only",
            "-p",
            "no:logging",
            "--dburi=postgresql+psycopg://{user}@{host}:{port}/{database}",
            "--dburi=postgresql+asyncpg://{user}@{host}:{port}/{database}",
        ),
        paths=(
            *"test/dialect/postgresql test/dialect/test_suite.py test/engine test/sql/test_query.py".split(),
            *"test/orm/test_transaction.py test/sql/test_returning.py".split(),
        ),
    ),
}


def work_of(out: Path, suite: Suite) -> Path:
    """Where a release is unpacked; another release has another folder."""
    return out / "work" / f"{suite.package.replace('/', '_')}-{suite.version}"


def run_once(suite: Suite, cluster: Cluster, port: int, name: str, out: Path, tests: list[str]) -> dict[str, str]:
    """The outcomes by one port, in a new database of that name."""
    work = work_of(out, suite)
    if not suite.database:
        cluster.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        cluster.sql(f"CREATE DATABASE {name}")
    database = suite.database or name
    for statement in suite.setup:
        cluster.sql(statement, dbname=database)
    command, folder, environment = suite.command(work, port, database, tests)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    said = out / f"{name}.out"
    with open(said, "w", encoding="utf-8") as output:
        try:
            subprocess.run(command, cwd=folder, env={**clean, **environment}, stdin=subprocess.DEVNULL, stdout=output,
                           stderr=subprocess.STDOUT, timeout=RUN_TIMEOUT_S)  # fmt: skip
        except subprocess.TimeoutExpired:
            output.write(f"\nno end within {RUN_TIMEOUT_S} s\n")
    return suite.outcomes(said.read_text(encoding="utf-8", errors="replace"))


def differences(direct: dict[str, str], pool: dict[str, str]) -> list[str]:
    return sorted(name for name in direct.keys() | pool.keys() if direct.get(name) != pool.get(name))


def compare(name: str, suite: Suite, cluster: Cluster, out: Path) -> tuple[int, list[str]]:
    """How many tests ran by the server's own port, and what differs through the pool."""
    direct = run_once(suite, cluster, cluster.port, f"{name}_direct", out, [])
    if not direct:
        raise CannotRun(f"{name}: no test ran, see {out / f'{name}_direct.out'}")
    pool = run_once(suite, cluster, cluster.pool_port, f"{name}_pool", out, [])
    differ = differences(direct, pool)
    if differ:
        print(f"{name}: {len(differ)} differ, once more: {', '.join(differ[:5])}", flush=True)
        again = [
            run_once(suite, cluster, port, f"{name}_{way}_again", out, differ)
            for way, port in (("direct", cluster.port), ("pool", cluster.pool_port))
        ]
        still = differences(*again)
        differ = [test for test in differ if test in still or test not in again[0]]
    return len(direct), [f"{test}: directly {direct.get(test)}, through the pool {pool.get(test)}" for test in differ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "suites")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the server")
    parser.add_argument("--list", action="store_true", help="name the suites, and their releases")
    options = parser.parse_args()
    if options.list:
        for name, suite in SUITES.items():
            print(f"{name}: {suite.package} {suite.version}")
        return 0
    unknown = set(options.suites) - SUITES.keys()
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")

    options.out.mkdir(parents=True, exist_ok=True)
    status = 0
    run = Run()
    try:
        parameters = {**PARAMETERS, **dict(setting.split("=", 1) for setting in options.set)}
        for name in options.suites or SUITES:
            suite = SUITES[name]
            try:
                work = work_of(options.out, suite)
                work.mkdir(parents=True, exist_ok=True)
                suite.fetch(work)
                cluster = run.cluster(name, parameters=parameters).start()
                began = time.monotonic()
                count, differ = compare(name, suite, cluster, options.out)
                cluster.finish()
            except CannotRun as why:
                print(f"{name}: could not be run: {why}", file=sys.stderr)
                return 2
            print(
                f"{name} {suite.version}: {count} tests, {len(differ)} differ, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            for line in differ:
                print(f"  {line}")
                status = 1
    finally:
        run.close()
    return status


sys.exit(main())
