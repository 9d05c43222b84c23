"""`baton doctor` sees each fault of a server, and says which line mends it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from pathlib import Path

import psycopg
import pytest
from harness.account import pg_config, server_major
from harness.certificates import Authority, make_secure, openssl, put
from harness.doctor import doctor, findings, line_of, of, with_views
from harness.health import wait_until, wait_until_replaced

pytestmark = pytest.mark.pool_only


def test_a_server_that_is_well_is_said_to_be(make_cluster):
    # each TLS session takes two descriptors of the relay process
    cluster = with_views(make_cluster(parameters={"pg_baton.max_sessions": 1000}))
    found = findings(cluster, 0)
    assert {one["level"] for one in found} == {"ok"}, found
    checks = {one["check"] for one in found}
    assert checks >= {
        "library",
        "dispatcher",
        "connections",
        "background workers",
        "open files",
        "memory",
        "pg_hba.conf",
        "libraries",
        "pools",
    }
    lines = doctor(cluster).stdout.splitlines()
    assert len(lines) == len(found) and all(line.startswith("ok ") for line in lines)
    # each line of pg_hba.conf, and the process that serves its clients
    served = [one["text"] for one in found if one["check"] == "pg_hba.conf"]
    assert [text.split(" served ")[1].split(",")[0] for text in served] == [
        *["by the dispatcher"] * 3, *["by the server itself"] * 3
    ]  # fmt: skip


def test_servers_that_cannot_be_asked_differ_from_unwell_servers(make_cluster):
    cluster = make_cluster()
    cluster.sql("CREATE ROLE nobody LOGIN")
    for conninfo in (cluster.direct(port=1), cluster.direct(user="nobody")):
        ran = doctor(cluster, conninfo=conninfo)
        assert ran.returncode == 2 and ran.stdout == "" and ran.stderr.startswith("baton: ")


def test_a_server_without_the_library(make_cluster):
    cluster = make_cluster(start=False, parameters={"shared_preload_libraries": "auto_explain"})
    cluster.start(wait_for_pool=False)
    one = of(findings(cluster, 1), "library", "failure")
    assert one["mend"].endswith("shared_preload_libraries = 'auto_explain, pg_baton', and restart the server")
    line = line_of(cluster, "postgresql.conf", "shared_preload_libraries")
    assert one["mend"].startswith(f"{cluster.data}/postgresql.conf line {line}: ")


def test_mistakes_in_the_files_and_what_waits_for_a_restart(make_cluster):
    cluster = with_views(make_cluster())
    cluster.set_parameters({"pg_baton.max_sessions": 20, "pg_baton.max_backends": "many"})
    cluster.reload()
    wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_settings WHERE pending_restart") == [(1,)], what="a reload")
    found = findings(cluster, 1)
    line = line_of(cluster, "postgresql.conf", "max_backends")
    assert of(found, "configuration", "failure")["mend"] == f"{cluster.data}/postgresql.conf line {line}"
    assert "pg_baton.max_sessions" in of(found, "configuration", "warning")["text"]


def test_a_dispatcher_that_is_not_up(make_cluster):
    cluster = make_cluster(start=False, parameters={"pg_baton.dispatcher_program": "/nonexistent/program"})
    with_views(cluster.start(wait_for_pool=False))
    one = of(findings(cluster, 1), "dispatcher", "failure")
    assert one["text"].startswith("it is not up") and "/nonexistent/program" in one["mend"]


def test_a_dispatcher_that_hangs_is_to_be_killed(make_cluster):
    cluster = with_views(make_cluster(parameters={"pg_baton.hang_limit_ms": 0}))
    os.kill(cluster.dispatcher_pids()[0], signal.SIGSTOP)
    try:
        one = of(findings(cluster, 1), "dispatcher", "failure")
    finally:
        os.kill(cluster.dispatcher_pids()[0], signal.SIGCONT)
    assert "It does not answer." in one["text"] and "kill -KILL" in one["mend"]


def test_background_workers_without_a_place(make_cluster):
    """The server's launcher of logical replication takes the first place, where there is one."""
    cluster = make_cluster(parameters={"max_worker_processes": 2})
    line = line_of(cluster, "postgresql.conf", "max_worker_processes")
    mend = f"{cluster.data}/postgresql.conf line {line}: max_worker_processes = 3, and restart the server"
    one = of(findings(cluster, 0), "background workers", "warning")
    assert "log writer has no place" in one["text"] and one["mend"] == mend
    cluster.stop()
    cluster.set_parameters({"max_worker_processes": 1})
    cluster.start(wait_for_pool=False)
    one = of(findings(cluster, 1), "background workers", "failure")
    assert "launcher does not run" in one["text"] and mend in one["mend"]


