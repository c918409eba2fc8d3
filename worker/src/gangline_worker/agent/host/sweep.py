"""Find and kill everything that a rank left behind, also what left its process group.

A process belongs to a rank when it is in the rank's session, or when its environment has the
rank's token, which children inherit. It belongs to an agent when its environment names a socket in
the agent's folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CONTAINER = "GANGLINE_CONTAINER"
"""The variable that has the name of a container, in its first process."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """An entry of the process table."""

    pid: int
    session: int
    parent: int
    cpu_s: float
    """Seconds of CPU that it took, and those of its children that it has waited for."""
    started_s: float
    """Since the machine started."""


def processes() -> Iterator[Process]:
    """All processes of the system that are not zombies."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        fields = _status(entry.path)
        if fields is None:
            continue
        state = fields[0].decode()
        if state not in "ZXx":
            yield Process(
                pid=int(entry.name),
                session=int(fields[3]),
                parent=int(fields[1]),
                cpu_s=sum(map(int, fields[11:15])) / _TICKS,
                started_s=int(fields[19]) / _TICKS,
            )


def _has_variable(pid: int, start: bytes) -> bool:
    """Whether the process was started with a variable that begins so (NAME=value)."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return environment.startswith(start) or b"\0" + start in environment


def kill_rank(session: int, token: str) -> int:
    """SIGKILL what is left of a rank, given its session and its token; how many processes."""
    variable = f"GANGLINE_RANK_TOKEN={token}".encode()
    return _kill(lambda found: found.session == session or _has_variable(found.pid, variable))


def kill_agent(socket_folder: str) -> int:
    """SIGKILL everything that agents with this socket folder started as ranks; how many."""
    variable = os.fsencode(f"GANGLINE_AGENT_SOCKET={socket_folder.rstrip('/')}/")
    return _kill(lambda found: _has_variable(found.pid, variable))


def kill_containers(start: str) -> int:
    """SIGKILL the first processes of containers whose names begin so; how many.

    A name with a zero byte behind it is a whole one.
    """
    variable = f"{CONTAINER}={start}".encode()
    return _kill(lambda found: _has_variable(found.pid, variable))


def _kill(chosen: Callable[[Process], bool]) -> int:
    killed = 0
    for _ in range(5):  # what was just being forked is found in the next round
        found = [item.pid for item in processes() if item.pid != os.getpid() and chosen(item)]
        if not found:
            break
        killed += len(found)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return killed


def started_s(pid: int) -> float | None:
    """When a process was started, in seconds since the machine was; None when it is gone."""
    fields = _status(f"/proc/{pid}")
    return None if fields is None else int(fields[19]) / _TICKS


def reap_orphans(own: frozenset[int]) -> None:
    """Collect ended children that this process inherited as a subreaper, but none of `own`."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for pid in (int(item) for item in children):
            if pid not in own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process was started by another one, or by one that this one had started."""
    for _ in range(64):
        fields = _status(f"/proc/{pid}")
        if fields is None:
            return False
        pid = int(fields[1])
        if pid == ancestor:
            return True
        if pid <= 1:
            return False
    return False


def _status(folder: str) -> list[bytes] | None:
    """The fields of a process after its name, from its state on; None when it is gone."""
    try:
        stat = Path(folder, "stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything, also ')'.
    return stat[stat.rindex(b")") + 2 :].split()
