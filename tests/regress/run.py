#!/usr/bin/env python3
"""PostgreSQL's own regression suite, directly and through the pool, compared.

    run.py [--only direct|forced|normal]... [--backends 3]
           [--tests "NAME..."] [--out build/regress] [--set NAME=VALUE]...

Three runs, each on a fresh cluster: direct (stock, without the extension),
forced (through the pool with forced migration) and normal (through the pool
as users run it, where sessions queue for few backends).  A test is the same if both results are equal, or if both agree
with a file that PostgreSQL expects.  Every other difference must be listed in
allowed_differences.txt (or that of this major, allowed_differences_17.txt) with its cause.  Exit status: 0 all as promised, 1 a
difference that is not listed, 2 the suite could not be run.

The results stay in the --out directory: direct/, forced/ and normal/
(results, regression.diffs, server log) and differences-<mode>.diff, direct
against each.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.account import as_server_user, give_to_server_user, pg_config, server_major  # noqa: E402
from harness.cluster import HOST, SUPERUSER, Cluster, Run  # noqa: E402
from regress.fetch_source import fetch, fetch_psql  # noqa: E402

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE.parents[1] / "build" / "regress"
SUITE_TIMEOUT_S = 900
STALL_TIMEOUT_S = 180

# As near as can be to what pg_regress' own temporary instance runs with.
SUITE_PARAMETERS = {
    "autovacuum": None,
    "synchronous_commit": None,
    "timezone": None,
    "lc_messages": None,
    "shared_buffers": "128MB",
    "max_connections": "100",
    "max_prepared_transactions": "2",
    "max_worker_processes": "16",
    "log_statement": "none",
}


@dataclass
class Outcome:
    """What one run of the suite gave: test name to ok or not."""

    passed: dict[str, bool] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    finished: bool = True


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
    suite = run.directory / "suite"
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


def verdicts(output: str) -> dict[str, bool]:
    """Test name to ok or not: up to 15 "test NAME ... ok", since 16 TAP."""
    found = re.findall(r"^(?:test|    )\s*(\w\S*)\s+\.\.\. (ok|FAILED|failed)", output, re.MULTILINE)
    found += [(name, word) for word, name in re.findall(r"^(ok|not ok) \d+\s+[-+] (\w\S*)", output, re.MULTILINE)]
    return {name: word == "ok" for name, word in found}


def watch_progress(file: Path, stop: threading.Event) -> None:
    """Says on a terminal's one line how far a run is."""
    while not stop.wait(5):
        done = len(verdicts(file.read_text(errors="replace"))) if file.exists() else 0
        print(f"    {done} tests done", flush=True)