def test_doctor_on_the_pool_s_port_says_so(make_cluster):
    cluster = with_views(make_cluster())
    found = findings(cluster, 0, conninfo=cluster.pool())
    one = of(found, "dispatcher", "warning")
    assert "asks by the pool's port" in one["text"] and f"port={cluster.port}" in one["mend"]


def test_a_dispatcher_of_another_build(make_cluster, run):
    copy = run.directory / "another-dispatcher" / "baton-dispatcher"
    copy.parent.mkdir()
    copy.parent.chmod(0o755)
    shutil.copy(run.stage.program, copy)
    cluster = with_views(make_cluster(parameters={"pg_baton.dispatcher_program": copy}))
    copy.unlink()
    assert "no longer installed" in of(findings(cluster, 0), "dispatcher", "warning")["text"]


def test_a_database_without_the_views(make_cluster):
    cluster = make_cluster()
    found = findings(cluster, 0)
    for check in ("dispatcher", "open files"):
        assert "CREATE EXTENSION" in of(found, check, "unknown")["mend"]
    assert f"answers on port {cluster.pool_port}" in of(found, "dispatcher", "ok")["text"]


def test_more_backends_than_connections(make_cluster):
    cluster = with_views(make_cluster(parameters={"pg_baton.max_backends": 57}))
    one = of(findings(cluster, 1), "connections", "failure")
    line = line_of(cluster, "postgresql.conf", "max_connections")
    assert one["mend"] == f"{cluster.data}/postgresql.conf line {line}: max_connections = 114"
    cluster.set_parameters({"pg_baton.max_backends": 20, "pg_baton.max_dedicated": 50})
    cluster.reload()
    wait_until(lambda: cluster.sql("SHOW pg_baton.max_dedicated") == [("50",)], what="a reload")
    assert "cannot all be there" in of(findings(cluster, 0), "connections", "warning")["text"]


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 900_000, reason="so many files may be open here")
def test_more_sessions_than_open_files(make_cluster):
    cluster = with_views(
        make_cluster(parameters={"pg_baton.max_sessions": 900_000, "track_activity_query_size": "100B"})
    )
    one = of(findings(cluster, 1), "open files", "failure")
    assert "LimitNOFILE=" in one["mend"] and "pg_baton.max_sessions = " in one["mend"]


def test_more_memory_than_there_is(make_cluster):
    cluster = with_views(make_cluster(parameters={"pg_baton.session_memory": "2000GB"}))
    assert "pg_baton.session_memory = " in of(findings(cluster, 1), "memory", "failure")["mend"]


HBA = [
    "hostssl all nobody 127.0.0.1/32 trust",
    "host all nobody host.invalid scram-sha-256",
    "host all nobody localhost scram-sha-256",
    "host all nobody 10.0.0.0/8 ldap ldapserver=ldap.invalid ldapprefix=x",
]


