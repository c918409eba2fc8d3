"""`python -m gangline_kube.crd`: writes the CustomResourceDefinition of TrainingJob to stdout."""

from __future__ import annotations

import sys

import yaml

from gangline_kube.core.crd import training_job_crd


def text() -> str:
    """The definition as YAML: the file in deploy/kubernetes/crds."""
    head = "# Made by `python -m gangline_kube.crd`; docs/guides/kubernetes.md has the fields.\n"
    return head + yaml.safe_dump(training_job_crd(), sort_keys=False, width=100)


if __name__ == "__main__":
    sys.stdout.write(text())