def wait_while_it_moves(process: subprocess.Popen, results: Path) -> bool:
    """Waits for the end; False if no result grows any more, or for too long."""
    deadline = time.monotonic() + SUITE_TIMEOUT_S
    last_size, last_change = -1, time.monotonic()
    while time.monotonic() < deadline:
        try:
            process.wait(2)
            return True
        except subprocess.TimeoutExpired:
            size = sum(file.stat().st_size for file in results.glob("*.out"))
            if size != last_size:
                last_size, last_change = size, time.monotonic()
            elif time.monotonic() - last_change > STALL_TIMEOUT_S:
                return False
    return False


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
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    environment.update({"LC_ALL": "C.UTF-8", "PGCONNECT_TIMEOUT": "300", "PGSSLMODE": "disable", "HOME": str(suite)})
    outcome = Outcome()
    started = time.monotonic()
    output = cluster.home / "pg_regress.out"
    stop = threading.Event()
    watcher = threading.Thread(target=watch_progress, args=(output, stop), daemon=True)
    watcher.start()
    with open(output, "w") as file:
        process = subprocess.Popen(
            as_server_user(command),
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=str(suite),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        if not wait_while_it_moves(process, suite / "results"):
            outcome.finished = False
            print("the suite hangs; where:\n" + hang_report(cluster), flush=True)
            os.killpg(process.pid, 9)
            process.wait()
    stop.set()
    watcher.join()
    outcome.seconds = time.monotonic() - started
    text = output.read_text(errors="replace")
    outcome.passed = verdicts(text)
    if not outcome.passed:
        raise RuntimeError(f"pg_regress ran no test\n{text[-3000:]}\n{cluster.log_tail()}")
    for file in (suite / "results").glob("*.out"):
        outcome.results[file.stem] = file.read_text(errors="replace")
    return outcome


def hang_report(cluster: Cluster) -> str:
    lines = []
    try:
        for row in cluster.sql(
            "SELECT pid, datname, state, wait_event_type, wait_event, left(query, 100), pg_blocking_pids(pid)"
            " FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        ):
            lines.append(str(row))
    except Exception as error:  # the server itself may hang
        lines.append(f"(no activity: {error})")
    return "\n".join(lines) + "\n" + cluster.stacks() + "\n" + cluster.log_tail()


def run_mode(run: Run, suite: Path, mode: str, arguments: argparse.Namespace, out: Path) -> Outcome:
    parameters: dict[str, object] = dict(SUITE_PARAMETERS)
    pooled = mode != "direct"
    if pooled:
        parameters["pg_baton.max_backends"] = arguments.backends
        # Twenty tests at once, each with temporary tables: they wait long.
        parameters["pg_baton.session_wait_timeout"] = 0
        parameters["pg_baton.force_migration"] = mode == "forced"
    for setting in arguments.set:
        name, _, value = setting.partition("=")
        parameters[name] = value
    cluster = run.cluster(f"regress-{mode}", parameters=parameters, pooled=pooled)
    keep = out / mode
    if keep.exists():
        shutil.rmtree(keep)
    keep.mkdir(parents=True)
    try:
        cluster.start()
        print(f"{mode}: running", flush=True)
        outcome = run_suite(cluster, cluster.pool_port if pooled else cluster.port, suite, arguments.tests)
        try:
            cluster.stop("fast")
            cluster.check_clean()
        except (AssertionError, TimeoutError) as problem:
            print(f"{mode}: {problem}", flush=True)
            outcome.finished = False
    finally:
        for file in ("regression.diffs", "regression.out"):
            if (suite / file).exists():
                shutil.copy(suite / file, keep)
        if (suite / "results").exists():
            shutil.copytree(suite / "results", keep / "results", dirs_exist_ok=True)
        if cluster.log_file.exists():
            shutil.copy(cluster.log_file, keep / "server.log")
        cluster.destroy()
    good = sum(outcome.passed.values())
    print(f"{mode}: {good} of {len(outcome.passed)} as PostgreSQL expects, {outcome.seconds:.0f} s", flush=True)
    return outcome


def allowed_differences() -> dict[str, str]:
    """Test name to cause, from the lists beside this file."""
    allowed = {}
    lists = [HERE / "allowed_differences.txt", HERE / f"allowed_differences_{server_major()}.txt"]
    for line in "\n".join(one.read_text() for one in lists if one.exists()).splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, cause = line.partition(":")
            allowed[name.strip()] = cause.strip()
    return allowed


def compare(direct: Outcome, pool: Outcome, mode: str, out: Path) -> int:
    """Writes the difference and the summary; the exit status."""
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
    unexpected = [name for name in differing if name not in allowed]
    print(
        f"\n{mode}: {len(direct.passed)} tests: {len(direct.passed) - len(differing)} the same, "
        f"{len(differing) - len(unexpected)} differ as listed, {len(unexpected)} differ otherwise; "
        f"direct {direct.seconds:.0f} s, {mode} {pool.seconds:.0f} s"
    )
    stale = [name for name in allowed if name in direct.passed and name not in differing]
    if stale:
        print("listed, but the same in this run: " + ", ".join(stale))
    return 1 if unexpected or not pool.finished or not direct.finished else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["direct", "forced", "normal"], action="append", default=[])
    parser.add_argument("--backends", type=int, default=3)
    parser.add_argument("--tests", default="", type=str.split, help="names, in order (test_setup first)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    run = Run()
    try:
        suite = prepare_suite(run, fetch())
        outcomes = {}
        for mode in ("direct", "forced", "normal"):
            if not arguments.only or mode in arguments.only:
                if mode != "direct" and run.stage is None:
                    print("BATON_TEST_DIRECT is set: no run through the pool")
                    continue
                outcomes[mode] = run_mode(run, suite, mode, arguments, out)
        if "direct" in outcomes and len(outcomes) > 1:
            direct = outcomes.pop("direct")
            return max(compare(direct, outcome, mode, out) for mode, outcome in outcomes.items())
        return 0 if all(all(o.passed.values()) and o.finished for o in outcomes.values()) else 1
    except (RuntimeError, TimeoutError, OSError, subprocess.SubprocessError) as error:
        print(f"the suite could not be run: {error}", file=sys.stderr)
        return 2
    finally:
        run.close()


if __name__ == "__main__":
    sys.exit(main())
