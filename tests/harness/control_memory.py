"""CONTROL, the control memory that the server's processes and the dispatcher share.

The structures are read from shared/ itself, so that a test that
looks into the memory, or writes there, follows the layout.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import subprocess

from .cluster import Cluster
from .stage import REPOSITORY

KINDS = {
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
}


@functools.cache
def _header() -> str:
    text = "".join(path.read_text() for path in (REPOSITORY / "shared").glob("*.h"))
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


@functools.cache
def constant(name: str) -> int:
    """The value of one #define."""
    if name == "BATON_LAYOUT_VERSION":
        return int(subprocess.check_output([REPOSITORY / "shared" / "layout-version"]), 16)
    found = re.search(rf"^#define {name} (\w+)\s*$", _header(), re.MULTILINE)
    assert found, f"shared/ does not define {name}"
    return int(found.group(1), 0)


@functools.cache
def structure(name: str) -> type[ctypes.Structure]:
    """A structure of the headers; all fields are of fixed width."""
    found = re.search(rf"typedef struct {name}\s*{{(.*?)}} {name};", _header(), re.DOTALL)
    assert found, f"shared/ has no structure {name}"
    fields = []
    for kind, field, _, count in re.findall(r"(\w+)\s+(\w+)(\[(\w+)\])?;", found.group(1)):
        length = int(count) if count.isdigit() else constant(count) if count else 0
        type_ = KINDS.get(kind) or structure(kind)
        fields.append((field, type_ * length if length else type_))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _is_control(descriptor: str) -> bool:
    try:
        return "pg_baton control" in os.readlink(descriptor)
    except FileNotFoundError:  # the descriptor of a client that has its own process by now
        return False


class ControlMemory:
    """A server's CONTROL, mapped; the postmaster's memfd holds it."""

    def __init__(self, cluster: Cluster) -> None:
        directory = f"/proc/{cluster.postmaster_pid()}/fd"
        (path,) = (f"{directory}/{number}" for number in os.listdir(directory) if _is_control(f"{directory}/{number}"))
        file = os.open(path, os.O_RDWR)
        self._memory = mmap.mmap(file, 0)
        os.close(file)
        self.header = structure("BatonControlHeader").from_buffer(self._memory)
        assert self.header.magic == constant("BATON_MAGIC")
        assert self.header.layout_version == constant("BATON_LAYOUT_VERSION")
        assert self.header.total_size == len(self._memory)

    def backend_slot(self, number: int) -> ctypes.Structure:
        kind = structure("BatonBackendSlot")
        assert number < self.header.backend_slots
        return kind.from_buffer(self._memory, self.header.backend_offset + number * ctypes.sizeof(kind))

    def pool_slot(self, number: int) -> ctypes.Structure:
        kind = structure("BatonPoolSlot")
        assert number < self.header.pool_slots
        return kind.from_buffer(self._memory, self.header.pool_offset + number * ctypes.sizeof(kind))

    def tenant_slot(self, number: int) -> ctypes.Structure:
        kind = structure("BatonTenantSlot")
        assert number < self.header.pool_slots
        return kind.from_buffer(self._memory, self.header.tenant_offset + number * ctypes.sizeof(kind))

    def totals_slot(self, number: int) -> ctypes.Structure:
        """The totals of the tenant slot of that number."""
        kind = structure("BatonTotalsSlot")
        assert number < self.header.pool_slots
        return kind.from_buffer(self._memory, self.header.totals_offset + number * ctypes.sizeof(kind))

    def tally_slot(self, number: int) -> ctypes.Structure:
        """The tally of the backend slot of that number."""
        kind = structure("BatonTallySlot")
        assert number < self.header.backend_slots
        return kind.from_buffer(self._memory, self.header.tally_offset + number * ctypes.sizeof(kind))

    def session_slot(self, session: int) -> ctypes.Structure:
        """The slot with the session's id, or with the slot's number."""
        kind = structure("BatonSessionSlot")
        number = session & 0xFFFFFFFF
        assert number < self.header.session_slots
        return kind.from_buffer(self._memory, self.header.session_offset + number * ctypes.sizeof(kind))

    def identity(self, session: int) -> ctypes.Structure:
        kind = structure("BatonIdentity")
        number = session & 0xFFFFFFFF
        assert number < self.header.session_slots
        return kind.from_buffer(self._memory, self.header.identity_offset + number * ctypes.sizeof(kind))
