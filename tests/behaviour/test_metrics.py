"""baton-monitor: health checks and metrics by HTTP, and what becomes of hostile clients."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import time
from pathlib import Path

import psycopg
import pytest
from harness.health import wait_until
from harness.ports import free_port
from harness.processes import memory_kb
from harness.wire import LoginFailed, Wire, query
from prometheus_client.openmetrics.parser import text_string_to_metric_families

pytestmark = [pytest.mark.pool_only, pytest.mark.one_major]

HOST = "127.0.0.1"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs/metrics.md"


def get(port: int, path: str, method: str = "GET", host: str = HOST, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def answers(port: int, path: str, status: int, host: str = HOST) -> bool:
    with contextlib.suppress(OSError):
        return get(port, path, host=host)[0] == status
    return False


def await_status(port: int, path: str, status: int, host: str = HOST) -> None:
    """Answers may be a second old."""
    wait_until(lambda: answers(port, path, status, host), 20, f"{path}: {status}")


def await_closed(port: int) -> None:
    def is_closed() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection((HOST, port), 5).close()
            return False
        return True

    wait_until(is_closed, 20, f"nothing listens on {port}")


def monitors(cluster) -> list[int]:
    return [one.pid for one in cluster.processes() if re.search(r"(^|/)baton-monitor", one.command)]


@pytest.fixture(scope="module")
def monitored(run):
    cluster = run.cluster("metrics", parameters={"pg_baton.max_backends": 4, "pg_baton.hang_limit_ms": 0})
    cluster.monitor_port = free_port()
    cluster.set_parameters({"pg_baton.monitor_port": cluster.monitor_port})
    try:
        cluster.start()
        cluster.sql("CREATE EXTENSION pg_baton")
        await_status(cluster.monitor_port, "/healthz", 200)
    except BaseException:
        cluster.destroy()
        raise
    yield cluster
    cluster.finish()


# ---- Health ------------------------------------------------------------------


def test_checks_say_what_the_server_is(monitored):
    port = monitored.monitor_port
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (200, "primary\n")
    assert get(port, "/primary") == (200, "primary\n")
    assert get(port, "/replica") == (503, "primary\n")
    assert get(port, "/nothing")[0] == 404
    assert get(port, "/readyz", "HEAD") == (200, "")
    assert get(port, "/readyz", "OPTIONS")[0] == 200
    assert get(port, "/metrics", "POST")[0] == 405
    # "localhost" is both.
    assert get(port, "/healthz", host="::1")[0] == 200


def test_a_hung_dispatcher_fails_the_checks(monitored):
    port = monitored.monitor_port
    (dispatcher,) = monitored.dispatcher_pids()
    os.kill(dispatcher, signal.SIGSTOP)
    try:
        await_status(port, "/healthz", 503)
        await_status(port, "/readyz", 503)
        assert get(port, "/healthz")[1] == "the dispatcher does not answer\n"
        status, text = get(port, "/metrics")
        assert status == 200 and "\npg_baton_up 0.0\n" in text, text
    finally:
        os.kill(dispatcher, signal.SIGCONT)
    await_status(port, "/readyz", 200)


def test_a_pause_of_all_sessions_is_not_ready(monitored):
    port = monitored.monitor_port
    monitored.sql("SELECT pg_baton_pause(database => 'template1')")
    try:
        await_status(port, "/readyz", 200)
        monitored.sql("SELECT pg_baton_pause()")
        await_status(port, "/readyz", 503)
        assert get(port, "/readyz")[1] == "paused\n"
        assert get(port, "/healthz")[0] == 200
        # a load balancer would close the sessions that the pause keeps
        assert get(port, "/primary") == (200, "primary\n")
        assert get(port, "/replica")[0] == 503
    finally:
        monitored.sql("SELECT pg_baton_resume(), pg_baton_resume(database => 'template1')")
    await_status(port, "/readyz", 200)


def test_another_dispatcher_is_asked_after_a_restart(monitored):
    port = monitored.monitor_port
    monitored.sql("SELECT pg_baton_restart_dispatcher()")
    await_status(port, "/readyz", 200)
    assert sample(families(port), "pg_baton_dispatcher_restarts_total") >= 1


def test_a_standby_is_a_replica_until_it_is_promoted(run):
    port = free_port()
    primary = run.cluster("metrics primary").start()
    standby = run.cluster("metrics standby")
    try:
        standby.become_standby_of(primary)
        standby.set_parameters({"pg_baton.monitor_port": port})
        standby.start()
        await_status(port, "/replica", 200)
        assert get(port, "/readyz") == (200, "standby\n")
        assert get(port, "/primary") == (503, "standby\n")
        standby.sql("SELECT pg_promote()")
        await_status(port, "/primary", 200)
    finally:
        standby.finish()
        primary.finish()


# ---- Its life ------------------------------------------------------------------


def test_a_reload_starts_moves_and_ends_the_monitor(make_cluster):
    cluster = make_cluster()
    assert monitors(cluster) == []
    first, second = free_port(), free_port()

    def set_to(**parameters) -> None:
        cluster.set_parameters({f"pg_baton.{name}": value for name, value in parameters.items()})
        cluster.reload()

    set_to(monitor_port=first)
    await_status(first, "/readyz", 200)
    set_to(monitor_port=second, monitor_listen_addresses="127.0.0.2")
    await_status(second, "/readyz", 200, host="127.0.0.2")
    await_closed(first)
    await_closed(second)
    set_to(monitor_listen_addresses="no.such.host.")
    cluster.wait_for_log("invalid value for parameter .*monitor_listen_addresses")
    assert get(second, "/readyz", host="127.0.0.2")[0] == 200
    set_to(monitor_port=0)
    wait_until(lambda: monitors(cluster) == [], 20, "ended")


def test_a_port_in_use_is_told_once_and_tried_again(make_cluster):
    cluster = make_cluster()
    port = free_port()
    with socket.create_server((HOST, port)), cluster.new_log() as new_log:
        cluster.set_parameters({"pg_baton.monitor_port": port, "pg_baton.monitor_listen_addresses": HOST})
        cluster.reload()
        cluster.wait_for_log(f'monitor could not listen on "{HOST}", port {port}')
        # Two more tries.
        time.sleep(11)
        assert new_log().count("could not listen") == 1
        with psycopg.connect(cluster.pool()) as session:
            assert session.execute("SELECT 1").fetchone() == (1,)
    await_status(port, "/healthz", 200)
    cluster.expect_in_log("monitor could not listen")


def with_monitor(make_cluster):
    """A cluster whose reload has started a monitor, and its port."""
    cluster = make_cluster()
    port = free_port()
    cluster.set_parameters({"pg_baton.monitor_port": port})
    cluster.reload()
    await_status(port, "/readyz", 200)
    return cluster, port


def test_a_monitor_that_dies_is_started_again(make_cluster):
    cluster, port = with_monitor(make_cluster)
    (monitor,) = monitors(cluster)
    os.kill(monitor, signal.SIGKILL)
    wait_until(lambda: monitors(cluster) not in ([], [monitor]), 30, "another monitor")
    await_status(port, "/readyz", 200)
    cluster.expect_in_log("monitor .PID .* has ended: .*signal 9")


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_monitor_ends_with_its_server(make_cluster, is_stopped):
    cluster, port = with_monitor(make_cluster)
    if is_stopped:
        os.kill(*monitors(cluster), signal.SIGSTOP)
    os.kill(cluster.postmaster_pid(), signal.SIGKILL)
    wait_until(lambda: monitors(cluster) == [], 20, "ended")
    await_closed(port)
    cluster.kill()
    cluster.start()
    await_status(port, "/healthz", 200)


def test_a_hung_monitor_keeps_no_client_waiting(make_cluster):
    cluster, port = with_monitor(make_cluster)
    (monitor,) = monitors(cluster)
    os.kill(monitor, signal.SIGSTOP)
    # The launcher is asked about each of these logins, and has a reload.
    for number in range(3):
        cluster.sql(f"CREATE ROLE late{number} LOGIN")
        with psycopg.connect(cluster.pool(user=f"late{number}", connect_timeout=20)) as session:
            assert session.execute("SELECT current_user").fetchone() == (f"late{number}",)
    other = free_port()
    cluster.set_parameters({"pg_baton.monitor_port": other})
    cluster.reload()
    await_status(other, "/readyz", 200)
    assert monitor not in monitors(cluster)


def test_a_server_that_stops_is_not_ready(make_cluster):
    cluster, port = with_monitor(make_cluster)
    with psycopg.connect(cluster.direct()):
        # A smart shutdown: it waits for the session.
        os.kill(cluster.postmaster_pid(), signal.SIGTERM)
        await_status(port, "/readyz", 503)
        assert get(port, "/readyz")[1] in ("stopping\n", "the dispatcher does not answer\n")
    wait_until(lambda: monitors(cluster) == [], 20, "ended")
    await_closed(port)


def test_another_launcher_starts_another_monitor(make_cluster):
    cluster, port = with_monitor(make_cluster)
    (monitor,) = monitors(cluster)
    cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")
    wait_until(lambda: monitors(cluster) not in ([], [monitor]), 30, "another monitor")
    await_status(port, "/readyz", 200)


def test_a_monitor_may_do_nothing_but_answer(monitored):
    (monitor,) = monitors(monitored)
    status = Path(f"/proc/{monitor}/status").read_text()
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE), status
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE), status
    environment = Path(f"/proc/{monitor}/maps").read_text()
    assert "pg_baton" not in environment, "it maps memory of the server's"


# ---- Metrics ---------------------------------------------------------------------


def families(port: int) -> dict:
    status, text = get(port, "/metrics")
    assert status == 200
    return {family.name: family for family in text_string_to_metric_families(text)}


def sample(found: dict, name: str, **labels: str) -> float:
    """The sum of the samples with these labels."""
    all_samples = [sample for family in found.values() for sample in family.samples]
    return sum(
        sample.value for sample in all_samples if sample.name == name and labels.items() <= sample.labels.items()
    )


def fresh(port: int) -> dict:
    """An answer to a question asked from now on."""
    time.sleep(1.1)
    return families(port)


def documented() -> dict[str, tuple[str, str]]:
    """The families' names, with type and labels."""
    rows = re.findall(r"^\| `(pg_baton_\w+)` \| (\w+) \| ([^|]*)\|", DOCUMENT.read_text(), re.MULTILINE)
    return {name: (kind, re.sub(r"[`,]", "", labels).strip()) for name, kind, labels in rows}


