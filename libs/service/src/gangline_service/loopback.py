"""Whether only this machine reaches an address: what may go without TLS, and by which Host."""

from __future__ import annotations

from ipaddress import ip_address

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether a host name or address (IPv6 without brackets) is this machine's loopback.

    Of names only localhost is: what others resolve to, others decide.
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
