"""What counts as this machine alone: it decides who may go without TLS."""

from __future__ import annotations

import pytest

from gangline_service.loopback import is_loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "0:0:0:0:0:0:0:1", "localhost"]
)
def test_this_machine(host: str) -> None:
    assert is_loopback(host)
    assert is_loopback(host.upper())


@pytest.mark.parametrize(
    "host",
    [
        *("0.0.0.0", "10.0.0.7", "128.0.0.1", "127.1", "127.0.0.1:80", "127.0.0.1.evil.example"),
        *("::", "fe80::1", "2001:db8::1", "[::1]", "::1.evil.example"),
        *("", " ", "gangline.example", "localhost.evil.example", "localhost:80"),
    ],
)
def test_others_may_reach_it(host: str) -> None:
    assert not is_loopback(host)
