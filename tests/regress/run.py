#!/usr/bin/env python3
"""PostgreSQL's own regression suite, directly and through the pool, compared.

    run.py [--only direct|forced|normal]... [--backends 3]
           [--tests "NAME..."] [--out build/regress] [--tls] [--other-roles COUNT] [--set NAME=VALUE]...

Three runs, each on a fresh cluster: direct (stock, without the extension),
forced (through the pool with forced migration) and normal (through the pool
as users run it, where sessions queue for few backends).  A test is the same if both results are equal, or if both agree
with a file that PostgreSQL expects.  Every other difference must be listed in
allowed_differences.txt (or that of this major, allowed_differences_17.txt) with its cause.  Where one is
not, the suite runs through the pool once more, and what differs again is a difference: some plans depend
on whether another transaction was at work when a table was vacuumed.  Exit status: 0 all as promised, 1 a
difference that is not listed, 2 the suite could not be run.

The results stay in the --out directory: direct/, forced/ and normal/
(results, regression.diffs, server log) and differences-<mode>.diff, direct
against each.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.account import give_to_server_user, pg_config, server_major  # noqa: E402
from harness.cluster import HOST, SUPERUSER, Cluster, Run  # noqa: E402
from harness.stage import tls_wanted  # noqa: E402
from regress.fetch_source import fetch, fetch_psql  # noqa: E402
from regress.suite import Outcome, add_arguments, run_mode, run_program  # noqa: E402

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE.parents[1] / "build" / "regress"


def build_library(source: Path, directory: Path) -> None:
    """Compiles regress.so, and puts autoinc and refint beside it."""
    regress = source / "src" / "test" / "regress"
    flags = pg_config("cppflags").split() + pg_config("cflags").split() + pg_config("cflags_sl").split()
    flags = [f for f in flags if not f.startswith(("-flto", "-ffat-lto", "-fdebug-prefix-map", "-ffile-prefix-map"))]
    target = directory / "regress.so"
    subprocess.run(
        [
            os.environ.get("CC", "gcc"),
            *flags,
            "-w",
            f"-I{pg_config('includedir-server')}",
            f"-I{pg_config('includedir-server')}/../internal",
            "-shared",
            "-o",
            str(target),
            str(regress / "regress.c"),
        ],
        check=True,
    )
    for name in ("autoinc", "refint"):
        shutil.copy(Path(pg_config("pkglibdir"), f"{name}.so"), directory)


def prepare_suite(run: Run, source: Path) -> Path:
    """A directory with the suite, readable and writable by the server's user."""
    suite = run.directory / "regress"
    suite.mkdir()
    for part in ("sql", "expected", "data"):
        shutil.copytree(source / "src" / "test" / "regress" / part, suite / part)
    for part in ("parallel_schedule", "resultmap"):
        shutil.copy(source / "src" / "test" / "regress" / part, suite)
    build_library(source, suite)
    bindir = fetch_psql(source)
    if bindir:
        (suite / "bin").mkdir()
        shutil.copy(bindir / "psql", suite / "bin")
    for path in [suite, *suite.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path.suffix == ".so" or path.name == "psql" else 0o644)
        give_to_server_user(path)
    return suite


def pg_regress_program() -> str:
    return str(Path(pg_config("pkglibdir"), "pgxs", "src", "test", "regress", "pg_regress"))


def run_suite(cluster: Cluster, port: int, suite: Path, tests: list[str]) -> Outcome:
    """One run of pg_regress; its results are left in the suite's directory."""
    for leftover in ("results", "regression.diffs", "regression.out"):
        path = suite / leftover
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
    bindir = str(suite / "bin") if (suite / "bin").exists() else pg_config("bindir")
    command = [
        pg_regress_program(),
        "--bindir=" + bindir,
        "--dlpath=" + str(suite),
        "--inputdir=" + str(suite),
        "--outputdir=" + str(suite),
        "--max-concurrent-tests=20",
        "--host=" + HOST,
        f"--port={port}",
        "--user=" + SUPERUSER,
    ]
    command += tests if tests else ["--schedule=" + str(suite / "parallel_schedule")]
    return run_program(cluster, command, suite)


def allowed_differences() -> dict[str, str]:
    """Test name to cause, from the lists beside this file."""
    allowed = {}
    lists = [HERE / "allowed_differences.txt", HERE / f"allowed_differences_{server_major()}.txt"]
    for line in "\n".join(one.read_text() for one in lists if one.exists()).splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, cause = line.partition(":")
            allowed[name.strip()] = cause.strip()
    return allowed


