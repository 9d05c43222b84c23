"""What is measured: a private server with the pool (`baton demo`), and PgBouncer
before the same server.  Also what /proc says of a process's CPU and memory.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
START_LIMIT_S = 90
STOP_LIMIT_S = 60
PG_PORT, POOL_PORT, BOUNCER_PORT, CANNED_PORT = 5533, 6643, 6732, 6733
LOAD = REPOSITORY / "target/release/baton-load"
USER = "demo"
SERVER_USER = "postgres"


@dataclass(frozen=True)
class Target:
    """A way to the server: its port and the pooler's processes, if any."""

    name: str
    port: int
    pids: tuple[int, ...] = ()


def program(name: str) -> str:
    """One of the server's programs."""
    pg_config = os.environ.get("PG_CONFIG") or "/usr/lib/postgresql/15/bin/pg_config"
    folder = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
    path = shutil.which(name, path=f"{folder}:{os.environ['PATH']}:/usr/sbin:/usr/local/bin")
    if not path:
        raise SystemExit(f"bench: {name} is not installed")
    return path


def drop_root() -> list[str]:
    """A prefix for what does not run as root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--clear-groups"]


class Server:
    """`baton demo` with the settings of a benchmark."""

    def __init__(self, backends: int, settings: dict[str, str]) -> None:
        self.backends = backends
        self.settings = settings
        self.process: subprocess.Popen[str] | None = None
        self.data = Path("/nowhere")

    def start(self) -> None:
        command = [program("baton"), "demo", "--no-load", "--pg-port", str(PG_PORT), "--port", str(POOL_PORT),
                   "--backends", str(self.backends)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True,
                                        stdin=subprocess.DEVNULL)
        assert self.process.stdout
        for line in self.process.stdout:
            if line.strip() == "ready":
                break
        else:
            raise SystemExit("bench: the server does not start")
        self.data = Path(self.query("SHOW data_directory"))

    def query(self, text: str, port: int = PG_PORT) -> str:
        result = subprocess.run(
            [program("psql"), "-XAt", "-h", "127.0.0.1", "-p", str(port), "-U", USER, "-c", text, USER],
            capture_output=True, text=True, check=True)
        return result.stdout.strip()

    def stop(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(STOP_LIMIT_S)
            self.process = None

    def direct(self) -> Target:
        return Target("direct", PG_PORT)

    def pool(self) -> Target:
        """Its pids are asked for anew each time: a dispatcher may be restarted."""
        return Target("pg_baton", POOL_PORT, tuple(dispatchers(self.data)))


def dispatchers(data: Path) -> list[int]:
    """The dispatcher's processes of the server with this data directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if len(words) > 1 and words[0].endswith(b"baton") and words[1] == b"dispatcher":
                if os.readlink(entry / "cwd") == str(data):
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


class Bouncer:
    """PgBouncer in transaction mode, to the same server by its Unix socket."""

    def __init__(self, server: Server, backends: int) -> None:
        text = subprocess.run([program("pgbouncer"), "--version"], capture_output=True, text=True).stdout
        found = re.search(r"PgBouncer (\d+)\.(\d+)\S*", text)
        if not found:
            raise SystemExit("bench: cannot tell PgBouncer's version")
        self.version = found.group(0)
        self.knows_prepared = (int(found.group(1)), int(found.group(2))) >= (1, 21)
        self.server = server
        self.backends = backends
        self.directory = Path(tempfile.mkdtemp(prefix="baton-bench-"))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = {
            "listen_addr": "127.0.0.1", "listen_port": BOUNCER_PORT, "unix_socket_dir": "",
            "auth_type": "trust", "auth_file": self.directory / "users", "pool_mode": "transaction", "default_pool_size": self.backends,
            "max_client_conn": 12000, "listen_backlog": 4096, "server_reset_query": "",
            "log_connections": 0, "log_disconnections": 0, "stats_period": 3600,
            "ignore_startup_parameters": "extra_float_digits",
        }
        if self.knows_prepared:
            settings["max_prepared_statements"] = 200
        socket_directory = self.server.data.parent
        lines = ["[databases]", f"{USER} = host={socket_directory} port={PG_PORT} user={USER} dbname={USER}",
                 "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        config = self.directory / "pgbouncer.ini"
        config.write_text("\n".join(lines) + "\n")
        (self.directory / "users").write_text(f'"{USER}" ""\n')
        self.directory.chmod(0o755)
        log = open(self.directory / "log", "wb")
        self.process = subprocess.Popen([*drop_root(), program("pgbouncer"), str(config)], stdout=log, stderr=log,
                                        stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self.server.query("SELECT 1", BOUNCER_PORT)
                return
            except subprocess.CalledProcessError as failure:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("bench: PgBouncer does not start: " + failure.stderr
                                     + (self.directory / "log").read_text()) from None
                time.sleep(0.1)

    def target(self) -> Target:
        return Target("PgBouncer", BOUNCER_PORT, (self.process.pid,) if self.process else ())

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(STOP_LIMIT_S)
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)


class Canned:
    """A server that gives canned answers and does nothing else: what is run
    against it shows how fast the client alone can be."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen([str(LOAD), "--canned", "--port", str(CANNED_PORT)], stdin=subprocess.PIPE)

    def target(self) -> Target:
        return Target("canned", CANNED_PORT)

    def stop(self) -> None:
        if self.process:
            self.process.communicate()
            self.process = None


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """CPU time that all threads of these processes have used, to the nanosecond."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except (OSError, IndexError):
                continue
    return total / 1e9


def memory_kib(pids: tuple[int, ...]) -> dict[str, int]:
    """Resident memory: all of it, and what is the process's own (anonymous)."""
    total = {"VmRSS": 0, "RssAnon": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name = line.split(":")[0]
            if name in total:
                total[name] += int(line.split()[1])
    return total
