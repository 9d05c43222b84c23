"""The bystanders notice what they are there for."""

from __future__ import annotations

import os
import signal

import pytest
from harness import bystanders as harness
from harness.health import stop

pytestmark = pytest.mark.pool_only


def test_bystanders_notice_a_stopped_dispatcher(installation, bystanders, monkeypatch):
    """Each attack's test rests on it: clients that do not go on fail the test."""
    cluster = installation()
    with bystanders(cluster) as beside:
        beside.all_go_on(3)
        (dispatcher,) = cluster.dispatcher_pids()
        monkeypatch.setattr(harness, "STOPPED_AFTER_S", 1.0)
        stop(dispatcher)
        try:
            with pytest.raises(AssertionError, match="worker|pool"):
                beside.all_go_on(3)
        finally:
            os.kill(dispatcher, signal.SIGCONT)
