"""The paths of a gang's workspace, below a test's folder; none of them is made."""

from __future__ import annotations

from pathlib import Path

from gangline_worker.agent.workspace.environment import GangPaths


def gang_paths(folder: Path) -> GangPaths:
    """As the agent prepares them for a first attempt: nothing to resume, no data cache."""
    names = ("code", "home", "tmp", "checkpoints", "socket")
    return GangPaths(*[folder / name for name in names])