def test_lines_of_pg_hba_conf(make_cluster):
    cluster = with_views(make_cluster(hba=HBA[1:]))
    found = findings(cluster, 1)
    file = cluster.data / "pg_hba.conf"
    by_line = {one["mend"].split(":")[0]: one for one in found if one["check"] == "pg_hba.conf" and one["mend"]}
    assert "host.invalid" in by_line[f"{file} line 1"]["text"] and by_line[f"{file} line 1"]["level"] == "failure"
    assert "asks a name server" in by_line[f"{file} line 2"]["text"] and by_line[f"{file} line 2"]["level"] == "warning"
    ldap = next(one for one in found if " ldap" in one["text"])
    if cluster.sql("SELECT count(*) FROM pg_settings WHERE name = 'pg_baton.login'") == [(1,)]:
        assert ldap["level"] == "ok" and "by a backend" in ldap["text"]
    else:
        assert ldap["level"] == "failure" and ldap["mend"].startswith(f"{file} line 3: ")
    methods = ["nonsense", "bsd"] + ([] if server_major() >= 18 else ["oauth issuer=x scope=y"])
    for method in methods:
        cluster.write_hba([f"host all all 127.0.0.1/32 {method}"])
        one = next(one for one in findings(cluster, 1) if one["mend"] == f"{file} line 1")
        assert "what was loaded before is in force" in one["text"]


@pytest.mark.skipif("gssapi" not in pg_config("configure"), reason="this server is built without GSSAPI")
def test_a_line_of_gssapi_encryption(make_cluster):
    cluster = with_views(make_cluster(hba=["hostgssenc all nobody all gss", "hostgssenc all other all reject"]))
    one = next(one for one in findings(cluster, 0) if " nobody" in one["text"])
    assert one["level"] == "warning" and "a backend of its own" in one["text"]
    cluster.set_parameters({"pg_baton.gss_encryption": "off"})
    cluster.reload()
    wait_until(lambda: cluster.sql("SHOW pg_baton.gss_encryption") == [("off",)], what="a reload")
    one = next(one for one in findings(cluster, 0) if " nobody" in one["text"])
    assert "never matches" in one["text"] and one["mend"].endswith("pg_baton.gss_encryption = auto")


@pytest.mark.skipif(server_major() < 18, reason="oauth is 18's")
def test_a_line_of_oauth(make_cluster, run):
    cluster = with_views(
        make_cluster(
            parameters={"oauth_validator_libraries": "some_validator"},
            hba=['host all nobody all oauth issuer="https://issuer.invalid" scope="openid"'],
        )
    )
    one = next(one for one in findings(cluster, 0) if " oauth" in one["text"])
    assert one["level"] == "ok" and "by a backend" in one["text"]


def test_lines_for_tls_and_certificates_without_either(make_cluster, run):
    cluster = make_cluster(start=False, hba=["hostssl all nobody 127.0.0.1/32 scram-sha-256 clientcert=verify-ca"])
    make_secure(cluster, Authority(run.directory / "doctor"))
    with_views(cluster.start())
    assert findings(cluster, 0)
    cluster.set_parameters({"ssl_ca_file": None})
    cluster.restart()
    one = next(one for one in findings(cluster, 1) if "lets nobody in" in one["text"])
    assert "ssl_ca_file" in one["mend"]
    cluster.write_hba([HBA[0]])
    cluster.set_parameters({"ssl": None})
    cluster.restart()
    one = next(one for one in findings(cluster, 0) if "never matches" in one["text"])
    assert one["level"] == "warning" and one["mend"].endswith(": ssl = on")


def test_certificates_that_end(make_cluster, run):
    authority = Authority(run.directory / "doctor-ends")
    cluster = make_cluster(start=False)
    make_secure(cluster, authority)
    with_views(cluster.start())
    found = findings(cluster, 0)
    # both certificates are good for two days
    ends = [one for one in found if one["check"] == "certificates" and one["level"] == "warning"]
    assert len(ends) == 2 and "renew it, put it into server.crt and reload" in ends[0]["mend"]
    assert of(found, "certificates", "ok")["text"] == "the pool's port offers TLS"
    pair = authority.server("long", days=100)
    put(cluster, pair.certificate, "server.crt")
    put(cluster, pair.key, "server.key")
    assert "server.crt is good until" in str(findings(cluster, 0))
    old = cluster.home / "old.crt"
    # OpenSSL 3.4 and later accept dates, and refuse a negative number of days
    has_dates = openssl("version") >= "OpenSSL 3.4"
    past = ("-not_before", "20200101000000Z", "-not_after", "20200201000000Z") if has_dates else ("-days", "-1")
    openssl("x509", "-req", "-in", str(authority.folder / "long.csr"), "-CA", str(authority.root.certificate), "-CAkey",
            str(authority.root.key), "-CAcreateserial", *past, "-out", str(old))  # fmt: skip
    put(cluster, old, "server.crt")
    found = findings(cluster, 1)
    assert "has ended" in of(found, "certificates", "failure")["text"]


