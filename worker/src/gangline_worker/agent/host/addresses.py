"""Where ranks on other nodes reach this one, and whether a gang's nodes reach each other."""

from __future__ import annotations

import errno
import socket
from hashlib import blake2b
from pathlib import Path

from gangline_schemas.events.scheduling import GangAllocated, NodeAssignment
from gangline_service.loopback import LOOPBACK, is_loopback

_ELSEWHERE = (
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)
"""Addresses for documentation (RFC 5737, RFC 3849): only the default route leads there."""
_DISCARD_PORT = 9


class AddressUnreachable(OSError):
    """Nodes of a gang cannot reach each other at the addresses that they advertise."""


def default_address() -> str:
    """The source address of the default route; loopback without one. Sends no packet."""
    for family, elsewhere in _ELSEWHERE:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((elsewhere, _DISCARD_PORT))
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return LOOPBACK


def loopback_of(address: str) -> str | None:
    """Names the loopback interface of this boot and network namespace; None of other addresses."""
    if not is_loopback(address):
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = Path("/proc/self/ns/net").stat().st_ino
    return blake2b(f"{boot} {namespace}".encode(), digest_size=8).hexdigest()


def check_addresses(allocation: GangAllocated, own: NodeAssignment) -> None:
    """Refuse a gang over several machines one of which advertises a loopback address.

    Several agents on one machine may all have one. The others of them are known by their copies'
    servers, which listen on this machine; an agent that has none is taken for one of them.

    Raises:
        AddressUnreachable: says which node, and what to set.
    """
    loopback = [node for node in allocation.nodes if is_loopback(node.address)]
    if not loopback or len(allocation.nodes) == 1:
        return
    others = [node for node in allocation.nodes if node.node_id != own.node_id]
    if len(loopback) == len(allocation.nodes) and all(_is_beside(own, node) for node in others):
        return
    node = loopback[0]
    raise AddressUnreachable(
        f"a gang over several machines cannot meet at {node.address} of node {node.node_id}: "
        "set GANGLINE_ADDRESS of its agent to an address that the other nodes reach"
    )


def _is_beside(own: NodeAssignment, other: NodeAssignment) -> bool:
    """Whether the other node's agent runs on this machine, as far as can be seen."""
    if other.copies_port is None:
        return True
    if (own.address, own.copies_port) == (other.address, other.copies_port):
        return False  # one machine gives a port once
    family = socket.AF_INET6 if ":" in other.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ended ones do not count
        try:
            probe.bind((other.address, other.copies_port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
