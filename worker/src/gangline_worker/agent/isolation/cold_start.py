"""Starts one rank's command in a fresh process, with the confinement of its gang."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline_worker.agent.decide.keys import RankKey

from .rank_exec import program_file, tied_command
from .sandbox import UNCONFINED, Confinement, born_in


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one rank. `workdir`: the folder of its image that it starts in, not `folder`.

    `in_pod`: its gang's pod or container has a first process that starts it. In a pod of
    Kubernetes the workdir "" is where that process is.
    """

    rank: RankKey
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    confinement: Confinement = UNCONFINED
    workdir: str | None = None
    in_image: bool = False
    in_pod: bool = False


def start_cold(launch: Launch, passed: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """Start its command in a fresh process. It dies with the calling thread. Raises OSError.

    `passed`: descriptors that it has under the same numbers.
    """
    orders, sandbox = launch.confinement.orders, launch.confinement.sandbox
    program = program_file(launch.environment, launch.workdir)
    try:
        with born_in(sandbox):
            return subprocess.Popen(
                tied_command(*launch.command, orders=orders, sandbox=sandbox, program=program),
                cwd=launch.folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                umask=0o077,
                pass_fds=(program, *passed) if sandbox is None else (program, sandbox, *passed),
            )
    finally:
        os.close(program)
