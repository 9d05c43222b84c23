"""Files and parameters of TLS other than key and certificate, and much data by TLS."""

from __future__ import annotations

import os
import signal
import subprocess

import psycopg
import pytest
from harness.account import server_program
from harness.certificates import Authority, body, make_secure, openssl, put, show, shown
from harness.cluster import HOST
from harness.health import wait_until, wait_until_replaced

GIGABYTE = 1 << 30


@pytest.fixture
def authority(run):
    folder = run.directory / f"tls-files-{len(os.listdir(run.directory))}"
    return Authority(folder)


def offers(cluster, port: int, *options: str) -> str:
    """The output of s_client about a connection, with these options of s_client."""
    command = ["openssl", "s_client", "-starttls", "postgres", "-connect", f"{HOST}:{port}", *options]
    ran = subprocess.run(command, input="", capture_output=True, text=True, timeout=30)
    return ran.stdout + ran.stderr


def test_a_directory_of_revoked_certificates(make_cluster, authority):
    """The lists are found by the hash of their issuer, as OpenSSL looks for them."""
    folder = authority.folder
    for name in ("good", "bad"):
        authority.sign(name, f"/CN={name}")
    (folder / "index.txt").write_text("")
    (folder / "crlnumber").write_text("01\n")
    (folder / "ca.cnf").write_text(
        f"[ca]\ndefault_ca = c\n[c]\ndatabase = {folder}/index.txt\ncrlnumber = {folder}/crlnumber\n"
        "default_md = sha256\ndefault_crl_days = 2\n"
    )
    root = authority.root
    ca = ["-config", str(folder / "ca.cnf"), "-cert", str(root.certificate), "-keyfile", str(root.key)]
    openssl("ca", *ca, "-revoke", str(folder / "bad.crt"))
    openssl("ca", *ca, "-gencrl", "-out", str(folder / "root.crl"))
    name = openssl("crl", "-in", str(folder / "root.crl"), "-noout", "-hash").strip()
    cluster = make_cluster(start=False, hba=["hostssl all good,bad all cert"])
    make_secure(cluster, authority)
    (cluster.data / "crls").mkdir(mode=0o755)
    put(cluster, folder / "root.crl", f"crls/{name}.r0", mode=0o644)
    cluster.set_parameters({"ssl_crl_dir": "crls"})
    cluster.start()
    for role in ("good", "bad"):
        cluster.sql(f"CREATE ROLE {role} LOGIN")
    for conninfo in (cluster.direct, cluster.pool):
        keys = {name: {"sslcert": folder / f"{name}.crt", "sslkey": folder / f"{name}.key"} for name in ("good", "bad")}
        with psycopg.connect(conninfo(user="good", sslmode="require", **keys["good"])) as session:
            assert session.execute("SELECT session_user").fetchone() == ("good",)
        with pytest.raises(psycopg.OperationalError, match="revoked"):
            psycopg.connect(conninfo(user="bad", sslmode="require", **keys["bad"]))


def test_parameters_of_diffie_hellman_are_the_file_s(make_cluster, authority):
    cluster = make_cluster(start=False)
    make_secure(cluster, authority, ssl_max_protocol_version="TLSv1.2", ssl_ciphers="DHE-RSA-AES256-GCM-SHA384")
    pair = authority.server("of_rsa", key="rsa")
    put(cluster, pair.certificate, "server.crt")
    put(cluster, pair.key, "server.key")
    cluster.start()

    def length(port: int) -> str:
        said = offers(cluster, port, "-tls1_2", "-cipher", "DHE:@SECLEVEL=0")
        # "Server Temp Key", since OpenSSL 3.5 "Peer Temp Key"
        return next((line.partition(" ")[2] for line in said.splitlines() if "Temp Key" in line), said)

    assert length(cluster.pool_port) == length(cluster.port) == "Temp Key: DH, 2048 bits"
    # the well-known group of another size, which takes no time to generate
    (cluster.data / "dh.pem").write_text(
        openssl("genpkey", "-genparam", "-algorithm", "DH", "-pkeyopt", "group:modp_3072")
    )
    cluster.set_parameters({"ssl_dh_params_file": "dh.pem"})
    cluster.reload()
    wait_until(lambda: length(cluster.port).endswith("3072 bits"), what="the server's own reload")
    wait_until(lambda: length(cluster.pool_port).endswith("3072 bits"), what="the pool's")
    # a file that cannot be read: the built-in parameters apply, as on the server's own port
    (cluster.data / "dh.pem").write_text("nonsense")
    cluster.reload()
    wait_until(lambda: length(cluster.pool_port).endswith("2048 bits"), what="the built-in ones")
    cluster.wait_for_log("pg_baton: could not load DH parameters file: ")


