"""Each parameter of TLS has the same effect on the pool's port as on the server's own.

OpenSSL's s_client connects to both ports, before and after the parameter is changed: the
results are the same on both ports, and the change makes them different."""

from __future__ import annotations

import base64
import re
import subprocess
from dataclasses import dataclass

import psycopg
import pytest
from harness.account import server_major
from harness.certificates import Authority, make_secure, put
from harness.cluster import HOST
from harness.health import wait_until

AES_128 = "ECDHE-ECDSA-AES128-GCM-SHA256"
AES_256 = "ECDHE-ECDSA-AES256-GCM-SHA384"
CHACHA20 = "ECDHE-ECDSA-CHACHA20-POLY1305"


@pytest.fixture(scope="module")
def authority(run):
    return Authority(run.directory / "tls-parameters")


# Modulus and generator: a modulus that is divisible by 3; and a Mersenne prime, which is not a
# safe prime, with a generator that generates only 1.
WRONG_DH = {"composite.pem": (2**2203 + 1, 2), "weak.pem": (2**2203 - 1, 1)}


def dh_parameters(modulus: int, generator: int) -> str:
    """As PEM: SEQUENCE { INTEGER p, INTEGER g }."""

    def der(tag: int, content: bytes) -> bytes:
        length = len(content)
        size = bytes([length]) if length < 128 else b"\x82" + length.to_bytes(2, "big")
        return bytes([tag]) + size + content

    numbers = b"".join(der(2, number.to_bytes(number.bit_length() // 8 + 1, "big")) for number in (modulus, generator))
    text = base64.encodebytes(der(0x30, numbers)).decode()
    return f"-----BEGIN DH PARAMETERS-----\n{text}-----END DH PARAMETERS-----\n"


@pytest.fixture(scope="module")
def server(run, authority):
    cluster = run.cluster("tls parameters")
    make_secure(cluster, authority)
    # certificates beside the usual certificates, under names of their own
    pair = authority.sign("other", "/CN=other")
    put(cluster, pair.certificate, "other.crt")
    put(cluster, pair.key, "other.key")
    put(cluster, Authority(authority.folder / "strangers", "stranger").root.certificate, "strangers.crt")
    for name, numbers in WRONG_DH.items():
        (authority.folder / name).write_text(dh_parameters(*numbers))
        put(cluster, authority.folder / name, name)
    cluster.start()
    yield cluster
    cluster.finish()


def ask(port: int, options: tuple[str, ...]) -> tuple[str, ...]:
    """The result of a handshake, as s_client reports it: version, cipher, group, the subject of
    the certificate, the authority of the requested client certificates; or the alert."""
    command = ["openssl", "s_client", "-starttls", "postgres", "-connect", f"{HOST}:{port}", *options]
    ran = subprocess.run(command, input="", capture_output=True, text=True, timeout=30)
    said = ran.stdout + ran.stderr
    alert = re.search(r"SSL alert number (\d+)", said)
    if alert:
        return ("alert", alert[1])
    # "Server Temp Key", since OpenSSL 3.5 "Peer Temp Key", and for some groups another name
    patterns = (
        r"New, (\S+), Cipher is (\S+)",
        r"(?:Server|Peer) Temp Key: (.*)|Negotiated TLS1.3 group: (.*)",
        r"(?m)^subject=(.*)",
        r"Acceptable client certificate CA names\n(.*)",
    )
    found = [re.search(pattern, said) for pattern in patterns]
    assert found[0], said
    return tuple(word for match in found if match for word in match.groups() if word)


@dataclass(frozen=True)
class Case:
    """The parameters to change; the clients, by their options; and the parameters that are set before."""

    settings: dict[str, str]
    clients: tuple[str, ...]
    before: tuple[tuple[str, str], ...] = ()


CASES = {
    # off: the client's order counts, in each of the two lists
    "ssl_prefer_server_ciphers": Case(
        {"ssl_prefer_server_ciphers": "off"},
        (f"-tls1_2 -cipher {AES_128}:{AES_256}", f"-tls1_2 -cipher {AES_256}:{AES_128}"),
        (("ssl_ciphers", f"{AES_256}:{AES_128}"),),
    ),
    "ssl_ciphers": Case({"ssl_ciphers": CHACHA20}, ("-tls1_2", f"-tls1_2 -cipher {AES_256}")),
    "ssl_ecdh_curve": Case(
        {"ssl_ecdh_curve": "secp384r1"}, ("", "-tls1_2", "-groups P-384", "-groups P-256", "-tls1_2 -groups P-256")
    ),
    "ssl_min_protocol_version": Case({"ssl_min_protocol_version": "TLSv1.3"}, ("-tls1_2", "-tls1_3")),
    "ssl_min_protocol_version, lower": Case(
        {"ssl_min_protocol_version": "TLSv1.1"},
        ("-tls1_1 -cipher ALL:@SECLEVEL=0", "-tls1 -cipher ALL:@SECLEVEL=0"),
        (("ssl_ciphers", "ALL:@SECLEVEL=0"),),
    ),
    "ssl_max_protocol_version": Case({"ssl_max_protocol_version": "TLSv1.2"}, ("-tls1_2", "-tls1_3", "")),
    "ssl_cert_file and ssl_key_file": Case({"ssl_cert_file": "other.crt", "ssl_key_file": "other.key"}, ("", "-tls1_2")),
    # s_client shows a certificate of the first authority
    "ssl_ca_file": Case({"ssl_ca_file": "strangers.crt"}, ("", "-tls1_2", "-tls1_2 -cert {client.crt} -key {client.key}")),
    "ssl_ca_file, none": Case({"ssl_ca_file": ""}, ("", "-tls1_2")),
}  # fmt: skip
OF_18 = {
    "ssl_groups": Case(
        {"ssl_groups": "secp521r1:secp384r1"},
        ("", "-groups P-521:P-384", "-groups P-384:P-521", "-groups P-384", "-groups P-256", "-tls1_2 -groups X25519"),
    ),
    "ssl_tls13_ciphers": Case(
        {"ssl_tls13_ciphers": "TLS_CHACHA20_POLY1305_SHA256"},
        ("-tls1_3", "-tls1_3 -ciphersuites TLS_AES_256_GCM_SHA384", "-tls1_2"),
    ),
}
if server_major() >= 18:
    CASES.update(OF_18)


@pytest.mark.parametrize("name", CASES)
def test_tls_parameter_has_the_same_effect_as_on_the_server_port(server, authority, name):
    case = CASES[name]
    pair = authority.sign("client", "/CN=postgres")
    clients = [
        tuple(client.replace("{client.crt}", str(pair.certificate)).replace("{client.key}", str(pair.key)).split())
        for client in case.clients
    ]

    def told(port: int) -> list[tuple[str, ...]]:
        return [ask(port, client) for client in clients]

    def same(port: int, found: list[tuple[str, ...]]) -> bool:
        same.seen = told(port)
        return same.seen == found

    old = {name: server.parameters.get(name) for name in (*case.settings, *dict(case.before))}
    try:
        server.set_parameters(dict(case.before))
        with psycopg.connect(server.direct()) as session:
            start = session.execute("SELECT pg_conf_load_time()").fetchone()
        server.reload()
        wait_until(lambda: server.sql("SELECT pg_conf_load_time()") != [start], what="a reload")
        before = told(server.port)
        wait_until(lambda: same(server.pool_port, before), 20, f"the pool is as the server: {before}")
        server.set_parameters(case.settings)
        server.reload()
        wait_until(lambda: not same(server.port, before), 20, f"{case.settings} is another than {before}")
        after = same.seen
        wait_until(
            lambda: same(server.pool_port, after), 20, f"the server says {after}, and before {before}, so the pool"
        )
    finally:
        server.set_parameters(old)
        server.reload()


NONSENSE = {
    "a_range_without_a_version": {"ssl_min_protocol_version": "TLSv1.3", "ssl_max_protocol_version": "TLSv1.2"},
    "no_cipher": {"ssl_ciphers": "nonsense"},
    "no_curve": {"ssl_ecdh_curve": "nonsense"},
    "no_certificate": {"ssl_cert_file": "nowhere.crt"},
    "a_key_for_a_certificate": {"ssl_cert_file": "other.key"},
    "no_key": {"ssl_key_file": "nowhere.key"},
    "a_certificate_for_a_key": {"ssl_key_file": "other.crt"},
    "another_s_key": {"ssl_key_file": "other.key"},
    "no_authority": {"ssl_ca_file": "nowhere.crt"},
    "no_list_of_revoked": {"ssl_crl_file": "nowhere.crl"},
    "no_list_anywhere": {"ssl_crl_file": "nowhere.crl", "ssl_crl_dir": "nowhere"},
    # the built-in parameters of DH are used
    "no_parameters_of_dh": {"ssl_dh_params_file": "nowhere.pem"},
    "a_certificate_for_parameters_of_dh": {"ssl_dh_params_file": "other.crt"},
    "parameters_of_dh_without_a_prime": {"ssl_dh_params_file": "composite.pem"},
    "parameters_of_dh_that_are_weak": {"ssl_dh_params_file": "weak.pem"},
}
if server_major() >= 18:
    NONSENSE["no_cipher_of_1.3"] = {"ssl_tls13_ciphers": "nonsense"}


@pytest.mark.pool_only
@pytest.mark.parametrize("name", NONSENSE)
def test_invalid_value_changes_nothing_and_both_logs_agree(server, name):
    old = {name: server.parameters.get(name) for name in NONSENSE[name]}
    ports = (server.port, server.pool_port)
    before = [ask(port, ()) for port in ports]
    assert before[0] == before[1]

    def complaints(who: str) -> list[str]:
        # the dispatcher's message has the detail in the same line
        log = re.sub(r"\n.*DETAIL: +", ": ", server.log()[start:])
        return re.findall(f"(?m){who}((?:could not|private key|check of|ECDH|invalid DH).*)$", log)

    start = len(server.log())
    server.set_parameters(NONSENSE[name])
    server.reload()
    try:
        wait_until(lambda: complaints("LOG:  ") and complaints("WARNING:  pg_baton: "), 20, "both say something")
        assert complaints("LOG:  ") == complaints("WARNING:  pg_baton: ")
        if "dh" not in name:
            for who in ("LOG:  ", "WARNING:  pg_baton: "):
                server.wait_for_log(f"{who}SSL configuration was not reloaded", start=start)
        assert [ask(port, ()) for port in ports] == before
    finally:
        server.set_parameters(old)
        server.reload()
        # messages about this value must not count for the next test
        wait_until(
            lambda: "parameters reloaded" in server.log()[start:].split("parameters reloaded", 1)[-1], what="a reload"
        )


def test_no_session_of_tls_is_resumed_and_none_is_compressed(server):
    for port in (server.port, server.pool_port):
        for version in ("-tls1_2", "-tls1_3"):
            command = [
                "openssl",
                "s_client",
                "-starttls",
                "postgres",
                "-connect",
                f"{HOST}:{port}",
                version,
                "-reconnect",
            ]
            ran = subprocess.run(command, input="", capture_output=True, text=True, timeout=30)
            # the first connection, and five reconnections
            assert re.findall(r"(?m)^(New|Reused), TLS", ran.stdout) == ["New"] * 6, ran.stdout
            assert "session ticket" not in ran.stdout and "Compression: NONE" in ran.stdout
