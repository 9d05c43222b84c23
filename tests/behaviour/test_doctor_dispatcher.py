"""`baton doctor` judges the server's machine and its dispatcher, wherever it runs."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess

import pytest
from harness import doctor as asking
from harness.account import other_users, server_user
from harness.doctor import findings, of, read, with_views

pytestmark = pytest.mark.pool_only

# Starts a process with the dispatcher's PID in a PID namespace of its own; the process may have few files open.
ANOTHER_OF_ITS_NUMBER = """
echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid
sh -c 'ulimit -n 64; exec sleep 100' &
test $! = $1 || exit 99
shift
"$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a namespace")
def test_no_process_of_another_machine_counts_as_the_dispatcher(make_cluster):
    cluster = with_views(make_cluster(parameters={"pg_baton.max_sessions": 1000}))
    (pid,) = cluster.dispatcher_pids()
    elsewhere = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", ANOTHER_OF_ITS_NUMBER, "sh", str(pid)]
    command = asking.command(cluster, "--json")
    ran = subprocess.run([*elsewhere, *command], capture_output=True, text=True, timeout=120)
    assert read(ran, 0) == findings(cluster, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_memory_is_the_server_s_machine_s(make_cluster, run):
    cluster = with_views(make_cluster())
    other = run.directory / "meminfo"
    other.write_text("MemTotal:       1024 kB\n")
    elsewhere = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount --bind "$1" /proc/meminfo && shift && exec "$@"',
        "sh",
        str(other),
    ]
    command = asking.command(cluster, "--json")
    ran = subprocess.run([*elsewhere, *command], capture_output=True, text=True, timeout=120)
    assert read(ran, 0) == findings(cluster, 0)


def test_views_are_found_in_whatever_schema_they_are(make_cluster):
    cluster = make_cluster()
    cluster.sql('CREATE SCHEMA "of us"')
    cluster.sql('CREATE EXTENSION pg_baton SCHEMA "of us"')
    found = findings(cluster, 0)
    assert of(found, "dispatcher", "ok") and of(found, "self-checks", "ok") and of(found, "pools", "ok")


def test_unreadable_program_is_known_by_its_file(make_cluster, run):
    """The program may be run and not read: its build is unknown, another file in its place is noticed."""
    copy = run.directory / "secret-dispatcher" / "baton-dispatcher"
    copy.parent.mkdir()
    copy.parent.chmod(0o755)
    shutil.copy(run.stage.program, copy)
    copy.chmod(0o111)
    cluster = with_views(make_cluster(parameters={"pg_baton.dispatcher_program": copy}))
    user = pwd.getpwuid(server_user().pw_uid).pw_name
    options = {"user": user} if os.geteuid() == 0 else {}
    found = findings(cluster, 0, **options)
    assert "it is up on port" in of(found, "dispatcher", "ok")["text"]
    assert not [one for one in found if (one["check"], one["level"]) == ("dispatcher", "warning")]
    other = copy.with_name("other")
    shutil.copy(run.stage.program, other)
    other.chmod(0o111)
    other.rename(copy)
    assert "waits to be used" in of(findings(cluster, 0, **options), "dispatcher", "warning")["text"]


@pytest.mark.skipif(not other_users(), reason="only root runs it as another user")
def test_another_machine_user_is_told_of_a_removed_program(make_cluster, run):
    copy = run.directory / "replaced-dispatcher" / "baton-dispatcher"
    copy.parent.mkdir()
    copy.parent.chmod(0o755)
    shutil.copy(run.stage.program, copy)
    cluster = with_views(make_cluster(parameters={"pg_baton.dispatcher_program": copy}))
    copy.unlink()
    found = findings(cluster, 0, user=other_users()[0])
    assert "no longer installed" in of(found, "dispatcher", "warning")["text"]


def test_a_dispatcher_that_is_not_up_is_seen_without_views(make_cluster):
    cluster = make_cluster(start=False, parameters={"pg_baton.dispatcher_program": "/nonexistent/program"})
    cluster.start(wait_for_pool=False)
    found = findings(cluster, 1)
    assert f"nobody answers on port {cluster.pool_port}" in of(found, "dispatcher", "failure")["text"]
    assert "CREATE EXTENSION" in of(found, "dispatcher", "unknown")["mend"]


@pytest.mark.parametrize("place", ["", "127.0.0.2"])
def test_a_dispatcher_that_is_up_is_found_where_it_listens(make_cluster, place):
    """At the Unix socket only, or at an address where the server does not."""
    addresses = {"pg_baton.listen_addresses": place} if place else {"listen_addresses": ""}
    cluster = make_cluster(start=False, parameters=addresses)
    cluster.start(wait_for_pool=False)
    cluster.wait_for_log("listening on Unix socket")
    found = findings(cluster, 0)
    assert f"answers on port {cluster.pool_port}" in of(found, "dispatcher", "ok")["text"]
