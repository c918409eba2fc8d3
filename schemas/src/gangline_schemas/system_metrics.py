"""Names of metrics that node agents take of each job: `system/NODE/NAME`, as MLflow has them.

The step of such a metric is its Unix time in seconds.
"""

from __future__ import annotations

import re

PREFIX = "system/"
PLATFORM = "gangline/"
"""Metrics that the platform keeps of a job's MLflow run; their step is the attempt."""
_OF_ONE_GPU = re.compile(r"/gpu_\d+_")


def is_system(name: str) -> bool:
    """Whether a metric's name is one of the system's."""
    return name.startswith(PREFIX)


def is_of_one_gpu(name: str) -> bool:
    """Whether it is a metric of one GPU, and not a mean."""
    return _OF_ONE_GPU.search(name) is not None


def node_and_kind(name: str) -> tuple[str, str]:
    """The node of a system metric, and its name without node and prefix."""
    node, _, kind = name.removeprefix(PREFIX).partition("/")
    return node, kind