@pytest.mark.parametrize("supports_reload", [False, True])
def test_a_key_with_a_passphrase(make_cluster, authority, supports_reload):
    cluster = make_cluster(start=False)
    make_secure(cluster, authority)
    locked = authority.folder / "locked.key"
    openssl("pkcs8", "-topk8", "-v2", "aes256", "-in", str(authority.folder / "server.key"), "-out", str(locked),
            "-passout", "pass:open sesame")  # fmt: skip
    put(cluster, locked, "server.key")
    command = "echo 'open sesame'"
    cluster.set_parameters(
        {"ssl_passphrase_command": command, "ssl_passphrase_command_supports_reload": supports_reload}
    )
    cluster.start()

    def comes_in(conninfo) -> bool:
        with psycopg.connect(conninfo(sslmode="require")) as session:
            return session.execute("SELECT 1").fetchone() == (1,)

    assert comes_in(cluster.direct) and comes_in(cluster.pool)
    start = len(cluster.log())
    cluster.reload()
    if supports_reload:
        cluster.wait_for_log("received SIGHUP", start=start)
    else:
        cluster.wait_for_log(
            r'pg_baton: .*"server.key" cannot be reloaded because it requires a passphrase', start=start
        )
    assert comes_in(cluster.direct) and comes_in(cluster.pool)
    # a wrong passphrase: a reload changes nothing; after the next start of the
    # dispatcher there is no TLS, and the log says why
    start = len(cluster.log())
    cluster.set_parameters({"ssl_passphrase_command": "echo wrong"})
    cluster.reload()
    if cluster.pooled:
        cluster.wait_for_log("pg_baton: .*SSL configuration was not reloaded", start=start)
        assert comes_in(cluster.direct) and comes_in(cluster.pool)
        start = len(cluster.log())
        restart_dispatcher(cluster)
        cluster.wait_for_log(r'pg_baton: .*could not load private key file "server.key"', start=start)
        assert comes_in(cluster.direct)
        with pytest.raises(psycopg.OperationalError, match="server does not support SSL"):
            comes_in(cluster.pool)
        # with the right passphrase, TLS is back after a reload that may run the command, or after any start
        start = len(cluster.log())
        cluster.set_parameters({"ssl_passphrase_command": command})
        cluster.reload()
        if supports_reload:
            wait_until(lambda: offers_tls(cluster), what="TLS after the reload")
        else:
            cluster.wait_for_log("pg_baton: .*cannot be reloaded because it requires a passphrase", start=start)
            assert not offers_tls(cluster)
            restart_dispatcher(cluster)
        assert comes_in(cluster.pool)


SUPPORTS_RELOAD = {"ssl_passphrase_command_supports_reload": True}


