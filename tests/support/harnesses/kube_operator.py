"""The processes beside Kubernetes, each as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from gangline_kube.core.crd import training_job_crd
from gangline_kube.core.resource import GROUP
from support.fakes.kube_api import KubeServer

SPEC = {"team": "nlp", "run": "true", "resources": {"gpus": 1}}


def prepared(server: KubeServer) -> None:
    """Define TrainingJob, and let the namespace `default` ask for the team nlp."""
    server.do(
        lambda: server.add(
            "customresourcedefinitions", training_job_crd(), group="apiextensions.k8s.io"
        )
    )

    def allow() -> None:
        kind = server.store.kind("", "namespaces")
        item = server.store.get(kind, "", "default")
        notes = {"annotations": {f"{GROUP}/teams": "nlp"}}
        new = {**item, "metadata": {**item["metadata"], **notes}}
        server.store.update(kind, item, new, "", strict=True)

    server.do(allow)


class OperatorProcess:
    """`python -m gangline_kube.operator`, or another module; `kill` ends it at once."""

    def __init__(
        self,
        server: KubeServer,
        gateway_url: str,
        folder: Path,
        module: str = "gangline_kube.operator",
    ) -> None:
        self._module = module
        self._log = folder / f"{module}.log"
        self._environment = {
            **os.environ,
            "GANGLINE_KUBECONFIG": str(server.kubeconfig(folder)),
            "GANGLINE_KUBE_GATEWAY_URL": gateway_url,
            "GANGLINE_KUBE_TOKEN": "a-token",
            "GANGLINE_KUBE_MIRROR_S": "0.2",
            "GANGLINE_KUBE_ROUND_S": "0.2",
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def wait(self, what: str, done: Callable[[], bool], limit_s: float = 200.0) -> None:
        """Until it is so. Fails with the process's last words."""
        deadline = time.monotonic() + limit_s
        while not done():
            words = self._log.read_text(encoding="utf-8")[-4000:]
            assert self.process.poll() is None, words
            assert time.monotonic() < deadline, f"{what}\n{words}"
            time.sleep(0.05)


def create(server: KubeServer, name: str, **spec: Any) -> dict[str, Any]:
    """Create a TrainingJob."""
    item = {"metadata": {"name": name}, "spec": {**SPEC, **spec}}
    made: dict[str, Any] = server.do(lambda: server.add("trainingjobs", item, "default", GROUP))
    return made


def delete(server: KubeServer, name: str) -> None:
    """Delete a TrainingJob, as `kubectl delete --wait=false`."""
    kind = server.store.kind(GROUP, "trainingjobs")
    server.do(lambda: server.store.delete(kind, server.store.get(kind, "default", name), {}))


def change(server: KubeServer, name: str, **spec: Any) -> None:
    """Change fields of a TrainingJob's spec."""
    kind = server.store.kind(GROUP, "trainingjobs")

    def now() -> None:
        item = server.store.get(kind, "default", name)
        new = {**item, "metadata": dict(item["metadata"]), "spec": {**item["spec"], **spec}}
        server.store.update(kind, item, new, "", strict=True)

    server.do(now)


def statuses(server: KubeServer) -> dict[str, dict[str, Any]]:
    """The status of each TrainingJob by its name."""
    items = server.objects("trainingjobs", GROUP)
    return {item["metadata"]["name"]: item.get("status") or {} for item in items}
