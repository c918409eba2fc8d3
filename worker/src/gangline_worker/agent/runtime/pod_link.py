"""One job's pod as the agent has it: its socket, its connection, and the folders of pods."""

from __future__ import annotations

import array
import contextlib
import json
import select
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangline_schemas.job_pods import pod_folder
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.host.trees import delete_tree

_MOST_CODE = 255
START_S = 5.0
"""A pod's first process that forks no rank for so long has failed to."""
_MOST_ENDS, _NAME_CHARS = 1000, 64
"""So many ends are kept, the newest: a job can report any number, under any names."""
CREDENTIALS = struct.Struct("3i")


class PodMissing(OSError):
    """A gang's pod is not there; the message says what was waited for."""


@dataclass
class JobPod:
    """The pod of a job, or of one attempt.

    `come_s`: when it came here; `leaving`: it was deleted, at `left_s`.
    `links`: connections, of which at most one is the pod's.
    """

    name: str
    uid: int
    listener: socket.socket
    connection: socket.socket | None = None
    come_s: float | None = None
    leaving: bool = False
    left_s: float = 0.0
    sees: bool = False
    refused: str = ""
    ended: dict[str, int] = field(default_factory=dict)
    gangs: set[GangKey] = field(default_factory=set)
    links: int = 0

    def note_ends(self, ends: Iterable[tuple[Any, Any]]) -> None:
        """The pod reports how ranks ended. Raises an error for odd values."""
        for rank, code in ends:
            name, status = str(rank), int(code)
            if len(name) > _NAME_CHARS or abs(status) > _MOST_CODE:
                raise ValueError("no rank has this name, or ends so")
            self.ended[name] = status
            if len(self.ended) > _MOST_ENDS:
                del self.ended[next(iter(self.ended))]

    def send(self, order: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Raises OSError if files cannot be sent. Other orders to a pod that is gone are lost."""
        if self.connection is None:
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        try:
            self.connection.sendmsg([json.dumps(order).encode()], rights)
        except OSError:
            if files:
                raise


def rank_name(rank: RankKey) -> str:
    """The name of a rank in its pod, which has several attempts one after the other."""
    return f"{rank.gang.attempt}-{rank.rank}"


def clear_pod_folders(sockets: Path) -> None:
    """Delete what earlier gangs left; pods that live have the folders themselves mounted."""
    for folder in pod_folders(sockets):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                delete_tree(entry)
            else:
                entry.unlink(missing_ok=True)


def pod_folders(sockets: Path) -> Iterator[Path]:
    """The folders that pods of jobs share with the agent, or shared."""
    prefix = pod_folder("")[:2]
    with contextlib.suppress(OSError):
        for path in sockets.iterdir():
            if path.name.startswith(prefix) and path.is_dir() and not path.is_symlink():
                yield path


def has_hung_up(connection: socket.socket) -> bool:
    """Whether the other end has hung up."""
    waiting = select.poll()
    waiting.register(connection, select.POLLRDHUP)
    return bool(waiting.poll(0))


def first_word(ours: socket.socket, theirs: socket.socket) -> int:
    """The pid, as this process sees it, of the rank that waits at the gate.

    Raises TimeoutError if none comes to it, and OSError.
    """
    theirs.close()
    ours.settimeout(START_S)
    data, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
    for level, kind, content in ancillary:
        if data and (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, _, _ = CREDENTIALS.unpack(content[: CREDENTIALS.size])
            if pid > 0:
                return int(pid)
    raise PodMissing(0, "its pod could not start it")