@pytest.mark.pool_only
@pytest.mark.parametrize("was", ["not_for_reloads", "empty", "without_ssl"])
def test_a_passphrase_that_comes_with_a_reload_is_asked_for(make_cluster, authority, was):
    """The launcher asks for the passphrase: the dispatcher can run no command."""
    cluster = make_cluster(start=False)
    make_secure(cluster, authority)
    renewed = authority.server("renewed")
    locked = authority.folder / "locked.key"
    openssl(
        "pkcs8", "-topk8", "-v2", "aes256", "-in", str(renewed.key), "-out", str(locked), "-passout", "pass:open sesame"
    )
    now = {"ssl": True, "ssl_passphrase_command": "echo 'open sesame'", **SUPPORTS_RELOAD}
    before = {
        "not_for_reloads": {"ssl_passphrase_command_supports_reload": False},
        "empty": {"ssl_passphrase_command": ""},
    }
    cluster.set_parameters({**now, **before.get(was, {"ssl": False})})
    cluster.start()
    put(cluster, renewed.certificate, "server.crt")
    put(cluster, locked, "server.key")
    cluster.set_parameters(now)
    cluster.reload()
    new = body(renewed.certificate.read_text())
    wait_until(lambda: shown(cluster.port) == new, what="the server's own reload")
    wait_until(lambda: offers_tls(cluster) and shown(cluster.pool_port) == new, what="the pool's")
    # the same once more, and then with a new dispatcher
    show(cluster, authority.server("again"))
    put(cluster, renewed.certificate, "server.crt")
    put(cluster, locked, "server.key")
    cluster.reload()
    wait_until(lambda: shown(cluster.pool_port) == new, what="what needs the passphrase again")
    restart_dispatcher(cluster)
    assert shown(cluster.pool_port) == new


@pytest.mark.pool_only
def test_passphrase_command_runs_only_where_the_key_needs_it(make_cluster, authority):
    """The command may prompt a person, and its output is for the key only."""
    cluster = make_cluster(start=False)
    make_secure(cluster, authority)
    asked = cluster.data / "asked"
    cluster.set_parameters({"ssl_passphrase_command": "date >> asked; echo 'open sesame'", **SUPPORTS_RELOAD})
    cluster.start()
    show(cluster, authority.server("other"))
    renewed = authority.server("renewed")
    put(cluster, renewed.certificate, "server.crt")
    put(cluster, renewed.key, "server.key")
    cluster.reload()
    wait_until(lambda: shown(cluster.pool_port) == body(renewed.certificate.read_text()), what="the reload")
    assert not asked.exists()
    # a command that fails leaves the old key in force, and the log says why
    locked = authority.folder / "locked.key"
    openssl(
        "pkcs8", "-topk8", "-v2", "aes256", "-in", str(renewed.key), "-out", str(locked), "-passout", "pass:open sesame"
    )
    put(cluster, locked, "server.key")
    cluster.set_parameters({"ssl_passphrase_command": "date >> asked; exit 1"})
    start = len(cluster.log())
    cluster.reload()
    cluster.wait_for_log('pg_baton: .*"server.key": ssl_passphrase_command has given no passphrase', start=start)
    assert asked.exists()
    assert shown(cluster.pool_port) == body(renewed.certificate.read_text())


def offers_tls(cluster) -> bool:
    return "Cipher is (NONE)" not in offers(cluster, cluster.pool_port)


def restart_dispatcher(cluster) -> None:
    (pid,) = cluster.dispatcher_pids()
    cluster.expect_in_log("baton-dispatcher.* was terminated by signal 9|terminated by signal")
    os.kill(pid, signal.SIGKILL)
    wait_until_replaced(cluster, pid)
    cluster.wait_pool_ready()


@pytest.mark.timeout(300)
@pytest.mark.pool_only
def test_a_gigabyte_is_copied_both_ways(make_cluster, authority):
    cluster = make_cluster(start=False)
    make_secure(cluster, authority)
    cluster.start()
    cluster.sql("CREATE TABLE nothing (line text)")
    width = 8191
    rows = GIGABYTE // (width + 1)
    psql = [server_program("psql"), "-X", "-q", "-d", cluster.pool(sslmode="require"), "-c"]
    out = f"COPY (SELECT repeat('x', {width}) FROM generate_series(1, {rows})) TO STDOUT"
    # the output of the first COPY is the input of the second, which stores none of it
    reader = subprocess.Popen([*psql, out], stdout=subprocess.PIPE)
    counter = subprocess.Popen(
        ["tee", "/dev/stderr"], stdin=reader.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    writer = subprocess.Popen([*psql, "COPY nothing FROM STDIN WHERE line = ''"], stdin=counter.stdout)
    count = 0
    while data := os.read(counter.stderr.fileno(), 1 << 20):
        count += len(data)
    assert [one.wait(60) for one in (reader, counter, writer)] == [0, 0, 0]
    assert count == rows * (width + 1) == GIGABYTE
    assert cluster.sql("SELECT count(*) FROM nothing") == [(0,)]
