"""pgjdbc (Java), with server-side prepare from the fifth execution on, as by default."""

import drivers
import pytest
from drivers import PARAMETERS  # noqa: F401  (read by the server fixture)

CASES = (
    "server_side_prepare_after_five",
    "hikari_pool_of_many_threads",
    "transactions_commit_and_roll_back",
    "savepoints",
    "autosave_keeps_the_transaction",
    "batch_insert",
    "rewritten_batch_insert",
    "copy_in_and_out",
    "listen_and_notify",
    "cancel_from_another_thread",
    "query_timeout",
    "fetch_size_uses_portals",
    "holdable_cursor_outlives_commit",
    "types_go_there_and_back",
    "error_has_its_fields",
    "generated_keys",
    "isolation_and_read_only",
    "schema_and_client_info",
    "metadata",
    "large_object",
    "simple_query_mode",
    "result_type_change_is_noticed",
    "function_with_out_parameter",
    "deallocate_all_is_survived",
)


@pytest.fixture(scope="module")
def program():
    return drivers.build("pgjdbc", "mvn", "-q", "-B", "package")


@pytest.fixture(scope="module")
def results(server, program):
    return drivers.run(server, program, "java", "-cp", "target/classes:target/libraries/*", "baton.Application")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_pgjdbc(results, case):
    drivers.check(results, case)
