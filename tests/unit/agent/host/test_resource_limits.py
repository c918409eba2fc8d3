"""Descriptors and locked memory: the agent takes what the system grants, and ranks inherit it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gangline_worker.agent.host.resource_limits import ResourceLimits, unfit_limits

CHILD = """
import resource, subprocess
from gangline_worker.agent.host.resource_limits import raise_limits
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4000))
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 65536))
found = raise_limits()
shell = subprocess.run(["sh", "-c", "ulimit -n"], check=True, capture_output=True, text=True)
print(found.descriptors, found.locked_bytes, shell.stdout.strip())
"""


def found() -> list[str]:
    """What a process has whose limits were low: descriptors, locked bytes, its child's."""
    command = [sys.executable, "-c", CHILD]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_all_descriptors_that_are_granted_are_taken_and_children_have_them_too() -> None:
    descriptors, locked, inherited = found()
    assert (descriptors, inherited) == ("4000", "4000")
    assert locked in {"None", "65536"}, "the superuser may lock all, others what is granted"


def test_with_infiniband_a_limit_of_locked_memory_keeps_a_node_out(tmp_path: Path) -> None:
    low = ResourceLimits(1024, 8 * 1024**2)
    assert unfit_limits(low, tmp_path / "none") == ()
    assert unfit_limits(low, tmp_path) == ()
    (tmp_path / "mlx5_0").mkdir()
    assert "may lock only 8 MB" in unfit_limits(low, tmp_path)[0]
    assert "LimitMEMLOCK=infinity" in unfit_limits(low, tmp_path)[0]
    assert unfit_limits(ResourceLimits(1024, None), tmp_path) == ()
