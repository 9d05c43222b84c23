"""Event triggers on login (17) fire for each client that logs in, once, and for
no backend that the pool opens. Their messages, settings and refusals reach the client
as on the server's own port."""

from __future__ import annotations

import psycopg
import pytest
from harness.account import server_major
from harness.compare import same_as_direct

pytestmark = pytest.mark.skipif(server_major() < 17, reason="came with PostgreSQL 17")

PARAMETERS = {"pg_baton.session_wait_timeout": "20s"}

SETUP = [
    "CREATE ROLE alice LOGIN",
    "CREATE ROLE mallory LOGIN",
    "CREATE TABLE logins (who text, client inet, application text)",
    "GRANT INSERT ON logins TO public",
    """
    CREATE FUNCTION welcome() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN
      IF session_user = 'mallory' THEN
        RAISE EXCEPTION 'not you' USING ERRCODE = 'insufficient_privilege';
      END IF;
      INSERT INTO public.logins VALUES (session_user, inet_client_addr(), current_setting('application_name'));
      PERFORM set_config('welcome.seen', 'yes', false);
      SET DateStyle = 'German';
      RAISE NOTICE 'welcome';
    END$$
    """,
]


@pytest.fixture
def trigger(server):
    # The pool greets the role before any login trigger exists.
    for _ in range(2):
        psycopg.connect(server.pool(user="alice")).close()
    server.sql("CREATE EVENT TRIGGER on_login ON login EXECUTE FUNCTION welcome()")
    server.sql("TRUNCATE logins")
    yield server
    server.sql("DROP EVENT TRIGGER on_login")
    psycopg.connect(server.direct()).close()


def test_each_login_fires_them_once(trigger):
    for _ in range(5):
        with psycopg.connect(trigger.pool(user="alice"), autocommit=True) as one:
            assert one.execute("SHOW welcome.seen").fetchone() == ("yes",)
            assert one.execute("SHOW DateStyle").fetchone() == ("German, DMY",)
    assert trigger.sql("SELECT count(*) FROM logins WHERE who = 'alice'") == [(5,)]


def test_a_client_is_told_what_they_say(trigger):
    same_as_direct(trigger, ["SHOW welcome.seen", "SHOW DateStyle", "SELECT 1"], user="alice")


def test_a_trigger_that_refuses_ends_the_login(trigger):
    with pytest.raises(psycopg.OperationalError, match="not you"):
        psycopg.connect(trigger.pool(user="mallory"))
    with psycopg.connect(trigger.pool(user="alice"), autocommit=True) as one:
        assert one.execute("SELECT 1").fetchone() == (1,)


def test_no_login_trigger_fires_once_disabled(trigger):
    trigger.sql("ALTER EVENT TRIGGER on_login DISABLE")
    trigger.sql("TRUNCATE logins")
    with psycopg.connect(trigger.pool(user="alice"), autocommit=True) as one:
        with pytest.raises(psycopg.errors.UndefinedObject):
            one.execute("SHOW welcome.seen")
    assert trigger.sql("SELECT count(*) FROM logins") == [(0,)]
    trigger.sql("ALTER EVENT TRIGGER on_login ENABLE")


def assert_they_see_the_client(cluster) -> None:
    """Triggers see the same clients, as often, on the pool's port as on the server's own."""
    found = []
    for conninfo in (cluster.direct, cluster.pool):
        cluster.sql("TRUNCATE logins")
        for name in ("first", "second", "first"):
            psycopg.connect(conninfo(user="alice", password="correct", application_name=name)).close()
        query = "SELECT application, host(client), count(*) FROM logins WHERE who = 'alice' GROUP BY 1, 2 ORDER BY 1, 2"
        found.append(cluster.sql(query))
    assert found[0] == found[1] == [("first", "127.0.0.1", 2), ("second", "127.0.0.1", 1)]


def test_they_see_the_client(trigger):
    assert_they_see_the_client(trigger)


@pytest.mark.pool_only
def test_they_fire_once_where_the_server_authenticates(make_cluster):
    """They fire for the session, and for no backend that authenticates."""
    cluster = make_cluster(
        parameters={"pg_baton.login": "server", "pg_baton.max_backends": 3}, hba=["host all alice all scram-sha-256"]
    )
    for statement in SETUP:
        cluster.sql(statement)
    cluster.sql("ALTER ROLE alice PASSWORD 'correct'")
    cluster.sql("CREATE EVENT TRIGGER on_login ON login EXECUTE FUNCTION welcome()")
    assert_they_see_the_client(cluster)
    with pytest.raises(psycopg.OperationalError, match="not you"):
        psycopg.connect(cluster.pool(user="mallory"))
    cluster.sql("DROP EVENT TRIGGER on_login")
