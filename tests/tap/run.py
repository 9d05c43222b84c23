#!/usr/bin/env python3
"""PostgreSQL's own tests in Perl (TAP), directly and through the pool, compared.

    run.py [--only direct|normal|forced]... [--out build/tap] [--set NAME=VALUE]...
           [SUITE[:FILE]...]

A suite is a folder of PostgreSQL's source with tests in t/ (src/test/ssl), a FILE one of
these (001_ssltests).  Without any: SUITES, who comes in and how.  They start servers of
their own, unchanged; for the pool, PooledCluster.pm has it stand on the port that a test
calls (normal), with each transaction on another backend (forced).  A check is the same if
it passes or fails as directly.  Every other must be listed in allowed_differences.txt with
its cause.  Exit status: 0 all as promised, 1 a difference that is not listed, 2 the suites
could not be run.

What each file says, and its servers' logs, stay in the --out directory.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.account import as_server_user, give_to_server_user, pg_config, server_major  # noqa: E402
from harness.cluster import POOL_PARAMETERS, Run  # noqa: E402
from regress.fetch_source import fetch  # noqa: E402

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE.parents[1] / "build" / "tap"
# With what pg_baton has to be told for one.
SUITES: dict[str, dict[str, str]] = {
    # What calls the server that is to be the standby's next primary.
    "src/bin/pg_rewind:003_extrafiles": {},
    "src/test/authentication": {},
    # Clients that demand GSSAPI encryption where no line of pg_hba.conf does.
    "src/test/kerberos": {"pg_baton.gss_encryption": "on"},
    "src/test/ldap": {},
    # Others of them fill up the server's own connections, or leave no worker for the launcher.
    "src/test/postmaster:004_negotiate": {},
    "src/test/ssl": {},
}
# From 18 on these wait in the log for what only processes of the server's own write.
NOT_FROM_18_ON = {"src/test/authentication", "src/test/ssl"}
MODES = ("direct", "normal", "forced")
FILE_TIMEOUT_S = 900
# What tests ask of how the server was built (src/Makefile.global): all of it, Debian's is.
BUILT_WITH = {
    "with_gssapi": "yes",
    "with_icu": "yes",
    "with_krb_srvnam": "postgres",
    "with_ldap": "yes",
    "with_readline": "yes",
    "with_ssl": "openssl",
    "PG_TEST_EXTRA": "kerberos ldap load_balance ssl",
}


@dataclass
class Outcome:
    """What one file said: of each check, by its words, whether it passed; and if it did not
    come to its end, why."""

    checks: dict[str, bool] = field(default_factory=dict)
    failure: str = ""
    skipped: str = ""
    seconds: float = 0.0


def read_tap(text: str, status: int) -> Outcome:
    outcome = Outcome()
    for word, words in re.findall(r"^(ok|not ok) \d+(?: - | )?(.*)$", text, re.MULTILINE):
        # Ports and folders are others each time.
        words = re.sub(r"\d{4,}|/\S*/tmp_check/\S*|/tmp/\S+", "...", words)
        name, nth = words, 1
        while name in outcome.checks:
            nth += 1
            name = f"{words} ({nth})"
        outcome.checks[name] = word == "ok"
    bail = re.search(r"^Bail out!.*", text, re.MULTILINE)
    plan = re.search(r"^1\.\.(\d+)(?: # SKIP (.*))?", text, re.MULTILINE)
    if plan and plan.group(2):
        outcome.skipped = plan.group(2)
    elif bail:
        outcome.failure = bail.group(0)
    elif not plan or int(plan.group(1)) != len(outcome.checks):
        outcome.failure = f"ended amid its checks, exit status {status}"
    return outcome


class Tests:
    """The suites' folders, and what runs one file of them."""

    def __init__(self, run: Run, source: Path, out: Path) -> None:
        self.run, self.source, self.out = run, source, out
        self.tree = run.directory / "source"
        self._copy("src/test/perl")
        # Whose certificates others use, too.
        self._copy("src/test/ssl")
        shutil.copy(HERE / "PooledCluster.pm", self.tree)

    def _copy(self, folder: str) -> None:
        """It is written to, by the server's user."""
        shutil.copytree(self.source / folder, self.tree / folder, dirs_exist_ok=True)
        for path in [self.tree, *self.tree.rglob("*")]:
            give_to_server_user(path)

    def files(self, what: str) -> list[tuple[str, Path]]:
        """The suite of each, and it; none if this major has it not."""
        suite, _, name = what.partition(":")
        if not (self.source / suite / "t").is_dir():
            return []
        self._copy(suite)
        return [(suite, file) for file in sorted((self.tree / suite / "t").glob("*.pl")) if name in ("", file.stem)]

    def _parameters(self, mode: str, settings: dict[str, str]) -> str:
        assert self.run.stage is not None
        parameters = {
            **POOL_PARAMETERS,
            "pg_baton.force_migration": "on" if mode == "forced" else "off",
            **self.run.stage.parameters,
            **settings,
        }
        return "".join(f"{name} = '{value}'\n" for name, value in parameters.items())

    def run_file(self, mode: str, suite: str, file: Path, settings: dict[str, str]) -> Outcome:
        out = self.out / mode / Path(suite).name / file.stem
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        folder = self.tree / suite
        perl = ["perl", "-I", str(self.tree / "src/test/perl"), "-I", str(folder / "t")]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "KRB5"))}
        environment.update(BUILT_WITH)
        environment.update(
            {
                "HOME": str(folder),
                "LC_ALL": "C.UTF-8",
                "PATH": f"{pg_config('bindir')}:{environment['PATH']}",
                "PG_REGRESS": str(Path(pg_config("pkglibdir"), "pgxs/src/test/regress/pg_regress")),
                "PG_TEST_TIMEOUT_DEFAULT": "120",
                # 15, and from 16 on.
                "TESTDIR": str(folder),
                "TESTDATADIR": str(folder / "tmp_check"),
                "TESTLOGDIR": str(folder / "tmp_check" / "log"),
            }
        )
        if mode != "direct":
            parameters = self.tree / "pool.conf"
            parameters.write_text(self._parameters(mode, settings))
            parameters.chmod(0o644)
            environment["TEMP_CONFIG"] = str(parameters)
            perl += ["-I", str(self.tree), "-MPooledCluster"]
        started = time.monotonic()
        said = out / "said"
        with open(said, "w") as output:
            process = subprocess.Popen(
                as_server_user([*perl, str(file)]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
            try:
                status: int = process.wait(FILE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                status = process.wait()
        outcome = read_tap(said.read_text(errors="replace"), status)
        outcome.seconds = time.monotonic() - started
        logs = folder / "tmp_check" / "log"
        for log in logs.glob("*"):
            if log.is_file():
                shutil.copy(log, out)
        shutil.rmtree(folder / "tmp_check", ignore_errors=True)
        return outcome


def allowed_differences() -> list[tuple[re.Pattern[str], str]]:
    """What a check is called, and the cause."""
    allowed = []
    for line in (HERE / "allowed_differences.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, _, cause = line.partition(" :: ")
            allowed.append((re.compile(pattern), cause))
    return allowed


def differences(direct: Outcome, pool: Outcome) -> list[str]:
    """Of the checks, in words; how the file ended, too."""
    found = []
    if (direct.failure, direct.skipped) != (pool.failure, pool.skipped):
        found.append(f"the file: {pool.failure or pool.skipped or 'all its checks'}")
    for name, passed in direct.checks.items():
        if name not in pool.checks:
            found.append(f"not made: {name}")
        elif pool.checks[name] != passed:
            found.append(f"{'passes' if pool.checks[name] else 'fails'}: {name}")
    found += [f"made: {name}" for name in pool.checks if name not in direct.checks]
    return found


def report(file: Path, mode: str, outcome: Outcome) -> None:
    note = outcome.failure or (outcome.skipped and f"skipped: {outcome.skipped}")
    passed, checks = sum(outcome.checks.values()), len(outcome.checks)
    print(
        f"{file.parents[1].name}/{file.stem}, {mode}: {passed} of {checks} pass, {outcome.seconds:.0f} s"
        f"{'; ' if note else ''}{note}",
        flush=True,
    )


@dataclass
class Tally:
    same: int = 0
    listed: int = 0
    unexpected: list[str] = field(default_factory=list)

    def compare(self, file: Path, direct: Outcome, pool: Outcome) -> None:
        found = differences(direct, pool)
        self.same += sum(direct.checks[name] == pool.checks.get(name) for name in direct.checks)
        for difference in found:
            name = f"{file.stem}: {difference}"
            cause = next((cause for pattern, cause in allowed_differences() if pattern.search(name)), None)
            self.listed += cause is not None
            if cause is None:
                self.unexpected.append(name)
            print(f"    {difference} ({f'listed: {cause}' if cause else 'NOT LISTED'})", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [suite for suite in SUITES if server_major() < 18 or suite not in NOT_FROM_18_ON]
    parser.add_argument("what", nargs="*", metavar="SUITE[:FILE]", default=usual)
    parser.add_argument("--only", choices=MODES, action="append", default=[])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    modes = [mode for mode in MODES if not arguments.only or mode in arguments.only]
    given = dict(setting.split("=", 1) for setting in arguments.set)
    run = Run()
    tally = Tally()
    try:
        tests = Tests(run, fetch(), arguments.out)
        for what in arguments.what:
            for suite, file in tests.files(what):
                settings = {**SUITES.get(what, {}), **given}
                outcomes = {mode: tests.run_file(mode, suite, file, settings) for mode in modes}
                for mode, outcome in outcomes.items():
                    report(file, mode, outcome)
                    if mode != "direct" and "direct" in outcomes:
                        tally.compare(file, outcomes["direct"], outcome)
        print(*tally.unexpected, sep="\n", end="\n" if tally.unexpected else "")
        print(
            f"{tally.same} checks the same, {tally.listed} differ as listed, {len(tally.unexpected)} differ otherwise"
        )
        # No check at all would prove nothing.
        return 1 if tally.unexpected or ("direct" in modes and len(modes) > 1 and not tally.same) else 0
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"the suites could not be run: {error}", file=sys.stderr)
        return 2
    finally:
        run.close()


if __name__ == "__main__":
    sys.exit(main())
