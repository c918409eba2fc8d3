"""What a node agent loads at its start: it runs on every node for as long as the node does."""

from __future__ import annotations

import subprocess
import sys


def test_an_agent_starts_without_what_few_need() -> None:
    """Torch is for processes of ranks; pyarrow alone costs 36 MB."""
    heavy = ("torch", "numpy", "pyarrow", "boto3", "gangline_worker.training")
    code = (
        "import sys, gangline_worker.agent.__main__\n"
        f"sys.exit(str([name for name in {heavy} if name in sys.modules]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr == "[]\n"
