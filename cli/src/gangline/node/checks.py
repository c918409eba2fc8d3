"""The checks of `gangline doctor --node`: the agent's own, run as it would run here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.errors import CliError

_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class NodeChecks:
    """The findings; the name that fits this host, and where other nodes reach it."""

    node_id: str
    address: str
    checks: tuple[dict[str, Any], ...]

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Those with which the node must not join."""
        return [check for check in self.checks if check["state"] == "failed"]


def check_node(
    folder: Path,
    *,
    server: str | None = None,
    ca: Path | None = None,
    address: str | None = None,
    slots: int | None = None,
) -> NodeChecks:
    """Check this machine. Raises CliError if that is not possible."""
    options = {"server": server, "ca": ca, "address": address, "slots": slots}
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    command = [sys.executable, "-m", "gangline_worker.agent.doctor", f"--folder={folder}", *words]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CliError(
            f"the checks did not end in {_TIMEOUT_S:g} s",
            "look for disks and network mounts that do not answer",
        ) from None
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        raise CliError(f"the checks could not run: {last}", "install the package gangline-worker")
    found = json.loads(ran.stdout)
    return NodeChecks(found["node_id"], found["address"], tuple(found["checks"]))
