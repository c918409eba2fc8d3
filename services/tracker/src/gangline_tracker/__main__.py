"""`python -m gangline_tracker`: ingest, and the ClickHouse endpoint of the embedded engine."""

from __future__ import annotations

from gangline_service.lifecycle import run
from gangline_tracker.app import main
from gangline_tracker.config import Settings

if __name__ == "__main__":
    run("tracker", Settings.load(), main)
