"""Searches the memory of another process (/proc/PID/mem)."""

from __future__ import annotations

import os
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
CHUNK_PAGES = 256
# Bits of a page's entry in pagemap: the page is in memory, or swapped out.
THERE = 0b11 << 62


def _pages(pid: int) -> list[tuple[int, int]]:
    """Runs of pages that are in memory or swapped out, of mappings that the process may have written to."""
    found = []
    with open(f"/proc/{pid}/pagemap", "rb") as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            addresses, access = line.split()[:2]
            if not access.startswith("rw"):
                continue
            first, end = (int(address, 16) // PAGE for address in addresses.split("-"))
            pagemap.seek(first * 8)
            entries = memoryview(pagemap.read((end - first) * 8)).cast("Q")
            run = 0
            for number, entry in enumerate(entries):
                run = run + 1 if entry & THERE else 0
                if run == 1:
                    found.append((first + number, 1))
                elif run > 1:
                    found[-1] = (found[-1][0], run)
    return found


def stands_in_memory(pid: int, text: bytes) -> bool:
    """Raises PermissionError if the test may not read the process's memory.  The process
    goes on meanwhile: text that moves may be missed, text that stays is not."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for first, count in _pages(pid):
            end = first + count
            for at in range(first, end, CHUNK_PAGES):
                # The next chunk's first page, too: the text may begin in one chunk and end in the other.
                pages = min(CHUNK_PAGES + 1, end - at)
                try:
                    if text in os.pread(memory.fileno(), pages * PAGE, at * PAGE):
                        return True
                except OSError:  # the process has given the pages back meanwhile
                    continue
    return False
