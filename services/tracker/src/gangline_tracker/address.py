"""The address of a loopback server, in a file for the process that started it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gangline_service.private_file import write_private


def write_address(path: Path, port: int) -> None:
    """Write pid, port and url as JSON, whole or not at all, readable by the owner only."""
    content = {"pid": os.getpid(), "port": port, "url": f"http://127.0.0.1:{port}"}
    write_private(path, json.dumps(content).encode())
