"""A service as a process of its own, with its health file and log in a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gangline.local.probe import answers_ok
from support.waiting import DEADLINE_S, wait_until


@contextmanager
def service_process(name: str, folder: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Run `gangline_NAME` during the block, which gets its process id once it is ready."""
    health, output = folder / f"{name}-health.json", folder / f"{name}.log"
    own = {"GANGLINE_HEALTH_FILE": str(health), "GANGLINE_INSTANCE_ID": f"{name}-0"}
    with output.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"gangline_{name}"], env={**environment, **own}, stderr=log
        )

    def is_ready() -> bool:
        if not health.exists():
            return False
        return answers_ok(f"{json.loads(health.read_text(encoding='utf-8'))['url']}/readyz")

    try:
        wait_until(f"the {name}", lambda: is_ready() or process.poll() is not None)
        assert process.poll() is None, output.read_text(encoding="utf-8")[-4000:]
        yield process.pid
    finally:
        process.kill()
        process.wait(DEADLINE_S)
