"""Node agent, trainer and checkpoint engine; the names here are for users' training scripts.

Nothing below imports torch until `save`, `restore` or `mfu` is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline_worker.checkpoint.public import Restored, prepare, restore, save
    from gangline_worker.peak import mfu
    from gangline_worker.reporting import (
        doing,
        flush,
        hyperparameters,
        report,
        should_checkpoint,
        should_skip,
        should_stop,
    )

__all__ = [
    "Restored",
    "doing",
    "flush",
    "hyperparameters",
    "mfu",
    "prepare",
    "report",
    "restore",
    "save",
    "should_checkpoint",
    "should_skip",
    "should_stop",
]

_ELSEWHERE = {
    **dict.fromkeys(
        ("Restored", "prepare", "restore", "save"), "gangline_worker.checkpoint.public"
    ),
    "mfu": "gangline_worker.peak",
}


def __getattr__(name: str) -> object:
    """Import what is asked for, when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _ELSEWHERE.get(name, "gangline_worker.reporting")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
