"""A cluster of two nodes that Patroni runs, its etcd, and an HAProxy: Debian's programs, with the
configurations of docs/high-availability.md."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pytest

from . import processes
from .account import as_server_user, give_to_server_user, pg_config, run_as_server_user, server_program
from .authenticators import Service, program
from .cluster import ALARMS, BASE_PARAMETERS, POOL_PARAMETERS, Run
from .health import wait_until
from .ports import HOST, free_port

PAGE = Path(__file__).resolve().parents[2] / "docs/high-availability.md"
PASSWORD = "secret"  # of all roles of the page


def example(first_line: str, page: Path = PAGE) -> str:
    """The configuration of a page of the documentation that begins with this line."""
    (found,) = re.findall(rf"^    {re.escape(first_line)}\n(?:    .*\n|\n(?=    ))*", page.read_text(), re.MULTILINE)
    return re.sub(r"^    ", "", found, flags=re.MULTILINE)


def conninfo(host: str, port: int, **options: object) -> str:
    merged = {"host": host, "port": port, "user": "postgres", "password": PASSWORD, "dbname": "postgres"}
    merged |= {"connect_timeout": 5, "sslmode": "disable", "gssencmode": "disable", **options}
    return " ".join(f"{name}='{value}'" for name, value in merged.items())


def replaced(text: str, replacements: dict[str, object]) -> str:
    for old, new in replacements.items():
        assert old in text, old
        text = text.replace(old, str(new))
    return text


class Etcd(Service):
    def __init__(self, directory: Path) -> None:
        etcd = program("etcd", "etcd-server")
        super().__init__(directory)
        peers, clients = f"http://{HOST}:{free_port()}", f"http://{HOST}:{self.port}"
        options = {
            "data-dir": directory / "data",
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "unsafe-no-fsync": "true",
        }
        self._run([etcd, *(f"--{name}={value}" for name, value in options.items())])
        self._wait(self._listens)


class HAProxy(Service):
    """One with the sections that `text` has, beside the global ones."""

    GLOBAL = """
global
    stats socket {socket} level admin
defaults
    mode tcp
    timeout connect 2s
    timeout client 1m
    timeout server 1m
    timeout check 1s
"""

    def __init__(self, directory: Path, text: str) -> None:
        haproxy = program("haproxy", "haproxy")
        super().__init__(directory)
        self.socket = directory / "socket"
        configuration = directory / "haproxy.cfg"
        configuration.write_text(self.GLOBAL.format(socket=self.socket) + text)
        self._run([haproxy, "-db", "-f", str(configuration)])
        self._wait(self.socket.exists)

    def status(self, proxy: str, server: str) -> str:
        """UP or DOWN, perhaps with how many checks are left until it changes."""
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(self.socket))
            asked.sendall(b"show stat\n")
            rows = asked.makefile().read().splitlines()
        names = rows[0].removeprefix("# ").split(",")
        found = [dict(zip(names, row.split(","), strict=False)) for row in rows[1:] if row]
        (status,) = [row["status"] for row in found if (row["pxname"], row["svname"]) == (proxy, server)]
        return status


class Ports:
    """Both nodes have the same ports, each at an address of its own."""

    def __init__(self) -> None:
        self.server, self.pool, self.rest, self.monitor = (free_port() for _ in range(4))

    def put_into(self, text: str) -> str:
        """The page's addresses and ports as those of the test."""
        of_page = {"5432": self.server, "6543": self.pool, "8008": self.rest, "9633": self.monitor}
        for old, new in of_page.items():
            text = re.sub(rf"\b{old}\b", str(new), text)
        return text.replace("10.0.0.", "127.0.0.")


