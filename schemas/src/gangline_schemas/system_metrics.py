"""Names of metrics that node agents take of each job: `system/NODE/NAME`, as MLflow has them.

The step of such a metric is its Unix time in seconds.
"""

from __future__ import annotations

PREFIX = "system/"


def is_system(name: str) -> bool:
    """Whether a metric's name is one of the system's."""
    return name.startswith(PREFIX)
