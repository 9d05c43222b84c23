#!/usr/bin/env python3
"""TLS: pg_baton, PgBouncer and the server itself, by pgbench with sslmode=require.

    tls.py [--seconds 5] [--rounds 2] [--clients 1,8,64,500,2000] [--protocols simple,prepared] [--out FILE]

Interleaved, medians; then log-ins a second, with and without TLS and SCRAM, and
their CPU: of the pooler, and of the client itself.  One certificate with an RSA key
of 2,048 bits for all three.  PgBouncer takes its curves by its own default; pg_baton
by the server's ssl_ecdh_curve, which before 18 makes libpq say hello twice:
--same-curve has PgBouncer do likewise.  The bars are those of
the project: of PgBouncer with TLS at least 1.2 at 8 clients, 1.3 from 64 on, and
as many log-ins.  The client is pgbench for all: it costs CPU of the same
machine, for its own share of TLS, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from builds import of_tree  # noqa: E402
from processes import cpu_seconds  # noqa: E402
from servers import HOST, USER, Bouncer, Server, drop_root, program  # noqa: E402

BACKENDS = 8
SCRAMMED, PASSWORD = "scrammed", "a password"
BARS = {8: 1.2, 64: 1.3, 500: 1.3, 2000: 1.3}


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate and its key, which the server's user may read, and nobody else."""
    certificate, key = folder / "server.crt", folder / "server.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    key.chmod(0o600)
    if os.geteuid() == 0:
        for file in (certificate, key):
            subprocess.run(["chown", "postgres", str(file)], check=True)
    return certificate, key


