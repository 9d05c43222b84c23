"""The fuzzer's command: see the package's docstring."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.certificates import Authority, make_secure  # noqa: E402
from harness.cluster import Run  # noqa: E402
from harness.stage import tls_wanted  # noqa: E402

from .episode import Difference, Episode  # noqa: E402
from .generator import Operation  # noqa: E402
from .role_words import HBA  # noqa: E402
from .shrink import load, save, show, shrink  # noqa: E402
from .world import BrokenWorld, World, make_template  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
SEEDS = Path(__file__).resolve().parent / "seeds"
STEPS_AN_EPISODE = 400
SHRINK_LIMIT_S = 60.0
DATABASE = "fuzz"
DDL_SHARE = 0.0
SESSIONS = 5
# Sessions of many roles, and few backends for them.
SESSIONS_OF_ROLES = 12
BACKENDS_OF_ROLES = 3
# The dispatcher's loop should look for events again within this time (docs/design/scheduler.md).
LONGEST_TURN_US = 5000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description="differential fuzzer of session state")
    parser.add_argument("--seed", type=int, help="of the first episode [the clock]")
    parser.add_argument("--steps", type=int, help=f"operations in all [{STEPS_AN_EPISODE} unless --seconds]")
    parser.add_argument("--seconds", type=float, help="go on for so long")
    parser.add_argument("--episode", type=int, default=STEPS_AN_EPISODE, help="operations an episode [%(default)s]")
    parser.add_argument("--sessions", type=int, help=f"[{SESSIONS}, {SESSIONS_OF_ROLES} with --roles]")
    parser.add_argument(
        "--against",
        choices=("pool", "direct", "broken"),
        default="pool",
        help="what to compare direct connections with [pool]",
    )
    parser.add_argument("--normal", action="store_true", help="without forced migration")
    parser.add_argument(
        "--tls", action="store_true", default=tls_wanted(), help="all sessions by TLS; so with BATON_TEST_TLS=1"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the pool's server"
    )
    parser.add_argument(
        "--ddl",
        type=float,
        default=DDL_SHARE,
        metavar="SHARE",
        help="of operations that are or depend on DDL beside sessions [%(default)s]",
    )
    parser.add_argument(
        "--roles",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="the same, of roles: sessions of many roles in one database, on few backends",
    )
    parser.add_argument(
        "--shut-out",
        action="store_true",
        help="with --roles: roles are kept from logging in, renamed and dropped while sessions of theirs live",
    )
    parser.add_argument(
        "--counts", action="store_true", help="say how many operations of each kind there were about DDL"
    )
    parser.add_argument("--script", type=Path, help="run a kept script instead")
    parser.add_argument("--no-seeds", action="store_true", help="do not run the kept scripts first")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--keep-going", type=int, default=0, metavar="N", help="stop after N+1 differences")
    options = parser.parse_args()
    options.sessions = options.sessions or (SESSIONS_OF_ROLES if options.roles else SESSIONS)
    return options


class Fuzzer:
    """Two clusters, and the differences found between them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        if options.against != "pool":
            os.environ["BATON_TEST_DIRECT"] = "1"
        self.run = Run()
        self.steps = 0
        self.episodes = 0
        self.differences = 0
        self.migrations = 0
        self.loose = 0
        self.counts: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.started = time.monotonic()
        self.shown = self.started
        self.longest_turn_us = 0
        common = {"lock_timeout": "60ms", "max_connections": "100"}
        pool = dict(value.split("=", 1) for value in options.set)
        pooled = options.against == "pool"
        if pooled:
            # A dedicated session or a session in a transaction keeps its backend;
            # forced migration needs two more.
            pool = {
                "pg_baton.max_backends": BACKENDS_OF_ROLES if options.roles else options.sessions + 3,
                "pg_baton.force_migration": not options.normal,
                "pg_baton.force_role_changes": bool(options.roles) and not options.normal,
                **pool,
            }
        # Forced migration needs a backend that no session holds.
        most = int(pool.get("pg_baton.max_backends", BACKENDS_OF_ROLES if options.roles else options.sessions + 3))
        self.backends = most if options.normal else max(most - 1, 1)
        hba = HBA if options.roles else ()
        self.direct = self.run.cluster("direct", parameters=common, pooled=False, hba=hba)
        self.other = self.run.cluster(options.against, parameters={**common, **pool}, pooled=pooled, hba=hba)

        if options.tls:
            authority = Authority(self.run.directory / "certificates")
            for cluster in (self.direct, self.other):
                make_secure(cluster, authority)

    def start(self) -> None:
        for cluster in (self.direct, self.other):
            cluster.start()
            make_template(cluster)

    def episode(self) -> Episode:
        count = self.options.sessions
        roles = bool(self.options.roles)
        world = BrokenWorld if self.options.against == "broken" else World
        pids = "pg_baton.test_constants=break_process_ids=1" not in self.options.set
        return Episode(
            World(self.direct, "direct", self.direct.port, count, DATABASE, pids, self.options.tls, roles),
            world(
                self.other, self.options.against, self.other.pool_port, count, DATABASE, pids, self.options.tls, roles
            ),
            self.options.shut_out,
        )

    def try_script(self, script: list[Operation]) -> Difference | None:
        episode = self.episode()
        try:
            return episode.run(script)
        finally:
            episode.close()

    def one(self, seed: int, steps: int) -> bool:
        """Runs a generated episode; False if it found a difference."""
        episode = self.episode()
        try:
            difference = episode.run(
                episode.generate(seed, steps, self.backends, self.options.ddl or self.options.roles), self.count
            )
        finally:
            episode.close()
            self.migrations += episode.other.migrations
            self.loose += episode.loose
            self.counts += episode.counts
            self.failed += episode.failed
        self.episodes += 1
        if not difference:
            return True
        ddl = f" --ddl {self.options.ddl}" if self.options.ddl else ""
        if self.options.roles:
            ddl = f" --roles {self.options.roles}{' --shut-out' if self.options.shut_out else ''}"
        self.report(f"--seed {seed} --steps {difference.step + 1}{ddl}", f"found-{seed}", episode.done, difference)
        return False

    def report(self, replay: str, name: str, script: list[Operation], difference: Difference) -> None:
        self.differences += 1
        print(f"\nDIFFERENCE at step {difference.step} ({difference.what}); replay: {replay}", flush=True)
        print(f"session {difference.operation.session}: {difference.operation.label}")
        print("\n".join(difference.diff()), flush=True)
        if not self.options.no_shrink:
            print("shortening ...", file=sys.stderr, flush=True)
            script, difference = shrink(script, difference, self.try_script, SHRINK_LIMIT_S)
            print("shortened script:")
            print(show(script))
            print("\n".join(difference.diff()), flush=True)
        kept = REPOSITORY / "build" / "fuzz" / f"{name}.json"
        save(script, kept)
        print(f"kept in {kept.relative_to(REPOSITORY)}, replay: --script {kept.relative_to(REPOSITORY)}", flush=True)

    def count(self) -> None:
        self.steps += 1
        now = time.monotonic()
        if now - self.shown > 5:
            self.shown = now
            print(
                f"fuzz: {self.steps} operations, {self.episodes} episodes, {self.differences} differences,"
                f" {self.steps / (now - self.started):.0f}/s",
                file=sys.stderr,
                flush=True,
            )

    def kept_scripts(self) -> None:
        """Runs the scripts that once found a bug."""
        for path in sorted(SEEDS.glob("*.json")):
            script = load(path)
            difference = self.try_script(script)
            self.steps += len(script)
            if difference:
                self.report(f"--script {path.relative_to(REPOSITORY)}", path.stem, script, difference)

    def go(self) -> None:
        options = self.options
        if options.script:
            script = load(options.script)
            difference = self.try_script(script)
            self.steps += len(script)
            if difference:
                self.report(f"--script {options.script}", options.script.stem, script, difference)
            return
        if options.against == "pool" and not options.no_seeds:
            self.kept_scripts()
        seed = options.seed if options.seed is not None else int(time.time())
        print(f"fuzz: seed {seed}, {options.sessions} sessions, against {options.against}", file=sys.stderr, flush=True)
        steps = options.steps or (STEPS_AN_EPISODE if options.seconds is None else sys.maxsize)
        while steps > 0 and self.differences <= options.keep_going:
            if options.seconds is not None and time.monotonic() - self.started > options.seconds:
                break
            self.one(seed, min(steps, options.episode))
            steps -= options.episode
            seed += 1

    def look_at_turns(self) -> None:
        """Notes the length of the dispatcher's longest turn, in processor time."""
        if self.options.against == "pool":
            rows = self.other.sql("SELECT longest_turn_us FROM pg_baton_dispatchers")
            self.longest_turn_us = max((us for (us,) in rows), default=0)

    def finish(self) -> None:
        """Stops both servers and proves that nothing is left of them."""
        for cluster in (self.direct, self.other):
            cluster.finish()


