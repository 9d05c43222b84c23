"""Whatever one client sends or owns, the dispatcher's loop looks for events soon again: its work in
one turn is bounded, and bystanders go on. Work is counted by the dispatcher itself (events.rs)."""

from __future__ import annotations

import pytest
from abuse import turns
from abuse.turns import LOG, parameters, prepares, stored
from harness.health import assert_serves, wait_until
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

# Pieces of work in one turn (events.rs): five milliseconds, each a quarter of a microsecond.
MOST_WORK = 20_000

ATTACKS = {
    "statements": [prepares(60_000), "PREPARE one AS SELECT 1", "DEALLOCATE one", "DEALLOCATE ALL"],
    "statements_and_end": [prepares(60_000)],
    "the_same_statement": [
        "DO $$ BEGIN FOR i IN 1..20000 LOOP EXECUTE 'PREPARE s AS SELECT 1'; EXECUTE 'DEALLOCATE s'; END LOOP; END $$"
    ],
    "parameters": [parameters(3_000), "DISCARD ALL"],
    "a_long_value": ["SET low.long = '" + "x" * 30_000_000 + "'", "SET low.long = ''"],
}


def work(cluster) -> int:
    return turns.longest(cluster)[1]


def test_no_client_s_state_makes_a_turn_long(installation, bystanders):
    """Contexts of any size are taken, replaced, shown and let go of in slices."""
    cluster = installation(pg_baton__dispatcher_log=LOG)
    cluster.sql("GRANT SELECT ON pg_baton_sessions TO low; GRANT EXECUTE ON FUNCTION pg_baton_get_sessions() TO low")
    with bystanders(cluster) as beside:
        before = stored(cluster)
        for name, statements in ATTACKS.items():
            with Wire.login("127.0.0.1", cluster.pool_port, user="low", timeout_s=60) as low:
                for statement in statements:
                    low.query(statement)
                    low.query("SELECT count(*) FROM pg_baton_sessions")
                low.leave()
            wait_until(lambda: stored(cluster) < before + 1_000_000, what=f"{name} is let go of")
            beside.all_go_on(3)
            assert 0 < work(cluster) <= MOST_WORK, name
    ((longest_us,),) = cluster.sql("SELECT longest_turn_us FROM pg_baton_dispatchers")
    assert longest_us > 0


def test_many_sessions_that_end_at_once_make_no_turn_long(installation, bystanders):
    """A role's sessions with much state each, cut off by their client in one moment."""
    cluster = installation(pg_baton__dispatcher_log=LOG)
    with bystanders(cluster) as beside:
        before = stored(cluster)
        crowd = []
        for _ in range(40):
            low = Wire.login("127.0.0.1", cluster.pool_port, user="low", timeout_s=60)
            low.query(prepares(2_000))
            crowd.append(low)
        for low in crowd:
            low.close()
        wait_until(lambda: stored(cluster) < before + 1_000_000, what="all are let go of")
        beside.all_go_on(3)
    assert 0 < work(cluster) <= MOST_WORK


# So many that all of them in one turn would be too much.
AT_ONCE = {
    "logins": 1000,
    "answers": 500,
    "names": 1000,
    "silent": 1000,
    "without_launcher": 1000,
    "hang_ups": 1000,
    "views": 600,
    "terminations": 600,
    "dropped_database": 400,
    "questions": 800,
    "bytes_of_messages": 60,
    "long_waits": 1500,
    "failed_starts": 1500,
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_what_many_do_at_once_makes_no_turn_long(installation, name):
    attack, _, parameters = turns.ATTACKS[name]
    own = {parameter.replace(".", "__"): value for parameter, value in parameters.items()}
    cluster = installation(pg_baton__dispatcher_log=LOG, **own)
    turns.prepare(cluster)
    attack(cluster, AT_ONCE[name])
    assert_serves(cluster)
    assert 0 < work(cluster) <= MOST_WORK
