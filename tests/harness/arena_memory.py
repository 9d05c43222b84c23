"""ARENA, the memory that only the dispatcher writes: read and written here through
the dispatcher's own mapping (/proc/PID/mem), as if an attacker had the dispatcher."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

from .cluster import Cluster
from .control_memory import constant, structure


class ArenaMemory:
    """A dispatcher's ARENA.  A test that may not write another process's memory gets a
    PermissionError."""

    def __init__(self, cluster: Cluster) -> None:
        (self.pid,) = cluster.dispatcher_pids()
        maps = Path(f"/proc/{self.pid}/maps").read_text()
        begin, end = re.search(r"^(\w+)-(\w+) rw-s .*pg_baton arena", maps, re.MULTILINE).groups()
        self._begin, self.size = int(begin, 16), int(end, 16) - int(begin, 16)
        self._file = os.open(f"/proc/{self.pid}/mem", os.O_RDWR)
        self.header = self.read_structure("BatonArenaHeader", 0)
        assert self.header.magic == constant("BATON_MAGIC")

    def close(self) -> None:
        os.close(self._file)

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file, length, self._begin + offset)

    def write(self, offset: int, data: bytes) -> None:
        assert 0 <= offset <= self.size - len(data)
        os.pwrite(self._file, data, self._begin + offset)

    def read_structure(self, name: str, offset: int) -> ctypes.Structure:
        kind = structure(name)
        return kind.from_buffer_copy(self.read(offset, ctypes.sizeof(kind)))

    def place_of(self, session: int) -> int:
        """The offset of a session's record."""
        return self.header.session_offset + (session & 0xFFFFFFFF) * ctypes.sizeof(structure("BatonSessionRecord"))

    def items(self, session: int) -> Iterator[int]:
        """The offsets of a session's items."""
        record = self.read_structure("BatonSessionRecord", self.place_of(session))
        for number in range(record.item_count):
            yield record.items * 8 + number * ctypes.sizeof(structure("BatonItem"))

    def field(self, name: str, offset: int, field: str) -> tuple[int, int]:
        """The offset and the size of a field of the structure that lies at `offset`."""
        descriptor = getattr(structure(name), field)
        return offset + descriptor.offset, descriptor.size
