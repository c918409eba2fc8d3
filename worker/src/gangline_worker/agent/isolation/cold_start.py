"""Starts one rank's command in a fresh process, with the confinement of its gang."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline_worker.agent.decide.keys import RankKey

from .rank_exec import tied_command
from .sandbox import UNCONFINED, Confinement, born_in


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one rank."""

    rank: RankKey
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    confinement: Confinement = UNCONFINED


def start_cold(launch: Launch) -> subprocess.Popen[bytes]:
    """Start its command in a fresh process. It dies with the calling thread. Raises OSError."""
    sandbox = launch.confinement.sandbox
    with born_in(sandbox):
        return subprocess.Popen(
            tied_command(*launch.command, orders=launch.confinement.orders, sandbox=sandbox),
            cwd=launch.folder,
            env=dict(launch.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            umask=0o077,
            pass_fds=() if sandbox is None else (sandbox,),
        )
