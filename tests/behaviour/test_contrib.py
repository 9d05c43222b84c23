"""What contrib/ has for monitoring asks for what there is, and alerts when it shall.

promtool is Debian's; a test that needs it is skipped without it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from pathlib import Path

import psycopg
import pytest
from behaviour.test_metrics import DOCUMENT, monitored  # noqa: F401 (a fixture)
from harness.authenticators import program

pytestmark = [pytest.mark.pool_only, pytest.mark.one_major]

CONTRIB = DOCUMENT.parents[1] / "contrib"
RULES = CONTRIB / "prometheus/pg_baton.rules.yml"
RULES_TEST = CONTRIB / "prometheus/pg_baton.test.yml"
DASHBOARD = CONTRIB / "grafana/pg_baton.json"
CLOUDNATIVEPG = CONTRIB / "cloudnativepg/pg_baton-monitoring.yaml"

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "info": ("_info",), "histogram": ("_bucket", "_sum", "_count")}


def samples() -> dict[str, set[str]]:
    """The documented names of samples, with their labels."""
    found = {}
    rows = re.findall(r"^\| `(pg_baton_\w+)` \| (\w+) \| ([^|]*)\|", DOCUMENT.read_text(), re.MULTILINE)
    for name, kind, labels in rows:
        for suffix in SUFFIXES[kind]:
            more = {"le"} if suffix == "_bucket" else set()
            found[name + suffix] = set(re.findall(r"\w+", labels)) | more | {"instance", "job"}
    return found


def dashboard_queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    queries += [one["expr"] for one in board["annotations"]["list"]]
    return queries + [one["query"]["query"] for one in board["templating"]["list"][1:]]


def rule_queries() -> list[str]:
    return re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n +(?:for|labels):", RULES.read_text())


@pytest.mark.parametrize("queries", [dashboard_queries, rule_queries])
def test_queries_name_documented_samples_and_labels(queries):
    known = samples()
    asked = queries()
    assert len(asked) >= 11
    for query in asked:
        assert re.search(r"pg_baton_|^up\{", query), query
        for name, selector in re.findall(r"(pg_baton_\w+)(?:\{([^}]*)\})?", query):
            assert name in known or (name, selector) == ("pg_baton", ""), query
            assert set(re.findall(r"(\w+)=", selector)) <= known[name], query
        names = re.findall(r"pg_baton_\w+", query)
        labels = set().union(*(known[name] for name in names)) | {"alertname"}
        for group in re.findall(r"by \(([^)]*)\)", query):
            assert set(re.findall(r"\w+", group)) <= labels | {"instance"}, query


def test_alerts_fire_when_they_shall_and_only_then(tmp_path):
    promtool = program("promtool", "prometheus")
    subprocess.run([promtool, "check", "rules", RULES], check=True)
    subprocess.run([promtool, "test", "rules", RULES_TEST.name], check=True, cwd=RULES_TEST.parent)
    # Each alert is in both tests.
    for alert in re.findall(r"alert: (\w+)", RULES.read_text()):
        assert RULES_TEST.read_text().count(alert) == 2, alert


def test_the_dashboard_s_queries_are_understood(tmp_path):
    promtool = program("promtool", "prometheus")
    queries = [query for query in dashboard_queries() if not query.startswith("label_values")]
    rules = ["groups:", "  - name: dashboard", "    rules:"]
    for number, query in enumerate(queries):
        query = query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$database", ".*")
        rules += [f"      - record: panel:{number}", f"        expr: {json.dumps(query)}"]
    (tmp_path / "rules.yml").write_text("\n".join(rules))
    subprocess.run([promtool, "check", "rules", tmp_path / "rules.yml"], check=True)


def cloudnativepg() -> dict[str, tuple[str, list[str]]]:
    """Each query, and the columns that it must have."""
    text = re.sub(r"^    ", "", CLOUDNATIVEPG.read_text().split("queries: |\n")[1], flags=re.MULTILINE)
    parts = re.split(r"^(pg_baton_\w+):$", text, flags=re.MULTILINE)[1:]
    found = {}
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        query, metrics = re.fullmatch(r"(?:.|\n)*?query: \|\n((?:.|\n)*?)  metrics:\n((?:.|\n)*)", part).groups()
        found[name] = (query, re.findall(r"^    - (\w+): \{usage: \"(?:LABEL|COUNTER|GAUGE)\"", metrics, re.MULTILINE))
    return found


def test_cloudnativepg_s_queries_have_their_columns(monitored):  # noqa: F811
    queries = cloudnativepg()
    assert len(queries) == 4
    monitored.sql("CREATE ROLE exporter LOGIN IN ROLE pg_monitor")
    with contextlib.closing(psycopg.connect(monitored.pool())) as client:
        client.execute("SELECT 1")
        client.commit()
        with psycopg.connect(monitored.direct(user="exporter")) as exporter:
            for name, (query, columns) in queries.items():
                answer = exporter.execute(query)
                assert [column.name for column in answer.description] == columns, name
                rows = answer.fetchall()
                assert rows, name
                assert all(value is not None for row in rows for value in row), name


def test_every_file_of_contrib_is_named_in_its_readme():
    text = (CONTRIB / "README.md").read_text()
    for file in CONTRIB.rglob("*"):
        if file.is_file() and file.name != "README.md":
            assert str(Path(file).relative_to(CONTRIB)) in text, file
