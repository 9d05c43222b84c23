"""Each single request for memory of a backend is refused in turn, and each
answer is whole: what was asked for, or an error.

A library beside the C library's malloc() counts the requests of the processes
it is told of; which one is refused, and whether those after it are, too, the
test says.  So every place is reached where memory may be wanting, and not only
those that a limit happens to hit (test_memory.py).  That takes ten minutes, with
BATON_TEST_LARGE; else one request in eleven is refused."""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.account import give_to_server_user
from harness.health import assert_healthy
from harness.wire import Closed, Message, Wire, bind, execute, parse, query, sync

HOST = "127.0.0.1"

pytestmark = [
    pytest.mark.pool_only,
    pytest.mark.skipif(
        "libasan" in os.environ.get("BATON_TEST_PRELOAD", ""), reason="AddressSanitizer has a malloc() of its own"
    ),
]

REFUSER = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

static struct { atomic_int count, process[8]; atomic_long number, refused, goes_on; } *told;

extern void *__libc_malloc(size_t);
extern void *__libc_realloc(void *, size_t);

__attribute__((constructor)) static void begin(void)
{
    int file = open(CONTROL, O_RDWR);
    void *memory = file < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED)
        told = memory;
    if (file >= 0)
        close(file);
}

static int refuses(void)
{
    int own;
    if (told == NULL || told->count == 0)
        return 0;
    own = getpid();
    for (int i = 0; i < told->count; i++)
    {
        if (told->process[i] == own)
        {
            long now = --told->number;
            if (now == 0 || (now < 0 && told->goes_on))
            {
                told->refused++;
                errno = ENOMEM;
                return 1;
            }
        }
    }
    return 0;
}

void *malloc(size_t size) { return refuses() ? NULL : __libc_malloc(size); }
void *realloc(void *old, size_t size) { return refuses() ? NULL : __libc_realloc(old, size); }
"""

LAYOUT = struct.Struct("=i8i4xqqq")


class Refuser:
    """Refuses memory to processes."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(4096))
        path.chmod(0o666)
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 4096)

    def refuse(self, pids: list[int], number: int, goes_on: bool) -> None:
        """The number-th request of these processes together; and all after it."""
        LAYOUT.pack_into(self.memory, 0, 0, *[0] * 8, number, 0, int(goes_on))
        padded = (pids + [0] * 8)[:8]
        LAYOUT.pack_into(self.memory, 0, 0, *padded, number, 0, int(goes_on))
        struct.pack_into("=i", self.memory, 0, len(pids))

    def stop(self) -> int:
        """Refuses no more; how many it did."""
        struct.pack_into("=i", self.memory, 0, 0)
        return LAYOUT.unpack_from(self.memory)[10]


@pytest.fixture
def refused(run, make_cluster, monkeypatch) -> Iterator[tuple]:
    server = make_cluster(start=False, parameters={"pg_baton.max_backends": 2, "pg_baton.force_migration": True})
    control, library = server.home / "refuser", server.home / "refuser.so"
    refuser = Refuser(control)
    subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", f'-DCONTROL="{control}"', "-x", "c", "-", "-o", str(library)],
        input=REFUSER,
        text=True,
        check=True,
    )
    give_to_server_user(control)
    preload = f"{run.stage.preload} {library}".strip()
    monkeypatch.setattr(run, "stage", dataclasses.replace(run.stage, preload=preload))
    server.start()
    server.sql("CREATE EXTENSION pg_baton")
    yield server, refuser


NAMED = 250  # a backend's map of them grows beyond what is at hand


def fill(session: Wire, number: int) -> None:
    session.query(f"SELECT set_config('my.part', repeat('{number}', 20000), false)")
    session.ask(*[parse(f"SELECT '{number}', {name}", f"p{name}") for name in range(NAMED)], sync())


