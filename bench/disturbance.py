"""How much of the machine others had while something was measured.

A shared machine's other work shows in a figure as if it were the pool's: half a
core of it takes a third of what 8 clients get by TLS, and less of what a pooler
with one process gives. So each run is measured with what processes that are not
the benchmark's used meanwhile, and one that was disturbed is made again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

# Of all cores: so little is nobody's work.
DISTURBED_SHARE = 0.03
RUNS_MOST = 4
KERNEL_THREADS = 2  # their parent's pid

Run = TypeVar("Run")


def others_cpu_seconds() -> float:
    """CPU time so far of all processes but this one, its descendants and the kernel's
    threads. Who has ended is in the sum of whoever waited for it, as /proc tells it."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # Gone meanwhile.
        with suppress(OSError, IndexError):
            words = (entry / "stat").read_text().rpartition(")")[2].split()
            pid = int(entry.name)
            parents[pid] = int(words[1])
            ticks[pid] = sum(map(int, words[11:15]))
    ours = {os.getpid(): True, 0: False, 1: False, KERNEL_THREADS: True}

    def is_ours(pid: int) -> bool:
        if pid not in ours:
            ours[pid] = is_ours(parents.get(pid, 1))
        return ours[pid]

    return sum(used for pid, used in ticks.items() if not is_ours(pid)) / os.sysconf("SC_CLK_TCK")


def undisturbed(run: Callable[[], Run], most: int = RUNS_MOST) -> tuple[Run, float]:
    """What a run gives (blocks), made again while others take more than DISTURBED_SHARE
    of all cores, so many times at most; of these the least disturbed, and their share."""
    found: list[tuple[float, Run]] = []
    while not found or (found[-1][0] > DISTURBED_SHARE and len(found) < most):
        used, began = others_cpu_seconds(), time.monotonic()
        result = run()
        share = (others_cpu_seconds() - used) / (time.monotonic() - began) / (os.cpu_count() or 1)
        found.append((max(share, 0.0), result))
    share, result = min(found, key=lambda one: one[0])
    return result, share


def described(shares: list[float]) -> str:
    """For a report."""
    disturbed = sum(share > DISTURBED_SHARE for share in shares)
    return (f"others took at most {max(shares, default=0):.0%} of the machine during a run,"
            f" more than {DISTURBED_SHARE:.0%} in {disturbed} of {len(shares)}")


def of_cells(cells: list[dict]) -> str:
    """Of all samples of cells (measure.Measured as dict); those of before this was measured have none."""
    samples = [sample for one in cells for samples in one["rounds"] for sample in samples.values()]
    return described([sample["others"] for sample in samples if sample.get("others") is not None])
