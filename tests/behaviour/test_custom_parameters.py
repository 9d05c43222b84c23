"""A custom parameter is there for the session that set it, and for no other.

One backend serves all: what one session leaves in the server's table of
parameters is what the next one finds."""

from __future__ import annotations

import psycopg
import pytest

PARAMETERS = {"pg_baton.max_backends": 1}


def connect(server, **options):
    return psycopg.connect(server.pool(**options), autocommit=True)


# The server's own parameters begin with allow_in_place_tablespaces.
@pytest.mark.parametrize("name", ["acme.a", "_app.z", "é.x", "my.z", "zz.z"])
def test_custom_parameter_stays_its_session_s_wherever_its_name_sorts(server, name):
    with connect(server) as one, connect(server) as other:
        read = f"SELECT current_setting('{name}', true)"
        one.execute(f"SET {name} = 'secret'")
        other.execute("DO $$BEGIN END$$")  # loads a library, so the table is looked at anew
        one.execute("SELECT 1")
        assert other.execute(read).fetchone() == (None,)
        one.execute(f"SET {name} = 'new'")
        assert other.execute(read).fetchone() == (None,)
        assert one.execute(f"SHOW {name}").fetchone() == ("new",)
        other.execute(f"SET {name} = 'its own'")
        for value in "newer", "newest":
            one.execute(f"SET {name} = '{value}'")
            assert other.execute(read).fetchone() == ("its own",)
            assert one.execute(read).fetchone() == (value,)
        one.execute("DISCARD ALL")
        assert other.execute(read).fetchone() == ("its own",)
        assert one.execute(read).fetchone() == ("",)
        with connect(server) as third:
            assert third.execute(read).fetchone() == (None,)
