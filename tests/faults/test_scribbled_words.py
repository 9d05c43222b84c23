"""Whatever a process of the server writes into the memory that all processes share, the
server does not crash, the dispatcher lives on, and no session waits for ever."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

import pytest
from harness.control_memory import ControlMemory, structure
from harness.health import assert_healthy, wait_until
from harness.wire import Closed, QueryFailed, Wire

HOST = "127.0.0.1"

pytestmark = pytest.mark.pool_only

VALUES = (0, 7, 2**31 - 1, 2**32 - 1, 2**63, 3 * 2**62, 2**64 - 1)

SESSION = "SELECT id FROM pg_baton_sessions WHERE application_name = '{}'"


# The tests read everything that these views can show.
VIEWS = ("pg_stat_activity", "pg_stat_ssl", "pg_baton_sessions", "pg_baton_backends", "pg_baton_pools")
VIEWS += ("pg_baton_pool_users", "pg_baton_stats")


def words(name: str) -> Iterator[tuple[str, int | None]]:
    """The fields of a structure; of an array the first two elements."""
    for field, kind in structure(name)._fields_:
        if issubclass(kind, ctypes.Array):
            yield from ((field, number) for number in range(2))
        elif not issubclass(kind, ctypes.Structure):
            yield field, None


SHOWN = [f"(SELECT count(row::text) FROM {view} row)" for view in VIEWS]
SHOWN.append("(SELECT count(pg_stat_get_backend_activity(id)) FROM pg_stat_get_backend_idset() id)")


def show_all(cluster) -> None:
    cluster.sql(f"SELECT {', '.join(SHOWN)}")


class World:
    """Four sessions: a victim, whose words are written; a session of the victim's role, and
    so of its tenant; a session of another role in its pool; and a session of another pool.
    The pools have enough backends."""

    def __init__(self, make_cluster, forced: bool) -> None:
        parameters = {"pg_baton.max_backends": 6, "pg_baton.force_migration": "on" if forced else "off"}
        self.cluster = make_cluster(parameters=parameters)
        self.cluster.sql("CREATE EXTENSION pg_baton")
        self.cluster.sql("CREATE ROLE another LOGIN")
        self.cluster.sql("CREATE DATABASE elsewhere TEMPLATE template0")
        self.memory = ControlMemory(self.cluster)
        self.numbers = itertools.count()
        self.dispatchers = self.cluster.dispatcher_pids()
        self.far = self.come("far", database="elsewhere")
        self.beside = {"mate": "postgres", "other": "another"}
        self.wires = {name: self.come(name, user) for name, user in self.beside.items()}

    @property
    def mate(self) -> Wire:
        return self.wires["mate"]

    def come(self, name: str, user: str = "postgres", database: str = "postgres") -> Wire:
        wire = Wire.login(HOST, self.cluster.pool_port, user=user, database=database, application_name=name)
        wire.query(f"SET my.own = '{name}'")
        return wire

    def place(self, name: str, session: int) -> ctypes.Structure:
        """The structure of that name that belongs to the session, or to a backend of its pool."""
        slots = (
            "SELECT slot FROM pg_baton_backends WHERE database = 'postgres'"
            " ORDER BY session_id = {} DESC NULLS LAST, user_name = 'postgres' DESC NULLS LAST"
        )
        ((slot,), *_) = self.cluster.sql(slots.format(session))
        backend = self.memory.backend_slot(slot)
        return {
            "BatonSessionSlot": lambda: self.memory.session_slot(session),
            "BatonBackendSlot": lambda: backend,
            "BatonPoolSlot": lambda: self.memory.pool_slot(backend.pool),
            "BatonTenantSlot": lambda: self.memory.tenant_slot(backend.tenant - 1),
            "BatonTotalsSlot": lambda: self.memory.totals_slot(backend.tenant - 1),
            "BatonTallySlot": lambda: self.memory.tally_slot(slot),
            "BatonIdentity": lambda: self.memory.identity(session),
        }[name]()

    def scribble(self, name: str, field: str, number: int | None, value: int, busy: bool) -> None:
        what = f"{name}.{field} = {value}, busy: {busy}"
        own_name = f"victim {next(self.numbers)}"
        victim = self.come(own_name)
        if busy:
            victim.query("BEGIN")
        ((session,),) = self.cluster.sql(SESSION.format(own_name))
        place = self.place(name, session)
        if number is None:
            setattr(place, field, value)
        else:
            getattr(place, field)[number] = value
        show_all(self.cluster)
        # the victim's session may end, or be cancelled; it never becomes another's, and gets an answer
        try:
            assert victim.query("SHOW my.own", timeout_s=30) == [[own_name]], what
            if busy:
                victim.query("ROLLBACK", timeout_s=30)
        except (QueryFailed, Closed, ConnectionError):
            pass
        for beside, user in self.beside.items():
            try:
                assert self.wires[beside].query("SHOW my.own", timeout_s=30) == [[beside]], what
            except (Closed, ConnectionError):
                # the words were those of the backend that served this session
                assert name == "BatonBackendSlot", what
                self.wires[beside] = self.come(beside, user)
        assert self.far.query("SHOW my.own", timeout_s=30) == [["far"]], what
        victim.close()
        assert self.cluster.dispatcher_pids() == self.dispatchers, what
        assert "was terminated by signal" not in self.cluster.log(), what

    def assert_healthy(self) -> None:
        for wire in (*self.wires.values(), self.far):
            wire.finish()
        assert_healthy(self.cluster)


SLOTS = [
    "BatonSessionSlot",
    "BatonBackendSlot",
    "BatonPoolSlot",
    "BatonTenantSlot",
    "BatonIdentity",
    "BatonTotalsSlot",
    "BatonTallySlot",
]


@pytest.mark.parametrize("name", SLOTS)
@pytest.mark.parametrize("mode", ["normal", "forced"])
def test_no_word_of_shared_memory_harms_more_than_its_owner(make_cluster, mode, name):
    """The test writes one word after the other, without putting any right again."""
    world = World(make_cluster, mode == "forced")
    for field, number in words(name):
        for value in VALUES:
            for busy in (False, True):
                world.scribble(name, field, number, value, busy)
    world.assert_healthy()


def test_a_queue_s_counter_is_put_right_while_others_are_at_work(make_cluster):
    """A statement that is sent raises the counter beyond its range: no backend sees that a session waits."""
    world = World(make_cluster, forced=False)
    with world.come("victim") as victim:
        victim.query("BEGIN")
        ((session,),) = world.cluster.sql(SESSION.format("victim"))
        world.place("BatonPoolSlot", session).queued = 2**31 - 1
        assert world.mate.query("SHOW my.own", timeout_s=30) == [["mate"]]
        victim.query("COMMIT")
    world.assert_healthy()


def test_all_words_of_the_header_that_change_may_be_anything(make_cluster):
    world = World(make_cluster, forced=False)
    changing = ("settings_generation", "force_migration", "dispatcher_epoch", "login_generation", "room_ticket")
    changing += ("next_pid", "identities_used", "keeps_sessions", "names_generation")
    for field in changing:
        before = getattr(world.memory.header, field)
        for value in VALUES:
            setattr(world.memory.header, field, value)
            with world.come("new") as new:
                assert new.query("SHOW my.own", timeout_s=30) == [["new"]], f"{field} = {value}"
            assert world.mate.query("SHOW my.own", timeout_s=30) == [["mate"]], f"{field} = {value}"
            assert world.cluster.sql("SELECT count(*) > 0 FROM pg_stat_activity") == [(True,)]
        setattr(world.memory.header, field, before)
        gone = SESSION.format("new")
        wait_until(lambda: world.cluster.sql(gone) == [], what="it has ended")
    world.assert_healthy()


def test_whatever_stands_as_a_tenant_s_name_is_not_another_s(make_cluster):
    """The tenant's sessions have logged in under its name: they may end, or bear the written name."""
    world = World(make_cluster, forced=True)
    world.mate.query("SELECT 1")
    ((session,),) = world.cluster.sql(SESSION.format("mate"))
    tenant = world.place("BatonTenantSlot", session)
    assert bytes(tenant.user_name).rstrip(b"\0") == b"postgres"
    for value in TEXTS:
        # to the last byte, without a terminator
        tenant.user_name[:] = (value * len(tenant.user_name))[: len(tenant.user_name)]
        try:
            assert world.mate.query("SHOW my.own", timeout_s=30) == [["mate"]], value
        except (Closed, ConnectionError):
            world.wires["mate"] = world.come("mate")
        show_all(world.cluster)
        assert world.wires["other"].query("SELECT session_user", timeout_s=30) == [["another"]], value
        assert world.far.query("SHOW my.own", timeout_s=30) == [["far"]], value
    tenant.user_name[:] = b"postgres".ljust(len(tenant.user_name), b"\0")
    world.assert_healthy()


TEXTS = (b"\xff", b"x", b"\xc3(", b"1e", b"-", b"1")


def test_any_tls_data_of_a_session_is_shown_to_all_without_error(make_cluster):
    world = World(make_cluster, forced=False)
    ((session,),) = world.cluster.sql(SESSION.format("mate"))
    tls = world.memory.identity(session).tls
    fields = [field for field, kind in structure("BatonTls")._fields_ if issubclass(kind, ctypes.Array)]
    try:
        for value in TEXTS:
            for field in fields:
                tls.in_use = 1
                text = getattr(tls, field)
                # to the last byte, without a terminator
                text[:] = (value * len(text))[: len(text)]
                show_all(world.cluster)
                assert world.mate.query("SELECT count(row::text) > 0 FROM pg_stat_ssl row") == [["t"]], field
        # and the two other sessions, if they come by TLS
        by_tls = 2 * world.cluster.by_tls
        assert world.cluster.sql("SELECT count(*) FROM pg_stat_ssl WHERE ssl") == [(1 + by_tls,)]
    finally:
        tls.in_use = 0
    world.assert_healthy()
