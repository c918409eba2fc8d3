"""Free TCP ports on 127.0.0.1 that stay free for their owner.

They are taken from below the kernel's range for outgoing connections. A port inside that range
may be lent to any client while its server is down, even to the client that reconnects to it. Then
the connection reaches itself, and the server cannot bind its own port again. Node agents open
rendezvous from port 20,000 on (`rendezvous/ports.py`), so those are left to them.

Between the choice of a port and its server's first listening pass seconds, on a busy machine a
minute. Until then the chooser's process holds the port's name, an abstract Unix socket, which the
kernel takes back with the process: two platforms that start together get different ports.
"""

import secrets
import socket
import sys
from pathlib import Path

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _RENDEZVOUS = 12_000, 20_000
_TRIES = 500

_held: dict[int, int] = {}
"""The descriptor of each port's socket."""


def pick_ports(count: int) -> list[int]:
    """Return `count` different ports that are free on 127.0.0.1 and that no other call has had.

    That holds among all processes of this machine, as long as this one lives. Raises OSError when
    so many are not found.
    """
    highest = min(_first_outgoing_port(), _RENDEZVOUS) - 1
    found: list[int] = []
    for _ in range(_TRIES):
        if len(found) == count:
            return found
        port = _LOWEST + secrets.randbelow(highest - _LOWEST)
        if is_free(port) and _hold(port):
            found.append(port)
    raise OSError(f"no {count} free ports on 127.0.0.1 between {_LOWEST} and {highest}")


def keep_port(port: int) -> bool:
    """Take a port of an earlier start again; False if another process has it now."""
    return is_free(port) and (port in _held or _hold(port))


def is_free(port: int) -> bool:
    """Whether a server could bind this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # As servers do: an old connection in TIME_WAIT does not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _hold(port: int) -> bool:
    """Take the port's name until this process ends; False if a process has it."""
    if port in _held:
        return False
    name = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":  # elsewhere such names do not exist
            name.bind(f"\0gangline-port-{port}")
    except OSError:
        name.close()
        return False
    _held[port] = name.detach()
    return True


def _first_outgoing_port() -> int:
    try:
        first = int(_RANGE_FILE.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    return first if first > _LOWEST + 1_000 else 65_536
