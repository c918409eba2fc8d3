"""Tracking for scripts: `init` starts a run, `log` logs to it, from jobs, notebooks and laptops.

```python
import gangline

with gangline.init(project="assistants", config={"lr": 3e-4}) as run:
    for step in range(1000):
        run.log({"loss": train_step()}, step=step)
```
"""

from __future__ import annotations

from gangline.tracking.run import Run
from gangline.tracking.start import active_run, finish, init, log, log_artifact

__all__ = ["Run", "active_run", "finish", "init", "log", "log_artifact"]
