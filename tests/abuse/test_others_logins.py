"""What one role changes of itself, however often, costs others nothing at their logins."""

from __future__ import annotations

import time

import pytest
from behaviour.test_login_repeated import visit
from harness.cluster import HOST
from harness.health import launcher_stopped, wait_until
from harness.wire import Wire, startup

pytestmark = pytest.mark.pool_only

HBA = [
    "host all low 127.0.0.1/32 scram-sha-256",
    "host all +turned_away 127.0.0.1/32 reject",
    "host all all 127.0.0.1/32 trust",
]

# By whom, in which database, what.
CHANGES = {
    "password": ("low", "low_db", ["ALTER ROLE low PASSWORD 'secret'"]),
    "connect": (
        "owner",
        "low_db",
        ["GRANT CONNECT ON DATABASE low_db TO owner", "REVOKE CONNECT ON DATABASE low_db FROM owner"],
    ),
    "roles": ("postgres", "postgres", ["CREATE ROLE passing", "DROP ROLE passing"]),
}


@pytest.fixture
def cluster(installation):
    cluster = installation()
    cluster.write_hba(HBA)
    cluster.reload()
    for statement in (
        "ALTER ROLE low PASSWORD 'secret'",
        "CREATE ROLE owner LOGIN",
        "CREATE DATABASE low_db OWNER owner",
        "CREATE ROLE turned_away",
        "CREATE ROLE team",
        "GRANT team TO other",
        "CREATE ROLE lent",
        "CREATE ROLE boss LOGIN SUPERUSER",
    ):
        cluster.sql(statement)
    return cluster


def let_greetings_be_kept() -> None:
    """None is for two seconds after the reload (RELOAD_GRACE_US in greetings.rs)."""
    time.sleep(3)


def waits(cluster, user: str, database: str) -> bool:
    """Nobody knows an answer while the launcher stands still."""
    with Wire.open(HOST, cluster.pool_port, 1) as wire:
        wire.send(startup({"user": user, "database": database}))
        try:
            wire.read()
        except TimeoutError:
            return True
    return False


@pytest.mark.parametrize("change", CHANGES)
def test_another_s_changes_cost_no_question(cluster, change):
    """Who is known comes in without the launcher, which stands still."""
    user, database, statements = CHANGES[change]
    direct = visit(cluster.port, "other", "postgres")
    with Wire.login(HOST, cluster.port, user=user, database=database, password="secret") as changing:
        for _ in range(3):
            assert visit(cluster.pool_port, "other", "postgres") == direct
        visit(cluster.pool_port, "low", "low_db")
        with launcher_stopped(cluster):
            for _ in range(20):
                for statement in statements:
                    changing.query(statement)
                assert visit(cluster.pool_port, "other", "postgres") == direct
            # whom it concerns is asked about
            assert change == "roles" or waits(cluster, "low", "low_db")


def test_another_s_changes_cost_no_greeting(cluster):
    """Who is known is greeted by the dispatcher, and no backend has to."""
    let_greetings_be_kept()

    def dispatched(statement: str) -> int:
        before = cluster.sql("SELECT dispatched FROM pg_baton_dispatchers")[0][0]
        wires = []
        for _ in range(5):
            cluster.sql(statement)
            wires.append(Wire.login(HOST, cluster.pool_port, user="other"))
        after = cluster.sql("SELECT dispatched FROM pg_baton_dispatchers")[0][0]
        for wire in wires:
            wire.close()
        return after - before

    for _ in range(3):
        visit(cluster.pool_port, "other", "postgres")
    assert dispatched("ALTER ROLE low PASSWORD 'x'") == 0
    assert dispatched("ALTER ROLE other PASSWORD 'x'") == 5


# More than the dispatcher keeps greetings (MOST_GREETINGS in greetings.rs).
MANY_KINDS = 1100


def test_another_s_many_kinds_of_logins_cost_no_greeting(cluster):
    """A login is greeted by a backend if the dispatcher has no greeting for its startup options."""
    let_greetings_be_kept()
    for _ in range(3):
        visit(cluster.pool_port, "other", "postgres")
    for number in range(MANY_KINDS):
        Wire.login(HOST, cluster.pool_port, user="owner", database="low_db", **{"owner.kind": f"{number}"}).finish()
    wait_until(lambda: cluster.sql("SELECT sessions FROM pg_baton_dispatchers") == [(0,)], what="all have left")
    before = cluster.sql("SELECT dispatched FROM pg_baton_dispatchers")
    with Wire.login(HOST, cluster.pool_port, user="other"):
        assert cluster.sql("SELECT dispatched FROM pg_baton_dispatchers") == before


