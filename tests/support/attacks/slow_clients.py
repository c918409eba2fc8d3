"""Clients that are slow on purpose, over raw sockets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

HEADS = (
    b"",
    b"G",
    b"GET /v1/version HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    b"POST /v1/training-jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
    b"POST /?query=1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\nx",
)


@contextlib.contextmanager
def slow_clients(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many open connections without a token, none of which ever sends a whole request."""
    with contextlib.ExitStack() as stack:
        found = []
        for index in range(count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            with contextlib.suppress(OSError):  # it may have made room already
                connection.sendall(HEADS[index % len(HEADS)])
            found.append(connection)
        yield found


def ended(connection: socket.socket) -> bool:
    """Wait until the server hangs up; False when it did not within 30 s."""
    connection.settimeout(30)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
