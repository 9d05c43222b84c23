"""Sessions that hold a backend and wait for another of the same pool: nobody's wait can end by itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.wire import Wire, describe_statement, flush, message, parse, query, sync

pytestmark = pytest.mark.pool_only

# More than a default installation has backends.
CLIENTS = 24


def test_sessions_that_call_the_pool_from_within_complete(installation, bystanders):
    """Each statement of a foreign table's needs a second session of the pool's, as many at once as there are
    clients; another role and a superuser go on."""
    cluster = installation(max_connections=100)
    cluster.sql("CREATE EXTENSION postgres_fdw")
    cluster.sql(
        "CREATE SERVER itself FOREIGN DATA WRAPPER postgres_fdw"
        f" OPTIONS (host '127.0.0.1', port '{cluster.pool_port}', dbname 'postgres')"
    )
    # Who is no superuser has to give a password, which `trust` does not ask for.
    cluster.sql("CREATE USER MAPPING FOR low SERVER itself OPTIONS (user 'low', password_required 'false')")
    cluster.sql("CREATE TABLE near (id int, v text)")
    cluster.sql(f"INSERT INTO near SELECT g, 'v' || g FROM generate_series(1, {CLIENTS}) g")
    cluster.sql("GRANT ALL ON near TO low")
    cluster.sql("CREATE FOREIGN TABLE far (id int, v text) SERVER itself OPTIONS (table_name 'near')")
    cluster.sql("GRANT ALL ON far TO low")

    def client(number: int) -> list[list[str | None]]:
        with Wire.login("127.0.0.1", cluster.pool_port, user="low") as wire:
            wire.query("BEGIN")
            wire.query(f"UPDATE far SET v = v || 'x' WHERE id = {number}")
            (row,) = wire.query(f"SELECT v FROM far WHERE id = {number}")
            wire.query("COMMIT")
            return row

    with bystanders(cluster) as beside, ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(client, range(1, CLIENTS + 1))) == [[f"v{n}x"] for n in range(1, CLIENTS + 1)]
        beside.all_go_on(10)


def test_batches_answered_before_their_sync_stop_no_client(installation, bystanders):
    """As asyncpg and pgx prepare: each batch wants its answer before it says more, and is left open."""
    cluster = installation(max_connections=100)
    with bystanders(cluster) as beside:
        wires = [Wire.login("127.0.0.1", cluster.pool_port, user="low") for _ in range(CLIENTS)]
        for number, wire in enumerate(wires):
            wire.send(parse(f"SELECT {number}", "kept"), describe_statement("kept"), flush())
        for wire in wires:
            assert [message.type for message in wire.read_until("T")] == ["1", "t", "T"]
        beside.all_go_on(10)
        for wire in wires:
            wire.ask(sync())
            wire.close()


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(query("SELECT 1"), id="query"),
        pytest.param(flush(), id="flush"),
        pytest.param(sync(), id="sync"),
        pytest.param(message("d", b"data"), id="copy_data"),
    ],
)
def test_batches_left_open_behind_a_message_stop_no_client(installation, bystanders, first):
    """Each packet has an answered or ignored message and then a batch without its Sync; more than there are connections."""
    cluster = installation(max_connections=40)
    with bystanders(cluster) as beside:
        wires = [Wire.login("127.0.0.1", cluster.pool_port, user="low") for _ in range(50)]
        for _ in range(2):
            for wire in wires:
                wire.send(first + parse("SELECT 1"))
            beside.all_go_on(10)
        for wire in wires:
            wire.close()
