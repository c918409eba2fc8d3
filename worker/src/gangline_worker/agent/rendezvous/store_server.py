"""The process that hosts the TCPStores of an agent's gangs; the agent's only part with torch.

Its standard output is a socket, over which commands come and answers go as JSON lines:
{"open": KEY, "address": A, "port": P, "uid": U or null, "peers": [ADDRESS...], "clients": N}
-> {"opened": KEY} or {"failed": KEY, "error": TEXT}; {"close": KEY} -> nothing. It ends with that
socket. Each gang gets a store of its own on a socket that is bound to the given address alone:
torch's own listens on all addresses. With a uid, only that user gets through, with N connections
at most (`proxy`). Of a connection from one of those peers it asks
{"ask": N, "key": KEY, "ends": [[ADDRESS, PORT], [ADDRESS, PORT]]}, and waits
for {"answer": N, "confirmed": BOOL}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from gangline_worker.agent.host.connections import End

from .proxy import AllowedClients, Proxy, StoreNamespace

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


class Stores:
    """The stores by their keys."""

    def __init__(self, ask: Callable[[int, str, End, End], None]) -> None:
        self._ask = ask
        self._stores: dict[str, object] = {}
        self._proxy: tuple[StoreNamespace, Proxy] | None = None

    def open(self, key: str, address: str, port: int, allowed: AllowedClients | None) -> None:
        """Open a store, unless it is open. Raises OSError and RuntimeError."""
        if key in self._stores:
            return
        listening = listen(address, port)
        if allowed is None:
            self._stores[key] = _serve(listening)
            return
        try:
            namespace, proxy = self._proxy or self._build()
            hidden = namespace.run(lambda: listen("127.0.0.1", 0))
            inner = hidden.getsockname()[1]
            self._stores[key] = namespace.run(lambda: _serve(hidden))
        except BaseException:
            listening.close()
            raise
        proxy.open(key, listening, allowed, inner)

    def close(self, key: str) -> None:
        """Close a store, if there is one."""
        if self._proxy is not None:
            self._proxy[1].close(key)
        self._stores.pop(key, None)

    def _build(self) -> tuple[StoreNamespace, Proxy]:
        namespace = StoreNamespace()
        self._proxy = namespace, Proxy(namespace, self._ask)
        return self._proxy

    def answer(self, number: int, *, confirmed: bool) -> None:
        """The answer about a connection."""
        if self._proxy is not None:
            self._proxy[1].answer(number, confirmed=confirmed)


def _serve(listening: socket.socket) -> object:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    address, port = listening.getsockname()[:2]
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
        master_listen_fd=listening.detach(),
    )


def main() -> None:
    """Serve until the agent closes its end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _be_as_dear_as_the_agent()
    threading.excepthook = _end
    channel = socket.socket(fileno=os.dup(1))
    os.dup2(2, 1)  # whatever torch prints must not look like an answer
    import torch.distributed  # noqa: F401 -- before the first command is answered

    sending = threading.Lock()

    def answer(**values: object) -> None:
        with sending:
            channel.sendall(json.dumps(values).encode() + b"\n")

    def ask(number: int, key: str, *ends: End) -> None:
        answer(ask=number, key=key, ends=ends)

    stores = Stores(ask)
    answer(ready="")
    for line in channel.makefile("rb"):
        command = json.loads(line)
        if "close" in command:
            stores.close(command["close"])
            continue
        if "answer" in command:
            stores.answer(command["answer"], confirmed=command["confirmed"])
            continue
        key, uid = command["open"], command["uid"]
        peers, clients = frozenset(command["peers"]), command["clients"]
        allowed = None if uid is None else AllowedClients(uid, peers, clients)
        try:
            stores.open(key, command["address"], command["port"], allowed)
        except (OSError, RuntimeError) as error:
            answer(failed=key, error=str(error).splitlines()[0])
        else:
            answer(opened=key)


def _end(failed: threading.ExceptHookArgs) -> None:
    """Without one of its threads this process is of no use; the agent starts it again."""
    threading.__excepthook__(failed)
    os._exit(1)


def _be_as_dear_as_the_agent() -> None:
    """When memory runs out, forks of the zygote end first: all gangs need this process."""
    with contextlib.suppress(OSError):
        agents = Path(f"/proc/{os.getppid()}/oom_score_adj").read_text("ascii")
        Path("/proc/self/oom_score_adj").write_text(agents, "ascii")


if __name__ == "__main__":
    main()
