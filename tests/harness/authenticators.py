"""Services that authenticate users, each started privately on a free port: an LDAP
server, a RADIUS server, a Kerberos KDC.  The programs are Debian's own; a test whose
program is missing is skipped, with the package's name."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from .ports import HOST, free_port

START_TIMEOUT_S = 30.0
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib/freeradius:/usr/lib/nagios/plugins"


def program(name: str, package: str) -> str:
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"{name} is missing: Debian's package {package}")
    return found


class Service:
    """A program that runs in a directory of its own until it is stopped."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = directory
        self.directory.mkdir()
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def _run(self, command: list[str], **environment: str) -> None:
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **environment}
            )

    def _wait(self, is_ready) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.process.args}\n{(self.directory / 'log').read_text()}")
            time.sleep(0.05)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.stop()


class Ldap(Service):
    """slapd with users of dc=example,dc=net."""

    def __init__(self, directory: Path, users: dict[str, str]) -> None:
        super().__init__(directory)
        slapd, slapadd = program("slapd", "slapd"), program("slapadd", "slapd")
        (directory / "data").mkdir()
        configuration = directory / "slapd.conf"
        configuration.write_text(
            "include /etc/ldap/schema/core.schema\n"
            "include /etc/ldap/schema/cosine.schema\n"
            "include /etc/ldap/schema/inetorgperson.schema\n"
            f"pidfile {directory}/pid\n"
            "modulepath /usr/lib/ldap\nmoduleload back_mdb\n"
            "access to * by * read\naccess to attrs=userPassword by * auth\n"
            f"database mdb\ndirectory {directory}/data\n"
            'suffix "dc=example,dc=net"\nrootdn "cn=Manager,dc=example,dc=net"\n'
        )
        entries = "dn: dc=example,dc=net\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: example\n\n"
        for name, password in users.items():
            entries += (
                f"dn: uid={name},dc=example,dc=net\nobjectClass: inetOrgPerson\n"
                f"uid: {name}\nsn: {name}\ncn: {name}\nuserPassword: {password}\n\n"
            )
        subprocess.run([slapadd, "-f", str(configuration)], input=entries.encode(), check=True, capture_output=True)
        self._run([slapd, "-d", "0", "-f", str(configuration), "-h", f"ldap://{HOST}:{self.port}"])
        self._wait(self._listens)

    def line(self, user: str) -> str:
        options = f'ldapserver={HOST} ldapport={self.port} ldapprefix="uid=" ldapsuffix=",dc=example,dc=net"'
        return f"host all {user} all ldap {options}"


class Radius(Service):
    """FreeRADIUS with users of a file."""

    SECRET = "shared"

    def __init__(self, directory: Path, users: dict[str, str]) -> None:
        super().__init__(directory)
        radiusd = program("freeradius", "freeradius")
        (directory / "users").write_text(
            "".join(f'{name} Cleartext-Password := "{password}"\n' for name, password in users.items())
        )
        (directory / "dictionary").write_text("$INCLUDE /usr/share/freeradius/dictionary\n")
        (directory / "radiusd.conf").write_text(
            f"prefix = /usr\nlogdir = {directory}\nraddbdir = {directory}\nrun_dir = {directory}\n"
            f"libdir = /usr/lib/freeradius\npidfile = {directory}/pid\n"
            f'client here {{\n ipaddr = {HOST}\n secret = "{self.SECRET}"\n}}\n'
            f"modules {{\n pap {{\n }}\n files {{\n  usersfile = {directory}/users\n }}\n}}\n"
            "server default {\n"
            f" listen {{\n  type = auth\n  ipaddr = {HOST}\n  port = {self.port}\n }}\n"
            " authorize {\n  files\n  pap\n }\n authenticate {\n  Auth-Type PAP {\n   pap\n  }\n }\n}\n"
        )
        self._run([radiusd, "-f", "-l", "stdout", "-d", str(directory), "-n", "radiusd"])
        self._wait(lambda: "Ready to process requests" in (directory / "log").read_text())

    def line(self, user: str) -> str:
        return f'host all {user} all radius radiusservers={HOST} radiusports={self.port} radiussecrets="{self.SECRET}"'


class Kerberos(Service):
    """An MIT KDC of the realm EXAMPLE.NET, for the service postgres/localhost."""

    def __init__(self, directory: Path, users: dict[str, str]) -> None:
        super().__init__(directory)
        kdc = program("krb5kdc", "krb5-kdc")
        for tool, package in (("kdb5_util", "krb5-kdc"), ("kadmin.local", "krb5-admin-server"), ("kinit", "krb5-user")):
            program(tool, package)
        (directory / "krb5.conf").write_text(
            "[libdefaults]\n default_realm = EXAMPLE.NET\n dns_canonicalize_hostname = false\n rdns = false\n"
            " dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f"[realms]\n EXAMPLE.NET = {{\n  kdc = {HOST}:{self.port}\n }}\n"
            f"[logging]\n kdc = FILE:{directory}/kdc.log\n"
        )
        (directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = {HOST}:{self.port}\n kdc_tcp_listen = {HOST}:{self.port}\n"
            f"[realms]\n EXAMPLE.NET = {{\n  database_name = {directory}/principal\n"
            f"  key_stash_file = {directory}/stash\n }}\n"
        )
        self.environment = {
            "KRB5_CONFIG": str(directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{directory}/tickets",
            # Otherwise the server would leave a replay cache in /var/tmp, of the clients that it has let in.
            "KRB5RCACHENAME": "none:",
        }
        self._tool("kdb5_util", "create", "-s", "-P", "secret")
        for name, password in users.items():
            self._tool("kadmin.local", "-q", f"addprinc -pw {password} {name}")
        self._tool("kadmin.local", "-q", "addprinc -randkey postgres/localhost")
        self.keytab = directory / "keytab"
        self._tool("kadmin.local", "-q", f"ktadd -k {self.keytab} postgres/localhost")
        self._run([kdc, "-n", "-P", str(directory / "pid")], **self.environment)
        self._wait(self._listens)

    def _tool(self, name: str, *arguments: str, text: str = "") -> None:
        done = subprocess.run(
            [program(name, "krb5"), *arguments],
            env={**os.environ, **self.environment},
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def get_ticket(self, user: str, password: str) -> None:
        self._tool("kinit", user, text=password + "\n")


class Ident:
    """An ident server (RFC 1413) on its own port, which gives the same name for every connection."""

    def __init__(self, says: str) -> None:
        self.says = says
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.listener.bind((HOST, 113))
        except OSError as error:
            self.listener.close()
            pytest.skip(f"port 113, of ident, cannot be had: {error}")
        self.listener.listen()
        self.asked: list[str] = []

    def serve(self) -> None:
        """Answers requests until it is stopped; to be run in a thread."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                with client:
                    question = client.recv(200).decode().strip()
                    self.asked.append(question)
                    client.sendall(f"{question} : USERID : UNIX :{self.says}\r\n".encode())

    def stop(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