# By a role that may create roles, in a loop.
BY_MAKER = {
    "created": ["CREATE ROLE passing", "DROP ROLE passing"],
    "granted": ["GRANT made TO also_made", "REVOKE made FROM also_made"],
    "renamed": ["ALTER ROLE made RENAME TO once", "ALTER ROLE once RENAME TO made"],
    "many": [
        "DO $$ BEGIN FOR n IN 1..10 LOOP EXECUTE 'CREATE ROLE many' || n; END LOOP; END $$",
        "DO $$ BEGIN FOR n IN 1..10 LOOP EXECUTE 'DROP ROLE many' || n; END LOOP; END $$",
    ],
}


@pytest.mark.parametrize("change", BY_MAKER)
def test_another_s_memberships_cost_no_question_and_no_greeting(cluster, crowd, change):
    """Where no rule names a group and everybody may connect nobody's login depends on memberships."""
    cluster.write_hba([line for line in HBA if "+" not in line])
    cluster.sql("CREATE ROLE maker LOGIN CREATEROLE")
    cluster.reload()
    let_greetings_be_kept()
    with Wire.login(HOST, cluster.port, user="maker", database="postgres") as maker:
        for statement in ("CREATE ROLE made", "CREATE ROLE also_made"):
            maker.query(statement)
        for _ in range(3):
            visit(cluster.pool_port, "other", "postgres")
        ((before,),) = cluster.sql("SELECT dispatched FROM pg_baton_dispatchers")
        # nobody knows an answer meanwhile
        with launcher_stopped(cluster):
            for statement in 5 * BY_MAKER[change]:
                maker.query(statement)
                crowd(cluster, 1, user="other")
        assert cluster.sql("SELECT dispatched FROM pg_baton_dispatchers") == [(before,)]


def test_more_changes_than_are_remembered_cost_a_question(cluster):
    for _ in range(2):
        visit(cluster.pool_port, "other", "postgres")
    with Wire.login(HOST, cluster.port, user="low", database="low_db", password="secret") as low:
        with launcher_stopped(cluster):
            low.query("DO $$ BEGIN FOR n IN 1..600 LOOP ALTER ROLE low PASSWORD NULL; COMMIT; END LOOP; END $$")
            assert waits(cluster, "other", "postgres")
    assert visit(cluster.pool_port, "other", "postgres") == visit(cluster.port, "other", "postgres")


# What concerns `other`, though it is of another role; and what undoes it.
OF_OTHERS = {
    "group_renamed": (
        "ALTER ROLE turned_away RENAME TO once; ALTER ROLE team RENAME TO turned_away",
        "ALTER ROLE turned_away RENAME TO team; ALTER ROLE once RENAME TO turned_away",
    ),
    "group_granted": ("GRANT turned_away TO team", "REVOKE turned_away FROM team"),
    "group_replaced": (
        "DROP ROLE turned_away;ALTER ROLE team RENAME TO turned_away",
        "ALTER ROLE turned_away RENAME TO team; CREATE ROLE turned_away",
    ),
    "name_taken": (
        "ALTER ROLE other RENAME TO once; ALTER ROLE low RENAME TO other",
        "ALTER ROLE other RENAME TO low; ALTER ROLE once RENAME TO other",
    ),
    "role_made_anew": ("DROP ROLE other; CREATE ROLE other", "ALTER ROLE other LOGIN"),
    "connect_revoked": (
        "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC",
        "GRANT CONNECT ON DATABASE postgres TO PUBLIC",
    ),
    "connect_inherited": (
        "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC; GRANT CONNECT ON DATABASE postgres TO lent; GRANT lent TO team",
        "GRANT CONNECT ON DATABASE postgres TO PUBLIC; REVOKE lent FROM team",
    ),
    "database_renamed": ("ALTER DATABASE template1 RENAME TO once", "ALTER DATABASE once RENAME TO template1"),
}


@pytest.mark.parametrize("change", OF_OTHERS)
def test_a_change_of_others_counts_where_it_concerns(cluster, change):
    do, undo = OF_OTHERS[change]
    if change == "connect_inherited":
        let_greetings_be_kept()
    database = "template1" if change == "database_renamed" else "postgres"

    def compare() -> None:
        direct = visit(cluster.port, "other", database)
        assert [visit(cluster.pool_port, "other", database) for _ in range(2)] == [direct] * 2

    compare()
    for statement in do.split("; "):
        cluster.sql(statement)
        compare()
    if change == "connect_inherited":
        # up to 15 it is the group between that inherits, or does not
        for inherits in ("NOINHERIT", "INHERIT"):
            cluster.sql(f"ALTER ROLE team {inherits}")
            compare()
    for statement in undo.split("; "):
        cluster.sql(statement)
        compare()


