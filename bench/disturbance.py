"""Measures the share of the machine that other processes take during a measurement.

Other work on a shared machine changes a figure as if the pool had caused it: half a
core of such work costs 8 clients a third of their throughput by TLS, and costs a
pooler with one process less. So each run is measured together with the CPU time of
processes outside the benchmark, and a disturbed run is made again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

# A share of all cores: a smaller share does not come from other work.
DISTURBED_SHARE = 0.03
RUNS_MOST = 4
KERNEL_THREADS = 2  # their parent's pid

Run = TypeVar("Run")


def others_cpu_seconds() -> float:
    """CPU time so far of all processes except this process, its descendants and the kernel's
    threads. An ended process is in the sum of the process that waited for it, as /proc reports it."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # The process has gone meanwhile.
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
    """The result of a run (blocks), and the share of all cores that others took. The run is made again
    while that share exceeds DISTURBED_SHARE, `most` times in all; the least disturbed run counts."""
    found: list[tuple[float, Run]] = []
    while not found or (found[-1][0] > DISTURBED_SHARE and len(found) < most):
        used, began = others_cpu_seconds(), time.monotonic()
        result = run()
        share = (others_cpu_seconds() - used) / (time.monotonic() - began) / (os.cpu_count() or 1)
        found.append((max(share, 0.0), result))
    share, result = min(found, key=lambda one: one[0])
    return result, share


def described(shares: list[float]) -> str:
    """Describes the shares for a report."""
    disturbed = sum(share > DISTURBED_SHARE for share in shares)
    return (
        f"others took at most {max(shares, default=0):.0%} of the machine during a run,"
        f" more than {DISTURBED_SHARE:.0%} in {disturbed} of {len(shares)}"
    )


def of_cells(cells: list[dict]) -> str:
    """Describes all samples of cells (measure.Measured as dict). Samples from before this measurement have no share."""
    samples = [sample for one in cells for samples in one["rounds"] for sample in samples.values()]
    return described([sample["others"] for sample in samples if sample.get("others") is not None])
