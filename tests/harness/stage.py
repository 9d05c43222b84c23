"""Where the extension and the dispatcher under test come from.

BATON_TEST_FROM says which: "tree" (what the checkout has built), "installed"
(what `make install` put beside the server), or unset: the tree if it is built.

What comes from the tree is copied once a run into a directory that the
server's user can read, so that a rebuild during a run changes nothing.
BATON_TEST_TARGET names cargo's folder of what it builds, if that is not "target".
BATON_TEST_PRELOAD names libraries, with spaces between, that the server is
started with (LD_PRELOAD): the sanitizers' runtime.
CREATE EXTENSION is made to look there by `extension_control_path`, which came
with 18, or by Debian's own `extension_destdir` before.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from .account import pg_config, server_major

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Stage:
    """The parameters by which a cluster finds what is tested."""

    parameters: dict[str, str]
    program: str
    origin: str
    preload: str = ""


def direct_only() -> bool:
    """True if the tests shall run on the server alone, without the pool."""
    return os.environ.get("BATON_TEST_DIRECT", "") not in ("", "0")


def tls_wanted() -> bool:
    """True if clients of the pool's port shall come by TLS."""
    return os.environ.get("BATON_TEST_TLS", "") not in ("", "0")


def built_program() -> Path | None:
    for build in ("release", "debug"):
        program = REPOSITORY / os.environ.get("BATON_TEST_TARGET", "target") / build / "baton-dispatcher"
        if program.exists():
            return program
    return None


def make_stage(run_directory: Path) -> Stage | None:
    """Finds what is tested; None if the tests run without the pool."""
    if direct_only():
        return None
    library = REPOSITORY / "extension" / "pg_baton.so"
    program = built_program()
    origin = os.environ.get("BATON_TEST_FROM", "")
    if origin == "":
        origin = "tree" if library.exists() and program else "installed"
    if origin == "installed":
        found = shutil.which("baton-dispatcher", path=f"{pg_config('bindir')}:{os.environ.get('PATH', '')}")
        if not found or not Path(pg_config("pkglibdir"), "pg_baton.so").exists():
            raise RuntimeError("pg_baton is neither built nor installed; run make first")
        return Stage({}, found, origin)
    if not library.exists() or program is None:
        raise RuntimeError("the checkout is not built; run make first")

    stage = run_directory / "stage"
    lib_directory = stage / pg_config("pkglibdir").lstrip("/")
    share_directory = stage / pg_config("sharedir").lstrip("/") / "extension"
    lib_directory.mkdir(parents=True)
    share_directory.mkdir(parents=True)
    shutil.copy(library, lib_directory)
    for file in (REPOSITORY / "extension").glob("*.control"):
        shutil.copy(file, share_directory)
    for file in list((REPOSITORY / "extension").glob("*.sql")) + list(
        (REPOSITORY / "extension" / "sql").glob("pg_baton--*.sql")
    ):
        shutil.copy(file, share_directory)
    for name in (program.name, "baton", "baton-monitor"):
        shutil.copy(program.with_name(name), stage)
    preload = [str(shutil.copy(path, stage)) for path in os.environ.get("BATON_TEST_PRELOAD", "").split()]
    for path in [stage, *stage.rglob("*")]:
        path.chmod(0o755)
    where = (
        {"extension_control_path": f"{share_directory.parent}:$system"}
        if server_major() >= 18
        else {"extension_destdir": str(stage)}
    )
    return Stage(
        {
            **where,
            "dynamic_library_path": f"{lib_directory}:$libdir",
            "pg_baton.dispatcher_program": str(stage / "baton-dispatcher"),
        },
        str(stage / "baton-dispatcher"),
        origin,
        ":".join(preload),
    )