def renew(session: Wire, number: int, turn: int) -> None:
    """Statements that one backend alone has had; the last, because the next step goes to the other."""
    if turn % 8 == 0:
        session.query("DEALLOCATE ALL")
        fill(session, number)
    session.query(f"PREPARE mine{turn} AS SELECT '{number}', '{turn}{'z' * 5000}'")
    session.ask(parse("SHOW my.part", f"show{turn}") + sync())
    session.ask(parse(f"SELECT '{number}', '{turn}{'u' * 5000}'") + sync())


# What is asked, and what its rows begin with.
def steps(number: int, turn: int) -> list[tuple[bytes, bytes]]:
    own = str(number).encode()
    return [
        (bind() + execute() + sync(), own),
        (query("SELECT left(current_setting('my.part'), 1)"), own),
        (query(f"EXECUTE mine{turn}"), own),
        (bind([], f"show{turn}") + execute() + sync(), own),
        (b"".join(bind([], f"p{name}") + execute() for name in range(NAMED)) + sync(), own),
        (parse(f"SELECT '{number}'") + sync(), b""),
        (bind() + execute() + sync(), own),
        (query(f"SELECT set_config('my.part', repeat('{number}', 20001), false)"), own),
    ]


def told(session: Wire, request: bytes) -> list[Message]:
    messages: list[Message] = []
    try:
        session.send(request)
        while not messages or messages[-1].type != "Z":
            messages.append(session.read(20))
    except (Closed, OSError):
        pass
    return messages


def ask_all(sessions: dict[int, Wire], turn: int) -> list[str]:
    """Each session asks; each answer is its own and whole, or an error. Which errors?"""
    errors = []
    for step in range(len(steps(0, 0))):
        for number, session in list(sessions.items()):
            request, own = steps(number, turn)[step]
            messages = told(session, request)
            wrong = [m.fields() for m in messages if m.type == "E"]
            errors += [f"{w['S']} {w['C']}" for w in wrong]
            rows = [m.row()[0] for m in messages if m.type == "D"]
            assert all(row[:1] == own for row in rows), (number, step, messages)
            if not messages or messages[-1].type != "Z":
                sessions.pop(number).close()
                assert wrong and wrong[-1]["S"] == "FATAL", (number, step, messages)
            elif not wrong:
                assert bool(rows) == bool(own), (number, step, messages)
                kinds = "".join(m.type for m in messages)
                assert ("C" in kinds or "1" in kinds) and kinds.count("Z") == 1, (number, step, messages)
    return errors


# Of the requests of one turn, some 900, each of these.
STRIDE = 1 if os.environ.get("BATON_TEST_LARGE") else 11


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("goes_on", [False, True], ids=["once", "from then on"])
def test_answer_is_whole_whatever_memory_request_is_refused(refused, goes_on):
    server, refuser = refused
    sessions: dict[int, Wire] = {}
    number, without = 1, 0
    errors: list[str] = []
    while without < 3:
        for missing in {1, 2, 3} - set(sessions):
            sessions[missing] = Wire.login(HOST, server.pool_port)
            fill(sessions[missing], missing)
        for own, session in sessions.items():
            renew(session, own, number)
        pids = [pid for (pid,) in server.sql("SELECT pid FROM pg_baton_backends WHERE pid IS NOT NULL")]
        refuser.refuse(pids, number, goes_on)
        found = ask_all(sessions, number)
        without = 0 if refuser.stop() else without + 1
        # what is refused as the last answer's session is put away ends it after that answer
        for own, session in list(sessions.items()):
            messages = told(session, query("SELECT 1"))
            if not messages or messages[-1].type != "Z":
                sessions.pop(own).close()
                fatal = [m.fields() for m in messages if m.type == "E"]
                found += [f"{w['S']} {w['C']}" for w in fatal]
        # an unnamed statement whose message was refused is not there
        assert set(found) <= {"ERROR 53200", "FATAL 53200", "ERROR 26000"}, found
        errors += found
        # nothing of it is left
        for own, session in sessions.items():
            renew(session, own, number + 1_000_000)
        assert ask_all(sessions, number + 1_000_000) == [], number
        number += STRIDE
    for session in sessions.values():
        session.finish()
    assert {"ERROR 53200", "FATAL 53200"} <= set(errors)
    assert_healthy(server)