def scram(server: Server, folder: Path) -> dict[str, object]:
    """A role with a password, on the server, and for PgBouncer, whose settings that takes."""
    server.query(f"CREATE ROLE {SCRAMMED} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    rules = f"host all {SCRAMMED} {HOST}/32 scram-sha-256\n"
    lines = server.data / "pg_hba.conf"
    lines.write_text(rules + lines.read_text())
    server.query("SELECT pg_reload_conf()")
    users, hba = folder / "users", folder / "hba"
    users.write_text(f'"{USER}" ""\n"{SCRAMMED}" "{PASSWORD}"\n')
    hba.write_text(rules + f"host all all {HOST}/32 trust\n")
    return {"auth_type": "hba", "auth_file": users, "auth_hba_file": hba}


def pgbench(port: int, clients: int, protocol: str, seconds: int, secure: bool, reconnect: bool = False,
            user: str = USER) -> float:
    # its alarm rings whether all have connected or not
    seconds += clients // 50
    command = [program("pgbench"), "-h", HOST, "-p", str(port), "-U", user, "-n", "-S", "-M", protocol,
               "-c", str(clients), "-j", str(min(2, clients)), "-T", str(seconds), USER]
    command += ["-C"] if reconnect else []
    environment = {**os.environ, "PGSSLMODE": "require" if secure else "disable", "PGGSSENCMODE": "disable",
                   "PGPASSWORD": PASSWORD}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds + 120)
    found = re.search(r"^tps = ([0-9.]+)", ran.stdout, re.M)
    if ran.returncode != 0 or not found:
        raise SystemExit(f"bench: pgbench failed\n{ran.stdout[-1000:]}{ran.stderr[-1000:]}")
    return float(found.group(1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", default="1,8,64,500,2000")
    parser.add_argument("--protocols", default="simple,prepared")
    parser.add_argument("--direct-most", type=int, default=64, help="clients that the server itself gets at most")
    parser.add_argument("--same-curve", action="store_true", help="PgBouncer on P-256, too")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    folder = Path(tempfile.mkdtemp(prefix="baton-bench-"))
    folder.chmod(0o755)
    cert, key = certificate(folder)
    server = Server(of_tree(), BACKENDS, {"max_connections": "600", "ssl": "on", "ssl_cert_file": str(cert),
                                          "ssl_key_file": str(key)})
    bouncer = Bouncer(server, BACKENDS)
    cells: dict[str, dict[str, list[float]]] = {}
    shares: dict[str, dict[str, list[tuple[float, float]]]] = {}
    try:
        server.start(10)
        bouncer.settings = {"client_tls_sslmode": "allow", "client_tls_cert_file": cert, "client_tls_key_file": key}
        bouncer.settings |= scram(server, folder)
        if options.same_curve:
            bouncer.settings["client_tls_ecdhcurve"] = "prime256v1"
        bouncer.start()
        pids = {"pg_baton": server.pool().pids, "PgBouncer": bouncer.target().pids, "direct": ()}
        ports = {"direct": server.port, "pg_baton": server.pool_port, "PgBouncer": bouncer.port}

        def measure(name: str, clients: int, protocol: str, *arguments, **keywords) -> None:
            for _ in range(options.rounds):
                for target, port in ports.items():
                    if target == "direct" and clients > options.direct_most:
                        continue
                    without = target == "PgBouncer" and protocol == "prepared" and not bouncer.knows_prepared
                    spoken = "extended" if without else protocol
                    pooler, client = cpu_seconds(pids[target]), resource.getrusage(resource.RUSAGE_CHILDREN)
                    tps = pgbench(port, clients, spoken, *arguments, **keywords)
                    after = resource.getrusage(resource.RUSAGE_CHILDREN)
                    own = after.ru_utime + after.ru_stime - client.ru_utime - client.ru_stime
                    each = 1000 / max(tps * options.seconds, 1)
                    share = ((cpu_seconds(pids[target]) - pooler) * each, own * each)
                    shares.setdefault(name, {}).setdefault(target, []).append(share)
                    cells.setdefault(name, {}).setdefault(target, []).append(tps)
            print(json.dumps({name: cells[name]}), file=sys.stderr, flush=True)

        for protocol in options.protocols.split(","):
            for clients in (int(text) for text in options.clients.split(",")):
                measure(f"{protocol}, {clients} clients", clients, protocol, options.seconds, True)
        for secure in (True, False):
            for user in (USER, SCRAMMED):
                name = f"log-ins, 8 clients, {'TLS' if secure else 'plain'}{', SCRAM' if user == SCRAMMED else ''}"
                measure(name, 8, "simple", options.seconds, secure, reconnect=True, user=user)
    finally:
        bouncer.stop()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

    lines = ["| cell | direct | pg_baton | PgBouncer | of PgBouncer | bar | |", "|---|---|---|---|---|---|---|"]
    missed = 0
    for name, found in cells.items():
        middle = {target: statistics.median(values) for target, values in found.items()}
        ratio = middle["pg_baton"] / middle["PgBouncer"]
        clients = int(re.search(r"(\d+) clients", name).group(1))
        bar = 1.0 if name.startswith("log-ins") else BARS.get(clients)
        verdict = "" if bar is None else "ok" if ratio >= bar else "missed"
        missed += verdict == "missed"
        shown = [f"{middle[target]:,.0f}" if target in middle else "-" for target in ("direct", "pg_baton", "PgBouncer")]
        lines.append(f"| {name} | {' | '.join(shown)} | {ratio:.2f} | {bar or ''} | {verdict} |")
    lines += ["", "CPU of a log-in, ms: the pooler's, and the client's own share.", "",
              "| cell | pg_baton | PgBouncer | client | client, PgBouncer |", "|---|---|---|---|---|"]
    for name, found in shares.items():
        if name.startswith("log-ins"):
            ours, theirs = (tuple(map(statistics.median, zip(*found[target]))) for target in ("pg_baton", "PgBouncer"))
            lines.append(f"| {name} | {ours[0]:.2f} | {theirs[0]:.2f} | {ours[1]:.2f} | {theirs[1]:.2f} |")
    print("\n".join(lines))
    if options.out:
        options.out.write_text(json.dumps(cells, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
