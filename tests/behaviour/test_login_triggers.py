"""Event triggers on login (17) fire for each client that logs in, once, and for
no backend that the pool opens. What they say, set and refuse reaches the client
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
    "CREATE TABLE logins (who text)",
    "GRANT INSERT ON logins TO public",
    """
    CREATE FUNCTION welcome() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN
      IF session_user = 'mallory' THEN
        RAISE EXCEPTION 'not you' USING ERRCODE = 'insufficient_privilege';
      END IF;
      INSERT INTO public.logins VALUES (session_user);
      PERFORM set_config('welcome.seen', 'yes', false);
      SET DateStyle = 'German';
      RAISE NOTICE 'welcome';
    END$$
    """,
]


@pytest.fixture
def trigger(server):
    # greeted before there was any
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


def test_one_that_refuses_ends_the_login(trigger):
    with pytest.raises(psycopg.OperationalError, match="not you"):
        psycopg.connect(trigger.pool(user="mallory"))
    with psycopg.connect(trigger.pool(user="alice"), autocommit=True) as one:
        assert one.execute("SELECT 1").fetchone() == (1,)


def test_none_fires_any_more_once_it_is_dropped(trigger):
    trigger.sql("ALTER EVENT TRIGGER on_login DISABLE")
    trigger.sql("TRUNCATE logins")
    with psycopg.connect(trigger.pool(user="alice"), autocommit=True) as one:
        with pytest.raises(psycopg.errors.UndefinedObject):
            one.execute("SHOW welcome.seen")
    assert trigger.sql("SELECT count(*) FROM logins") == [(0,)]
    trigger.sql("ALTER EVENT TRIGGER on_login ENABLE")
