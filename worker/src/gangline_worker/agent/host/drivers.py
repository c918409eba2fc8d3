"""Where this machine's GPU drivers are, as environment variables."""

from __future__ import annotations

import os


def driver_variables() -> dict[str, str]:
    """Those of this process that name the folders of drivers."""
    names = ("LD_LIBRARY_PATH", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES")
    return {name: os.environ[name] for name in names if name in os.environ}
