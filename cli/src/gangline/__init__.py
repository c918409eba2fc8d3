"""Command line, Python SDK and embedded platform.

```python
import gangline

with gangline.connect() as platform:         # jobs of the platform
    job = platform.submit("job.yaml")
    job = platform.wait(job.job_id)

with gangline.init(project="sft") as run:    # a run of this script
    run.log({"loss": 0.5}, step=1)
```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.errors import CliError
    from gangline.sdk import Gangline, connect
    from gangline.tracking import Run, active_run, finish, init, log, log_artifact
    from gangline.tracking.config import Config, Summary

    run: Run | None
    config: Config
    summary: Summary

__all__ = [
    "CliError",
    "Gangline",
    "Run",
    "active_run",
    "connect",
    "finish",
    "init",
    "log",
    "log_artifact",
]
_SDK = {"Gangline", "connect"}
_OF_RUN = {"config", "run", "summary"}


def __getattr__(name: str) -> object:
    """Import what is asked for, when it is asked for: the platform's processes need none of it.

    `run` is the active run or None; `config` and `summary` are its own.
    """
    if name in _OF_RUN:
        found: object = importlib.import_module("gangline.tracking").active_run()
        return found if name == "run" or found is None else getattr(found, name)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "gangline.sdk" if name in _SDK else "gangline.tracking"
    if name == "CliError":
        module = "gangline.errors"
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
