"""No other session ever sees the data that unreviewed C code keeps in its process: a session
that has run such code keeps the backend, and the backend ends with the session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness.account import pg_config
from harness.health import wait_until
from harness.processes import ITS_PROCESS
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

LIBRARIES = Path(pg_config("pkglibdir"))

# Libraries of contrib under names that are on no list: the file's name says which library it is.
COPIES = {"own_citext": "citext", "own_fdw": "file_fdw", "own_trigger": "insert_username", "own_am": "bloom",
          "own_preloaded": "cube"}  # fmt: skip


def hand_out_copies(run) -> Path:
    folder = run.directory / "libraries"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    for copy, original in COPIES.items():
        target = folder / f"{copy}.so"
        if not target.exists():
            shutil.copy(LIBRARIES / f"{original}.so", target)
            target.chmod(0o755)
    return folder


def c_function(name: str, arguments: str, result: str, library: str, symbol: str) -> str:
    return f"CREATE FUNCTION {name}({arguments}) RETURNS {result} LANGUAGE c STRICT AS '{library}', '{symbol}'"


SETUP = [
    "CREATE EXTENSION pg_baton",
    "CREATE EXTENSION pg_trgm",
    c_function("own_compare", "text, text", "int", "own_citext", "citext_cmp"),
    c_function("own_equal", "text, text", "bool", "own_citext", "citext_eq"),
    "CREATE OPERATOR === (LEFTARG = text, RIGHTARG = text, FUNCTION = own_equal)",
    c_function("own_definer", "text, text", "int", "own_citext", "citext_cmp") + " SECURITY DEFINER",
    c_function("own_handler", "", "fdw_handler", "own_fdw", "file_fdw_handler"),
    "CREATE FOREIGN DATA WRAPPER own_wrapper HANDLER own_handler",
    "CREATE SERVER own_files FOREIGN DATA WRAPPER own_wrapper",
    "CREATE FOREIGN TABLE own_file (line text) SERVER own_files OPTIONS (filename '/dev/null')",
    c_function("own_trigger", "", "trigger", "own_trigger", "insert_username"),
    "CREATE TABLE signed (by_whom text)",
    "CREATE TRIGGER signs BEFORE INSERT ON signed FOR EACH ROW EXECUTE FUNCTION own_trigger(by_whom)",
    c_function("own_am", "internal", "index_am_handler", "own_am", "blhandler"),
    "CREATE ACCESS METHOD own_am TYPE INDEX HANDLER own_am",
    "CREATE OPERATOR CLASS own_ops DEFAULT FOR TYPE int USING own_am AS OPERATOR 1 =(int, int), FUNCTION 1 hashint4(int)",
    "CREATE TABLE filtered (a int)",
    c_function("own_union", "cstring", "pg_catalog.text", "own_preloaded", "cube_in"),
]

# ways to run a library's code: the name and the statements
WAYS: dict[str, list[str]] = {
    "function": ["SELECT own_compare('a', 'A')"],
    "operator": ["SELECT 'a' === 'A'"],
    "function_in_a_transaction_rolled_back": ["BEGIN", "SELECT own_compare('a', 'A')", "ROLLBACK"],
    "function_of_its_definer": ["SELECT own_definer('a', 'A')"],
    "function_in_a_do_block": ["DO $$BEGIN PERFORM own_compare('a', 'A'); END$$"],
    "foreign_table": ["SELECT * FROM own_file"],
    "trigger": ["INSERT INTO signed VALUES (NULL)"],
    "index": ["CREATE INDEX own_index ON filtered USING own_am (a)", "DROP INDEX own_index"],
    "creation_of_a_function": [
        "BEGIN",
        c_function("own_other", "text, text", "int", "own_citext", "citext_cmp"),
        "ROLLBACK",
    ],
    "preloaded": ["SELECT own_union('1')"],
}


@pytest.fixture(scope="module", params=["normal", "forced"])
def own(run, request):
    """A server with unlisted libraries, one of them preloaded."""
    folder = hand_out_copies(run)
    path = run.stage.parameters.get("dynamic_library_path", "$libdir")
    cluster = run.cluster(
        f"libraries-{request.param}",
        parameters={
            "pg_baton.max_backends": 3,
            "pg_baton.force_migration": request.param == "forced",
            "dynamic_library_path": f"{folder}:{path}",
            "shared_preload_libraries": "pg_baton, own_preloaded",
        },
    )
    cluster.start()
    for statement in SETUP:
        cluster.sql(statement)
    yield cluster
    cluster.finish()


def look(server, name: str) -> tuple[str, str | None]:
    (row,) = server.sql(f"SELECT mode, dedicated_cause FROM pg_baton_sessions WHERE application_name = '{name}'")
    return row


def login(server, name: str = "other") -> Wire:
    return Wire.login("127.0.0.1", server.pool_port, application_name=name)


@pytest.mark.parametrize("way", WAYS)
def test_unlisted_library_dedicates_the_backend_to_its_session(own, way):
    with login(own, f"l_{way}") as session, login(own) as one, login(own) as another:
        assert look(own, f"l_{way}") == ("shared", None)
        for statement in WAYS[way]:
            session.query(statement)
        wait_until(lambda: look(own, f"l_{way}")[0] == "dedicated", what="it is dedicated")
        assert look(own, f"l_{way}") == ("dedicated", "unlisted library")
        ((backend,),) = session.query(ITS_PROCESS)
        for _ in range(3):
            assert session.query(ITS_PROCESS) == [[backend]]
            assert [backend] not in one.query(ITS_PROCESS) + another.query(ITS_PROCESS)
        session.finish()
        wait_until(
            lambda: own.sql(f"SELECT count(*) FROM pg_baton_backends WHERE pid = {backend}") == [(0,)],
            what="the backend has gone",
        )


def test_what_is_known_to_keep_nothing_keeps_no_backend(own):
    with login(own, "known") as session:
        for statement in (
            "SELECT similarity('word', 'two words')",
            "DO $$BEGIN PERFORM 'a' % 'b'; END$$",
            "SELECT to_tsvector('english', 'some words')",
            "SELECT convert_from('\\xe4', 'LATIN1')",
            "SELECT count(*) >= 0 FROM pg_baton_backends",
        ):
            session.query(statement)
            assert look(own, "known") == ("shared", None)


def test_library_added_to_list_dedicates_no_session_after_reload(own):
    def listed(names: str | None) -> None:
        own.set_parameters({"pg_baton.stateless_libraries": names})
        own.reload()

    with login(own, "before") as before:
        before.query("SELECT own_compare('a', 'A')")
        wait_until(lambda: look(own, "before")[0] == "dedicated", what="it is dedicated")
        try:
            listed('"$libdir/own_citext", something_else')

            def is_shared() -> bool:
                before.query("SELECT own_compare('a', 'A')")
                return look(own, "before") == ("shared", None)

            wait_until(is_shared, what="the session is shared again")
            with login(own, "after") as after:
                for _ in range(3):
                    after.query("SELECT own_compare('a', 'A')")
                    assert look(own, "after") == ("shared", None)
                listed(None)

                def is_dedicated() -> bool:
                    after.query("SELECT own_compare('a', 'A')")
                    return look(own, "after") == ("dedicated", "unlisted library")

                wait_until(is_dedicated, what="it counts no more")
        finally:
            listed(None)


def test_a_name_of_a_library_that_cannot_be_read_is_refused(own):
    for value in ("'a,,b'", "'\"a'"):
        with pytest.raises(Exception, match="invalid value"):
            own.sql(f"ALTER SYSTEM SET pg_baton.stateless_libraries = {value}")


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.skipif(not (LIBRARIES / "hypopg.so").exists(), reason="HypoPG is not installed")
def test_hypothetical_indexes_are_their_session_s_own(make_cluster, forced):
    server = make_cluster(parameters={"pg_baton.max_backends": 3, "pg_baton.force_migration": forced})
    server.sql("CREATE EXTENSION pg_baton")
    server.sql("CREATE EXTENSION hypopg")
    server.sql("CREATE TABLE things (a int, b int)")
    listing = "SELECT count(*) FROM hypopg_list_indexes"
    with login(server, "owner") as owner, login(server) as one, login(server) as another:
        assert [wire.query("SELECT 1") for wire in (owner, one, another)] == [[["1"]]] * 3
        owner.query("SELECT hypopg_create_index('CREATE INDEX ON things (a)')")
        for _ in range(3):
            assert owner.query(listing) == [["1"]]
            assert look(server, "owner") == ("dedicated", "unlisted library")
            # a session that lists the indexes uses the library itself
            assert [wire.query("SELECT 1") for wire in (one, another)] == [[["1"]]] * 2
        assert [wire.query(listing) for wire in (one, another)] == [[["0"]]] * 2
        another.query("SELECT hypopg_create_index('CREATE INDEX ON things (b)')")
        another.query("SELECT hypopg_create_index('CREATE INDEX ON things (a, b)')")
        for _ in range(3):
            assert [wire.query(listing) for wire in (owner, one, another)] == [[["1"]], [["0"]], [["2"]]]
        another.finish()
        owner.finish()
    for _ in range(6):
        with login(server) as heir:
            assert heir.query(listing) == [["0"]]
