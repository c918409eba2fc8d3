"""Whose a TCP connection of this machine is, as its kernel says."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

End = tuple[str, int]
"""An address and a port."""


def is_here(address: str) -> bool:
    """Whether it is an address of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def uid_of(here: End, there: End) -> int | None:
    """The user id of the end `here` of a connection to `there`; None when it is closed."""
    ends = [[_in_proc(here), _in_proc(there)]]
    if ":" not in here[0]:  # this end may be of a socket for both families
        ends.append([f"0000000000000000FFFF0000{end}" for end in ends[0]])
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/thread-self/net/{table}").read_text("ascii").splitlines()[1:]:
                fields = line.split()
                # One that its process has closed has no inode, and is called root's.
                if fields[1:3] in ends and int(fields[9]) != 0:
                    return int(fields[7])
    return None


def _in_proc(end: tuple[str, int]) -> str:
    """An address and port as the kernel writes them: words of the machine's order in hex."""
    address, port = end
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    raw = socket.inet_pton(family, address)
    words = struct.unpack(f"={len(raw) // 4}I", raw)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
