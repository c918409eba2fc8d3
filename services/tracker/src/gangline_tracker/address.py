"""The address of a loopback server in a file, for who starts the process."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_address(path: Path, port: int) -> None:
    """Write pid, port and url as JSON, whole or not at all, readable by the owner only."""
    content = {"pid": os.getpid(), "port": port, "url": f"http://127.0.0.1:{port}"}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(content, file)
    draft.replace(path)