def test_every_name_is_documented_with_its_labels(monitored):
    port = monitored.monitor_port
    with psycopg.connect(monitored.pool(), autocommit=True) as session, contextlib.suppress(psycopg.OperationalError):
        session.execute("CREATE TEMPORARY TABLE kept (a int)")
        session.execute("LISTEN channel")
        with contextlib.suppress(psycopg.Error):
            session.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(monitored.pool(user="no_such_role"))
        found = fresh(port)
    described = documented()
    assert found.keys() - described.keys() == set(), "not documented"
    assert described.keys() - found.keys() <= {
        "pg_baton_dedicated_sessions",
        "pg_baton_dedicated_backends",
        "pg_baton_backends_lost",
        "pg_baton_dispatcher_open_descriptors",
    }
    for name, family in found.items():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert described[name] == (family.type, " ".join(sorted(labels))), name


def test_a_load_of_known_size_gives_its_numbers(monitored):
    port = monitored.monitor_port
    monitored.sql("CREATE ROLE loaded LOGIN")
    labels = {"database": "postgres", "role": "loaded"}
    before = fresh(port)
    rounds, clients = 250, 4
    wires = [Wire.login(HOST, monitored.pool_port, "loaded") for _ in range(clients)]
    for number in range(rounds):
        for wire in wires:
            wire.ask(query(f"SELECT {number}"))
        if number % 10 == 0:
            wires[0].ask(query("SELECT 1 / 0"))
    with pytest.raises(LoginFailed):
        Wire.login(HOST, monitored.pool_port, "no_such_role_either")

    def grown(found: dict, name: str, **more: str) -> float:
        return sample(found, name, **more) - sample(before, name, **more)

    found = {}
    transactions = rounds * clients + rounds // 10
    expected = {
        "pg_baton_transactions_total": transactions,
        "pg_baton_requests_total": transactions,
        "pg_baton_statements_total": rounds * clients,
        "pg_baton_errors_total": rounds // 10,
        "pg_baton_logins_total": clients,
    }

    def is_counted() -> bool:
        found.update(families(port))
        return sample(found, "pg_baton_transactions_total", **labels) >= 0.99 * transactions

    wait_until(is_counted, 20, "the load is counted")
    found = fresh(port)
    for name, number in expected.items():
        assert sample(found, name, **labels) == pytest.approx(number, rel=0.01), name
    duration = "pg_baton_transaction_duration_seconds"
    assert grown(found, f"{duration}_count", database="postgres") == pytest.approx(transactions, rel=0.05)
    assert grown(found, f"{duration}_sum", database="postgres") == pytest.approx(
        grown(found, "pg_baton_transaction_time_seconds_total", database="postgres"), rel=0.05, abs=0.05
    )
    hand_overs = grown(found, "pg_baton_hand_overs_total", database="postgres")
    waits = grown(found, "pg_baton_wait_duration_seconds_count", database="postgres")
    assert waits == pytest.approx(hand_overs, rel=0.05, abs=10)
    assert grown(found, "pg_baton_login_duration_seconds_count", database="postgres") >= clients
    assert sample(found, "pg_baton_sessions", **labels) == clients
    assert grown(found, "pg_baton_errors_by_class_total", **{"class": "22"}) == rounds // 10
    assert grown(found, "pg_baton_logins_refused_total", sqlstate="28000") == 1
    assert sample(found, "pg_baton_context_memory_limit_bytes") == 256 << 20
    for wire in wires:
        wire.close()


