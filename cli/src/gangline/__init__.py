"""Command line, Python SDK and embedded platform.

```python
from gangline import connect

with connect() as gangline:
    job = gangline.submit("job.yaml")
    job = gangline.wait(job.job_id)
```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.errors import CliError
    from gangline.sdk import Gangline, connect

__all__ = ["CliError", "Gangline", "connect"]


def __getattr__(name: str) -> object:
    """Import what is asked for, when it is asked for: the platform's processes need none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "gangline.errors" if name == "CliError" else "gangline.sdk"
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
