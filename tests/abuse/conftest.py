"""Attacks on a default installation, with bystanders beside.

The cluster has no parameter of pg_baton's set but its port (and those of BATON_TEST_SET): what protects the
bystanders are the defaults.
"""

from __future__ import annotations

import pytest
from harness.bystanders import Bystanders

# What the harness sets for other tests, and no default installation has.
AS_INSTALLED = {"pg_baton.max_extra_backends": None}


@pytest.fixture
def installation(make_cluster):
    """make(**server's parameters): a default installation with the roles `low`, the attacker's, and `other`."""

    def make(**parameters):
        cluster = make_cluster(parameters={**AS_INSTALLED, **{n.replace("__", "."): v for n, v in parameters.items()}})
        cluster.sql("CREATE EXTENSION pg_baton")
        for role in ("low", "other"):
            cluster.sql(f"CREATE ROLE {role} LOGIN")
        return cluster

    return make


@pytest.fixture
def bystanders():
    """bystanders(cluster): a context manager, see harness/bystanders.py."""
    return Bystanders
