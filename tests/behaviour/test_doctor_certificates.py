"""`baton doctor` compares the served certificate with the certificate file, and checks lists of revoked ones."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from harness.certificates import Authority, make_secure, openssl, put
from harness.doctor import findings, of, with_views
from harness.health import wait_until

pytestmark = pytest.mark.pool_only


def certificates(found: list[dict], level: str) -> list[dict]:
    return [one for one in found if (one["check"], one["level"]) == ("certificates", level)]


def reloaded(cluster) -> None:
    """Reloads server and pool, so that they have the current files."""
    before = cluster.log().count("parameters reloaded")
    cluster.reload()
    wait_until(lambda: cluster.log().count("parameters reloaded") > before, what="a reload")


def test_a_certificate_that_was_renewed_and_not_reloaded(make_cluster, run):
    authority = Authority(run.directory / "doctor-renewed", days=100)
    cluster = make_cluster(start=False)
    make_secure(cluster, authority)
    with_views(cluster.start())
    assert certificates(findings(cluster, 0), "warning") == []
    # nor does the doctor leave a line of a failed handshake in the server's log
    assert "could not accept SSL connection" not in cluster.log()
    renewed = authority.server("renewed", days=90)
    put(cluster, renewed.certificate, "server.crt")
    put(cluster, renewed.key, "server.key")
    one = of(findings(cluster, 0), "certificates", "warning")
    assert "serves another certificate than server.crt" in one["text"] and "until" in one["text"]
    assert one["mend"] == "reload the server"
    reloaded(cluster)
    assert certificates(findings(cluster, 0), "warning") == []


def test_a_served_certificate_that_has_ended_is_a_failure(make_cluster, run):
    """It is a failure even though the certificate in the file is good."""
    authority = Authority(run.directory / "doctor-ended", days=100)
    cluster = make_cluster(start=False)
    pair = authority.server("ended", days=100)
    old = cluster.home / "old.crt"
    # OpenSSL 3.4 and later have options for dates, and accept no negative number of days
    has_dates = openssl("version") >= "OpenSSL 3.4"
    past = ("-not_before", "20200101000000Z", "-not_after", "20200201000000Z") if has_dates else ("-days", "-1")
    openssl("x509", "-req", "-in", str(authority.folder / "ended.csr"), "-CA", str(authority.root.certificate), "-CAkey",
            str(authority.root.key), "-CAcreateserial", *past, "-out", str(old))  # fmt: skip
    make_secure(cluster, authority, type(pair)(old, pair.key))
    with_views(cluster.start())
    put(cluster, pair.certificate, "server.crt")
    one = of(findings(cluster, 1), "certificates", "failure")
    assert "has ended" in one["text"] and one["mend"] == "reload the server"


def revoked(authority: Authority, name: str, days: str) -> Path:
    """A list of revoked certificates without an entry, good for the period that `days` gives."""
    folder = authority.folder
    (folder / "index.txt").touch()
    (folder / "crlnumber").write_text("01\n")
    (folder / "ca.cnf").write_text(
        f"[ca]\ndefault_ca = d\n[d]\ndatabase = {folder}/index.txt\ncrlnumber = {folder}/crlnumber\ndefault_md = sha256\n"
    )
    path = folder / name
    openssl("ca", "-config", str(folder / "ca.cnf"), "-gencrl", "-keyfile", str(authority.root.key), "-cert",
            str(authority.root.certificate), *days.split(), "-out", str(path))  # fmt: skip
    return path


PAST = "-crl_lastupdate 20200101000000Z -crl_nextupdate 20200201000000Z"


def test_lists_of_revoked_certificates_have_an_end(make_cluster, run):
    authority = Authority(run.directory / "doctor-revoked", days=100)
    cluster = make_cluster(start=False)
    put(cluster, revoked(authority, "good.crl", "-crldays 90"), "root.crl")
    make_secure(cluster, authority, ssl_crl_file="root.crl")
    with_views(cluster.start())
    found = findings(cluster, 0)
    assert any("root.crl is good until" in one["text"] for one in certificates(found, "ok"))
    put(cluster, revoked(authority, "short.crl", "-crldays 3"), "root.crl")
    one = of(findings(cluster, 0), "certificates", "warning")
    assert "root.crl ends in" in one["text"] and "reload the server" in one["mend"]
    folder = cluster.data / "revoked"
    folder.mkdir()
    folder.chmod(0o755)
    put(cluster, revoked(authority, "past.crl", PAST), "revoked/0123abcd.r0")
    cluster.set_parameters({"ssl_crl_file": None, "ssl_crl_dir": "revoked"})
    reloaded(cluster)
    one = of(findings(cluster, 1), "certificates", "failure")
    assert "revoked/0123abcd.r0 has ended" in one["text"] and "refused" in one["text"]


def test_a_port_that_takes_no_connection_is_not_waited_for(make_cluster, run):
    """The doctor does not wait for a listener whose queue is full: connections are neither made nor refused."""
    authority = Authority(run.directory / "doctor-deaf", days=100)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        cluster = make_cluster(start=False, parameters={"pg_baton.port": port, "unix_socket_directories": ""})
        make_secure(cluster, authority)
        cluster.start(wait_for_pool=False)
        waiting = [socket.socket() for _ in range(8)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        found = findings(cluster, 1)
        assert f"nobody answers on port {port}" in of(found, "dispatcher", "failure")["text"]
        for one in waiting:
            one.close()
    cluster.stop()
