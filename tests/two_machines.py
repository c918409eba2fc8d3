"""Machines with addresses of their own: network namespaces of this one, joined by a cable.

From each, the broker of this machine is reached where it says that it is: at 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

_CLONE_NEWNET = 0x4000_0000
_PARTS = ("10.213.77.1", "10.213.77.2")


@dataclass(frozen=True)
class Machine:
    """One of them."""

    name: str
    address: str

    @property
    def entering(self) -> tuple[str, ...]:
        """What runs a command there."""
        return ("nsenter", f"--net={self._file}")

    @property
    def _file(self) -> Path:
        return Path("/run/netns") / self.name

    def listen(self, port: int) -> socket.socket:
        """A listening socket on its loopback."""

        def inside() -> socket.socket:
            descriptor = os.open(self._file, os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(descriptor)
            return socket.create_server(("127.0.0.1", port))

        with ThreadPoolExecutor(1) as thread:  # which alone is there
            return thread.submit(inside).result()


@contextlib.contextmanager
def two_machines(bootstrap: str) -> Iterator[tuple[Machine, Machine]]:
    """Two of them; the test is skipped where none can be made."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("nsenter")):
        pytest.skip("needs root, `ip` and `nsenter` to make machines")
    key = uuid.uuid4().hex[:6]
    first, second = (Machine(f"gl-{key}-{n}", address) for n, address in enumerate(_PARTS))
    broker = int(bootstrap.rpartition(":")[2])
    with contextlib.ExitStack() as ends:
        for machine in (first, second):
            if subprocess.run(["ip", "netns", "add", machine.name], check=False).returncode != 0:
                pytest.skip("this machine gives no network namespaces")
            ends.callback(_ip, "netns", "del", machine.name)
        cable = [f"gl{key}{end}" for end in "ab"]
        _ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for machine, end in zip((first, second), cable, strict=True):
            _ip("link", "set", end, "netns", machine.name)
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", end)
            for link in ("lo", end):
                _ip("-n", machine.name, "link", "set", link, "up")
            listening = ends.enter_context(machine.listen(broker))
            threading.Thread(target=_serve, args=(listening, broker), daemon=True).start()
        yield first, second


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _serve(listening: socket.socket, port: int) -> None:
    with contextlib.suppress(OSError):  # closed
        while True:
            outer, _ = listening.accept()
            inner = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=_pass_on, args=(outer, inner), daemon=True).start()


def _pass_on(outer: socket.socket, inner: socket.socket) -> None:
    """Both ways, until either end hangs up."""
    with outer, inner:
        back = threading.Thread(target=_copy, args=(inner, outer), daemon=True)
        back.start()
        _copy(outer, inner)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
