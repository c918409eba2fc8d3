"""The ports that a node opens rendezvous on: a block of its own among all agents of the machine.

A block is claimed by binding an abstract Unix socket of its name, which the kernel frees when the
agent ends, however it ends. Two agents, of one platform or of two, never offer the same port.
"""

from __future__ import annotations

import contextlib
import os
import socket
import zlib
from typing import Self

PORTS = 64
FIRST_PORT, LAST_PORT = 20_000, 32_000  # below the kernel's usual range for outgoing connections


class PortBlock:
    """A block, and the bound socket that claims it until `close` or the end of the process."""

    def __init__(self, claim: socket.socket, ports: tuple[int, ...]) -> None:
        self._claim = claim
        self.ports = ports

    @classmethod
    def take(cls, node_id: str, address: str) -> Self:
        """A free block, for this agent alone. Raises OSError when there is none."""
        blocks = (LAST_PORT - FIRST_PORT) // PORTS
        start = zlib.crc32(f"{node_id}/{os.getpid()}".encode()) % blocks
        for step in range(blocks):
            first = FIRST_PORT + (start + step) % blocks * PORTS
            claim = _claim(first)
            if claim is None:
                continue
            ports = _free_of(range(first, first + PORTS), address)
            if len(ports) > PORTS // 2:
                return cls(claim, ports)
            claim.close()
        raise OSError(f"no {PORTS} free ports between {FIRST_PORT} and {LAST_PORT} on {address}")

    def fileno(self) -> int:
        """The descriptor that holds the claim."""
        return self._claim.fileno()

    def close(self) -> None:
        """Give the block back."""
        self._claim.close()


def _claim(first: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0gangline-rendezvous-{first}")
    except OSError:
        claim.close()
        return None
    return claim


def _free_of(ports: range, address: str) -> tuple[int, ...]:
    found: list[int] = []
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports:
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.bind((address, port))
            found.append(port)
    return tuple(found)
