"""What a login was like, to be compared between the server's port and the pool's."""

from __future__ import annotations

import struct


def shape(messages) -> list[str]:
    """What a login was like: the kinds of authentication, and errors whole."""
    lines = []
    for found in messages:
        if found.type == "R":
            (kind,) = struct.unpack_from("!I", found.body)
            lines.append(f"authentication {kind}" + (f" {found.body[4:]!r}" if kind == 10 else ""))
        elif found.type in "EN":
            fields = {k: v for k, v in found.fields().items() if k not in "FLR"}
            lines.append(f"{found.type} {fields}")
    return lines
