#!/usr/bin/env python3
"""TLS: pg_baton, PgBouncer and the server itself, by pgbench with sslmode=require.

    tls.py [--seconds 5] [--rounds 3] [--clients 1,8,64,500,2000] [--protocols simple,prepared]
           [--no-logins | --only-logins] [--set NAME=VALUE]...

Each round measures all cells, the targets in turns, and makes a run again if others disturbed
it (disturbance.py).  It then measures logins a second, with and without TLS and SCRAM, and their
CPU: the pooler's, and the client's own.  The results are written to results/tls.md and tls.json
after each round, and those of a partial run to results/scratch.  All three targets have the same
certificate with an RSA key of 2,048 bits.  PgBouncer takes its curves by its own default, and
pg_baton by the server's ssl_ecdh_curve.  Before 18 that setting makes libpq say hello twice, and
--same-curve makes PgBouncer do likewise.  The bars are those of the project: at least 1.2 times
PgBouncer with TLS at 8 clients, 1.3 times from 64 on, and 1.2 times its logins, as the median of
the ratios of each round.  The client is pgbench for all targets.  It costs CPU of the same
machine, for its own share of TLS, too.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import hmac
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import builds  # noqa: E402
import disturbance  # noqa: E402
from cells import DIRECT_CLIENTS_MAX  # noqa: E402
from processes import cpu_seconds  # noqa: E402
from servers import HOST, USER, Bouncer, Server, pgbench_commands  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
BACKENDS = 8
MAX_CONNECTIONS = 600
SCRAMMED, PASSWORD = "scrammed", "a password"
BARS = {8: 1.2, 64: 1.3, 500: 1.3, 2000: 1.3}


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate and its key, which only the server's user may read."""
    certificate, key = folder / "server.crt", folder / "server.key"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    if os.geteuid() == 0:
        for file in (certificate, key):
            subprocess.run(["chown", "postgres", str(file)], check=True)
    return certificate, key


def verifier(password: str) -> str:
    """The verifier that the server keeps of a password (RFC 5802), of one iteration instead of 4,096.
    With 4,096 iterations the client derives its keys at each login, 2.4 ms of CPU for any target.
    A client that keeps its keys (scram_client_key of libpq 18) does not pay this.  The other side's
    part does not depend on the number."""
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)

    def key(name: str) -> bytes:
        return hmac.digest(salted, name.encode(), "sha256")

    stored, server = hashlib.sha256(key("Client Key")).digest(), key("Server Key")
    return "SCRAM-SHA-256$1:{}${}:{}".format(*(base64.b64encode(part).decode() for part in (salt, stored, server)))


def scram(server: Server, folder: Path) -> dict[str, object]:
    """Creates a role with a password on the server, and returns the settings that PgBouncer needs for it.
    PgBouncer gets the role's verifier, as the server has it: from a password in the clear PgBouncer
    derives the keys anew at each login (build_adhoc_scram_secret).  That costs milliseconds of CPU,
    which an administrator avoids where the speed of logins matters."""
    kept = verifier(PASSWORD)
    server.query(f"CREATE ROLE {SCRAMMED} LOGIN SUPERUSER PASSWORD '{kept}'")
    rules = f"host all {SCRAMMED} {HOST}/32 scram-sha-256\n"
    lines = server.data / "pg_hba.conf"
    lines.write_text(rules + lines.read_text())
    server.query("SELECT pg_reload_conf()")
    users, hba = folder / "users", folder / "hba"
    users.write_text(f'"{USER}" ""\n"{SCRAMMED}" "{kept}"\n')
    hba.write_text(rules + f"host all all {HOST}/32 trust\n")
    return {"auth_type": "hba", "auth_file": users, "auth_hba_file": hba}


