"""What PostgreSQL's two suites have in common, as we run them: one run of the
suite's own program on a cluster, watched, and what it gave.

../isolation/run.py and run.py say which program, and what is made of it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.account import as_server_user, neutral_environment
from harness.certificates import Authority, make_secure
from harness.cluster import Cluster, Run
from harness.other_roles import OtherRoles

SUITE_TIMEOUT_S = 900
STALL_TIMEOUT_S = 180

# As near as can be to what pg_regress' own temporary instance runs with.
SUITE_PARAMETERS: dict[str, object] = {
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


def add_arguments(parser: argparse.ArgumentParser, default_out: Path) -> None:
    """The options of both suites' programs that mean the same."""
    parser.add_argument(
        "--other-roles",
        type=int,
        default=0,
        metavar="COUNT",
        help="so many are at work in the suite's database by the pool meanwhile",
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, default=default_out)


@dataclass
class Outcome:
    """What one run of the suite gave: test name to ok or not."""

    passed: dict[str, bool] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    finished: bool = True


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


def run_program(cluster: Cluster, command: list[str], suite: Path) -> Outcome:
    """One run of the suite's program; its results are left in the suite's directory."""
    environment = neutral_environment()
    mode = "require" if cluster.parameters.get("ssl") == "on" else "disable"
    environment.update({"LC_ALL": "C.UTF-8", "PGCONNECT_TIMEOUT": "300", "PGSSLMODE": mode, "HOME": str(suite)})
    outcome = Outcome()
    started = time.monotonic()
    name = Path(command[0]).name
    output = cluster.home / f"{name}.out"
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
        raise RuntimeError(f"{name} ran no test\n{text[-3000:]}\n{cluster.log_tail()}")
    for file in (suite / "results").glob("*.out"):
        outcome.results[file.stem] = file.read_text(errors="replace")
    return outcome


def run_mode(
    run: Run,
    suite: Path,
    mode: str,
    parameters: dict[str, object],
    settings: list[str],
    keep: Path,
    run_suite: Callable[[Cluster, int], Outcome],
    database: str,
    other_roles: int = 0,
    secure: bool = False,
) -> Outcome:
    """The suite on a cluster of its own, which must end clean; what it leaves is kept.

    `parameters` are those of a pool; `settings`, NAME=VALUE, the command line's; so many other roles
    are at work in the suite's database by the pool meanwhile; secure: the pool by TLS."""
    pooled = mode != "direct"
    all_parameters = dict(SUITE_PARAMETERS)
    if pooled:
        all_parameters.update(parameters)
        all_parameters["pg_baton.force_migration"] = mode == "forced"
    for setting in settings:
        name, _, value = setting.partition("=")
        all_parameters[name] = value
    cluster = run.cluster(f"{suite.name}-{mode}", parameters=all_parameters, pooled=pooled)
    if secure and pooled:
        make_secure(cluster, Authority(run.directory / f"certificates-{mode}"))
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir(parents=True)
    try:
        cluster.start()
        print(f"{mode}: running", flush=True)
        others = OtherRoles(cluster, database, other_roles if pooled else 0)
        with others:
            outcome = run_suite(cluster, cluster.pool_port if pooled else cluster.port)
        if others.roles:
            print(f"{mode}: beside {others.served} transactions of {len(others.roles)} other roles", flush=True)
            if others.problems():
                print("\n".join(others.problems()[:20]), flush=True)
                outcome.finished = False
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
