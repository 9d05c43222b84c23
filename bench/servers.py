"""What is measured: a private server with the pool, PgBouncer before the same
server, and a server of canned answers.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import processes
from builds import REPOSITORY, SCRATCH, Build, pg_config, revision

HOST, ADDRESSES = processes.HOST, processes.ADDRESSES
START_LIMIT_S = 90
STOP_LIMIT_S = 60
QUERY_LIMIT_S = 60
LOAD = REPOSITORY / "target/release/baton-load"
FUNCTIONS = REPOSITORY / "bench/functions.sql"
USER = "demo"
SERVER_USER = "postgres"


@dataclass(frozen=True)
class Target:
    """A way to the server: its port, and the pooler's processes, if any."""

    name: str
    port: int
    pids: tuple[int, ...] = ()


def program(name: str) -> str:
    """One of the server's programs."""
    path = shutil.which(name, path=f"{pg_config('--bindir')}:{os.environ['PATH']}:/usr/sbin:/usr/local/bin")
    if not path:
        raise SystemExit(f"bench: {name} is not installed")
    return path


def pgbench_commands(
    port: int, clients: int, protocol: str, *options: str, user: str = USER, reconnects: bool = False
) -> list[list[str]]:
    """pgbench on two threads: of one process; or, if its clients reconnect, of one for each address."""
    addresses = ADDRESSES if reconnects else (HOST,)
    each, threads = clients // len(addresses), 2 // len(addresses)
    words = [
        program("pgbench"),
        "-n",
        "-p",
        str(port),
        "-U",
        user,
        "-M",
        protocol,
        "-c",
        str(each),
        "-j",
        str(min(threads, each)),
        *options,
        *(["-C"] if reconnects else []),
    ]
    return [[*words, "-h", address, USER] for address in addresses]


def drop_root() -> list[str]:
    """A prefix for what does not run as root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--clear-groups"]


def end(process: subprocess.Popen, how: int) -> None:
    process.send_signal(how)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_LIMIT_S)


class Server:
    """A cluster of its own in a scratch directory, with the pool of a build."""

    def __init__(self, build: Build, backends: int, settings: dict[str, str]) -> None:
        self.build = build
        self.port = processes.free_port()
        self.pool_port = processes.free_port()
        self.settings = {
            "listen_addresses": ",".join(ADDRESSES),
            "port": str(self.port),
            "fsync": "off",
            "log_line_prefix": "%m [%p] %q%u@%d ",
            "shared_preload_libraries": "pg_baton",
            "pg_baton.port": str(self.pool_port),
            "pg_baton.max_backends": str(backends),
            **settings,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="baton-bench-"))
        self.data = self.directory / "data"

    def start(self, scale: int) -> None:
        self.directory.chmod(0o755)
        self.settings |= self.build.stage(self.directory / "stage")
        if os.geteuid() == 0:
            shutil.chown(self.directory, SERVER_USER, SERVER_USER)
        subprocess.run(
            [
                *drop_root(),
                program("initdb"),
                "--username",
                USER,
                "--auth",
                "trust",
                "--encoding",
                "UTF8",
                "--no-locale",
                "--no-sync",
                "--pgdata",
                str(self.data),
            ],
            check=True,
            capture_output=True,
            cwd="/",
        )
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(f"unix_socket_directories = '{self.directory}'\n")
            for name, value in self.settings.items():
                file.write("{} = '{}'\n".format(name, value.replace("'", "''")))
        self.launch()
        self.query(f"CREATE DATABASE {USER}", database="postgres")
        subprocess.run(
            [program("pgbench"), "-i", "-q", "-s", str(scale), "-h", HOST, "-p", str(self.port), "-U", USER, USER],
            check=True,
            capture_output=True,
        )
        subprocess.run(
            [
                program("psql"),
                "-Xq",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                HOST,
                "-p",
                str(self.port),
                "-U",
                USER,
                "-f",
                str(FUNCTIONS),
                USER,
            ],
            check=True,
            capture_output=True,
        )
        self.wait_for(self.pool_port, USER)

    def launch(self) -> None:
        log = open(self.directory / "log", "ab")
        self.process = subprocess.Popen(
            [*drop_root(), program("postgres"), "-D", str(self.data)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self.wait_for(self.port, "postgres")

    def restart(self) -> None:
        """All backends are new then, and so is what the dispatcher knows."""
        if self.process:
            end(self.process, signal.SIGINT)
        self.launch()
        self.wait_for(self.pool_port, USER)

    def wait_for(self, port: int, database: str) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self.query("SELECT 1", port, database)
                return
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failure:
                if not self.process or self.process.poll() is not None or time.monotonic() > deadline:
                    log = (self.directory / "log").read_text()[-3000:]
                    raise SystemExit(f"bench: the server does not start: {failure.stderr}\n{log}") from None
                time.sleep(0.1)

    def query(self, text: str, port: int = 0, database: str = USER) -> str:
        result = subprocess.run(
            [program("psql"), "-XAt", "-h", HOST, "-p", str(port or self.port), "-U", USER, "-c", text, database],
            capture_output=True,
            text=True,
            check=True,
            timeout=QUERY_LIMIT_S,
        )
        return result.stdout.strip()

    def stop(self) -> None:
        if self.process:
            end(self.process, signal.SIGINT)
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def about(self, seconds: float, load_before: float) -> dict[str, object]:
        """What each report says of a run: when, what, for how long, on how busy a machine."""
        return {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "revision": revision(self.build),
            "server": self.query("SELECT split_part(version(), ' ', 2)"),
            "seconds": seconds,
            "load_before": round(load_before, 1),
        }

    def direct(self) -> Target:
        return Target("direct", self.port)

    def pool(self) -> Target:
        """Its pids are asked for anew each time: a dispatcher may be restarted."""
        found = processes.of_directory(self.data)
        return Target(
            "pg_baton",
            self.pool_port,
            tuple(
                pid
                for pid, words in found.items()
                if words[0].endswith(("baton-dispatcher", "baton-relay")) or words[1:2] == ["dispatcher"]
            ),
        )

    def backends(self) -> list[int]:
        """Those that serve clients.  By their titles: what the server's views
        call a pid may be a session's."""
        found = processes.of_directory(self.data)
        return [pid for pid, words in found.items() if words[0].startswith(f"postgres: {USER} ")]

    def set_backends(self, count: int) -> None:
        self.query(f"ALTER SYSTEM SET pg_baton.max_backends = {count}")
        self.query("SELECT pg_reload_conf()")
        self.renew_backends()

    def renew_backends(self) -> None:
        """Ends all backends: the next sessions get fresh ones."""
        for pid in self.backends():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(1)


