"""Certificates for a test, made with the openssl command, and a client's hello.

An authority, the server's certificate for 127.0.0.1 and localhost, and
clients' by common name.  All in one folder that tests may read; a server gets
copies of what is its own.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .account import give_to_server_user
from .cluster import HOST, Cluster
from .health import wait_until
from .wire import SSL_REQUEST


def openssl(*arguments: str, **options) -> str:
    ran = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False, **options)
    assert ran.returncode == 0, f"openssl {' '.join(arguments)}\n{ran.stderr}"
    return ran.stdout


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str = "authority", days: int = 2) -> None:
        self.folder = folder
        self.days = days
        folder.mkdir(exist_ok=True)
        self.root = self._self_signed(name)

    def _self_signed(self, name: str) -> Pair:
        return self.sign_by_itself(name, "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")

    def sign_by_itself(self, name: str, key: str, *options: str) -> Pair:
        """Of a new key, of that kind (-newkey of openssl req)."""
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        openssl(
            "req", "-x509", "-newkey", key, *options, "-nodes", "-days", str(self.days),
            "-subj", f"/CN={name}", "-keyout", str(pair.key), "-out", str(pair.certificate),
        )  # fmt: skip
        return pair

    def sign(
        self, file: str, subject: str, names: str = "", key: str = "ec", digest: str = "sha256", days: int | None = None
    ) -> Pair:
        """A certificate of that subject ("/CN=..."), good for as many days as the authority's own; names: its subjectAltName."""
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        request = self.folder / f"{file}.csr"
        of_key = ["-newkey", "rsa:2048"]
        if key == "ec":
            of_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        openssl(
            "req", "-new", *of_key, "-nodes", "-utf8", "-subj", subject, "-keyout", str(pair.key), "-out", str(request)
        )
        extensions = self.folder / f"{file}.ext"
        extensions.write_text(f"subjectAltName={names}\n" if names else "")
        openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.root.certificate), "-CAkey", str(self.root.key),
            "-CAcreateserial", "-days", str(days or self.days), f"-{digest}", "-extfile", str(extensions),
            "-out", str(pair.certificate),
        )  # fmt: skip
        pair.key.chmod(0o600)
        return pair

    def server(self, file: str = "server", **options) -> Pair:
        return self.sign(file, "/CN=localhost", names="DNS:localhost,IP:127.0.0.1", **options)


def put(cluster: Cluster, source: Path, name: str, mode: int = 0o600) -> None:
    """A file into the data directory, as the server's user would have it."""
    target = cluster.data / f"{name}.new"
    shutil.copyfile(source, target)
    give_to_server_user(target)
    target.chmod(mode)
    target.rename(cluster.data / name)


def make_secure(cluster: Cluster, authority: Authority, pair: Pair | None = None, **parameters: object) -> None:
    """TLS is on when the cluster starts, or has been reloaded; with a new certificate, or this."""
    pair = pair or authority.server()
    put(cluster, pair.certificate, "server.crt")
    put(cluster, pair.key, "server.key")
    put(cluster, authority.root.certificate, "root.crt")
    cluster.set_parameters({"ssl": True, "ssl_ca_file": "root.crt", **parameters})


def shown(port: int) -> str:
    """The certificate that clients of a port are shown, as the middle of its file."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((HOST, port), timeout=20) as raw:
        raw.sendall(SSL_REQUEST)
        assert raw.recv(1) == b"S"
        with context.wrap_socket(raw) as connection:
            return body(ssl.DER_cert_to_PEM_cert(connection.getpeercert(True)))


def body(text: str) -> str:
    return text.split("-----")[2]


def show(cluster: Cluster, pair: Pair) -> None:
    """Both ports show this one from here on."""
    put(cluster, pair.certificate, "server.crt")
    put(cluster, pair.key, "server.key")
    cluster.reload()
    for port in (cluster.port, cluster.pool_port):
        wait_until(lambda: shown(port) == body(pair.certificate.read_text()), what="the new certificate is shown")  # noqa: B023


def client_hello() -> bytes:
    """What a client sends first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
    raise AssertionError("a handshake without an answer")
