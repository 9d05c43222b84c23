"""PostgreSQL's own client programs work through the pool."""

from __future__ import annotations

import re
import subprocess

import pytest
from harness.account import neutral_environment, server_program
from harness.compare import same_as_direct

PARAMETERS = {"pg_baton.max_backends": 5}


def tool(
    server, name: str, *arguments: str, direct: bool = False, database: str = "postgres", check: bool = True
) -> str:
    environment = neutral_environment()
    environment.update(
        {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(server.port if direct else server.pool_port),
            "PGUSER": "postgres",
            "PGDATABASE": database,
            "PGSSLMODE": "disable",
            "PGGSSENCMODE": "disable",
            "PGCONNECT_TIMEOUT": "20",
        }
    )
    done = subprocess.run(
        [server_program(name), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=80,
        stdin=subprocess.DEVNULL,
    )
    if check:
        assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def bench(server):
    server.sql("CREATE DATABASE bench")
    tool(server, "pgbench", "-i", "-s", "2", "-q", database="bench")
    yield server
    server.sql("DROP DATABASE bench WITH (FORCE)")


@pytest.mark.parametrize("mode", ["simple", "extended", "prepared"])
def test_pgbench_keeps_its_books(bench, mode):
    bench.sql("TRUNCATE pgbench_history", dbname="bench")
    before = bench.sql("SELECT sum(abalance) FROM pgbench_accounts", dbname="bench")[0][0]
    # A thread a client: pgbench prepares in blocking mode, and would wait there
    # for a backend that another client of the same thread holds.
    out = tool(bench, "pgbench", "-n", "-M", mode, "-c", "15", "-j", "15", "-t", "20", database="bench")
    assert "number of transactions actually processed: 300/300" in out, out
    (row,) = bench.sql(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),"
        " (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history),"
        " (SELECT count(*) FROM pgbench_history)",
        dbname="bench",
    )
    assert row[0] == row[1] == row[2] and row[3] == row[0] - before and row[4] == 300


def test_pgbench_reconnecting(bench):
    out = tool(bench, "pgbench", "-n", "-S", "-C", "-c", "8", "-j", "2", "-t", "25", database="bench")
    assert "number of transactions actually processed: 200/200" in out, out


def test_pgbench_pipelines(bench, tmp_path):
    script = tmp_path / "pipeline.sql"
    script.write_text(
        "\\startpipeline\nSELECT 1;\nSELECT abalance FROM pgbench_accounts WHERE aid = 1;\nSELECT 2;\n\\endpipeline\n"
    )
    out = tool(
        bench,
        "pgbench",
        "-n",
        "-M",
        "prepared",
        "-f",
        str(script),
        "-c",
        "10",
        "-j",
        "10",
        "-t",
        "30",
        database="bench",
    )
    assert "number of transactions actually processed: 300/300" in out, out


def test_pg_dump_gives_the_same_as_directly(bench):
    dumps = [tool(bench, "pg_dump", database="bench", direct=direct) for direct in (True, False)]
    # Newer minor releases put a random word around a dump.
    dumps = [re.sub(r"^\\(un)?restrict .*$", "", dump, flags=re.MULTILINE) for dump in dumps]
    assert dumps[0] == dumps[1]


def test_parallel_pg_dump_and_restore(bench, tmp_path):
    tool(bench, "pg_dump", "-Fd", "-j", "3", "-f", str(tmp_path / "dump"), database="bench")
    bench.sql("CREATE DATABASE restored TEMPLATE template0")
    try:
        tool(bench, "pg_restore", "-j", "3", "-d", "restored", str(tmp_path / "dump"), database="restored")
        sql = "SELECT count(*), sum(aid) FROM pgbench_accounts"
        assert bench.sql(sql, dbname="restored") == bench.sql(sql, dbname="bench")
    finally:
        bench.sql("DROP DATABASE restored WITH (FORCE)")


def test_vacuumdb_and_reindexdb_in_parallel(bench):
    tool(bench, "vacuumdb", "-j", "3", "-z", database="bench")
    tool(bench, "reindexdb", "-j", "3", "-t", "pgbench_tellers", "-t", "pgbench_branches", database="bench")


def test_createdb_and_dropdb(server):
    tool(server, "createdb", "made_by_tool")
    assert tool(server, "psql", "-Atc", "SELECT current_database()", database="made_by_tool").strip() == "made_by_tool"
    # As on a direct connection, a database in use cannot be dropped but by
    # force; a pool's idle backend uses it.
    tool(server, "dropdb", "-f", "made_by_tool")


def test_psql_gives_the_same_as_directly(server, tmp_path):
    script = tmp_path / "script.sql"
    script.write_text(
        "\\set ON_ERROR_STOP 0\n\\timing off\nCREATE TABLE p (a int, b text);\n\\copy p from stdin\n1\tx\n2\ty\n\\.\n"
        "SELECT * FROM p ORDER BY a \\gdesc\nSELECT a, b FROM p ORDER BY a \\gset v_\n\\copy p to stdout\n"
        "SELECT 1/0;\n\\errverbose\nBEGIN;\nSELECT 1 \\; SELECT 2;\nROLLBACK;\n\\d p\n\\du\n\\l postgres\n\\df now\n\\dn\n"
        "PREPARE q AS SELECT $1::int;\nEXECUTE q(5);\n\\c - postgres\nEXECUTE q(5);\nSET search_path = pg_catalog;\n"
        "\\dt public.p\nSELECT 'a' AS \"A\" \\crosstabview\nDROP TABLE public.p;\n\\encoding LATIN1\n\\encoding\n"
    )
    seen = [tool(server, "psql", "-X", "-a", "-f", str(script), direct=direct, check=False) for direct in (True, False)]
    assert seen[1] == seen[0]


def test_psql_one_connection_after_another(server):
    for n in range(10):
        assert tool(server, "psql", "-XAtc", f"SELECT {n}").strip() == str(n)


def test_pg_isready(server):
    assert "accepting connections" in tool(server, "pg_isready")


def test_explain_analyze_and_parallel_query(server):
    same_as_direct(
        server,
        [
            "SET parallel_setup_cost = 0",
            "SET parallel_tuple_cost = 0",
            "SET min_parallel_table_scan_size = 0",
            "SET max_parallel_workers_per_gather = 2",
            "SET my.seen_by_workers = '42'",
            "CREATE TABLE IF NOT EXISTS par AS SELECT generate_series(1, 20000) a",
            "ANALYZE par",
            "SELECT count(*), sum(current_setting('my.seen_by_workers')::int) FROM par",
            "EXPLAIN (COSTS OFF) SELECT count(*) FROM par",
            "SET ROLE pg_read_all_data",
            "SELECT count(*) FROM par",
            "RESET ROLE",
            "DROP TABLE par",
        ],
    )
