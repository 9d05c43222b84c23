"""Commands that a user runs by hand, before there is a pool: `baton demo`, `make`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest
from harness.account import pg_config
from harness.ports import free_port
from harness.stage import REPOSITORY

# `baton demo` starts its servers without the libraries that the harness preloads,
# and `make` is not in the copy that is made to be sanitized.
not_sanitized = pytest.mark.skipif("BATON_TEST_PRELOAD" in os.environ, reason="not what the sanitizers look at")

pytestmark = pytest.mark.pool_only


@pytest.fixture
def folder(run):
    """A folder that the server's user may enter."""
    with tempfile.TemporaryDirectory(dir=run.directory) as name:
        os.chmod(name, 0o755)
        yield Path(name)


class Demo:
    """A `baton demo`, from its start to Ctrl-C."""

    def __init__(self, run, folder: Path, *arguments: str) -> None:
        command = [Path(run.stage.program).with_name("baton"), "demo", "--no-load", *arguments]
        for setting in run.stage.parameters.items():
            command += ["--set", "=".join(setting)]
        if "extension_destdir" in run.stage.parameters:
            # the directories that it asks for are those of the staged tree
            staged = Path(run.stage.parameters["extension_destdir"])
            wrapper = folder / "pg_config"
            lines = [f'--{what}) echo "{staged}{pg_config(what)}";;' for what in ("pkglibdir", "sharedir")]
            real = Path(pg_config("bindir"), "pg_config")
            wrapper.write_text(f'#!/bin/sh\ncase "$1" in\n{chr(10).join(lines)}\n*) exec {real} "$@";;\nesac\n')
            wrapper.chmod(0o755)
            command += ["--pg-config", str(wrapper)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ports(self) -> dict[str, str]:
        """Waits until the demo is ready; returns its ports' addresses."""
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]
        found = (self.process.stdout.readline().split(":", 1) for _ in range(2))
        return {name: address.strip() for name, address in found}

    def refusal(self) -> str:
        try:
            said = self.process.communicate(timeout=40)[1]
        finally:
            # the demo removes the files that it has made
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
        assert self.process.returncode != 0
        return said

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        said = self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, said


def free_ports() -> list[str]:
    return ["--port", str(free_port()), "--pg-port", str(free_port())]


@not_sanitized
@pytest.mark.parametrize("name", ["plain", "with, comma"])
def test_a_demonstration_leaves_a_directory_as_it_was(run, folder, name):
    directory = folder / name
    directory.mkdir(mode=0o700)
    before = directory.stat()
    arguments = [*free_ports(), "--dir", str(directory), "--set", "shared_preload_libraries=auto_explain"]
    with Demo(run, folder, *arguments) as demo:
        ports = demo.ports()
        assert list(ports) == ["pool", "direct"]
        for address in ports.values():
            with psycopg.connect(address, autocommit=True) as session:
                libraries = session.execute("SHOW shared_preload_libraries").fetchone()
                assert libraries == ("pg_baton, auto_explain",)
        # the pool's socket is there as well
        with socket.socket(socket.AF_UNIX) as client:
            port = arguments[1]
            client.connect(str(directory / f".s.PGSQL.{port}"))
    after = directory.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert list(directory.iterdir()) == []


@not_sanitized
def test_a_demo_that_listens_nowhere_is_reached_at_its_socket(run, folder):
    directory = folder / "new"
    with Demo(run, folder, *free_ports(), "--dir", str(directory), "--set", "listen_addresses=") as demo:
        for address in demo.ports().values():
            with psycopg.connect(address, autocommit=True) as session:
                assert session.execute("SHOW listen_addresses").fetchone() == ("",)
    assert not directory.exists()


@not_sanitized
def test_a_demonstration_shows_the_pool_in_the_server_s_place(run, folder):
    with Demo(run, folder, *free_ports(), "--same-port") as demo:
        ports = demo.ports()
        assert "@127.0.0.1:" in ports["pool"] and "host=%2F" in ports["direct"]
        for address in ports.values():
            with psycopg.connect(address, autocommit=True) as session:
                assert session.execute("SHOW listen_addresses").fetchone() == ("",)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "pg_baton.port=7000"], "is set by --port"),
        (["--set", "port=7000"], "is set by --pg-port"),
        (["--set", "listen_addresses=", "--set", "unix_socket_directories="], "is left to ask the server by"),
        (["--port", "{taken}"], "port {taken} is taken"),
        (["--port", "81"], "port 81"),
    ],
    ids=["pool_port", "server_port", "nowhere", "taken", "not_permitted"],
)
def test_a_demonstration_that_cannot_be_is_refused_at_once(run, folder, arguments, text):
    if "81" in arguments and int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 81:
        pytest.skip("any port is anybody's here")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        # the ports that it would take by itself may be another process's
        ports = free_ports()[2 if "--port" in arguments else 0 :]
        demo = Demo(run, folder, *ports, *(argument.format(taken=taken) for argument in arguments))
        said = demo.refusal()
        assert text.format(taken=taken) in said
        assert ("taken" in said) == ("taken" in text)
        assert "starting the server" not in said


@not_sanitized
def test_uninstall_from_a_staging_directory_touches_nothing_else(folder):
    make = ["make", "-C", str(REPOSITORY), "--no-print-directory", "--dry-run", "uninstall-files"]
    make += [f"DESTDIR={folder}", f"PG_CONFIG={Path(pg_config('bindir'), 'pg_config')}"]
    lines = subprocess.run(make, capture_output=True, text=True, check=True).stdout.splitlines()
    removed = [word.strip("'") for line in lines if line.startswith("rm ") for word in line.split()[2:]]
    assert {Path(path).name for path in removed} >= {
        "baton",
        "baton-dispatcher",
        "baton-monitor",
        "pg_baton.so",
        "pg_baton.control",
    }
    assert all(path.startswith(f"{folder}/") for path in removed), removed
