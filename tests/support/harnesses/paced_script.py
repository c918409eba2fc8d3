"""A user's script of which each reported step takes a while without computing.

`python paced_script.py SCRIPT.py` runs the script as `python SCRIPT.py` would; `report` then
pauses for PAUSE_S. See paced.py for the reason.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Mapping

import gangline_worker
from gangline_worker import reporting

PAUSE_S = float(os.environ.get("PAUSE_S", "0.15"))


def paced_report(metrics: Mapping[str, float], step: int) -> None:
    """See the module."""
    reporting.report(metrics, step)
    time.sleep(PAUSE_S)


if __name__ == "__main__":
    gangline_worker.report = paced_report
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
