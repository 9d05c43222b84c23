#!/usr/bin/env python3
"""PostgreSQL's own isolation suite, directly and through the pool, compared.

    run.py [--only direct|forced|normal] [--backends 20] [--tests "NAME..."]
           [--out build/isolation] [--other-roles COUNT] [--set NAME=VALUE]...

Its tester, the server's own and unchanged, runs the steps of several sessions
in many orders.  It knows a session by the process ID that it was told at login,
and asks the server by that number who waits for whose lock: through the pool it
is right only if SQL knows sessions by that number, whichever backends serve
them.  Three runs, each on a fresh cluster: direct (stock, without the
extension), forced (through the pool with forced migration) and normal.  Every
result must be the same as directly, or as PostgreSQL expects it.  Exit status:
0 all as promised, 1 a difference, 2 the suite could not be run.

The results stay in the --out directory, as those of ../regress/run.py.
"""

from __future__ import annotations

import argparse
import difflib
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.account import give_to_server_user, pg_config  # noqa: E402
from harness.cluster import HOST, SUPERUSER, Cluster, Run  # noqa: E402
from regress.fetch_source import fetch  # noqa: E402
from regress.suite import Outcome, add_arguments, run_mode, run_program  # noqa: E402

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "build" / "isolation"
DATABASE = "isolation_regression"


def program() -> Path:
    """Of the server's development package; its tester lies beside it."""
    return Path(pg_config("pkglibdir"), "pgxs", "src", "test", "isolation", "pg_isolation_regress")


def prepare_suite(run: Run, source: Path) -> Path:
    suite = run.directory / "isolation"
    suite.mkdir()
    for part in ("specs", "expected"):
        shutil.copytree(source / "src" / "test" / "isolation" / part, suite / part)
    shutil.copy(source / "src" / "test" / "isolation" / "isolation_schedule", suite)
    for path in [suite, *suite.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        give_to_server_user(path)
    return suite


def run_suite(cluster: Cluster, port: int, suite: Path, tests: list[str]) -> Outcome:
    shutil.rmtree(suite / "results", ignore_errors=True)
    cluster.sql(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
    for setting in ("lc_messages TO 'C'", "bytea_output TO 'hex'", "timezone_abbreviations TO 'Default'"):
        cluster.sql(f"ALTER DATABASE {DATABASE} SET {setting}")
    command = [
        str(program()),
        "--use-existing",
        "--bindir=" + pg_config("bindir"),
        "--inputdir=" + str(suite),
        "--outputdir=" + str(suite),
        "--dbname=" + DATABASE,
        "--host=" + HOST,
        f"--port={port}",
        "--user=" + SUPERUSER,
    ]
    command += tests if tests else ["--schedule=" + str(suite / "isolation_schedule")]
    return run_program(cluster, command, suite)


def compare(direct: Outcome, pool: Outcome, mode: str, out: Path) -> int:
    differing, diff_lines = [], []
    for name, passed in direct.passed.items():
        left, right = direct.results.get(name, ""), pool.results.get(name, "")
        if name in pool.passed and ((passed and pool.passed[name]) or left == right):
            continue
        differing.append(name)
        diff_lines += difflib.unified_diff(
            left.splitlines(True), right.splitlines(True), f"direct/{name}", f"{mode}/{name}"
        )
    (out / f"differences-{mode}.diff").write_text("".join(diff_lines))
    sys.stdout.writelines(diff_lines[:400])
    print(
        f"{mode}: {len(direct.passed)} tests: {len(direct.passed) - len(differing)} the same, "
        f"{len(differing)} differ{': ' if differing else ''}{', '.join(differing)}; "
        f"direct {direct.seconds:.0f} s, {mode} {pool.seconds:.0f} s"
    )
    return 1 if differing or not pool.finished or not direct.finished else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["direct", "forced", "normal"])
    parser.add_argument("--backends", type=int, default=20)
    parser.add_argument("--tests", default="", type=str.split)
    add_arguments(parser, DEFAULT_OUT)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = Run()
    try:
        suite = prepare_suite(run, fetch())
        outcomes = {}
        for mode in ("direct", "forced", "normal"):
            if arguments.only in (None, mode) and (mode == "direct" or run.stage is not None):
                outcomes[mode] = run_mode(
                    run,
                    suite,
                    mode,
                    # All of a test's sessions may be in transactions at a time.
                    {"pg_baton.max_backends": arguments.backends},
                    arguments.set,
                    arguments.out / mode,
                    lambda cluster, port: run_suite(cluster, port, suite, arguments.tests),
                    DATABASE,
                    arguments.other_roles,
                )
        if "direct" in outcomes and len(outcomes) > 1:
            direct = outcomes.pop("direct")
            return max([compare(direct, outcome, mode, arguments.out) for mode, outcome in outcomes.items()])
        return 0 if all(all(o.passed.values()) and o.finished for o in outcomes.values()) else 1
    except (RuntimeError, TimeoutError, OSError, subprocess.SubprocessError) as error:
        print(f"the suite could not be run: {error}", file=sys.stderr)
        return 2
    finally:
        run.close()


if __name__ == "__main__":
    sys.exit(main())
