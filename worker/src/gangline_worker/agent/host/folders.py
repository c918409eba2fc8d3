"""Where the agent keeps its files on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folders:
    """The agent's folders. `sockets` has a short path: a socket's name has 107 bytes."""

    data: Path
    sockets: Path
    secrets: Path