def pgbench(
    port: int, clients: int, protocol: str, seconds: int, secure: bool, reconnect: bool = False, user: str = USER
) -> float:
    # pgbench's alarm rings whether all clients have connected or not
    seconds += clients // 100
    environment = {
        **os.environ,
        "PGSSLMODE": "require" if secure else "disable",
        "PGGSSENCMODE": "disable",
        "PGPASSWORD": PASSWORD,
    }

    def run(command: list[str]) -> float:
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds + 120)
        found = re.search(r"^tps = ([0-9.]+)", ran.stdout, re.M)
        if ran.returncode != 0 or not found:
            raise SystemExit(f"bench: pgbench failed\n{ran.stdout[-1000:]}{ran.stderr[-1000:]}")
        return float(found.group(1))

    with ThreadPoolExecutor() as threads:
        return sum(
            threads.map(
                run,
                pgbench_commands(port, clients, protocol, "-S", "-T", str(seconds), user=user, reconnects=reconnect),
            )
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="1,8,64,500,2000")
    parser.add_argument("--protocols", default="simple,prepared")
    parser.add_argument("--no-logins", action="store_true")
    parser.add_argument("--only-logins", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the server")
    parser.add_argument(
        "--direct-most", type=int, default=DIRECT_CLIENTS_MAX, help="clients that the server itself gets at most"
    )
    parser.add_argument("--same-curve", action="store_true", help="PgBouncer on P-256, too")
    options = parser.parse_args()
    every = parser.parse_args([])
    parts = ("clients", "protocols", "no_logins", "only_logins", "set", "same_curve")
    is_part = any(getattr(options, part) != getattr(every, part) for part in parts)
    options.path = RESULTS / ("scratch/tls" if is_part else "tls")
    return options


class Cells:
    """The results of each cell for each target, round by round."""

    def __init__(self) -> None:
        self.tps: dict[str, dict[str, list[float]]] = {}
        # CPU, in milliseconds a transaction or login: the pooler's, the client's
        self.shares: dict[str, dict[str, list[tuple[float, float]]]] = {}
        # the share of the machine that others took during each run
        self.others: list[float] = []

    def add(self, cell: str, target: str, tps: float, share: tuple[float, float], others: float) -> None:
        self.tps.setdefault(cell, {}).setdefault(target, []).append(tps)
        self.shares.setdefault(cell, {}).setdefault(target, []).append(share)
        self.others.append(others)

    def ratios(self, cell: str) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.tps[cell]["pg_baton"], self.tps[cell]["PgBouncer"])]

    def bar(self, cell: str) -> float | None:
        if cell.startswith("logins"):
            return 1.2
        return BARS.get(int(re.search(r"(\d+) clients", cell).group(1)))

    def missed(self) -> list[str]:
        return [cell for cell in self.tps if self.bar(cell) and statistics.median(self.ratios(cell)) < self.bar(cell)]

    def report(self, about: dict[str, object]) -> str:
        lines = [
            "# TLS",
            "",
            f"{about['date']}; {about['revision']}; PostgreSQL {about['server']}, {about['bouncer']} in transaction"
            f" mode, {BACKENDS} backends for each; sslmode=require but where it says plain;"
            f" {os.cpu_count()} cores shared by clients, pooler and server;"
            f" {about['rounds']} rounds of {about['seconds']} s, the targets in turns; load average of the machine"
            f" before it started: {about['load_before']}; {disturbance.described(self.others)}. Transactions or logins a second, medians; of PgBouncer:"
            " median of the rounds' ratios, and the least and the most. For SCRAM PgBouncer has the role's verifier,"
            " as the server has, of one iteration: what a client costs that keeps its keys."
            f" Direct with at most {about['direct_most']:,} clients: each is a process of the"
            f" server there, of which max_connections = {MAX_CONNECTIONS} allows no 2,000.",
            "",
            "| cell | direct | pg_baton | PgBouncer | of PgBouncer | rounds | bar | |",
            "|---|---|---|---|---|---|---|---|",
        ]
        missed = self.missed()
        for cell, found in self.tps.items():
            ratios, bar = self.ratios(cell), self.bar(cell)
            shown = [
                f"{statistics.median(found[target]):,.0f}" if target in found else ""
                for target in ("direct", "pg_baton", "PgBouncer")
            ]
            verdict = "missed" if cell in missed else "ok" if bar else ""
            lines.append(
                f"| {cell} | {' | '.join(shown)} | {statistics.median(ratios):.2f}"
                f" | {min(ratios):.2f} to {max(ratios):.2f} | {bar or ''} | {verdict} |"
            )
        logins = [cell for cell in self.shares if cell.startswith("logins")]
        if logins:
            lines += [
                "",
                "CPU of a login, ms: the pooler's, and the client's own share.",
                "",
                "| cell | pg_baton | PgBouncer | client | client, PgBouncer |",
                "|---|---|---|---|---|",
            ]
        for cell in logins:
            ours, theirs = (
                tuple(map(statistics.median, zip(*self.shares[cell][target]))) for target in ("pg_baton", "PgBouncer")
            )
            lines.append(f"| {cell} | {ours[0]:.2f} | {theirs[0]:.2f} | {ours[1]:.2f} | {theirs[1]:.2f} |")
        return "\n".join(lines) + "\n"


