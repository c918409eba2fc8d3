"""`python -m gangline_faults`: the fault manager."""

from __future__ import annotations

from gangline_faults.core.decide import FaultDecider
from gangline_faults.core.snapshot import codec
from gangline_faults.service.config import FaultSettings
from gangline_service.deciding import run_decider


def main() -> None:
    """Read the settings, then decide until a signal stops the process."""
    settings = FaultSettings.load()
    decider = FaultDecider(settings.timing(), settings.limits(), settings.trends())
    run_decider("fault-manager", settings, decider, codec())


if __name__ == "__main__":
    main()