def test_a_startup_option_s_role_has_its_current_state(cluster):
    """A greeting that another role was looked up for is no longer given when that one changes."""
    let_greetings_be_kept()
    show = "SELECT current_user, current_setting('is_superuser')"

    def compare() -> None:
        direct = visit(cluster.port, "boss", "postgres", show, options="-c role=lent")
        seen = [visit(cluster.pool_port, "boss", "postgres", show, options="-c role=lent") for _ in range(2)]
        assert seen == [direct] * 2

    compare()
    for statement in ("ALTER ROLE lent SUPERUSER", "ALTER ROLE lent NOSUPERUSER", "DROP ROLE lent", "CREATE ROLE lent"):
        cluster.sql(statement)
        compare()


def test_a_startup_option_without_its_group_privilege_is_refused(cluster):
    """A greeting with an option that not every role may set is no longer given when a membership changes."""
    let_greetings_be_kept()
    show = "SELECT current_setting('log_min_duration_statement')"

    def compare() -> str:
        options = {"options": "-c log_min_duration_statement=1min"}
        direct = visit(cluster.port, "other", "postgres", show, **options)
        assert [visit(cluster.pool_port, "other", "postgres", show, **options) for _ in range(2)] == [direct] * 2
        return str(direct)

    cluster.sql("GRANT SET ON PARAMETER log_min_duration_statement TO lent")
    refused = compare()
    cluster.sql("GRANT lent TO other")
    let_in = compare()
    assert let_in != refused
    cluster.sql("REVOKE lent FROM other")
    assert compare() == refused


def settings_mark(database: int, role: int) -> int:
    """BATON_SETTINGS_MARK (baton_control_memory.h): pairs that share one change together."""
    mixed = (database * 0x9E3779B1 ^ role * 0x85EBCA77) & 0xFFFFFFFF
    return 0 if database == role == 0 else 1 + (mixed >> 16) % 255


# More than 16, which were once as many as a transaction remembered of.
MADE = [f"made{number}" for number in range(24)]

# By whom, statements, each a transaction.
SETTINGS = {
    "many": ("maker", ["; ".join(f"ALTER ROLE {role} SET work_mem = '3MB'" for role in MADE)]),
    "dropped_role": ("maker", [f"ALTER ROLE {MADE[0]} SET work_mem = '3MB'", f"DROP ROLE {MADE[0]}"]),
    "dropped_database": ("owner", ["ALTER DATABASE low_db SET work_mem = '3MB'", "DROP DATABASE low_db"]),
    "prepared": (
        "maker",
        [f"BEGIN; ALTER ROLE {MADE[0]} SET work_mem = '3MB'; PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'"],
    ),
}


@pytest.mark.parametrize("change", SETTINGS)
def test_another_s_settings_cost_no_backend(cluster, change):
    """A pool's backends stay, whatever others set for themselves and whatever becomes of it."""
    by, statements = SETTINGS[change]
    cluster.sql("CREATE ROLE maker LOGIN CREATEROLE")
    with Wire.login(HOST, cluster.port, user="maker", database="postgres") as maker:

        def oid(catalog: str, column: str, name: str) -> int:
            return cluster.sql(f"SELECT oid::int FROM {catalog} WHERE {column} = '{name}'")[0][0]

        postgres, other = oid("pg_database", "datname", "postgres"), oid("pg_roles", "rolname", "other")
        of_other = {settings_mark(*pair) for pair in [(0, other), (postgres, other), (postgres, 0), (0, 0)]}
        while settings_mark(oid("pg_database", "datname", "low_db"), 0) in of_other:
            cluster.sql("DROP DATABASE low_db")
            cluster.sql("CREATE DATABASE low_db OWNER owner")
        for role in MADE:
            maker.query(f"CREATE ROLE {role}")
            while settings_mark(0, oid("pg_roles", "rolname", role)) in of_other:
                maker.query(f"DROP ROLE {role}")
                maker.query(f"CREATE ROLE {role}")

        def backend() -> list[tuple]:
            """Of a new session of `other`, which its pool has for it."""
            with Wire.login(HOST, cluster.pool_port, user="other") as wire:
                wire.query("SELECT 1")
                found = cluster.sql("SELECT pid FROM pg_baton_backends WHERE user_name = 'other'")
                wire.leave()
            return found

        first = backend()
        with Wire.login(HOST, cluster.port, user=by, database="postgres") as changing:
            for statement in statements:
                changing.query(statement)
        time.sleep(0.5)  # the dispatcher has looked at what changed
        for _ in range(3):
            assert backend() == first