def load_words(target: Target, user: str, clients: int) -> list[str]:
    """baton-load with so many of a user's sessions; options may follow."""
    return [str(LOAD), "--port", str(target.port), "--user", user, "--database", USER, "--clients", str(clients)]


class Bouncer:
    """PgBouncer in transaction mode, to the same server by its Unix socket."""

    def __init__(self, server: Server, backends: int, by_user: bool = False) -> None:
        self.server = server
        self.backends = backends
        self.settings: dict[str, object] = {}
        # Its backends are of the client's user; else all of one.
        self.by_user = by_user
        self.users: list[str] = []
        self.port = processes.free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="baton-bench-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.command = self.find()
        text = subprocess.run([*self.command, "--version"], capture_output=True, text=True).stdout
        found = re.search(r"PgBouncer (\d+)\.(\d+)\S*", text)
        if not found:
            raise SystemExit("bench: cannot tell PgBouncer's version")
        self.version = found.group(0)
        self.knows_prepared = (int(found.group(1)), int(found.group(2))) >= (1, 21)

    def find(self) -> list[str]:
        """The newer one that tools/setup has unpacked, by the loader and the
        libraries unpacked with it; else the installed one."""
        unpacked = SCRATCH / "pgbouncer/root"
        if not (unpacked / "usr/sbin/pgbouncer").exists():
            return [program("pgbouncer")]
        # A copy: its user may not be let into the checkout's folders.
        root = self.directory / "root"
        shutil.copytree(unpacked, root, symlinks=True)
        loader = next(root.glob("usr/lib*/ld-linux*"), None) or next(root.glob("usr/lib/*/ld-linux*"))
        libraries = next(root.glob("usr/lib/*/libevent*.so*")).parent
        return [str(loader), "--library-path", str(libraries), str(root / "usr/sbin/pgbouncer")]

    def start(self) -> None:
        settings = {
            "listen_addr": ",".join(ADDRESSES),
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": self.directory / "users",
            "pool_mode": "transaction",
            "default_pool_size": self.backends,
            "max_client_conn": 12000,
            "listen_backlog": 4096,
            "server_reset_query": "",
            "log_connections": 0,
            "log_disconnections": 0,
            "stats_period": 3600,
            "ignore_startup_parameters": "extra_float_digits",
            "server_login_retry": 1,
        }
        if self.knows_prepared:
            settings["max_prepared_statements"] = 200
        settings |= self.settings
        lines = [
            "[databases]",
            f"{USER} = host={self.server.directory} port={self.server.port} dbname={USER}"
            + ("" if self.by_user else f" user={USER}"),
            "[pgbouncer]",
        ]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        config = self.directory / "pgbouncer.ini"
        config.write_text("\n".join(lines) + "\n")
        (self.directory / "users").write_text("".join(f'"{user}" ""\n' for user in [USER, *self.users]))
        self.directory.chmod(0o755)
        log = open(self.directory / "log", "wb")
        self.process = subprocess.Popen(
            [*drop_root(), *self.command, str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/"
        )
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self.server.query("SELECT 1", self.port)
                return
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failure:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(
                        f"bench: PgBouncer does not start: {failure.stderr}" + (self.directory / "log").read_text()
                    ) from None
                time.sleep(0.1)

    def target(self) -> Target:
        return Target("PgBouncer", self.port, (self.process.pid,) if self.process else ())

    def stop(self) -> None:
        if self.process:
            end(self.process, signal.SIGTERM)
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)


class Canned:
    """A server that gives canned answers and does nothing else: what is run
    against it shows how fast the client alone can be."""

    def __init__(self) -> None:
        self.port = processes.free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.processes = [
            subprocess.Popen(
                [str(LOAD), "--canned", "--host", address, "--port", str(self.port)], stdin=subprocess.PIPE
            )
            for address in ADDRESSES
        ]

    def target(self) -> Target:
        return Target("canned", self.port)

    def stop(self) -> None:
        for process in self.processes:
            # The end of its standard input is the end of it.
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=STOP_LIMIT_S)
            process.kill()
        self.processes = []
