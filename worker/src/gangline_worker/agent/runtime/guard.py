"""Kills the ranks when their agent cannot: it died, or it was stopped beyond its lease.

Ranks die with the agent by the kernel's hand (PDEATHSIG), but not what they started themselves.
This small process reads the end of the lease (monotonic seconds, one a line) from its standard
input. At the end of the input, or of the lease, it kills all processes of the agent's socket
folder.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

from gangline_worker.agent.host.sweep import kill_agent
from gangline_worker.agent.host.trees import delete_tree


def main() -> None:
    """Watch until the agent is gone; `argv[1]` is its socket folder."""
    folder = sys.argv[1]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lease_ends_s = float("inf")
    pending = b""
    while True:
        left_s = min(max(0.0, lease_ends_s - time.monotonic()), 3600.0)
        if not select.select([0], [], [], left_s)[0]:
            if time.monotonic() >= lease_ends_s:
                kill_agent(folder)
                lease_ends_s = float("inf")
            continue
        received = os.read(0, 65536)
        if not received:
            break  # the agent is gone
        *lines, pending = (pending + received).split(b"\n")
        if lines:
            lease_ends_s = float(lines[-1])
    kill_agent(folder)
    delete_tree(Path(folder))


if __name__ == "__main__":
    main()
