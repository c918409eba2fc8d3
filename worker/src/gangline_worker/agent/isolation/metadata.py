"""Keeps users of teams from the cloud's metadata service, which gives out the machine's rights.

A rule of the kernel's routing, for a range of users: packets of theirs to these addresses are
prohibited (connecting fails with EACCES), those of others pass. The rule stays when the agent
ends, since it says nothing about anybody else. It needs CAP_NET_ADMIN, and a kernel with several
routing tables.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from gangline_schemas.metadata_services import ADDRESSES

PRIORITY = 99
_NEW_RULE, _REQUEST_ACK_CREATE_EXCL = 32, 0x1 | 0x4 | 0x200 | 0x400
_PROHIBIT = 8
_DST, _PRIORITY, _UID_RANGE = 1, 6, 20
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EOPNOTSUPP)


def block_metadata(uids: range) -> None:
    """Keep all these users from the addresses. Raises OSError."""
    for address in ADDRESSES:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            _add(family, socket.inet_pton(family, address), uids)
        except OSError as error:
            without = family == socket.AF_INET6 and error.errno in _NO_IPV6
            if error.errno != errno.EEXIST and not without:
                raise


def _add(family: int, address: bytes, uids: range) -> None:
    rule = struct.pack("=8BI", family, 8 * len(address), 0, 0, 0, 0, 0, _PROHIBIT, 0)
    rule += _attribute(_DST, address)
    rule += _attribute(_PRIORITY, struct.pack("=I", PRIORITY))
    rule += _attribute(_UID_RANGE, struct.pack("=II", uids[0], uids[-1]))
    header = struct.pack("=IHHII", 16 + len(rule), _NEW_RULE, _REQUEST_ACK_CREATE_EXCL, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:  # NETLINK_ROUTE
        link.settimeout(5.0)
        link.send(header + rule)
        number = -struct.unpack_from("=i", link.recv(65_536), 16)[0]
    if number:
        raise OSError(number, os.strerror(number))


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)
