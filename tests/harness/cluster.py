"""A private PostgreSQL cluster, with or without the pool in front of it.

A cluster lives in one directory of the run's scratch directory: `data`, `log`
and the Unix sockets.  The data directory is a copy of a directory that initdb
makes once per run.  A Cluster owns every process whose working directory is its
data directory. check_clean() proves at the end that no process is left and that
the log has no alarm that no test announced.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from . import processes
from .account import as_server_user, give_to_server_user, run_as_server_user, server_program
from .ports import HOST, free_port
from .stage import Stage, make_stage, tls_wanted
from .wire import SECURE_PORTS

SUPERUSER = "postgres"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
GONE_TIMEOUT_S = 30.0

MEMORY_FOLDER = "/dev/shm"
MEMORY_WANTED = 6 << 30  # bytes

# Alarms that no test may leave in the log unless it announces them (Cluster.expect_in_log).
ALARMS = (
    "PANIC:",
    "TRAP:",
    "was terminated by signal",
    "terminated abnormally",
    "thread 'main' panicked",
    "panicked at",
    "program failed at",
    "AddressSanitizer",
    "runtime error:",
    "leaked",
    "terminating any other active server processes",
)

BASE_PARAMETERS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "32MB",
    "max_wal_size": "1GB",
    "max_connections": "60",
    "max_prepared_transactions": "4",
    "listen_addresses": HOST,
    "log_line_prefix": "%m [%p] [%a] [%r] %q%u@%d ",
    "log_statement": "none",
    "log_connections": "off",
    "autovacuum": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
}

# The dispatcher's socket, in the data directory (dispatcher_link.h says why there).
CONTROL_SOCKET = "pg_stat_tmp/pg_baton.ctl"

POOL_PARAMETERS = {
    "shared_preload_libraries": "pg_baton",
    # Tests hold backends on purpose: no backend is added for sessions that wait.
    "pg_baton.max_extra_backends": "0",
    **dict(setting.split("=", 1) for setting in os.environ.get("BATON_TEST_SET", "").split()),
}


# Constants that pg_baton.test_constants changes. It also takes "break_" with a check's name,
# which the harness makes of break_self_check.
TEST_CONSTANTS = {
    "batch_scheduling_wait_us",
    "extra_idle_timeout_ms",
    "force_role_changes",
    "hang_limit_ms",
    "max_login_bytes",
    "message_timeout_ms",
}


def can_replace_system_files() -> bool:
    """Whether the tests may give a server an /etc/hosts of its own."""
    return (
        os.geteuid() == 0
        and subprocess.run(
            ["unshare", "--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"], capture_output=True, check=False
        ).returncode
        == 0
    )


def scratch_folder() -> str | None:
    """Where a run's directory goes: BATON_TEST_DIR, memory if there is room for it, else where tempfile puts it.

    Each cluster makes and deletes a thousand files. An ext4 without a journal looks for a minute
    at each inode before it uses it again, which was a third of all processor time of a run.
    """
    if chosen := os.environ.get("BATON_TEST_DIR"):
        return chosen
    if os.environ.get("BATON_TEST_LARGE"):
        return None
    try:
        memory = os.statvfs(MEMORY_FOLDER)
        available = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    room = min(memory.f_bavail * memory.f_frsize, int(available[1]) * 1024 if available else 0)
    # Tests copy programs there and run them.
    runs_programs = not memory.f_flag & os.ST_NOEXEC
    return MEMORY_FOLDER if runs_programs and room >= MEMORY_WANTED else None


class Run:
    """One run of the tests: its scratch directory, template and stage."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="baton-tests-", dir=scratch_folder()))
        self.directory.chmod(0o755)
        # A crash shall leave a core file, so that check_clean() can show where it happened.
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        self.stage: Stage | None = make_stage(self.directory)
        self.clusters: list[Cluster] = []
        self._template: Path | None = None
        self._certificate: tuple | None = None
        self._count = 0
        # Clients of the pool's port come by TLS, unless a test says otherwise.
        self.by_tls = self.stage is not None and tls_wanted()

    def template(self) -> Path:
        if self._template is None:
            home = self.directory / "template"
            home.mkdir()
            give_to_server_user(home)
            run_as_server_user(
                [
                    server_program("initdb"),
                    "-D",
                    str(home / "data"),
                    "-U",
                    SUPERUSER,
                    "-A",
                    "trust",
                    "-E",
                    "UTF8",
                    "--locale=C.UTF-8",
                    "-N",
                ]
            )
            for database in ("template1", "postgres"):
                run_as_server_user(
                    [server_program("postgres"), "--single", "-j", "-D", str(home / "data"), database],
                    input=processes.ITS_PROCESS_FUNCTION,
                )
            self._template = home / "data"
        return self._template

    def secure(self, cluster: Cluster) -> None:
        """Gives the cluster the run's certificate, of which the doctor does not warn."""
        from .certificates import Authority, make_secure

        if self._certificate is None:
            authority = Authority(self.directory / "certificates-of-all", days=100)
            self._certificate = authority, authority.server()
        make_secure(cluster, *self._certificate)

    def cluster(self, name: str = "cluster", **options) -> Cluster:
        self._count += 1
        short = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24]
        cluster = Cluster(self, self.directory / f"{self._count:03d}-{short}", **options)
        self.clusters.append(cluster)
        return cluster

    def live_clusters(self) -> list[Cluster]:
        return [cluster for cluster in self.clusters if cluster.exists()]

    def close(self) -> None:
        for cluster in self.clusters:
            cluster.destroy()
        if os.environ.get("BATON_TEST_KEEP", "") in ("", "0"):
            shutil.rmtree(self.directory, ignore_errors=True)


