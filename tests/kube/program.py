"""What `make test-kube` needs: a Kubernetes control plane and Helm, built by Go, and a definition.

The control plane is built from Go modules, once for each recipe. The recipe is the folder `recipe`
beside this file and the flags below; the program's name has the recipe's hash. The first build
compiles for about ten minutes of CPU; later ones find their objects in Go's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).parent / "recipe"
BINARIES = Path(__file__).parents[2] / "build" / "bin"
HELM = "3.22.0"
PROMETHEUS = "github.com/prometheus-operator/prometheus-operator"
PROMETHEUS_VERSION = "0.85.0"
_STAMPED = "k8s.io/component-base/version"


class NoGoError(Exception):
    """A program is not there and cannot be built."""


def version() -> str:
    """The version of Kubernetes that the recipe names, such as 1.37.2."""
    found = re.search(r"k8s\.io/kubernetes v(\S+)", (RECIPE / "go.mod").read_text("utf-8"))
    assert found is not None
    return found[1]


def arguments(target: Path) -> list[str]:
    """The command that builds the control plane, stamped with its version as a release is."""
    full = version()
    major, minor, _ = full.split(".")
    numbers = {"gitVersion": f"v{full}", "gitMajor": major, "gitMinor": minor}
    stamps = [f"-X {_STAMPED}.{name}={value}" for name, value in numbers.items()]
    link = " ".join(["-s -w", *stamps])
    flags = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", link]
    return ["go", "build", *flags, "-o", str(target), "."]


def program() -> Path:
    """Where the control plane of this recipe is, built or not."""
    hashed = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        hashed.update((RECIPE / name).read_bytes())
    hashed.update(" ".join(arguments(Path("kube"))).encode())
    return BINARIES / f"kube-{hashed.hexdigest()[:12]}"


def built() -> Path:
    """The control plane, built if it is not there. Raises NoGoError, CalledProcessError."""
    target = program()
    if not target.exists():
        new = target.with_name(f"{target.name}.{os.getpid()}")
        note = f"building Kubernetes {version()}: about ten minutes of CPU the first time"
        _go(arguments(new), note, CGO_ENABLED="0")
        new.replace(target)
    return target


def built_helm() -> Path:
    """Helm, built if it is not there. Raises NoGoError, CalledProcessError."""
    target = BINARIES / "helm"
    if not target.exists():
        package = f"helm.sh/helm/v3/cmd/helm@v{HELM}"
        note = f"building Helm {HELM}"
        _go(["go", "install", package], note, GOBIN=str(BINARIES), GOFLAGS="-mod=mod")
    return target


def pod_monitor() -> Path:
    """The definition of PodMonitor, from the Prometheus operator's module. Raises as `built`."""
    target = BINARIES / f"podmonitors-{PROMETHEUS_VERSION}.yaml"
    if not target.exists():
        module = f"{PROMETHEUS}@v{PROMETHEUS_VERSION}"
        answer = _go(["go", "mod", "download", "-json", module], f"reading {module}")
        folder = Path(json.loads(answer)["Dir"]) / "example" / "prometheus-operator-crd"
        text = (folder / "monitoring.coreos.com_podmonitors.yaml").read_text("utf-8")
        target.write_text(text, "utf-8")
    return target


def _go(command: list[str], note: str, **environment: str) -> str:
    if shutil.which("go") is None:
        raise NoGoError(f"{note}: needs Go (https://go.dev/doc/install)")
    sys.stderr.write(f"{note}\n")
    BINARIES.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        command,
        cwd=RECIPE,
        env=os.environ | environment,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout
