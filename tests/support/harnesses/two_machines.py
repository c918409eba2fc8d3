"""Machines with addresses of their own: network namespaces of this one, joined by a cable.

From each, the broker of this machine is reached where it says that it is: at 127.0.0.1. That way is
not the cable, which can be cut alone.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNET = 0x4000_0000
_PARTS = ("10.213.77.1", "10.213.77.2")


class NoMachinesError(Exception):
    """None can be made here; the message says why."""


@dataclass(frozen=True)
class Machine:
    """One of them, and the name of its end of the cable."""

    name: str
    address: str
    end: str

    @property
    def entering(self) -> tuple[str, ...]:
        """What runs a command there."""
        return (str(shutil.which("nsenter")), f"--net={self._file}")

    def cut(self) -> None:
        """Nothing passes the cable any more, without any notice."""
        _ip("-n", self.name, "link", "set", self.end, "down")

    def mend(self) -> None:
        """It passes again."""
        _ip("-n", self.name, "link", "set", self.end, "up")

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
def two_machines(bootstrap: str, ways: Sequence[int] = ()) -> Iterator[tuple[Machine, Machine]]:
    """Two of them, gone afterwards; `ways` to the broker: of each a port of this machine.

    Raises NoMachinesError.
    """
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("nsenter")):
        raise NoMachinesError("it takes root, `ip` and `nsenter` to make machines")
    key = uuid.uuid4().hex[:6]
    first, second = (
        Machine(f"gl-{key}-{n}", address, f"gl{key}{n}") for n, address in enumerate(_PARTS)
    )
    broker = int(bootstrap.rpartition(":")[2])
    with contextlib.ExitStack() as ends:
        for machine in (first, second):
            if subprocess.run(["ip", "netns", "add", machine.name], check=False).returncode != 0:
                raise NoMachinesError("this machine gives no network namespaces")
            ends.callback(_ip, "netns", "del", machine.name)
        _ip("link", "add", first.end, "type", "veth", "peer", "name", second.end)
        for machine, way in zip((first, second), ways or (broker, broker), strict=True):
            _ip("link", "set", machine.end, "netns", machine.name)
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", machine.end)
            _ip("-n", machine.name, "link", "set", "lo", "up")
            machine.mend()
            listening = ends.enter_context(machine.listen(broker))
            threading.Thread(target=_serve, args=(listening, way), daemon=True).start()
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
