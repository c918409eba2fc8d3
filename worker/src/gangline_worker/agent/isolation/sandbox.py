"""Sandboxes: a gang's own pid, mount and ipc namespaces on this node, and how ranks get into them.

A process gets into a pid namespace only by being born there. So a thread of the agent that starts
one turns to the sandbox for that moment (`born_in`); the process joins the other namespaces itself
(`rank_exec.confine`). The agent stays its parent and sees it under an ordinary pid.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gangline_worker.agent.host.cdi import GivenDevices
from gangline_worker.agent.host.forked import Forked

from . import sandbox_init

_CLONE_NEWPID = 0x2000_0000
_ATTACH_S = 5.0
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Confinement:
    """The rights that a process gives up (`rank_exec.confine`), and its sandbox's handle."""

    orders: tuple[str, ...] = ()
    sandbox: int | None = None


UNCONFINED = Confinement()


@dataclass(frozen=True, slots=True)
class ImageRoot:
    """An image as the root of a sandbox: names of layers in a folder, the lowest first.

    `workdir`: a folder that it has, made if it is missing. `devices`: of the gang by CDI; None: all
    GPUs of the node, and the files of their driver.
    """

    folder: Path
    layers: tuple[str, ...]
    workdir: str | None = None
    devices: GivenDevices | None = None


@dataclass(frozen=True, slots=True)
class Mounts:
    """The paths that a sandbox hides, those it shows again, and limits of its own memory files.

    With `image` it has nothing of the node but what it shows.
    """

    hide: tuple[Path, ...]
    show: tuple[Path, ...]
    shm_bytes: int
    tmp_bytes: int
    image: ImageRoot | None = None


class Sandbox:
    """A sandbox by its first process; `handle` is a pidfd of it, to join its namespaces by."""

    def __init__(
        self, process: subprocess.Popen[bytes] | Forked, reports: IO[bytes] | None = None
    ) -> None:
        self._process = process
        self._reports = reports
        self.pid = process.pid
        self.handle = os.pidfd_open(process.pid)

    def has_begun(self) -> bool:
        """Whether `first_words` would not wait."""
        if self._reports is None:
            return True
        waiting = select.poll()
        waiting.register(self._reports, select.POLLIN)
        return bool(waiting.poll(0))

    def first_words(self) -> bytes:
        """The line that it says when it is ready, or why it is not; b"" when it died."""
        if self._reports is None:
            return b""
        with self._reports:
            return self._reports.readline()

    def close(self) -> None:
        """End all that is in it."""
        self._process.kill()
        os.close(self.handle)


def begin_sandbox(mounts: Mounts) -> Sandbox:
    """Start a sandbox's first process. It dies with the thread that calls this. Raises OSError."""
    image = mounts.image
    given = sandbox_init.arguments(
        [str(path) for path in mounts.hide],
        [str(path) for path in mounts.show],
        mounts.shm_bytes,
        mounts.tmp_bytes,
        (str(image.folder), list(image.layers), image.workdir or "") if image else None,
        None if image is None or image.devices is None else _orders(image.devices),
    )
    with _turning():
        _check(_LIBC.unshare(_CLONE_NEWPID), "unshare")
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(sandbox_init.__file__), *given],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
    return Sandbox(process, process.stdout)


def _orders(given: GivenDevices) -> list[str]:
    """As `image_root.Given` reads them."""
    files = [f"{'R' if one.read_only else 'W'}{one.source}\n{one.target}" for one in given.files]
    return [
        *(f"D{source}\n{target}" for source, target in given.nodes),
        *files,
        *(f"L{says}\n{place}" for says, place in given.links),
    ]


def finish_sandbox(sandbox: Sandbox) -> Sandbox:
    """Wait until it is ready. Raises OSError that says what the system refused."""
    said = sandbox.first_words()
    if said == b"ready\n":
        return sandbox
    raise OSError(said.decode(errors="replace").strip() or "the sandbox's first process died")


StartHelper = Callable[[Callable[[], subprocess.Popen[bytes]]], subprocess.Popen[bytes]]
"""Calls the given function, so that what it starts is not collected as an orphan."""


def attach(sandbox: Sandbox, show: Sequence[Path], start: StartHelper) -> None:
    """Show more of the node in a sandbox with an image. Raises OSError."""
    process = start(
        lambda: subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(Path(__file__).with_name("attach.py"))),
                *(str(sandbox.handle), *map(str, show)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            pass_fds=(sandbox.handle,),
        )
    )
    try:
        said, _ = process.communicate(timeout=_ATTACH_S)
    except subprocess.TimeoutExpired:
        said = b"it took too long"
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise OSError(said.decode(errors="replace").strip() or "a process for its mounts died")


def turn_to(sandbox: int) -> None:
    """From now on, what this thread starts is born in the sandbox. Raises OSError."""
    _check(_LIBC.setns(sandbox, _CLONE_NEWPID), "setns")


@contextlib.contextmanager
def born_in(sandbox: int | None) -> Iterator[None]:
    """Processes that this thread starts meanwhile are born in the sandbox; None: no change."""
    with contextlib.ExitStack() as turned:
        if sandbox is not None:
            turned.enter_context(_turning())
            turn_to(sandbox)
        yield


@contextlib.contextmanager
def _turning() -> Iterator[None]:
    """In the end, let this thread's children be born in its own pid namespace again."""
    own = os.open("/proc/thread-self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        try:
            turn_to(own)
        finally:
            os.close(own)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