def main() -> int:
    options = arguments()
    fuzzer = Fuzzer(options)
    try:
        fuzzer.start()
        fuzzer.go()
        fuzzer.look_at_turns()
        fuzzer.finish()
    finally:
        fuzzer.run.close()
    if options.counts:
        for kind, count in sorted(fuzzer.counts.items()):
            print(f"fuzz: {count:7} {kind}, {fuzzer.failed[kind]} of them with an error")
    seconds = time.monotonic() - fuzzer.started
    print(
        f"fuzz: {fuzzer.steps} operations in {fuzzer.episodes} episodes, {fuzzer.differences} differences,"
        f" {fuzzer.loose} not compared, {fuzzer.migrations} migrations of sessions open at an episode's end,"
        f" {seconds:.0f} s",
        flush=True,
    )
    if options.against == "pool":
        is_long = fuzzer.longest_turn_us > LONGEST_TURN_US
        print(
            f"fuzz: the dispatcher's longest turn: {fuzzer.longest_turn_us} us"
            f"{f', MORE THAN {LONGEST_TURN_US}' if is_long else ''}",
            flush=True,
        )
    # A broken world tests the fuzzer itself: it must find differences.
    return int((fuzzer.differences == 0) == (options.against == "broken"))


if __name__ == "__main__":
    sys.exit(main())
