"""Starts and ends the node agent of this machine, by itself or by systemd."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from gangline.errors import CliError
from gangline.node.folder import NodeFolder
from gangline_service.private_file import write_private

UNIT = "gangline-agent.service"
UNIT_FOLDER = Path("/etc/systemd/system")
END_S = 90.0
"""An agent lets its ranks save and sends what is left before it ends."""
_HERE = Path(__file__).parent
_FILES = (_HERE / UNIT, _HERE.parents[3] / "deploy" / "systemd" / UNIT)
_PYTHON, _FOLDER = "/opt/gangline/bin/python", "/var/lib/gangline-node"
_PLAIN = re.compile(r"[A-Za-z0-9/._+@:-]+")
"""Paths that mean the same in a unit: no spaces, no quotes, and no % of specifiers."""
_NOT_FOR_AGENTS = frozenset({"GANGLINE_URL", "GANGLINE_TOKEN", "GANGLINE_NODE_TOKEN"})


def become_agent(folder: NodeFolder) -> NoReturn:
    """Continue as the agent, in this process. Raises CliError."""
    inherited = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_AGENTS}
    variables = {**inherited, **folder.environment()}
    os.execve(  # noqa: S606 -- our own module
        sys.executable, [sys.executable, "-m", "gangline_worker.agent"], variables
    )


def write_unit(folder: NodeFolder, units: Path) -> Path:
    """Write the agent's unit for this Python and this folder. Raises CliError."""
    for path in (sys.executable, str(folder.path)):
        if not _PLAIN.fullmatch(path):
            raise CliError(
                f"{path}: systemd would read this path otherwise",
                "use a path of letters, digits and / . _ + @ : - alone, for the folder with --dir",
            )
    template = next((file for file in _FILES if file.exists()), _FILES[0])
    text = template.read_text(encoding="utf-8")
    text = text.replace(_PYTHON, sys.executable).replace(_FOLDER, str(folder.path))
    place = units / UNIT
    try:
        write_private(place, text.encode())
        place.chmod(0o644)
    except OSError as error:
        raise CliError(f"{place}: {error.strerror}", "run it as root") from None
    return place


def end_agent(folder: NodeFolder, units: Path) -> None:
    """Stop the agent and wait for its end; its unit is disabled and removed. Raises CliError."""
    unit = units / UNIT
    if unit.exists():
        if shutil.which("systemctl") is not None and Path("/run/systemd/system").exists():
            command = ["systemctl", "disable", "--now", UNIT]
            subprocess.run(command, check=False)
        unit.unlink()
    pid = folder.pid()
    if pid is None:
        return
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise CliError(f"the agent (process {pid}) is another user's", "run it as root") from None
    deadline = time.monotonic() + END_S
    while folder.pid() is not None:
        if time.monotonic() > deadline:
            raise CliError(
                f"the agent (process {pid}) has not ended after {END_S:.0f} s",
                "its log says why; `gangline node leave` can be repeated",
            )
        time.sleep(0.1)
