"""pgx (Go), with its default of a cache of prepared statements."""

import drivers
import pytest
from drivers import PARAMETERS  # noqa: F401  (read by the server fixture)

CASES = (
    "pool_runs_many_queries",
    "transactions_commit_and_roll_back",
    "nested_transactions_are_savepoints",
    "types_go_there_and_back",
    "batch_is_one_round_trip",
    "batch_error_leaves_connection_usable",
    "copy_in_binary",
    "copy_out_text",
    "listen_and_notify",
    "error_has_its_fields",
    "cancel_request_ends_a_query",
    "settings_stay_with_the_session",
    "every_query_mode",
    "prepared_statement_lives_across_transactions",
    "result_type_change_is_noticed",
    "pipeline_with_many_syncs",
    "cursor_in_a_transaction",
    "large_object",
    "advisory_lock_is_the_sessions",
    "temporary_table",
    "notice_reaches_its_handler",
)


@pytest.fixture(scope="module")
def program():
    return drivers.build("pgx", "go", "build", "-o", "target/pgx", ".")


@pytest.fixture(scope="module")
def results(server, program):
    return drivers.run(server, program, "target/pgx")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_pgx(results, case):
    drivers.check(results, case)
