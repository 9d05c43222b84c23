"""The SQL of the table "Watching" in docs/operations.md answers the questions that stand beside it."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from harness.health import wait_until
from harness.wire import query
from psycopg.rows import dict_row

pytestmark = pytest.mark.pool_only

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"


def questions() -> dict[str, str]:
    """Each question of the table that has a statement, with it."""
    text = DOCUMENT.read_text().split("## Watching", 1)[1].split("\n## ", 1)[0]
    cells = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    found = {row[0].removeprefix("| "): re.match(r"`(SELECT [^`]*)`", row[1]) for row in cells}
    return {question: match[1] for question, match in found.items() if match}


QUESTIONS = questions()
ANSWERS: dict[str, object] = {}


def answers(question: str):
    def add(check):
        assert question in QUESTIONS, f"{question} is not in the table"
        ANSWERS[question] = check
        return check

    return add


@answers("Which sessions wait?")
def _(rows, world):
    assert [row["pid"] for row in rows] == [world["waits"]]


@answers("Which sessions are dedicated, and why?")
def _(rows, world):
    assert [(row["pid"], row["dedicated_cause"]) for row in rows] == [(world["dedicated"], "listen")]


@answers("Which role uses most?")
def _(rows, world):
    times = [row["transaction_time_us"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert [row["transactions"] > 0 for row in rows if row["user_name"] == "app"] == [True]
    assert {row["user_name"] for row in rows} >= {"app", "other"}


@answers("How long do sessions wait (p99 of the last minute)?")
def _(rows, world):
    assert [row["database"] for row in rows] == ["postgres"]
    assert rows[0]["wait_p99"] is not None and rows[0]["login_p99"] is not None


@answers("How many logins a second succeed, how many fail?")
def _(rows, world):
    assert rows[0]["logins"] > 0 and rows[0]["refused"] > 0


@answers("How close is the dispatcher to its limits?")
def _(rows, world):
    assert (rows[0]["sessions"], rows[0]["max_sessions"]) == (5, "77")
    assert 0 < rows[0]["memory_bytes"] < rows[0]["memory_limit_bytes"]


@answers("What would a restart of the server cost now?")
def _(rows, world):
    found = {(row["mode"], row["dedicated_cause"], row["state"]): row["count"] for row in rows}
    assert found == {
        ("shared", None, "waiting"): 1,
        ("shared", None, "idle"): 1,
        ("shared", None, "idle in transaction"): 2,
        ("dedicated", "listen", "idle"): 1,
    }


@answers("How much time do hand-overs take?")
def _(rows, world):
    assert all(row["mean_us"] > 0 for row in rows if row["user_name"] in ("app", "other"))
    assert rows[0]["hand_over_time_us"] >= rows[-1]["hand_over_time_us"] >= 0


@answers("Which sessions hold the backends with an open transaction?")
def _(rows, world):
    assert [(row["pid"], row["query"]) for row in rows] == [
        (world["oldest"], "SELECT 2"),
        (world["newest"], "SELECT 3"),
    ]


@answers("Is the pool too small?")
def _(rows, world):
    assert (rows[0]["backends"], rows[0]["busy"], rows[0]["waiting"]) == (3, 2, 1)
    assert rows[0]["longest_wait"] is not None and rows[0]["transaction_p50"] is not None


@answers("Why are logins refused?")
def _(rows, world):
    # It has never logged in, so it counts among all others.
    assert [(row["user_name"], row["logins_refused_by_state"]) for row in rows] == [(None, {"28000": 1})]


def test_sql_of_the_table_answers_each_question(make_cluster, crowd):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2, "pg_baton.max_sessions": 77})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; CREATE ROLE refused NOLOGIN")
    cluster.sql("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(cluster.pool(user="refused"))
    sessions = crowd(cluster, 4, user="app")
    names = ["waits", "idle", "dedicated", "oldest"]
    world = {name: int(wire.query("SELECT pg_backend_pid()")[0][0]) for name, wire in zip(names, sessions, strict=True)}
    waits, _, dedicated, oldest = sessions
    (newest,) = crowd(cluster, 1, user="other")
    world["newest"] = int(newest.query("SELECT pg_backend_pid()")[0][0])
    dedicated.query("LISTEN it")
    for wire, number in ((oldest, 2), (newest, 3)):
        wire.query("BEGIN")
        wire.query(f"SELECT {number}")
    waits.send(query("SELECT 1"))
    wait_until(lambda: cluster.sql("SELECT sum(waiting) FROM pg_baton_pools") == [(1,)], what="it waits")
    wait_until(
        lambda: (
            cluster.sql("SELECT count(*) FROM pg_baton_sessions WHERE state = 'idle' AND backend_pid IS NULL") == [(1,)]
        ),
        what="the idle session is in the dispatcher",
    )
    with psycopg.connect(cluster.direct(user="watcher"), autocommit=True, row_factory=dict_row) as watcher:
        for question, statement in QUESTIONS.items():
            rows = watcher.execute(statement).fetchall()
            if question in ANSWERS:
                try:
                    ANSWERS[question](rows, world)
                except AssertionError as error:
                    raise AssertionError(f"{question}: {rows}") from error
    for wire in (oldest, newest):
        wire.query("COMMIT")
    waits.until_ready()


def test_ten_questions_have_an_answer_that_is_tested():
    assert list(ANSWERS)[:10] == list(QUESTIONS)[:10] and len(QUESTIONS) > 10


def test_metrics_and_parts_of_the_page_beside_the_questions_exist():
    """Names of metrics are those of docs/metrics.md, and parts of the page its headings."""
    root = DOCUMENT.parents[1]
    table = [line.removesuffix(" |").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.endswith(" |")]
    rows = [row for row in table if row[0].removeprefix("| ").endswith("?") and len(row) == 5]
    known = set(re.findall(r"^\| `(pg_baton_\w+)` \|", (root / "docs" / "metrics.md").read_text(), re.MULTILINE))
    page = (root / "monitor" / "src" / "page" / "page.html").read_text()
    parts = {text.lower() for text in re.findall(r"<(?:h2|dt)>([^<,]+)", page)} | {"first line", "-"}
    assert len(rows) > 10
    for *_, metrics, shown in rows:
        names = {re.sub("_(total|bucket|info)$", "", name) for name in re.findall(r"pg_baton_\w+", metrics)}
        assert names <= known
        assert set(shown.split(", ")) <= parts
