"""Makes a script that shows a difference shorter, and keeps it in a file."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from .episode import Difference
from .generator import Operation
from .history import About

# Runs a script in fresh worlds; the difference it shows, if any.
Runner = Callable[[list[Operation]], Difference | None]


def shrink(
    script: list[Operation], difference: Difference, run: Runner, limit_s: float
) -> tuple[list[Operation], Difference]:
    """Delta debugging: leave out ever smaller parts while it still differs."""
    deadline = time.monotonic() + limit_s
    wanted = difference.signature()

    def still(candidate: list[Operation]) -> Difference | None:
        found = run(candidate)
        return found if found and found.signature() == wanted else None

    # Sessions that the last step does not need are most of it.
    for session in {operation.session for operation in script}:
        candidate = [operation for operation in script if operation.session != session]
        found = still(candidate) if candidate and time.monotonic() < deadline else None
        if found:
            script, difference = candidate[: found.step + 1], found
    part = max(len(script) // 2, 1)
    while time.monotonic() < deadline:
        start = 0
        shorter = False
        while start < len(script) - 1 and time.monotonic() < deadline:
            candidate = script[:start] + script[min(start + part, len(script) - 1) :]
            found = still(candidate)
            if found:
                script, difference, shorter = candidate[: found.step + 1], found, True
            else:
                start += part
        if part == 1 and not shorter:
            break
        part = max(part // 2, 1)
    return script, difference


def show(script: list[Operation]) -> str:
    return "\n".join(
        f"{number:4}  session {operation.session}: {operation.label}" for number, operation in enumerate(script)
    )


def save(script: list[Operation], path: Path) -> None:
    rows = [
        {
            "session": operation.session,
            "label": operation.label,
            "segments": [base64.b64encode(segment).decode() for segment in operation.segments],
            "connect": operation.connect,
            "disconnect": operation.disconnect,
            "behind": base64.b64encode(operation.behind).decode(),
            "ends": operation.ends,
            "about": asdict(operation.about),
        }
        for operation in script
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


def load(path: Path) -> list[Operation]:
    return [
        Operation(
            row["session"],
            row["label"],
            tuple(base64.b64decode(segment) for segment in row["segments"]),
            None if row["connect"] is None else tuple((name, value) for name, value in row["connect"]),
            row["disconnect"],
            base64.b64decode(row.get("behind", "")),
            row.get("ends"),
            About(
                **{
                    name: tuple(value) if isinstance(value, list) else value
                    for name, value in row.get("about", {}).items()
                }
            ),
        )
        for row in json.loads(path.read_text())
    ]
