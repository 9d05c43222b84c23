"""What `baton doctor` says of libraries, and of whose the logins are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness.account import pg_config, server_major
from harness.doctor import findings, of, with_views
from harness.health import wait_until

pytestmark = pytest.mark.pool_only


def library(cluster, name: str) -> str:
    """A file of that name, with functions of citext's."""
    folder = Path(cluster.sql("SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'")[0][0])
    path = cluster.home / f"{name}.so"
    shutil.copy(folder / "citext.so", path)
    path.chmod(0o755)
    return str(path)


def function(cluster, file: str, name: str) -> None:
    cluster.sql(f"CREATE FUNCTION {name}(text, text) RETURNS int LANGUAGE c AS '{file}', 'citext_cmp'")


def language(cluster, file: str, name: str) -> None:
    cluster.sql(f"CREATE FUNCTION {name}_handler() RETURNS language_handler LANGUAGE c AS '{file}', 'citext_cmp'")
    cluster.sql(f"CREATE LANGUAGE {name} HANDLER {name}_handler")


def reload(cluster, **parameters: object) -> None:
    """Of pg_baton, and shown by the server."""
    cluster.set_parameters({f"pg_baton.{name}": value for name, value in parameters.items()})
    cluster.reload()
    for name, value in parameters.items():
        wait_until(lambda: cluster.sql(f"SHOW pg_baton.{name}") == [(value,)], what="a reload")  # noqa: B023


@pytest.mark.parametrize("names", [("plperl", "plperl", "plperlu"), ("pltcl", "pltcl", "pltclu"), ("pllua", "pllua", "plluau"),
                                   ("libpljava-so-1.6.8", "java", "javau")])  # fmt: skip
def test_each_language_of_a_library_is_to_be_listed(make_cluster, names):
    cluster = with_views(make_cluster(parameters={"pg_baton.dedicated_objects": names[1]}))
    file = library(cluster, names[0])
    language(cluster, file, names[1])
    assert names[0].split("-1")[0] in of(findings(cluster, 0), "libraries", "ok")["text"]
    language(cluster, file, names[2])
    one = of(findings(cluster, 1), "libraries", "failure")
    assert f"language {names[2]}" in one["text"]
    assert one["mend"].endswith(f"dedicated_objects = '{names[1]}, {names[2]}'")
    reload(cluster, dedicated_objects=f"{names[1]},{names[2]}")
    assert of(findings(cluster, 0), "libraries", "ok")


def test_a_stateful_library_with_functions_listed_is_no_failure(make_cluster):
    """As docs/limits.md has it of orafce."""
    cluster = with_views(make_cluster(parameters={"pg_baton.dedicated_objects": "put_line, GET_LINE, other"}))
    file = library(cluster, "orafce")
    for name in ("put_line", "get_line", "nvl"):
        function(cluster, file, name)
    one = of(findings(cluster, 0), "libraries", "warning")
    assert "get_line, put_line" in one["text"] and "orafce" in one["text"] and "nvl" not in one["text"]
    reload(cluster, dedicated_objects="other")
    assert of(findings(cluster, 1), "libraries", "failure")["mend"].endswith("dedicated_objects = 'other, orafce'")


def test_what_a_role_or_a_database_has_preloaded_is_looked_at(make_cluster):
    cluster = with_views(make_cluster())
    cluster.sql("CREATE DATABASE second")
    cluster.sql("CREATE ROLE app")
    of_a_role, of_both = library(cluster, "of_a_role"), library(cluster, "of_both")
    cluster.sql(f"ALTER ROLE app SET session_preload_libraries = '{of_a_role}'")
    cluster.sql(f"ALTER ROLE app IN DATABASE second SET local_preload_libraries = '{of_both}'")
    texts = [one["text"] for one in findings(cluster, 0) if (one["check"], one["level"]) == ("libraries", "warning")]
    assert len(texts) == 2
    assert any("of_a_role (session_preload_libraries of role app)" in text for text in texts)
    assert any("of_both (local_preload_libraries of role app in database second)" in text for text in texts)


def test_a_hook_that_runs_once_a_backend_is_no_hook_into_logins(make_cluster):
    cluster = with_views(make_cluster())
    cluster.sql("CREATE DATABASE second")
    cluster.sql(f"ALTER DATABASE second SET session_preload_libraries = '{library(cluster, 'login_hook')}'")
    found = findings(cluster, 0)
    one = of(found, "libraries", "warning")
    assert "login_hook" in one["text"] and "once a backend" in one["text"]
    assert "pg_baton.native_dbuser_names = " in one["mend"]
    assert ("login event trigger" in one["mend"]) == (server_major() >= 17)
    assert " served by the dispatcher" in str(found)


@pytest.mark.skipif(
    not (Path(pg_config("pkglibdir")) / "sepgsql.so").exists(), reason="this server is built without SELinux"
)
def test_a_library_that_labels_clients_does_not_work_with_them(make_cluster):
    cluster = make_cluster(start=False)
    cluster.set_parameters({"shared_preload_libraries": "pg_baton, sepgsql"})
    with_views(cluster.start())
    one = of(findings(cluster, 1), "libraries", "failure")
    assert "sepgsql" in one["text"] and "pg_baton.enabled = off" in one["mend"]


def test_a_hook_of_any_name_is_known_by_the_dispatcher(make_cluster, run):
    """And one that is known by name alone is not taken for one."""
    cluster = make_cluster(start=False)
    with_views(cluster.start())
    assert cluster.sql("SELECT login_by_server FROM pg_baton_dispatchers") == [(False,)]
    hook = cluster.home / "of_our_own_logins.so"
    folder = Path(cluster.sql("SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'")[0][0])
    shutil.copy(folder / "auth_delay.so", hook)
    hook.chmod(0o755)
    cluster.set_parameters({"shared_preload_libraries": f"pg_baton, {hook}"})
    cluster.restart()
    assert cluster.sql("SELECT login_by_server FROM pg_baton_dispatchers") == [(True,)]
    served = [one["text"] for one in findings(cluster, 0) if one["check"] == "pg_hba.conf"]
    assert all("served by a backend" in text for text in served[:3])
    shutil.copy(folder / "citext.so", cluster.home / "credcheck.so")
    (cluster.home / "credcheck.so").chmod(0o755)
    cluster.set_parameters({"shared_preload_libraries": f"pg_baton, {cluster.home / 'credcheck.so'}"})
    cluster.restart()
    assert " served by the dispatcher" in str(findings(cluster, 0))


@pytest.mark.parametrize("way", ["off", "all"])
def test_a_pool_that_serves_no_session_is_reported(make_cluster, way):
    cluster = with_views(make_cluster())
    if way == "off":
        reload(cluster, enabled="off")
        mend = "pg_baton.enabled = on"
    else:
        reload(cluster, native_dbuser_names="a/b, _/*")
        mend = "pg_baton.native_dbuser_names = ''"
    found = findings(cluster, 0)
    one = of(found, "pg_hba.conf", "warning")
    assert "every session is native" in one["text"] and one["mend"].endswith(mend)
    assert "by the dispatcher" not in str(found)


def test_doctor_says_which_sessions_are_native(make_cluster):
    cluster = with_views(make_cluster())
    reload(cluster, native_dbuser_names="d1/*,*/u1")
    found = findings(cluster, 0)
    (one,) = (one for one in found if "pg_baton.native_dbuser_names" in one["text"])
    assert one["level"] == "ok" and "d1/*,*/u1" in one["text"]
