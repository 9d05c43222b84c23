"""Builds of pg_baton: the one in a checkout's folders, and those of git
revisions, which are built in bench/results/scratch and kept there.

A server finds one by the parameters that `stage` gives, so nothing has to be
installed.  What it uses is a copy, so that building anew changes no run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SCRATCH = REPOSITORY / "bench/results/scratch"
BUILD_LIMIT_S = 1200


DISPATCHER = "baton-dispatcher"
MONITOR = "baton-monitor"
# When the dispatcher and the demonstration were one program.
DISPATCHER_OF_OLD = "baton"


@dataclass(frozen=True)
class Build:
    """A folder that is laid out as the repository, with what was built in it."""

    name: str
    folder: Path

    def library(self) -> Path:
        return self.folder / "extension/pg_baton.so"

    def program(self) -> Path:
        programs = [self.folder / "target/release" / name for name in (DISPATCHER, DISPATCHER_OF_OLD)]
        return next((program for program in programs if program.exists()), programs[0])

    def is_there(self) -> bool:
        return self.library().exists() and self.program().exists()

    def stage(self, directory: Path) -> dict[str, str]:
        """Copies it to where the server's user can read it; the parameters by
        which a server uses it."""
        if not self.is_there():
            raise SystemExit(f"bench: nothing is built in {self.folder}, run make first")
        directory.mkdir()
        for file in (self.library(), self.program()):
            shutil.copy(file, directory)
        # Builds before 2026-11-28 have none.
        if (monitor := self.program().with_name(MONITOR)).exists():
            shutil.copy(monitor, directory)
        for path in [directory, *directory.iterdir()]:
            path.chmod(0o755)
        return {
            "dynamic_library_path": f"{directory}:$libdir",
            "pg_baton.dispatcher_program": str(directory / self.program().name),
        }


def pg_config(what: str) -> str:
    path = os.environ.get("PG_CONFIG") or "/usr/lib/postgresql/15/bin/pg_config"
    return subprocess.run([path, what], capture_output=True, text=True, check=True).stdout.strip()


def of_tree() -> Build:
    """What this checkout has built."""
    return Build("tree", REPOSITORY)


def find(what: str) -> Build:
    """A folder in which it is built already, or a revision, which is built now
    (blocks, minutes) unless it was before."""
    folder = Path(what)
    if (folder / "extension").is_dir():
        return Build(folder.resolve().name, folder.resolve())
    named = subprocess.run(
        ["git", "-C", str(REPOSITORY), "rev-parse", "--verify", "--quiet", f"{what}^{{commit}}"],
        capture_output=True,
        text=True,
    )
    if named.returncode != 0:
        raise SystemExit(f"bench: {what} is neither a folder with a build nor a revision")
    commit = named.stdout.strip()
    build = Build(commit[:10], SCRATCH / "builds" / commit[:10])
    if not build.is_there():
        build_revision(commit, build)
    return build


def build_revision(commit: str, build: Build) -> None:
    print(f"bench: building {what_is(commit)}", flush=True)
    shutil.rmtree(build.folder, ignore_errors=True)
    source = build.folder / "source"
    source.mkdir(parents=True)
    archive = subprocess.Popen(["git", "-C", str(REPOSITORY), "archive", commit], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(source)], stdin=archive.stdout, check=True)
    if archive.wait(BUILD_LIMIT_S) != 0:
        raise SystemExit(f"bench: git has no archive of {commit}")
    # What crates are built of is kept for the next revision.
    target = SCRATCH / "builds/target"
    for command in (
        ["make", "-s", "-C", "extension", *pg_config_of_make()],
        ["cargo", "build", "--quiet", "--release", "--workspace", "--exclude", "baton-load"],
    ):
        done = subprocess.run(
            command,
            cwd=source,
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_S,
            env={**os.environ, "CARGO_TARGET_DIR": str(target)},
        )
        if done.returncode != 0:
            raise SystemExit(f"bench: {commit} cannot be built: {done.stderr[-2000:]}")
    # `target` may have both names, of two revisions.
    program = DISPATCHER if (source / "cli").exists() else DISPATCHER_OF_OLD
    for built, place in (
        (source / "extension/pg_baton.so", build.library()),
        (target / "release" / program, build.folder / "target/release" / program),
        (target / "release" / MONITOR, build.folder / "target/release" / MONITOR),
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        # `target` may have it of a later revision.
        if place.name != MONITOR or (source / "monitor").exists():
            shutil.copy(built, place)
    shutil.rmtree(source)


def pg_config_of_make() -> list[str]:
    path = os.environ.get("PG_CONFIG")
    return [f"PG_CONFIG={path}"] if path else []


def what_is(commit: str) -> str:
    return subprocess.run(
        ["git", "-C", str(REPOSITORY), "log", "-1", "--format=%h %s", commit],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def revision(build: Build) -> str:
    """What is measured, as git says it."""
    if build.folder != REPOSITORY:
        return f"pg_baton {build.name}"
    # in a copy without git's: tools/with-postgres says it
    if "BATON_REVISION" in os.environ:
        return f"pg_baton {os.environ['BATON_REVISION']}"
    said = subprocess.run(
        ["git", "-C", str(build.folder), "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return f"pg_baton {said.stdout.strip()}" if said.returncode == 0 else "pg_baton"
