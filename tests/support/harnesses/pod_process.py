"""A job's pod as a process: what kubelet would start, on the folders of the node itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from gangline_schemas.job_pods import POD_SOCKET, pod_folder
from gangline_worker import pod_host


class PodProcess:
    """The first process of a job's pod on the node with this data folder."""

    def __init__(
        self, data: Path, job_id: str, environment: Mapping[str, str] = os.environ
    ) -> None:
        path = data / "sockets" / pod_folder(job_id) / POD_SOCKET
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(pod_host.__file__), "run", str(path), "600"],
            env=dict(environment),
            stdout=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
