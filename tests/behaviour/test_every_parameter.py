"""Every parameter has a test that changes it on a running server and sees what that
does, and docs/parameters.md says of every one what it takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.pool_only

TREE = Path(__file__).resolve().parents[2]

# Where each is changed by a reload, or as a role's or database's.
CHANGED_BY = {
    "backend_cache_memory": "test_parameter_reloads.py",
    "backend_idle_timeout": "test_parameter_reloads.py",
    "backend_lifetime": "test_pool_shares.py",
    "console_version": "test_console.py",
    "dedicated_objects": "test_dedicated.py",
    "dedicating_parameters": "test_dedicated.py",
    "dispatcher_log": "test_parameter_reloads.py",
    "dispatcher_program": "test_parameter_reloads.py",
    "dispatchers": "test_parameter_reloads.py",
    "enabled": "test_native.py",
    "force_migration": "test_pool.py",
    "gss_encryption": "test_gss_encryption.py",
    "log_min_pin": "test_client_log.py",
    "log_min_wait": "test_client_log.py",
    "log_scheduling": "test_scheduling_log.py",
    "login": "test_login_by_server.py",
    "max_backends": "test_saturation.py",
    "max_dedicated": "test_parameter_reloads.py",
    "max_extra_backends": "test_parameter_reloads.py",
    "max_login_rate": "test_door.py",
    "max_login_rate_per_address": "test_door.py",
    "max_sessions_per_address": "test_door.py",
    "max_sessions_per_user": "test_door.py",
    "max_unauthenticated": "test_door.py",
    "min_backends": "test_parameter_reloads.py",
    "monitor_listen_addresses": "test_metrics.py",
    "monitor_port": "test_metrics.py",
    "native_dbuser_names": "test_parameter_reloads.py",
    "native_when_waiting": "test_parameter_reloads.py",
    "pool_max_backends": "test_pool_settings.py",
    "pool_max_sessions": "test_pool_settings.py",
    "pool_memory": "test_pool_settings.py",
    "pool_min_backends": "test_pool_settings.py",
    "pool_mode": "test_pool_settings.py",
    "pool_reserve": "test_pool_shares.py",
    "pool_weight": "test_pool_shares.py",
    "session_wait_timeout": "test_parameter_reloads.py",
    "hold_sessions": "test_hold_sessions.py",
    "keep_after_demotion": "test_hold_sessions.py",
    "sharing_threshold": "test_pool_modes.py",
    "show_idle_sessions": "test_agents.py",
    "stateless_libraries": "test_unlisted_libraries.py",
    "test_constants": "test_parameter_reloads.py",
    "transaction_timeout": "test_transaction_timeout.py",
}

# Only a restart changes these; where their effect is seen.
NEED_A_RESTART = {
    "listen_addresses": "test_same_port.py",
    "max_sessions": "test_pool.py",
    "port": "test_same_port.py",
    "session_memory": "test_native.py",
}

TAKES_EFFECT = {"postmaster": "restart", "sighup": "reload", "superuser": "superuser"}


@pytest.fixture(scope="module")
def parameters(run):
    """Of the server: context and default, by name; the dispatcher's own one left out."""
    cluster = run.cluster("every-parameter").start()
    rows = cluster.sql(
        "SELECT substr(name, 10), context, boot_val FROM pg_settings"
        " WHERE name LIKE 'pg_baton.%' AND name <> 'pg_baton.attach'"
    )
    yield {name: (context, default) for name, context, default in rows}
    cluster.finish()


def documented() -> dict[str, tuple[str, str]]:
    text = (TREE / "docs/parameters.md").read_text()
    return {
        name: (default, takes_effect)
        for name, default, takes_effect in re.findall(
            r"^\| `pg_baton\.(\w+)` \| ([^|]*) \| ([^|]*) \|", text, re.MULTILINE
        )
    }


def test_each_is_changed_on_a_running_server_by_a_test(parameters):
    assert set(parameters) == set(CHANGED_BY) | set(NEED_A_RESTART)
    assert {name for name, (context, _) in parameters.items() if context == "postmaster"} == set(NEED_A_RESTART)
    for name, file in {**CHANGED_BY, **NEED_A_RESTART}.items():
        text = (TREE / "tests/behaviour" / file).read_text()
        assert re.search(rf"(\b|__){name}\b", text), f"{file} has nothing of {name}"
        changes = (
            "reload()" in text or "pg_reload_conf" in text or "ALTER ROLE" in text or "assert_closest_counts" in text
        )
        assert changes or name in NEED_A_RESTART, f"{file} changes nothing on a running server"


def test_each_is_documented_with_what_it_takes(parameters):
    found = documented()
    assert set(found) == set(parameters)
    for name, (_, takes_effect) in found.items():
        context, _ = parameters[name]
        assert takes_effect.split(",")[0] == TAKES_EFFECT[context], name
