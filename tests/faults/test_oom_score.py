"""The kernel that is out of memory ends a backend before the dispatcher, which holds every session."""

from __future__ import annotations

from pathlib import Path


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_dispatcher_is_as_safe_from_oom_as_the_postmaster(run, monkeypatch):
    """Where PG_OOM_ADJUST_FILE has the server's children raise theirs (fork_process.c)."""
    monkeypatch.setenv("PG_OOM_ADJUST_FILE", "/proc/self/oom_score_adj")
    monkeypatch.setenv("PG_OOM_ADJUST_VALUE", "300")
    cluster = run.cluster("oom").start()
    try:
        assert cluster.sql("SELECT 1") == [(1,)]
        launchers = cluster.sql("SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'pg_baton%'")
        assert launchers and all(score(pid) == 300 for (pid,) in launchers)
        (dispatcher,) = cluster.dispatcher_pids()
        assert score(dispatcher) == score(cluster.postmaster_pid()) < 300
    finally:
        cluster.finish()