def main() -> int:
    options = arguments()
    load_before = os.getloadavg()[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    folder = Path(tempfile.mkdtemp(prefix="baton-bench-"))
    folder.chmod(0o755)
    cert, key = certificate(folder)
    build = builds.of_tree()
    server = Server(
        build,
        BACKENDS,
        {
            "max_connections": str(MAX_CONNECTIONS),
            "ssl": "on",
            "ssl_cert_file": str(cert),
            "ssl_key_file": str(key),
            **dict(one.split("=", 1) for one in options.set),
        },
    )
    bouncer = Bouncer(server, BACKENDS)
    cells = Cells()
    try:
        server.start(10)
        bouncer.settings = {"client_tls_sslmode": "allow", "client_tls_cert_file": cert, "client_tls_key_file": key}
        bouncer.settings |= scram(server, folder)
        if options.same_curve:
            bouncer.settings["client_tls_ecdhcurve"] = "prime256v1"
        bouncer.start()
        about = server.about(options.seconds, load_before) | {
            "bouncer": bouncer.version,
            "direct_most": options.direct_most,
        }
        pids = {"pg_baton": server.pool().pids, "PgBouncer": bouncer.target().pids, "direct": ()}
        ports = {"direct": server.port, "pg_baton": server.pool_port, "PgBouncer": bouncer.port}

        def run(target: str, clients: int, protocol: str, *arguments, **keywords) -> tuple[float, tuple[float, float]]:
            """Transactions a second; CPU of the pooler and of the client, milliseconds each."""
            without = target == "PgBouncer" and protocol == "prepared" and not bouncer.knows_prepared
            spoken = "extended" if without else protocol
            pooler, client = cpu_seconds(pids[target]), resource.getrusage(resource.RUSAGE_CHILDREN)
            tps = pgbench(ports[target], clients, spoken, *arguments, **keywords)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            own = after.ru_utime + after.ru_stime - client.ru_utime - client.ru_stime
            each = 1000 / max(tps * options.seconds, 1)
            return tps, ((cpu_seconds(pids[target]) - pooler) * each, own * each)

        def measure(cell: str, clients: int, *arguments, **keywords) -> None:
            for target in ports:
                if target != "direct" or clients <= options.direct_most:
                    (tps, share), others = disturbance.undisturbed(
                        functools.partial(run, target, clients, *arguments, **keywords)
                    )
                    cells.add(cell, target, tps, share, others)
            print(f"bench: {cell}: {cells.ratios(cell)[-1]:.2f} of PgBouncer", file=sys.stderr, flush=True)

        for number in range(1, options.rounds + 1):
            print(f"bench: round {number} of {options.rounds}", file=sys.stderr, flush=True)
            if number > 1:
                # The other user's pool keeps backends.  PgBouncer logs in as one user, and has
                # these backends for all users.
                server.restart()
                pids["pg_baton"] = server.pool().pids
            for protocol in () if options.only_logins else options.protocols.split(","):
                for clients in (int(text) for text in options.clients.split(",")):
                    measure(f"{protocol}, {clients} clients", clients, protocol, options.seconds, True)
            for secure, user in ((secure, user) for secure in (True, False) for user in (USER, SCRAMMED)):
                if not options.no_logins:
                    name = f"logins, 8 clients, {'TLS' if secure else 'plain'}{', SCRAM' if user == SCRAMMED else ''}"
                    measure(name, 8, "simple", options.seconds, secure, reconnect=True, user=user)
            about["rounds"] = number
            options.path.parent.mkdir(exist_ok=True)
            options.path.with_suffix(".md").write_text(cells.report(about))
            results = {"about": about, "others": cells.others, "cells": cells.tps}
            options.path.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    finally:
        bouncer.stop()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(cells.report(about))
    print(f"written to {options.path.relative_to(builds.REPOSITORY)}.md and .json")
    return 1 if cells.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