class Cluster:
    """A server, and the actions that its tests may take on it."""

    def __init__(
        self,
        run: Run,
        home: Path,
        parameters: dict[str, object] | None = None,
        hba: Iterable[str] = (),
        hba_replaces: bool = False,
        pooled: bool = True,
        system_files: dict[str, str] | None = None,
    ) -> None:
        self.run = run
        self.home = home
        self.data = home / "data"
        self.log_file = home / "log"
        self.pooled = pooled and run.stage is not None
        self.port = free_port()
        self.pool_port = free_port() if self.pooled else self.port
        self.process: subprocess.Popen[bytes] | None = None
        self.expected: list[str] = []
        self.system_files = system_files or {}
        self._exists = True

        home.mkdir()
        give_to_server_user(home)
        home.chmod(0o755)
        subprocess.run(["cp", "-a", "--reflink=auto", str(run.template()), str(self.data)], check=True)
        self.log_file.touch()
        give_to_server_user(self.log_file)

        self.parameters: dict[str, str] = dict(BASE_PARAMETERS)
        self.constants: dict[str, int] = {}
        self.parameters["port"] = str(self.port)
        self.parameters["unix_socket_directories"] = str(home)
        if self.pooled:
            assert run.stage is not None
            self.parameters.update(POOL_PARAMETERS)
            self.parameters.update(run.stage.parameters)
            self.parameters["pg_baton.port"] = str(self.pool_port)
        self.by_tls = run.by_tls and self.pooled
        if self.by_tls:
            run.secure(self)
        self.set_parameters(parameters or {})
        if hba or hba_replaces:
            self.write_hba(hba, hba_replaces)

    # -- configuration ---------------------------------------------------

    def set_parameters(self, parameters: dict[str, object]) -> None:
        """Changes parameters and test constants in the file (None removes); no reload."""
        for name, value in parameters.items():
            if name.startswith("pg_baton.") and not self.pooled:
                continue
            constant = name.removeprefix("pg_baton.")
            if constant == "break_self_check":
                self.constants.update({f"break_{check.strip()}": 1 for check in str(value).split(",") if check})
            elif constant in TEST_CONSTANTS and value is None:
                self.constants.pop(constant, None)
            elif constant in TEST_CONSTANTS:
                self.constants[constant] = int(value == "on" or value)
            elif value is None:
                self.parameters.pop(name, None)
            elif isinstance(value, bool):
                self.parameters[name] = "on" if value else "off"
            else:
                self.parameters[name] = str(value)
        lines = []
        if self.constants:
            entries = ", ".join(f"{name}={value}" for name, value in self.constants.items())
            lines.append(f"pg_baton.test_constants = '{entries}'\n")
        for name, value in self.parameters.items():
            quoted = value.replace("'", "''")
            lines.append(f"{name} = '{quoted}'\n")
        self._write("postgresql.conf", "".join(lines))

    def write_hba(self, lines: Iterable[str], replaces: bool = False) -> None:
        """Puts lines into pg_hba.conf, before those that trust everyone."""
        rest = (
            []
            if replaces
            else [
                "local all all trust",
                "host all all 127.0.0.1/32 trust",
                "host all all ::1/128 trust",
                "local replication all trust",
                "host replication all 127.0.0.1/32 trust",
            ]
        )
        self._write("pg_hba.conf", "\n".join([*lines, *rest]) + "\n")

    def write_ident(self, lines: Iterable[str]) -> None:
        """Replaces pg_ident.conf."""
        self._write("pg_ident.conf", "\n".join(lines) + "\n")

    def _write(self, name: str, text: str) -> None:
        path = self.data / name
        temporary = self.data / f"{name}.new"
        temporary.write_text(text)
        give_to_server_user(temporary)
        temporary.chmod(0o600)
        temporary.rename(path)

    def reload(self) -> None:
        """SIGHUP to the postmaster; does not wait for the effect."""
        os.kill(self.postmaster_pid(), signal.SIGHUP)

    def become_standby_of(self, primary: Cluster, name: str = "standby") -> None:
        """Makes this cluster a copy of a running primary. The copy follows the primary once started."""
        self.become_standby_of_conninfo(f"host={HOST} port={primary.port} user={SUPERUSER} application_name={name}")

    def become_standby_of_conninfo(self, conninfo: str) -> None:
        """Does the same with another connection string for the primary."""
        shutil.rmtree(self.data)
        run_as_server_user(
            [server_program("pg_basebackup"), "-d", conninfo, "-D", str(self.data), "-c", "fast", "-X", "stream"]
        )
        (self.data / "standby.signal").touch()
        give_to_server_user(self.data / "standby.signal")
        self.set_parameters({"primary_conninfo": conninfo})

    def replay(self, primary: Cluster, timeout_s: float = 60) -> None:
        """Waits until everything that the primary has written is visible here."""
        # A commit that is flushed, and everything before it.
        primary.sql("SELECT set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, '', '')")
        ((target,),) = primary.sql("SELECT pg_current_wal_flush_lsn()")
        deadline = time.monotonic() + timeout_s
        while self.sql(f"SELECT pg_last_wal_replay_lsn() >= '{target}'") != [(True,)]:
            if time.monotonic() > deadline:
                raise AssertionError(f"the standby has not replayed {target} within {timeout_s} s\n{self.log_tail()}")
            time.sleep(0.02)

    # -- connection strings ----------------------------------------------

    def pool(self, **options: object) -> str:
        """A libpq connection string to the pool's port."""
        return self._conninfo(self.pool_port, {**self._encryption(), **options})

    def direct(self, **options: object) -> str:
        """A libpq connection string to the server's own port, for comparison, by TLS if the pool's is."""
        return self._conninfo(self.port, {**self._encryption(), **options})

    def _encryption(self) -> dict[str, object]:
        if not self.by_tls or self.parameters.get("ssl") != "on":
            return {}
        # A process of the server's user may not look for a certificate in our home.
        return {"sslmode": "require", "sslcert": "/nonexistent"}

    def _conninfo(self, port: int, options: dict[str, object]) -> str:
        merged: dict[str, object] = {
            "host": self._host(port),
            "port": port,
            "user": SUPERUSER,
            "dbname": "postgres",
            "connect_timeout": 20,
            "sslmode": "disable",
            "gssencmode": "disable",
        }
        merged.update(options)
        quoted = []
        for name, value in merged.items():
            if value is None:
                continue
            text = str(value).replace("\\", "\\\\").replace("'", "\\'")
            quoted.append(f"{name}='{text}'")
        return " ".join(quoted)

    def _host(self, port: int) -> str:
        """A server whose address the pool takes listens at its Unix socket only."""
        only_local = port == self.port and self.parameters["listen_addresses"] == ""
        return str(self.home) if only_local else HOST

    def sql(self, statement: str, *, dbname: str = "postgres", user: str = SUPERUSER) -> list[tuple]:
        """Runs one statement on the server's own port, and returns its rows."""
        import psycopg

        conninfo = self._conninfo(self.port, {"dbname": dbname, "user": user})
        with psycopg.connect(conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    # -- life --------------------------------------------------------------

    def start(self, wait_for_pool: bool = True) -> Cluster:
        assert self.process is None or self.process.poll() is not None, "already running"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG") or k.startswith("PG_OOM_")}
        environment["LC_ALL"] = "C.UTF-8"
        environment.setdefault("RUST_BACKTRACE", "1")
        if self.pooled and self.run.stage.preload:
            environment["LD_PRELOAD"] = self.run.stage.preload
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                self._with_system_files(
                    as_server_user([server_program("postgres"), "-D", str(self.data)], die_with_parent=True)
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        if self.by_tls and self.parameters.get("ssl") == "on":
            # The server's own port, too: connections that are compared with each other use TLS alike.
            for port in (self.pool_port, self.port):
                SECURE_PORTS[port] = lambda: self.dispatcher_pids() + self.relay_pids()
        self._wait_ready(self.port)
        if self.pooled and wait_for_pool:
            self.wait_pool_ready()
        return self

    def _with_system_files(self, command: list[str]) -> list[str]:
        """The command that runs `command` where `system_files` (path: text) replace the
        system's files; root only, see can_replace_system_files()."""
        if not self.system_files:
            return command
        mounts = []
        for path, text in self.system_files.items():
            copy = self.home / Path(path).name
            copy.write_text(text)
            copy.chmod(0o644)
            mounts.append(f"mount --bind '{copy}' '{path}'")
        return ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh", *command]

    def wait_pool_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        self._wait_ready(self.pool_port, timeout_s)

    def _wait_ready(self, port: int, timeout_s: float = START_TIMEOUT_S) -> None:
        import psycopg

        deadline = time.monotonic() + timeout_s
        failure: Exception | None = None
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}\n{self.log_tail()}")
            try:
                with psycopg.connect(self._conninfo(port, {"connect_timeout": 5})) as connection:
                    connection.execute("SELECT 1")
                return
            except psycopg.Error as error:
                failure = error
                time.sleep(0.05)
        raise TimeoutError(
            f"port {port} is not ready after {timeout_s} s: {failure}\n{self.log_tail()}\n{self.stacks()}"
        )

    def postmaster_pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def dispatcher_pids(self) -> list[int]:
        """The dispatchers of this cluster."""
        return [p.pid for p in processes.processes_in(self.data) if re.search(r"(^|/)baton-dispatcher", p.command)]

    def relay_pids(self) -> list[int]:
        """The processes of TLS relays: the dispatcher's, and those of earlier ones that still have clients."""
        return [p.pid for p in processes.processes_in(self.data) if p.command.startswith("baton-relay")]

    def processes(self) -> list[processes.Process]:
        return processes.processes_in(self.data)

    def stop(self, mode: str = "fast", timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stops the server and waits until nothing of it is left."""
        if self.process is None:
            return
        number = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                where = self.stacks()
                self.kill()
                raise TimeoutError(f"no {mode} stop within {timeout_s} s\n{where}\n{self.log_tail()}") from None
        self.process = None
        left = processes.wait_until_gone(self.data, GONE_TIMEOUT_S)
        if left:
            where = processes.stacks(left)
            processes.kill_all(left)
            raise AssertionError(f"processes left after the server stopped ({mode}):\n{where}\n{self.log_tail()}")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL for everything of this cluster."""
        for _ in range(10):
            left = self.processes()
            processes.kill_all(left)
            if not left:
                break
            time.sleep(0.05)
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()  # not yet in its data directory
            self.process.wait(10)
            self.process = None

    def exists(self) -> bool:
        return self._exists

    def destroy(self) -> None:
        """Leaves nothing of the cluster, whatever happened before."""
        for port in (self.pool_port, self.port):
            SECURE_PORTS.pop(port, None)
        if self._exists:
            self.kill()
            self._exists = False
            if os.environ.get("BATON_TEST_KEEP", "") in ("", "0"):
                shutil.rmtree(self.home, ignore_errors=True)

    def finish(self) -> None:
        """The orderly end: stop, prove that all is clean, destroy."""
        try:
            if self.process is not None:
                self.stop("fast")
            self.check_clean()
        finally:
            self.destroy()

    # -- observation ---------------------------------------------------------

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def log_tail(self, lines: int = 60) -> str:
        return "--- end of the server's log\n" + "\n".join(self.log().splitlines()[-lines:])

    @contextlib.contextmanager
    def new_log(self) -> Iterator[Callable[[], str]]:
        """Gives a function that returns the text that the log has got since this call."""
        start = self.log_file.stat().st_size

        def read() -> str:
            with open(self.log_file, "rb") as file:
                file.seek(start)
                return file.read().decode("utf-8", "replace")

        yield read

    def wait_for_log(self, pattern: str, timeout_s: float = 60, start: int = 0) -> str:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log()[start:])
            if found:
                return found.group(0)
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in the log within {timeout_s} s\n{self.log_tail()}")

    def wait_for_takeover(self, dispatcher: int) -> None:
        """A new launcher has taken this dispatcher over. A postmaster of 15 that is about to sleep as a worker ends
        may sleep for a minute (ServerLoop, postmaster.c); a connection wakes it."""
        line = f"dispatcher with process ID {dispatcher} taken over"
        deadline = time.monotonic() + 60
        while line not in self.log():
            assert time.monotonic() < deadline, f"no launcher takes over\n{self.log_tail()}"
            self.sql("SELECT 1")
            time.sleep(0.1)

    def stacks(self) -> str:
        return processes.stacks(self.processes())

    def expect_in_log(self, *patterns: str) -> None:
        """Announces alarms that this test causes on purpose."""
        self.expected += patterns

    def check_clean(self) -> None:
        """Nothing left behind, nothing alarming in the log."""
        problems = []
        left = processes.wait_until_gone(self.data, GONE_TIMEOUT_S)
        if left:
            problems.append("processes left:\n" + processes.stacks(left))
        for line in self.log().splitlines():
            if any(alarm in line for alarm in ALARMS) and not any(
                re.search(pattern, line) for pattern in self.expected
            ):
                problems.append(f"log: {line}")
        for core in sorted(self.data.glob("core*"))[:4]:
            where = processes.core_backtrace(server_program("postgres"), core)
            problems.append(f"a core file in the data directory: {core.name}\n{where}")
        sockets = [file.name for file in self.home.glob(".s.PGSQL.*")]
        if sockets:
            problems.append(f"sockets left: {sockets}")
        for port in {self.port, self.pool_port}:
            with socket.socket() as probe:
                probe.settimeout(2)
                if probe.connect_ex((HOST, port)) == 0:
                    problems.append(f"somebody still listens on port {port}")
        if problems:
            raise AssertionError("the cluster did not end clean\n" + "\n".join(problems) + "\n" + self.log_tail())
