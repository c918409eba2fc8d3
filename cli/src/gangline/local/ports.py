"""Free TCP ports on 127.0.0.1 that stay free for their owner.

They are taken from below the kernel's range for outgoing connections. A port inside that range
may be lent to any client while its server is down, even to the client that reconnects to it. Then
the connection reaches itself, and the server cannot bind its own port again. Node agents open
rendezvous from port 20,000 on (`rendezvous/ports.py`), so those are left to them.
"""

import secrets
import socket
from pathlib import Path

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _RENDEZVOUS = 12_000, 20_000
_TRIES = 500


def pick_ports(count: int) -> list[int]:
    """Return `count` different ports that are free on 127.0.0.1 now.

    Raises OSError when so many are not found.
    """
    highest = min(_first_outgoing_port(), _RENDEZVOUS) - 1
    found: list[int] = []
    for _ in range(_TRIES):
        if len(found) == count:
            return found
        port = _LOWEST + secrets.randbelow(highest - _LOWEST)
        if port not in found and is_free(port):
            found.append(port)
    raise OSError(f"no {count} free ports on 127.0.0.1 between {_LOWEST} and {highest}")


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


def _first_outgoing_port() -> int:
    try:
        first = int(_RANGE_FILE.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    return first if first > _LOWEST + 1_000 else 65_536
