"""The process that hosts the TCPStores of an agent's gangs; the agent's only part with torch.

Commands arrive as JSON lines on standard input, answers leave on standard output:
{"open": KEY, "address": A, "port": P} -> {"opened": KEY} or {"failed": KEY, "error": TEXT};
{"close": KEY} -> nothing. It ends with its standard input. Each gang gets a store of its own on a
socket that is bound to the given address alone: torch's own listens on all addresses.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from datetime import timedelta

_PR_SET_PDEATHSIG = 1


def listen(address: str, port: int) -> socket.socket:
    """A listening socket on this address alone. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(2048)
    except OSError:
        listening.close()
        raise
    return listening


def main() -> None:
    """Serve until standard input ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever torch prints must not look like an answer
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    stores: dict[str, TCPStore] = {}

    def answer(**values: str) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    answer(ready="")
    for line in sys.stdin:
        command = json.loads(line)
        if "close" in command:
            stores.pop(command["close"], None)
            continue
        key, address, port = command["open"], command["address"], command["port"]
        try:
            listening = listen(address, port)
            stores[key] = TCPStore(
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=30),
                master_listen_fd=listening.detach(),
            )
        except (OSError, RuntimeError) as error:
            answer(failed=key, error=str(error).splitlines()[0])
        else:
            answer(opened=key)


if __name__ == "__main__":
    main()
