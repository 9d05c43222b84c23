"""A long login of one client delays no other client."""

from __future__ import annotations

import base64
import dataclasses
import os
import resource
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.account import give_to_server_user
from harness.cluster import HOST, Run
from harness.health import wait_until
from harness.wire import LoginFailed, Wire, message, startup, text

pytestmark = pytest.mark.pool_only


def endless_verifier() -> str:
    """A SCRAM verifier that takes a quarter of an hour to compare with."""
    salt, key = (base64.b64encode(os.urandom(size)).decode() for size in (16, 32))
    return f"SCRAM-SHA-256$2147483647:{salt}${key}:{key}"


def test_a_verifier_of_endless_iterations_delays_no_other_client(make_cluster):
    cluster = make_cluster(hba=["host all evil,good 127.0.0.1/32 password"])
    cluster.sql("SET password_encryption = 'scram-sha-256'; CREATE ROLE good LOGIN PASSWORD 'secret'")
    # CREATE ROLE would first compare the verifier with an empty password.
    cluster.sql("CREATE ROLE evil LOGIN")
    cluster.sql(f"UPDATE pg_authid SET rolpassword = '{endless_verifier()}' WHERE rolname = 'evil'")
    evils = []
    for _ in range(3):
        evil = Wire.open(HOST, cluster.pool_port)
        evil.send(startup({"user": "evil", "database": "postgres"}))
        assert evil.read().type == "R"
        evil.send(message("p", text("wrong")))
        evils.append(evil)
    for _ in range(3):
        with Wire.login(HOST, cluster.pool_port, user="good", password="secret") as good:
            assert good.query("SELECT session_user") == [["good"]]
    assert all(evil.silent(0.1) for evil in evils)
    for evil in evils:
        evil.close()

    def work() -> int:
        """CPU time of the dispatcher, in clock ticks."""
        with open(f"/proc/{cluster.dispatcher_pids()[0]}/stat") as stat:
            fields = stat.read().rsplit(") ", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    last = [work()]

    def rests() -> bool:
        before, last[0] = last[0], work()
        return last[0] == before

    wait_until(rests, what="the work of those who have gone has ended")


NAME_SERVICE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>
static int asked = -1;
/* Later the dispatcher opens no file for writing (sys/process.rs). */
__attribute__((constructor)) static void begin(void)
{
    asked = open(GATE ".asked", O_WRONLY | O_APPEND | O_CLOEXEC);
}
int getpwuid_r(uid_t uid, struct passwd *entry, char *buffer, size_t size, struct passwd **found)
{
    int (*real)(uid_t, struct passwd *, char *, size_t, struct passwd **) = dlsym(RTLD_NEXT, "getpwuid_r");
    if (access(GATE, F_OK) == 0 && write(asked, "1", 1) != 1)
        _exit(1);
    while (access(GATE, F_OK) == 0)
        usleep(10000);
    return real(uid, entry, buffer, size, found);
}
"""


def test_a_silent_name_service_delays_only_clients_that_need_it(run: Run, make_cluster, monkeypatch):
    cluster = make_cluster(start=False, hba=["local by_peer all peer"])
    gate, asked = cluster.home / "gate", cluster.home / "gate.asked"
    asked.touch()
    asked.chmod(0o666)
    library = cluster.home / "name_service.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f'-DGATE="{gate}"', "-x", "c", "-", "-o", str(library), "-ldl"],
        input=NAME_SERVICE,
        text=True,
        check=True,
    )
    preload = f"{run.stage.preload} {library}".strip()
    monkeypatch.setattr(run, "stage", dataclasses.replace(run.stage, preload=preload))
    cluster.start()
    cluster.sql("CREATE DATABASE by_peer")
    other = Wire.login(HOST, cluster.pool_port)
    other.query("SELECT 1")
    answers = []

    def ask_by_peer() -> None:
        with Wire.open(str(cluster.home), cluster.pool_port) as wire:
            answers.append(wire.log_in("postgres", "by_peer")[-1].type)

    gate.touch()
    give_to_server_user(cluster.home)
    asker = threading.Thread(target=ask_by_peer)
    asker.start()
    try:
        wait_until(lambda: asked.stat().st_size > 0, what="the name service has been asked")
        assert other.query("SELECT 2") == [["2"]]
        for host in (HOST, str(cluster.home)):
            with Wire.login(host, cluster.pool_port) as wire:
                assert wire.query("SELECT 3") == [["3"]]
        assert not answers
    finally:
        gate.unlink()
        asker.join()
        other.close()
    assert answers in (["Z"], ["E"])  # the system's user may log in as postgres, or not


def test_a_login_beyond_the_limit_gets_a_silent_client_s_place(make_cluster):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    cluster = make_cluster(parameters={"pg_baton.max_sessions": 10})
    silent = []
    try:
        for _ in range(1010):
            one = socket.socket(socket.AF_UNIX)
            one.connect(f"{cluster.home}/.s.PGSQL.{cluster.pool_port}")
            silent.append(one)
        with Wire.login(str(cluster.home), cluster.pool_port) as late:
            assert late.query("SELECT 1") == [["1"]]
        oldest = Wire(silent[0])
        assert oldest.read().fields()["C"] == "53300"
    finally:
        for one in silent:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("names", ["127.0.0.1,localhost", "127.0.0.1, 127.0.0.1", "0.0.0.0,127.0.0.1"])
def test_an_address_named_twice_is_listened_on_once(make_cluster, names):
    cluster = make_cluster(parameters={"listen_addresses": names})
    with Wire.login(HOST, cluster.pool_port) as wire:
        assert wire.query("SELECT 1") == [["1"]]


def test_an_abstract_socket_is_listened_on_as_the_server_does(make_cluster):
    """The dispatcher itself uses that socket, where there is no other."""
    name = f"@baton-{os.urandom(8).hex()}"
    cluster = make_cluster(parameters={"unix_socket_directories": f'"{name}"'})
    for port in (cluster.port, cluster.pool_port):
        with Wire(socket.socket(socket.AF_UNIX)) as wire:
            wire.sock.connect(f"\0{name[1:]}/.s.PGSQL.{port}")
            assert wire.log_in("postgres", "postgres")[-1].type == "Z"
            assert wire.query("SELECT client_addr FROM pg_stat_activity WHERE pid = pg_backend_pid()") == [[None]]


def test_backends_that_are_starting_count_against_no_limit(make_cluster):
    """A CONNECTION LIMIT counts clients: clients within the limit can log in while the
    backends of the first clients are still starting."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 8})
    cluster.sql("CREATE ROLE limited LOGIN CONNECTION LIMIT 8")
    cluster.sql("ALTER SYSTEM SET post_auth_delay = '1s'")
    cluster.sql("SELECT pg_reload_conf()")

    def log_in(_) -> Wire:
        return Wire.login(HOST, cluster.pool_port, user="limited")

    with ThreadPoolExecutor(8) as at_once:
        clients = list(at_once.map(log_in, range(8)))
    with pytest.raises(LoginFailed) as refused:
        log_in(9)
    assert refused.value.fields["C"] == "53300"
    for client in clients:
        assert client.query("SELECT session_user") == [["limited"]]
        client.finish()