def compare(direct: Outcome, pool: Outcome, mode: str, out: Path) -> set[str]:
    """Writes the difference and the summary; the tests that differ and are not listed."""
    allowed = allowed_differences()
    differing, diff_lines = [], []
    for name in direct.passed:
        if name not in pool.passed:
            differing.append(name)
            diff_lines.append(f"=== {name}: did not run through the pool\n")
            continue
        if direct.passed[name] and pool.passed[name]:
            continue
        left, right = direct.results.get(name, ""), pool.results.get(name, "")
        if left == right:
            continue
        differing.append(name)
        diff_lines += difflib.unified_diff(
            left.splitlines(True), right.splitlines(True), f"direct/{name}", f"{mode}/{name}"
        )
    (out / f"differences-{mode}.diff").write_text("".join(diff_lines))
    sys.stdout.writelines(diff_lines[:400])
    if len(diff_lines) > 400:
        print(f"... {len(diff_lines) - 400} more lines in {out / f'differences-{mode}.diff'}")

    print(f"\n| test | direct | {mode} | |\n|---|---|---|---|")

    def word(outcome: Outcome, name: str) -> str:
        return "-" if name not in outcome.passed else "ok" if outcome.passed[name] else "differs"

    shown = [n for n in direct.passed if n in differing or not direct.passed[n] or not pool.passed.get(n, False)]
    for name in shown:
        note = (
            "same result"
            if name not in differing
            else (f"allowed: {allowed[name]}" if name in allowed else "**NOT ALLOWED**")
        )
        print(f"| {name} | {word(direct, name)} | {word(pool, name)} | {note} |")
    unexpected = {name for name in differing if name not in allowed}
    print(
        f"\n{mode}: {len(direct.passed)} tests: {len(direct.passed) - len(differing)} the same, "
        f"{len(differing) - len(unexpected)} differ as listed, {len(unexpected)} differ otherwise; "
        f"direct {direct.seconds:.0f} s, {mode} {pool.seconds:.0f} s"
    )
    stale = [name for name in allowed if name in direct.passed and name not in differing]
    if stale:
        print("listed, but the same in this run: " + ", ".join(stale))
    return unexpected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["direct", "forced", "normal"], action="append", default=[])
    parser.add_argument("--backends", type=int, default=3)
    parser.add_argument("--tests", default="", type=str.split, help="names, in order (test_setup first)")
    parser.add_argument(
        "--tls", action="store_true", default=tls_wanted(), help="through the pool by TLS; so with BATON_TEST_TLS=1"
    )
    add_arguments(parser, DEFAULT_OUT)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    run = Run()
    try:
        suite = prepare_suite(run, fetch())

        def play(mode: str) -> Outcome:
            return run_mode(
                run,
                suite,
                mode,
                # Twenty tests at once, each with temporary tables: they wait long.
                # Almost all sessions call regress.so: who does would be dedicated,
                # as of an unlisted library, and nothing would be proved.
                {
                    "pg_baton.max_backends": arguments.backends,
                    "pg_baton.session_wait_timeout": 0,
                    "pg_baton.stateless_libraries": "regress",
                },
                arguments.set,
                out / mode,
                lambda cluster, port: run_suite(cluster, port, suite, arguments.tests),
                "regression",
                arguments.other_roles,
                secure=arguments.tls,
            )

        outcomes = {}
        for mode in ("direct", "forced", "normal"):
            if not arguments.only or mode in arguments.only:
                if mode != "direct" and run.stage is None:
                    print("BATON_TEST_DIRECT is set: no run through the pool")
                    continue
                outcomes[mode] = play(mode)
        if "direct" in outcomes and len(outcomes) > 1:
            direct = outcomes.pop("direct")
            good = direct.finished
            for mode, outcome in outcomes.items():
                differing = compare(direct, outcome, mode, out)
                if differing and outcome.finished:
                    print(f"once more, {mode}, for: {', '.join(sorted(differing))}", flush=True)
                    outcome = play(mode)
                    differing &= compare(direct, outcome, mode, out)
                good &= outcome.finished and not differing
            return 0 if good else 1
        return 0 if all(all(o.passed.values()) and o.finished for o in outcomes.values()) else 1
    except (RuntimeError, TimeoutError, OSError, subprocess.SubprocessError) as error:
        print(f"the suite could not be run: {error}", file=sys.stderr)
        return 2
    finally:
        run.close()


if __name__ == "__main__":
    sys.exit(main())
