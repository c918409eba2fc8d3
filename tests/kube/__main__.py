"""`python -m kube [ARGUMENTS OF PYTEST]`: all tests about Kubernetes, with a real control plane.

It builds the control plane and Helm first, if they are not in build/bin. Where there is no Go, the
tests that need them are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kube.program import NoGoError, built, built_helm, pod_monitor

TESTS = (
    "unit/kube",
    "unit/deploy/test_helm_chart.py",
    "unit/deploy/test_helm_network.py",
    "unit/deploy/test_helm_pods.py",
    "contract/test_kube_contract.py",
    "integration/test_kube_nodes.py",
    "integration/test_kube_operator.py",
    "kube",
)
NUMBERS = {"GANGLINE_TRAINING_JOBS": "1000", "GANGLINE_OPERATOR_KILLS": "20"}


def main(arguments: list[str]) -> int:
    """Build, run pytest; its exit code."""
    folder = Path(__file__).parents[1]
    environment = NUMBERS | os.environ
    try:
        environment |= {
            "GANGLINE_TEST_KUBE": str(built()),
            "GANGLINE_TEST_POD_MONITOR": str(pod_monitor()),
            "GANGLINE_HELM": str(built_helm()),
        }
    except NoGoError as error:
        print(f"{error}. Tests that need a real control plane are skipped.", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        return error.returncode
    pytest = [sys.executable, "-m", "pytest", "-n", "0", "--timeout", "0", "-rP"]
    tests = [] if any(each.startswith("tests/") for each in arguments) else TESTS
    return subprocess.run(
        [*pytest, *(str(folder / name) for name in tests), *arguments],
        env=environment,
        cwd=folder.parent,
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
