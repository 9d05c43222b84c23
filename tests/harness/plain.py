"""Reasons why a test has no meaning where clients connect by TLS (BATON_TEST_TLS): docs/limits.md."""

import pytest

counts_descriptors = pytest.mark.in_plain("a TLS client takes more descriptors while it logs in")
keepalives = pytest.mark.in_plain("a TLS client's socket has the keepalives that its server had when it came")
without_tls = pytest.mark.in_plain("what a server without TLS, or a line, says to who comes without it")