class Node(Service):
    """A Patroni and the server that it runs."""

    def __init__(self, run: Run, directory: Path, number: int, ports: Ports, etcd: Etcd, through_pool: bool) -> None:
        self.patroni = program("patroni", "patroni")
        super().__init__(directory, ports.rest)
        self.name = directory.name
        self.data = directory / "data"
        self.host = f"127.0.0.{number}"
        self.ports = ports
        give_to_server_user(directory)
        self.configuration = directory / "configuration"
        self.configuration.mkdir()
        page = replaced(
            example("scope: shop"),
            {
                "name: one": f"name: {self.name}",
                "[10.0.0.21:2379, 10.0.0.22:2379, 10.0.0.23:2379]": f"{HOST}:{etcd.port}",
                "connect_address: 10.0.0.1:5432": f"connect_address: 10.0.0.1:{6543 if through_pool else 5432}",
                "10.0.0.1:": f"10.0.0.{number}:",
                "/var/lib/postgresql/15/shop": self.data,
                "/usr/lib/postgresql/15/bin": pg_config("bindir"),
                "/var/lib/postgresql/shop.pgpass": directory / "pgpass",
                "/var/run/postgresql": directory,
                "/usr/local/bin/baton": Path(run.stage.program).with_name("baton"),
                "user=postgres": f"port={ports.server} user=postgres",
                "local all postgres peer": "local all postgres trust",
            },
        )
        base = {name: BASE_PARAMETERS[name] for name in ("fsync", "shared_buffers", "autovacuum")}
        parameters = {**base, **POOL_PARAMETERS, **run.stage.parameters}
        parameters["pg_baton.monitor_listen_addresses"] = self.host
        dcs = {"ttl": 20, "loop_wait": 1, "retry_timeout": 5}
        of_test = {"bootstrap": {"dcs": dcs}, "postgresql": {"parameters": parameters}}
        # Patroni merges the files of a directory.
        (self.configuration / "1.yml").write_text(ports.put_into(page))
        (self.configuration / "2.yml").write_text(json.dumps(of_test))

    def start(self) -> Node:
        """Starts Patroni, which starts the server."""
        # The test's end without a clean-up ends both.
        command = as_server_user(["setpriv", "--pdeathsig", "TERM", "--", self.patroni, str(self.configuration)])
        self._run(command, HOME=str(self.directory), LC_ALL="C.UTF-8")
        return self

    def stop(self) -> None:
        """Stops Patroni, which stops the server."""
        super().stop()
        left = processes.wait_until_gone(self.data, 30)
        where = processes.stacks(left)
        processes.kill_all(left)
        assert not left, f"processes left after {self.name} stopped:\n{where}\n{self.log()}"
        # Lines that are indented are of Patroni's clients.
        lines = [line for line in self.log().splitlines() if not line.startswith("\t")]
        alarming = [line for line in lines if any(alarm in line for alarm in ALARMS)]
        assert not alarming, "\n".join(alarming)

    def kill(self) -> set[int]:
        """SIGKILL for Patroni and the postmaster; returns the process IDs that the server had."""
        before = {process.pid for process in self.processes()}
        self.process.kill()
        os.kill(self.postmaster_pid(), signal.SIGKILL)
        self.process.wait(20)
        return before

    def postmaster_pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def processes(self) -> list[processes.Process]:
        return processes.processes_in(self.data)

    def dispatcher_pids(self) -> list[int]:
        return [p.pid for p in self.processes() if re.search(r"(^|/)baton-dispatcher", p.command)]

    def log(self) -> str:
        file = self.directory / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def ask(self, path: str, method: str = "GET", body: object = None) -> tuple[int, str]:
        """Status and text of an answer of Patroni's REST API."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.host}:{self.port}{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def state(self) -> dict:
        try:
            return json.loads(self.ask("/patroni")[1])
        except (OSError, ValueError):
            return {}

    def restart(self) -> None:
        """Has Patroni restart the server."""
        answer = self.ask("/restart", "POST", {})
        assert answer[0] == 200, answer

    def sql(self, statement: str, port: int | None = None, user: str = "postgres") -> list[tuple]:
        """Runs a statement, on the server's own port unless told otherwise."""
        where = conninfo(self.host, port or self.ports.server, user=user)
        with psycopg.connect(where, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def show(self, parameter: str) -> str:
        return self.sql(f"SHOW {parameter}")[0][0]

    def reinitialize(self) -> None:
        """Has Patroni copy the leader's data directory anew."""
        created = "replica has been created using basebackup"
        before = self.log().count(created)
        answer = self.ask("/reinitialize", "POST", {"force": True})
        assert answer[0] == 200, answer
        wait_until(lambda: self.log().count(created) > before, what="it has another copy")

    def write_alone(self, statement: str) -> None:
        """Runs a statement in the server that nobody runs, without Patroni."""
        command = [server_program("postgres"), "--single", "-c", "synchronous_standby_names=", "-D", str(self.data)]
        command += ["postgres"]
        run_as_server_user(command, input=statement + "\n")


class PatroniCluster:
    """Two nodes, `one` and `two`; two begins as a standby of one."""

    def __init__(self, run: Run, directory: Path, through_pool: bool) -> None:
        if run.stage.preload:
            pytest.skip("BATON_TEST_PRELOAD: Patroni's environment is its server's")
        for name, package in (("patroni", "patroni"), ("etcd", "etcd-server"), ("haproxy", "haproxy")):
            program(name, package)
        version = subprocess.run(
            [program("patroni", "patroni"), "--version"], capture_output=True, text=True, check=True
        )
        self.has_before_stop = [int(number) for number in version.stdout.split()[1].split(".")] >= [3, 0, 3]
        directory.mkdir()
        directory.chmod(0o755)
        with contextlib.ExitStack() as stack:
            self.etcd = stack.enter_context(Etcd(directory / "etcd"))
            self.ports = Ports()
            self.nodes = [
                Node(run, directory / name, number, self.ports, self.etcd, through_pool)
                for number, name in enumerate(("one", "two"), 1)
            ]
            for node in self.nodes:
                stack.enter_context(node.start())
                self.wait(lambda: self.leader() is not None, "the first node leads")
            self.wait()
            self._stack = stack.pop_all()

    def __enter__(self) -> PatroniCluster:
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def members(self) -> dict[str, dict]:
        for node in self.nodes:
            with contextlib.suppress(OSError, ValueError):
                return {member["name"]: member for member in json.loads(node.ask("/cluster")[1])["members"]}
        return {}

    def leader(self) -> Node | None:
        """The node that has the leader's lock and serves as a primary."""
        names = [name for name, member in self.members().items() if member["role"] == "leader"]
        leaders = [
            node for node in self.nodes if node.name in names and node.state().get("role") in ("master", "primary")
        ]
        return leaders[0] if leaders else None

    def standby(self) -> Node:
        leader = self.leader()
        (standby,) = [node for node in self.nodes if node is not leader]
        return standby

    def is_whole(self) -> bool:
        """One node leads, and the other is its synchronous standby."""
        members = self.members()
        states = {member["state"] for member in members.values()}
        roles = sorted(member["role"] for member in members.values())
        return self.leader() is not None and states <= {"running", "streaming"} and roles == ["leader", "sync_standby"]

    def wait(self, check=None, what: str = "one node leads, the other follows") -> None:
        try:
            wait_until(check or self.is_whole, what=what)
        except AssertionError as error:
            logs = "\n".join(f"--- {node.name}\n" + node.log()[-4000:] for node in self.nodes)
            raise AssertionError(f"{error}\n{self.members()}\n{logs}") from None

    def switch_over(self) -> None:
        old, new = self.leader(), self.standby()
        answer = old.ask("/switchover", "POST", {"leader": old.name, "candidate": new.name})
        assert answer[0] == 200, answer
        self.wait(lambda: self.leader() is new, "the standby is promoted")

    def configure(self, change: dict) -> None:
        """Changes the configuration in the DCS."""
        answer = self.nodes[0].ask("/config", "PATCH", change)
        assert answer[0] == 200, answer
