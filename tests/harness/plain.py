"""Reasons why a test has no meaning where clients connect by TLS (BATON_TEST_TLS): docs/limits.md."""

import pytest

while_the_dispatcher_is_away = pytest.mark.in_plain("a TLS session stands still with its dispatcher, and ends with it")
counts_descriptors = pytest.mark.in_plain("a TLS session takes three descriptors of the dispatcher")
keepalives = pytest.mark.in_plain("a TLS client's socket has the keepalives that its server had when it came")
without_tls = pytest.mark.in_plain("what a server without TLS, or a line, says to who comes without it")
