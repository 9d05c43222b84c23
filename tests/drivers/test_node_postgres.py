"""node-postgres (JavaScript), with its pool, named queries, cursors and COPY streams."""

import drivers
import pytest
from drivers import PARAMETERS  # noqa: F401  (read by the server fixture)

CASES = (
    "pool_runs_many_queries",
    "named_queries_are_prepared_once",
    "transactions_commit_and_roll_back",
    "types_go_there_and_back",
    "error_has_its_fields",
    "listen_and_notify",
    "cancel_ends_a_query",
    "cursor_reads_in_pieces",
    "copy_in_and_out",
    "settings_stay_with_the_session",
    "multi_statement_query",
    "statement_timeout",
    "notice_reaches_its_handler",
    "large_values",
    "queued_queries_keep_their_order",
)


@pytest.fixture(scope="module")
def program():
    return drivers.build("node", "npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent")


@pytest.fixture(scope="module")
def results(server, program):
    return drivers.run(server, program, "node", "application.mjs")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_node_postgres(results, case):
    drivers.check(results, case)
