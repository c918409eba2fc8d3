"""Turns an interpreter that has torch imported into a rank, as if it were a fresh one.

It is asked over one end of a socket pair. A request is a frame (4 bytes of length, then JSON:
`WarmRequest`), with the rank's stdout, its stderr, a gate and, if it has a sandbox, its pidfd
as file descriptors beside its first byte. Answers are JSON lines: {"ready": true}, {"pid": N},
{"refused": WHY} (start it cold), or {"unfit": WHY} (start all of them cold).

The rank does nothing before the agent has opened the gate: from then on the agent knows its pid.
Requests with variables that a fresh interpreter reads at its start (`fresh.COLD_VARIABLES`), or
with modules in the job's own folder that it would import instead, are refused.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline_worker.agent.isolation.rank_exec import confine, reset_signals, tie_to

from .fresh import be_fresh, cold_variable, in_the_way


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """One rank: `arguments` follow `python`, either `-m MODULE ...` or `SCRIPT ...`.

    `orders` are those of `rank_exec.confine`. Without a token it is not a rank but a process of the
    agent's own.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    orders: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """As it is sent."""
        fields = (self.arguments, dict(self.environment), self.folder, self.orders)
        text = json.dumps(fields).encode()
        return len(text).to_bytes(4, "big") + text


def refusal(request: WarmRequest, loaded: frozenset[str]) -> str | None:
    """Why it needs a fresh interpreter; None when it does not.

    `loaded`: the names of all top-level modules that are imported here.
    """
    if sum(1 for _ in Path("/proc/self/task").iterdir()) != 1:
        return "the warm interpreter has a second thread"
    name = cold_variable(request.environment, os.environ)
    if name is not None:
        return f"{name} is read by a fresh interpreter only"
    return in_the_way(request.arguments, request.folder, loaded)


def become(request: WarmRequest, descriptors: list[int], agent: int) -> None:
    """Wait for the gate, then be what a fresh process with this request would be."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    stdout, stderr, gate, *sandbox = descriptors
    if not os.read(gate, 1):
        os._exit(1)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.chdir(request.folder)
    try:
        confine(request.orders, sandbox[0] if sandbox else None)
    except OSError as error:
        sys.stderr.write(f"gangline: {error}\n")
        os._exit(126)
    tie_to(agent)
    os.closerange(3, max(descriptors) + 1)
    reset_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    be_fresh(request.environment)


def begin() -> tuple[socket.socket, int]:
    """First step of a warm interpreter: its end of the socket pair (`argv[1]`), the agent's pid.

    It dies with the agent, and what ends the agent in an orderly way is the agent's to pass on.
    """
    agent = os.getppid()
    tie_to(agent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return socket.socket(fileno=int(sys.argv[1])), agent


def answer(control: socket.socket, **values: object) -> None:
    """Send one answer."""
    control.sendall(json.dumps(values).encode() + b"\n")


def receive(control: socket.socket) -> tuple[WarmRequest, list[int]] | None:
    """The next request; None when the agent has closed its end."""
    descriptors = array.array("i")
    data, ancillary, _, _ = control.recvmsg(4, socket.CMSG_SPACE(4 * descriptors.itemsize))
    if not data:
        return None
    for _, _, raw in ancillary:
        descriptors.frombytes(raw[: len(raw) - len(raw) % descriptors.itemsize])
    while len(data) < 4:
        data += control.recv(4 - len(data))
    rest = int.from_bytes(data, "big")
    text = bytearray()
    while len(text) < rest:
        part = control.recv(rest - len(text))
        if not part:
            return None
        text += part
    arguments, environment, folder, orders = json.loads(text)
    request = WarmRequest(tuple(arguments), environment, folder, tuple(orders))
    return request, list(descriptors)
