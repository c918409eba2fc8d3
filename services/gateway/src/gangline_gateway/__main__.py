"""`python -m gangline_gateway`: starts the gateway."""

from __future__ import annotations

from gangline_gateway.config import Settings
from gangline_gateway.serving import main
from gangline_service.lifecycle import run

if __name__ == "__main__":
    run("gateway", Settings.load(), main)
