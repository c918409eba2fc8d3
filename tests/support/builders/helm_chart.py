"""The Helm chart with each file of example values, as objects.

Needs Helm 3.14 or later: `helm` on the PATH, or GANGLINE_HELM=FILE. `make test-kube` builds it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "gangline"
EXAMPLES = sorted((CHART.parent / "examples").glob("*.yaml"))
HELM = os.environ.get("GANGLINE_HELM") or shutil.which("helm")
NAMESPACE = "gangline"
WORKLOADS = {"Deployment", "DaemonSet", "Job"}


def example(name: str) -> Path:
    """The file of example values of this name."""
    return next(path for path in EXAMPLES if path.stem == name)


@cache
def rendered(values: Path, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """All objects of the release `gangline`."""
    assert HELM is not None
    command = [HELM, "template", "gangline", str(CHART), f"--namespace={namespace}"]
    done = subprocess.run(
        [*command, "-f", str(values), "--include-crds", "--kube-version=1.37.2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def templates(values: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each workload, and the template of its pods."""
    for item in rendered(values):
        if item["kind"] in WORKLOADS:
            yield item["metadata"]["name"], item["spec"]["template"]


def pods(values: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each workload, and the spec of its pods."""
    for name, template in templates(values):
        yield name, template["spec"]
