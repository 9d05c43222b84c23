"""Running server programs as an unprivileged user.

PostgreSQL refuses to run as root.  If root runs the tests, they run every server
program as the user named by BATON_TEST_USER (default "postgres"). If another user
runs them, they run the server programs as that user.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator


@functools.cache
def server_user() -> pwd.struct_passwd:
    """The operating system user that owns the clusters."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    return pwd.getpwnam(os.environ.get("BATON_TEST_USER", "postgres"))


def as_server_user(command: list[str], die_with_parent: bool = False) -> list[str]:
    """The command line that runs `command` as the server's user.

    With die_with_parent a SIGQUIT (immediate shutdown) reaches the server if
    the test process dies without cleaning up.
    """
    user = server_user()
    prefix: list[str] = []
    if os.geteuid() == 0:
        prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    if die_with_parent:
        prefix = (prefix or ["setpriv"]) + ["--pdeathsig", "QUIT"]
    return prefix + (["--"] if prefix else []) + command


def become_server_user() -> None:
    """Makes this process run as the server's user, for good."""
    user = server_user()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)


def other_users(count: int = 1) -> list[str]:
    """System users that are neither root nor the server's; [] if the tests
    may not act for them."""
    if os.geteuid() != 0:
        return []
    found = []
    for name in ("daemon", "nobody", "bin", "sys"):
        with contextlib.suppress(KeyError):
            if pwd.getpwnam(name).pw_uid not in (0, server_user().pw_uid):
                found.append(name)
    return found[:count] if len(found) >= count else []


@contextlib.contextmanager
def acting_as(name: str) -> Iterator[None]:
    """The kernel attributes connections to Unix sockets made meanwhile to that user
    (SO_PEERCRED keeps the effective user of the process that connects)."""
    user = pwd.getpwnam(name)
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def give_to_server_user(path: os.PathLike[str] | str) -> None:
    """Makes the server's user the owner of one file or directory."""
    if os.geteuid() == 0:
        os.chown(path, server_user().pw_uid, server_user().pw_gid)


def neutral_environment() -> dict[str, str]:
    """This process's environment without PG*, which libpq's programs go by."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PG")}


def run_as_server_user(command: list[str], timeout_s: float = 120, **kwargs) -> str:
    """Runs a program to its end. Returns its output, or raises an error that quotes it."""
    environment = neutral_environment()
    environment["LC_ALL"] = "C.UTF-8"
    environment["HOME"] = server_user().pw_dir
    done = subprocess.run(
        as_server_user(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        env=environment,
        cwd="/",
        **kwargs,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


@functools.cache
def pg_config(what: str) -> str:
    """One answer of pg_config (PG_CONFIG in the environment names another)."""
    program = os.environ.get("PG_CONFIG") or shutil.which("pg_config") or "pg_config"
    return subprocess.run([program, f"--{what}"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def server_major() -> int:
    """The server's major version: "PostgreSQL 17.6 (Debian ...)" is 17."""
    return int(pg_config("version").split()[1].split(".")[0].rstrip("abcdefghijklmnopqrstuvwxyz"))


# This parameter makes parallel workers run queries even without a benefit.
DEBUG_PARALLEL = "debug_parallel_query" if server_major() >= 16 else "force_parallel_mode"


def server_program(name: str) -> str:
    """The path of one of the server's programs."""
    return os.path.join(pg_config("bindir"), name)