def test_native_sessions_are_sessions_of_their_own_state(monitored):
    monitored.sql("CREATE ROLE copier LOGIN REPLICATION")
    with psycopg.connect(monitored.pool(user="copier", replication="database")):
        found = fresh(monitored.monitor_port)
    labels = {"database": "postgres", "role": "copier"}
    assert sample(found, "pg_baton_sessions", state="native", **labels) == 1
    assert sample(found, "pg_baton_dedicated_sessions", cause="replication", **labels) == 1


def test_names_of_roles_write_no_samples(monitored):
    monitored.sql("""CREATE ROLE "a\"\"} 1\n# EOF\n\\" LOGIN""")
    with contextlib.closing(Wire.login(HOST, monitored.pool_port, 'a"} 1\n# EOF\n\\')):
        found = fresh(monitored.monitor_port)
    assert sample(found, "pg_baton_logins_total", role='a"} 1\n# EOF\n\\') == 1


# ---- Hostile clients ---------------------------------------------------------------


HOSTILE = {
    "nothing of HTTP": b"\x00\x01\x02\xff" * 1000,
    "an endless line": b"GET /" + b"a" * 1_000_000,
    "endless headers": b"GET /metrics HTTP/1.1\r\n" + b"X-A: b\r\n" * 100_000,
    "a huge body": b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    + b"a" * 1_000_000,
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "a path out of the site": b"GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "half a request": b"GET /metrics HT",
    "two lengths": b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_input_ends_its_connection_only(monitored, what):
    port = monitored.monitor_port
    before = monitors(monitored)
    with socket.create_connection((HOST, port), 5) as client:
        client.settimeout(30)
        with contextlib.suppress(OSError):
            client.sendall(HOSTILE[what])
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                answer += part
    assert not answer.startswith(b"HTTP/1.1 200")
    assert get(port, "/readyz")[0] == 200
    assert monitors(monitored) == before


def test_a_web_site_does_not_read_the_numbers_by_a_local_browser(monitored):
    """A name that resolves to this machine would make them the site's own (DNS rebinding)."""
    port = monitored.monitor_port
    for path in ("/", "/metrics", "/history", "/live"):
        assert get(port, path, Host=f"example.com:{port}")[0] == 421
    assert get(port, "/metrics", Host=f"localhost:{port}")[0] == 200
    assert get(port, "/readyz", Host="example.com")[0] == 200


def test_a_client_that_takes_no_answer_is_ended(monitored):
    (monitor,) = monitors(monitored)

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{monitor}/fd"))

    get(monitored.monitor_port, "/healthz")
    before = descriptors()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(2)
        client.connect((HOST, monitored.monitor_port))
        with contextlib.suppress(OSError):
            for _ in range(10_000):
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
        wait_until(lambda: descriptors() <= before, 30, "the connection is closed")


def test_many_silent_and_slow_clients_keep_no_scrape_out(monitored):
    port = monitored.monitor_port
    (monitor,) = monitors(monitored)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((HOST, port), 5)) for _ in range(300)]
        for number, client in enumerate(clients):
            # Some are silent, some begin a request, some never read what they ask for.
            with contextlib.suppress(OSError):
                client.sendall([b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50][number % 3])
        assert get(port, "/readyz")[0] == 200
        assert get(port, "/metrics")[0] == 200
        descriptors = len(os.listdir(f"/proc/{monitor}/fd"))
        assert descriptors <= 100
        assert memory_kb(monitor) < 100_000
        # Those that go on slowly are ended in spite of it.
        last = clients[-3]

        def is_ended() -> bool:
            try:
                last.sendall(b"G")
            except OSError:
                return True
            return False

        wait_until(is_ended, 60, "the slow client is ended")
    assert monitors(monitored) == [monitor]
