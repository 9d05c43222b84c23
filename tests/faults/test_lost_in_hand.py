"""A session that a backend had when it died ends, or another backend hears it again:
whatever the backend said of itself before."""

from __future__ import annotations

import pytest
from harness.control_memory import constant
from harness.health import wait_until
from harness.hostile import Backend, frame, nobody_starts
from harness.hostile_world import World
from harness.messages import PAYLOADS, retiring, word
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only

RETIRING = frame("RETIRING", 0, retiring())

# Messages of a backend before it dies; the session that they name has existed, and is gone.
SAYS = {
    "nothing": lambda gone: [],
    "RETIRING": lambda gone: [RETIRING],
    "RETIRING twice": lambda gone: [RETIRING, frame("RETIRING", 0, retiring(b"why"))],
    "DEDICATED, RETIRING": lambda gone: [frame("DEDICATED", gone, PAYLOADS["DEDICATED"]), RETIRING],
    "RETIRING, DEDICATED": lambda gone: [RETIRING, frame("DEDICATED", gone, PAYLOADS["DEDICATED"])],
    "END, RETIRING": lambda gone: [frame("END", gone, word(constant("BATON_END_ERROR"))), RETIRING],
    "RETIRING, RELEASE": lambda gone: [RETIRING, frame("RELEASE")],
}

# Another backend of the pool is in a transaction, or the liar is the pool's only backend.
MATES = {"another lives": True, "it is the last": False}


def served(world: World) -> tuple[Wire, Backend, int]:
    """A client that has its answer from a liar, which still holds the session."""
    client = world.ask()
    liar = world.liar()
    session = liar.assigned()
    liar.answer()
    client.until_ready(20)
    return client, liar, session


def says_and_dies(world: World, liar: Backend, says: str) -> None:
    liar.send(*SAYS[says](world.ids["gone"]))
    wait_until(liar.is_heard, 20, "it is heard")
    liar.close()


def is_served_by_another(world: World, client: Wire, session: int) -> None:
    """Another backend starts as the session waits, and serves it."""
    with world.liar() as other:
        assert other.assigned() == session
        other.answer()
        client.until_ready(20)
    client.close()


@pytest.mark.parametrize("mate", MATES)
def test_session_dequeued_by_a_backend_that_dies_is_heard_again(make_cluster, mate):
    world = World(make_cluster, same_pool=MATES[mate])
    with nobody_starts(world.cluster):
        for says in SAYS:
            client = world.ask()
            liar = world.liar()
            session = liar.in_hand()
            says_and_dies(world, liar, says)
            is_served_by_another(world, client, session)
    world.assert_unharmed()


@pytest.mark.parametrize("mate", MATES)
def test_session_sent_to_a_backend_that_dies_is_heard_again(make_cluster, mate):
    world = World(make_cluster, same_pool=MATES[mate])
    with nobody_starts(world.cluster):
        for says in SAYS:
            client, liar, session = served(world)
            liar.give_back(session)
            wait_until(liar.is_heard, 20, "it is given back")
            client.send(query("SELECT 1"))
            assert liar.in_hand() == session
            says_and_dies(world, liar, says)
            is_served_by_another(world, client, session)
    world.assert_unharmed()


@pytest.mark.parametrize("mate", MATES)
def test_session_ends_if_a_backend_reads_its_request_and_dies(make_cluster, mate):
    """No other backend could answer that request."""
    world = World(make_cluster, same_pool=MATES[mate])
    with nobody_starts(world.cluster):
        for says in SAYS:
            client = world.ask()
            liar = world.liar()
            liar.in_hand()
            liar.read()
            says_and_dies(world, liar, says)
            client.until_closed(20)
    world.assert_unharmed()


@pytest.mark.parametrize("mate", MATES)
@pytest.mark.parametrize("named", ["by the session alone", "by nobody's slot but a mate's"])
def test_session_in_place_ends_with_a_backend_that_reports_exit(make_cluster, mate, named):
    """The session ends whatever is in the words in which it and the backend name each other."""
    world = World(make_cluster, same_pool=MATES[mate])
    busy = world.memory.session_slot(world.ids["busy"])
    with nobody_starts(world.cluster):
        for says in SAYS:
            client = world.ask()
            liar = world.liar()
            session = liar.assigned()
            world.memory.backend_slot(liar.slot).session = 0
            if named == "by nobody's slot but a mate's":
                world.memory.session_slot(session).owner = busy.owner
            says_and_dies(world, liar, says)
            client.until_closed(20)
    world.assert_unharmed()


@pytest.mark.parametrize("mate", MATES)
def test_session_given_back_with_unarmed_socket_is_heard_again(make_cluster, mate):
    world = World(make_cluster, same_pool=MATES[mate])
    with nobody_starts(world.cluster):
        for says in SAYS:
            client, liar, session = served(world)
            liar.give_back(session, tells=False)
            says_and_dies(world, liar, says)
            client.send(query("SELECT 1"))
            is_served_by_another(world, client, session)
    world.assert_unharmed()