def test_a_pool_s_port_that_could_not_load_its_key(make_cluster, run):
    cluster = make_cluster(start=False)
    make_secure(cluster, Authority(run.directory / "doctor-key"))
    with_views(cluster.start())
    (cluster.data / "server.key").chmod(0o644)
    (pid,) = cluster.dispatcher_pids()
    cluster.expect_in_log("terminated by signal")
    os.kill(pid, signal.SIGKILL)
    wait_until_replaced(cluster, pid)
    cluster.wait_pool_ready()
    assert "offers no TLS" in of(findings(cluster, 1), "certificates", "failure")["text"]


def test_unlisted_libraries_are_found(make_cluster):
    cluster = with_views(make_cluster(parameters={"pg_baton.dedicated_objects": "plperl"}))
    cluster.sql("CREATE DATABASE second")
    cluster.sql("CREATE EXTENSION isn", dbname="second")
    folder = Path(cluster.sql("SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'")[0][0])
    own = cluster.home / "of_our_own.so"
    shutil.copy(folder / "citext.so", own)
    own.chmod(0o755)
    cluster.sql(f"CREATE FUNCTION f(text, text) RETURNS int LANGUAGE c AS '{own}', 'citext_cmp'")
    found = findings(cluster, 1)
    one = of(found, "libraries", "failure")
    assert "isn (database second)" in one["text"] and one["mend"].endswith("dedicated_objects = 'plperl, isn_weak'")
    one = of(found, "libraries", "warning")
    assert "of_our_own" in one["text"] and one["mend"].endswith("pg_baton.stateless_libraries = 'of_our_own'")
    cluster.set_parameters({"pg_baton.stateless_libraries": "of_our_own", "pg_baton.dedicated_objects": "isn_weak"})
    cluster.reload()
    wait_until(lambda: cluster.sql("SHOW pg_baton.stateless_libraries") == [("of_our_own",)], what="a reload")
    assert "of_our_own" in of(findings(cluster, 0), "libraries", "ok")["text"]


def test_a_self_check_that_failed(make_cluster):
    cluster = with_views(make_cluster(parameters={"pg_baton.break_self_check": "wait_sets"}))
    with psycopg.connect(cluster.pool()) as session:
        session.execute("SELECT 1")
    of(findings(cluster, 1), "self-checks", "failure")


def test_a_library_that_hooks_into_logins(make_cluster):
    cluster = with_views(make_cluster(parameters={"shared_preload_libraries": "pg_baton, auth_delay"}))

    def served(found: list[dict]) -> list[str]:
        """How clients are served, for each of pg_hba.conf's three lines that are not for replication."""
        texts = [one["text"] for one in found if one["check"] == "pg_hba.conf"]
        assert [text.split(" served ")[1].split(",")[0] for text in texts[3:]] == ["by the server itself"] * 3
        return [text.split(" served ")[1] for text in texts[:3]]

    found = findings(cluster, 0)
    one = next(one for one in found if "auth_delay" in one["text"])
    assert one["level"] == "ok" and "a backend's" in one["text"]
    # the report says the same of each line
    by_backend = "by a backend with the server's own code, a fork each login"
    assert served(found) == [by_backend] * 3
    for login, by in (("dispatcher", "by the dispatcher"), ("server", by_backend)):
        cluster.set_parameters({"pg_baton.login": login})
        cluster.reload()
        wait_until(lambda: cluster.sql("SHOW pg_baton.login") == [(login,)], what="a reload")  # noqa: B023
        found = findings(cluster, 0)
        assert served(found) == [by] * 3
        if login == "dispatcher":
            one = of(found, "libraries", "warning")
            assert one["mend"].endswith("pg_baton.login = auto")
