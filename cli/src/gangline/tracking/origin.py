"""Where a run comes from: the user, the script and its commit, by MLflow's names of tags."""

from __future__ import annotations

import getpass
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from gangline.tracking.values import TAG_CHARS, storable

GIT_S: Final = 2.0


def origin_tags() -> dict[str, str]:
    """Tags of a new run of this process; what is not known has none."""
    found = {"mlflow.source.type": "LOCAL", "mlflow.source.name": sys.argv[0] if sys.argv else ""}
    if "ipykernel" in sys.modules:
        found = {"mlflow.source.type": "NOTEBOOK"}
    with suppress(KeyError, OSError):  # a user id without a name
        found["mlflow.user"] = getpass.getuser()
    found["mlflow.source.git.commit"] = _commit(Path(found.get("mlflow.source.name", "")).parent)
    return {name: storable(text)[:TAG_CHARS] for name, text in found.items() if text}


def _commit(folder: Path) -> str:
    try:
        ended = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
