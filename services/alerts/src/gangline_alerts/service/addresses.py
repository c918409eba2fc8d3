"""The address of a webhook: resolved once, checked, and the only one that is connected to.

Without that a name could be resolved to a public address for the check, and to a private one for
the connection.
"""

from __future__ import annotations

import ipaddress
import socket


class AddressRefusedError(Exception):
    """The name has no address that may be connected to."""


def resolve(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host, in the order of the resolver.

    Raises AddressRefusedError if one of them is not public, and OSError if there are none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not allow_private:
        for address in addresses:
            if not is_public(address):
                raise AddressRefusedError(
                    f"it has the address {address}, which is not public; set allow_private for "
                    "this receiver if it is meant"
                )
    return addresses


def is_public(address: str) -> bool:
    """Whether it belongs to a machine of the public internet; also within IPv6's wrappings."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo or (None, None))[1]
        if inner is None and parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if parsed not in _UNICAST:  # of one site, or with an address of IPv4 within
            return False
    return parsed.is_global and not parsed.is_multicast


_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that is assigned for the public internet."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
