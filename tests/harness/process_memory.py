"""What stands in another process's memory (/proc/PID/mem)."""

from __future__ import annotations

import os
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
CHUNK_PAGES = 256
# A page's entry in pagemap: it is in memory, or swapped out.
THERE = 0b11 << 62


def _pages(pid: int) -> list[tuple[int, int]]:
    """Runs of pages that are there, of mappings that the process may have written to."""
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
    """Whoever may not read another process's memory gets a PermissionError.  The
    process goes on meanwhile: what moves may be missed, what stays is not."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for first, count in _pages(pid):
            end = first + count
            for at in range(first, end, CHUNK_PAGES):
                # The next chunk's first page, too: it may begin in one and end in the other.
                pages = min(CHUNK_PAGES + 1, end - at)
                try:
                    if text in os.pread(memory.fileno(), pages * PAGE, at * PAGE):
                        return True
                except OSError:	 # given back meanwhile
                    continue
    return False
